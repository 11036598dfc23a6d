"""Runs of small transactions: through the log, a cursor, a slot's reader and the plugins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from spillway._kernels.messages.buffer import MessageBuffer
from spillway._kernels.reorder.transaction_run import TransactionRun, find_run
from spillway.decoding.transaction import Streamed, TransactionHeader, TransactionKind
from spillway.delivery.reader import SlotReader
from spillway.errors import CorruptTransactionLog, DecodingError, TransactionLogError
from spillway.plugins.interface import OutputPlugin, PluginContext
from spillway.plugins.registry import create_plugin
from spillway.txlog import LogWriter, TransactionCursor, frames
from spillway.txlog.segment import SegmentReader
from spillway.txlog.writer import TAIL_BYTES
from unit.test_transaction_log import (
    FakeTransaction,
    begin,
    open_log,
    relation,
    transaction,
    visible,
)

if TYPE_CHECKING:
    from spillway.txlog.cursor import LoggedTransaction

RELATIONS = {1: relation("t")}
CONTEXT = PluginContext("s", "d", 180000)


def entry(given: FakeTransaction) -> bytes:
    header = frames.encode_transaction_header(given.header)
    return b"".join(
        map(bytes, frames.encode_frame(frames.TRANSACTION, header, b"".join(given.pieces)))
    )


def run_of(*numbers: int) -> TransactionRun:
    return TransactionRun(b"".join(entry(transaction(n)) for n in numbers), RELATIONS)


def xids(run: LoggedTransaction | TransactionRun | None) -> list[int]:
    if run is None:
        return []
    assert isinstance(run, TransactionRun)
    return [t.header.xid for t in run]


def test_is_read_once_up_to_a_limit():
    run = run_of(1, 2, 3)
    assert next(run).header == transaction(1).header
    assert (run.taken, run.last_end_lsn) == (1, transaction(1).header.end_lsn)
    assert run.next_lsn() == transaction(2).header.final_lsn
    run.limit(transaction(3).header.final_lsn)
    assert not run.reached_upto
    assert xids(run) == [702]
    assert run.reached_upto
    assert not run.exhausted
    run.limit(1 << 62)
    assert xids(run) == [703]
    assert run.exhausted
    assert (run.next_lsn(), len(run.data)) == (0, 0)


def test_passing_over_counts_nothing():
    run = run_of(1, 2, 3)
    run.skip_before(transaction(2).header.final_lsn)
    assert run.taken == 0
    assert xids(TransactionRun(run.data, RELATIONS)) == [702, 703]
    assert run.has_any_of({703})
    assert not run.has_any_of({701})
    run.skip_before(1 << 62)
    assert run.exhausted


def test_what_is_no_run_is_refused():
    for data in (b"x", entry(transaction(1))[:-8], b"\0" * 64):
        with pytest.raises(TransactionLogError):
            next(TransactionRun(data, RELATIONS))


OTHERS: dict[str, dict[str, Any]] = {
    "a prepared transaction": {"kind": TransactionKind.COMMIT_PREPARED},
    "a message": {"kind": TransactionKind.MESSAGE},
    "one from an origin": {"origin_id": 3, "origin_name": "there"},
    "one from a dropped origin": {"origin_id": 3},
    "one that was streamed": {"streamed": Streamed(2, 0)},
    "one that invalidated": {"invalidated": (16384,)},
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_run_ends_before(what):
    other = transaction(3)
    other.header = other.header._replace(**OTHERS[what])
    data = entry(transaction(1)) + entry(transaction(2))
    run, size, last = find_run(data + entry(other) + entry(transaction(4)), 0, RELATIONS)
    assert (xids(run), size, last) == ([701, 702], len(data), transaction(2).header.final_lsn)


def test_a_run_ends_before_what_is_damaged_or_cut():
    data = bytearray(b"".join(entry(transaction(n)) for n in range(4)))
    one = len(data) // 4
    for damaged in (2 * one, 2 * one + 4, 2 * one + 20, 3 * one - 1):
        copy = bytearray(data)
        copy[damaged] ^= 1
        run, size, _ = find_run(copy, 0, RELATIONS)
        assert (xids(run), size) == ([700, 701], 2 * one)
    for end in range(2 * one, 3 * one):
        assert xids(find_run(data[:end], 0, RELATIONS)[0]) == [700, 701]
    assert find_run(b"", 0, RELATIONS) == (None, 0, 0)


def test_find_run_passes_over_what_was_read_before():
    data = b"".join(entry(transaction(n)) for n in range(4))
    run, size, _ = find_run(data, transaction(2).header.final_lsn, RELATIONS)
    assert (xids(run), size) == ([702, 703], len(data))
    assert find_run(data, 1 << 62, RELATIONS) == (
        None, len(data), transaction(3).header.final_lsn,
    )  # fmt: skip


# ---- the log


def read(log: LogWriter, lsn: int) -> list[tuple[TransactionHeader, bytes]]:
    cursor = TransactionCursor(log.reader, lsn)
    found = []
    while (piece := cursor.next_run()) is not None:
        for one in piece if isinstance(piece, TransactionRun) else (piece,):
            assert set(one.relations) == {1}
            found.append((one.header, b"".join(map(bytes, one.chunks()))))
    cursor.close()
    return found


def read_one_by_one(log: LogWriter, lsn: int) -> list[tuple[TransactionHeader, bytes]]:
    cursor = TransactionCursor(log.reader, lsn)
    found = []
    while (one := cursor.next()) is not None:
        found.append((one.header, b"".join(map(bytes, one.chunks()))))
    cursor.close()
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_log_of_runs_and_others_gives_them_in_order(tmp_path, seed):
    rng = random.Random(seed)
    given, n = [], 0
    with open_log(tmp_path, segment_bytes=rng.choice([4096, 1 << 16, 1 << 26])) as log:
        begin(log)
        while n < 600:
            count = rng.choice([1, 3, 40])
            some = [transaction(i) for i in range(n, n + count)]
            if rng.random() < 0.5:
                log.transactions(TransactionRun(b"".join(map(entry, some)), RELATIONS))
            else:
                some = [transaction(i, chunks=1 + i % 3) for i in range(n, n + count)]
                for one in some:
                    log.transaction(one)
            n += count
            given += [(one.header, b"".join(one.pieces)) for one in some]
            if rng.random() < 0.3:
                log.publish()
            if rng.random() < 0.1:
                log.checkpoint(0x800)
        log.publish()
        assert log.last_final_lsn == given[-1][0].final_lsn
        for start in (0, *(rng.randrange(n) for _ in range(10)), n - 1):
            lsn = given[start][0].final_lsn
            assert read(log, lsn) == read_one_by_one(log, lsn) == given[start:]
            assert read(log, lsn + 1) == given[start + 1 :]
    with open_log(tmp_path) as log:
        assert read(log, 0x1000) == given


def test_transactions_already_there_are_dropped(tmp_path):
    with open_log(tmp_path) as log:
        begin(log)
        log.transaction(transaction(0))
        log.transactions(run_of(0, 1, 2))
        log.transactions(run_of(1, 2))
        log.transactions(run_of(2, 3))
        log.publish()
        assert [h.xid for h, _ in read(log, 0x1000)] == [700, 701, 702, 703]


def test_a_log_that_was_not_started_takes_nothing(tmp_path):
    with open_log(tmp_path) as log, pytest.raises(TransactionLogError):
        log.transactions(run_of(1))


def test_reading_begins_near_the_lsn(tmp_path):
    with open_log(tmp_path) as log:
        begin(log)
        for first in range(0, 20_000, 1000):
            log.transactions(run_of(*range(first, first + 1000)))
        log.publish()
        (segment,) = visible(log).segments
        steps = [b - a for a, b in zip(segment.offsets, segment.offsets[1:], strict=False)]
        assert max(steps) < 130 * 1024
        assert log.reader.bytes_from(transaction(19_999).header.final_lsn) < 200 * 1024


def test_a_damaged_transaction_is_named(tmp_path):
    with open_log(tmp_path) as log:
        begin(log)
        log.transactions(run_of(*range(10)))
        log.publish()
        (segment,) = visible(log).segments
        data = bytearray(segment.path.read_bytes())
        data[-20] ^= 1
        segment.path.write_bytes(data)
        cursor = TransactionCursor(log.reader, 0x1000)
        assert xids(cursor.next_run()) == [*range(700, 709)]
        with pytest.raises(CorruptTransactionLog):
            cursor.next_run()
        cursor.close()


def test_what_was_published_last_is_read_without_the_file(tmp_path, monkeypatch):
    reads = []
    pread = SegmentReader._pread

    def counted(reader, size, offset):
        reads.append(offset)
        return pread(reader, size, offset)

    monkeypatch.setattr(SegmentReader, "_pread", counted)
    with open_log(tmp_path) as log:
        begin(log)
        log.transactions(run_of(0))
        log.publish()
        cursor, behind = (TransactionCursor(log.reader, 0x1000) for _ in range(2))
        assert xids(cursor.next_run()) == xids(behind.next_run()) == [700]
        reads.clear()
        for number in range(1, 4):
            assert cursor.next_run() is None
            log.transactions(run_of(number))
            log.publish()
            assert xids(cursor.next_run()) == [700 + number]
        assert not reads
        # Who is further behind than that reads, and so does who comes for more than little.
        assert xids(behind.next_run()) == [701, 702, 703]
        assert len(reads) == 1
        many = range(4, 4 + TAIL_BYTES // 50)
        log.transactions(run_of(*many))
        log.publish()
        assert len(visible(log).tail) == 0
        assert xids(cursor.next_run()) == [700 + number for number in many]
        assert len(reads) > 1
        cursor.close()
        behind.close()


# ---- a slot's reader


@dataclass
class Pieces:
    """A cursor over what it is given."""

    pieces: list
    decoded_lsn: int = 1 << 40
    place: int = 0
    _at: int = field(default=0)

    def next_run(self):
        self._at += 1
        return self.pieces[self._at - 1] if self._at <= len(self.pieces) else None

    def close(self) -> None: ...


def reader_of(*pieces, upto: int | None = None, plugin: str = "test_decoding") -> SlotReader:
    options = {"publication_names": "p", "proto_version": "1"} if plugin == "pgoutput" else {}
    made = create_plugin(plugin, options, CONTEXT)
    return SlotReader(Pieces(list(pieces)), made, 0, upto)


def empty_run(*numbers: int) -> TransactionRun:
    some = [transaction(n) for n in numbers]
    for one in some:
        one.pieces = []
    return TransactionRun(b"".join(map(entry, some)), RELATIONS)


def test_a_step_ends_behind_a_transaction_with_enough():
    reader = reader_of(empty_run(0, 1, 2), empty_run(3, 4))
    step = reader.step(1)
    assert (step.messages.payload, step.messages.count) == (b"BEGIN 700COMMIT 700", 2)
    assert step.confirm_lsn == transaction(0).header.end_lsn
    assert reader.between
    step = reader.step(1 << 20, message_limit=3)
    assert step.messages.payload == b"BEGIN 701COMMIT 701BEGIN 702COMMIT 702"
    step = reader.step(1 << 20)
    assert step.messages.payload == b"BEGIN 703COMMIT 703BEGIN 704COMMIT 704"
    assert step.exhausted
    assert reader.counts.total_txns == 5


def test_a_reader_stops_in_front_of_its_end_within_a_run():
    upto = transaction(2).header.final_lsn
    reader = reader_of(empty_run(0, 1, 2, 3), upto=upto)
    step = reader.step(1 << 20)
    assert step.messages.payload == b"BEGIN 700COMMIT 700BEGIN 701COMMIT 701"
    assert step.reached_end
    assert step.confirm_lsn == upto
    assert reader.step(1 << 20).messages.count == 0


def test_a_transaction_that_was_streamed_in_part_and_comes_whole_takes_the_parts_back():
    part = FakeTransaction(
        TransactionHeader(
            701, 1, 0x900, 0x910, 0, kind=TransactionKind.STREAM, streamed=Streamed(1, 0x900)
        ),
        {},
    )
    options = {"stream-changes": "1"}
    plugin = create_plugin("test_decoding", options, CONTEXT)
    reader = SlotReader(Pieces([part, empty_run(0, 1, 2)]), plugin, 0, None)
    step = reader.step(1 << 20)
    assert step.messages.payload == (
        b"opening a streamed block for transaction TXN 701"
        b"closing a streamed block for transaction TXN 701"
        b"BEGIN 700COMMIT 700aborting streamed (sub)transaction TXN 701BEGIN 701COMMIT 701BEGIN "
        b"702COMMIT 702"
    )


@pytest.mark.parametrize("version", [140000, 180000])
@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("test_decoding", {}),
        ("test_decoding", {"skip-empty-xacts": "1", "include-timestamp": "1"}),
        ("test_decoding", {"include-xids": "0"}),
        ("pgoutput", {"proto_version": "2", "publication_names": "p"}),
        ("wal2json", {"format-version": "2"}),
    ],
)
def test_a_plugin_makes_the_same_of_a_run_as_of_its_transactions(plugin, options, version):
    results = []
    for as_run in (True, False):
        made = create_plugin(plugin, options, PluginContext("s", "d", version))
        out, batches = MessageBuffer(), []
        run = empty_run(*range(50))
        while not run.exhausted:
            if as_run:
                made.transactions(run, out, 400, None)
            else:
                OutputPlugin.transactions(made, run, out, 400, None)
            batches.append(out.take())
        results.append(batches)
    assert results[0] == results[1]


@pytest.mark.parametrize("plugin", ["test_decoding", "pgoutput"])
def test_a_malformed_change_is_named_and_what_came_before_it_kept(plugin):
    good, bad = transaction(0), transaction(1)
    good.pieces = []
    bad.pieces = [b"\xff" * 32]
    run = TransactionRun(entry(good) + entry(bad), RELATIONS)
    options = {"publication_names": "p", "proto_version": "1"} if plugin == "pgoutput" else {}
    made, out = create_plugin(plugin, options, CONTEXT), MessageBuffer()
    with pytest.raises(DecodingError):
        made.transactions(run, out, 1 << 20)
    lines = out.take().payload
    assert lines == (b"" if plugin == "pgoutput" else b"BEGIN 700COMMIT 700BEGIN 701")


def test_lines_of_another_encoding_are_limited_as_others():
    context = PluginContext("s", "d", 180000, "latin-1")
    made, out = create_plugin("test_decoding", {}, context), MessageBuffer()
    run = empty_run(*range(10))
    made.transactions(run, out, 1 << 20, 4)
    assert out.count == 4
    made.transactions(run, out, 1 << 20, 7)
    assert out.count == 8
    made.transactions(run, out, out.nbytes + 1)
    assert out.count == 10
