"""A replay without Spark: the same functions, one after the other, and what a single decoder makes
of the same WAL.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from spillway._kernels.messages.buffer import MessageBuffer
from spillway.decoding.offline import decode_directory
from spillway.decoding.sink import TransactionSink
from spillway.decoding.transaction import TransactionKind
from spillway.replay import pieces
from spillway.replay.assemble import Encoding, messages
from spillway.replay.parse import parse_stretch
from spillway.replay.plan import Beginning, make_plan, read_beginning
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.decoding.transaction import Transaction
    from spillway.plugins.interface import OutputPlugin
    from spillway.replay.plan import Plan


@dataclass(frozen=True)
class Archive:
    """WAL, and where decoding it begins."""

    wal: Path
    begin: Beginning = field(default_factory=Beginning)


@dataclass
class Replayed:
    plan: Plan
    messages: list[bytes]
    #: rows by kind
    rows: dict[int, int]


def replayed(
    archive: Archive,
    scratch: Path,
    *,
    plugin: str = "test_decoding",
    options: dict[str, str] | None = None,
    stretch_bytes: int,
    from_lsn: int | None = None,
    to_lsn: int | None = None,
    work_mem_bytes: int = 1 << 20,
) -> Replayed:
    """Replay *archive* as executors would, in an order of tasks that is none."""
    scratch.mkdir(parents=True, exist_ok=True)
    plan = make_plan(
        archive.wal,
        archive.begin,
        scratch,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
        stretch_bytes=stretch_bytes,
    )
    with_commits = [s for s in plan.stretches if s.has_commits]
    starts = [s.range_start for s in with_commits]

    def part_of(lsn: int) -> int:
        return with_commits[bisect_right(starts, lsn) - 1].number

    found = []
    order = list(plan.stretches)
    random.Random(0).shuffle(order)
    for stretch in order:
        for batch in parse_stretch(archive.wal, stretch, part_of, work_mem_bytes=work_mem_bytes):
            found += batch.to_pylist()
    found.sort(key=itemgetter(*pieces.ORDER))
    kinds: dict[int, int] = {}
    for row in found:
        kinds[row["kind"]] = kinds.get(row["kind"], 0) + 1
    encoding = Encoding(
        "decode",
        archive.begin.database,
        plan.database_oid,
        plan.major,
        plan.encoding,
        plugin,
        options or {},
    )
    made: list[bytes] = []
    for stretch in with_commits:
        of_part = [row for row in found if row["part"] == stretch.number]
        batches = [pa.RecordBatch.from_pylist(of_part, schema=pieces.SCHEMA)]
        made += messages(pieces.rows(batches), encoding, stretch.range_start, stretch.range_end)
    return Replayed(plan, made, kinds)


class _Plain(TransactionSink):
    def __init__(self, from_lsn: int, to_lsn: int) -> None:
        self.plugin: OutputPlugin
        self.messages: list[bytes] = []
        self._out = MessageBuffer(1 << 20)
        self._range = (from_lsn, to_lsn)

    def consistent(self, lsn: int) -> None: ...

    def progress(self, decoded_lsn: int) -> None: ...

    def transaction(self, transaction: Transaction) -> None:
        header = transaction.header
        if (
            header.kind is TransactionKind.MESSAGE
            or not header.is_ordinary
            or not self._range[0] <= header.final_lsn < self._range[1]
        ):
            return
        self.plugin.begin(header, self._out)
        for chunk in transaction.chunks():
            self.plugin.changes(header, chunk, transaction.relations, self._out)
        self.plugin.commit(header, self._out)

    def transactions(self, run: TransactionRun) -> None:
        for transaction in run:
            self.transaction(transaction)

    def take(self) -> list[bytes]:
        self.plugin.flush(self._out)
        batch = self._out.take()
        at, taken = 0, []
        for length in memoryview(batch.lengths).cast("I"):
            taken.append(bytes(batch.payload[at : at + length]))
            at += length
        return taken


def decoded(
    archive: Archive,
    scratch: Path,
    plan: Plan,
    *,
    plugin: str = "test_decoding",
    options: dict[str, str] | None = None,
) -> list[bytes]:
    """Return what one decoder of all of it makes of the plan's range."""
    wal = WalDirectory(archive.wal)
    sink = _Plain(plan.from_lsn, plan.to_lsn)
    sink.plugin = Encoding(
        "decode",
        archive.begin.database,
        plan.database_oid,
        plan.major,
        plan.encoding,
        plugin,
        options or {},
    ).plugin_made()
    decode_directory(
        wal,
        read_beginning(wal, archive.begin),
        sink,
        spill_dir=scratch / "plain",
        end_lsn=plan.to_lsn,
    )
    return sink.take()


def without_messages(lines: Sequence[bytes]) -> list[bytes]:
    """Leave out logical messages, of which a lake has nothing, and transactions that are empty
    then.
    """
    return list(_without_messages(lines))


def _without_messages(lines: Sequence[bytes]) -> Iterator[bytes]:
    begin = b""
    for line in lines:
        if line.startswith(b"message: "):
            continue
        if line.startswith(b"BEGIN"):
            begin = line
        elif line.startswith(b"COMMIT") and begin:
            begin = b""
        else:
            if begin:
                yield begin
                begin = b""
            yield line
