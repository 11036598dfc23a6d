# cython: language_level=3, boundscheck=False, wraparound=False
"""Bounding the memory of transactions in progress by writing the largest to disk.

``make_room`` is called when extents occupy more than ``work_mem_bytes``. It takes the top-level
transaction whose tree (itself and its subtransactions) occupies most and writes all of the tree's
extents to the tree's spill file, and goes on until the bound holds again. Whole trees, not single
subtransactions: with a hundred thousand small savepoints in one transaction, picking one at a time
would search and free a kilobyte a hundred thousand times.

A spill file is a sequence of frames, one an extent::

    u32 magic | u32 size | u32 xid | u32 crc32c of the payload | payload

The index of a transaction's frames (offset, size, checksum, LSN of the first change) stays in
memory, 24 bytes for up to ``extent_bytes_max`` of changes. With the LSN there, the merge at commit
reads a frame only when its first change is due: what it holds in memory is one frame a
subtransaction *open at that LSN*, however many there are.

Files bear the xid of their transaction and last as long as it does. Most are worth nothing after
the process ends: the decoder removes leftovers when it starts, and reads WAL again from the restart
point. That is why they are not synced, and why a disk that is full costs no data: the decoding
session fails, the WAL remains. Those that a serialised state names are another matter
(``carry.pyx``): synced up to there, kept when their transaction has ended, and appended to after a
restart. Relation ids are a process's own, so a frame from before a restart is translated as it is
read.

Source: ReorderBufferCheckMemoryLimit, ReorderBufferSerializeTXN,
src/backend/replication/logical/reorderbuffer.c
"""

from libc.errno cimport EINTR, EIO, ENOMEM, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_EXCL, O_RDWR, open as posix_open
from posix.types cimport off_t
from posix.unistd cimport pread, pwrite

from spillway._kernels.reorder.changes cimport TRUNCATE, ChangeHeader
from spillway._kernels.pg.crc32c cimport crc32c
from spillway._kernels.reorder.table cimport (
    TXN_WAS_SPILLED,
    Extent,
    IdRange,
    SpilledExtent,
    SpillFile,
    TransactionTable,
    Txn,
    extent_data,
)

import os


cdef struct FrameHeader:
    uint32_t magic
    uint32_t size
    uint32_t xid
    uint32_t crc


cdef enum:
    FRAME_MAGIC = 0x4C4C5053  # SPLL
    FRAME_HEADER_SIZE = 16
    # Most subtransactions are small: what is spilled of them is one extent.
    SPILLED_FIRST = 1


cdef bint _write_all(SpillFile *file, const uint8_t *data, size_t size) noexcept nogil:
    """Append to *file*; False with errno set when that fails. A half-written frame is not in any
    index.
    """
    cdef ssize_t written
    while size > 0:
        written = pwrite(file.fd, data, size, <off_t> file.size)
        if written < 0:
            if errno == EINTR:
                continue
            return False
        data += written
        size -= <size_t> written
        file.size += <uint64_t> written
    return True


cdef bint _write_frame(Txn *txn, Extent *extent, uint32_t crc) noexcept nogil:
    """Append *extent* as a frame, in one write: for its time the frame's header stands in place of
    the extent's own.
    """
    cdef Extent own = extent[0]
    cdef FrameHeader *header = <FrameHeader *> (extent_data(extent) - FRAME_HEADER_SIZE)
    cdef bint written
    header.magic = FRAME_MAGIC
    header.size = own.used
    header.xid = txn.xid
    header.crc = crc
    written = _write_all(txn.file, <const uint8_t *> header, FRAME_HEADER_SIZE + own.used)
    extent[0] = own
    return written


cdef RestoreStatus restore_extent(Txn *txn, SpilledExtent *spilled, uint8_t *buffer) noexcept nogil:
    """Read a spilled extent back into *buffer*, which holds ``spilled.size`` bytes, and check
    it.
    """
    cdef size_t done = 0
    cdef ssize_t got
    while done < spilled.size:
        got = pread(txn.file.fd, buffer + done, spilled.size - done,
                    <off_t> (spilled.offset + done))
        if got < 0:
            if errno == EINTR:
                continue
            return RESTORE_IO_ERROR
        if got == 0:
            break
        done += <size_t> got
    if done == spilled.size and crc32c(0, buffer, spilled.size) == spilled.crc and (
            txn.file.range_count == 0 or map_ids(txn.file, spilled.offset, buffer, spilled.size)):
        return RESTORE_OK
    return RESTORE_LOST if spilled.offset < txn.file.inherited_size else RESTORE_DAMAGED


cdef inline bint _map_id(const IdRange *ids, uint32_t *relation, uint32_t *hint) noexcept nogil:
    """Replace *relation*, not 0, by what it is called now; False when it is not known."""
    cdef uint32_t low = 0
    cdef uint32_t high = ids.count
    cdef uint32_t middle
    if hint[0] >= ids.count or ids.from_ids[hint[0]] != relation[0]:
        while low < high:
            middle = (low + high) // 2
            if ids.from_ids[middle] < relation[0]:
                low = middle + 1
            else:
                high = middle
        if low == ids.count or ids.from_ids[low] != relation[0]:
            return False
        hint[0] = low
    relation[0] = ids.to_ids[hint[0]]
    return True


