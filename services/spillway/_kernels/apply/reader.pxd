# cython: language_level=3
"""Reads one message from front to back and never behind its end: what is missing reads as zero and
is remembered in ``is_cut``, so that a caller asks once, at the end.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr


cdef struct Reader:
    const uint8_t* data
    size_t size
    size_t at
    bint is_cut


cdef inline const uint8_t* read_bytes(Reader* reader, size_t size) noexcept nogil:
    """Return where the next *size* bytes begin; NULL when there are fewer."""
    cdef const uint8_t* data = reader.data + reader.at
    if size > reader.size - reader.at:
        reader.is_cut = True
        reader.at = reader.size
        return NULL
    reader.at += size
    return data


cdef inline uint8_t read_u8(Reader* reader) noexcept nogil:
    cdef const uint8_t* data = read_bytes(reader, 1)
    return 0 if data == NULL else data[0]


cdef inline uint16_t load_u16(const uint8_t* data) noexcept nogil:
    return <uint16_t>(data[0] << 8 | data[1])


cdef inline uint32_t load_u32(const uint8_t* data) noexcept nogil:
    return <uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | data[3]


cdef inline uint16_t read_u16(Reader* reader) noexcept nogil:
    cdef const uint8_t* data = read_bytes(reader, 2)
    return 0 if data == NULL else load_u16(data)


cdef inline uint32_t read_u32(Reader* reader) noexcept nogil:
    cdef const uint8_t* data = read_bytes(reader, 4)
    return 0 if data == NULL else load_u32(data)


cdef inline uint64_t read_u64(Reader* reader) noexcept nogil:
    cdef const uint8_t* data = read_bytes(reader, 8)
    return 0 if data == NULL else <uint64_t>load_u32(data) << 32 | load_u32(data + 4)


cdef inline int64_t read_i64(Reader* reader) noexcept nogil:
    return <int64_t>read_u64(reader)


cdef inline bytes read_name(Reader* reader):
    """Read up to a zero byte, which is passed over."""
    cdef const uint8_t* start = reader.data + reader.at
    cdef size_t left = reader.size - reader.at
    cdef const uint8_t* end = <const uint8_t*>memchr(start, 0, left) if left else NULL
    if end == NULL:
        reader.is_cut = True
        reader.at = reader.size
        return b""
    reader.at += <size_t>(end - start) + 1
    return start[: end - start]


cdef inline bint skip_tuple(Reader* reader, uint16_t columns) noexcept nogil:
    """Pass over a TupleData of *columns* columns; False when it is none."""
    cdef uint16_t _
    cdef uint8_t kind
    if read_u16(reader) != columns:
        return False
    for _ in range(columns):
        kind = read_u8(reader)
        if kind == c"t" or kind == c"b":
            read_bytes(reader, read_u32(reader))
        elif kind != c"n" and kind != c"u":
            return False
    return not reader.is_cut
