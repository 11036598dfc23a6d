# cython: language_level=3
"""Writers of geometric types; see ``values/type.pxd``."""

from libc.stdint cimport uint8_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport TypeOutput

cdef enum:
    POINT_SIZE = 16
    # struct PATH without its length word: npts, closed, dummy
    PATH_HEADER = 12
    # struct POLYGON without its length word: npts, boundbox
    POLYGON_HEADER = 36

# How many points follow *header* bytes; the count at their beginning says it too.
cdef size_t count_points(const uint8_t* data, size_t size, size_t header) except? 0 nogil

cdef int point_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
cdef int lseg_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int box_text(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil
cdef int path_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int polygon_text(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil
cdef int line_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int circle_text(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil
