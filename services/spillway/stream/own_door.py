"""The door of the service's own programs: the change stream over a Unix socket, without gRPC.

A subscription's program lives on the service's machine, and what it reads comes one small
transaction at a time. gRPC takes longer for such a one than decoding and applying it do: a turn of
the event loop, threads of its own on both sides. Here the messages are the same, and whoever has
decoded a transaction writes it to the socket (:class:`~spillway.delivery.model.LiveConsumer`).

A frame is a length (u32, little-endian) and so many bytes::

    program                                    service
      hello: JSON {"token", "client"}   ──▶
      StreamRequest: start              ──▶
                                        ◀──   m StreamResponse       the first: the slot is its own
      StreamRequest: feedback           ──▶
      nothing: no more feedback comes   ──▶
                                        ◀──   e JSON {"code", …}     an error, and the end
                                        ◀──   z                      the end

Nobody but the service's user reaches the socket; the token is asked for all the same.

Bound: what a program does not read is a batch and what the socket holds.
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
ERROR: Final = b"e"
END: Final = b"z"
_FRAME_BYTES_MAX: Final = 1 << 20
#: How long a new client may take for its hello.
_HELLO_S: Final = 30.0
#: What may be written and not sent yet before the next batch is waited with.
_HIGH_WATER_BYTES: Final = 256 * 1024


class OwnDoor:
    """Serves the programs; an async context manager.

    Args:
        engine: what does the work.
        gate: compares their tokens.
        path: of the socket.
    """

    def __init__(self, engine: EngineInterface, gate: TokenGate, path: Path) -> None:
        self._engine = engine
        self._gate = gate
        self._path = path
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
        with calling("unix:", str(hello.get("client") or ""), protocol=OWN_SOCKET):
            await _OwnSession(self._engine, reader, writer).run()


class _OwnSession(Session):
    """A stream that is given what comes live."""

    def __init__(
        self, engine: EngineInterface, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(engine, _requests(reader), _Context(writer))
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
