# cython: language_level=3
"""The loop that goes through record batches; reorder.pyx builds the reorder buffer on it."""

from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.record_batch cimport RecordBatch, WalRecord
from spillway._kernels.reorder_extract cimport ExtractStatus
from spillway._kernels.reorder_locators cimport LocatorCache, TrackedLocators
from spillway._kernels.reorder_spill cimport Spiller
from spillway._kernels.reorder_table cimport TransactionTable, Txn
from spillway._kernels.reorder_toast cimport RelationPlans


cdef class RecordLoop:
    cdef TransactionTable _table
    cdef LocatorCache _locators
    cdef TrackedLocators _tracked
    cdef RelationPlans _plans
    cdef Spiller _spiller
    cdef uint8_t _actions[4096]
    cdef uint32_t _database
    cdef int _state
    cdef uint32_t _next_phase_at
    cdef int _failure
    # Index of the record that run stopped at.
    cdef readonly Py_ssize_t index

    cdef int _run(self, RecordBatch batch, Py_ssize_t i) noexcept nogil
    cdef bint _process_change(self, const WalRecord *record, Txn *txn) noexcept nogil
    cdef int _change(self, RecordBatch batch, const WalRecord *record, Txn *txn, uint8_t action,
                     bint tracked) noexcept nogil
    cdef uint32_t _main_size(self, uint8_t action) noexcept nogil
    cdef int _message(self, const WalRecord *record, Txn *txn) noexcept nogil
    cdef int _after_extract(self, ExtractStatus status) noexcept nogil
    cdef int _fail_extract(self, ExtractStatus status) noexcept nogil
    cdef object _failed(self, int stop, const WalRecord *record)
