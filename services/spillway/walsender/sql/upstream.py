"""A connection to a source's server over which a client's messages are passed on.

It is opened as libpq would, with the client's startup parameters, and from then on belongs to the
client: what state there is (settings, a transaction, prepared statements) is the backend's. One
client has one, to its own end or the backend's.

How many there are of one source at a time is bounded: a server has few connections beside what
clients may open here.

Source: PQconnectPoll (src/interfaces/libpq/fe-connect.c), fe-cancel.c
"""

from __future__ import annotations

import asyncio
import contextlib
import pwd
import socket
import ssl
import struct
from collections import Counter
from typing import TYPE_CHECKING, Final, Self

from spillway.errors import SpillwayError
from spillway.pg.connect_errors import connect_error
from spillway.tls import end_point_of
from spillway.walsender import messages
from spillway.walsender.failures import WireError
from spillway.walsender.sql.authentication import Login, LoginRefused
from spillway.walsender.sql.targets import Target, targets_of
from spillway.walsender.streams import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.service.interface import EngineInterface
    from spillway.walsender.databases import ServedDatabase

#: Half of what is read before the source has to wait, and what a write is made of.
PIECE_BYTES: Final = 128 * 1024
#: What a server says before a session has begun: parameters, notices.
_LOGIN_BYTES_MAX: Final = 1 << 20
_CANCEL_TIMEOUT_S: Final = 10.0
_HANDSHAKE_MAX_S: Final = 60.0
_CANNOT_CONNECT_NOW: Final = "57P03"
#: sqlclient_unable_to_establish_sqlconnection, as postgres_fdw has it
UNREACHABLE: Final = "08001"
_PEER: Final = struct.Struct("iII")


class _NoTls(Exception):
    """The server speaks no TLS, and the DSN asks for it."""


_BROKEN: Final = (OSError, asyncio.IncompleteReadError, ssl.SSLError, WireError, _NoTls)


class _ServerRefused(Exception):
    """The server has answered the startup packet with an error."""

    def __init__(self, fields: Mapping[str, str], *, used_password: bool) -> None:
        super().__init__(fields.get("M", ""))
        self.fields = fields
        self.used_password = used_password


