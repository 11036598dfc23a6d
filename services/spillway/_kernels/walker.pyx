# cython: language_level=3, boundscheck=False, wraparound=False, binding=True
"""Walk WAL: contiguous bytes in, batches of parsed and checked records out.

WAL is a stream of records, 8-byte aligned, cut into pages of 8192 bytes which each begin with a header.
A record that does not fit goes on behind the next page's header. What makes walking it delicate:

- Bytes come as the network or a file gives them: a chunk may end inside a page header, a record header,
  anywhere. The walker is a machine that takes what there is and goes on with the next chunk.
- A record's length is read before its checksum can be. It is believed only as far as bytes arrive: memory
  for a record that crosses pages grows with what was fed, and each page header repeats how much of the
  record is missing (xlp_rem_len), which must agree.
- The end of WAL is not marked. In a segment file, what follows the last record is zeros, or what a recycled
  segment held before, whose pages bear older addresses.
- After a crash in the middle of a record that crosses pages, the server writes a page with
  XLP_FIRST_IS_OVERWRITE_CONTRECORD where the record would have gone on: the first half is void.

Records that lie in one page of one chunk are not copied: the batch holds the chunk and points into it.
Others are assembled in memory that the batch owns.

Memory: the chunk being walked, at most one unfinished record, and what its batches hold.

The walker holds no lock and releases the GIL while it walks: one thread at a time, which it checks.

Source: src/backend/access/transam/xlogreader.c (XLogReaderValidatePageHeader, XLogDecodeNextRecord,
DecodeXLogRecord), src/include/access/xlogrecord.h
"""

import sys

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from spillway._kernels.crc32c cimport crc32c

from spillway.errors import CorruptWal, UnsupportedWal
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_magic
from spillway.wal.images import restore_image
from spillway.wal.record import BlockRef, Record, RelFileLocator

if sys.byteorder != "little":
    raise ImportError("Spillway reads WAL of little-endian servers on little-endian machines only")

cdef enum:
    SHORT_HEADER = 24           # SizeOfXLogShortPHD
    LONG_HEADER = 40            # SizeOfXLogLongPHD
    RECORD_HEADER = 24          # SizeOfXLogRecord
    CRC_OFFSET = 20             # offsetof(XLogRecord, xl_crc)
    XLP_FIRST_IS_CONTRECORD = 0x01
    XLP_LONG_HEADER = 0x02
    XLP_FIRST_IS_OVERWRITE_CONTRECORD = 0x08
    XLP_ALL_FLAGS = 0x0F
    RM_XLOG_ID = 0
    RM_MAX_BUILTIN_ID = 21
    RM_MIN_CUSTOM_ID = 128
    XLOG_SWITCH = 0x40
    BKPBLOCK_FORK_MASK = 0x0F
    BKPIMAGE_HAS_HOLE = 0x01
    XLR_MAX_BLOCK_ID = 32
    XLR_BLOCK_ID_TOPLEVEL_XID = 252
    XLR_BLOCK_ID_ORIGIN = 253
    XLR_BLOCK_ID_DATA_LONG = 254
    XLR_BLOCK_ID_DATA_SHORT = 255
    FIRST_ARENA_SIZE = 64 * 1024
    # Assembled records from here on keep their own memory instead of being copied to the arena.
    ADOPT_SIZE = 32 * 1024

cdef enum Outcome:
    GOING_ON = 0
    NEED_MORE = 1
    FAILED = 2

cdef enum Failure:
    NONE = 0
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

