"""What stands before gRPC's methods: the token, bytes that are no message, clients that vanish,
connections too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from harness.fake_subscriptions import FakeSubscriptions
from spillway.connection_bound import ConnectionBound
from spillway.errors import InvalidRequest, TooManyAttempts, Unauthenticated, UnknownSlot
from spillway.stream.client import get_slot
from spillway.stream.connections import GrpcConnections
from spillway.stream.server import create_grpc_server
from spillway.stream.status import error_from_rpc, errors_as_statuses
from spillway.v1 import change_stream_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from harness.fake_engine import FakeEngine

_BAD = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "method",
    [
        "spillway.v1.SlotService/GetSlot",
        "spillway.v1.SlotService/CreateSlot",
        "spillway.v1.SlotService/PeekChanges",
        "grpc.health.v1.Health/Check",
    ],
)
async def test_bytes_that_are_no_message(
    target: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_unary(f"/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(_BAD)
    _assert_invalid(caught.value, target)
    assert not caplog.records


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        "spillway.v1.ChangeStream/Stream",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_bytes_that_are_no_message_in_a_stream(
    target: str, method: str, begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    start = change_stream_pb2.StreamRequest(start=change_stream_pb2.Start(slot_name="s1"))

    async def requests() -> AsyncIterator[bytes]:
        if begun and "Change" in method:
            yield start.SerializeToString()
        yield _BAD
        await asyncio.sleep(5)

    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.stream_stream(f"/{method}")(requests())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    _assert_invalid(caught.value, target)
    assert not caplog.records


def _assert_invalid(error: grpc.aio.AioRpcError, target: str) -> None:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    trailing = dict(error.trailing_metadata())
    assert trailing["spillway-code"] == "invalid_request"
    assert isinstance(error_from_rpc(error, target), InvalidRequest)


async def test_tokens_are_guessed_slowly(engine: FakeEngine, unused_tcp_port: int) -> None:
    target = f"127.0.0.1:{unused_tcp_port}"
    server = await create_grpc_server(
        engine, FakeSubscriptions(), host="127.0.0.1", port=unused_tcp_port, token="right"
    )
    await server.start()
    try:
        for number in range(5):
            with pytest.raises(Unauthenticated):
                await asyncio.to_thread(get_slot, target, "s1", token=f"wrong{number}")
        for token in ("wrong too", "right"):
            with pytest.raises(TooManyAttempts) as caught:
                await asyncio.to_thread(get_slot, target, "s1", token=token)
            assert int(str(caught.value.details["retry_after_s"])) >= 1
        # What probes brings none.
        async with grpc.aio.insecure_channel(target) as channel:
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    finally:
        await server.stop(0)


async def test_a_refusal_does_not_wait_for_a_message(
    engine: FakeEngine, unused_tcp_port: int
) -> None:
    server = await create_grpc_server(
        engine, FakeSubscriptions(), host="127.0.0.1", port=unused_tcp_port, token="right"
    )
    await server.start()

    async def never() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{unused_tcp_port}") as channel:
            call = channel.stream_stream("/spillway.v1.SlotService/GetSlot")(never())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(call.read(), 10)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await server.stop(0)


async def test_clients_that_vanish_are_no_tracebacks(
    engine: FakeEngine, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(200):
        engine.commit("shop", f"change {number} " + "x" * 20_000)
    start = change_stream_pb2.StreamRequest(start=change_stream_pb2.Start(slot_name="s1"))

    async def requests() -> AsyncIterator[bytes]:
        yield start.SerializeToString()
        await asyncio.sleep(5)

    for messages in (0, 1, 2):
        async with _relay(target) as relay, grpc.aio.insecure_channel(relay.target) as channel:
            call = channel.stream_stream("/spillway.v1.ChangeStream/Stream")(requests())
            for _ in range(messages):
                await call.read()
            relay.cut()
            call.cancel()
        await asyncio.sleep(0.1)
    for pause_s in (0.0, 0.001, 0.003, 0.01, 0.03):
        async with _relay(target) as relay, grpc.aio.insecure_channel(relay.target) as channel:
            peek = channel.unary_unary("/spillway.v1.SlotService/PeekChanges")(b"\x0a\x02s1")
            unknown = channel.unary_unary("/spillway.v1.SlotService/GetSlot")(b"\x0a\x02xx")
            await asyncio.sleep(pause_s)
            relay.cut()
            peek.cancel()
            unknown.cancel()
    await asyncio.sleep(0.3)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
    with pytest.raises(UnknownSlot):
        await asyncio.to_thread(get_slot, target, "none")


async def test_a_write_to_a_client_that_is_gone_is_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Method:
        @errors_as_statuses
        async def write(self, request: Exception, context: Any) -> None:
            raise request

    class Context:
        def __init__(self, *, is_done: bool) -> None:
            self._is_done = is_done

        def done(self) -> bool:
            return self._is_done

        def peer(self) -> str:
            return "ipv4:127.0.0.1:4711"

        def invocation_metadata(self) -> tuple[()]:
            return ()

        async def abort(self, *_: object, **__: object) -> None:
            # It waits behind what a client that is stopped has not read, until its connection ends.
            raise grpc.aio.InternalError("execute_batch")

    for error in (grpc.aio.UsageError("RPC already finished."), grpc.aio.InternalError("gone")):
        with pytest.raises(asyncio.CancelledError):
            await Method().write(error, Context(is_done=False))
    with pytest.raises(asyncio.CancelledError):
        await Method().write(InvalidRequest("told to nobody"), Context(is_done=True))
    with pytest.raises(asyncio.CancelledError):
        await Method().write(InvalidRequest("told too late"), Context(is_done=False))
    assert not caplog.records


class _Relay:
    """Passes bytes on, and cuts both connections without a word."""

    def __init__(self) -> None:
        self.target = ""
        self.writers: list[asyncio.StreamWriter] = []

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def _relay(target: str) -> AsyncIterator[_Relay]:
    relay = _Relay()
    host, _, port = target.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        relay.writers += [writer, there_writer]
        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    relay.target = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        listener.close()
        relay.cut()
        await asyncio.sleep(0.05)


async def _opened(target: str, count: int, own: str = "127.0.0.1") -> list[socket.socket]:
    """Connect *count* times from the address *own*; the server has accepted them all."""
    host, _, port = target.rpartition(":")
    made = []
    for _ in range(count):
        made.append(socket.create_connection((host, int(port)), source_address=(own, 0)))
        made[-1].setblocking(False)
    for connection in made:
        # The server speaks first: its settings.
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 1), 20)
    return made


async def _count_open(connections: list[socket.socket], count: int) -> list[bool]:
    """Say which are open, as soon as there are *count*."""
    for _ in range(400):
        found = [_is_open(one) for one in connections]
        if sum(found) <= count:
            break
        await asyncio.sleep(0.05)
    return found


def _is_open(connection: socket.socket) -> bool:
    try:
        while data := connection.recv(65536):
            assert data
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


async def test_connections_have_a_bound(target: str, caplog: pytest.LogCaptureFixture) -> None:
    port = int(target.rpartition(":")[2])
    connections = GrpcConnections(port, ConnectionBound("gRPC", 4))
    first = await _opened(target, 3)
    connections.look()
    later = await _opened(target, 20)
    connections.look()
    try:
        assert sum(await _count_open(later, 1)) == 1
        assert [_is_open(s) for s in first] == [True] * 3, "those that were there first stay"
        connections.look()
        assert len(caplog.records) == 1
    finally:
        for one in (*first, *later):
            one.close()


async def test_an_address_does_not_take_all(target: str, caplog: pytest.LogCaptureFixture) -> None:
    port = int(target.rpartition(":")[2])
    bound = ConnectionBound("gRPC", 12, 5)
    connections = GrpcConnections(port, bound)
    greedy = await _opened(target, 5, "127.0.0.2")
    connections.look()
    greedy += await _opened(target, 4, "127.0.0.2")
    others = await _opened(target, 4, "127.0.0.3") + await _opened(target, 2, "127.0.0.4")
    connections.look()
    # What is shut down and not closed yet is not counted again.
    connections.look()
    try:
        assert await _count_open(greedy, 5) == [True] * 5 + [False] * 4, "the newest go"
        assert [_is_open(s) for s in others] == [True] * 6
        assert bound.refused == {"address": 4, "total": 0}
        assert "of one address" in caplog.records[0].message
        others += await _opened(target, 3, "127.0.0.4")
        connections.look()
        assert sum(await _count_open(others, 7)) == 7, "in all there are 12"
        assert bound.refused == {"address": 4, "total": 2}
    finally:
        for one in (*greedy, *others):
            one.close()
