"""The goals, and whether this run met them. A goal that was not measured says so; none is left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.initial_copy import OURS, OURS_BESIDE, PGCOPYDB, STOCK_TEXT
from bench.lake_load import JDBC as READ_BY_JDBC
from bench.lake_load import OURS as LOADED
from bench.results import POSTGRESQL, SPILLWAY
from bench.throughput import GRPC, GRPC_COLD, IN_PROCESS, PEEK, RECVLOGICAL
from bench.wire import NULL, PG_PORT

if TYPE_CHECKING:
    from bench.results import Measurement, Results

#: Of a table of ten columns, into history and current.
_LOADED_ROWS: Final = 250_000
_WORK_MEM_MB: Final = 64
_MEMORY_MB: Final = 150
_MANY: Final = 8
#: twice the size may take this many times as long and still counts as linear: runs differ
_LINEAR: Final = 2.5
#: likewise for what shall not grow at all
_CONSTANT: Final = 1.5
_RESTART_S: Final = 2.0
#: what a start has to cope with, and the seconds that it may take until a consumer goes on
_START_TABLES: Final = 20_000
_START_DATABASES: Final = 41
_START_TABLES_S: Final = 3.0
_START_DATABASES_S: Final = 5.0
_FIRST_SLOT_S: Final = 10.0
_START_MB: Final = 400
#: so many times one database's CPU fifty may take, of which one is busy
_FIFTY: Final = 1.5
_FIFTY_DATABASES: Final = 50
_P50_MS: Final = 3.0
#: from commit to delivery, against pg_recvlogical's in the same run
_P50_TIMES: Final = 1.5
_P99_TIMES: Final = 2.0
#: by PostgreSQL's own protocol
_WIRE: Final = 3
_WIRE_LATENCY: Final = 1.5
_FRESHNESS_P50_S: Final = 3.0
#: a table merged by position: what a batch of one row writes, and how much slower it may be to read
_ONE_ROW_MB: Final = 0.2
_READ: Final = 1.3
_P99_MS: Final = 15.0
#: against CREATE SUBSCRIPTION: applying, and the first copy
_APPLY: Final = 3
_COPY: Final = 2


@dataclass(frozen=True)
class Goal:
    """A goal and what came of it."""

    goal: str
    measured: str
    #: None when it was not measured
    met: bool | None

    @property
    def verdict(self) -> str:
        """Return a word for the table."""
        return {True: "met", False: "**not met**", None: "not measured"}[self.met]


def goals(results: Results) -> list[Goal]:
    """Hold the results against the goals."""
    return [
        *(
            _in_process(results, key, "pgoutput", factor)
            for key, factor in (("b", 3), ("c", 3), ("a", 1.5))
        ),
        *(_in_process(results, key, "arrow", 5) for key in ("b", "c")),
        *(_over_grpc(results, key, factor) for key, factor in (("b", 10), ("c", 10), ("a", 2))),
        *(_many_slots(results, key) for key in ("a", "b", "c")),
        *(_over_the_wire(results, key) for key in ("b", "c", "a")),
        *(_many_slots(results, key, PG_PORT) for key in ("a", "b", "c")),
        _latency(results),
        *(_times_latency(results, side) for side in (SPILLWAY, PG_PORT)),
        _wire_latency(results),
        *_memory(results),
        _peek(results),
        *(
            _linear(results, key, what)
            for key, what in (("f", "subtransactions"), ("g", "catalog changes"))
        ),
        *_lake(results),
        *_lake_load(results),
        *_lake_tables(results),
        *_lake_updates(results),
        _restart(results),
        *_start(results),
        *_databases(results),
        *_apply(results),
    ]


def _compared(name: str, theirs: float, ours: float, factor: float, unit: str) -> Goal:
    ratio = ours / theirs
    return Goal(
        f"{name}: ≥ {factor:g} x",
        f"{ratio:.1f} x ({ours:,.0f} against {theirs:,.0f} {unit})",
        ratio >= factor,
    )


def _in_process(results: Results, key: str, plugin: str, factor: float) -> Goal:
    name = f"{key}: {plugin} in process against PostgreSQL's peek with pgoutput, rows a CPU second"
    theirs = results.find(key, POSTGRESQL, PEEK, "pgoutput")
    ours = results.find(key, SPILLWAY, IN_PROCESS, plugin)
    if theirs is None or ours is None:
        return Goal(f"{name}: ≥ {factor:g} x", "", None)
    return _compared(name, theirs.rows_per_cpu_s, ours.rows_per_cpu_s, factor, "rows/s")


def _over_grpc(results: Results, key: str, factor: float) -> Goal:
    unit = "transactions/s" if key == "a" else "rows/s"
    name = f"{key}: delivered over gRPC against pg_recvlogical, {unit}"
    theirs = results.find(key, POSTGRESQL, RECVLOGICAL, "pgoutput")
    ours = results.find(key, SPILLWAY, GRPC, "pgoutput")
    if theirs is None or ours is None:
        return Goal(f"{name}: ≥ {factor:g} x", "", None)

    def speed(measurement: Measurement) -> float:
        count = measurement.transactions if key == "a" else measurement.rows
        return count / measurement.wall_s

    return _compared(name, speed(theirs), speed(ours), factor, unit)


def _over_the_wire(results: Results, key: str) -> Goal:
    unit = "transactions/s" if key == "a" else "rows/s"
    name = f"{key}: pg_recvlogical on our port against the walsender, {unit}"
    theirs, ours, null = (
        results.find(key, side, how, "pgoutput")
        for side, how in ((POSTGRESQL, RECVLOGICAL), (SPILLWAY, PG_PORT), (SPILLWAY, NULL))
    )
    if theirs is None or ours is None:
        return Goal(f"{name}: ≥ {_WIRE:g} x", "", None)
    count = ours.transactions if key == "a" else ours.rows
    goal = _compared(name, count / theirs.wall_s, count / ours.wall_s, _WIRE, unit)
    if null is None:
        return goal
    alone = f"; a client that does nothing: {count / null.wall_s:,.0f}"
    return Goal(goal.goal, goal.measured + alone, goal.met)


def eight_slots(results: Results, key: str, how: str = GRPC) -> dict[str, float] | None:
    """Return CPU seconds of what serves eight slots: walsenders, or the service.

    Ours has in it what happened before the consumers came, once for all slots: the primary's
    sending of WAL, receiving, decoding, logging.
    """
    theirs = results.find(key, POSTGRESQL, RECVLOGICAL, "pgoutput", _MANY)
    ours = results.find(key, SPILLWAY, how, "pgoutput", _MANY)
    cold = results.find(key, SPILLWAY, GRPC_COLD, "pgoutput")
    warm = results.find(key, SPILLWAY, GRPC, "pgoutput")
    if theirs is None or ours is None or cold is None or warm is None:
        return None
    before = cold.cpu_s["service"] + cold.cpu_s["server"] - warm.cpu_s["service"]
    return {
        POSTGRESQL: theirs.cpu_s["server"],
        SPILLWAY: ours.cpu_s["service"] + max(0.0, before),
    }


def _many_slots(results: Results, key: str, how: str = GRPC) -> Goal:
    by = "pg_recvlogical on our port, " if how == PG_PORT else ""
    name = f"{key}: {by}8 slots, delivered rows a CPU second of service or walsenders: ≥ 8 x"
    cpu_s = eight_slots(results, key, how)
    if cpu_s is None or not min(cpu_s.values()):
        return Goal(name, "", None)
    ratio = cpu_s[POSTGRESQL] / cpu_s[SPILLWAY]
    return Goal(
        name,
        f"{ratio:.1f} x ({cpu_s[SPILLWAY]:.2f} against {cpu_s[POSTGRESQL]:.2f} CPU s)",
        ratio >= _MANY,
    )


def _latency(results: Results) -> Goal:
    name = f"commit to delivery at 1,000 transactions/s: p50 ≤ {_P50_MS:g} ms, p99 ≤ {_P99_MS:g} ms"
    figures = results.figures.get("latency", {}).get(SPILLWAY)
    if figures is None:
        return Goal(name, "", None)
    (ours, met), (theirs, _) = (
        _quantiles(figures[side]["quantiles_ms"]) for side in (SPILLWAY, POSTGRESQL)
    )
    return Goal(name, f"{ours} (pg_recvlogical: {theirs}; {figures['rate']:,} commits/s)", met)


def _times_latency(results: Results, side: str) -> Goal:
    by = "pg_recvlogical on our port" if side == PG_PORT else "over gRPC"
    name = (
        f"commit to delivery at 1,000 transactions/s, {by}: p50 ≤ {_P50_TIMES:g} x, p99 ≤ "
        f"{_P99_TIMES:g} x pg_recvlogical's at the primary"
    )
    figures = results.figures.get("latency", {}).get(side)
    if figures is None:
        return Goal(name, "", None)
    ours, theirs = (figures[one]["quantiles_ms"] for one in (side, POSTGRESQL))
    p50, p99 = (ours[at] / theirs[at] for at in ("0.5", "0.99"))
    return Goal(name, f"{p50:.2f} x, {p99:.2f} x", p50 <= _P50_TIMES and p99 <= _P99_TIMES)


def _wire_latency(results: Results) -> Goal:
    name = (
        "commit to delivery at 1,000 transactions/s, pg_recvlogical on our port: p50 and p99 ≤ "
        f"{_WIRE_LATENCY:g} x the walsender's"
    )
    figures = results.figures.get("latency", {}).get(PG_PORT)
    if figures is None:
        return Goal(name, "", None)
    ours, theirs = (figures[side]["quantiles_ms"] for side in (PG_PORT, POSTGRESQL))
    times = {at: ours[at] / theirs[at] for at in ("0.5", "0.99")}
    return Goal(
        name,
        f"{times['0.5']:.1f} x, {times['0.99']:.1f} x ({_quantiles(ours)[0]}; "
        f"walsender: {_quantiles(theirs)[0]})",
        max(times.values()) <= _WIRE_LATENCY,
    )


def _quantiles(quantiles_ms: dict[str, Any]) -> tuple[str, bool]:
    p50, p99 = quantiles_ms["0.5"], quantiles_ms["0.99"]
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms", p50 <= _P50_MS and p99 <= _P99_MS


def _lake(results: Results) -> list[Goal]:
    figures = results.figures.get("lake", {})
    made = []
    for name, what, wanted in (
        ("history", "appended to Delta history", 100_000),
        ("inserts", "inserted rows, in history and merged into current state", 50_000),
        ("updates", "updated rows, in history and merged into current state", 50_000),
    ):
        goal = f"lake: {what}, ≥ {wanted:,} changes/s"
        reached = figures.get(name, {}).get("changes_per_s")
        measured = "" if reached is None else f"{reached:,.0f} changes/s"
        made.append(Goal(goal, measured, None if reached is None else reached >= wanted))
    fresh = figures.get("freshness")
    goal = f"lake: p50 of freshness at 5,000 changes/s, ≤ {_FRESHNESS_P50_S:g} s"
    if fresh is None or not fresh["seconds"]:
        made.append(Goal(goal, "", None))
    else:
        p50, p99 = fresh["seconds"]["p50"], fresh["seconds"]["p99"]
        measured = f"p50 {p50:.1f} s, p99 {p99:.1f} s at {fresh['changes_per_s']:,} changes/s"
        made.append(Goal(goal, measured, p50 <= _FRESHNESS_P50_S))
    return made


def _lake_load(results: Results) -> list[Goal]:
    figures = results.figures.get("lake_load", {})
    goal = f"lake: rows a second of an initial load, ≥ {_LOADED_ROWS:,}"
    if not figures:
        return [Goal(goal, "", None)]
    ours, theirs = figures[LOADED]["rows_per_s"], figures[READ_BY_JDBC]["rows_per_s"]
    measured = f"{ours:,}; Spark JDBC {theirs:,}"
    return [Goal(goal, measured, ours >= _LOADED_ROWS)]


def _lake_tables(results: Results) -> list[Goal]:
    figures = results.figures.get("lake_tables", {})
    made = []
    for count, name, what, limit_s in (
        ("60", "updates", "a change in each of 60 tables", 2.0),
        ("500", "updates", "a change in each of 500 tables", 10.0),
        ("500", "first", "the first batch of 500 new tables", 60.0),
    ):
        reached = figures.get(count, {}).get(name, {}).get("batch_s")
        measured = "" if reached is None else f"{reached:.1f} s"
        met = None if reached is None else reached <= limit_s
        made.append(Goal(f"lake: {what}, ≤ {limit_s:g} s", measured, met))
    one = figures.get("500", {}).get("one", {}).get("median_s")
    measured = "" if one is None else f"{one:.1f} s"
    goal = "lake: a change of one table in a job that follows, ≤ 1 s"
    return [*made, Goal(goal, measured, None if one is None else one <= 1.0)]


def _lake_updates(results: Results) -> list[Goal]:
    measured = results.figures.get("lake_updates", {})
    return [
        goal
        for table_format, name in (("delta", "Delta"), ("iceberg", "Iceberg"))
        for goal in _updates_of(name, measured.get(table_format, {}))
    ]


def _updates_of(name_of_format: str, figures: dict[str, Any]) -> list[Goal]:
    sizes = sorted(figures, key=int)
    who = f"lake in {name_of_format}, by position"
    made = []
    for name, unit, limit in (("cpu_s", "CPU s", 1.0), ("mb", "MB", 10.0)):
        goal = (
            f"{who}: {unit} of 1,000 updates grow ≤ {_CONSTANT:g} times from the "
            f"smallest to the largest table, ≤ {limit:g} {unit}"
        )
        if not sizes:
            made.append(Goal(goal, "", None))
            continue
        small, large = (figures[size]["position"][name] for size in (sizes[0], sizes[-1]))
        rows = f"{int(sizes[0]):,} and {int(sizes[-1]):,} rows"
        met = large <= limit and large <= _CONSTANT * small
        made.append(Goal(goal, f"{small:.3f} and {large:.3f} {unit} in {rows}", met))
    goal = f"{who}: a batch of one row writes ≤ {_ONE_ROW_MB * 1000:g} kB"
    goal_read = f"{who}: reading after maintenance ≤ {_READ:g} times a fresh table's time"
    if not sizes:
        return [*made, Goal(goal, "", None), Goal(goal_read, "", None)]
    one = figures[sizes[-1]]["position"]["one_mb"]
    read = figures[sizes[-1]]["position"]
    share = read["folded_s"] / read["fresh_s"]
    return [
        *made,
        Goal(goal, f"{one * 1000:.1f} kB", one <= _ONE_ROW_MB),
        Goal(goal_read, f"{share:.2f} times", share <= _READ),
    ]


def _memory(results: Results) -> list[Goal]:
    made = []
    for how, who in ((IN_PROCESS, "decoder"), (GRPC_COLD, "service")):
        limit = _WORK_MEM_MB + _MEMORY_MB
        name = f"memory, {how}: the process stays within work_mem + {_MEMORY_MB} MB ({limit} MB)"
        peaks = [
            (measurement.peak_bytes[who] / 2**20, measurement)
            for measurement in results.measurements
            if (measurement.side, measurement.how) == (SPILLWAY, how)
            and who in measurement.peak_bytes
        ]
        if not peaks:
            made.append(Goal(name, "", None))
            continue
        peak, where = max(peaks, key=lambda entry: entry[0])
        made.append(
            Goal(name, f"{peak:.0f} MB at most ({where.wal_range}, {where.plugin})", peak <= limit)
        )
    return made


def _peek(results: Results) -> Goal:
    name = "a peek's cost does not grow with the backlog"
    figures = results.figures.get("operation")
    if figures is None:
        return Goal(name, "", None)
    small, large = figures["peek_ms"]["small"], figures["peek_ms"]["large"]
    measured = (
        f"{small:.1f} ms at 50 transactions, {large:.1f} ms at {figures['wal_mb']:,.0f} MB of WAL"
    )
    return Goal(name, measured, large <= _CONSTANT * small)


def _linear(results: Results, key: str, what: str) -> Goal:
    """PostgreSQL's figure stands beside it."""
    name = f"{key}: {what} in linear time: twice as many take at most {_LINEAR:g} x the CPU"
    ours = _growth(results, key, SPILLWAY, IN_PROCESS)
    theirs = _growth(results, key, POSTGRESQL, PEEK)
    if ours is None:
        return Goal(name, "", None)
    beside = "" if theirs is None else f"; PostgreSQL: {theirs[0]}"
    return Goal(name, f"{ours[0]}{beside}", ours[1] <= _LINEAR)