_MESSAGES = {
    ZERO_LENGTH: "there is no record: its length is zero",
    ZERO_PAGE: "the page was never written",
    PAGE_ADDRESS: "the page says that its address is {a_lsn}: what a recycled segment held before",
    PAGE_FLAGS: "page flags {a:04X} have bits that PostgreSQL does not use",
    PAGE_NOT_LONG: "a segment's first page has no long header",
    PAGE_LONG: "a page inside a segment has a long header",
    SYSTEM_ID: "WAL is from database system {a}, not {b}",
    SEGMENT_SIZE: "the segment size is {a} bytes, not {b}",
    TIMELINE: "timeline {a} comes after timeline {b}",
    NO_CONTRECORD: "the page does not go on with the record before it, of which {a} bytes are missing",
    CONTRECORD_LENGTH: "the page says that {a} bytes of the record are to come, but {b} are missing",
    UNEXPECTED_CONTRECORD: "the page goes on with a record that did not begin",
    RECORD_SHORT: "record length {a} is less than a record's header",
    RECORD_LONG: "record length {a} is more than {b}, the most that PostgreSQL writes",
    PREV_LINK: "the record says that the one before it is at {a_lsn}, but it is at {b_lsn}",
    CHECKSUM: "checksum {a:08X} stored, {b:08X} computed",
    BLOCK_ORDER: "block id {a} comes after {b}",
    BLOCK_DATA_FLAG: "block {a}: BKPBLOCK_HAS_DATA contradicts data length {b}",
    BLOCK_NO_LOCATOR: "block {a}: BKPBLOCK_SAME_REL, but no block comes before it",
    IMAGE_HOLE: "block {a}: the image's hole contradicts its length {b}",
    IMAGE_LENGTH: "block {a}: an image of {b} bytes",
    HEADERS_TRUNCATED: "the record ends inside its block headers",
    DATA_LENGTH: "the block headers announce {a} bytes of data, the record has {b}",
    PAGE_MAGIC: "page magic {a:04X}, not {b:04X}",
    PAGE_BLOCK_SIZE: "WAL pages are {a} bytes, not {b}",
    UNKNOWN_RMGR: "resource manager id {a} does not exist in this version",
    UNKNOWN_BLOCK_ID: "block id {a} has no meaning",
    IMAGE_METHOD: "block {a}: image flags {b:02X} are not known",
}


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
                    image = restore_image(b.image[:b.image_len], b.image_method, b.hole_offset, b.hole_length)
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
        """Return ``(lsn, end_lsn, prev_lsn, total_len, xid, rmid, info)`` of record *i*; no data is copied."""
        if not 0 <= i < self.count:
            raise IndexError(i)
        cdef const WalRecord *r = &self.records[i]
        return (r.lsn, r.end_lsn, r.prev_lsn, r.total_len, r.xid, r.rmid, r.info)

    cdef const WalBlockRef *find_block(self, const WalRecord *record, uint8_t block_id) noexcept nogil:
        """Return the record's block *block_id*, NULL if it has none."""
        cdef Py_ssize_t k
        for k in range(record.block_count):
            if self.blocks[record.first_block + k].id == block_id:
                return &self.blocks[record.first_block + k]
        return NULL

    cdef uint8_t *_allocate(self, size_t size) noexcept nogil:
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

    cdef void _adopt(self, ArenaBlock *block) noexcept nogil:
        """Take over a full block; the one with room stays in front."""
        if self._arena is NULL:
            block.next = NULL
            self._arena = block
        else:
            block.next = self._arena.next
            self._arena.next = block


