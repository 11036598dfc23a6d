"""REST's server: uvicorn's protocol, behind a door of our own.

uvicorn keeps a connection for as long as whoever made it likes, request or not, and asyncio, once a
process has no descriptor left, logs a traceback for each of the connections that wait. Here

- a connection over the limit, in all or of one address, is answered 503 and closed as it is
  accepted, and costs nothing after that;
- one that can't be accepted for want of descriptors is accepted with the one that is held in
  reserve for that, and closed: it must not stay in the queue, where it would wake the loop again
  and again;
- a handshake, a request's head, its body, the pause between requests, and an answer that nobody
  takes have their time;
- a request that is still at work when the service has waited for it long enough as it stops, as one
  that waits for transactions of the source, is told that;
- what a client does wrong is an answer to the client, and no line of the log.
"""

import asyncio
import contextlib
import errno
import http
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from spillway.connection_bound import ConnectionBound
from spillway.errors import (
    InvalidRequest,
    NotReady,
    RequestTimeout,
    SpillwayError,
    TooManyConnections,
)
from spillway.slot_manager.problems import MEDIA_TYPE, problem_response
from spillway.tls import ServerCertificate

log = logging.getLogger(__name__)

#: From the connection, or the answer before, to a request's last header.
HEAD_TIMEOUT_S: Final = 15.0
#: For the whole of a request's body: 1 MiB at most.
BODY_TIMEOUT_S: Final = 60.0
#: How long a client may take nothing of its answer.
WRITE_TIMEOUT_S: Final = 60.0
#: Between requests of a connection. Clients of pools keep one a little less long.
KEEP_ALIVE_S: Final = 30
#: How long a service that stops waits for the requests at work.
STOP_TIMEOUT_S: Final = 5
_HANDSHAKE_TIMEOUT_S: Final = 10.0
#: How long a connection that is being closed may take to end.
_CLOSE_TIMEOUT_S: Final = 5.0
_BACKLOG: Final = 256
_PAUSE_S: Final = 0.1
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TOO_MANY: Final = TooManyConnections(
    "the service has as many connections as it can have",
    hint="Try again soon. The limit of open files (ulimit -n, LimitNOFILE) sets how many there may "
    "be.",
)
_TOO_MANY_OF_ONE: Final = TooManyConnections(
    "this address has as many connections as one address may have",
    hint="Close some, or use one for several requests. Behind a proxy or NAT many clients are one "
    "address: SPILLWAY_CONNECTIONS_PER_ADDRESS sets how many one may have, 0 that there is no such "
    "bound.",
)


