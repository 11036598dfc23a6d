# cython: language_level=3
"""Values in the forms in which statements take them."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.messages.buffer cimport ByteBuffer

cdef enum:
    # An element of an array's text form: always right.
    FORM_LITERAL = 0
    # What the receive function takes is the text itself.
    FORM_TEXT = 1
    FORM_INT2 = 2
    FORM_INT4 = 3
    FORM_INT8 = 4
    FORM_BOOL = 5
    FORM_JSONB = 6
    FORM_UUID = 7
    FORM_BYTEA = 8
    FORM_DATE = 9
    FORM_TIMESTAMP = 10
    FORM_TIMESTAMPTZ = 11
    FORM_NUMERIC = 12
    FORM_FLOAT8 = 13
    FORM_FLOAT4 = 14
    FORM_TIME = 15


cdef bint put_binary(
    ByteBuffer* out, int form, const uint8_t* text, uint32_t size
) except -1 nogil
cdef int put_element(ByteBuffer* out, const uint8_t* text, uint32_t size) except -1 nogil
cdef int put_copy_text(ByteBuffer* out, const uint8_t* text, uint32_t size) except -1 nogil
cdef int put_u32(ByteBuffer* out, uint32_t value) except -1 nogil
