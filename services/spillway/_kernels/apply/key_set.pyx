# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a group of transactions touches, as a set of hashes of 64 bits: whether two groups may be
written at the same time.

Values that are equal have equal hashes, so what is not found in common is not in common. Different
values with one hash make two groups wait for each other without need, never the other way round.
"""

from libc.stdlib cimport calloc, free


cdef class KeySet:
    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.count

    cdef int grow(self) except -1 nogil:
        cdef size_t old_count = self.slot_count
        cdef uint64_t* old = self.slots
        cdef size_t i, slot
        cdef size_t size = old_count * 2 if old_count else 1024
        cdef uint64_t* grown = <uint64_t*>calloc(size, sizeof(uint64_t))
        if grown == NULL:
            with gil:
                raise MemoryError
        for i in range(old_count):
            if old[i]:
                slot = old[i] & (size - 1)
                while grown[slot]:
                    slot = (slot + 1) & (size - 1)
                grown[slot] = old[i]
        free(old)
        self.slots = grown
        self.slot_count = size
        return 0

    cdef int add(self, uint64_t hashed) except -1 nogil:
        cdef size_t slot
        if hashed == 0:
            hashed = 1
        if (self.count + 1) * 2 > self.slot_count:
            self.grow()
        slot = hashed & (self.slot_count - 1)
        while self.slots[slot]:
            if self.slots[slot] == hashed:
                return 0
            slot = (slot + 1) & (self.slot_count - 1)
        self.slots[slot] = hashed
        self.count += 1
        return 0

    cdef bint has(self, uint64_t hashed) noexcept nogil:
        cdef size_t slot
        if self.slot_count == 0:
            return False
        slot = hashed & (self.slot_count - 1)
        while self.slots[slot]:
            if self.slots[slot] == hashed:
                return True
            slot = (slot + 1) & (self.slot_count - 1)
        return False

    def overlaps(self, KeySet other not None):
        """Return whether anything is in both. Neither may be added to meanwhile."""
        cdef KeySet few = self if self.count <= other.count else other
        cdef KeySet many = other if self.count <= other.count else self
        cdef size_t i
        cdef bint found = False
        with nogil:
            for i in range(few.slot_count):
                if few.slots[i] and many.has(few.slots[i]):
                    found = True
                    break
        return found
