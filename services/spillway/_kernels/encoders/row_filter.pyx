# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Rows of a chunk as columns, for row filters to be evaluated over all of them at once.

In comes a chunk, out go the buffers of Arrow arrays: of the columns that a filter looks at, one row
for each tuple that it is asked about. Those are the new tuple of an INSERT, the old one of a
DELETE, and of an UPDATE the new one or, when the old is there too, first the old and then the new,
with the TOAST values that did not change taken from the old. Back comes whether each of them
passes; :meth:`FilterRows.verdicts` says what that means for each change.

Types whose order Arrow does not know become bytes that are ordered as PostgreSQL orders the values:
numeric, interval. Of char(n) the padding is taken off, which no operator sees.

Source: pgoutput_row_filter, src/backend/replication/pgoutput/pgoutput.c; cmp_numerics,
src/backend/utils/adt/numeric.c; interval_cmp_value, timestamp.c
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from spillway._kernels.values.arrow.column cimport (
    KIND_BINARY,
    KIND_BOOL,
    KIND_FIXED,
    Column,
    append_datum,
    clear_column,
    free_column,
)
from spillway._kernels.reorder.changes cimport DELETE, FROM_ORIGIN, INSERT
from spillway._kernels.values.datum cimport (
    DATUM_UNCHANGED,
    DATUM_VALUE,
    Change,
    Datum,
    Deformer,
    invalid,
    load_i32,
    load_i64,
    read_change,
)
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, release
from spillway.errors import DecodingError

# How a column's values become an Arrow array's.
cdef enum Form:
    FORM_BOOL = 1
    FORM_FIXED = 2
    FORM_BINARY = 3
    # without trailing spaces
    FORM_PADDED = 4
    FORM_NUMERIC = 5
    FORM_INTERVAL = 6
    # a name: up to its first zero
    FORM_NAME = 7

FORMS = {
    "bool": FORM_BOOL, "fixed": FORM_FIXED, "binary": FORM_BINARY, "padded": FORM_PADDED,
    "numeric": FORM_NUMERIC, "interval": FORM_INTERVAL, "name": FORM_NAME,
}

# What becomes of a change.
cdef enum:
    VERDICT_DROP = 0
    VERDICT_KEEP = 1
    VERDICT_INSERT = 2
    VERDICT_DELETE = 3

cdef int64_t DAY_US = <int64_t>86400 * 1000000


