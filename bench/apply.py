"""Changes into another PostgreSQL: a stock ``CREATE SUBSCRIPTION`` beside ours, between the same
two servers and of the same WAL.

Both subscribe to the source before anything is written, and wait: the stock subscription is
disabled, the service sleeps. Then the WAL is written, and each side has its turn: from enabling the
subscription, or waking the service, until the last row is seen on the target. So decoding is in
both figures. The stock worker writes into one database of the target's server, ours into another;
their tables must be equal afterwards.

The *lag* is measured with each alone, and with both at work at the same time: a row bears the time
of its INSERT at the source; when it is visible on the target is told by the commit's record in the
target's WAL.

Then a first copy of two tables, by each of them: :mod:`bench.initial_copy`.
"""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from bench import initial_copy
from bench.latency import quantiles_ms
from bench.machine import cpu_seconds, tree_cpu_seconds
from bench.ranges import prepare, wal_ranges
from bench.results import POSTGRESQL, SPILLWAY, BenchFailed
from bench.service import bench_source
from bench.source import flushed_lsn, wait_until
from harness.cluster import Cluster
from spillway.pg import rmgr
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scenarios import Scene
    from harness.cluster import Database

_RANGES: Final = ("a", "b", "c")
#: How often a range is written for a turn. All of a, once, is caught up within half a second, of
#: which to wake and to see the last row are a good part: both sides are to be in their stride.
_TIMES: Final = {"a": 4}
_TABLES: Final = ("accounts", "tellers", "branches", "history", "measurements", "latency")
_SUBSCRIPTION: Final = "bench"
_RATE: Final = 1000
_LAG_S: Final = 12.0
_SMALL: Final = 0.05
_COPIED_ROWS: Final = 500_000
_LIMIT_S: Final = 300.0
#: 2000-01-01
_EPOCH_US: Final = 946_684_800_000_000


@dataclass(frozen=True)
class _Turn:
    """One side, once."""

    seconds: float
    cpu_s: dict[str, float]


def apply(scene: Scene) -> dict[str, Any]:
    """Into another PostgreSQL, beside CREATE SUBSCRIPTION: a, b and c from a backlog, the lag at
    1,000 transactions a second, and a first copy.
    """
    figures: dict[str, Any] = {}
    major = scene.on.cluster.major
    with (
        Cluster(
            major,
            shared_buffers="256MB",
            max_wal_size="16GB",
            # The launcher would not start the worker again within 5 s of its last start.
            wal_retrieve_retry_interval="10ms",
        ) as there,
        bench_source(scene.service, scene.on.bench, {}),
    ):
        theirs = prepare(there).bench
        ours = there.create_database("ours")
        _like(theirs, ours)
        with _subscribed(scene, theirs, ours):
            for wal_range in wal_ranges(scene.scale):
                if wal_range.key in _RANGES:
                    times = _TIMES.get(wal_range.key, 1)
                    runs: dict[str, list[_Turn]] = {POSTGRESQL: [], SPILLWAY: []}
                    for n in range(scene.repeats):
                        for _ in range(times):
                            wal_range.write(scene.on)
                        mark = f"{wal_range.key} {n}"
                        scene.on.bench.execute("INSERT INTO latency VALUES (%s)", [mark])
                        runs[POSTGRESQL].append(_stock_turn(scene, theirs, mark))
                        runs[SPILLWAY].append(_our_turn(scene, ours, there, mark))
                    figures[wal_range.key] = {
                        "title": wal_range.title,
                        "rows": times * wal_range.rows,
                        "transactions": times * wal_range.transactions,
                        **{side: _median(turns) for side, turns in runs.items()},
                    }
                    for side in runs:
                        scene.say(
                            f"   {wal_range.key}, {side}: {_told(figures, wal_range.key, side)}"
                        )
            _compare(theirs, ours)
    figures["lag"] = _lag(scene, major)
    for side in (POSTGRESQL, SPILLWAY):
        scene.say(f"   lag, {side}: {figures['lag'][side]} ms")
        scene.say(f"   lag, {side} alone: {figures['lag']['alone'][side]} ms")
    figures["copy"] = initial_copy.compare(
        max(1000, int(_COPIED_ROWS * scene.scale)), scene.repeats, scene.say
    )
    return figures


def _like(one: Database, other: Database) -> None:
    """Give *other* the tables of *one*, and their rows."""
    for table in _TABLES:
        columns = one.value(
            "SELECT string_agg(format('%%I %%s', attname, format_type(atttypid, atttypmod)), ', '"
            " ORDER BY attnum) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
            [table],
        )
        key = one.value(
            "SELECT (SELECT pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = %s::regclass AND contype = 'p')",
            [table],
        )
        other.execute(f"CREATE TABLE {table} ({columns}{', ' + key if key else ''})")
        with (
            one.connect() as source,
            other.connect() as target,
            source.cursor().copy(f"COPY {table} TO STDOUT") as rows,
            target.cursor().copy(f"COPY {table} FROM STDIN") as written,
        ):
            for row in rows:
                written.write(row)


