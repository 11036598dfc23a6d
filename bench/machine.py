"""What /proc tells of the machine, of processes and of what they have used."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

import spillway

PROJECT = Path(__file__).resolve().parents[1]
#: Most of what the service imports.
_IMPORTED = ("spillway", "fastapi", "pydantic", "sqlalchemy", "psycopg", "grpc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that the process has used, all of its threads."""
    return _cpu_seconds(_stat(pid), reaped=False)


def backend_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process of one thread, to the nanosecond where the kernel counts
    so.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return cpu_seconds(pid)


def tree_cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and of all that came of it: a server's backends, a
    driver's JVM and its workers.

    Those that have ended count once their parent has waited for them.
    """
    seconds, children = (
        {root: _cpu_seconds(_stat(root), reaped=True)},
        defaultdict[int, list[int]](list),
    )
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may end while we look; then it is in its parent's next figure.
            with contextlib.suppress(OSError):
                fields = _stat(int(entry.name))
                children[int(fields[1])].append(int(entry.name))
                seconds[int(entry.name)] = _cpu_seconds(fields, reaped=True)
    total, left = 0.0, [root]
    while left:
        pid = left.pop()
        total += seconds[pid]
        left += children[pid]
    return total


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, which is proc(5)'s field 3."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_seconds(fields: list[str], *, reaped: bool) -> float:
    return sum(int(ticks) for ticks in fields[11 : 15 if reaped else 13]) / _TICKS_PER_S


def memory_bytes(pid: int, name: str) -> int:
    """Return a size that /proc/PID/status names: VmHWM, VmRSS, RssShmem."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return 0


def reset_peak(pid: int) -> None:
    """Let VmHWM begin again at what the process has now, where the kernel lets us."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def describe(server_version: str) -> dict[str, Any]:
    """Return machine, versions, date and load, for the report."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} x {_processor()}",
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"Linux {platform.release()}",
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "postgresql": server_version,
        "spillway": f"{spillway.__version__} at {_commit()}",
        "python": platform.python_version(),
        "grpc": version("grpcio"),
        "compiles_at_each_start": compiles_at_each_start(*_IMPORTED),
    }


def compiles_at_each_start(*packages: str) -> bool:
    """Say whether a program that imports *packages* compiles them each time: their bytecode is not
    there, and Python may not or can't keep it.
    """
    for package in packages:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        kept = Path(cache_from_source(spec.origin))
        folder = next(parent for parent in kept.parents if parent.exists())
        if not kept.exists() and (sys.dont_write_bytecode or not os.access(folder, os.W_OK)):
            return True
    return False


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=PROJECT, check=False, capture_output=True, text=True
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "services", "bench")
    commit = git("rev-parse", "--short=10", "HEAD") or "no commit"
    return f"{commit}, changed" if changed else commit
