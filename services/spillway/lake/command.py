"""``spillway lake``: the commands; :mod:`spillway.cli` mounts :data:`app`."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from spillway.errors import InvalidRequest
from spillway.lake import layout
from spillway.lake.command_options import (
    ClusterBy,
    DriverMemory,
    Format,
    Grpc,
    HistoryRetention,
    IcebergCatalog,
    IcebergPrefix,
    Jars,
    LakePath,
    Master,
    PartitionBy,
    PartitionHistory,
    Retention,
    SourceDsn,
    TableFormat,
    Tables,
    duration,
    source_dsn,
)
from spillway.lake.initial_load_command import load
from spillway.lake.job import JobSettings
from spillway.lake.jobs import run_jobs, settings_of
from spillway.lake.maintain_command import maintain_now
from spillway.lake.maintenance import Upkeep
from spillway.lake.metrics import LakeMetrics, MetricsServer
from spillway.lake.replay_command import replay
from spillway.lake.schema_policy import OnSchemaChange
from spillway.lake.slot_connection import DEFAULT_ADDRESS
from spillway.lake.status_file import StatusFile
from spillway.lake.storage import lake_path
from spillway.lake.verify_command import points, verify
from spillway.pg.lsn import Lsn

app = typer.Typer(
    name="lake",
    help="Materialise a slot into lake tables, with Spark.",
    no_args_is_help=True,
    # The program's own completion reaches in here.
    add_completion=False,
)


class Trigger(StrEnum):
    """When the job takes changes, and whether it ends by itself."""

    AVAILABLE_NOW = "available-now"
    CONTINUOUS = "continuous"


for command in (load, replay, verify, points):
    app.command()(command)
app.command("maintain")(maintain_now)


@app.command()
def run(
    context: typer.Context,
    slot: Annotated[
        list[str],
        typer.Option(
            help="The slot; its plugin must be arrow. A lake needs one of its own; may be repeated: then each has "
            "a lake in a directory below the path."
        ),
    ],
    path: LakePath,
    table_format: Format = TableFormat.DELTA,
    iceberg_catalog: IcebergCatalog = None,
    iceberg_prefix: IcebergPrefix = "",
    trigger: Annotated[
        Trigger, typer.Option(help="Take what there is and end, or go on until SIGTERM.")
    ] = Trigger.AVAILABLE_NOW,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="The same as --trigger available-now.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Directory of Spark's checkpoint; below the lake's path unless named."),
    ] = None,
    interval: Annotated[
        float, typer.Option(help="Continuous: least seconds between two batches.")
    ] = 1.0,
    table: Tables = None,
    initial_load: Annotated[
        bool,
        typer.Option(
            "--initial-load",
            help="Load the tables that the lake doesn't have: rows from before the slot.",
        ),
    ] = False,
    source: SourceDsn = "",
    until_lsn: Annotated[
        str | None, typer.Option(help="Wait until this LSN is decoded before the end is fixed.")
    ] = None,
    max_bytes_per_batch: Annotated[
        int, typer.Option(help="Bytes of WAL that one batch spans.")
    ] = 256 << 20,
    on_schema_change: Annotated[
        OnSchemaChange,
        typer.Option(
            help="Where a table's columns change, or it is created again: follow, stop before, or set it aside."
        ),
    ] = OnSchemaChange.EVOLVE,
    maintenance_interval: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="Delta, Iceberg: between two rounds of compaction and removal of what is not kept; 0s: none.",
        ),
    ] = timedelta(hours=1),
    retention: Retention = timedelta(days=7),
    history_retention: HistoryRetention = None,
    partition_history: PartitionHistory = None,
    partition_by: PartitionBy = None,
    cluster_by: ClusterBy = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve Prometheus metrics on this port; 0: on a free one."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address that the metrics are served on.")
    ] = "127.0.0.1",
    status_file: Annotated[
        Path | None,
        typer.Option(help="One slot: tell of the job in this file, as JSON, replaced as a whole."),
    ] = None,
    skip_to: Annotated[
        str | None,
        typer.Option(
            metavar="LSN",
            help="Go on although the slot was moved past what the lake has, up to this LSN: what lies between is given up.",
        ),
    ] = None,
    grpc: Grpc = DEFAULT_ADDRESS,
    master: Master = "local[*]",
    driver_memory: DriverMemory = "2g",
    jars: Jars = None,
) -> None:
    """Keep lake tables in step with slots: a change history and the current rows of each table."""
    if status_file is not None and len(slot) > 1:
        raise InvalidRequest(
            "a status file is about one slot", hint="Run a job a slot, or scrape --metrics-port."
        )
    with ExitStack() as held:
        status = None if status_file is None else held.enter_context(StatusFile(status_file))
        lake = lake_path(path)
        every = JobSettings(
            slot="",
            path=lake,
            checkpoint=lake,
            table_format=table_format.value,
            iceberg_catalog=iceberg_catalog,
            iceberg_prefix=iceberg_prefix,
            trigger=(Trigger.AVAILABLE_NOW if available_now else trigger).value,
            interval_s=interval,
            grpc=grpc,
            tables=tuple(table or ()),
            until_lsn=None if until_lsn is None else Lsn.parse(until_lsn),
            skip_to=None if skip_to is None else Lsn.parse(skip_to),
            max_bytes_per_batch=max_bytes_per_batch,
            on_schema_change=on_schema_change.value,
            master=master,
            driver_memory=driver_memory,
            jars=jars,
            upkeep=Upkeep(retention, history_retention, maintenance_interval or None),
            layout=layout.parse(partition_history, partition_by or (), cluster_by or ()),
            initial_load=initial_load,
            source_dsn=source_dsn(context, source) if initial_load else "",
        )
        jobs = settings_of(every, slot, lake_path(checkpoint) if checkpoint else None)
        metrics = None if metrics_port is None else LakeMetrics()
        if metrics is not None and metrics_port is not None:
            server = held.enter_context(MetricsServer(metrics, metrics_port, metrics_host))
            typer.echo(f"metrics on http://{metrics_host}:{server.port}/metrics")
        done = run_jobs(jobs, tell=typer.echo, metrics=metrics, status=status)
    for job in jobs:
        summary = done[job.slot]
        for set_aside in summary.quarantined:
            typer.echo(set_aside)
        changes = sum(summary.changes.values())
        typer.echo(
            f"{changes} changes of {len(summary.changes)} tables in {summary.batches} batches; "
            f"the lake at {job.path} has everything before {summary.lsn}"
        )
