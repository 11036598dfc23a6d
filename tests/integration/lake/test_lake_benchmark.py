"""The benchmark's lake scenario, in its short form: every change arrives; nothing is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
