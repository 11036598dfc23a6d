# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of point, lseg, box, path, polygon, line and circle: float8s in brackets.

Source: src/backend/utils/adt/geo_ops.c
"""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy

from spillway._kernels.values.datum cimport invalid, load_i32
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte
from spillway._kernels.values.text.number cimport put_float8
from spillway._kernels.values.type cimport TypeOutput

cdef int put_coordinate(const TypeOutput* type, const uint8_t* data,
                        ByteBuffer* out) except -1 nogil:
    cdef double value
    memcpy(&value, data, 8)
    return put_float8(out, value, type.settings.extra_float_digits)


cdef int put_points(const TypeOutput* type, const uint8_t* data, size_t count,
                    ByteBuffer* out) except -1 nogil:
    cdef size_t i
    for i in range(count):
        if i:
            put_byte(out, c',')
        point_text(type, data + POINT_SIZE * i, POINT_SIZE, out)
    return 0


cdef size_t count_points(const uint8_t* data, size_t size, size_t header) except? 0 nogil:
    """Return how many points follow *header* bytes; the count at their beginning says it too."""
    cdef int32_t count
    if size < header:
        invalid(b"a path or polygon ends inside its header")
    count = load_i32(data)
    if count < 0 or <size_t>count > (size - header) // POINT_SIZE:
        invalid(b"a path or polygon has fewer points than it says")
    return count


cdef int point_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil:
    put_byte(out, c'(')
    put_coordinate(type, data, out)
    put_byte(out, c',')
    put_coordinate(type, data + 8, out)
    return put_byte(out, c')')


cdef int lseg_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    put_byte(out, c'[')
    put_points(type, data, 2, out)
    return put_byte(out, c']')


cdef int box_text(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil:
    return put_points(type, data, 2, out)


cdef int path_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef size_t count = count_points(data, size, PATH_HEADER)
    cdef bint closed = load_i32(data + 4) != 0
    put_byte(out, c'(' if closed else c'[')
    put_points(type, data + PATH_HEADER, count, out)
    return put_byte(out, c')' if closed else c']')


cdef int polygon_text(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil:
    cdef size_t count = count_points(data, size, POLYGON_HEADER)
    put_byte(out, c'(')
    put_points(type, data + POLYGON_HEADER, count, out)
    return put_byte(out, c')')


cdef int line_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef int i
    for i in range(3):
        put_byte(out, c',' if i else c'{')
        put_coordinate(type, data + 8 * i, out)
    return put_byte(out, c'}')


cdef int circle_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    put_byte(out, c'<')
    point_text(type, data, POINT_SIZE, out)
    put_byte(out, c',')
    put_coordinate(type, data + POINT_SIZE, out)
    return put_byte(out, c'>')
