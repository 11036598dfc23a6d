# cython: language_level=3
"""C interface of the message buffer: for kernels that write messages straight into it.

A kernel writes a message's bytes into ``buffer.payload`` with the ``put_*`` functions and closes it
with ``buffer.finish(lsn, xid)``; ``buffer.discard()`` forgets what was written since the last
``finish``. None of it needs the GIL.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef struct ByteBuffer:
    uint8_t* data
    size_t size
    size_t capacity


cdef int grow(ByteBuffer* buffer, size_t more) except -1 nogil
cdef void release(ByteBuffer* buffer) noexcept nogil


cdef inline int reserve(ByteBuffer* buffer, size_t more) except -1 nogil:
    """Make room for *more* bytes after ``size``; pointers into the buffer may move."""
    if buffer.capacity - buffer.size < more:
        return grow(buffer, more)
    return 0


cdef inline int put_bytes(ByteBuffer* buffer, const void* data, size_t size) except -1 nogil:
    if buffer.capacity - buffer.size < size:
        grow(buffer, size)
    # Nothing may come from nowhere, which memcpy must not be given.
    if size:
        memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size
    return 0


cdef inline int put_byte(ByteBuffer* buffer, uint8_t value) except -1 nogil:
    if buffer.capacity == buffer.size:
        grow(buffer, 1)
    buffer.data[buffer.size] = value
    buffer.size += 1
    return 0


cdef class MessageBuffer:
    cdef ByteBuffer payload
    # One element a message, each as bytes of a little-endian array.
    cdef ByteBuffer lengths
    cdef ByteBuffer lsns
    cdef ByteBuffer xids
    # Where the message being written begins in payload.
    cdef size_t message_start
    cdef readonly size_t count

    cdef int finish(self, uint64_t lsn, uint32_t xid) except -1 nogil
    cdef void discard(self) noexcept nogil
