# cython: language_level=3
"""Writer of jsonb; see ``values/type.pxd``."""

from libc.stdint cimport uint8_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport TypeOutput

cdef int jsonb_text(const TypeOutput* type, const uint8_t* data, size_t size,
                    ByteBuffer* out) except -1 nogil
