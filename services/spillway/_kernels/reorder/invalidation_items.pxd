# cython: language_level=3
"""Invalidation messages and what of them a transaction in progress has."""

from libc.stdint cimport int32_t, uint8_t, uint32_t


cdef class PendingItems:
    cdef public dict own
    cdef public dict distributed
    # of own, what came since somebody asked which tables are concerned
    cdef public dict fresh
    cdef public object own_count
    cdef public object distributed_count


cdef class InvalidationParser:
    cdef uint32_t _database
    cdef uint32_t _first_normal_oid
    cdef bint _reset_counts
    # By the number of a system cache: whether all relations are meant, and the catalog of
    # publications that it is of.
    cdef uint8_t _resets[256]
    cdef uint32_t _catalogs[256]
    cdef frozenset _resetting_catalogs
    cdef frozenset _publication_catalogs
    # top-level xid → its PendingItems
    cdef readonly dict pending

    cdef dict _items(self, const uint8_t *at, Py_ssize_t size, int32_t *count)
    cdef dict take(self, uint32_t top_xid, const uint8_t *data, Py_ssize_t size)
