"""The reorder kernel on records of our own making, without decoder and mirror."""

from __future__ import annotations

import random
import struct

import pytest

from harness import changes
from harness.heap_records import (
    CATALOG,
    DATABASE,
    TABLE,
    TABLE_ID,
    TOAST,
    HeapWal,
    external_tuple,
    int_tuple,
)
from spillway._kernels.reorder import buffer as reorder
from spillway.catalog.descriptor import ColumnDescriptor
from spillway.decoding import change_format as cf
from spillway.decoding.dispatch import Action, action_table
from spillway.errors import CorruptWal, DecodingError, StorageError, UnsupportedWal
from spillway.pg import rmgr
from spillway.pg.versions import WAL_VERSIONS

COLUMNS = [
    ColumnDescriptor(1, "a", 23, -1, 4, by_value=True, align="i"),
    ColumnDescriptor(2, "b", 25, -1, -1, by_value=False, align="i"),
]


@pytest.fixture
def wal():
    return HeapWal()


@pytest.fixture
def make_buffer(tmp_path):
    def make(work_mem_bytes: int = 1 << 20, major: int = 15, state: int = 3):
        buffer = reorder.ReorderBuffer(
            action_table(WAL_VERSIONS[major]), DATABASE, work_mem_bytes, bytes(tmp_path)
        )
        buffer.set_state(state, 0, 0)
        buffer.add_relation(TABLE_ID, COLUMNS)
        return buffer

    return make


def run(buffer, batch, kinds=None):
    """Run a batch, binding locators as *kinds* says; return the stops that are not for locators."""
    kinds = kinds or {TABLE: reorder.KIND_TABLE, TOAST: reorder.KIND_TOAST}
    stops = []
    index = 0
    while (stop := buffer.run(batch, index)) != reorder.AT_END:
        index = buffer.index
        if stop == reorder.UNRESOLVED:
            kind = kinds.get(buffer.block_locator(batch, index), reorder.KIND_SKIP)
            buffer.bind(batch, index, kind, TABLE_ID if kind == reorder.KIND_TABLE else 0)
            continue
        stops.append((stop, index))
        index += 1
    return stops


def take(buffer, xid, *subxids):
    buffer.end(xid, subxids)
    stream = buffer.take(xid)
    result = changes.parse(stream)
    stream.close()
    return result


def values(rows):
    return [struct.unpack_from("<i", r.new[3], r.new[2] - 23)[0] for r in rows]


def test_the_kernel_and_dispatch_agree_on_numbers():
    assert reorder.action_numbers() == {a.name: a.value for a in Action}


def test_an_insert_is_copied_as_it_is(wal, make_buffer):
    lsn = wal.insert(100, 1, None, 3)
    buffer = make_buffer()
    assert run(buffer, wal.batch()) == []
    assert buffer.end(100, ()) == (lsn, reorder.HAS_BASE_SNAPSHOT)
    (change,) = take(buffer, 100)
    assert change == changes.Change(
        cf.INSERT, cf.HAS_NEW, TABLE_ID, 100, lsn, int_tuple(1, None, 3), None, {}
    )
    assert buffer.transaction_count == 0
    assert buffer.memory_bytes == 0


def test_updates_and_deletes_with_and_without_old_tuples(wal, make_buffer):
    wal.update(100, int_tuple(1, 2), int_tuple(1, None))
    wal.update(100, int_tuple(1, 2), int_tuple(1, 9), old_flag=4, hot=True)
    wal.update(100, int_tuple(1, 3))
    wal.update(100)
    wal.delete(100, int_tuple(1, None))
    wal.delete(100)
    buffer = make_buffer()
    run(buffer, wal.batch())
    got = [(c.action, c.flags, c.new, c.old) for c in take(buffer, 100)]
    assert got == [
        (cf.UPDATE, cf.HAS_NEW | cf.HAS_OLD | cf.OLD_IS_KEY, int_tuple(1, 2), int_tuple(1, None)),
        (cf.UPDATE, cf.HAS_NEW | cf.HAS_OLD, int_tuple(1, 2), int_tuple(1, 9)),
        (cf.UPDATE, cf.HAS_NEW, int_tuple(1, 3), None),
        (cf.UPDATE, 0, None, None),
        (cf.DELETE, cf.HAS_OLD | cf.OLD_IS_KEY, None, int_tuple(1, None)),
        (cf.DELETE, 0, None, None),
    ]


