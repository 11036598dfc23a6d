# cython: language_level=3, boundscheck=False, wraparound=False
"""Putting TOAST values back beside the row that points to them.

PostgreSQL writes the chunks of a row's large values first, each as an insert into the TOAST table,
then the row, with external pointers that name the values. The merge feeds chunks to
:meth:`ToastGatherer.append` and, when the row comes, asks :meth:`ToastGatherer.match` which of the
gathered values the row points to; ``write`` puts these after the change. A pointer to a value that
was not gathered is an UPDATE's unchanged datum and stays as it is.

A multi-insert (COPY) writes the chunks of *all* its rows before the first of them, so "everything
gathered so far" is not "of this row": the tuple's pointers have to be found, and that needs the
relation's column lengths and alignments (:class:`RelationPlans`) as the tuple is stepped through.
It is done only for tuples that say they have external values (HEAP_HASEXTERNAL) while something is
gathered.

Memory: the values of one row, or of the rows of one multi-insert, as in PostgreSQL.

Source: ReorderBufferToastAppendChunk, ReorderBufferToastReplace,
src/backend/replication/logical/reorderbuffer.c; varatt.h; heap_deform_tuple
"""

from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from spillway._kernels.reorder.changes cimport HAS_NEW, ChangeHeader, ToastValueHeader, TupleHeader
from spillway._kernels.wal.record_batch cimport load_u32

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char *text, size_t size)

cdef enum:
    HEAP_HASNULL = 0x0001
    HEAP_HASEXTERNAL = 0x0004
    HEAP_NATTS_MASK = 0x07FF
    # SizeofHeapTupleHeader: where the tuple section's bytes begin in the heap tuple
    TUPLE_DATA_OFFSET = 23
    VARTAG_ONDISK = 18
    EXTERNAL_POINTER_SIZE = 18  # va_header, va_tag, varatt_external
    VARLENA_EXTSIZE_MASK = 0x3FFFFFFF
    VALUES_KEPT = 8             # gathered values whose buffers survive a reset
    VALUE_BYTES_KEPT = 1 << 16


cdef class RelationPlans:
    """Column lengths and alignments by relation id."""

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self._room):
            free(self._plans[i].lengths)
        free(self._plans)

    cdef const RelationPlan *find(self, uint32_t relation) noexcept nogil:
        """Return the plan of a relation id, NULL when there is none."""
        if relation >= self._room or self._plans[relation].lengths == NULL:
            return NULL
        return &self._plans[relation]

    cdef int add(self, uint32_t relation, object lengths, object aligns, object dropped) except -1:
        """Keep the columns of *relation*; the three sequences have one element a column."""
        cdef uint32_t room = self._room
        cdef RelationPlan *grown
        cdef RelationPlan *plan
        cdef size_t n = len(lengths)
        cdef size_t i
        if self.find(relation) != NULL:
            return 0
        if relation >= room:
            room = 64 if room == 0 else room
            while room <= relation:
                room *= 2
            grown = <RelationPlan *> realloc(self._plans, room * sizeof(RelationPlan))
            if grown == NULL:
                raise MemoryError
            memset(grown + self._room, 0, (room - self._room) * sizeof(RelationPlan))
            self._plans = grown
            self._room = room
        plan = &self._plans[relation]
        # One block: lengths, then aligns, then dropped.
        plan.lengths = <int16_t *> calloc(n + 1, 4)
        if plan.lengths == NULL:
            raise MemoryError
        plan.aligns = <uint8_t *> (plan.lengths + n)
        plan.dropped = plan.aligns + n
        plan.column_count = <uint16_t> n
        for i in range(n):
            plan.lengths[i] = lengths[i]
            plan.aligns[i] = aligns[i]
            plan.dropped[i] = 1 if dropped[i] else 0
        return 0

    cdef void remove(self, uint32_t relation) noexcept nogil:
        """Forget the columns of *relation*; safe to repeat."""
        if relation < self._room:
            free(self._plans[relation].lengths)
            memset(&self._plans[relation], 0, sizeof(RelationPlan))


