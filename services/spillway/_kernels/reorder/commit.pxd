# cython: language_level=3
"""Ends of small transactions; commits are gathered in a run."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.wal.record_batch cimport WalRecord
from spillway._kernels.wal.record_routes cimport EndRecord
from spillway._kernels.reorder.merge cimport ChangeStream, MergeStatus
from spillway._kernels.reorder.table cimport IdSet, TransactionTable, Txn


cdef enum CommitOutcome:
    COMMIT_FOR_PYTHON = 0       # nothing was done that can't be done again
    COMMIT_DONE = 1             # the transaction is in the run, or there was nothing to deliver
    COMMIT_RUN_FULL = 2         # done, and the run must be taken before the next one
    COMMIT_NO_MEMORY = 3
    COMMIT_FAILED = 4           # its changes can't be put together; failure() says why


# What the arenas of a small transaction hold.
cdef struct Arenas:
    uint64_t change_bytes       # ever appended
    bint assembled              # they have to be merged, or put together
    Txn *only                   # otherwise: whose arena has all changes, NULL for none
    size_t size                 # bytes of the chunk that they become


cdef class CommitRun:
    cdef TransactionTable _table
    cdef ChangeStream _merge
    cdef MergeStatus _status
    cdef uint8_t *_data
    cdef size_t _size
    cdef size_t _room
    cdef IdSet _relations
    cdef readonly uint32_t count
    cdef readonly uint64_t change_bytes

    cdef CommitOutcome end(self, const WalRecord *record, uint32_t database,
                           uint64_t start_decoding_at) noexcept nogil
    cdef CommitOutcome _commit(self, const WalRecord *record, const EndRecord *end,
                               uint32_t database, uint64_t start_decoding_at) noexcept nogil
    cdef CommitOutcome _abort(self, const WalRecord *record, const EndRecord *end) noexcept nogil
    cdef bint _append(self, Txn *txn, const Arenas *arenas, const WalRecord *record,
                      int64_t time) noexcept nogil
    cdef bint _reserve(self, size_t more) noexcept nogil