def test_a_multi_insert_gives_a_change_a_row(wal, make_buffer):
    lsn = wal.multi_insert(100, [int_tuple(i, None) for i in range(300)])
    buffer = make_buffer()
    run(buffer, wal.batch())
    got = take(buffer, 100)
    assert values(got) == list(range(300))
    assert {c.lsn for c in got} == {lsn}


def test_what_was_not_logged_for_decoding_is_left_out(wal, make_buffer):
    wal.insert(100, 1, flags=0)
    wal.insert(100, 1, locator=(1663, DATABASE + 1, 1000))
    wal.insert(100, 1, locator=(1663, DATABASE, 4711))
    wal.append(rmgr.RM_BTREE_ID, 0x00, 100, b"\xff\x04abcd")
    buffer = make_buffer()
    run(buffer, wal.batch())
    assert take(buffer, 100) == []


@pytest.mark.parametrize(
    "locator",
    [(1663, DATABASE + 1, 1000), (1664, 0, 1262), (1663, DATABASE, 2619), (1663, DATABASE, 2840)],
    ids=["another database", "shared catalog", "system relation", "TOAST of one"],
)
def test_what_is_skipped_is_never_copied(wal, make_buffer, locator):
    buffer = make_buffer()
    wal.insert(100, 1)
    run(buffer, wal.batch())
    before = buffer.memory_bytes
    rows = [int_tuple(*[7] * 200)] * 50
    wal = HeapWal()
    wal.multi_insert(100, rows, locator=locator)
    wal.update(100, rows[0], rows[0], locator=locator)
    wal.delete(100, rows[0], locator=locator)
    assert run(buffer, wal.batch()) == []
    assert buffer.memory_bytes == before
    assert len(take(buffer, 100)) == 1


def test_toast_values_go_with_their_row(wal, make_buffer):
    big = random.Random(1).randbytes(5000)
    wal.toast_chunk(100, 50, 0, big[:1996])
    wal.toast_chunk(100, 50, 1, big[1996:3992])
    wal.toast_chunk(100, 50, 2, big[3992:])
    wal.insert(100, parts=external_tuple(50, 5000))
    # An update that leaves the value alone has a pointer to it and no chunks.
    wal.update(100, external_tuple(50, 5000))
    buffer = make_buffer()
    run(buffer, wal.batch())
    first, second = take(buffer, 100)
    assert first.toast == {50: big}
    assert second.toast == {}


def test_a_multi_inserts_values_go_to_the_rows_that_point_to_them(wal, make_buffer):
    blobs = [random.Random(i).randbytes(2000 + i) for i in range(40)]
    for i, blob in enumerate(blobs):
        wal.toast_chunk(100, 900 + i, 0, blob[:1990])
        wal.toast_chunk(100, 900 + i, 1, blob[1990:])
    rows = [external_tuple(900 + i, len(blob), number=i) for i, blob in enumerate(blobs)]
    wal.multi_insert(100, rows[:15], last=False)
    wal.multi_insert(100, rows[15:])
    wal.insert(100, parts=external_tuple(900, 2000))
    buffer = make_buffer()
    run(buffer, wal.batch())
    got = take(buffer, 100)
    assert [c.toast for c in got] == [{900 + i: b} for i, b in enumerate(blobs)] + [{}]


@pytest.mark.parametrize(
    ("chunks", "size"), [([0, 2], 20), ([1], 10), ([0, 0], 20), ([0, 1], 21), ([0, 1], 19)]
)
def test_toast_chunks_that_do_not_fit_are_an_error(wal, make_buffer, chunks, size):
    for seq in chunks:
        wal.toast_chunk(100, 50, seq, b"0123456789")
    wal.insert(100, parts=external_tuple(50, size))
    buffer = make_buffer()
    run(buffer, wal.batch())
    with pytest.raises(DecodingError, match="TOAST"):
        take(buffer, 100)


