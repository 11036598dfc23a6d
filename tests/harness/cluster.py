"""A PostgreSQL cluster for tests, and a database in it."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from harness import initdb_template
from harness.servers import bin_directory
from spillway.demo.private_postgres import SUPERUSER, PrivatePostgres, Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY: Final = Path("/dev/shm")
#: Servers are in memory only while so much is free of it: each may grow to a gigabyte of WAL.
_ROOM: Final = 8 << 30
#: how long who reads a slot may take to end
_SLOTS_GONE_S: Final = 60.0


def _in_memory() -> Path | None:
    """Return a file system in memory, where there is room in both.

    To make a server or a database and to drop it again is to make and delete hundreds of files,
    and the kernel needs a third of the time for it there.
    """
    meminfo = Path("/proc/meminfo")
    if not (os.access(_MEMORY, os.W_OK | os.X_OK) and meminfo.exists()):
        return None
    available = re.search(r"^MemAvailable: +([0-9]+) kB$", meminfo.read_text(), re.MULTILINE)
    has_room = available is not None and int(available[1]) << 10 >= _ROOM
    return _MEMORY if has_room and shutil.disk_usage(_MEMORY).free >= _ROOM else None


class Cluster(PrivatePostgres):
    """A private server of one major. ``fsync`` is off: a killed process loses nothing by that, only
    a power cut would. ``autovacuum`` is off: its transactions would stand among those that a test
    counts. WAL is kept: a bootstrap may make a checkpoint after the one that its decoder begins at.

    ``with Cluster(15, wal_segment_size_mb=1, full_page_writes=False) as cluster: …``
    """

    def __init__(
        self,
        major: int = 15,
        *,
        directory: Path | None = None,
        wal_segment_size_mb: int = 16,
        initdb_options: Sequence[str] = (),
        **settings: Setting,
    ) -> None:
        options = [*initdb_options]
        if wal_segment_size_mb != 16:
            options.append(f"--wal-segsize={wal_segment_size_mb}")
        super().__init__(
            bin_directory(major),
            directory,
            parent=None if directory else _in_memory(),
            settings={
                "fsync": False,
                "autovacuum": False,
                "wal_keep_size": "512MB",
                "max_prepared_transactions": 20,
                # Each subscription that writes into the server has an origin or two. Before 18
                # max_replication_slots is their bound, too.
                **({"max_active_replication_origins": 64} if major >= 18 else {}),
                **settings,
            },
            initdb_options=options,
        )
        self.major = major
        self.wal_segment_size = wal_segment_size_mb * 1024 * 1024

    def initialise(self) -> None:
        """Make the data directory of a copy of what initdb made for the first such cluster."""
        self.make_own_directory()
        initdb_template.copy(
            initdb_template.template(self.bin_directory, self.initdb_options), self.data_directory
        )

    def connect(
        self, dbname: str = "postgres", *, autocommit: bool = True, user: str = SUPERUSER
    ) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.dsn(dbname, user), autocommit=autocommit)

    def execute(
        self, sql: str, params: Sequence[object] | None = None, *, dbname: str = "postgres"
    ) -> None:
        """Run *sql* with autocommit; without *params* it may hold several statements."""
        with self.connect(dbname) as connection:
            connection.execute(sql, params)

    def query(
        self, sql: str, params: Sequence[object] | None = None, *, dbname: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        with self.connect(dbname) as connection:
            return connection.execute(sql, params).fetchall()

    def value(
        self, sql: str, params: Sequence[object] | None = None, *, dbname: str = "postgres"
    ) -> Any:
        """The one value of a query that gives one row of one column."""
        ((only,),) = self.query(sql, params, dbname=dbname)
        return only

    def create_database(self, name: str) -> Database:
        with self.connect() as connection:
            connection.execute(
                psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
            )
        return Database(self, name)

    def drop_database(self, name: str) -> None:
        """Drop a database and the logical slots on it, whoever is connected."""
        with self.connect() as connection:
            deadline = time.monotonic() + _SLOTS_GONE_S
            # Who is told to end, ends when it next looks, and only then the slot can be dropped.
            while True:
                connection.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                    " WHERE database = %s AND NOT active",
                    [name],
                )
                left = connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                    " WHERE database = %s",
                    [name],
                ).fetchall()
                if not left:
                    break
                assert time.monotonic() < deadline, f"{len(left)} slots of {name} stay active"
                time.sleep(0.02)
            connection.execute(
                psycopg.sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
                    psycopg.sql.Identifier(name)
                )
            )

    def wal_lsn(self) -> str:
        """Where the server writes WAL next, as text."""
        return str(self.value("SELECT pg_current_wal_insert_lsn()"))


@dataclass(frozen=True)
class Database:
    """A database of a cluster."""

    cluster: Cluster
    name: str

    @property
    def dsn(self) -> str:
        return self.cluster.dsn(self.name)

    @property
    def oid(self) -> int:
        return int(self.value("SELECT oid FROM pg_database WHERE datname = current_database()"))

    def connect(
        self, *, autocommit: bool = True, user: str = SUPERUSER
    ) -> psycopg.Connection[tuple[Any, ...]]:
        return self.cluster.connect(self.name, autocommit=autocommit, user=user)

    def execute(self, sql: str, params: Sequence[object] | None = None) -> None:
        self.cluster.execute(sql, params, dbname=self.name)

    def query(self, sql: str, params: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        return self.cluster.query(sql, params, dbname=self.name)

    def value(self, sql: str, params: Sequence[object] | None = None) -> Any:
        return self.cluster.value(sql, params, dbname=self.name)