class Upstream:
    """One connection, logged in."""

    def __init__(self, target: Target, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self._target = target
        self._is_tls = writer.get_extra_info("ssl_object") is not None
        self.reader = reader
        self.writer = writer
        self.pid = 0
        self._key = b""
        self._listeners: list[Callable[[], None]] = []
        #: as the server has reported them so far
        self.parameters: dict[str, str] = {}
        #: the ParameterStatus messages of the login, as they came
        self.statuses: list[bytes] = []

    @classmethod
    async def open(cls, dsn: str, startup: Mapping[str, str]) -> Self:
        """Connect and log in.

        Args:
            dsn: the source's, with the database.
            startup: the client's parameters beside user and database; they win over the DSN's.

        Raises:
            WireError: no server lets us in; what the last one that was tried has said.
        """
        try:
            targets = await asyncio.to_thread(targets_of, dsn)
        except SpillwayError as error:
            raise WireError(UNREACHABLE, error.message, hint=error.hint) from None
        wanted = targets[0].parameters.get("target_session_attrs", "any")
        passes = ["standby", "any"] if wanted == "prefer-standby" else [wanted]
        failure = ""
        for attributes in passes:
            for target in targets:
                try:
                    upstream = await cls._to(target, startup)
                except _ServerRefused as refused:
                    if (told := _told(refused, dsn, target)) is not None:
                        raise told from None
                    failure = str(refused)
                except LoginRefused as refused:
                    raise _unreachable(str(refused), dsn, target) from None
                except (*_BROKEN, TimeoutError) as broken:
                    failure = str(broken) or "the server closed the connection or did not answer"
                else:
                    if _has(upstream.parameters, attributes):
                        return upstream
                    upstream.abort()
                    failure = f"the server is not {attributes}"
        raise _unreachable(failure, dsn, targets[-1])

    @classmethod
    async def _to(cls, target: Target, startup: Mapping[str, str]) -> Self:
        """Connect to one address, with TLS and without as its mode has it."""
        *earlier, last = target.tls_tries
        for with_tls in earlier:
            # What comes of the last one is what is told.
            with contextlib.suppress(_ServerRefused, *_BROKEN):
                return await cls._connect(target, startup, with_tls=with_tls)
        return await cls._connect(target, startup, with_tls=last)

    @classmethod
    async def _connect(cls, target: Target, startup: Mapping[str, str], *, with_tls: bool) -> Self:
        async with asyncio.timeout(target.timeout_s or _HANDSHAKE_MAX_S):
            upstream = cls(target, *await _streams(target, with_tls=with_tls))
            try:
                await upstream._log_in(startup)
            except BaseException:
                upstream.abort()
                raise
        return upstream

    async def _log_in(self, startup: Mapping[str, str]) -> None:
        target = self._target
        given = target.parameters
        user = given.get("user", "")
        options = " ".join(filter(None, (given.get("options"), startup.get("options"))))
        parameters = {"user": user, "database": given.get("dbname", user), **startup}
        if options:
            parameters["options"] = options
        self.writer.write(messages.startup_message(parameters))
        tls: ssl.SSLObject | None = self.writer.get_extra_info("ssl_object")
        der = None if tls is None else tls.getpeercert(binary_form=True)
        end_point = None if der is None else end_point_of(der)
        login = Login(given, target.password, end_point, is_tls=tls is not None)
        taken = 0
        while True:
            kind, body = await self.read_message(_LOGIN_BYTES_MAX)
            taken += len(body)
            if taken > _LOGIN_BYTES_MAX:
                raise WireError("08P01", "the server says too much before a session begins")
            match kind:
                case b"R":
                    # It computes for long where the server asks for many iterations.
                    reply = await asyncio.to_thread(login.answer, body)
                    if reply is not None:
                        self.writer.write(reply)
                case b"E":
                    raise _ServerRefused(
                        messages.error_fields(body), used_password=login.used_password
                    )
                case b"S":
                    self.statuses.append(messages.message(b"S", body))
                    self.note_parameter(body)
                case b"K":
                    self.pid, self._key = int.from_bytes(body[:4], "big"), body[4:]
                case b"Z":
                    if not login.is_done:
                        raise LoginRefused("the server began without having proved who it is")
                    return
                case b"N" | b"v":
                    pass
                case _:
                    raise WireError("08P01", "the server does not speak PostgreSQL's protocol")

    def note_parameter(self, body: bytes) -> None:
        """Take note of what a ParameterStatus says."""
        name, _, rest = body.partition(b"\0")
        value = rest.removesuffix(b"\0")
        self.parameters[name.decode(errors="replace")] = value.decode(errors="replace")

    async def cancel(self) -> None:
        """Ask the server to end what this connection does; whether it does nobody knows."""
        request = struct.pack(">iii", 12 + len(self._key), messages.CANCEL_REQUEST, self.pid)
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                reader, writer = await _streams(self._target, with_tls=self._is_tls)
                try:
                    writer.write(request + self._key)
                    await writer.drain()
                    # It is dealt with when the server has closed.
                    await reader.read(1)
                finally:
                    writer.transport.abort()

    async def close(self) -> None:
        """Take leave, and close."""
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
            async with asyncio.timeout(1.0):
                self.writer.write(messages.message(b"X"))
                self.writer.close()
                await self.writer.wait_closed()
        self.abort()

    def abort(self) -> None:
        """Close at once. Who reads sees the end. May be repeated."""
        self.writer.transport.abort()
        for listener in self._listeners:
            listener()
        self._listeners.clear()

    def when_ended(self, listener: Callable[[], None]) -> None:
        """Have *listener* called once it is closed by us."""
        self._listeners.append(listener)

    async def read(self) -> bytes:
        """Return a piece of what the server says, with what was not taken of the one before; empty:
        it has ended.
        """
        try:
            return await self.reader.read_more(2 * PIECE_BYTES)
        except OSError:
            return b""

    def unread(self, data: bytes) -> None:
        """Give back what of a piece was not taken: the beginning of a message."""
        self.reader.unread(data)

    async def read_message(self, bytes_max: int) -> tuple[bytes, bytes]:
        """Read a message: its letter and what it holds.

        Raises:
            WireError: it is none, or longer than *bytes_max*.
            OSError, asyncio.IncompleteReadError: the server is gone.
        """
        return await messages.read_backend_message(self.reader, bytes_max)

    async def write(self, data: bytes) -> None:
        """Send, and wait while the server has more to read than it should.

        Raises:
            OSError: it is gone; what it has said before that can still be read.
        """
        self.writer.write(data)
        await self.writer.drain()


class Upstreams:
    """Opens connections, and knows how many there are to each source.

    Args:
        engine: whose sources these are.
        per_source: how many there may be.
    """

    def __init__(self, engine: EngineInterface, per_source: int) -> None:
        self._engine = engine
        self._per_source = per_source
        self._open: Counter[str] = Counter()

    async def open(self, database: ServedDatabase, startup: Mapping[str, str]) -> Upstream:
        """Connect to a source's database with a client's parameters.

        Raises:
            WireError: it can't be, or there are as many connections as there may be.
        """
        source = database.source
        if self._open[source] >= self._per_source:
            raise WireError(
                "53300",
                f'too many connections for SQL to source "{source}"',
                hint="Close connections that are not used; or set SPILLWAY_SQL_CONNECTIONS higher, "
                "and the source's max_connections.",
            )
        self._open[source] += 1
        try:
            dsn = self._engine.conninfo(source, database.name)
            upstream = await Upstream.open(dsn, startup)
        except BaseException:
            self._release(source)
            raise
        upstream.when_ended(lambda: self._release(source))
        return upstream

    def _release(self, source: str) -> None:
        self._open[source] -= 1
        self._open += Counter()


def _has(parameters: Mapping[str, str], attributes: str) -> bool:
    """Whether a session is as ``target_session_attrs`` asks."""
    standby = parameters.get("in_hot_standby") == "on"
    read_only = standby or parameters.get("default_transaction_read_only") == "on"
    return {
        "read-write": not read_only,
        "read-only": read_only,
        "primary": not standby,
        "standby": standby,
    }.get(attributes, True)


def _told(refused: _ServerRefused, dsn: str, target: Target) -> WireError | None:
    """Say what a server's refusal means to the client; None: another server may let it in.

    A refused credential is the source's, not the client's own.
    """
    fields = refused.fields
    sqlstate = fields.get("C", "XX000")
    if sqlstate == _CANNOT_CONNECT_NOW:
        return None
    if sqlstate.startswith("28"):
        return _unreachable(str(refused), dsn, target, used_password=refused.used_password)
    return WireError(sqlstate, str(refused), detail=fields.get("D"), hint=fields.get("H"))


def _unreachable(text: str, dsn: str, target: Target, *, used_password: bool = False) -> WireError:
    error = connect_error(text, dsn, target.parameters, password_rejected=used_password)
    return WireError(UNREACHABLE, error.message)


async def _streams(target: Target, *, with_tls: bool) -> tuple[Reader, asyncio.StreamWriter]:
    """Connect, and set TLS up where it is wanted."""
    loop = asyncio.get_running_loop()
    if target.is_local:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        to: str | tuple[str, int] = (
            "\0" + target.address[1:] if target.address[0] == "@" else target.address
        )
    else:
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(connection, target.parameters)
        to = (target.address, target.port)
    try:
        connection.setblocking(False)
        await loop.sock_connect(connection, to)
        _check_peer(connection, target)
        context = target.context if with_tls else None
        if with_tls and target.parameters.get("sslnegotiation") != "direct":
            await _ask_for_tls(connection)
        reader = Reader(limit=PIECE_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(
            lambda: protocol,
            sock=connection,
            ssl=context,
            server_hostname=(target.server_name or "") if context is not None else None,
        )
    except BaseException:
        connection.close()
        raise
    transport.set_write_buffer_limits(high=PIECE_BYTES)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _ask_for_tls(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, struct.pack(">ii", 8, messages.SSL_REQUEST))
    # One byte and no more: what comes behind it must be TLS.
    answer = await loop.sock_recv(connection, 1)
    if not answer:
        raise ConnectionResetError("server closed the connection unexpectedly")
    if answer != b"S":
        raise _NoTls("server does not support SSL, but SSL was required")


def _keep_alive(connection: socket.socket, parameters: Mapping[str, str]) -> None:
    """Set what finds a server that vanished without a word."""
    if parameters.get("keepalives", "1") == "0":
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, option in (
        ("keepalives_idle", socket.TCP_KEEPIDLE),
        ("keepalives_interval", socket.TCP_KEEPINTVL),
        ("keepalives_count", socket.TCP_KEEPCNT),
    ):
        if (value := int(parameters.get(name, "0"))) > 0:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    if (timeout_ms := int(parameters.get("tcp_user_timeout", "0"))) > 0:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def _check_peer(connection: socket.socket, target: Target) -> None:
    """Insist on the server's user, as ``requirepeer`` does on Unix sockets."""
    wanted = target.parameters.get("requirepeer")
    if not wanted or not target.is_local:
        return
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    name = pwd.getpwuid(_PEER.unpack(packed)[1]).pw_name
    if name != wanted:
        raise LoginRefused(
            f'requirepeer specifies "{wanted}", but actual peer user name is "{name}"'
        )
