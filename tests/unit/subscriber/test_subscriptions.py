"""Subscriptions: what is declared, changed and refused, and programs that end in every way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from harness.forks import without_forks
from harness.remedies import command, remedy
from harness.subscription_stage import publication, table
from spillway.errors import (
    AdvanceBackward,
    Conflict,
    DuplicateName,
    InvalidRequest,
    LeaseLost,
    LsnNotRetained,
    SpillwayError,
    SubscriptionFailed,
    TableNotReadable,
    UnknownConflict,
    UnknownPublication,
    UnknownSource,
    UnknownSubscription,
    UnknownTable,
    UnsupportedFeature,
)
from spillway.pg.lsn import Lsn
from spillway.service.model import Obstacle
from spillway.store.rows import Fence
from spillway.subscriber import run_processes
from spillway.subscriber.model import SubscriptionInfo, SubscriptionState
from spillway.subscriber.run_processes import RunRecord, is_locked, processes_of
from spillway.subscriber.supervisor import Supervisor

if TYPE_CHECKING:
    from harness.subscription_stage import Stage

S = SubscriptionState


def streams(info: SubscriptionInfo) -> bool:
    return info.state == S.STREAMING and info.error is None


def failed(info: SubscriptionInfo) -> bool:
    return info.state == S.FAILED


async def gone(pid: int) -> None:
    """Wait until a process is no more, or a zombie."""
    deadline = time.monotonic() + 30
    while run_processes._state(pid) not in ("", "Z", "X"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_subscription_makes_its_slot_and_follows_it(stage: Stage) -> None:
    created = await stage.create("a", options={"include-xids": "0"})
    assert created.state == S.INITIALIZING
    assert (created.slot, created.rows, created.restarts) == ("a", 0, 0)
    assert stage.engine.slots["a"].plugin == "arrow"
    assert stage.engine.slots["a"].options == {"include-xids": "0"}
    info = await stage.wait("a", streams)
    assert info.pid is not None
    assert info.rows == 5
    assert info.confirmed_flush_lsn == stage.engine.slots["a"].confirmed_flush_lsn
    assert await stage.subscriptions.list_all() == [await stage.subscriptions.get("a")]
    log = await stage.subscriptions.log("a", 10)
    assert log[-1] == "mode run tables null skip None copy True"
    assert not any("t0ken" in line or "FAKE_DSN" in line for line in log)


async def test_a_program_that_is_killed_is_started_again(stage: Stage) -> None:
    # The service's gRPC server has threads.
    with without_forks():
        await stage.create("a")
        first = await stage.wait("a", streams)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        again = await stage.wait("a", lambda i: streams(i) and i.pid not in (None, first.pid))
    assert again.restarts == 1
    assert again.error is None


async def test_what_hindered_the_service_is_tried_again_once_it_is_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is waited else: the subscription would tell what is mended."""
    monkeypatch.setattr("spillway.subscriber.backoff.FIRST_S", 60.0)
    hinders = Obstacle("database", "shop/shop", "lake_error", "no space", "Make some.", None)
    stage.engine.in_the_way = [hinders]
    await stage.create("a", target={"kind": "fake", "mode": "fail"})
    await stage.wait("a", failed)
    await asyncio.sleep(0.5)
    assert (await stage.subscriptions.get("a")).restarts == 1
    stage.engine.in_the_way = []
    await stage.wait("a", lambda i: i.restarts == 2, 10)


@pytest.mark.parametrize(
    ("mode", "code", "message", "hint"),
    [
        ("fail", "lake_error", "no space", "Make some."),
        ("print", "lake_table_conflict", "it\nbroke", "Mend it."),
        pytest.param(
            "silent",
            "subscription_failed",
            "its program ended with exit code 3",
            "log a",
            marks=pytest.mark.follows_hint("subscription_failed"),
        ),
    ],
)
async def test_a_failure_is_told_and_mended_by_an_alteration(
    stage: Stage, mode: str, code: str, message: str, hint: str
) -> None:
    await stage.create("a", target={"kind": "fake", "mode": mode})
    info = await stage.wait("a", lambda i: failed(i) and i.restarts >= 2)
    assert info.error is not None
    assert info.error.code == code
    assert info.error.message.startswith(message)
    assert hint in info.error.hint
    if mode == "silent":
        # The log has why.
        told = {"code": code, "hint": info.error.hint}
        assert command(remedy(told, code), "subscription log", NAME="a")[2:] == ["a"]
        assert any("mode silent" in line for line in await stage.subscriptions.log("a", 50))
    altered = await stage.subscriptions.alter("a", {"target": {"kind": "fake", "mode": "run"}})
    assert altered.error is None
    await stage.wait("a", streams)