def _growth(results: Results, key: str, side: str, how: str) -> tuple[str, float] | None:
    half, whole = (results.find(k, side, how, "pgoutput") for k in (f"{key}/2", key))
    if half is None or whole is None:
        return None
    spent = [
        f"{'> ' if m.timed_out else ''}{m.total_cpu_s:.2f} CPU s in {seconds(m)}"
        for m in (half, whole)
    ]
    ratio = whole.total_cpu_s / half.total_cpu_s
    # Nobody knows how long either would have taken.
    growth = "" if half.timed_out else f": {'> ' if whole.timed_out else ''}{ratio:.1f} x"
    return f"{spent[0]}, then {spent[1]}{growth}", ratio


def seconds(measurement: Measurement) -> str:
    """Return the wall seconds, with a sign where they are a lower bound."""
    return f"{'> ' if measurement.timed_out else ''}{measurement.wall_s:.2f} s"


def _restart(results: Results) -> Goal:
    name = (
        f"start-up after a crash: decoding goes on within {_RESTART_S:g} s of the process's start"
    )
    figures = results.figures.get("operation")
    if figures is None:
        return Goal(name, "", None)
    ready_s, median_s = (figures["restart_s"][what]["median"] for what in ("ready", "decoding"))
    return Goal(
        name,
        f"{median_s:.2f} s, and {ready_s:.2f} s until the process answers; "
        f"{figures['wal_mb']:,.0f} MB of WAL kept",
        median_s <= _RESTART_S,
    )


