# cython: language_level=3
"""C interface of Arrow column builders: one column's buffers, growing row by row.

A builder is a plain C struct, zeroed, then given its kind; every row appends to it exactly once, by
``append_datum`` or ``append_null``. None of it needs the GIL.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from spillway._kernels.values.datum cimport Datum
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte
from spillway._kernels.values.type cimport TextSettings, TypeOutput

cdef enum Kind:
    KIND_BOOL = 1       # bits
    KIND_FIXED = 2      # little-endian values of ``width`` bytes, as PostgreSQL has them
    KIND_BINARY = 3     # offsets and the datum's bytes
    KIND_TEXT = 4       # the same, made UTF-8
    KIND_PRINTED = 5    # offsets and what ``output`` prints
    KIND_DATE = 6       # date32
    KIND_TIME = 7       # time64[us]
    KIND_TIMESTAMP = 8  # timestamp[us]
    KIND_DECIMAL = 9    # decimal128(precision, scale)


# Why a value has no form in its column's type.
cdef enum Refusal:
    REFUSED_NOTHING = 0
    REFUSED_TOO_LONG
    REFUSED_NOT_UTF8
    REFUSED_INFINITE_TIMESTAMP
    REFUSED_LATE_TIMESTAMP
    REFUSED_INFINITE_DATE
    REFUSED_END_OF_DAY
    REFUSED_SPECIAL_NUMERIC
    REFUSED_WIDE_NUMERIC


cdef struct Column:
    Kind kind
    int width               # bytes of one value; 0: a bit, or variable
    int precision
    int scale
    const TypeOutput* output
    # of KIND_TEXT and KIND_PRINTED: the database's encoding; NULL: what comes is UTF-8
    const TextSettings* settings
    # bytes of text that are not UTF-8: as \xff, rather than an error
    bint escape
    # a value without a form is null and leaves its reason in ``refusal``, rather than an error
    bint marks
    Refusal refusal
    size_t null_count
    ByteBuffer validity
    ByteBuffer offsets
    ByteBuffer values


# Each returns how many bytes the row took in ``values``. *row* is how many rows there were before.
cdef Py_ssize_t append_null(Column* column, size_t row) except -1 nogil
cdef Py_ssize_t append_datum(Column* column, size_t row, const Datum* value) except -1 nogil

# Why a value has no form, and what mends that.
cdef tuple refusal_of(const Column* column, Refusal why)

# Make ready for row 0: for a new builder too.
cdef int clear_column(Column* column) except -1 nogil
cdef void free_column(Column* column) noexcept nogil

cdef bint is_utf8(const uint8_t* data, size_t size) noexcept nogil

# Forget the content; keep memory unless there is a great deal of it.
cdef void empty(ByteBuffer* buffer) noexcept nogil


cdef inline int put_bit(ByteBuffer* buffer, size_t index, bint value) except -1 nogil:
    """Append bit *index* of a bitmap, the lowest of a byte first."""
    if index & 7 == 0:
        return put_byte(buffer, 1 if value else 0)
    if value:
        buffer.data[index >> 3] |= <uint8_t>(1 << (index & 7))
    return 0
