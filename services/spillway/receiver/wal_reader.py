"""Reading a WAL store: what everybody gets who does not write it.

A :class:`WalReader` gives byte ranges to any number of threads, and waits for more. There are two,
which differ in where the WAL ends for them:

::

        first_lsn              flushed_lsn        received_lsn
            |------ durable --------|--- appended -----|
            └──── FollowedWal ──────┘                  │     another process than the writer's
            └──────────────────── AppendedWal ─────────┘     the writer's

* :class:`AppendedWal` is the writer's own side (``WalWriter.reader``). It reads what was appended,
  durable or not, and a condition wakes it. When the process dies, readers and what they have made
  of it die with the writer.
* :class:`FollowedWal` needs the directory alone. It reads what the writer has announced to be
  durable (:mod:`spillway.storage.announcement`), so that it is never past what a writer that was
  killed, or whose sync failed, cuts off and receives again. It looks for more at short intervals.

What is durable never changes, so bytes need no lock. Files do come and go: a segment is removed
when nobody needs it, a fork gives a segment another file, and a store that lost its state receives
its last segment again. The last of these replaces files below what was announced, so each opening
of the store begins another *epoch*, before it touches a file, and a follower that finds another
epoch behind a read than before it reads again.

A reader holds nothing back. What is to stay is for the slots to say, and who is too late gets
LsnNotRetained.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import (
    LsnNotRetained,
    NotReady,
    StorageError,
    SystemIdMismatch,
    WalGap,
)
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import segment_number
from spillway.receiver.passed_wal import PassedWal
from spillway.receiver.segment_directory import SegmentDirectory
from spillway.receiver.store_state import StateFile, StoreState
from spillway.storage.announcement import Announced, pause_s
from spillway.storage.file_errors import file_error, file_errors

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable

    from spillway.receiver.segment_file import SegmentFile

    Instead = Callable[[int, memoryview], bool]

END_NAME: Final = "walstore.end"
END_KIND: Final = b"WAL1"

#: What whoever appends does in the stead of one who waits for it: WAL of a few small transactions.
LENT_BYTES: Final = 8 << 10


class WalEnd(NamedTuple):
    """What a writer announces of its store."""

    #: another one when the store was opened
    epoch: int
    system_id: int
    segment_size: int
    timeline: int
    first_lsn: int
    flushed_lsn: int

    @classmethod
    def of(cls, epoch: int, state: StoreState) -> WalEnd:
        """Return what to announce of a store whose durable state is *state*."""
        return cls(
            epoch,
            state.system_id,
            state.segment_size,
            state.timeline,
            state.first_lsn,
            state.flushed_lsn,
        )

    @property
    def state(self) -> StoreState:
        """What of it the state file says, too."""
        first, flushed = Lsn(self.first_lsn), Lsn(self.flushed_lsn)
        return StoreState(self.system_id, self.segment_size, self.timeline, first, flushed)


class WalReader(ABC):
    """WAL of one cluster, to be read. All methods are for any thread."""

    #: the store's
    directory: Path

    @property
    @abstractmethod
    def system_id(self) -> str:
        """System identifier of the cluster, decimal."""

    @property
    @abstractmethod
    def segment_size(self) -> int:
        """The cluster's ``wal_segment_size``."""

    @property
    @abstractmethod
    def timeline(self) -> int:
        """Timeline that the WAL ends on."""

    @property
    @abstractmethod
    def first_lsn(self) -> Lsn:
        """The oldest byte that is kept."""

    @property
    @abstractmethod
    def flushed_lsn(self) -> Lsn:
        """End of what is durable."""

    @property
    @abstractmethod
    def received_lsn(self) -> Lsn:
        """End of what can be read here. It may fall back (see the module); else it only grows."""

    @abstractmethod
    def read(self, lsn: int, max_bytes: int) -> bytes:
        """Return up to *max_bytes* from *lsn* on, not beyond the segment's end; ``b""`` when there
        is nothing yet.

        Raises:
            LsnNotRetained: the position was removed.
            WalGap: the segment's file has vanished.
            StorageError: it can't be read.
            NotReady: the store is closed, or was removed.
        """

    @abstractmethod
    def wait(
        self,
        lsn: int,
        timeout_s: float,
        called: Callable[[], bool] = lambda: False,
        instead: Instead | None = None,
    ) -> bool:
        """Wait until there is a byte at *lsn*; False after *timeout_s*, when this is closed, or
        *called* says so.

        What *called* looks at has changed when :meth:`wake` is called. *instead* may be called for
        the little that comes, on the thread that has appended it and while this one sleeps on: the
        LSN, and the bytes. It says whether that was all; with False this one wakes. It raises
        nothing, and waits for nothing.
        """

    @abstractmethod
    def wake(self) -> None:
        """Have those who wait look whether they are called."""

    @abstractmethod
    def passed(self, reader: Hashable, lsn: int) -> None:
        """Hear that *reader* has read what is before *lsn*, so that the kernel need not keep it in
        memory.
        """

    @abstractmethod
    def leave(self, reader: Hashable) -> None:
        """Hear that *reader* reads no more."""