async def test_tables_that_may_not_be_read_are_found_before_anything_is_started(
    stage: Stage,
) -> None:
    stage.engine.tables[("shop", "shop")] = [table("public.a"), table("public.b")]
    stage.engine.unreadable = ["public.b"]
    with pytest.raises(TableNotReadable) as caught:
        await stage.create("a", tables=("public.a", "public.b"))
    assert caught.value.hint == "GRANT SELECT ON public.b TO spillway;"
    # Nothing is left of it.
    assert "a" not in stage.engine.slots
    assert await stage.subscriptions.list_all() == []
    # Without a copy nothing is read there.
    other = {"kind": "fake", "path": "/elsewhere"}
    await stage.create("c", tables=("public.b",), copy_data=False, target=other)
    await stage.create("a", tables=("public.a",))
    await stage.wait("a", streams)
    with pytest.raises(TableNotReadable):
        await stage.subscriptions.alter("a", {"tables": ("public.a", "public.b")})
    assert (await stage.subscriptions.get("a")).tables == ("public.a",)
    # What was granted mends it; a table that it had is not asked about again.
    stage.engine.unreadable = ["public.a"]
    altered = await stage.subscriptions.alter("a", {"tables": ("public.a", "public.b")})
    assert altered.tables == ("public.a", "public.b")


async def test_disable_and_enable(stage: Stage) -> None:
    await stage.create("a")
    pid = (await stage.wait("a", streams)).pid
    assert pid is not None
    for _ in range(2):
        info = await stage.subscriptions.disable("a")
        assert (info.state, info.pid, info.error) == (S.PAUSED, None, None)
    await gone(pid)
    assert not is_locked(stage.root / "a")
    for _ in range(2):
        await stage.subscriptions.enable("a")
    await stage.wait("a", streams)
    assert (await stage.subscriptions.get("a")).restarts == 0


async def test_what_does_not_listen_is_killed(stage: Stage) -> None:
    await stage.create("a", target={"kind": "fake", "mode": "stubborn"})
    pid = (await stage.wait("a", streams)).pid
    assert pid is not None
    await stage.subscriptions.disable("a")
    await gone(pid)


async def test_what_a_program_leaves_is_ended_before_the_next(stage: Stage) -> None:
    await stage.create("a", target={"kind": "fake", "mode": "parent"})
    first = await stage.wait("a", streams)
    record = RunRecord.load(stage.root / "a")
    assert record is not None
    assert (record.pid, len(processes_of(record))) == (first.pid, 2)
    os.kill(record.pid, signal.SIGKILL)
    await stage.wait("a", lambda i: streams(i) and i.pid != first.pid)
    assert processes_of(record) == []


async def test_state_survives_a_restart(stage: Stage) -> None:
    await stage.create("good")
    await stage.create("off", enabled=False, target={"kind": "fake", "path": "/off"})
    await stage.create("bad", target={"kind": "fake", "mode": "fail", "path": "/bad"})
    before = await stage.wait("good", streams)
    failures = await stage.wait("bad", failed)
    assert before.pid is not None
    await stage.stop()
    await gone(before.pid)
    await stage.start()
    assert (await stage.subscriptions.get("off")).state == S.PAUSED
    bad = await stage.subscriptions.get("bad")
    assert (bad.state, bad.error) == (S.FAILED, failures.error)
    assert bad.restarts >= failures.restarts
    good = await stage.wait("good", streams)
    assert (good.created_at, good.rows, good.restarts) == (before.created_at, 5, 0)
    assert good.pid != before.pid


async def test_another_holder_of_the_lock_keeps_a_program_out(stage: Stage) -> None:
    import fcntl

    await stage.create("a", enabled=False)
    directory = stage.root / "a"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await stage.subscriptions.enable("a")
        info = await stage.wait("a", failed)
        assert info.error is not None
        assert info.error.code == SubscriptionFailed.code
        assert "run.lock" in info.error.message
    await stage.wait("a", streams)


