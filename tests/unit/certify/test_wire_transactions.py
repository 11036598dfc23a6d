"""What a stream of pgoutput comes to, however it was cut into parts."""

from __future__ import annotations

import struct

from spillway.certify.wire.connection import Frame
from spillway.certify.wire.transactions import Assembler

XID, SUBXID = 700, 701
RELATION = b"R" + struct.pack(">I", 16384) + b"public\0t\0d\0\0"
COMMIT = struct.pack(">BQQq", 0, 90, 100, 5)


def _insert(number: int) -> bytes:
    return b"I" + struct.pack(">I", 16384) + b"N\0\1t" + struct.pack(">II", 4, number)


def _streamed(data: bytes, xid: int = XID) -> bytes:
    return data[:1] + struct.pack(">I", xid) + data[1:]


def _part(*changes: tuple[int, bytes], first: bool) -> list[Frame]:
    start = b"S" + struct.pack(">IB", XID, first)
    frames = [Frame(lsn, lsn, data) for lsn, data in changes]
    return [Frame(10, 10, start), *frames, Frame(0, 0, b"E")]


def _applied(frames: list[Frame]) -> list[tuple[bytes, int, list[tuple[int, bytes, int]]]]:
    """Title and end of each transaction, and its changes with how much was announced of each."""
    assembler = Assembler()
    announced: dict[bytes, bytes] = {}
    made = []
    try:
        for frame in frames:
            if (ended := assembler.take(frame)) is not None:
                changes = [
                    (change.lsn, change.data, sum(map(len, change.relations)))
                    for change in ended.applied(announced)
                ]
                made.append((ended.title, ended.end_lsn, changes))
                ended.close()
    finally:
        assembler.close()
    return made


WHOLE = [
    Frame(10, 10, b"B" + struct.pack(">QqI", 90, 5, XID)),
    Frame(0, 0, RELATION),
    Frame(11, 11, _insert(1)),
    Frame(30, 30, _insert(3)),
    Frame(100, 100, b"C" + COMMIT),
]


def test_parts_are_what_the_whole_is() -> None:
    aborted = [
        Frame(0, 0, b"Y" + struct.pack(">I", XID) + b"type"),
        *_part((0, _streamed(RELATION)), (11, _streamed(_insert(1))), first=True),
        *_part((20, _streamed(_insert(2), SUBXID)), first=False),
        Frame(25, 25, b"A" + struct.pack(">II", XID, SUBXID)),
        *_part((0, _streamed(RELATION)), (30, _streamed(_insert(3))), first=False),
        Frame(100, 100, b"c" + struct.pack(">I", XID) + COMMIT),
    ]
    expected = _applied(WHOLE)
    (transaction,) = expected
    assert [lsn for lsn, _, _ in transaction[2]] == [11, 30]
    assert all(size == len(RELATION) for _, _, size in transaction[2])
    assert _applied(aborted[1:]) == expected


def test_what_is_left_out() -> None:
    nothing = [
        *_part((11, _streamed(_insert(1), SUBXID)), first=True),
        Frame(25, 25, b"A" + struct.pack(">II", XID, SUBXID)),
        Frame(100, 100, b"c" + struct.pack(">I", XID) + COMMIT),
        *_part((11, _streamed(_insert(1))), first=True),
        Frame(25, 25, b"A" + struct.pack(">II", XID, XID)),
        WHOLE[0],
        WHOLE[-1],
    ]
    assert _applied(nothing) == []


def test_what_differs_is_seen() -> None:
    expected = _applied(WHOLE)
    for at, other in (
        (1, Frame(0, 0, RELATION + b"x")),
        (2, Frame(12, 12, _insert(1))),
        (2, Frame(11, 11, _insert(7))),
        (4, Frame(101, 101, b"C" + COMMIT)),
        (4, Frame(100, 100, b"C" + struct.pack(">BQQq", 0, 91, 100, 5))),
    ):
        assert _applied([*WHOLE[:at], other, *WHOLE[at + 1 :]]) != expected
    assert _applied(WHOLE[:2] + WHOLE[3:]) != expected
