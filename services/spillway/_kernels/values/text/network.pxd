# cython: language_level=3
"""Writers of network address types; see ``values/type.pxd``."""

from libc.stdint cimport uint8_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.values.type cimport TypeOutput

# The bits of an address, 32 or 128; its header and size agree.
cdef int check_address(const uint8_t* data, size_t size) except -1 nogil

cdef int inet_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int cidr_text(const TypeOutput* type, const uint8_t* data, size_t size,
                   ByteBuffer* out) except -1 nogil
cdef int macaddr_text(const TypeOutput* type, const uint8_t* data, size_t size,
                      ByteBuffer* out) except -1 nogil
cdef int macaddr8_text(const TypeOutput* type, const uint8_t* data, size_t size,
                       ByteBuffer* out) except -1 nogil
