# cython: language_level=3, boundscheck=False, wraparound=False
"""Handing on a transaction: its arenas and those of its subtransactions, merged by LSN.

Each (sub)transaction's changes are in LSN order already: spilled extents first, then those in
memory. A heap of the arenas, keyed by the LSN of each one's next change, yields the whole in order.
A spilled extent is read back only when its first change is due and its buffer is freed after its
last, an extent in memory is freed as soon as it is read: what is held is one extent an arena that
is *open* at that LSN, the chunk being filled, and the TOAST values of the current row. The number
of subtransactions and the size of the transaction do not matter.

What PostgreSQL's heap holds besides changes, entries that it passes over, is in ours as well
(``note_passed`` in ``table.pyx``): a message bears the LSN of its record's end, where another's
record may begin, and which of the two comes first depends on who is where in the heap. With one
arena of changes there is no such question.

On the way TOAST chunks are gathered and put beside the row they belong to (``toast.pyx``),
speculative insertions wait for their confirmation, and flags that only arenas bear are taken off.

A transaction that ends is *taken*: the stream owns it, and frees it as it goes. One that was
prepared, or of which a part is streamed, is *borrowed*: the same changes will be read again, so
nothing is freed, and what is in memory stays there. A part begins at the byte of each arena where
the last one ended.

Small transactions are not even iterated over: ``gather`` puts all of one into the output buffer,
and the stream is used again for the next one (``commit.pyx``).

The common case has nothing to merge or assemble: one arena of plain changes. Its extents are handed
on as they are, without copying.

A transaction of which only a stretch of WAL was decoded can't be put together yet. Its stream is
left *raw*: in order, but with TOAST chunks, speculative insertions and the flags of arenas, to be
queued again where all of it is.

A chunk is a memoryview of memory that is freed or used again when the next one is asked for; the
view is released then, so that a late reader gets a ValueError and not another change's bytes.

Source: ReorderBufferIterTXNInit/Next, ReorderBufferProcessTXN,
src/backend/replication/logical/reorderbuffer.c
"""

cimport cython
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from spillway._kernels.reorder.changes cimport (
    CLEAR_TOAST,
    INSERT,
    SPECULATIVE_ABORT,
    SPECULATIVE_CONFIRM,
    SPECULATIVE_INSERT,
    TOAST_CHUNK,
    UPDATE,
    ChangeHeader,
)
from spillway._kernels.reorder.spill cimport (
    RESTORE_IO_ERROR,
    RESTORE_LOST,
    RESTORE_OK,
    RestoreStatus,
    restore_extent,
)
from spillway._kernels.reorder.table cimport (
    TXN_NEEDS_ASSEMBLY,
    TXN_SPECULATION_OPEN,
    IdSet,
    TransactionTable,
    Txn,
    extent_data,
)
from spillway._kernels.reorder.toast cimport (
    TOAST_BAD_CHUNK,
    TOAST_BAD_SIZE,
    TOAST_BAD_TUPLE,
    TOAST_NO_MEMORY,
    TOAST_NO_PLAN,
    TOAST_OK,
    TOAST_TOO_LARGE,
    RelationPlans,
    ToastGatherer,
    ToastStatus,
)

import os

from spillway.errors import DecodingError, DecodingStateLost, StorageError
from spillway.pg.lsn import Lsn

cdef enum:
    CHUNK_BYTES = 1 << 20
    NO_CHANGE = 0xFFFFFFFFFFFFFFFF

cdef dict _TOAST_REASONS = {
    TOAST_NO_PLAN: "the columns of its relation are not known",
    TOAST_BAD_CHUNK: "its TOAST chunks are not in sequence",
    TOAST_BAD_SIZE: "its TOAST chunks do not add up to the value's size",
    TOAST_BAD_TUPLE: "the tuple ends before its columns do",
    TOAST_TOO_LARGE: "with its TOAST values it is larger than 4 GiB",
}


