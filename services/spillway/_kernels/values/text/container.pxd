# cython: language_level=3
"""Writers of types made of other types; see ``values/type.pxd``."""

from libc.stdint cimport uint8_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport TypeOutput

cdef int array_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
cdef int vector_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int record_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int enum_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int object_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int acl_text(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil
cdef int range_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
cdef int multirange_text(const TypeOutput* type, const uint8_t* data, size_t size,
                         ByteBuffer* out) except -1 nogil
