"""Plain commits: what the kernel gathers in runs, and what it leaves to Python."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness.heap_records import (
    DATABASE,
    TABLE_ID,
    HeapWal,
    body,
    external_tuple,
    xact_end,
)
from spillway._kernels.reorder import buffer as reorder
from spillway._kernels.reorder.buffer import ReorderBuffer
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.decoding.dispatch import action_table
from spillway.errors import DecodingError
from spillway.pg import rmgr
from spillway.pg.versions import WAL_VERSIONS
from spillway.txlog import frames
from unit.decoding.test_reorder import COLUMNS, run, take

if TYPE_CHECKING:
    from spillway.decoding.transaction import TransactionHeader


@pytest.fixture
def wal() -> HeapWal:
    return HeapWal()


@pytest.fixture
def buffer(tmp_path) -> ReorderBuffer:
    buffer = ReorderBuffer(action_table(WAL_VERSIONS[15]), DATABASE, 1 << 20, bytes(tmp_path))
    buffer.set_state(3, 0, 0)
    buffer.add_relation(TABLE_ID, COLUMNS)
    return buffer


def taken(buffer: ReorderBuffer) -> list[tuple[TransactionHeader, bytes]]:
    gathered = buffer.commits.take()
    if gathered is None:
        return []
    data, _, count, _ = gathered
    entries = [(t.header, b"".join(map(bytes, t.chunks()))) for t in TransactionRun(data, {})]
    assert len(entries) == count
    return entries


def test_an_entry_is_a_frame_of_the_log(wal, buffer):
    first = wal.insert(100, 1, 2)
    wal.insert(100, 3, 4)
    wal.insert(101, 5, 6)
    lsn = wal.commit(100, time=-7)
    wal.commit(101)
    assert run(buffer, wal.batch()) == []
    data, relations, count, change_bytes = buffer.commits.take()
    assert (relations, count) == ({TABLE_ID}, 2)
    assert change_bytes == len(data) - 2 * 64
    entries = [(t.header, [bytes(c) for c in t.chunks()]) for t in TransactionRun(data, {})]
    (header, (chunk,)), (second, _) = entries
    assert header[:3] == (100, first, lsn)
    assert (header.commit_time, second.xid) == (-7, 101)
    written = b"".join(
        b"".join(frames.encode_frame(frames.TRANSACTION, frames.encode_transaction_header(h), *c))
        for h, c in entries
    )
    assert written == data
    assert len(chunk) % 8 == 0
    assert buffer.commits.take() is None
    assert (buffer.transaction_count, buffer.memory_bytes) == (0, 0)


def test_the_changes_are_those_that_a_stream_would_give(wal, tmp_path, buffer):
    for n in range(200):
        wal.insert(100, n, n)
    wal.delete(100)
    other = ReorderBuffer(action_table(WAL_VERSIONS[15]), DATABASE, 1 << 20, bytes(tmp_path))
    other.set_state(3, 0, 0)
    other.add_relation(TABLE_ID, COLUMNS)
    batch = wal.batch()
    run(other, batch)
    run(buffer, batch)
    wal.commit(100)
    assert run(buffer, wal.batch()) == []
    stream = other.take(100)
    assert [chunk for _, chunk in taken(buffer)] == [b"".join(map(bytes, stream))]


def test_one_without_changes_is_an_entry_when_it_counts_as_one(wal, buffer):
    # A change that is passed over still gives a base snapshot; a record that no change is in does
    # not.
    wal.insert(100, 1, 2, locator=(1663, DATABASE, 999))
    wal.append(rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_LOCK, 101, body(b"\0" * 8))
    for xid in (100, 101, 102):
        wal.commit(xid)
    assert run(buffer, wal.batch()) == []
    assert [(h.xid, chunk) for h, chunk in taken(buffer)] == [(100, b"")]
    assert buffer.transaction_count == 0


def test_subtransactions_that_the_commit_names(wal, buffer):
    wal.insert(101, 1, 2)
    lsn = wal.commit(100, 101, 102)
    assert run(buffer, wal.batch()) == []
    ((header, chunk),) = taken(buffer)
    assert (header.xid, header.final_lsn) == (100, lsn)
    assert chunk
    assert buffer.transaction_count == 0


def test_what_is_not_delivered_is_forgotten(wal, buffer):
    wal.insert(100, 1, 2)
    wal.insert(101, 1, 2)
    wal.insert(102, 1, 2)
    wal.commit(100)
    at = wal.commit(101)
    wal.commit(102, database=DATABASE + 1)
    buffer.set_state(3, 0, at)
    assert run(buffer, wal.batch()) == []
    assert [h.xid for h, _ in taken(buffer)] == [101]
    assert (buffer.transaction_count, buffer.memory_bytes) == (0, 0)


def commits_for_python(buffer: ReorderBuffer, wal: HeapWal) -> list[int]:
    batch = wal.batch()
    stops = run(buffer, batch)
    assert {stop for stop, _ in stops} <= {reorder.FOR_PYTHON}
    return [buffer.fields(batch, index)[2] for _, index in stops]


def test_what_is_left_to_python(wal, buffer):
    wal.insert(100, 1, 2)
    wal.commit(100, invals=1)
    wal.insert(110, 1, 2)
    wal.commit(110, origin=(77, 8))
    wal.insert(130, 1, 2)
    wal.commit(130, stats=(b"\0" * 12,))
    wal.insert(140, 1, 2)
    wal.insert(141, 1, 2, top_xid=140)
    wal.new_cid(141)
    wal.abort(140, 141)
    wal.insert(150, 1, 2)
    wal.new_cid(150)
    wal.commit(150)
    assert commits_for_python(buffer, wal) == [100, 110, 130, 140, 150]
    assert taken(buffer) == []
    # Nothing was taken from them.
    assert len(take(buffer, 140, 141)) == 2


def test_what_is_put_together_is_what_a_stream_gives(wal, tmp_path, buffer):
    wal.insert(100, 0, 0)
    wal.insert(101, 1, 1, top_xid=100)
    wal.insert(100, 2, 2)
    wal.insert(102, 3, 3, top_xid=100)
    wal.abort(102)
    wal.insert(103, 4, 4)  # known to be a subtransaction only from the commit record
    for n in range(3):
        wal.toast_chunk(101, 7, n, b"x" * 10)
    wal.insert(101, parts=external_tuple(7, 30))
    wal.insert(100, 5, 5, flags=8 | 4)
    wal.confirm(100)
    for n in range(20):
        wal.insert(200 + n, n, n, flags=8 | 4)
        wal.toast_chunk(200 + n, n, 0, b"y" * n)
        wal.insert(200 + n, parts=external_tuple(n, n))
    other = ReorderBuffer(action_table(WAL_VERSIONS[15]), DATABASE, 1 << 20, bytes(tmp_path))
    other.set_state(3, 0, 0)
    other.add_relation(TABLE_ID, COLUMNS)
    batch = wal.batch()
    run(other, batch)
    run(buffer, batch)
    wal.commit(100, 101, 103)
    for n in range(20):
        wal.commit(200 + n)
    assert run(buffer, wal.batch()) == []
    other.end(100, (101, 103))
    expected = []
    for xid in (100, *range(200, 220)):
        stream = other.take(xid)
        expected.append((xid, b"".join(map(bytes, stream))))
    assert [(h.xid, chunk) for h, chunk in taken(buffer)] == expected
    assert (buffer.transaction_count, buffer.memory_bytes) == (0, 0)


def test_what_aborted_is_forgotten(wal, buffer):
    wal.insert(100, 1, 2)
    wal.insert(101, 1, 2, top_xid=100)
    wal.insert(102, 1, 2, top_xid=100)
    wal.abort(102, 101)
    wal.abort(200)
    assert run(buffer, wal.batch()) == []
    assert [xid for xid, *_ in buffer.transactions()] == [100]
    wal.abort(100)
    assert run(buffer, wal.batch()) == []
    assert (buffer.transaction_count, buffer.memory_bytes) == (0, 0)


def test_changes_that_do_not_fit_together_are_an_error(wal, buffer):
    wal.toast_chunk(100, 7, 1, b"x" * 10)
    wal.insert(100, parts=external_tuple(7, 10))
    wal.commit(100)
    batch = wal.batch()
    with pytest.raises(DecodingError, match="transaction 100"):
        run(buffer, batch)


def test_invalidations_to_be_executed_and_transactions_from_before_are_pythons(wal, buffer):
    buffer.restore_transaction(110, 0, 1, 0)
    wal.insert(100, 1, 2)
    wal.insert(110, 1, 2)
    run(buffer, wal.batch())
    buffer.expect_invalidations(100)
    wal.commit(100)
    wal.commit(110)
    assert commits_for_python(buffer, wal) == [100, 110]


def test_the_audit_and_an_inconsistent_decoder_see_every_commit(wal, buffer):
    for xid, audit, state in ((100, True, 3), (101, False, 2), (102, False, 3)):
        buffer.set_audit(audit)
        buffer.set_state(state, 0, 0)
        wal.insert(xid, 1, 2)
        wal.commit(xid)
        assert commits_for_python(buffer, wal) == ([xid] if xid < 102 else [])


def test_a_large_one_is_pythons_and_a_full_run_stops(wal, buffer):
    rows = [(n, n) for n in range(100)]
    for _ in range(20):
        wal.multi_insert(100, [struct_tuple(*row) for row in rows])
    wal.commit(100)
    assert commits_for_python(buffer, wal) == [100]
    buffer.forget(100)
    for xid in range(200, 320):
        wal.multi_insert(xid, [struct_tuple(*row) for row in rows[:40]])
        wal.commit(xid)
    batch = wal.batch()
    xids, index = [], 0
    while (stop := buffer.run(batch, index)) != reorder.AT_END:
        if stop == reorder.UNRESOLVED:
            buffer.bind(batch, buffer.index, reorder.KIND_TABLE, TABLE_ID)
            continue
        assert stop == reorder.FOR_RUN
        data, _, count, _ = buffer.commits.take()
        assert 128 << 10 <= len(data) < 192 << 10
        xids += [t.header.xid for t in TransactionRun(data, {})]
        assert count > 1
        index = buffer.index + 1
    assert xids
    assert xids + [h.xid for h, _ in taken(buffer)] == list(range(200, 320))


def struct_tuple(*values: int) -> tuple[int, int, int, bytes]:
    return 2, 0, 24, b"\0" + struct.pack("<ii", *values)


@pytest.mark.parametrize("cut", range(0, 32, 3))
def test_a_record_that_contradicts_itself_is_pythons_to_refuse(wal, buffer, cut):
    wal.insert(100, 1, 2)
    main = xact_end(7, DATABASE, (101, 102))
    assert len(main) > cut
    wal.append(rmgr.RM_XACT_ID, 0x80, 100, body(main[:cut]))
    assert commits_for_python(buffer, wal) == [100]
