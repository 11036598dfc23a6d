# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of arrays, composite values, enums, ranges and multiranges.

An element is written straight into the output first, by its own type's writer, and quoted in place
afterwards if its text asks for it: most don't, and none is copied through a buffer of its own.

Source: array_out (arrayfuncs.c), record_out (rowtypes.c), range_out (rangetypes.c), multirange_out
(multirangetypes.c), enum_out (enum.c), oidvectorout (oid.c), aclitemout (acl.c)
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

from spillway._kernels.values.container cimport (
    HEADER,
    MAXDIM,
    RANGE_EMPTY,
    RANGE_LB_INC,
    RANGE_LB_INF,
    RANGE_LB_NULL,
    RANGE_UB_INC,
    RANGE_UB_INF,
    RANGE_UB_NULL,
    VECTOR_HEADER,
    ArrayHeader,
    MultirangeWalk,
    is_null_element,
    next_range,
    open_array,
    open_multirange,
    open_record,
    open_vector,
    take_value,
)
from spillway._kernels.values.datum cimport (DATUM_NULL, Datum, Scratch, invalid, load_u32,
                                             scratch_free)
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.values.text.number cimport put_int, put_uint
from spillway._kernels.values.type cimport EnumLabel, TypeOutput
from spillway.pg.versions import Since

cdef enum:
    # What a character means to a container's syntax.
    QUOTE = 1
    ESCAPE = 2

# Characters that make an element need quotes, and those that are escaped within them.
cdef uint8_t array_syntax[256]
cdef uint8_t record_syntax[256]
cdef uint8_t range_syntax[256]


cdef void set_syntax(uint8_t* syntax, bytes quoted):
    cdef uint8_t character
    for character in bytearray(b" \t\n\r\v\f" + quoted):
        syntax[character] = QUOTE
    syntax[c'"'] = syntax[c'\\'] = QUOTE | ESCAPE


set_syntax(array_syntax, b"{}")
set_syntax(record_syntax, b"(),")
set_syntax(range_syntax, b"()[],")


cdef bint is_null_word(const uint8_t* text, size_t size) noexcept nogil:
    return (
        size == 4
        and text[0] | 0x20 == c'n' and text[1] | 0x20 == c'u' and text[2] | 0x20 == c'l'
        and text[3] | 0x20 == c'l'
    )


cdef int quote_element(
    ByteBuffer* out, size_t start, const uint8_t* syntax, int delimiter, bint doubled
) except -1 nogil:
    """Quote what was written from *start* on if its syntax asks for it.

    *delimiter*: one more character that does, -1 for none. *doubled*: escape a character by itself
    instead of by a backslash.
    """
    cdef size_t size = out.size - start
    cdef uint8_t* text = out.data + start
    cdef size_t i
    cdef size_t escapes = 0
    cdef bint quote = size == 0
    cdef uint8_t* target
    for i in range(size):
        if syntax[text[i]] or text[i] == delimiter:
            quote = True
            if syntax[text[i]] & ESCAPE:
                escapes += 1
    if not quote:
        return 0
    reserve(out, escapes + 2)
    text = out.data + start
    # From the end, so that nothing is overwritten before it was moved.
    target = text + size + escapes + 1
    target[0] = c'"'
    for i in range(size, 0, -1):
        target -= 1
        target[0] = text[i - 1]
        if syntax[text[i - 1]] & ESCAPE:
            target -= 1
            target[0] = text[i - 1] if doubled else c'\\'
    text[0] = c'"'
    out.size += escapes + 2
    return 0


# Arrays.

