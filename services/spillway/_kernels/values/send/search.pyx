# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Send format of tsvector, tsquery and hstore: many short strings.

How they are stored is told in ``pg/text_search.py`` and ``pg/contrib_types.py``.

Source: tsvectorsend (tsvector.c), tsquerysend (tsquery.c), hstore_send (contrib/hstore/hstore_io.c)
"""

from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.values.datum cimport align_up, invalid, load_u16, load_u32
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes
from spillway._kernels.values.send.scalar cimport put_int16, put_int16s, put_int32
from spillway._kernels.values.send.text cimport put_part
from spillway._kernels.values.type cimport TypeOutput

cdef enum:
    QI_VAL = 1
    QI_OPR = 2
    OP_PHRASE = 4
    ITEM_SIZE = 12
    HS_COUNT_MASK = 0x0FFFFFFF
    HENTRY_ISNULL = 0x40000000
    HENTRY_POSMASK = 0x3FFFFFFF

cdef uint32_t HS_FLAG_NEWVERSION = 0x80000000


cdef int tsvector_send(const TypeOutput* type, const uint8_t* data, size_t size,
                       ByteBuffer* out) except -1 nogil:
    """A count; of each lexeme its text and a zero byte, how many positions, and those."""
    cdef uint32_t count, i, entry, positions
    cdef size_t length, position, strings_size
    cdef const uint8_t* strings
    if size < 4:
        return invalid(b"a tsvector ends inside its header")
    count = load_u32(data)
    if count > (size - 4) // 4:
        return invalid(b"a tsvector has fewer lexemes than it says")
    strings = data + 4 + 4 * <size_t>count
    strings_size = size - 4 - 4 * <size_t>count
    put_int32(out, count)
    for i in range(count):
        entry = load_u32(data + 4 + 4 * <size_t>i)
        length = (entry >> 1) & 0x7FF
        position = entry >> 12
        if position + length > strings_size:
            return invalid(b"a lexeme lies beyond its tsvector's end")
        put_part(type, strings + position, length, out)
        put_byte(out, 0)
        if not entry & 1:
            put_int16(out, 0)
            continue
        position = align_up(position + length, 2)
        if position + 2 > strings_size:
            return invalid(b"a lexeme's positions lie beyond its tsvector's end")
        positions = load_u16(strings + position)
        if 2 * positions > strings_size - position - 2:
            return invalid(b"a lexeme's positions lie beyond its tsvector's end")
        put_int16s(out, strings + position, 1 + positions)
    return 0


cdef int tsquery_send(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil:
    """A count, and the items in the order that they are stored in."""
    cdef uint32_t count, i, place
    cdef size_t length, position, strings_size
    cdef const uint8_t* strings
    cdef const uint8_t* item
    if size < 4:
        return invalid(b"a tsquery ends inside its header")
    count = load_u32(data)
    if count > (size - 4) // ITEM_SIZE:
        return invalid(b"a tsquery has fewer items than it says")
    strings = data + 4 + ITEM_SIZE * <size_t>count
    strings_size = size - 4 - ITEM_SIZE * <size_t>count
    put_int32(out, count)
    for i in range(count):
        item = data + 4 + ITEM_SIZE * <size_t>i
        if item[0] == QI_VAL:
            # type, weight, prefix
            put_bytes(out, item, 3)
            place = load_u32(item + 8)
            length = place & 0xFFF
            position = place >> 12
            if position + length > strings_size:
                return invalid(b"an operand lies beyond its tsquery's end")
            put_part(type, strings + position, length, out)
            put_byte(out, 0)
        elif item[0] == QI_OPR:
            # type, operator
            put_bytes(out, item, 2)
            if item[1] == OP_PHRASE:
                put_int16(out, load_u16(item + 2))
        else:
            return invalid(b"a tsquery has an item that is neither operand nor operator")
    return 0


cdef int hstore_send(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    """A count; of each pair the key's length and text, and the value's, or -1.

    Lengths are those in the database's encoding, as the server has it.
    """
    cdef uint32_t header, count, i, entry
    cdef size_t start, end, strings_size
    cdef const uint8_t* strings
    if size == 0:
        return put_int32(out, 0)
    if size < 4:
        return invalid(b"an hstore ends inside its header")
    header = load_u32(data)
    if not header & HS_FLAG_NEWVERSION:
        return invalid(b"an hstore has the format before PostgreSQL 9.0")
    count = header & HS_COUNT_MASK
    if count > (size - 4) // 8:
        return invalid(b"an hstore has fewer pairs than it says")
    strings = data + 4 + 8 * <size_t>count
    strings_size = size - 4 - 8 * <size_t>count
    put_int32(out, count)
    end = 0
    for i in range(2 * count):
        entry = load_u32(data + 4 + 4 * <size_t>i)
        start = end
        end = entry & HENTRY_POSMASK
        if end < start or end > strings_size:
            return invalid(b"an hstore's strings lie beyond its end")
        if i & 1 and entry & HENTRY_ISNULL:
            put_int32(out, 0xFFFFFFFF)
            continue
        put_int32(out, <uint32_t>(end - start))
        put_part(type, strings + start, end - start, out)
    return 0