cdef class FilterRows:
    """Gathers the rows that one filter of one action is asked about.

    Args:
        descriptor: the RelationDescriptor that the tuples were written under.
        columns: (attnum, form, width) of each column that the filter looks at.
    """
    cdef Deformer new
    cdef Deformer old
    cdef Column* columns
    cdef int* attributes
    cdef int* forms
    cdef int count
    cdef readonly size_t rows
    # one byte a change: how many rows it has
    cdef ByteBuffer tuples
    cdef ByteBuffer scratch

    def __cinit__(self, descriptor, columns):
        cdef int i
        self.new = Deformer(descriptor)
        self.old = Deformer(descriptor)
        self.count = len(columns)
        self.columns = <Column*>calloc(self.count + 1, sizeof(Column))
        self.attributes = <int*>calloc(self.count + 1, sizeof(int))
        self.forms = <int*>calloc(self.count + 1, sizeof(int))
        if self.columns == NULL or self.attributes == NULL or self.forms == NULL:
            raise MemoryError
        for i, (attnum, form, width) in enumerate(columns):
            if not 0 < attnum <= self.new.natts:
                raise DecodingError(f"a row filter names column {attnum}, which the table does not "
                                    "have")
            self.attributes[i] = attnum - 1
            self.forms[i] = FORMS[form]
            self.columns[i].width = width if self.forms[i] == FORM_FIXED else 0
            self.columns[i].kind = (
                KIND_BOOL if self.forms[i] == FORM_BOOL else KIND_FIXED
                if self.forms[i] == FORM_FIXED else KIND_BINARY)

    def __dealloc__(self):
        cdef int i
        if self.columns != NULL:
            for i in range(self.count):
                free_column(&self.columns[i])
        free(self.columns)
        free(self.attributes)
        free(self.forms)
        release(&self.tuples)
        release(&self.scratch)

    def gather(self, const uint8_t[::1] chunk not None, uint32_t relation, uint8_t action,
               bint only_local):
        """Take the rows of every change of *relation* by *action*; those under an origin not, with
        *only_local*.

        Returns how many changes there are. A DELETE without its old tuple is none.
        """
        cdef size_t size = chunk.shape[0]
        cdef size_t offset = 0
        cdef Change change
        cdef int i
        for i in range(self.count):
            clear_column(&self.columns[i])
        self.tuples.size = 0
        self.rows = 0
        with nogil:
            while offset < size:
                read_change(&chunk[0], size, &offset, &change)
                if change.header.relation != relation or change.header.action != action:
                    continue
                if only_local and change.header.flags & FROM_ORIGIN:
                    continue
                self.add(&change)
        return self.tuples.size

    cdef int add(self, const Change* change) except -1 nogil:
        if change.header.action == DELETE:
            if change.old_section == NULL:
                return 0
            self.old.deform(change.old_section, change.old_size, change)
            self.add_row(self.old.values, NULL)
            return put_byte(&self.tuples, 1)
        self.new.deform(change.new_section, change.new_size, change)
        if change.header.action == INSERT or change.old_section == NULL:
            self.add_row(self.new.values, NULL)
            return put_byte(&self.tuples, 1)
        self.old.deform(change.old_section, change.old_size, change)
        self.add_row(self.old.values, NULL)
        self.add_row(self.new.values, self.old.values)
        return put_byte(&self.tuples, 2)

    cdef int add_row(self, const Datum* values, const Datum* fallback) except -1 nogil:
        cdef const Datum* value
        cdef Datum changed
        cdef int i
        for i in range(self.count):
            value = &values[self.attributes[i]]
            if value.state == DATUM_UNCHANGED:
                if fallback != NULL and fallback[self.attributes[i]].state == DATUM_VALUE:
                    value = &fallback[self.attributes[i]]
                else:
                    return invalid(b"a row filter needs a value that is not in WAL: its column is "
                                   b"not in the identity")
            if value.state == DATUM_VALUE and self.forms[i] > FORM_BINARY:
                changed = value[0]
                self.transform(self.forms[i], &changed)
                append_datum(&self.columns[i], self.rows, &changed)
            else:
                append_datum(&self.columns[i], self.rows, value)
        self.rows += 1
        return 0

    cdef int transform(self, int form, Datum* value) except -1 nogil:
        cdef size_t i = 0
        if form == FORM_PADDED:
            while value.size > 0 and value.data[value.size - 1] == c' ':
                value.size -= 1
            return 0
        if form == FORM_NAME:
            while i < value.size and value.data[i] != 0:
                i += 1
            value.size = i
            return 0
        self.scratch.size = 0
        if form == FORM_NUMERIC:
            put_numeric_key(value.data, value.size, &self.scratch)
        else:
            put_interval_key(value.data, value.size, &self.scratch)
        value.data = self.scratch.data
        value.size = self.scratch.size
        return 0

    def column_buffers(self, int i):
        """Return ``(null count, [validity or None, (offsets,) values])`` of column *i*, as
        copies.
        """
        cdef Column* column
        if not 0 <= i < self.count:
            raise IndexError(i)
        column = &self.columns[i]
        buffers = [_copy(&column.validity) if column.null_count else None]
        if column.kind == KIND_BINARY:
            buffers.append(_copy(&column.offsets))
        buffers.append(_copy(&column.values))
        return (column.null_count, buffers)

    def verdicts(self, const uint8_t[::1] passes not None):
        """Say what becomes of each change: one byte each, from one byte for each row, 1 for those
        that pass.

        0: it is left out; 1: it stays what it is; an UPDATE becomes 2: an INSERT, 3: a DELETE.
        """
        cdef bytes result = bytes(self.tuples.size)
        cdef uint8_t* out = <uint8_t*><char*>result
        cdef size_t row = 0
        cdef size_t i
        if <size_t>passes.shape[0] != self.rows:
            raise ValueError("a row filter has another number of results than of rows")
        for i in range(self.tuples.size):
            if self.tuples.data[i] == 1:
                out[i] = VERDICT_KEEP if passes[row] else VERDICT_DROP
            elif passes[row]:
                out[i] = VERDICT_KEEP if passes[row + 1] else VERDICT_DELETE
            else:
                out[i] = VERDICT_INSERT if passes[row + 1] else VERDICT_DROP
            row += self.tuples.data[i]
        return result