cdef int write_array(
    const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out, Scratch* scratch
) except -1 nogil:
    cdef const TypeOutput* element = type.element
    cdef ArrayHeader header
    cdef int32_t indexes[MAXDIM]
    cdef uint64_t item
    cdef size_t start
    cdef bint custom_bounds = False
    cdef int i, _i, depth
    cdef Datum value
    open_array(data, size, &header)
    if header.ndim == 0:
        return put_bytes(out, b"{}", 2)
    for i in range(header.ndim):
        indexes[i] = 0
        if header.lower_bounds[i] != 1:
            custom_bounds = True
    if custom_bounds:
        for i in range(header.ndim):
            put_byte(out, c'[')
            put_int(out, header.lower_bounds[i])
            put_byte(out, c':')
            put_int(out, <long long>header.lower_bounds[i] + header.dims[i] - 1)
            put_byte(out, c']')
        put_byte(out, c'=')
    for _i in range(header.ndim):
        put_byte(out, c'{')
    item = 0
    while True:
        if is_null_element(&header, item):
            put_bytes(out, b"NULL", 4)
        else:
            take_value(element, data - HEADER, size + HEADER, &header.offset, &value, scratch)
            start = out.size
            element.write(element, value.data, value.size, out)
            if is_null_word(out.data + start, out.size - start):
                put_byte(out, c'"')
                put_byte(out, c'"')
                memmove(out.data + start + 1, out.data + start, 4)
                out.data[start] = c'"'
                out.data[start + 5] = c'"'
            else:
                quote_element(out, start, array_syntax, type.delimiter, False)
        item += 1
        # Step to the next element: close the dimensions that end here and open them again.
        depth = header.ndim - 1
        while depth >= 0:
            indexes[depth] += 1
            if indexes[depth] < header.dims[depth]:
                break
            indexes[depth] = 0
            put_byte(out, c'}')
            depth -= 1
        if depth < 0:
            return 0
        put_byte(out, type.delimiter)
        for _i in range(header.ndim - 1 - depth):
            put_byte(out, c'{')


cdef int array_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    cdef Scratch scratch
    scratch.blocks = NULL
    try:
        return write_array(type, data, size, out, &scratch)
    finally:
        scratch_free(&scratch)


cdef int vector_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    """oidvector, int2vector: arrays of one dimension, printed with spaces."""
    cdef const TypeOutput* element = type.element
    cdef int64_t i
    for i in range(open_vector(data, size, element.length)):
        if i:
            put_byte(out, c' ')
        element.write(element, data + VECTOR_HEADER + i * element.length, element.length, out)
    return 0


# Composite values.

cdef int write_record(
    const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out, Datum* values,
    Scratch* scratch
) except -1 nogil:
    cdef size_t start, i
    cdef const TypeOutput* field
    cdef bint first = True
    open_record(type, data, size, values, scratch)
    put_byte(out, c'(')
    for i in range(type.count):
        field = type.fields[i]
        if field == NULL:
            continue
        if not first:
            put_byte(out, c',')
        first = False
        if values[i].state == DATUM_NULL:
            continue
        start = out.size
        field.write(field, values[i].data, values[i].size, out)
        quote_element(out, start, record_syntax, -1, True)
    return put_byte(out, c')')


cdef int record_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    cdef Scratch scratch
    cdef Datum* values = <Datum*>malloc((type.count + 1) * sizeof(Datum))
    if values == NULL:
        with gil:
            raise MemoryError
    scratch.blocks = NULL
    try:
        return write_record(type, data, size, out, values, &scratch)
    finally:
        free(values)
        scratch_free(&scratch)


# Enums, and types whose values stand for objects of the catalog.

cdef const EnumLabel* find_label(const TypeOutput* type, uint32_t oid) noexcept nogil:
    """Look the label of *oid* up; NULL if there is none."""
    cdef size_t low = 0
    cdef size_t high = type.count
    cdef size_t middle
    cdef const EnumLabel* label
    while low < high:
        middle = (low + high) // 2
        label = &type.labels[middle]
        if label.oid == oid:
            return label
        if label.oid < oid:
            low = middle + 1
        else:
            high = middle
    return NULL


cdef int enum_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef const EnumLabel* label = find_label(type, load_u32(data))
    if label == NULL:
        return invalid(b"an enum value has no label in its type")
    return put_bytes(out, label.text, label.size)


