"""A client of one slot: commands, then the stream, on a walsender of PostgreSQL's or on the
service's port.
"""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import pq
from psycopg.conninfo import make_conninfo

from spillway.errors import ReplicationFailed, SourceError
from spillway.pg.conninfo import APPLICATION_NAME, parse_dsn
from spillway.pg.lsn import Lsn
from spillway.receiver.replication_connection import (
    CommandFailed,
    EndOfStream,
    ReplicationConnection,
)
from spillway.receiver.streaming_protocol import (
    KEEPALIVE,
    XLOG_DATA,
    format_status,
    parse_keepalive,
    unknown_message,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.certify.rendering import Subject
    from spillway.receiver.replication_connection import WakeUp

_XLOG_DATA: Final = struct.Struct(">cQQq")
_MAJOR_OF_OPTION_LISTS: Final = 150000
_START_TIMEOUT_S: Final = 60.0
_STATUS_INTERVAL_S: Final = 1.0
_DROP_TIMEOUT_S: Final = 5.0
#: What texts depend on, at the same values on both sides.
_SETTINGS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}


class Frame(NamedTuple):
    """An XLogData message without its time, which is the sender's clock."""

    start: int
    end: int
    data: bytes


class SlotConnection:
    """One side of one subject."""

    def __init__(self, name: str, dsn: str, wake_up: WakeUp, settings: Mapping[str, str]) -> None:
        """Connect.

        Args:
            name: of the side, for messages.
            dsn: of a walsender, or of the service's port.
            wake_up: ends every wait.
            settings: of the session, beside what texts depend on.

        Raises:
            SourceError: it can't be reached, or refuses.
        """
        self.name = name
        self._connection = _Logical.connect(_conninfo(dsn, settings), wake_up)
        #: everything of commits before this has come
        self.position = 0
        #: what the comparison is through with
        self.done_lsn = 0
        self._received_lsn = 0
        self._told_s = 0.0
        self._asked = False

    def close(self) -> None:
        """Close the connection, and drop the slot with it. May be repeated."""
        self._connection.close()

    def system_id(self) -> str:
        """Return which cluster the database is of.

        Raises:
            ReplicationFailed: it is not said.
        """
        try:
            return self._connection.row("IDENTIFY_SYSTEM")[0].decode()
        except CommandFailed as failure:
            raise self._failed(failure, "does not say which cluster it is") from None

    def create_slot(self, slot_name: str, subject: Subject) -> int:
        """Create the temporary slot; return its consistent point.

        Raises:
            ReplicationFailed: it is refused.
        """
        two_phase = subject.options.get("two_phase") == "on"
        options = (
            f"(SNAPSHOT 'nothing'{', TWO_PHASE' if two_phase else ''})"
            if self._connection.server_version_num >= _MAJOR_OF_OPTION_LISTS
            else "NOEXPORT_SNAPSHOT"
        )
        try:
            row = self._connection.row(
                f'CREATE_REPLICATION_SLOT "{slot_name}" TEMPORARY LOGICAL {subject.plugin} '
                f"{options}"
            )
        except CommandFailed as failure:
            raise self._failed(failure, "refuses to create a slot") from None
        return int(Lsn.parse(row[1].decode()))

    def start(self, slot_name: str, subject: Subject, lsn: int) -> None:
        """Begin to stream.

        Raises:
            ReplicationFailed: it is refused.
        """
        options = ", ".join(
            f"\"{name}\" '{value.replace(chr(39), chr(39) * 2)}'"
            for name, value in subject.options.items()
        )
        listed = f" ({options})" if options else ""
        try:
            self._connection.start_logical(
                f'START_REPLICATION SLOT "{slot_name}" LOGICAL {Lsn(lsn)}{listed}'
            )
        except CommandFailed as failure:
            raise self._failed(failure, "refuses to stream") from None

    def drop_slot(self, slot_name: str) -> None:
        """End the stream and drop the slot, so that it is gone when this returns; what can't be
        done in a moment is left to :meth:`close`.
        """
        with contextlib.suppress(CommandFailed, EndOfStream, SourceError):
            self._connection.end_stream(_DROP_TIMEOUT_S)
            self._connection.tag(f'DROP_REPLICATION_SLOT "{slot_name}"')

    def fileno(self) -> int:
        """Return what to poll for something to receive."""
        return self._connection.fileno()

    def receive(self) -> Frame | None:
        """Take the next frame; None: nothing is there now. Keepalives are taken on the way.

        Raises:
            ReplicationFailed: the stream ended.
        """
        try:
            while (message := self._connection.receive()) is not None:
                if message[0] == XLOG_DATA:
                    _, start, end, _ = _XLOG_DATA.unpack_from(message)
                    self._received_lsn = max(self._received_lsn, end)
                    return Frame(start, end, bytes(message[_XLOG_DATA.size :]))
                if message[0] != KEEPALIVE:
                    raise unknown_message(message)
                keepalive = parse_keepalive(message)
                self.position = max(self.position, keepalive.wal_end)
                self._asked |= keepalive.reply_requested
        except CommandFailed as failure:
            raise self._failed(failure, "ended its stream") from None
        return None

    def feed_back(self) -> None:
        """Say now and then how far the comparison is, and ask for the position."""
        now_s = time.monotonic()
        if self._asked or now_s - self._told_s >= _STATUS_INTERVAL_S:
            self._told_s = now_s
            self._asked = False
            written = max(self._received_lsn, self.done_lsn)
            self._connection.send(format_status(written, self.done_lsn, reply_requested=True))

    def _failed(self, failure: CommandFailed, what: str) -> ReplicationFailed:
        return ReplicationFailed(
            f"{self.name} {what}: {failure.message}",
            hint="See its log.",
            sqlstate=failure.sqlstate,
        )


class _Logical(ReplicationConnection):
    """What the receiver's own connection has no use for."""

    def fileno(self) -> int:
        return self._socket

    def row(self, command: str) -> list[bytes]:
        return self._row(command)

    def start_logical(self, command: str) -> None:
        self._send(command)
        result = self._next_result(_START_TIMEOUT_S)
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise ReplicationFailed("START_REPLICATION was answered without a stream")

    def end_stream(self, timeout_s: float) -> None:
        """Say CopyDone, and read to the end of what is under way."""
        deadline_s = time.monotonic() + timeout_s
        self._pgconn.put_copy_end()
        with contextlib.suppress(EndOfStream):
            while time.monotonic() < deadline_s:
                if self.receive() is None:
                    self.wait(deadline_s - time.monotonic())
        while self._next_result(timeout_s) is not None:
            pass

    def tag(self, command: str) -> None:
        """Run a command that answers without a row."""
        self._send(command)
        while self._next_result(_START_TIMEOUT_S) is not None:
            pass


def _conninfo(dsn: str, settings: Mapping[str, str]) -> str:
    parameters = parse_dsn(dsn)
    given = parameters.get("options", "")
    ours = " ".join(f"-c {name}={value}" for name, value in {**_SETTINGS, **settings}.items())
    return make_conninfo(
        **{
            "connect_timeout": "10",
            "application_name": APPLICATION_NAME,
            **parameters,
            "replication": "database",
            "client_encoding": "UTF8",
            "options": f"{given} {ours}".strip(),
        }
    )
