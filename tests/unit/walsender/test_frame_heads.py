"""Heads of messages in pieces of any size."""

from __future__ import annotations

import random

import pytest

from spillway._kernels.walsender.frame_heads import FrameHeads
from spillway.walsender.messages import message


def test_messages_that_are_watched_for_are_found_however_they_are_cut() -> None:
    draw = random.Random(5)
    stream = b"".join(
        message(draw.choice([b"D", b"d", b"Z", b"T"]), bytes(draw.randrange(40)))
        for _ in range(500)
    )
    expected = stream.count(b"Z\0\0\0")
    for _ in range(20):
        heads, kept, found, passed = FrameHeads(b"Z"), b"", 0, b""
        at = 0
        while at < len(stream):
            size = draw.randrange(1, 60)
            data, at = kept + stream[at : at + size], at + size
            position = 0
            while True:
                position, length = heads.walk(data, position)
                if not length or len(data) - position < length:
                    break
                assert data[position : position + 1] == b"Z"
                found += 1
                position += length
            passed += data[:position]
            kept = data[position:]
        assert (found, passed, kept) == (expected, stream, b"")
        assert heads.is_between


def test_what_is_longer_than_is_looked_at_is_walked_over() -> None:
    short, long = message(b"Z", b"I"), message(b"Z", bytes(100))
    heads = FrameHeads(b"Z", len(short))
    data = long + short
    assert heads.walk(data[:20], 0) == (20, 0)
    assert not heads.is_between
    assert heads.walk(data[20:], 0) == (len(long) - 20, len(short))
    assert FrameHeads(b"Z", len(long)).walk(data, 0) == (0, len(long))


def test_a_length_that_no_message_has() -> None:
    with pytest.raises(ValueError, match="has the length 3"):
        FrameHeads(b"").walk(b"D\0\0\0\x03", 0)
    heads = FrameHeads(b"")
    assert heads.walk(b"D\0\0\0\x06x", 0) == (6, 0)
    assert not heads.is_between