async def test_without_the_lease_nothing_runs(stage: Stage) -> None:
    await stage.create("a")
    pid = (await stage.wait("a", streams)).pid
    assert pid is not None
    await stage.lose_lease()
    await gone(pid)
    for change in (
        stage.create("b"),
        stage.subscriptions.alter("a", {"options": {"x": "1"}}),
        stage.subscriptions.disable("a"),
        stage.subscriptions.enable("a"),
        stage.subscriptions.refresh("a"),
        stage.subscriptions.skip("a", Lsn(1)),
        stage.subscriptions.drop("a"),
    ):
        with pytest.raises(LeaseLost):
            await change
    info = await stage.wait("a", lambda i: i.state == S.INITIALIZING and i.pid is None)
    assert info.error is not None
    assert info.error.code == LeaseLost.code
    await stage.take_lease()
    # A drop that was refused has not ended what starts its program.
    await stage.wait("a", streams)


async def test_refusals_on_creation(stage: Stage) -> None:
    await stage.create("a")
    refused: list[tuple[type[SpillwayError], dict[str, Any]]] = [
        (DuplicateName, {}),
        (InvalidRequest, {"name": "Odd name"}),
        (InvalidRequest, {"name": "b", "target": {"kind": "nothing"}}),
        (InvalidRequest, {"name": "b", "target": {}}),
        (InvalidRequest, {"name": "b", "target": {"kind": "postgres", "dsn": ""}}),
        (UnsupportedFeature, {"name": "b", "two_phase": True}),
        (UnknownSource, {"name": "b", "source": "nowhere"}),
        (Conflict, {"name": "b", "slot": "a"}),
        (Conflict, {"name": "b"}),  # the same place
        (InvalidRequest, {"name": "b", "tables": ("a.b",), "publications": ("p",)}),
        (InvalidRequest, {"name": "b", "tables": ()}),
        (UnknownTable, {"name": "b", "tables": ("a.b",), "target": {"kind": "fake", "path": "/b"}}),
        (
            UnknownPublication,
            {"name": "b", "publications": ("p",), "target": {"kind": "fake", "path": "/b"}},
        ),
    ]
    for error, changed in refused:
        with pytest.raises(error):
            await stage.create(**changed)
    # Nothing is left of what was refused late.
    assert list(stage.engine.slots) == ["a"]
    assert [s.name for s in await stage.metadata.list_subscriptions()] == ["a"]


async def test_a_slot_that_is_there_is_taken_if_it_fits(stage: Stage) -> None:
    stage.engine.add_slot("s1")
    with pytest.raises(Conflict, match="plugin"):
        await stage.create("a", slot="s1")
    stage.engine.change_slot("s1", plugin="arrow", options={"include-xids": "0"})
    created = await stage.create("a", slot="s1")
    assert created.options == {"include-xids": "0"}
    assert (await stage.metadata.list_subscriptions())[0].options == {"include-xids": "0"}


async def test_tables_are_those_of_publications_until_it_is_refreshed(stage: Stage) -> None:
    where = ("shop", "shop")
    stage.engine.publications[where] = [publication("p", "a.t", "a.u"), publication("q", "a.v")]
    await stage.create("a", publications=("p",))
    info = await stage.wait("a", streams)
    assert [t.table for t in info.table_states] == ["a.t", "a.u"]
    same = await stage.subscriptions.refresh("a")
    assert same.pid == info.pid
    stage.engine.publications[where] = [publication("p", "a.t", "a.w"), publication("q", "a.v")]
    await stage.subscriptions.refresh("a")
    info = await stage.wait("a", lambda i: streams(i) and i.pid != info.pid)
    assert [t.table for t in info.table_states] == ["a.t", "a.w"]
    await stage.subscriptions.alter("a", {"publications": ["q"]})
    info = await stage.wait("a", lambda i: streams(i) and i.pid != info.pid)
    assert [t.table for t in info.table_states] == ["a.v"]
    stage.engine.publications[where] = [publication("q")]
    with pytest.raises(Conflict, match="no tables"):
        await stage.subscriptions.refresh("a")


