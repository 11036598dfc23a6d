"""A subscription's initial copy: CREATE SUBSCRIPTION's table sync beside Spillway's, in one run.

    python -m bench.initial_copy [--rows N] [--rounds N]

The same two tables, of N rows each with a primary key and one more index, go from one server of 18
to another, by two connections: PostgreSQL's two table sync workers, in text and in binary, then
ours, as it is and with ``defer_indexes``. The target is emptied before each. The source pairs its
snapshot with an LSN by a temporary slot in all of them, so no service takes part. Wall time, and
CPU seconds of both servers and of the program, which don't change with whoever else is at work.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from bench.machine import tree_cpu_seconds
from bench.results import BenchFailed
from harness.cluster import Cluster
from spillway.apply.sync.settings import SyncSettings
from spillway.apply.sync.states import TABLES_SQL
from spillway.apply.sync.table_sync import TableSync
from spillway.apply.target.connection import connect_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Database

#: rows of the comparison
STOCK_TEXT: Final = "PostgreSQL, text"
OURS: Final = "Spillway"
_MAJOR: Final = 18
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
    with (
        Cluster(_MAJOR, **_MEMORY) as here,
        Cluster(_MAJOR, max_sync_workers_per_subscription=2, **_MEMORY) as there,
    ):
        source, target = here.create_database("source"), there.create_database("target")
        _fill(source, target, rows)
        for _ in range(rounds):
            for name, copy in (
                (STOCK_TEXT, lambda: _stock(source, target, "false")),
                ("PostgreSQL, binary", lambda: _stock(source, target, "true")),
                (OURS, lambda: _ours(source, target, defer_indexes=False)),
                ("Spillway, defer_indexes", lambda: _ours(source, target, defer_indexes=True)),
            ):
                run = _measure(source, target, copy)
                if run.pop("rows") != _TABLES * rows:
                    raise BenchFailed(f"first copy, {name}: rows are missing")
                runs.setdefault(name, []).append(run)
                say(f"   first copy, {name}: " + ", ".join(f"{k} {v:.2f}" for k, v in run.items()))
    return {
        "rows": _TABLES * rows,
        **{
            name: {what: statistics.median(run[what] for run in taken) for what in taken[0]}
            for name, taken in runs.items()
        },
    }


def _fill(source: Database, target: Database, rows: int) -> None:
    for number in range(_TABLES):
        for database in (source, target):
            database.execute(
                f"CREATE TABLE t{number} (id bigint PRIMARY KEY, account int,"
                " amount numeric(12, 2), at timestamptz, note text)"
            )
            database.execute(f"CREATE INDEX ON t{number} (account)")
        source.execute(
            f"INSERT INTO t{number} SELECT n, (n::bigint * 7919) % 100000, n / 100.0,"
            " timestamptz '2026-01-01' + n * interval '1 s', md5(n::text) || md5((n + 1)::text)"
            f" FROM generate_series(1, {rows}) n"
        )
    source.execute("CREATE PUBLICATION p FOR ALL TABLES")
    source.execute("CHECKPOINT")
    target.execute("CREATE SCHEMA spillway")
    for statement in TABLES_SQL:
        target.execute(statement)


def _stock(source: Database, target: Database, binary: str) -> None:
    target.execute(
        f"CREATE SUBSCRIPTION s CONNECTION '{source.dsn}' PUBLICATION p WITH (binary = {binary})"
    )
    done = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate IN ('s', 'r')"
    while target.value(done) != _TABLES:
        time.sleep(0.02)


def _ours(source: Database, target: Database, *, defer_indexes: bool) -> None:
    settings = {"session_replication_role": "replica"}
    sync = TableSync(
        "s",
        SyncSettings(("p",), connections=2, defer_indexes=defer_indexes),
        source.dsn,
        lambda: connect_target(target.dsn, "bench", settings),
        None,
        _nothing_to_catch_up,
    )
    sync.first_copy(0)
    sync.stop()


def _nothing_to_catch_up(
    tables: frozenset[tuple[str, str]], start_lsn: int, upto_lsn: int, before_commit: object
) -> None:
    del tables, start_lsn, upto_lsn, before_commit
    raise AssertionError("nothing is written meanwhile")


def _measure(source: Database, target: Database, copy: Callable[[], None]) -> dict[str, float]:
    target.execute("TRUNCATE t0, t1, spillway.tables")
    target.execute("CHECKPOINT")
    clusters = source.cluster, target.cluster
    before = [tree_cpu_seconds(cluster.pid) for cluster in clusters]
    started_s, own_s = time.perf_counter(), time.process_time()
    copy()
    took_s, own_s = time.perf_counter() - started_s, time.process_time() - own_s
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


if __name__ == "__main__":
    main()
