"""The benchmark's short form: both sides make the same messages on every kind of range; nothing is
timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def run_bench(output: Path, *options: str, **environment: str) -> dict[str, Any]:
    search_path = os.pathsep.join(str(PROJECT / part) for part in ("", "tests"))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench", "--scale", "0.001", "--repeats", "1"),
            *("--output", str(output), *options),
        ],
        cwd=output,
        env={**os.environ, "PYTHONPATH": search_path, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, Any] = json.loads((output / "results.json").read_text())
    return results


def measured(results: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    return {
        (m["wal_range"], m["side"], m["how"], m["plugin"])
        for m in results["measurements"]
        if m["rows"] and m["runs"]
    }


@pytest.mark.long
def test_ranges(tmp_path: Path) -> None:
    # That both sides made the same, the benchmark checks itself.
    results = run_bench(tmp_path, "--only", *"agh", "peek", "recvlogical", "process", "grpc")
    everybody = {
        ("a", side, how, plugin)
        for plugin in ("pgoutput", "test_decoding")
        for side, how in (
            ("PostgreSQL", "peek in the server"),
            ("PostgreSQL", "pg_recvlogical"),
            ("Spillway", "in process"),
            ("Spillway", "gRPC"),
        )
    }
    assert everybody <= measured(results)
    assert {
        ("h", "Spillway", "gRPC from the primary", "pgoutput"),
        ("h", "Spillway", "in process", "arrow"),
        ("g/2", "Spillway", "in process", "pgoutput"),
        ("g", "PostgreSQL", "peek in the server", "pgoutput"),
    } <= measured(results)
    assert all(goal["goal"] for goal in results["goals"])
    report = (tmp_path / "report.md").read_text()
    assert "## Goals" in report
    for name in ("rows-a-second", "rows-a-cpu-second", "memory"):
        assert f"({name}.png)" in report
        assert (tmp_path / f"{name}.png").stat().st_size


@pytest.mark.long
@pytest.mark.parametrize("major", [18])
def test_scenarios(tmp_path: Path, major: int) -> None:
    results = run_bench(tmp_path, "--postgresql", str(major), "--only", "latency", "operation")
    assert not results["measurements"]
    figures = results["figures"]["latency"]
    for ours in ("Spillway", "pg_recvlogical on our port"):
        for side in ("PostgreSQL", ours):
            assert figures[ours][side]["rows"] == 900
    pinned = results["figures"]["operation"]["pinned_mb"]
    assert pinned["PostgreSQL"] > pinned["Spillway"]
    assert (tmp_path / "commit-to-delivery.png").stat().st_size


@pytest.mark.long
def test_starts(tmp_path: Path) -> None:
    results = run_bench(tmp_path, "--only", "start")
    figures = results["figures"]["start"]
    assert (figures["tables"]["number"], figures["databases"]["number"]) == (40, 3)
    for restart in (figures["tables"]["restart"], figures["databases"]["restart"]):
        (run,) = restart["runs"]
        assert run["delivered_s"] > run["ready_s"] > 0
        assert run["cpu_s"] >= run["ready_cpu_s"] > 0
        assert run["peak_mb"] > 0
    assert "restart, 40 tables" in (tmp_path / "report.md").read_text()
