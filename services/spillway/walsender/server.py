"""The port of PostgreSQL's own replication protocol: accepts connections, bounds them, and runs a
session for each.

A connection over the limit, in all or of one address, is told 53300 and closed; one that has not
logged in when PostgreSQL's authentication_timeout is over is closed. When the service stops, every
client is told.

Whether the port listens is told by a sign (:mod:`spillway.listener_signs`), with who is connected
and who was turned away. A listener that breaks is made anew at its address, until that comes off;
who is connected stays so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import itertools
import logging
import secrets
import socket
import ssl
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import MetadataError, SpillwayError
from spillway.walsender import handshake, messages
from spillway.walsender.copy_stream import ClientGone
from spillway.walsender.failures import WireError, told
from spillway.walsender.handshake import CancelRequest
from spillway.walsender.printing import Defaults
from spillway.walsender.session import Session, login_failure
from spillway.walsender.sql.replication_sql import UpstreamEnded
from spillway.walsender.sql.upstream import Upstreams

if TYPE_CHECKING:
    from spillway.connection_bound import ConnectionBound
    from spillway.listener_signs import ListenerSigns
    from spillway.service.interface import EngineInterface
    from spillway.store.session_settings import SessionSettingsTable
    from spillway.tls import ServerCertificate
    from spillway.users.registry import Users
    from spillway.walsender.commands import Commands, Setting, TemporarySlot
    from spillway.walsender.handshake import Connection

log = logging.getLogger(__name__)

#: authentication_timeout
AUTHENTICATION_TIMEOUT_S: Final = 60.0
_BACKLOG: Final = 256
_PAUSE_S: Final = 0.1
_AGAIN_S: Final = 1.0
#: Of a socket that nobody is ever accepted on any more.
_BROKEN: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: Above what Linux gives to processes, so that a session is never taken for one of the source's
#: backends.
_FIRST_PID: Final = 1 << 23
_KEY_BYTES: Final = 32
#: Why a client may not come in, by SQLSTATE or its class.
_REASONS: Final = {
    "28P01": "password",
    "28": "not_allowed",
    "42501": "not_allowed",
    "3D": "database",
    "08": "protocol",
    "0A": "not_supported",
    "22": "not_supported",
    "53": "too_many",
    "58": "source",
    "57": "source",
}
_GONE: Final = (OSError, asyncio.IncompleteReadError, ClientGone, ssl.SSLError)


@dataclass(frozen=True, slots=True)
class ClientRules:
    """What holds for every client."""

    #: None: no TLS
    certificate: ServerCertificate | None = None
    #: wal_sender_timeout, 0 for none
    timeout_s: float = 60.0
    #: how many connections of a source clients may have for SQL, all together
    sql_connections: int = 50


class WalsenderServer:
    """Serves *engine* on a listening socket until it is stopped. Used on the event loop."""

    def __init__(
        self,
        engine: EngineInterface,
        users: Users,
        session_settings: SessionSettingsTable,
        bound: ConnectionBound,
        rules: ClientRules,
        signs: ListenerSigns,
    ) -> None:
        self._signs = signs
        self._engine = engine
        self._users = users
        self._bound = bound
        self._rules = rules
        self._held: Counter[str] = Counter()
        self._clients: set[asyncio.Task[None]] = set()
        #: by the number that each may be cancelled with, which two sources may have given
        self._sessions: defaultdict[int, set[Session]] = defaultdict(set)
        self._pids = itertools.count(_FIRST_PID)
        self._settings: dict[tuple[str, str], Setting] = {}
        self._temporary_slots: set[TemporarySlot] = set()
        self._upstreams = Upstreams(engine, rules.sql_connections)
        self._defaults = Defaults(engine, session_settings)

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections on *listener*, which is bound, until cancelled; then end them all."""
        address = listener.getsockname()
        try:
            while True:
                try:
                    await self._accept(listener)
                except OSError as error:
                    log.exception("the port of PostgreSQL's protocol is opened anew")
                    self._signs.fails(f"its socket is broken: {error.strerror}")
                listener.close()
                listener = await self._bound_again(listener.family, address)
        finally:
            self._signs.fails("it has ended")
            listener.close()
            for sessions in self._sessions.values():
                for session in sessions:
                    session.say_goodbye()
            for client in tuple(self._clients):
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections.

        Raises:
            OSError: nobody can be, on this socket.
        """
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._signs.listens()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _BROKEN:
                    raise
                if error.errno in _NO_DESCRIPTOR:
                    log.warning("a connection can't be accepted: %s", error.strerror)
                    self._signs.fails(f"a connection can't be accepted: {error.strerror}")
                    await asyncio.sleep(_PAUSE_S)
                continue
            self._signs.listens()
            self._signs.accepted += 1
            accepted.setblocking(False)
            self._begin(accepted, str(peer[0]), int(peer[1]))

    async def _bound_again(
        self, family: socket.AddressFamily, address: tuple[object, ...]
    ) -> socket.socket:
        """Bind a socket to *address*, as soon as that can be; not at once, for what broke one may
        break the next.
        """
        while True:
            await asyncio.sleep(_AGAIN_S)
            listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
            except OSError as error:
                listener.close()
                self._signs.fails(f"its address can't be had again: {error.strerror}")
            else:
                return listener

    def _begin(self, accepted: socket.socket, host: str, port: int) -> None:
        holder = self._bound.holder(host)
        if len(self._clients) >= self._bound.total:
            self._bound.refuse("total")
            _turn_away(accepted)
            return
        if holder is not None and self._held[holder] >= self._bound.per_address:
            self._bound.refuse("address")
            _turn_away(accepted)
            return
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        client = asyncio.create_task(self._run(accepted, shown), name="spillway-walsender")
        self._clients.add(client)
        if holder is not None:
            self._held[holder] += 1
        client.add_done_callback(lambda task: self._end(task, holder))

    def _end(self, client: asyncio.Task[None], holder: str | None) -> None:
        self._clients.discard(client)
        if holder is not None:
            self._held[holder] -= 1
            self._held += Counter()
        if not client.cancelled() and (error := client.exception()) is not None:
            log.error("a client's session failed", exc_info=error)

    async def _run(self, accepted: socket.socket, address: str) -> None:
        # For all until the client has logged in.
        deadline_s = asyncio.get_running_loop().time() + AUTHENTICATION_TIMEOUT_S
        try:
            async with asyncio.timeout_at(deadline_s):
                opened = await handshake.open_connection(accepted, self._rules.certificate)
        except WireError as error:
            self._signs.refused[_reason(error)] += 1
            await _tell_without_streams(accepted, error)
            return
        except (*_GONE, TimeoutError) as error:
            if isinstance(error, TimeoutError | ssl.SSLError):
                self._signs.refused["timeout" if isinstance(error, TimeoutError) else "tls"] += 1
            accepted.close()
            return
        except BaseException:
            accepted.close()
            raise
        if opened is None:
            accepted.close()
            return
        connection, packet = opened
        try:
            if (request := CancelRequest.in_packet(packet)) is not None:
                self._cancel(request)
            else:
                await self._serve(connection, packet, address, deadline_s)
            await connection.close()
        except _GONE:
            pass
        finally:
            connection.abort()

    async def _serve(
        self, connection: Connection, packet: bytes, address: str, deadline_s: float
    ) -> None:
        session = Session(
            connection,
            address,
            self._engine,
            self._users,
            self._settings,
            self._temporary_slots,
            self._upstreams,
            self._defaults,
            needs_tls=self._rules.certificate is not None,
            timeout_s=self._rules.timeout_s,
            pid=next(self._pids) & 0x7FFFFFFF,
            key=secrets.token_bytes(_KEY_BYTES),
        )
        commands: Commands | None = None
        try:
            try:
                async with asyncio.timeout_at(deadline_s):
                    commands = await session.log_in(packet)
            except (WireError, MetadataError) as error:
                self._signs.refused[_reason(error)] += 1
                await login_failure(connection, error)
                return
            except TimeoutError:
                self._signs.refused["timeout"] += 1
                return
            self._sessions[session.pid].add(session)
            session.counts = self._signs.sessions
            try:
                with session.doing(session.kind):
                    await session.serve(commands)
            except WireError as error:
                await connection.send(messages.error_response(error))
            except SpillwayError as error:
                await connection.send(messages.error_response(told(error, commands.major)))
            except UpstreamEnded:
                # The source has said why, and that was passed on.
                return
        finally:
            if (sessions := self._sessions.get(session.pid)) is not None:
                sessions.discard(session)
                if not sessions:
                    del self._sessions[session.pid]
            await session.leave_source()
            if commands is not None:
                await commands.clean_up()

    def _cancel(self, request: CancelRequest) -> None:
        for session in self._sessions.get(request.pid, ()):
            if hmac.compare_digest(session.key, request.key):
                session.cancel()


def _reason(error: WireError | MetadataError) -> str:
    """Say why a client did not come in, in one of a few words."""
    return _REASONS.get(error.sqlstate) or _REASONS.get(error.sqlstate[:2]) or "other"


def _turn_away(accepted: socket.socket) -> None:
    """Tell a client that there are too many; who has TLS first can't read it, and sees the end of
    the connection.
    """
    error = WireError("53300", "sorry, too many clients already", fatal=True)
    with contextlib.suppress(OSError):
        accepted.send(messages.error_response(error))
    accepted.close()


async def _tell_without_streams(accepted: socket.socket, error: WireError) -> None:
    # The handshake may have handed the socket to a transport, which has closed it then.
    with contextlib.suppress(OSError, ValueError):
        accepted.send(messages.error_response(error))
    with contextlib.suppress(OSError):
        accepted.close()
