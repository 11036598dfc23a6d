# cython: language_level=3
"""C interface of a group: its changes as they lie in memory, for the kernel that nets them."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from spillway._kernels.apply.reader cimport Reader
from spillway._kernels.messages.buffer cimport ByteBuffer


# One I, U, D, T or M; or an R or Y, which is kept for ``raw`` alone.
cdef struct Item:
    # where its message begins in the arena, and its length
    size_t message
    uint32_t size
    # where its tuples begin in the message, 0 where there is none; of T: where its tables begin in
    # ``truncated``, and how many there are
    uint32_t old_at
    uint32_t new_at
    # index in ``versions``
    uint32_t relation
    # the subtransaction, within a streamed one
    uint32_t xid
    uint8_t kind
    # K or O, 0 without an old tuple; of a logical message D if it is an event of DDL
    uint8_t old_tag


# A transaction, or another unit of the stream.
cdef struct Unit:
    uint8_t kind
    bint is_first_stretch
    bint is_continued
    # one of ``names`` is about it
    bint is_named
    uint32_t xid
    uint32_t sub_xid
    uint64_t commit_lsn
    uint64_t end_lsn
    int64_t commit_time
    int64_t prepare_time
    # its items
    size_t first
    size_t end


# Current version of a relation; an entry of an open-addressed table.
cdef struct Current:
    uint32_t relation_id
    # index in ``versions`` plus one; 0: the entry is free
    uint32_t version


cdef class ChangeGroup:
    cdef size_t bytes_max
    # messages, back to back
    cdef ByteBuffer arena
    # arrays of Item, of Unit, and of uint32_t: versions of tables that are truncated
    cdef ByteBuffer items
    cdef ByteBuffer units
    cdef ByteBuffer truncated
    # how many units have ended; those before the open one, if there is one
    cdef size_t ended
    cdef bint within
    cdef bint full
    # within S and E
    cdef bint streaming
    # how many events of DDL there are, in the open unit, too
    cdef size_t schema_changes
    # by index of a unit: [origin, gid]
    cdef dict names
    # SourceRelations, and the columns that each of them has, as an array of uint16_t
    cdef list versions
    cdef ByteBuffer widths
    # by the bytes of a Relation message without its xid: its index in ``versions``
    cdef dict known
    cdef Current* current
    cdef size_t current_size
    cdef size_t current_count
    cdef readonly dict types
    cdef uint32_t last_relation_id
    cdef uint32_t last_version

    cdef const char* take(
        self, const uint8_t* data, size_t size, bint* stop_before
    ) except? NULL nogil
    cdef inline size_t nbytes_now(self) noexcept nogil
    cdef int keep(self, const uint8_t* data, size_t size, Item* item) except -1 nogil
    cdef const char* take_change(self, const uint8_t* data, size_t size) except? NULL nogil
    cdef Unit* open_unit(self, uint8_t kind) except NULL nogil
    cdef const char* take_head(
        self, const uint8_t* data, size_t size, bint* stop_before
    ) except? NULL nogil
    cdef const char* take_origin(self, Reader* reader) except? NULL
    cdef uint32_t version_of(self, uint32_t relation_id) noexcept nogil
    cdef int set_version(self, uint32_t relation_id, uint32_t version) except -1
    cdef const char* take_relation(self, const uint8_t* data, size_t size) except? NULL
    cdef size_t given(self)
    cdef object head(self, size_t n)
    cdef Unit* unit(self, size_t n) except NULL
    cdef object change(self, size_t n)
    cdef tuple _row(self, const Item* item, uint32_t at)
    cdef void _empty(self)
    cdef int _forget_versions(self) except -1
