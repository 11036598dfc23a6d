# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of jsonb.

A container is a header (kind and count), an entry for each child (for an object: all keys, then all
values) and the children's bytes. An entry gives its child's length, or now and then where it ends;
so children are walked in order. Numbers and containers begin at the next multiple of 4, and their
length counts the padding before them. A bare scalar is an array of one, with a flag.

Source: JsonbToCString (src/backend/utils/adt/jsonb.c), fillJsonbValue (jsonb_util.c), escape_json
(json.c)
"""

from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.values.datum cimport align_up, invalid, load_u32
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes
from spillway._kernels.values.text.number cimport put_numeric
from spillway._kernels.values.type cimport TypeOutput

cdef enum:
    JB_CMASK = 0x0FFFFFFF
    JB_FSCALAR = 0x10000000
    JB_FOBJECT = 0x20000000
    JB_FARRAY = 0x40000000
    JENTRY_OFFLENMASK = 0x0FFFFFFF
    JENTRY_TYPEMASK = 0x70000000
    JENTRY_ISSTRING = 0x00000000
    JENTRY_ISNUMERIC = 0x10000000
    JENTRY_ISBOOL_FALSE = 0x20000000
    JENTRY_ISBOOL_TRUE = 0x30000000
    JENTRY_ISNULL = 0x40000000
    JENTRY_ISCONTAINER = 0x50000000
    # A server nests as deep as its 2 MB of stack allow, some 6,000 levels; so much of ours is 1 MB.
    DEPTH_MAX = 10000

cdef uint32_t JENTRY_HAS_OFF = 0x80000000
cdef const char* HEX = b"0123456789abcdef"


cdef int put_string(const uint8_t* text, size_t size, ByteBuffer* out) except -1 nogil:
    """Append a string with JSON's escapes; runs of characters without are copied at once."""
    cdef size_t start = 0
    cdef size_t i
    cdef uint8_t character, letter
    put_byte(out, c'"')
    for i in range(size):
        character = text[i]
        if character >= 0x20 and character != c'"' and character != c'\\':
            continue
        put_bytes(out, text + start, i - start)
        start = i + 1
        put_byte(out, c'\\')
        if character == c'\n':
            letter = c'n'
        elif character == c'\r':
            letter = c'r'
        elif character == c'\t':
            letter = c't'
        elif character == c'\b':
            letter = c'b'
        elif character == c'\f':
            letter = c'f'
        elif character < 0x20:
            put_bytes(out, b"u00", 3)
            put_byte(out, HEX[character >> 4])
            letter = HEX[character & 15]
        else:
            letter = character
        put_byte(out, letter)
    put_bytes(out, text + start, size - start)
    return put_byte(out, c'"')


cdef int put_child(
    uint32_t entry, const uint8_t* base, size_t start, size_t end, int depth, ByteBuffer* out
) except -1 nogil:
    """Append the child in base[start:end]."""
    cdef uint32_t kind = entry & JENTRY_TYPEMASK
    cdef size_t aligned
    if kind == JENTRY_ISSTRING:
        return put_string(base + start, end - start, out)
    if kind == JENTRY_ISNULL:
        return put_bytes(out, b"null", 4)
    if kind == JENTRY_ISBOOL_TRUE:
        return put_bytes(out, b"true", 4)
    if kind == JENTRY_ISBOOL_FALSE:
        return put_bytes(out, b"false", 5)
    aligned = align_up(start, 4)
    if aligned + 4 > end:
        return invalid(b"a jsonb value ends inside a child")
    if kind == JENTRY_ISCONTAINER:
        return put_container(base + aligned, end - aligned, depth + 1, out)
    if kind != JENTRY_ISNUMERIC:
        return invalid(b"a jsonb value has a child of a type that is not known")
    # A numeric with its varlena header of 4 bytes.
    if load_u32(base + aligned) & 3 or load_u32(base + aligned) >> 2 != end - aligned:
        return invalid(b"a number in a jsonb value contradicts its entry")
    return put_numeric(out, base + aligned + 4, end - aligned - 4)


cdef int put_container(const uint8_t* data, size_t size, int depth,
                       ByteBuffer* out) except -1 nogil:
    cdef uint32_t header, count, entries, i, entry, key_entry
    cdef size_t base_size
    cdef size_t key_start = 0
    cdef size_t key_end, start, end
    cdef const uint8_t* base
    if depth > DEPTH_MAX:
        return invalid(b"a jsonb value is nested deeper than a server can nest one")
    if size < 4:
        return invalid(b"a jsonb value ends inside a container's header")
    header = load_u32(data)
    count = header & JB_CMASK
    entries = count
    if header & JB_FOBJECT:
        entries = 2 * count
    elif not header & JB_FARRAY:
        return invalid(b"a jsonb container is neither array nor object")
    if entries > (size - 4) // 4:
        return invalid(b"a jsonb container has fewer entries than it says")
    base = data + 4 + 4 * <size_t>entries
    base_size = size - 4 - 4 * <size_t>entries
    end = 0
    if not header & JB_FOBJECT:
        if header & JB_FSCALAR and count != 1:
            return invalid(b"a jsonb scalar is not one value")
        if not header & JB_FSCALAR:
            put_byte(out, c'[')
        for i in range(count):
            if i:
                put_bytes(out, b", ", 2)
            entry = load_u32(data + 4 + 4 * <size_t>i)
            start = end
            end = next_end(entry, start, base_size)
            put_child(entry, base, start, end, depth, out)
        if not header & JB_FSCALAR:
            put_byte(out, c']')
        return 0
    # Values begin where keys end; both are walked side by side.
    for i in range(count):
        end = next_end(load_u32(data + 4 + 4 * <size_t>i), end, base_size)
    put_byte(out, c'{')
    for i in range(count):
        if i:
            put_bytes(out, b", ", 2)
        key_entry = load_u32(data + 4 + 4 * <size_t>i)
        key_end = next_end(key_entry, key_start, base_size)
        if key_entry & JENTRY_TYPEMASK != JENTRY_ISSTRING:
            return invalid(b"a jsonb object has a key that is no string")
        put_string(base + key_start, key_end - key_start, out)
        key_start = key_end
        put_bytes(out, b": ", 2)
        entry = load_u32(data + 4 + 4 * (<size_t>count + i))
        start = end
        end = next_end(entry, start, base_size)
        put_child(entry, base, start, end, depth, out)
    return put_byte(out, c'}')


cdef size_t next_end(uint32_t entry, size_t start, size_t size) except? 0 nogil:
    """Return where the child that begins at *start* ends."""
    cdef size_t end = entry & JENTRY_OFFLENMASK
    if not entry & JENTRY_HAS_OFF:
        end += start
    if end < start or end > size:
        invalid(b"a jsonb value ends inside a child")
    return end


cdef int jsonb_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    return put_container(data, size, 0, out)
