"""The transaction log: what is appended comes back, whatever dies in between."""

from __future__ import annotations

import json
import os
import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from harness.remedies import remedy
from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor
from spillway.decoding.transaction import Prepared, Streamed, TransactionHeader, TransactionKind
from spillway.errors import (
    CorruptTransactionLog,
    DiskFull,
    LsnNotRetained,
    StorageError,
    TransactionLogError,
)
from spillway.txlog import LogWriter, TransactionCursor, frames
from spillway.txlog import cursor as cursor_module
from spillway.txlog import writer as writer_module
from spillway.txlog.segment import Segment
from spillway.txlog.verification import PERIOD_S, Verification

if TYPE_CHECKING:
    from spillway.txlog.reader import Snapshot

SYSTEM_ID = 7_000_000_000_000_000_001


def relation(name: str) -> RelationDescriptor:
    column = ColumnDescriptor(1, "a", 23, -1, 4, True, "i")
    return RelationDescriptor(16384, "public", name, "r", "p", "d", (column,))


def change(lsn: int, relation_id: int, body: bytes = b"") -> bytes:
    size = 32 + len(body) + (-len(body) % 8)
    return struct.pack("<IBBHIIQII", size, 1, 1, 0, relation_id, 7, lsn, len(body), 0) + body.ljust(
        size - 32, b"\0"
    )


@dataclass
class FakeTransaction:
    header: TransactionHeader
    relations: dict[int, RelationDescriptor]
    pieces: list[bytes] = field(default_factory=list)

    def chunks(self):
        for piece in self.pieces:
            # The buffer is reused, as the contract allows.
            buffer = bytearray(piece)
            yield memoryview(buffer)
            buffer[:] = b"\xee" * len(buffer)

    def close(self) -> None: ...


def transaction(number: int, chunks: int = 1, name: str = "t", relation_id: int = 1):
    lsn = 0x1000 + number * 0x100
    header = TransactionHeader(700 + number, lsn - 64, lsn, lsn + 48, 1_000_000 * number)
    pieces = [change(lsn - 32, relation_id, b"%d/%d" % (number, i)) for i in range(chunks)]
    return FakeTransaction(header, {relation_id: relation(name)}, pieces)


def open_log(directory, **options) -> LogWriter:
    return LogWriter(directory, system_id=SYSTEM_ID, database_oid=5, **options)


def begin(log: LogWriter) -> None:
    log.start(0x1000)
    log.checkpoint(0x800)


def visible(log: LogWriter) -> Snapshot:
    """Return what readers see of *log*, which must have begun."""
    snapshot = log.reader.snapshot()
    assert snapshot is not None
    return snapshot


def read(log: LogWriter, lsn: int | None):
    assert lsn is not None, "the log has not begun"
    cursor = TransactionCursor(log.reader, lsn)
    found = []
    while (entry := cursor.next()) is not None:
        names = {i: d.name for i, d in entry.relations.items()}
        found.append((entry.header, [bytes(c) for c in entry.chunks()], names))
    cursor.close()
    return found


def test_returns_what_was_appended(tmp_path):
    given = [transaction(n, chunks=1 + n % 3) for n in range(20)]
    with open_log(tmp_path) as log:
        begin(log)
        for entry in given:
            log.transaction(entry)
        assert read(log, 0x1000) == []  # nothing is visible before it is published
        log.publish()
        assert [(h, c) for h, c, _ in read(log, 0x1000)] == [(t.header, t.pieces) for t in given]
        assert [h for h, _, _ in read(log, given[7].header.final_lsn)] == [
            t.header for t in given[7:]
        ]
        # One byte past a commit record's start is past that transaction.
        assert read(log, given[7].header.final_lsn + 1)[0][0] == given[8].header


def test_transactions_already_there_are_dropped(tmp_path):
    with open_log(tmp_path) as log:
        begin(log)
        for n in (0, 1, 2, 1, 2, 3):
            log.transaction(transaction(n))
        log.publish()
        assert [h.xid for h, _, _ in read(log, 0x1000)] == [700, 701, 702, 703]


