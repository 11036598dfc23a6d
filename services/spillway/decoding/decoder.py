"""Records in, whole committed transactions out: one database's decoding session.

:meth:`Decoder.process` is handed record batches in WAL order. The reorder kernel goes through a
batch and stops where Python has to act: the ends of transactions, running-xacts, catalog records
for the mirror, locators that were not met before. Committed transactions go to the sink in commit
order, during ``process``, as streams of chunks that are merged while the sink reads them.

Eager decoding: a change is bound to the descriptor of its table the moment its record is read, as
its own transaction sees the catalog then. The binding of a relfile holds for every transaction
until a commit changes what others see; a transaction that has changed the catalog itself has
bindings of its own, which each of its catalog records drops.

Restart. PostgreSQL restarts decoding from a serialised snapshot at or before the first record of
the oldest transaction in progress. So do we: ``serialize`` between two calls of ``process`` saves
mirror and builder at ``position``. ``restart_lsn`` is the oldest first_lsn in progress. Who
persists progress persists the pair (position, restart_lsn); after a crash :meth:`Decoder.restore`
takes a serialised state whose LSN is at or before the persisted restart_lsn, reads WAL from that
state's LSN on, and delivers what commits at or after the persisted position. The invariant: a
transaction in progress when the state was serialised, whose beginning we don't read again,
committed before the persisted position (else restart_lsn were at or before its first record). The
state names these; one that commits later is an error.

A transaction may stay open for long, and then WAL is not to be kept since its first record.
``carry`` saves the transactions in progress as well (``carried.py``): decoding can go on at
``position`` as if it had read them, and restart_lsn is that position until they, and no others,
have ended. It costs a sync and what is new of them, so it is for when restart_lsn is far behind,
not for every time.

Memory: ``work_mem_bytes`` of changes (the rest spilled), one batch, one chunk, the mirror; a few
times its tables' descriptors.

Source: src/backend/replication/logical/{decode,reorderbuffer,snapbuild}.c
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakValueDictionary

from spillway._kernels.reorder import buffer as reorder
from spillway.catalog.audit import CatalogAudit
from spillway.catalog.resolution import ResolutionKind, SkipReason
from spillway.decoding import serialization
from spillway.decoding.capture import EVERYTHING
from spillway.decoding.carried import Carried, clear_spill_dir
from spillway.decoding.dispatch import action_table
from spillway.decoding.invalidations import Invalidations
from spillway.decoding.schema_changes import SchemaChanges
from spillway.decoding.snapshot_builder import RunningXacts, SnapshotBuilder, SnapshotState
from spillway.decoding.transaction_ends import DecoderStats, TransactionEnds
from spillway.decoding.xact import parse_prepare, parse_transaction_end, parse_truncate
from spillway.errors import DecodingError, NotReady, WalError, WalLevelNotLogical
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from spillway._kernels.wal.record_batch import RecordBatch
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.catalog.mirror import CatalogMirror
    from spillway.catalog.resolution import Resolution
    from spillway.decoding.capture import CaptureFilter
    from spillway.decoding.schema_changes import CommittedDdl
    from spillway.decoding.sink import TransactionSink
    from spillway.decoding.transaction import Piece
    from spillway.pg.versions import WalVersion

#: PostgreSQL's default of logical_decoding_work_mem.
WORK_MEM_BYTES_DEFAULT: Final = 64 << 20

#: Running-xacts records that are remembered: the server writes one in 15 seconds, so those of half
#: a day.
_XID_MARKS_MAX: Final = 3000

#: With fewer descriptors held nobody looks which of them are of the past.
HELD_RELATIONS_MIN: Final = 1024

#: So much in progress is handed on in no time, whichever transaction ends.
LIGHT_BYTES: Final = 256 << 10

_PARAMETER_CHANGE: Final = struct.Struct("<iiiiii")
#: what a checkpoint record begins with: its redo point
_CHECKPOINT_REDO: Final = struct.Struct("<Q")
_WAL_LEVEL_LOGICAL: Final = 2
_KINDS: Final = {
    ResolutionKind.TABLE: reorder.KIND_TABLE,
    ResolutionKind.TOAST: reorder.KIND_TOAST,
    ResolutionKind.SKIP: reorder.KIND_SKIP,
}


class Decoder:
    """One database's decoding session. Not safe for concurrent use.

    After an exception from :meth:`process` nothing more can be decoded with it: close it, and
    restore one.
    """

    def __init__(
        self,
        version: WalVersion,
        database_oid: int,
        mirror: CatalogMirror,
        sink: TransactionSink,
        *,
        work_mem_bytes: int = WORK_MEM_BYTES_DEFAULT,
        spill_dir: Path,
        start: int,
        start_decoding_at: int = 0,
        capture: CaptureFilter = EVERYTHING,
    ) -> None:
        """Begin in START, with a mirror that was just bootstrapped.

        Args:
            version: WAL format of the source.
            database_oid: the database whose changes are decoded.
            mirror: its catalog; from here on the decoder's own.
            sink: takes the transactions.
            work_mem_bytes: changes in progress that may be in memory, logical_decoding_work_mem.
            spill_dir: for spill files, the decoder's own; what earlier runs left in it is removed.
            start: where the first batch starts: the mirror's redo LSN.
            start_decoding_at: transactions whose commit record starts before this are not
                delivered.
            capture: what to decode at all; the same for the life of what is serialised.

        Raises:
            StorageError: *spill_dir* can't be made or cleared.
        """
        self._setup(version, database_oid, mirror, sink, work_mem_bytes, spill_dir, start, capture)
        self._build_with(SnapshotBuilder(mirror.consistent_lsn, start_decoding_at))

    def _setup(
        self,
        version: WalVersion,
        database_oid: int,
        mirror: CatalogMirror,
        sink: TransactionSink,
        work_mem_bytes: int,
        spill_dir: Path,
        start: int,
        capture: CaptureFilter,
        carried_files: Collection[str] = (),
    ) -> None:
        clear_spill_dir(spill_dir, carried_files)
        self._version = version
        self._database_oid = database_oid
        self._mirror = mirror
        self._sink = sink
        self._buffer = reorder.ReorderBuffer(
            action_table(version), database_oid, work_mem_bytes, bytes(spill_dir)
        )
        # Whose ids the buffer knows: one means the same while its descriptor is held.
        self._held: dict[int, RelationDescriptor] = {}
        self._held_max = HELD_RELATIONS_MIN
        self._capture = capture
        self._buffer.set_only_local(capture.only_local)
        self._buffer.set_partial_values(capture.selects_tables)
        self._invalidations = Invalidations(version, database_oid, self._buffer)
        self._buffer.set_invalidations(self._invalidations.parser)
        self._schema_changes = SchemaChanges(mirror, self._buffer, self._invalidations, capture)
        self._position = start
        self._spill_dir = spill_dir
        #: spill files that the state named last needs, and where it was taken; 0: there is none
        self._carried_files: frozenset[str] = frozenset(carried_files)
        self._carried_lsn = 0
        # What is in progress from before there may have changes in a file; 0: nothing has. And how
        # often anything was spilled by then.
        self._heavy_until = start
        self._spill_count = 0
        self._failed = False
        self._announced = False
        self._wal_level: int | None = None
        self._redo_lsn = 0
        self._xid_marks: deque[tuple[int, int]] = deque(maxlen=_XID_MARKS_MAX)
        self._audit: CatalogAudit | None = None
        self._tracked_generation = -1
        #: records that were looked at, and changed nothing that is serialised, but how far the
        #: source is known to be
        self._harmless = 0
        #: how many others there had been when the last state was serialised in which nothing was in
        #: progress; None before that
        self._serialized_at: int | None = None
        self._buffer.set_catalog(mirror.plain_redo)
        self._follow_tracked()

    def _build_with(self, builder: SnapshotBuilder) -> None:
        self._builder = builder
        self._ends = TransactionEnds(
            self._database_oid,
            self._mirror,
            self._buffer,
            self._invalidations,
            self._schema_changes,
            builder,
            self._sink,
            self._capture,
            announces_empty_prepare=self._version.announces_empty_prepare,
        )

    @classmethod
    def restore(
        cls,
        data: bytes,
        version: WalVersion,
        sink: TransactionSink,
        *,
        work_mem_bytes: int = WORK_MEM_BYTES_DEFAULT,
        spill_dir: Path,
        start_decoding_at: int | None,
        capture: CaptureFilter = EVERYTHING,
        as_of: int = 0,
    ) -> Self:
        """Go on from what :meth:`serialize` returned; the next batch starts at ``position``.

        Args:
            data: the serialised state, as of the restart_lsn that was persisted with
                *start_decoding_at* or before.
            version: WAL format of the source.
            sink: takes the transactions.
            work_mem_bytes: as for a new decoder.
            spill_dir: as for a new decoder.
            start_decoding_at: the persisted position: every transaction whose commit record starts
                before it was delivered, and is not delivered again. None when there is no such
                position (offline, a rewind): then the decoder becomes CONSISTENT, and delivers,
                once the transactions in progress in *data* have ended.
            capture: as for a new decoder.
            as_of: the position for which *data* is as good, if that is later than its own
                (``is_as_serialized``).

        Raises:
            StorageError: *data* is damaged, or *spill_dir* can't be used.
            DecodingStateLost: a spill file that *data* names is not there, or too short.
        """
        state = serialization.load(data)
        position = max(state.lsn, as_of)
        # Without a position, whoever has the state need not have its files.
        carried = None if start_decoding_at is None else state.carried
        if carried is not None:
            carried.check_files(spill_dir)
        self = cls.__new__(cls)
        self._setup(
            version,
            state.database_oid,
            state.mirror,
            sink,
            work_mem_bytes,
            spill_dir,
            position,
            capture,
            carried.file_names if carried is not None else (),
        )
        if start_decoding_at is None:
            running = [xid for xid, top_xid, _, _ in state.transactions if not top_xid]
            self._build_with(SnapshotBuilder.restored(position, running))
        else:
            start_decoding_at = max(start_decoding_at, state.start_decoding_at)
            self._build_with(SnapshotBuilder.restored(start_decoding_at))
        self._buffer.set_state(int(self._builder.state), 0, self._builder.start_decoding_at)
        if carried is not None:
            self._held = carried.restore(self._buffer, self._mirror.registry, spill_dir)
            self._ends.prepared.update(carried.prepared)
            self._carried_lsn = state.lsn
        else:
            for xid, top_xid, first_lsn, flags in state.transactions:
                self._buffer.restore_transaction(xid, top_xid, first_lsn, flags)
        self._invalidations.load(state.invalidations)
        if carried is not None:
            self._schema_changes.recall()
        return self

    def serialize(self) -> bytes:
        """Return mirror, builder and the transactions in progress as of ``position``, versioned and
        checksummed.

        Call it between two calls of :meth:`process`.

        Raises:
            NotReady: the decoder is not CONSISTENT yet.
        """
        return self._serialize(None)

    def carry(self) -> bytes:
        """Return the same with all that was read of the transactions in progress; from now on they
        hold nothing back.

        It needs the spill files in ``carried_files``: durable, and the caller's to remove when it
        is not needed any more. ``restart_lsn`` counts on its being kept.

        Raises:
            NotReady: the decoder is not CONSISTENT yet.
            DiskFull, StorageError: a spill file can't be written or synced.
        """
        self._check_consistent()
        self._schema_changes.flush_all(self._position)
        prepared, registry = self._ends.prepared, self._mirror.registry
        carried = Carried.of(self._buffer, self._position, prepared, registry, self._spill_dir)
        state = self._serialize(carried)
        self._carried_files = carried.file_names
        self._carried_lsn = self._position
        return state

    def _check_consistent(self) -> None:
        if self._builder.state != SnapshotState.CONSISTENT:
            raise NotReady(
                f"decoding has reached {self._builder.state.label} only",
                hint="It becomes consistent once the transactions that ran when it began have "
                "ended.",
            )

    @property
    def is_as_serialized(self) -> bool:
        """Whether the last serialised state is as good as one of now, given ``position`` (see
        :meth:`restore`): nothing was in progress, and no record since then was of interest, but for
        the source's checkpoints and lists of running transactions.

        What those tell is a bound: that no older transaction runs, so that rows which nobody sees
        may go. The next one tells it again.
        """
        return self._serialized_at == self._buffer.looked_at - self._harmless

    def _serialize(self, carried: Carried | None) -> bytes:
        self._check_consistent()
        is_calm = not self._buffer.transactions() and carried is None
        self._serialized_at = self._buffer.looked_at - self._harmless if is_calm else None
        return serialization.dump(
            serialization.DecoderState(
                self._database_oid,
                self._position,
                self._builder.start_decoding_at,
                tuple(self._buffer.transactions()),
                self._mirror,
                self._invalidations.dump(),
                carried,
            )
        )

    def audit(self) -> CatalogAudit:
        """Check the mirror against every NEW_CID record from here on; :meth:`process` then may
        raise CatalogAuditFailed.

        Costs a stop of the kernel for each row of a catalog that changes.
        """
        if self._audit is None:
            self._audit = CatalogAudit(self._mirror)
            self._buffer.set_audit(audit=True)
        return self._audit

    def condense(self) -> None:
        """Let the catalog's rows go that were not needed since the last :meth:`serialize`; each is
        made again when it is.
        """
        self._mirror.condense()

    # ---- what others may know

    @property
    def position(self) -> int:
        """End of the last record processed (EndRecPtr)."""
        return self._position

    @property
    def mirror(self) -> CatalogMirror:
        """The catalog, which is the decoder's own: for looking only."""
        return self._mirror

    @property
    def restart_lsn(self) -> int:
        """First record of the oldest transaction in progress that was not carried, or where those
        that were have been; ``position`` without any.
        """
        oldest = self._buffer.oldest_first_lsn()
        # All that were in progress there were carried; whatever began later began behind it.
        return max(oldest, self._carried_lsn) if oldest else self._position

    @property
    def carried_files(self) -> frozenset[str]:
        """Names of the spill files that the last carried state needs, restored or returned."""
        return self._carried_files

    @property
    def redo_lsn(self) -> int:
        """Redo point of the last checkpoint of the source whose record was processed; 0 before the
        first one.
        """
        return self._redo_lsn

    @property
    def own_batches(self) -> int:
        """How many batches had records of the database itself; the others at most moved
        ``position``, or the shared catalogs.
        """
        return self._buffer.own_batches

    @property
    def snapshot_state(self) -> SnapshotState:
        """The snapshot builder's state."""
        return self._builder.state

    @property
    def start_decoding_at(self) -> int:
        """Transactions whose commit record starts here or later are delivered; meaningful once
        CONSISTENT.
        """
        return self._builder.start_decoding_at

    def awaited_xids(self) -> set[int]:
        """The transactions that must end before decoding, or a first state to restart from, is
        consistent.
        """
        return self._builder.awaited or {t[0] for t in self.transactions() if not t[1]}

    @property
    def memory_bytes(self) -> int:
        """Memory that changes in progress occupy now."""
        return self._buffer.memory_bytes

    @property
    def is_light(self) -> bool:
        """Whether all that is in progress is little, so that no transaction's end takes long."""
        buffer = self._buffer
        if self._heavy_until or buffer.spill_count != self._spill_count:
            if buffer.spill_count != self._spill_count:
                self._spill_count, self._heavy_until = buffer.spill_count, self._position
            # What began before may have changes in a file.
            oldest = buffer.oldest_first_lsn()
            if oldest and oldest < self._heavy_until:
                return False
            self._heavy_until = 0
        return buffer.memory_bytes <= LIGHT_BYTES

    @property
    def stats(self) -> DecoderStats:
        """Counters since the decoder was made."""
        return self._ends.stats

    def skim(self) -> None:
        """Leave changes out from here on, and follow only the catalog and who begins and ends:
        transactions come empty.
        """
        self._buffer.set_skimming(True)
        self._schema_changes.leave_out()

    def note_ddl(self, note: Callable[[CommittedDdl], None]) -> None:
        """Have *note* called with what each transaction that commits did to tables."""
        self._schema_changes.note(note)

    def transactions(self) -> list[tuple[int, int, int, int]]:
        """Return (xid, top xid or 0, first_lsn, flags) of every transaction in progress, tops
        before their children.
        """
        return self._buffer.transactions()

    def take_pieces(self, take_piece: Callable[[Piece], None]) -> None:
        """Hand over, at their commit, what was read of transactions that began before the
        serialised state.

        The state was serialised where decoding was consistent: what is missing of them is another
        decoder's matter.
        """
        self._ends.take_piece = take_piece

    def xid_marks(self) -> tuple[tuple[int, int], ...]:
        """Return (end, the xid that was to be given out next there) of the last running-xacts
        records, oldest first.
        """
        return tuple(self._xid_marks)

    def piece(self, xid: int) -> Piece:
        """Take out what was read so far of a top-level transaction in progress; the caller closes
        it.
        """
        return self._ends.piece(xid)

    def stream_from(self, lsn: int, stream_bytes: int) -> None:
        """Hand on transactions that begin at *lsn* or later while they are in progress, too.

        A part comes whenever more than *stream_bytes* of changes were made since the last one; with
        0 after each change. Call it with the same values after a restart, and the same parts come
        again.

        Args:
            lsn: ``position``, or what it was when streaming began.
            stream_bytes: of a transaction's own changes, with its subtransactions'.
        """
        self._buffer.set_streaming(lsn, stream_bytes)
        self._ends.streaming = True

    def close(self) -> None:
        """Free memory and remove spill files; safe to repeat."""
        self._failed = True
        self._buffer.close()

    # ---- the loop

    def process(self, batch: RecordBatch, start: int = 0) -> None:
        """Decode the next records, those of *batch* from index *start* on; delivers every
        transaction that commits in them.

        Raises:
            WalError: a record is damaged or of an unknown kind.
            DecodingError: it can't be decoded.
            StorageError: spilling or restoring failed; DiskFull when the disk is full.
            NotReady: an earlier call failed, or the decoder is closed.
            Whatever the sink raises.
        """
        if self._failed:
            raise NotReady("the decoder has failed or is closed", hint="Restore one from a state.")
        if start >= len(batch):
            return
        self._failed = True
        if not self._announced and self._builder.state == SnapshotState.CONSISTENT:
            self._announce()
        try:
            try:
                self._run(batch, start)
            finally:
                # What committed before an error is delivered, too.
                self._ends.hand_over()
        except (WalError, DecodingError) as error:
            # A catalog's row is read when somebody asks for it, of whom the row knows nothing.
            at = min(self._buffer.index, len(batch) - 1)
            error.details.setdefault("lsn", str(Lsn(self._buffer.fields(batch, at)[3])))
            raise
        self._position = self._buffer.end_lsn(batch)
        if len(self._held) >= self._held_max:
            self._forget_relations()
        self._failed = False
        self._sink.progress(self._position)

    @property
    def database_oid(self) -> int:
        """The database that is decoded."""
        return self._database_oid

    @property
    def is_eager(self) -> bool:
        """Whether all that concerns every database is to be looked at at once: while decoding is
        not consistent.
        """
        return self._buffer.is_eager

    @property
    def sees_ends(self) -> bool:
        """Whether the plain end of any database's transaction may matter here."""
        return self._buffer.sees_ends

    def interest(self, batch: RecordBatch, start: int) -> int:
        """Say what the records of *batch* from index *start* on mean here; see
        :class:`spillway.wal.shared_walk.Interest`.
        """
        return self._buffer.interest(batch, start)

    def pass_to(self, lsn: int) -> None:
        """Go on at *lsn*: no record before it, from ``position`` on, is of any interest here.

        Raises:
            NotReady: an earlier call failed, or the decoder is closed.
            Whatever the sink raises.
        """
        if self._failed:
            raise NotReady("the decoder has failed or is closed", hint="Restore one from a state.")
        if not self._announced and self._builder.state == SnapshotState.CONSISTENT:
            self._announce()
        self._position = lsn
        self._sink.progress(lsn)

    def _run(self, batch: RecordBatch, index: int) -> None:
        """Go through *batch* from *index* on, and do what the kernel stops for."""
        buffer = self._buffer
        while (stop := buffer.run(batch, index)) != reorder.AT_END:
            index = buffer.index
            if stop == reorder.UNRESOLVED:
                self._resolve(batch, index)
                continue
            if stop == reorder.FOR_PYTHON:
                self._handle(batch, index)
            elif stop == reorder.FOR_CATALOG:
                record = batch.record(index)
                if not buffer.redo(batch, index):
                    self._mirror.apply(record)
                self._follow_tracked()
                if self._audit is not None:
                    self._audit.check(record, self._buffer.own_xids(record.xid))
            elif stop == reorder.FOR_TRUNCATE:
                self._truncate(batch, index)
            elif stop == reorder.FOR_INVALIDATIONS:
                self._invalidate(batch, index)
            elif stop == reorder.FOR_RUN:
                self._ends.hand_over()
            elif stop != reorder.FOR_PART:
                self._ends.message(batch, index)
            if buffer.part_due:
                self._ends.part(batch, index)
            index += 1

    def _handle(self, batch: RecordBatch, index: int) -> None:
        """Take a record that the action table gives to Python."""
        rmid, info, xid, lsn, end_lsn, origin, data = self._buffer.fields(batch, index)
        if rmid == rmgr.RM_XACT_ID:
            self._transaction_end(info, xid, lsn, end_lsn, origin, data)
        elif rmid == rmgr.RM_STANDBY_ID:
            self._harmless += 1
            self._running_xacts(RunningXacts.parse(data, lsn), lsn, end_lsn)
        elif rmid == rmgr.RM_XLOG_ID:
            if info == rmgr.XLOG_PARAMETER_CHANGE:
                self._parameter_change(data, lsn)
            elif len(data) >= _CHECKPOINT_REDO.size:
                self._harmless += 1
                self._redo_lsn = _CHECKPOINT_REDO.unpack_from(data)[0]
        elif rmid == rmgr.RM_HEAP2_ID:
            # Only in audit mode does the kernel stop at one.
            assert self._audit is not None
            # Of a transaction that began before we did, not all subtransactions are known: who
            # wrote a row can't be told.
            if self._builder.process_change(self._buffer.top_xid(xid), lsn):
                self._audit.announce(xid, data, lsn)
        else:
            # Relation map, storages made and truncated, multixacts: catalogs, or the mirror ignores
            # it.
            self._mirror.apply(batch.record(index))
            self._follow_tracked()
            if rmid == rmgr.RM_RELMAP_ID and xid:
                self._buffer.touch_catalog(xid)

    def _follow_tracked(self) -> None:
        generation = self._mirror.tracked_generation
        if generation != self._tracked_generation:
            self._tracked_generation = generation
            tracked = list(self._mirror.tracked)
            self._mirror.number_storages(tracked)
            self._buffer.set_tracked(tracked)

    # ---- what is whose storage

    def _resolve(self, batch: RecordBatch, index: int) -> None:
        """Ask the mirror whose storage record *index* writes to, and tell the kernel."""
        locator = RelFileLocator(*self._buffer.block_locator(batch, index))
        rmid, _, xid, lsn, *_ = self._buffer.fields(batch, index)
        own_xids = self._buffer.own_xids(xid)
        resolution = self._mirror.resolve(locator, own_xids)
        if resolution.reason is SkipReason.UNKNOWN and self._buffer.has_tuple(batch, index):
            raise DecodingError(
                f"the record at {Lsn(lsn)} holds rows of storage {'/'.join(map(str, locator))}, "
                "which no relation of the catalog has",
                hint="The catalog and the WAL do not fit each other; report this with the WAL "
                "segment.",
                lsn=str(Lsn(lsn)),
                rmid=rmid,
                xid=xid,
            )
        is_catalog = resolution.reason is SkipReason.SYSTEM_CATALOG
        if is_catalog or not self._captures(resolution, own_xids):
            # Who changes the catalog would ask for each catalog again after each of its records.
            for_all = is_catalog and self._mirror.resolve(locator).reason is resolution.reason
            self._buffer.bind(batch, index, reorder.KIND_SKIP, 0, for_all)
            return
        # What was done to tables before comes before the first row that is written then. Whoever
        # changes the catalog asks here for every table again. A rewrite's first row does so, too:
        # what older rows have in columns that were added is in the catalog only until it ends.
        is_rewrite = resolution.reason is SkipReason.REWRITE
        self._schema_changes.flush(xid, lsn, resolution.owner_oid if is_rewrite else 0)
        if resolution.kind is ResolutionKind.TABLE:
            self._add_relation(resolution)
        self._buffer.bind(
            batch,
            index,
            _KINDS[resolution.kind],
            resolution.relation_id if resolution.kind is ResolutionKind.TABLE else 0,
        )

    def _captures(self, resolution: Resolution, own_xids: Collection[int]) -> bool:
        """Say whether the capture filter lets a table through; TOAST goes with its table."""
        if not self._capture.selects_tables or resolution.kind is ResolutionKind.SKIP:
            return True
        if resolution.kind is ResolutionKind.TOAST:
            resolution = self._mirror.resolve_oid(resolution.owner_oid, own_xids)
        return resolution.descriptor is not None and self._capture.captures(resolution.descriptor)

    def _add_relation(self, resolution: Resolution) -> None:
        assert resolution.descriptor is not None
        self._held[resolution.relation_id] = resolution.descriptor
        self._buffer.add_relation(resolution.relation_id, resolution.descriptor.columns)

    def _forget_relations(self) -> None:
        """Let go of definitions that tables had, when neither the catalog nor a change in progress
        has them any more.
        """
        all_held = WeakValueDictionary(self._held)
        before = set(self._held)
        self._held = {number: self._held[number] for number in self._buffer.relations_in_use()}
        self._held.update(all_held.items())
        self._buffer.forget_relations(before - self._held.keys())
        self._held_max = max(HELD_RELATIONS_MIN, 2 * len(self._held))

    def _truncate(self, batch: RecordBatch, index: int) -> None:
        """Queue a TRUNCATE with the descriptors of its tables as of now."""
        _, _, xid, lsn, _, _, data = self._buffer.fields(batch, index)
        flags, oids = parse_truncate(data, lsn)
        own_xids = self._buffer.own_xids(xid)
        self._schema_changes.flush(xid, lsn)
        relation_ids = []
        for oid in oids:
            resolution = self._mirror.resolve_oid(oid, own_xids)
            if resolution.reason is SkipReason.UNKNOWN:
                raise DecodingError(
                    f"the truncate record at {Lsn(lsn)} names relation {oid}, which the catalog "
                    "does not have",
                    hint="The catalog and the WAL do not fit each other; report this with the WAL "
                    "segment.",
                    lsn=str(Lsn(lsn)),
                    relation=oid,
                )
            if resolution.kind is ResolutionKind.TABLE and self._captures(resolution, own_xids):
                self._add_relation(resolution)
                relation_ids.append(resolution.relation_id)
        if relation_ids or not self._capture.selects_tables:
            self._buffer.add_truncate(batch, index, flags, relation_ids)

    # ---- ends of transactions

    def _transaction_end(
        self, info: int, xid: int, lsn: int, end_lsn: int, origin: int, data: bytes
    ) -> None:
        """Take a commit, abort or prepare record, also of a prepared transaction."""
        op = info & rmgr.XLOG_XACT_OPMASK
        if op == rmgr.XLOG_XACT_PREPARE:
            prepare = parse_prepare(self._version, data, lsn)
            self._ends.prepare(prepare, lsn, end_lsn, origin)
            return
        end = parse_transaction_end(self._version, info, xid, data, lsn)
        if op in (rmgr.XLOG_XACT_COMMIT, rmgr.XLOG_XACT_COMMIT_PREPARED):
            if self._ends.commit(end, info, lsn, end_lsn, origin):
                self._follow_tracked()
        elif xids := self._ends.abort(end, info, lsn, end_lsn, origin):
            self._mirror.abort(xids, lsn)
            self._follow_tracked()
        if self._audit is not None:
            self._audit.forget((end.xid, *end.subxids))
        if self._builder.process_end((end.xid,), lsn):
            self._state_changed(lsn)

    def _running_xacts(self, running: RunningXacts, lsn: int, end_lsn: int) -> None:
        """Advance the snapshot builder; drop what a crash of the server ended without a record."""
        if self._xid_marks and self._xid_marks[-1][1] == running.next_xid:
            self._xid_marks.pop()
        # The server gives out no xid from before it gathers them until the record is inserted
        # (XidGenLock).
        self._xid_marks.append((end_lsn, running.next_xid))
        if self._builder.process_running_xacts(lsn, running):
            self._state_changed(lsn)
        self._ends.abandon(running.oldest_running_xid, lsn, end_lsn)
        self._mirror.advance(running.oldest_running_xid, lsn)
        self._follow_tracked()

    def _state_changed(self, lsn: int) -> None:
        builder = self._builder
        self._buffer.set_state(int(builder.state), builder.next_phase_at, builder.start_decoding_at)
        self._check_wal_level(lsn)
        if builder.state == SnapshotState.CONSISTENT:
            self._announce()

    def _announce(self) -> None:
        self._announced = True
        self._sink.consistent(self._builder.start_decoding_at)

    def _invalidate(self, batch: RecordBatch, index: int) -> None:
        """Queue a command's invalidation messages; one without a transaction's take effect at
        once.
        """
        _, _, xid, lsn, end_lsn, _, data = self._buffer.fields(batch, index)
        self._ends.invalidate(self._invalidations.record(xid, data, lsn), lsn, end_lsn)

    def _parameter_change(self, data: bytes, lsn: int) -> None:
        with contextlib.suppress(struct.error):
            self._wal_level = _PARAMETER_CHANGE.unpack_from(data)[5]
        self._check_wal_level(lsn)

    def _check_wal_level(self, lsn: int) -> None:
        """Refuse WAL without old keys and new tuples."""
        if (
            self._wal_level is not None
            and self._wal_level < _WAL_LEVEL_LOGICAL
            and self._builder.state >= SnapshotState.FULL_SNAPSHOT
        ):
            raise WalLevelNotLogical(
                f"the source's wal_level is below logical from {Lsn(lsn)} on",
                hint="ALTER SYSTEM SET wal_level = 'logical'; then restart the server. Decoding "
                "begins anew by itself then, behind what was written meanwhile and can't be "
                "decoded; slots that missed something are invalidated.",
                lsn=str(Lsn(lsn)),
            )
