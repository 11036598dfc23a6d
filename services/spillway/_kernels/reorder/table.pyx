# cython: language_level=3, boundscheck=False, wraparound=False
"""The table of transactions in progress.

In come xids as records bear them and sizes of changes; out go pointers to where a change is to be
written. A hash finds the transaction of an xid; a list keeps the top-level ones in the order of
their first record, whose head is the oldest: decoding must restart there. A subtransaction hangs
off its top-level transaction from the first record that names both (WAL block id 252), as in
PostgreSQL.

Changes of each (sub)transaction go to an arena of its own: a chain of *extents*, each of whole
changes laid out in the change format, so that an extent can be written to a spill file or handed to
the transaction log as it is. Extents double in size up to ``extent_bytes_max``: a transaction of
one row costs a kilobyte, one of a million rows no copying. ``total_bytes`` counts what extents
occupy, not what is used of them: it is memory that the bound on memory is about.

Beside the changes an arena has *passed entries*: LSNs of what PostgreSQL queues there and passes
over when it replays, command ids and snapshots for example. They are nobody's output, but they have
a place in the heap by which (sub)transactions are merged, and where two changes bear the same LSN
that decides which comes first.

Nothing here holds the GIL or knows Python objects. Functions that allocate return NULL or False
when memory is out; the caller raises MemoryError.

Source: ReorderBufferTXNByXid, ReorderBufferAssignChild, ReorderBufferCleanupTXN,
src/backend/replication/logical/reorderbuffer.c
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset
from posix.unistd cimport close, unlink

cdef enum:
    EXTENT_BYTES_FIRST = 1024 - sizeof(Extent)
    SLOTS_FIRST = 256
    IDS_FIRST = 2
    PASSED_FIRST = 1


cdef inline uint32_t _mix(uint32_t value) noexcept nogil:
    """Spread sequential ids (Fibonacci hashing) and fold the high bits, which the mask would
    drop.
    """
    value *= <uint32_t> 2654435769
    return value ^ (value >> 15)


cdef bint id_set_add(IdSet *ids, uint32_t value) noexcept nogil:
    """Add *value*, not 0; False when memory is out."""
    cdef uint32_t mask, i, j, old_capacity
    cdef uint32_t *old
    if ids.count * 2 >= ids.capacity:
        old = ids.slots
        old_capacity = ids.capacity
        ids.capacity = IDS_FIRST if old_capacity == 0 else old_capacity * 2
        ids.slots = <uint32_t *> calloc(ids.capacity, sizeof(uint32_t))
        if ids.slots == NULL:
            ids.slots = old
            ids.capacity = old_capacity
            return False
        mask = ids.capacity - 1
        for j in range(old_capacity):
            if old[j] != 0:
                i = _mix(old[j]) & mask
                while ids.slots[i] != 0:
                    i = (i + 1) & mask
                ids.slots[i] = old[j]
        free(old)
    mask = ids.capacity - 1
    i = _mix(value) & mask
    while ids.slots[i] != 0:
        if ids.slots[i] == value:
            return True
        i = (i + 1) & mask
    ids.slots[i] = value
    ids.count += 1
    return True


cdef int add_ids(set into, const IdSet *ids) except -1:
    """Add the members of *ids* to a set of Python's."""
    cdef uint32_t i
    for i in range(ids.capacity):
        if ids.slots[i] != 0:
            into.add(ids.slots[i])
    return 0


cdef void spill_file_release(SpillFile *file) noexcept nogil:
    """Drop a reference; the last one closes the file, and removes it unless a serialised state
    names it.
    """
    cdef uint32_t i
    if file == NULL:
        return
    file.references -= 1
    if file.references == 0:
        close(file.fd)
        if not file.is_kept:
            unlink(file.path)
        for i in range(file.range_count):
            free(file.ranges[i].from_ids)
        free(file.ranges)
        free(file.path)
        free(file)


