"""The COPY stream's messages."""

from __future__ import annotations

import struct
import time

import pytest

from spillway.errors import ReplicationFailed
from spillway.receiver.streaming_protocol import (
    Keepalive,
    format_status,
    parse_keepalive,
    parse_xlog_data,
    unknown_message,
)


def test_xlog_data() -> None:
    message = b"w" + struct.pack(">QQq", 0x1_00000010, 0x1_00000100, 5) + b"abc"
    start, wal_end, data = parse_xlog_data(memoryview(message))
    assert (start, wal_end, bytes(data)) == (0x1_00000010, 0x1_00000100, b"abc")
    assert bytes(parse_xlog_data(memoryview(message[:25]))[2]) == b""


@pytest.mark.parametrize("length", range(25))
def test_short_xlog_data(length: int) -> None:
    with pytest.raises(ReplicationFailed):
        parse_xlog_data(memoryview(b"w" * length))


def test_keepalive() -> None:
    message = b"k" + struct.pack(">QqB", 77, 5, 1)
    assert parse_keepalive(memoryview(message)) == Keepalive(77, reply_requested=True)
    for wrong in (message[:-1], message + b"\0"):
        with pytest.raises(ReplicationFailed):
            parse_keepalive(memoryview(wrong))


def test_status() -> None:
    message = format_status(0x20, 0x10, reply_requested=True)
    kind, write, flush, apply, clock_us, reply = struct.unpack(">cQQQqB", message)
    assert (kind, write, flush, apply, reply) == (b"r", 0x20, 0x10, 0, 1)
    since_2000_s = time.time() - 946_684_800
    assert abs(clock_us / 1e6 - since_2000_s) < 60


def test_unknown_message() -> None:
    assert "b'X'" in unknown_message(memoryview(b"Xyz")).message
