"""WAL that real servers wrote, read by ours: the same records that the servers' pg_walinspect
shows.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from harness.golden import golden_wal
from spillway._kernels.wal.walker import Walker
from spillway.pg.rmgr import (
    RM_XLOG_ID,
    XLOG_SWITCH,
    rmgr_name,
)
from spillway.pg.versions import WAL_VERSIONS, version_of_magic
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from spillway.wal.record import Record

MAJORS = sorted(WAL_VERSIONS)


def walker_of(major: int, **options) -> Walker:
    golden = golden_wal(major)
    return Walker(
        golden.version, golden.start_lsn, golden.segment_size, system_id=golden.system_id, **options
    )


def all_records(walker: Walker):
    while (batch := walker.next_batch(700)) is not None:
        yield from batch


@pytest.mark.parametrize("major", MAJORS)
def test_page_magic(major):
    assert version_of_magic(int.from_bytes(golden_wal(major).data[:2], "little")).major == major


@pytest.mark.parametrize("major", [m for m in MAJORS if m >= 15])
def test_records_equal_pg_walinspect(major):
    golden = golden_wal(major)
    walker = walker_of(major)
    walker.feed(golden.start_lsn, golden.data)
    ours = []
    while (batch := walker.next_batch()) is not None:
        for i in range(len(batch)):
            lsn, end_lsn, prev_lsn, total_len, xid, rmid, info = batch.header(i)
            if lsn >= golden.end_lsn:
                break
            assert info & 0x0F == 0
            main_len = len(batch.record(i).data)
            ours.append((lsn, end_lsn, prev_lsn, xid, rmgr_name(rmid), total_len, main_len))
        if walker.position >= golden.end_lsn:
            break
    assert golden.records is not None
    theirs = [tuple(r)[:7] for r in golden.records]
    assert ours == theirs
    assert walker.timeline == golden.timeline


@pytest.mark.parametrize("major", MAJORS)
def test_golden_wal_holds_what_is_laid_out_in_ways_of_its_own(major):
    golden = golden_wal(major)
    walker = walker_of(major, end_is_error=False)
    walker.feed(golden.start_lsn, golden.data)
    seen: Counter[str] = Counter()
    for record in all_records(walker):
        seen["origin"] += record.origin != 0
        seen["top_xid"] += record.top_xid != 0
        seen["over segments"] += record.end_lsn - record.lsn > golden.segment_size
        seen["switch"] += record.rmid == RM_XLOG_ID and record.info == XLOG_SWITCH
        for block in record.blocks:
            seen["will_init"] += block.will_init
            seen["several blocks"] += len(record.blocks) > 1
            if block.image is not None:
                seen["image"] += 1
                assert len(block.image) == 8192
                lower, upper = (int.from_bytes(block.image[i : i + 2], "little") for i in (12, 14))
                # A page's header: pd_lower <= pd_upper, page size and layout version 4.
                assert lower <= upper <= 8192
                assert block.image[18:20] == b"\x04\x20"
    assert all(seen[what] for what in (
        "origin", "top_xid", "over segments", "switch", "will_init", "several blocks", "image",
    )), seen  # fmt: skip


@pytest.mark.parametrize("major", MAJORS)
def test_chunk_sizes_do_not_matter(major):
    golden = golden_wal(major)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    whole = walker_of(major, end_is_error=False)
    whole.feed(golden.start_lsn, golden.data)
    expected = [(r.lsn, r.end_lsn, hash(r)) for r in all_records(whole)]
    for largest in (100, 5_000, 1 << 20):
        walker = walker_of(major, end_is_error=False)
        found, at = [], 0
        limit = len(golden.data) if largest > 100 else 300_000
        while at < limit:
            size = rng.randint(1, largest)
            walker.feed(golden.start_lsn + at, golden.data[at : at + size])
            at += min(size, len(golden.data) - at)
            assert walker.fed_lsn == golden.start_lsn + at
            if rng.random() < 0.7:
                found += [(r.lsn, r.end_lsn, hash(r)) for r in all_records(walker)]
        found += [(r.lsn, r.end_lsn, hash(r)) for r in all_records(walker)]
        assert found == expected[: len(found)]
        assert len(found) == len(expected) or at < len(golden.data)
        # Handed out as soon as the last byte is there: the next one is not whole yet.
        if at < len(golden.data):
            following = expected[len(found)]
            assert following[1] > golden.start_lsn + at - 8


@pytest.mark.parametrize("major", MAJORS)
def test_reading_may_begin_at_any_page_and_at_any_record(major):
    golden = golden_wal(major)
    walker = walker_of(major, end_is_error=False)
    walker.feed(golden.start_lsn, golden.data)
    starts, void = [], set()
    for record in all_records(walker):
        starts.append(record.lsn)
        if (record.rmid, record.info) == (RM_XLOG_ID, XLOG_SWITCH):
            void |= set(range(record.lsn // 8192 * 8192 + 8192, record.end_lsn, 8192))
    assert void
    for page in sorted(set(range(golden.start_lsn, starts[-1], 8192)) - void):
        first = next(lsn for lsn in starts if lsn >= page)
        later = Walker(golden.version, page, golden.segment_size)
        later.feed(page, golden.data[page - golden.start_lsn :])
        assert _first_record(later).lsn == first
    for lsn in starts[:: len(starts) // 50]:
        later = Walker(golden.version, lsn, golden.segment_size)
        # Bytes before the start are ignored.
        before = max(golden.start_lsn, lsn - 5000)
        later.feed(before, golden.data[before - golden.start_lsn :])
        assert _first_record(later).lsn == lsn


def _first_record(walker: Walker) -> Record:
    batch = walker.next_batch(1)
    assert batch is not None
    return batch.record(0)


@pytest.mark.parametrize("major", MAJORS)
def test_directory_of_segment_files(major, tmp_path):
    golden = golden_wal(major)
    for i in range(0, len(golden.data), golden.segment_size):
        number = (golden.start_lsn + i) // golden.segment_size
        name = f"{golden.timeline:08X}{number >> 12:08X}{number & 0xFFF:08X}"
        (tmp_path / name).write_bytes(golden.data[i : i + golden.segment_size])
    directory = WalDirectory(tmp_path)
    assert (directory.version.major, directory.first_lsn) == (major, golden.start_lsn)
    assert (directory.segment_size, directory.system_id) == (golden.segment_size, golden.system_id)
    walker = walker_of(major, end_is_error=False)
    walker.feed(golden.start_lsn, golden.data)
    expected = list(all_records(walker))
    assert list(directory.records()) == expected
    middle = expected[len(expected) // 2].lsn
    assert list(directory.records(middle, expected[-10].lsn)) == expected[len(expected) // 2 : -10]