@pytest.mark.parametrize(
    ("chunks", "size", "values"),
    [
        ([1, 2], 20, {}),
        ([0, 2], 20, {}),
        ([0], 20, {}),
        ([0, 1, 0, 1], 20, {50: b"01234567890123456789"}),
    ],
)
def test_a_value_of_which_a_part_was_filtered_is_left_out(wal, make_buffer, chunks, size, values):
    for seq in chunks:
        wal.toast_chunk(100, 50, seq, b"0123456789")
    wal.insert(100, parts=external_tuple(50, size))
    buffer = make_buffer()
    buffer.set_partial_values(True)
    run(buffer, wal.batch())
    (change,) = take(buffer, 100)
    assert change.toast == values


def test_a_confirmation_of_what_was_filtered_is_left_out(wal, make_buffer):
    wal.insert(100, 1)
    wal.confirm(100)
    wal.insert(100, 2)
    buffer = make_buffer()
    buffer.set_partial_values(True)
    run(buffer, wal.batch())
    assert values(take(buffer, 100)) == [1, 2]


def test_a_confirmed_speculative_insert_counts_and_a_withdrawn_one_does_not(wal, make_buffer):
    wal.insert(100, 1, 1, flags=8 | 4)
    wal.confirm(100)
    wal.insert(100, 2, 2, flags=8 | 4)
    wal.delete(100, flags=8)
    wal.insert(100, 3, 3)
    buffer = make_buffer()
    run(buffer, wal.batch())
    got = take(buffer, 100)
    assert values(got) == [1, 3]
    assert {c.action for c in got} == {cf.INSERT}


def test_a_withdrawn_speculative_insert_takes_its_toast_values_along(wal, make_buffer):
    wal.toast_chunk(100, 50, 0, b"first")
    wal.insert(100, parts=external_tuple(50, 5), flags=8 | 4)
    wal.delete(100, flags=8)
    wal.delete(100, flags=8, locator=TOAST)
    # The same value id again: the chunks of the first attempt must be gone.
    wal.toast_chunk(100, 50, 0, b"again")
    wal.insert(100, parts=external_tuple(50, 5), flags=8 | 4)
    wal.confirm(100)
    buffer = make_buffer()
    run(buffer, wal.batch())
    (change,) = take(buffer, 100)
    assert change.toast == {50: b"again"}


def test_a_confirmation_that_comes_late_puts_the_row_in_its_place(wal, make_buffer):
    wal.insert(100, 1, 1, flags=8 | 4)
    wal.insert(100, 2, 2)
    wal.confirm(100)
    buffer = make_buffer()
    run(buffer, wal.batch())
    assert values(take(buffer, 100)) == [2, 1]


def test_subtransactions_are_merged_by_lsn(wal, make_buffer):
    rng = random.Random(7)
    expected = []
    known = set()
    for i in range(2000):
        xid = rng.choice((100, 101, 102, 103))
        wal.insert(xid, i, top_xid=100 if xid != 100 and xid not in known else 0)
        known.add(xid)
        if xid != 102:
            expected.append(i)
    wal.abort(102)
    buffer = make_buffer()
    assert run(buffer, wal.batch()) == []
    got = take(buffer, 100, 101, 103)
    assert values(got) == expected
    assert [c.lsn for c in got] == sorted(c.lsn for c in got)
    assert buffer.memory_bytes == 0


def test_a_subtransaction_without_link_is_found_by_the_commit_record(wal, make_buffer):
    first = wal.insert(101, 1)
    wal.insert(100, 2)
    buffer = make_buffer()
    run(buffer, wal.batch())
    first_lsn, _ = buffer.end(100, (101,))
    assert first_lsn == first
    assert values(take(buffer, 100, 101)) == [1, 2]


def test_messages(wal, make_buffer):
    wal.message(100, "app", b"in", transactional=True)
    end = wal.writer.lsn
    wal.message(100, "app", b"at once", transactional=False)
    wal.message(100, "app", b"elsewhere", transactional=True, database=DATABASE + 1)
    buffer = make_buffer()
    batch = wal.batch()
    ((stop, index),) = run(buffer, batch)
    assert stop == reorder.FOR_MESSAGE
    stream = buffer.take_message(batch, index)
    (now,) = changes.parse(stream)
    stream.close()
    assert now.new == struct.pack("<II", 0, 3) + b"appat once"
    (later,) = take(buffer, 100)
    assert later.new == struct.pack("<II", 1, 3) + b"appin"
    assert later.lsn == end


