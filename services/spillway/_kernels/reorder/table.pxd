# cython: language_level=3
"""Transactions in progress as C structs: who they are, and the arenas their changes are gathered
in.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

cdef enum TxnFlag:
    # A record was seen that makes PostgreSQL give the transaction its base snapshot; kept on the
    # top.
    TXN_HAS_BASE_SNAPSHOT = 0x01
    # NEW_CID, XACT_INVALIDATIONS or (before 18) INPLACE: PostgreSQL's has_catalog_changes.
    TXN_HAS_CATALOG_CHANGES = 0x02
    # Wrote to a relation that the catalog mirror tracks; on the subtransaction and on its top.
    TXN_TOUCHED_CATALOG = 0x04
    # The arena holds TOAST chunks or speculative changes: output is put together, not handed on.
    TXN_NEEDS_ASSEMBLY = 0x08
    TXN_HAS_TOAST = 0x10
    # Restored from a serialised snapshot: its changes before that are not here.
    TXN_INCOMPLETE = 0x20
    TXN_IS_SUBTRANSACTION = 0x40
    # Has been spilled at least once (PostgreSQL counts such transactions).
    TXN_WAS_SPILLED = 0x80
    # The last speculative insertion has been neither confirmed nor withdrawn.
    TXN_SPECULATION_OPEN = 0x100
    # Had changes in a part that was streamed; on the top whenever a part was.
    TXN_STREAMED = 0x200
    # On the top: its last change is not complete, no part may end here.
    TXN_HAS_PARTIAL_CHANGE = 0x400
    # On the top: has had a change that makes parts due, not only what catalogs need.
    TXN_HAS_STREAMABLE_CHANGE = 0x800
    # On the top: invalidations are to be executed at its end, its own or another's.
    TXN_INVALIDATES = 0x1000


cdef enum:
    # In pending_first_origin. A table that an older release carried over a restart does not say it.
    FIRST_ORIGIN_KNOWN = 0x10000
    # Where pending_first_origin is in the flags of a CarriedTxn, above all of a Txn's own.
    FIRST_ORIGIN_SHIFT = 15


# A run of memory that holds whole changes; capacity bytes follow this header.
cdef struct Extent:
    Extent *next
    uint32_t capacity
    uint32_t used


# An extent that lives in a spill file.
cdef struct SpilledExtent:
    uint64_t offset             # of the frame's payload
    uint64_t first_lsn          # of its first change
    uint32_t size
    uint32_t crc


# What the relation ids in a stretch of a spill file, written by an earlier process, are called in
# this one.
cdef struct IdRange:
    uint64_t end                # of the stretch; it begins where the one before it ends
    uint32_t count
    uint32_t *from_ids          # ascending
    uint32_t *to_ids


# A file of spilled extents; one for a transaction and its subtransactions, removed with the last of
# them.
cdef struct SpillFile:
    char *path
    uint64_t size
    uint32_t references
    int fd
    # Carrying; see reorder_carry.
    # a serialised state names it: it stays when its transaction has ended
    bint is_kept
    uint32_t number             # among the files of the state being written
    uint64_t synced_size
    # written before this decoder was restored: the WAL of it may be gone
    uint64_t inherited_size
    uint32_t range_count
    IdRange *ranges


# A set of nonzero 32-bit ids, open addressing; capacity is 0 or a power of two.
cdef struct IdSet:
    uint32_t *slots
    uint32_t capacity
    uint32_t count


cdef struct Txn:
    uint32_t xid
    uint32_t flags
    Txn *top                    # NULL: top-level, or not (yet) known to be a subtransaction
    Txn *first_child
    Txn *last_child
    Txn *previous               # siblings; top-level ones in order of first_lsn
    Txn *next
    uint64_t first_lsn
    uint64_t locator_generation  # 0: shares the global locator cache; on the top
    Extent *head
    Extent *tail
    uint8_t *last_change        # what was appended last, NULL after a spill
    size_t arena_bytes          # memory of the extents
    size_t tree_bytes           # … of subtransactions too; kept on the top
    uint64_t change_bytes       # ever appended
    SpilledExtent *spilled      # older than everything in head … tail
    uint32_t spilled_count
    uint32_t spilled_room
    SpillFile *file
    uint32_t last_relation      # a member of relations, to save most look-ups
    IdSet relations
    # What PostgreSQL queues and then passes over; see note_passed.
    uint64_t *passed_lsns
    uint32_t passed_count
    uint32_t passed_room
    uint32_t passed_streamed    # how many of them came before the end of the last part
    # who had the last change or passed entry, NULL when it does not matter; on the top
    Txn *last_entry
    uint64_t last_entry_lsn     # … and its LSN
    uint64_t last_message_lsn   # where the last message's record ended; on the top
    # Streaming; see reorder.
    uint64_t counted_bytes      # of change_bytes: counted in pending_bytes so far
    uint64_t streamed_bytes     # of change_bytes: were in parts
    uint64_t pending_bytes      # since the last part
    uint64_t pending_first_lsn  # of the first and the last change since then, 0 without any
    uint64_t pending_last_lsn
    uint32_t pending_first_origin  # the first one's, with FIRST_ORIGIN_KNOWN
    uint64_t tree_pending_bytes  # … of subtransactions too; kept on the top
    uint64_t streamed_upto      # where the last part ended; on the top
    uint32_t parts              # … and how many there were


cdef bint id_set_add(IdSet *ids, uint32_t value) noexcept nogil
cdef int add_ids(set into, const IdSet *ids) except -1
cdef void spill_file_release(SpillFile *file) noexcept nogil


cdef class TransactionTable:
    cdef Txn **_slots
    cdef size_t _mask
    cdef size_t _count
    # Top-level transactions by first_lsn.
    cdef Txn *oldest
    cdef Txn *newest
    # Memory of all extents, those of committed transactions being read too.
    cdef size_t total_bytes
    cdef readonly uint32_t extent_bytes_max

    cdef Txn *lookup(self, uint32_t xid) noexcept nogil
    cdef Txn *obtain(self, uint32_t xid, uint64_t lsn) noexcept nogil
    cdef Txn *assign_child(self, uint32_t top_xid, uint32_t xid, uint64_t lsn) noexcept nogil
    cdef bint adopt(self, Txn *top, Txn *txn) noexcept nogil
    cdef uint8_t *reserve(self, Txn *txn, size_t size) noexcept nogil
    cdef void unreserve(self, Txn *txn, size_t size) noexcept nogil
    cdef bint note_passed(self, Txn *txn, uint64_t lsn) noexcept nogil
    cdef void free_first_extent(self, Txn *txn) noexcept nogil
    cdef void detach(self, Txn *txn) noexcept nogil
    cdef void destroy(self, Txn *txn) noexcept nogil
    cdef uint8_t *_grow(self, Txn *txn, size_t size) noexcept nogil
    cdef bint _insert(self, Txn *txn) noexcept nogil
    cdef void _erase(self, uint32_t xid) noexcept nogil
    cdef bint _enlarge(self) noexcept nogil
    cdef void _link(self, Txn *txn) noexcept nogil
    cdef void _unlink(self, Txn *txn) noexcept nogil
    cdef void _destroy_one(self, Txn *txn) noexcept nogil


cdef inline Txn *top_of(Txn *txn) noexcept nogil:
    return txn if txn.top == NULL else txn.top


cdef inline void note_change(Txn *txn, uint64_t lsn, bint is_message) noexcept nogil:
    """Note that a change at *lsn* was the last thing queued in the tree of *txn*; see
    note_passed.
    """
    cdef Txn *top = top_of(txn)
    top.last_entry = txn
    top.last_entry_lsn = lsn
    if is_message:
        top.last_message_lsn = lsn


cdef inline uint8_t *extent_data(Extent *extent) noexcept nogil:
    return <uint8_t *> (extent + 1)


cdef inline size_t pad8(size_t size) noexcept nogil:
    return (size + 7) & ~(<size_t> 7)


cdef inline bint precedes(uint32_t a, uint32_t b) noexcept nogil:
    """TransactionIdPrecedes: xids compare modulo 2**32, the permanent ones below 3 plainly."""
    if a < 3 or b < 3:
        return a < b
    return <int32_t> (a - b) < 0