def _start(results: Results) -> list[Goal]:
    figures = results.figures.get("start", {})
    tables, databases = figures.get("tables", {}), figures.get("databases", {})
    # Few of them are for those who look whether it runs.
    if tables.get("number") != _START_TABLES:
        tables = {}
    if databases.get("number") != _START_DATABASES:
        databases = {}
    with_tables = f"with {_START_TABLES:,} tables"
    made = [
        _within(f"restart {with_tables}", tables.get("restart"), "delivered_s", _START_TABLES_S),
        _within(
            f"restart with {_START_DATABASES} databases",
            databases.get("restart"),
            "delivered_s",
            _START_DATABASES_S,
        ),
        _within(f"first slot {with_tables}", tables.get("first_slot"), "seconds", _FIRST_SLOT_S),
    ]
    name = f"memory {with_tables}, first slot and restart: the service stays within {_START_MB} MB"
    peaks = [part["median"]["peak_mb"] for part in tables.values() if isinstance(part, dict)]
    if not peaks:
        return [*made, Goal(name, "", None)]
    return [*made, Goal(name, f"{max(peaks):.0f} MB at most", max(peaks) <= _START_MB)]


def _databases(results: Results) -> list[Goal]:
    figures = results.figures.get("databases", {})
    # Few of them are for those who look whether it runs.
    if figures.get("databases") != _FIFTY_DATABASES:
        figures = {}
    made = []
    for how, what in (
        ("live", "while one client commits"),
        ("backlog", "for what was written while the service slept"),
    ):
        name = (
            f"{_FIFTY_DATABASES} databases with slots, one of them busy, {what}: CPU of the "
            f"service ≤ {_FIFTY:g} x that of one database"
        )
        ratio = figures.get("ratio", {}).get(how)
        if ratio is None:
            made.append(Goal(name, "", None))
            continue
        # Results of before have no mean.
        cpu, told = figures["cpu_s"][how], "mean" if how == "backlog" else "median"
        one, many = (cpu[who].get(told, cpu[who]["median"]) for who in ("one", "many"))
        measured = f"{ratio:.2f} x ({many:.2f} against {one:.2f} CPU s)"
        made.append(Goal(name, measured, ratio <= _FIFTY))
    return made