def test_truncate_stops_and_is_queued_by_python(wal, make_buffer):
    wal.insert(100, 1)
    wal.truncate(100, 16384, 16385, flags=3)
    wal.truncate(100, 16384, database=DATABASE + 1)
    wal.insert(100, 2)
    buffer = make_buffer()
    batch = wal.batch()
    assert buffer.run(batch, 0) == reorder.UNRESOLVED
    buffer.bind(batch, 0, reorder.KIND_TABLE, TABLE_ID)
    assert buffer.run(batch, 0) == reorder.FOR_TRUNCATE
    buffer.add_truncate(batch, buffer.index, 3, [TABLE_ID, TABLE_ID + 1])
    assert buffer.run(batch, buffer.index + 1) == reorder.AT_END
    stream = buffer.take(100)
    assert stream.relation_ids() == {TABLE_ID, TABLE_ID + 1}
    got = changes.parse(stream)
    assert [c.action for c in got] == [cf.INSERT, cf.TRUNCATE, cf.INSERT]
    assert got[1].new == struct.pack("<IIII", 3, 2, TABLE_ID, TABLE_ID + 1)


def test_catalog_records_stop_and_make_a_view_of_ones_own(wal, make_buffer):
    wal.insert(100, 1)
    wal.insert(100, 1, locator=CATALOG, flags=0)
    wal.insert(100, 2)
    wal.insert(200, 3)
    buffer = make_buffer()
    buffer.set_tracked({CATALOG})
    batch = wal.batch()
    seen = []
    index = 0
    while (stop := buffer.run(batch, index)) != reorder.AT_END:
        index = buffer.index
        seen.append((stop, index))
        if stop == reorder.UNRESOLVED:
            buffer.bind(batch, index, reorder.KIND_TABLE, TABLE_ID + len(buffer.own_xids(100)))
        else:
            index += 1
    # 200 uses what 100 resolved before it changed the catalog, not what it resolved after.
    assert seen == [
        (reorder.UNRESOLVED, 0),
        (reorder.FOR_CATALOG, 1),
        (reorder.UNRESOLVED, 2),
    ]
    assert [c.relation for c in take(buffer, 100)] == [TABLE_ID, TABLE_ID + 1]
    assert [c.relation for c in take(buffer, 200)] == [TABLE_ID]


def test_a_rolled_back_savepoint_drops_the_view_that_it_gave(wal, make_buffer):
    wal.insert(101, 1, locator=CATALOG, flags=0, top_xid=100)
    wal.insert(100, 1)
    buffer = make_buffer()
    buffer.set_tracked({CATALOG})
    assert run(buffer, wal.batch())[0][0] == reorder.FOR_CATALOG
    assert list(buffer.own_xids(100)) == [100, 101]
    assert buffer.forget(101) == [101]
    wal.insert(100, 2)
    assert buffer.run(wal.batch(), 0) == reorder.UNRESOLVED


def test_own_xids_are_a_view(wal, make_buffer):
    """The asking one first, then the top-level one, then others, the youngest first; none without a
    catalog change.
    """
    wal.insert(100, 1)
    for xid in (101, 102, 103, 104):
        wal.insert(xid, 1, locator=TABLE if xid == 103 else CATALOG, flags=0, top_xid=100)
    wal.insert(200, 1, locator=CATALOG, flags=0)
    buffer = make_buffer()
    buffer.set_tracked({CATALOG})
    batch = wal.batch()
    own = buffer.own_xids(102)
    assert not own
    assert list(own) == []
    run(buffer, batch)
    assert not buffer.own_xids(300)
    assert list(buffer.own_xids(102)) == [102, 100, 104, 101]
    assert list(buffer.own_xids(103)) == [100, 104, 102, 101]
    own = buffer.own_xids(100)
    assert own
    assert len(own) == 4
    assert [xid in own for xid in (100, 101, 102, 103, 104, 200, 300)] == [
        True, True, True, False, True, False, False,
    ]  # fmt: skip
    buffer.forget(102)
    assert list(own) == [100, 104, 101]
    assert 102 not in own


