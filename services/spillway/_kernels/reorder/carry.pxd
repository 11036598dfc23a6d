# cython: language_level=3
"""Transactions in progress as bytes, and back."""

from spillway._kernels.reorder.locators cimport LocatorCache
from spillway._kernels.reorder.spill cimport Spiller
from spillway._kernels.reorder.table cimport TransactionTable


cdef bint spill_large(TransactionTable table, Spiller spiller, size_t inline_max) noexcept nogil
cdef tuple dump_transactions(TransactionTable table)
cdef int load_transactions(TransactionTable table, Spiller spiller, LocatorCache locators,
                           const unsigned char[::1] data, list files, dict ids) except -1
