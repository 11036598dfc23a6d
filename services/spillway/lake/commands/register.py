"""``spillway lake register``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from spillway.errors import InvalidRequest
from spillway.lake.catalogs import registration
from spillway.lake.commands.options import (
    DRIVER_MEMORY,
    DriverMemory,
    Jars,
    LakePath,
    RegisterIn,
    RegisterPrefix,
)
from spillway.lake.session import SparkSettings, session_for
from spillway.lake.state import position
from spillway.storage.place import lake_path


def register_tables(
    path: LakePath,
    register_in: RegisterIn = None,
    register_prefix: RegisterPrefix = None,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove what was registered; the tables stay."),
    ] = False,
    driver_memory: DriverMemory = DRIVER_MEMORY,
    jars: Jars = None,
) -> None:
    """Register what a catalog lacks of a lake's Delta tables, while the lake's job is not at
    work; in the catalog that was told last, unless another is named.
    """
    lake = lake_path(path)
    found = position.existing(lake)
    last = registration.where_registered(lake) or (None, "")
    address = register_in or last[0]
    prefix = last[1] if register_prefix is None else register_prefix
    if address is None:
        raise InvalidRequest(
            f"the tables of {lake} were registered nowhere yet",
            hint="Name a catalog: --register-in thrift://host:9083, or glue.",
        )
    registration.check_address(address, found.table_format)
    with position.locked(lake), ExitStack() as held:
        spark = None
        if registration.needs_spark(address):
            settings = SparkSettings("local[1]", driver_memory, jars, lake)
            session = session_for(settings, found.table_format, None, short=True)
            spark = held.enter_context(session)
        entries = registration.Registration(lake, address, prefix, spark)
        done = entries.remove() if remove else entries.keep(again=True)
    for what, names in (
        ("registered as", done.made),
        ("is there as", done.changed),
        ("is no longer", done.removed),
    ):
        for key, name in names.items():
            typer.echo(f"{key} {what} {name}")
    for key, why in done.troubles.items():
        typer.echo(f"{key}: {why}", err=True)
    if done.troubles:
        raise typer.Exit(1)