cdef class ToastGatherer:
    """The TOAST values gathered since the last row that ended them."""

    def __cinit__(self, RelationPlans plans):
        self.plans = plans

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self._room):
            free(self._values[i].data)
        free(self._values)
        free(self.matches)

    cdef ToastValue *_find(self, uint32_t value_id) noexcept nogil:
        """Rows come in the order of their values: look on from where the last one was found."""
        cdef uint32_t _i
        for _i in range(self._count):
            if self._hint >= self._count:
                self._hint = 0
            if self._values[self._hint].value_id == value_id:
                return &self._values[self._hint]
            self._hint += 1
        return NULL

    cdef ToastStatus append(self, const ChangeHeader *change) noexcept nogil:
        """Take a TOAST_CHUNK change."""
        cdef const uint8_t *section = <const uint8_t *> (change + 1)
        cdef uint32_t value_id = load_u32(section)
        cdef uint32_t seq = load_u32(section + 4)
        cdef size_t size = change.new_size - 8
        cdef size_t room
        cdef ToastValue *value = NULL
        cdef ToastValue *grown
        cdef uint8_t *data
        if self._count > 0 and self._values[self._count - 1].value_id == value_id:
            value = &self._values[self._count - 1]
        elif seq != 0:
            value = self._find(value_id)
        if value == NULL:
            if seq != 0:
                return TOAST_OK if self.plans.partial_values else TOAST_BAD_CHUNK
            if self._count == self._room:
                room = 8 if self._room == 0 else self._room * 2
                grown = <ToastValue *> realloc(self._values, room * sizeof(ToastValue))
                if grown == NULL:
                    return TOAST_NO_MEMORY
                memset(grown + self._room, 0, (room - self._room) * sizeof(ToastValue))
                self._values = grown
                self._room = <uint32_t> room
            value = &self._values[self._count]
            self._count += 1
            value.value_id = value_id
            value.size = 0
        elif seq != value.last_seq + 1:
            if not self.plans.partial_values:
                return TOAST_BAD_CHUNK
            if seq != 0:
                # A gap; the value never has its size.
                return TOAST_OK
            value.size = 0
        value.last_seq = seq
        if value.size + size > value.room:
            room = 4096 if value.room == 0 else value.room * 2
            while room < value.size + size:
                room *= 2
            data = <uint8_t *> realloc(value.data, room)
            if data == NULL:
                return TOAST_NO_MEMORY
            value.data = data
            value.room = room
        memcpy(value.data + value.size, section + 8, size)
        value.size += size
        return TOAST_OK

    cdef ToastStatus match(self, const ChangeHeader *change, size_t *extra) noexcept nogil:
        """Find the gathered values that the new tuple of *change* points to; *extra* is what they
        need in bytes.
        """
        cdef const TupleHeader *header = <const TupleHeader *> (change + 1)
        cdef const uint8_t *bitmap
        cdef const uint8_t *data
        cdef const RelationPlan *plan
        cdef size_t size, offset, length, align
        cdef uint16_t natts, i
        cdef int16_t attlen
        cdef uint8_t first
        cdef ToastStatus status
        extra[0] = 0
        self.match_count = 0
        if self._count == 0 or not change.flags & HAS_NEW or not header.infomask & HEAP_HASEXTERNAL:
            return TOAST_OK
        plan = self.plans.find(change.relation)
        if plan == NULL:
            return TOAST_NO_PLAN
        natts = header.infomask2 & HEAP_NATTS_MASK
        if natts > plan.column_count:
            return TOAST_BAD_TUPLE
        bitmap = <const uint8_t *> (header + 1)
        size = change.new_size - sizeof(TupleHeader)
        if header.hoff < TUPLE_DATA_OFFSET or <size_t> (header.hoff - TUPLE_DATA_OFFSET) > size:
            return TOAST_BAD_TUPLE
        if (header.infomask & HEAP_HASNULL
                and <size_t> (natts + 7) // 8 > <size_t> (header.hoff - TUPLE_DATA_OFFSET)):
            return TOAST_BAD_TUPLE
        data = bitmap + (header.hoff - TUPLE_DATA_OFFSET)
        size -= <size_t> (header.hoff - TUPLE_DATA_OFFSET)
        offset = 0
        for i in range(natts):
            if header.infomask & HEAP_HASNULL and not bitmap[i >> 3] & (1 << (i & 7)):
                continue
            attlen = plan.lengths[i]
            align = plan.aligns[i]
            if attlen == -1:
                # A short or external varlena is not aligned; a zero byte is padding before an
                # aligned one.
                if offset >= size:
                    return TOAST_BAD_TUPLE
                if data[offset] == 0:
                    offset = (offset + align - 1) & ~(align - 1)
                    if offset >= size:
                        return TOAST_BAD_TUPLE
                first = data[offset]
                if first == 1:
                    if size - offset < 2:
                        return TOAST_BAD_TUPLE
                    if data[offset + 1] != VARTAG_ONDISK or size - offset < EXTERNAL_POINTER_SIZE:
                        return TOAST_BAD_TUPLE
                    if not plan.dropped[i]:
                        status = self._match_pointer(data + offset + 2, extra)
                        if status != TOAST_OK:
                            return status
                    length = EXTERNAL_POINTER_SIZE
                elif first & 1:
                    length = first >> 1
                else:
                    if size - offset < 4:
                        return TOAST_BAD_TUPLE
                    length = load_u32(data + offset) >> 2
                if length == 0:
                    return TOAST_BAD_TUPLE
            else:
                offset = (offset + align - 1) & ~(align - 1)
                if offset > size:
                    return TOAST_BAD_TUPLE
                if attlen == -2:
                    length = strnlen(<const char *> data + offset, size - offset) + 1
                else:
                    length = <size_t> attlen
            if length > size - offset:
                return TOAST_BAD_TUPLE
            offset += length
        return TOAST_OK

    cdef ToastStatus _match_pointer(self, const uint8_t *pointer, size_t *extra) noexcept nogil:
        """Look up a varatt_external: va_rawsize, va_extinfo, va_valueid, va_toastrelid."""
        cdef uint32_t *grown
        cdef uint32_t room
        cdef ToastValue *value = self._find(load_u32(pointer + 8))
        if value == NULL:
            return TOAST_OK
        if value.size != load_u32(pointer + 4) & VARLENA_EXTSIZE_MASK:
            return TOAST_OK if self.plans.partial_values else TOAST_BAD_SIZE
        if self.match_count == 0xFFFF:
            return TOAST_TOO_LARGE
        if self.match_count == self._match_room:
            room = 16 if self._match_room == 0 else self._match_room * 2
            grown = <uint32_t *> realloc(self.matches, room * sizeof(uint32_t))
            if grown == NULL:
                return TOAST_NO_MEMORY
            self.matches = grown
            self._match_room = room
        self.matches[self.match_count] = <uint32_t> (value - self._values)
        self.match_count += 1
        extra[0] += sizeof(ToastValueHeader) + ((value.size + 7) & ~(<size_t> 7))
        return TOAST_OK

    cdef size_t write(self, uint8_t *place) noexcept nogil:
        """Write the matched values in the change format; return the bytes written, as ``match``
        said.
        """
        cdef ToastValueHeader header
        cdef ToastValue *value
        cdef uint8_t *start = place
        cdef size_t padded
        cdef uint32_t i
        for i in range(self.match_count):
            value = &self._values[self.matches[i]]
            header.value_id = value.value_id
            header.size = <uint32_t> value.size
            memcpy(place, &header, sizeof(ToastValueHeader))
            place += sizeof(ToastValueHeader)
            memcpy(place, value.data, value.size)
            padded = (value.size + 7) & ~(<size_t> 7)
            memset(place + value.size, 0, padded - value.size)
            place += padded
        return <size_t> (place - start)

    cdef void reset(self) noexcept nogil:
        """Forget the values; keep small buffers for the next row."""
        cdef uint32_t i
        for i in range(self._count):
            if i >= VALUES_KEPT or self._values[i].room > VALUE_BYTES_KEPT:
                free(self._values[i].data)
                self._values[i].data = NULL
                self._values[i].room = 0
        self._count = 0
        self._hint = 0