cdef int put_object(const TypeOutput* type, uint32_t oid, ByteBuffer* out) except -1 nogil:
    cdef const EnumLabel* label = find_label(type, oid)
    if label == NULL:
        return put_uint(out, oid)
    return put_bytes(out, label.text, label.size)


cdef int object_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    """regclass and its kin: the name, or the number of an object that has none."""
    return put_object(type, load_u32(data), out)


# The letters of ACL_ALL_RIGHTS_STR, the lowest bit's first.
cdef const char* ACL_LETTERS = b"arwdDxtXUCTcsAm"
cdef int PARAMETER_PRIVILEGES = Since.PARAMETER_PRIVILEGES
cdef int MAINTAIN_PRIVILEGE = Since.MAINTAIN_PRIVILEGE


cdef int acl_text(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil:
    """aclitem: who may do what, and who said so; 16 bytes since PostgreSQL 16, 12 before."""
    cdef uint32_t grantee, rights, options
    cdef int version = type.settings.server_version_num
    cdef int count = (15 if version >= MAINTAIN_PRIVILEGE else 14
                      if version >= PARAMETER_PRIVILEGES else 12)
    cdef int i
    if size == 16:
        rights = load_u32(data + 8)
        options = load_u32(data + 12)
    elif size == 12:
        rights = load_u32(data + 8) & 0xFFFF
        options = load_u32(data + 8) >> 16
    else:
        return invalid(b"an aclitem is of another size")
    grantee = load_u32(data)
    # PUBLIC has no name.
    if grantee != 0:
        put_object(type, grantee, out)
    put_byte(out, c'=')
    for i in range(count):
        if rights >> i & 1:
            put_byte(out, ACL_LETTERS[i])
        if options >> i & 1:
            put_byte(out, c'*')
    put_byte(out, c'/')
    return put_object(type, load_u32(data + 4), out)


# Ranges.

cdef int put_bound(
    const TypeOutput* subtype, const uint8_t* base, size_t size, size_t* offset, ByteBuffer* out,
    Scratch* scratch
) except -1 nogil:
    cdef Datum value
    cdef size_t start
    take_value(subtype, base, size, offset, &value, scratch)
    start = out.size
    subtype.write(subtype, value.data, value.size, out)
    return quote_element(out, start, range_syntax, -1, True)


cdef int put_range(
    const TypeOutput* subtype, uint8_t flags, const uint8_t* base, size_t size, size_t offset,
    ByteBuffer* out
) except -1 nogil:
    """Append the range whose bounds begin at *offset* of base[0:size], *base* being its container's
    header.
    """
    cdef Scratch scratch
    if flags & RANGE_EMPTY:
        return put_bytes(out, b"empty", 5)
    scratch.blocks = NULL
    try:
        put_byte(out, c'[' if flags & RANGE_LB_INC else c'(')
        if not flags & (RANGE_LB_INF | RANGE_LB_NULL):
            put_bound(subtype, base, size, &offset, out, &scratch)
        put_byte(out, c',')
        if not flags & (RANGE_UB_INF | RANGE_UB_NULL):
            put_bound(subtype, base, size, &offset, out, &scratch)
        return put_byte(out, c']' if flags & RANGE_UB_INC else c')')
    finally:
        scratch_free(&scratch)


cdef int range_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    """The range type's oid, the bounds that there are, and a byte of flags at the end."""
    if size < 5:
        return invalid(b"a range ends inside its header")
    return put_range(type.element, data[size - 1], data - HEADER, size - 1 + HEADER, 8, out)


cdef int multirange_text(const TypeOutput* type, const uint8_t* data, size_t size,
                         ByteBuffer* out) except -1 nogil:
    cdef MultirangeWalk walk
    cdef uint8_t flags
    cdef size_t offset
    open_multirange(type, data, size, &walk)
    put_byte(out, c'{')
    while walk.item < walk.count:
        if walk.item:
            put_byte(out, c',')
        next_range(&walk, &flags, &offset)
        put_range(type.element.element, flags, data - HEADER, size + HEADER, offset, out)
    return put_byte(out, c'}')
