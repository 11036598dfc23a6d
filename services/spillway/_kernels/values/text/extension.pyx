# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Text of cube, and of pgvector's vector, halfvec and sparsevec: arrays of floats, which matter for
speed.

A cube has its lower left corner's coordinates, and those of the upper right one unless it is a
point. pgvector prints floats with the fewest digits that read back, whatever extra_float_digits
says. A sparsevec counts from 0 where it is stored and from 1 in text.

Source: cube_out (contrib/cube/cube.c), cubedata.h; pgvector's vector_out, halfvec_out,
sparsevec_out (src/{vector,halfvec,sparsevec}.{c,h})
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from spillway._kernels.values.datum cimport invalid, load_i32, load_u16, load_u32
from spillway._kernels.messages.buffer cimport ByteBuffer, put_byte, put_bytes
from spillway._kernels.values.text.number cimport put_float4, put_float8, put_int
from spillway._kernels.values.type cimport TypeOutput

cdef enum:
    CUBE_HEADER = 4
    CUBE_DIMENSIONS_MASK = 0x7FFFFFFF
    VECTOR_HEADER = 4
    SPARSEVEC_HEADER = 12
    # any that is positive: the shortest digits
    EXTRA_FLOAT_DIGITS = 1

cdef uint32_t CUBE_POINT_BIT = 0x80000000


# cube

cdef size_t cube_coordinates(const uint8_t* data, size_t size,
                             uint32_t* dimensions) except? 0 nogil:
    cdef uint32_t header
    cdef size_t count
    if size < CUBE_HEADER:
        invalid(b"a cube ends inside its header")
    header = load_u32(data)
    dimensions[0] = header & CUBE_DIMENSIONS_MASK
    count = dimensions[0]
    if not header & CUBE_POINT_BIT:
        count *= 2
    if count > (size - CUBE_HEADER) // 8:
        invalid(b"a cube has fewer coordinates than it says")
    return count


cdef double coordinate(const uint8_t* data, size_t index) noexcept nogil:
    cdef double value
    memcpy(&value, data + CUBE_HEADER + 8 * index, 8)
    return value


cdef int put_corner(
    const TypeOutput* type, const uint8_t* data, size_t start, uint32_t dimensions, ByteBuffer* out
) except -1 nogil:
    cdef uint32_t i
    put_byte(out, c'(')
    for i in range(dimensions):
        if i:
            put_bytes(out, b", ", 2)
        put_float8(out, coordinate(data, start + i), type.settings.extra_float_digits)
    return put_byte(out, c')')


cdef int cube_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef uint32_t dimensions = 0
    cdef uint32_t i
    cdef size_t count = cube_coordinates(data, size, &dimensions)
    cdef bint is_point = True
    if count > dimensions:
        # One whose corners are the same point is printed as such.
        for i in range(dimensions):
            if coordinate(data, i) != coordinate(data, dimensions + <size_t>i):
                is_point = False
    put_corner(type, data, 0, dimensions, out)
    if is_point:
        return 0
    put_byte(out, c',')
    return put_corner(type, data, dimensions, dimensions, out)


# pgvector

cdef size_t vector_elements(const uint8_t* data, size_t size, size_t element_size) except? 0 nogil:
    cdef size_t count
    if size < VECTOR_HEADER:
        invalid(b"a vector ends inside its header")
    count = load_u16(data)
    if size != VECTOR_HEADER + count * element_size:
        invalid(b"a vector does not have as many elements as it says")
    return count


cdef int vector_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    cdef size_t count = vector_elements(data, size, 4)
    cdef size_t i
    put_byte(out, c'[')
    for i in range(count):
        if i:
            put_byte(out, c',')
        put_float4(out, load_u32(data + VECTOR_HEADER + 4 * i), EXTRA_FLOAT_DIGITS)
    return put_byte(out, c']')


cdef uint32_t float4_of_half(uint16_t half) noexcept nogil:
    """The bits of the float4 with the value of a half."""
    cdef uint32_t sign = <uint32_t>(half & 0x8000) << 16
    cdef uint32_t exponent = (half >> 10) & 0x1F
    cdef uint32_t fraction = half & 0x3FF
    if exponent == 0x1F:
        return sign | 0x7F800000 | fraction << 13
    if exponent == 0:
        if fraction == 0:
            return sign
        # A subnormal half is a normal float4: shift its highest bit out.
        exponent = 1
        while not fraction & 0x400:
            fraction <<= 1
            exponent -= 1
        fraction &= 0x3FF
    return sign | (exponent + 112) << 23 | fraction << 13


cdef int halfvec_text(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil:
    cdef size_t count = vector_elements(data, size, 2)
    cdef size_t i
    put_byte(out, c'[')
    for i in range(count):
        if i:
            put_byte(out, c',')
        put_float4(out, float4_of_half(load_u16(data + VECTOR_HEADER + 2 * i)), EXTRA_FLOAT_DIGITS)
    return put_byte(out, c']')


cdef size_t sparsevec_elements(const uint8_t* data, size_t size) except? 0 nogil:
    cdef int32_t count
    if size < SPARSEVEC_HEADER:
        invalid(b"a sparsevec ends inside its header")
    count = load_i32(data + 4)
    if count < 0 or size != SPARSEVEC_HEADER + 8 * <size_t>count:
        invalid(b"a sparsevec does not have as many elements as it says")
    return count


cdef int sparsevec_text(const TypeOutput* type, const uint8_t* data, size_t size,
                        ByteBuffer* out) except -1 nogil:
    cdef size_t count = sparsevec_elements(data, size)
    cdef size_t i
    put_byte(out, c'{')
    for i in range(count):
        if i:
            put_byte(out, c',')
        put_int(out, <long long>load_i32(data + SPARSEVEC_HEADER + 4 * i) + 1)
        put_byte(out, c':')
        put_float4(out, load_u32(data + SPARSEVEC_HEADER + 4 * (count + i)), EXTRA_FLOAT_DIGITS)
    put_bytes(out, b"}/", 2)
    return put_int(out, load_i32(data))