async def test_a_refresh_waits_for_what_is_being_copied(stage: Stage) -> None:
    where = ("shop", "shop")
    stage.engine.publications[where] = [publication("p", "a.t")]
    target = {"kind": "fake", "mode": "copying"}
    await stage.create("a", publications=("p",), target=target)
    info = await stage.wait("a", lambda i: i.state == S.COPYING)
    stage.engine.publications[where] = [publication("p", "a.t", "a.u")]
    assert (await stage.subscriptions.refresh("a")).pid == info.pid
    for _ in range(5):
        await asyncio.sleep(0.05)
        assert (await stage.subscriptions.get("a")).pid == info.pid
    assert info.pid is not None
    os.kill(info.pid, signal.SIGUSR1)
    again = await stage.wait("a", lambda i: i.state == S.COPYING and i.pid not in (None, info.pid))
    assert [t.table for t in again.table_states] == ["a.t", "a.u"]
    assert (again.restarts, again.error) == (0, None)
    # All are copied: the next program need not ask the source, until there are others.
    assert again.pid is not None
    os.kill(again.pid, signal.SIGUSR1)
    await stage.wait("a", streams)
    await stage.subscriptions.disable("a")
    await stage.subscriptions.enable("a")
    info = await stage.wait("a", lambda i: i.state == S.COPYING)
    assert (await stage.subscriptions.log("a", 1))[0].endswith("copy False")
    await stage.subscriptions.disable("a")
    await stage.subscriptions.alter("a", {"tables": None, "publications": None, "enabled": True})
    await stage.wait("a", lambda i: i.pid not in (None, info.pid) and i.state == S.STREAMING)
    assert (await stage.subscriptions.log("a", 1))[0].endswith("copy True")


async def test_a_partitioned_table_is_its_partitions(stage: Stage) -> None:
    stage.engine.tables["shop", "shop"] = [
        table("a.root", kind="partitioned table"),
        table("a.sub", kind="partitioned table", partition_of=("a.root",)),
        table("a.p1", partition_of=("a.root",)),
        table("a.p2", partition_of=("a.sub", "a.root")),
        table("a.other"),
    ]
    await stage.create("a", tables=("a.root",))
    info = await stage.wait("a", streams)
    assert [t.table for t in info.table_states] == ["a.p1", "a.p2"]


async def test_alter(stage: Stage) -> None:
    stage.engine.tables["shop", "shop"] = [table("a.t"), table("a.u")]
    await stage.create("a", tables=("a.t",))
    info = await stage.wait("a", streams)
    # What is as it was changes nothing, whatever it is.
    same = {"source": "shop", "slot": "a", "tables": ["a.t"], "enabled": True, "origin": "any"}
    assert (await stage.subscriptions.alter("a", same)).pid == info.pid
    for field, value in (
        ("source", "other"), ("database", "x"), ("slot", "s"), ("copy_data", False),
        ("origin", "none"),
        ("two_phase", True), ("streaming", "on"),
    ):  # fmt: skip
        with pytest.raises(Conflict, match=field) as raised:
            await stage.subscriptions.alter("a", {field: value})
        assert "Drop the subscription" in raised.value.hint or "drop the" in raised.value.hint
    with pytest.raises(UnknownTable):
        await stage.subscriptions.alter("a", {"tables": ["a.t", "a.x"]})
    assert (await stage.subscriptions.get("a")).pid == info.pid
    altered = await stage.subscriptions.alter(
        "a", {"tables": ["a.t", "a.u"], "options": {"include-xids": "off"}}
    )
    assert altered.tables == ("a.t", "a.u")
    assert stage.engine.slots["a"].options == {"include-xids": "off"}
    info = await stage.wait("a", lambda i: streams(i) and i.pid != info.pid)
    assert [t.table for t in info.table_states] == ["a.t", "a.u"]
    everything = await stage.subscriptions.alter("a", {"tables": None})
    assert everything.tables is None


async def test_a_target_moves_only_while_nothing_is_in_it(stage: Stage) -> None:
    await stage.create("a", target={"kind": "fake", "mode": "silent", "path": "/bad"})
    await stage.wait("a", failed)
    good = {"kind": "fake", "path": "/good", "made_by": "x"}
    await stage.subscriptions.alter("a", {"target": good})
    await stage.wait("a", streams)
    with pytest.raises(Conflict, match="has filled its target"):
        await stage.subscriptions.alter("a", {"target": {"kind": "fake", "path": "/other"}})
    # Nor how it was made, where its kind says so; all else can.
    await stage.subscriptions.alter("a", {"target": {**good, "other": 1}})
    with pytest.raises(Conflict, match="made_by is of how that was made") as raised:
        await stage.subscriptions.alter("a", {"target": {**good, "made_by": "y"}})
    assert raised.value.details["field"] == "target.made_by"
    with pytest.raises(Conflict, match=r"target\.kind"):
        await stage.subscriptions.alter("a", {"target": {"kind": "lake", "path": "/other"}})


