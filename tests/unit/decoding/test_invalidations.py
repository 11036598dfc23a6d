"""Invalidation messages: which count on which major, and what is executed where."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness import changes
from spillway.decoding import change_format
from spillway.decoding.invalidations import (
    NOTHING,
    WHOLE_CATALOG,
    Invalidations,
    invalidation_change,
)
from spillway.errors import CorruptWal
from spillway.pg.versions import WAL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

DATABASE = 5


class Queue:
    def __init__(self, tops: dict[int, int]) -> None:
        self.tops = tops
        self.queued: list[tuple[int, int, tuple[int, ...]]] = []
        self.expected: list[int] = []

    def add_invalidation(self, xid: int, lsn: int, oids: Sequence[int], from_other: bool) -> None:
        self.queued.append((xid, lsn, tuple(oids)))

    def expect_invalidations(self, xid: int) -> None:
        self.expected.append(xid)

    def top_xid(self, xid: int) -> int:
        return self.tops[xid]

    def with_base_snapshot(self) -> list[int]:
        return sorted(set(self.tops.values()))


def messages(*triples: tuple[int, int, int]) -> bytes:
    return struct.pack("<i", len(triples)) + b"".join(
        struct.pack("<b3xIII", number, database, oid, 0) for number, database, oid in triples
    )


def parsed(major: int, *triples: tuple[int, int, int]) -> tuple[int, ...]:
    invalidations = Invalidations(WAL_VERSIONS[major], DATABASE, Queue({}))
    return invalidations.parse(messages(*triples), 0x100)[1]


@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_what_counts(major: int) -> None:
    assert parsed(major, (-2, DATABASE, 16400), (-2, 0, 16401), (-2, 6, 16402)) == (16400, 16401)
    assert parsed(major, (-2, DATABASE, 1259), (-3, 7, 7), (-4, 0, 0), (-5, DATABASE, 2608)) == ()
    assert parsed(major, (-2, 0, 0)) == ((0,) if major > 14 else ())
    everything = [(number, DATABASE, 0xF0012345) for number in range(100)]
    tables, *catalogs = (
        sorted(parsed(major, *everything)) if major > 14 else (0, *parsed(14, *everything))
    )
    assert tables == 0
    publications = [6104, 6106] if major == 14 else [6104, 6106, 6237]
    assert sorted(catalogs) == [catalog << 32 | 0xF0012345 for catalog in publications]
    whole = WHOLE_CATALOG | 6104 << 32
    assert parsed(major, (-1, DATABASE, 6104)) == (
        (0, whole) if major in (15, 16, 17) else (whole,)
    )
    assert parsed(major, (-1, 6, 6104)) == ()
    assert parsed(major, (-1, DATABASE, 2615)) == ((0,) if major > 15 else ())
    assert parsed(major, (-2, DATABASE, 16400), (-2, DATABASE, 16400)) == (16400,)


def test_queued_executed_at_the_end_and_distributed() -> None:
    queue = Queue({10: 10, 11: 10, 20: 20})
    invalidations = Invalidations(WAL_VERSIONS[18], DATABASE, queue)
    assert invalidations.record(11, messages((-2, DATABASE, 16400)), 1) == ()
    assert invalidations.record(10, messages((-5, DATABASE, 2608)), 2) == ()
    assert invalidations.record(20, messages((-2, DATABASE, 16500)), 3) == ()
    assert invalidations.record(0, messages((-2, DATABASE, 16600)), 4) == (16600,)
    assert queue.queued == [(11, 1, (16400,)), (20, 3, (16500,))]
    # The kernel must not commit these by itself.
    assert queue.expected == [10, 20]

    restored = Invalidations(WAL_VERSIONS[18], DATABASE, queue)
    restored.load(invalidations.dump())
    assert restored.dump() == invalidations.dump()

    assert restored.commit(10, 5) == ((16400,), ((16400,), ()))
    assert queue.queued[2:] == [(20, 5, (16400,))]
    # What came from others is executed, and goes no further.
    assert restored.commit(20, 6) == ((16500,), ((16500,), (16400,)))
    assert queue.queued[3:] == [(10, 6, (16500,))]
    assert restored.commit(30, 7) is NOTHING


def test_too_many_from_others_invalidate_everything() -> None:
    queue = Queue({10: 10, 20: 20})
    invalidations = Invalidations(WAL_VERSIONS[18], DATABASE, queue)
    record = messages(*[(-5, DATABASE, 2608)] * 1024)
    for _ in range(512):
        invalidations.record(10, record, 1)
    invalidations.record(10, messages((-2, DATABASE, 16400)), 2)
    assert invalidations.commit(10, 3).decoded == ((16400,), ())
    assert invalidations.at_end(20) == ((), (0,))


@pytest.mark.parametrize("damage", [b"", b"\1\0\0", b"\1\0\0\0", b"\xff\xff\xff\xff"])
def test_damage_is_a_typed_error(damage: bytes) -> None:
    invalidations = Invalidations(WAL_VERSIONS[15], DATABASE, Queue({}))
    with pytest.raises(CorruptWal, match="0/100"):
        invalidations.parse(damage, 0x100)


@pytest.mark.parametrize("oids", [(16400,), (16400, 16401, 6104 << 32 | 7)])
def test_a_change_of_its_own(oids: tuple[int, ...]) -> None:
    (change,) = changes.parse([memoryview(invalidation_change(7, 0x100, oids))])
    assert (change.action, change.xid, change.lsn) == (change_format.INVALIDATION, 7, 0x100)
    assert change.new == struct.pack(f"<{1 + len(oids)}Q", len(oids), *oids)