class HttpServer:
    """Serves *app* on a listening socket until it is stopped."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        bound: ConnectionBound,
        certificate: ServerCertificate | None = None,
    ) -> None:
        self._config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            log_level="error",
            lifespan="off",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        self._server = _Uvicorn(self._config)
        self._bound = bound
        #: of the addresses that have a bound of their own
        self._held: Counter[str] = Counter()
        self._certificate = certificate
        self._handshakes: set[asyncio.Task[None]] = set()
        #: a descriptor; -1 while it is given away
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._accepting: asyncio.Task[None] | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections on *listener*, which is bound, until :meth:`stop`."""
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._accepting = accepting = asyncio.create_task(
            self._accept_all(listener), name="spillway-http-accept"
        )
        try:
            # Without sockets of its own: it answers, and is told of connections.
            await self._server.serve(sockets=[])
        finally:
            accepting.cancel()
            for handshake in tuple(self._handshakes):
                handshake.cancel()
            await asyncio.gather(accepting, *self._handshakes, return_exceptions=True)
            listener.close()
            self._give_spare()

    @property
    def started(self) -> bool:
        """Whether it answers."""
        return self._server.started

    def stop(self) -> None:
        """End :meth:`serve` when requests at work are answered, in a few seconds at most."""
        if self._accepting is not None:
            self._accepting.cancel()
        self._server.should_exit = True

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    await self._refuse_with_spare(listener)
                # Anything else is one connection's trouble (ECONNABORTED for one).
                continue
            if len(self._server.server_state.connections) + len(self._handshakes) >= (
                self._bound.total
            ):
                self._bound.refuse("total")
                self._refuse(connection, _TOO_MANY)
                continue
            holder = self._bound.holder(address[0])
            if holder is not None and self._held[holder] >= self._bound.per_address:
                self._bound.refuse("address")
                self._refuse(connection, _TOO_MANY_OF_ONE)
                continue
            handshake = asyncio.create_task(self._begin(connection, self._hold(holder)))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    def _hold(self, holder: str | None) -> Callable[[], None]:
        """Count a connection of *holder*; what is returned ends that, however often it is
        called.
        """
        if holder is None:
            return _nothing
        self._held[holder] += 1
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._held[holder] -= 1
                if not self._held[holder]:
                    del self._held[holder]

        return release

    async def _begin(self, connection: socket.socket, release: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        certificate = self._certificate
        try:
            await loop.connect_accepted_socket(
                lambda: _Protocol(self._config, self._server.server_state, release),
                connection,
                ssl=None if certificate is None else certificate.context,
                ssl_handshake_timeout=None if certificate is None else _HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=None if certificate is None else _CLOSE_TIMEOUT_S,
            )
        except (OSError, TimeoutError) as error:
            # ssl.SSLError is an OSError: a client that does not trust us, brings no certificate, or
            # speaks plain HTTP.
            log.debug("a connection ended in its handshake: %s", error)
            connection.close()
            release()

    def _refuse(self, connection: socket.socket, error: SpillwayError) -> None:
        with contextlib.suppress(OSError):
            if self._certificate is None:
                # A few hundred bytes always fit in a new socket's buffer.
                connection.setblocking(False)
                connection.send(_answer(error))
            connection.shutdown(socket.SHUT_WR)
        connection.close()

    async def _refuse_with_spare(self, listener: socket.socket) -> None:
        """Refuse those that wait, and come back when the reserve is whole again."""
        self._bound.refuse("total")
        self._give_spare()
        with contextlib.suppress(OSError):
            for _ in range(_BACKLOG):
                listener.accept()[0].close()
        # Somebody else may have taken it by now: then the next one it is. The loop goes on
        # meanwhile, for what frees gRPC's descriptors runs on it, too.
        while self._spare < 0:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            await asyncio.sleep(_PAUSE_S)

    def _give_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: both servers stop together, and the engine after
    them.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """uvicorn's protocol, with a time for what a client has to send, and to take."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, release: Callable[[], None]
    ) -> None:
        super().__init__(config, state, {})
        self._release = release
        self._asked = self.app
        self.app = self._answer_until_stopped

    async def _answer_until_stopped(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application answer. uvicorn cancels what is at work when the time of a stop is
        over, and nobody else cancels a request: left alone, it would log a traceback for each, and
        call that an internal error.
        """
        try:
            await self._asked(scope, receive, send)
        except asyncio.CancelledError:
            cycle = self.cycle
            if cycle.response_started:
                # Without its last chunk, so that nobody takes it for a whole one.
                cycle.disconnected = True
                self.transport.close()
                return
            stopped = NotReady(
                "the service was stopped while the request was at work",
                hint="Ask again when the service is back; a change may have been made.",
            )
            await problem_response(stopped, scope["path"])(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        #: what is awaited, h11's state of the client, and until when
        self._awaited: object = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._await(h11.IDLE, HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._await_nothing()
        self._unset_write_deadline()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        state = self.conn.their_state
        if self.transport.is_closing():
            self._await_nothing()
        elif state is h11.IDLE:
            self._await(state, HEAD_TIMEOUT_S)
        elif state is h11.SEND_BODY:
            self._await(state, BODY_TIMEOUT_S)
        else:
            self._await_nothing()

    def on_response_complete(self) -> None:
        self._await_nothing()
        super().on_response_complete()

    def _await(self, state: object, timeout_s: float) -> None:
        # A byte now and then doesn't prolong it.
        if self._deadline is None or self._awaited is not state:
            self._await_nothing()
            self._awaited = state
            self._deadline = self.loop.call_later(timeout_s, self._time_out)

    def _await_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._awaited is h11.SEND_BODY and self.flow.read_paused:
            # It is us who don't read.
            self._await(h11.SEND_BODY, BODY_TIMEOUT_S)
            return
        self._end_with(
            RequestTimeout(
                "the rest of the request did not come in time",
                hint="Send a request at once, and close connections that are not used.",
            )
        )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._unset_write_deadline()
        super().resume_writing()

    def _unset_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's form
        self._end_with(
            InvalidRequest(
                "what came is no HTTP/1.1 request",
                hint="A service with a certificate is called by https://, one without by http://.",
            )
        )

    def _end_with(self, error: SpillwayError) -> None:
        """Answer where nothing was answered yet, and close; the request at work sees its client
        gone.
        """
        self._await_nothing()
        answered = False
        if self.cycle is not None and not self.cycle.response_complete:
            answered = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not answered:
            self.transport.write(_answer(error))
        self.transport.close()
        self.loop.call_later(_CLOSE_TIMEOUT_S, self.transport.abort)


def _nothing() -> None:
    """Release what was not held."""


def _answer(error: SpillwayError) -> bytes:
    """Make a whole response, for where no request is at work."""
    response = problem_response(error, "")
    phrase = http.HTTPStatus(error.http_status).phrase
    head = (
        f"HTTP/1.1 {error.http_status} {phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(response.body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("ascii") + bytes(response.body)
