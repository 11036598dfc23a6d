# cython: language_level=3, boundscheck=False, wraparound=False
"""Runs of small transactions: many of them as one piece of memory, from the commit record to the
message.

A commit, a frame of the log and a call of the plugin each cost little, but in Python more than the
four rows that an ordinary transaction changes. So transactions that are whole, small and have
nothing to say but their changes (no origin, not prepared, not streamed) go together: the reorder
buffer writes them one behind the other (``commit.pyx``), the log appends the piece as it is, a
cursor finds such pieces again (:func:`find_run`), and an encoder goes through one without the GIL.
Nobody makes an object for each.

The layout is the log's own: an *entry* is a frame TRANSACTION (``txlog/frames.py``) whose header
has no parts and no origin. A test holds the two together.

A run is read once, from its front to its back: by an encoder in C (``take``), or transaction by
transaction (iteration), for plugins and sinks that have no loop of their own. What was committed
before it is read or after it is not its matter: order is the log's.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spillway._kernels.pg.crc32c cimport crc32c

from spillway.decoding.transaction import TransactionHeader
from spillway.errors import TransactionLogError

cdef enum:
    NO_LIMIT = 0xFFFFFFFFFFFFFFFF


cdef uint32_t entry_checksum(const FrameHeader* frame) noexcept nogil:
    """The checksum of a frame that lies in memory with its payload, all but the checksum itself."""
    return crc32c(0, <const uint8_t*>frame + 4, sizeof(FrameHeader) - 4 + <size_t>frame.length)


cdef bint read_entry(const uint8_t* data, size_t size, size_t offset, Entry* entry) noexcept nogil:
    """Read the entry at *offset*; False when there is none that is whole, or something else."""
    cdef const FrameHeader* frame = <const FrameHeader*>(data + offset)
    cdef size_t left = size - offset
    if left < ENTRY_HEADER_BYTES:
        return False
    if frame.kind != FRAME_KIND_TRANSACTION or frame.zero != 0 or frame.length % 8 != 0:
        return False
    if frame.length < sizeof(EntryHeader) or frame.length > left - sizeof(FrameHeader):
        return False
    entry.header = <const EntryHeader*>(frame + 1)
    if entry.header.kind != 0 or entry.header.parts != 0 or entry.header.origin_id != 0:
        return False
    entry.chunk = <const uint8_t*>(entry.header + 1)
    entry.chunk_size = frame.length - sizeof(EntryHeader)
    entry.next_offset = offset + sizeof(FrameHeader) + frame.length
    return True


def find_run(const uint8_t[::1] data not None, uint64_t from_lsn, relations):
    """Find the entries that *data* begins with, whose checksums are right.

    Args:
        data: frames of the log; it may end inside one.
        from_lsn: entries whose final_lsn is before this are passed over.
        relations: descriptors by id, for all of them.

    Returns:
        (a run or None when there is no entry to read, bytes of *data* that entries take, final_lsn
        of the last or 0).
    """
    cdef size_t size = data.shape[0]
    cdef size_t offset = 0
    cdef size_t start = 0
    cdef uint64_t last = 0
    cdef Entry entry
    if size == 0:
        return None, 0, 0
    with nogil:
        while read_entry(&data[0], size, offset, &entry):
            if (entry_checksum(<const FrameHeader*>(&data[0] + offset))
                    != (<const FrameHeader*>(&data[0] + offset)).crc):
                break
            offset = entry.next_offset
            last = entry.header.final_lsn
            if last < from_lsn:
                start = offset
    if start == offset:
        return None, offset, last
    return TransactionRun(data[start:offset], relations), offset, last


cdef class RunTransaction:
    """One transaction of a run; see :class:`spillway.decoding.transaction.Transaction`."""
    cdef readonly object header
    cdef readonly object relations
    cdef object _chunk

    def chunks(self):
        """Return an iterator of the changes: one chunk, or none."""
        return iter((self._chunk,) if len(self._chunk) else ())

    def close(self):
        """Do nothing: the run owns it."""


cdef class TransactionRun:
    """Transactions in commit order, read once.

    Args:
        data: entries, whose checksums are right; kept.
        relations: RelationDescriptors by id, of every relation that occurs in them.

    Attributes:
        relations: as above.
        taken: transactions read so far.
        last_end_lsn: end_lsn of the last one read, 0 before.
        reached_upto: the next one is at or past what :meth:`limit` named.
    """

    def __init__(self, const uint8_t[::1] data not None, relations):
        self._view = data
        self._size = data.shape[0]
        self._data = &data[0] if self._size else NULL
        self._upto_lsn = NO_LIMIT
        self.relations = relations

    cdef int take(self, Entry* entry) except -1 nogil:
        """Read the next transaction; 0 when there is none, or when it is past the limit."""
        if self._offset == self._size:
            return 0
        if not read_entry(self._data, self._size, self._offset, entry):
            with gil:
                raise TransactionLogError("a run of transactions is not what its checksums said",
                                          hint="Report this.")
        if entry.header.final_lsn >= self._upto_lsn:
            self.reached_upto = True
            return 0
        self._offset = entry.next_offset
        self.taken += 1
        self.last_end_lsn = entry.header.end_lsn
        return 1

    def limit(self, uint64_t upto_lsn):
        """Have reading end in front of the first transaction whose final_lsn is *upto_lsn* or
        later.
        """
        self._upto_lsn = upto_lsn

    @property
    def exhausted(self):
        """Whether all are read."""
        return self._offset == self._size

    @property
    def data(self):
        """What is not read yet, as it lies in the log."""
        return memoryview(self._view)[self._offset:]

    def next_lsn(self):
        """Return final_lsn of the next transaction, 0 without one."""
        cdef Entry entry
        if self._offset == self._size or not read_entry(self._data, self._size, self._offset,
                                                        &entry):
            return 0
        return entry.header.final_lsn

    def has_any_of(self, xids):
        """Say whether one of the transactions that are left has an xid of *xids*."""
        cdef size_t offset = self._offset
        cdef Entry entry
        while offset < self._size and read_entry(self._data, self._size, offset, &entry):
            if entry.header.xid in xids:
                return True
            offset = entry.next_offset
        return False

    def steps(self, size_t step_bytes):
        """Read what is left; return (final_lsn, end_lsn, offset) of one transaction in *step_bytes*
        and of the last.

        The offsets are of entries in what :attr:`data` was before.
        """
        cdef size_t start = self._offset
        cdef size_t at, last = start
        cdef list steps = []
        cdef Entry entry
        at = start
        while self.take(&entry):
            if (at == start or entry.next_offset - last >= step_bytes
                    or entry.next_offset == self._size):
                steps.append((entry.header.final_lsn, entry.header.end_lsn, at - start))
                last = at
            at = entry.next_offset
        return steps

    def skip_before(self, uint64_t lsn):
        """Pass over the transactions whose final_lsn is before *lsn*; they are not counted."""
        self._offset = self._skip_before(lsn)

    cdef size_t _skip_before(self, uint64_t lsn) except -1:
        cdef size_t offset = self._offset
        cdef Entry entry
        while offset < self._size and read_entry(self._data, self._size, offset, &entry):
            if entry.header.final_lsn >= lsn:
                break
            offset = entry.next_offset
        return offset

    def __iter__(self):
        return self

    def __next__(self):
        cdef Entry entry
        cdef RunTransaction transaction
        cdef Py_ssize_t start
        if not self.take(&entry):
            raise StopIteration
        transaction = RunTransaction()
        transaction.header = TransactionHeader(
            entry.header.xid, entry.header.first_lsn, entry.header.final_lsn, entry.header.end_lsn,
            entry.header.commit_time, 0, entry.header.origin_lsn)
        transaction.relations = self.relations
        start = entry.chunk - self._data
        transaction._chunk = memoryview(self._view)[start:start + <Py_ssize_t>entry.chunk_size]
        return transaction
