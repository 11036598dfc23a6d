# cython: language_level=3
"""Parsed WAL records as C structs, for kernels that run through a batch without Python objects.

A :class:`RecordBatch` owns everything its records point to: it holds the fed bytes and the memory
in which records that cross a page were assembled. Pointers stay valid as long as the batch lives,
with or without the GIL. They are *not aligned*: WAL aligns records, not what is in them. Read
integers with ``load_u16`` and its kin, never through a cast pointer.

Everything a pointer and its length describe has been bounds-checked against the record; the
record's CRC and back-link have been checked. What is *in* main data and block data has not: that is
the resource manager's business, and so the reader's.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    BLOCK_SIZE = 8192

# XLogRecordBlockHeader.fork_flags without the fork number.
cdef enum BlockFlag:
    BKPBLOCK_HAS_IMAGE = 0x10
    BKPBLOCK_HAS_DATA = 0x20
    BKPBLOCK_WILL_INIT = 0x40
    BKPBLOCK_SAME_REL = 0x80

# How an image is stored; the versions' own flag bits are translated to these.
cdef enum ImageMethod:
    IMAGE_PLAIN = 0
    IMAGE_PGLZ = 1
    IMAGE_LZ4 = 2
    IMAGE_ZSTD = 3


cdef struct WalBlockRef:
    const uint8_t *data         # block data, NULL without
    const uint8_t *image        # the image as stored: compressed and without its hole; NULL without
    uint32_t spc                # RelFileLocator
    uint32_t db
    uint32_t rel
    uint32_t block
    uint16_t data_len
    uint16_t image_len
    uint16_t hole_offset
    uint16_t hole_length
    uint8_t id                  # 0 … 32, ascending within a record
    uint8_t fork                # 0 main, 1 free space map, 2 visibility map, 3 init
    uint8_t flags               # BlockFlag
    uint8_t image_method        # ImageMethod
    bint apply_image            # BKPIMAGE_APPLY: restore it at redo


cdef struct WalRecord:
    uint64_t lsn                # where it starts: ReadRecPtr
    # where reading goes on: EndRecPtr (a page's start, if it ends with the page)
    uint64_t end_lsn
    uint64_t prev_lsn           # xl_prev
    const uint8_t *main_data    # NULL without
    uint32_t main_len
    uint32_t total_len          # xl_tot_len
    uint32_t xid                # xl_xid, 0 for none
    uint32_t top_xid            # from block id 252, 0 without
    uint32_t first_block        # index of its first block in the batch's blocks
    uint16_t origin             # replication origin from block id 253, 0 without
    uint8_t block_count
    uint8_t rmid
    uint8_t info                # xl_info & 0xF0: what belongs to the resource manager


cdef struct ArenaBlock:
    ArenaBlock *next
    size_t size
    size_t used
    # size bytes follow


# The chain of one database's records in a batch; see record_routes.
cdef struct Route:
    uint32_t database           # 0: those that are everyone's
    uint32_t first              # index of the first record, the batch's count without any
    uint32_t last


# What of a WalVersion it takes to parse a record.
cdef struct RecordFormat:
    uint32_t record_size_max
    uint8_t image_apply
    uint8_t image_pglz
    uint8_t image_lz4
    uint8_t image_zstd
    bint custom_rmgrs


# What can be wrong with WAL; the walker has the texts, in which a and b are filled in.
cdef enum FailureKind:
    NO_FAILURE = 0
    OUT_OF_MEMORY
    # The end of WAL in a segment file; corruption in a stream.
    ZERO_LENGTH
    ZERO_PAGE
    PAGE_ADDRESS
    # Corrupt.
    PAGE_FLAGS
    PAGE_NOT_LONG
    PAGE_LONG
    SYSTEM_ID
    SEGMENT_SIZE
    TIMELINE
    NO_CONTRECORD
    CONTRECORD_LENGTH
    UNEXPECTED_CONTRECORD
    RECORD_SHORT
    RECORD_LONG
    PREV_LINK
    CHECKSUM
    BLOCK_ORDER
    BLOCK_DATA_FLAG
    BLOCK_NO_LOCATOR
    IMAGE_HOLE
    IMAGE_LENGTH
    HEADERS_TRUNCATED
    DATA_LENGTH
    # Unsupported.
    PAGE_MAGIC
    PAGE_BLOCK_SIZE
    UNKNOWN_RMGR
    UNKNOWN_BLOCK_ID
    IMAGE_METHOD


cdef struct Failure:
    FailureKind kind
    uint64_t lsn                # of the record or the page
    uint64_t a
    uint64_t b


cdef class RecordBatch:
    """Records in WAL order; ``records[i]`` for 0 <= i < ``count``."""

    cdef WalRecord *records
    cdef Py_ssize_t count
    cdef WalBlockRef *blocks
    cdef Py_ssize_t block_count
    # For the walker. What the pointers lead to, and how much room the arrays have.
    cdef bytes fed
    # The index by database (record_routes): chains, the first of which is everyone's, and for each
    # record the next of its chain.
    cdef Route *routes
    cdef Py_ssize_t route_count
    cdef uint32_t *following
    # Indexes of the plain ends of transactions, of all databases.
    cdef uint32_t *ends
    cdef uint32_t end_count
    # Among what is everyone's is the end of a transaction: each session must hear of it at once.
    cdef bint is_urgent
    cdef ArenaBlock *_arena
    cdef Py_ssize_t _records_room
    cdef Py_ssize_t _blocks_room

    cdef const WalBlockRef *find_block(self, const WalRecord *record,
                                       uint8_t block_id) noexcept nogil
    cdef const Route *route_of(self, uint32_t database) noexcept nogil
    # For the walker.
    cdef uint8_t *allocate(self, size_t size) noexcept nogil
    cdef void adopt(self, ArenaBlock *block) noexcept nogil
    cdef void fit(self) noexcept nogil
    cdef FailureKind append(
        self, const RecordFormat *format, const uint8_t *p, uint32_t total, uint64_t lsn,
        uint64_t end, Failure *failure) noexcept nogil
    cdef FailureKind _parse_headers(
        self, const RecordFormat *format, WalRecord *r, const uint8_t *p, uint32_t total,
        Failure *failure) noexcept nogil
    cdef FailureKind _parse_block(
        self, const RecordFormat *format, WalRecord *r, const uint8_t *p, uint32_t total,
        uint32_t *place, Failure *failure) noexcept nogil


cdef FailureKind fail(Failure *failure, FailureKind kind, uint64_t lsn, uint64_t a,
                      uint64_t b) noexcept nogil


# Unaligned little-endian loads; WAL is in the byte order of the server, which is little-endian
# wherever Spillway runs (checked when the kernel is loaded).

cdef inline uint16_t load_u16(const uint8_t *p) noexcept nogil:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return v


cdef inline uint32_t load_u32(const uint8_t *p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint64_t load_u64(const uint8_t *p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v