def test_descriptors_are_parsed_when_they_are_asked_for(tmp_path, monkeypatch):
    """One who begins behind a thousand tables that came and went parses the last."""
    parsed = []
    monkeypatch.setattr(
        cursor_module, "_descriptor", lambda text: parsed.append(text) or json.loads(text)
    )
    with open_log(tmp_path) as log:
        begin(log)
        for n in range(1000):
            log.transaction(transaction(n, name=f"table_{n}", relation_id=1 + n))
        log.publish()
        cursor = TransactionCursor(log.reader, 0x1000 + 999 * 0x100)
        entry = cursor.next()
        assert entry is not None
        assert entry.header.xid == 1699
        assert parsed == []
        assert (len(entry.relations), 1000 in entry.relations) == (1000, True)
        parsed.clear()
        for _ in range(2):
            descriptor: Any = entry.relations.get(1000)
            assert descriptor["name"] == "table_999"
        assert entry.relations.get(1001) is None
        assert len(parsed) <= 1
        cursor.close()


def test_segments_stand_alone(tmp_path):
    with open_log(tmp_path, segment_bytes=4096) as log:
        begin(log)
        for n in range(300):
            # The same id means another table later on, as after a restart.
            log.transaction(transaction(n, name="old" if n < 150 else "new"))
            log.publish()
        assert len(list(tmp_path.glob("*.txlog"))) > 5
        for n in (0, 1, 149, 150, 151, 299):
            headers = read(log, 0x1000 + n * 0x100)
            assert len(headers) == 300 - n
            assert headers[0][2][1] == ("old" if n < 150 else "new")
    with open_log(tmp_path, segment_bytes=4096) as log:
        assert len(read(log, 0x1000)) == 300


def test_remove_before_keeps_what_is_still_asked_for(tmp_path):
    with open_log(tmp_path, segment_bytes=4096) as log:
        begin(log)
        for n in range(300):
            log.transaction(transaction(n))
        log.publish()
        keep = 0x1000 + 200 * 0x100
        behind = TransactionCursor(log.reader, 0x1000)
        first = behind.next()
        log.remove_before(keep)
        assert log.start_lsn is not None
        assert 0x1000 < log.start_lsn <= keep
        assert len(read(log, keep)) == 100
        with pytest.raises(LsnNotRetained) as error:
            TransactionCursor(log.reader, 0x1000)
        assert error.value.details["first_lsn"]
        assert first is not None
        behind.close()
        before = log.reader.retained_bytes
        log.remove_before(1 << 62, keep_bytes=before)
        assert log.reader.retained_bytes == before


@pytest.mark.parametrize("seed", range(8))
def test_a_torn_tail_is_cut_off(tmp_path, seed):
    """Cut the newest segment anywhere, or flip a byte near its end: whole transactions before that
    stay.
    """
    rng = random.Random(seed)
    with open_log(tmp_path) as log:
        begin(log)
        ends = []
        for n in range(40):
            log.transaction(transaction(n, chunks=1 + n % 4))
            log.publish()
            ends.append(visible(log).end)
    (path,) = tmp_path.glob("*.txlog")
    cut = rng.randrange(200, path.stat().st_size)
    if seed % 2:
        os.truncate(path, cut)
    else:
        data = bytearray(path.read_bytes())
        data[cut] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    whole = sum(end <= cut for end in ends)
    with open_log(tmp_path) as log:
        found = read(log, 0x1000)
        # A flipped byte in padding harms nobody.
        assert whole <= len(found) <= whole + (1 - seed % 2)
        for n in range(40):
            log.transaction(transaction(n, chunks=1 + n % 4))
        log.publish()
        assert [h.xid for h, _, _ in read(log, 0x1000)] == [700 + n for n in range(40)]
        assert [c for _, c, _ in read(log, 0x1000)] == [
            transaction(n, chunks=1 + n % 4).pieces for n in range(40)
        ]


def test_progress_survives_and_bounds_what_comes_again(tmp_path):
    with open_log(tmp_path) as log:
        begin(log)
        log.transaction(transaction(3))
        log.progress(0x9000)
        log.checkpoint(0x1200)
    with open_log(tmp_path) as log:
        assert (log.decoded_lsn, log.restart_lsn) == (0x9000, 0x1200)
        log.transaction(
            transaction(9)
        )  # commits before 0x9000: it was seen, and was not for this log
        log.publish()
        assert len(read(log, 0x1000)) == 1


