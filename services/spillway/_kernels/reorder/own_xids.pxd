# cython: language_level=3
"""A view of a transaction's xids that have changed the catalog."""

from libc.stdint cimport uint32_t

from spillway._kernels.reorder.table cimport TransactionTable


cdef class OwnXids:
    cdef TransactionTable _table
    # Who asks, and the top-level transaction.
    cdef uint32_t _xid
    cdef uint32_t _top_xid

    cdef uint32_t _next_child(self, uint32_t xid)


cdef OwnXids own_xids_of(TransactionTable table, uint32_t xid)
