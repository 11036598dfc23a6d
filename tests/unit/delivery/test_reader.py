"""What a slot's reader chooses from a log that holds what any slot may want."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from spillway._kernels.encoders.change_cut import changes_after
from spillway.decoding import change_format as cf
from spillway.decoding.transaction import Prepared, Streamed, TransactionHeader, TransactionKind
from spillway.delivery.reader import Counts, SlotReader
from spillway.errors import DecodingError
from spillway.plugins.interface import OutputPlugin, PluginContext

if TYPE_CHECKING:
    from spillway._kernels.message_buffer import MessageBuffer

KIND = TransactionKind


def change(lsn: int, action: int = cf.INSERT) -> bytes:
    flags = cf.HAS_NEW if action == cf.MESSAGE else 0
    body = struct.pack("<II", 1, 0) if flags else b""
    return (
        struct.pack("<IBBHIIQII", 32 + len(body), action, flags, 0, 0, 7, lsn, len(body), 0) + body
    )


def lsns(chunk) -> list[int]:
    chunk = bytes(chunk)
    found, at = [], 0
    while at < len(chunk):
        size, action = struct.unpack_from("<IB", chunk, at)
        lsn = struct.unpack_from("<Q", chunk, at + 16)[0]
        found.append(-lsn if action == cf.MESSAGE else lsn)
        at += size
    return found


def _noted(call: str) -> Any:
    """Return a method that writes the name of the *call*, with the xid."""

    def note(plugin: OutputPlugin, header: TransactionHeader, out: MessageBuffer) -> None:
        del plugin
        out.append(0, header.xid, f"{call} {header.xid}".encode())

    return note


class Recorder(OutputPlugin):
    """Writes the name of each call with its xid."""

    name = "recorder"
    begin = _noted("begin")
    commit = _noted("commit")
    begin_prepare = _noted("begin_prepare")
    prepare = _noted("prepare")
    commit_prepared = _noted("commit_prepared")
    rollback_prepared = _noted("rollback_prepared")
    stream_start = _noted("stream_start")
    stream_stop = _noted("stream_stop")
    stream_prepare = _noted("stream_prepare")
    stream_commit = _noted("stream_commit")

    def __init__(self, options, context) -> None:
        self.binary = False
        self.two_phase = context.two_phase
        self.streaming = "streaming" in options
        self.refused = options.get("refuse")
        self.skips_empty_prepared = "skips_empty" in options

    def filter_prepare(self, header):
        return header.prepared.gid == self.refused

    def changes(self, header, chunk, relations, out):
        del relations
        out.append(0, header.xid, f"changes {lsns(chunk)}".encode())

    def stream_abort(self, header, out):
        out.append(
            0, header.xid, f"stream_abort {header.xid} {header.streamed.aborted_xid}".encode()
        )


@dataclass
class Entry:
    header: TransactionHeader
    pieces: tuple[bytes, ...] = ()

    @property
    def relations(self):
        return {}

    def chunks(self):
        yield from (memoryview(piece) for piece in self.pieces)

    def close(self) -> None: ...


class Entries:
    def __init__(self, *entries: Entry) -> None:
        self._entries = iter(entries)
        self.decoded_lsn = 1 << 20
        self.place = 0

    def next_run(self):
        return next(self._entries, None)

    def close(self) -> None: ...


def header(kind: TransactionKind, at: int, xid: int = 7, **more) -> TransactionHeader:
    return TransactionHeader(xid, 1, at, at + 8, at, kind=kind, **more)


def play(*entries: Entry, two_phase_at: int = 0, two_phase: bool = False, **options):
    context = PluginContext("s", "d", 180000, two_phase=two_phase)
    reader = SlotReader(Entries(*entries), Recorder(options, context), 0, None, two_phase_at)
    step = reader.step(1 << 20)
    assert step.exhausted
    lengths = struct.unpack(f"<{step.messages.count}I", step.messages.lengths)
    calls, at = [], 0
    for length in lengths:
        calls.append(bytes(step.messages.payload[at : at + length]).decode())
        at += length
    return calls, reader


PREPARED = Prepared("g", 40, 48, 40)
PREPARE = Entry(header(KIND.PREPARE, 40, prepared=PREPARED), (change(16), change(24)))
COMMIT_PREPARED = replace(PREPARE, header=header(KIND.COMMIT_PREPARED, 80, prepared=PREPARED))
ROLLBACK_PREPARED = Entry(header(KIND.ROLLBACK_PREPARED, 80, prepared=PREPARED))
CHANGES = ["changes [16]", "changes [24]"]


def test_prepared_transactions_as_such():
    assert play(PREPARE, COMMIT_PREPARED, two_phase=True)[0] == [
        "begin_prepare 7", *CHANGES, "prepare 7", "commit_prepared 7",
    ]  # fmt: skip
    calls, reader = play(PREPARE, ROLLBACK_PREPARED, two_phase=True)
    assert calls == ["begin_prepare 7", *CHANGES, "prepare 7", "rollback_prepared 7"]
    assert reader.confirm_lsn == 1 << 20


def test_prepared_transactions_as_ordinary_ones():
    ordinary = ["begin 7", *CHANGES, "commit 7"]
    assert play(PREPARE, COMMIT_PREPARED)[0] == ordinary
    assert play(PREPARE, ROLLBACK_PREPARED)[0] == []
    assert play(PREPARE, COMMIT_PREPARED, two_phase=True, refuse="g")[0] == ordinary
    assert play(PREPARE, ROLLBACK_PREPARED, two_phase=True, refuse="g")[0] == []


def test_one_prepared_before_two_phase_began_comes_whole_with_its_commit():
    assert play(PREPARE, COMMIT_PREPARED, two_phase=True, two_phase_at=41)[0] == [
        "begin_prepare 7", *CHANGES, "prepare 7", "commit_prepared 7",
    ]  # fmt: skip
    assert play(PREPARE, two_phase=True, two_phase_at=41)[0] == []


def test_of_an_empty_prepared_transaction_only_the_end_is_said():
    empty = header(KIND.COMMIT_PREPARED, 80, prepared=replace(PREPARED, empty=True))
    for two_phase_at in (0, 41):
        calls, _ = play(Entry(empty), two_phase=True, two_phase_at=two_phase_at)
        assert calls == ["commit_prepared 7"]
    assert play(Entry(empty))[0] == []
    # Nor that where the server says nothing of it.
    entries = [
        Entry(header(kind, at, prepared=replace(PREPARED, empty=True)))
        for kind, at in (
            (KIND.PREPARE, 40),
            (KIND.COMMIT_PREPARED, 80),
            (KIND.ROLLBACK_PREPARED, 90),
        )
    ]
    assert play(*entries, two_phase=True)[0] == [
        "prepare 7", "commit_prepared 7", "rollback_prepared 7",
    ]  # fmt: skip
    assert play(*entries, COMMIT_PREPARED, two_phase=True, skips_empty="on")[0] == [
        "commit_prepared 7"
    ]


def part(number: int, first: int, last: int, xid: int = 7) -> Entry:
    streamed = Streamed(number, last, 0, first, last + 8)
    chunk = b"".join(map(change, range(first, last + 1, 8)))
    return Entry(header(KIND.STREAM, last, xid, streamed=streamed), (chunk,))


WHOLE = (change(8) + change(16) + change(24), change(32))
REST = Entry(header(KIND.COMMIT, 40, streamed=Streamed(2, 32, 0, 32, 32)), WHOLE)
NO_REST = Entry(header(KIND.COMMIT, 40, streamed=Streamed(2, 0, 0, 0, 40)), WHOLE)
PART = ["stream_start 7", "changes [8, 16]", "stream_stop 7"]
PARTS = [*PART, "stream_start 7", "changes [24]", "stream_stop 7"]


def test_parts_and_what_is_left_of_them():
    parts = (part(1, 8, 16), part(2, 24, 24))
    calls, reader = play(*parts, REST, streaming="")
    assert calls == [
        *PARTS, "stream_start 7", "changes [32]", "stream_stop 7", "stream_commit 7",
    ]  # fmt: skip
    assert reader.counts[:4] == (1, sum(map(len, calls)), 1, 3)
    assert play(*parts, NO_REST, streaming="")[0] == [*PARTS, "stream_commit 7"]
    prepare = replace(REST, header=REST.header._replace(kind=KIND.PREPARE, prepared=PREPARED))
    assert play(*parts, prepare, streaming="", two_phase=True)[0][-2:] == [
        "stream_stop 7", "stream_prepare 7",
    ]  # fmt: skip


def test_who_did_not_see_all_parts_takes_it_whole():
    whole = ["begin 7", "changes [8, 16, 24]", "changes [32]", "commit 7"]
    assert play(part(1, 8, 16), part(2, 24, 24), REST)[0] == whole
    assert play(part(2, 24, 24), REST, streaming="")[0] == whole
    # Parts that do not fit are taken back.
    assert play(part(1, 8, 16), part(3, 24, 24), REST, streaming="")[0] == [
        *PART, "stream_abort 7 7", *whole,
    ]  # fmt: skip
    assert play(part(1, 8, 16), REST, streaming="")[0] == [*PART, "stream_abort 7 7", *whole]
    ordinary = replace(REST, header=REST.header._replace(streamed=None))
    assert play(part(1, 8, 16), ordinary, streaming="")[0] == [*PART, "stream_abort 7 7", *whole]


def test_aborts_of_what_was_streamed():
    def abort(*xids: int, xid: int = 7, kind: TransactionKind = KIND.STREAM_ABORT) -> Entry:
        streamed = Streamed(1, 0, aborted_xids=xids)
        return Entry(header(kind, 60, xid, streamed=streamed, prepared=PREPARED))

    one = part(1, 8, 16)
    calls, _ = play(one, abort(8), abort(9, 7), abort(7), streaming="")
    assert calls == [*PART, "stream_abort 7 8", "stream_abort 7 9", "stream_abort 7 7"]
    assert play(one, abort(8, 7))[0] == []
    assert play(part(2, 8, 16), abort(8, 7), streaming="")[0] == []
    # After a crash of the server, of several transactions.
    other = part(1, 8, 8, xid=20)
    calls, _ = play(one, other, abort(7, 20, 30, xid=0), streaming="")
    assert calls[-2:] == ["stream_abort 7 7", "stream_abort 20 20"]
    rolled_back = abort(8, 7, kind=KIND.ROLLBACK_PREPARED)
    assert play(one, rolled_back, streaming="")[0][-2:] == ["stream_abort 7 8", "stream_abort 7 7"]
    calls, _ = play(one, rolled_back, streaming="", two_phase=True)
    assert calls[-1] == "rollback_prepared 7"


def test_ordinary_transactions_between_parts():
    ordinary = Entry(header(KIND.COMMIT, 18, 9), (change(17),))
    message = Entry(header(KIND.MESSAGE, 20, 0), (change(20, cf.MESSAGE),))
    calls, _ = play(part(1, 8, 16), ordinary, message, part(2, 24, 24), NO_REST, streaming="")
    assert calls[3:8] == ["begin 9", "changes [17]", "commit 9", "begin 0", "changes [-20]"]
    assert calls[-1] == "stream_commit 7"


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([], []),
        ([8, 16], []),
        ([24, 32], [24, 32]),
        ([8, 24, 32], [24, 32]),
        # A message at the cut ended there: streamed, wherever it stands beside a record that starts
        # there.
        ([16, -24, 24, 32], [24, 32]),
        ([16, 24, -24, 32], [24, 32]),
        ([24, -24, 24], [24, 24]),
        ([-24], []),
        ([-32], [-32]),
    ],
)
def test_changes_after(changes, left):
    chunk = b"".join(change(abs(lsn), cf.MESSAGE if lsn < 0 else cf.INSERT) for lsn in changes)
    assert lsns(changes_after(memoryview(chunk), 24)) == left


def test_changes_after_of_a_damaged_chunk():
    chunk = change(8) + change(16)
    for length in range(1, len(chunk)):
        if length != len(change(8)):
            with pytest.raises(DecodingError):
                changes_after(memoryview(chunk[:length]), 24)


def test_counts():
    more, before = Counts(10, 10, 10, 10, 10, 10), Counts(1, 1, 1, 1, 1, 1)
    assert Counts(1, 2, 3, 4, 5, 6).plus(more, before) == (10, 11, 12, 13, 14, 15)
