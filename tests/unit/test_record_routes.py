"""Whom records concern: an index of each batch by database, held against what each record says."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness.wal_writer import WalWriter, main_data
from spillway._kernels.wal.walker import Walker
from spillway.pg import rmgr
from spillway.pg.versions import WAL_VERSIONS

if TYPE_CHECKING:
    from spillway._kernels.wal.record_batch import RecordBatch

START = 3 << 20
OURS, THEIRS = 5, 16400
EVERYONE = 0


def block(database: int, block_id: int = 0) -> bytes:
    return struct.pack("<BBHIIII", block_id, 0, 0, 1663, database, 16384, 9)


def oid(number: int) -> bytes:
    return struct.pack("<I", number)


TOP_XID = b"\xfc" + oid(77)
ORIGIN = b"\xfd" + struct.pack("<H", 3)
TIME = bytes(8)
HEAP_INSERT = (rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_INSERT)
COMMIT = (rmgr.RM_XACT_ID, rmgr.XLOG_XACT_COMMIT | rmgr.XLOG_XACT_HAS_INFO)
ABORT = (rmgr.RM_XACT_ID, rmgr.XLOG_XACT_ABORT)
DBINFO, SUBXACTS, INVALS = 1, 2, 8


def of_database(number: int) -> bytes:
    return struct.pack("<III", DBINFO, number, 1663)


def batch_of(*records: tuple[tuple[int, int], bytes], xid: int = 7) -> RecordBatch:
    wal = WalWriter(WAL_VERSIONS[15], START)
    for (rmid, info), body in records:
        wal.append(body, rmid=rmid, info=info, xid=xid)
    walker = Walker(wal.version, START, wal.segment_size)
    walker.feed(START, bytes(wal.data))
    batch = walker.next_batch(1 << 20)
    assert batch is not None
    assert len(batch) == len(records)
    return batch


@pytest.mark.parametrize(
    ("kind", "body", "database"),
    [
        (HEAP_INSERT, block(THEIRS), THEIRS),
        (HEAP_INSERT, block(THEIRS) + main_data(bytes(3)), THEIRS),
        (HEAP_INSERT, block(0), EVERYONE),
        (HEAP_INSERT, block(THEIRS) + block(OURS, 1), EVERYONE),
        (HEAP_INSERT, block(THEIRS) + block(THEIRS, 1), THEIRS),
        (HEAP_INSERT, block(THEIRS) + TOP_XID, EVERYONE),
        (HEAP_INSERT, block(THEIRS) + ORIGIN, THEIRS),
        ((rmgr.RM_BTREE_ID, 0), block(THEIRS), THEIRS),
        ((rmgr.RM_XLOG_ID, rmgr.XLOG_FPI), block(THEIRS), THEIRS),
        ((rmgr.RM_XLOG_ID, rmgr.XLOG_NOOP), main_data(oid(THEIRS)), EVERYONE),
        ((rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_INPLACE), block(THEIRS), EVERYONE),
        ((rmgr.RM_HEAP2_ID, rmgr.XLOG_HEAP2_NEW_CID), main_data(bytes(34)), EVERYONE),
        ((rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_TRUNCATE), main_data(oid(THEIRS) + bytes(8)), THEIRS),
        ((rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_TRUNCATE), main_data(b"\1"), EVERYONE),
        ((rmgr.RM_LOGICALMSG_ID, 0), main_data(oid(THEIRS) + bytes(20)), THEIRS),
        (
            (rmgr.RM_SMGR_ID, rmgr.XLOG_SMGR_CREATE),
            main_data(oid(1663) + oid(THEIRS) + oid(9) + oid(0)),
            THEIRS,
        ),
        (
            (rmgr.RM_SMGR_ID, rmgr.XLOG_SMGR_CREATE),
            main_data(oid(1664) + oid(0) + oid(9) + oid(0)),
            EVERYONE,
        ),
        (
            (rmgr.RM_SMGR_ID, rmgr.XLOG_SMGR_TRUNCATE),
            main_data(oid(8) + oid(1663) + oid(THEIRS) + oid(9) + oid(7)),
            THEIRS,
        ),
        ((rmgr.RM_RELMAP_ID, 0), main_data(oid(THEIRS) + bytes(600)), EVERYONE),
        ((rmgr.RM_STANDBY_ID, rmgr.XLOG_RUNNING_XACTS), main_data(bytes(24)), EVERYONE),
        ((rmgr.RM_XACT_ID, rmgr.XLOG_XACT_INVALIDATIONS), main_data(bytes(20)), EVERYONE),
        ((rmgr.RM_XACT_ID, rmgr.XLOG_XACT_PREPARE), main_data(bytes(60)), EVERYONE),
        (COMMIT, main_data(TIME + of_database(THEIRS)), THEIRS),
        (COMMIT, main_data(TIME + oid(DBINFO | INVALS) + oid(THEIRS) + oid(9)), EVERYONE),
        (COMMIT, ORIGIN + main_data(TIME + of_database(THEIRS)), EVERYONE),
    ],
)  # fmt: skip
def test_whom_a_record_concerns(kind: tuple[int, int], body: bytes, database: int) -> None:
    assert batch_of((kind, body)).routes_by_database() == {database: [0]}


@pytest.mark.parametrize("rmid", [rmgr.RM_CLOG_ID, rmgr.RM_COMMIT_TS_ID])
def test_new_pages_of_the_commit_log_are_nobodys(rmid: int) -> None:
    page = ((rmid, 0), main_data(bytes(4)))
    assert batch_of(page, xid=0).routes_by_database() == {}
    # Whatever has an xid may be a transaction's first record.
    assert batch_of(page, xid=7).routes_by_database() == {EVERYONE: [0]}


def test_the_chains_of_a_batch() -> None:
    theirs = (HEAP_INSERT, block(THEIRS))
    ours = (HEAP_INSERT, block(OURS))
    shared = (HEAP_INSERT, block(0))
    batch = batch_of(
        theirs,
        ours,
        (ABORT, main_data(TIME)),
        theirs,
        shared,
        (COMMIT, main_data(TIME + of_database(OURS))),
        theirs,
        (COMMIT, main_data(TIME + oid(0))),
        shared,
    )
    assert batch.routes_by_database() == {THEIRS: [0, 3, 6], OURS: [1, 5], EVERYONE: [4, 8]}
    assert batch.plain_ends() == [2, 5, 7]


def test_a_batch_of_more_databases_than_are_told_apart() -> None:
    batch = batch_of(*((HEAP_INSERT, block(1 + i % 300)) for i in range(900)))
    routes = batch.routes_by_database()
    assert len(routes) == 256
    assert sorted(i for indexes in routes.values() for i in indexes) == list(range(900))
    for database, indexes in routes.items():
        assert indexes == sorted(indexes)
        assert database == EVERYONE or {1 + i % 300 for i in indexes} == {database}


@pytest.mark.parametrize(
    ("records", "concerned"),
    [
        ([(HEAP_INSERT, block(THEIRS)), (HEAP_INSERT, block(OURS))], ((THEIRS, OURS), 0, False)),
        ([(HEAP_INSERT, block(0))], ((), 1, False)),
        ([(ABORT, main_data(TIME))], ((), 0, True)),
        ([(COMMIT, main_data(TIME + of_database(THEIRS)))], ((THEIRS,), 0, True)),
        ([(COMMIT, ORIGIN + main_data(TIME + of_database(THEIRS)))], ((), 2, False)),
    ],
)
def test_whom_a_batch_concerns(
    records: list[tuple[tuple[int, int], bytes]],
    concerned: tuple[tuple[int, ...], int, bool],
) -> None:
    assert batch_of(*records).concerned() == concerned
