# cython: language_level=3, boundscheck=False, wraparound=False
"""Ends of transactions that need no decision: what committed goes into a run, what aborted is
forgotten.

``decoding/transaction_ends.py`` says what an end may bring about: the catalog mirror hears of it,
others learn what became invalid, a prepared or streamed one ends, origins have names. An ordinary
transaction of an application brings about none of that. It is recognised here by its record and the
flags of its entry; whatever is not plainly such a one is left to Python, with nothing done to it
but its subtransactions named by the record hung under it, which Python would do first, too.

A run is laid out as the transaction log is (``transaction_run``), so that the log appends it as it
is. It is handed on when it is full, before anything else is delivered, and at the end of each
record batch.

Memory: a run of RUN_BYTES, and one transaction of TRANSACTION_BYTES_MAX.

Source: DecodeCommit, DecodeAbort, src/backend/replication/logical/decode.c; ParseCommitRecord,
ParseAbortRecord, src/backend/access/rmgrdesc/xactdesc.c
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_FromStringAndSize

from spillway._kernels.wal.record_batch cimport WalRecord, load_u32
from spillway._kernels.wal.record_routes cimport EndRecord, parse_end
from spillway._kernels.reorder.merge cimport MERGE_OK, ChangeStream
from spillway._kernels.reorder.table cimport (
    TXN_HAS_BASE_SNAPSHOT,
    TXN_HAS_CATALOG_CHANGES,
    TXN_INCOMPLETE,
    TXN_INVALIDATES,
    TXN_NEEDS_ASSEMBLY,
    TXN_SPECULATION_OPEN,
    TXN_STREAMED,
    TXN_TOUCHED_CATALOG,
    Extent,
    IdSet,
    TransactionTable,
    Txn,
    add_ids,
    extent_data,
    id_set_add,
)
from spillway._kernels.reorder.toast cimport RelationPlans
from spillway._kernels.reorder.transaction_run cimport (
    ENTRY_HEADER_BYTES,
    FRAME_KIND_TRANSACTION,
    EntryHeader,
    FrameHeader,
    entry_checksum,
)

cdef enum:
    # Of the record's info.
    XACT_OPMASK = 0x70
    XACT_COMMIT = 0x00
    RUN_BYTES = 128 << 10
    TRANSACTION_BYTES_MAX = 64 << 10
    # A transaction with one of these is Python's.
    NOT_PLAIN = (TXN_TOUCHED_CATALOG | TXN_HAS_CATALOG_CHANGES | TXN_INCOMPLETE | TXN_STREAMED
                 | TXN_INVALIDATES)


cdef bint adopt_subxacts(TransactionTable table, uint32_t xid, const EndRecord *end) noexcept nogil:
    """ReorderBufferCommitChild: hang what the record calls subtransactions under *xid*; False when
    memory is out.
    """
    cdef Txn *child
    cdef Txn *top
    cdef uint32_t i, subxid
    for i in range(end.subxact_count):
        subxid = load_u32(end.subxacts + 4 * <size_t> i)
        child = table.lookup(subxid)
        if child == NULL or child.top != NULL or subxid == xid:
            continue
        top = table.obtain(xid, child.first_lsn)
        if top == NULL:
            return False
        table.adopt(top, child)
    return True


cdef inline uint32_t aborted_xid(const WalRecord *record, const EndRecord *end,
                                 uint32_t i) noexcept nogil:
    """The xids that an abort names: subtransactions, then the one that it is of."""
    return load_u32(end.subxacts + 4 * <size_t> i) if i < end.subxact_count else record.xid


cdef bint find_arenas(Txn *txn, Arenas *arenas) noexcept nogil:
    """Look over the arenas in the tree of *txn*; False when it isn't plain and small."""
    cdef Txn *one = txn
    cdef Extent *extent
    memset(arenas, 0, sizeof(Arenas))
    while one != NULL:
        if one.spilled_count > 0 or one.flags & NOT_PLAIN:
            return False
        if one.flags & (TXN_NEEDS_ASSEMBLY | TXN_SPECULATION_OPEN):
            arenas.assembled = True
        arenas.change_bytes += one.change_bytes
        if arenas.change_bytes > TRANSACTION_BYTES_MAX:
            return False
        if one.head != NULL:
            arenas.assembled |= arenas.only != NULL
            arenas.only = one
        one = txn.first_child if one == txn else one.next
    if arenas.only != NULL and not arenas.assembled:
        extent = arenas.only.head
        while extent != NULL:
            arenas.size += extent.used
            extent = extent.next
    return True


cdef bint is_left_to_python(Txn *txn) noexcept nogil:
    """Say whether Python must hear of it when *txn*, with what is below it, aborts."""
    cdef Txn *child = txn.first_child
    if txn.flags & NOT_PLAIN:
        return True
    while child != NULL:
        if child.flags & NOT_PLAIN:
            return True
        child = child.next
    return False


