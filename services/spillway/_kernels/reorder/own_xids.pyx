# cython: language_level=3, boundscheck=False, wraparound=False
"""Which catalog rows are a transaction's own: a view of its xids that costs nothing to make.

The catalog mirror asks, for rows that it comes across, whether the xid of whoever wrote one belongs
to the transaction at hand. A set of that transaction's xids would answer, but it would have to be
made anew for each change whose table must be looked up, and a transaction may have a hundred
thousand subtransactions that changed the catalog. So the question goes to the table of
transactions, a hash look-up for each.

Iterating yields the xids that have changed the catalog: the asking one first, then the top-level
one, then subtransactions, the newest first. Whoever looks for *one* that is of interest
(``isdisjoint``) finds it at once.

A view holds until the next record: who has changed the catalog, and who has aborted, is read when
it is asked.
"""

from libc.stdint cimport uint32_t

from spillway._kernels.reorder.table cimport TXN_TOUCHED_CATALOG, TransactionTable, Txn, top_of


cdef OwnXids own_xids_of(TransactionTable table, uint32_t xid):
    """Return the view of the whole transaction of *xid*."""
    cdef OwnXids view = OwnXids.__new__(OwnXids)
    cdef Txn *txn = table.lookup(xid)
    view._table = table
    view._xid = xid
    view._top_xid = xid if txn == NULL else top_of(txn).xid
    return view


cdef class OwnXids:
    """The xids of one transaction in progress, subtransactions included, that have changed the
    catalog.
    """

    def __bool__(self):
        cdef Txn *top = self._table.lookup(self._top_xid)
        # The top-level one counts when any of them has.
        return top != NULL and top.flags & TXN_TOUCHED_CATALOG != 0

    def __contains__(self, xid):
        cdef Txn *txn = self._table.lookup(xid)
        return (txn != NULL and txn.flags & TXN_TOUCHED_CATALOG != 0
                and top_of(txn).xid == self._top_xid)

    def __iter__(self):
        if self._xid in self:
            yield self._xid
        if self._top_xid != self._xid and self._top_xid in self:
            yield self._top_xid
        xid = self._next_child(0)
        while xid:
            if xid != self._xid:
                yield xid
            xid = self._next_child(xid)

    def __len__(self):
        return sum(1 for _ in self)

    cdef uint32_t _next_child(self, uint32_t xid):
        """Return the youngest subtransaction of interest before *xid*, of all for 0; 0 without
        any.
        """
        cdef Txn *txn = self._table.lookup(xid if xid else self._top_xid)
        if txn == NULL:
            return 0
        txn = txn.previous if xid else txn.last_child
        while txn != NULL and not txn.flags & TXN_TOUCHED_CATALOG:
            txn = txn.previous
        return 0 if txn == NULL else txn.xid
