# cython: language_level=3
"""C interface of runs of small transactions: for kernels that write or read them without Python
objects.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


# A frame of the transaction log; spillway/txlog/frames.py describes it.
cdef packed struct FrameHeader:
    uint32_t crc
    uint32_t length
    uint32_t kind
    uint32_t zero

# A transaction header without parts.
cdef packed struct EntryHeader:
    uint32_t xid
    uint16_t origin_id
    uint8_t kind
    uint8_t parts
    uint64_t first_lsn
    uint64_t final_lsn
    uint64_t end_lsn
    int64_t commit_time
    uint64_t origin_lsn

cdef enum:
    FRAME_KIND_TRANSACTION = 2
    # What an entry has in front of its chunk.
    ENTRY_HEADER_BYTES = 64


cdef struct Entry:
    const EntryHeader* header
    const uint8_t* chunk
    size_t chunk_size
    # of the entry behind it
    size_t next_offset


cdef uint32_t entry_checksum(const FrameHeader* frame) noexcept nogil


cdef class TransactionRun:
    # The entries; what they lie in is kept by the view.
    cdef const uint8_t[::1] _view
    cdef const uint8_t* _data
    cdef size_t _size
    cdef size_t _offset
    cdef uint64_t _upto_lsn
    cdef readonly object relations
    cdef readonly size_t taken
    cdef readonly uint64_t last_end_lsn
    cdef readonly bint reached_upto

    cdef int take(self, Entry* entry) except -1 nogil
    cdef size_t _skip_before(self, uint64_t lsn) except -1
