"""``spillway lake load``, and the option that names the source, which ``spillway lake run --initial-load`` takes, too."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Final

import typer

from spillway.errors import InvalidRequest
from spillway.lake.initial_load_run import ENVIRONMENT, LoadSettings, run_load
from spillway.lake.slot import DEFAULT_ADDRESS
from spillway.receiver.conninfo import parse_dsn

SourceDsn = Annotated[
    str,
    typer.Option(
        "--source-dsn",
        envvar=ENVIRONMENT,
        show_default=False,
        help="Connection string of the slot's database, to load from; - reads it from stdin.",
    ),
]

_SECRETS: Final = ("password", "sslpassword")


def source_dsn(context: typer.Context, dsn: str) -> str:
    """Return the DSN that was given.

    Raises:
        InvalidRequest: it has a password and stands on the command line, where every user of the machine reads it.
    """
    if dsn == "-":
        return sys.stdin.readline().strip()
    given = context.get_parameter_source("source")
    if given is not None and given.name == "COMMANDLINE":
        parameters = parse_dsn(dsn)
        if any(parameters.get(secret) for secret in _SECRETS):
            raise InvalidRequest(
                "a password on a command line is seen by all users of the machine",
                hint=f"Set {ENVIRONMENT}, or give --source-dsn - and the DSN on stdin, or leave the password to "
                "PGPASSWORD or ~/.pgpass.",
            )
    return dsn


def load(
    context: typer.Context,
    slot: Annotated[str, typer.Option(help="The lake's slot.")],
    path: Annotated[Path, typer.Option("--path", "--lake", help="Directory of the lake.")],
    source: SourceDsn = "",
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="schema.table, a partitioned one for its partitions; may be repeated; all that were not loaded yet "
            "unless named."
        ),
    ] = None,
    resync: Annotated[
        bool, typer.Option("--resync", help="Load anew what was loaded before.")
    ] = False,
    grpc: Annotated[
        str, typer.Option(envvar="SPILLWAY_GRPC", help="host:port of the service.")
    ] = DEFAULT_ADDRESS,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[*]",
    driver_memory: Annotated[str, typer.Option(help="Heap of Spark's JVM.")] = "2g",
    jars: Annotated[
        Path | None,
        typer.Option(
            envvar="SPILLWAY_JARS", help="Folder of Delta's jars; .cache/jars unless named."
        ),
    ] = None,
) -> None:
    """Load tables as they are at the source, beside a job that runs or without one."""
    settings = LoadSettings(
        slot=slot,
        path=path,
        source_dsn=source_dsn(context, source),
        tables=tuple(table or ()),
        resync=resync,
        grpc=grpc,
        master=master,
        driver_memory=driver_memory,
        jars=jars,
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    count = run_load(settings, lambda step: typer.echo(str(step)), stopping=stopping)
    typer.echo(f"{count} tables loaded into {path}")