cdef bint map_ids(SpillFile *file, uint64_t offset, uint8_t *changes, size_t size) noexcept nogil:
    """Translate the relation ids in *changes*, *size* bytes at *offset* of *file*; False when they
    are damaged.
    """
    cdef const IdRange *ids = NULL
    cdef ChangeHeader *change
    cdef uint32_t *section
    cdef uint32_t hint = 0
    cdef uint32_t relation, i
    cdef size_t at = 0
    for i in range(file.range_count):
        if offset < file.ranges[i].end:
            ids = &file.ranges[i]
            break
    if ids == NULL:
        return True
    while at < size:
        change = <ChangeHeader *> (changes + at)
        if (size - at < sizeof(ChangeHeader) or change.size < sizeof(ChangeHeader)
            or change.size > size - at
                or change.new_size > change.size - sizeof(ChangeHeader)):
            return False
        if change.relation != 0:
            relation = change.relation
            if not _map_id(ids, &relation, &hint):
                return False
            change.relation = relation
        elif change.action == TRUNCATE:
            section = <uint32_t *> (change + 1)
            if change.new_size < 8 or section[1] > (change.new_size - 8) // 4:
                return False
            for i in range(2, 2 + section[1]):
                if not _map_id(ids, &section[i], &hint):
                    return False
        at += change.size
    return True


cdef class Spiller:
    """Writes extents to files in one directory."""

    def __cinit__(self, bytes directory, size_t work_mem_bytes):
        assert sizeof(FrameHeader) == FRAME_HEADER_SIZE and sizeof(Extent) >= FRAME_HEADER_SIZE
        self._directory = directory
        self._path = self._directory
        self._path_size = len(directory)
        self.work_mem_bytes = work_mem_bytes

    cdef bint make_room(self, TransactionTable table) noexcept nogil:
        """Spill until *table* is within the bound; False with ``error`` set when a file can't be
        written.
        """
        cdef Txn *txn
        cdef Txn *largest
        while table.total_bytes > self.work_mem_bytes:
            largest = NULL
            txn = table.oldest
            while txn != NULL:
                if txn.tree_bytes > 0 and (largest == NULL or txn.tree_bytes > largest.tree_bytes):
                    largest = txn
                txn = txn.next
            if largest == NULL:
                return True  # what remains belongs to a transaction that is being handed on
            if not self._spill_tree(table, largest):
                return False
        return True

    cdef bint _spill_tree(self, TransactionTable table, Txn *top) noexcept nogil:
        cdef Txn *child = top.first_child
        if top.file == NULL and not self._open(top):
            return False
        if not top.flags & TXN_WAS_SPILLED:
            self.spill_txns += 1
        self.spill_count += 1
        if not self._spill_one(table, top, top):
            return False
        while child != NULL:
            if child.head != NULL and not self._spill_one(table, child, top):
                return False
            child = child.next
        return True

    cdef bint _spill_one(self, TransactionTable table, Txn *txn, Txn *top) noexcept nogil:
        cdef Extent *extent
        cdef SpilledExtent *grown
        cdef SpilledExtent *entry
        cdef uint32_t room
        txn.flags |= TXN_WAS_SPILLED
        if txn.file == NULL:
            txn.file = top.file
            txn.file.references += 1
        while txn.head != NULL:
            extent = txn.head
            if extent.used > 0:
                if txn.spilled_count == txn.spilled_room:
                    room = SPILLED_FIRST if txn.spilled_room == 0 else txn.spilled_room * 2
                    grown = <SpilledExtent *> realloc(txn.spilled, room * sizeof(SpilledExtent))
                    if grown == NULL:
                        self.error = ENOMEM
                        return False
                    txn.spilled = grown
                    txn.spilled_room = room
                entry = &txn.spilled[txn.spilled_count]
                entry.offset = txn.file.size + FRAME_HEADER_SIZE
                entry.first_lsn = (<ChangeHeader *> extent_data(extent)).lsn
                entry.size = extent.used
                entry.crc = crc32c(0, extent_data(extent), extent.used)
                if not _write_frame(txn, extent, entry.crc):
                    self.error = errno if errno != 0 else EIO
                    return False
                txn.spilled_count += 1
                self.spill_bytes += extent.used
            table.free_first_extent(txn)
        txn.last_change = NULL
        return True

    cdef bint _open(self, Txn *top) noexcept nogil:
        cdef size_t room = self._path_size + 40
        cdef SpillFile *file = <SpillFile *> calloc(1, sizeof(SpillFile))
        if file == NULL:
            self.error = ENOMEM
            return False
        file.path = <char *> malloc(room)
        if file.path == NULL:
            free(file)
            self.error = ENOMEM
            return False
        # The LSN tells apart a transaction from one of the same xid whose file is still being read.
        snprintf(file.path, room, b"%s/xid-%u-%llX.spill", self._path, top.xid,
                 <unsigned long long> top.first_lsn)
        file.fd = posix_open(file.path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0o600)
        if file.fd < 0:
            self.error = errno if errno != 0 else EIO
            free(file.path)
            free(file)
            return False
        file.references = 1
        top.file = file
        return True

    cdef SpillFile *open_kept(self, bytes name, uint64_t size):
        """Open the file *name* of an earlier decoder, to go on behind its first *size* bytes; it
        has no reference yet.

        Raises:
            OSError: it can't be opened, or is shorter.
        """
        cdef bytes path = self._directory + b"/" + name
        cdef SpillFile *file
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(fd).st_size
            if found < size:
                raise OSError(EIO, f"it has {found} bytes of {size}", os.fsdecode(path))
            # What came later is decoded again.
            os.ftruncate(fd, size)
            file = <SpillFile *> calloc(1, sizeof(SpillFile))
            if file == NULL:
                raise MemoryError
            file.path = <char *> malloc(len(path) + 1)
            if file.path == NULL:
                free(file)
                raise MemoryError
        except BaseException:
            os.close(fd)
            raise
        memcpy(file.path, <const char *> path, len(path) + 1)
        file.fd = fd
        file.size = size
        file.synced_size = size
        file.inherited_size = size
        file.is_kept = True
        return file
