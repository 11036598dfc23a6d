"""WAL of a server that crashed in the middle of a record: what it leaves, and what it writes over
it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from spillway.pg.lsn import Lsn
from spillway.pg.rmgr import RM_LOGICALMSG_ID, RM_XLOG_ID, XLOG_OVERWRITE_CONTRECORD
from spillway.pg.wal_segment import segment_name, segment_number
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from conftest import ClusterFactory

SEGMENT_SIZE = 1 << 20
PAGE_SIZE = 8192


@pytest.mark.parametrize("major", [15, 18])
def test_a_record_cut_by_a_crash_is_overwritten(major: int, fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(major, wal_segment_size_mb=1, wal_level="logical", wal_keep_size="64MB")
    cluster.execute("SELECT pg_switch_wal()")
    cluster.execute("SELECT pg_logical_emit_message(false, 'sound', 'before')")
    cluster.execute("SELECT pg_logical_emit_message(true, 'lost', repeat('x', 50000))")
    # Transactional: its commit flushes it.
    end = Lsn.parse(cluster.wal_lsn())
    cluster.kill()

    directory = cluster.wal_directory
    before = list(WalDirectory(directory).records())
    lost = before[-1]
    while lost.rmid != RM_LOGICALMSG_ID or b"lost" not in lost.data[:40]:
        before.pop()
        lost = before[-1]
    # As if all but the first two pages of the record had not reached the disk.
    cut = (lost.lsn // PAGE_SIZE + 2) * PAGE_SIZE
    number = segment_number(cut, SEGMENT_SIZE)
    assert segment_number(end, SEGMENT_SIZE) == number, "the record must not cross a segment here"
    path = directory / segment_name(1, number, SEGMENT_SIZE)
    with path.open("r+b") as file:
        file.seek(cut % SEGMENT_SIZE)
        file.write(bytes(SEGMENT_SIZE - cut % SEGMENT_SIZE))

    # Reading ends at what is whole.
    assert [r.lsn for r in WalDirectory(directory).records()] == [r.lsn for r in before[:-1]]

    cluster.start()
    cluster.execute("SELECT pg_logical_emit_message(false, 'sound', 'after')")
    cluster.stop()
    records = list(WalDirectory(directory).records())
    at = [r.lsn for r in records].index(before[-2].lsn)
    overwrite = records[at + 1]
    assert (overwrite.rmid, overwrite.info) == (RM_XLOG_ID, XLOG_OVERWRITE_CONTRECORD)
    assert overwrite.lsn // PAGE_SIZE * PAGE_SIZE == cut
    # xl_overwrite_contrecord: where the lost record began
    assert struct.unpack_from("<Q", overwrite.data)[0] == lost.lsn
    assert any(b"after" in r.data for r in records[at:] if r.rmid == RM_LOGICALMSG_ID)
    # A reader that starts at the page of the lost record's rest finds the same.
    assert next(WalDirectory(directory).records(cut)) == overwrite
