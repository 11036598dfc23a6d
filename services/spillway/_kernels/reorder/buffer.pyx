# cython: language_level=3, boundscheck=False, wraparound=False
"""The reorder buffer: record batches in, transactions out.

:class:`ReorderBuffer` goes through batches from the walker and gathers changes by transaction;
between two records the decoder queues a TRUNCATE, ends, takes or forgets a transaction, lists those
in progress. A transaction taken at its commit leaves as a change stream (``merge.pyx``). Those in
progress can be carried over a restart (``carry.pyx``).

``run`` goes through a batch without the GIL: it keeps the table of transactions, copies tuples of
tables into arenas, spills when memory is short, and *stops* at a record that Python has to handle,
saying why and at which index. Python does its part and calls ``run`` again: at the same index when
a locator had to be resolved (everything ``run`` does before a stop can be done twice), at the next
one otherwise.

Only records that concern the database are looked at: its own and everyone's (``record_routes``). Of
transactions of other databases the table knows no more than what is everyone's.

What happens to a record is read from ``actions``, one byte for each resource manager and info code,
made by ``decoding/dispatch.py``. Whatever its action, every record first:

- makes its xid a subtransaction when it bears a top-level xid (block id 252);
- gives its xid an entry, so that the entry's first_lsn is PostgreSQL's (commits and aborts do not);
- goes to the catalog mirror when one of its blocks belongs to a tracked catalog, a plain one to
  ``catalog/tuples.pyx``, others to Python. Its transaction has then a view of the catalog of its
  own, and the locators it has bound so far are forgotten.

Most ends of transactions need nobody: commits go to a run (``commit.pyx``), which Python takes when
it is full, before it delivers anything else, and at the end of a batch.

Streaming. Who wants transactions while they are in progress gets them in parts. A part is due after
a record by which what was queued for the transaction since the last part exceeds ``stream_bytes``,
and which leaves nothing unfinished: no TOAST chunks without their row, no speculative insertion.
Nothing else decides, neither memory nor other transactions, so that decoding again makes the same
parts. What PostgreSQL queues and then passes over when it replays (changes of catalogs, TOAST
deletions, copies made by rewrites) counts as it does there.

Parts: reorder_table (transactions and arenas), reorder_locators (what is whose storage),
reorder_extract (record → change), reorder_commit (small transactions → runs), reorder_spill (the
bound on memory), reorder_toast and reorder_merge (transaction → chunks).

Source: ReorderBufferQueueChange, ReorderBufferProcessPartialChange, ReorderBufferCheckMemoryLimit,
ReorderBufferCommit, ReorderBufferCommitChild, ReorderBufferAbort, ReorderBufferAbortOld,
src/backend/replication/logical/reorderbuffer.c; LogicalDecodingProcessRecord and the rmgrs' decode
functions, src/backend/replication/logical/decode.c; SnapBuildProcessChange, snapbuild.c
"""

from libc.errno cimport EDQUOT, ENOMEM, ENOSPC
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy, memset

from spillway._kernels.catalog.tuples cimport CatalogRedo
from spillway._kernels.reorder.changes cimport (
    FROM_ORIGIN,
    FROM_OTHER,
    HAS_NEW,
    INVALIDATION,
    SCHEMA_CHANGE,
    TRUNCATE,
    ChangeHeader,
)
from spillway._kernels.reorder.invalidation_items cimport InvalidationParser
from spillway._kernels.wal.record_batch cimport RecordBatch, Route, WalBlockRef, WalRecord, load_u32
from spillway._kernels.reorder.carry cimport dump_transactions, load_transactions, spill_large
from spillway._kernels.reorder.commit cimport (
    COMMIT_FAILED,
    COMMIT_FOR_PYTHON,
    COMMIT_NO_MEMORY,
    COMMIT_RUN_FULL,
    CommitOutcome,
    CommitRun,
)
from spillway._kernels.reorder.extract cimport (
    EXTRACT_BAD_MESSAGE,
    EXTRACT_BAD_TOAST_CHUNK,
    EXTRACT_BAD_TUPLE,
    EXTRACT_COMPRESSED_UPDATE,
    EXTRACT_NO_BLOCK,
    EXTRACT_NO_MEMORY,
    EXTRACT_OK,
    EXTRACT_SHORT_BLOCK,
    EXTRACT_SHORT_MAIN,
    SIZE_OF_HEAP_DELETE,
    SIZE_OF_HEAP_INSERT,
    SIZE_OF_HEAP_MULTI_INSERT,
    SIZE_OF_HEAP_UPDATE,
    SIZE_OF_LOGICAL_MESSAGE,
    XLH_DELETE_CONTAINS_OLD_KEY,
    XLH_DELETE_CONTAINS_OLD_TUPLE,
    XLH_DELETE_IS_SUPER,
    XLH_INSERT_CONTAINS_NEW_TUPLE,
    XLH_INSERT_IS_SPECULATIVE,
    XLH_INSERT_LAST_IN_MULTI,
    XLH_INSERT_ON_TOAST_RELATION,
    XLH_UPDATE_CONTAINS_NEW_TUPLE,
    XLH_UPDATE_CONTAINS_OLD_KEY,
    XLH_UPDATE_CONTAINS_OLD_TUPLE,
    ExtractStatus,
    extract_confirm,
    extract_delete,
    extract_insert,
    extract_message,
    extract_multi_insert,
    extract_update,
)
from spillway._kernels.reorder.locators cimport (
    GENERATION_OF_ALL,
    LOCATOR_SKIP,
    LOCATOR_TABLE,
    LOCATOR_TOAST,
    LOCATOR_UNKNOWN,
    LocatorCache,
    LocatorKind,
    TrackedLocators,
)
from spillway._kernels.reorder.merge cimport ChangeStream
from spillway._kernels.reorder.own_xids cimport own_xids_of
from spillway._kernels.reorder.spill cimport Spiller
from spillway._kernels.reorder.table cimport (
    FIRST_ORIGIN_KNOWN,
    TXN_HAS_BASE_SNAPSHOT,
    TXN_HAS_CATALOG_CHANGES,
    TXN_HAS_PARTIAL_CHANGE,
    TXN_HAS_STREAMABLE_CHANGE,
    TXN_HAS_TOAST,
    TXN_INCOMPLETE,
    TXN_INVALIDATES,
    TXN_NEEDS_ASSEMBLY,
    TXN_STREAMED,
    TXN_TOUCHED_CATALOG,
    TransactionTable,
    Txn,
    add_ids,
    id_set_add,
    note_change,
    pad8,
    precedes,
    top_of,
)
from spillway._kernels.reorder.toast cimport RelationPlans

import os

from spillway.errors import CorruptWal, DecodingError, DiskFull, StorageError, UnsupportedWal
from spillway.pg.lsn import Lsn

# What the bytes of the action table mean; decoding/dispatch.py has the same numbers (a test
# compares).
cdef enum Action:
    ACTION_UNKNOWN = 0
    ACTION_IGNORE = 1
    ACTION_IGNORE_XACT = 2
    ACTION_PYTHON = 3
    ACTION_PYTHON_XACT = 4
    ACTION_INSERT = 5
    ACTION_MULTI_INSERT = 6
    ACTION_UPDATE = 7
    ACTION_DELETE = 8
    ACTION_CONFIRM = 9
    ACTION_TRUNCATE = 10
    ACTION_INPLACE = 11
    ACTION_NEW_CID = 12
    ACTION_INVALIDATIONS = 13
    ACTION_MESSAGE = 14

