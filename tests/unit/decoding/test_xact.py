"""Commit and abort records, part by part."""

from __future__ import annotations

import struct

import pytest

from harness.heap_records import xact_end
from spillway.decoding.xact import TransactionEnd, parse_transaction_end
from spillway.errors import CorruptWal
from spillway.pg import rmgr
from spillway.pg.versions import WAL_VERSIONS

HAS_INFO = rmgr.XLOG_XACT_HAS_INFO


def parse(data: bytes, info: int = HAS_INFO, major: int = 15, xid: int = 9) -> TransactionEnd:
    return parse_transaction_end(WAL_VERSIONS[major], info, xid, data, 0x1000)


def test_a_record_without_parts():
    assert parse(struct.pack("<q", 5), 0) == TransactionEnd(9, 0, 5, 0, (), 0)


@pytest.mark.parametrize(("major", "size"), [(15, 12), (16, 12), (17, 12), (18, 16)])
def test_every_part_at_once(major, size):
    data = xact_end(
        1,
        5,
        (10, 11),
        stats=(bytes(size), bytes(size)),
        invals=3,
        prepared_xid=700,
        gid="änd",
        origin=(0xABC, 42),
    )
    end = parse(data, HAS_INFO | rmgr.XLOG_XACT_COMMIT_PREPARED, major)
    assert end._replace(xinfo=0) == TransactionEnd(700, 0, 42, 5, (10, 11), 0xABC)
    assert end.xinfo & rmgr.XACT_XINFO_HAS_INVALS


def test_cut_or_senseless_records_are_errors():
    whole = xact_end(1, 5, (10, 11), invals=3, prepared_xid=700, gid="gid", origin=(1, 2))
    for length in range(len(whole)):
        with pytest.raises(CorruptWal):
            parse(whole[:length], HAS_INFO | rmgr.XLOG_XACT_COMMIT_PREPARED)
    for count in (-1, 0x7FFFFFFF):
        with pytest.raises(CorruptWal):
            parse(struct.pack("<qIi", 1, rmgr.XACT_XINFO_HAS_SUBXACTS, count))
    with pytest.raises(CorruptWal):
        parse(xact_end(1, 5), HAS_INFO | rmgr.XLOG_XACT_COMMIT_PREPARED)
