# cython: language_level=3, boundscheck=False, wraparound=False
"""Carrying transactions in progress over a restart, so that the WAL that they began in need not be
read again.

``dump_transactions`` gives the table of transactions as bytes: of each one all that later records,
its end and the parts of it that were streamed depend on. Its changes are in there as well, if they
are few; more of them are in spill files by then (``spill_large``), of which only the index goes
into the bytes. A spill file that is named is synced first, and only what was appended since the
last time has to be. So carrying costs what is new, not all there is.

``load_transactions`` makes the same table of it. Not kept is what can be found again: whose storage
a relfile is, which change was appended last.

Relation ids are a process's own. A file says, stretch by stretch, what the ids in it are called now
(``IdRange``); one stretch for each process that wrote to it.

::

    for each transaction (the top-level ones by their first record, each followed by its
    subtransactions):
    CarriedTxn | u32 relation ids, padded to 8 | u64 LSNs of passed entries | SpilledExtents
    | changes
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_FromStringAndSize

from spillway._kernels.reorder.locators cimport LocatorCache
from spillway._kernels.reorder.spill cimport Spiller, map_ids
from spillway._kernels.reorder.table cimport (
    FIRST_ORIGIN_SHIFT,
    TXN_TOUCHED_CATALOG,
    Extent,
    IdRange,
    SpilledExtent,
    SpillFile,
    TransactionTable,
    Txn,
    extent_data,
    id_set_add,
    pad8,
    spill_file_release,
)

import os

cdef packed struct CarriedTxn:
    uint32_t xid
    uint32_t top_xid            # 0: top-level
    uint32_t flags
    uint32_t file               # number of its spill file, from 1; 0: none
    uint64_t first_lsn
    uint64_t change_bytes
    uint32_t relation_count
    uint32_t passed_count
    uint32_t passed_streamed
    uint32_t spilled_count
    uint64_t memory_bytes       # of changes that follow
    uint32_t last_entry_xid     # 0: none
    uint32_t parts
    uint64_t last_entry_lsn
    uint64_t last_message_lsn
    uint64_t counted_bytes
    uint64_t streamed_bytes
    uint64_t pending_bytes
    uint64_t pending_first_lsn
    uint64_t pending_last_lsn
    uint64_t tree_pending_bytes
    uint64_t streamed_upto


cdef inline Txn *following(Txn *top, Txn *txn) noexcept nogil:
    """The next in the tree of *top*, NULL at its end."""
    return top.first_child if txn == top else txn.next


cdef bint spill_large(TransactionTable table, Spiller spiller, size_t inline_max) noexcept nogil:
    """Spill every tree that occupies more than *inline_max*; False, with the spiller's error, when
    that fails.
    """
    cdef Txn *top = table.oldest
    while top != NULL:
        if top.tree_bytes > inline_max and not spiller._spill_tree(table, top):
            return False
        top = top.next
    return True


cdef tuple dump_transactions(TransactionTable table):
    """Return (bytes, files, relation ids) of all transactions in *table*, with the files synced and
    from now on kept.

    Files are (name, size, [(end, {id in the file: id now})]).

    Raises:
        OSError: a file can't be synced.
    """
    cdef list parts = []
    cdef list files = []
    cdef set ids = set()
    cdef Txn *top = table.oldest
    cdef Txn *txn
    cdef uint32_t i
    while top != NULL:
        txn = top
        while txn != NULL:
            if txn.file != NULL:
                txn.file.number = 0
            for i in range(txn.relations.capacity):
                if txn.relations.slots[i] != 0:
                    ids.add(txn.relations.slots[i])
            txn = following(top, txn)
        top = top.next
    top = table.oldest
    while top != NULL:
        txn = top
        while txn != NULL:
            if txn.file != NULL and txn.file.number == 0:
                files.append(_keep(txn.file, ids))
                txn.file.number = <uint32_t> len(files)
            _dump_one(txn, parts)
            txn = following(top, txn)
        top = top.next
    return b"".join(parts), files, ids


cdef tuple _keep(SpillFile *file, set ids):
    """Sync *file* and keep it from now on; describe it."""
    cdef uint32_t i, j
    cdef IdRange *stretch
    cdef list ranges = []
    if file.synced_size < file.size:
        os.fdatasync(file.fd)
        file.synced_size = file.size
    file.is_kept = True
    for i in range(file.range_count):
        stretch = &file.ranges[i]
        ranges.append((stretch.end, {
            stretch.from_ids[j]: stretch.to_ids[j] for j in range(stretch.count)
            if stretch.to_ids[j] in ids}))
    return os.path.basename(<bytes> file.path), file.size, ranges


cdef int _dump_one(Txn *txn, list parts) except -1:
    cdef CarriedTxn carried
    cdef Extent *extent
    cdef uint32_t *ids
    cdef uint32_t i
    cdef uint32_t count = 0
    cdef bytes relations
    carried.xid = txn.xid
    carried.top_xid = 0 if txn.top == NULL else txn.top.xid
    carried.flags = txn.flags | (txn.pending_first_origin << FIRST_ORIGIN_SHIFT)
    carried.file = 0 if txn.file == NULL else txn.file.number
    carried.first_lsn = txn.first_lsn
    carried.change_bytes = txn.change_bytes
    carried.relation_count = txn.relations.count
    carried.passed_count = txn.passed_count
    carried.passed_streamed = txn.passed_streamed
    carried.spilled_count = txn.spilled_count
    carried.memory_bytes = 0
    extent = txn.head
    while extent != NULL:
        carried.memory_bytes += extent.used
        extent = extent.next
    carried.last_entry_xid = 0 if txn.last_entry == NULL else txn.last_entry.xid
    carried.parts = txn.parts
    carried.last_entry_lsn = txn.last_entry_lsn
    carried.last_message_lsn = txn.last_message_lsn
    carried.counted_bytes = txn.counted_bytes
    carried.streamed_bytes = txn.streamed_bytes
    carried.pending_bytes = txn.pending_bytes
    carried.pending_first_lsn = txn.pending_first_lsn
    carried.pending_last_lsn = txn.pending_last_lsn
    carried.tree_pending_bytes = txn.tree_pending_bytes
    carried.streamed_upto = txn.streamed_upto
    parts.append(PyBytes_FromStringAndSize(<const char *> &carried, sizeof(CarriedTxn)))
    if txn.relations.count > 0:
        relations = bytes(pad8(4 * <size_t> txn.relations.count))
        ids = <uint32_t *> <char *> relations
        for i in range(txn.relations.capacity):
            if txn.relations.slots[i] != 0:
                ids[count] = txn.relations.slots[i]
                count += 1
        parts.append(relations)
    if txn.passed_count > 0:
        parts.append(PyBytes_FromStringAndSize(<const char *> txn.passed_lsns,
                                               8 * <Py_ssize_t> txn.passed_count))
    if txn.spilled_count > 0:
        parts.append(PyBytes_FromStringAndSize(
            <const char *> txn.spilled, <Py_ssize_t> (txn.spilled_count * sizeof(SpilledExtent))))
    extent = txn.head
    while extent != NULL:
        if extent.used > 0:
            parts.append(PyBytes_FromStringAndSize(<const char *> extent_data(extent), extent.used))
        extent = extent.next
    return 0


cdef int load_transactions(TransactionTable table, Spiller spiller, LocatorCache locators,
                           const unsigned char[::1] data, list files, dict ids) except -1:
    """Fill *table*, which is empty, with what :func:`dump_transactions` returned.

    *files* are (name, size, [(end, {id in the file: id now})]); *ids* says what the ids in *data*
    are called now.

    Raises:
        OSError: a file is not there, or too short.
        ValueError, KeyError: *data* is damaged.
    """
    cdef size_t size = data.shape[0]
    cdef size_t at = 0
    cdef size_t number
    cdef CarriedTxn carried
    cdef SpillFile **opened = <SpillFile **> malloc((len(files) + 1) * sizeof(SpillFile *))
    # What is of the whole data, not of a file: the changes in it.
    cdef SpillFile here
    cdef IdRange names
    cdef dict last_entries = {}
    cdef Txn *txn
    cdef int count = 0
    if opened == NULL:
        raise MemoryError
    names.from_ids = NULL
    try:
        for name, length, ranges in files:
            opened[count] = spiller.open_kept(name, length)
            opened[count].references = 1
            count += 1
            _set_ranges(opened[count - 1], ranges)
        _set_range(&names, 1, ids)
        here.range_count = 1
        here.ranges = &names
        while at < size:
            if size - at < sizeof(CarriedTxn):
                raise ValueError("a transaction is cut short")
            memcpy(&carried, &data[at], sizeof(CarriedTxn))
            at += sizeof(CarriedTxn)
            number = carried.file
            if number > <size_t> count or (carried.spilled_count > 0 and number == 0):
                raise ValueError("a spill file is not named")
            at = _load_one(table, &carried, data, at, &here,
                           opened[number - 1] if number > 0 else NULL, ids)
            if carried.last_entry_xid != 0:
                last_entries[carried.xid] = carried.last_entry_xid
        for xid, last_xid in last_entries.items():
            txn = table.lookup(xid)
            txn.last_entry = table.lookup(last_xid)
        txn = table.oldest
        while txn != NULL:
            if txn.flags & TXN_TOUCHED_CATALOG:
                txn.locator_generation = locators.new_generation()
            txn = txn.next
    finally:
        for number in range(<size_t> count):
            spill_file_release(opened[number])
        free(opened)
        free(names.from_ids)
    return 0


cdef size_t _load_one(TransactionTable table, const CarriedTxn *carried,
                      const unsigned char[::1] data, size_t at, SpillFile *here, SpillFile *file,
                      dict ids) except 0:
    """Enter the transaction *carried*, of which the rest is *at* in *data*; return where that
    ends.
    """
    cdef size_t left = data.shape[0] - at
    cdef size_t relation_bytes = pad8(4 * <size_t> carried.relation_count)
    cdef size_t passed_bytes = 8 * <size_t> carried.passed_count
    cdef size_t spilled_bytes = sizeof(SpilledExtent) * <size_t> carried.spilled_count
    cdef const uint32_t *relations
    cdef uint32_t relation, i
    cdef uint8_t *place
    cdef Txn *top
    cdef Txn *txn
    if (carried.xid == 0 or table.lookup(carried.xid) != NULL or relation_bytes > left
            or passed_bytes > left - relation_bytes
            or spilled_bytes > left - relation_bytes - passed_bytes
            or carried.memory_bytes > left - relation_bytes - passed_bytes - spilled_bytes
            or carried.memory_bytes % 8 != 0 or carried.passed_streamed > carried.passed_count):
        raise ValueError("a transaction is cut short")
    txn = table.obtain(carried.xid, carried.first_lsn)
    if txn == NULL:
        raise MemoryError
    if carried.top_xid != 0:
        top = table.lookup(carried.top_xid)
        if top == NULL or not table.adopt(top, txn):
            raise ValueError("a subtransaction comes before its transaction")
    txn.flags = carried.flags & ((1 << FIRST_ORIGIN_SHIFT) - 1)
    txn.pending_first_origin = carried.flags >> FIRST_ORIGIN_SHIFT
    if file != NULL:
        txn.file = file
        file.references += 1
    if carried.relation_count > 0:
        relations = <const uint32_t *> &data[at]
        for i in range(carried.relation_count):
            relation = ids[relations[i]]
            if not id_set_add(&txn.relations, relation):
                raise MemoryError
    at += relation_bytes
    if carried.passed_count > 0:
        txn.passed_lsns = <uint64_t *> malloc(passed_bytes)
        if txn.passed_lsns == NULL:
            raise MemoryError
        memcpy(txn.passed_lsns, &data[at], passed_bytes)
        txn.passed_count = carried.passed_count
        txn.passed_room = carried.passed_count
    at += passed_bytes
    if carried.spilled_count > 0:
        txn.spilled = <SpilledExtent *> malloc(spilled_bytes)
        if txn.spilled == NULL:
            raise MemoryError
        memcpy(txn.spilled, &data[at], spilled_bytes)
        txn.spilled_room = carried.spilled_count
        txn.spilled_count = carried.spilled_count
        for i in range(carried.spilled_count):
            if (txn.spilled[i].offset > file.size
                    or txn.spilled[i].size > file.size - txn.spilled[i].offset):
                raise ValueError("a spill file is shorter than its index says")
    at += spilled_bytes
    if carried.memory_bytes > 0:
        place = table.reserve(txn, carried.memory_bytes)
        if place == NULL:
            raise MemoryError
        memcpy(place, &data[at], carried.memory_bytes)
        if not map_ids(here, 0, place, carried.memory_bytes):
            raise ValueError("a change contradicts itself")
        # The start of several changes is no change that may be looked at.
        txn.last_change = NULL
    at += carried.memory_bytes
    txn.change_bytes = carried.change_bytes
    txn.passed_streamed = carried.passed_streamed
    txn.parts = carried.parts
    txn.last_entry_lsn = carried.last_entry_lsn
    txn.last_message_lsn = carried.last_message_lsn
    txn.counted_bytes = carried.counted_bytes
    txn.streamed_bytes = carried.streamed_bytes
    txn.pending_bytes = carried.pending_bytes
    txn.pending_first_lsn = carried.pending_first_lsn
    txn.pending_last_lsn = carried.pending_last_lsn
    txn.tree_pending_bytes = carried.tree_pending_bytes
    txn.streamed_upto = carried.streamed_upto
    return at


cdef int _set_ranges(SpillFile *file, list ranges) except -1:
    cdef IdRange *grown
    cdef uint64_t before = 0
    for end, ids in ranges:
        if not before < end <= file.size:
            raise ValueError("the stretches of a spill file are out of order")
        grown = <IdRange *> realloc(file.ranges, (file.range_count + 1) * sizeof(IdRange))
        if grown == NULL:
            raise MemoryError
        file.ranges = grown
        _set_range(&file.ranges[file.range_count], end, ids)
        file.range_count += 1
        before = end
    return 0


cdef int _set_range(IdRange *stretch, uint64_t end, dict ids) except -1:
    cdef size_t i = 0
    stretch.from_ids = <uint32_t *> malloc((2 * <size_t> len(ids) + 1) * sizeof(uint32_t))
    if stretch.from_ids == NULL:
        raise MemoryError
    stretch.end = end
    stretch.count = <uint32_t> len(ids)
    # One block for both.
    stretch.to_ids = stretch.from_ids + stretch.count
    for before, now in sorted(ids.items()):
        stretch.from_ids[i] = before
        stretch.to_ids[i] = now
        i += 1
    return 0