async def test_skip(stage: Stage) -> None:
    await stage.create("a")
    pid = (await stage.wait("a", streams)).pid
    stage.engine.commit("shop", "x")
    end = stage.engine.commit("shop", "y").end_lsn
    with pytest.raises(LsnNotRetained):
        await stage.subscriptions.skip("a", Lsn(end + 1))
    with pytest.raises(AdvanceBackward):
        await stage.subscriptions.skip("a", Lsn(1))
    assert (await stage.subscriptions.get("a")).pid == pid
    skipped = await stage.subscriptions.skip("a", end)
    assert skipped.confirmed_flush_lsn == end
    await stage.wait("a", lambda i: streams(i) and i.pid != pid)
    assert (await stage.subscriptions.log("a", 1)) == [
        f"mode run tables null skip {end} copy False"
    ]


async def test_one_table_is_paused_while_its_program_goes_on(stage: Stage) -> None:
    stage.engine.tables[("shop", "shop")] = [table("public.a"), table("public.b")]
    await stage.create("a", tables=("public.a", "public.b"))
    pid = (await stage.wait("a", streams)).pid
    await stage.subscriptions.pause_table("a", "public.b")
    after = await stage.subscriptions.resume_table("a", "public.b")
    assert after.pid == pid
    (asked,) = stage.root.rglob("*.asked")
    assert asked.read_text() == "pause public.b;resume public.b;"
    with pytest.raises(InvalidRequest, match=r"no table public\.c"):
        await stage.subscriptions.pause_table("a", "public.c")


async def test_a_table_that_is_copied_is_not_paused(stage: Stage) -> None:
    stage.engine.tables[("shop", "shop")] = [table("public.a")]
    target = {"kind": "fake", "mode": "copying"}
    await stage.create("a", tables=("public.a",), target=target)
    await stage.wait("a", lambda one: one.table_states)
    with pytest.raises(Conflict, match="still being copied"):
        await stage.subscriptions.pause_table("a", "public.a")
    # Its kind has nothing that resumes one.
    with pytest.raises(UnsupportedFeature, match="can't be paused or resumed"):
        await stage.subscriptions.resume_table("a", "public.a")


