# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Send format of cube, and of pgvector's vector, halfvec and sparsevec: their fields in network
byte order.

Source: cube_send (contrib/cube/cube.c); pgvector's vector_send, halfvec_send, sparsevec_send
"""

from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.send.scalar cimport put_int16s, put_int32s, put_int64s
from spillway._kernels.values.text.extension cimport (cube_coordinates, sparsevec_elements,
                                                      vector_elements)
from spillway._kernels.values.type cimport TypeOutput


cdef int cube_send(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil:
    cdef uint32_t dimensions = 0
    cdef size_t count = cube_coordinates(data, size, &dimensions)
    put_int32s(out, data, 1)
    return put_int64s(out, data + 4, count)


cdef int vector_send(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    cdef size_t count = vector_elements(data, size, 4)
    put_int16s(out, data, 2)
    return put_int32s(out, data + 4, count)


cdef int halfvec_send(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil:
    return put_int16s(out, data, 2 + vector_elements(data, size, 2))


cdef int sparsevec_send(const TypeOutput* type, const uint8_t* data, size_t size,
                        ByteBuffer* out) except -1 nogil:
    return put_int32s(out, data, 3 + 2 * sparsevec_elements(data, size))
