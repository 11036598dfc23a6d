"""``spillway lake maintain``."""

from __future__ import annotations

import typer

from spillway.errors import LakeError
from spillway.lake.commands.options import (
    DRIVER_MEMORY,
    MASTER,
    RETENTION,
    Conf,
    DriverMemory,
    HistoryRetention,
    Jars,
    LakePath,
    Master,
    Retention,
)
from spillway.lake.commands.options import conf as spark_conf
from spillway.lake.session import SparkSettings, session_for
from spillway.lake.state import job_record, position
from spillway.lake.tables.formats import lake_tables
from spillway.lake.tables.maintenance import Upkeep, maintain
from spillway.storage import place


def maintain_now(
    path: LakePath,
    retention: Retention = RETENTION,
    history_retention: HistoryRetention = None,
    master: Master = MASTER,
    driver_memory: DriverMemory = DRIVER_MEMORY,
    conf: Conf = None,
    jars: Jars = None,
) -> None:
    """Make small files one, and give up old versions and old history, of a lake whose job is not at
    work.
    """
    lake = place.lake_path(path)
    found = position.existing(lake)
    upkeep = Upkeep(retention, history_retention)
    settings = SparkSettings(master, driver_memory, jars, lake, spark_conf(conf))
    with position.locked(lake), session_for(settings, found.table_format, None) as spark:
        done = maintain(
            spark,
            lake.absolute(),
            found.table_format,
            # Tables are compacted as the job does it: folded, where it merges by position.
            lake_tables(found.table_format, spark, lake, found.slot, merge=_merge_of(lake)),
            upkeep,
            tell=lambda table: typer.echo(str(table)),
        )
    typer.echo(f"{len(done.tables)} tables, {done.points_forgotten} consistent LSNs given up")
    for name, why in done.failures.items():
        typer.echo(f"{name}: {why}", err=True)
    if done.failures:
        raise typer.Exit(1)


def _merge_of(lake: place.LakePath) -> str:
    """Return how the lake's job merges; a lake that was only loaded has had none."""
    try:
        return job_record.load(lake).merge
    except LakeError:
        return "copy"
