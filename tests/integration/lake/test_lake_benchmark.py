"""The benchmark's lake scenario, in its short form: every change arrives; nothing is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.lake_load import JDBC, OURS
from integration.test_benchmark import run_bench

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
def test_lake(tmp_path: Path, jar_folder: Path) -> None:
    results = run_bench(tmp_path, "--only", "lake", SPILLWAY_JARS=str(jar_folder))
    figures = results["figures"]["lake"]
    fresh = figures.pop("freshness")
    assert fresh["batches"] >= 1
    assert fresh["changes"] > 0
    assert fresh["changes_per_s"] > 0
    assert set(fresh["seconds"]) == {"p50", "p95", "p99"}
    assert {name: one["changes"] for name, one in figures.items()} == {
        "history": 1000,
        "inserts": 500,
        "updates": 500,
    }
    for one in figures.values():
        assert [run["changes"] for run in one["runs"]] == [one["changes"]]


@pytest.mark.long
def test_load(tmp_path: Path, jar_folder: Path) -> None:
    results = run_bench(tmp_path, "--only", "lake_load", SPILLWAY_JARS=str(jar_folder))
    figures = results["figures"]["lake_load"]
    assert figures["rows"] > 0
    assert figures["small"]["seconds"] > 0
    assert all(figures[who]["rows_per_s"] > 0 for who in (OURS, JDBC))


@pytest.mark.long
def test_many_tables(tmp_path: Path, jar_folder: Path) -> None:
    results = run_bench(tmp_path, "--only", "lake_tables", SPILLWAY_JARS=str(jar_folder))
    for count, runs in results["figures"]["lake_tables"].items():
        one = runs.pop("one")
        assert one["batches"] >= 1
        assert 0 < one["median_s"] <= one["longest_s"]
        assert {name: run["changes"] for name, run in runs.items()} == dict.fromkeys(
            ("first", "inserts", "updates"), int(count)
        )
        assert all(run["open_files"] > 0 and run["peak_mb"] > 0 for run in runs.values())
