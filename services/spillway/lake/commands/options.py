"""The options that several ``spillway lake`` commands take, and what their values are checked
for.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from spillway.declarations import spark_settings
from spillway.declarations.command_line import duration, typer_option
from spillway.declarations.lake_options import lake_option
from spillway.errors import InvalidRequest
from spillway.lake.load.run import ENVIRONMENT
from spillway.pg.conninfo import parse_dsn


class TableFormat(StrEnum):
    """What lake tables are made of."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"


LakePath = Annotated[
    str,
    typer.Option(
        "--path",
        "--lake",
        help="Directory of the lake, s3://bucket/prefix or az://container/prefix: history/, "
        "current/.",
    ),
]
Format = Annotated[
    TableFormat,
    typer.Option("--format", help="delta; iceberg; or parquet, which suits small tables."),
]
IcebergCatalog = Annotated[str | None, typer_option("iceberg_catalog")]
IcebergPrefix = Annotated[str, typer_option("iceberg_prefix")]
IcebergLocation = Annotated[str, typer_option("iceberg_location")]
RegisterIn = Annotated[str | None, typer_option("register_in")]
RegisterPrefix = Annotated[str | None, typer_option("register_prefix")]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="schema.table to materialise; may be repeated; all unless named."),
]
Grpc = Annotated[str, typer.Option(envvar="SPILLWAY_GRPC", help="host:port of the service.")]
Master = Annotated[str, typer_option("master")]
Conf = Annotated[list[str] | None, typer_option("conf")]
DriverMemory = Annotated[str, typer_option("driver_memory")]
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

Retention = Annotated[timedelta, typer_option("retention")]
HistoryRetention = Annotated[timedelta | None, typer_option("history_retention")]
PartitionHistory = Annotated[str | None, typer_option("partition_history")]
PartitionBy = Annotated[list[str] | None, typer_option("partition_by")]
ClusterBy = Annotated[list[str] | None, typer_option("cluster_by")]
PartitionRoot = Annotated[list[str] | None, typer_option("partition_root")]
Masked = Annotated[list[str] | None, typer_option("mask")]

#: What the commands have without them.
MASTER: Final = str(lake_option("master").default)
DRIVER_MEMORY: Final = str(lake_option("driver_memory").default)
RETENTION: Final = duration(str(lake_option("retention").default))

_SECRETS: Final = ("password", "sslpassword")


def conf(given: list[str] | None) -> dict[str, str]:
    """Return Spark's settings that were given.

    Raises:
        InvalidRequest: one can't be.
    """
    return spark_settings.given(given or (), lake_option("conf").option)


def source_dsn(context: typer.Context, dsn: str) -> str:
    """Return the DSN that was given.

    Raises:
        InvalidRequest: it has a password and stands on the command line, where every user of the
            machine reads it.
    """
    if dsn == "-":
        return sys.stdin.readline().strip()
    given = context.get_parameter_source("source")
    if given is not None and given.name == "COMMANDLINE":
        parameters = parse_dsn(dsn)
        if any(parameters.get(secret) for secret in _SECRETS):
            raise InvalidRequest(
                "a password on a command line is seen by all users of the machine",
                hint=f"Set {ENVIRONMENT}, or give --source-dsn - and the DSN on stdin, or leave "
                "the password to PGPASSWORD or ~/.pgpass.",
            )
    return dsn
