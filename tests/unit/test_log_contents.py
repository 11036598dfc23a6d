"""The log's table of contents: what is in which block, kept beside segments, made again when it is
missing or not right.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from spillway._kernels.pg.crc32c import crc32c
from spillway._kernels.reorder.change_search import OPERATION_BITS
from spillway._kernels.reorder.transaction_run import find_run
from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor
from spillway.decoding.transaction import TransactionHeader, TransactionKind
from spillway.txlog import LogWriter, frames
from spillway.txlog.contents import BLOCK_BYTES, NO_TABLE, contents_of, load
from unit.test_transaction_log import FakeTransaction

if TYPE_CHECKING:
    from pathlib import Path

INSERT, DELETE = OPERATION_BITS["insert"], OPERATION_BITS["delete"]


def relation(oid: int, name: str) -> RelationDescriptor:
    column = ColumnDescriptor(1, "a", 23, -1, 4, True, "i")
    return RelationDescriptor(oid, "public", name, "r", "p", "d", (column,))


def change(lsn: int, relation_id: int, action: int, size: int) -> bytes:
    body = bytes(size)
    head = struct.pack("<IBBHIIQII", 32 + size, action, 1, 0, relation_id, 7, lsn, size, 0)
    return head + body


def filled(directory: Path) -> LogWriter:
    """Write three segments; a table that is in each, and one that is in the second one alone."""
    log = LogWriter(directory, system_id=1, database_oid=5, segment_bytes=1 << 20)
    log.start(0x1000)
    log.checkpoint(0x800)
    relations = {1: relation(16384, "everywhere"), 2: relation(16385, "once")}
    for number in range(260):
        lsn = 0x2000 + number * 0x1000
        chunk = change(lsn - 8, 1, 1, 8192)
        if number == 200:
            chunk += change(lsn - 8, 2, 3, 8)
        header = TransactionHeader(700 + number, lsn - 64, lsn, lsn + 48, 1000 * number)
        packed = frames.encode_transaction_header(header)
        data = b"".join(frames.encode_frame(frames.TRANSACTION, packed, chunk))
        run, _, _ = find_run(data, 0, relations)
        assert run is not None
        log.transactions(run)
        log.progress(lsn + 48)
        log.publish()
    log.checkpoint(0x800)
    assert len(log.segments()) == 3
    return log


def keep(log: LogWriter) -> list[Path]:
    while contents_of(log.reader).keep_one(log.reader):
        pass
    return sorted(log.directory.glob("*.contents"))


def test_what_is_where(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        assert len(keep(log)) == 2
        first, second, _ = log.segments()
        contents = load(first)
        assert contents is not None
        assert {name.name for name in contents.names} == {"everywhere"}
        assert sum(block.tables[16384].changes for block in contents.blocks) == sum(
            block.transactions for block in contents.blocks
        )
        assert all(block.nbytes <= 2 * BLOCK_BYTES for block in contents.blocks)
        assert (contents.blocks[0].xid_min, contents.blocks[0].time_min) == (700, 0)
        for before, block in zip(contents.blocks, contents.blocks[1:], strict=False):
            assert before.last_lsn < block.first_lsn
            assert before.time_max < block.time_min
        contents = load(second)
        assert contents is not None
        (block,) = [block for block in contents.blocks if 16385 in block.tables]
        assert block.tables[16385] == (DELETE, 1)
        assert block.tables[16384].operations == INSERT
        assert block.xid_min <= 900 <= block.xid_max


def test_a_file_that_is_not_right_is_not_believed(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        one, other = keep(log)
        first, second, _ = log.segments()
        whole = one.read_bytes()
        for at in (0, 5, 20, 60, len(whole) - 1):
            one.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert load(first) is None
        for size in (0, 3, 10, len(whole) - 1):
            one.write_bytes(whole[:size])
            assert load(first) is None
        # Of format 1, which knew nothing of messages.
        body = struct.pack("<I", 1) + whole[8:]
        one.write_bytes(crc32c(body).to_bytes(4, "little") + body)
        assert load(first) is None
        # Another segment's.
        one.write_bytes(other.read_bytes())
        assert load(first) is None
        one.unlink()
        assert load(first) is None
        # It is read again.
        following = second.start_lsn
        made = contents_of(log.reader).of(log.reader, first, following, is_sealed=True)
        assert made.encode(first) == whole


def test_it_goes_with_its_segment(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        keep(log)
        log.remove_before(log.segments()[1].start_lsn)
        assert [path.stem for path in keep(log)] == [log.segments()[0].path.stem]


def test_the_last_segment_is_known_as_it_grows(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        last = log.segments()[-1]
        contents = contents_of(log.reader)
        half = (last.start_lsn + last.last_final_lsn) // 2 + 1
        seen = contents.of(log.reader, last, half, is_sealed=False)
        assert seen.blocks[-1].last_lsn < half
        seen = contents.of(log.reader, last, 1 << 62, is_sealed=False)
        assert seen.blocks[-1].last_lsn == last.last_final_lsn
        assert sum(block.transactions for block in seen.blocks) < 260


def test_a_file_of_an_older_format_is_made_anew(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        one, _ = keep(log)
        whole = one.read_bytes()
        body = struct.pack("<I", 1) + whole[8:]
        one.write_bytes(crc32c(body).to_bytes(4, "little") + body)
    with LogWriter(tmp_path, system_id=1, database_oid=5, segment_bytes=1 << 20) as log:
        log.start(0x1000)
        keep(log)
        assert one.read_bytes() == whole


def test_messages_are_counted_and_have_no_time_outside_of_transactions(tmp_path: Path) -> None:
    with LogWriter(tmp_path, system_id=1, database_oid=5, segment_bytes=1 << 20) as log:
        log.start(0x1000)
        log.checkpoint(0x800)
        for number in range(3):
            lsn = 0x2000 + number * 0x1000
            header = TransactionHeader(0, lsn, lsn, lsn + 64, 0, kind=TransactionKind.MESSAGE)
            log.transaction(FakeTransaction(header, {}, [change(lsn + 64, 0, 5, 16)]))
        log.progress(0x9000)
        log.publish()
        (segment,) = log.segments()
        found = contents_of(log.reader).of(log.reader, segment, 0x9000, is_sealed=False)
        (block,) = found.blocks
        assert block.tables == {NO_TABLE: (OPERATION_BITS["message"], 3)}
        assert block.transactions == 3
        assert block.time_min > block.time_max
        assert not found.names
