"""The door of the service's own programs: the change stream over a Unix socket, without gRPC.

A subscription's program lives on the service's machine, and what it reads comes one small
transaction at a time. gRPC takes longer for such a one than decoding and applying it do: a turn of
the event loop, threads of its own on both sides. Here the messages are the same, and whoever has
decoded a transaction writes it to the socket (:class:`~spillway.delivery.model.LiveConsumer`).

A frame is a length (u32, little-endian) and so many bytes::

    program                                    service
      hello: JSON {"token", "client",
                   "plain", "alive_s"}  ──▶
      StreamRequest: start              ──▶
                                        ◀──   m StreamResponse       the first: the slot is its own
                                        ◀──   p what has come live   if the hello's "plain" is true;
                                                                     :func:`.wire.encode_plainly`
      StreamRequest: feedback           ──▶
      StreamRequest: empty feedback     ──▶                         every alive_s: it lives
      nothing: no more feedback comes   ──▶
                                        ◀──   e JSON {"code", …}     an error, and the end
                                        ◀──   z                      the end

Nobody but the service's user reaches the socket; the token is asked for all the same.

Bounds: what a program does not read is a batch and what the socket holds. A program that is silent
for the client timeout (SPILLWAY_CLIENT_TIMEOUT, PostgreSQL's wal_sender_timeout) is stopped or
stuck: it loses its stream and its slot, as gRPC's clients do that answer no ping. A thread of its
own says that it lives, so that a long statement on the target is no silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from spillway.caller import OWN_SOCKET, calling
from spillway.errors import InvalidRequest, SpillwayError
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.service.model import StreamBatch
from spillway.stream import wire
from spillway.stream.change_stream import Session
from spillway.v1 import change_stream_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from spillway.plugins.messages import EncodedBatch
    from spillway.service.interface import EngineInterface
    from spillway.token_gate import TokenGate

log = logging.getLogger(__name__)

#: before a frame
LENGTH_BYTES: Final = 4
#: what a frame of the service is, its first byte
MESSAGE: Final = b"m"
PLAIN: Final = b"p"
ERROR: Final = b"e"
END: Final = b"z"
_FRAME_BYTES_MAX: Final = 1 << 20
#: How long a new client may take for its hello.
_HELLO_S: Final = 30.0
#: What may be written and not sent yet before the next batch is waited with.
_HIGH_WATER_BYTES: Final = 256 * 1024
#: How often a silent program is looked at within the time that it may be silent.
_LOOKS: Final = 12
#: However short that time is, a program may say so often that it lives before it is up.
_SAYINGS: Final = 3
#: The longest that a program may take between two of them.
_ALIVE_S_MAX: Final = 60.0


class _Silent(Exception):
    """A program has not said for too long that it lives."""


class OwnDoor:
    """Serves the programs; an async context manager.

    Args:
        engine: what does the work.
        gate: compares their tokens.
        path: of the socket.
        client_timeout_s: how long a program may be silent; 0: for ever.
    """

    def __init__(
        self, engine: EngineInterface, gate: TokenGate, path: Path, client_timeout_s: float = 60.0
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._path = path
        self._client_timeout_s = client_timeout_s
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._enter, self._path)

    async def stop(self) -> None:
        """Listen no more, and end all streams."""
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.create_task(self._serve(reader, writer), name="spillway-own-program")
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        # A service that stops says nothing: its programs come again.
        last = b""
        try:
            await self._stream(reader, writer)
            last = END
        except (OSError, asyncio.IncompleteReadError):
            # It is gone.
            return
        except _Silent as silent:
            log.warning("%s; its slot is free", silent)
            # Who reads nothing reads no error either, and would hold what is not sent.
            writer.transport.abort()
            return
        except SpillwayError as error:
            if error.http_status >= 500:
                log.error("own program: %s: %s", error.code, error)  # noqa: TRY400
            last = ERROR + _told(error)
        except Exception:
            log.exception("the stream of an own program failed")
            hint = "The service's log says which; please report it."
            last = ERROR + _told(SpillwayError("an internal error occurred", hint=hint))
        finally:
            with contextlib.suppress(OSError):
                if last:
                    _write(writer, last)
                writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = json.loads(await _read(reader))
        except (TimeoutError, ValueError):
            hello = None
        if not isinstance(hello, dict):
            raise InvalidRequest("a program's first frame must be its hello")
        token = hello.get("token")
        self._gate.check(None if token is None else str(token).encode(), None)
        client = str(hello.get("client") or "")
        timeout_s = self._timeout_s(hello.get("alive_s"))
        with calling("unix:", client, protocol=OWN_SOCKET):
            session = _OwnSession(self._engine, reader, writer, plain=bool(hello.get("plain")))
            if not timeout_s:
                await session.run()
                return
            await _watched(session, client, timeout_s)

    def _timeout_s(self, alive_s: object) -> float:
        """Return how long a program may be silent that says each *alive_s* that it lives."""
        if not self._client_timeout_s or not isinstance(alive_s, int | float):
            return 0.0
        if not 0 < alive_s <= _ALIVE_S_MAX:
            hint = f"It must be above 0, and at most {_ALIVE_S_MAX:g}."
            raise InvalidRequest(f"alive_s is {alive_s:g}", hint=hint)
        return max(self._client_timeout_s, _SAYINGS * alive_s)


async def _watched(session: _OwnSession, client: str, timeout_s: float) -> None:
    """Serve a program until it ends, or is silent for *timeout_s*.

    What counts is looks, not the clock: a service that was stopped itself has not heard anybody.
    """
    running = asyncio.create_task(session.run())
    try:
        looks, heard_at_s = 0, session.heard_at_s
        while not running.done():
            await asyncio.wait((running,), timeout=timeout_s / _LOOKS)
            looks = looks + 1 if session.heard_at_s == heard_at_s else 0
            heard_at_s = session.heard_at_s
            if looks > _LOOKS and not running.done():
                told = f"{client or 'a program'} has been silent for {timeout_s:g} s"
                raise _Silent(f"{told}: it is stopped, or stuck")
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _OwnSession(Session):
    """A stream that is given what comes live."""

    def __init__(
        self,
        engine: EngineInterface,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        plain: bool,
    ) -> None:
        super().__init__(engine, _requests(reader), _Context(writer))
        self._plain = plain
        self._writer = writer
        self._live = self

    def is_ready(self) -> bool:
        """Whether the program takes what is written: all that was is sent."""
        transport = self._writer.transport
        return not transport.get_write_buffer_size() and not transport.is_closing()

    def take(self, messages: EncodedBatch, confirm_lsn: Lsn) -> None:
        """Write a batch that has come live."""
        if not messages.count:
            return
        self._confirm_lsn = confirm_lsn
        self._wal_end = max(self._wal_end, confirm_lsn)
        first = Lsn(int.from_bytes(messages.lsns[:8], "little"))
        batch = StreamBatch(messages, first, self._wal_end, confirm_lsn)
        if self._plain:
            _write(self._writer, PLAIN, wire.encode_plainly(batch))
        else:
            _write(self._writer, MESSAGE, wire.encode_changes(batch))
        self._note_sent()


class _Context:
    """What gRPC's context is to a session."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, message: bytes) -> None:
        _write(self._writer, MESSAGE, message)
        await self._writer.drain()


async def _requests(
    reader: asyncio.StreamReader,
) -> AsyncIterator[change_stream_pb2.StreamRequest]:
    while data := await _read(reader):
        try:
            yield change_stream_pb2.StreamRequest.FromString(data)
        except DecodeError:
            raise InvalidRequest("a frame is no StreamRequest") from None


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
    if length > _FRAME_BYTES_MAX:
        raise InvalidRequest(f"a frame has {length} bytes, more than {_FRAME_BYTES_MAX}")
    return await reader.readexactly(length)


def _write(writer: asyncio.StreamWriter, kind: bytes, data: bytes = b"") -> None:
    head = (len(kind) + len(data)).to_bytes(LENGTH_BYTES, "little") + kind
    if len(data) < _HIGH_WATER_BYTES:
        writer.write(head + data)
    else:
        writer.writelines((head, data))


def _told(error: SpillwayError) -> bytes:
    told: dict[str, Any] = {
        "code": error.code,
        "message": readable(error.message),
        "hint": readable(error.hint),
        "details": {name: readable(str(value)) for name, value in error.details.items()},
    }
    return json.dumps(told).encode()
