"""REST's server on real sockets: what a client may not do to it."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from harness.remedies import remedy
from spillway.admin.application import Admin
from spillway.connection_bound import ConnectionBound
from spillway.interfaces import _bind
from spillway.slot_manager import server as server_module
from spillway.slot_manager.app import create_app
from spillway.slot_manager.server import HttpServer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

CONNECTIONS_MAX = 8


class Served:
    def __init__(self, server: HttpServer, port: int, bound: ConnectionBound) -> None:
        self.server = server
        self.port = port
        self.bound = bound

    async def open(
        self, own: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from the address *own*."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(own, 0))

    async def say(self, request: bytes) -> bytes:
        """Send bytes and return all that comes until the connection ends."""
        reader, writer = await self.open()
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    async def health(self) -> int:
        async with httpx.AsyncClient(timeout=60) as client:
            return (await client.get(f"http://127.0.0.1:{self.port}/healthz")).status_code


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(server_module, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(server_module, "BODY_TIMEOUT_S", 0.6)
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT_S", 0.3)
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    engine.add_source("shop")
    engine.add_slot("s1")
    admin = Admin(engine, subscriptions, token=None, version="0")
    bound = ConnectionBound("REST", CONNECTIONS_MAX)
    app = create_app(engine, subscriptions, token=None, version="0", admin=admin, bounds=(bound,))
    async with serving(app, bound) as there:
        yield there


@asynccontextmanager
async def serving(app: ASGIApp, bound: ConnectionBound | None = None) -> AsyncIterator[Served]:
    """Serve *app* within this context."""
    bound = bound or ConnectionBound("REST", CONNECTIONS_MAX)
    listener = _bind("127.0.0.1", 0)
    server = HttpServer(app, bound=bound)
    serving = asyncio.create_task(server.serve(listener))
    while not server.started:  # noqa: ASYNC110 - uvicorn sets a flag
        await asyncio.sleep(0.01)
    yield Served(server, listener.getsockname()[1], bound)
    server.stop()
    await serving


def _problem(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert b"connection: close" in head.lower()
    return json.loads(body)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"G",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ",
        (
            b"POST /v1/slots/s1/get HTTP/1.1\r\n"
            b"host: localhost\r\n"
            b"content-type: application/json\r\n"
            b'content-length: 100\r\n\r\n{"upto'
        ),
        b"POST /ui/login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\ntok",
    ],
)
async def test_half_a_request_is_not_kept(
    served: Served, begun: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await served.say(begun)
    assert _problem(answer)["code"] == "request_timeout"
    assert not caplog.records


@pytest.mark.follows_hint("request_timeout")
async def test_bytes_now_and_then_do_not_prolong_it(served: Served) -> None:
    reader, writer = await served.open()
    writer.write(b"GET /healthz HTTP/1.1\r\nx: ")
    sent = 0
    while not reader.at_eof() and sent < 100:
        writer.write(b"y")
        sent += 1
        try:
            answer = await asyncio.wait_for(reader.read(), 0.05)
        except TimeoutError:
            continue
        assert "Send a request at once" in remedy(_problem(answer), "request_timeout")
        break
    assert sent < 100
    writer.close()
    assert await served.health() == 200


async def test_requests_of_a_connection_follow_each_other(served: Served) -> None:
    reader, writer = await served.open()
    for _ in range(3):
        # Longer than the time for a head, in all.
        await asyncio.sleep(0.2)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await reader.readuntil(b'{"status":"ok"}')
    writer.close()


@pytest.mark.follows_hint("too_many_connections")
async def test_connections_have_a_bound(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_TIMEOUT_S", 60)
    idle = [await served.open() for _ in range(CONNECTIONS_MAX)]
    await asyncio.sleep(0.1)
    for _ in range(50):
        reader, writer = await served.open()
        assert "Try again" in remedy(_problem(await reader.read()), "too_many_connections")
        writer.close()
    assert len(caplog.records) == 1, "one line a minute"
    for _, writer in idle:
        writer.close()
    await asyncio.sleep(0.1)
    assert await served.health() == 200


async def test_an_address_does_not_take_all(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_TIMEOUT_S", 60)
    monkeypatch.setattr(served.bound, "per_address", 3)
    monkeypatch.setattr(served.bound, "_spares_loopback", False)
    held = [await served.open("127.0.0.2") for _ in range(3)]
    await asyncio.sleep(0.1)
    for _ in range(20):
        reader, writer = await served.open("127.0.0.2")
        problem = _problem(await reader.read())
        assert problem["code"] == "too_many_connections"
        assert "SPILLWAY_CONNECTIONS_PER_ADDRESS" in problem["hint"]
        writer.close()
    # Others come in meanwhile; and one that leaves makes room for one.
    async with httpx.AsyncClient(timeout=60) as client:
        metrics = (await client.get(f"http://127.0.0.1:{served.port}/metrics")).text
    assert 'spillway_connections_refused_total{door="REST",reason="address"} 20.0' in metrics
    assert 'spillway_connections_refused_total{door="REST",reason="total"} 0.0' in metrics
    assert len(caplog.records) == 1, "one line a minute"
    for _ in range(5):
        held.pop()[1].close()
        await asyncio.sleep(0.1)
        reader, writer = held_now = await served.open("127.0.0.2")
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        held.append(held_now)
    for _, writer in held:
        writer.close()
    await asyncio.sleep(0.1)
    assert not served.server._held, "nothing is counted of what is gone"


async def test_no_descriptor_neither_spins_nor_floods(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts = 0

    async def refuse(listener: socket.socket) -> Any:
        nonlocal accepts
        accepts += 1
        raise OSError(errno.EMFILE, "Too many open files")

    loop = asyncio.get_running_loop()
    await served.health()
    with monkeypatch.context() as patched:
        patched.setattr(loop, "sock_accept", refuse)
        # The accept that waits is the last one that is real.
        await served.health()
        reader, writer = await served.open()
        assert await asyncio.wait_for(reader.read(), 10) == b"", "closed, not left in the queue"
        writer.close()
        await asyncio.sleep(0.5)
    assert accepts < 20
    assert len(caplog.records) <= 1
    assert await served.health() == 200


async def test_the_loop_goes_on_while_the_reserve_is_taken(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's threads may take the descriptor that was in reserve; what makes them give it back runs
    on this loop.
    """
    tries = 0
    given_back_by: list[str] = []
    really_open = os.open

    def find_none(path: Any, *arguments: Any, **named: Any) -> int:
        nonlocal tries
        if path == os.devnull and not given_back_by:
            tries += 1
            if tries == 40:
                given_back_by.append("nobody: the loop stands still")
            raise OSError(errno.EMFILE, "Too many open files")
        return really_open(path, *arguments, **named)

    async def refuse(listener: socket.socket) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patched:
        patched.setattr(loop, "sock_accept", refuse)
        patched.setattr(os, "open", find_none)
        await served.health()
        loop.call_later(0.5, given_back_by.append, "the loop")
        reader, writer = await served.open()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        while not given_back_by:  # noqa: ASYNC110 - a timer ends it
            await asyncio.sleep(0.01)
    assert tries > 0
    assert given_back_by == ["the loop"]
    assert await served.health() == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"no such thing\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        (
            b"POST /v1/slots/s1/get HTTP/1.1\r\n"
            b"host: localhost\r\n"
            b"transfer-encoding: chunked\r\n"
            b"\r\n"
            b"zz\r\n"
        ),
        b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_request(
    served: Served, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await served.say(request_)
    assert _problem(answer)["status"] == 400
    await asyncio.sleep(0.05)
    assert not caplog.records
    assert await served.health() == 200


async def test_a_client_that_vanishes_is_no_traceback(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for path in (b"/ui/login", b"/v1/slots/s1/get"):
        for body in (b"", b"token="):
            _, writer = await served.open()
            writer.write(
                b"POST "
                + path
                + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 90\r\n\r\n"
                + body
            )
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.abort()
    for _ in range(20):
        _, writer = await served.open()
        writer.write(b"GET /v1/slots HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20)
        writer.transport.abort()
    await asyncio.sleep(0.3)
    assert [record.getMessage() for record in caplog.records if record.levelno >= 30] == []
    assert await served.health() == 200


@pytest.mark.follows_hint("internal_error")
async def test_the_log_says_which_error_was_internal(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(_self: FakeEngine) -> Any:
        raise RuntimeError("this is what broke")

    monkeypatch.setattr(FakeEngine, "list_slots", break_down)
    answer = await served.say(
        b"GET /v1/slots HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    assert b"this is what broke" not in answer
    assert "The service's log says which" in remedy(
        json.loads(answer.partition(b"\r\n\r\n")[2]), "internal_error"
    )
    (record,) = (one for one in caplog.records if one.exc_info)
    assert "this is what broke" in str(record.exc_info)


async def _hang(hangs: asyncio.Event) -> Any:
    hangs.set()
    await asyncio.Event().wait()


@pytest.mark.follows_hint("not_ready")
async def test_a_request_at_work_when_the_service_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told that, and not of an internal error."""
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 1)
    hangs = asyncio.Event()
    app = create_app(FakeEngine(), FakeSubscriptions(), token=None, version="0")
    ask = b"GET /v1/slots HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with monkeypatch.context() as patched:
        patched.setattr(FakeEngine, "list_slots", lambda _: _hang(hangs))
        async with serving(app) as there:
            asked = asyncio.create_task(there.say(ask))
            await hangs.wait()
        answer = await asked
    assert not [one for one in caplog.records if one.exc_info]
    assert answer.startswith(b"HTTP/1.1 503")
    problem = _problem(answer)
    assert problem["instance"] == "/v1/slots"
    assert "Ask again when the service is back" in remedy(problem, "not_ready")
    async with serving(app) as there:
        assert (await there.say(ask)).startswith(b"HTTP/1.1 200")


async def test_half_an_answer_when_the_service_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not ended as if it were whole, and is no traceback either."""
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 1)
    hangs = asyncio.Event()

    async def begin(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await _hang(hangs)

    async with serving(begin) as there:
        asked = asyncio.create_task(there.say(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"))
        await hangs.wait()
    answer = await asked
    assert not [one for one in caplog.records if one.exc_info]
    assert answer.endswith(b"4\r\nhalf\r\n"), "without the last chunk"
