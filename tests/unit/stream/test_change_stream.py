"""The change stream over a real connection, with the engine in memory behind it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from harness.commands import parse_command
from harness.fake_engine import FIRST_LSN, FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from harness.remedies import remedy
from spillway.caller import SUBSCRIPTION_VARIABLE
from spillway.errors import (
    AddressUnavailable,
    InvalidOption,
    InvalidRequest,
    MetadataError,
    NotReady,
    SessionEnded,
    SlotActive,
    SpillwayError,
    Unauthenticated,
    UnknownSlot,
)
from spillway.pg.lsn import Lsn
from spillway.stream import change_stream
from spillway.stream.client import ChangeStreamReader, open_stream
from spillway.stream.server import create_grpc_server
from spillway.v1 import change_stream_pb2 as pb
from spillway.v1 import change_stream_pb2_grpc, slots_pb2, slots_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from spillway.stream.wire import Batch


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def opened(target: str, slot_name: str = "s1", **arguments: Any) -> ChangeStreamReader:
    return await asyncio.to_thread(open_stream, target, slot_name, **arguments)


async def next_changes(stream: ChangeStreamReader) -> Batch:
    """The next batch that is no keepalive."""
    while True:
        batch = await asyncio.to_thread(next, stream)
        if batch.count or batch.final:
            return batch


async def rest(stream: ChangeStreamReader) -> list[Batch]:
    return await asyncio.to_thread(lambda: [b for b in stream if b.count or b.final])


def texts(*batches: Batch) -> list[str]:
    return [data.decode() for batch in batches for _, _, data in batch.messages()]


async def test_changes_come_as_they_are_committed(target: str, engine: FakeEngine) -> None:
    first = engine.commit("shop", "BEGIN 1", "a", "COMMIT 1", xid=1)
    stream = await opened(target)
    batch = await next_changes(stream)
    assert [(lsn, xid, data.decode()) for lsn, xid, data in batch.messages()] == [
        (c.lsn, c.xid, c.data) for c in first.changes
    ]
    assert batch.wal_start == first.changes[0].lsn
    assert batch.confirm_lsn == first.end_lsn
    engine.commit("shop", "b")
    assert texts(await next_changes(stream)) == ["b"]
    await asyncio.to_thread(stream.close)


async def test_slot_is_active_while_the_stream_is_open(target: str, engine: FakeEngine) -> None:
    stream = await opened(target)
    assert engine.slots["s1"].active
    with pytest.raises(SlotActive, match=r"is active for a stream from 127\.0\.0\.1:") as caught:
        await opened(target)
    assert "(spillway/" in caught.value.message
    assert caught.value.hint == "End its session first."
    assert caught.value.details == {"slot": "s1"}
    async with asyncio.timeout(5):
        await asyncio.to_thread(stream.close)
        await until(lambda: not engine.slots["s1"].active)
    again = await opened(target)
    await asyncio.to_thread(again.close)


@pytest.mark.parametrize("stalled", [False, True])
async def test_who_ends_a_session_frees_the_slot_at_once(
    target: str, engine: FakeEngine, *, stalled: bool
) -> None:
    stream = await opened(target)
    if stalled:
        # More than HTTP/2's windows take: the service waits in a write that nobody reads.
        for _ in range(64):
            engine.commit("shop", "x" * (1 << 20))
        await asyncio.sleep(0.3)
    with grpc.insecure_channel(target) as channel:
        stub: Any = slots_pb2_grpc.SlotServiceStub(channel)
        request = slots_pb2.EndSessionRequest(slot_name="s1")
        answer = await asyncio.to_thread(stub.EndSession, request, timeout=10)
    assert answer.consumer.kind == "stream"
    assert answer.consumer.address.startswith("127.0.0.1:")
    # Another has it although the first one's client has not heard of its end yet.
    again = await opened(target)
    with pytest.raises(SessionEnded) as caught:
        await asyncio.to_thread(lambda: [None for _ in stream])
    assert caught.value.details == {"slot": "s1"}
    for one in (stream, again):
        await asyncio.to_thread(one.close)


@pytest.mark.parametrize("busy", [False, True])
async def test_a_client_that_is_stopped_loses_its_slot(
    engine: FakeEngine, unused_tcp_port: int, tmp_path: Path, *, busy: bool
) -> None:
    """As PostgreSQL ends a walsender after wal_sender_timeout. gRPC alone waits for a minute, twice
    at worst.
    """
    server = await create_grpc_server(
        engine,
        FakeSubscriptions(),
        host="127.0.0.1",
        port=unused_tcp_port,
        token=None,
        client_timeout_s=1.0,
    )
    await server.start()
    output = tmp_path / "received"
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spillway.cli", "recv", "-S", "s1", "-f", str(output),
        "--grpc", f"127.0.0.1:{unused_tcp_port}", "-s", "0.1", "-F", "0.1",
    )  # fmt: skip
    try:
        engine.commit("shop", "first")
        await until(lambda: output.exists() and output.read_text() == "first\n")
        client.send_signal(signal.SIGSTOP)
        if busy:
            for _ in range(64):
                engine.commit("shop", "x" * (1 << 20))
        async with asyncio.timeout(20):
            await until(lambda: not engine.slots["s1"].active)
        # It finds out when it goes on, and takes the slot again: nothing is lost.
        client.send_signal(signal.SIGCONT)
        engine.commit("shop", "last")
        await until(lambda: output.read_bytes().endswith(b"last\n"))
        assert output.stat().st_size >= (64 << 20 if busy else 0)
    finally:
        client.kill()
        await client.wait()
        await server.stop(0)


async def test_a_subscriptions_program_says_whose_it_is(
    target: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUBSCRIPTION_VARIABLE, "orders")
    stream = await opened(target)
    consumer = (await engine.get_slot("s1")).consumer
    assert consumer is not None
    assert consumer.subscription == "orders"
    assert f"(pid {os.getpid()} on " in (consumer.client or "")
    await asyncio.to_thread(stream.close)


async def test_a_client_that_reads_nothing_but_lives_keeps_its_slot(
    engine: FakeEngine, unused_tcp_port: int
) -> None:
    """Its program may take long for what it has; its library answers."""
    server = await create_grpc_server(
        engine,
        FakeSubscriptions(),
        host="127.0.0.1",
        port=unused_tcp_port,
        token=None,
        client_timeout_s=0.5,
    )
    await server.start()
    stream = await opened(f"127.0.0.1:{unused_tcp_port}")
    for _ in range(64):
        engine.commit("shop", "x" * (1 << 20))
    await asyncio.sleep(2)
    assert engine.slots["s1"].active
    await asyncio.to_thread(stream.close)
    await server.stop(0)


async def test_feedback_confirms(target: str, engine: FakeEngine) -> None:
    transaction = engine.commit("shop", "a")
    stream = await opened(target)
    batch = await next_changes(stream)
    stream.confirm(batch.confirm_lsn, apply_lsn=Lsn(9))
    await until(lambda: engine.feedback)
    assert engine.feedback == [("s1", transaction.end_lsn, transaction.end_lsn, 9)]
    assert engine.slots["s1"].confirmed_flush_lsn == transaction.end_lsn
    stream.confirm(FIRST_LSN)
    await asyncio.to_thread(stream.close)
    assert engine.slots["s1"].confirmed_flush_lsn == transaction.end_lsn, "never backward"


async def test_feedback_given_just_before_closing_arrives(target: str, engine: FakeEngine) -> None:
    transaction = engine.commit("shop", "a")
    for _ in range(20):
        await engine.rewind("s1", FIRST_LSN)
        stream = await opened(target)
        batch = await next_changes(stream)
        stream.confirm(batch.confirm_lsn)
        await asyncio.to_thread(stream.close)
        assert engine.slots["s1"].confirmed_flush_lsn == transaction.end_lsn
        await until(lambda: not engine.slots["s1"].active)


async def test_what_was_not_confirmed_comes_again(target: str, engine: FakeEngine) -> None:
    first = engine.commit("shop", "a")
    engine.commit("shop", "b")
    stream = await opened(target, batch_bytes=change_stream.BATCH_BYTES_MIN)
    await next_changes(stream)
    stream.confirm(first.end_lsn)
    await asyncio.to_thread(stream.close)
    await until(lambda: not engine.slots["s1"].active)
    stream = await opened(target)
    assert texts(await next_changes(stream)) == ["b"]
    await asyncio.to_thread(stream.close)


async def test_start_position_and_end(target: str, engine: FakeEngine) -> None:
    first, second, third = (engine.commit("shop", text) for text in "abc")
    stream = await opened(target, start_lsn=second.final_lsn, upto_lsn=third.final_lsn)
    batches = await rest(stream)
    assert texts(*batches) == ["b"]
    assert batches[-1].final
    await asyncio.to_thread(stream.close)
    await until(lambda: not engine.slots["s1"].active)
    assert engine.slots["s1"].confirmed_flush_lsn == FIRST_LSN
    assert first.end_lsn < second.final_lsn


async def test_last_feedback_of_a_finite_stream_is_stored(target: str, engine: FakeEngine) -> None:
    transaction = engine.commit("shop", "a")

    def consume(end: Lsn) -> None:
        with open_stream(target, "s1", upto_lsn=end) as stream:
            for batch in stream:
                stream.confirm(batch.confirm_lsn)

    await asyncio.to_thread(consume, transaction.end_lsn)
    assert engine.slots["s1"].confirmed_flush_lsn == transaction.end_lsn
    await until(lambda: engine.streams_open == 0)


async def test_options(target: str, engine: FakeEngine) -> None:
    stream = await opened(target, options={"include-xids": "0"})
    assert engine.options_seen[-1] == {"include-xids": "0"}
    await asyncio.to_thread(stream.close)
    with pytest.raises(InvalidOption, match="nonsense"):
        await opened(target, options={"nonsense": "1"})
    await until(lambda: engine.streams_open == 0)


async def test_peek_leaves_the_slot_alone(target: str, engine: FakeEngine) -> None:
    engine.commit("shop", "a")
    owner = await opened(target)
    peek = await opened(target, peek=True)
    assert texts(await next_changes(peek)) == ["a"]
    peek.confirm(Lsn(FIRST_LSN + 1))
    with pytest.raises(InvalidRequest):
        await rest(peek)
    await asyncio.to_thread(peek.close)
    await asyncio.to_thread(owner.close)
    assert engine.slots["s1"].confirmed_flush_lsn == FIRST_LSN


async def test_keepalives_say_how_far_wal_has_come(
    target: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_stream, "POLL_S", 0.02)
    stream = await opened(target)
    assert (await asyncio.to_thread(next, stream)).wal_end == engine.decoded_lsn
    moved = engine.move_wal(4096)
    batch = await asyncio.to_thread(next, stream)
    assert (batch.count, batch.wal_end, batch.confirm_lsn) == (0, moved, moved)
    await asyncio.to_thread(stream.close)


async def test_idle_keepalives_ask_for_overdue_feedback(
    target: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_stream, "POLL_S", 0.02)
    monkeypatch.setattr(change_stream, "KEEPALIVE_S", 0.1)
    engine.commit("shop", "a")
    stream = await opened(target)
    batch = await next_changes(stream)
    keepalive = await asyncio.to_thread(lambda: next(b for b in stream if b.reply_requested))
    assert keepalive.count == 0
    stream.confirm(batch.confirm_lsn)
    quiet = await asyncio.to_thread(
        lambda: next(b for b in stream if b.flush_lsn == batch.confirm_lsn)
    )
    assert not quiet.reply_requested
    await asyncio.to_thread(stream.close)


async def test_a_slow_client_costs_no_memory(target: str, engine: FakeEngine) -> None:
    """Only what fits HTTP/2's window is read from the engine while the client does not read."""
    row = "x" * 65536
    for _ in range(2000):
        engine.commit("shop", row)
    handed_out = 0

    def count(stream: Any) -> None:
        original = stream.next_batch

        async def next_batch(timeout_s: float, live: object) -> Any:
            nonlocal handed_out
            handed_out += 1
            return await original(timeout_s, live)

        stream.next_batch = next_batch

    original_stream = engine.stream

    def counted(*args: Any, **kwargs: Any) -> Any:
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def context() -> AsyncIterator[Any]:
            async with original_stream(*args, **kwargs) as stream:
                count(stream)
                yield stream

        return context()

    engine.stream = counted  # type: ignore[method-assign]
    stream = await opened(target, batch_bytes=65536)
    await asyncio.sleep(0.5)
    assert handed_out < 400, "of 2000"
    batches = 0
    while batches < 2000:
        batches += (await asyncio.to_thread(next, stream)).count
    await asyncio.to_thread(stream.close)