@cython.no_gc_clear
cdef class ChangeStream:
    """Iterator over the chunks of one transaction; one that was taken is owned, with its spill
    file, until closed.
    """

    def __dealloc__(self):
        self.close()

    cdef void take(self, TransactionTable table, Txn *txn, RelationPlans plans) noexcept:
        """Own *txn*, which is out of the table already."""
        cdef Txn *child = txn.first_child
        self._table = table
        self._txn = txn
        self._xid = txn.xid
        self._plans = plans
        self.change_bytes = txn.change_bytes
        while child != NULL:
            self.change_bytes += child.change_bytes
            child = child.next

    cdef void borrow(self, TransactionTable table, Txn *txn, RelationPlans plans,
                     bint news) noexcept:
        """Read *txn*, which stays in the table and must not change before the stream is closed.

        With *news* only what came after the last part that was streamed.
        """
        cdef Txn *child
        self.take(table, txn, plans)
        self._borrowed = True
        self._news = news
        if news:
            self.change_bytes -= txn.streamed_bytes
            child = txn.first_child
            while child != NULL:
                self.change_bytes -= child.streamed_bytes
                child = child.next

    cdef void leave_raw(self) noexcept:
        """Hand the changes on merged but otherwise as they were queued, for who will queue them
        again.
        """
        self._raw = True

    def close(self):
        """Free memory and, of a transaction that was taken, remove the spill file; safe to
        repeat.
        """
        cdef uint32_t i
        self._release_view()
        for i in range(self._source_count):
            free(self._sources[i].restored)
        self._source_count = 0
        self._heap_size = 0
        free(self._sources)
        free(self._heap)
        free(self._out)
        free(self._speculative)
        self._sources = NULL
        self._heap = NULL
        self._out = NULL
        self._speculative = NULL
        self._out_room = 0
        self._sources_room = 0
        self._speculative_room = 0
        if self._txn != NULL and not self._borrowed:
            self._table.destroy(self._txn)
        self._txn = NULL

    def relation_ids(self):
        """Return the ids of every relation that the changes name, TRUNCATE's included."""
        cdef set ids = set()
        cdef Txn *txn = self._txn
        cdef IdSet *relations
        cdef uint32_t i
        if txn == NULL:
            return ids
        while txn != NULL:
            relations = &txn.relations
            for i in range(relations.capacity):
                if relations.slots[i] != 0:
                    ids.add(relations.slots[i])
            txn = self._txn.first_child if txn == self._txn else txn.next
        return ids

    def __iter__(self):
        return self

    def __next__(self):
        cdef Source *source
        cdef MergeStatus status
        self._release_view()
        if self._txn == NULL:
            raise StopIteration
        if not self._started:
            status = self._start()
            if status != MERGE_OK:
                raise self._fail(status)
            if self._assembles:
                self._toast = ToastGatherer(self._plans)
        if self._handed_on:
            # The last chunk was the piece itself; it has been read now.
            source = &self._sources[0]
            self._finish_piece(source)
            if not self._set_next_piece(source):
                self._heap_size = 0
            self._handed_on = False
        if self._heap_size == 0:
            raise StopIteration
        if not self._assembles:
            source = &self._sources[0]
            with nogil:
                status = self._load(source)
            if status != MERGE_OK:
                raise self._fail(status)
            self._handed_on = True
            self._view = PyMemoryView_FromMemory(
                <char *> source.position, <Py_ssize_t> (source.end - source.position), PyBUF_READ)
            return self._view
        self._out_used = 0
        with nogil:
            status = self._fill()
        if status != MERGE_OK:
            raise self._fail(status)
        if self._out_used == 0:
            raise StopIteration
        self._view = PyMemoryView_FromMemory(<char *> self._out, <Py_ssize_t> self._out_used,
                                             PyBUF_READ)
        return self._view

    def _release_view(self):
        if self._view is not None:
            self._view.release()
            self._view = None

    cdef int prepare(self, TransactionTable table, RelationPlans plans) except -1:
        """Make it one that gathers small transactions of *table*."""
        self._table = table
        self._plans = plans
        self._toast = ToastGatherer(plans)
        return 0

    cdef MergeStatus gather(self, Txn *txn) noexcept nogil:
        """Put all changes of *txn*, a small one that has not been spilled, into ``_out``, without
        the GIL.

        Its arenas are empty then; the stream may gather the next one.
        """
        cdef MergeStatus status
        self._txn = txn
        self._xid = txn.xid
        self._started = False
        self._has_speculative = False
        self._out_used = 0
        status = self._start()
        if status == MERGE_OK:
            status = self._fill()
        self._toast.reset()
        self._source_count = 0
        self._heap_size = 0
        self._txn = NULL
        return status

    cdef MergeStatus _start(self) noexcept nogil:
        """Collect the arenas that hold anything and build the heap."""
        cdef Txn *txn = self._txn
        cdef uint32_t room = 0
        cdef uint32_t with_changes = 0
        cdef uint32_t i
        cdef MergeStatus status
        cdef Source *source
        self._started = True
        self._assembles = False
        while txn != NULL:
            if txn.head != NULL or txn.spilled_count > 0 or txn.passed_count > 0:
                room += 1
            txn = self._txn.first_child if txn == self._txn else txn.next
        if room == 0:
            return MERGE_OK
        if not self._make_room(room):
            return MERGE_NO_MEMORY
        txn = self._txn
        while txn != NULL:
            if txn.head != NULL or txn.spilled_count > 0 or txn.passed_count > 0:
                source = &self._sources[self._source_count]
                self._source_count += 1
                if self._open(source, txn):
                    with_changes += 1
                    if source.skip > 0:
                        # The LSN of the change that it begins with is inside.
                        status = self._load(source)
                        if status != MERGE_OK:
                            return status
                if not self._settle(source):
                    self._source_count -= 1
            txn = self._txn.first_child if txn == self._txn else txn.next
        if with_changes <= 1:
            self._keep_one()
        for i in range(self._source_count):
            self._heap[i] = i
        self._heap_size = self._source_count
        for i in range(self._heap_size // 2, 0, -1):
            self._sift_down(i - 1)
        if self._source_count > 0:
            self._assembles = self._source_count > 1 or (not self._raw and (
                self._txn.flags & TXN_NEEDS_ASSEMBLY
                or self._sources[0].txn.flags & (TXN_NEEDS_ASSEMBLY | TXN_SPECULATION_OPEN)))
        return MERGE_OK

    cdef bint _make_room(self, uint32_t sources) noexcept nogil:
        """Have room for *sources*; False when memory is out."""
        cdef Source *grown_sources
        cdef uint32_t *grown_heap
        if sources <= self._sources_room:
            return True
        grown_sources = <Source *> realloc(self._sources, sources * sizeof(Source))
        if grown_sources == NULL:
            return False
        self._sources = grown_sources
        grown_heap = <uint32_t *> realloc(self._heap, sources * sizeof(uint32_t))
        if grown_heap == NULL:
            return False
        self._heap = grown_heap
        self._sources_room = sources
        return True

    cdef void _keep_one(self) noexcept nogil:
        """Forget the sources without changes and all passed entries; at most one source has
        changes.
        """
        cdef uint32_t i
        for i in range(self._source_count):
            if self._sources[i].change_lsn != NO_CHANGE:
                self._sources[0] = self._sources[i]
                self._sources[0].next_passed = self._sources[0].txn.passed_count
                self._sources[0].lsn = self._sources[0].change_lsn
                self._source_count = 1
                return
        self._source_count = 0

    cdef bint _settle(self, Source *source) noexcept nogil:
        """Say in *source* what is next, a change or a passed entry; False when nothing is."""
        source.lsn = source.change_lsn
        if source.next_passed < source.txn.passed_count:
            source.lsn = min(source.lsn, source.txn.passed_lsns[source.next_passed])
        return source.lsn != NO_CHANGE

    cdef bint _open(self, Source *source, Txn *txn) noexcept nogil:
        """Place *source* at the first change of *txn* that is wanted; False without any."""
        cdef uint64_t unwanted = txn.streamed_bytes if self._news else 0
        memset(source, 0, sizeof(Source))
        source.txn = txn
        source.extent = txn.head
        while (source.next_spilled < txn.spilled_count
               and unwanted >= txn.spilled[source.next_spilled].size):
            unwanted -= txn.spilled[source.next_spilled].size
            source.next_spilled += 1
        if source.next_spilled == txn.spilled_count and unwanted > 0:
            while source.extent != NULL and unwanted >= source.extent.used:
                unwanted -= source.extent.used
                source.extent = source.extent.next
        source.skip = <size_t> unwanted
        source.next_passed = txn.passed_streamed if self._news else 0
        return self._set_next_piece(source)

    cdef bint _set_next_piece(self, Source *source) noexcept nogil:
        """Point *source* at its next spilled or in-memory extent without loading it; False at the
        end.
        """
        cdef Txn *txn = source.txn
        source.position = NULL
        if source.next_spilled < txn.spilled_count:
            source.change_lsn = txn.spilled[source.next_spilled].first_lsn
            return True
        while source.extent != NULL and source.extent.used == 0:
            self._pass_extent(source)
        if source.extent == NULL:
            source.change_lsn = NO_CHANGE
            return False
        source.change_lsn = (<ChangeHeader *> extent_data(source.extent)).lsn
        return True

    cdef void _pass_extent(self, Source *source) noexcept nogil:
        """Go behind the extent in memory that *source* is at; free it unless the transaction is
        borrowed.
        """
        source.extent = source.extent.next
        if not self._borrowed:
            self._table.free_first_extent(source.txn)

    cdef MergeStatus _load(self, Source *source) noexcept nogil:
        """Make the piece that *source* points at readable."""
        cdef Txn *txn = source.txn
        cdef uint32_t size
        cdef RestoreStatus status
        if source.position != NULL:
            return MERGE_OK
        if source.next_spilled < txn.spilled_count:
            size = txn.spilled[source.next_spilled].size
            source.restored = <uint8_t *> malloc(size)
            if source.restored == NULL:
                return MERGE_NO_MEMORY
            status = restore_extent(txn, &txn.spilled[source.next_spilled], source.restored)
            if status == RESTORE_IO_ERROR:
                self._errno = errno
                return MERGE_SPILL_IO
            if status == RESTORE_LOST:
                return MERGE_SPILL_LOST
            if status != RESTORE_OK:
                return MERGE_SPILL_DAMAGED
            source.position = source.restored
            source.end = source.restored + size
        else:
            source.position = extent_data(source.extent)
            source.end = source.position + source.extent.used
        if source.skip > 0:
            source.position += source.skip
            source.skip = 0
            source.change_lsn = (<ChangeHeader *> source.position).lsn
        return MERGE_OK

    cdef void _finish_piece(self, Source *source) noexcept nogil:
        """Be done with the piece that *source* has read to its end."""
        if source.restored != NULL:
            free(source.restored)
            source.restored = NULL
            source.next_spilled += 1
        else:
            self._pass_extent(source)
        source.position = NULL

    cdef MergeStatus _fill(self) noexcept nogil:
        """Put whole changes into the output buffer until it holds a chunk or nothing is left."""
        cdef Source *source
        cdef MergeStatus status
        while self._heap_size > 0 and self._out_used < CHUNK_BYTES:
            source = &self._sources[self._heap[0]]
            if source.lsn == source.change_lsn:
                status = self._take_next(source)
                if status != MERGE_OK:
                    return status
            else:
                source.next_passed += 1
            if not self._settle(source):
                self._heap_size -= 1
                self._heap[0] = self._heap[self._heap_size]
            if self._heap_size > 1:
                self._sift_down(0)
        return MERGE_OK

    cdef MergeStatus _take_next(self, Source *source) noexcept nogil:
        """Take the next change of *source* and go behind it."""
        cdef ChangeHeader *change
        cdef MergeStatus status
        if source.position == NULL:
            status = self._load(source)
            if status != MERGE_OK:
                return status
        change = <ChangeHeader *> source.position
        self._error_lsn = change.lsn
        if (<size_t> (source.end - source.position) < sizeof(ChangeHeader)
            or change.size < sizeof(ChangeHeader)
                or change.size > <size_t> (source.end - source.position)):
            return MERGE_DAMAGED_CHANGE
        status = self._take_change(change)
        if status != MERGE_OK:
            return status
        source.position += change.size
        if source.position == source.end:
            self._finish_piece(source)
            self._set_next_piece(source)
        else:
            source.change_lsn = (<ChangeHeader *> source.position).lsn
        return MERGE_OK

    cdef MergeStatus _take_change(self, ChangeHeader *change) noexcept nogil:
        """One change in LSN order: emit it, or keep it for the one it belongs to."""
        cdef uint8_t *grown
        cdef ToastStatus toast
        cdef MergeStatus status
        cdef uint8_t *place
        if self._raw:
            place = self._room_for(change.size)
            if place == NULL:
                return MERGE_NO_MEMORY
            memcpy(place, change, change.size)
            return MERGE_OK
        if change.action == TOAST_CHUNK:
            toast = self._toast.append(change)
            if toast != TOAST_OK:
                self._toast_status = toast
                return MERGE_TOAST
            return MERGE_OK
        if change.action == SPECULATIVE_INSERT:
            if self._speculative_room < change.size:
                grown = <uint8_t *> realloc(self._speculative, change.size)
                if grown == NULL:
                    return MERGE_NO_MEMORY
                self._speculative = grown
                self._speculative_room = change.size
            memcpy(self._speculative, change, change.size)
            self._has_speculative = True
            return MERGE_OK
        if change.action == SPECULATIVE_CONFIRM:
            if not self._has_speculative:
                return MERGE_OK if self._plans.partial_values else MERGE_DAMAGED_CHANGE
            self._has_speculative = False
            change = <ChangeHeader *> self._speculative
            change.action = INSERT
        elif change.action == SPECULATIVE_ABORT:
            # Each TOAST row's withdrawal follows the main row's; only that one counts.
            if self._has_speculative:
                self._has_speculative = False
                self._toast.reset()
            return MERGE_OK
        status = self._emit(change)
        if change.flags & CLEAR_TOAST:
            self._toast.reset()
        return status

    cdef MergeStatus _emit(self, const ChangeHeader *change) noexcept nogil:
        """Copy a change to the output with its TOAST values behind it."""
        cdef size_t extra = 0
        cdef uint8_t *place
        cdef ChangeHeader *written
        cdef ToastStatus toast
        if change.action == INSERT or change.action == UPDATE:
            toast = self._toast.match(change, &extra)
            if toast == TOAST_OK and change.size + extra > <size_t> 0xFFFFFFF8:
                toast = TOAST_TOO_LARGE
            if toast != TOAST_OK:
                self._toast_status = toast
                return MERGE_TOAST
        place = self._room_for(change.size + extra)
        if place == NULL:
            return MERGE_NO_MEMORY
        memcpy(place, change, change.size)
        written = <ChangeHeader *> place
        written.flags &= ~(<uint8_t> CLEAR_TOAST)
        if extra > 0:
            written.toast_count = <unsigned short> self._toast.match_count
            written.size = <uint32_t> (change.size + extra)
            self._toast.write(place + change.size)
        return MERGE_OK

    cdef uint8_t *_room_for(self, size_t size) noexcept nogil:
        """Return room for *size* more bytes of output, NULL when memory is out."""
        cdef size_t room = self._out_room
        cdef uint8_t *grown
        if self._out_used + size > room:
            if room == 0:
                room = 64 * 1024
            while room < self._out_used + size:
                room *= 2
            grown = <uint8_t *> realloc(self._out, room)
            if grown == NULL:
                return NULL
            self._out = grown
            self._out_room = room
        self._out_used += size
        return self._out + (self._out_used - size)

    cdef bint _before(self, uint32_t a, uint32_t b) noexcept nogil:
        """Order of two sources.

        Of two with the same LSN neither is before the other. Who is where in PostgreSQL's heap
        decides then; this one has the same entries and is built and sifted as that one, so that it
        decides the same.
        """
        return self._sources[a].lsn < self._sources[b].lsn

    cdef void _sift_down(self, uint32_t i) noexcept nogil:
        cdef uint32_t child
        cdef uint32_t moving = self._heap[i]
        while True:
            child = 2 * i + 1
            if child >= self._heap_size:
                break
            if child + 1 < self._heap_size and self._before(self._heap[child + 1],
                                                            self._heap[child]):
                child += 1
            if not self._before(self._heap[child], moving):
                break
            self._heap[i] = self._heap[child]
            i = child
        self._heap[i] = moving

    cdef object _fail(self, MergeStatus status):
        """Make the exception for a status."""
        cdef Txn *txn
        xid = self._xid
        lsn = str(Lsn(self._error_lsn))
        if status == MERGE_NO_MEMORY or (status == MERGE_TOAST
                                         and self._toast_status == TOAST_NO_MEMORY):
            return MemoryError()
        if status == MERGE_SPILL_IO:
            return StorageError(
                f"a spill file of transaction {xid} can't be read: {os.strerror(self._errno)}",
                hint="Decoding starts again from WAL; check the disk if this repeats.", xid=xid)
        if status == MERGE_SPILL_DAMAGED:
            return StorageError(
                f"a spill file of transaction {xid} is damaged",
                hint="The disk returned other bytes than were written. Decoding starts again from "
                "WAL.", xid=xid)
        if status == MERGE_SPILL_LOST:
            txn = self._txn
            while txn.file == NULL:
                txn = txn.first_child if txn == self._txn else txn.next
            path = os.fsdecode(txn.file.path)
            return DecodingStateLost(
                f"the spill file {path} is damaged, and the WAL of what it held of transaction "
                f"{xid} is no longer kept",
                hint="The disk returned other bytes than were written. Restore the file from a "
                "backup, or begin anew behind that transaction: spillway source restart SOURCE "
                "DATABASE.",
                xid=xid)
        if status == MERGE_TOAST:
            return DecodingError(
                f"a change of transaction {xid} at {lsn} can't be decoded: "
                f"{_TOAST_REASONS[self._toast_status]}",
                hint="The WAL and the catalog do not fit each other; report this with the WAL "
                "segment.",
                lsn=lsn, xid=xid)
        return DecodingError(
            f"a buffered change of transaction {xid} near {lsn} contradicts itself",
            hint="Decoding starts again from WAL; report this if it repeats.", lsn=lsn, xid=xid)