async def test_one_table_is_asked_for_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told at once, until the program tells of it itself."""
    stage.engine.tables[("shop", "shop")] = [table("public.a"), table("public.b")]
    await stage.create("a", tables=("public.a", "public.b"))
    pid = (await stage.wait("a", streams)).pid
    for _ in range(2):
        info = await stage.subscriptions.resync_table("a", "public.b")
        wishes = {t.table: t.resync.state if t.resync else None for t in info.table_states}
        assert wishes == {"public.a": None, "public.b": "waiting"}
    (asked,) = stage.root.rglob("*.asked")
    assert asked.read_text() == "resync public.b;resync public.b;"
    # Looks go on, and it has not told.
    await asyncio.sleep(1.2)
    info = await stage.subscriptions.get("a")
    assert (info.pid, info.table_states[1].resync is not None) == (pid, True)
    with pytest.raises(InvalidRequest, match=r"no table public\.c"):
        await stage.subscriptions.resync_table("a", "public.c")
    status = next(stage.root.rglob("status.json"))

    def told_state(info: SubscriptionInfo) -> str | None:
        resync = info.table_states[1].resync
        return None if resync is None else resync.state

    def tells(minute: int, state: str = "done") -> None:
        told = json.loads(status.read_text())
        told["tables"]["public.b"]["resync"] = {
            "state": state, "asked_at": f"2026-11-26T00:0{minute}:00+00:00", "lsn": f"0/{minute}0",
            "ended_at": "2026-11-26T00:09:00+00:00", "reason": None,
        }  # fmt: skip
        beside = status.with_suffix(".new")
        beside.write_text(json.dumps(told))
        beside.replace(status)

    def lsn(info: SubscriptionInfo) -> int | None:
        resync = info.table_states[1].resync
        return None if resync is None else resync.lsn

    tells(1)
    await stage.wait("a", lambda i: lsn(i) == 0x10)

    # The job may have done it before the program that asks has ended: it is not told as waiting.
    run_briefly = Supervisor.run_briefly

    async def slowly(supervisor: Supervisor, *arguments: Any) -> None:
        await run_briefly(supervisor, *arguments)
        tells(2)
        deadline = time.monotonic() + 60
        while not any(t.resync and t.resync.lsn == 0x20 for t in supervisor.status.tables):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    with monkeypatch.context() as patch:
        patch.setattr(Supervisor, "run_briefly", slowly)
        assert lsn(await stage.subscriptions.resync_table("a", "public.b")) == 0x20

    # Taken back it is told so at once, and what the program says behind that does not hide it.
    await stage.subscriptions.resync_table("a", "public.b")
    info = await stage.subscriptions.cancel_resync("a", "public.b")
    assert told_state(info) == "cancelled"
    assert asked.read_text().endswith("cancel-resync public.b;")
    tells(3, "waiting")
    supervisor = stage.subscriptions._supervisors["a"]
    at = supervisor.status.told_at
    info = await stage.wait("a", lambda _: supervisor.status.told_at != at)
    assert told_state(info) == "cancelled"
    tells(4, "cancelled")
    await stage.wait("a", lambda i: told_state(i) == "cancelled" and not supervisor._resyncs)

    # What nobody would do, and what the source does not let anybody read.
    stage.engine.unreadable.append("public.b")
    with pytest.raises(TableNotReadable):
        await stage.subscriptions.resync_table("a", "public.b")
    stage.engine.unreadable.clear()
    await stage.subscriptions.disable("a")
    with pytest.raises(Conflict, match="is disabled: no program") as raised:
        await stage.subscriptions.resync_table("a", "public.b")
    assert command(remedy(raised.value, "conflict"), "subscription enable", NAME="a")[2:] == ["a"]
    await stage.subscriptions.enable("a")
    await stage.wait("a", streams)
    await stage.subscriptions.resync_table("a", "public.b")
    assert asked.read_text().count(";resync") == 4
    # Disabled there is no program that tells, nor one behind a restart of the service.
    await stage.subscriptions.disable("a")
    await stage.subscriptions.cancel_resync("a", "public.b")
    await stage.stop()
    await stage.start()
    assert told_state(await stage.subscriptions.get("a")) == "cancelled"


async def test_the_target_is_compared(stage: Stage) -> None:
    stage.engine.tables[("shop", "shop")] = [table("public.a")]
    await stage.create("a", tables=("public.a",))
    await stage.wait("a", streams)
    with pytest.raises(InvalidRequest, match=r"no table public\.c"):
        await stage.subscriptions.verify("a", ("public.c",))
    begun = (await stage.subscriptions.verify("a", ("public.a",))).verification
    assert begun is not None
    assert begun.state == "running"
    info = await stage.wait("a", lambda i: i.verification and i.verification.state != "running")
    assert info.verification is not None
    assert info.verification.state == "different"
    assert [one.table for one in info.verification.differing] == ["public.a"]
    # It stays, over restarts, and while it is disabled; then nothing reaches another LSN.
    await stage.subscriptions.disable("a")
    with pytest.raises(Conflict, match="follows its slot") as raised:
        await stage.subscriptions.verify("a")
    found = command(remedy(raised.value, "conflict"), "subscription show", NAME="a")
    assert found[2:] == ["a"]
    await stage.stop()
    await stage.start()
    assert (await stage.subscriptions.get("a")).verification == info.verification
    copying = {"kind": "fake", "mode": "copying", "path": "/b"}
    await stage.create("b", tables=("public.a",), target=copying)
    with pytest.raises(UnsupportedFeature, match="compares no target of this kind"):
        await stage.subscriptions.verify("b")


async def test_a_table_that_is_copied_is_not_asked_for(stage: Stage) -> None:
    stage.engine.tables[("shop", "shop")] = [table("public.a")]
    await stage.create("a", tables=("public.a",))
    await stage.wait("a", streams)
    supervisor = stage.subscriptions._supervisors["a"]
    for state, reason, is_refused in (
        ("copying", None, True), ("waiting", None, True), ("waiting", "infinity", False),
    ):  # fmt: skip
        one = replace(supervisor.status.tables[0], state=state, reason=reason)
        supervisor.status = replace(supervisor.status, tables=(one,))
        if is_refused:
            with pytest.raises(Conflict, match="being copied at this time"):
                await stage.subscriptions.resync_table("a", "public.a")
        else:
            await stage.subscriptions.resync_table("a", "public.a")
    copying = {"kind": "fake", "mode": "copying", "path": "/b"}
    await stage.create("b", tables=("public.a",), target=copying)
    await stage.wait("b", lambda one: one.state == S.COPYING)
    # Its kind has nothing that loads one.
    with pytest.raises(UnsupportedFeature, match="can't be loaded anew one by one"):
        await stage.subscriptions.resync_table("b", "public.a")
    with pytest.raises(UnsupportedFeature, match="can't be loaded anew one by one"):
        await stage.subscriptions.cancel_resync("b", "public.a")


@pytest.mark.parametrize("keep_slot", [False, True])
async def test_drop(stage: Stage, keep_slot: bool) -> None:
    await stage.create("a")
    pid = (await stage.wait("a", streams)).pid
    assert pid is not None
    await stage.subscriptions.drop("a", keep_slot=keep_slot)
    await gone(pid)
    assert list(stage.engine.slots) == (["a"] if keep_slot else [])
    assert not (stage.root / "a").exists()
    for call in (stage.subscriptions.get("a"), stage.subscriptions.drop("a")):
        with pytest.raises(UnknownSubscription):
            await call
    if not keep_slot:
        await stage.create("a")
        await stage.wait("a", streams)


async def test_a_drop_that_can_not_be_done_leaves_everything(stage: Stage) -> None:
    await stage.create("a")
    await stage.wait("a", streams)
    stage.engine.change_slot("a", active=True)
    with pytest.raises(SpillwayError, match="active"):
        await stage.subscriptions.drop("a")
    stage.engine.change_slot("a", active=False)
    await stage.wait("a", streams)


@pytest.mark.parametrize("phase", ["dropping", "dropping_all"])
async def test_a_drop_that_was_cut_off_is_finished_at_the_next_start(
    stage: Stage, phase: str
) -> None:
    await stage.create("a", enabled=False)
    await stage.metadata.update_subscription("a", phase=phase)
    await stage.stop()
    await stage.start()
    assert await stage.subscriptions.list_all() == []
    assert list(stage.engine.slots) == (["a"] if phase == "dropping" else [])


async def test_a_creation_that_was_cut_off_is_finished_at_the_next_start(stage: Stage) -> None:
    await stage.create("a", enabled=False)
    await stage.metadata.update_subscription("a", phase="creating", enabled=True)
    await stage.engine.drop_slot("a")
    await stage.stop()
    await stage.start()
    await stage.wait("a", streams)
    assert list(stage.engine.slots) == ["a"]


async def test_a_slot_that_is_gone_is_not_made_again(stage: Stage) -> None:
    await stage.create("a")
    pid = (await stage.wait("a", streams)).pid
    assert pid is not None
    await stage.engine.drop_slot("a")
    os.kill(pid, signal.SIGKILL)
    info = await stage.wait("a", lambda i: failed(i) and i.error and i.error.code == "unknown_slot")
    assert (info.confirmed_flush_lsn, info.lag_bytes) == (None, None)
    assert stage.engine.slots == {}
    await stage.subscriptions.drop("a")


async def test_calls_at_the_same_time_do_not_mix(stage: Stage) -> None:
    created = await asyncio.gather(
        *(stage.create("a", target={"kind": "fake", "path": "/a"}) for _ in range(4)),
        return_exceptions=True,
    )
    assert sorted(type(c).__name__ for c in created) == ["DuplicateName"] * 3 + ["SubscriptionInfo"]
    await asyncio.gather(
        *(stage.subscriptions.disable("a") for _ in range(3)),
        *(stage.subscriptions.enable("a") for _ in range(3)),
    )
    await stage.wait("a", streams)
    record = RunRecord.load(stage.root / "a")
    assert record is not None
    assert len(processes_of(record)) == 1


async def test_what_another_service_did_counts_when_its_source_is_taken_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = stage.subscriptions._look

    async def counted() -> None:
        nonlocal looks
        await look()
        looks += 1

    monkeypatch.setattr(stage.subscriptions, "_look", counted)
    other = {"kind": "fake", "mode": "run", "path": "/other"}
    await stage.create("kept")
    await stage.create("off", target={"kind": "fake", "path": "/off"})
    await stage.create("gone", target={"kind": "fake", "path": "/gone"})
    await stage.create("again", target={"kind": "fake", "path": "/again"})
    for name in ("kept", "off", "gone", "again"):
        await stage.wait(name, streams)
    await stage.lose_lease()
    # What the other service does, in its words to the metadata store.
    store = stage.metadata
    fence = Fence("source/shop", stage.token)
    await store.update_subscription("kept", fence=fence, resolved_tables=["public.b"])
    await store.update_subscription("off", fence=fence, enabled=False)
    await store.remove_subscription("gone", fence=fence)
    await stage.engine.drop_slot("gone")
    (row,) = (r for r in await store.list_subscriptions() if r.name == "again")
    await store.remove_subscription("again", fence=fence)
    again = replace(row, phase="created", created_at=row.created_at + timedelta(seconds=1))
    await store.add_subscription(again, fence=fence)
    made = replace(row, name="made", slot="made", target=other, phase="creating")
    await store.add_subscription(made, fence=fence)
    dropped = replace(made, name="dropped", slot="dropped", target=other, phase="dropping")
    await store.add_subscription(dropped, fence=fence)

    # While it stands by it shows that, and runs nothing.
    deadline = time.monotonic() + 60
    names = ["again", "dropped", "kept", "made", "off"]
    while [s.name for s in await stage.subscriptions.list_all()] != names:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert (await stage.subscriptions.get("off")).state == S.PAUSED
    assert (await stage.subscriptions.get("again")).created_at == again.created_at
    assert (await stage.subscriptions.get("made")).pid is None
    with pytest.raises(LeaseLost):
        await stage.subscriptions.drop("made")

    # Changed after the last look, and before the lease is taken.
    monkeypatch.setattr("spillway.subscriber.subscriptions.LOOK_S", 3600.0)
    seen = looks
    stage.subscriptions._taken_over.set()
    await asyncio.sleep(0.3)
    assert looks - seen < 4
    await store.update_subscription("kept", fence=fence, resolved_tables=["public.c"])
    await stage.take_lease()
    await stage.wait("made", streams)
    await stage.wait("kept", streams)
    log = await stage.subscriptions.log("kept", 100)
    assert log[-1].startswith('mode run tables ["public.c"] skip None')
    # None was started by what had been read before.
    assert not any("public.b" in line for line in log)
    await stage.wait("again", streams)
    assert stage.engine.slots["made"].plugin == "arrow"
    off = await stage.subscriptions.get("off")
    assert (off.state, off.pid) == (S.PAUSED, None)
    # A drop that the other one had begun is finished; files of what it dropped go.
    deadline = time.monotonic() + 60
    while [s.name for s in await stage.subscriptions.list_all()] != [
        "again",
        "kept",
        "made",
        "off",
    ]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert not (stage.root / "gone").exists()
    with pytest.raises(UnknownSubscription):
        await stage.subscriptions.get("gone")


async def test_a_subscription_is_not_stored_or_removed_without_the_lease(stage: Stage) -> None:
    """By a service that does not know yet that it lost it."""
    await stage.create("a", enabled=False)
    await stage.metadata.release_lease("source/shop", stage.token)
    assert await stage.metadata.acquire_lease("source/shop", "other", 600) is not None
    before = await stage.metadata.list_subscriptions()
    for change in (
        stage.create("b", target={"kind": "fake", "path": "/b"}),
        stage.subscriptions.enable("a"),
        stage.subscriptions.drop("a"),
    ):
        with pytest.raises(LeaseLost):
            await change
        assert await stage.metadata.list_subscriptions() == before
    assert list(stage.engine.slots) == ["a"]


def write_conflicts(stage: Stage, *numbers: int) -> None:
    """Write what a program writes that meets them."""
    with (stage.root / "a" / "conflicts.jsonl").open("a") as file:
        for number in numbers:
            one = {"id": f"0/1/{number}/k", "kind": "update_missing", "schema": "s", "table": "t"}
            file.write(json.dumps({"log": "x", "position": number, **one}) + "\n")


@pytest.mark.follows_hint("unknown_conflict")
async def test_conflicts_outlive_whoever_dies(stage: Stage) -> None:
    await stage.create("a")
    await stage.wait("a", lambda s: s.state == S.STREAMING)
    write_conflicts(stage, 1, 2)
    told = await stage.wait("a", lambda s: s.conflicts.total)
    assert told.stats["confl_update_missing"] == 2
    with pytest.raises(UnknownConflict) as refused:
        await stage.subscriptions.conflict("a", "0/1/9/k")
    # The hint's command is this call.
    assert "subscription conflicts a" in remedy(refused.value, "unknown_conflict")
    newest, _ = await stage.subscriptions.conflicts("a", 9)
    assert await stage.subscriptions.conflict("a", newest["id"]) == newest

    # The program has ended, and the service dies before it looks again.
    await stage.subscriptions.disable("a")
    await stage.stop()
    stage.engine.taken_listeners.clear()
    write_conflicts(stage, 3, 6)
    await stage.start()
    told = await stage.subscriptions.get("a")
    assert (told.conflicts.total, told.conflicts.missed, told.pid) == (4, 2, None)
    assert told.table_states == ()
    assert [one["id"][4] for one in await stage.subscriptions.conflicts("a", 2)] == ["6", "3"]
    # A process that stands by shows them, too.
    await stage.lose_lease()
    write_conflicts(stage, 7)
    assert len(await stage.subscriptions.conflicts("a", 9)) == 4
    await stage.take_lease()
    assert len(await stage.subscriptions.conflicts("a", 9)) == 5
    await stage.subscriptions.drop("a")
    await stage.create("a")
    assert await stage.subscriptions.conflicts("a", 9) == []
