"""SlotService and its neighbours over a real connection, with the engine in memory behind them."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from harness.fake_engine import CREATED_AT, FIRST_LSN, FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from harness.subscription_stage import publication, table
from spillway.errors import CorruptWal
from spillway.service.model import Obstacle
from spillway.stream.messages import snapshot_message, table_message
from spillway.stream.server import create_grpc_server
from spillway.subscriber.model import SubscriptionSpec
from spillway.v1 import slots_pb2 as pb
from spillway.v1 import slots_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def channel(target: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(target) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return slots_pb2_grpc.SlotServiceStub(channel)


async def test_sources(stub: Any) -> None:
    source = await stub.CreateSource(pb.CreateSourceRequest(name="books", dsn="password=secret"))
    assert source.name == "books"
    assert "secret" not in source.dsn
    assert source.sessions[0].snapshot_state == "consistent"
    assert source.created_at.ToDatetime(UTC) == CREATED_AT
    assert not source.HasField("error")
    names = [s.name for s in (await stub.ListSources(pb.ListSourcesRequest())).sources]
    assert names == ["shop", "books"]
    assert await stub.GetSource(pb.GetSourceRequest(name="books")) == source
    await stub.DropSource(pb.DropSourceRequest(name="books"))
    assert source.capture == pb.Capture(origin="any")
    capture = pb.Capture(origin="none", publications=["p", "q"])
    request = pb.CreateSourceRequest(name="some", dsn="host=db", capture=capture)
    assert (await stub.CreateSource(request)).capture == capture
    await stub.DropSource(pb.DropSourceRequest(name="some"))
    assert len((await stub.ListSources(pb.ListSourcesRequest())).sources) == 1


async def test_slots(stub: Any, engine: FakeEngine) -> None:
    slot = await stub.CreateSlot(
        pb.CreateSlotRequest(
            slot_name="s2", source="shop", database="shop", options={"include-xids": "0"}
        )
    )
    assert (slot.plugin, slot.confirmed_flush_lsn) == ("test_decoding", FIRST_LSN)
    assert dict(slot.options) == {"include-xids": "0"}
    assert not slot.HasField("active_pid")
    assert await stub.GetSlot(pb.GetSlotRequest(slot_name="s2")) == slot
    assert len((await stub.ListSlots(pb.ListSlotsRequest())).slots) == 2
    transaction = engine.commit("shop", "a", "b")
    assert (await stub.GetSlotStats(pb.GetSlotStatsRequest(slot_name="s2"))).total_txns == 1
    advanced = await stub.AdvanceSlot(
        pb.AdvanceSlotRequest(slot_name="s2", upto_lsn=transaction.end_lsn)
    )
    assert advanced.end_lsn == transaction.end_lsn
    rewound = await stub.RewindSlot(pb.RewindSlotRequest(slot_name="s2", lsn=FIRST_LSN))
    assert rewound.confirmed_flush_lsn == FIRST_LSN
    copied = await stub.CopySlot(pb.CopySlotRequest(slot_name="s2", new_slot_name="s3"))
    assert copied.slot_name == "s3"
    await stub.DropSlot(pb.DropSlotRequest(slot_name="s3"))
    assert set(engine.slots) == {"s1", "s2"}


async def test_what_is_altered(stub: Any, engine: FakeEngine) -> None:
    altered = await stub.AlterSource(pb.AlterSourceRequest(name="shop", dsn="host=new password=x"))
    assert altered.dsn == "host=new password=****"
    request = pb.AlterSlotRequest(slot_name="s1", options={"include-xids": "0"})
    assert dict((await stub.AlterSlot(request)).options) == {"include-xids": "0"}
    assert not (await stub.AlterSlot(pb.AlterSlotRequest(slot_name="s1"))).options
    assert not engine.slots["s1"].options
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.AlterSlot(pb.AlterSlotRequest(slot_name="none"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_what_there_is_comes_in_parts(stub: Any, engine: FakeEngine) -> None:
    names = [f"public.t{number:05}" for number in range(12_000)]
    engine.tables["shop", "shop"] = [table(name) for name in names]
    engine.publications["shop", "shop"] = [publication("p", *names[:2])]
    asked = pb.ListTablesRequest(source="shop", database="shop")
    parts = [part async for part in stub.ListTables(asked)]
    assert len(parts) > 1
    assert max(part.ByteSize() for part in parts) < 512 * 1024
    found = [one for part in parts for one in part.tables]
    assert [f"{one.schema}.{one.name}" for one in found] == names
    assert found[0] == table_message(table(names[0]))
    listed = stub.ListPublications(pb.ListPublicationsRequest(source="shop", database="shop"))
    (published,) = [one async for part in listed for one in part.publications]
    assert (published.name, [t.name for t in published.tables]) == ("p", ["t00000", "t00001"])
    assert published.tables[0].all_columns
    plugins = (await stub.ListPlugins(pb.ListPluginsRequest())).plugins
    assert [p.name for p in plugins] == [p.name for p in await engine.list_plugins()]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [_ async for _ in stub.ListTables(pb.ListTablesRequest(source="none", database="shop"))]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_snapshot(stub: Any, engine: FakeEngine) -> None:
    request = pb.CreateSlotRequest(
        slot_name="s", source="shop", database="shop", export_snapshot=True
    )
    slot = await stub.CreateSlot(request)
    held = await stub.GetSnapshot(pb.GetSnapshotRequest(slot_name="s"))
    assert held == snapshot_message(engine.snapshots["s"])
    assert (held.consistent_point, held.method) == (slot.confirmed_flush_lsn, "paired")
    assert not held.HasField("reason")
    taken = await stub.TakeSnapshot(pb.TakeSnapshotRequest(slot_name="s", paired_only=True))
    assert taken == snapshot_message(engine.snapshots["s"]) != held
    await stub.ReleaseSnapshot(pb.ReleaseSnapshotRequest(slot_name="s"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetSnapshot(pb.GetSnapshotRequest(slot_name="s"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_source_with_subscriptions_stays(
    stub: Any, engine: FakeEngine, subscriptions: FakeSubscriptions
) -> None:
    target = {"kind": "lake", "path": "/lake"}
    await subscriptions.create(SubscriptionSpec("a", "shop", "shop", target))
    with pytest.raises(grpc.aio.AioRpcError, match="still has subscriptions: a") as caught:
        await stub.DropSource(pb.DropSourceRequest(name="shop"))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "shop" in engine.sources


async def test_peek_and_get(stub: Any, engine: FakeEngine) -> None:
    for _ in range(3):
        engine.commit("shop", *("x" * 1000 for _ in range(500)))

    async def read(method: Any, **arguments: Any) -> list[Any]:
        call = method(pb.ReadChangesRequest(slot_name="s1", **arguments))
        return [change async for part in call for change in part.changes]

    peeked = await read(stub.PeekChanges, options={"include-xids": "0"})
    assert len(peeked) == 1500
    assert engine.options_seen[-1] == {"include-xids": "0"}
    assert len(await read(stub.PeekChanges, upto_nchanges=501)) == 1000
    assert await read(stub.GetChanges) == peeked
    assert await read(stub.GetChanges) == []


async def test_errors_carry_code_hint_and_places(stub: Any, engine: FakeEngine) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetSlot(pb.GetSlotRequest(slot_name="none"))
    error = caught.value
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == 'replication slot "none" does not exist'
    trailing = dict(error.trailing_metadata())
    assert trailing["spillway-code"] == "unknown_slot"
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    information = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(information)
    assert (information.domain, information.reason) == ("spillway", "unknown_slot")
    assert information.metadata["slot"] == "none"

    engine.next_error = CorruptWal("bad \udcff bytes", hint="Überprüfe …", lsn=7)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListSlots(pb.ListSlotsRequest())
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS

    engine.next_error = RuntimeError("password=secret")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListSlots(pb.ListSlotsRequest())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value)


async def test_health(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", "spillway.v1.SlotService", "spillway.v1.ChangeStream"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_follows_what_is_in_the_way(
    channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest
    response = health_pb2.HealthCheckResponse
    watch = stub.Watch(request(service=""))
    assert (await watch.read()).status == response.SERVING

    async def statuses() -> list[int]:
        names = ("", "spillway.v1.ChangeStream", "spillway.v1.SlotService")
        return [(await stub.Check(request(service=name))).status for name in names]

    # A primary that is gone ends no call on slots.
    engine.in_the_way = [Obstacle("source", "shop", "source_unreachable", "m", "h", None)]
    assert await statuses() == [response.NOT_SERVING, response.NOT_SERVING, response.SERVING]
    assert (await watch.read()).status == response.NOT_SERVING
    engine.in_the_way = [Obstacle("metadata", "metadata", "metadata_unavailable", "m", "h", None)]
    assert await statuses() == [response.NOT_SERVING] * 3
    engine.in_the_way = []
    assert await statuses() == [response.SERVING] * 3
    assert (await watch.read()).status == response.SERVING
    watch.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(request(service="nonsense"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest
    answers = [
        answer
        async for answer in stub.ServerReflectionInfo(
            iter([request(list_services=""), request(file_containing_symbol="spillway.v1.Changes")])
        )
    ]
    services = {service.name for service in answers[0].list_services_response.service}
    assert {"spillway.v1.SlotService", "spillway.v1.ChangeStream"} <= services
    assert answers[1].file_descriptor_response.file_descriptor_proto


async def test_token(engine: FakeEngine, unused_tcp_port: int) -> None:
    server = await create_grpc_server(
        engine, FakeSubscriptions(), host="127.0.0.1", port=unused_tcp_port, token="s3cret"
    )
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{unused_tcp_port}") as channel:
        stub = slots_pb2_grpc.SlotServiceStub(channel)
        for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "s3cret"),)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListSlots(pb.ListSlotsRequest(), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        good = (("authorization", "Bearer s3cret"),)
        assert len((await stub.ListSlots(pb.ListSlotsRequest(), metadata=good)).slots) == 1
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status
    await server.stop(0)
