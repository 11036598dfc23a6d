# cython: language_level=3
"""Writers of date and time types; see ``values/type.pxd``."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport PrintedDate, TextSettings, TypeOutput

# ``.ffffff`` without trailing zeros, or nothing
cdef int put_fraction(ByteBuffer* out, uint32_t microseconds) except -1 nogil
cdef int put_infinity(ByteBuffer* out, bint negative) except -1 nogil

# Have the next timestamp's date printed anew.
cdef void forget_date(PrintedDate* printed) noexcept nogil

# timestamptz_to_str: what plugins print for commit times
cdef int put_timestamptz(ByteBuffer* out, int64_t value,
                         const TextSettings* settings) except -1 nogil

cdef int date_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int time_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int timetz_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int timestamp_text(const TypeOutput* type, const uint8_t* data, size_t size,
                        ByteBuffer* out) except -1 nogil
cdef int timestamptz_text(const TypeOutput* type, const uint8_t* data, size_t size,
                          ByteBuffer* out) except -1 nogil