def _within(what: str, figures: dict[str, Any] | None, key: str, limit_s: float) -> Goal:
    until = (
        "until a waiting consumer has its change" if key == "delivered_s" else "until it is made"
    )
    name = f"{what}, {until}: ≤ {limit_s:g} s"
    if figures is None:
        return Goal(name, "", None)
    median = figures["median"]
    return Goal(name, f"{median[key]:.2f} s, {median['cpu_s']:.2f} CPU s", median[key] <= limit_s)


def _apply(results: Results) -> list[Goal]:
    figures = results.figures.get("apply", {})
    made = []
    for key in ("a", "b", "c"):
        what = "transactions" if key == "a" else "rows"
        name = f"{key}: applied to another PostgreSQL against CREATE SUBSCRIPTION, {what}/s"
        one = figures.get(key)
        if one is None:
            made.append(Goal(f"{name}: ≥ {_APPLY:g} x", "", None))
            continue
        theirs, ours = (one[what] / one[side]["seconds"] for side in (POSTGRESQL, SPILLWAY))
        made.append(_compared(name, theirs, ours, _APPLY, f"{what}/s"))
    name = "apply lag at 1,000 transactions/s{}: p99 no worse than CREATE SUBSCRIPTION's"
    lag = figures.get("lag", {})
    for what, round_ in (("", lag), (", each alone", lag.get("alone", {}))):
        if SPILLWAY not in round_:
            made.append(Goal(name.format(what), "", None))
            continue
        lags = [round_[side] for side in (SPILLWAY, POSTGRESQL)]
        met = lags[0]["0.99"] <= lags[1]["0.99"]
        measured = f"{_quantiles(lags[0])[0]} (theirs: {_quantiles(lags[1])[0]})"
        made.append(Goal(name.format(what), measured, met))
    copied = figures.get("copy", {})
    for ours, theirs, what in (
        (OURS, STOCK_TEXT, "CREATE SUBSCRIPTION"),
        (OURS_BESIDE, PGCOPYDB, "pgcopydb"),
    ):
        name = f"first copy of two tables by two connections against {what}, rows/s"
        if theirs not in copied:
            made.append(Goal(f"{name}: ≥ {_COPY:g} x", "", None))
            continue
        stock, own = (copied["rows"] / copied[who]["seconds"] for who in (theirs, ours))
        made.append(_compared(name, stock, own, _COPY, "rows/s"))
    return made
