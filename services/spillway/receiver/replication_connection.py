"""A physical replication connection: libpq without blocking, interruptible at every wait.

psycopg has no replication API; its ``pq`` layer has all that is needed: the handshake in steps,
simple queries, COPY BOTH. Nothing here waits inside libpq, whose calls hold the interpreter's lock:
every wait is a ``poll()`` on the socket and on a :class:`WakeUp`, so that another thread can end it
at once.

What travels inside the COPY stream is :mod:`spillway.receiver.streaming_protocol`'s business, what
an error means for the receiver is :mod:`spillway.receiver.walreceiver`'s.

Source: src/backend/replication/libpqwalreceiver/libpqwalreceiver.c
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import psycopg
from psycopg import pq

from spillway.errors import ReplicationFailed, SourceUnreachable
from spillway.pg.connect_errors import is_of_another_kind, quote_identifier
from spillway.pg.connecting import handshake
from spillway.pg.conninfo import connection_attempts, redact
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from types import TracebackType

    from psycopg.pq.abc import PGconn, PGresult

    from spillway.pg.connecting import Wait

_COMMAND_TIMEOUT_S: Final = 30.0
_FAILED: Final = frozenset({pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE})


class Interrupted(Exception):
    """Another thread asked to end the wait."""


class CommandFailed(Exception):
    """The server answered a replication command, or ended the stream, with an error."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message


class EndOfStream(Exception):
    """The server has ended the COPY stream; :meth:`ReplicationConnection.finish_copy` says why."""


class WakeUp:
    """Ends a poll in another thread: once by :meth:`nudge`, for good by :meth:`set`."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._set = False
        self._nudged = False

    def set(self) -> None:
        """Wake every present and future wait. May be repeated, from any thread."""
        self._set = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"\0")

    def nudge(self) -> None:
        """Wake the present wait, or else the next one; from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"\0")
        # After the byte: who sees this finds it.
        self._nudged = True

    def check(self) -> None:
        """Raise if set; a nudge has done its work.

        Raises:
            Interrupted: the wake-up is set.
        """
        if self._set:
            raise Interrupted
        if self._nudged:
            self._nudged = False
            with contextlib.suppress(BlockingIOError):
                os.read(self._read_fd, 4096)

    def fileno(self) -> int:
        """Return what to poll."""
        return self._read_fd

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise.

        Raises:
            Interrupted: the wake-up is, or gets, set.
        """
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._read_fd, select.POLLIN)
        while (remaining_s := deadline - time.monotonic()) > 0:
            poller.poll(remaining_s * 1000)
            self.check()
        self.check()

    def __del__(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The answer to IDENTIFY_SYSTEM."""

    system_id: str
    timeline: int
    flush_lsn: Lsn


@dataclass(frozen=True, slots=True)
class TimelineEnd:
    """The timeline that was streamed ends; the next one forks off at *fork_lsn*."""

    next_timeline: int
    fork_lsn: Lsn


