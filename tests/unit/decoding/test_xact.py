"""Commit, abort and prepare records, part by part."""

from __future__ import annotations

import struct

import pytest

from harness.heap_records import xact_end
from spillway.decoding.xact import TransactionEnd, parse_prepare, parse_transaction_end
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


def prepare_record(major: int, gid: bytes, subxids: tuple[int, ...] = (), origin=(0, 0)) -> bytes:
    stats = (0, 0) if major > 14 else ()
    data = struct.pack("<IIIIqI3i", 0x57F94534, 0, 700, 5, 41, 10, len(subxids), 0, 0)
    data += struct.pack(f"<{len(stats)}i", *stats)
    data += struct.pack("<i?xHQq", 0, False, len(gid), *origin)
    assert len(data) % 8 == 0
    data += gid.ljust((len(gid) + 7) // 8 * 8, b"\0")
    return data + struct.pack(f"<{len(subxids)}I", *subxids)


@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_prepare(major):
    version = WAL_VERSIONS[major]
    data = prepare_record(major, "g\xe4".encode("latin-1") + b"\0", (701, 702))
    assert parse_prepare(version, data, 0) == (700, 5, b"g\xe4", 41, (701, 702), 0)
    data = prepare_record(major, b"a gid of 16 byt\0", (), (0xABC, 42))
    assert parse_prepare(version, data, 0) == (700, 5, b"a gid of 16 byt", 42, (), 0xABC)


@pytest.mark.parametrize("major", [14, 18])
def test_a_cut_or_senseless_prepare_record_is_an_error(major):
    version = WAL_VERSIONS[major]
    whole = prepare_record(major, b"gid\0", (701, 702))
    for length in range(len(whole)):
        with pytest.raises(CorruptWal):
            parse_prepare(version, whole[:length], 0)
    for count in (-1, 0x7FFFFFFF):
        damaged = whole[:28] + struct.pack("<i", count) + whole[32:]
        with pytest.raises(CorruptWal):
            parse_prepare(version, damaged, 0)
    with pytest.raises(CorruptWal):
        parse_prepare(version, prepare_record(major, b"no zero"), 0)
    with pytest.raises(CorruptWal):
        parse_prepare(version, prepare_record(major, b""), 0)
