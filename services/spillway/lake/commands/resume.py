"""``spillway lake resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.lake.commands.options import (  # noqa: TC001 - typer reads the annotations
    LakePath,
    Tables,
)
from spillway.lake.state import position, quarantine
from spillway.storage.place import lake_path


def resume_tables(
    path: LakePath,
    table: Tables = None,
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up",
            help="Of tables that were loaded anew: what is set aside from before that is given up, "
            "their histories lack it.",
        ),
    ] = False,
) -> None:
    """Have tables come back from quarantine with the job's next batch; all that are in it without
    --table.
    """
    lake = lake_path(path)
    position.existing(lake)
    with position.file_errors(lake):
        states = quarantine.resume(lake, table or (), gives_up=give_up)
    for state in states:
        typer.echo(f"{state.table} comes back with the job's next batch")
    if not states:
        typer.echo("no table is in quarantine")