cdef enum Stop:
    STOP_AT_END = 0
    STOP_FOR_PYTHON = 1
    STOP_FOR_CATALOG = 2
    STOP_UNRESOLVED = 3
    STOP_FOR_TRUNCATE = 4
    STOP_FOR_MESSAGE = 5
    STOP_FOR_INVALIDATIONS = 6
    STOP_FOR_PART = 7
    STOP_FOR_RUN = 8
    # Below: failures, raised by run().
    STOP_UNKNOWN_RECORD = 16
    STOP_EXTRACT = 17
    STOP_SPILL = 18
    STOP_NO_MEMORY = 19
    STOP_NO_XID = 20
    STOP_COMMIT = 21
    STOP_REDO = 22

cdef enum Concerned:
    CONCERNED_NEVER = 0
    CONCERNED_LATER = 1
    CONCERNED_NOW = 2

cdef enum SnapshotState:
    SNAPSHOT_START = 0
    SNAPSHOT_BUILDING = 1
    SNAPSHOT_FULL = 2
    SNAPSHOT_CONSISTENT = 3

cdef enum:
    # For set_streaming: no transaction begins there.
    STREAM_NOTHING = 0xFFFFFFFFFFFFFFFF

cdef enum:
    RM_SMGR_ID = 2
    SMGR_CREATE = 0x10
    SIZE_OF_SMGR_CREATE = 16
    GLOBAL_TABLESPACE = 1664
    SIZE_OF_HEAP_TRUNCATE = 12
    # What something queued counts at least: a change without tuples, or what PostgreSQL alone has
    # to queue.
    QUEUED_BYTES_MIN = 64
    EXTENT_BYTES_MIN = 8192
    EXTENT_BYTES_MAX = 1 << 20

AT_END = STOP_AT_END
FOR_PYTHON = STOP_FOR_PYTHON
FOR_CATALOG = STOP_FOR_CATALOG
UNRESOLVED = STOP_UNRESOLVED
FOR_TRUNCATE = STOP_FOR_TRUNCATE
FOR_MESSAGE = STOP_FOR_MESSAGE
FOR_INVALIDATIONS = STOP_FOR_INVALIDATIONS
FOR_PART = STOP_FOR_PART
FOR_RUN = STOP_FOR_RUN

PASSED = CONCERNED_NEVER
LATER = CONCERNED_LATER
NOW = CONCERNED_NOW

KIND_TABLE = LOCATOR_TABLE
KIND_TOAST = LOCATOR_TOAST
KIND_SKIP = LOCATOR_SKIP

_ALIGN_BYTES = {"c": 1, "s": 2, "i": 4, "d": 8}

cdef dict _EXTRACT_REASONS = {
    EXTRACT_SHORT_MAIN: "its main data ends too early",
    EXTRACT_SHORT_BLOCK: "its block data does not fit its tuples",
    EXTRACT_NO_BLOCK: "it has no block 0",
    EXTRACT_BAD_TUPLE: "a tuple header contradicts its tuple",
    EXTRACT_BAD_TOAST_CHUNK: "it is no TOAST chunk but belongs to a TOAST table",
    EXTRACT_BAD_MESSAGE: "its lengths exceed the record",
}

# For set_streaming: no transaction begins there.
STREAM_FROM_NEVER = <uint64_t> STREAM_NOTHING

# Flags of a transaction, as end() and transactions() give them.
HAS_BASE_SNAPSHOT = TXN_HAS_BASE_SNAPSHOT
HAS_CATALOG_CHANGES = TXN_HAS_CATALOG_CHANGES
TOUCHED_CATALOG = TXN_TOUCHED_CATALOG
INCOMPLETE = TXN_INCOMPLETE
STREAMED = TXN_STREAMED


def action_numbers():
    """Return name → number of every action, for the test that holds dispatch.py to them."""
    return {
        "UNKNOWN": ACTION_UNKNOWN, "IGNORE": ACTION_IGNORE, "IGNORE_XACT": ACTION_IGNORE_XACT,
        "PYTHON": ACTION_PYTHON, "PYTHON_XACT": ACTION_PYTHON_XACT, "INSERT": ACTION_INSERT,
        "MULTI_INSERT": ACTION_MULTI_INSERT, "UPDATE": ACTION_UPDATE, "DELETE": ACTION_DELETE,
        "CONFIRM": ACTION_CONFIRM, "TRUNCATE": ACTION_TRUNCATE, "INPLACE": ACTION_INPLACE,
        "NEW_CID": ACTION_NEW_CID, "INVALIDATIONS": ACTION_INVALIDATIONS, "MESSAGE": ACTION_MESSAGE,
    }


cdef inline bint is_creation_of_own(const WalRecord *record) noexcept nogil:
    """Say whether it creates storage outside of pg_global: of a database's own the mirror knows by
    pg_class.
    """
    return (record.rmid == RM_SMGR_ID and record.info & 0x70 == SMGR_CREATE
            and record.main_len >= SIZE_OF_SMGR_CREATE
            and load_u32(record.main_data) != GLOBAL_TABLESPACE)