cdef class CommitRun:
    """Transactions that committed one after the other and are not handed over yet."""

    def __init__(self, TransactionTable table not None, RelationPlans plans not None):
        self._table = table
        self._merge = ChangeStream()
        self._merge.prepare(table, plans)

    def __dealloc__(self):
        free(self._data)
        free(self._relations.slots)

    cdef CommitOutcome end(self, const WalRecord *record, uint32_t database,
                           uint64_t start_decoding_at) noexcept nogil:
        """Take the end of a transaction, if it is a plain one, while decoding is CONSISTENT."""
        cdef EndRecord end
        if not parse_end(record, &end):
            return COMMIT_FOR_PYTHON
        if record.info & XACT_OPMASK == XACT_COMMIT:
            return self._commit(record, &end, database, start_decoding_at)
        return self._abort(record, &end)

    cdef CommitOutcome _commit(self, const WalRecord *record, const EndRecord *end,
                               uint32_t database, uint64_t start_decoding_at) noexcept nogil:
        cdef Txn *txn
        cdef Arenas arenas
        if not adopt_subxacts(self._table, record.xid, end):
            return COMMIT_NO_MEMORY
        txn = self._table.lookup(record.xid)
        if txn == NULL:
            return COMMIT_DONE
        if txn.top != NULL or txn.flags & NOT_PLAIN:
            return COMMIT_FOR_PYTHON
        if (txn.flags & TXN_HAS_BASE_SNAPSHOT and record.lsn >= start_decoding_at
                and (end.database == 0 or end.database == database)):
            if not find_arenas(txn, &arenas):
                return COMMIT_FOR_PYTHON
            if arenas.assembled:
                self._status = self._merge.gather(txn)
                if self._status != MERGE_OK:
                    return COMMIT_FAILED
                arenas.size = self._merge._out_used
            if not self._append(txn, &arenas, record, end.time):
                return COMMIT_NO_MEMORY
        self._table.destroy(txn)
        return COMMIT_RUN_FULL if self._size >= RUN_BYTES else COMMIT_DONE

    cdef CommitOutcome _abort(self, const WalRecord *record, const EndRecord *end) noexcept nogil:
        """Forget the transaction, or subtransaction with its own, that *record* is the abort of."""
        cdef uint32_t i
        cdef Txn *txn
        for i in range(end.subxact_count + 1):
            txn = self._table.lookup(aborted_xid(record, end, i))
            if txn != NULL and is_left_to_python(txn):
                return COMMIT_FOR_PYTHON
        for i in range(end.subxact_count + 1):
            txn = self._table.lookup(aborted_xid(record, end, i))
            if txn != NULL:
                self._table.destroy(txn)
        return COMMIT_DONE

    def failure(self):
        """Return the exception for what ended :meth:`end` with COMMIT_FAILED."""
        return self._merge._fail(self._status)

    cdef bint _append(self, Txn *txn, const Arenas *arenas, const WalRecord *record,
                      int64_t time) noexcept nogil:
        """Write the entry of *txn*; False when memory is out."""
        cdef FrameHeader *frame
        cdef EntryHeader *header
        cdef uint8_t *place
        cdef Extent *extent
        cdef Txn *one = txn
        cdef uint32_t i
        if not self._reserve(ENTRY_HEADER_BYTES + arenas.size):
            return False
        while one != NULL:
            for i in range(one.relations.capacity):
                if one.relations.slots[i] != 0 and not id_set_add(&self._relations,
                                                                  one.relations.slots[i]):
                    return False
            one = txn.first_child if one == txn else one.next
        frame = <FrameHeader *> (self._data + self._size)
        frame.length = <uint32_t> (sizeof(EntryHeader) + arenas.size)
        frame.kind = FRAME_KIND_TRANSACTION
        frame.zero = 0
        header = <EntryHeader *> (frame + 1)
        memset(header, 0, sizeof(EntryHeader))
        header.xid = txn.xid
        header.first_lsn = txn.first_lsn
        header.final_lsn = record.lsn
        header.end_lsn = record.end_lsn
        header.commit_time = time
        place = <uint8_t *> (header + 1)
        if arenas.assembled:
            if arenas.size > 0:
                memcpy(place, self._merge._out, arenas.size)
        else:
            extent = arenas.only.head if arenas.only != NULL else NULL
            while extent != NULL:
                memcpy(place, extent_data(extent), extent.used)
                place += extent.used
                extent = extent.next
        frame.crc = entry_checksum(frame)
        self._size += ENTRY_HEADER_BYTES + arenas.size
        self.count += 1
        self.change_bytes += arenas.change_bytes
        return True

    cdef bint _reserve(self, size_t more) noexcept nogil:
        cdef size_t room = self._room if self._room > 0 else 4096
        cdef uint8_t *grown
        if self._room - self._size >= more:
            return True
        while room - self._size < more:
            room *= 2
        grown = <uint8_t *> realloc(self._data, room)
        if grown == NULL:
            return False
        self._data = grown
        self._room = room
        return True

    def relation_ids(self):
        """Return the ids of the relations in what is not handed over yet."""
        cdef set ids = set()
        add_ids(ids, &self._relations)
        return ids

    def take(self):
        """Hand over the run and begin another.

        Returns (entries, ids of the relations in them, how many there are, bytes of their changes),
        None without any.
        """
        if self.count == 0:
            return None
        ids = self.relation_ids()
        taken = PyBytes_FromStringAndSize(<const char *> self._data,
                                          <Py_ssize_t> self._size), ids, self.count, \
            self.change_bytes
        self._size = 0
        self.count = 0
        self.change_bytes = 0
        free(self._relations.slots)
        memset(&self._relations, 0, sizeof(IdSet))
        return taken
