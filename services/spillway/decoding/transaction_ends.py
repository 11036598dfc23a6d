"""Ends of transactions: what is delivered of them, and what is forgotten.

The decoder hands over the records that end transactions (commit, abort, the two of prepared ones,
running-xacts after a crash) and those that ask for delivery before the end (PREPARE,
non-transactional messages). Out go transactions to the sink, in the order of these records; the
reorder buffer and the catalog mirror learn who committed.

Plain commits never come here: the kernel gathers them in runs (``_kernels/reorder/commit.pyx``),
which are handed over before anything that was committed after them.

A prepared transaction stays in the reorder buffer until its COMMIT PREPARED or ROLLBACK PREPARED,
which may be days, restarts and another server's life away. At PREPARE its changes are *read*, not
taken. What the PREPARE record said is remembered here; after a restart it is read again, since
decoding restarts before the first record of every transaction in progress, and a prepared one is in
progress; or it was carried with the transaction.

A transaction may be streamed: parts of it are read while it is in progress
(``_kernels/reorder/buffer.pyx`` says when one is due), and stay in the buffer for those who take
the transaction whole at its end.

What a prepared transaction has changed of the catalog stays its own until it commits: others wait
for its locks, as they do on the server.

Source: DecodeCommit, DecodeAbort, DecodePrepare, src/backend/replication/logical/decode.c;
ReorderBufferPrepare, ReorderBufferFinishPrepared, reorderbuffer.c
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spillway._kernels.reorder import buffer as reorder
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.decoding.invalidations import NOTHING_EXECUTED, Executed
from spillway.decoding.snapshot_builder import SnapshotState
from spillway.decoding.transaction import (
    Prepared,
    Streamed,
    TransactionHeader,
    TransactionKind,
)
from spillway.errors import DecodingError
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spillway._kernels.reorder.buffer import ReorderBuffer
    from spillway._kernels.reorder.merge import ChangeStream
    from spillway._kernels.wal.record_batch import RecordBatch
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.catalog.mirror import CatalogMirror
    from spillway.decoding.capture import CaptureFilter
    from spillway.decoding.invalidations import Invalidations
    from spillway.decoding.schema_changes import SchemaChanges
    from spillway.decoding.sink import TransactionSink
    from spillway.decoding.snapshot_builder import SnapshotBuilder
    from spillway.decoding.transaction import Piece
    from spillway.decoding.xact import TransactionEnd, TransactionPrepare

_NO_CHANGES: Final[Mapping[int, RelationDescriptor]] = {}
# Looked up here once: a member of an enumeration costs at each commit as much as a call.
_FULL_SNAPSHOT: Final = SnapshotState.FULL_SNAPSHOT
_COMMIT: Final = TransactionKind.COMMIT
_STAYS: Final = (TransactionKind.PREPARE, TransactionKind.STREAM)


@dataclass(frozen=True, slots=True)
class DecoderStats:
    """What pg_stat_replication_slots counts, since the decoder was made."""

    #: transactions that did not fit in work_mem, and how often and how much was spilled
    spill_txns: int
    spill_count: int
    spill_bytes: int
    #: transactions delivered, and the bytes of their changes
    total_txns: int
    total_bytes: int


class DecodedTransaction:
    """A transaction as decoded; see :class:`spillway.decoding.transaction.Transaction`."""

    __slots__ = ("_ending", "_stream", "header", "relations")

    def __init__(
        self,
        header: TransactionHeader,
        stream: ChangeStream | None,
        relations: Mapping[int, RelationDescriptor],
        ending: bytes = b"",
    ) -> None:
        """Make it of *stream* and, behind that, the changes in *ending*."""
        self.header = header
        self.relations = relations
        self._stream = stream
        self._ending = ending

    def chunks(self) -> Iterator[memoryview]:
        """Yield the changes; see the protocol.

        Raises:
            DecodingError: TOAST chunks and the row that points to them do not fit.
            StorageError: a spill file can't be read.
        """
        stream: Iterator[memoryview] = iter(()) if self._stream is None else self._stream
        return itertools.chain(stream, (memoryview(self._ending),)) if self._ending else stream

    def close(self) -> None:
        """Free memory and spill file; safe to repeat."""
        if self._stream is not None:
            self._stream.close()


class DecodedPiece:
    """A piece of a transaction as decoded; see :class:`spillway.decoding.transaction.Piece`."""

    __slots__ = ("_stream", "header", "relations", "survivors", "xid")

    def __init__(
        self,
        xid: int,
        header: TransactionHeader | None,
        survivors: Sequence[int],
        relations: Mapping[int, RelationDescriptor],
        stream: ChangeStream,
    ) -> None:
        self.xid = xid
        self.header = header
        self.survivors = survivors
        self.relations = relations
        self._stream = stream

    def chunks(self) -> Iterator[memoryview]:
        """Yield the changes; see the protocol."""
        return self._stream

    def close(self) -> None:
        """Free memory and spill file; safe to repeat."""
        self._stream.close()


class TransactionEnds:
    """One decoder's ends of transactions."""

    def __init__(
        self,
        database_oid: int,
        mirror: CatalogMirror,
        buffer: ReorderBuffer,
        invalidations: Invalidations,
        schema_changes: SchemaChanges,
        builder: SnapshotBuilder,
        sink: TransactionSink,
        capture: CaptureFilter,
        *,
        announces_empty_prepare: bool,
    ) -> None:
        self._capture = capture
        self._database_oid = database_oid
        self._announces_empty_prepare = announces_empty_prepare
        self._mirror = mirror
        self._buffer = buffer
        self._invalidations = invalidations
        self._schema_changes = schema_changes
        self._builder = builder
        self._sink = sink
        #: prepared transactions by xid
        self.prepared: dict[int, Prepared] = {}
        # Tables of the last transaction, which are often the next one's; an id means the same while
        # its descriptor is here.
        self._relation_ids: set[int] = set()
        self._relations: Mapping[int, RelationDescriptor] = _NO_CHANGES
        #: takes what there is of transactions that began before the serialised state, which are an
        #: error otherwise
        self.take_piece: Callable[[Piece], None] | None = None
        #: some transactions are streamed
        self.streaming = False
        #: transactions delivered whole at their commit, and the bytes of their changes
        self.total_txns = 0
        self.total_bytes = 0

    @property
    def stats(self) -> DecoderStats:
        """Counters since the decoder was made."""
        buffer = self._buffer
        return DecoderStats(
            buffer.spill_txns,
            buffer.spill_count,
            buffer.spill_bytes,
            self.total_txns,
            self.total_bytes,
        )

    # ---- whole transactions

    def commit(self, end: TransactionEnd, info: int, lsn: int, end_lsn: int, origin: int) -> bool:
        """Deliver or forget a transaction that committed (DecodeCommit).

        Return whether the mirror was told: others see another catalog then.

        Raises:
            DecodingError: its beginning was not read.
            Whatever the sink raises.
        """
        xid = end.xid
        entry = self._buffer.end(xid, end.subxids)
        first_lsn, flags = entry or (lsn, 0)
        delivers = (
            self._builder.delivers(lsn)
            and end.database_oid in (0, self._database_oid)
            and not self._filtered(origin)
        )
        if flags & reorder.TOUCHED_CATALOG:
            # What is in the log already is noted again: nobody knows whether it was.
            is_known = delivers or self._is_delivered_already(end, origin)
            if is_known and not flags & reorder.INCOMPLETE:
                self._schema_changes.flush(xid, lsn)
            if is_known:
                self._schema_changes.commit(xid, lsn, end.time)
            else:
                self._schema_changes.forget(xid)
        told = bool(
            end.xinfo & rmgr.XACT_XINFO_HAS_INVALS
            or flags & reorder.TOUCHED_CATALOG
            or self._builder.state < _FULL_SNAPSHOT
        )
        if told and (self._mirror.commit((xid, *end.subxids), lsn) or self._capture.selects_tables):
            # Whether a table is captured is bound for a transaction with a catalog of its own, too.
            self._buffer.clear_locators()
        invalidated = self._invalidations.commit(xid, lsn)
        if (
            delivers
            and flags & reorder.HAS_CATALOG_CHANGES
            and not flags & reorder.HAS_BASE_SNAPSHOT
        ):
            # SnapBuildCommitTxn: catalog changes alone make a transaction one that is printed.
            first_lsn = self._buffer.set_base_snapshot(xid, lsn)
            flags |= reorder.HAS_BASE_SNAPSHOT
        if flags & reorder.HAS_CATALOG_CHANGES and self._builder.state >= _FULL_SNAPSHOT:
            self._buffer.distribute_snapshot(lsn)
        prepared = (
            self.prepared.pop(xid, None)
            if info & rmgr.XLOG_XACT_OPMASK == rmgr.XLOG_XACT_COMMIT_PREPARED
            else None
        )
        if not delivers or not (flags & reorder.HAS_BASE_SNAPSHOT or prepared):
            self._buffer.forget(xid)
            self.invalidate(invalidated.own, lsn, end_lsn)
            return told
        if flags & reorder.INCOMPLETE and self.take_piece is None:
            raise DecodingError(
                f"transaction {xid}, which commits at {Lsn(lsn)}, began before the serialised "
                "state",
                hint="The state is newer than the restart_lsn that belongs to the position to "
                "decode from; restore an older one.",
                lsn=str(Lsn(lsn)),
                xid=xid,
            )
        header = TransactionHeader(xid, first_lsn, lsn, end_lsn, end.time, origin, end.origin_lsn)
        if flags & reorder.STREAMED:
            if flags & reorder.HAS_CATALOG_CHANGES:
                self._buffer.note_snapshot(xid, lsn)
            header = header._replace(streamed=self._streamed(xid))
        if prepared is not None:
            header = header._replace(
                kind=TransactionKind.COMMIT_PREPARED,
                prepared=replace(prepared, empty=not flags & reorder.HAS_BASE_SNAPSHOT),
                invalidated=invalidated.own,
            )
        if flags & reorder.INCOMPLETE and self.take_piece is not None:
            self.hand_over()
            if origin:
                header = header._replace(origin_name=self._mirror.origin_name(origin))
            piece = self.piece(xid, header)
            try:
                self.take_piece(piece)
            finally:
                piece.close()
            return told
        self._deliver(header, self._buffer.take(xid), invalidated.decoded)
        return told

    def _is_delivered_already(self, end: TransactionEnd, origin: int) -> bool:
        return (
            self._builder.state == SnapshotState.CONSISTENT
            and end.database_oid in (0, self._database_oid)
            and not self._filtered(origin)
        )

    def piece(self, xid: int, header: TransactionHeader | None = None) -> DecodedPiece:
        """Take what there is of top-level *xid* out of the buffer; the caller closes it."""
        survivors = self._buffer.survivors(xid)
        stream = self._buffer.take_raw(xid)
        return DecodedPiece(
            xid, header, survivors, self._relations_of(stream.relation_ids()), stream
        )

    def abort(
        self, end: TransactionEnd, info: int, lsn: int, end_lsn: int, origin: int
    ) -> tuple[int, ...]:
        """Forget a transaction, or a subtransaction with its own, that aborted (DecodeAbort).

        Say so when it was prepared or streamed. Return the xids whose fate the mirror must learn,
        if it has to.

        Raises:
            Whatever the sink raises.
        """
        first_lsn = lsn
        prepared = streamed = None
        # One that wrote nothing while its subtransactions did has no entry, and is of theirs' top.
        tops = ((xid, self._buffer.top_xid(xid)) for xid in (end.xid, *end.subxids))
        top_xid = next((top for xid, top in tops if top != xid), end.xid)
        if info & rmgr.XLOG_XACT_OPMASK == rmgr.XLOG_XACT_ABORT_PREPARED:
            prepared = self.prepared.pop(end.xid, None)
            first_lsn, flags = self._buffer.end(end.xid, ()) or (lsn, 0)
            if prepared is not None:
                prepared = replace(prepared, empty=not flags & reorder.HAS_BASE_SNAPSHOT)
        if self.streaming and (aborted := self._buffer.streamed_of((*end.subxids, end.xid))):
            first_lsn, _ = self._buffer.end(top_xid, ()) or (lsn, 0)
            streamed = replace(self._streamed(top_xid), aborted_xids=tuple(aborted))
        touched = []
        self._schema_changes.abort(top_xid, (end.xid, *end.subxids))
        for xid in (*end.subxids, end.xid):
            touched += self._buffer.forget(xid)
        invalidated = self._invalidations.own(end.xid)
        self._invalidations.forget((end.xid,))
        if (
            (prepared or streamed)
            and self._builder.delivers(lsn)
            and end.database_oid in (0, self._database_oid)
            and not (prepared and self._filtered(origin))
        ):
            kind = TransactionKind.ROLLBACK_PREPARED if prepared else TransactionKind.STREAM_ABORT
            header = TransactionHeader(
                top_xid, first_lsn, lsn, end_lsn, end.time, origin, end.origin_lsn,
                kind, prepared, streamed, invalidated=invalidated,
            )  # fmt: skip
            self._deliver(header, None)
        if touched or self._builder.state < _FULL_SNAPSHOT:
            return tuple(dict.fromkeys((end.xid, *end.subxids, *touched)))
        return ()

    def prepare(self, prepare: TransactionPrepare, lsn: int, end_lsn: int, origin: int) -> None:
        """Deliver a transaction that was prepared, and keep it (DecodePrepare).

        Raises:
            DecodingError: its beginning was not read.
            Whatever the sink raises.
        """
        xid = prepare.xid
        entry = self._buffer.end(xid, ())
        if entry is None:
            # PostgreSQL remembers nothing of a transaction of which no record was seen.
            return
        gid = prepare.gid.decode(errors="surrogateescape")
        self.prepared[xid] = prepared = Prepared(gid, lsn, end_lsn, prepare.time)
        if (
            not self._builder.delivers(lsn)
            or prepare.database_oid != self._database_oid
            or self._filtered(origin)
        ):
            return
        first_lsn, flags = self._buffer.end(xid, prepare.subxids) or entry
        if not flags & reorder.HAS_BASE_SNAPSHOT:
            if self._announces_empty_prepare:
                header = TransactionHeader(
                    xid, first_lsn, lsn, end_lsn, prepare.time, origin, prepare.origin_lsn,
                    TransactionKind.PREPARE, replace(prepared, empty=True),
                )  # fmt: skip
                self._deliver(header, None)
            return
        if flags & reorder.INCOMPLETE:
            if self.take_piece is not None:
                return
            raise DecodingError(
                f"transaction {xid}, which is prepared at {Lsn(lsn)}, began before the serialised "
                "state",
                hint="The state is newer than the restart_lsn that belongs to the position to "
                "decode from; restore an older one.",
                lsn=str(Lsn(lsn)),
                xid=xid,
            )
        self._schema_changes.flush(xid, lsn)
        header = TransactionHeader(
            xid, first_lsn, lsn, end_lsn, prepare.time, origin, prepare.origin_lsn,
            TransactionKind.PREPARE, prepared,
            self._streamed(xid) if flags & reorder.STREAMED else None,
        )  # fmt: skip
        self._deliver(header, self._buffer.borrow(xid, news=False), self._invalidations.at_end(xid))

    def _filtered(self, origin: int) -> bool:
        """Say whether a transaction whose end bears *origin* is left out (FilterByOrigin)."""
        return bool(origin) and self._capture.only_local

    def abandon(self, oldest_running_xid: int, lsn: int, end_lsn: int) -> None:
        """Forget what a crash of the server ended without a record: all that is older than
        *oldest_running_xid*.

        A prepared transaction runs as long as it is prepared, whatever became of the server
        meanwhile. What wrote its first record after a prepared one did waits for the end of that.
        """
        if self.streaming and (aborted := self._buffer.streamed_older_than(oldest_running_xid)):
            header = TransactionHeader(
                0, lsn, lsn, end_lsn, 0, kind=TransactionKind.STREAM_ABORT,
                streamed=Streamed(0, 0, aborted_xids=tuple(aborted)),
            )  # fmt: skip
            if self._builder.delivers(lsn):
                self._deliver(header, None)
        for xid, touched in self._buffer.forget_older_than(oldest_running_xid):
            self.prepared.pop(xid, None)
            self._invalidations.forget((xid,))
            self._schema_changes.forget(xid)
            if touched:
                self._mirror.abort(touched, lsn)

    # ---- streaming

    def part(self, batch: RecordBatch, index: int) -> None:
        """Deliver the part that record *index* made due of its transaction.

        Before the position that delivery begins at it is only counted: decoding again numbers parts
        as before.
        """
        _, _, xid, lsn, end_lsn, recent, _ = self._buffer.fields(batch, index)
        top_xid, first_lsn, number, first_change, last_change, first_origin, stream = (
            self._buffer.part(xid)
        )
        # PostgreSQL's part has that of its first change (ReorderBufferProcessTXN).
        origin = recent if first_origin is None else first_origin
        try:
            if self._builder.delivers(lsn):
                streamed = Streamed(number, last_change, 0, first_change, end_lsn)
                header = TransactionHeader(
                    top_xid, first_lsn, lsn, end_lsn, 0, origin,
                    kind=TransactionKind.STREAM, streamed=streamed,
                )  # fmt: skip
                self._deliver(header, stream, self._invalidations.at_end(top_xid))
        finally:
            stream.close()
        self._buffer.end_part(top_xid, end_lsn)

    def _streamed(self, top_xid: int) -> Streamed:
        """Say how far *top_xid* was streamed, for a header at its end."""
        parts, upto_lsn, first_lsn, last_lsn = self._buffer.streamed(top_xid)
        return Streamed(parts, last_lsn, 0, first_lsn, upto_lsn)

    # ---- what is outside of transactions

    def message(self, batch: RecordBatch, index: int) -> None:
        """Deliver the non-transactional logical message that is record *index*."""
        _, _, xid, lsn, end_lsn, origin, _ = self._buffer.fields(batch, index)
        if not self._builder.delivers(lsn):
            return
        header = TransactionHeader(xid, lsn, lsn, end_lsn, 0, origin, kind=TransactionKind.MESSAGE)
        self._deliver(header, self._buffer.take_message(batch, index))

    def invalidate(self, oids: Sequence[int], lsn: int, end_lsn: int) -> None:
        """Deliver an invalidation outside of transactions; nothing for no *oids*."""
        if oids and self._builder.delivers(lsn):
            header = TransactionHeader(0, lsn, lsn, end_lsn, 0, kind=TransactionKind.MESSAGE)
            self._deliver(header, None, Executed(tuple(oids), ()))

    def hand_over(self) -> None:
        """Deliver the plain commits that the kernel has gathered, if there are any."""
        taken = self._buffer.commits.take()
        if taken is None:
            return
        data, relation_ids, count, change_bytes = taken
        self.total_txns += count
        self.total_bytes += change_bytes
        self._sink.transactions(TransactionRun(data, self._relations_of(relation_ids)))

    def _relations_of(self, ids: set[int]) -> Mapping[int, RelationDescriptor]:
        if ids != self._relation_ids:
            self._relations = {number: self._mirror.registry[number] for number in ids}
            self._relation_ids = ids
        return self._relations

    def _deliver(
        self,
        header: TransactionHeader,
        stream: ChangeStream | None,
        executed: Executed = NOTHING_EXECUTED,
    ) -> None:
        self.hand_over()
        relations = _NO_CHANGES
        if header.origin_id:
            header = header._replace(origin_name=self._mirror.origin_name(header.origin_id))
        if stream is not None:
            relations = self._relations_of(stream.relation_ids())
            if header.kind is _COMMIT or header.kind not in _STAYS:
                self.total_txns += 1
                self.total_bytes += stream.change_bytes
        ending = executed.changes(header.xid, header.final_lsn)
        transaction = DecodedTransaction(header, stream, relations, ending)
        try:
            self._sink.transaction(transaction)
        finally:
            transaction.close()
