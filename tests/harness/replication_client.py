"""A client of PostgreSQL's replication protocol by libpq, for a real walsender and for ours: what
each says is compared.

Nothing waits inside libpq, whose calls hold the interpreter's lock: the service may be in this very
process.
"""

from __future__ import annotations

import select
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import psycopg
from psycopg import pq

from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT_S = 60.0
_XLOG_DATA = struct.Struct(">cQQq")
_KEEPALIVE = struct.Struct(">cQqB")
_FEEDBACK = struct.Struct(">cQQQqB")


class Frame(NamedTuple):
    """An XLogData message without its time."""

    start: int
    end: int
    data: bytes


class Failure(NamedTuple):
    """What a client sees of an error."""

    sqlstate: str
    message: str


@dataclass(frozen=True)
class Reply:
    """A result as a client sees it."""

    status: str
    columns: tuple[tuple[str, int], ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    tag: str = ""
    failure: Failure | None = None


class ReplicationClient:
    """A connection with ``replication=database``; *dsn* says where to."""

    def __init__(self, dsn: str, *, replication: str = "database") -> None:
        self.pgconn = pq.PGconn.connect_start(f"{dsn} replication={replication}".encode())
        while (asked := self.pgconn.connect_poll()) in (
            pq.PollingStatus.READING,
            pq.PollingStatus.WRITING,
        ):
            self._wait(writing=asked == pq.PollingStatus.WRITING)
        if self.pgconn.status != pq.ConnStatus.OK:
            message = self.pgconn.error_message.decode()
            self.pgconn.finish()
            raise ConnectionRefusedError(message)
        #: walEnd of keepalives, in the order in which they came, and how many frames were there
        #: before
        self.keepalives: list[tuple[int, int]] = []
        self.frames: list[Frame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pgconn.finish()

    def run(self, command: str) -> Reply:
        """Run a command and give its first result."""
        self.pgconn.send_query(command.encode())
        replies = []
        while (result := self.result()) is not None:
            replies.append(_reply(result))
            if replies[-1].status.startswith("COPY_"):
                break
        return replies[0]

    def run_bytes(self, command: bytes) -> pq.abc.PGresult:
        """Run a command in whatever encoding, and give its first result as it is."""
        self.pgconn.send_query(command)
        first = result = self.result()
        while result is not None:
            result = self.result()
        assert first is not None
        return first

    def copy_in(self, command: str, data: bytes) -> Reply:
        """Run a COPY FROM STDIN, and give what comes of it."""
        assert self.run(command).status == "COPY_IN"
        self.pgconn.put_copy_data(data)
        self.pgconn.put_copy_end()
        replies = []
        while (result := self.result()) is not None:
            replies.append(_reply(result))
        return replies[-1]

    def copy_out(self, command: str) -> bytes:
        """Run a COPY TO STDOUT, and give what comes."""
        assert self.run(command).status == "COPY_OUT"
        pieces = []
        while True:
            size, data = self.pgconn.get_copy_data(1)
            if size < 0:
                break
            if size == 0:
                self._wait()
                self.pgconn.consume_input()
            pieces.append(bytes(data))
        while self.result() is not None:
            pass
        return b"".join(pieces)

    def run_extended(self, command: str) -> Reply:
        """Run a command by the extended protocol."""
        self.pgconn.send_query_params(command.encode(), [])
        replies = []
        while (result := self.result()) is not None:
            replies.append(_reply(result))
        return replies[0]

    def result(self) -> pq.abc.PGresult | None:
        """Give the next result, None behind the last. Nothing waits inside libpq, which would keep
        the interpreter's lock from a service in this process.
        """
        while self.pgconn.flush():
            self._wait(writing=True)
        while self.pgconn.is_busy():
            self._wait()
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def _wait(self, *, writing: bool = False) -> None:
        socket = self.pgconn.socket
        ready = select.select(
            [] if writing else [socket], [socket] if writing else [], [], _TIMEOUT_S
        )
        assert any(ready), "nothing came"

    def start(self, slot: str, options: str = "", lsn: str = "0/0") -> None:
        shown = f" ({options})" if options else ""
        reply = self.run(f"START_REPLICATION SLOT {slot} LOGICAL {lsn}{shown}")
        assert reply.status == "COPY_BOTH", reply

    def read_until(self, reached: Callable[[], bool]) -> None:
        """Read until *reached*, asking for keepalives."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not reached():
            assert time.monotonic() < deadline, (self.frames[-3:], self.keepalives[-3:])
            if not self.read_one():
                self.feedback(0, reply_requested=True)
                select.select([self.pgconn.socket], [], [], 0.05)
                self.pgconn.consume_input()

    def read_to(self, lsn: str) -> list[Frame]:
        """Read until a keepalive says that all before *lsn* was sent; give what came."""
        until = int(Lsn.parse(lsn))
        self.read_until(lambda: bool(self.keepalives) and self.keepalives[-1][0] >= until)
        return self.frames

    def read_one(self) -> bool:
        """Take a message that is there; False: there is none."""
        size, data = self.pgconn.get_copy_data(1)
        if size == 0:
            return False
        if size < 0:
            result = self.result()
            raise EOFError(
                self.pgconn.error_message.decode()
                if result is None
                else result.error_message.decode()
            )
        message = bytes(data)
        if message[:1] == b"w":
            _, start, end, _ = _XLOG_DATA.unpack_from(message)
            self.frames.append(Frame(start, end, message[_XLOG_DATA.size :]))
        else:
            kind, end, _, _ = _KEEPALIVE.unpack(message)
            assert kind == b"k"
            self.keepalives.append((end, len(self.frames)))
        return True

    def read_to_end(self) -> None:
        """Read, and answer nothing, until the server has ended the connection."""
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                if not self.read_one():
                    self._wait()
                    self.pgconn.consume_input()
            except (EOFError, psycopg.OperationalError):
                return
        raise AssertionError("the connection did not end")

    def feedback(self, flush_lsn: int, *, reply_requested: bool = False) -> None:
        """Send a standby status update."""
        update = _FEEDBACK.pack(b"r", flush_lsn, flush_lsn, 0, 0, reply_requested)
        self.pgconn.put_copy_data(update)
        self.pgconn.flush()

    def finish_copy(self) -> list[Reply]:
        """End the stream as a client does, and give the results that follow."""
        self.pgconn.put_copy_end()
        self.pgconn.flush()
        while (size := self.pgconn.get_copy_data(1)[0]) >= 0:
            if size == 0:
                self._wait()
                self.pgconn.consume_input()
        replies = []
        while (result := self.result()) is not None:
            replies.append(_reply(result))
        return replies


def _reply(result: pq.abc.PGresult) -> Reply:
    status = pq.ExecStatus(result.status).name
    if status == "FATAL_ERROR":
        sqlstate, message = (
            (result.error_field(field) or b"").decode()
            for field in (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY)
        )
        return Reply(status, failure=Failure(sqlstate, message))
    columns = tuple(
        ((result.fname(n) or b"").decode(), result.ftype(n)) for n in range(result.nfields)
    )
    rows = tuple(
        tuple(_text(result.get_value(row, n)) for n in range(result.nfields))
        for row in range(result.ntuples)
    )
    return Reply(status, columns, rows, (result.command_status or b"").decode())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
