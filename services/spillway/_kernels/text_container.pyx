# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of arrays, composite values, enums, ranges and multiranges.

An element is written straight into the output first, by its own type's writer, and quoted in place
afterwards if its text asks for it: most don't, and none is copied through a buffer of its own.

Inside a container, alignment counts from the container's 4-byte header, which was cut off (see Datum):
offsets here are relative to ``data - 4``.

Source: array_out (arrayfuncs.c), record_out (rowtypes.c), range_out, range_deserialize (rangetypes.c),
multirange_out, multirange_get_range (multirangetypes.c), enum_out (enum.c), oidvectorout (oid.c)
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

from spillway._kernels.datum cimport (
    DATUM_NULL,
    DATUM_VALUE,
    Datum,
    Scratch,
    align_up,
    invalid,
    load_i32,
    load_u16,
    load_u32,
    locate_attributes,
    open_varlena,
    scratch_free,
    varlena_size,
)
from spillway._kernels.message_buffer cimport ByteBuffer, put_byte, put_bytes, reserve
from spillway._kernels.text_number cimport put_int
from spillway._kernels.text_type cimport EnumLabel, TypeOutput

cdef enum:
    MAXDIM = 6
    HEADER = 4
    HEAP_HASNULL = 0x0001
    HEAP_NATTS_MASK = 0x07FF
    HEAP_HEADER_SIZE = 23
    RANGE_EMPTY = 0x01
    RANGE_LB_INC = 0x02
    RANGE_UB_INC = 0x04
    RANGE_LB_INF = 0x08
    RANGE_UB_INF = 0x10
    RANGE_LB_NULL = 0x20
    RANGE_UB_NULL = 0x40
    MULTIRANGE_ITEM_OFF_BIT = 0x80000000
    MULTIRANGE_ITEM_OFFLEN_MASK = 0x7FFFFFFF
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
        and text[0] | 0x20 == c'n' and text[1] | 0x20 == c'u' and text[2] | 0x20 == c'l' and text[3] | 0x20 == c'l'
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


cdef int take_value(
    const TypeOutput* type, const uint8_t* data, size_t size, size_t* offset, Datum* value, Scratch* scratch
) except -1 nogil:
    """Read the value at *offset* of the container data[0:size] and move *offset* behind it."""
    cdef size_t position = offset[0]
    value.state = DATUM_VALUE
    if type.length > 0:
        position = align_up(position, type.align)
        if position > size or size - position < <size_t>type.length:
            return invalid(b"a container ends inside a value")
        value.data = data + position
        value.size = type.length
        offset[0] = position + type.length
        return 0
    if position < size and data[position] == 0 or type.length != -1:
        position = align_up(position, type.align)
    if position >= size:
        return invalid(b"a container ends before a value")
    value.data = data + position
    if type.length == -1:
        value.size = varlena_size(data + position, size - position)
        offset[0] = position + value.size
        open_varlena(value, NULL, scratch)
        if value.state != DATUM_VALUE:
            return invalid(b"a container holds a TOAST pointer")
        return 0
    value.size = 0
    while position + value.size < size and value.data[value.size]:
        value.size += 1
    if position + value.size == size:
        return invalid(b"a container ends inside a cstring")
    offset[0] = position + value.size + 1
    return 0


# Arrays.

cdef int write_array(
    const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out, Scratch* scratch
) except -1 nogil:
    cdef const TypeOutput* element = type.element
    cdef int ndim
    cdef int32_t dims[MAXDIM]
    cdef int32_t indexes[MAXDIM]
    cdef int32_t lower_bound
    cdef uint64_t count = 1
    cdef uint64_t item
    cdef size_t offset, start
    cdef const uint8_t* bits = NULL
    cdef bint custom_bounds = False
    cdef int i, _i, depth
    cdef Datum value
    if size < 12:
        return invalid(b"an array ends inside its header")
    ndim = load_i32(data)
    if ndim == 0:
        return put_bytes(out, b"{}", 2)
    if ndim < 0 or ndim > MAXDIM or size < <size_t>(12 + 8 * ndim):
        return invalid(b"an array has more dimensions than its header holds")
    for i in range(ndim):
        dims[i] = load_i32(data + 12 + 4 * i)
        indexes[i] = 0
        if dims[i] <= 0:
            return invalid(b"an array has a dimension of no elements")
        count *= dims[i]
        # With one bit an element at least, unless all are there.
        if count > <uint64_t>8 * size:
            return invalid(b"an array has more elements than its bytes can hold")
        if load_i32(data + 12 + 4 * (ndim + i)) != 1:
            custom_bounds = True
    offset = load_u32(data + 4)
    if offset:
        bits = data + 12 + 8 * ndim
        if offset < 16 + 8 * ndim + (count + 7) // 8 or offset > size + HEADER:
            return invalid(b"an array's null bitmap does not fit before its elements")
    else:
        offset = align_up(16 + 8 * ndim, 8)
    if custom_bounds:
        for i in range(ndim):
            lower_bound = load_i32(data + 12 + 4 * (ndim + i))
            put_byte(out, c'[')
            put_int(out, lower_bound)
            put_byte(out, c':')
            put_int(out, <long long>lower_bound + dims[i] - 1)
            put_byte(out, c']')
        put_byte(out, c'=')
    for _i in range(ndim):
        put_byte(out, c'{')
    item = 0
    while True:
        if bits != NULL and not bits[item >> 3] & (1 << (item & 7)):
            put_bytes(out, b"NULL", 4)
        else:
            take_value(element, data - HEADER, size + HEADER, &offset, &value, scratch)
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
        depth = ndim - 1
        while depth >= 0:
            indexes[depth] += 1
            if indexes[depth] < dims[depth]:
                break
            indexes[depth] = 0
            put_byte(out, c'}')
            depth -= 1
        if depth < 0:
            return 0
        put_byte(out, type.delimiter)
        for _i in range(ndim - 1 - depth):
            put_byte(out, c'{')


