# cython: language_level=3
"""A transaction's changes, merged and assembled, chunk by chunk."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spillway._kernels.reorder.changes cimport ChangeHeader
from spillway._kernels.reorder.table cimport Extent, TransactionTable, Txn
from spillway._kernels.reorder.toast cimport RelationPlans, ToastGatherer

# One (sub)transaction's changes and how far they are read.
cdef struct Source:
    Txn *txn
    uint32_t next_spilled
    Extent *extent              # the next one in memory
    size_t skip                 # bytes of the next piece that are not wanted
    # of the change at position, or of the first of the piece to be loaded; NO_CHANGE
    uint64_t change_lsn
    uint32_t next_passed
    uint64_t lsn                # of what is next, a change or a passed entry
    uint8_t *position           # NULL: the next piece is not loaded yet
    uint8_t *end
    uint8_t *restored           # buffer of the spilled extent being read, NULL for one in memory


cdef enum MergeStatus:
    MERGE_OK = 0
    MERGE_NO_MEMORY = 1
    MERGE_SPILL_IO = 2
    MERGE_SPILL_DAMAGED = 3
    MERGE_TOAST = 4             # the gatherer's status says what
    MERGE_DAMAGED_CHANGE = 5
    MERGE_SPILL_LOST = 6


cdef class ChangeStream:
    cdef TransactionTable _table
    cdef Txn *_txn
    cdef uint32_t _xid
    cdef bint _borrowed         # the transaction stays as it is, in the table
    cdef bint _news             # only what came after the last part
    cdef bint _raw              # changes as they were queued: nothing is put together
    cdef RelationPlans _plans
    cdef ToastGatherer _toast
    cdef Source *_sources
    cdef uint32_t *_heap
    cdef uint32_t _heap_size
    cdef uint32_t _source_count
    cdef uint32_t _sources_room
    cdef bint _assembles        # changes pass through the output buffer one by one
    cdef bint _started
    cdef bint _handed_on
    cdef object _view
    cdef uint8_t *_out
    cdef size_t _out_room
    cdef size_t _out_used
    cdef uint8_t *_speculative
    cdef size_t _speculative_room
    cdef bint _has_speculative
    cdef int _toast_status
    cdef int _errno
    cdef uint64_t _error_lsn
    cdef readonly uint64_t change_bytes

    cdef void take(self, TransactionTable table, Txn *txn, RelationPlans plans) noexcept
    cdef void borrow(self, TransactionTable table, Txn *txn, RelationPlans plans,
                     bint news) noexcept
    cdef int prepare(self, TransactionTable table, RelationPlans plans) except -1
    cdef void leave_raw(self) noexcept
    cdef MergeStatus gather(self, Txn *txn) noexcept nogil
    cdef MergeStatus _start(self) noexcept nogil
    cdef bint _make_room(self, uint32_t sources) noexcept nogil
    cdef bint _settle(self, Source *source) noexcept nogil
    cdef void _keep_one(self) noexcept nogil
    cdef bint _open(self, Source *source, Txn *txn) noexcept nogil
    cdef MergeStatus _fill(self) noexcept nogil
    cdef MergeStatus _take_next(self, Source *source) noexcept nogil
    cdef MergeStatus _take_change(self, ChangeHeader *change) noexcept nogil
    cdef MergeStatus _emit(self, const ChangeHeader *change) noexcept nogil
    cdef MergeStatus _load(self, Source *source) noexcept nogil
    cdef void _finish_piece(self, Source *source) noexcept nogil
    cdef bint _set_next_piece(self, Source *source) noexcept nogil
    cdef void _pass_extent(self, Source *source) noexcept nogil
    cdef uint8_t *_room_for(self, size_t size) noexcept nogil
    cdef bint _before(self, uint32_t a, uint32_t b) noexcept nogil
    cdef void _sift_down(self, uint32_t i) noexcept nogil
    cdef object _fail(self, MergeStatus status)