class AppendedWal(WalReader):
    """What the writer of this process has appended. The writer changes it, under :attr:`changed`;
    all others read.

    Args:
        directory: the store's.
        state_file: says what is durable.
        segments: the files.
    """

    def __init__(self, directory: Path, state_file: StateFile, segments: SegmentDirectory) -> None:
        self.directory = directory
        self._state_file = state_file
        self._segments = segments
        self._segment_size = state_file.state.segment_size
        self._passed = PassedWal(segments, self._segment_size)
        #: of :attr:`changed`, for those who have no time
        self.lock = threading.RLock()
        #: the writer's: notified when any of what follows changes
        self.changed = threading.Condition(self.lock)
        self._waiting = 0
        # One of those who wait lends its turn: what the writer's thread may do meanwhile. It sleeps
        # apart from the others, is to wait while its turn is used, and may be due to go on then.
        self._lender = threading.Condition(self.lock)
        self._instead: Instead | None = None
        self._is_lent = self._is_due = False
        self.end_lsn = state_file.state.flushed_lsn
        #: the file that is being filled; None between two
        self.tail: SegmentFile | None = None
        self.is_closed = False

    @property
    def system_id(self) -> str:
        return str(self._state_file.state.system_id)

    @property
    def segment_size(self) -> int:
        return self._segment_size

    @property
    def timeline(self) -> int:
        return self._state_file.state.timeline

    @property
    def first_lsn(self) -> Lsn:
        return self._state_file.state.first_lsn

    @property
    def flushed_lsn(self) -> Lsn:
        return self._state_file.state.flushed_lsn

    @property
    def received_lsn(self) -> Lsn:
        return self.end_lsn

    def check_open(self) -> None:
        """Raise NotReady when the store is closed."""
        if self.is_closed:
            raise NotReady(f"the WAL store {self.directory} is closed")

    def read(self, lsn: int, max_bytes: int) -> bytes:
        received = self.end_lsn
        if lsn >= received:
            self.check_open()
            return b""
        if lsn < self.first_lsn:
            raise _not_retained(lsn, self.first_lsn)
        size = self._segment_size
        number, offset = segment_number(lsn, size), lsn % size
        count = min(max_bytes, size - offset, received - lsn)
        try:
            data = self.file(number).read(offset, count)
        except WalGap:
            if lsn < self.first_lsn:  # removed just now
                return self.read(lsn, max_bytes)
            raise
        except OSError as error:
            error.filename = error.filename or str(self._segments.file_path(number))
            raise storage_error(self.directory, error, "read", lsn) from error
        if not data:
            raise self._segments.gap(number, "is too short", self.timeline)
        return data

    def file(self, number: int) -> SegmentFile:
        """Return what to read segment *number* from.

        Raises:
            WalGap: it has no file.
            OSError: it can't be opened.
        """
        with self.changed:
            self.check_open()
            tail = self.tail
            if tail is not None and number == segment_number(self.end_lsn, self._segment_size):
                return tail
        return self._segments.reader(number)

    def wait(
        self,
        lsn: int,
        timeout_s: float,
        called: Callable[[], bool] = lambda: False,
        instead: Instead | None = None,
    ) -> bool:
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while self.end_lsn <= lsn and not self.is_closed and not called():
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                if instead is None or self._instead is not None:
                    self._waiting += 1
                    try:
                        self.changed.wait(remaining_s)
                    finally:
                        self._waiting -= 1
                else:
                    self._lend(instead, remaining_s)
            return self.end_lsn > lsn

    def _lend(self, instead: Instead, timeout_s: float) -> None:
        """Sleep, and lend the turn meanwhile; the lock is held, but for the sleeping."""
        self._instead = instead
        try:
            self._lender.wait(timeout_s)
            self._is_due = True
            while self._is_lent:
                self._lender.wait()
        finally:
            self._instead, self._is_due = None, False

    def tell(self, nbytes: int) -> Instead | None:
        """Tell those who wait that *nbytes* were appended; the lock is held.

        Return what is to be called for them in the stead of one who sleeps on, without the lock;
        :meth:`give_back` must follow.
        """
        if self._waiting:
            self.changed.notify_all()
        if self._instead is None:
            return None
        if nbytes > LENT_BYTES or self._is_due:
            self._lender.notify()
            return None
        self._is_lent = True
        return self._instead

    def give_back(self, *, sleeps_on: bool) -> None:
        """End what :meth:`tell` began."""
        with self.lock:
            self._is_lent = False
            if self._is_due or not sleeps_on:
                # Its turn is its own from here on, though it takes a while to wake.
                self._is_due = True
                self._lender.notify()

    def wake(self) -> None:
        with self.changed:
            self.wake_all()

    def wake_all(self) -> None:
        """As :meth:`wake`; the lock is held."""
        self.changed.notify_all()
        self._lender.notify()

    def passed(self, reader: Hashable, lsn: int) -> None:
        self._passed.note(reader, lsn, self.flushed_lsn)

    def leave(self, reader: Hashable) -> None:
        self._passed.leave(reader)