cdef class Walker:
    """Walks WAL from *start_lsn* on.

    *start_lsn* is a record's start, or a page's first byte: then reading begins with the first record
    that starts in it or, where a longer one covers it, in a later page.

    Args:
        version: the WAL format, from ``pg.versions``.
        start_lsn: where to begin.
        segment_size: wal_segment_size of the cluster.
        system_id: refuse segments of another database system; 0 takes any.
        end_is_error: what the end of written WAL is. In a stream, which only ever carries what the
            server has flushed, meeting it means corruption and raises. In a directory of segment files
            it is where reading stops: pass False, then :attr:`end_of_wal` says where and why.

    Raises:
        CorruptWal: no record can start at *start_lsn*.
    """

    # The version, unpacked.
    cdef uint16_t _page_magic
    cdef uint32_t _record_size_max
    cdef uint8_t _image_apply, _image_pglz, _image_lz4, _image_zstd
    cdef bint _custom_rmgrs
    cdef uint64_t _segment_size
    cdef uint64_t _system_id
    cdef bint _end_is_error
    # The fed bytes: _left of them at _at, the first of which is at _lsn in WAL.
    cdef bytes _chunk
    cdef const uint8_t *_at
    cdef size_t _left
    cdef uint64_t _lsn
    cdef uint64_t _start_lsn
    # Bytes before this LSN are of no interest: padding, the rest of a segment after XLOG_SWITCH.
    cdef uint64_t _skip_until
    # Bytes still to come of a record that began before start_lsn.
    cdef uint32_t _skip_contrecord
    # The page header being read: all but the first bytes of one that a chunk's end cuts.
    cdef uint8_t _header[LONG_HEADER]
    cdef uint8_t _header_have
    cdef bint _first_page
    cdef uint32_t _timeline
    # The record being assembled; its length is 0 until the first four bytes are there.
    cdef bint _in_record
    cdef uint64_t _record_lsn
    cdef uint32_t _record_len
    cdef uint32_t _record_have
    cdef ArenaBlock *_partial
    # The last whole record.
    cdef bint _has_prev
    cdef uint64_t _prev_lsn
    cdef uint64_t _position
    cdef uint64_t _overwritten
    # What stopped it for good.
    cdef Failure _failure
    cdef uint64_t _failure_lsn
    cdef uint64_t _failure_a
    cdef uint64_t _failure_b
    cdef bint _busy

    def __init__(
        self, version, uint64_t start_lsn, uint64_t segment_size, *, uint64_t system_id=0, bint end_is_error=True
    ):
        if segment_size < 1 << 20 or segment_size > 1 << 30 or segment_size & (segment_size - 1):
            raise ValueError(f"segment_size must be a power of two from 1 MiB to 1 GiB, not {segment_size}")
        self._page_magic = version.page_magic
        self._record_size_max = version.record_size_max
        self._image_apply = version.image_apply
        self._image_pglz = version.image_pglz
        self._image_lz4 = version.image_lz4
        self._image_zstd = version.image_zstd
        self._custom_rmgrs = version.custom_rmgrs
        self._segment_size = segment_size
        self._system_id = system_id
        self._end_is_error = end_is_error
        self._lsn = start_lsn
        self._start_lsn = start_lsn
        self._position = start_lsn
        self._first_page = True
        cdef uint64_t offset = start_lsn % BLOCK_SIZE
        cdef uint64_t header = LONG_HEADER if start_lsn % segment_size < BLOCK_SIZE else SHORT_HEADER
        if start_lsn % 8 != 0 or 0 < offset < header:
            raise CorruptWal(
                f"no WAL record can start at {Lsn(start_lsn)}",
                hint="Records are 8-byte aligned and do not start inside a page header.",
                lsn=str(Lsn(start_lsn)))

    def __dealloc__(self):
        free(self._partial)

    @property
    def position(self):
        """The end of the last whole record handed out, or start_lsn: where a new walker would go on."""
        return self._position

    @property
    def fed_lsn(self):
        """Where the next fed bytes must begin."""
        return self._lsn + self._left

    @property
    def timeline(self):
        """The timeline of the last page header read; 0 before the first."""
        return self._timeline

    @property
    def overwritten_lsn(self):
        """The start of the last record whose rest the server gave up after a crash; 0 for none."""
        return self._overwritten

    @property
    def end_of_wal(self):
        """``(lsn, why)`` once written WAL has ended, None before; see *end_is_error*."""
        if self._end_is_error or not ZERO_LENGTH <= self._failure <= PAGE_ADDRESS:
            return None
        return (self._failure_lsn, self._failure_text())

    def feed(self, uint64_t lsn, data):
        """Append *data*, WAL from *lsn* on, to what is being walked.

        The bytes must go on where the last ended (:attr:`fed_lsn`); what lies before that, or before
        start_lsn, is ignored. A ``bytes`` object is not copied unless some of the last is still unread.

        Raises:
            ValueError: bytes between the last fed and *lsn* are missing.
        """
        cdef bytes chunk = data if type(data) is bytes else bytes(data)
        cdef uint64_t expected = self._lsn + self._left
        cdef uint64_t size = <uint64_t> len(chunk)
        cdef uint64_t known
        if self._busy:
            raise RuntimeError("the walker is in use by another thread")
        if lsn > expected:
            raise ValueError(f"WAL from {Lsn(expected)} to {Lsn(lsn)} is missing")
        known = expected - lsn
        if size <= known:
            return
        if self._left > 0:
            chunk = self._at[:self._left] + (chunk if known == 0 else chunk[known:])
            known = 0
        self._chunk = chunk
        self._at = <const uint8_t *> chunk + known
        self._left = <size_t> (<uint64_t> len(chunk) - known)

    def next_batch(self, Py_ssize_t max_records=4096):
        """Return the next whole records, at most *max_records*, or None: more bytes are needed.

        A record is handed out as soon as its last byte is there. When something is wrong, the records
        before it come first, then every call raises.

        Raises:
            CorruptWal: the bytes contradict themselves; ``details['lsn']`` is the record or the page.
            UnsupportedWal: they are of another version, or use what Spillway does not know.
        """
        cdef RecordBatch batch
        cdef Outcome outcome
        if max_records < 1:
            raise ValueError("max_records must be at least 1")
        if self._busy:
            raise RuntimeError("the walker is in use by another thread")
        if self._failure != NONE:
            return self._stopped()
        batch = RecordBatch.__new__(RecordBatch)
        batch._fed = self._chunk
        self._busy = True
        with nogil:
            outcome = self._walk(batch, max_records)
        self._busy = False
        if self._left == 0:
            self._chunk = None
        if batch.count > 0:
            return batch
        if outcome == FAILED:
            return self._stopped()
        return None

    def _stopped(self):
        """Return None at the end of WAL, raise what stopped the walker otherwise."""
        if not self._end_is_error and ZERO_LENGTH <= self._failure <= PAGE_ADDRESS:
            return None
        if self._failure == OUT_OF_MEMORY:
            raise MemoryError
        lsn = str(Lsn(self._failure_lsn))
        text = self._failure_text()
        if self._failure == PAGE_MAGIC:
            hint = ""
            try:
                hint = f"The page is WAL of PostgreSQL {version_of_magic(self._failure_a).major}."
            except UnsupportedWal as error:
                if self._failure_a >> 8 != 0xD1:
                    raise CorruptWal(f"WAL at {lsn}: {text}", lsn=lsn) from None
                hint = error.hint
            raise UnsupportedWal(f"WAL at {lsn}: {text}", hint=hint, lsn=lsn)
        if self._failure >= PAGE_MAGIC:
            raise UnsupportedWal(f"WAL at {lsn}: {text}", lsn=lsn)
        raise CorruptWal(
            f"WAL at {lsn}: {text}",
            hint="The WAL store's copy is damaged: fetch this segment again from the server or its archive.",
            lsn=lsn)

    def _failure_text(self):
        return _MESSAGES[self._failure].format(
            a=self._failure_a, b=self._failure_b, a_lsn=Lsn(self._failure_a), b_lsn=Lsn(self._failure_b))

    cdef Outcome _fail(self, Failure failure, uint64_t lsn, uint64_t a, uint64_t b) noexcept nogil:
        self._failure = failure
        self._failure_lsn = lsn
        self._failure_a = a
        self._failure_b = b
        return FAILED

    cdef inline void _advance(self, size_t size) noexcept nogil:
        self._at += size
        self._left -= size
        self._lsn += size

    cdef Outcome _walk(self, RecordBatch batch, Py_ssize_t max_records) noexcept nogil:
        """Go on until the batch is full, the bytes are used up or something is wrong."""
        cdef Outcome outcome
        cdef size_t step, page_left
        cdef uint32_t total
        while batch.count < max_records:
            if self._left == 0:
                return NEED_MORE
            if self._lsn < self._skip_until:
                step = self._left
                if self._skip_until - self._lsn < step:
                    step = <size_t> (self._skip_until - self._lsn)
                self._advance(step)
                continue
            if self._lsn % BLOCK_SIZE == 0 or self._header_have > 0:
                outcome = self._read_page_header()
                if outcome != GOING_ON:
                    return outcome
                continue
            page_left = BLOCK_SIZE - <size_t> (self._lsn % BLOCK_SIZE)
            if self._skip_contrecord > 0:
                step = self._left if self._left < page_left else page_left
                if self._skip_contrecord < step:
                    step = self._skip_contrecord
                self._advance(step)
                self._skip_contrecord -= <uint32_t> step
                if self._skip_contrecord == 0:
                    self._skip_until = (self._lsn + 7) & ~<uint64_t> 7
                continue
            if self._in_record:
                outcome = self._assemble(batch, page_left)
                if outcome != GOING_ON:
                    return outcome
                continue
            # A record starts here.
            if self._left >= 4:
                total = load_u32(self._at)
                if total >= RECORD_HEADER and total <= page_left and total <= self._left:
                    outcome = self._take_record(batch, self._at, total, self._lsn, self._lsn + total)
                    if outcome != GOING_ON:
                        return outcome
                    self._advance(total)
                    continue
            self._in_record = True
            self._record_lsn = self._lsn
            self._record_len = 0
            self._record_have = 0
        return GOING_ON

    cdef Outcome _read_page_header(self) noexcept nogil:
        """Gather a page header that may come in pieces, check it, and step behind it."""
        cdef size_t need = SHORT_HEADER, step
        cdef const uint8_t *h
        if self._header_have == 0 and self._left >= LONG_HEADER:
            h = self._at
            if load_u16(h + 2) & XLP_LONG_HEADER:
                need = LONG_HEADER
            return self._enter_page(h, need, self._lsn, need)
        while True:
            if self._header_have >= SHORT_HEADER and load_u16(self._header + 2) & XLP_LONG_HEADER:
                need = LONG_HEADER
            if self._header_have >= need:
                return self._enter_page(self._header, need, self._lsn - self._header_have, 0)
            if self._left == 0:
                return NEED_MORE
            step = need - self._header_have
            if self._left < step:
                step = self._left
            memcpy(self._header + self._header_have, self._at, step)
            self._header_have += <uint8_t> step
            self._advance(step)

    cdef Outcome _enter_page(self, const uint8_t *h, size_t size, uint64_t page, size_t step) noexcept nogil:
        """Check the header of the page at *page*; what it says must fit what the record before left open."""
        cdef uint16_t magic = load_u16(h)
        cdef uint16_t flags = load_u16(h + 2)
        cdef uint32_t timeline = load_u32(h + 4)
        cdef uint64_t address = load_u64(h + 8)
        cdef uint32_t rem_len = load_u32(h + 16)
        cdef uint32_t missing
        if magic == 0 and flags == 0 and address == 0:
            return self._fail(ZERO_PAGE, page, 0, 0)
        if magic != self._page_magic:
            return self._fail(PAGE_MAGIC, page, magic, self._page_magic)
        if flags & ~XLP_ALL_FLAGS:
            return self._fail(PAGE_FLAGS, page, flags, 0)
        if flags & XLP_LONG_HEADER:
            if self._system_id != 0 and load_u64(h + 24) != self._system_id:
                return self._fail(SYSTEM_ID, page, load_u64(h + 24), self._system_id)
            if load_u32(h + 32) != self._segment_size:
                return self._fail(SEGMENT_SIZE, page, load_u32(h + 32), self._segment_size)
            if load_u32(h + 36) != BLOCK_SIZE:
                return self._fail(PAGE_BLOCK_SIZE, page, load_u32(h + 36), BLOCK_SIZE)
            if page % self._segment_size != 0:
                return self._fail(PAGE_LONG, page, 0, 0)
        elif page % self._segment_size == 0:
            return self._fail(PAGE_NOT_LONG, page, 0, 0)
        if address != page:
            return self._fail(PAGE_ADDRESS, page, address, 0)
        if timeline < self._timeline:
            return self._fail(TIMELINE, page, timeline, self._timeline)
        self._timeline = timeline

        if self._in_record:
            missing = self._record_len - self._record_have
            if flags & XLP_FIRST_IS_OVERWRITE_CONTRECORD:
                self._overwritten = self._record_lsn
                self._in_record = False
            elif not flags & XLP_FIRST_IS_CONTRECORD:
                return self._fail(NO_CONTRECORD, page, missing, 0)
            elif rem_len != missing:
                return self._fail(CONTRECORD_LENGTH, page, rem_len, missing)
        elif self._skip_contrecord > 0:
            if flags & XLP_FIRST_IS_OVERWRITE_CONTRECORD:
                self._skip_contrecord = 0
            elif not flags & XLP_FIRST_IS_CONTRECORD:
                return self._fail(NO_CONTRECORD, page, self._skip_contrecord, 0)
            elif rem_len != self._skip_contrecord:
                return self._fail(CONTRECORD_LENGTH, page, rem_len, self._skip_contrecord)
        elif flags & XLP_FIRST_IS_CONTRECORD:
            # Only the page that reading begins with may go on with what nobody has seen the start of.
            if not self._first_page or page != self._start_lsn:
                return self._fail(UNEXPECTED_CONTRECORD, page, 0, 0)
            self._skip_contrecord = rem_len
        self._first_page = False
        self._header_have = 0
        self._advance(step)
        return GOING_ON

    cdef Outcome _check_length(self, uint32_t total, uint64_t lsn) noexcept nogil:
        if total == 0:
            return self._fail(ZERO_LENGTH, lsn, 0, 0)
        if total < RECORD_HEADER:
            return self._fail(RECORD_SHORT, lsn, total, 0)
        if total > self._record_size_max:
            return self._fail(RECORD_LONG, lsn, total, self._record_size_max)
        return GOING_ON

    cdef Outcome _check_prev(self, const uint8_t *p, uint64_t lsn) noexcept nogil:
        cdef uint64_t prev = load_u64(p + 8)
        if prev != self._prev_lsn if self._has_prev else prev >= lsn:
            return self._fail(PREV_LINK, lsn, prev, self._prev_lsn)
        return GOING_ON

    cdef Outcome _assemble(self, RecordBatch batch, size_t page_left) noexcept nogil:
        """Copy what this page and chunk have of the record; take it when it is whole."""
        cdef Outcome outcome
        cdef size_t step = self._left if self._left < page_left else page_left
        cdef uint32_t target
        cdef size_t room, wanted
        cdef ArenaBlock *block
        cdef uint8_t *record
        if self._record_len == 0:
            target = 4
        elif self._record_have < RECORD_HEADER:
            target = RECORD_HEADER
        else:
            target = self._record_len
        if target - self._record_have < step:
            step = target - self._record_have
        room = self._partial.size if self._partial is not NULL else 0
        if self._record_have + step > room:
            wanted = room * 2 if room * 2 > BLOCK_SIZE else BLOCK_SIZE
            if wanted < self._record_have + step:
                wanted = self._record_have + step
            block = <ArenaBlock *> realloc(self._partial, sizeof(ArenaBlock) + wanted)
            if block is NULL:
                return self._fail(OUT_OF_MEMORY, self._record_lsn, 0, 0)
            block.size = wanted
            self._partial = block
        record = <uint8_t *> (self._partial + 1)
        memcpy(record + self._record_have, self._at, step)
        self._record_have += <uint32_t> step
        self._advance(step)
        if self._record_have < target:
            return GOING_ON
        if target == 4:
            self._record_len = load_u32(record)
            return self._check_length(self._record_len, self._record_lsn)
        if target == RECORD_HEADER and self._record_len > RECORD_HEADER:
            return self._check_prev(record, self._record_lsn)
        # Whole.
        if self._record_len >= ADOPT_SIZE:
            self._partial.used = self._partial.size
            batch._adopt(self._partial)
            self._partial = NULL
        else:
            record = batch._allocate(self._record_len)
            if record is NULL:
                return self._fail(OUT_OF_MEMORY, self._record_lsn, 0, 0)
            memcpy(record, <uint8_t *> (self._partial + 1), self._record_len)
        self._in_record = False
        return self._take_record(batch, record, self._record_len, self._record_lsn, self._lsn)

    cdef Outcome _take_record(
        self, RecordBatch batch, const uint8_t *p, uint32_t total, uint64_t lsn, uint64_t end) noexcept nogil:
        """Check the whole record at *p*, of *total* bytes that end at *end*, and append it to the batch."""
        cdef Outcome outcome = self._check_prev(p, lsn)
        cdef uint32_t crc
        cdef WalRecord *records
        cdef WalRecord *r
        cdef Py_ssize_t room
        if outcome != GOING_ON:
            return outcome
        crc = crc32c(crc32c(0, p + RECORD_HEADER, total - RECORD_HEADER), p, CRC_OFFSET)
        if crc != load_u32(p + CRC_OFFSET):
            return self._fail(CHECKSUM, lsn, load_u32(p + CRC_OFFSET), crc)
        if batch.count == batch._records_room:
            room = batch._records_room * 2 if batch._records_room > 0 else 256
            records = <WalRecord *> realloc(batch.records, room * sizeof(WalRecord))
            if records is NULL:
                return self._fail(OUT_OF_MEMORY, lsn, 0, 0)
            batch.records = records
            batch._records_room = room
        r = &batch.records[batch.count]
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
        r.first_block = <uint32_t> batch.block_count
        r.block_count = 0
        if r.rmid > RM_MAX_BUILTIN_ID and not (self._custom_rmgrs and r.rmid >= RM_MIN_CUSTOM_ID):
            return self._fail(UNKNOWN_RMGR, lsn, r.rmid, 0)
        outcome = self._parse_headers(batch, r, p, total)
        if outcome != GOING_ON:
            batch.block_count = r.first_block
            return outcome
        if r.rmid == RM_XLOG_ID and r.info == XLOG_SWITCH:
            r.end_lsn = (r.end_lsn + self._segment_size - 1) & ~(self._segment_size - 1)
        batch.count += 1
        self._has_prev = True
        self._prev_lsn = lsn
        self._position = r.end_lsn
        self._skip_until = r.end_lsn
        return GOING_ON

    cdef Outcome _parse_headers(
        self, RecordBatch batch, WalRecord *r, const uint8_t *p, uint32_t total) noexcept nogil:
        """Read the block and data headers, then share out the data that follows them in the same order."""
        cdef uint32_t at = RECORD_HEADER
        # What the headers read so far announce; the headers end where only that much is left.
        cdef uint64_t announced = 0
        cdef uint8_t block_id
        cdef int last_id = -1
        cdef WalBlockRef *b
        cdef Outcome outcome
        cdef Py_ssize_t k
        cdef uint32_t left
        while total - at > announced:
            left = total - at
            block_id = p[at]
            if block_id == XLR_BLOCK_ID_DATA_SHORT:
                if left < 2:
                    return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
                r.main_len = p[at + 1]
                announced += r.main_len
                at += 2
                break  # by convention the main data's header is the last
            if block_id == XLR_BLOCK_ID_DATA_LONG:
                if left < 5:
                    return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
                r.main_len = load_u32(p + at + 1)
                announced += r.main_len
                at += 5
                break
            if block_id == XLR_BLOCK_ID_ORIGIN:
                if left < 3:
                    return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
                r.origin = load_u16(p + at + 1)
                at += 3
            elif block_id == XLR_BLOCK_ID_TOPLEVEL_XID:
                if left < 5:
                    return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
                r.top_xid = load_u32(p + at + 1)
                at += 5
            elif block_id <= XLR_MAX_BLOCK_ID:
                if block_id <= last_id:
                    return self._fail(BLOCK_ORDER, r.lsn, block_id, <uint64_t> last_id)
                last_id = block_id
                outcome = self._parse_block(batch, r, p, total, &at)
                if outcome != GOING_ON:
                    return outcome
                b = &batch.blocks[batch.block_count - 1]
                announced += <uint64_t> b.data_len + b.image_len
            else:
                return self._fail(UNKNOWN_BLOCK_ID, r.lsn, block_id, 0)
        if total - at != announced:
            return self._fail(DATA_LENGTH, r.lsn, announced, total - at)
        for k in range(r.block_count):
            b = &batch.blocks[r.first_block + k]
            if b.flags & BKPBLOCK_HAS_IMAGE:
                b.image = p + at
                at += b.image_len
            if b.flags & BKPBLOCK_HAS_DATA:
                b.data = p + at
                at += b.data_len
        if r.main_len > 0:
            r.main_data = p + at
        return GOING_ON

    cdef Outcome _parse_block(
        self, RecordBatch batch, WalRecord *r, const uint8_t *p, uint32_t total, uint32_t *place) noexcept nogil:
        """Append the block reference whose header is at *place*, and step behind it."""
        cdef uint32_t at = place[0]
        cdef uint8_t image_info, block_id = p[at], compressed
        cdef WalBlockRef *blocks
        cdef WalBlockRef *b
        cdef WalBlockRef *before
        cdef Py_ssize_t room
        if total - at < 4:
            return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
        if batch.block_count == batch._blocks_room:
            room = batch._blocks_room * 2 if batch._blocks_room > 0 else 256
            blocks = <WalBlockRef *> realloc(batch.blocks, room * sizeof(WalBlockRef))
            if blocks is NULL:
                return self._fail(OUT_OF_MEMORY, r.lsn, 0, 0)
            batch.blocks = blocks
            batch._blocks_room = room
        b = &batch.blocks[batch.block_count]
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
            return self._fail(BLOCK_DATA_FLAG, r.lsn, block_id, b.data_len)
        if b.flags & BKPBLOCK_HAS_IMAGE:
            if total - at < 5:
                return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
            b.image_len = load_u16(p + at)
            b.hole_offset = load_u16(p + at + 2)
            image_info = p[at + 4]
            at += 5
            b.apply_image = image_info & self._image_apply != 0
            compressed = image_info & (self._image_pglz | self._image_lz4 | self._image_zstd)
            if image_info & ~(BKPIMAGE_HAS_HOLE | self._image_apply | compressed):
                return self._fail(IMAGE_METHOD, r.lsn, block_id, image_info)
            if compressed == 0:
                b.image_method = IMAGE_PLAIN
            elif compressed == self._image_pglz:
                b.image_method = IMAGE_PGLZ
            elif compressed == self._image_lz4:
                b.image_method = IMAGE_LZ4
            elif compressed == self._image_zstd:
                b.image_method = IMAGE_ZSTD
            else:
                return self._fail(IMAGE_METHOD, r.lsn, block_id, image_info)
            if b.image_len == 0 or b.image_len > BLOCK_SIZE:
                return self._fail(IMAGE_LENGTH, r.lsn, block_id, b.image_len)
            if compressed == 0:
                b.hole_length = <uint16_t> (BLOCK_SIZE - b.image_len)
            elif image_info & BKPIMAGE_HAS_HOLE:
                if total - at < 2:
                    return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
                b.hole_length = load_u16(p + at)
                at += 2
            if image_info & BKPIMAGE_HAS_HOLE:
                if b.hole_offset == 0 or b.hole_length == 0 or <uint32_t> b.hole_offset + b.hole_length > BLOCK_SIZE:
                    return self._fail(IMAGE_HOLE, r.lsn, block_id, b.image_len)
            elif b.hole_offset != 0 or b.hole_length != 0:
                return self._fail(IMAGE_HOLE, r.lsn, block_id, b.image_len)
            if compressed != 0 and b.image_len >= BLOCK_SIZE - b.hole_length:
                return self._fail(IMAGE_LENGTH, r.lsn, block_id, b.image_len)
        if b.flags & BKPBLOCK_SAME_REL:
            if r.block_count == 0:
                return self._fail(BLOCK_NO_LOCATOR, r.lsn, block_id, 0)
            before = b - 1
            b.spc = before.spc
            b.db = before.db
            b.rel = before.rel
        else:
            if total - at < 12:
                return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
            b.spc = load_u32(p + at)
            b.db = load_u32(p + at + 4)
            b.rel = load_u32(p + at + 8)
            at += 12
        if total - at < 4:
            return self._fail(HEADERS_TRUNCATED, r.lsn, 0, 0)
        b.block = load_u32(p + at)
        at += 4
        batch.block_count += 1
        r.block_count += 1
        place[0] = at
        return GOING_ON
