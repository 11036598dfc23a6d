# cython: language_level=3, boundscheck=False, wraparound=False
"""COPY … (FORMAT binary) in, Arrow columns out: the arrow plugin's builders, fed by SELECT instead
of WAL.

A message of COPY TO STDOUT has a row, mostly: the number of its fields, and each field's length and
bytes as the type's send function writes them. The first message has the file's header before that,
the last one a trailer instead. Send functions write in network order what a tuple has in the
machine's; a field is turned into the datum that the tuple would have and goes to the same
``append_datum``, which decides about range, encoding and epoch. So a row that is copied and a row
that is decoded become the same values, or the same error.

The first field of each row is its ctid; it is kept as one number that sorts as ctids do.

Source: CopySendBinary… in src/backend/commands/copyto.c (14: copyto.c too); numeric_send in
numeric.c, tidsend in tid.c
"""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize

from spillway._kernels.values.arrow.column cimport (
    KIND_BINARY,
    KIND_BOOL,
    KIND_DECIMAL,
    KIND_PRINTED,
    KIND_TEXT,
    Column,
    append_datum,
    append_null,
    clear_column,
    empty,
    free_column,
)
from spillway._kernels.values.datum cimport DATUM_VALUE, Datum, invalid
from spillway._kernels.messages.buffer cimport ByteBuffer, put_bytes, release, reserve
from spillway._kernels.encoders.arrow.encoder import KINDS
from spillway.errors import DecodingError, ValueNotRepresentable

cdef enum:
    SIGNATURE_SIZE = 11
    # signature, flags, length of the header's extension
    HEADER_SIZE = 19
    TID_SIZE = 6
    # digits, weight, sign, scale: a uint16 each
    NUMERIC_HEADER_SIZE = 8

cdef bytes SIGNATURE_BYTES = b"PGCOPY\n\xff\r\n\x00"
cdef const char* SIGNATURE = SIGNATURE_BYTES


