"""A target compared by a program of its own: what comes out is kept, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from spillway.errors import Conflict, SubscriptionFailed
from spillway.subscriber.model import Verification, VerificationState
from spillway.subscriber.run_processes import RunRecord, processes_of
from spillway.subscriber.targets import Program
from spillway.subscriber.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Writes what it is given as its outcome, then does the rest.
FINDS = """
import json, os, sys, time
path, tables, then = sys.argv[1:]
found = {"run": os.environ["SPILLWAY_SUBSCRIPTION_RUN"], "tables": json.loads(tables),
         "lsn": "0/30", "ended_at": "2026-11-26T10:00:00+00:00"}
open(path + ".new", "w").write(json.dumps(found))
os.replace(path + ".new", path)
exec(then)
"""


def compared(table: str, **changed: Any) -> dict[str, Any]:
    values = {
        "table": table, "equal": True, "source_rows": 5, "target_rows": 5, "differences": 0,
        "more": False, "skipped": "",
    }  # fmt: skip
    return values | changed


def finds(verifier: Verifier, *tables: dict[str, Any], then: str = "") -> Program:
    told = json.dumps(tables)
    return Program((sys.executable, "-S", "-c", FINDS, str(verifier.outcome_file), told, then))


def runs(code: str) -> Program:
    return Program((sys.executable, "-S", "-c", code))


PRINTS = """
print("spillway: error: no snapshot\\nhint: Wait.\\ncode: not_ready")
raise SystemExit(1)
"""
SLEEPS = "import time; print('at work', flush=True); time.sleep(600)"


async def start(
    verifier: Verifier, program: Program, may_go_on: Callable[[], bool] = lambda: True
) -> None:
    await verifier.start(program, dict(os.environ), may_go_on)


async def ended(verifier: Verifier) -> Verification:
    deadline = time.monotonic() + 60
    while verifier.is_running:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert verifier.last is not None
    return verifier.last


async def loaded(directory: Path) -> Verification:
    again = Verifier("a", directory)
    await again.load()
    assert again.last is not None
    return again.last


async def test_what_comes_out_is_kept(tmp_path: Path) -> None:
    verifier = Verifier("a", tmp_path)
    await verifier.load()
    assert verifier.last is None
    await start(verifier, finds(verifier, compared("public.t")))
    assert verifier.last is not None
    assert verifier.last.state == VerificationState.RUNNING
    found = await ended(verifier)
    assert (found.state, found.lsn, found.error) == ("equal", 0x30, None)
    assert found.ended_at is not None
    assert await loaded(tmp_path) == found
    wrong = compared("public.u", equal=False, differences=2, more=True, target_rows=3)
    # The command's exit code says the same.
    await start(verifier, finds(verifier, compared("public.t"), wrong, then="sys.exit(1)"))
    found = await ended(verifier)
    assert found.state == "different"
    assert [(t.table, t.differences, t.more) for t in found.differing] == [("public.u", 2, True)]
    assert await loaded(tmp_path) == found
    # Another release's is nothing.
    file = tmp_path / "verification" / "verification.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))
    await verifier.load()
    assert verifier.last is None


async def test_one_at_a_time_and_ended_with_the_subscription(tmp_path: Path) -> None:
    verifier = Verifier("a", tmp_path)
    await start(verifier, runs(SLEEPS))
    with pytest.raises(Conflict, match="is being compared since"):
        await start(verifier, runs(SLEEPS))
    # A second one that does not know of the first does not begin either.
    record = await record_of(tmp_path)
    await verifier.halt()
    assert processes_of(record) == []
    assert verifier.last is not None
    assert verifier.last.error is not None
    assert "stopped or altered" in verifier.last.error.message
    # The lease goes.
    await start(verifier, runs(SLEEPS), may_go_on=lambda: False)
    assert (await ended(verifier)).state == "failed"
    await start(verifier, finds(verifier, compared("public.t")))
    assert (await ended(verifier)).state == "equal"


async def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def record_of(directory: Path) -> RunRecord:
    deadline = time.monotonic() + 60
    while (record := RunRecord.load(directory / "verification")) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return record


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (SLEEPS, "was killed by SIGKILL"),
        ("print('it broke'); raise SystemExit(3)", "ended with 3: it broke"),
        (PRINTS, "no snapshot"),
    ],
)
async def test_a_program_that_brings_nothing(tmp_path: Path, code: str, says: str) -> None:
    verifier = Verifier("a", tmp_path)
    # What an earlier one found is not this one's.
    await start(verifier, finds(verifier, compared("public.t")))
    await ended(verifier)
    (tmp_path / "verification" / "run.json").unlink()
    await start(verifier, runs(code))
    if code == SLEEPS:
        os.kill((await record_of(tmp_path)).pid, signal.SIGKILL)
    found = await ended(verifier)
    assert found.state == "failed"
    assert found.error is not None
    assert says in found.error.message
    assert found.error.hint
    assert found.tables == ()
    assert await loaded(tmp_path) == found


async def test_the_service_dies_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program goes with it; here it lives, as a JVM does for a moment, and is ended."""

    async def dead(*_: object) -> None:
        pass

    verifier = Verifier("a", tmp_path)
    monkeypatch.setattr(verifier, "_end", dead)
    await start(verifier, runs(SLEEPS))
    record = await record_of(tmp_path)
    found = await loaded(tmp_path)
    assert processes_of(record) == []
    assert found.state == "failed"
    assert found.error is not None
    assert "the service ended while it was at work" in found.error.message
    assert await loaded(tmp_path) == found
    await until(lambda: not verifier.is_running)
    (tmp_path / "verification" / "run.json").unlink()
    # It had brought its outcome, and nobody lived to take it in.
    await start(verifier, finds(verifier, compared("public.t"), then=SLEEPS))
    await record_of(tmp_path)
    await until(verifier.outcome_file.exists)
    assert (await loaded(tmp_path)).state == "equal"
    await until(lambda: not verifier.is_running)


async def test_what_can_not_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    verifier = Verifier("a", tmp_path)
    with pytest.raises(SubscriptionFailed, match="Cannot allocate memory"):
        await start(verifier, runs(SLEEPS))
    assert not verifier.is_running
    assert (await loaded(tmp_path)).state == "failed"
