"""A subscription's initial copy: CREATE SUBSCRIPTION's table sync beside Spillway's, in one run.
And pgcopydb beside it, if it is on PATH.

    python -m bench.initial_copy [--rows N] [--rounds N]

The same two tables, of N rows each with a primary key and one more index, go from one server of 18
to another, by two connections: PostgreSQL's two table sync workers, in text and in binary, then
ours, as it is and without ``defer_indexes``. The target is emptied before each. The source pairs
its snapshot with an LSN by a temporary slot in all of them, so no service takes part. Wall time,
and CPU seconds of both servers and of the program, which don't change with whoever else is at work.

``pgcopydb clone`` has its turn between servers of a major that it knows, with two processes for
tables and two for indexes, and ours between the same. It makes the tables itself, so they are
dropped before; its primary keys are made after the rows, ours are there. ``VACUUM ANALYZE``, which
it does at the end, is part of what it does, and not of what ours does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

from bench.machine import tree_cpu_seconds
from bench.results import BenchFailed
from harness.cluster import Cluster
from spillway.apply.sync.settings import SyncSettings
from spillway.apply.sync.states import TABLES_SQL
from spillway.apply.sync.table_sync import TableSync
from spillway.apply.target.connection import connect_target
from spillway.apply.target.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Database

#: rows of the comparison
STOCK_TEXT: Final = "PostgreSQL, text"
OURS: Final = "Spillway"
PGCOPYDB: Final = "pgcopydb"
#: ours between the servers that pgcopydb is measured with
OURS_BESIDE: Final = "Spillway, beside pgcopydb"
_MAJOR: Final = 18
#: Debian's pgcopydb, and the pg_dump that it comes with, know no later one.
_PGCOPYDB_MAJOR: Final = 15
_TABLES: Final = 2
_MEMORY: Final[dict[str, Any]] = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="PostgreSQL's initial copy and ours")
    parser.add_argument("--rows", type=int, default=500_000, help="of each of two tables")
    parser.add_argument("--rounds", type=int, default=1, help="of everything")
    given = parser.parse_args()
    compare(given.rows, given.rounds, lambda line: print(line, flush=True))


def compare(rows: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Copy two tables of *rows* rows by each, *rounds* times; return the medians by who copied.

    Raises:
        BenchFailed: rows are missing.
    """
    runs: dict[str, list[dict[str, float]]] = {}

    def measure(
        major: int, copies: dict[str, Callable[[Database, Database], None]], **settings: Any
    ) -> None:
        with (
            Cluster(major, **_MEMORY) as here,
            Cluster(major, **settings, **_MEMORY) as there,
        ):
            source, target = here.create_database("source"), there.create_database("target")
            _fill(source, target, rows)
            for _ in range(rounds):
                for name, copy in copies.items():
                    run = _measure(source, target, copy)
                    if run.pop("rows") != _TABLES * rows:
                        raise BenchFailed(f"first copy, {name}: rows are missing")
                    runs.setdefault(name, []).append(run)
                    told = ", ".join(f"{k} {v:.2f}" for k, v in run.items())
                    say(f"   first copy, {name}: {told}")

    measure(
        _MAJOR,
        {
            STOCK_TEXT: lambda source, target: _stock(source, target, "false"),
            "PostgreSQL, binary": lambda source, target: _stock(source, target, "true"),
            OURS: _ours,
            "Spillway, defer_indexes false": lambda source, target: _ours(source, target, False),
        },
        max_sync_workers_per_subscription=2,
    )
    if shutil.which("pgcopydb"):
        measure(_PGCOPYDB_MAJOR, {PGCOPYDB: _pgcopydb, OURS_BESIDE: _ours})
    return {
        "rows": _TABLES * rows,
        **{
            name: {what: statistics.median(run[what] for run in taken) for what in taken[0]}
            for name, taken in runs.items()
        },
    }


