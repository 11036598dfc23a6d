"""Writing a WAL store: one cluster's WAL as ordinary segment files, durable, contiguous, readable
by many.

In comes a contiguous byte stream from the receiver (:meth:`WalWriter.append`, then
:meth:`WalWriter.sync`); out go byte ranges to any number of readers
(:mod:`spillway.receiver.wal_reader`). Three positions bound it::

        first_lsn              flushed_lsn        received_lsn
            |------ durable --------|----- appended ---|
            ^ remove_before         ^ confirmed        ^ append
                                      to the primary

Invariants:

* ``[first_lsn, received_lsn)`` is one timeline's history without a gap. ``append`` anywhere but at
  ``received_lsn`` is refused.
* ``flushed_lsn`` moves only after the segment files, the directory entries of new ones and the
  state file (see :mod:`spillway.receiver.store_state`) are synced, in that order. The primary may
  recycle what is confirmed to it, so nothing else is ever confirmed.
* Readers of this process (:attr:`WalWriter.reader`) read up to ``received_lsn``. Those of other
  processes read up to the ``flushed_lsn`` that was announced to them, which happens after it is
  durable: what was not synced when this process died is cut off and received again, and they must
  not have seen it.
* On opening, the store ends where the state file says. What lies behind it in the files may be
  torn; it is cut off and received again, which the primary, whose slot stands at what was
  confirmed, can always serve.
* A failed fsync says nothing about what is on disk, and repeating it says less. The handles are
  dropped and ``received_lsn`` falls back to ``flushed_lsn``; readers that are ahead simply wait.
* What a disk lost does not stop the rest. Segments that are gone are in ``missing``, their readers
  get WalGap, and :meth:`mend` puts them back; the last one is received again, for the primary's
  slot stands in it or behind. A state file that is gone or damaged is made of the segment files
  (:mod:`spillway.receiver.store_opening`).
* A full disk fails the one call, with :class:`~spillway.errors.DiskFull`; the store stands where it
  stood and the call may be repeated.

One thread writes (``append``, ``switch_timeline``). ``sync`` may run on another at the same time:
it makes durable what was appended when it began, and if it fails, an ``append`` that is under way
fails, too. Every other method is for any thread. An flock on the directory keeps a second writer
out.

Memory: none for WAL; see :mod:`spillway.receiver.segment_directory` for open files, and
:mod:`spillway.receiver.passed_wal` for the kernel's page cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spillway.errors import (
    StorageError,
    WalFlushFailed,
    WalNotContiguous,
    WalStoreFull,
    WalStoreInUse,
)
from spillway.failpoints import failpoint
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import (
    history_name,
    segment_number,
    segment_start,
)
from spillway.receiver.segment_directory import SegmentDirectory
from spillway.receiver.segment_file import SegmentFile
from spillway.receiver.store_opening import open_state
from spillway.receiver.wal_reader import (
    END_KIND,
    END_NAME,
    AppendedWal,
    WalEnd,
    WalReader,
    storage_error,
)
from spillway.storage.announcement import Announcer
from spillway.storage.durable_files import replace_file
from spillway.storage.file_errors import NO_SPACE

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

log = logging.getLogger(__name__)


class WalWriter:
    """WAL of one cluster under one directory, of which this is the one writer.

    Args:
        directory: made if missing. Segment files, timeline histories and the state file live in it.
        system_id: of the cluster whose WAL this is, as ``IDENTIFY_SYSTEM`` prints it. None takes
            what an existing store says, for a caller that has no server to ask.
        segment_size: the cluster's ``wal_segment_size``; must agree with an existing store's.
        timeline: where a new store begins. An existing one knows its own.
        start_lsn: where a new store begins, taken down to its segment's start so that every file is
            whole. None opens an existing store only. An existing store ignores it.
        max_bytes: the most that segment files may take, at least two of them; None leaves it to the
            disk.
        admit: asked before a file of so many bytes is begun; it refuses by an OSError.

    Raises:
        SystemIdMismatch: the directory holds another cluster's WAL.
        WalStoreInUse: another process has the store open.
        NotReady: there is no store in *directory*, or nothing left of one, and *start_lsn* is None.
        StorageError: the directory can't be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        system_id: str | None = None,
        segment_size: int | None = None,
        timeline: int = 1,
        start_lsn: int | None = None,
        max_bytes: int | None = None,
        admit: Callable[[int], None] = lambda nbytes: None,  # noqa: ARG005
    ) -> None:
        self._admit = admit
        self.directory = Path(directory)
        #: makes the hint of WalStoreFull: who needs what is stored, and what can be done
        self.explain_full: Callable[[WalWriter], str] | None = None
        self._state_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._dirty: list[SegmentFile] = []
        self._directory_dirty = False
        with contextlib.ExitStack() as undo:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                self._lock_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                undo.callback(os.close, self._lock_fd)
                self._lock_directory()
                self._state_file = open_state(
                    self.directory, system_id, segment_size, timeline, start_lsn
                )
                undo.callback(self._state_file.close)
                self._announcer = Announcer(
                    self.directory / END_NAME, END_KIND, len(WalEnd._fields)
                )
                undo.callback(self._announcer.close)
                before = self._announcer.values
                self._epoch = time.time_ns() if before is None else before[0] + 1
                # Whoever follows must know before a file is touched.
                self._announce()
                self._segment_size = self._state_file.state.segment_size
                # The one that is being filled is needed, so that with less nothing would ever be
                # removed.
                self.max_bytes = (
                    None if max_bytes is None else max(max_bytes, 2 * self._segment_size)
                )
                self._segments = SegmentDirectory(self.directory, self._segment_size)
                self._shown = AppendedWal(self.directory, self._state_file, self._segments)
                self._open_segments()
            except OSError as error:
                raise self._storage_error(error, "open") from error
            undo.pop_all()

    @property
    def reader(self) -> WalReader:
        """What was appended, for readers of this process."""
        return self._shown

    # -- opening ------------------------------------------------------------------------------

    def _lock_directory(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WalStoreInUse(
                f"the WAL store {self.directory} is in use by another process",
                hint="Stop the other service that runs on this data directory, or give this one "
                "its own.",
                path=str(self.directory),
            ) from None

    def _open_segments(self) -> None:
        """Take in the files of what is durable, remove all others, cut the tail."""
        state, size = self._state_file.state, self._segment_size
        for path in self._segments.load(state):
            path.unlink()
        last = segment_number(max(state.flushed_lsn - 1, 0), size)
        if last in self._segments.missing:
            log.error(
                "the last segment of the WAL store %s is gone: it is received again", self.directory
            )
            self._segments.missing.remove(last)
            self._write_state(flushed_lsn=Lsn(last * size))
            state = self._state_file.state
            self._shown.end_lsn = state.flushed_lsn
        for number in sorted(self._segments.missing):
            log.error("%s", self._segments.gap(number, "is missing", state.timeline).message)
        kept = state.flushed_lsn % size
        if kept:
            path = self._segments.file_path(segment_number(state.flushed_lsn, size))
            self._shown.tail = SegmentFile.open_tail(path, size, kept)

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the segments that should be there and are not, ascending."""
        return tuple(sorted(self._segments.missing))

    def mend(self, number: int, data: bytes) -> bool:
        """Put right what is durable of segment *number*: *data* is the segment as another has it,
        from its first byte on.

        Return whether that was anything else than what is here. Any thread; bytes that are right
        already stay.

        Raises:
            StorageError: it can't be written.
        """
        size = self._segment_size
        length = min(size, self.flushed_lsn - number * size)
        if length <= 0 or len(data) < length or number * size < self.first_lsn:
            return False
        try:
            mended = self._segments.mend(number, data[:length], self.timeline)
        except OSError as error:
            raise self._storage_error(error, "mend", number * size) from error
        return mended

    # -- what is there ------------------------------------------------------------------------

    # As a reader of this process has it; see WalReader for what each of them is.

    @property
    def system_id(self) -> str:
        """The cluster's."""
        return self._shown.system_id

    @property
    def segment_size(self) -> int:
        """The cluster's."""
        return self._shown.segment_size

    @property
    def timeline(self) -> int:
        """Timeline of what is appended next."""
        return self._shown.timeline

    @property
    def first_lsn(self) -> Lsn:
        """The oldest byte that is kept."""
        return self._shown.first_lsn

    @property
    def flushed_lsn(self) -> Lsn:
        """End of what is durable: what may be confirmed to the primary."""
        return self._shown.flushed_lsn

    @property
    def received_lsn(self) -> Lsn:
        """End of what is appended. Falls back to ``flushed_lsn`` when a sync fails, else only
        grows.
        """
        return self._shown.received_lsn

    @property
    def retained_bytes(self) -> int:
        """Disk space that the segment files take."""
        return len(self._segments) * self._segment_size

    # -- writing: one thread ------------------------------------------------------------------

    def append(self, lsn: int, data: bytes | bytearray | memoryview) -> None:
        """Take WAL bytes that begin at *lsn*, which must be ``received_lsn``. Readable in this
        process at once, not durable.

        When it raises, ``received_lsn`` tells how much was taken (whole segments may have been):
        repeat with the rest.

        Raises:
            WalNotContiguous: *lsn* is not where the store ends.
            DiskFull: no space (WalStoreFull: no allowance); repeat when there is.
            WalFlushFailed: a sync that ran beside it failed; ``received_lsn`` is back at
                ``flushed_lsn``.
            StorageError: the write failed otherwise.
        """
        if lsn != self._shown.end_lsn:
            raise WalNotContiguous(
                f"WAL at {Lsn(lsn)} does not continue the WAL store, which ends at "
                f"{self._shown.end_lsn}",
                hint="Request streaming from where the store ends.",
                lsn=str(Lsn(lsn)),
                received_lsn=str(self._shown.end_lsn),
            )
        view = memoryview(data).cast("B")
        size = self._segment_size
        while view:
            offset = lsn % size
            count = min(len(view), size - offset)
            try:
                tail = self._shown.tail or self._tail_file(lsn)
                tail.write(offset, view[:count])
            except OSError as error:
                raise self._storage_error(error, "write", lsn) from error
            with self._shown.lock:
                if self._shown.is_closed:
                    self._shown.check_open()
                if lsn != self._shown.end_lsn:
                    raise WalFlushFailed(
                        f"a sync of the WAL store {self.directory} failed while WAL at {Lsn(lsn)} "
                        "was written",
                        hint="Check the disk and the kernel's log. What is not durable is received "
                        "again.",
                        lsn=str(self.flushed_lsn),
                        path=str(self.directory),
                    )
                began, piece = lsn, view[:count]
                lsn += count
                view = view[count:]
                # Together with received_lsn, so that a sync up to there knows of the file.
                if not self._dirty or self._dirty[-1] is not tail:
                    self._dirty.append(tail)
                if lsn % size == 0:
                    self._shown.tail = None
                self._shown.end_lsn = Lsn(lsn)
                instead = self._shown.tell(count)
            if instead is not None:
                self._shown.give_back(sleeps_on=instead(began, piece))

    def _tail_file(self, lsn: int) -> SegmentFile:
        """Return the file that the byte at *lsn* goes to."""
        self._shown.check_open()
        tail = self._shown.tail
        if tail is None:
            number, size = segment_number(lsn, self._segment_size), self._segment_size
            # After a failed sync the files of the WAL that comes again are there.
            known = number in self._segments
            wanted = self.retained_bytes + (0 if known else size)
            if self.max_bytes is not None and wanted > self.max_bytes:
                raise WalStoreFull(
                    f"the WAL store {self.directory} holds {self.retained_bytes} bytes and may "
                    f"hold {self.max_bytes}",
                    hint="Receiving resumes by itself, when what is stored is decoded."
                    if self.explain_full is None
                    else self.explain_full(self),
                    lsn=str(Lsn(lsn)),
                    path=str(self.directory),
                )
            if known:
                tail = SegmentFile.open_again(self._segments.file_path(number), size)
            else:
                self._admit(size)
                tail = SegmentFile.create(self._segments.new_path(number, self.timeline), size)
                self._segments.add(number, self.timeline)
            with self._shown.changed:
                self._directory_dirty = True
                # Not after a failed sync beside us: the tail must be the file of received_lsn.
                if lsn == self._shown.end_lsn:
                    self._shown.tail = tail
        return tail

    def sync(self) -> Lsn:
        """Make all that was appended so far durable and return ``flushed_lsn``; cheap when nothing
        is new.

        Raises:
            DiskFull: the kernel found no space for what it had accepted.
            WalFlushFailed: any other failure. After either, ``received_lsn`` is back at
                ``flushed_lsn``.
        """
        with self._sync_lock:
            with self._shown.changed:
                self._shown.check_open()
                target = self._shown.end_lsn
                if target == self.flushed_lsn:
                    return target
                # What is appended from here on makes its file dirty again.
                dirty, self._dirty = self._dirty, []
                directory_dirty, self._directory_dirty = self._directory_dirty, False
            try:
                for segment in dirty:
                    segment.sync()
                if directory_dirty:
                    os.fsync(self._lock_fd)
                failpoint("walstore.after_fsync")
                self._write_state(flushed_lsn=target)
            except OSError as error:
                self._fall_back()
                raise self._flush_error(error) from error
            return target

    def _write_state(self, **changes: object) -> None:
        with self._state_lock:
            try:
                self._state_file.write(replace(self._state_file.state, **changes))  # type: ignore[arg-type]
            except OSError:
                self._state_file.reopen()
                raise
            self._announce()

    def _announce(self) -> None:
        """Tell readers of other processes what is durable now."""
        self._announcer.announce(*WalEnd.of(self._epoch, self._state_file.state))

    def _fall_back(self) -> None:
        """Forget every handle with an unsure sync, and all bytes behind ``flushed_lsn``.

        The files stay as they are: the state file may by now say on disk what it does not say to
        us, and the same bytes will be written there again. New handles see new errors.
        """
        with self._shown.changed:
            self._dirty.clear()
            self._directory_dirty = True
            self._shown.tail = None
            self._shown.end_lsn = self.flushed_lsn
        self._segments.drop_readers()

    def switch_timeline(self, timeline: int, lsn: int, history: bytes) -> None:
        """Continue on *timeline*, which forked off at *lsn* = ``received_lsn``; *history* is its
        history file.

        The segment of the fork gets a file of the new timeline with what came before the fork in
        it, as on a promoted server. Repeating a call that was interrupted is safe.

        Raises:
            WalNotContiguous: the fork is not where the store ends.
            StorageError: as for append and sync.
        """
        if lsn != self._shown.end_lsn or timeline <= self.timeline:
            raise WalNotContiguous(
                f"timeline {timeline} forks off at {Lsn(lsn)}, the WAL store ends at "
                f"{self._shown.end_lsn} of timeline {self.timeline}",
                hint="Only WAL before the fork is in the new timeline's history.",
                lsn=str(Lsn(lsn)),
            )
        self.sync()
        number, size = segment_number(lsn, self._segment_size), self._segment_size
        offset = lsn % size
        tail: SegmentFile | None = None
        try:
            self._store_history(timeline, history)
            if offset:
                tail = SegmentFile.create(self._segments.new_path(number, timeline), size)
                tail.write(0, memoryview(self._shown.file(number).read(0, offset)))
                tail.sync()
            os.fsync(self._lock_fd)
            self._write_state(timeline=timeline)
        except OSError as error:
            raise self._storage_error(error, "switch the timeline of", lsn) from error
        # Files from the fork on are the old timeline's: the one just replaced, and those of WAL
        # that a failed sync made us forget. A crash before they are unlinked leaves that to the
        # next opening.
        with self._shown.changed:
            stale = self._segments.replace_from(number, timeline if tail is not None else None)
            self._shown.tail = tail
        for path in stale:
            path.unlink(missing_ok=True)

    def _store_history(self, timeline: int, history: bytes) -> None:
        replace_file(self.directory / history_name(timeline), history)

    # -- removing -----------------------------------------------------------------------------

    def remove_before(self, lsn: int) -> None:
        """Remove the segment files that lie wholly before *lsn*, never one with bytes not yet
        durable.

        ``first_lsn`` moves durably before the first file goes, so a crash in between leaves files
        too many, which the next opening removes, never too few.
        """
        self._shown.check_open()
        size = self._segment_size
        new_first = segment_start(min(lsn, self.flushed_lsn), size)
        if new_first <= self.first_lsn:
            return
        try:
            self._write_state(first_lsn=new_first)
            paths = self._segments.take_out_before(segment_number(new_first, size))
            for path in paths:
                failpoint("walstore.remove")
                path.unlink(missing_ok=True)
        except OSError as error:
            raise self._storage_error(error, "remove segments of", lsn) from error

    # -- closing and errors -------------------------------------------------------------------

    def close(self) -> None:
        """Close without a sync (sync first to keep everything); readers of this process that wait
        wake. May be repeated.
        """
        with self._shown.changed:
            if self._shown.is_closed:
                return
            self._shown.is_closed = True
            self._shown.tail = None
            self._dirty.clear()
            self._shown.wake_all()
        self._segments.drop_readers()
        with self._state_lock:
            self._state_file.close()
            self._announcer.close()
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _storage_error(self, error: OSError, verb: str, lsn: int | None = None) -> StorageError:
        return storage_error(self.directory, error, verb, lsn)

    def _flush_error(self, error: OSError) -> StorageError:
        if error.errno in NO_SPACE:
            return self._storage_error(error, "sync", self.flushed_lsn)
        return WalFlushFailed(
            f"could not sync the WAL store {self.directory} beyond {self.flushed_lsn}: "
            f"{error.strerror or error}",
            hint="Check the disk and the kernel's log. What is not durable is received again.",
            lsn=str(self.flushed_lsn),
            path=str(self.directory),
        )
