# cython: language_level=3
"""Commits of small transactions, gathered in a run."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.record_batch cimport WalRecord
from spillway._kernels.reorder_table cimport IdSet, TransactionTable, Txn


cdef enum CommitOutcome:
    COMMIT_FOR_PYTHON = 0       # nothing was done that can't be done again
    COMMIT_DONE = 1             # the transaction is in the run, or was nothing to deliver
    COMMIT_RUN_FULL = 2         # done, and the run must be taken before the next one
    COMMIT_NO_MEMORY = 3


# What of a commit record matters here.
cdef struct CommitRecord:
    int64_t time
    uint32_t database           # 0 when the record does not say
    uint32_t subxact_count
    const uint8_t *subxacts


cdef class CommitRun:
    cdef uint8_t *_data
    cdef size_t _size
    cdef size_t _room
    cdef IdSet _relations
    cdef readonly uint32_t count
    cdef readonly uint64_t change_bytes

    cdef CommitOutcome commit(self, TransactionTable table, const WalRecord *record, uint32_t database,
                              uint64_t start_decoding_at) noexcept nogil
    cdef bint _append(self, Txn *txn, Txn *only, size_t size, const WalRecord *record,
                      int64_t time) noexcept nogil
    cdef bint _reserve(self, size_t more) noexcept nogil
