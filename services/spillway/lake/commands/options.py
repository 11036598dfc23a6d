"""The options that several ``spillway lake`` commands take, and what their values are checked for."""

from __future__ import annotations

import sys
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from spillway.errors import InvalidRequest
from spillway.lake.load.run import ENVIRONMENT
from spillway.receiver.conninfo import parse_dsn


class TableFormat(StrEnum):
    """What lake tables are made of."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


def duration(text: str | timedelta) -> timedelta:
    """Parse a number with a unit: s, m, h, d or w."""
    if isinstance(text, timedelta):
        return text
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
    if not text[:-1].isdecimal() or text[-1:] not in units:
        raise typer.BadParameter(f"{text!r} is not a time such as 30m, 12h or 7d")
    return timedelta(**{units[text[-1]]: int(text[:-1])})


LakePath = Annotated[
    str,
    typer.Option(
        "--path", "--lake", help="Directory of the lake, or s3://bucket/prefix: history/, current/."
    ),
]
Format = Annotated[
    TableFormat,
    typer.Option("--format", help="delta; iceberg; or parquet, which suits small tables."),
]
IcebergCatalog = Annotated[
    str | None,
    typer.Option(
        help="Iceberg: the catalog for the tables, as PyIceberg's configuration names it; one of the lake's own unless given, "
        "which a lake on S3 can't have.",
    ),
]
IcebergPrefix = Annotated[
    str,
    typer.Option(help="Iceberg: before each namespace, in a catalog that has other tables, too."),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="schema.table to materialise; may be repeated; all unless named."),
]
Grpc = Annotated[str, typer.Option(envvar="SPILLWAY_GRPC", help="host:port of the service.")]
Master = Annotated[str, typer.Option(help="Spark's master.")]
DriverMemory = Annotated[str, typer.Option(help="Heap of Spark's JVM.")]
Jars = Annotated[
    Path | None,
    typer.Option(envvar="SPILLWAY_JARS", help="Folder of Delta's jars; .cache/jars unless named."),
]
SourceDsn = Annotated[
    str,
    typer.Option(
        "--source-dsn",
        envvar=ENVIRONMENT,
        show_default=False,
        help="Connection string of the slot's database, to load from; - reads it from stdin.",
    ),
]

Retention = Annotated[
    timedelta,
    typer.Option(
        parser=duration,
        metavar="TIME",
        help="Delta, Iceberg: how far back readers may pin an LSN, 7d or 12h for one; what only older versions need is removed.",
    ),
]
HistoryRetention = Annotated[
    timedelta | None,
    typer.Option(
        parser=duration,
        metavar="TIME",
        help="Delta, Iceberg: how long changes stay in history; for ever unless given.",
    ),
]

PartitionHistory = Annotated[
    str | None,
    typer.Option(
        metavar="UNIT",
        help="Delta: partition the histories that are made by day, month or year of their commits; or none.",
    ),
]
PartitionBy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE=COLUMN,…",
        help="Delta: what a current table is partitioned by: columns, or day(column), month(column), year(column) of "
        "times; may be repeated.",
    ),
]
ClusterBy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE=COLUMN,…",
        help="Delta: columns by which maintenance brings a current table's rows together; may be repeated.",
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