def numeric_key(const uint8_t[::1] datum not None):
    """Return bytes that order numerics as PostgreSQL does; *datum* is one without its varlena
    header.
    """
    cdef ByteBuffer out
    out.data = NULL
    out.size = 0
    out.capacity = 0
    try:
        put_numeric_key(&datum[0] if datum.shape[0] else NULL, datum.shape[0], &out)
        return _copy(&out)
    finally:
        release(&out)


def interval_key(const uint8_t[::1] datum not None):
    """Return bytes that order intervals as PostgreSQL does."""
    cdef ByteBuffer out
    out.data = NULL
    out.size = 0
    out.capacity = 0
    try:
        put_interval_key(&datum[0] if datum.shape[0] else NULL, datum.shape[0], &out)
        return _copy(&out)
    finally:
        release(&out)


cdef bytes _copy(const ByteBuffer* buffer):
    return PyBytes_FromStringAndSize(<const char*>buffer.data, buffer.size)


cdef int put_be16(ByteBuffer* out, uint16_t value) except -1 nogil:
    put_byte(out, <uint8_t>(value >> 8))
    return put_byte(out, <uint8_t>(value & 0xFF))


cdef int put_be64(ByteBuffer* out, uint64_t value) except -1 nogil:
    cdef int shift
    for shift in range(56, -8, -8):
        put_byte(out, <uint8_t>((value >> shift) & 0xFF))
    return 0


cdef int put_numeric_key(const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    """-Infinity, negative, zero, positive, Infinity, NaN: a byte each; then weight and digits, base
    10000.
    """
    cdef uint16_t header, digit
    cdef uint16_t flip = 0
    cdef int16_t weight
    cdef int weight_now
    cdef bint negative
    cdef size_t at = 2
    cdef size_t end = size
    if size < 2 or size % 2 != 0:
        return invalid(b"a numeric value is malformed")
    memcpy(&header, data, 2)
    if header & 0xC000 == 0xC000:
        # NaN 0xC000, Infinity 0xD000, -Infinity 0xF000
        return put_byte(out,
                        0 if header & 0xF000 == 0xF000 else 4 if header & 0xF000 == 0xD000 else 5)
    if header & 0x8000:
        negative = header & 0x2000 != 0
        weight = <int16_t>(header & 0x3F)
        if header & 0x40:
            weight -= 0x40
    else:
        if size < 4:
            return invalid(b"a numeric value is malformed")
        negative = header & 0x4000 != 0
        memcpy(&weight, data + 2, 2)
        at = 4
    weight_now = weight
    # Zero digits at either end mean nothing.
    while at < end:
        memcpy(&digit, data + at, 2)
        if digit != 0:
            break
        at += 2
        weight_now -= 1
    while end > at:
        memcpy(&digit, data + end - 2, 2)
        if digit != 0:
            break
        end -= 2
    if at == end:
        return put_byte(out, 2)
    put_byte(out, 1 if negative else 3)
    if negative:
        flip = 0xFFFF
    if not -32768 <= weight_now <= 32767:
        return invalid(b"a numeric value is malformed")
    put_be16(out, <uint16_t>(weight_now + 32768) ^ flip)
    while at < end:
        memcpy(&digit, data + at, 2)
        if digit > 9999:
            return invalid(b"a numeric value is malformed")
        put_be16(out, digit ^ flip)
        at += 2
    if negative:
        # Of two that agree as far as the shorter goes, the longer is less.
        put_be16(out, 0xFFFF)
    return 0


cdef int put_interval_key(const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    """Days, of 24 hours, with months of 30; then the microseconds of the day."""
    cdef int64_t time, days, more
    if size != 16:
        return invalid(b"an interval is not sixteen bytes")
    time = load_i64(data)
    days = <int64_t>load_i32(data + 8) + <int64_t>load_i32(data + 12) * 30
    more = time // DAY_US
    time -= more * DAY_US
    if time < 0:
        time += DAY_US
        more -= 1
    put_be64(out, <uint64_t>(days + more) ^ (<uint64_t>1 << 63))
    return put_be64(out, <uint64_t>time)
