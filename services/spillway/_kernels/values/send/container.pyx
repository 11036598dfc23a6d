# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Send format of arrays, composite values, ranges and multiranges.

An inner value is its length, -1 for null, and its own type's send format; the length is patched in
afterwards.

Source: array_send (arrayfuncs.c), record_send (rowtypes.c), range_send (rangetypes.c),
multirange_send (multirangetypes.c)
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from spillway._kernels.values.container cimport (
    HEADER,
    RANGE_EMPTY,
    RANGE_LB_INF,
    RANGE_LB_NULL,
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
from spillway._kernels.values.datum cimport DATUM_NULL, Datum, Scratch, invalid, scratch_free
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte
from spillway._kernels.values.send.scalar cimport patch_int32, put_int32, put_int32s
from spillway._kernels.values.type cimport TypeOutput

cdef uint32_t NULL_LENGTH = 0xFFFFFFFF


cdef int put_value(const TypeOutput* type, const Datum* value, ByteBuffer* out) except -1 nogil:
    """Append a value that is not null, its length before it."""
    cdef size_t start = out.size
    put_int32(out, 0)
    type.write(type, value.data, value.size, out)
    if out.size - start - 4 > 0x7FFFFFFF:
        return invalid(b"a value in a container is longer than its send format can say")
    patch_int32(out, start, <uint32_t>(out.size - start - 4))
    return 0


cdef int write_array(
    const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out, Scratch* scratch
) except -1 nogil:
    cdef ArrayHeader header
    cdef Datum value
    cdef uint64_t item
    cdef int i
    open_array(data, size, &header)
    put_int32(out, header.ndim)
    put_int32(out, header.bits != NULL)
    put_int32(out, header.element_oid)
    for i in range(header.ndim):
        put_int32(out, header.dims[i])
        put_int32(out, header.lower_bounds[i])
    for item in range(header.count):
        if is_null_element(&header, item):
            put_int32(out, NULL_LENGTH)
        else:
            take_value(type.element, data - HEADER, size + HEADER, &header.offset, &value, scratch)
            put_value(type.element, &value, out)
    return 0


cdef int array_send(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    cdef Scratch scratch
    scratch.blocks = NULL
    try:
        return write_array(type, data, size, out, &scratch)
    finally:
        scratch_free(&scratch)


cdef int vector_send(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    """oidvector, int2vector: as arrays, but one of no elements has a dimension too."""
    cdef const TypeOutput* element = type.element
    cdef Datum value
    cdef int64_t i
    cdef int64_t count = open_vector(data, size, element.length)
    # dimensions, nulls, element type, length, lower bound
    put_int32s(out, data, VECTOR_HEADER // 4)
    value.size = element.length
    for i in range(count):
        value.data = data + VECTOR_HEADER + i * element.length
        put_value(element, &value, out)
    return 0


cdef int write_record(
    const TypeOutput* type, const uint8_t* data, size_t size, ByteBuffer* out, Datum* values,
    Scratch* scratch
) except -1 nogil:
    cdef size_t i
    cdef size_t start = out.size
    cdef uint32_t count = 0
    open_record(type, data, size, values, scratch)
    put_int32(out, 0)
    for i in range(type.count):
        if type.fields[i] == NULL:
            continue
        count += 1
        put_int32(out, type.field_oids[i])
        if values[i].state == DATUM_NULL:
            put_int32(out, NULL_LENGTH)
        else:
            put_value(type.fields[i], &values[i], out)
    patch_int32(out, start, count)
    return 0


cdef int record_send(const TypeOutput* type, const uint8_t* data, size_t size,
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


cdef int put_range(
    const TypeOutput* subtype, uint8_t flags, const uint8_t* base, size_t size, size_t offset,
    ByteBuffer* out
) except -1 nogil:
    """Append the range whose bounds begin at *offset* of base[0:size], *base* being its container's
    header.
    """
    cdef Scratch scratch
    cdef Datum value
    put_byte(out, flags)
    if flags & RANGE_EMPTY:
        return 0
    scratch.blocks = NULL
    try:
        if not flags & (RANGE_LB_INF | RANGE_LB_NULL):
            take_value(subtype, base, size, &offset, &value, &scratch)
            put_value(subtype, &value, out)
        if not flags & (RANGE_UB_INF | RANGE_UB_NULL):
            take_value(subtype, base, size, &offset, &value, &scratch)
            put_value(subtype, &value, out)
        return 0
    finally:
        scratch_free(&scratch)


cdef int range_send(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    if size < 5:
        return invalid(b"a range ends inside its header")
    return put_range(type.element, data[size - 1], data - HEADER, size - 1 + HEADER, 8, out)


cdef int multirange_send(const TypeOutput* type, const uint8_t* data, size_t size,
                         ByteBuffer* out) except -1 nogil:
    cdef MultirangeWalk walk
    cdef uint8_t flags
    cdef size_t offset, start
    open_multirange(type, data, size, &walk)
    put_int32(out, walk.count)
    while walk.item < walk.count:
        next_range(&walk, &flags, &offset)
        start = out.size
        put_int32(out, 0)
        put_range(type.element.element, flags, data - HEADER, size + HEADER, offset, out)
        patch_int32(out, start, <uint32_t>(out.size - start - 4))
    return 0
