# cython: language_level=3
"""The loop that goes through record batches; reorder.pyx builds the reorder buffer on it."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spillway._kernels.catalog_tuples cimport CatalogRedo
from spillway._kernels.invalidation_items cimport InvalidationParser
from spillway._kernels.record_batch cimport RecordBatch, WalRecord
from spillway._kernels.reorder_commit cimport CommitRun
from spillway._kernels.reorder_extract cimport ExtractStatus
from spillway._kernels.reorder_locators cimport LocatorCache, LocatorKind, TrackedLocators
from spillway._kernels.reorder_spill cimport Spiller
from spillway._kernels.reorder_table cimport TransactionTable, Txn
from spillway._kernels.reorder_toast cimport RelationPlans


cdef enum:
    STREAM_NOTHING = 0xFFFFFFFFFFFFFFFF


cdef class RecordLoop:
    cdef TransactionTable _table
    cdef LocatorCache _locators
    cdef TrackedLocators _tracked
    # The mirror's, for plain records of tracked catalogs; None: all of them are Python's.
    cdef CatalogRedo _catalog
    # What went wrong in it, or in taking invalidations.
    cdef object _redo_error
    # Takes the invalidations of transactions; None: they are Python's.
    cdef InvalidationParser _invalidations
    cdef RelationPlans _plans
    cdef Spiller _spiller
    # Plain commits that are not handed over yet.
    cdef readonly CommitRun commits
    cdef uint8_t _actions[4096]
    cdef uint32_t _database
    cdef int _state
    cdef uint32_t _next_phase_at
    cdef uint64_t _start_decoding_at
    cdef int _failure
    # Transactions whose first record is here or later are streamed; STREAM_NOTHING: none
    cdef uint64_t _stream_from
    cdef uint64_t _stream_bytes
    # The record handled last made a part of its transaction due.
    cdef readonly bint part_due
    cdef bint _audit
    # Changes are left out: who begins and ends counts, and the catalog.
    cdef bint _skims
    # Leave out what came in through a replication origin.
    cdef bint _only_local
    # The batch that is gone through; where in it the own chain, everyone's, and the list of plain ends are.
    cdef RecordBatch _batch
    cdef uint32_t _own
    # How many had records of the database itself.
    cdef readonly uint64_t own_batches
    cdef uint32_t _common
    cdef uint32_t _end
    # Index of the record that run stopped at.
    cdef readonly Py_ssize_t index

    cdef void _enter(self, RecordBatch batch)
    cdef bint _sees_ends(self) noexcept nogil
    cdef Py_ssize_t _next_from(self, RecordBatch batch, Py_ssize_t i) noexcept nogil
    cdef int _run(self, RecordBatch batch, Py_ssize_t i) noexcept nogil
    cdef bint _process_change(self, const WalRecord *record, Txn *txn) noexcept nogil
    cdef int _invalidate(self, const WalRecord *record, Txn *txn) noexcept nogil
    cdef int queue_invalidation(self, Txn *txn, uint64_t lsn, items) except -1
    cdef int _redo(self, RecordBatch batch, const WalRecord *record, uint32_t number) noexcept nogil
    cdef int _change(self, RecordBatch batch, const WalRecord *record, Txn *txn, uint8_t action,
                     bint tracked) noexcept nogil
    cdef void _count(self, Txn *txn, uint64_t lsn, bint streamable) noexcept nogil
    cdef int _pass_over(self, const WalRecord *record, Txn *txn, uint8_t action) noexcept nogil
    cdef void _follow_partial(self, const WalRecord *record, Txn *txn, uint8_t action) noexcept nogil
    cdef uint32_t _main_size(self, uint8_t action) noexcept nogil
    cdef int _message(self, const WalRecord *record, Txn *txn) noexcept nogil
    cdef int _after_extract(self, ExtractStatus status) noexcept nogil
    cdef int _fail_extract(self, ExtractStatus status) noexcept nogil
    cdef object spill_failure(self, uint64_t at_lsn)
    cdef object _failed(self, int stop, const WalRecord *record)