@pytest.mark.parametrize("work_mem_bytes", [64 * 1024, 1 << 30])
def test_large_transactions_spill_and_come_back_in_order(
    wal, make_buffer, tmp_path, work_mem_bytes
):
    buffer = make_buffer(work_mem_bytes)
    rng = random.Random(3)
    expected: dict[int, list[int]] = {100: [], 200: []}
    blob = rng.randbytes(1500)
    for i in range(4000):
        top = rng.choice((100, 200))
        xid = top + rng.choice((0, 1, 2))
        if i % 50 == 0:
            wal.toast_chunk(xid, i + 1, 0, blob, top_xid=top if xid != top else 0)
            wal.insert(
                xid,
                parts=external_tuple(i + 1, len(blob), number=i),
                top_xid=top if xid != top else 0,
            )
        else:
            wal.insert(xid, i, top_xid=top if xid != top else 0)
        expected[top].append(i)
    run(buffer, wal.batch())
    assert (buffer.spill_count > 0) == (work_mem_bytes == 64 * 1024)
    assert bool(list(tmp_path.glob("xid-*.spill"))) == (buffer.spill_count > 0)
    assert buffer.memory_bytes <= work_mem_bytes
    for top, want in expected.items():
        got = take(buffer, top, top + 1, top + 2)
        assert values(got) == want
        assert all(
            c.toast == ({v + 1: blob} if v % 50 == 0 else {})
            for c, v in zip(got, want, strict=True)
        )
    assert buffer.memory_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_speculative_inserts_survive_a_spill_in_between(wal, make_buffer):
    buffer = make_buffer(1 << 14)
    for i in range(3000):
        wal.insert(100, i, flags=8 | 4)
        wal.confirm(100) if i % 3 else wal.delete(100, flags=8)
    run(buffer, wal.batch())
    assert buffer.spill_count > 0
    assert values(take(buffer, 100)) == [i for i in range(3000) if i % 3]


def test_a_hundred_thousand_subtransactions_are_linear(wal, make_buffer):
    buffer = make_buffer(1 << 20)
    n = 20_000
    for i in range(n):
        wal.insert(1000 + i, i, top_xid=999)
    run(buffer, wal.batch())
    assert buffer.spill_count > 0
    got = take(buffer, 999, *range(1000, 1000 + n))
    assert values(got) == list(range(n))


def test_an_aborted_spilled_transaction_leaves_no_file(wal, make_buffer, tmp_path):
    buffer = make_buffer(1 << 14)
    for i in range(2000):
        wal.insert(100, i)
    run(buffer, wal.batch())
    assert len(list(tmp_path.iterdir())) == 1
    buffer.forget(100)
    assert list(tmp_path.iterdir()) == []
    for i in range(2000):
        wal.insert(101, i)
    run(buffer, wal.batch())
    assert len(list(tmp_path.iterdir())) == 1
    buffer.close()
    assert list(tmp_path.iterdir()) == []
    assert buffer.memory_bytes == 0


def test_a_damaged_spill_file_is_an_error(wal, make_buffer, tmp_path):
    buffer = make_buffer(1 << 14)
    for i in range(2000):
        wal.insert(100, i)
    run(buffer, wal.batch())
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 100] ^= 1
    path.write_bytes(data)
    stream = buffer.take(100)
    with pytest.raises(StorageError, match="damaged"):
        changes.parse(stream)
    stream.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_can_not_be_written_is_an_error(wal, tmp_path):
    buffer = reorder.ReorderBuffer(
        action_table(WAL_VERSIONS[15]), DATABASE, 1 << 14, bytes(tmp_path / "missing")
    )
    buffer.set_state(3, 0, 0)
    for i in range(2000):
        wal.insert(100, i)
    with pytest.raises(StorageError, match="spilled"):
        run(buffer, wal.batch())


def test_states_of_the_snapshot_builder(wal, make_buffer):
    wal.insert(100, 1)
    wal.insert(101, 2)
    batch = wal.batch()
    buffer = make_buffer(state=1)
    run(buffer, batch)
    assert take(buffer, 101) == []
    buffer = make_buffer(state=2)
    buffer.set_state(2, 101, 0)
    run(buffer, batch)
    assert take(buffer, 100) == []
    assert values(take(buffer, 101)) == [2]


