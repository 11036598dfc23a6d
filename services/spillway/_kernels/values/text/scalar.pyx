# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of bool, "char", name, the text family, bytea, bit strings, uuid, pg_lsn and tid.

Source: src/backend/utils/adt/{bool,char,name,varlena,varbit,uuid,pg_lsn,tid}.c, encode.c
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memchr

from spillway._kernels.values.datum cimport invalid, load_i32, load_u16, load_u32
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.values.text.number cimport put_uint
from spillway._kernels.values.type cimport TypeOutput
from spillway.pg.versions import Since

cdef int CHAR_IN_OCTAL = Since.CHAR_IN_OCTAL

cdef const char* HEX = b"0123456789abcdef"
cdef const char* UPPER_HEX = b"0123456789ABCDEF"

cdef enum:
    UUID_SIZE = 16


cdef int bool_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    return put_byte(out, c't' if data[0] else c'f')


cdef int put_octal(ByteBuffer* out, uint8_t value) except -1 nogil:
    put_byte(out, c'\\')
    put_byte(out, 48 + (value >> 6))
    put_byte(out, 48 + ((value >> 3) & 7))
    return put_byte(out, 48 + (value & 7))


cdef int char_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    """"char", one byte. From 15 on a byte that is no character by itself is shown in octal."""
    if data[0] >= 0x80 and type.settings.server_version_num >= CHAR_IN_OCTAL:
        return put_octal(out, data[0])
    if data[0]:
        put_byte(out, data[0])
    return 0


cdef int name_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef const uint8_t* end = <const uint8_t*>memchr(data, 0, size)
    return put_bytes(out, data, end - data if end != NULL else size)


cdef int text_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    """text, varchar, bpchar (stored padded), json (stored as it came in), pg_node_tree."""
    return put_bytes(out, data, size)


cdef int put_hex(ByteBuffer* out, const uint8_t* data, size_t size) except -1 nogil:
    cdef char* p
    cdef size_t i
    reserve(out, 2 * size)
    p = <char*>out.data + out.size
    for i in range(size):
        p[2 * i] = HEX[data[i] >> 4]
        p[2 * i + 1] = HEX[data[i] & 15]
    out.size += 2 * size
    return 0


cdef int bytea_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    cdef size_t i
    if not type.settings.bytea_escape:
        put_bytes(out, b"\\x", 2)
        return put_hex(out, data, size)
    for i in range(size):
        if data[i] == c'\\':
            put_bytes(out, b"\\\\", 2)
        elif data[i] < 0x20 or data[i] > 0x7E:
            put_octal(out, data[i])
        else:
            put_byte(out, data[i])
    return 0


cdef int bit_text(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil:
    """bit, varbit: the number of bits, then the bits, highest first."""
    cdef int32_t count
    cdef char* p
    cdef int32_t i
    if size < 4:
        return invalid(b"a bit string ends inside its header")
    count = load_i32(data)
    if count < 0 or (<size_t>count + 7) // 8 > size - 4:
        return invalid(b"a bit string has fewer bits than it says")
    reserve(out, count)
    p = <char*>out.data + out.size
    for i in range(count):
        p[i] = 48 + ((data[4 + (i >> 3)] >> (7 - (i & 7))) & 1)
    out.size += count
    return 0


cdef int uuid_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef char* p
    cdef int i
    reserve(out, 36)
    p = <char*>out.data + out.size
    for i in range(UUID_SIZE):
        if i == 4 or i == 6 or i == 8 or i == 10:
            p[0] = c'-'
            p += 1
        p[0] = HEX[data[i] >> 4]
        p[1] = HEX[data[i] & 15]
        p += 2
    out.size += 36
    return 0


cdef int put_hex_number(ByteBuffer* out, uint32_t value) except -1 nogil:
    cdef int shift = 28
    while shift and not value >> shift:
        shift -= 4
    while shift >= 0:
        put_byte(out, UPPER_HEX[(value >> shift) & 15])
        shift -= 4
    return 0


cdef int pg_lsn_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    put_hex_number(out, load_u32(data + 4))
    put_byte(out, c'/')
    return put_hex_number(out, load_u32(data))


cdef int tid_text(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil:
    """An ItemPointerData: the block number's upper half, its lower half, the offset."""
    put_byte(out, c'(')
    put_uint(out, <uint32_t>load_u16(data) << 16 | load_u16(data + 2))
    put_byte(out, c',')
    put_uint(out, load_u16(data + 4))
    return put_byte(out, c')')
