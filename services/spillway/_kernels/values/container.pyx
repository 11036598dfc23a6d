# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reading arrays, composite values, ranges and multiranges; see ``container.pxd``.

Source: array_out, ARR_… (arrayfuncs.c, utils/array.h), record_out (rowtypes.c), range_deserialize
(rangetypes.c), multirange_get_range (multirangetypes.c)
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from spillway._kernels.values.datum cimport (
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
    varlena_size,
)
from spillway._kernels.values.type cimport TypeOutput

cdef enum:
    HEAP_HASNULL = 0x0001
    HEAP_NATTS_MASK = 0x07FF
    HEAP_HEADER_SIZE = 23
    MULTIRANGE_ITEM_OFF_BIT = 0x80000000
    MULTIRANGE_ITEM_OFFLEN_MASK = 0x7FFFFFFF


cdef int take_value(
    const TypeOutput* type, const uint8_t* data, size_t size, size_t* offset, Datum* value,
    Scratch* scratch
) except -1 nogil:
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


cdef int open_array(const uint8_t* data, size_t size, ArrayHeader* header) except -1 nogil:
    cdef int i
    cdef size_t after_header
    if size < 12:
        return invalid(b"an array ends inside its header")
    header.ndim = load_i32(data)
    header.element_oid = load_u32(data + 8)
    header.bits = NULL
    header.offset = load_u32(data + 4)
    header.count = 0
    if header.ndim == 0:
        return 0
    if header.ndim < 0 or header.ndim > MAXDIM or size < <size_t>(12 + 8 * header.ndim):
        return invalid(b"an array has more dimensions than its header holds")
    header.count = 1
    for i in range(header.ndim):
        header.dims[i] = load_i32(data + 12 + 4 * i)
        header.lower_bounds[i] = load_i32(data + 12 + 4 * (header.ndim + i))
        if header.dims[i] <= 0:
            return invalid(b"an array has a dimension of no elements")
        header.count *= header.dims[i]
        # With one bit an element at least, unless all are there.
        if header.count > <uint64_t>8 * size:
            return invalid(b"an array has more elements than its bytes can hold")
    after_header = 16 + 8 * header.ndim
    if header.offset:
        header.bits = data + after_header - HEADER
        if header.offset < after_header + (header.count + 7) // 8 or header.offset > size + HEADER:
            return invalid(b"an array's null bitmap does not fit before its elements")
    else:
        header.offset = align_up(after_header, 8)
    return 0


cdef int64_t open_vector(const uint8_t* data, size_t size, size_t element_size) except -1 nogil:
    cdef int count
    if size < VECTOR_HEADER or load_i32(data) != 1 or load_i32(data + 4) != 0:
        return invalid(b"a vector is not an array of one dimension without nulls")
    count = load_i32(data + 12)
    if count < 0 or <size_t>count > (size - VECTOR_HEADER) // element_size:
        return invalid(b"a vector has fewer elements than it says")
    return count


cdef int open_record(
    const TypeOutput* type, const uint8_t* data, size_t size, Datum* values, Scratch* scratch
) except -1 nogil:
    # A HeapTupleHeader without its length word: typmod, type oid, ctid, infomask2, infomask, hoff,
    # null bitmap.
    cdef int natts
    cdef size_t hoff, i
    cdef const uint8_t* bits = NULL
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
        type.layout, <int>type.count, bits, natts, data + hoff - HEADER, size + HEADER - hoff,
        values)
    for i in range(type.count):
        if (type.fields[i] != NULL and type.fields[i].length == -1
                and values[i].state == DATUM_VALUE):
            open_varlena(&values[i], NULL, scratch)
            if values[i].state != DATUM_VALUE:
                return invalid(b"a composite value holds a TOAST pointer")
    return 0


cdef int open_multirange(
    const TypeOutput* type, const uint8_t* data, size_t size, MultirangeWalk* walk
) except -1 nogil:
    """The type's oid, a count, where each range but the first begins, flags of each, then all
    bounds.

    Where a range begins is an offset now and then, and else a length, to be added to those before.
    """
    if size < 8:
        return invalid(b"a multirange ends inside its header")
    walk.data = data
    walk.size = size
    walk.count = load_u32(data + 4)
    walk.item = 0
    walk.offset = 0
    walk.begin = 0
    if walk.count:
        if <uint64_t>walk.count * 5 - 4 > size - 8:
            return invalid(b"a multirange has fewer ranges than it says")
        walk.begin = align_up(HEADER + 8 + 5 * <size_t>walk.count - 4, type.element.element.align)
    return 0


cdef int next_range(MultirangeWalk* walk, uint8_t* flags, size_t* offset) except -1 nogil:
    cdef uint32_t entry
    if walk.item:
        entry = load_u32(walk.data + 8 + 4 * <size_t>(walk.item - 1))
        if entry & MULTIRANGE_ITEM_OFF_BIT:
            walk.offset = entry & MULTIRANGE_ITEM_OFFLEN_MASK
        else:
            walk.offset += entry
    if walk.begin + walk.offset > walk.size + HEADER:
        return invalid(b"a multirange's bounds lie beyond its end")
    flags[0] = walk.data[8 + 4 * <size_t>(walk.count - 1) + walk.item]
    offset[0] = walk.begin + walk.offset
    walk.item += 1
    return 0