@contextmanager
def _subscribed(scene: Scene, theirs: Database, ours: Database) -> Iterator[None]:
    """Have both subscriptions, which wait, for the length of a ``with``."""
    source, service = scene.on.bench, scene.service
    source.execute(f"CREATE PUBLICATION applied FOR TABLE {', '.join(_TABLES)}")
    source.query("SELECT pg_create_logical_replication_slot('applied', 'pgoutput')")
    theirs.execute(
        f"CREATE SUBSCRIPTION {_SUBSCRIPTION} CONNECTION '{source.dsn}' PUBLICATION applied"
        " WITH (create_slot = false, slot_name = 'applied', enabled = false, copy_data = false)"
    )
    try:
        try:
            with service.awake():
                service.call("POST", "/subscriptions", json=_declared(scene, ours))
                wait_until(lambda: _state(scene) == "streaming", "our subscription streams")
            yield
        finally:
            with service.awake():
                service.call("DELETE", f"/subscriptions/{_SUBSCRIPTION}")
    finally:
        theirs.execute(f"ALTER SUBSCRIPTION {_SUBSCRIPTION} DISABLE")
        theirs.execute(f"ALTER SUBSCRIPTION {_SUBSCRIPTION} SET (slot_name = NONE)")
        theirs.execute(f"DROP SUBSCRIPTION {_SUBSCRIPTION}")
        _drop_slot(source)
        source.execute("DROP PUBLICATION applied")


def _declared(scene: Scene, ours: Database) -> dict[str, Any]:
    return {
        "name": _SUBSCRIPTION,
        "source": "bench",
        "database": scene.on.bench.name,
        "publications": ["applied"],
        "copy_data": False,
        "target": {"kind": "postgres", "dsn": ours.dsn},
    }


def _state(scene: Scene) -> str:
    return str(scene.service.call("GET", f"/subscriptions/{_SUBSCRIPTION}")["state"])


def _drop_slot(source: Database) -> None:
    drop = (
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE slot_name = 'applied' AND NOT active"
    )

    def gone() -> bool:
        source.query(drop)
        return not source.query("SELECT FROM pg_replication_slots WHERE slot_name = 'applied'")

    wait_until(gone, "the end of the walsender")


def _stock_turn(scene: Scene, theirs: Database, mark: str) -> _Turn:
    source, target = scene.on.cluster.pid, theirs.cluster.pid
    before = tree_cpu_seconds(source), tree_cpu_seconds(target)
    started_s = time.monotonic()
    theirs.execute(f"ALTER SUBSCRIPTION {_SUBSCRIPTION} ENABLE")
    _wait_for(theirs, mark)
    took_s = time.monotonic() - started_s
    cpu_s = {
        "source": tree_cpu_seconds(source) - before[0],
        "target": tree_cpu_seconds(target) - before[1],
    }
    theirs.execute(f"ALTER SUBSCRIPTION {_SUBSCRIPTION} DISABLE")
    return _Turn(took_s, cpu_s)


def _our_turn(scene: Scene, ours: Database, there: Cluster, mark: str) -> _Turn:
    source, target, service = scene.on.cluster.pid, there.pid, scene.service.pid

    def cpu_now() -> dict[str, float]:
        alone = cpu_seconds(service)
        return {
            "source": tree_cpu_seconds(source),
            "target": tree_cpu_seconds(target),
            "service": alone,
            "program": tree_cpu_seconds(service) - alone,
        }

    before = cpu_now()
    started_s = time.monotonic()
    with scene.service.awake():
        _wait_for(ours, mark)
        took_s = time.monotonic() - started_s
        after = cpu_now()
    return _Turn(took_s, {who: after[who] - before[who] for who in before})


def _wait_for(target: Database, mark: str) -> None:
    with target.connect() as connection:
        wait_until(
            lambda: bool(
                connection.execute("SELECT FROM latency WHERE note = %s", [mark]).fetchall()
            ),
            f"the last row of {mark}",
            _LIMIT_S,
        )


def _median(turns: list[_Turn]) -> dict[str, Any]:
    return {
        "seconds": statistics.median(turn.seconds for turn in turns),
        "cpu_s": {
            who: round(statistics.median(turn.cpu_s[who] for turn in turns), 2)
            for who in turns[0].cpu_s
        },
        "runs": [asdict(turn) for turn in turns],
    }