async def test_large_messages_pass(target: str, engine: FakeEngine) -> None:
    engine.commit("shop", "x" * (80 * 1024 * 1024))
    stream = await opened(target)
    assert len((await next_changes(stream)).payload) == 80 * 1024 * 1024
    await asyncio.to_thread(stream.close)


async def test_errors_in_mid_stream(target: str, engine: FakeEngine) -> None:
    stream = await opened(target)
    engine.next_error = MetadataError("the database is gone", hint="wait")
    with pytest.raises(MetadataError, match="the database is gone"):
        await rest(stream)
    await asyncio.to_thread(stream.close)
    stream = await opened(target)
    engine.next_error = RuntimeError("password=secret")
    with pytest.raises(SpillwayError) as caught:
        await rest(stream)
    assert (caught.value.code, "secret" in str(caught.value)) == ("internal_error", False)
    await asyncio.to_thread(stream.close)
    await until(lambda: engine.streams_open == 0)


async def test_refusals(target: str) -> None:
    with pytest.raises(UnknownSlot, match='replication slot "none" does not exist'):
        await opened(target, "none")
    for batch_bytes in (1, 17 * 1024 * 1024):
        with pytest.raises(InvalidRequest, match="batch_bytes"):
            await opened(target, batch_bytes=batch_bytes)


