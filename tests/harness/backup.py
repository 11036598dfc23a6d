"""Copies of a server's directory, as they are made for backups."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Cluster, Database


def copy(cluster: Cluster, target: Path) -> None:
    """Copy the data directory without its WAL; what vanishes meanwhile was temporary."""
    shutil.copytree(
        cluster.data_directory,
        target,
        ignore=shutil.ignore_patterns("pg_wal", "pg_replslot", "pgsql_tmp*", "postmaster.*"),
        ignore_dangling_symlinks=True,
    )


def back_up(database: Database, target: Path, during: Callable[[], None]) -> None:
    """Make a base backup as pg_basebackup does, and write while it is made."""
    old = database.cluster.major < 15
    with database.connect() as connection:
        begin = "pg_start_backup('b', true, false)" if old else "pg_backup_start('b', true)"
        connection.execute(f"SELECT {begin}")
        during()
        copy(database.cluster, target)
        during()
        end = "pg_stop_backup(false, false)" if old else "pg_backup_stop(false)"
        row = connection.execute(f"SELECT labelfile FROM {end}").fetchone()
        assert row is not None
        (target / "backup_label").write_text(row[0])
