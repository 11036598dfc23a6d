"""Writing the transaction log of one database: decoded once, read by every slot.

In come committed transactions in commit order, from the decoder's thread (:class:`LogWriter` is
its sink). Out go the same transactions to any number of cursors, at any retained LSN: those take a
:class:`~spillway.txlog.reader.LogReader`, never the writer. On disk the log is a sequence of
segments (``frames.py``).

Durability. The log is a cache of what can be decoded again from WAL, so nothing here is fsynced per
transaction. ``checkpoint`` writes a PROGRESS frame and syncs; WAL and serialised snapshots may be
dropped only before the restart_lsn that such a synced frame names. After a crash ``open`` cuts off
a torn tail, the decoder starts again at the restart_lsn of the last PROGRESS frame left, and
``transaction`` drops what is already here.

Damage. What a disk lost or changed never stops the log from being opened. A header is written
again; the last segment is cut where damage begins. Whether decoding can go on from there without a
gap is its owner's to find out (``sessions/healing.py``), who else calls ``begin_anew``. One before
the last that is damaged or gone is a hole: its readers are told so, those behind it go on. Damage
that a reader or the verification (``verification.py``) meets is noted (``note_damage``), in the
last segment after the writer has begun another one (``seal_damaged``). The owner asks for such a
hole (``damage``), and has it put back, decoded again (``put_back``), or given up with all before it
(``drop_through``).

Visibility. Readers see a :class:`~spillway.txlog.reader.Snapshot`, whose end only moves past whole
transactions, and only after their bytes are in the file. A transaction of many chunks is written as
it is merged and becomes visible at its end. Readers of this process are shown it
(:attr:`LogWriter.reader`), and then it is announced to those of others, who need the directory
alone. What goes, or is replaced, is announced before it happens.

Bounds. Up to :data:`WRITE_BUFFER_BYTES` wait in memory for one gathered write. Segments are removed
from the front by ``remove_before``; the engine calls it with the slots' oldest position.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakValueDictionary

from spillway.errors import TransactionLogError
from spillway.storage.announcement import Announcer
from spillway.storage.durable_files import create_file, overwrite_start, put_in_place
from spillway.storage.file_errors import file_error, file_errors
from spillway.txlog import frames
from spillway.txlog.opening import open_segments, remove_segments
from spillway.txlog.reader import END_KIND, END_NAME, LogEnd, LogReader, Snapshot
from spillway.txlog.segment import INDEX_STEP_BYTES, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.decoding.transaction import Transaction

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES: Final = 1 << 20
SEGMENT_BYTES_DEFAULT: Final = 64 << 20
LOW_SEGMENT_BYTES: Final = 2 << 20
#: So much of what was published last is shown with it.
TAIL_BYTES: Final = 64 << 10


class LogWriter:
    """A database's transaction log, of which this is the one writer. One thread decodes into it;
    others look after its segments.
    """

    def __init__(
        self,
        directory: Path,
        *,
        system_id: int,
        database_oid: int,
        segment_bytes: int = SEGMENT_BYTES_DEFAULT,
        admit: Callable[[], None] = lambda: None,
        is_low: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the log in *directory*, made if absent, and cut off a torn tail.

        *admit* may refuse writes by an OSError; while space *is_low*, segments are small, so that
        they can go soon.

        Raises:
            CorruptTransactionLog: a segment is of another cluster or database, or of another
                format.
            StorageError: a file can't be used (DiskFull: the directory can't be made).
        """
        self.directory = Path(directory)
        self._system_id = system_id
        self._database_oid = database_oid
        self._segment_bytes = segment_bytes
        self._admit, self._is_low = admit, is_low
        self._lock = threading.Lock()
        self._pieces: list[bytes | memoryview] = []
        self._pieces_bytes = 0
        # What readers of the last segment take an id for. Descriptors of the past are not kept for
        # that.
        self._written: WeakValueDictionary[int, RelationDescriptor] = WeakValueDictionary()
        # Those of the last transaction, all of which are written.
        self._last_relations: Mapping[int, RelationDescriptor] | None = None
        self._fd = -1
        self._failed = False
        with file_errors(self.directory, "open"):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._announcer = Announcer(self.directory / END_NAME, END_KIND, len(LogEnd._fields))
            try:
                self._segments = open_segments(self.directory, self._system_id, self._database_oid)
            except BaseException:
                self._announcer.close()
                raise
        #: held while files of segments change places
        self._moving = threading.RLock()
        self._damaged = {segment.start_lsn for segment in self._segments if segment.lost}
        self._shown = LogReader(self.note_damage)
        self._announcing = threading.Lock()
        self._epoch, self._mended = self._epoch_and_mended()
        self._take_stock()
        self._announce()

    @property
    def reader(self) -> LogReader:
        """What is published, for readers of this process."""
        return self._shown

    def _epoch_and_mended(self) -> tuple[int, int]:
        """Go on with the epoch in which readers were last told something, if that is still here."""
        values = self._announcer.values
        if values is None:
            return time.time_ns(), 0
        told = LogEnd(*values)
        sizes = {segment.start_lsn: segment.size for segment in self._segments}
        is_here = not told.last_start_lsn or sizes.get(told.last_start_lsn, 0) >= told.end
        return told.epoch + (not is_here), told.mended

    def _take_stock(self) -> None:
        """Take over what the segments say, and go on behind the last one."""
        last = self._segments[-1] if self._segments else None
        #: commit record's start of the newest transaction, 0 without
        self.last_final_lsn = max((s.last_final_lsn for s in self._segments), default=0)
        #: where decoding must begin again so that nothing after the log's end is missed, 0 when
        #: empty
        self.restart_lsn = last.restart_lsn if last else 0
        self._decoded_lsn = max(
            (max(s.decoded_lsn, s.last_end_lsn, s.start_lsn) for s in self._segments), default=0
        )
        self._pending_decoded_lsn = self._decoded_lsn
        #: as of the last checkpoint: transactions that commit before this are all here
        self.complete_to = max((s.decoded_lsn for s in self._segments), default=0)
        self._shown.show(None)
        if last is not None:
            self._fd = os.open(last.path, os.O_WRONLY | os.O_CLOEXEC)
            os.lseek(self._fd, last.size, os.SEEK_SET)
            # Ids of another process's life mean nothing in this one: descriptors are written again.
            self._show()

    # -- opening ------------------------------------------------------------------------------

    def note_damage(self, segment: Segment) -> None:
        """Hear that *segment* is not what was written."""
        with self._lock:
            self._damaged.add(segment.start_lsn)

    @property
    def is_damaged(self) -> bool:
        """Whether some segment is not what was written."""
        return bool(self._damaged)

    def damage(self) -> tuple[int, int] | None:
        """Return [from, up to) of the newest hole: what commits there can't be read. None without
        one that is sealed.
        """
        with self._lock:
            for segment, following in reversed(tuple(itertools.pairwise(self._segments))):
                if segment.start_lsn in self._damaged:
                    return segment.start_lsn, following.start_lsn
        return None

    def miss(self, lsn: int) -> None:
        """Have what commits from *lsn* to the log's beginning be a hole: somebody stands there, so
        it was here.
        """
        with self._lock:
            if self._segments and lsn < self._segments[0].start_lsn:
                path = self.directory / frames.segment_name(lsn)
                hole = Segment(path, lsn, size=0, lost=True)
                self._segments[0].follows = lsn
                self._segments.insert(0, hole)
                self._damaged.add(lsn)
                visible = self._shown.snapshot()
                if visible is not None:
                    shown = (hole, *visible.segments)
                    self._shown.show(visible._replace(segments=shown))
        self._announce()

    def seal_damaged(self) -> None:
        """Begin another segment if the last one is damaged, so that it can be mended as any other.
        For the writer.
        """
        last = self._segments[-1] if self._segments else None
        if last is None or last.start_lsn not in self._damaged or not self.restart_lsn:
            return
        self.publish()
        self._new_segment(max(self._decoded_lsn, last.last_end_lsn, last.start_lsn + 1))
        self.checkpoint(self.restart_lsn)

    def put_back(self, start_lsn: int, path: Path, new_start_lsn: int) -> None:
        """Take the segment file *path* for the one that starts at *start_lsn* and is damaged.

        It has all that commits from *new_start_lsn* on. If that is later than what was there, what
        is before is given up. Does nothing when the damaged one was removed meanwhile.

        Raises:
            CorruptTransactionLog: it is damaged, too.
            StorageError: it can't be moved.
        """
        segment = Segment(self.directory / frames.segment_name(new_start_lsn), new_start_lsn)
        with self._moving, file_errors(self.directory, "mend"):
            at = self._index_of(start_lsn)
            if at is None:
                return
            old, following = self._segments[at : at + 2]
            whole = Segment(path, new_start_lsn)
            if whole.scan() < path.stat().st_size:
                raise frames.corrupt(str(path), whole.size, new_start_lsn, "written just now")
            put_in_place(path, segment.path)
            segment.scan()
            segment.save_index()
            self._link(following, new_start_lsn)
            with self._lock:
                segment.follows = old.follows if new_start_lsn == start_lsn else None
                following.follows = new_start_lsn
                self._segments[at] = segment
                self._damaged.discard(start_lsn)
                visible = self._shown.snapshot()
                if visible is not None:
                    shown = tuple(segment if s is old else s for s in visible.segments)
                    self._shown.show(visible._replace(segments=shown))
                self._mended += 1
            self._announce()
            if new_start_lsn != start_lsn:
                remove_segments([old.path])
                self._remove_first(at)

    def drop_through(self, start_lsn: int) -> None:
        """Give up the damaged segment that starts at *start_lsn*, and all before it: no reader
        could go past it.
        """
        with self._moving, file_errors(self.directory, "remove segments of"):
            at = self._index_of(start_lsn)
            if at is not None:
                self._remove_first(at + 1)

    def _index_of(self, start_lsn: int) -> int | None:
        """Return which of the sealed segments starts at *start_lsn* and is damaged."""
        with self._lock:
            for at, segment in enumerate(self._segments[:-1]):
                if segment.start_lsn == start_lsn and start_lsn in self._damaged:
                    return at
        return None

    def _link(self, segment: Segment, before: int) -> None:
        """Have the header of *segment* say that the segment before it starts at *before*."""
        header = frames.encode_segment_header(
            self._system_id, self._database_oid, segment.start_lsn, frames.segment_link(before)
        )
        overwrite_start(segment.path, header)

    # -- what is here -------------------------------------------------------------------------

    @property
    def start_lsn(self) -> int | None:
        """Every transaction whose commit record starts here or later is in the log; None when
        empty.
        """
        with self._lock:
            return self._segments[0].start_lsn if self._segments else None

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments as of now, the oldest first; the last one is being written."""
        with self._lock:
            return tuple(self._segments)

    @property
    def decoded_lsn(self) -> int:
        """How far WAL is decoded, and visible to readers."""
        return self._decoded_lsn

    # -- the sink -----------------------------------------------------------------------------

    def start(self, lsn: int) -> None:
        """Begin an empty log at *lsn*: transactions whose commit record starts there or later will
        come.

        Does nothing when the log has a segment. Until the first :meth:`checkpoint` the log is
        provisional: opening or recovering it throws it away, since nobody knows where decoding
        would have to restart.
        """
        if not self._segments:
            self._new_segment(lsn)
            self.progress(lsn)
            self.publish()

    def transaction(self, transaction: Transaction) -> None:
        """Append *transaction*, unless it is here already or commits before the log's start.

        Raises:
            DiskFull: there is no space; the log is as it was before, and must be opened again.
            TransactionLogError: the log was not started, or an earlier write failed.
        """
        header = transaction.header
        if header.final_lsn < self._wanted_from():
            return
        segment = self._segment_for_more(header.final_lsn)
        self._write_relations(segment, transaction.relations)
        offset = segment.size + self._pieces_bytes
        packed = frames.encode_transaction_header(header)
        chunks = transaction.chunks()
        # A chunk is valid only until the next one is asked for, hence the copies.
        first = bytes(next(chunks, b""))
        second = bytes(next(chunks, b"")) if first else b""
        if not second:
            self._append(frames.encode_frame(frames.TRANSACTION, packed, first))
        else:
            self._append(frames.encode_frame(frames.BEGIN, packed))
            self._append(frames.encode_frame(frames.CHANGES, first))
            self._append(frames.encode_frame(frames.CHANGES, second))
            for chunk in chunks:
                self._append(frames.encode_frame(frames.CHANGES, bytes(chunk)))
            end = frames.END_PAYLOAD.pack(header.final_lsn)
            self._append(frames.encode_frame(frames.END, end))
        segment.note_transaction(header.final_lsn, header.end_lsn, offset)
        self.last_final_lsn = header.final_lsn

    def transactions(self, run: TransactionRun) -> None:
        """Append every transaction of *run* as they lie there, without those that are here already.

        Raises:
            As :meth:`transaction`.
        """
        run.skip_before(self._wanted_from())
        if run.exhausted:
            return
        segment = self._segment_for_more(run.next_lsn())
        self._write_relations(segment, run.relations)
        offset = segment.size + self._pieces_bytes
        data = run.data
        for final_lsn, end_lsn, at in run.steps(INDEX_STEP_BYTES):
            segment.note_transaction(final_lsn, end_lsn, offset + at)
        self._append([data])
        self.last_final_lsn = segment.last_final_lsn

    def _wanted_from(self) -> int:
        """Return the final_lsn from which on transactions are not here yet, and belong here.

        Raises:
            TransactionLogError: the log was not started.
        """
        if not self._segments:
            raise TransactionLogError("the transaction log was not started")
        return max(self.last_final_lsn + 1, self.complete_to, self._segments[0].start_lsn)

    def _segment_for_more(self, final_lsn: int) -> Segment:
        """Return the segment that takes what comes, of *final_lsn*; a new one when the last is
        full.
        """
        segment = self._segments[-1]
        size = segment.size + self._pieces_bytes
        is_full = size >= self._segment_bytes or (size >= LOW_SEGMENT_BYTES and self._is_low())
        if is_full and segment.last_final_lsn:
            self._flush()
            segment = self._new_segment(final_lsn)
        return segment

    def has_room(self, nbytes: int) -> bool:
        """Whether so much more goes into the segment that is written now: sealing it is a sync."""
        size = self._segments[-1].size + nbytes if self._segments else self._segment_bytes
        return size < self._segment_bytes and (size < LOW_SEGMENT_BYTES or not self._is_low())

    def progress(self, decoded_lsn: int) -> None:
        """Note that WAL is decoded up to *decoded_lsn*; readers see it at the next
        :meth:`publish`.
        """
        self._pending_decoded_lsn = max(self._pending_decoded_lsn, decoded_lsn)

    def publish(self) -> None:
        """Write what is buffered and let readers see it.

        Raises:
            DiskFull: as :meth:`transaction`.
        """
        if not self._segments or (
            not self._pieces and self._pending_decoded_lsn <= self._decoded_lsn
        ):
            return
        written = self._flush()
        self._decoded_lsn = max(self._decoded_lsn, self._pending_decoded_lsn)
        self._show(written if len(written) <= TAIL_BYTES else b"")
        # Those deliver on this thread; whoever reads in other processes looks when it does.
        self._shown.tell_first()
        try:
            self._announce()
        finally:
            # The last thing: who is told runs on another thread, which would wait for the
            # interpreter's lock as long as there is more to do here.
            self._shown.tell()

    def _show(self, tail: bytes = b"") -> None:
        """Move the visible end to the end of what is in the files, which is *tail*."""
        with self._lock:
            segments = tuple(self._segments)
            self._shown.show(Snapshot(segments, segments[-1].size, self._decoded_lsn, tail))

    def _announce(self) -> None:
        """Tell readers of other processes what is visible.

        Raises:
            StorageError: they can't be told.
        """
        with self._announcing:
            visible = self._shown.snapshot()
            values: tuple[int, ...]
            if visible is None or not self.restart_lsn:
                # Nothing, or what is thrown away when this process dies.
                values = (self._epoch, self._mended, *(0,) * (len(LogEnd._fields) - 2))
            else:
                last = visible.segments[-1]
                # As LogEnd has them; made for each publish, and taken apart by others.
                values = (
                    self._epoch,
                    self._mended,
                    visible.segments[0].start_lsn,
                    last.start_lsn,
                    visible.end,
                    last.last_final_lsn,
                    last.last_end_lsn,
                    visible.decoded_lsn,
                    self.restart_lsn,
                )
            try:
                self._announcer.announce(*values)
            except OSError as error:
                raise file_error(error, self.directory, "announce the end of") from error

    def checkpoint(self, restart_lsn: int) -> None:
        """Make everything published so far durable, with the point that decoding may restart from.

        Afterwards ``restart_lsn`` is *restart_lsn*, and WAL and snapshots before it are no longer
        needed.
        """
        if not self._segments:
            return
        self.publish()
        decoded = self._decoded_lsn
        self._append(
            frames.encode_frame(frames.PROGRESS, frames.PROGRESS_PAYLOAD.pack(decoded, restart_lsn))
        )
        self._flush()
        with file_errors(self.directory, "sync"):
            os.fsync(self._fd)
        segment = self._segments[-1]
        segment.decoded_lsn, segment.restart_lsn = decoded, restart_lsn
        self._show()
        self.restart_lsn, self.complete_to = restart_lsn, decoded
        self._announce()

    def recover(self) -> None:
        """Go back to what readers see, after a failed write or to decode again from
        ``restart_lsn``.

        Whatever was written but not published is cut off; cursors are not disturbed.
        """
        with self._moving, file_errors(self.directory, "go on with"):
            self._recover()
        self.seal_damaged()

    def _recover(self) -> None:
        visible = self._shown.snapshot()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._pieces, self._pieces_bytes = [], 0
        self._written.clear()
        self._last_relations = None
        self._pending_decoded_lsn = self._decoded_lsn
        if not self.restart_lsn:
            visible = None
            self._shown.show(None)
            self._announce()
            self._decoded_lsn = self._pending_decoded_lsn = 0
        shown = set(visible.segments) if visible else set()
        with self._lock:
            unseen = [s for s in self._segments if s not in shown]
            self._segments = [s for s in self._segments if s in shown]
        for segment in unseen:
            segment.path.unlink(missing_ok=True)
        if visible is not None:
            last = visible.segments[-1]
            if not last.path.exists():
                last.path.touch(0o600)
            if last.path.stat().st_size != visible.end:
                # Its time is when something was written last; who looks takes it for that.
                os.truncate(last.path, visible.end)
            if last.scan() < visible.end:
                # What readers were shown is not there any more.
                self.note_damage(last)
                last.size = visible.end
            self._fd = os.open(last.path, os.O_WRONLY | os.O_CLOEXEC)
            os.lseek(self._fd, last.size, os.SEEK_SET)
        self.last_final_lsn = max((s.last_final_lsn for s in self._segments), default=0)
        self._failed = False

    def begin_anew(self, lsn: int) -> None:
        """Give up all that is here and begin at *lsn*, for what commits in between is not known.

        Provisional until the next :meth:`checkpoint`, as after :meth:`start`. Cursors that still
        read what was here find the gap.
        """
        with self._moving, file_errors(self.directory, "begin"):
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._pieces, self._pieces_bytes = [], 0
            with self._lock:
                old, self._segments = self._segments, []
                self._shown.show(None)
                self._damaged.clear()
                self._epoch += 1
            self._announce()
            remove_segments([segment.path for segment in old])
        self.last_final_lsn = self.restart_lsn = self.complete_to = 0
        self._decoded_lsn = self._pending_decoded_lsn = 0
        self.start(lsn)

    def remove_before(self, lsn: int, keep_bytes: int = 0) -> None:
        """Remove segments in which every transaction's commit record starts before *lsn*.

        At least *keep_bytes* of the newest segments stay. Cursors that still read a removed segment
        keep it open and go on.
        """
        if len(self._segments) <= 1:
            return
        with self._moving:
            with self._lock:
                keep, left = 0, sum(segment.size for segment in self._segments)
                while keep + 1 < len(self._segments) and self._segments[keep + 1].start_lsn <= lsn:
                    left -= self._segments[keep].size
                    if left < keep_bytes:
                        break
                    keep += 1
            with file_errors(self.directory, "remove segments of"):
                self._remove_first(keep)

    def _remove_first(self, count: int) -> None:
        with self._lock:
            removed, self._segments[:count] = self._segments[:count], []
            if not removed:
                return
            self._damaged.difference_update(segment.start_lsn for segment in removed)
            visible = self._shown.snapshot()
            if visible is not None:
                shown = tuple(s for s in visible.segments if s not in removed)
                self._shown.show(visible._replace(segments=shown))
        self._announce()
        remove_segments([segment.path for segment in removed])

    def close(self) -> None:
        """Write what is buffered and close; readers' cursors stay usable."""
        try:
            if self._fd >= 0 and not self._failed:
                self.publish()
        finally:
            self._announcer.close()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- writing ------------------------------------------------------------------------------

    def _write_relations(
        self, segment: Segment, relations: Mapping[int, RelationDescriptor]
    ) -> None:
        if relations is self._last_relations:
            return
        for relation_id, descriptor in relations.items():
            if self._written.get(relation_id) is descriptor:
                continue
            # In ASCII: names of a database in SQL_ASCII may have bytes that are no characters.
            text = json.dumps(descriptor.to_json(), separators=(",", ":"))
            segment.relations.append(segment.size + self._pieces_bytes)
            self._append(
                frames.encode_frame(
                    frames.RELATION, frames.RELATION_PREFIX.pack(relation_id, 0), text.encode()
                )
            )
            self._written[relation_id] = descriptor
        self._last_relations = relations

    def _append(self, pieces: list[bytes | memoryview]) -> None:
        if self._failed:
            raise TransactionLogError(
                "an earlier write to the transaction log failed",
                hint="The decoding session opens it again by itself.",
            )
        self._pieces += pieces
        self._pieces_bytes += sum(map(len, pieces))
        if self._pieces_bytes >= WRITE_BUFFER_BYTES:
            self._flush()

    def _flush(self) -> bytes:
        """Write the buffered pieces, and return them. On an error nothing of them counts: reopening
        cuts them off.
        """
        pieces, self._pieces, written = self._pieces, [], 0
        total, self._pieces_bytes = self._pieces_bytes, 0
        if not pieces:
            return b""
        data = b"".join(pieces)
        view = memoryview(data)
        try:
            self._admit()
            while written < total:
                written += os.write(self._fd, view[written:])
        except OSError as error:
            self._failed = True
            raise file_error(error, self.directory, "write") from error
        except BaseException:
            self._failed = True
            raise
        self._segments[-1].size += total
        return data

    def _new_segment(self, start_lsn: int) -> Segment:
        """Seal the segment being written, if any, and begin one at *start_lsn*."""
        path = self.directory / frames.segment_name(start_lsn)
        with file_errors(self.directory, "create a segment in"):
            if self._segments:
                old = self._segments[-1]
                os.fsync(self._fd)
                # Not that of a file that is closed, should there be no space for what follows.
                fd, self._fd = self._fd, -1
                os.close(fd)
                old.save_index()
            link = frames.segment_link(self._segments[-1].start_lsn) if self._segments else 0
            header = frames.encode_segment_header(
                self._system_id, self._database_oid, start_lsn, link
            )
            self._fd = create_file(path, header)
        segment = Segment(path, start_lsn)
        if self._segments:
            segment.decoded_lsn = self._segments[-1].decoded_lsn
            segment.restart_lsn = self._segments[-1].restart_lsn
            segment.follows = self._segments[-1].start_lsn
        self._written.clear()
        self._last_relations = None
        with self._lock:
            self._segments.append(segment)
        return segment
