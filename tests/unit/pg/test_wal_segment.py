"""Segment names, against names that a server gave."""

from __future__ import annotations

import pytest

from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import (
    history_name,
    is_valid_segment_size,
    parse_history_name,
    parse_segment_name,
    segment_name,
    segment_number,
    segment_start,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("lsn", "size", "timeline", "name"),
    [
        # SELECT pg_walfile_name(lsn), where the boundary belongs to the segment before; ours to the
        # one after.
        ("0/16B3748", 16 * MIB, 1, "000000010000000000000001"),
        ("16/B374D848", 16 * MIB, 1, "0000000100000016000000B3"),
        ("1/0", 16 * MIB, 0xA, "0000000A0000000100000000"),
        ("0/FFFFFFFF", MIB, 1, "000000010000000000000FFF"),
        ("2/80000000", 1024 * MIB, 2, "000000020000000200000002"),
    ],
)
def test_names(lsn: str, size: int, timeline: int, name: str) -> None:
    number = segment_number(Lsn.parse(lsn), size)
    assert segment_name(timeline, number, size) == name
    assert parse_segment_name(name, size) == (timeline, number)
    start = segment_start(Lsn.parse(lsn), size)
    assert start == number * size
    assert start <= Lsn.parse(lsn) < start + size


@pytest.mark.parametrize(
    "name",
    ["", "00000001", "000000010000000000000001.partial", "00000001000000000000000g",
     "000000000000000000000001",
     "0000000100000000000000FF0", "000000010000000000001000", "00000002.history"],
)  # fmt: skip
def test_other_files(name: str) -> None:
    assert parse_segment_name(name, 16 * MIB) is None


def test_history() -> None:
    assert history_name(26) == "0000001A.history"
    assert parse_history_name("0000001A.history") == 26
    assert parse_history_name("0000001A.histori") is None


def test_sizes() -> None:
    valid = [
        size
        for size in (0, 1, MIB // 2, MIB, 3 * MIB, 16 * MIB, 1024 * MIB, 2048 * MIB)
        if is_valid_segment_size(size)
    ]
    assert valid == [MIB, 16 * MIB, 1024 * MIB]
