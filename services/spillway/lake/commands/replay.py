"""The command ``spillway lake replay``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from spillway.lake.commands.options import (
    DRIVER_MEMORY,
    MASTER,
    Conf,
    DriverMemory,
    Format,
    IcebergCatalog,
    IcebergLocation,
    IcebergPrefix,
    Jars,
    LakePath,
    Master,
    TableFormat,
    Tables,
)
from spillway.lake.commands.options import conf as spark_conf
from spillway.pg.lsn import Lsn
from spillway.pg.option_list import parse_option_list
from spillway.storage.place import lake_path


def replay(
    archive: Annotated[Path, typer.Option(help="Directory of WAL segment files.")],
    path: LakePath,
    state: Annotated[
        Path | None, typer.Option(help="Begin with a saved decoder state (<lsn>.snap).")
    ] = None,
    data_directory: Annotated[
        Path | None,
        typer.Option(help="Begin with the catalog of a base backup or a stopped server."),
    ] = None,
    from_lsn: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Replay what commits from this LSN on; unless given, from where the lake ends, or "
            "decoding can begin.",
        ),
    ] = None,
    to_lsn: Annotated[
        str | None,
        typer.Option("--to", help="Replay what commits before this LSN; unless given, all."),
    ] = None,
    slot: Annotated[
        str, typer.Option(help="A new lake's: the slot that is to go on with it.")
    ] = "",
    source: Annotated[str, typer.Option(help="A new lake's: that slot's source.")] = "",
    database: Annotated[
        str, typer.Option(help="A new lake's, and --data-directory's: the database.")
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="An option of the slot; may be repeated."
        ),
    ] = None,
    table_format: Format = TableFormat.DELTA,
    iceberg_catalog: IcebergCatalog = None,
    iceberg_prefix: IcebergPrefix = "",
    iceberg_location: IcebergLocation = "lake",
    table: Tables = None,
    stretch_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of WAL that one task decodes.")
    ] = 64 << 20,
    scratch: Annotated[
        Path | None,
        typer.Option(
            help="Directory that driver and workers share, for files of the replay's; below the "
            "lake, or a temporary one, unless named."
        ),
    ] = None,
    master: Master = MASTER,
    driver_memory: DriverMemory = DRIVER_MEMORY,
    conf: Conf = None,
    jars: Jars = None,
) -> None:
    """Decode an archive of WAL with all of Spark's cores into the tables of `lake run`, without a
    service.
    """
    from spillway.lake.replay import ReplaySettings, run_replay  # noqa: PLC0415 - heavy

    summary = run_replay(
        ReplaySettings(
            archive=archive,
            path=lake_path(path),
            state=state,
            data_directory=data_directory,
            from_lsn=None if from_lsn is None else Lsn.parse(from_lsn),
            to_lsn=None if to_lsn is None else Lsn.parse(to_lsn),
            slot=slot,
            source=source,
            database=database,
            options=parse_option_list(option),
            table_format=table_format.value,
            iceberg_catalog=iceberg_catalog,
            iceberg_prefix=iceberg_prefix,
            iceberg_location=iceberg_location,
            tables=tuple(table or ()),
            stretch_bytes=stretch_bytes,
            scratch=scratch,
            master=master,
            driver_memory=driver_memory,
            conf=spark_conf(conf),
            jars=jars,
        ),
        tell=typer.echo,
    )
    typer.echo(
        f"{sum(summary.changes.values())} changes of {len(summary.changes)} tables in "
        f"{summary.seconds:.1f} s; the lake at {path} has everything before {summary.to_lsn}"
    )
