# cython: language_level=3, boundscheck=False, wraparound=False, binding=True
"""Parse and check one whole WAL record, and keep it in a batch.

In come the bytes of a record, contiguous, from the walker, which has found where it begins and
ends. It is appended as C structs whose pointers lead into those bytes. Its checksum is verified
first; still no length in it is believed: headers must end within the record, and the data that they
announce must be exactly what follows them.

A record is a 24-byte header, then headers of up to 33 block references, then the main data's
header, then the data of each in the same order, a block's page image before its block data. Headers
end where only the announced data is left, which is why that sum is kept while reading.

Source: DecodeXLogRecord, src/backend/access/transam/xlogreader.c; src/include/access/xlogrecord.h
"""

import sys

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc

from spillway._kernels.pg.crc32c cimport crc32c

from spillway.errors import CorruptWal
from spillway.pg.lsn import Lsn
from spillway.wal.images import restore_image
from spillway.wal.record import BlockRef, Record, RelFileLocator

if sys.byteorder != "little":
    raise ImportError("Spillway reads WAL of little-endian servers on little-endian machines only")

cdef enum:
    RECORD_HEADER = 24          # SizeOfXLogRecord
    CRC_OFFSET = 20             # offsetof(XLogRecord, xl_crc)
    RM_MAX_BUILTIN_ID = 21
    RM_MIN_CUSTOM_ID = 128
    BKPBLOCK_FORK_MASK = 0x0F
    BKPIMAGE_HAS_HOLE = 0x01
    XLR_MAX_BLOCK_ID = 32
    XLR_BLOCK_ID_TOPLEVEL_XID = 252
    XLR_BLOCK_ID_ORIGIN = 253
    XLR_BLOCK_ID_DATA_LONG = 254
    XLR_BLOCK_ID_DATA_SHORT = 255
    FIRST_ARENA_SIZE = 64 * 1024
    # Python's share of a batch, and the allocator's.
    BATCH_OVERHEAD = 512


cdef FailureKind fail(Failure *failure, FailureKind kind, uint64_t lsn, uint64_t a,
                      uint64_t b) noexcept nogil:
    failure.kind = kind
    failure.lsn = lsn
    failure.a = a
    failure.b = b
    return kind


