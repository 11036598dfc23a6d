"""``python -m bench``: see the package and docs/how-to/benchmark.md."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench import machine, publish, scenarios
from bench.ranges import prepare, wal_ranges
from bench.report import write_report
from bench.results import BenchFailed, Results
from bench.service import SleepingService
from bench.throughput import MEASURES, Throughput
from harness.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

_STARTED_S = time.monotonic()


def main() -> int:
    """Run the benchmark."""
    chosen = _arguments()
    # So that every ``with`` is left, and nothing stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = _measure(chosen)
    report = write_report(results, chosen.output)
    say(f"written: {chosen.output}")
    if chosen.publish and not results.failures:
        say(f"published: {publish.publish(chosen.output, results)}")
    print(f"\n{report}")
    for failure in results.failures:
        print(f"bench: {failure}", file=sys.stderr)
    return 1 if results.failures else 0


def say(line: str) -> None:
    """Tell what is going on."""
    print(f"{time.monotonic() - _STARTED_S:6.0f} s  {line}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="PostgreSQL's logical decoding and Spillway's on the same WAL.",
    )
    parser.add_argument("--postgresql", type=int, default=15, choices=range(14, 19))
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the median is taken")
    parser.add_argument("--scale", type=float, default=0.5, help="size of the WAL ranges")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WHAT",
        help=f"ranges (a to i) and measurements ({', '.join((*MEASURES, *scenarios.SCENARIOS))})",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=20.0,
        help="seconds that PostgreSQL gets for what takes it minutes (f and g); ten times that "
        "elsewhere",
    )
    parser.add_argument("--output", type=Path, default=Path(".bench"), help="directory for results")
    parser.add_argument(
        "--publish", action="store_true", help="copy the results to docs/benchmarks/DATE"
    )
    chosen = parser.parse_args()
    letters = "abcdefghi"
    known = {*letters, *MEASURES, *scenarios.SCENARIOS}
    if unknown := sorted(set(chosen.only) - known):
        parser.error(f"--only does not know {', '.join(unknown)}")
    only = set(chosen.only)
    chosen.measures = frozenset(only & set(MEASURES) or MEASURES)
    chosen.ranges = only & set(letters)
    if not chosen.ranges and (not only or only & set(MEASURES)):
        chosen.ranges = set(letters)
    chosen.scenarios = [name for name in scenarios.SCENARIOS if name in only or not only]
    return chosen


def _measure(chosen: argparse.Namespace) -> Results:
    settings = {
        "scale": chosen.scale,
        "repeats": chosen.repeats,
        "time_limit_s": chosen.time_limit,
        "shared_buffers": "256MB",
        "fsync": "off",
        "logical_decoding_work_mem": "64MB",
    }
    say(f"starting PostgreSQL {chosen.postgresql} and the service")
    with (
        tempfile.TemporaryDirectory(prefix="spillway-bench-") as scratch,
        Cluster(
            chosen.postgresql,
            shared_buffers=settings["shared_buffers"],
            max_wal_size="16GB",
            # The service sleeps for longer than a walsender would wait.
            wal_sender_timeout=0,
        ) as cluster,
        SleepingService(Path(scratch)) as service,
    ):
        on = prepare(cluster)
        results = Results(machine.describe(str(cluster.value("SHOW server_version"))), settings)
        throughput = Throughput(
            on,
            service,
            Path(scratch),
            chosen.repeats,
            chosen.measures,
            chosen.time_limit,
            say,
            results.measurements,
        )
        ranges = [r for r in wal_ranges(chosen.scale) if r.key[0] in chosen.ranges]
        for wal_range in ranges:
            if not wal_range.steep:
                with _going_on(results, wal_range.key):
                    throughput.measure(wal_range)
        for name in chosen.scenarios:
            say(" ".join((scenarios.SCENARIOS[name].__doc__ or "").partition("\n\n")[0].split()))
            scene = scenarios.Scene(on, service, chosen.scale, chosen.repeats, say)
            with _going_on(results, name):
                results.figures[name] = scenarios.SCENARIOS[name](scene)
        # Last: what they leave in the catalogs is nobody else's matter.
        for wal_range in ranges:
            if wal_range.steep:
                with _going_on(results, wal_range.key):
                    throughput.measure(wal_range)
    return results


@contextmanager
def _going_on(results: Results, what: str) -> Iterator[None]:
    """Note a failure of one part: the others' figures stand, and the run has failed all the
    same.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it was, the rest can be measured
        if not isinstance(error, BenchFailed):
            traceback.print_exc()
        results.failures.append(f"{what}: {error}")
        say(f"   FAILED: {error}")


if __name__ == "__main__":
    sys.exit(main())
