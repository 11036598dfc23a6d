# cython: language_level=3
"""Writers of types of extensions, cube and pgvector's; see ``values/type.pxd``."""

from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport TypeOutput

# struct NDBOX without its length word: header, coordinates. How many coordinates are stored.
cdef size_t cube_coordinates(const uint8_t* data, size_t size, uint32_t* dimensions) except? 0 nogil

# struct Vector, struct HalfVector without their length word: dim, unused, elements of
# *element_size* bytes. How many elements.
cdef size_t vector_elements(const uint8_t* data, size_t size, size_t element_size) except? 0 nogil

# struct SparseVector without its length word: dim, nnz, unused, indices, values. How many of the
# latter two.
cdef size_t sparsevec_elements(const uint8_t* data, size_t size) except? 0 nogil

cdef int cube_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int vector_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
cdef int halfvec_text(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil
cdef int sparsevec_text(const TypeOutput* type, const uint8_t* data, size_t size,
                        ByteBuffer* out) except -1 nogil