cdef class CopiedRows:
    """The rows of one table that were copied and not taken yet. Used by one thread at a time.

    Args:
        columns: ``plugins.arrow_schema.ColumnPlan`` of each field after ctid, in order; a printed
            one's field is the text that PostgreSQL prints.
        not_utf8_escaped: bytes of text that are not UTF-8 become ``\\xff``; else they are an error.
    """
    cdef Column* columns
    cdef int column_count
    cdef list names
    cdef ByteBuffer places_buffer
    cdef ByteBuffer numeric
    cdef bint begun
    # the trailer was seen: the copy is complete
    cdef readonly bint ended
    cdef readonly size_t rows
    # of all columns, about
    cdef readonly size_t size
    # the column at hand, for errors; -1 none
    cdef int at

    def __cinit__(self, columns, bint not_utf8_escaped=False):
        cdef int i
        self.column_count = len(columns)
        self.names = [planned.column.name for planned in columns]
        self.at = -1
        self.columns = <Column*>calloc(self.column_count + 1, sizeof(Column))
        if self.columns == NULL:
            raise MemoryError
        for i, planned in enumerate(columns):
            kind, self.columns[i].width = KINDS[planned.kind]
            self.columns[i].kind = KIND_TEXT if kind == KIND_PRINTED else kind
            self.columns[i].escape = not_utf8_escaped
            self.columns[i].precision = planned.precision
            self.columns[i].scale = planned.scale
        self.clear()

    def __dealloc__(self):
        cdef int i
        if self.columns != NULL:
            for i in range(self.column_count):
                free_column(&self.columns[i])
        free(self.columns)
        release(&self.places_buffer)
        release(&self.numeric)

    cpdef clear(self):
        """Forget the rows; the copy goes on."""
        cdef int i
        for i in range(self.column_count):
            clear_column(&self.columns[i])
        empty(&self.places_buffer)
        self.rows = 0
        self.size = 0

    def put(self, message not None):
        """Take one message of the copy.

        Raises:
            DecodingError: it is none, or a field is not what its type's send function writes.
            ValueNotRepresentable: a value has no form in its column's Arrow type.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                self.put_message(<const uint8_t*>view.buf, <size_t>view.len)
        except (DecodingError, ValueNotRepresentable) as error:
            if not 0 <= self.at < self.column_count:
                raise
            name = self.names[self.at]
            raise type(error)(
                f"column {name}: {error.message}", hint=error.hint,
                **{**error.details, "column": name}
            ) from error
        finally:
            PyBuffer_Release(&view)

    cdef int put_message(self, const uint8_t* data, size_t size) except -1 nogil:
        cdef size_t at = 0
        cdef uint32_t extension
        if not self.begun:
            if size < HEADER_SIZE or memcmp(data, SIGNATURE, SIGNATURE_SIZE) != 0:
                return invalid(b"what was copied does not begin as COPY BINARY does")
            extension = network_u32(data + HEADER_SIZE - 4)
            if extension > size - HEADER_SIZE:
                return invalid(b"the header of COPY BINARY is longer than its message")
            at = HEADER_SIZE + extension
            self.begun = True
        while at < size:
            at = self.put_row(data, at, size)
        return 0

    cdef size_t put_row(self, const uint8_t* data, size_t at, size_t size) except 0 nogil:
        """Append the row at *at*; return where it ends."""
        cdef int16_t fields
        cdef int32_t length
        cdef int64_t place
        cdef int i
        if self.ended:
            return invalid(b"a row comes after the end of the copy")
        if size - at < 2:
            return invalid(b"a copied row is cut off")
        fields = <int16_t>network_u16(data + at)
        at += 2
        if fields == -1:
            self.ended = True
            return at
        if fields != self.column_count + 1:
            return invalid(b"a copied row has another number of fields than was asked for")
        self.at = -1
        for i in range(-1, self.column_count):
            if size - at < 4:
                return invalid(b"a copied row is cut off")
            length = <int32_t>network_u32(data + at)
            at += 4
            if length > 0 and <size_t>length > size - at:
                return invalid(b"a copied field is longer than its row")
            if i < 0:
                if length != TID_SIZE:
                    return invalid(b"a ctid is not six bytes")
                place = <int64_t>network_u32(data + at) << 16 | network_u16(data + at + 4)
                put_bytes(&self.places_buffer, &place, 8)
            else:
                self.at = i
                if length < 0:
                    self.size += append_null(&self.columns[i], self.rows)
                else:
                    self.size += self.put_field(&self.columns[i], data + at, <size_t>length)
            if length > 0:
                at += <size_t>length
        self.at = -1
        self.rows += 1
        self.size += 8
        return at

    cdef Py_ssize_t put_field(self, Column* column, const uint8_t* field,
                              size_t size) except -1 nogil:
        cdef Datum datum
        cdef uint8_t turned[8]
        cdef size_t i
        datum.state = DATUM_VALUE
        datum.data = field
        datum.size = size
        if column.kind == KIND_DECIMAL:
            self.turn_numeric(field, size, &datum)
        elif column.kind != KIND_BINARY and column.kind != KIND_TEXT and column.kind != KIND_BOOL:
            if size > 8:
                return invalid(b"a value has another length than its type")
            for i in range(size):
                turned[i] = field[size - 1 - i]
            datum.data = turned
        return append_datum(column, self.rows, &datum)

    cdef int turn_numeric(self, const uint8_t* field, size_t size, Datum* datum) except -1 nogil:
        """Make the datum (NumericLong) of what numeric_send wrote."""
        cdef uint16_t digits, word
        cdef size_t i
        if size < NUMERIC_HEADER_SIZE:
            return invalid(b"a numeric value is cut off")
        digits = network_u16(field)
        if size != NUMERIC_HEADER_SIZE + 2 * <size_t>digits:
            return invalid(b"a numeric value has another length than its digits")
        self.numeric.size = 0
        reserve(&self.numeric, size)
        word = network_u16(field + 4)
        if word & 0xC000 != 0xC000:
            word = word & 0x4000 | network_u16(field + 6) & 0x3FFF
        put_bytes(&self.numeric, &word, 2)
        word = network_u16(field + 2)
        put_bytes(&self.numeric, &word, 2)
        for i in range(digits):
            word = network_u16(field + NUMERIC_HEADER_SIZE + 2 * i)
            put_bytes(&self.numeric, &word, 2)
        datum.data = self.numeric.data
        datum.size = self.numeric.size
        return 0

    # Buffers for Arrow, copied: they outlive the next row.

    def places(self):
        """Return the rows' ctids, block × 65536 + offset, as int64."""
        return copied(&self.places_buffer)

    def column_buffers(self, int i):
        """Return ``(null count, [validity, (offsets,) values])`` of column *i*; None: a bitmap
        without nulls.
        """
        cdef Column* column
        if not 0 <= i < self.column_count:
            raise IndexError(i)
        column = &self.columns[i]
        buffers = [copied(&column.validity) if column.null_count else None]
        if column.kind == KIND_BINARY or column.kind == KIND_TEXT:
            buffers.append(copied(&column.offsets))
        buffers.append(copied(&column.values))
        return (column.null_count, buffers)


cdef bytes copied(const ByteBuffer* buffer):
    # A builder that never had a byte has no memory either.
    return PyBytes_FromStringAndSize(<const char*>buffer.data,
                                     <Py_ssize_t>buffer.size) if buffer.size else b""


cdef inline uint16_t network_u16(const uint8_t* p) noexcept nogil:
    return <uint16_t>(<uint16_t>p[0] << 8 | p[1])


cdef inline uint32_t network_u32(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]
