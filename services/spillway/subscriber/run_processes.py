"""A run's processes: who they are, whether they live, and how they are ended.

A pid alone says little: it is given to somebody else some day. ``run.json`` has it together with
the process's start time and the boot's id, which make it one process and no other. The processes
that it started in turn (Spark's JVM, Python workers) are in its session, and have the run's token
in their environment: both must be so before anything is sent to one.

What blocks (files, waiting for an end) is for worker threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from spillway.storage.durable_files import replace_file

#: In the environment of a run's processes.
TOKEN_VARIABLE: Final = "SPILLWAY_SUBSCRIPTION_RUN"  # noqa: S105 - a name
_PROC: Final = Path("/proc")
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot of this machine."""

    pid: int
    #: in clock ticks since the boot; 0 where the system does not say
    start_time: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The process of the last run, in ``run.json``."""

    token: str
    pid: int
    start_time: int
    boot_id: str

    def store(self, directory: Path) -> None:
        """Make it durable."""
        replace_file(directory / "run.json", json.dumps(asdict(self)), mode=0o600)

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Return the last run's; None without one, or when it can't be read: then the lock alone
        says.
        """
        try:
            value = json.loads((directory / "run.json").read_text())
            return cls(
                str(value["token"]),
                int(value["pid"]),
                int(value["start_time"]),
                str(value["boot_id"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_alive(self) -> bool:
        """Say whether that very process is there, and no zombie."""
        now = identify(self.pid)
        return (now.start_time, now.boot_id) == (self.start_time, self.boot_id) and _state(
            self.pid
        ) not in ("", "Z", "X")


def identify(pid: int) -> ProcessIdentity:
    """Return what tells the process that has *pid* now from all others; start time 0 when there is
    none.
    """
    boot_id = ""
    with contextlib.suppress(OSError):
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    fields = _stat(pid)
    return ProcessIdentity(pid, int(fields[19]) if fields else 0, boot_id)


def processes_of(record: RunRecord) -> list[int]:
    """Return the living processes of a run: its own, and those in its session that bear its
    token.
    """
    if record.boot_id != identify(record.pid).boot_id:
        return []
    found = [record.pid] if record.is_alive() else []
    mark = f"{TOKEN_VARIABLE}={record.token}".encode()
    for entry in _PROC.glob("[0-9]*"):
        pid = int(entry.name)
        fields = _stat(pid)
        # state, ppid, pgrp, session: fields 3 to 6 of proc(5)
        if pid == record.pid or not fields or int(fields[3]) != record.pid or fields[0] in "ZX":
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def end_processes(record: RunRecord, timeout_s: float) -> bool:
    """Kill what is left of a run; return whether nothing is after *timeout_s*. Blocks."""
    deadline = time.monotonic() + timeout_s
    while pids := processes_of(record):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def is_locked(directory: Path) -> bool:
    """Say whether a run's program holds the subscription's lock."""
    try:
        descriptor = os.open(directory / "run.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; [] when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    # The name before it is in parentheses and may hold anything.
    return text.rpartition(")")[2].split()
