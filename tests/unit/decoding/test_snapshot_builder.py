"""The snapshot builder's states."""

from __future__ import annotations

import struct

import pytest

from spillway.decoding.snapshot_builder import (
    RunningXacts,
    SnapshotBuilder,
    SnapshotState,
    xid_precedes,
)
from spillway.errors import CorruptWal


def running(next_xid: int, *xids: int) -> RunningXacts:
    return RunningXacts(next_xid, min(xids, default=next_xid), xids)


def test_nothing_running_is_consistent_at_once():
    builder = SnapshotBuilder(100)
    assert not builder.process_change(7, 100)
    assert builder.process_running_xacts(100, running(50))
    assert builder.state == SnapshotState.CONSISTENT
    assert not builder.delivers(100)
    assert builder.delivers(101)
    assert builder.process_change(7, 101)


def test_not_before_the_mirror_is_exact():
    builder = SnapshotBuilder(100)
    assert builder.process_running_xacts(99, running(50))
    assert builder.state == SnapshotState.BUILDING_SNAPSHOT
    assert not builder.process_running_xacts(99, running(50))
    assert not builder.process_end([49], 99)
    assert builder.process_running_xacts(100, running(50))
    assert builder.state == SnapshotState.CONSISTENT


def test_consistent_when_the_last_that_ran_has_ended():
    builder = SnapshotBuilder(100)
    assert builder.process_running_xacts(100, running(50, 47, 48))
    assert builder.state == SnapshotState.FULL_SNAPSHOT
    assert [builder.process_change(x, 101) for x in (47, 49, 50, 51)] == [False, False, True, True]
    assert not builder.process_end([52], 110)
    assert not builder.process_end([48], 120)
    assert not builder.delivers(130)
    assert builder.process_end([47], 130)
    assert builder.delivers(131)
    assert not builder.delivers(130)


def test_one_whose_commit_was_missed_is_given_up_at_the_next_record():
    builder = SnapshotBuilder(100)
    builder.process_running_xacts(100, running(50, 47, 48))
    assert not builder.process_end([48], 120)
    assert not builder.process_running_xacts(140, running(60, 47, 55))
    assert builder.process_running_xacts(150, running(62, 55))
    assert builder.state == SnapshotState.CONSISTENT
    assert builder.delivers(151)


def test_a_restored_builder_delivers_from_its_position():
    builder = SnapshotBuilder.restored(500)
    assert builder.process_change(3, 1)
    assert not builder.delivers(499)
    assert builder.delivers(500)
    assert not builder.process_running_xacts(510, running(9))


def test_xids_compare_modulo_2_to_the_32():
    assert xid_precedes(0xFFFFFFF0, 10)
    assert not xid_precedes(10, 0xFFFFFFF0)
    assert xid_precedes(2, 0xFFFFFFF0)
    assert not xid_precedes(10, 10)


def test_parsing_and_refusing():
    head = struct.pack("<ii?3xIII", 2, 1, True, 50, 47, 49)
    data = head + struct.pack("<III", 47, 48, 49)
    assert RunningXacts.parse(data, 1) == RunningXacts(50, 47, (47, 48))
    for bad in (
        data[:-1],
        head,
        b"",
        struct.pack("<ii?3xIII", -1, 1, True, 50, 47, 49) + bytes(12),
    ):
        with pytest.raises(CorruptWal):
            RunningXacts.parse(bad, 1)
