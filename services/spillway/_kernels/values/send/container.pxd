# cython: language_level=3
"""Writers of the send format of types made of other types; see ``values/type.pxd``."""

from libc.stdint cimport uint8_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport TypeOutput

cdef int array_send(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
cdef int vector_send(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int record_send(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int range_send(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
cdef int multirange_send(const TypeOutput* type, const uint8_t* data, size_t size,
                         ByteBuffer* out) except -1 nogil
