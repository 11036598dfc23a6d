# cython: language_level=3, boundscheck=False, wraparound=False
"""Invalidation messages → the items that count, each once; ``decoding/invalidations.py`` says which
and why.

A command that makes a table sends a dozen messages, and a transaction that makes and drops one more
than a hundred, of which a handful count. So the loop over records has them taken here
(:meth:`InvalidationParser.take`), without a call of Python.

Source: src/include/storage/sinval.h
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from spillway._kernels.wal.record_batch cimport load_u32

cdef enum:
    COUNT_BYTES = 4
    MESSAGE_BYTES = 16
    # The kinds of messages that aren't a system cache's, as the byte that they begin with.
    OF_CATALOG = 0xFF
    OF_RELCACHE = 0xFE
    OF_RELSYNC = 0xFA


cdef class PendingItems:
    """What one top-level transaction in progress will execute at its end. Insertion order is
    kept.
    """

    def __init__(self, own=(), own_count=0, distributed=(), distributed_count=0):
        self.own = dict.fromkeys(own)
        self.own_count = own_count
        self.distributed = dict.fromkeys(distributed)
        self.distributed_count = distributed_count
        self.fresh = {}


cdef class InvalidationParser:
    """What to look for in the messages of one major, for one database, and what transactions in
    progress have of it.
    """

    def __init__(self, database_oid, first_normal_oid, *, reset_counts, caches, catalogs,
                 publication_caches):
        """Make it.

        Args:
            database_oid: whose messages count, beside those for all databases.
            first_normal_oid: the first oid of a relation that counts.
            reset_counts: whether a message about all relations counts.
            caches: numbers of the system caches whose messages mean all relations.
            catalogs: oids of the catalogs whose messages do.
            publication_caches: number of a system cache → oid of the catalog of publications whose
                rows are items.
        """
        memset(self._resets, 0, sizeof(self._resets))
        memset(self._catalogs, 0, sizeof(self._catalogs))
        self._database = database_oid
        self._first_normal_oid = first_normal_oid
        self._reset_counts = reset_counts
        for number in caches:
            self._resets[<uint8_t> number] = 1
        for number, oid in publication_caches.items():
            self._catalogs[<uint8_t> number] = oid
        self._resetting_catalogs = frozenset(catalogs)
        self._publication_catalogs = frozenset(publication_caches.values())
        self.pending = {}

    def parse(self, bytes data not None):
        """Return how many messages the main data of a record has, and the items; None when it is
        cut short.
        """
        cdef int32_t count = 0
        cdef dict items = self._items(<const uint8_t *> PyBytes_AS_STRING(data),
                                      PyBytes_GET_SIZE(data), &count)
        return None if items is None else (count, tuple(items))

    cdef dict take(self, uint32_t top_xid, const uint8_t *data, Py_ssize_t size):
        """Add what the main data of a record has to what *top_xid* executes at its end; return its
        items.

        None when it is cut short.
        """
        cdef int32_t count = 0
        cdef dict items = self._items(data, size, &count)
        cdef PendingItems pending
        if items is None:
            return None
        found = self.pending.get(top_xid)
        if found is None:
            found = self.pending[top_xid] = PendingItems()
        pending = <PendingItems?> found
        pending.own_count += count
        if items:
            pending.own.update(items)
            pending.fresh.update(items)
        return items

    cdef dict _items(self, const uint8_t *at, Py_ssize_t size, int32_t *count):
        """Return the items of *size* bytes at *at*, and how many messages there are; None when they
        are cut short.
        """
        cdef int32_t _i
        cdef uint32_t database, oid
        cdef dict items = {}
        count[0] = <int32_t> load_u32(at) if size >= COUNT_BYTES else -1
        if count[0] < 0 or size - COUNT_BYTES < <Py_ssize_t> count[0] * MESSAGE_BYTES:
            return None
        at += COUNT_BYTES
        for _i in range(count[0]):
            database = load_u32(at + 4)
            if database == 0 or database == self._database:
                oid = load_u32(at + 8)
                if at[0] == OF_RELCACHE or at[0] == OF_RELSYNC:
                    if oid >= self._first_normal_oid or (oid == 0 and self._reset_counts):
                        items[oid] = None
                elif at[0] == OF_CATALOG:
                    if oid in self._resetting_catalogs:
                        items[0] = None
                    if oid in self._publication_catalogs:
                        items[<uint64_t> 1 << 63 | <uint64_t> oid << 32] = None
                else:
                    if self._resets[at[0]]:
                        items[0] = None
                    if self._catalogs[at[0]] != 0:
                        # In place of an oid, a message for a system cache has a hash value.
                        items[<uint64_t> self._catalogs[at[0]] << 32 | oid] = None
            at += MESSAGE_BYTES
        return items
