"""Copies of a server's directory, as they are made for backups, and servers restored from them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from spillway.demo.private_postgres import server_account

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


def back_up_whole(database: Database, target: Path) -> None:
    """Make a base backup with the WAL that it needs, as of now: one that can be started."""
    back_up(database, target, lambda: None)
    shutil.copytree(
        database.cluster.wal_directory, target / "pg_wal", ignore=shutil.ignore_patterns("*.tmp")
    )
    (target / "pg_replslot").mkdir()


def restore(cluster: Cluster, backup: Path) -> None:
    """Have *cluster* begin again from a backup of :func:`back_up_whole`, at the address it has."""
    cluster.stop("immediate")
    shutil.rmtree(cluster.data_directory)
    shutil.copytree(backup, cluster.data_directory)
    give_to_server(cluster)
    cluster.start()


def give_to_server(cluster: Cluster) -> None:
    """Have a copied data directory belong to whom servers run as."""
    cluster.data_directory.chmod(0o700)
    if (account := server_account()) is not None:
        for path in (cluster.data_directory, *cluster.data_directory.rglob("*")):
            os.chown(path, account.uid, account.gid)