def test_a_log_without_a_checkpoint_is_provisional(tmp_path):
    with open_log(tmp_path) as log:
        log.start(0x1000)
        log.transaction(transaction(0))
        log.publish()
        assert log.restart_lsn == 0
    with open_log(tmp_path) as log:
        assert log.start_lsn is None
        log.start(0x1000)
        log.recover()
        assert log.start_lsn is None
        begin(log)
        log.recover()
        assert log.start_lsn == 0x1000


def test_another_clusters_log_is_refused(tmp_path):
    with open_log(tmp_path) as log:
        begin(log)
    with pytest.raises(CorruptTransactionLog, match="belongs to database 5"):
        LogWriter(tmp_path, system_id=SYSTEM_ID + 1, database_oid=5)


def test_a_damaged_sealed_segment_names_the_place(tmp_path):
    with open_log(tmp_path, segment_bytes=4096) as log:
        begin(log)
        for n in range(100):
            log.transaction(transaction(n))
        log.publish()
        victim = min(tmp_path.glob("*.txlog"))
        data = bytearray(victim.read_bytes())
        data[2000] ^= 0x10
        victim.write_bytes(data)
        with pytest.raises(CorruptTransactionLog) as error:
            read(log, 0x1000)
        assert error.value.details["file"] == str(victim)
        assert error.value.hint


