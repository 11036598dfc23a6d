"""``spillway lake load``."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from spillway.consumer.connect import DEFAULT_ADDRESS
from spillway.lake.commands.options import (
    DRIVER_MEMORY,
    MASTER,
    ClusterBy,
    Conf,
    DriverMemory,
    Grpc,
    Jars,
    LakePath,
    Masked,
    Master,
    PartitionBy,
    PartitionHistory,
    PartitionRoot,
    SourceDsn,
    source_dsn,
)
from spillway.lake.commands.options import conf as spark_conf
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.state import shown_tables
from spillway.lake.tables import layout
from spillway.storage.place import lake_path


def load(
    context: typer.Context,
    slot: Annotated[str, typer.Option(help="The lake's slot.")],
    path: LakePath,
    source: SourceDsn = "",
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="schema.table, a partitioned one for its partitions; may be repeated; all that "
            "were not loaded yet unless named."
        ),
    ] = None,
    resync: Annotated[
        bool, typer.Option("--resync", help="Load anew what was loaded before.")
    ] = False,
    partition_history: PartitionHistory = None,
    partition_by: PartitionBy = None,
    cluster_by: ClusterBy = None,
    partition_root: PartitionRoot = None,
    mask: Masked = None,
    grpc: Grpc = DEFAULT_ADDRESS,
    master: Master = MASTER,
    driver_memory: DriverMemory = DRIVER_MEMORY,
    conf: Conf = None,
    jars: Jars = None,
) -> None:
    """Load tables as they are at the source, beside a job that runs or without one."""
    settings = LoadSettings(
        slot=slot,
        path=lake_path(path),
        source_dsn=source_dsn(context, source),
        tables=tuple(table or ()),
        resync=resync,
        layout=layout.parse(partition_history, partition_by or (), cluster_by or ()),
        shown=shown_tables.parse(partition_root or (), mask or ()),
        grpc=grpc,
        master=master,
        driver_memory=driver_memory,
        conf=spark_conf(conf),
        jars=jars,
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    count = run_load(settings, lambda step: typer.echo(str(step)), stopping=stopping)
    typer.echo(f"{count} tables loaded into {path}")
