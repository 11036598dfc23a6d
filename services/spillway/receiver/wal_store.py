"""The WAL store: one cluster's WAL as ordinary segment files, durable, contiguous, readable by many.

In comes a contiguous byte stream from the receiver (:meth:`WalStore.append`, then :meth:`WalStore.sync`);
out go byte ranges to any number of reading threads. Three positions bound it::

        first_lsn              flushed_lsn        received_lsn
            |------ durable --------|--- readable -----|
            ^ remove_before         ^ confirmed        ^ append
                                      to the primary

Invariants:

* ``[first_lsn, received_lsn)`` is one timeline's history without a gap. ``append`` anywhere but at
  ``received_lsn`` is refused.
* ``flushed_lsn`` moves only after the segment files, the directory entries of new ones and the state file
  (see :mod:`spillway.receiver.store_state`) are synced, in that order. The primary may recycle what is
  confirmed to it, so nothing else is ever confirmed.
* On opening, the store ends where the state file says. What lies behind it in the files may be torn; it is
  cut off and received again, which the primary, whose slot stands at what was confirmed, can always serve.
* A failed fsync says nothing about what is on disk, and repeating it says less. The handles are dropped
  and ``received_lsn`` falls back to ``flushed_lsn``; readers that are ahead simply wait.
* What a disk lost does not stop the rest. Segments that are gone are in ``missing``, their readers get WalGap, and
  :meth:`mend` puts them back; the last one is received again, for the primary's slot stands in it or behind. A state file
  that is gone or damaged is made of the segment files (:mod:`spillway.receiver.store_opening`).
* A full disk fails the one call, with :class:`~spillway.errors.DiskFull`; the store stands where it stood
  and the call may be repeated.

One thread writes (``append``, ``switch_timeline``). ``sync`` may run on another at the same time: it makes durable what was
appended when it began, and if it fails, an ``append`` that is under way fails, too. Every other method is for any
thread. An flock on the directory keeps a second process out.

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
    LsnNotRetained,
    NotReady,
    StorageError,
    WalFlushFailed,
    WalGap,
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
from spillway.receiver.passed_wal import PassedWal
from spillway.receiver.segment_directory import SegmentDirectory
from spillway.receiver.segment_file import SegmentFile
from spillway.receiver.store_opening import open_state
from spillway.storage.durable_files import replace_file
from spillway.storage.file_errors import NO_SPACE, file_error

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType
    from typing import Self

log = logging.getLogger(__name__)


class WalStore:
    """WAL of one cluster under one directory.

    Args:
        directory: made if missing. Segment files, timeline histories and the state file live in it.
        system_id: of the cluster whose WAL this is, as ``IDENTIFY_SYSTEM`` prints it. None takes what an
            existing store says, for a caller that has no server to ask.
        segment_size: the cluster's ``wal_segment_size``; must agree with an existing store's.
        timeline: where a new store begins. An existing one knows its own.
        start_lsn: where a new store begins, taken down to its segment's start so that every file is
            whole. None opens an existing store only. An existing store ignores it.
        max_bytes: the most that segment files may take, at least two of them; None leaves it to the disk.
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
        self.explain_full: Callable[[WalStore], str] | None = None
        self._changed = threading.Condition()
        self._state_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._closed = False
        self._tail: SegmentFile | None = None
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
                self._segment_size = self._state_file.state.segment_size
                # The one that is being filled is needed, so that with less nothing would ever be removed.
                self.max_bytes = (
                    None if max_bytes is None else max(max_bytes, 2 * self._segment_size)
                )
                self._segments = SegmentDirectory(self.directory, self._segment_size)
                self._passed = PassedWal(self._segments, self._segment_size)
                self._received_lsn = self._state_file.state.flushed_lsn
                self._open_segments()
            except OSError as error:
                raise self._storage_error(error, "open") from error
            undo.pop_all()

    # -- opening -------------------------------------------------------------------------------------

    def _lock_directory(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WalStoreInUse(
                f"the WAL store {self.directory} is in use by another process",
                hint="Stop the other service that runs on this data directory, or give this one its own.",
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
            self._received_lsn = state.flushed_lsn
        for number in sorted(self._segments.missing):
            log.error("%s", self._segments.gap(number, "is missing", state.timeline).message)
        kept = state.flushed_lsn % size
        if kept:
            path = self._segments.file_path(segment_number(state.flushed_lsn, size))
            self._tail = SegmentFile.open_tail(path, size, kept)

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the segments that should be there and are not, ascending."""
        return tuple(sorted(self._segments.missing))

    def mend(self, number: int, data: bytes) -> bool:
        """Put right what is durable of segment *number*: *data* is the segment as another has it, from its first byte on.

        Return whether that was anything else than what is here. Any thread; bytes that are right already stay.

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

    # -- what is there -------------------------------------------------------------------------------

    @property
    def system_id(self) -> str:
        """System identifier of the cluster, decimal."""
        return str(self._state_file.state.system_id)

    @property
    def segment_size(self) -> int:
        """The cluster's ``wal_segment_size``."""
        return self._segment_size

    @property
    def timeline(self) -> int:
        """Timeline of what is appended next."""
        return self._state_file.state.timeline

    @property
    def first_lsn(self) -> Lsn:
        """The oldest byte that is kept."""
        return self._state_file.state.first_lsn

    @property
    def flushed_lsn(self) -> Lsn:
        """End of what is durable: what may be confirmed to the primary."""
        return self._state_file.state.flushed_lsn

    @property
    def received_lsn(self) -> Lsn:
        """End of what can be read. Falls back to ``flushed_lsn`` when a sync fails, else only grows."""
        return self._received_lsn

    @property
    def retained_bytes(self) -> int:
        """Disk space that the segment files take."""
        return len(self._segments) * self._segment_size

    # -- writing: one thread -------------------------------------------------------------------------

    def append(self, lsn: int, data: bytes | bytearray | memoryview) -> None:
        """Take WAL bytes that begin at *lsn*, which must be ``received_lsn``. Readable at once, not durable.

        When it raises, ``received_lsn`` tells how much was taken (whole segments may have been): repeat with the rest.

        Raises:
            WalNotContiguous: *lsn* is not where the store ends.
            DiskFull: no space (WalStoreFull: no allowance); repeat when there is.
            WalFlushFailed: a sync that ran beside it failed; ``received_lsn`` is back at ``flushed_lsn``.
            StorageError: the write failed otherwise.
        """
        if lsn != self._received_lsn:
            raise WalNotContiguous(
                f"WAL at {Lsn(lsn)} does not continue the WAL store, which ends at {self._received_lsn}",
                hint="Request streaming from where the store ends.",
                lsn=str(Lsn(lsn)),
                received_lsn=str(self._received_lsn),
            )
        view = memoryview(data).cast("B")
        size = self._segment_size
        while view:
            offset = lsn % size
            count = min(len(view), size - offset)
            try:
                tail = self._tail_file(lsn)
                tail.write(offset, view[:count])
            except OSError as error:
                raise self._storage_error(error, "write", lsn) from error
            with self._changed:
                self._raise_if_closed()
                if lsn != self._received_lsn:
                    raise WalFlushFailed(
                        f"a sync of the WAL store {self.directory} failed while WAL at {Lsn(lsn)} was written",
                        hint="Check the disk and the kernel's log. What is not durable is received again.",
                        lsn=str(self.flushed_lsn),
                        path=str(self.directory),
                    )
                lsn += count
                view = view[count:]
                # Together with received_lsn, so that a sync up to there knows of the file.
                if not self._dirty or self._dirty[-1] is not tail:
                    self._dirty.append(tail)
                if lsn % size == 0:
                    self._tail = None
                self._received_lsn = Lsn(lsn)
                self._changed.notify_all()

    def _tail_file(self, lsn: int) -> SegmentFile:
        """Return the file that the byte at *lsn* goes to."""
        self._raise_if_closed()
        tail = self._tail
        if tail is None:
            number, size = segment_number(lsn, self._segment_size), self._segment_size
            # After a failed sync the files of the WAL that comes again are there.
            known = number in self._segments
            wanted = self.retained_bytes + (0 if known else size)
            if self.max_bytes is not None and wanted > self.max_bytes:
                raise WalStoreFull(
                    f"the WAL store {self.directory} holds {self.retained_bytes} bytes and may hold {self.max_bytes}",
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
            with self._changed:
                self._directory_dirty = True
                # Not after a failed sync beside us: the tail must be the file of received_lsn.
                if lsn == self._received_lsn:
                    self._tail = tail
        return tail

    def sync(self) -> Lsn:
        """Make all that was appended so far durable and return ``flushed_lsn``; cheap when nothing is new.

        Raises:
            DiskFull: the kernel found no space for what it had accepted.
            WalFlushFailed: any other failure. After either, ``received_lsn`` is back at ``flushed_lsn``.
        """
        with self._sync_lock:
            with self._changed:
                self._raise_if_closed()
                target = self._received_lsn
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

    def _fall_back(self) -> None:
        """Forget every handle with an unsure sync, and all bytes behind ``flushed_lsn``.

        The files stay as they are: the state file may by now say on disk what it does not say to us, and the
        same bytes will be written there again. New handles see new errors.
        """
        with self._changed:
            self._dirty.clear()
            self._directory_dirty = True
            self._tail = None
            self._received_lsn = self.flushed_lsn
        self._segments.drop_readers()

    def switch_timeline(self, timeline: int, lsn: int, history: bytes) -> None:
        """Continue on *timeline*, which forked off at *lsn* = ``received_lsn``; *history* is its history file.

        The segment of the fork gets a file of the new timeline with what came before the fork in it, as on a
        promoted server. Repeating a call that was interrupted is safe.

        Raises:
            WalNotContiguous: the fork is not where the store ends.
            StorageError: as for append and sync.
        """
        if lsn != self._received_lsn or timeline <= self.timeline:
            raise WalNotContiguous(
                f"timeline {timeline} forks off at {Lsn(lsn)}, the WAL store ends at {self._received_lsn} "
                f"of timeline {self.timeline}",
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
                tail.write(0, memoryview(self._file_to_read(number).read(0, offset)))
                tail.sync()
            os.fsync(self._lock_fd)
            self._write_state(timeline=timeline)
        except OSError as error:
            raise self._storage_error(error, "switch the timeline of", lsn) from error
        # Files from the fork on are the old timeline's: the one just replaced, and those of WAL that a failed
        # sync made us forget. A crash before they are unlinked leaves that to the next opening.
        with self._changed:
            stale = self._segments.replace_from(number, timeline if tail is not None else None)
            self._tail = tail
        for path in stale:
            path.unlink(missing_ok=True)

    def _store_history(self, timeline: int, history: bytes) -> None:
        replace_file(self.directory / history_name(timeline), history)

    # -- reading: any thread -------------------------------------------------------------------------

    def read(self, lsn: int, max_bytes: int) -> bytes:
        """Return up to *max_bytes* from *lsn* on, not beyond the segment's end; ``b""`` when there is nothing yet.

        Raises:
            LsnNotRetained: the position was removed.
            WalGap: the segment's file has vanished.
        """
        received = self._received_lsn
        if lsn >= received:
            self._raise_if_closed()
            return b""
        if lsn < self.first_lsn:
            raise LsnNotRetained(
                f"WAL at {Lsn(lsn)} is no longer kept; the WAL store begins at {self.first_lsn}",
                hint="Start at a later position.",
                lsn=str(Lsn(lsn)),
                first_lsn=str(self.first_lsn),
            )
        size = self._segment_size
        offset = lsn % size
        number = segment_number(lsn, size)
        count = min(max_bytes, size - offset, received - lsn)
        try:
            data = self._file_to_read(number).read(offset, count)
        except WalGap:
            if lsn < self.first_lsn:  # removed just now
                return self.read(lsn, max_bytes)
            raise
        except OSError as error:
            error.filename = error.filename or str(self._segments.file_path(number))
            raise self._storage_error(error, "read", lsn) from error
        if not data:
            raise self._segments.gap(number, "is too short", self.timeline)
        return data

    def _file_to_read(self, number: int) -> SegmentFile:
        with self._changed:
            self._raise_if_closed()
            tail = self._tail
            if tail is not None and number == segment_number(
                self._received_lsn, self._segment_size
            ):
                return tail
        return self._segments.reader(number)

    def wait(self, lsn: int, timeout_s: float, called: Callable[[], bool] = lambda: False) -> bool:
        """Wait until there is a byte at *lsn*; False after *timeout_s*, when the store is closed, or *called* says so.

        What *called* looks at has changed when :meth:`wake` is called.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._received_lsn <= lsn and not self._closed and not called():
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._changed.wait(remaining_s)
            return self._received_lsn > lsn

    def wake(self) -> None:
        """Have those who wait look whether they are called."""
        with self._changed:
            self._changed.notify_all()

    def passed(self, reader: Hashable, lsn: int) -> None:
        """Hear that *reader* has read what is before *lsn*, so that the kernel need not keep it in memory."""
        self._passed.note(reader, lsn, self.flushed_lsn)

    def leave(self, reader: Hashable) -> None:
        """Hear that *reader* reads no more."""
        self._passed.leave(reader)

    # -- removing ------------------------------------------------------------------------------------

    def remove_before(self, lsn: int) -> None:
        """Remove the segment files that lie wholly before *lsn*, never one with bytes not yet durable.

        ``first_lsn`` moves durably before the first file goes, so a crash in between leaves files too
        many, which the next opening removes, never too few.
        """
        self._raise_if_closed()
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

    # -- closing and errors --------------------------------------------------------------------------

    def close(self) -> None:
        """Close without a sync (sync first to keep everything); waiting readers wake. May be repeated."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._tail = None
            self._dirty.clear()
            self._changed.notify_all()
        self._segments.drop_readers()
        with self._state_lock:
            self._state_file.close()
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

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise NotReady(f"the WAL store {self.directory} is closed")

    def _storage_error(self, error: OSError, verb: str, lsn: int | None = None) -> StorageError:
        where = "" if lsn is None else f" at {Lsn(lsn)}"
        typed = file_error(
            error,
            self.directory,
            f"{verb} the WAL store{where}:",
            f"Free space on the file system of {self.directory}, or drop or advance the slot that retains most. "
            "Receiving resumes by itself; until then the source keeps its WAL for the physical slot.",
        )
        if lsn is not None:
            typed.details["lsn"] = str(Lsn(lsn))
        return typed

    def _flush_error(self, error: OSError) -> StorageError:
        if error.errno in NO_SPACE:
            return self._storage_error(error, "sync", self.flushed_lsn)
        return WalFlushFailed(
            f"could not sync the WAL store {self.directory} beyond {self.flushed_lsn}: {error.strerror or error}",
            hint="Check the disk and the kernel's log. What is not durable is received again.",
            lsn=str(self.flushed_lsn),
            path=str(self.directory),
        )
