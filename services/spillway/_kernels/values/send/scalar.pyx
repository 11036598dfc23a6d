# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Send formats that are fields in network byte order: numbers, times, network addresses, shapes.

Types whose fields lie in the datum as they are sent share a writer; ``type.length`` says how many
there are.

Source: the …send functions under src/backend/utils/adt: int.c, float.c, numeric.c, date.c,
timestamp.c, network.c, varbit.c, geo_ops.c, tid.c, xid8funcs.c
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t

from spillway._kernels.values.datum cimport invalid, load_i32, load_u16, load_u32, load_u64
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.values.text.geometric cimport PATH_HEADER, POLYGON_HEADER, count_points
from spillway._kernels.values.text.network cimport check_address
from spillway._kernels.values.type cimport TypeOutput

cdef enum:
    NUMERIC_SIGN_MASK = 0xC000
    NUMERIC_NEG = 0x4000
    NUMERIC_SHORT = 0x8000
    NUMERIC_SPECIAL = 0xC000
    NUMERIC_EXT_SIGN_MASK = 0xF000
    NUMERIC_DSCALE_MASK = 0x3FFF
    NUMERIC_SHORT_SIGN_MASK = 0x2000
    NUMERIC_SHORT_DSCALE_MASK = 0x1F80
    NUMERIC_SHORT_DSCALE_SHIFT = 7
    NUMERIC_SHORT_WEIGHT_SIGN_MASK = 0x0040
    NUMERIC_SHORT_WEIGHT_MASK = 0x003F
    # struct pg_snapshot without its length word: nxip, xmin, xmax
    SNAPSHOT_HEADER = 20


cdef int put_int16s(ByteBuffer* out, const uint8_t* data, size_t count) except -1 nogil:
    cdef size_t i
    reserve(out, 2 * count)
    for i in range(count):
        put_int16(out, load_u16(data + 2 * i))
    return 0


cdef int put_int32s(ByteBuffer* out, const uint8_t* data, size_t count) except -1 nogil:
    cdef size_t i
    reserve(out, 4 * count)
    for i in range(count):
        put_int32(out, load_u32(data + 4 * i))
    return 0


cdef int put_int64s(ByteBuffer* out, const uint8_t* data, size_t count) except -1 nogil:
    cdef size_t i
    reserve(out, 8 * count)
    for i in range(count):
        put_int64(out, load_u64(data + 8 * i))
    return 0


cdef int bool_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_byte(out, data[0] != 0)


cdef int bytes_send(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    return put_bytes(out, data, size)


cdef int int2_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_int16s(out, data, size // 2)


cdef int int4_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_int32s(out, data, size // 4)


cdef int int8_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_int64s(out, data, size // 8)


cdef int timetz_send(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    put_int64(out, load_u64(data))
    return put_int32(out, load_u32(data + 8))


cdef int interval_send(const TypeOutput* type, const uint8_t* data, size_t size,
                       ByteBuffer* out) except -1 nogil:
    put_int64(out, load_u64(data))
    return put_int32s(out, data + 8, 2)


cdef int tid_send(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil:
    # The block number's upper half, its lower half, the offset: as sent, half by half.
    return put_int16s(out, data, 3)


cdef int numeric_send(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil:
    """How many digits, weight, sign, scale, digits.

    NaN and infinities are read with the short header's masks, as the server does: an infinity is
    sent with a scale of 32.
    """
    cdef uint16_t header, weight, sign, dscale
    cdef size_t position
    if size < 2 or size % 2:
        return invalid(b"a numeric has a size that no numeric has")
    header = load_u16(data)
    if header & NUMERIC_SHORT:
        sign = NUMERIC_NEG if header & NUMERIC_SHORT_SIGN_MASK else 0
        if header & NUMERIC_SIGN_MASK == NUMERIC_SPECIAL:
            sign = header & NUMERIC_EXT_SIGN_MASK
        dscale = (header & NUMERIC_SHORT_DSCALE_MASK) >> NUMERIC_SHORT_DSCALE_SHIFT
        weight = header & NUMERIC_SHORT_WEIGHT_MASK
        if header & NUMERIC_SHORT_WEIGHT_SIGN_MASK:
            weight |= <uint16_t>~NUMERIC_SHORT_WEIGHT_MASK
        position = 2
    else:
        if size < 4:
            return invalid(b"a numeric ends inside its header")
        sign = header & NUMERIC_SIGN_MASK
        dscale = header & NUMERIC_DSCALE_MASK
        weight = load_u16(data + 2)
        position = 4
    put_int16(out, <uint16_t>((size - position) // 2))
    put_int16(out, weight)
    put_int16(out, sign)
    put_int16(out, dscale)
    return put_int16s(out, data + position, (size - position) // 2)


cdef int bit_send(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil:
    """bit, varbit: how many bits, then their bytes."""
    cdef int32_t count
    if size < 4:
        return invalid(b"a bit string ends inside its header")
    count = load_i32(data)
    if count < 0 or (<size_t>count + 7) // 8 > size - 4:
        return invalid(b"a bit string has fewer bits than it says")
    put_int32(out, count)
    return put_bytes(out, data + 4, (<size_t>count + 7) // 8)


cdef int put_address(const uint8_t* data, size_t size, ByteBuffer* out,
                     bint is_cidr) except -1 nogil:
    cdef uint8_t address_size = check_address(data, size) // 8
    put_bytes(out, data, 2)
    put_byte(out, is_cidr)
    put_byte(out, address_size)
    return put_bytes(out, data + 2, address_size)


cdef int inet_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_address(data, size, out, False)


cdef int cidr_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_address(data, size, out, True)


cdef int path_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef size_t count = count_points(data, size, PATH_HEADER)
    put_byte(out, load_i32(data + 4) != 0)
    put_int32(out, <uint32_t>count)
    return put_int64s(out, data + PATH_HEADER, 2 * count)


cdef int polygon_send(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil:
    cdef size_t count = count_points(data, size, POLYGON_HEADER)
    put_int32(out, <uint32_t>count)
    return put_int64s(out, data + POLYGON_HEADER, 2 * count)


cdef int snapshot_send(const TypeOutput* type, const uint8_t* data, size_t size,
                       ByteBuffer* out) except -1 nogil:
    """pg_snapshot, txid_snapshot: how many xids are in progress, xmin, xmax, those xids."""
    cdef uint32_t count
    if size < SNAPSHOT_HEADER:
        return invalid(b"a snapshot ends inside its header")
    count = load_u32(data)
    if count > (size - SNAPSHOT_HEADER) // 8:
        return invalid(b"a snapshot has fewer transactions than it says")
    put_int32(out, count)
    return put_int64s(out, data + 4, 2 + <size_t>count)