cdef class TransactionTable:
    """Every transaction that has a record and no end yet."""

    def __cinit__(self, uint32_t extent_bytes_max):
        self.extent_bytes_max = extent_bytes_max
        self._mask = SLOTS_FIRST - 1
        self._slots = <Txn **> calloc(SLOTS_FIRST, sizeof(Txn *))
        if self._slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self._slots != NULL:
            while self.oldest != NULL:
                self.destroy(self.oldest)
            free(self._slots)

    cdef Txn *lookup(self, uint32_t xid) noexcept nogil:
        """Find the transaction of *xid*; NULL when no record of it was seen."""
        cdef size_t i = _mix(xid) & self._mask
        while self._slots[i] != NULL:
            if self._slots[i].xid == xid:
                return self._slots[i]
            i = (i + 1) & self._mask
        return NULL

    cdef Txn *obtain(self, uint32_t xid, uint64_t lsn) noexcept nogil:
        """Find or make the transaction of *xid*; a new one is top-level until something says
        otherwise.
        """
        cdef Txn *txn = self.lookup(xid)
        if txn != NULL:
            return txn
        txn = <Txn *> calloc(1, sizeof(Txn))
        if txn == NULL:
            return NULL
        txn.xid = xid
        txn.first_lsn = lsn
        if not self._insert(txn):
            free(txn)
            return NULL
        self._link(txn)
        return txn

    cdef Txn *assign_child(self, uint32_t top_xid, uint32_t xid, uint64_t lsn) noexcept nogil:
        """Make *xid* a subtransaction of *top_xid*, both known from *lsn* on if they were not
        before.

        Return the subtransaction, NULL when memory is out.
        """
        cdef Txn *top
        cdef Txn *txn = self.lookup(xid)
        if txn != NULL and (txn.top != NULL or xid == top_xid):
            return txn
        top = self.obtain(top_xid, lsn)
        if top == NULL:
            return NULL
        txn = self.obtain(xid, lsn)
        if txn != NULL and txn != top:
            self.adopt(top, txn)
        return txn

    cdef bint adopt(self, Txn *top, Txn *txn) noexcept nogil:
        """Hang *txn*, so far thought to be top-level, under *top*; False when that can't be."""
        cdef Txn *child
        top = top_of(top)
        if txn == top or txn.top != NULL:
            return txn.top == top
        self._unlink(txn)
        # A record names the top, so what hangs under one that was thought to be top hangs under its
        # top.
        while txn.first_child != NULL:
            child = txn.first_child
            txn.first_child = child.next
            child.top = top
            child.previous = top.last_child
            child.next = NULL
            if top.last_child == NULL:
                top.first_child = child
            else:
                top.last_child.next = child
            top.last_child = child
        txn.last_child = NULL
        txn.last_entry = NULL
        top.last_entry = NULL
        if txn.last_message_lsn > top.last_message_lsn:
            top.last_message_lsn = txn.last_message_lsn
        txn.top = top
        txn.flags |= TXN_IS_SUBTRANSACTION
        txn.previous = top.last_child
        txn.next = NULL
        if top.last_child == NULL:
            top.first_child = txn
        else:
            top.last_child.next = txn
        top.last_child = txn
        top.tree_bytes += txn.tree_bytes
        txn.tree_bytes = 0
        if txn.locator_generation > top.locator_generation:
            top.locator_generation = txn.locator_generation
        top.flags |= txn.flags & (TXN_HAS_BASE_SNAPSHOT | TXN_HAS_CATALOG_CHANGES
                                  | TXN_TOUCHED_CATALOG
                                  | TXN_HAS_PARTIAL_CHANGE | TXN_HAS_STREAMABLE_CHANGE)
        top.tree_pending_bytes += txn.tree_pending_bytes
        txn.tree_pending_bytes = 0
        if txn.first_lsn < top.first_lsn:
            # Only after a restart in the middle of the transaction; keep the list ordered by
            # first_lsn.
            self._unlink(top)
            top.first_lsn = txn.first_lsn
            self._link(top)
        return True

    cdef uint8_t *reserve(self, Txn *txn, size_t size) noexcept nogil:
        """Return room for a change of *size* bytes, a multiple of 8; NULL when memory is out."""
        cdef Extent *extent = txn.tail
        cdef uint8_t *place
        if extent == NULL or extent.capacity - extent.used < size:
            place = self._grow(txn, size)
            if place == NULL:
                return NULL
        else:
            place = extent_data(extent) + extent.used
            extent.used += <uint32_t> size
        txn.last_change = place
        txn.change_bytes += size
        return place

    cdef void unreserve(self, Txn *txn, size_t size) noexcept nogil:
        """Take back the change of *size* bytes that was reserved last."""
        txn.tail.used -= <uint32_t> size
        txn.change_bytes -= size
        txn.last_change = NULL

    cdef bint note_passed(self, Txn *txn, uint64_t lsn) noexcept nogil:
        """Note that PostgreSQL queues something at *lsn* in *txn* that it passes over later; False
        when memory is out.

        Only what can make a difference is kept: of things queued in one arena with nothing in
        another one of the tree between them, the first. Once that one has been merged, the others
        have all a smaller LSN than whatever the heap has besides, and leave it as it is. Unless the
        first bears the LSN of a message, which may still be in the heap. So there are about as many
        entries as there are subtransactions, and commits beside them.
        """
        cdef Txn *top = top_of(txn)
        cdef uint64_t *grown
        cdef uint32_t room
        if top.last_entry == txn and top.last_entry_lsn != top.last_message_lsn:
            return True
        if txn.passed_count == txn.passed_room:
            room = PASSED_FIRST if txn.passed_room == 0 else txn.passed_room * 2
            grown = <uint64_t *> realloc(txn.passed_lsns, room * sizeof(uint64_t))
            if grown == NULL:
                return False
            txn.passed_lsns = grown
            txn.passed_room = room
        txn.passed_lsns[txn.passed_count] = lsn
        txn.passed_count += 1
        top.last_entry = txn
        top.last_entry_lsn = lsn
        return True

    cdef uint8_t *_grow(self, Txn *txn, size_t size) noexcept nogil:
        cdef size_t capacity = EXTENT_BYTES_FIRST
        cdef Extent *extent
        cdef size_t bytes
        if txn.tail != NULL:
            capacity = (txn.tail.capacity + sizeof(Extent)) * 2 - sizeof(Extent)
        if capacity > self.extent_bytes_max:
            capacity = self.extent_bytes_max
        if capacity < size:
            capacity = size
        if capacity > <size_t> 0xFFFFFFF0:
            return NULL
        extent = <Extent *> malloc(sizeof(Extent) + capacity)
        if extent == NULL:
            return NULL
        extent.next = NULL
        extent.capacity = <uint32_t> capacity
        extent.used = <uint32_t> size
        if txn.tail == NULL:
            txn.head = extent
        else:
            txn.tail.next = extent
        txn.tail = extent
        bytes = sizeof(Extent) + capacity
        txn.arena_bytes += bytes
        top_of(txn).tree_bytes += bytes
        self.total_bytes += bytes
        return extent_data(extent)

    cdef void free_first_extent(self, Txn *txn) noexcept nogil:
        """Free the oldest extent of *txn*."""
        cdef Extent *extent = txn.head
        cdef size_t bytes = sizeof(Extent) + extent.capacity
        txn.head = extent.next
        if txn.head == NULL:
            txn.tail = NULL
            txn.last_change = NULL
        free(extent)
        txn.arena_bytes -= bytes
        top_of(txn).tree_bytes -= bytes
        self.total_bytes -= bytes

    cdef void detach(self, Txn *txn) noexcept nogil:
        """Take a top-level transaction and its subtransactions out of the table without freeing
        them.
        """
        cdef Txn *child = txn.first_child
        while child != NULL:
            self._erase(child.xid)
            child = child.next
        self._erase(txn.xid)
        self._unlink(txn)

    cdef void destroy(self, Txn *txn) noexcept nogil:
        """Forget a transaction and free its changes; with a top-level one its subtransactions go
        too.
        """
        cdef Txn *child
        if txn.top != NULL:
            self._erase(txn.xid)
            txn.top.tree_pending_bytes -= txn.pending_bytes
            if txn.top.last_entry == txn:
                txn.top.last_entry = NULL
            if txn.previous == NULL:
                txn.top.first_child = txn.next
            else:
                txn.previous.next = txn.next
            if txn.next == NULL:
                txn.top.last_child = txn.previous
            else:
                txn.next.previous = txn.previous
            self._destroy_one(txn)
            return
        if self.lookup(txn.xid) == txn:
            self.detach(txn)
        child = txn.first_child
        while child != NULL:
            txn.first_child = child.next
            self._destroy_one(child)
            child = txn.first_child
        self._destroy_one(txn)

    cdef void _destroy_one(self, Txn *txn) noexcept nogil:
        while txn.head != NULL:
            self.free_first_extent(txn)
        spill_file_release(txn.file)
        free(txn.spilled)
        free(txn.relations.slots)
        free(txn.passed_lsns)
        free(txn)

    cdef void _link(self, Txn *txn) noexcept nogil:
        """Put a top-level transaction in its place; nearly always that is the end."""
        cdef Txn *after = self.newest
        while after != NULL and after.first_lsn > txn.first_lsn:
            after = after.previous
        txn.previous = after
        if after == NULL:
            txn.next = self.oldest
            self.oldest = txn
        else:
            txn.next = after.next
            after.next = txn
        if txn.next == NULL:
            self.newest = txn
        else:
            txn.next.previous = txn

    cdef void _unlink(self, Txn *txn) noexcept nogil:
        if txn.previous == NULL:
            self.oldest = txn.next
        else:
            txn.previous.next = txn.next
        if txn.next == NULL:
            self.newest = txn.previous
        else:
            txn.next.previous = txn.previous
        txn.previous = NULL
        txn.next = NULL

    cdef bint _insert(self, Txn *txn) noexcept nogil:
        cdef size_t i
        if (self._count + 1) * 2 > self._mask and not self._enlarge():
            return False
        i = _mix(txn.xid) & self._mask
        while self._slots[i] != NULL:
            i = (i + 1) & self._mask
        self._slots[i] = txn
        self._count += 1
        return True

    cdef void _erase(self, uint32_t xid) noexcept nogil:
        """Remove from the hash, closing the gap (linear probing needs no tombstones that way)."""
        cdef size_t i = _mix(xid) & self._mask
        cdef size_t j, home
        while self._slots[i] == NULL or self._slots[i].xid != xid:
            if self._slots[i] == NULL:
                return
            i = (i + 1) & self._mask
        j = i
        while True:
            j = (j + 1) & self._mask
            if self._slots[j] == NULL:
                break
            home = _mix(self._slots[j].xid) & self._mask
            if ((j - home) & self._mask) >= ((j - i) & self._mask):
                self._slots[i] = self._slots[j]
                i = j
        self._slots[i] = NULL
        self._count -= 1

    cdef bint _enlarge(self) noexcept nogil:
        cdef size_t old_size = self._mask + 1
        cdef Txn **old = self._slots
        cdef size_t i, j
        cdef Txn **slots = <Txn **> malloc(old_size * 2 * sizeof(Txn *))
        if slots == NULL:
            return False
        memset(slots, 0, old_size * 2 * sizeof(Txn *))
        self._slots = slots
        self._mask = old_size * 2 - 1
        for j in range(old_size):
            if old[j] != NULL:
                i = _mix(old[j].xid) & self._mask
                while slots[i] != NULL:
                    i = (i + 1) & self._mask
                slots[i] = old[j]
        free(old)
        return True
