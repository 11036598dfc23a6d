"""When an Origin message that one side alone has is a difference."""

from __future__ import annotations

import struct
from typing import cast

import pytest

from spillway.certify.rendering import Subject
from spillway.certify.wire.comparison import WireComparison, WireDifference
from spillway.certify.wire.connection import Frame, SlotConnection

XID = 700
COMMIT = struct.pack(">BQQq", 0, 90, 100, 5)
RELATION = struct.pack(">I", 16384) + b"public\0t\0d\0\0"
INSERT = struct.pack(">I", 16384) + b"N\0\1t" + struct.pack(">II", 4, 1)


class _Sent:
    """What a side sent, in the place of its connection."""

    def __init__(self, frames: list[Frame]) -> None:
        self._frames = iter(frames)
        self.position = 100
        self.done_lsn = 0

    def receive(self) -> Frame | None:
        return next(self._frames, None)

    def feed_back(self) -> None:
        pass


def _origin(name: bytes, lsn: int = 0) -> bytes:
    return b"O" + struct.pack(">Q", lsn) + name + b"\0"


def _whole(*origins: bytes) -> list[Frame]:
    return [
        Frame(0, 0, b"B" + struct.pack(">QqI", 90, 5, XID)),
        *(Frame(11, 11, origin) for origin in origins),
        Frame(0, 0, b"R" + RELATION),
        Frame(11, 11, b"I" + INSERT),
        Frame(100, 100, b"C" + COMMIT),
    ]


def _streamed(*origins: bytes, aborted: bool = False) -> list[Frame]:
    xid = struct.pack(">I", XID)
    subxid = struct.pack(">I", XID + 1)
    undone = [
        Frame(10, 10, b"I" + subxid + INSERT),
        Frame(10, 10, b"E"),
        Frame(10, 10, b"A" + xid + subxid),
        Frame(0, 0, b"S" + xid + b"\0"),
    ]
    return [
        Frame(0, 0, b"S" + xid + b"\1"),
        *(Frame(11, 11, origin) for origin in origins),
        *(undone if aborted else ()),
        Frame(0, 0, b"R" + xid + RELATION),
        Frame(11, 11, b"I" + xid + INSERT),
        Frame(12, 12, b"E"),
        Frame(100, 100, b"c" + xid + COMMIT),
    ]


def _difference(ours: list[Frame], theirs: list[Frame]) -> WireDifference | None:
    comparison = WireComparison(
        Subject("pgoutput", {"streaming": "parallel"}),
        cast("SlotConnection", _Sent(ours)),
        cast("SlotConnection", _Sent(theirs)),
        is_live=False,
    )
    try:
        assert comparison.advance()
        comparison.finish(100)
        result = comparison.result
        # The Insert was compared, unless something differs before it.
        assert (result.transactions, result.frames > 0) == (1, True) or result.difference
        return result.difference
    finally:
        comparison.close()


ORIGIN = _origin(b"elsewhere", 80)
IN_A_PART = _origin(b"elsewhere")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_whole(ORIGIN), _streamed()),
        (_whole(), _streamed(IN_A_PART)),
        (_whole(ORIGIN), _streamed(IN_A_PART)),
        # What began this first part is not in the other's any more.
        (_streamed(IN_A_PART, aborted=True), _streamed()),
        (_streamed(aborted=True), _streamed(IN_A_PART)),
    ],
)
def test_the_origin_of_a_streamed_transaction_is_a_matter_of_its_cuts(
    one: list[Frame], other: list[Frame]
) -> None:
    assert _difference(one, other) is None
    assert _difference(other, one) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Neither was streamed.
        (_whole(ORIGIN), _whole()),
        # Both were, and began with the same.
        (_streamed(IN_A_PART), _streamed()),
        # Both say where it came from, and not the same.
        (_whole(ORIGIN), _streamed(_origin(b"nowhere"))),
        (_streamed(IN_A_PART), _streamed(_origin(b"nowhere"))),
        # It is said once.
        (_whole(ORIGIN), _streamed(IN_A_PART, IN_A_PART)),
        (_whole(), _streamed(IN_A_PART, IN_A_PART)),
    ],
)
def test_another_origin_is_a_difference(one: list[Frame], other: list[Frame]) -> None:
    for ours, theirs in ((one, other), (other, one)):
        difference = _difference(ours, theirs)
        assert difference is not None
        assert "O (Origin)" in difference.ours + difference.theirs


def test_what_follows_a_lone_origin_is_compared() -> None:
    other = _streamed()
    other[2] = other[2]._replace(data=other[2].data[:-1] + b"\2")
    assert _difference(_whole(ORIGIN), other) is not None