class FollowedWal(WalReader):
    """What another process has made durable in *directory*, as far as it has announced that.

    Raises:
        NotReady: no writer has opened a store there.
        StorageError: the directory can't be read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._announced = Announced(self.directory / END_NAME, END_KIND, len(WalEnd._fields))
        self._lock = threading.Lock()
        self._woken = threading.Condition()
        self._wakes = 0
        self._is_closed = False
        self._end: WalEnd | None = None
        self._segments: SegmentDirectory | None = None
        self._cluster = (0, 0)
        end = self._look()
        self._cluster = end.system_id, end.segment_size

    def _look(self) -> WalEnd:
        """Take in what is announced now."""
        with self._lock, file_errors(self.directory, "follow the WAL store in"):
            if self._is_closed:
                raise NotReady(f"this reader of the WAL store {self.directory} is closed")
            values = self._announced.look()
            if values is None:
                raise NotReady(
                    f"no service has opened a WAL store in {self.directory}",
                    hint="Start the service that receives into this directory.",
                    path=str(self.directory),
                )
            before = self._end
            if values != before:
                self._take_in(before, WalEnd(*values))
            assert self._end is not None
            return self._end

    def _take_in(self, before: WalEnd | None, end: WalEnd) -> None:
        if before is not None and (end.system_id, end.segment_size) != self._cluster:
            raise SystemIdMismatch(
                f"the WAL store {self.directory} has WAL of cluster {end.system_id} now, "
                f"it was that of {self._cluster[0]}",
                hint="What was read of the other one does not go on. Begin anew.",
                expected_system_id=str(self._cluster[0]),
                system_id=str(end.system_id),
                path=str(self.directory),
            )
        if before is None or (before.epoch, before.timeline) != (end.epoch, end.timeline):
            # Files may be others than they were.
            self._segments = None
        self._end = end

    @property
    def system_id(self) -> str:
        return str(self._cluster[0])

    @property
    def segment_size(self) -> int:
        return self._cluster[1]

    @property
    def timeline(self) -> int:
        return self._look().timeline

    @property
    def first_lsn(self) -> Lsn:
        return Lsn(self._look().first_lsn)

    @property
    def flushed_lsn(self) -> Lsn:
        return Lsn(self._look().flushed_lsn)

    @property
    def received_lsn(self) -> Lsn:
        return self.flushed_lsn

    def read(self, lsn: int, max_bytes: int) -> bytes:
        end = self._look()
        while True:
            if lsn >= end.flushed_lsn:
                return b""
            if lsn < end.first_lsn:
                raise _not_retained(lsn, end.first_lsn)
            size = end.segment_size
            offset = lsn % size
            count = min(max_bytes, size - offset, end.flushed_lsn - lsn)
            gap: WalGap | None = None
            data = b""
            try:
                data = self._file(end, segment_number(lsn, size)).read(offset, count)
            except WalGap as error:
                gap = error
            except OSError as error:
                self._look()  # the store may have been removed
                raise storage_error(self.directory, error, "read", lsn) from error
            now = self._look()
            if gap is None and now.epoch == end.epoch:
                if data:
                    return data
                directory = SegmentDirectory(self.directory, size)
                raise directory.gap(segment_number(lsn, size), "is too short", end.timeline)
            if gap is not None and now == end:
                raise gap
            # The store was opened anew meanwhile, or what was wanted removed.
            end = now

    def _file(self, end: WalEnd, number: int) -> SegmentFile:
        """Return what to read segment *number* from; raises as :meth:`SegmentDirectory.reader`."""
        segments = self._segments
        if segments is not None and number in segments:
            try:
                return segments.reader(number)
            except WalGap:
                pass  # it has another file by now, or none
        segments = SegmentDirectory(self.directory, end.segment_size)
        segments.find(end.state)
        with self._lock:
            if self._end is not None and (self._end.epoch, self._end.timeline) == (
                end.epoch,
                end.timeline,
            ):
                self._segments = segments
        return segments.reader(number)

    def wait(
        self,
        lsn: int,
        timeout_s: float,
        called: Callable[[], bool] = lambda: False,
        instead: Instead | None = None,  # noqa: ARG002 - who appends is another process
    ) -> bool:
        began = time.monotonic()
        while True:
            if self._is_closed:
                return False
            if self._look().flushed_lsn > lsn:
                return True
            with self._woken:
                wakes = self._wakes
            if called():
                return False
            quiet_s = time.monotonic() - began
            if quiet_s >= timeout_s:
                return False
            with self._woken:
                if self._wakes == wakes:
                    self._woken.wait(min(pause_s(quiet_s), timeout_s - quiet_s))

    def wake(self) -> None:
        with self._woken:
            self._wakes += 1
            self._woken.notify_all()

    def passed(self, reader: Hashable, lsn: int) -> None:
        """Do nothing: what the kernel keeps is for who knows all readers, in whatever process."""

    def leave(self, reader: Hashable) -> None:
        """Do nothing, as for :meth:`passed`."""

    def close(self) -> None:
        """Read no more; who waits wakes. Safe to repeat."""
        with self._lock:
            self._is_closed = True
            self._announced.close()
            self._segments = None
        self.wake()


def _not_retained(lsn: int, first_lsn: int) -> LsnNotRetained:
    return LsnNotRetained(
        f"WAL at {Lsn(lsn)} is no longer kept; the WAL store begins at {Lsn(first_lsn)}",
        hint="Start at a later position.",
        lsn=str(Lsn(lsn)),
        first_lsn=str(Lsn(first_lsn)),
    )


def storage_error(
    directory: Path, error: OSError, verb: str, lsn: int | None = None
) -> StorageError:
    """Type what the system said of the WAL store in *directory*, as somebody was about to *verb* it
    at *lsn*.
    """
    where = "" if lsn is None else f" at {Lsn(lsn)}"
    typed = file_error(
        error,
        directory,
        f"{verb} the WAL store{where}:",
        f"Free space on the file system of {directory}, or drop or advance the slot that retains "
        "most. Receiving resumes by itself; until then the source keeps its WAL for the physical "
        "slot.",
    )
    if lsn is not None:
        typed.details["lsn"] = str(Lsn(lsn))
    return typed