@pytest.mark.follows_hint("transaction_log_error")
def test_a_disk_that_fails_for_a_while_loses_nothing(tmp_path, monkeypatch):
    with open_log(tmp_path) as log:
        begin(log)
        log.transaction(transaction(0))
        log.publish()

        def write(fd, data):
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(writer_module.os, "write", write)
            log.transaction(transaction(1))
            with pytest.raises(StorageError, match="Input/output"):
                log.publish()
            with pytest.raises(TransactionLogError) as error:
                log.transaction(transaction(2))
        assert "opens it again by itself" in remedy(error.value, "transaction_log_error")
    # The disk is well again, and so the session does.
    with open_log(tmp_path) as log:
        log.recover()
        log.transaction(transaction(1))
        log.publish()
        assert [h.xid for h, _, _ in read(log, 0x1000)] == [700, 701]


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    with open_log(tmp_path) as log:
        begin(log)
        log.transaction(transaction(0))
        log.publish()

        written: list[int] = []

        def write(fd, data):
            if written:
                raise OSError(28, "No space left on device")
            written.append(1)
            return os_write(fd, data[: len(data) // 2])

        os_write = os.write
        monkeypatch.setattr(writer_module.os, "write", write)
        log.transaction(transaction(1))
        with pytest.raises(DiskFull) as error:
            log.publish()
        assert error.value.code == "disk_full"
        monkeypatch.undo()
        assert [h.xid for h, _, _ in read(log, 0x1000)] == [700]
        log.recover()
        log.transaction(transaction(1))
        log.publish()
        assert [h.xid for h, _, _ in read(log, 0x1000)] == [700, 701]


@pytest.mark.parametrize("step", ["sync the old one", "save its index", "begin the new one"])
def test_a_disk_that_is_full_between_two_segments_loses_nothing(tmp_path, monkeypatch, step):
    """A closed file's descriptor was closed again, maybe another's by then; a file with half a
    header was in the way for ever.
    """
    with open_log(tmp_path, segment_bytes=4096) as log:
        begin(log)
        syncs = []

        def append(count):
            for n in range(count):
                log.transaction(transaction(n))

        def fsync(fd):
            syncs.append(fd)
            if len(syncs) == {"sync the old one": 1, "begin the new one": 2}.get(step):
                raise OSError(28, "No space left on device")

        def save_index(self):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(writer_module.os, "fsync", fsync)
            if step == "save its index":
                patched.setattr(Segment, "save_index", save_index)
            with pytest.raises(DiskFull):
                append(200)
        log.recover()
        append(200)
        log.publish()
        assert [h.xid for h, _, _ in read(log, 0x1000)] == [700 + n for n in range(200)]
    with open_log(tmp_path) as log:
        assert len(read(log, 0x1000)) == 200


def test_a_lost_sidecar_is_made_again(tmp_path):
    with open_log(tmp_path, segment_bytes=4096) as log:
        begin(log)
        for n in range(200):
            log.transaction(transaction(n))
    sidecars = sorted(tmp_path.glob("*.idx"))
    sidecars[0].unlink()
    sidecars[1].write_bytes(b"not an index")
    with open_log(tmp_path) as log:
        assert len(read(log, 0x1000)) == 200
    assert sidecars[0].exists()


def test_listeners_hear_of_more(tmp_path):
    heard = []
    with open_log(tmp_path) as log:
        begin(log)
        listener = lambda: heard.append(log.decoded_lsn)  # noqa: E731
        log.reader.add_listener(listener)
        log.progress(0x2000)
        log.publish()
        log.publish()
        assert heard == [0x2000]
        log.reader.remove_listener(listener)
        log.progress(0x3000)
        log.publish()
        assert heard == [0x2000]


HEADERS = [
    TransactionHeader(7, 1, 2, 3, 4),
    TransactionHeader(7, 1, 2, 3, 4, 5, 6, TransactionKind.MESSAGE, origin_name="näme"),
    TransactionHeader(7, 1, 2, 3, -4, kind=TransactionKind.PREPARE,
                      prepared=Prepared("gid \udce4", 8, 9, -10)),
    TransactionHeader(7, 1, 2, 3, 4, kind=TransactionKind.COMMIT_PREPARED,
                      prepared=Prepared("", 8, 9, 10, empty=True)),
    TransactionHeader(7, 1, 2, 3, 4, kind=TransactionKind.STREAM, streamed=Streamed(1, 2, 0, 3, 4)),
    TransactionHeader(
        7, 1, 2, 3, 4, kind=TransactionKind.ROLLBACK_PREPARED, prepared=Prepared("a", 8, 9, 10),
        origin_name="b", invalidated=(0, 16384),
    ),
    TransactionHeader(7, 1, 2, 3, 4, kind=TransactionKind.STREAM_ABORT, invalidated=(1, 2, 3)),
    TransactionHeader(
        0, 1, 2, 3, 4, 5, 6, TransactionKind.STREAM_ABORT, Prepared("g", 1, 2, 3),
        Streamed(0, 0, aborted_xids=(8, 9, 10)), "o"
    ),
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.kind.name)
def test_every_kind_of_header_comes_back(header):
    packed = frames.encode_transaction_header(header)
    assert len(packed) % 8 == 0
    assert frames.decode_transaction_header(memoryview(packed + b"chunk")) == (header, len(packed))


def test_a_log_of_another_format_is_refused(tmp_path):
    with open_log(tmp_path) as log:
        begin(log)
    (path,) = tmp_path.glob("*.txlog")
    data = path.read_bytes()
    path.write_bytes(data[:8] + struct.pack("<I", 1) + data[12:])
    with pytest.raises(CorruptTransactionLog, match="format 1, this version reads 3"):
        open_log(tmp_path)


def sealed_log(tmp_path):
    """A closed log of several segments; their paths."""
    with open_log(tmp_path, segment_bytes=4096) as log:
        begin(log)
        for n in range(100):
            log.transaction(transaction(n))
        log.checkpoint(0x1000)
    paths = sorted(tmp_path.glob("*.txlog"))
    assert len(paths) > 3
    return paths


@pytest.mark.parametrize("damage", ["missing", "cut", "cut_between_frames", "header_and_content"])
def test_a_log_begins_behind_a_segment_that_is_lost(tmp_path, damage):
    paths = sealed_log(tmp_path)
    victim, following = paths[1], int(paths[2].stem, 16)
    if damage == "missing":
        victim.unlink()
    elif damage == "cut":
        victim.write_bytes(victim.read_bytes()[:1000])
    elif damage == "cut_between_frames":
        victim.write_bytes(victim.read_bytes()[:64])
    else:
        victim.write_bytes(bytes(200) + victim.read_bytes()[200:])
    with open_log(tmp_path) as log:
        first, hole = log.start_lsn, log.damage()
        assert hole is not None
        assert hole[1] == following
        # Who stands behind it reads, who comes to it is told so.
        assert read(log, following)
        with pytest.raises(CorruptTransactionLog):
            read(log, first)
        log.drop_through(hole[0])
        assert log.start_lsn == following
        assert not log.is_damaged
        with pytest.raises(LsnNotRetained):
            read(log, following - 1)
        assert read(log, following)
    assert not paths[0].exists()


@pytest.mark.parametrize("damage", ["missing", "flipped", "last"])
def test_a_hole_is_put_back(tmp_path, damage):
    paths = sealed_log(tmp_path)
    with open_log(tmp_path) as log:
        expected = read(log, log.start_lsn)
        if damage == "last":
            flip(paths[-1])
            with pytest.raises(CorruptTransactionLog):
                read(log, 0x1000)
            # The writer seals it, also when it begins again.
            log.recover()
    if damage == "missing":
        paths[1].unlink()
    elif damage == "flipped":
        flip(paths[1])
        paths[1].with_suffix(".idx").unlink()
    else:
        max(tmp_path.glob("*.idx")).unlink()
    for _ in range(2):
        with open_log(tmp_path) as log:
            if not log.is_damaged:
                # Links and index say so at the next start, too.
                break
            hole = log.damage()
            assert hole is not None
            first, end = hole
            with open_log(tmp_path / "beside", segment_bytes=1 << 40) as beside:
                beside.start(first)
                for n in range(100):
                    if transaction(n).header.final_lsn < end:
                        beside.transaction(transaction(n))
                beside.checkpoint(0x1000)
                (made,) = beside.segments()
            log.put_back(first, made.path, first)
            assert not log.is_damaged
            assert read(log, 0x1000) == expected
            log.transaction(transaction(100))
            log.checkpoint(0x1000)
    else:
        pytest.fail("still damaged")
    with open_log(tmp_path) as log:
        assert len(read(log, 0x1000)) == len(expected) + 1


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def test_verification_finds_damage_before_a_reader_does(tmp_path):
    paths = sealed_log(tmp_path)
    state, now = tmp_path / "verified.json", [1e9]
    with open_log(tmp_path) as log:
        verification = Verification(log, state, lambda: now[0])
        sealed = log.segments()[:-1]
        for _ in sealed:
            verification.step()
        read_bytes = verification.read_bytes
        assert read_bytes == sum(s.size - frames.SEGMENT_HEADER_SIZE for s in sealed)
        assert all(verification.verified_at(s) == now[0] for s in sealed)
        assert verification.all_verified_at() == now[0]
        # Nothing is read twice, nor after a restart, before its turn comes again.
        verification.step()
        assert verification.read_bytes == read_bytes
        again = Verification(log, state, lambda: now[0] + PERIOD_S / 2)
        again.step()
        assert again.read_bytes == 0
        assert not log.is_damaged
        flip(paths[1])
        now[0] += PERIOD_S
        for _ in sealed:
            verification.step()
        assert log.damage() == (int(paths[1].stem, 16), int(paths[2].stem, 16))


def test_a_damaged_header_is_written_again(tmp_path):
    paths = sealed_log(tmp_path)
    with open_log(tmp_path) as log:
        expected = read(log, log.start_lsn)
    for path in paths:
        path.write_bytes(bytes(40) + path.read_bytes()[40:])
    with open_log(tmp_path) as log:
        assert read(log, log.start_lsn) == expected


def test_damage_that_a_reader_meets_is_a_hole(tmp_path):
    paths = sealed_log(tmp_path)
    with open_log(tmp_path) as log:
        data = bytearray(paths[1].read_bytes())
        data[2000] ^= 0x10
        paths[1].write_bytes(data)
        assert not log.is_damaged
        with pytest.raises(CorruptTransactionLog):
            read(log, 0x1000)
        assert log.is_damaged
        starts = [int(path.stem, 16) for path in paths]
        assert log.damage() == (starts[1], starts[2])
        log.drop_through(starts[1])
        assert not log.is_damaged
        assert log.start_lsn == starts[2]


def test_no_reader_goes_over_a_gap(tmp_path):
    with open_log(tmp_path) as log:
        begin(log)
        log.transaction(transaction(0))
        log.checkpoint(0x1000)
        cursor = TransactionCursor(log.reader, 0x1000)
        early = TransactionCursor(log.reader, 0x1000)
        assert cursor.next() is not None
        assert cursor.next() is None
        log.begin_anew(0x900000)
        for reader in (cursor, early):
            with pytest.raises(LsnNotRetained):
                reader.next()
            reader.close()