def test_a_young_subtransaction_of_a_transaction_that_began_too_early(wal, make_buffer):
    """Its catalog may hold rows that the old transaction wrote before our beginning: it is not even
    looked up.
    """
    wal.insert(102, 1, top_xid=100)
    wal.insert(103, 2, top_xid=101)
    buffer = make_buffer(state=2)
    buffer.set_state(2, 101, 0)
    run(buffer, wal.batch())
    assert take(buffer, 100) == []
    assert values(take(buffer, 101)) == [2]


def test_first_lsn_and_the_oldest_transaction(wal, make_buffer):
    a = wal.append(rmgr.RM_BTREE_ID, 0x00, 100, b"\xff\x04abcd")
    b = wal.insert(201, 1, top_xid=200)
    wal.commit(300)
    buffer = make_buffer()
    run(buffer, wal.batch())
    assert buffer.oldest_first_lsn() == a
    assert [t[:3] for t in buffer.transactions()] == [(100, 0, a), (200, 0, b), (201, 200, b)]
    assert buffer.forget_older_than(150) == [(100, [])]
    assert buffer.oldest_first_lsn() == b
    buffer.forget(200)
    assert buffer.oldest_first_lsn() == 0
    assert buffer.end(300, ()) is None


def test_what_a_crash_ended_is_dropped_up_to_the_first_that_runs(wal, make_buffer):
    """In the order of first records: a prepared transaction keeps an older xid that wrote later."""
    wal.insert(90, 1)
    wal.insert(150, 2)
    wal.insert(100, 3)
    buffer = make_buffer()
    run(buffer, wal.batch())
    assert buffer.forget_older_than(120) == [(90, [])]
    assert buffer.forget_older_than(150) == []
    buffer.forget(150)
    assert buffer.forget_older_than(200) == [(100, [])]


def test_unknown_records_raise_with_their_lsn(wal, make_buffer):
    lsn = wal.append(rmgr.RM_STANDBY_ID, 0x70, 0, b"\xff\x01a")
    with pytest.raises(UnsupportedWal) as caught:
        run(make_buffer(), wal.batch())
    assert caught.value.details["lsn"] == f"0/{lsn:X}"


def test_a_late_reader_gets_an_error(wal, make_buffer):
    for i in range(3000):
        wal.insert(100, i)
    buffer = make_buffer(1 << 14)
    run(buffer, wal.batch())
    stream = buffer.take(100)
    first = next(stream)
    next(stream)
    with pytest.raises(ValueError, match="released"):
        bytes(first)
    stream.close()


class RecordBodies(HeapWal):
    """Keeps what would be written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bodies: list[tuple[int, int, bytes]] = []

    def append(self, rmid: int, info: int, xid: int, payload: bytes) -> int:
        del xid
        self.bodies.append((rmid, info, payload))
        return 0


def test_cut_records_never_crash():
    """Every prefix of main and block data of every heap record: a typed error or a change."""
    rng = random.Random(11)
    recorded = RecordBodies()
    recorded.insert(1, 1, None)
    recorded.multi_insert(1, [int_tuple(1, None), int_tuple(2, 3)])
    recorded.update(1, int_tuple(1, 2), int_tuple(1, None))
    recorded.delete(1, int_tuple(1, None))
    recorded.truncate(1, 1, 2)
    recorded.message(1, "p", b"c", transactional=True)
    recorded.toast_chunk(1, 1, 0, b"abc")
    outcomes = set()
    for rmid, info, payload in recorded.bodies:
        for cut in range(300):
            wal = HeapWal()
            noisy = bytearray(payload)
            if cut:
                noisy[rng.randrange(len(noisy))] = rng.randrange(256)
            wal.append(rmid, info, 100, bytes(noisy))
            buffer = reorder.ReorderBuffer(
                action_table(WAL_VERSIONS[15]), DATABASE, 1 << 20, b"/tmp"
            )
            buffer.set_state(3, 0, 0)
            buffer.add_relation(TABLE_ID, COLUMNS)
            try:
                run(buffer, wal.batch())
                take(buffer, 100)
                outcomes.add("decoded")
            except (CorruptWal, UnsupportedWal, DecodingError, KeyError) as error:
                outcomes.add(type(error).__name__)
    assert {"decoded", "CorruptWal"} <= outcomes
