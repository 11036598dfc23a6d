# cython: language_level=3, boundscheck=False, wraparound=False
"""The reorder buffer: transactions in progress, and what becomes of them when they end.

:class:`ReorderBuffer` is the loop of ``reorder_loop``, which fills the table of transactions from record batches, and
what the decoder does with that table in between: queue a TRUNCATE, end, take or forget a transaction, list those in
progress. A transaction taken at its commit leaves the table as a change stream (``reorder_merge``).

Transactions in progress can be carried over a restart (``reorder_carry``).

Parts: reorder_loop (batches → changes), reorder_table (transactions and arenas), reorder_locators (what is whose
storage), reorder_extract (record → change), reorder_spill (the bound on memory), reorder_toast and reorder_merge
(transaction → chunks).

Source: ReorderBufferCommit, ReorderBufferCommitChild, ReorderBufferAbort, ReorderBufferAbortOld,
src/backend/replication/logical/reorderbuffer.c
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from spillway._kernels.changes cimport FROM_ORIGIN, HAS_NEW, TRUNCATE, ChangeHeader
from spillway._kernels.reorder_own_xids cimport own_xids_of
from spillway._kernels.record_batch cimport RecordBatch, WalRecord
from spillway._kernels.reorder_carry cimport dump_transactions, load_transactions, spill_large
from spillway._kernels.reorder_extract cimport EXTRACT_OK, ExtractStatus, extract_message
from spillway._kernels.reorder_loop cimport STREAM_NOTHING, RecordLoop
from spillway._kernels.reorder_merge cimport ChangeStream
from spillway._kernels.reorder_table cimport (
    TXN_HAS_BASE_SNAPSHOT,
    TXN_HAS_CATALOG_CHANGES,
    TXN_HAS_TOAST,
    TXN_INCOMPLETE,
    TXN_INVALIDATES,
    TXN_NEEDS_ASSEMBLY,
    TXN_STREAMED,
    TXN_TOUCHED_CATALOG,
    Txn,
    add_ids,
    id_set_add,
    note_change,
    pad8,
    precedes,
    top_of,
)

# For set_streaming: no transaction begins there.
STREAM_FROM_NEVER = STREAM_NOTHING

# Flags of a transaction, as end() and transactions() give them.
HAS_BASE_SNAPSHOT = TXN_HAS_BASE_SNAPSHOT
HAS_CATALOG_CHANGES = TXN_HAS_CATALOG_CHANGES
TOUCHED_CATALOG = TXN_TOUCHED_CATALOG
INCOMPLETE = TXN_INCOMPLETE
STREAMED = TXN_STREAMED


cdef class ReorderBuffer(RecordLoop):
    """Transactions in progress in one database."""

    def own_xids(self, uint32_t xid):
        """Return a view of the xids of *xid*'s whole transaction that have changed the catalog."""
        return own_xids_of(self._table, xid)

    cdef list _touched(self, Txn *txn, list xids):
        """Add the xids under *txn* that have changed the catalog; a top-level one counts when any of them has."""
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

    def add_truncate(self, RecordBatch batch not None, Py_ssize_t index, uint32_t flags, relation_ids):
        """Queue the TRUNCATE of *relation_ids* that is record *index*; its transaction has an entry."""
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
            self._count(txn, record.lsn, True)

    def add_invalidation(self, uint32_t xid, uint64_t lsn, items):
        """Queue an INVALIDATION of *items* in *xid*, which has an entry."""
        cdef Txn *txn = self._table.lookup(xid)
        if txn == NULL:
            raise KeyError(xid)
        self.queue_invalidation(txn, lsn, items)

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
        """List the top-level transactions in progress that have a base snapshot: those with changes."""
        cdef Txn *txn = self._table.oldest
        cdef list xids = []
        while txn != NULL:
            if txn.flags & TXN_HAS_BASE_SNAPSHOT:
                xids.append(txn.xid)
            txn = txn.next
        return xids

    def distribute_snapshot(self, uint64_t lsn):
        """Note that PostgreSQL queues a snapshot at *lsn* in every top-level transaction with a base snapshot.

        It does so for prepared ones only where they are decoded at their end; otherwise this comes after their reading.
        """
        cdef Txn *txn = self._table.oldest
        while txn != NULL:
            if txn.flags & TXN_HAS_BASE_SNAPSHOT and not self._table.note_passed(txn, lsn):
                raise MemoryError
            txn = txn.next

    def relations_in_use(self):
        """Return the ids of all relations that changes in progress, or commits that are not handed over, name."""
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
        """Forget relations that nothing in progress names, and all bindings: *relation_ids* may come to mean others."""
        cdef uint32_t number
        self._locators.clear()
        for number in relation_ids:
            self._plans.remove(number)

    # ---- ends of transactions

    def end(self, uint32_t xid, subxids):
        """Hang what the commit record calls subtransactions under *xid*; return (first_lsn, flags), None if unknown."""
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
        """The same with the changes as they were queued, for :meth:`add_changes` of another buffer."""
        cdef ChangeStream stream = self.take(xid)
        stream.leave_raw()
        return stream

    def add_changes(self, uint32_t xid, const uint8_t[::1] chunk not None, dict relations not None, survivors):
        """Queue a chunk that a raw stream gave, in top-level *xid*, behind what is queued there.

        Changes of one transaction come in LSN order. A relation's id becomes what *relations* has for it; what was
        changed by an xid that is not among *survivors* is left out.

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
            if (size - at < sizeof(ChangeHeader) or change.size < sizeof(ChangeHeader) or change.size % 8 != 0
                    or change.size > size - at or change.new_size > change.size - sizeof(ChangeHeader)):
                raise ValueError("a chunk of changes contradicts itself")
            at += change.size
            if change.xid != of_xid:
                of_xid = change.xid
                survives = of_xid in survivors
            if not survives:
                continue
            txn = self._table.obtain(xid, change.lsn)
            queued = <ChangeHeader *> (NULL if txn == NULL else self._table.reserve(txn, change.size))
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
            if self._table.total_bytes > self._spiller.work_mem_bytes and not self._spiller.make_room(self._table):
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
        """Return a ChangeStream of the top-level transaction *xid*, which stays; with *news* since its last part."""
        cdef Txn *txn = self._table.lookup(xid)
        cdef ChangeStream stream = ChangeStream()
        if txn == NULL or txn.top != NULL:
            raise KeyError(xid)
        stream.borrow(self._table, txn, self._plans, news)
        return stream

    # ---- streaming

    def part(self, uint32_t xid):
        """Return the part that is due of the transaction of *xid*, which stays.

        As (top-level xid, its first_lsn, number of the part, lsn of its first and of its last change, ChangeStream).
        """
        cdef Txn *txn = self._table.lookup(xid)
        cdef uint64_t first_lsn, last_lsn
        if txn == NULL:
            raise KeyError(xid)
        txn = top_of(txn)
        self._pending(txn, &first_lsn, &last_lsn)
        return txn.xid, txn.first_lsn, txn.parts + 1, first_lsn, last_lsn, self.borrow(txn.xid, True)

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
            txn.pending_last_lsn = 0
            txn = top.first_child if txn == top else txn.next

    def streamed(self, uint32_t top_xid):
        """Return (number of parts, where the last ended, lsn of the first and the last change since) of *top_xid*."""
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
            self._count(txn, lsn, False)
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

    cdef void _pending(self, Txn *top, uint64_t *first_lsn, uint64_t *last_lsn) noexcept:
        """Find the first and the last of what was queued in *top* and below since the last part; 0 for nothing."""
        cdef Txn *txn = top
        first_lsn[0] = 0
        last_lsn[0] = 0
        while txn != NULL:
            if txn.pending_first_lsn != 0:
                if first_lsn[0] == 0 or txn.pending_first_lsn < first_lsn[0]:
                    first_lsn[0] = txn.pending_first_lsn
                if txn.pending_last_lsn > last_lsn[0]:
                    last_lsn[0] = txn.pending_last_lsn
            txn = top.first_child if txn == top else txn.next

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
        """Drop *xid* and, when it is top-level, its subtransactions; return the xids of it that changed the catalog."""
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
        """Drop transactions that a crash of the server ended without a record; return [(xid, touched xids)].

        In the order of their first records, up to the first that runs, a prepared one: what is behind that waits for
        its end, as with PostgreSQL.
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
        """Return (xid, top xid or 0, first_lsn, flags) of every transaction in progress, tops before their children."""
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

    def restore_transaction(self, uint32_t xid, uint32_t top_xid, uint64_t first_lsn, uint32_t flags):
        """Enter a transaction that was in progress when the decoder was serialised; it can't be complete."""
        cdef Txn *txn
        if top_xid:
            txn = self._table.assign_child(top_xid, xid, first_lsn)
        else:
            txn = self._table.obtain(xid, first_lsn)
        if txn == NULL:
            raise MemoryError
        # Chunks of a TOAST value may have come before: the row that has it ends them, as it would there.
        txn.flags |= TXN_INCOMPLETE | TXN_HAS_TOAST | (
            flags & (TXN_HAS_BASE_SNAPSHOT | TXN_HAS_CATALOG_CHANGES | TXN_TOUCHED_CATALOG))
        if txn.flags & TXN_TOUCHED_CATALOG:
            top_of(txn).flags |= TXN_TOUCHED_CATALOG
            top_of(txn).locator_generation = self._locators.new_generation()

    def carry(self, size_t inline_max, uint64_t at_lsn):
        """Return all transactions in progress as (bytes, files, relation ids); see ``reorder_carry``.

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
        """Enter the transactions that :meth:`carry` returned in another process, in which *ids* were called otherwise.

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
