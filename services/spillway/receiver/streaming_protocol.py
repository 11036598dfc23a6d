"""The messages inside a physical replication COPY stream: bytes to values and back, no I/O.

The server sends XLogData (``w``) and keepalives (``k``); the client sends standby status updates
(``r``). Integers are big-endian, times are microseconds since 2000-01-01 00:00 UTC.

Source: src/backend/replication/walsender.c, "Streaming Replication Protocol" in PostgreSQL's
documentation
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from spillway.errors import ReplicationFailed
from spillway.pg.timestamps import now_us

XLOG_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")

#: type, start of the data, end of WAL on the server, server's clock
_XLOG_DATA: Final = struct.Struct(">cQQq")
#: type, end of WAL on the server, server's clock, reply requested
_KEEPALIVE: Final = struct.Struct(">cQqB")
#: type, write, flush, apply, client's clock, reply requested
_STATUS: Final = struct.Struct(">cQQQqB")

#: A WAL data message's payload begins here.
XLOG_DATA_HEADER_BYTES: Final = _XLOG_DATA.size


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server's heartbeat."""

    wal_end: int
    reply_requested: bool


def parse_xlog_data(message: memoryview) -> tuple[int, int, memoryview]:
    """Parse a ``w`` message into (start of the data, end of WAL on the server, data). The data is
    not copied.

    Raises:
        ReplicationFailed: the message is shorter than its header.
    """
    if len(message) < _XLOG_DATA.size:
        raise _malformed("WAL data", message)
    _, start_lsn, wal_end, _ = _XLOG_DATA.unpack_from(message)
    return start_lsn, wal_end, message[_XLOG_DATA.size :]


def parse_keepalive(message: memoryview) -> Keepalive:
    """Parse a ``k`` message.

    Raises:
        ReplicationFailed: the message has another length.
    """
    if len(message) != _KEEPALIVE.size:
        raise _malformed("keepalive", message)
    _, wal_end, _, reply_requested = _KEEPALIVE.unpack(message)
    return Keepalive(wal_end, bool(reply_requested))


def format_status(
    write_lsn: int, flush_lsn: int, apply_lsn: int = 0, *, reply_requested: bool = False
) -> bytes:
    """Format a standby status update. *flush_lsn* lets the server recycle WAL; an *apply_lsn* of 0
    says nothing.
    """
    return _STATUS.pack(b"r", write_lsn, flush_lsn, apply_lsn, now_us(), reply_requested)


def unknown_message(message: memoryview) -> ReplicationFailed:
    """Make the error for a message of an unknown type."""
    return ReplicationFailed(
        f"the server sent a replication message of unknown type {bytes(message[:1])!r}",
        hint="Check that the DSN leads to PostgreSQL itself, not to a proxy.",
    )


def _malformed(what: str, message: memoryview) -> ReplicationFailed:
    return ReplicationFailed(
        f"the server sent a malformed {what} message of {len(message)} bytes",
        hint="Check that the DSN leads to PostgreSQL itself, not to a proxy.",
    )
