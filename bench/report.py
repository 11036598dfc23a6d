"""The results as files: results.json, report.md and plots, in one directory."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from bench.goals import eight_slots, goals, seconds
from bench.lake_compared import OURS
from bench.plots import draw
from bench.results import POSTGRESQL, SPILLWAY
from bench.throughput import IN_PROCESS, PEEK, RECVLOGICAL
from bench.wire import PG_PORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from bench.results import Measurement, Results

_EIGHT_ON: Final = ("a", "b", "c")


def write_report(results: Results, directory: Path) -> str:
    """Write everything to *directory*; return the report."""
    directory.mkdir(parents=True, exist_ok=True)
    as_json = results.as_json() | {"goals": [asdict(goal) for goal in goals(results)]}
    (directory / "results.json").write_text(json.dumps(as_json, indent=1) + "\n")
    report = "\n".join([*_markdown(results), *_pictures(draw(results, directory))]) + "\n"
    (directory / "report.md").write_text(report)
    return report


def _markdown(results: Results) -> Iterator[str]:
    environment, settings = results.environment, results.settings
    load = ", ".join(str(load) for load in environment["load_average"])
    yield f"# Benchmark of {environment['date']}"
    yield ""
    yield (
        f"{environment['machine']}, {environment['memory_gb']} GB, {environment['kernel']}; load "
        f"average before {load}."
    )
    yield (
        f"PostgreSQL {environment['postgresql']} (shared_buffers {settings['shared_buffers']}, "
        f"fsync {settings['fsync']}, logical_decoding_work_mem "
        f"{settings['logical_decoding_work_mem']}),"
    )
    yield (
        f"Spillway {environment['spillway']}, Python {environment['python']}, grpcio "
        f"{environment['grpc']}. Scale {settings['scale']:g}; medians of {settings['repeats']} "
        "runs, in turn."
    )
    if environment.get("compiles_at_each_start"):
        yield (
            "**Each start compiles what it imports**, 1.8 s of CPU of it: Python keeps no bytecode "
            "here. `make install` makes it; figures of starts without it are not a user's."
        )
    if not results.failures:
        yield (
            "Both sides printed the same messages and bytes. [How it is "
            "measured](../../how-to/benchmark.md)."
        )
    for failure in results.failures:
        yield ""
        yield f"**Failed**: {failure}"
    yield ""
    yield "## Goals"
    yield ""
    yield from _table(
        ("goal", "measured", ""), [(g.goal, g.measured, g.verdict) for g in goals(results)]
    )
    if results.measurements:
        yield "## WAL ranges"
        yield ""
        yield from _ranges(results)
    if eight := [(key, cpu_s) for key in _EIGHT_ON if (cpu_s := eight_slots(results, key))]:
        yield "## Eight slots of one database"
        yield ""
        yield (
            "CPU seconds of what serves them: eight walsenders, or the service with what it did "
            "once for all of them before (and the primary's walsender that sends it WAL)."
        )
        yield ""
        yield from _table(
            ("WAL range", POSTGRESQL, SPILLWAY, "ratio"),
            [
                (
                    key,
                    f"{s[POSTGRESQL]:.2f}",
                    f"{s[SPILLWAY]:.2f}",
                    f"{s[POSTGRESQL] / s[SPILLWAY]:.1f} x",
                )
                for key, s in eight
                if s[SPILLWAY]
            ],
        )
    yield from _latency(results)
    yield from _primary(results)
    yield from _operation(results)
    yield from _start(results)
    yield from _lake(results)
    yield from _lake_compared(results)
    yield from _lake_load(results)
    yield from _lake_tables(results)
    yield from _lake_updates(results)
    yield from _apply(results)


def _ranges(results: Results) -> Iterator[str]:
    for key in dict.fromkeys(measurement.wal_range for measurement in results.measurements):
        measured = [m for m in results.measurements if m.wal_range == key]
        one = measured[0]
        yield (
            f"**{key}**: {one.title}. {one.wal_bytes / 1e6:,.0f} MB of WAL, {one.rows:,} rows, "
            f"{one.transactions:,} transaction{'s' if one.transactions > 1 else ''}."
        )
        yield ""
        yield from _table(
            (
                "who",
                "how",
                "plugin",
                "slots",
                "wall",
                "rows/s",
                "CPU s",
                "rows/CPU s",
                "peak MB",
                "against PostgreSQL",
            ),
            [_row(results, measurement) for measurement in measured],
            numbers_from=3,
        )


def _row(results: Results, measurement: Measurement) -> tuple[str, ...]:
    bound = "< " if measurement.timed_out else ""
    cpu = measurement.cpu_s
    parts = ", ".join(f"{who} {s:.2f}" for who, s in cpu.items() if s >= 0.005 or len(cpu) == 1)
    peaks = ", ".join(f"{who} {b / 2**20:.0f}" for who, b in measurement.peak_bytes.items())
    return (
        measurement.side,
        measurement.how,
        measurement.plugin,
        str(measurement.slots),
        seconds(measurement),
        f"{bound}{measurement.rows_per_s:,.0f}",
        parts,
        f"{bound}{measurement.rows_per_cpu_s:,.0f}" if measurement.total_cpu_s else "",
        peaks,
        _against(results, measurement),
    )


def _against(results: Results, ours: Measurement) -> str:
    """Return how many times as fast as its counterpart it is, by wall and by everybody's CPU
    seconds.
    """
    if ours.side != SPILLWAY:
        return ""
    how = PEEK if ours.how == IN_PROCESS else RECVLOGICAL
    plugin = "pgoutput" if ours.plugin == "arrow" else ours.plugin
    theirs = results.find(ours.wal_range, POSTGRESQL, how, plugin, ours.slots)
    if theirs is None:
        return ""
    bound = "> " if theirs.timed_out else ""
    wall = theirs.wall_s / ours.wall_s
    cpu = theirs.total_cpu_s / ours.total_cpu_s if ours.total_cpu_s else 0
    return f"{bound}{wall:.1f} x wall, {bound}{cpu:.1f} x CPU"


def _latency(results: Results) -> Iterator[str]:
    figures = results.figures.get("latency")
    if figures is None:
        return
    rates = [figures[side]["rate"] for side in (SPILLWAY, PG_PORT)]
    yield "## Commit to delivery"
    yield ""
    yield (
        f"{min(rates):,} to {max(rates):,} commits a second of one client, "
        f"{figures[SPILLWAY][SPILLWAY]['rows']:,} rows, two consumers at the same time: "
        "pg_recvlogical of the primary, and one of ours. From when the INSERT was sent; "
        "milliseconds."
    )
    yield ""
    quantiles = figures[SPILLWAY][SPILLWAY]["quantiles_ms"]
    heading = ("", *("max" if q == "1" else f"p{float(q) * 100:g}" for q in quantiles))
    named = (
        (SPILLWAY, POSTGRESQL, "pg_recvlogical, beside Spillway over gRPC"),
        (SPILLWAY, SPILLWAY, "Spillway over gRPC"),
        (PG_PORT, POSTGRESQL, "pg_recvlogical, beside another on our port"),
        (PG_PORT, PG_PORT, PG_PORT),
    )
    rows = [
        (name, *(f"{ms:.2f}" for ms in figures[run][side]["quantiles_ms"].values()))
        for run, side, name in named
    ]
    yield from _table(heading, rows, numbers_from=1)


def _primary(results: Results) -> Iterator[str]:
    figures = results.figures.get("primary")
    if figures is None:
        return
    yield "## The primary's CPU"
    yield ""
    yield (
        f"All processes of the server during {figures['transactions']:,} pgbench transactions, "
        "slots followed meanwhile."
    )
    yield ""
    rows = [(name, f"{s['median']:.2f}") for name, s in figures["cpu_s"].items()]
    rows += [
        (f"{side}: each further slot", f"{figures[side]['each_more_s']:.3f}")
        for side in (POSTGRESQL, SPILLWAY)
    ]
    yield from _table(("slots", "CPU s"), rows, numbers_from=1)


def _operation(results: Results) -> Iterator[str]:
    figures = results.figures.get("operation")
    if figures is None:
        return
    yield "## Operation"
    yield ""
    pinned, peek, restart = figures["pinned_mb"], figures["peek_ms"], figures["restart_s"]
    yield from _table(
        ("", POSTGRESQL, SPILLWAY),
        [
            (
                (
                    "MB of WAL that a consumer who stopped pins on the primary, of "
                    f"{figures['wal_mb']:,.0f} written"
                ),
                f"{pinned[POSTGRESQL]:,.2f}",
                f"{pinned[SPILLWAY]:,.2f}",
            ),
            ("ms of a peek at one transaction, with 50 in the backlog", "", f"{peek['small']:.1f}"),
            ("the same with all of the backlog", "", f"{peek['large']:.1f}"),
            *(
                (
                    f"s from the start after a crash until {until}",
                    "",
                    f"{restart[what]['median']:.2f}",
                )
                for what, until in (
                    ("ready", "the process answers"),
                    ("decoding", "decoding goes on"),
                )
            ),
        ],
        numbers_from=1,
    )


def _start(results: Results) -> Iterator[str]:
    figures = results.figures.get("start")
    if figures is None:
        return
    tables, databases = figures["tables"], figures["databases"]
    yield "## Starting with much that is known"
    yield ""
    yield (
        "A restart is after SIGKILL, from exec until a client that waited has the change that it "
        "had not confirmed. CPU and peak memory are the service's until then."
    )
    yield ""
    yield from _table(
        ("", "s", "CPU s", "peak MB"),
        [
            (
                name,
                f"{s.get('delivered_s', s.get('seconds')):.2f}",
                f"{s['cpu_s']:.2f}",
                f"{s['peak_mb']:.0f}",
            )
            for name, s in (
                (f"first slot, {tables['number']:,} tables", tables["first_slot"]["median"]),
                ("the same, tables just made", tables["first_slot_just_made"]["median"]),
                (f"restart, {tables['number']:,} tables", tables["restart"]["median"]),
                (
                    f"restart, {databases['number']} databases with slots",
                    databases["restart"]["median"],
                ),
            )
        ],
        numbers_from=1,
    )


def _lake(results: Results) -> Iterator[str]:
    figures = results.figures.get("lake")
    if figures is None:
        return
    yield "## Into Delta Lake"
    yield ""
    yield (
        "Changes over the time from a batch's first envelope to the confirmed slot; the service, "
        "PostgreSQL and Spark share the machine."
    )
    yield ""
    rows = [
        (
            name,
            f"{s['changes']:,}",
            f"{s['changes_per_s']:,.0f}",
            f"{statistics.median(run['cpu_s'] for run in s['runs']):.1f}",
        )
        for name, s in figures.items()
        if "runs" in s
    ]
    yield from _table(
        ("", "changes", "changes/s", "CPU s of Spark and its workers"), rows, numbers_from=1
    )
    fresh = figures.get("freshness")
    if fresh is not None and fresh["seconds"]:
        ages = ", ".join(f"{name} {age:.1f} s" for name, age in fresh["seconds"].items())
        yield (
            "Freshness, from a commit at the source until the lake has it, at "
            f"{fresh['changes_per_s']:,} changes/s, half of them updates, in {fresh['batches']} "
            f"batches: {ages}."
        )
        yield ""


def _lake_compared(results: Results) -> Iterator[str]:
    figures = results.figures.get("lake_compared", {})
    if "changes" not in figures:
        return
    changes = figures["changes"]
    yield "## Into Delta Lake, by others"
    yield ""
    yield (
        f"One transaction of {changes:,} changes, half updates and half new rows, to a table of "
        f"{figures['rows']:,} rows: from waking up until the Delta tables have it. CPU is that of "
        "all processes, PostgreSQL's too. The current tables were the same afterwards. Ours is a "
        f"job that follows; one that is started for it takes {figures[OURS]['started_s']:.1f} s, "
        "and the CPU is with that start."
    )
    yield ""
    rows = [
        (who, f"{s['seconds']:.1f}", f"{changes / s['seconds']:,.0f}", f"{s['cpu_s']:.1f}")
        for who, s in figures.items()
        if isinstance(s, dict)
    ]
    yield from _table(("", "seconds", "changes/s", "CPU s"), rows, numbers_from=1)


def _lake_load(results: Results) -> Iterator[str]:
    figures = results.figures.get("lake_load")
    if not figures:
        return
    yield "## An initial load"
    yield ""
    yield (
        f"A table of ten columns and {figures['rows']:,} rows into Delta Lake, by two cores. CPU "
        f"is that of all processes. {figures['small_tables']} tables of 1,000 rows: "
        f"{figures['small']['seconds']:.1f} s, {figures['small']['cpu_s']:.1f} CPU s."
    )
    yield ""
    rows = [
        (who, f"{s['seconds']:.1f}", f"{s['rows_per_s']:,}", f"{s['cpu_s']:.1f}")
        for who, s in figures.items()
        if isinstance(s, dict) and "rows_per_s" in s
    ]
    yield from _table(("", "seconds", "rows/s", "CPU s"), rows, numbers_from=1)


def _lake_updates(results: Results) -> Iterator[str]:
    figures = results.figures.get("lake_updates")
    if not figures:
        return
    yield "## Random updates in a large table"
    yield ""
    yield (
        "Batches of 1,000 random updates, and of one, in a table: merging alone, CPU seconds and "
        "megabytes written for a batch; and how long a query over the whole table takes, written "
        "afresh, after the batches, and after a round of maintenance; Delta by delta-rs, Iceberg "
        "by PyIceberg. `copy` writes files anew, `position` marks rows in deletion vectors or "
        "position deletes."
    )
    yield ""
    rows = [
        (
            f"{table_format}, {int(count):,} rows ({f['table_mb']:.0f} MB), {how}",
            f"{f['first_cpu_s']:.2f}",
            f"{f['cpu_s']:.3f}",
            f"{f['mb']:.2f}",
            f"{f['one_cpu_s']:.3f}",
            f"{f['one_mb']:.3f}",
            f"{f['fresh_s']:.2f}",
            f"{f['after_s']:.2f}",
            f"{f['folded_s']:.2f}",
        )
        for table_format, sizes in figures.items()
        for count, runs in sizes.items()
        for how, f in runs.items()
    ]
    yield from _table(
        ("", "first CPU s", "CPU s", "MB", "one: CPU s", "MB", "read s", "after s", "folded s"),
        rows,
        numbers_from=1,
    )


def _lake_tables(results: Results) -> Iterator[str]:
    figures = results.figures.get("lake_tables")
    if not figures:
        return
    yield "## Many tables in a batch"
    yield ""
    yield (
        "One row in each of so many tables, into Delta Lake: from a batch's first envelope to the "
        "confirmed slot. The first batch makes the lake's tables. CPU, peak memory and open files "
        "are those of the job's driver and what it started, of the driver, and of the driver."
    )
    yield ""
    rows = [
        (
            f"{count} tables, {name}",
            f"{run['batch_s']:.1f}",
            f"{run['cpu_s']:.1f}",
            f"{run['peak_mb']:,}",
            f"{run['open_files']}",
        )
        for count, runs in figures.items()
        for name, run in runs.items()
        if "batch_s" in run
    ]
    yield from _table(("", "seconds", "CPU s", "peak MB", "files"), rows, numbers_from=1)
    for count, runs in figures.items():
        one = runs["one"]
        yield (
            f"A change of one of {count} tables once a second, in a job that follows: durable "
            f"{one['median_s']:.1f} s after its commit (median), at most {one['longest_s']:.1f} s."
        )
    yield ""


def _apply(results: Results) -> Iterator[str]:
    figures = results.figures.get("apply", {})
    if "copy" not in figures:
        return
    yield "## Into another PostgreSQL"
    yield ""
    yield (
        "From a backlog: from enabling the stock subscription, or waking the service, until the "
        "last row is seen on the target. Decoding is in both. CPU is that of all processes: "
        "source, target, and the service with its program."
    )
    yield ""
    rows = []
    for key in ("a", "b", "c"):
        one = figures[key]
        for side in (POSTGRESQL, SPILLWAY):
            turn = one[side]
            cpu_s = turn["cpu_s"]
            rows.append(
                (
                    f"{key}: {one['title']}",
                    side,
                    f"{turn['seconds']:.2f}",
                    f"{one['rows'] / turn['seconds']:,.0f}",
                    f"{one['transactions'] / turn['seconds']:,.0f}",
                    *(f"{cpu_s.get(who, 0.0):.2f}" for who in ("source", "target")),
                    f"{cpu_s.get('service', 0.0) + cpu_s.get('program', 0.0):.2f}",
                )
            )
    heading = (
        *("WAL range", "who", "seconds", "rows/s", "transactions/s"),
        *("CPU s of the source", "of the target", "of service and program"),
    )
    yield from _table(heading, rows, numbers_from=2)
    lag = figures["lag"]
    yield f"Lag from INSERT to commit on the target, ms, {lag['rate']:,} transactions a second:"
    yield ""
    names = tuple(lag[SPILLWAY])
    sides = [
        (side + what, *(f"{of[side][n]:.2f}" for n in names))
        for what, of in ((", both at once", lag), (", alone", lag["alone"]))
        for side in (POSTGRESQL, SPILLWAY)
    ]
    yield from _table(("", *(f"p{100 * float(n):g}" for n in names)), sides, numbers_from=1)
    copied = figures["copy"]
    yield (
        f"First copy of two tables, {copied['rows']:,} rows, by two connections, PostgreSQL 18 (15 "
        "where pgcopydb takes part):"
    )
    yield ""
    taken = {who: run for who, run in copied.items() if isinstance(run, dict)}
    names = tuple(next(iter(taken.values())))
    sides = [(who, *(f"{run[n]:.2f}" for n in names)) for who, run in taken.items()]
    yield from _table(("", *names), sides, numbers_from=1)


def _pictures(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield f"![{name.removesuffix('.png').replace('-', ' ')}]({name})"
        yield ""


def _table(
    heading: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int | None = None
) -> Iterator[str]:
    first = len(heading) if numbers_from is None else numbers_from
    yield f"| {' | '.join(heading)} |"
    yield f"|{'|'.join('---' if i < first else '---:' for i in range(len(heading)))}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