cdef class ReorderBuffer:
    """Transactions in progress in one database, and the loop over record batches that fills
    them.
    """

    cdef TransactionTable _table
    cdef LocatorCache _locators
    cdef TrackedLocators _tracked
    # The mirror's, for plain records of tracked catalogs; None: all of them are Python's.
    cdef CatalogRedo _catalog
    # What went wrong in it, or in taking invalidations.
    cdef object _redo_error
    # Takes the invalidations of transactions; None: they are Python's.
    cdef InvalidationParser _invalidations
    cdef RelationPlans _plans
    cdef Spiller _spiller
    # Plain commits that are not handed over yet.
    cdef readonly CommitRun commits
    cdef uint8_t _actions[4096]
    cdef uint32_t _database
    cdef int _state
    cdef uint32_t _next_phase_at
    cdef uint64_t _start_decoding_at
    cdef int _failure
    # Transactions whose first record is here or later are streamed; STREAM_NOTHING: none
    cdef uint64_t _stream_from
    cdef uint64_t _stream_bytes
    # The record handled last made a part of its transaction due.
    cdef readonly bint part_due
    cdef bint _audit
    # Changes are left out: who begins and ends counts, and the catalog.
    cdef bint _skims
    # Leave out what came in through a replication origin.
    cdef bint _only_local
    # The batch that is gone through; where in it the own chain, everyone's, and the list of plain
    # ends are.
    cdef RecordBatch _batch
    cdef uint32_t _own
    cdef uint32_t _common
    cdef uint32_t _end
    # How many batches had records of the database itself.
    cdef readonly uint64_t own_batches
    # How many records were looked at, its own and everyone's; again when it went on at one.
    cdef readonly uint64_t looked_at
    # Index of the record that run stopped at.
    cdef readonly Py_ssize_t index

    def __init__(self, bytes actions, uint32_t database_oid, size_t work_mem_bytes,
                 bytes spill_dir):
        """Make an empty buffer; *actions* has 4096 bytes, indexed by rmid * 16 + info // 16."""
        cdef size_t extent = work_mem_bytes // 8
        if len(actions) != 4096:
            raise ValueError("the action table has 4096 entries")
        memcpy(self._actions, <const uint8_t *> actions, 4096)
        extent = min(max(extent, <size_t> EXTENT_BYTES_MIN), <size_t> EXTENT_BYTES_MAX)
        # A whole power of two with the extent's own header in it, so that freed ones fit new ones.
        self._table = TransactionTable((extent & ~(<size_t> 4095)) - 16)
        self._locators = LocatorCache()
        self._tracked = TrackedLocators()
        self._plans = RelationPlans()
        self._spiller = Spiller(spill_dir, work_mem_bytes)
        self.commits = CommitRun(self._table, self._plans)
        self._database = database_oid
        self._stream_from = STREAM_NOTHING

    # ---- the loop

    def run(self, RecordBatch batch not None, Py_ssize_t start):
        """Go through *batch* from record *start*; return why it stopped, with the place in
        ``index``.

        Raises:
            CorruptWal: a record's inside contradicts its lengths.
            UnsupportedWal: a record that the action table does not know.
            DiskFull, StorageError: a spill file can't be written.
        """
        cdef int stop
        self.part_due = False
        if batch is not self._batch or start < self.index:
            self._enter(batch)
        with nogil:
            stop = self._run(batch, start)
        if stop == STOP_AT_END:
            self._batch = None
        if stop >= STOP_UNKNOWN_RECORD:
            raise self._failed(stop, &batch.records[self.index])
        return stop

    cdef void _enter(self, RecordBatch batch):
        """Stand at the beginning of *batch*, of which only records of the database and everyone's
        are looked at.
        """
        cdef const Route *own = batch.route_of(self._database)
        self._batch = batch
        self._own = own.first if own is not NULL else <uint32_t> batch.count
        self.own_batches += own is not NULL
        self._common = batch.routes[0].first
        self._end = 0

    cdef inline bint _sees_ends(self) noexcept nogil:
        """Say whether the plain end of any transaction may matter: of one in progress, or while it
        is awaited.
        """
        return self._table._count > 0 or self._state != SNAPSHOT_CONSISTENT or self._audit

    cdef inline Py_ssize_t _next_from(self, RecordBatch batch, Py_ssize_t i) noexcept nogil:
        """Return the index of the first record from *i* on that is to be looked at, the batch's
        count without one.
        """
        cdef uint32_t least
        while self._own < i:
            self._own = batch.following[self._own]
        while self._common < i:
            self._common = batch.following[self._common]
        least = self._own if self._own < self._common else self._common
        if self._sees_ends():
            while self._end < batch.end_count and batch.ends[self._end] < i:
                self._end += 1
            if self._end < batch.end_count and batch.ends[self._end] < least:
                least = batch.ends[self._end]
        return least

    @property
    def is_eager(self):
        """Whether records that concern every database are NOW, too; it changes only in ``run`` and
        ``set_state``.
        """
        return self._state != SNAPSHOT_CONSISTENT

    @property
    def sees_ends(self):
        """Whether plain ends of other databases' transactions are LATER; it changes only in ``run``
        and setters.
        """
        return self._sees_ends()

    def interest(self, RecordBatch batch not None, Py_ssize_t start):
        """Say what records of *batch* from *start* on mean.

        PASSED: nothing. LATER: they are to be looked at. NOW: something may come of them.

        For any thread, between two calls of ``run``.
        """
        cdef const Route *own = batch.route_of(self._database)
        cdef bint common
        if own is not NULL and own.last >= start:
            return CONCERNED_NOW
        common = batch.routes[0].first < batch.count and batch.routes[0].last >= start
        if common and (batch.is_urgent or self._state != SNAPSHOT_CONSISTENT):
            return CONCERNED_NOW
        if common or (batch.end_count > 0 and batch.ends[batch.end_count - 1] >= start
                      and self._sees_ends()):
            return CONCERNED_LATER
        return CONCERNED_NEVER

    cdef int _run(self, RecordBatch batch, Py_ssize_t i) noexcept nogil:
        cdef const WalRecord *record
        cdef Txn *txn
        cdef uint8_t action
        cdef int stop
        cdef CommitOutcome outcome
        cdef uint32_t block, number = 0
        cdef bint tracked
        cdef const WalBlockRef *ref
        while True:
            i = self._next_from(batch, i)
            if i >= batch.count:
                break
            record = &batch.records[i]
            self.index = i
            self.looked_at += 1
            action = self._actions[(<uint32_t> record.rmid << 4) | (record.info >> 4)]
            txn = NULL
            if record.top_xid != 0 and record.xid != 0:
                txn = self._table.assign_child(record.top_xid, record.xid, record.lsn)
                if txn == NULL:
                    return STOP_NO_MEMORY
            elif (record.xid != 0 and action != ACTION_IGNORE_XACT
                  and action != ACTION_PYTHON_XACT):
                txn = self._table.obtain(record.xid, record.lsn)
                if txn == NULL:
                    return STOP_NO_MEMORY
            tracked = False
            for block in range(record.block_count):
                ref = &batch.blocks[record.first_block + block]
                if self._tracked.find(ref.spc, ref.db, ref.rel, &number):
                    tracked = True
                    break
            if tracked and txn != NULL:
                txn.flags |= TXN_TOUCHED_CATALOG
                top_of(txn).flags |= TXN_TOUCHED_CATALOG
                top_of(txn).locator_generation = self._locators.new_generation()
            if action >= ACTION_INSERT:
                stop = self._change(batch, record, txn, action, tracked)
                if stop != STOP_AT_END:
                    return stop
            elif action == ACTION_UNKNOWN:
                return STOP_UNKNOWN_RECORD
            elif (action == ACTION_PYTHON_XACT and self._state == SNAPSHOT_CONSISTENT
                  and not self._audit):
                outcome = self.commits.end(record, self._database, self._start_decoding_at)
                if outcome == COMMIT_FOR_PYTHON:
                    return STOP_FOR_PYTHON
                if outcome == COMMIT_RUN_FULL:
                    return STOP_FOR_RUN
                if outcome == COMMIT_NO_MEMORY:
                    return STOP_NO_MEMORY
                if outcome == COMMIT_FAILED:
                    return STOP_COMMIT
            elif action == ACTION_PYTHON and is_creation_of_own(record):
                pass
            elif action == ACTION_PYTHON or action == ACTION_PYTHON_XACT:
                return STOP_FOR_PYTHON
            if tracked:
                stop = self._redo(batch, record, number)
                if stop != STOP_AT_END:
                    return stop
            if self.part_due:
                return STOP_FOR_PART
            i += 1
        self.index = i
        return STOP_AT_END

    cdef int _redo(self, RecordBatch batch, const WalRecord *record,
                   uint32_t number) noexcept nogil:
        """Redo a record of a tracked catalog, or have Python do it: what is not plain, and all when
        it is audited.
        """
        if self._audit or self._catalog is None:
            return STOP_FOR_CATALOG
        with gil:
            try:
                return STOP_AT_END if self._catalog.redo(batch, record,
                                                         number) else STOP_FOR_CATALOG
            except BaseException as error:
                self._redo_error = error
                return STOP_REDO

    cdef int _invalidate(self, const WalRecord *record, Txn *txn) noexcept nogil:
        """Queue what a command of *txn* has invalidated; Python says what is wrong with a record
        that is cut short.
        """
        if self._invalidations is None:
            return STOP_FOR_INVALIDATIONS
        with gil:
            try:
                items = self._invalidations.take(top_of(txn).xid, record.main_data, record.main_len)
                if items is None:
                    return STOP_FOR_INVALIDATIONS
                top_of(txn).flags |= TXN_INVALIDATES
                if items:
                    self.queue_invalidation(txn, record.lsn, items, 0)
                return STOP_AT_END
            except BaseException as error:
                self._redo_error = error
                return STOP_REDO

    cdef int queue_invalidation(self, Txn *txn, uint64_t lsn, items, uint8_t flags) except -1:
        """Queue an INVALIDATION of *items* in *txn*; of *flags*, 0 or FROM_OTHER."""
        cdef size_t new_size = 8 + 8 * <size_t> len(items)
        cdef ChangeHeader *change = <ChangeHeader *> self._table.reserve(
            txn, sizeof(ChangeHeader) + pad8(new_size))
        cdef uint64_t *section
        cdef size_t at = 1
        if change == NULL:
            raise MemoryError
        change.size = <uint32_t> (sizeof(ChangeHeader) + pad8(new_size))
        change.action = INVALIDATION
        change.flags = HAS_NEW | flags
        change.toast_count = 0
        change.relation = 0
        change.xid = txn.xid
        change.lsn = lsn
        change.new_size = <uint32_t> new_size
        change.old_size = 0
        section = <uint64_t *> (change + 1)
        section[0] = len(items)
        for item in items:
            section[at] = item
            at += 1
        note_change(txn, lsn, False)
        return 0

    cdef inline bint _process_change(self, const WalRecord *record, Txn *txn) noexcept nogil:
        """SnapBuildProcessChange: give the transaction its base snapshot, or say that it can't be
        decoded.

        PostgreSQL asks by the record's own xid; what a younger subtransaction of an old transaction
        wrote it keeps, and throws away at the end. We bind a change to its table at once, and the
        catalog rows that the old transaction wrote before our beginning, which its subtransaction
        sees, we have never seen.
        """
        if self._state < SNAPSHOT_FULL:
            return False
        if self._state < SNAPSHOT_CONSISTENT and precedes(top_of(txn).xid, self._next_phase_at):
            return False
        top_of(txn).flags |= TXN_HAS_BASE_SNAPSHOT
        return True

    cdef int _change(self, RecordBatch batch, const WalRecord *record, Txn *txn, uint8_t action,
                     bint tracked) noexcept nogil:
        """Handle a record that may hold changes or catalog changes of a transaction."""
        cdef const WalBlockRef *block
        cdef LocatorKind kind
        cdef uint32_t relation = 0
        cdef ExtractStatus status
        if action == ACTION_INPLACE or action == ACTION_NEW_CID or action == ACTION_INVALIDATIONS:
            if self._state < SNAPSHOT_FULL:
                return STOP_AT_END
            if record.xid == 0:
                # VACUUM's: executed when the record is read.
                return STOP_FOR_INVALIDATIONS if action == ACTION_INVALIDATIONS else STOP_AT_END
            if txn == NULL:
                txn = self._table.obtain(record.xid, record.lsn)
                if txn == NULL:
                    return STOP_NO_MEMORY
            if action == ACTION_INPLACE:
                self._process_change(record, txn)
            txn.flags |= TXN_HAS_CATALOG_CHANGES
            top_of(txn).flags |= TXN_HAS_CATALOG_CHANGES
            if action != ACTION_INPLACE and not self._table.note_passed(txn, record.lsn):
                return STOP_NO_MEMORY
            if action != ACTION_INPLACE and self._stream_from != STREAM_NOTHING:
                self._count(txn, record.lsn, 0, False)
            if action == ACTION_NEW_CID:
                return STOP_FOR_PYTHON if self._audit else STOP_AT_END
            return self._invalidate(record, txn) if action == ACTION_INVALIDATIONS else STOP_AT_END
        if self._state < SNAPSHOT_FULL:
            return STOP_AT_END
        if action == ACTION_MESSAGE:
            return self._message(record, txn)
        if txn == NULL:
            return STOP_NO_XID
        if not self._process_change(record, txn) or self._skims:
            return STOP_AT_END
        if action == ACTION_TRUNCATE:
            if record.main_len < SIZE_OF_HEAP_TRUNCATE:
                return self._fail_extract(EXTRACT_SHORT_MAIN)
            if record.origin != 0 and self._only_local:
                return STOP_AT_END
            if load_u32(record.main_data) != self._database:
                return STOP_AT_END
            # Python may find that none of its tables is captured.
            return STOP_FOR_TRUNCATE if self._table.note_passed(txn, record.lsn) else STOP_NO_MEMORY
        if tracked:
            if (action == ACTION_UPDATE or action == ACTION_DELETE) and (
                    batch.blocks[record.first_block].db == self._database):
                return self._pass_over(record, txn, action)
            return STOP_AT_END
        if record.main_len < self._main_size(action):
            return self._fail_extract(EXTRACT_SHORT_MAIN)
        if record.block_count == 0 or batch.blocks[record.first_block].id != 0:
            return self._fail_extract(EXTRACT_NO_BLOCK)
        block = &batch.blocks[record.first_block]
        # Not logged for decoding: catalogs, unlogged storage, what VACUUM FULL and CLUSTER copy.
        if action == ACTION_INSERT and not record.main_data[2] & XLH_INSERT_CONTAINS_NEW_TUPLE:
            return STOP_AT_END
        if (action == ACTION_MULTI_INSERT
                and not record.main_data[0] & XLH_INSERT_CONTAINS_NEW_TUPLE):
            return STOP_AT_END
        if block.db != self._database or (record.origin != 0 and self._only_local):
            return STOP_AT_END
        kind = self._locators.find(top_of(txn).locator_generation, block.spc, block.db, block.rel,
                                   &relation)
        if kind == LOCATOR_UNKNOWN:
            kind = self._locators.find(GENERATION_OF_ALL, block.spc, block.db, block.rel, &relation)
        if kind == LOCATOR_UNKNOWN:
            return STOP_UNRESOLVED
        if kind == LOCATOR_SKIP or (
                kind == LOCATOR_TOAST and action != ACTION_INSERT
                and action != ACTION_MULTI_INSERT):
            return self._pass_over(record, txn, action)
        if action == ACTION_INSERT:
            status = extract_insert(self._table, txn, record, block, kind, relation)
        elif action == ACTION_MULTI_INSERT:
            status = extract_multi_insert(self._table, txn, record, block, kind, relation)
        elif action == ACTION_UPDATE:
            status = extract_update(self._table, txn, record, block, relation)
        elif action == ACTION_DELETE:
            status = extract_delete(self._table, txn, record, relation)
        else:
            status = extract_confirm(self._table, txn, record, relation)
        note_change(txn, record.lsn, False)
        if self._stream_from != STREAM_NOTHING and status == EXTRACT_OK:
            self._follow_partial(record, txn, action)
            self._count(txn, record.lsn, record.origin, True)
        return self._after_extract(status)

    cdef int _pass_over(self, const WalRecord *record, Txn *txn, uint8_t action) noexcept nogil:
        """A change that PostgreSQL queues and passes over when it replays: counted, and kept only
        as a place.
        """
        if self._stream_from != STREAM_NOTHING:
            if record.main_len >= self._main_size(action):
                # A catalog's row, too: what ended in an error may have left chunks without their
                # row.
                self._follow_partial(record, txn, action)
            self._count(txn, record.lsn, record.origin, True)
        return STOP_AT_END if self._table.note_passed(txn, record.lsn) else STOP_NO_MEMORY

    cdef void _follow_partial(self, const WalRecord *record, Txn *txn,
                              uint8_t action) noexcept nogil:
        """ReorderBufferProcessPartialChange: is the transaction's last change whole after this
        record?

        A TOAST chunk is known by the record's flag, as there, not by whose storage it is in: the
        copy that a rewrite makes of a table has TOAST, too, and none of it is ever shown.
        """
        cdef Txn *top = top_of(txn)
        if action == ACTION_INSERT and record.main_data[2] & (
                XLH_INSERT_IS_SPECULATIVE | XLH_INSERT_ON_TOAST_RELATION):
            top.flags |= TXN_HAS_PARTIAL_CHANGE
        elif (action == ACTION_INSERT or action == ACTION_UPDATE or action == ACTION_CONFIRM
                or (action == ACTION_MULTI_INSERT
                    and record.main_data[0] & XLH_INSERT_LAST_IN_MULTI)
                or (action == ACTION_DELETE and record.main_data[7] & XLH_DELETE_IS_SUPER)):
            top.flags &= ~(<uint32_t> TXN_HAS_PARTIAL_CHANGE)

    cdef void _count(self, Txn *txn, uint64_t lsn, uint32_t origin,
                     bint streamable) noexcept nogil:
        """Count what was queued for *txn* by now, and see whether a part is due.

        *origin* is what PostgreSQL's change has: that of a row's record, and 0 for messages and
        what comes of the catalog, whatever their records bear.
        """
        cdef Txn *top = top_of(txn)
        cdef uint64_t more = txn.change_bytes - txn.counted_bytes
        txn.counted_bytes = txn.change_bytes
        if more < QUEUED_BYTES_MIN:
            more = QUEUED_BYTES_MIN
        txn.pending_bytes += more
        top.tree_pending_bytes += more
        if txn.pending_first_lsn == 0:
            txn.pending_first_lsn = lsn
            txn.pending_first_origin = FIRST_ORIGIN_KNOWN | origin
        txn.pending_last_lsn = lsn
        if streamable:
            top.flags |= TXN_HAS_STREAMABLE_CHANGE
        self.part_due = (
            top.tree_pending_bytes > self._stream_bytes and top.first_lsn >= self._stream_from
            and self._state == SNAPSHOT_CONSISTENT
            and (top.flags & (TXN_HAS_STREAMABLE_CHANGE | TXN_HAS_BASE_SNAPSHOT
                              | TXN_HAS_PARTIAL_CHANGE
                              | TXN_INCOMPLETE)) == (TXN_HAS_STREAMABLE_CHANGE
                                                     | TXN_HAS_BASE_SNAPSHOT))

    cdef inline uint32_t _main_size(self, uint8_t action) noexcept nogil:
        """The least main data of a heap record."""
        if action == ACTION_INSERT:
            return SIZE_OF_HEAP_INSERT
        if action == ACTION_MULTI_INSERT:
            return SIZE_OF_HEAP_MULTI_INSERT
        if action == ACTION_UPDATE:
            return SIZE_OF_HEAP_UPDATE
        if action == ACTION_DELETE:
            return SIZE_OF_HEAP_DELETE
        return 0

    cdef int _message(self, const WalRecord *record, Txn *txn) noexcept nogil:
        """A logical message: part of its transaction, or Python's to deliver at once."""
        cdef ExtractStatus status
        if record.main_len < SIZE_OF_LOGICAL_MESSAGE:
            return self._fail_extract(EXTRACT_SHORT_MAIN)
        if load_u32(record.main_data) != self._database or (record.origin != 0
                                                            and self._only_local):
            return STOP_AT_END
        if record.main_data[4] == 0:
            return (STOP_FOR_MESSAGE if self._state == SNAPSHOT_CONSISTENT and not self._skims
                    else STOP_AT_END)
        if txn == NULL:
            return STOP_NO_XID
        if not self._process_change(record, txn) or self._skims:
            return STOP_AT_END
        status = extract_message(self._table, txn, record)
        note_change(txn, record.end_lsn, True)
        if self._stream_from != STREAM_NOTHING and status == EXTRACT_OK:
            self._count(txn, record.end_lsn, 0, True)
        return self._after_extract(status)

    cdef int _after_extract(self, ExtractStatus status) noexcept nogil:
        if status != EXTRACT_OK:
            return self._fail_extract(status)
        if (self._table.total_bytes > self._spiller.work_mem_bytes
                and not self._spiller.make_room(self._table)):
            return STOP_SPILL
        return STOP_AT_END

    cdef int _fail_extract(self, ExtractStatus status) noexcept nogil:
        self._failure = status
        return STOP_NO_MEMORY if status == EXTRACT_NO_MEMORY else STOP_EXTRACT

    cdef object _failed(self, int stop, const WalRecord *record):
        """Make the exception for a failure at *record*."""
        lsn = str(Lsn(record.lsn))
        what = f"rmgr {record.rmid}, info {record.info:#04x}"
        if stop == STOP_COMMIT:
            return self.commits.failure()
        if stop == STOP_REDO:
            error, self._redo_error = self._redo_error, None
            return error
        if stop == STOP_NO_MEMORY:
            return MemoryError(f"no memory for the changes of the record at {lsn}")
        if stop == STOP_UNKNOWN_RECORD:
            return UnsupportedWal(
                f"the record at {lsn} is of an unknown kind: {what}",
                hint="A newer PostgreSQL or an extension wrote it; Spillway decodes 14 to 18.",
                lsn=lsn, rmid=record.rmid, info=record.info)
        if stop == STOP_SPILL:
            return self.spill_failure(record.lsn)
        if stop == STOP_NO_XID:
            return CorruptWal(f"the record at {lsn} ({what}) changes data but bears no xid",
                              lsn=lsn)
        if self._failure == EXTRACT_COMPRESSED_UPDATE:
            return DecodingError(
                f"the update at {lsn} leaves out a part of its new tuple",
                hint="It was not written with wal_level=logical. Set that on the source and create "
                "the slot again.",
                lsn=lsn)
        return CorruptWal(
            f"the record at {lsn} ({what}) contradicts itself: {_EXTRACT_REASONS[self._failure]}",
            hint="Fetch the WAL segment again from the source or the archive.", lsn=lsn)

    cdef object spill_failure(self, uint64_t at_lsn):
        """Make the exception for a spill file that could not be written."""
        lsn = str(Lsn(at_lsn))
        reason = os.strerror(self._spiller.error)
        if self._spiller.error == ENOMEM:
            return MemoryError(f"no memory for the changes of the record at {lsn}")
        if self._spiller.error in (ENOSPC, EDQUOT):
            return DiskFull(
                f"a transaction can't be spilled at {lsn}: {reason}",
                hint="Free space in the data directory or raise logical_decoding_work_mem. "
                "Decoding starts again from its restart point; nothing is lost.", lsn=lsn)
        return StorageError(
            f"a transaction can't be spilled at {lsn}: {reason}",
            hint="See that the data directory can be written.", lsn=lsn)

    # ---- what Python tells the loop

    def set_state(self, int state, uint32_t next_phase_at, uint64_t start_decoding_at):
        """Follow the snapshot builder: 0 START … 3 CONSISTENT.

        In FULL changes are kept from xid *next_phase_at* on; in CONSISTENT what commits from
        *start_decoding_at* on is delivered.
        """
        self._state = state
        self._next_phase_at = next_phase_at
        self._start_decoding_at = start_decoding_at

    def set_streaming(self, uint64_t stream_from, uint64_t stream_bytes):
        """Stream transactions that begin at *stream_from* or later, in parts of more than
        *stream_bytes*.
        """
        self._stream_from = stream_from
        self._stream_bytes = stream_bytes

    def set_skimming(self, bint skims):
        """Say whether to leave out all changes, and to follow only the catalog and who begins and
        ends.
        """
        self._skims = skims

    def set_audit(self, bint audit):
        """Say whether to stop at NEW_CID records."""
        self._audit = audit

    def set_only_local(self, bint only_local):
        """Say whether to leave out what came in through a replication origin (FilterByOrigin)."""
        self._only_local = only_local

    def set_partial_values(self, bint partial_values):
        """Say whether tables come to be read at any record, so that of a TOAST value the beginning
        may be missing.
        """
        self._plans.partial_values = partial_values

    def set_invalidations(self, InvalidationParser invalidations not None):
        """Say who takes the invalidation messages of transactions."""
        self._invalidations = invalidations

    def set_catalog(self, CatalogRedo catalog not None):
        """Say who redoes plain records of tracked catalogs; it knows storages by the numbers that
        set_tracked gives.
        """
        self._catalog = catalog

    def redo(self, RecordBatch batch not None, Py_ssize_t index):
        """Redo record *index* if it is a plain one, where the loop has left that to Python because
        it is audited.
        """
        cdef const WalRecord *record = &batch.records[index]
        cdef const WalBlockRef *ref
        cdef uint32_t block, number = 0
        if self._catalog is None or not self._audit:
            return False
        for block in range(record.block_count):
            ref = &batch.blocks[record.first_block + block]
            if self._tracked.find(ref.spc, ref.db, ref.rel, &number):
                return self._catalog.redo(batch, record, number)
        return False

    def set_tracked(self, locators):
        """Replace the tracked catalogs by *locators*, (spc, db, rel) each; a catalog's number is
        its place there.
        """
        self._tracked.replace(list(locators))

    def bind(self, RecordBatch batch not None, Py_ssize_t index, int kind, uint32_t relation_id,
             bint for_all=False):
        """Remember whose storage block 0 of record *index* is, as its transaction sees it, or as
        everybody does.
        """
        cdef const WalRecord *record = &batch.records[index]
        cdef const WalBlockRef *block = &batch.blocks[record.first_block]
        cdef Txn *txn = self._table.lookup(record.xid)
        cdef uint64_t generation = top_of(txn).locator_generation if txn != NULL else 0
        self._locators.bind(GENERATION_OF_ALL if for_all else generation, block.spc, block.db,
                            block.rel, <LocatorKind> kind, relation_id)

    def clear_locators(self):
        """Forget every binding: what others see of the catalog has changed."""
        self._locators.clear()

    def add_relation(self, uint32_t relation_id, columns):
        """Say how to step over the columns of a relation; *columns* are ColumnDescriptors. Safe to
        repeat.
        """
        if self._plans.find(relation_id) == NULL:
            self._plans.add(relation_id, [c.length for c in columns],
                            [_ALIGN_BYTES[c.align] for c in columns], [c.dropped for c in columns])

    def block_locator(self, RecordBatch batch not None, Py_ssize_t index):
        """Return (spc, db, rel) of block 0 of record *index*."""
        cdef const WalBlockRef *block = &batch.blocks[batch.records[index].first_block]
        return block.spc, block.db, block.rel

    def fields(self, RecordBatch batch not None, Py_ssize_t index):
        """Return (rmid, info, xid, lsn, end_lsn, origin, main data) of record *index*."""
        cdef const WalRecord *record = &batch.records[index]
        return (record.rmid, record.info, record.xid, record.lsn, record.end_lsn, record.origin,
                (<const char *> record.main_data)[:record.main_len] if record.main_len else b"")

    def has_tuple(self, RecordBatch batch not None, Py_ssize_t index):
        """Say whether the heap record *index* holds a row, new or old, that was logged for
        decoding.
        """
        cdef const WalRecord *record = &batch.records[index]
        cdef uint8_t action = self._actions[(<uint32_t> record.rmid << 4) | (record.info >> 4)]
        if action == ACTION_UPDATE:
            return record.main_data[7] & (XLH_UPDATE_CONTAINS_OLD_TUPLE
                                          | XLH_UPDATE_CONTAINS_OLD_KEY
                                          | XLH_UPDATE_CONTAINS_NEW_TUPLE) != 0
        if action == ACTION_DELETE:
            return record.main_data[7] & (XLH_DELETE_CONTAINS_OLD_TUPLE
                                          | XLH_DELETE_CONTAINS_OLD_KEY) != 0
        return action == ACTION_INSERT or action == ACTION_MULTI_INSERT

    def end_lsn(self, RecordBatch batch not None):
        """Return the end of the last record of *batch*, which is not empty."""
        return batch.records[batch.count - 1].end_lsn

    # ---- transactions, between two records

    def own_xids(self, uint32_t xid):
        """Return a view of the xids of *xid*'s whole transaction that have changed the catalog."""
        return own_xids_of(self._table, xid)

    cdef list _touched(self, Txn *txn, list xids):
        """Add the xids under *txn* that have changed the catalog; a top-level one counts when any
        of them has.
        """
        cdef Txn *child = txn.first_child
        if txn.flags & TXN_TOUCHED_CATALOG:
            xids.append(txn.xid)
        while child != NULL:
            if child.flags & TXN_TOUCHED_CATALOG:
                xids.append(child.xid)
            child = child.next
        return xids

    def touch_catalog(self, uint32_t xid):
        """Note that *xid* changed what it sees of the catalog by a record without a block."""
        cdef Txn *txn = self._table.lookup(xid)
        if txn != NULL:
            txn.flags |= TXN_TOUCHED_CATALOG
            top_of(txn).flags |= TXN_TOUCHED_CATALOG
            top_of(txn).locator_generation = self._locators.new_generation()

    def add_truncate(self, RecordBatch batch not None, Py_ssize_t index, uint32_t flags,
                     relation_ids):
        """Queue the TRUNCATE of *relation_ids* that is record *index*; its transaction has an
        entry.
        """
        cdef const WalRecord *record = &batch.records[index]
        cdef Txn *txn = self._table.lookup(record.xid)
        cdef size_t new_size = 8 + 4 * <size_t> len(relation_ids)
        cdef ChangeHeader *change
        cdef uint32_t *section
        cdef uint32_t relation
        cdef size_t at
        change = <ChangeHeader *> self._table.reserve(txn, sizeof(ChangeHeader) + pad8(new_size))
        if change == NULL:
            raise MemoryError
        change.size = <uint32_t> (sizeof(ChangeHeader) + pad8(new_size))
        change.action = TRUNCATE
        change.flags = HAS_NEW | (FROM_ORIGIN if record.origin != 0 else 0)
        change.toast_count = 0
        change.relation = 0
        change.xid = record.xid
        change.lsn = record.lsn
        change.new_size = <uint32_t> new_size
        change.old_size = 0
        section = <uint32_t *> (change + 1)
        section[0] = flags
        section[1] = <uint32_t> len(relation_ids)
        at = 2
        for relation in relation_ids:
            section[at] = relation
            at += 1
            if not id_set_add(&txn.relations, relation):
                raise MemoryError
        if at & 1:
            section[at] = 0
        note_change(txn, record.lsn, False)
        if self._stream_from != STREAM_NOTHING:
            self._count(txn, record.lsn, record.origin, True)

    def add_invalidation(self, uint32_t xid, uint64_t lsn, items, bint from_other):
        """Queue an INVALIDATION of *items* in *xid*, which has an entry; with *from_other* it was
        another transaction's commit that made them invalid.
        """
        cdef Txn *txn = self._table.lookup(xid)
        if txn == NULL:
            raise KeyError(xid)
        self.queue_invalidation(txn, lsn, items, FROM_OTHER if from_other else 0)

    def add_schema_change(self, uint32_t xid, uint64_t lsn, bytes content not None):
        """Queue a SCHEMA_CHANGE in *xid*, which has an entry.

        PostgreSQL has no such change: it counts for nothing where parts are made due.
        """
        cdef Txn *txn = self._table.lookup(xid)
        cdef size_t new_size = len(content)
        cdef size_t before
        cdef ChangeHeader *change
        if txn == NULL:
            raise KeyError(xid)
        before = txn.change_bytes
        change = <ChangeHeader *> self._table.reserve(txn, sizeof(ChangeHeader) + pad8(new_size))
        if change == NULL:
            raise MemoryError
        txn.counted_bytes += txn.change_bytes - before
        memset(change, 0, sizeof(ChangeHeader) + pad8(new_size))
        change.size = <uint32_t> (sizeof(ChangeHeader) + pad8(new_size))
        change.action = SCHEMA_CHANGE
        change.flags = HAS_NEW
        change.xid = xid
        change.lsn = lsn
        change.new_size = <uint32_t> new_size
        memcpy(change + 1, <const uint8_t *> content, new_size)
        note_change(txn, lsn, False)
        # Whoever made it has to hear of the abort of the subtransaction that it went with.
        txn.flags |= TXN_INVALIDATES

    def expect_invalidations(self, uint32_t xid):
        """Note that at the end of top-level *xid* invalidations are to be executed."""
        cdef Txn *txn = self._table.lookup(xid)
        if txn != NULL:
            txn.flags |= TXN_INVALIDATES

    def top_xid(self, uint32_t xid):
        """Return the xid of the top-level transaction of *xid*."""
        cdef Txn *txn = self._table.lookup(xid)
        return xid if txn == NULL else top_of(txn).xid

    def with_base_snapshot(self):
        """List the top-level transactions in progress that have a base snapshot: those with
        changes.
        """
        cdef Txn *txn = self._table.oldest
        cdef list xids = []
        while txn != NULL:
            if txn.flags & TXN_HAS_BASE_SNAPSHOT:
                xids.append(txn.xid)
            txn = txn.next
        return xids

    def distribute_snapshot(self, uint64_t lsn):
        """Note that PostgreSQL queues a snapshot at *lsn* in every top-level transaction with a
        base snapshot.

        It does so for prepared ones only where they are decoded at their end; otherwise this comes
        after their reading.
        """
        cdef Txn *txn = self._table.oldest
        while txn != NULL:
            if txn.flags & TXN_HAS_BASE_SNAPSHOT and not self._table.note_passed(txn, lsn):
                raise MemoryError
            txn = txn.next

    def relations_in_use(self):
        """Return the ids of all relations that changes in progress, or commits that are not handed
        over, name.
        """
        cdef Txn *top = self._table.oldest
        cdef Txn *txn
        cdef set ids = self.commits.relation_ids()
        while top != NULL:
            add_ids(ids, &top.relations)
            txn = top.first_child
            while txn != NULL:
                add_ids(ids, &txn.relations)
                txn = txn.next
            top = top.next
        return ids

    def forget_relations(self, relation_ids):
        """Forget relations that nothing in progress names, and all bindings: *relation_ids* may
        come to mean others.
        """
        cdef uint32_t number
        self._locators.clear()
        for number in relation_ids:
            self._plans.remove(number)

    # ---- ends of transactions

    def end(self, uint32_t xid, subxids):
        """Hang what the commit record calls subtransactions under *xid*; return (first_lsn, flags),
        None if unknown.
        """
        cdef Txn *child
        cdef Txn *top
        cdef uint32_t subxid
        for subxid in subxids:
            child = self._table.lookup(subxid)
            if child == NULL or child.top != NULL or subxid == xid:
                continue
            top = self._table.obtain(xid, child.first_lsn)
            if top == NULL:
                raise MemoryError
            self._table.adopt(top, child)
        top = self._table.lookup(xid)
        if top == NULL:
            return None
        return top.first_lsn, top.flags

    def set_base_snapshot(self, uint32_t xid, uint64_t lsn):
        """Give *xid* its base snapshot, and an entry when it has none; return its first_lsn."""
        cdef Txn *txn = self._table.obtain(xid, lsn)
        if txn == NULL:
            raise MemoryError
        top_of(txn).flags |= TXN_HAS_BASE_SNAPSHOT
        return top_of(txn).first_lsn

    def take(self, uint32_t xid):
        """Hand over the top-level transaction *xid* as a ChangeStream; the table forgets it."""
        cdef Txn *txn = self._table.lookup(xid)
        cdef ChangeStream stream = ChangeStream()
        if txn == NULL or txn.top != NULL:
            raise KeyError(xid)
        self._table.detach(txn)
        stream.take(self._table, txn, self._plans)
        return stream

    def take_raw(self, uint32_t xid):
        """The same with the changes as they were queued, for :meth:`add_changes` of another
        buffer.
        """
        cdef ChangeStream stream = self.take(xid)
        stream.leave_raw()
        return stream

    def add_changes(self, uint32_t xid, const uint8_t[::1] chunk not None, dict relations not None,
                    survivors):
        """Queue a chunk that a raw stream gave, in top-level *xid*, behind what is queued there.

        Changes of one transaction come in LSN order. A relation's id becomes what *relations* has
        for it; what was changed by an xid that is not among *survivors* is left out.

        Raises:
            KeyError: a relation is not in *relations*.
            ValueError: the chunk is no such chunk.
            DiskFull, StorageError: a spill file can't be written.
        """
        cdef size_t size = chunk.shape[0]
        cdef size_t at = 0
        cdef size_t i
        cdef uint32_t from_relation = 0, to_relation = 0, of_xid = xid, number
        cdef bint survives = xid in survivors
        cdef const ChangeHeader *change
        cdef ChangeHeader *queued
        cdef uint32_t *section
        cdef Txn *txn
        while at < size:
            change = <const ChangeHeader *> &chunk[at]
            if (size - at < sizeof(ChangeHeader) or change.size < sizeof(ChangeHeader)
                or change.size % 8 != 0
                    or change.size > size - at
                    or change.new_size > change.size - sizeof(ChangeHeader)):
                raise ValueError("a chunk of changes contradicts itself")
            at += change.size
            if change.xid != of_xid:
                of_xid = change.xid
                survives = of_xid in survivors
            if not survives:
                continue
            txn = self._table.obtain(xid, change.lsn)
            queued = <ChangeHeader *> (NULL if txn == NULL
                                       else self._table.reserve(txn, change.size))
            if queued == NULL:
                raise MemoryError
            memcpy(queued, change, change.size)
            txn.flags |= TXN_NEEDS_ASSEMBLY
            if change.relation != 0:
                if change.relation != from_relation:
                    to_relation = relations[change.relation]
                    from_relation = change.relation
                queued.relation = to_relation
                if not id_set_add(&txn.relations, to_relation):
                    raise MemoryError
            elif change.action == TRUNCATE:
                section = <uint32_t *> (queued + 1)
                if change.new_size < 8 or section[1] > (change.new_size - 8) // 4:
                    raise ValueError("a chunk of changes contradicts itself")
                for i in range(2, 2 + <size_t> section[1]):
                    number = relations[section[i]]
                    section[i] = number
                    if not id_set_add(&txn.relations, number):
                        raise MemoryError
            if (self._table.total_bytes > self._spiller.work_mem_bytes
                    and not self._spiller.make_room(self._table)):
                raise self.spill_failure(change.lsn)

    def survivors(self, uint32_t xid):
        """Return the xids of top-level *xid* and of its subtransactions that have not aborted."""
        cdef Txn *txn = self._table.lookup(xid)
        cdef Txn *child
        cdef list xids = [xid]
        if txn != NULL:
            child = txn.first_child
            while child != NULL:
                xids.append(child.xid)
                child = child.next
        return xids

    def borrow(self, uint32_t xid, bint news):
        """Return a ChangeStream of the top-level transaction *xid*, which stays; with *news* since
        its last part.
        """
        cdef Txn *txn = self._table.lookup(xid)
        cdef ChangeStream stream = ChangeStream()
        if txn == NULL or txn.top != NULL:
            raise KeyError(xid)
        stream.borrow(self._table, txn, self._plans, news)
        return stream

    # ---- streaming

    def part(self, uint32_t xid):
        """Return the part that is due of the transaction of *xid*, which stays.

        As (top-level xid, its first_lsn, number of the part, lsn of its first and of its last
        change, origin of its first change, ChangeStream). The origin is None where an older release
        saw that change.
        """
        cdef Txn *txn = self._table.lookup(xid)
        cdef uint64_t first_lsn, last_lsn
        cdef uint32_t found
        if txn == NULL:
            raise KeyError(xid)
        txn = top_of(txn)
        found = self._pending(txn, &first_lsn, &last_lsn)
        origin = found & 0xffff if found & FIRST_ORIGIN_KNOWN else None
        return (txn.xid, txn.first_lsn, txn.parts + 1, first_lsn, last_lsn, origin,
                self.borrow(txn.xid, True))

    def end_part(self, uint32_t top_xid, uint64_t upto_lsn):
        """Note that a part of *top_xid* ended with the record that ends at *upto_lsn*."""
        cdef Txn *top = self._table.lookup(top_xid)
        cdef Txn *txn = top
        if top == NULL:
            raise KeyError(top_xid)
        top.flags |= TXN_STREAMED
        top.parts += 1
        top.streamed_upto = upto_lsn
        top.tree_pending_bytes = 0
        top.last_entry = NULL
        while txn != NULL:
            if txn.pending_first_lsn != 0:
                # Of a subtransaction that had nothing in a part nobody need hear when it aborts.
                txn.flags |= TXN_STREAMED
            txn.streamed_bytes = txn.change_bytes
            txn.passed_streamed = txn.passed_count
            txn.counted_bytes = txn.change_bytes
            txn.pending_bytes = 0
            txn.pending_first_lsn = 0
            txn.pending_first_origin = 0
            txn.pending_last_lsn = 0
            txn = top.first_child if txn == top else txn.next

    def streamed(self, uint32_t top_xid):
        """Return (number of parts, where the last ended, lsn of the first and the last change
        since) of *top_xid*.
        """
        cdef Txn *txn = self._table.lookup(top_xid)
        cdef uint64_t first_lsn, last_lsn
        if txn == NULL:
            raise KeyError(top_xid)
        self._pending(txn, &first_lsn, &last_lsn)
        return txn.parts, txn.streamed_upto, first_lsn, last_lsn

    def note_snapshot(self, uint32_t top_xid, uint64_t lsn):
        """Note that PostgreSQL queues a new snapshot at *lsn* in *top_xid*, which has an entry."""
        cdef Txn *txn = self._table.lookup(top_xid)
        if txn != NULL and self._stream_from != STREAM_NOTHING:
            self._count(txn, lsn, 0, False)
            self.part_due = False

    def streamed_of(self, xids):
        """Return those of *xids* that had changes in a part."""
        cdef Txn *txn
        cdef list streamed = []
        for xid in xids:
            txn = self._table.lookup(xid)
            if txn != NULL and txn.flags & TXN_STREAMED:
                streamed.append(xid)
        return streamed

    def streamed_older_than(self, uint32_t oldest_running_xid):
        """Return the top-level transactions that forget_older_than will drop and that had parts."""
        cdef Txn *txn = self._table.oldest
        cdef list streamed = []
        while txn != NULL and precedes(txn.xid, oldest_running_xid):
            if txn.flags & TXN_STREAMED:
                streamed.append(txn.xid)
            txn = txn.next
        return streamed

    cdef uint32_t _pending(self, Txn *top, uint64_t *first_lsn, uint64_t *last_lsn) noexcept:
        """Find the first and the last of what was queued in *top* and below since the last part; 0
        for nothing. Return the pending_first_origin of the first.
        """
        cdef Txn *txn = top
        cdef uint32_t origin = 0
        first_lsn[0] = 0
        last_lsn[0] = 0
        while txn != NULL:
            if txn.pending_first_lsn != 0:
                if first_lsn[0] == 0 or txn.pending_first_lsn < first_lsn[0]:
                    first_lsn[0] = txn.pending_first_lsn
                    origin = txn.pending_first_origin
                if txn.pending_last_lsn > last_lsn[0]:
                    last_lsn[0] = txn.pending_last_lsn
            txn = top.first_child if txn == top else txn.next
        return origin

    def take_message(self, RecordBatch batch not None, Py_ssize_t index):
        """Make a ChangeStream of the non-transactional message that is record *index*."""
        cdef ChangeStream stream = ChangeStream()
        cdef Txn *txn = <Txn *> calloc(1, sizeof(Txn))
        cdef ExtractStatus status
        if txn == NULL:
            raise MemoryError
        txn.xid = batch.records[index].xid
        stream.take(self._table, txn, self._plans)
        status = extract_message(self._table, txn, &batch.records[index])
        if status != EXTRACT_OK:
            raise self._failed(self._fail_extract(status), &batch.records[index])
        return stream

    def forget(self, uint32_t xid):
        """Drop *xid* and, when it is top-level, its subtransactions; return the xids of it that
        changed the catalog.
        """
        cdef Txn *txn = self._table.lookup(xid)
        cdef list touched = []
        if txn == NULL:
            return touched
        self._touched(txn, touched)
        if txn.top != NULL and txn.flags & TXN_TOUCHED_CATALOG:
            # What the rest of the transaction sees goes back to what it was.
            txn.top.locator_generation = self._locators.new_generation()
        self._table.destroy(txn)
        return touched

    def forget_older_than(self, uint32_t oldest_running_xid):
        """Drop transactions that a crash of the server ended without a record; return [(xid,
        touched xids)].

        In the order of their first records, up to the first that runs, a prepared one: what is
        behind that waits for its end, as with PostgreSQL.
        """
        cdef Txn *txn = self._table.oldest
        cdef Txn *following
        cdef list gone = []
        while txn != NULL and precedes(txn.xid, oldest_running_xid):
            following = txn.next
            xid = txn.xid
            gone.append((xid, self._touched(txn, [])))
            self._table.destroy(txn)
            txn = following
        return gone

    # ---- state

    def oldest_first_lsn(self):
        """Return first_lsn of the oldest transaction in progress, 0 without any."""
        return self._table.oldest.first_lsn if self._table.oldest != NULL else 0

    def transactions(self):
        """Return (xid, top xid or 0, first_lsn, flags) of every transaction in progress, tops
        before their children.
        """
        cdef Txn *txn = self._table.oldest
        cdef Txn *child
        cdef list result = []
        while txn != NULL:
            result.append((txn.xid, 0, txn.first_lsn, txn.flags))
            child = txn.first_child
            while child != NULL:
                result.append((child.xid, txn.xid, child.first_lsn, child.flags))
                child = child.next
            txn = txn.next
        return result

    def restore_transaction(self, uint32_t xid, uint32_t top_xid, uint64_t first_lsn,
                            uint32_t flags):
        """Enter a transaction that was in progress when the decoder was serialised; it can't be
        complete.
        """
        cdef Txn *txn
        if top_xid:
            txn = self._table.assign_child(top_xid, xid, first_lsn)
        else:
            txn = self._table.obtain(xid, first_lsn)
        if txn == NULL:
            raise MemoryError
        # Chunks of a TOAST value may have come before: the row that has it ends them, as it would
        # there.
        txn.flags |= TXN_INCOMPLETE | TXN_HAS_TOAST | (
            flags & (TXN_HAS_BASE_SNAPSHOT | TXN_HAS_CATALOG_CHANGES | TXN_TOUCHED_CATALOG))
        if txn.flags & TXN_TOUCHED_CATALOG:
            top_of(txn).flags |= TXN_TOUCHED_CATALOG
            top_of(txn).locator_generation = self._locators.new_generation()

    def carry(self, size_t inline_max, uint64_t at_lsn):
        """Return all transactions in progress as (bytes, files, relation ids); see ``carry.pyx``.

        Of who occupies more than *inline_max* the changes are in the files, which are synced.

        Raises:
            DiskFull, StorageError: a spill file can't be written.
            OSError: one can't be synced.
        """
        cdef bint spilled
        with nogil:
            spilled = spill_large(self._table, self._spiller, inline_max)
        if not spilled:
            raise self.spill_failure(at_lsn)
        return dump_transactions(self._table)

    def restore_carried(self, const uint8_t[::1] data, list files not None, dict ids not None):
        """Enter the transactions that :meth:`carry` returned in another process, in which *ids*
        were called otherwise.

        Raises:
            OSError: a file is not there, or too short.
            ValueError, KeyError: *data* is damaged.
        """
        load_transactions(self._table, self._spiller, self._locators, data, files, ids)

    @property
    def memory_bytes(self):
        """Memory that changes occupy now."""
        return self._table.total_bytes

    @property
    def transaction_count(self):
        """Transactions in progress, subtransactions included."""
        return self._table._count

    @property
    def spill_txns(self):
        return self._spiller.spill_txns

    @property
    def spill_count(self):
        return self._spiller.spill_count

    @property
    def spill_bytes(self):
        return self._spiller.spill_bytes

    def close(self):
        """Drop every transaction in progress with its spill file; safe to repeat."""
        while self._table.oldest != NULL:
            self._table.destroy(self._table.oldest)
        self._locators.clear()