@pytest.mark.parametrize(
    "requests",
    [
        [],
        [pb.StreamRequest()],
        [pb.StreamRequest(feedback=pb.Feedback(flush_lsn=1))],
        [pb.StreamRequest(start=pb.Start(slot_name="s1"))] * 2,
    ],
    ids=["nothing", "empty", "feedback first", "two starts"],
)
async def test_protocol_violations(
    target: str, engine: FakeEngine, requests: list[pb.StreamRequest]
) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        call = change_stream_pb2_grpc.ChangeStreamStub(channel).Stream(iter(requests))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["spillway-code"] == "invalid_request"
    await until(lambda: engine.streams_open == 0)


async def half_closed(target: str, **start: Any) -> list[bytes]:
    """Send Start and nothing more, as grpcurl does, and return the payloads until the service ends
    the stream.
    """
    async with grpc.aio.insecure_channel(target) as channel, asyncio.timeout(30):
        call = change_stream_pb2_grpc.ChangeStreamStub(channel).Stream(
            iter([pb.StreamRequest(start=pb.Start(slot_name="s1", **start))])
        )
        payloads = [r.changes.payload async for r in call if r.HasField("changes")]
        assert await call.code() is grpc.StatusCode.OK
    return payloads


async def test_a_client_that_closes_its_side_gets_what_there_is(
    target: str, engine: FakeEngine
) -> None:
    assert await half_closed(target) == []
    await until(lambda: engine.streams_open == 0)
    for _ in range(5):
        engine.commit("shop", "a" * 2000)
    assert b"".join(await half_closed(target, batch_bytes=1024)) == b"a" * 10_000
    await until(lambda: engine.streams_open == 0)
    # Nothing was confirmed.
    assert len(b"".join(await half_closed(target))) == 10_000


