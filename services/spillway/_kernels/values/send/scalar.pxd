# cython: language_level=3
"""Writers of send formats that are fields in network byte order; see ``values/type.pxd``."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spillway._kernels.messages.buffer cimport ByteBuffer, reserve
from spillway._kernels.values.type cimport TypeOutput

cdef extern from *:
    """
    #define spillway_swap16(x) __builtin_bswap16(x)
    #define spillway_swap32(x) __builtin_bswap32(x)
    #define spillway_swap64(x) __builtin_bswap64(x)
    """
    uint16_t swap16 "spillway_swap16"(uint16_t value) noexcept nogil
    uint32_t swap32 "spillway_swap32"(uint32_t value) noexcept nogil
    uint64_t swap64 "spillway_swap64"(uint64_t value) noexcept nogil


# Append an integer in network byte order.
cdef inline int put_int16(ByteBuffer* out, uint16_t value) except -1 nogil:
    reserve(out, 2)
    value = swap16(value)
    memcpy(out.data + out.size, &value, 2)
    out.size += 2
    return 0

cdef inline int put_int32(ByteBuffer* out, uint32_t value) except -1 nogil:
    reserve(out, 4)
    value = swap32(value)
    memcpy(out.data + out.size, &value, 4)
    out.size += 4
    return 0

cdef inline int put_int64(ByteBuffer* out, uint64_t value) except -1 nogil:
    reserve(out, 8)
    value = swap64(value)
    memcpy(out.data + out.size, &value, 8)
    out.size += 8
    return 0

# Replace the four bytes at *position*, which were written before: a length that is known
# afterwards.
cdef inline void patch_int32(ByteBuffer* out, size_t position, uint32_t value) noexcept nogil:
    value = swap32(value)
    memcpy(out.data + position, &value, 4)

# *count* integers or floats, stored one behind the other.
cdef int put_int16s(ByteBuffer* out, const uint8_t* data, size_t count) except -1 nogil
cdef int put_int32s(ByteBuffer* out, const uint8_t* data, size_t count) except -1 nogil
cdef int put_int64s(ByteBuffer* out, const uint8_t* data, size_t count) except -1 nogil

cdef int bool_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
# "char", uuid, macaddr, macaddr8, bytea: the bytes as they are
cdef int bytes_send(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
cdef int int2_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
# int4, float4, oid and the types that are one, xid, cid, date
cdef int int4_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
# int8, float8, time, timestamp, money, xid8, pg_lsn; and point, lseg, box, line, circle: some
# float8s
cdef int int8_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int timetz_send(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int interval_send(const TypeOutput* type, const uint8_t* data, size_t size,
                       ByteBuffer* out) except -1 nogil
cdef int tid_send(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil
cdef int numeric_send(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil
cdef int bit_send(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil
cdef int inet_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int cidr_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int path_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int polygon_send(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil
cdef int snapshot_send(const TypeOutput* type, const uint8_t* data, size_t size,
                       ByteBuffer* out) except -1 nogil
