"""What the benchmark makes of runs: bounds, comparisons, goals. Its runs on real servers are in
integration/.
"""

from __future__ import annotations

import compileall
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench.databases import is_backlog_due
from bench.goals import goals
from bench.latency import summary
from bench.machine import compiles_at_each_start
from bench.report import write_report
from bench.results import POSTGRESQL, SPILLWAY, BenchFailed, Measurement, Results, Run
from bench.throughput import GRPC, GRPC_COLD, IN_PROCESS, PEEK, RECVLOGICAL, check_same

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    "date": "2026-01-01 00:00 UTC",
    "machine": "1 x a machine",
    "memory_gb": 1,
    "kernel": "Linux",
    "load_average": [0.0, 0.0, 0.0],
    "postgresql": "15",
    "spillway": "0",
    "python": "3",
    "grpc": "1",
}
SETTINGS = {
    "scale": 1,
    "repeats": 1,
    "time_limit_s": 20,
    "shared_buffers": "1MB",
    "fsync": "off",
    "logical_decoding_work_mem": "64MB",
}


def run(
    wall_s: float = 1.0,
    messages: int | None = 100,
    payload_bytes: int | None = 5000,
    timed_out: bool = False,
    **cpu_s: float,
) -> Run:
    return Run(wall_s, cpu_s or {"server": wall_s}, messages, payload_bytes, {}, timed_out)


def measurement(
    side: str, how: str, *runs: Run, key: str = "b", plugin: str = "pgoutput", slots: int = 1
) -> Measurement:
    return Measurement(key, "title", side, how, plugin, slots, 1000, 10, 10**6, runs)


def verdict(results: Results, begin: str) -> bool | None:
    (goal,) = [goal for goal in goals(results) if goal.goal.startswith(begin)]
    return goal.met


def test_medians_are_of_each_by_itself() -> None:
    one = measurement(
        SPILLWAY,
        GRPC,
        run(1, service=5.0, client=1.0),
        run(2, service=1.0, client=9.0),
        run(9, service=2.0, client=3.0),
    )
    assert one.wall_s == 2
    assert one.cpu_s == {"service": 2.0, "client": 3.0}
    assert one.total_cpu_s == 6.0
    assert one.rows_per_s == 500


def test_the_same_messages_and_bytes_pass() -> None:
    check_same(
        [
            measurement(POSTGRESQL, PEEK, run(), run()),
            measurement(SPILLWAY, IN_PROCESS, run()),
            measurement(SPILLWAY, GRPC, run(messages=800, payload_bytes=40000), slots=8),
            measurement(POSTGRESQL, RECVLOGICAL, run(messages=None, payload_bytes=5100)),
            measurement(SPILLWAY, IN_PROCESS, run(messages=1), plugin="arrow"),
        ]
    )


@pytest.mark.parametrize(
    "other",
    [
        measurement(SPILLWAY, IN_PROCESS, run(messages=99)),
        measurement(SPILLWAY, GRPC, run(), run(payload_bytes=5001)),
        measurement(POSTGRESQL, RECVLOGICAL, run(messages=None, payload_bytes=5000)),
    ],
    ids=["messages", "bytes", "recvlogical"],
)
def test_others_do_not(other: Measurement) -> None:
    with pytest.raises(BenchFailed, match="pgoutput"):
        check_same([measurement(POSTGRESQL, PEEK, run()), other])


def test_who_was_stopped_is_not_compared_and_said_to_take_longer() -> None:
    stopped = measurement(
        POSTGRESQL, PEEK, run(20, messages=None, payload_bytes=None, timed_out=True), key="f"
    )
    half = measurement(POSTGRESQL, PEEK, run(4), key="f/2")
    ours = [measurement(SPILLWAY, IN_PROCESS, run(s), key=k) for k, s in (("f/2", 1), ("f", 2))]
    check_same([stopped, ours[1]])
    results = Results(ENVIRONMENT, SETTINGS, [half, stopped, *ours])
    (goal,) = [goal for goal in goals(results) if goal.goal.startswith("f:")]
    assert goal.met
    assert "> 20.00 CPU s in > 20.00 s: > 5.0 x" in goal.measured


def test_goals_are_met_missed_or_not_measured() -> None:
    results = Results(
        ENVIRONMENT,
        SETTINGS,
        [
            measurement(POSTGRESQL, PEEK, run(6)),
            measurement(SPILLWAY, IN_PROCESS, run(2)),
            measurement(SPILLWAY, IN_PROCESS, run(2), plugin="arrow"),
        ],
    )
    assert verdict(results, "b: pgoutput in process")
    assert verdict(results, "b: arrow in process") is False
    assert verdict(results, "c: pgoutput in process") is None
    assert verdict(results, "lake: appended") is None


