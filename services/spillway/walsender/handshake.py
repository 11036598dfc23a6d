"""From a connection's first byte to a user who has proved who it is.

::

    0x16 ─────────────────────────────▶ TLS at once, with ALPN "postgresql"
    GSSENCRequest ▶ N ▶ …
    SSLRequest    ▶ S ▶ TLS, or N ▶ …
    CancelRequest ▶ (no answer), within TLS too: libpq 17 and pgjdbc ask as they came in
    StartupMessage ▶ [NegotiateProtocolVersion] ▶ SCRAM ▶ AuthenticationOk

What comes before TLS is read from the socket byte by byte, no further than it goes: what a client
has sent behind its SSLRequest without TLS is somebody else's and ends the connection
(CVE-2021-23214). All of it has one bound in time.

With a certificate, who comes without TLS is refused before any password is asked for, as by
``hostssl``.

Source: ProcessSSLStartup, ProcessStartupPacket (src/backend/tcop/backend_startup.c), CheckSASLAuth
(src/backend/libpq/auth-sasl.c)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from spillway.errors import UnknownUser
from spillway.users.verifier import Verifier
from spillway.walsender import messages, scram
from spillway.walsender.failures import WireError, protocol_violation
from spillway.walsender.streams import Reader

if TYPE_CHECKING:
    from spillway.store.rows import UserRow
    from spillway.tls import ServerCertificate
    from spillway.users.registry import Users

_TLS_HANDSHAKE: Final = 0x16
_ALPN: Final = "postgresql"
#: Requests for encryption that are answered N before a client must say something else.
_REQUESTS_MAX: Final = 2
#: A wrong password is told so late: whoever guesses must wait, and has only so many connections to
#: wait with.
WRONG_PASSWORD_DELAY_S: Final = 1.0
_SASL_RESPONSE: Final = ord("p")


class Connection:
    """A client's streams, and what is known of them."""

    def __init__(
        self,
        reader: Reader,
        writer: asyncio.StreamWriter,
        *,
        is_tls: bool,
        end_point: bytes | None,
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.is_tls = is_tls
        #: for tls-server-end-point; None: no TLS, or a certificate that has none
        self.end_point = end_point

    async def send(self, *parts: bytes) -> None:
        """Write, and wait while the client has more to read than it should."""
        self.writer.write(b"".join(parts))
        await self.writer.drain()

    async def close(self) -> None:
        """Close once what was written is sent, but not later than in a moment."""
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
            async with asyncio.timeout(1.0):
                await self.writer.wait_closed()

    def abort(self) -> None:
        """Close at once, whatever was written."""
        self.writer.transport.abort()


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """All that a connection wanted: end what another one does."""

    pid: int
    key: bytes

    @classmethod
    def in_packet(cls, packet: bytes) -> Self | None:
        """Read a startup packet, without its length, that is one; None: it is another."""
        if int.from_bytes(packet[:4], "big") != messages.CANCEL_REQUEST:
            return None
        return cls(int.from_bytes(packet[4:8], "big"), packet[8:])


async def open_connection(
    accepted: socket.socket, certificate: ServerCertificate | None
) -> tuple[Connection, bytes] | None:
    """Find out what a client wants and set TLS up; return its streams and its startup packet, or
    what it has sent instead of one.

    None: it went away, or is not worth an answer. The socket is the connection's own from here on.

    Raises:
        WireError: it says what it must not; nobody is told.
        OSError, asyncio.IncompleteReadError: it is gone.
    """
    loop = asyncio.get_running_loop()
    first = await _peek(accepted)
    if not first:
        return None
    if first[0] == _TLS_HANDSHAKE:
        if certificate is None:
            return None
        connection = await _with_tls(accepted, certificate)
        tls: ssl.SSLObject | None = connection.writer.get_extra_info("ssl_object")
        if tls is None or tls.selected_alpn_protocol() != _ALPN:
            connection.abort()
            return None
        return connection, await _read_startup(connection)
    for _ in range(_REQUESTS_MAX + 1):
        head = await _receive(accepted, 4)
        length = int.from_bytes(head, "big")
        _check_length(length)
        head += await _receive(accepted, 4)
        code = int.from_bytes(head[4:], "big")
        if code not in (messages.SSL_REQUEST, messages.GSSENC_REQUEST):
            packet = head[4:] + await _receive(accepted, length - 8)
            return await _plain(accepted), packet
        if length != 8:
            raise protocol_violation("invalid length of startup packet")
        if code == messages.SSL_REQUEST and certificate is not None:
            if await _has_more(accepted):
                raise protocol_violation("received unencrypted data after SSL request")
            await loop.sock_sendall(accepted, b"S")
            connection = await _with_tls(accepted, certificate)
            return connection, await _read_startup(connection)
        await loop.sock_sendall(accepted, b"N")
    raise protocol_violation("unsupported frontend protocol")


def _check_length(length: int) -> None:
    # Its own length, and a code.
    if not 8 <= length <= messages.STARTUP_BYTES_MAX + 4:
        raise protocol_violation("invalid length of startup packet")


async def _read_startup(connection: Connection) -> bytes:
    """Read what comes first within TLS; a connection that brings none is closed here: by its
    socket alone its transport would stay, and be in the way of who gets the socket's number next.
    """
    try:
        length = int.from_bytes(await connection.reader.readexactly(4), "big")
        _check_length(length)
        return await connection.reader.readexactly(length - 4)
    except WireError:
        await connection.close()
        connection.abort()
        # What is written to the socket from now on would be outside of TLS.
        with contextlib.suppress(OSError):
            await connection.writer.wait_closed()
        raise
    except BaseException:
        connection.abort()
        raise


async def _receive(accepted: socket.socket, size: int) -> bytes:
    """Read exactly *size* bytes and no more."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        piece = await loop.sock_recv(accepted, size - len(data))
        if not piece:
            raise asyncio.IncompleteReadError(data, size)
        data += piece
    return data


async def _peek(accepted: socket.socket) -> bytes:
    """Look at the first byte and leave it there."""
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(BlockingIOError):
            return accepted.recv(1, socket.MSG_PEEK)
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(accepted, _set, readable)
        try:
            await readable
        finally:
            loop.remove_reader(accepted)


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


async def _has_more(accepted: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(accepted.recv(1, socket.MSG_PEEK))
    return False


async def _plain(accepted: socket.socket) -> Connection:
    return await _streams(accepted, None, None)


async def _with_tls(accepted: socket.socket, certificate: ServerCertificate) -> Connection:
    # Both at once: the certificate may be renewed at any time.
    context, end_point = certificate.pg
    return await _streams(accepted, context, end_point)


async def _streams(
    accepted: socket.socket, context: ssl.SSLContext | None, end_point: bytes | None
) -> Connection:
    loop = asyncio.get_running_loop()
    reader = Reader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=context)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    return Connection(reader, writer, is_tls=context is not None, end_point=end_point)


async def authenticate(connection: Connection, name: str, users: Users) -> UserRow:
    """Have the client prove by SCRAM that it is *name*.

    Raises:
        WireError: it could not, 28P01, or did not do as SCRAM does.
        MetadataError: users can't be read.
    """
    try:
        user = await users.get(name)
    except UnknownUser:
        user = None
    offered = [scram.PLAIN] if connection.end_point is None else [scram.PLUS, scram.PLAIN]
    await connection.send(messages.sasl_mechanisms(offered))
    mechanism, client_first = _initial_response(await _sasl_response(connection))
    if mechanism not in offered:
        raise protocol_violation("client selected an invalid SASL authentication mechanism")
    verifier = None if user is None else Verifier.parse(user.verifier)
    exchange = scram.ScramExchange(name, verifier, mechanism, connection.end_point)
    if client_first is None:
        await connection.send(messages.authentication(11))
        client_first = await _sasl_response(connection)
    await connection.send(messages.authentication(11, exchange.first(client_first)))
    server_final = exchange.final(await _sasl_response(connection))
    if server_final is None or user is None:
        await asyncio.sleep(WRONG_PASSWORD_DELAY_S)
        raise WireError("28P01", f'password authentication failed for user "{name}"', fatal=True)
    await connection.send(messages.authentication(12, server_final), messages.authentication(0))
    return user


async def _sasl_response(connection: Connection) -> bytes:
    kind, body = await messages.read_message(connection.reader)
    if kind != _SASL_RESPONSE:
        raise protocol_violation(f"expected SASL response, got message type {kind}")
    return body


def _initial_response(body: bytes) -> tuple[str, bytes | None]:
    """Read SASLInitialResponse: the mechanism, and the first message; None: that comes by
    itself.
    """
    mechanism, zero, rest = body.partition(b"\0")
    length = int.from_bytes(rest[:4], "big", signed=True)
    if not zero or len(rest) < 4 or (length != -1 and length != len(rest) - 4):
        raise protocol_violation("invalid message format")
    return mechanism.decode("latin-1"), None if length == -1 else rest[4:]
