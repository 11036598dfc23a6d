"""``spillway lake``: the commands; :mod:`spillway.cli` mounts :data:`app`."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spillway.consumer.connect import DEFAULT_ADDRESS
from spillway.declarations import times
from spillway.declarations.command_line import takes
from spillway.declarations.lake_options import LAKE_OPTIONS
from spillway.errors import InvalidRequest
from spillway.lake.commands.load import load
from spillway.lake.commands.maintain import maintain_now
from spillway.lake.commands.options import (
    Format,
    Grpc,
    Jars,
    LakePath,
    SourceDsn,
    TableFormat,
    Tables,
    conf,
    source_dsn,
)
from spillway.lake.commands.pause import pause_tables
from spillway.lake.commands.pin import pin_tables
from spillway.lake.commands.register import register_tables
from spillway.lake.commands.replay import replay
from spillway.lake.commands.resume import resume_tables
from spillway.lake.commands.resync import cancel_resync, resync_tables
from spillway.lake.commands.verify import points, verify
from spillway.lake.job.check import check_lake
from spillway.lake.job.run import JobSettings
from spillway.lake.job.several import run_jobs, settings_of
from spillway.lake.job.status_file import LakeStatusFile
from spillway.lake.metrics import LakeMetrics, MetricsServer
from spillway.lake.state import shown_tables
from spillway.lake.tables import layout
from spillway.lake.tables.maintenance import Upkeep
from spillway.pg.lsn import Lsn
from spillway.storage.place import lake_path

if TYPE_CHECKING:
    from collections.abc import Mapping

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
app.command("pin")(pin_tables)
app.command("maintain")(maintain_now)
app.command("register")(register_tables)
app.command("pause")(pause_tables)
app.command("resume")(resume_tables)
app.command("resync")(resync_tables)
app.command("cancel-resync")(cancel_resync)


#: The command's own, and those that make a field of the job's settings together. The others are
#: fields of their own names.
TAKEN_APART: Final = frozenset(
    {
        "metrics_port",
        "retention", "history_retention", "maintenance_interval",
        "partition_history", "partition_by", "cluster_by", "conf", "partition_root", "mask",
        "soft_deletes", "merge_interval",
    }
)  # fmt: skip


def job_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the job's settings the options are; one that is not given is not among
    them.
    """
    settings: dict[str, Any] = {
        name: str(value) if isinstance(value, StrEnum) else value
        for name, value in options.items()
        if name not in TAKEN_APART and value is not None
    }
    settings["upkeep"] = Upkeep(
        options["retention"],
        options["history_retention"],
        options["maintenance_interval"] or None,
    )
    settings["layout"] = layout.parse(
        options["partition_history"], options["partition_by"] or (), options["cluster_by"] or ()
    )
    settings["conf"] = conf(options["conf"])
    settings["merge_intervals"] = times.in_seconds(
        times.given(options["merge_interval"] or (), "--merge-interval")
    )
    settings["shown"] = shown_tables.parse(
        options["partition_root"] or (), options["mask"] or (), options["soft_deletes"] or ()
    )
    return settings


@app.command()
@takes(LAKE_OPTIONS, before="grpc", with_defaults=True)
def check(
    slot: Annotated[str, typer.Option(help="The slot, whether or not it is there yet.")],
    path: LakePath,
    table_format: Format = TableFormat.DELTA,
    grpc: Grpc = DEFAULT_ADDRESS,
    jars: Jars = None,
    **options: Any,
) -> None:
    """Look whether a lake can be filled, and say everything that is in the way; no Spark is
    started, and nothing is left there.
    """
    lake = lake_path(path)
    settings = JobSettings(
        slot=slot,
        path=lake,
        checkpoint=lake / "_spillway" / "checkpoint",
        table_format=table_format.value,
        grpc=grpc,
        jars=jars,
        **job_settings(options),
    )
    for line in check_lake(settings):
        typer.echo(line)


@app.command()
@takes(LAKE_OPTIONS, before="metrics_host", with_defaults=True)
def run(
    context: typer.Context,
    slot: Annotated[
        list[str],
        typer.Option(
            help="The slot; its plugin must be arrow. A lake needs one of its own; may be "
            "repeated: then each has a lake in a directory below the path."
        ),
    ],
    path: LakePath,
    table_format: Format = TableFormat.DELTA,
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
            help="Go on although the slot was moved past what the lake has, up to this LSN: what "
            "lies between is given up.",
        ),
    ] = None,
    grpc: Grpc = DEFAULT_ADDRESS,
    jars: Jars = None,
    **options: Any,
) -> None:
    """Keep lake tables in step with slots: a change history and the current rows of each table."""
    if status_file is not None and len(slot) > 1:
        raise InvalidRequest(
            "a status file is about one slot", hint="Run a job a slot, or scrape --metrics-port."
        )
    with ExitStack() as held:
        status = None if status_file is None else held.enter_context(LakeStatusFile(status_file))
        lake = lake_path(path)
        every = JobSettings(
            slot="",
            path=lake,
            checkpoint=lake,
            table_format=table_format.value,
            trigger=(Trigger.AVAILABLE_NOW if available_now else trigger).value,
            grpc=grpc,
            tables=tuple(table or ()),
            until_lsn=None if until_lsn is None else Lsn.parse(until_lsn),
            skip_to=None if skip_to is None else Lsn.parse(skip_to),
            jars=jars,
            initial_load=initial_load,
            source_dsn=source_dsn(context, source),
            **job_settings(options),
        )
        jobs = settings_of(every, slot, lake_path(checkpoint) if checkpoint else None)
        metrics_port: int | None = options["metrics_port"]
        metrics = None if metrics_port is None else LakeMetrics()
        if metrics is not None and metrics_port is not None:
            server = held.enter_context(MetricsServer(metrics, metrics_port, metrics_host))
            typer.echo(f"metrics on http://{metrics_host}:{server.port}/metrics")
        done = run_jobs(jobs, tell=typer.echo, metrics=metrics, status=status)
    for job in jobs:
        summary = done[job.slot]
        for trouble in (*summary.quarantined, *summary.not_loaded, *summary.not_merged):
            typer.echo(trouble)
        changes = sum(summary.changes.values())
        typer.echo(
            f"{changes} changes of {len(summary.changes)} tables in {summary.batches} batches; "
            f"the lake at {job.path} has everything before {summary.lsn}"
        )
