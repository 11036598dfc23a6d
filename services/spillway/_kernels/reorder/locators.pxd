# cython: language_level=3
"""What is known of storage: which relfiles are catalogs, and which relation a relfile is."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    # Bound under it is what no transaction sees otherwise: the storage of system catalogs that are
    # not mirrored.
    GENERATION_OF_ALL = 0xFFFFFFFFFFFFFFFF


cdef enum LocatorKind:
    LOCATOR_UNKNOWN = 0
    LOCATOR_TABLE = 1
    LOCATOR_TOAST = 2
    LOCATOR_SKIP = 3


cdef struct LocatorEntry:
    uint64_t generation
    uint32_t spc
    uint32_t db
    uint32_t rel
    uint32_t relation           # id of its descriptor, 0 unless TABLE
    uint8_t kind                # LocatorKind; 0: the slot is free


cdef class LocatorCache:
    cdef LocatorEntry *_slots
    cdef size_t _mask
    cdef size_t _count
    cdef LocatorEntry _last
    cdef uint64_t _generation

    cdef LocatorKind find(self, uint64_t generation, uint32_t spc, uint32_t db, uint32_t rel,
                          uint32_t *relation) noexcept nogil
    cdef int bind(self, uint64_t generation, uint32_t spc, uint32_t db, uint32_t rel,
                  LocatorKind kind, uint32_t relation) except -1
    cdef void clear(self) noexcept nogil
    cdef uint64_t new_generation(self) noexcept nogil
    cdef int _enlarge(self) except -1


cdef class TrackedLocators:
    cdef LocatorEntry *_slots
    cdef size_t _mask

    cdef bint find(self, uint32_t spc, uint32_t db, uint32_t rel, uint32_t *number) noexcept nogil
    cdef int replace(self, object locators) except -1
