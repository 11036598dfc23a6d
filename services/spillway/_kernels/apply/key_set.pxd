# cython: language_level=3
"""C interface of a set of hashes."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t


cdef class KeySet:
    # open addressing; 0 is a free slot
    cdef uint64_t* slots
    cdef size_t slot_count
    cdef size_t count

    cdef int add(self, uint64_t hashed) except -1 nogil
    cdef bint has(self, uint64_t hashed) noexcept nogil
    cdef int grow(self) except -1 nogil
