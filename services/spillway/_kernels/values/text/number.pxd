# cython: language_level=3
"""Writers of number types; see ``values/type.pxd``."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport TypeOutput

# Write at *p*, which has room for 20 digits; return where they end.
cdef char* write_uint(char* p, uint64_t value) noexcept nogil
cdef int put_int(ByteBuffer* out, int64_t value) except -1 nogil
cdef int put_uint(ByteBuffer* out, uint64_t value) except -1 nogil
# Zero-padded to *width* digits.
cdef int put_padded(ByteBuffer* out, uint64_t value, int width) except -1 nogil
cdef int put_float8(ByteBuffer* out, double value, int extra_float_digits) except -1 nogil
cdef int put_float4(ByteBuffer* out, uint32_t bits, int extra_float_digits) except -1 nogil
cdef int put_numeric(ByteBuffer* out, const uint8_t* data, size_t size) except -1 nogil

cdef int int2_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int int4_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int int8_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int uint4_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
cdef int uint8_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
cdef int float4_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int float8_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int numeric_text(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil
cdef int money_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
