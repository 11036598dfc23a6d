# cython: language_level=3
"""From a heap record to changes in its transaction's arena."""

from libc.stdint cimport uint32_t

from spillway._kernels.reorder.locators cimport LocatorKind
from spillway._kernels.reorder.table cimport TransactionTable, Txn
from spillway._kernels.wal.record_batch cimport WalBlockRef, WalRecord

cdef enum ExtractStatus:
    EXTRACT_OK = 0
    EXTRACT_NO_MEMORY = 1
    EXTRACT_SHORT_MAIN = 2          # main data ends before the record's struct does
    EXTRACT_SHORT_BLOCK = 3         # block data ends before a tuple does
    EXTRACT_NO_BLOCK = 4            # block 0 or its data is missing
    EXTRACT_BAD_TUPLE = 5           # a tuple header contradicts the tuple
    EXTRACT_BAD_TOAST_CHUNK = 6
    EXTRACT_COMPRESSED_UPDATE = 7   # prefix or suffix of the old tuple left out: not logical WAL
    EXTRACT_BAD_MESSAGE = 8

cdef enum HeapFlag:
    XLH_INSERT_LAST_IN_MULTI = 0x02
    XLH_INSERT_IS_SPECULATIVE = 0x04
    XLH_INSERT_CONTAINS_NEW_TUPLE = 0x08
    XLH_INSERT_ON_TOAST_RELATION = 0x10
    XLH_UPDATE_CONTAINS_OLD_TUPLE = 0x04
    XLH_UPDATE_CONTAINS_OLD_KEY = 0x08
    XLH_UPDATE_CONTAINS_NEW_TUPLE = 0x10
    XLH_UPDATE_PREFIX_FROM_OLD = 0x20
    XLH_UPDATE_SUFFIX_FROM_OLD = 0x40
    XLH_DELETE_CONTAINS_OLD_TUPLE = 0x02
    XLH_DELETE_CONTAINS_OLD_KEY = 0x04
    XLH_DELETE_IS_SUPER = 0x08

cdef enum HeapSize:
    SIZE_OF_HEAP_HEADER = 5
    SIZE_OF_HEAP_INSERT = 3
    SIZE_OF_HEAP_UPDATE = 14
    SIZE_OF_HEAP_DELETE = 8
    SIZE_OF_HEAP_MULTI_INSERT = 4
    SIZE_OF_MULTI_INSERT_TUPLE = 7
    SIZE_OF_LOGICAL_MESSAGE = 24

cdef ExtractStatus extract_insert(TransactionTable table, Txn *txn, const WalRecord *record,
                                  const WalBlockRef *block, LocatorKind kind,
                                  uint32_t relation) noexcept nogil
cdef ExtractStatus extract_multi_insert(TransactionTable table, Txn *txn, const WalRecord *record,
                                        const WalBlockRef *block, LocatorKind kind,
                                        uint32_t relation) noexcept nogil
cdef ExtractStatus extract_update(TransactionTable table, Txn *txn, const WalRecord *record,
                                  const WalBlockRef *block, uint32_t relation) noexcept nogil
cdef ExtractStatus extract_delete(TransactionTable table, Txn *txn, const WalRecord *record,
                                  uint32_t relation) noexcept nogil
cdef ExtractStatus extract_confirm(TransactionTable table, Txn *txn, const WalRecord *record,
                                   uint32_t relation) noexcept nogil
cdef ExtractStatus extract_message(TransactionTable table, Txn *txn,
                                   const WalRecord *record) noexcept nogil
