# cython: language_level=3, boundscheck=False, wraparound=False
"""The message buffer: where output plugins put messages, and where a reader takes them from.

Messages lie back to back in one growing byte buffer; their lengths, LSNs and xids in three arrays
beside it, so that a batch of thousands of messages reaches Python as four ``bytes`` objects.
Kernels write without the GIL through the C interface in ``buffer.pxd``.

Memory: a buffer grows by doubling and keeps its capacity when it is emptied, up to ``KEEP_BYTES``;
a reader bounds it by looking at ``nbytes`` between chunks of changes. One message is bounded by
``MESSAGE_BYTES_MAX``, as PostgreSQL bounds a StringInfo by 1 GB.
"""

from libc.stdlib cimport free, realloc
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_FromStringAndSize

from spillway.errors import DecodingError
from spillway.plugins.messages import EncodedBatch

cdef enum:
    # A message's length must fit its u32.
    MESSAGE_BYTES_MAX = 0xFFFFFFFF
    # What a buffer may keep allocated while empty: 4 of the largest batches that streams ask for.
    KEEP_BYTES = 4 << 20


cdef int grow(ByteBuffer* buffer, size_t more) except -1 nogil:
    """Enlarge *buffer* so that at least *more* bytes fit after ``size``."""
    cdef size_t needed = buffer.size + more
    cdef size_t capacity = buffer.capacity if buffer.capacity >= 64 else 64
    if needed < more:
        with gil:
            raise MemoryError
    while capacity < needed:
        if capacity > (<size_t>-1) // 2:
            capacity = needed
        else:
            capacity *= 2
    cdef uint8_t* data = <uint8_t*>realloc(buffer.data, capacity)
    if data == NULL:
        with gil:
            raise MemoryError
    buffer.data = data
    buffer.capacity = capacity
    return 0


cdef void release(ByteBuffer* buffer) noexcept nogil:
    """Free the memory; the buffer is empty afterwards and may be used again."""
    free(buffer.data)
    buffer.data = NULL
    buffer.size = 0
    buffer.capacity = 0


cdef object take_bytes(ByteBuffer* buffer):
    return PyBytes_FromStringAndSize(<const char*>buffer.data, <Py_ssize_t>buffer.size)


cdef class MessageBuffer:
    """Collects messages until :meth:`take` empties it.

    Args:
        initial_bytes: capacity to begin with; it grows as needed.
    """

    def __cinit__(self, size_t initial_bytes=65536):
        if initial_bytes:
            grow(&self.payload, initial_bytes)

    def __dealloc__(self):
        release(&self.payload)
        release(&self.lengths)
        release(&self.lsns)
        release(&self.xids)

    cdef int finish(self, uint64_t lsn, uint32_t xid) except -1 nogil:
        """Close the message written since the last ``finish``; it may be empty."""
        cdef size_t size = self.payload.size - self.message_start
        cdef uint32_t length
        if size > MESSAGE_BYTES_MAX:
            self.discard()
            with gil:
                raise DecodingError(
                    f"a message of {size} bytes is larger than a message may be "
                    f"({MESSAGE_BYTES_MAX} bytes)",
                    lsn=f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}",
                )
        length = <uint32_t>size
        # All three or none: a failed allocation must not leave the arrays of different lengths.
        reserve(&self.lengths, sizeof(uint32_t))
        reserve(&self.lsns, sizeof(uint64_t))
        reserve(&self.xids, sizeof(uint32_t))
        memcpy(self.lengths.data + self.lengths.size, &length, sizeof(uint32_t))
        memcpy(self.lsns.data + self.lsns.size, &lsn, sizeof(uint64_t))
        memcpy(self.xids.data + self.xids.size, &xid, sizeof(uint32_t))
        self.lengths.size += sizeof(uint32_t)
        self.lsns.size += sizeof(uint64_t)
        self.xids.size += sizeof(uint32_t)
        self.message_start = self.payload.size
        self.count += 1
        return 0

    cdef void discard(self) noexcept nogil:
        """Forget what was written since the last ``finish``."""
        self.payload.size = self.message_start

    def append(self, uint64_t lsn, uint32_t xid, const uint8_t[::1] payload not None):
        """Add one whole message; *payload* is any contiguous bytes-like object, and is copied."""
        cdef size_t size = <size_t>payload.shape[0]
        self.discard()
        if size:
            put_bytes(&self.payload, &payload[0], size)
        self.finish(lsn, xid)

    @property
    def nbytes(self):
        """Payload bytes of the finished messages."""
        return self.message_start

    def __len__(self):
        return self.count

    def take(self):
        """Return the finished messages as an ``EncodedBatch`` and empty the buffer."""
        self.discard()
        batch = EncodedBatch(
            payload=take_bytes(&self.payload),
            lengths=take_bytes(&self.lengths),
            lsns=take_bytes(&self.lsns),
            xids=take_bytes(&self.xids),
            count=self.count,
        )
        self.clear()
        return batch

    def clear(self):
        """Drop everything; memory beyond what an ordinary batch needs is given back."""
        self.message_start = 0
        self.count = 0
        if self.payload.capacity > KEEP_BYTES:
            release(&self.payload)
        self.payload.size = 0
        self.lengths.size = 0
        self.lsns.size = 0
        self.xids.size = 0


def total_length(const uint8_t[::1] lengths not None):
    """Return the sum of a batch's lengths: u32 in the machine's byte order, at any alignment.

    Raises:
        ValueError: *lengths* is no whole number of them.
    """
    cdef size_t size = <size_t>lengths.shape[0]
    cdef size_t offset = 0
    cdef uint64_t total = 0
    cdef uint32_t length
    if size % sizeof(uint32_t):
        raise ValueError("a length is cut")
    with nogil:
        while offset < size:
            memcpy(&length, &lengths[offset], sizeof(uint32_t))
            total += length
            offset += sizeof(uint32_t)
    return total
