# cython: language_level=3
"""C interface of the loop over a chunk of changes: base classes of output plugins' kernels.

A kernel derives two classes: a :class:`RelationWriter`, what is made once per relation descriptor,
and a :class:`ChunkEncoder`, which says how one is made (``make_writer``) and what a change becomes
(``put_change``).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spillway._kernels.values.datum cimport Change
from spillway._kernels.messages.buffer cimport MessageBuffer
from spillway._kernels.reorder.transaction_run cimport Entry, TransactionRun


# What a TRUNCATE's section holds; *relations* are ``count`` unaligned u32.
cdef struct Truncation:
    uint32_t flags
    uint32_t count
    const uint8_t* relations

# What a MESSAGE's section holds.
cdef struct LogicalMessage:
    bint transactional
    const uint8_t* prefix
    size_t prefix_size
    const uint8_t* content
    size_t content_size

cdef int read_truncation(const Change* change, Truncation* truncation) except -1 nogil
cdef int read_message(const Change* change, LogicalMessage* message) except -1 nogil


cdef enum:
    # Relations that one chunk may alternate between before look-ups cost the GIL.
    SLOTS = 64


cdef struct WriterSlot:
    uint32_t relation
    # borrowed from ``writers``; NULL: free
    void* writer


cdef class RelationWriter:
    cdef readonly object descriptor


cdef class ChunkEncoder:
    cdef dict writers
    cdef WriterSlot slots[SLOTS]
    # The change at hand, for errors.
    cdef uint64_t lsn
    cdef uint32_t relation

    # Make the writer of a relation; with the GIL.
    cdef RelationWriter make_writer(self, object descriptor)
    # Write one transaction of a run, from its beginning to its end; for encoders that offer
    # ``encode_run``.
    cdef int put_transaction(self, const Entry* entry, object relations,
                             MessageBuffer out) except -1 nogil
    # Write what *change* becomes, and finish its messages.
    cdef int put_change(self, const Change* change, object relations,
                        MessageBuffer out) except -1 nogil

    # The writer of *relation*, a RelationWriter borrowed from this encoder until it finds the next
    # one.
    cdef void* find_writer(self, uint32_t relation, object relations) except NULL nogil
    cdef RelationWriter add_writer(self, uint32_t relation, object relations)
    cdef int encode(self, const uint8_t[::1] chunk, object relations, MessageBuffer out) except -1
    cdef int encode_run(self, TransactionRun run, MessageBuffer out, size_t batch_bytes,
                        size_t message_limit) except -1
    cdef int run_transactions(self, TransactionRun run, object relations, MessageBuffer out,
                              size_t batch_bytes, size_t message_limit) except -1 nogil
    cdef int run(self, const uint8_t* chunk, size_t size, object relations,
                 MessageBuffer out) except -1 nogil