cdef int array_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    cdef Scratch scratch
    scratch.blocks = NULL
    try:
        return write_array(type, data, size, out, &scratch)
    finally:
        scratch_free(&scratch)


cdef int vector_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    """oidvector, int2vector: arrays of one dimension, printed with spaces."""
    cdef const TypeOutput* element = type.element
    cdef int32_t count, i
    if size < 20 or load_i32(data) != 1 or load_i32(data + 4) != 0:
        return invalid(b"a vector is not an array of one dimension without nulls")
    count = load_i32(data + 12)
    if count < 0 or <size_t>count > (size - 20) // element.length:
        return invalid(b"a vector has fewer elements than it says")
    for i in range(count):
        if i:
            put_byte(out, c' ')
        element.write(element, data + 20 + i * element.length, element.length, out)
    return 0


# Composite values.

cdef int write_record(
    const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out, Datum* values, Scratch* scratch
) except -1 nogil:
    # A HeapTupleHeader without its length word: typmod, type oid, ctid, infomask2, infomask, hoff, null bitmap.
    cdef int natts
    cdef size_t hoff, start, i
    cdef const uint8_t* bits = NULL
    cdef const TypeOutput* field
    cdef bint first = True
    if size < HEAP_HEADER_SIZE - HEADER:
        return invalid(b"a composite value ends inside its header")
    natts = load_u16(data + 14) & HEAP_NATTS_MASK
    hoff = data[18]
    if hoff < HEAP_HEADER_SIZE or hoff - HEADER > size:
        return invalid(b"a composite value ends inside its header")
    if load_u16(data + 16) & HEAP_HASNULL:
        bits = data + HEAP_HEADER_SIZE - HEADER
        if <size_t>((natts + 7) // 8) > hoff - HEAP_HEADER_SIZE:
            return invalid(b"a composite value's null bitmap is longer than its header")
    locate_attributes(
        type.layout, <int>type.count, bits, natts, data + hoff - HEADER, size + HEADER - hoff, values)
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
        if field.length == -1:
            open_varlena(&values[i], NULL, scratch)
            if values[i].state != DATUM_VALUE:
                return invalid(b"a composite value holds a TOAST pointer")
        start = out.size
        field.write(field, values[i].data, values[i].size, out)
        quote_element(out, start, record_syntax, -1, True)
    return put_byte(out, c')')


cdef int record_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
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


# Enums.

cdef int enum_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    cdef uint32_t oid = load_u32(data)
    cdef size_t low = 0
    cdef size_t high = type.count
    cdef size_t middle
    cdef const EnumLabel* label
    while low < high:
        middle = (low + high) // 2
        label = &type.labels[middle]
        if label.oid == oid:
            return put_bytes(out, label.text, label.size)
        if label.oid < oid:
            low = middle + 1
        else:
            high = middle
    return invalid(b"an enum value has no label in its type")


# Ranges.

cdef int put_bound(
    const TypeOutput* subtype, const uint8_t* base, size_t size, size_t* offset, ByteBuffer* out, Scratch* scratch
) except -1 nogil:
    cdef Datum value
    cdef size_t start
    take_value(subtype, base, size, offset, &value, scratch)
    start = out.size
    subtype.write(subtype, value.data, value.size, out)
    return quote_element(out, start, range_syntax, -1, True)


cdef int put_range(
    const TypeOutput* subtype, uint8_t flags, const uint8_t* base, size_t size, size_t offset, ByteBuffer* out
) except -1 nogil:
    """Append the range whose bounds begin at *offset* of base[0:size], *base* being its container's header."""
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


cdef int range_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    """The range type's oid, the bounds that there are, and a byte of flags at the end."""
    if size < 5:
        return invalid(b"a range ends inside its header")
    return put_range(type.element, data[size - 1], data - HEADER, size - 1 + HEADER, 8, out)


cdef int multirange_text(const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out) except -1 nogil:
    """The type's oid, a count, where each range but the first begins, flags of each, then all bounds.

    Where a range begins is an offset now and then, and else a length, to be added to those before.
    """
    cdef const TypeOutput* subtype
    cdef uint32_t count, i, item
    cdef uint64_t begin
    cdef uint64_t offset = 0
    cdef const uint8_t* flags
    if size < 8:
        return invalid(b"a multirange ends inside its header")
    count = load_u32(data + 4)
    put_byte(out, c'{')
    if count:
        subtype = type.element.element
        if <uint64_t>count * 5 - 4 > size - 8:
            return invalid(b"a multirange has fewer ranges than it says")
        flags = data + 8 + 4 * <size_t>(count - 1)
        begin = align_up(HEADER + 8 + 5 * <size_t>count - 4, subtype.align)
        for i in range(count):
            if i:
                put_byte(out, c',')
                item = load_u32(data + 8 + 4 * <size_t>(i - 1))
                if item & MULTIRANGE_ITEM_OFF_BIT:
                    offset = item & MULTIRANGE_ITEM_OFFLEN_MASK
                else:
                    offset += item
            if begin + offset > size + HEADER:
                return invalid(b"a multirange's bounds lie beyond its end")
            put_range(subtype, flags[i], data - HEADER, size + HEADER, begin + offset, out)
    return put_byte(out, c'}')
