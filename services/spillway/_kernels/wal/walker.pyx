# cython: language_level=3, boundscheck=False, wraparound=False, binding=True
"""Walk WAL: contiguous bytes in, batches of parsed and checked records out.

WAL is a stream of records, 8-byte aligned, cut into pages of 8192 bytes which each begin with a
header. A record that does not fit goes on behind the next page's header. What makes walking it
delicate:

- Bytes come as the network or a file gives them: a chunk may end inside a page header, a record
  header, anywhere. The walker is a machine that takes what there is and goes on with the next
  chunk.
- A record's length is read before its checksum can be. It is believed only as far as bytes arrive:
  memory for a record that crosses pages grows with what was fed, and each page header repeats how
  much of the record is missing (xlp_rem_len), which must agree.
- The end of WAL is not marked. In a segment file, what follows the last record is zeros, or what a
  recycled segment held before, whose pages bear older addresses.
- After a crash in the middle of a record that crosses pages, the server writes a page with
  XLP_FIRST_IS_OVERWRITE_CONTRECORD where the record would have gone on: the first half is void.

Records that lie in one page of one chunk are not copied: the batch holds the chunk and points into
it. Others are assembled in memory that the batch owns.

Memory: the chunk being walked, at most one unfinished record, and what its batches hold.

The walker holds no lock and releases the GIL while it walks: one thread at a time, which it checks.

Source: src/backend/access/transam/xlogreader.c (XLogReaderValidatePageHeader, XLogDecodeNextRecord)
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from spillway._kernels.wal.record_batch cimport (
    BLOCK_SIZE,
    BLOCK_ORDER, BLOCK_DATA_FLAG, BLOCK_NO_LOCATOR, CHECKSUM, CONTRECORD_LENGTH, DATA_LENGTH,
    HEADERS_TRUNCATED, IMAGE_HOLE, IMAGE_LENGTH, IMAGE_METHOD, NO_CONTRECORD, NO_FAILURE,
    OUT_OF_MEMORY, PAGE_ADDRESS, PAGE_BLOCK_SIZE, PAGE_FLAGS, PAGE_LONG, PAGE_MAGIC, PAGE_NOT_LONG,
    PREV_LINK, RECORD_LONG, RECORD_SHORT, SEGMENT_SIZE, SYSTEM_ID, TIMELINE, UNEXPECTED_CONTRECORD,
    UNKNOWN_BLOCK_ID, UNKNOWN_RMGR, ZERO_LENGTH, ZERO_PAGE, ArenaBlock, Failure, FailureKind,
    RecordBatch, RecordFormat, WalRecord, fail, load_u16, load_u32, load_u64,
)
from spillway._kernels.wal.record_routes cimport route_records

from spillway.errors import CorruptWal, UnsupportedWal
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_magic

cdef enum:
    SHORT_HEADER = 24           # SizeOfXLogShortPHD
    LONG_HEADER = 40            # SizeOfXLogLongPHD
    RECORD_HEADER = 24          # SizeOfXLogRecord
    XLP_FIRST_IS_CONTRECORD = 0x01
    XLP_LONG_HEADER = 0x02
    XLP_FIRST_IS_OVERWRITE_CONTRECORD = 0x08
    XLP_ALL_FLAGS = 0x0F
    RM_XLOG_ID = 0
    XLOG_SWITCH = 0x40
    # Assembled records from here on keep their own memory instead of being copied to the arena.
    ADOPT_SIZE = 32 * 1024

cdef enum Outcome:
    GOING_ON = 0
    NEED_MORE = 1
    FAILED = 2

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
    NO_CONTRECORD: "the page does not go on with the record before it, of which {a} bytes are "
                   "missing",
    CONTRECORD_LENGTH: "the page says that {a} bytes of the record are to come, but {b} are "
                       "missing",
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


cdef class Walker:
    """Walks WAL from *start_lsn* on.

    *start_lsn* is a record's start, or a page's first byte: then reading begins with the first
    record that starts in it or, where a longer one covers it, in a later page.

    Args:
        version: the WAL format, from ``pg.versions``.
        start_lsn: where to begin.
        segment_size: wal_segment_size of the cluster.
        system_id: refuse segments of another database system; 0 takes any.
        end_is_error: what the end of written WAL is. In a stream, which only ever carries what the
            server has flushed, meeting it means corruption and raises. In a directory of segment
            files it is where reading stops: pass False, then :attr:`end_of_wal` says where and why.

    Raises:
        CorruptWal: no record can start at *start_lsn*.
    """

    # The version, unpacked.
    cdef uint16_t _page_magic
    cdef RecordFormat _format
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
    cdef bint _busy

    def __init__(
        self, version, uint64_t start_lsn, uint64_t segment_size, *, uint64_t system_id=0,
        bint end_is_error=True
    ):
        if segment_size < 1 << 20 or segment_size > 1 << 30 or segment_size & (segment_size - 1):
            raise ValueError("segment_size must be a power of two from 1 MiB to 1 GiB, not "
                             f"{segment_size}")
        self._page_magic = version.page_magic
        self._format.record_size_max = version.record_size_max
        self._format.image_apply = version.image_apply
        self._format.image_pglz = version.image_pglz
        self._format.image_lz4 = version.image_lz4
        self._format.image_zstd = version.image_zstd
        self._format.custom_rmgrs = version.custom_rmgrs
        self._segment_size = segment_size
        self._system_id = system_id
        self._end_is_error = end_is_error
        self._lsn = start_lsn
        self._start_lsn = start_lsn
        self._position = start_lsn
        self._first_page = True
        cdef uint64_t offset = start_lsn % BLOCK_SIZE
        cdef uint64_t header = (LONG_HEADER if start_lsn % segment_size < BLOCK_SIZE
                                else SHORT_HEADER)
        if start_lsn % 8 != 0 or 0 < offset < header:
            raise CorruptWal(
                f"no WAL record can start at {Lsn(start_lsn)}",
                hint="Records are 8-byte aligned and do not start inside a page header.",
                lsn=str(Lsn(start_lsn)))

    def __dealloc__(self):
        free(self._partial)

    @property
    def position(self):
        """The end of the last whole record handed out, or start_lsn: where a new walker would go
        on.
        """
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
        if self._end_is_error or not ZERO_LENGTH <= self._failure.kind <= PAGE_ADDRESS:
            return None
        return (self._failure.lsn, self._failure_text())

    def feed(self, uint64_t lsn, data):
        """Append *data*, WAL from *lsn* on, to what is being walked.

        The bytes must go on where the last ended (:attr:`fed_lsn`); what lies before that, or
        before start_lsn, is ignored. A ``bytes`` object is not copied unless some of the last is
        still unread.

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

        A record is handed out as soon as its last byte is there. When something is wrong, the
        records before it come first, then every call raises.

        Raises:
            CorruptWal: the bytes contradict themselves; ``details['lsn']`` is the record or the
                page.
            UnsupportedWal: they are of another version, or use what Spillway does not know.
        """
        cdef RecordBatch batch
        cdef Outcome outcome
        cdef bint is_routed = True
        if max_records < 1:
            raise ValueError("max_records must be at least 1")
        if self._busy:
            raise RuntimeError("the walker is in use by another thread")
        if self._failure.kind != NO_FAILURE:
            return self._stopped()
        batch = RecordBatch.__new__(RecordBatch)
        batch.fed = self._chunk
        self._busy = True
        with nogil:
            outcome = self._walk(batch, max_records)
            if batch.count > 0:
                batch.fit()
                is_routed = route_records(batch)
        self._busy = False
        if not is_routed:
            fail(&self._failure, OUT_OF_MEMORY, batch.records[0].lsn, 0, 0)
            return self._stopped()
        if self._left == 0:
            self._chunk = None
        if batch.count > 0:
            return batch
        if outcome == FAILED:
            return self._stopped()
        return None

    def _stopped(self):
        """Return None at the end of WAL, raise what stopped the walker otherwise."""
        if not self._end_is_error and ZERO_LENGTH <= self._failure.kind <= PAGE_ADDRESS:
            return None
        if self._failure.kind == OUT_OF_MEMORY:
            raise MemoryError
        lsn = str(Lsn(self._failure.lsn))
        text = self._failure_text()
        if self._failure.kind == PAGE_MAGIC:
            hint = ""
            try:
                hint = f"The page is WAL of PostgreSQL {version_of_magic(self._failure.a).major}."
            except UnsupportedWal as error:
                if self._failure.a >> 8 != 0xD1:
                    raise CorruptWal(f"WAL at {lsn}: {text}", lsn=lsn) from None
                hint = error.hint
            raise UnsupportedWal(f"WAL at {lsn}: {text}", hint=hint, lsn=lsn)
        if self._failure.kind >= PAGE_MAGIC:
            raise UnsupportedWal(f"WAL at {lsn}: {text}", lsn=lsn)
        raise CorruptWal(
            f"WAL at {lsn}: {text}",
            hint="The WAL store's copy is damaged: fetch this segment again from the server or its "
            "archive.",
            lsn=lsn)

    def _failure_text(self):
        return _MESSAGES[self._failure.kind].format(
            a=self._failure.a, b=self._failure.b, a_lsn=Lsn(self._failure.a),
            b_lsn=Lsn(self._failure.b))

    cdef Outcome _fail(self, FailureKind kind, uint64_t lsn, uint64_t a, uint64_t b) noexcept nogil:
        fail(&self._failure, kind, lsn, a, b)
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
                    outcome = self._take_record(batch, self._at, total, self._lsn,
                                                self._lsn + total)
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

    cdef Outcome _enter_page(self, const uint8_t *h, size_t size, uint64_t page,
                             size_t step) noexcept nogil:
        """Check the header of the page at *page*; what it says must fit what the record before left
        open.
        """
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
            # Only the page that reading begins with may go on with what nobody has seen the start
            # of.
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
        if total > self._format.record_size_max:
            return self._fail(RECORD_LONG, lsn, total, self._format.record_size_max)
        return GOING_ON

    cdef Outcome _check_prev(self, const uint8_t *p, uint64_t lsn) noexcept nogil:
        cdef uint64_t prev = load_u64(p + 8)
        if prev != self._prev_lsn if self._has_prev else prev >= lsn:
            return self._fail(PREV_LINK, lsn, prev, self._prev_lsn)
        return GOING_ON

    cdef Outcome _assemble(self, RecordBatch batch, size_t page_left) noexcept nogil:
        """Copy what this page and chunk have of the record; take it when it is whole."""
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
            batch.adopt(self._partial)
            self._partial = NULL
        else:
            record = batch.allocate(self._record_len)
            if record is NULL:
                return self._fail(OUT_OF_MEMORY, self._record_lsn, 0, 0)
            memcpy(record, <uint8_t *> (self._partial + 1), self._record_len)
        self._in_record = False
        return self._take_record(batch, record, self._record_len, self._record_lsn, self._lsn)

    cdef Outcome _take_record(
            self, RecordBatch batch, const uint8_t *p, uint32_t total, uint64_t lsn,
            uint64_t end) noexcept nogil:
        """Append the whole record at *p*, of *total* bytes that end at *end*."""
        cdef WalRecord *r
        if self._check_prev(p, lsn) != GOING_ON:
            return FAILED
        if batch.append(&self._format, p, total, lsn, end, &self._failure) != NO_FAILURE:
            return FAILED
        r = &batch.records[batch.count - 1]
        if r.rmid == RM_XLOG_ID and r.info == XLOG_SWITCH:
            # The rest of the segment is void.
            r.end_lsn = (r.end_lsn + self._segment_size - 1) & ~(self._segment_size - 1)
        self._has_prev = True
        self._prev_lsn = lsn
        self._position = r.end_lsn
        self._skip_until = r.end_lsn
        return GOING_ON
