# cython: language_level=3
"""Spill files: where extents go when transactions in progress need more memory than they may
have.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spillway._kernels.reorder.table cimport SpilledExtent, SpillFile, TransactionTable, Txn

cdef enum RestoreStatus:
    RESTORE_OK = 0
    RESTORE_NO_MEMORY = 1
    RESTORE_IO_ERROR = 2
    RESTORE_DAMAGED = 3
    RESTORE_LOST = 4            # damaged, and of before the WAL that is read again


cdef class Spiller:
    cdef bytes _directory
    cdef const char *_path      # into _directory
    cdef size_t _path_size
    cdef readonly size_t work_mem_bytes
    # errno of the last failure; ENOMEM when memory is out
    cdef readonly int error
    # pg_stat_replication_slots
    cdef readonly uint64_t spill_txns
    cdef readonly uint64_t spill_count
    cdef readonly uint64_t spill_bytes

    cdef bint make_room(self, TransactionTable table) noexcept nogil
    cdef bint _spill_tree(self, TransactionTable table, Txn *top) noexcept nogil
    cdef bint _spill_one(self, TransactionTable table, Txn *txn, Txn *top) noexcept nogil
    cdef bint _open(self, Txn *top) noexcept nogil
    cdef SpillFile *open_kept(self, bytes name, uint64_t size)


cdef bint map_ids(SpillFile *file, uint64_t offset, uint8_t *changes, size_t size) noexcept nogil
cdef RestoreStatus restore_extent(Txn *txn, SpilledExtent *spilled, uint8_t *buffer) noexcept nogil