async def test_a_stream_with_an_end_goes_there_though_the_client_has_closed_its_side(
    target: str, engine: FakeEngine
) -> None:
    engine.commit("shop", "a")
    reading = asyncio.create_task(half_closed(target, upto_lsn=engine.decoded_lsn + 0x1000))
    await until(lambda: engine.streams_open == 1)
    await asyncio.sleep(0.1)
    engine.commit("shop", "b")
    engine.move_wal(0x2000)
    assert b"".join(await reading) == b"ab"
    await until(lambda: engine.streams_open == 0)


async def test_an_end_comes_though_more_is_written_all_the_time(
    target: str, engine: FakeEngine
) -> None:
    engine.commit("shop", "a" * 2000)

    async def write() -> None:
        while True:
            engine.commit("shop", "b" * 2000)
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    try:
        assert b"".join(await half_closed(target, batch_bytes=1024)).startswith(b"a" * 2000)
    finally:
        writing.cancel()


async def test_a_service_that_goes_away(engine: FakeEngine, unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    with pytest.raises(NotReady, match="can't be reached"):
        await opened(address)
    server = await create_grpc_server(
        engine, FakeSubscriptions(), host="127.0.0.1", port=unused_tcp_port, token=None
    )
    await server.start()
    stream = await opened(address)
    await server.stop(0)
    with pytest.raises(NotReady):
        await rest(stream)
    await asyncio.to_thread(stream.close)
    assert engine.streams_open == 0


async def test_token(engine: FakeEngine, unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    server = await create_grpc_server(
        engine, FakeSubscriptions(), host="127.0.0.1", port=unused_tcp_port, token="s3cret"
    )
    await server.start()
    for token in (None, "wrong", ""):
        with pytest.raises(Unauthenticated):
            await opened(address, token=token)
    stream = await opened(address, token="s3cret")
    await asyncio.to_thread(stream.close)
    await server.stop(0)


@pytest.mark.follows_hint("address_unavailable")
async def test_a_taken_port(target: str, engine: FakeEngine) -> None:
    with pytest.raises(AddressUnavailable) as caught:
        await create_grpc_server(
            engine,
            FakeSubscriptions(),
            host="127.0.0.1",
            port=int(target.rpartition(":")[2]),
            token=None,
        )
    option = re.search(r"--grpc-port", remedy(caught.value, "address_unavailable"))
    assert option is not None
    assert "grpc_port" in parse_command(["serve", option[0], "0"])
    server = await create_grpc_server(
        engine, FakeSubscriptions(), host="127.0.0.1", port=0, token=None
    )
    await server.stop(0)
