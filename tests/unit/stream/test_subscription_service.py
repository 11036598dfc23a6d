"""SubscriptionService over a real connection, with subscriptions in memory behind it."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from harness.fake_subscriptions import CREATED_AT, FakeSubscriptions
from spillway.pg.lsn import Lsn
from spillway.store.rows import ConflictTotals
from spillway.subscriber.model import (
    Failure,
    SubscriptionState,
    TableState,
    Verification,
    VerificationState,
    VerifiedTable,
)
from spillway.v1 import subscriptions_pb2 as pb
from spillway.v1 import subscriptions_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def stub(target: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(target) as channel:
        yield subscriptions_pb2_grpc.SubscriptionServiceStub(channel)


def wanted(name: str = "a", **changed: Any) -> pb.CreateSubscriptionRequest:
    request = pb.CreateSubscriptionRequest(name=name, source="shop", database="shop", **changed)
    request.target.update({"kind": "lake", "path": f"/lake/{name}", "metrics_port": 9400})
    return request


async def test_the_life_of_one(stub: Any, subscriptions: FakeSubscriptions) -> None:
    created = await stub.CreateSubscription(wanted(tables=pb.Names(names=["public.t"])))
    assert (created.state, created.slot, created.copy_data) == ("streaming", "a", True)
    assert (created.origin, created.streaming) == ("any", "off")
    # A Struct's numbers are doubles; a port is none.
    assert subscriptions.subscriptions["a"].target["metrics_port"] == 9400
    assert isinstance(subscriptions.subscriptions["a"].target["metrics_port"], int)
    assert created.target["format"] == "delta"
    assert created.tables.names == ["public.t"]
    assert not created.HasField("publications")
    assert not created.HasField("error")
    assert created.created_at.ToDatetime(CREATED_AT.tzinfo) == CREATED_AT
    listed = await stub.ListSubscriptions(pb.ListSubscriptionsRequest())
    assert list(listed.subscriptions) == [created]
    disabled = await stub.DisableSubscription(pb.DisableSubscriptionRequest(name="a"))
    assert (disabled.enabled, disabled.state) == (False, "paused")
    assert (await stub.EnableSubscription(pb.EnableSubscriptionRequest(name="a"))).enabled
    assert await stub.RefreshSubscription(pb.RefreshSubscriptionRequest(name="a")) == created
    skipped = await stub.SkipSubscription(pb.SkipSubscriptionRequest(name="a", lsn=0x2000000))
    assert skipped.confirmed_flush_lsn == 0x2000000
    subscriptions.logs["a"] = [f"line {number}" for number in range(200)]
    log = await stub.GetSubscriptionLog(pb.GetSubscriptionLogRequest(name="a"))
    assert (len(log.lines), log.lines[-1]) == (100, "line 199")
    subscriptions.left["a"] = ["left there", "remove it"]
    dropped = await stub.DropSubscription(pb.DropSubscriptionRequest(name="a", keep_slot=True))
    assert list(dropped.notes) == ["left there", "remove it"]
    assert subscriptions.dropped == [("a", True)]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetSubscription(pb.GetSubscriptionRequest(name="a"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_one_table_is_paused_and_resumed(stub: Any, subscriptions: FakeSubscriptions) -> None:
    await stub.CreateSubscription(wanted())
    subscriptions.change("a", table_states=(TableState("public.t", "ready"),))
    one = pb.SubscriptionTableRequest(name="a", table="public.t")
    assert (await stub.PauseSubscriptionTable(one)).table_states[0].state == "paused"
    assert (await stub.ResumeSubscriptionTable(one)).table_states[0].state == "ready"
    asked = (await stub.ResyncSubscriptionTable(one)).table_states[0].resync
    assert (asked.state, asked.asked_at.ToDatetime(UTC)) == ("waiting", CREATED_AT)
    assert (asked.HasField("ended_at"), asked.lsn, asked.HasField("reason")) == (False, 0, False)
    taken = (await stub.CancelSubscriptionTableResync(one)).table_states[0].resync
    assert (taken.state, taken.ended_at.ToDatetime(UTC)) == ("cancelled", CREATED_AT)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.PauseSubscriptionTable(pb.SubscriptionTableRequest(name="a", table="public.x"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_it_is_compared(stub: Any, subscriptions: FakeSubscriptions) -> None:
    await stub.CreateSubscription(wanted())
    request = pb.VerifySubscriptionRequest(name="a", tables=["public.t"])
    begun = (await stub.VerifySubscription(request)).verification
    assert (begun.state, begun.HasField("ended_at"), begun.lsn) == ("running", False, 0)
    assert subscriptions.compared == [("public.t",)]
    table = VerifiedTable("public.t", False, 5, 4, 1, True)
    why = Failure("not_ready", "m", "h")
    found = Verification(VerificationState.FAILED, CREATED_AT, CREATED_AT, Lsn(48), (table,), why)
    subscriptions.change("a", verification=found)
    told = (await stub.GetSubscription(pb.GetSubscriptionRequest(name="a"))).verification
    assert (told.state, told.lsn, told.error.hint) == ("failed", 48, "h")
    assert (told.tables[0].target_rows, told.tables[0].more) == (4, True)


async def test_how_one_is(stub: Any, subscriptions: FakeSubscriptions) -> None:
    await stub.CreateSubscription(wanted())
    subscriptions.change(
        "a",
        state=SubscriptionState.FAILED,
        error=Failure("lake_error", "no space", "Make some."),
        confirmed_flush_lsn=Lsn(0x1000010),
        lag_bytes=None,
        lag_seconds=None,
        pid=7,
        table_states=(TableState("public.t", "copying", 5, 10, 20),),
    )
    shown = await stub.GetSubscription(pb.GetSubscriptionRequest(name="a"))
    assert (shown.state, shown.error.code, shown.error.hint) == (
        "failed",
        "lake_error",
        "Make some.",
    )
    # What is not known is not 0.
    assert not shown.HasField("lag_bytes")
    assert not shown.HasField("lag_seconds")
    assert (shown.pid, shown.confirmed_flush_lsn) == (7, 0x1000010)
    (table,) = shown.table_states
    assert (table.table, table.bytes_copied, table.HasField("reason")) == ("public.t", 10, False)


async def test_what_is_altered(stub: Any, subscriptions: FakeSubscriptions) -> None:
    await stub.CreateSubscription(wanted(options={"a": "b"}))
    request = pb.AlterSubscriptionRequest(name="a", tables=pb.Names(names=["public.u"]))
    assert (await stub.AlterSubscription(request)).tables.names == ["public.u"]
    assert subscriptions.subscriptions["a"].options == {"a": "b"}
    request = pb.AlterSubscriptionRequest(name="a", enabled=False, options=pb.Options())
    altered = await stub.AlterSubscription(request)
    assert (altered.enabled, dict(altered.options)) == (False, {})
    assert altered.tables.names == ["public.u"]
    altered = await stub.AlterSubscription(pb.AlterSubscriptionRequest(name="a", all_tables=True))
    assert not altered.HasField("tables")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (wanted(origin="elsewhere"), "origin"),
        (wanted(streaming="yes"), "streaming"),
        (pb.CreateSubscriptionRequest(name="a", source="shop", database="shop"), ""),
    ],
    ids=["origin", "streaming", "no target"],
)
async def test_what_can_not_be(stub: Any, request_: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CreateSubscription(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in caught.value.details()


async def test_all_and_some_at_once(stub: Any) -> None:
    await stub.CreateSubscription(wanted())
    request = pb.AlterSubscriptionRequest(name="a", all_tables=True, tables=pb.Names(names=["a.b"]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.AlterSubscription(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_stats_and_conflicts(
    stub: Any, subscriptions: FakeSubscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stub.CreateSubscription(wanted())
    nothing = await stub.GetSubscriptionStats(pb.GetSubscriptionStatsRequest(name="a"))
    assert (nothing.received_lsn, nothing.HasField("told_at")) == (0, False)
    subscriptions.change(
        "a",
        stats={"received_lsn": "0/3", "last_msg_send_time": CREATED_AT.isoformat()},
        conflicts=ConflictTotals({("public.t", "update_missing"): 9}, 2, 3),
        table_states=(TableState("public.t", "ready", 5, sync_state="r", changes_per_second=2.5),),
        told_at=CREATED_AT,
    )
    stats = await stub.GetSubscriptionStats(pb.GetSubscriptionStatsRequest(name="a"))
    assert (stats.subname, stats.received_lsn, stats.confl_update_missing) == ("a", 3, 9)
    assert (stats.conflicts_dropped, stats.conflicts_missed) == (7, 3)
    assert stats.last_msg_send_time == stats.told_at
    assert (stats.tables[0].sync_state, stats.changes_per_second) == ("r", 2.5)
    assert not stats.HasField("pid")
    one = {
        "id": "0/1/1/k",
        "kind": "k",
        "schema": "s",
        "table": "t",
        "remote": {"id": "1"},
        "xid": 7,
    }
    subscriptions.met["a"] = [one, {**one, "id": "0/1/2/l", "kind": "l", "remote": None}]
    # Each in a part of its own; the last part has the totals.
    monkeypatch.setattr("spillway.stream.subscription_service._PART_BYTES", 1)

    async def conflicts(**asked: Any) -> list[pb.SubscriptionConflicts]:
        request = pb.GetSubscriptionConflictsRequest(name="a", **asked)
        return [part async for part in stub.GetSubscriptionConflicts(request)]

    parts = await conflicts()
    assert [len(part.conflicts) for part in parts] == [1, 1, 0]
    assert MessageToDict(parts[0].conflicts[0]) == one
    assert (parts[-1].kept, parts[-1].dropped, parts[-1].missed) == (2, 7, 3)
    (only, _) = await conflicts(kind="l")
    assert only.conflicts[0]["id"] == "0/1/2/l"
    assert [len(part.conflicts) for part in await conflicts(table="s.u")] == [0]