cdef class RecordBatch:
    """Records in WAL order, as :meth:`Walker.next_batch` hands them out.

    Kernels read ``records`` and ``blocks`` (see walker.pxd); Python takes single records.
    """

    def __dealloc__(self):
        cdef ArenaBlock *block = self._arena
        cdef ArenaBlock *following
        while block is not NULL:
            following = block.next
            free(block)
            block = following
        free(self.records)
        free(self.blocks)
        free(self.routes)
        free(self.following)
        free(self.ends)

    def __init__(self):
        raise TypeError("a RecordBatch comes from Walker.next_batch()")

    def __len__(self):
        return self.count

    def __iter__(self):
        for i in range(self.count):
            yield self.record(i)

    def record(self, Py_ssize_t i):
        """Return record *i* as a :class:`spillway.wal.record.Record`, its page images restored.

        Raises:
            IndexError: there is no record *i*.
            CorruptWal: a page image can't be decompressed.
        """
        if not 0 <= i < self.count:
            raise IndexError(i)
        cdef const WalRecord *r = &self.records[i]
        cdef const WalBlockRef *b
        cdef Py_ssize_t k
        blocks = []
        for k in range(r.block_count):
            b = &self.blocks[r.first_block + k]
            image = None
            if b.image is not NULL:
                try:
                    image = restore_image(b.image[:b.image_len], b.image_method, b.hole_offset,
                                          b.hole_length)
                except ValueError as error:
                    raise CorruptWal(
                        f"block {b.id} of the record at {Lsn(r.lsn)}: {error}", lsn=str(Lsn(r.lsn))
                    ) from error
            blocks.append(BlockRef(
                b.id, RelFileLocator(b.spc, b.db, b.rel), b.fork, b.block,
                b.data[:b.data_len] if b.data is not NULL else b"", image,
                bool(b.apply_image), bool(b.flags & BKPBLOCK_WILL_INIT)))
        return Record(
            r.lsn, r.end_lsn, r.xid, r.rmid, r.info,
            r.main_data[:r.main_len] if r.main_data is not NULL else b"",
            tuple(blocks), r.origin, r.top_xid)

    def header(self, Py_ssize_t i):
        """Return ``(lsn, end_lsn, prev_lsn, total_len, xid, rmid, info)`` of record *i*; no data is
        copied.
        """
        if not 0 <= i < self.count:
            raise IndexError(i)
        cdef const WalRecord *r = &self.records[i]
        return (r.lsn, r.end_lsn, r.prev_lsn, r.total_len, r.xid, r.rmid, r.info)

    @property
    def end_lsn(self):
        """Where the record behind the last one begins; 0 without records."""
        return self.records[self.count - 1].end_lsn if self.count > 0 else 0

    @property
    def memory_bytes(self):
        """Memory that the batch keeps from being freed, about."""
        cdef size_t size = (self._records_room * (sizeof(WalRecord) + sizeof(uint32_t))
                            + self._blocks_room * sizeof(WalBlockRef) + self.end_count * sizeof(
                                uint32_t))
        cdef ArenaBlock *block = self._arena
        while block is not NULL:
            size += block.size
            block = block.next
        return size + (len(self.fed) if self.fed is not None else 0) + BATCH_OVERHEAD

    def concerned(self):
        """Return whom the batch concerns: databases with records of their own, everyone, who
        follows ends of transactions.

        The second is 0, 1 when records are everyone's, 2 when one of those is urgent; the third
        says whether there are plain ends of transactions, of any database.
        """
        cdef Py_ssize_t i
        cdef int of_all = 0
        if self.routes[0].first < self.count:
            of_all = 2 if self.is_urgent else 1
        return tuple([self.routes[i].database
                      for i in range(1, self.route_count)]), of_all, self.end_count > 0

    def routes_by_database(self):
        """Return {database: indexes of the records that concern it}, 0 for those that concern every
        database.
        """
        cdef Py_ssize_t i
        cdef uint32_t at
        cdef dict routes = {}
        for i in range(self.route_count):
            indexes = []
            at = self.routes[i].first
            while at < self.count:
                indexes.append(at)
                at = self.following[at]
            if indexes:
                routes[self.routes[i].database] = indexes
        return routes

    def plain_ends(self):
        """Return the indexes of the records by which an ordinary transaction commits or aborts."""
        return [self.ends[i] for i in range(self.end_count)]

    cdef const Route *route_of(self, uint32_t database) noexcept nogil:
        """Return the chain of *database*, NULL when no record concerns it alone."""
        cdef Py_ssize_t i
        for i in range(self.route_count):
            if self.routes[i].database == database:
                return &self.routes[i]
        return NULL

    def first_from(self, uint64_t lsn):
        """Return the index of the first record that starts at *lsn* or behind it; their number
        without one.
        """
        cdef Py_ssize_t low = 0, high = self.count, middle
        if self.count > 0 and self.records[0].lsn >= lsn:
            return 0
        while low < high:
            middle = (low + high) // 2
            if self.records[middle].lsn < lsn:
                low = middle + 1
            else:
                high = middle
        return low

    def is_between_records(self, uint64_t lsn):
        """Say whether no record of the batch lies over *lsn*: reading can begin there."""
        cdef Py_ssize_t i = self.first_from(lsn)
        return i == 0 or self.records[i - 1].end_lsn <= lsn

    cdef void fit(self) noexcept nogil:
        """Give back the room that the records of a small batch do not need."""
        cdef void *smaller
        if self._records_room - self.count > self.count // 4:
            smaller = realloc(self.records, self.count * sizeof(WalRecord))
            if smaller is not NULL:
                self.records = <WalRecord *> smaller
                self._records_room = self.count
        if self.block_count > 0 and self._blocks_room - self.block_count > self.block_count // 4:
            smaller = realloc(self.blocks, self.block_count * sizeof(WalBlockRef))
            if smaller is not NULL:
                self.blocks = <WalBlockRef *> smaller
                self._blocks_room = self.block_count

    cdef const WalBlockRef *find_block(self, const WalRecord *record,
                                       uint8_t block_id) noexcept nogil:
        """Return the record's block *block_id*, NULL if it has none."""
        cdef Py_ssize_t k
        for k in range(record.block_count):
            if self.blocks[record.first_block + k].id == block_id:
                return &self.blocks[record.first_block + k]
        return NULL

    cdef uint8_t *allocate(self, size_t size) noexcept nogil:
        """Return *size* bytes that live as long as the batch, NULL when there are none."""
        cdef ArenaBlock *block = self._arena
        cdef size_t room
        if block is NULL or block.size - block.used < size:
            room = size if size > FIRST_ARENA_SIZE else FIRST_ARENA_SIZE
            block = <ArenaBlock *> malloc(sizeof(ArenaBlock) + room)
            if block is NULL:
                return NULL
            block.size = room
            block.used = 0
            block.next = self._arena
            self._arena = block
        cdef uint8_t *place = <uint8_t *> (block + 1) + block.used
        block.used += size
        return place

    cdef void adopt(self, ArenaBlock *block) noexcept nogil:
        """Take over a full block; the one with room stays in front."""
        if self._arena is NULL:
            block.next = NULL
            self._arena = block
        else:
            block.next = self._arena.next
            self._arena.next = block

    cdef FailureKind append(
            self, const RecordFormat *format, const uint8_t *p, uint32_t total, uint64_t lsn,
            uint64_t end, Failure *failure) noexcept nogil:
        """Check the whole record at *p*, of *total* >= 24 bytes, and append it; *end* is where it
        ends in WAL.
        """
        cdef FailureKind kind
        cdef WalRecord *records
        cdef WalRecord *r
        cdef Py_ssize_t room
        cdef uint32_t crc = crc32c(crc32c(0, p + RECORD_HEADER, total - RECORD_HEADER), p,
                                   CRC_OFFSET)
        if crc != load_u32(p + CRC_OFFSET):
            return fail(failure, CHECKSUM, lsn, load_u32(p + CRC_OFFSET), crc)
        if self.count == self._records_room:
            room = self._records_room * 2 if self._records_room > 0 else 256
            records = <WalRecord *> realloc(self.records, room * sizeof(WalRecord))
            if records is NULL:
                return fail(failure, OUT_OF_MEMORY, lsn, 0, 0)
            self.records = records
            self._records_room = room
        r = &self.records[self.count]
        r.lsn = lsn
        r.end_lsn = (end + 7) & ~<uint64_t> 7
        r.prev_lsn = load_u64(p + 8)
        r.total_len = total
        r.xid = load_u32(p + 4)
        r.info = p[16] & 0xF0
        r.rmid = p[17]
        r.top_xid = 0
        r.origin = 0
        r.main_data = NULL
        r.main_len = 0
        r.first_block = <uint32_t> self.block_count
        r.block_count = 0
        if r.rmid > RM_MAX_BUILTIN_ID and not (format.custom_rmgrs and r.rmid >= RM_MIN_CUSTOM_ID):
            return fail(failure, UNKNOWN_RMGR, lsn, r.rmid, 0)
        kind = self._parse_headers(format, r, p, total, failure)
        if kind != NO_FAILURE:
            self.block_count = r.first_block
            return kind
        self.count += 1
        return NO_FAILURE

    cdef FailureKind _parse_headers(
            self, const RecordFormat *format, WalRecord *r, const uint8_t *p, uint32_t total,
            Failure *failure) noexcept nogil:
        """Read the block and data headers, then share out the data that follows them in the same
        order.
        """
        cdef uint32_t at = RECORD_HEADER
        # What the headers read so far announce; the headers end where only that much is left.
        cdef uint64_t announced = 0
        cdef uint8_t block_id
        cdef int last_id = -1
        cdef WalBlockRef *b
        cdef FailureKind kind
        cdef Py_ssize_t k
        cdef uint32_t left
        while total - at > announced:
            left = total - at
            block_id = p[at]
            if block_id == XLR_BLOCK_ID_DATA_SHORT:
                if left < 2:
                    return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
                r.main_len = p[at + 1]
                announced += r.main_len
                at += 2
                break  # by convention the main data's header is the last
            if block_id == XLR_BLOCK_ID_DATA_LONG:
                if left < 5:
                    return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
                r.main_len = load_u32(p + at + 1)
                announced += r.main_len
                at += 5
                break
            if block_id == XLR_BLOCK_ID_ORIGIN:
                if left < 3:
                    return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
                r.origin = load_u16(p + at + 1)
                at += 3
            elif block_id == XLR_BLOCK_ID_TOPLEVEL_XID:
                if left < 5:
                    return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
                r.top_xid = load_u32(p + at + 1)
                at += 5
            elif block_id <= XLR_MAX_BLOCK_ID:
                if block_id <= last_id:
                    return fail(failure, BLOCK_ORDER, r.lsn, block_id, <uint64_t> last_id)
                last_id = block_id
                kind = self._parse_block(format, r, p, total, &at, failure)
                if kind != NO_FAILURE:
                    return kind
                b = &self.blocks[self.block_count - 1]
                announced += <uint64_t> b.data_len + b.image_len
            else:
                return fail(failure, UNKNOWN_BLOCK_ID, r.lsn, block_id, 0)
        if total - at != announced:
            return fail(failure, DATA_LENGTH, r.lsn, announced, total - at)
        for k in range(r.block_count):
            b = &self.blocks[r.first_block + k]
            if b.flags & BKPBLOCK_HAS_IMAGE:
                b.image = p + at
                at += b.image_len
            if b.flags & BKPBLOCK_HAS_DATA:
                b.data = p + at
                at += b.data_len
        if r.main_len > 0:
            r.main_data = p + at
        return NO_FAILURE

    cdef FailureKind _parse_block(
            self, const RecordFormat *format, WalRecord *r, const uint8_t *p, uint32_t total,
            uint32_t *place, Failure *failure) noexcept nogil:
        """Append the block reference whose header is at *place*, and step behind it."""
        cdef uint32_t at = place[0]
        cdef uint8_t image_info, block_id = p[at], compressed
        cdef WalBlockRef *blocks
        cdef WalBlockRef *b
        cdef WalBlockRef *before
        cdef Py_ssize_t room
        if total - at < 4:
            return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
        if self.block_count == self._blocks_room:
            room = self._blocks_room * 2 if self._blocks_room > 0 else 256
            blocks = <WalBlockRef *> realloc(self.blocks, room * sizeof(WalBlockRef))
            if blocks is NULL:
                return fail(failure, OUT_OF_MEMORY, r.lsn, 0, 0)
            self.blocks = blocks
            self._blocks_room = room
        b = &self.blocks[self.block_count]
        b.id = block_id
        b.fork = p[at + 1] & BKPBLOCK_FORK_MASK
        b.flags = p[at + 1] & 0xF0
        b.data_len = load_u16(p + at + 2)
        b.data = NULL
        b.image = NULL
        b.image_len = 0
        b.hole_offset = 0
        b.hole_length = 0
        b.image_method = IMAGE_PLAIN
        b.apply_image = False
        at += 4
        if (b.flags & BKPBLOCK_HAS_DATA != 0) != (b.data_len > 0):
            return fail(failure, BLOCK_DATA_FLAG, r.lsn, block_id, b.data_len)
        if b.flags & BKPBLOCK_HAS_IMAGE:
            if total - at < 5:
                return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
            b.image_len = load_u16(p + at)
            b.hole_offset = load_u16(p + at + 2)
            image_info = p[at + 4]
            at += 5
            b.apply_image = image_info & format.image_apply != 0
            compressed = image_info & (format.image_pglz | format.image_lz4 | format.image_zstd)
            if image_info & ~(BKPIMAGE_HAS_HOLE | format.image_apply | compressed):
                return fail(failure, IMAGE_METHOD, r.lsn, block_id, image_info)
            if compressed == 0:
                b.image_method = IMAGE_PLAIN
            elif compressed == format.image_pglz:
                b.image_method = IMAGE_PGLZ
            elif compressed == format.image_lz4:
                b.image_method = IMAGE_LZ4
            elif compressed == format.image_zstd:
                b.image_method = IMAGE_ZSTD
            else:
                return fail(failure, IMAGE_METHOD, r.lsn, block_id, image_info)
            if b.image_len == 0 or b.image_len > BLOCK_SIZE:
                return fail(failure, IMAGE_LENGTH, r.lsn, block_id, b.image_len)
            if compressed == 0:
                b.hole_length = <uint16_t> (BLOCK_SIZE - b.image_len)
            elif image_info & BKPIMAGE_HAS_HOLE:
                if total - at < 2:
                    return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
                b.hole_length = load_u16(p + at)
                at += 2
            if image_info & BKPIMAGE_HAS_HOLE:
                if (b.hole_offset == 0 or b.hole_length == 0
                        or <uint32_t> b.hole_offset + b.hole_length > BLOCK_SIZE):
                    return fail(failure, IMAGE_HOLE, r.lsn, block_id, b.image_len)
            elif b.hole_offset != 0 or b.hole_length != 0:
                return fail(failure, IMAGE_HOLE, r.lsn, block_id, b.image_len)
            if compressed != 0 and b.image_len >= BLOCK_SIZE - b.hole_length:
                return fail(failure, IMAGE_LENGTH, r.lsn, block_id, b.image_len)
        if b.flags & BKPBLOCK_SAME_REL:
            if r.block_count == 0:
                return fail(failure, BLOCK_NO_LOCATOR, r.lsn, block_id, 0)
            before = b - 1
            b.spc = before.spc
            b.db = before.db
            b.rel = before.rel
        else:
            if total - at < 12:
                return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
            b.spc = load_u32(p + at)
            b.db = load_u32(p + at + 4)
            b.rel = load_u32(p + at + 8)
            at += 12
        if total - at < 4:
            return fail(failure, HEADERS_TRUNCATED, r.lsn, 0, 0)
        b.block = load_u32(p + at)
        at += 4
        self.block_count += 1
        r.block_count += 1
        place[0] = at
        return NO_FAILURE