class ReplicationConnection:
    """One connection, used by one thread."""

    def __init__(self, pgconn: PGconn, conninfo: str, wake_up: WakeUp) -> None:
        self._pgconn = pgconn
        self._conninfo = conninfo
        self._wake_up = wake_up
        self._poller = select.poll()
        self._poller.register(wake_up.fileno(), select.POLLIN)
        self._socket = pgconn.socket
        self._events = 0
        self._unread = False

    # -- connecting ---------------------------------------------------------------------------

    @classmethod
    def connect(cls, conninfo: str, wake_up: WakeUp) -> Self:
        """Connect to the first address that accepts.

        Raises:
            SourceError: none did. The error of the one that refused, where the others were not
                tried, else of one that is not of the kind that is asked for, else of the last.
            Interrupted: *wake_up* was set.
        """
        failure: SourceUnreachable | None = None
        attempts = connection_attempts(conninfo)
        for attempt in attempts[:-1]:
            try:
                return cls._connect_one(attempt, wake_up)
            except SourceUnreachable as error:
                if failure is None or not is_of_another_kind(failure):
                    failure = error
        try:
            return cls._connect_one(attempts[-1], wake_up)
        except SourceUnreachable as error:
            if failure is not None and is_of_another_kind(failure):
                raise failure from error
            raise error from failure

    @classmethod
    def _connect_one(cls, conninfo: str, wake_up: WakeUp) -> Self:
        pgconn = handshake(conninfo, _waiting(wake_up))
        try:
            pgconn.nonblocking = 1
            return cls(pgconn, conninfo, wake_up)
        except BaseException:
            pgconn.finish()
            raise

    def close(self) -> None:
        """Close the socket. May be repeated."""
        self._pgconn.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def server_version_num(self) -> int:
        """PostgreSQL's version, 150018 for 15.18."""
        return self._pgconn.server_version

    # -- commands -----------------------------------------------------------------------------

    def identify_system(self) -> SystemIdentity:
        """IDENTIFY_SYSTEM: which cluster this is, on which timeline, how far its WAL is flushed."""
        row = self._row("IDENTIFY_SYSTEM")
        return SystemIdentity(row[0].decode(), int(row[1]), Lsn.parse(row[2].decode()))

    def timeline_history(self, timeline: int) -> bytes:
        """TIMELINE_HISTORY: the contents of that timeline's history file."""
        return self._row(f"TIMELINE_HISTORY {timeline}")[1]

    def create_physical_slot(self, slot_name: str, *, temporary: bool = False) -> None:
        """CREATE_REPLICATION_SLOT … PHYSICAL RESERVE_WAL; a temporary one goes with this
        connection.
        """
        kind = "TEMPORARY PHYSICAL" if temporary else "PHYSICAL"
        self._row(f"CREATE_REPLICATION_SLOT {quote_identifier(slot_name)} {kind} RESERVE_WAL")

    def start_replication(
        self, slot_name: str | None, lsn: int, timeline: int
    ) -> TimelineEnd | None:
        """Start streaming at *lsn*. None: the stream is open; else there is nothing on *timeline*
        from there on.
        """
        slot = "" if slot_name is None else f"SLOT {quote_identifier(slot_name)} "
        command = f"START_REPLICATION {slot}PHYSICAL {Lsn(lsn)} TIMELINE {timeline}"
        self._send(command)
        result = self._next_result(_COMMAND_TIMEOUT_S)
        if result is not None and result.status == pq.ExecStatus.COPY_BOTH:
            return None
        return self._timeline_end(result)

    def _row(self, command: str) -> list[bytes]:
        """Run a command that answers with one row."""
        self._send(command)
        row: list[bytes] | None = None
        while (result := self._next_result(_COMMAND_TIMEOUT_S)) is not None:
            if result.status == pq.ExecStatus.TUPLES_OK and result.ntuples == 1:
                row = [result.get_value(0, column) or b"" for column in range(result.nfields)]
        if row is None:
            raise ReplicationFailed(
                f"the server answered {command.split(maxsplit=1)[0]} without a row"
            )
        return row

    def _send(self, command: str) -> None:
        """Send a command, after what a failed one before it left unread."""
        while self._unread:
            with contextlib.suppress(CommandFailed):
                self._unread = self._next_result(_COMMAND_TIMEOUT_S) is not None
        try:
            self._pgconn.send_query(command.encode())
        except psycopg.Error as error:
            raise self._broken(error) from error

    def _next_result(self, timeout_s: float) -> PGresult | None:
        """Wait for the next result of the command; None after the last.

        Raises:
            CommandFailed: it is an error.
            ReplicationFailed: the connection broke, or nothing came in time.
            Interrupted: the wake-up was set.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while self._pgconn.is_busy():
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise ReplicationFailed(f"the server did not answer within {timeout_s:g} s")
                self.wait(remaining_s)
            result = self._pgconn.get_result()
        except psycopg.Error as error:
            raise self._broken(error) from error
        if result is not None and result.status in _FAILED:
            self._unread = True
            raise self._command_failed(result)
        return result

    def _command_failed(self, result: PGresult) -> CommandFailed | ReplicationFailed:
        sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE)
        if sqlstate is None:  # libpq's own: the connection is gone
            return ReplicationFailed(
                "the replication connection broke: " + _one_line(result.get_error_message("utf-8"))
            )
        parts = [
            (result.error_field(field) or b"").decode("utf-8", "replace")
            for field in (pq.DiagnosticField.MESSAGE_PRIMARY, pq.DiagnosticField.MESSAGE_DETAIL)
        ]
        return CommandFailed(sqlstate.decode(), " ".join(filter(None, parts)))

    # -- streaming ----------------------------------------------------------------------------

    def receive(self, *, looks: bool = True) -> memoryview | None:
        """Return the next message of the stream, None when there is none. Never waits.

        Args:
            looks: whether to look what the socket has ready when all that was read is handed out.

        Raises:
            EndOfStream: the server ended the stream.
            CommandFailed: it ended with an error.
            ReplicationFailed: the connection broke.
        """
        try:
            count, message = self._pgconn.get_copy_data(1)
            if count == 0 and looks:
                self._pgconn.consume_input()
                count, message = self._pgconn.get_copy_data(1)
        except psycopg.Error as error:
            # The server's own error, if there is one, is the next result.
            self._next_result(0)
            raise self._broken(error) from error
        if count > 0:
            return message
        if count < 0:
            raise EndOfStream
        return None

    def send(self, message: bytes) -> None:
        """Queue a message and send as much as the socket takes; :meth:`wait` sends the rest."""
        try:
            self._pgconn.put_copy_data(message)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._broken(error) from error

    def wait(self, timeout_s: float, *, receive: bool = True) -> None:
        """Wait until the socket has something, then take it in; or until *timeout_s* has passed.

        Args:
            timeout_s: at most.
            receive: False only sends what is queued: flow control stops the server.

        Raises:
            Interrupted: the wake-up was set.
            ReplicationFailed: the connection broke.
        """
        try:
            unsent = self._pgconn.flush()
            events = (select.POLLIN if receive else 0) | (select.POLLOUT if unsent else 0)
            if events != self._events:
                if self._events:
                    self._poller.unregister(self._socket)
                if events:
                    self._poller.register(self._socket, events)
                self._events = events
            ready = self._poller.poll(timeout_s * 1000)
            self._wake_up.check()
            if receive:
                for fd, _ in ready:
                    if fd == self._socket:
                        self._pgconn.consume_input()
        except psycopg.Error as error:
            raise self._broken(error) from error

    def finish_copy(self) -> TimelineEnd | None:
        """End the stream after :class:`EndOfStream`. None: the server shuts down.

        Raises:
            CommandFailed, ReplicationFailed: the stream ended with an error.
        """
        result = self._next_result(_COMMAND_TIMEOUT_S)
        if result is not None and result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH):
            try:
                self._pgconn.put_copy_end()
            except psycopg.Error as error:
                raise self._broken(error) from error
            result = self._next_result(_COMMAND_TIMEOUT_S)
        return self._timeline_end(result)

    def _timeline_end(self, result: PGresult | None) -> TimelineEnd | None:
        end: TimelineEnd | None = None
        while result is not None:
            if result.status == pq.ExecStatus.TUPLES_OK and result.ntuples == 1:
                timeline, lsn = (result.get_value(0, column) or b"" for column in range(2))
                end = TimelineEnd(int(timeline), Lsn.parse(lsn.decode()))
            result = self._next_result(_COMMAND_TIMEOUT_S)
        return end

    def _broken(self, error: psycopg.Error) -> ReplicationFailed:
        return ReplicationFailed(
            f"the replication connection broke: {_one_line(redact(str(error), self._conninfo))}",
            hint="The receiver reconnects by itself.",
        )


def _waiting(wake_up: WakeUp) -> Wait:
    """Wait for a socket, or until *wake_up* is set, which raises."""

    def wait(descriptor: int, event: int, seconds: float) -> bool:
        poller = select.poll()
        poller.register(wake_up.fileno(), select.POLLIN)
        poller.register(descriptor, event)
        ready = bool(poller.poll(seconds * 1000))
        wake_up.check()
        return ready

    return wait


def _one_line(text: str) -> str:
    return " ".join(text.split())