def _told(figures: dict[str, Any], key: str, side: str) -> str:
    one = figures[key]
    speed = one["rows"] / one[side]["seconds"]
    return f"{one[side]['seconds']:.2f} s, {speed:,.0f} rows/s, CPU {one[side]['cpu_s']}"


def _compare(theirs: Database, ours: Database) -> None:
    """See to it that both targets have the same rows.

    Raises:
        BenchFailed: they differ.
    """
    for table in _TABLES:
        query = f"SELECT count(*), sum(hashtext(r::text)) FROM {table} r"
        one, other = theirs.query(query), ours.query(query)
        if one != other:
            raise BenchFailed(f"{table}: PostgreSQL wrote {one}, ours {other}")


# ---- lag


def _lag(scene: Scene, major: int) -> dict[str, Any]:
    """Milliseconds from a row's INSERT at the source to its commit on the target: each side alone,
    and both at once.
    """
    source = scene.on.bench
    table = "CREATE TABLE apply_lag (n int PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())"
    source.execute(table)
    source.execute("CREATE PUBLICATION lag FOR TABLE apply_lag")
    number = int(_RATE * (_LAG_S if scene.scale > _SMALL else 1.0))
    try:
        with (
            Cluster(major, shared_buffers="256MB", wal_retrieve_retry_interval="10ms") as there,
            bench_source(scene.service, source, {}),
            scene.service.awake(),
        ):
            theirs, ours = there.create_database("stock"), there.create_database("ours")
            for target in (theirs, ours):
                target.execute(table)
            theirs.execute(
                f"CREATE SUBSCRIPTION lag CONNECTION '{source.dsn}' PUBLICATION lag"
                " WITH (copy_data = false)"
            )
            scene.service.call(
                "POST",
                "/subscriptions",
                json={**_declared(scene, ours), "publications": ["lag"]},
            )
            sides = {POSTGRESQL: theirs, SPILLWAY: ours}
            try:
                wait_until(lambda: _state(scene) == "streaming", "our subscription streams")
                both = _round(source, sides, 0, number)
                theirs.execute("ALTER SUBSCRIPTION lag DISABLE")
                alone = _round(source, {SPILLWAY: ours}, number, number)
                theirs.execute("ALTER SUBSCRIPTION lag ENABLE")
                _wait_for_row(POSTGRESQL, theirs, 2 * number - 1)
                with scene.service.asleep():
                    alone |= _round(source, {POSTGRESQL: theirs}, 2 * number, number)
                return {**both, "alone": alone}
            finally:
                scene.service.call("DELETE", f"/subscriptions/{_SUBSCRIPTION}")
                theirs.execute("DROP SUBSCRIPTION lag")
    finally:
        source.execute("DROP PUBLICATION lag")
        source.execute("DROP TABLE apply_lag")


def _round(
    source: Database, targets: dict[str, Database], first: int, number: int
) -> dict[str, Any]:
    """Commit *number* rows, and see when each of *targets* had them."""
    time.sleep(1)
    reached = _commit_at_rate(source, first, number)
    for side, target in targets.items():
        _wait_for_row(side, target, first + number - 1)
    return {
        "rate": round(reached),
        **{side: _quantiles(target, first, number) for side, target in targets.items()},
    }


def _wait_for_row(side: str, target: Database, n: int) -> None:
    wait_until(
        lambda: target.value("SELECT max(n) FROM apply_lag") == n, f"{side}'s last row", _LIMIT_S
    )


def _commit_at_rate(source: Database, first: int, number: int) -> float:
    with source.connect() as connection:
        started_s = time.monotonic()
        for n in range(number):
            ahead_s = started_s + n / _RATE - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
            connection.execute("INSERT INTO apply_lag (n) VALUES (%s)", [first + n], prepare=True)
        return number / (time.monotonic() - started_s)


def _quantiles(target: Database, first: int, number: int) -> dict[str, float]:
    # A commit's timestamp, as SQL has it, is the source's.
    end = flushed_lsn(target)
    committed: dict[int, int] = {}
    for record in WalDirectory(target.cluster.wal_directory).records():
        if record.lsn >= end:
            break
        if record.rmid == rmgr.RM_XACT_ID and (
            record.info & rmgr.XLOG_XACT_OPMASK == rmgr.XLOG_XACT_COMMIT
        ):
            committed[record.xid] = int.from_bytes(record.data[:8], "little")
    rows = target.query(
        "SELECT xmin::text::bigint, (extract(epoch FROM at) * 1e6)::bigint FROM apply_lag"
        " WHERE n >= %s AND n < %s",
        [first + number // 10, first + number],
    )
    return quantiles_ms(sorted(committed[xid] + _EPOCH_US - at_us for xid, at_us in rows))