def test_eight_slots_count_what_was_done_once_for_all() -> None:
    results = Results(
        ENVIRONMENT,
        SETTINGS,
        [
            measurement(POSTGRESQL, RECVLOGICAL, run(server=80.0, client=8.0), slots=8),
            measurement(SPILLWAY, GRPC, run(service=8.0, client=8.0, server=0.0), slots=8),
            measurement(SPILLWAY, GRPC, run(service=1.0, client=1.0, server=0.0)),
            measurement(SPILLWAY, GRPC_COLD, run(service=2.5, client=1.0, server=0.5)),
        ],
    )
    (goal,) = [goal for goal in goals(results) if goal.goal.startswith("b: 8 slots")]
    assert goal.met
    assert goal.measured == "8.0 x (10.00 against 80.00 CPU s)"


def started(seconds: float, peak_mb: float) -> dict[str, Any]:
    figures = {"ready_s": 0.5, "delivered_s": seconds, "seconds": seconds}
    return {"median": figures | {"cpu_s": 1.0, "peak_mb": peak_mb}, "runs": []}


def test_starts_are_held_against_their_goals(tmp_path: Path) -> None:
    tables = {
        "number": 20_000,
        "first_slot_just_made": started(30, 410),
        "first_slot": started(9, 200),
        "restart": started(3.1, 100),
    }
    databases = {"number": 41, "restart": started(4, 500)}
    results = Results(
        ENVIRONMENT, SETTINGS, figures={"start": {"tables": tables, "databases": databases}}
    )
    assert verdict(results, "restart with 20,000 tables") is False
    assert verdict(results, "restart with 41 databases")
    assert verdict(results, "first slot with 20,000 tables")
    # The peak of what is no goal by its seconds counts, too.
    assert verdict(results, "memory with 20,000 tables") is False
    report = write_report(results, tmp_path)
    assert "| the same, tables just made | 30.00 | 1.00 | 410 |" in report
    tables["number"] = 40
    assert verdict(results, "restart with 20,000 tables") is None


def test_every_row_must_have_come() -> None:
    latencies = {i: 1000 + i for i in range(1000)}
    assert summary(latencies, 1000)["quantiles_ms"]["1"] == 1.999
    del latencies[500]
    with pytest.raises(BenchFailed, match="999 were delivered"):
        summary(latencies, 1000)


def test_a_report_says_first_what_failed(tmp_path) -> None:
    results = Results(ENVIRONMENT, SETTINGS, failures=["b: they differ"])
    report = write_report(results, tmp_path)
    assert report.index("b: they differ") < report.index("## Goals")


def test_a_report_of_nothing_has_all_goals(tmp_path) -> None:
    report = write_report(Results(ENVIRONMENT, SETTINGS), tmp_path / "new")
    assert report.count("not measured") == len(goals(Results(ENVIRONMENT, SETTINGS)))
    assert (tmp_path / "new" / "results.json").exists()


def test_figures_of_starts_without_bytecode_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_by_this_test").mkdir()
    module = tmp_path / "imported_by_this_test" / "__init__.py"
    module.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert not compiles_at_each_start("imported_by_this_test"), "the first one keeps it"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert compiles_at_each_start("imported_by_this_test")
    said = "Each start compiles what it imports"
    slow = Results(ENVIRONMENT | {"compiles_at_each_start": True}, SETTINGS)
    assert said in write_report(slow, tmp_path / "slow")
    # What make install does.
    compileall.compile_dir(tmp_path / "imported_by_this_test", quiet=2)
    assert not compiles_at_each_start("imported_by_this_test")
    quick = Results(ENVIRONMENT | {"compiles_at_each_start": False}, SETTINGS)
    assert said not in write_report(quick, tmp_path / "quick")


def test_a_backlog_of_fifty_databases_counts_each_checkpoint() -> None:
    cpu = {"one": {"median": 0.1, "mean": 0.1}, "many": {"median": 0.12, "mean": 0.2}}
    figures = {
        "databases": 50,
        "cpu_s": {"live": cpu, "backlog": cpu},
        "ratio": {"live": 1.2, "backlog": 2.0},
    }
    results = Results(ENVIRONMENT, SETTINGS, figures={"databases": figures})
    (live,) = (goal for goal in goals(results) if "while one client commits" in goal.goal)
    (backlog,) = (goal for goal in goals(results) if "while the service slept" in goal.goal)
    assert live.met
    assert live.measured == "1.20 x (0.12 against 0.10 CPU s)"
    assert backlog.met is False
    assert backlog.measured == "2.00 x (0.20 against 0.10 CPU s)"


@pytest.mark.parametrize(
    ("made", "written", "scale", "due"),
    [
        (2, 1 << 30, 0.1, True),
        (3, 255 << 20, 0.1, True),
        (3, 256 << 20, 0.1, False),
        (12, 0, 0.1, False),
        (3, 0, 0.01, False),
    ],
)
def test_how_many_backlogs_are_measured(made: int, written: int, scale: float, due: bool) -> None:
    assert is_backlog_due(3, made, written, scale) is due