def _fill(source: Database, target: Database, rows: int) -> None:
    _make(source)
    _make(target)
    for number in range(_TABLES):
        source.execute(
            f"INSERT INTO t{number} SELECT n, (n::bigint * 7919) % 100000, n / 100.0,"
            " timestamptz '2026-01-01' + n * interval '1 s', md5(n::text) || md5((n + 1)::text)"
            f" FROM generate_series(1, {rows}) n"
        )
    source.execute("CREATE PUBLICATION p FOR ALL TABLES")
    source.execute("VACUUM ANALYZE")
    source.execute("CHECKPOINT")
    target.execute("CREATE SCHEMA spillway")
    for statement in TABLES_SQL:
        target.execute(statement)


def _make(database: Database) -> None:
    for number in range(_TABLES):
        database.execute(
            f"CREATE TABLE t{number} (id bigint PRIMARY KEY, account int, amount numeric(12, 2),"
            " at timestamptz, note text)"
        )
        database.execute(f"CREATE INDEX ON t{number} (account)")


def _stock(source: Database, target: Database, binary: str) -> None:
    target.execute(
        f"CREATE SUBSCRIPTION s CONNECTION '{source.dsn}' PUBLICATION p WITH (binary = {binary})"
    )
    done = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate IN ('s', 'r')"
    while target.value(done) != _TABLES:
        time.sleep(0.02)


def _pgcopydb(source: Database, target: Database) -> None:
    target.execute("DROP TABLE t0, t1; DROP PUBLICATION IF EXISTS p")
    with tempfile.TemporaryDirectory(prefix="spillway-bench-") as directory:
        subprocess.run(
            [
                *("pgcopydb", "clone", "--dir", f"{directory}/work", "--no-owner"),
                *("--source", source.dsn, "--target", target.dsn),
                *("--table-jobs", "2", "--index-jobs", "2"),
            ],
            check=True,
            capture_output=True,
            env={**os.environ, "XDG_DATA_HOME": directory},
        )


def _ours(source: Database, target: Database, defer_indexes: bool | None = None) -> None:
    settings = {"session_replication_role": "replica"}
    stop = Stop()
    sync = TableSync(
        "s",
        SyncSettings(("p",), connections=2, defer_indexes=defer_indexes),
        source.dsn,
        lambda: connect_target(target.dsn, "bench", settings, stop),
        None,
        _NothingToCatchUp(),
        stop,
    )
    sync.first_copy(0)
    sync.stop()


class _NothingToCatchUp:
    """Nothing is written meanwhile."""

    def __call__(
        self,
        tables: frozenset[tuple[str, str]],
        start_lsn: int,
        upto_lsn: int,
        before_commit: object,
    ) -> None:
        del before_commit
        raise AssertionError(f"{tables} lack something from {start_lsn} to {upto_lsn}")


def _measure(
    source: Database, target: Database, copy: Callable[[Database, Database], None]
) -> dict[str, float]:
    target.execute("DROP TABLE t0, t1")
    _make(target)
    target.execute("TRUNCATE spillway.tables")
    target.execute("CHECKPOINT")
    clusters = source.cluster, target.cluster
    before = [tree_cpu_seconds(cluster.pid) for cluster in clusters]
    started_s, own_s = time.perf_counter(), _own_cpu_s()
    copy(source, target)
    took_s, own_s = time.perf_counter() - started_s, _own_cpu_s() - own_s
    spent = [
        tree_cpu_seconds(cluster.pid) - cpu_s
        for cluster, cpu_s in zip(clusters, before, strict=True)
    ]
    rows = sum(int(target.value(f"SELECT count(*) FROM t{number}")) for number in range(_TABLES))
    if target.value("SELECT count(*) FROM pg_subscription"):
        target.execute("DROP SUBSCRIPTION s")
    return {
        "seconds": took_s,
        "source CPU s": spent[0],
        "target CPU s": spent[1],
        "program CPU s": own_s,
        "rows": rows,
    }


def _own_cpu_s() -> float:
    """CPU seconds of this process, and of programs that it has run and that have ended."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    main()
