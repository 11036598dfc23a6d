# cython: language_level=3, boundscheck=False, wraparound=False
"""Two hashes over relfile locators, asked for every record.

:class:`LocatorCache` maps (generation, locator) to a relation. Generation 0 is what every
transaction sees that has changed no catalog itself. One that has gets a generation of its own, and
a new one at each of its catalog records: what was bound under the old one is then never found
again, which is how "clear this transaction's private bindings" costs nothing. Of system catalogs
all have the same view, under GENERATION_OF_ALL. ``clear`` forgets everything, when a commit changed
what others see.

:class:`TrackedLocators` is the set of relfiles that the catalog mirror redoes.

Memory: the cache is cleared when it holds ``ENTRIES_MAX`` bindings; they come back through the
mirror.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef enum:
    SLOTS_FIRST = 256
    ENTRIES_MAX = 1 << 17


cdef inline size_t _hash(uint64_t generation, uint32_t spc, uint32_t db,
                         uint32_t rel) noexcept nogil:
    cdef uint64_t h = (<uint64_t> rel << 32
                       | db) ^ (<uint64_t> spc << 17) ^ (generation * 0x9E3779B97F4A7C15ULL)
    h *= 0xFF51AFD7ED558CCDULL
    return <size_t> (h ^ (h >> 32))


cdef class LocatorCache:
    """Bindings of locators to relations."""

    def __cinit__(self):
        self._mask = SLOTS_FIRST - 1
        self._slots = <LocatorEntry *> calloc(SLOTS_FIRST, sizeof(LocatorEntry))
        if self._slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._slots)

    cdef LocatorKind find(self, uint64_t generation, uint32_t spc, uint32_t db, uint32_t rel,
                          uint32_t *relation) noexcept nogil:
        """Return what the locator is under *generation*; LOCATOR_UNKNOWN when the mirror has to
        say.
        """
        cdef size_t i
        cdef LocatorEntry *entry = &self._last
        if (entry.kind != 0 and entry.rel == rel and entry.generation == generation
            and entry.db == db
                and entry.spc == spc):
            relation[0] = entry.relation
            return <LocatorKind> entry.kind
        i = _hash(generation, spc, db, rel) & self._mask
        while self._slots[i].kind != 0:
            entry = &self._slots[i]
            if (entry.rel == rel and entry.generation == generation and entry.db == db
                    and entry.spc == spc):
                self._last = entry[0]
                relation[0] = entry.relation
                return <LocatorKind> entry.kind
            i = (i + 1) & self._mask
        return LOCATOR_UNKNOWN

    cdef int bind(self, uint64_t generation, uint32_t spc, uint32_t db, uint32_t rel,
                  LocatorKind kind, uint32_t relation) except -1:
        """Remember what a locator is."""
        cdef size_t i
        cdef LocatorEntry *entry
        if self._count >= ENTRIES_MAX:
            self.clear()
        if (self._count + 1) * 2 > self._mask:
            self._enlarge()
        i = _hash(generation, spc, db, rel) & self._mask
        while self._slots[i].kind != 0:
            entry = &self._slots[i]
            if (entry.rel == rel and entry.generation == generation and entry.db == db
                    and entry.spc == spc):
                break
            i = (i + 1) & self._mask
        entry = &self._slots[i]
        if entry.kind == 0:
            self._count += 1
        entry.generation = generation
        entry.spc = spc
        entry.db = db
        entry.rel = rel
        entry.relation = relation
        entry.kind = kind
        self._last = entry[0]
        return 0

    cdef void clear(self) noexcept nogil:
        """Forget every binding."""
        memset(self._slots, 0, (self._mask + 1) * sizeof(LocatorEntry))
        memset(&self._last, 0, sizeof(LocatorEntry))
        self._count = 0

    cdef uint64_t new_generation(self) noexcept nogil:
        """Return a generation that nothing was ever bound under."""
        self._generation += 1
        return self._generation

    cdef int _enlarge(self) except -1:
        cdef size_t old_size = self._mask + 1
        cdef size_t i, j
        cdef LocatorEntry *old = self._slots
        cdef LocatorEntry *slots = <LocatorEntry *> calloc(old_size * 2, sizeof(LocatorEntry))
        if slots == NULL:
            raise MemoryError
        self._mask = old_size * 2 - 1
        for j in range(old_size):
            if old[j].kind != 0:
                i = _hash(old[j].generation, old[j].spc, old[j].db, old[j].rel) & self._mask
                while slots[i].kind != 0:
                    i = (i + 1) & self._mask
                slots[i] = old[j]
        self._slots = slots
        free(old)
        return 0


cdef class TrackedLocators:
    """The set of relfiles whose every change goes to the catalog mirror."""

    def __cinit__(self):
        self._slots = <LocatorEntry *> calloc(1, sizeof(LocatorEntry))
        if self._slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._slots)

    cdef bint find(self, uint32_t spc, uint32_t db, uint32_t rel, uint32_t *number) noexcept nogil:
        """Say whether the locator is a tracked catalog's, and which by *number*."""
        cdef size_t i = _hash(0, spc, db, rel) & self._mask
        while self._slots[i].kind != 0:
            if self._slots[i].rel == rel and self._slots[i].db == db and self._slots[i].spc == spc:
                number[0] = self._slots[i].relation
                return True
            i = (i + 1) & self._mask
        return False

    cdef int replace(self, object locators) except -1:
        """Make the set *locators*, a list of different (spc, db, rel); each has its place in the
        list as its number.
        """
        cdef size_t size = 16
        cdef size_t i
        cdef uint32_t spc, db, rel
        cdef uint32_t number = 0
        cdef LocatorEntry *slots
        while size < <size_t> len(locators) * 4:
            size *= 2
        slots = <LocatorEntry *> calloc(size, sizeof(LocatorEntry))
        if slots == NULL:
            raise MemoryError
        free(self._slots)
        self._slots = slots
        self._mask = size - 1
        for spc, db, rel in locators:
            i = _hash(0, spc, db, rel) & self._mask
            while slots[i].kind != 0:
                i = (i + 1) & self._mask
            slots[i].spc = spc
            slots[i].db = db
            slots[i].rel = rel
            slots[i].relation = number
            slots[i].kind = LOCATOR_SKIP
            number += 1
        return 0
