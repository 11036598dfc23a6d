"""One stretch of WAL becomes rows: transactions that are whole in it, and pieces of those that are
not.

Runs in a task of its own, from the state that the light pass left at the stretch's start. What
decoding does is what it always does; only the transactions in progress at either end are other:

- begun before the stretch, committed in it: a HEADER, and a PIECE of what was read here;
- in progress at its end, wanted where it commits later: a PIECE of what was read here;
- in progress at its end and aborted later, or not ended in the range: nothing.

Memory: ``work_mem_bytes`` of changes and the catalog. Rows are handed on as Arrow batches of about
:data:`_BATCH_BYTES`; those of one large transaction, which come faster than they are taken, wait in
a file.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spillway.decoding import serialization
from spillway.decoding.decoder import WORK_MEM_BYTES_DEFAULT, Decoder
from spillway.decoding.transaction import TransactionKind
from spillway.errors import CorruptWal, StorageError
from spillway.pg.lsn import Lsn
from spillway.replay import pieces
from spillway.replay.plan import Stretch, StretchBegins
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import Piece, Transaction

_BATCH_BYTES: Final = 4 << 20
#: Batches that wait in memory; more of them wait in a file.
_BATCHES_HELD: Final = 4


def parse_stretch(
    archive: Path,
    stretch: Stretch,
    part_of: Callable[[int], int],
    *,
    work_mem_bytes: int = WORK_MEM_BYTES_DEFAULT,
) -> Iterator[pa.RecordBatch]:
    """Decode *stretch*; yield its rows (:data:`spillway.replay.pieces.SCHEMA`), in no order that
    matters.

    Args:
        archive: directory of WAL segment files.
        stretch: of the plan.
        part_of: says to which part a commit LSN belongs.
        work_mem_bytes: of changes in progress, in memory.

    Raises:
        CorruptWal, WalGap, DecodingError: the archive is not what it was in the light pass.
        StorageError: the state is gone or damaged, or there is no room for spill files.
    """
    wal = WalDirectory(archive)
    with tempfile.TemporaryDirectory(prefix="spillway-replay-") as directory:
        rows = _Rows(stretch, part_of, Path(directory) / "rows.arrow")
        with (
            closing(rows),
            closing(_decoder(wal, stretch, rows, Path(directory), work_mem_bytes)) as decoder,
        ):
            decoder.take_pieces(rows.piece)
            wal.check_from(decoder.position)
            for batch in wal.batches(decoder.position, stretch.end_lsn, exactly=True):
                decoder.process(batch)
                yield from rows.take(least=_BATCH_BYTES)
            if decoder.position != stretch.end_lsn:
                raise CorruptWal(
                    f"WAL can't be read on at {Lsn(decoder.position)}, as it could before",
                    hint="The archive was changed while it was replayed. Run the replay again.",
                    lsn=str(Lsn(decoder.position)),
                )
            for xid, top_xid, *_ in decoder.transactions():
                if not top_xid and xid in stretch.ends_later:
                    with closing(decoder.piece(xid)) as piece:
                        rows.piece(piece)
                    yield from rows.take()
            rows.end()
            yield from rows.take()


def _decoder(
    wal: WalDirectory, stretch: Stretch, rows: _Rows, spill_dir: Path, work_mem_bytes: int
) -> Decoder:
    try:
        data = stretch.state.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{stretch.state}, where a stretch of WAL begins, can't be read: {error.strerror}",
            hint="Every worker must see the lake's directory under the same path as the driver.",
        ) from error
    if stretch.begins is not StretchBegins.BOOTSTRAP:
        return Decoder.restore(
            data,
            wal.version,
            rows,
            work_mem_bytes=work_mem_bytes,
            spill_dir=spill_dir,
            start_decoding_at=0 if stretch.begins is StretchBegins.CUT else None,
        )
    state = serialization.load(data)
    return Decoder(
        wal.version,
        state.database_oid,
        state.mirror,
        rows,
        work_mem_bytes=work_mem_bytes,
        spill_dir=spill_dir,
        start=state.lsn,
    )


class _Rows:
    """A transaction sink that makes rows, and holds them until they are taken."""

    def __init__(self, stretch: Stretch, part_of: Callable[[int], int], file: Path) -> None:
        self._stretch = stretch
        self._part_of = part_of
        self._held: list[dict[str, Any]] = []
        self._held_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._file = file
        self._writer: pa.RecordBatchFileWriter | None = None
        self._place = 0
        #: (part, relation id) that were told; while they are held, ids mean the same
        self._told: dict[tuple[int, int], RelationDescriptor] = {}

    # ---- what the decoder calls

    def consistent(self, lsn: int) -> None:
        """Nothing to prepare."""

    def progress(self, decoded_lsn: int) -> None:
        """Nothing to say."""

    def transactions(self, run: TransactionRun) -> None:
        run.skip_before(self._stretch.range_start)
        lsn = run.next_lsn()
        if self._wants(lsn):
            self._tell(self._stretch.number, run.relations)
            self._add(self._stretch.number, lsn, pieces.RUN, run.data)

    def transaction(self, transaction: Transaction) -> None:
        header = transaction.header
        if (
            not header.is_ordinary
            or header.kind is TransactionKind.MESSAGE
            or not self._wants(header.final_lsn)
        ):
            return
        part, lsn = self._stretch.number, header.final_lsn
        self._tell(part, transaction.relations)
        self._add(part, lsn, pieces.HEADER, pieces.header_payload(header, ()))
        for chunk in transaction.chunks():
            self._add(part, lsn, pieces.CHUNK, chunk)

    def piece(self, piece: Piece) -> None:
        """Take a piece, of a transaction that ended here or will end."""
        header = piece.header
        lsn = self._stretch.ends_later[piece.xid] if header is None else header.final_lsn
        if header is not None and not self._wants(lsn):
            return
        part = self._part_of(lsn)
        self._tell(part, piece.relations)
        if header is not None:
            payload = pieces.header_payload(header, piece.survivors)
            self._add(part, lsn, pieces.HEADER, payload)
        for chunk in piece.chunks():
            self._add(part, lsn, pieces.PIECE, chunk)

    def end(self) -> None:
        """Say that everything was read, if anything that commits here is wanted."""
        if self._stretch.has_commits:
            self._add(self._stretch.number, pieces.LAST, pieces.END, b"")

    def _wants(self, final_lsn: int) -> bool:
        return self._stretch.range_start <= final_lsn < self._stretch.range_end

    def _tell(self, part: int, relations: Mapping[int, RelationDescriptor]) -> None:
        for number, descriptor in relations.items():
            if (part, number) not in self._told:
                self._told[part, number] = descriptor
                payload = pieces.relation_payload(number, descriptor)
                self._add(part, 0, pieces.RELATION, payload)

    # ---- rows

    def _add(self, part: int, final_lsn: int, kind: int, payload: bytes | memoryview) -> None:
        at, size = 0, len(payload)
        while True:
            data = bytes(payload[at : at + pieces.PAYLOAD_BYTES_MAX])
            at += len(data)
            self._held.append(
                {
                    "part": part,
                    "final_lsn": final_lsn,
                    "kind": kind,
                    "stretch": self._stretch.number,
                    "place": self._place,
                    "more": at < size,
                    "payload": data,
                }
            )
            self._place += 1
            self._held_bytes += len(data)
            if self._held_bytes >= _BATCH_BYTES:
                self._close_batch()
            if at >= size:
                return

    def _close_batch(self) -> None:
        if not self._held:
            return
        batch = pa.RecordBatch.from_pylist(self._held, schema=pieces.SCHEMA)
        self._held, self._held_bytes = [], 0
        if self._writer is None and len(self._batches) < _BATCHES_HELD:
            self._batches.append(batch)
            return
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_file(self._file, pieces.SCHEMA)
            self._writer.write_batch(batch)
        except OSError as error:
            raise StorageError(
                f"can't write {self._file}: {error}",
                hint="Free space for temporary files (TMPDIR) on the worker; the task runs again.",
            ) from error

    def take(self, least: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield what is held, but for the last rows while they are less than *least* bytes."""
        if self._held_bytes >= least:
            self._close_batch()
        yield from self._batches
        self._batches = []
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        with pa.OSFile(str(self._file)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
