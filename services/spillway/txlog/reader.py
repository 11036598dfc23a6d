"""What everybody gets of a transaction log who does not write it: delivery, and whoever looks.

A :class:`LogReader` says what is visible, as a :class:`Snapshot`, and when there is more; cursors
(:mod:`spillway.txlog.cursor`) do the reading. It is the writer's own side (``LogWriter.reader``),
which the writer shows each change of what is visible. A :class:`FollowedLog` is the same in another
process, and needs the directory alone::

    writer's process   LogWriter ──show──▶ LogReader ◀── cursors
                           │ writes, announces
    directory          segments, their indexes, log.end
                           ▲ looks
    another process    FollowedLog ◀── cursors

**Visible to another process** is what the writer has announced
(:mod:`spillway.storage.announcement`): whole transactions, whose bytes were handed to the kernel
before. They outlive a writer that is killed, and one that opens the log again finds them and goes
on behind them, so a reader is never past its end. Three things are less than that:

* A log before its first checkpoint is provisional, and is thrown away when its process dies. It is
  announced as empty.
* The transactions of a torn tail, written and never announced, are cut off or kept by the next
  writer. Either way they are announced before they are seen.
* Where a disk has lost or changed what was announced, the next writer cuts the log there, or begins
  anew. That is another *epoch*. Cursors that have read of the last segment get LsnNotRetained, and
  whoever reads again from a position finds what was decoded again. Until that is announced,
  checksums tell.

What a follower must know of sealed segments is in their sidecars. The index of the one that is
being written is made by the follower itself, when a cursor needs it, of what is visible: the kernel
that cursors use goes over the entries.

A reader holds nothing back. What is to stay is for the slots to say; who is too late gets
LsnNotRetained.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import CorruptTransactionLog, NotReady, SpillwayError
from spillway.storage.announcement import Announced, pause_s
from spillway.storage.file_errors import file_errors, listed
from spillway.txlog import frames
from spillway.txlog.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

END_NAME: Final = "log.end"
END_KIND: Final = b"LOG1"


class LogEnd(NamedTuple):
    """What a writer announces of its log; all but the first two are 0 when nothing is visible."""

    #: another one when something that was visible is not there any more, or is something else
    epoch: int
    #: how many segments were put back where they were damaged
    mended: int
    #: where the first segment starts, and where the last one does
    start_lsn: int
    last_start_lsn: int
    #: visible bytes of the last segment
    end: int
    #: as :class:`~spillway.txlog.segment.Segment` has them of the last segment, and the log of
    #: itself
    last_final_lsn: int
    last_end_lsn: int
    decoded_lsn: int
    restart_lsn: int

    def has_files_of(self, other: LogEnd) -> bool:
        """Say whether the segments are those that *other* is about."""
        return self[:4] == other[:4]


#: Listeners that may do what takes some time, a transaction's delivery each: the writer's thread
#: does it.
FIRST_MAX: Final = 4


class Snapshot(NamedTuple):
    """What readers may see: segments in order, where the last of them ends, how far WAL is
    decoded.
    """

    segments: tuple[Segment, ...]
    end: int
    decoded_lsn: int
    #: what was written last, up to the end, if it is little: who comes for it need not read a file
    tail: bytes = b""


class LogReader:
    """A transaction log of this process, to be read. For any thread, but for the writer's two
    methods.
    """

    def __init__(self, on_damage: Callable[[Segment], None] = lambda segment: None) -> None:  # noqa: ARG005
        """Show nothing yet; *on_damage* hears of segments that are not what was written."""
        self._on_damage = on_damage
        self._lock = threading.Lock()
        #: whom to tell, and whether before the others
        self._listeners: dict[Callable[[], None], bool] = {}
        #: the same, those before the others and the others
        self._first: tuple[Callable[[], None], ...] = ()
        self._others: tuple[Callable[[], None], ...] = ()
        self._visible: Snapshot | None = None

    # -- the writer's -------------------------------------------------------------------------

    def show(self, visible: Snapshot | None) -> None:
        """Let *visible* be seen from now on."""
        self._visible = visible

    def tell_first(self) -> None:
        """Call the listeners that are to be called before the others: there is more to see."""
        for listener in self._first:
            listener()

    def tell(self) -> None:
        """Call the others."""
        for listener in self._others:
            listener()

    # -- what readers ask ---------------------------------------------------------------------

    def snapshot(self) -> Snapshot | None:
        """Return what is visible as of one moment, the same object until that changes; None while
        the log is empty.
        """
        return self._visible

    @property
    def start_lsn(self) -> int | None:
        """Every transaction whose commit record starts here or later is in the log; None when
        empty.
        """
        visible = self.snapshot()
        return visible.segments[0].start_lsn if visible is not None else None

    @property
    def decoded_lsn(self) -> int:
        """How far WAL is decoded; 0 while the log is empty."""
        visible = self.snapshot()
        return visible.decoded_lsn if visible is not None else 0

    @property
    def retained_bytes(self) -> int:
        """Bytes on disk."""
        visible = self.snapshot()
        return sum(segment.size for segment in visible.segments) if visible is not None else 0

    def bytes_from(self, lsn: int) -> int:
        """Return about how many bytes of the log are at *lsn* or later (whole index steps)."""
        visible = self.snapshot()
        total = 0
        for segment in reversed(visible.segments if visible is not None else ()):
            if segment.start_lsn <= lsn:
                if segment.last_final_lsn >= lsn:
                    self.index(segment, segment.size)
                    total += segment.size - segment.offset_for(lsn, segment.size)
                break
            total += segment.size
        return total

    def index(self, segment: Segment, limit: int) -> None:
        """See to it that the index of *segment* has what is before *limit*. The writer of this
        process does it as it writes.
        """

    def note_damage(self, segment: Segment) -> None:
        """Hear that *segment* is not what was written."""
        self._on_damage(segment)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call *listener* from another thread whenever there is more to see; it must not block."""
        with self._lock:
            self._listeners[listener] = False
            self._sort()

    def prefer(self, listener: Callable[[], None]) -> bool:
        """Have *listener* called before the others, so that it may do something itself before they
        wake threads that would have to wait for it; False if it can't be, since FIRST_MAX are.
        """
        with self._lock:
            if self._listeners.get(listener) is not False:
                return listener in self._listeners
            if sum(self._listeners.values()) >= FIRST_MAX:
                return False
            self._listeners[listener] = True
            self._sort()
            return True

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Stop calling *listener*."""
        with self._lock:
            self._listeners.pop(listener, None)
            self._sort()

    def _sort(self) -> None:
        self._first = tuple(one for one, is_first in self._listeners.items() if is_first)
        self._others = tuple(one for one, is_first in self._listeners.items() if not is_first)


class FollowedLog(LogReader):
    """The log that another process writes in *directory*. To be closed."""

    def __init__(
        self,
        directory: Path,
        on_damage: Callable[[Segment], None] = lambda segment: None,  # noqa: ARG005
    ) -> None:
        """Begin to follow.

        *on_damage* hears of segments that are not what was written. The writer's process finds them
        within a day by itself (``verification.py``), at once if somebody tells it.

        Raises:
            NotReady: no writer has opened a log there.
            StorageError: the directory can't be read.
        """
        super().__init__(on_damage)
        self.directory = directory
        self._announced = Announced(directory / END_NAME, END_KIND, len(LogEnd._fields))
        self._looking = threading.Lock()
        self._end: LogEnd | None = None
        #: sealed segments that are known, with what tells that a file is still the same
        self._sealed: dict[int, tuple[tuple[int, ...], Segment]] = {}
        self._links: dict[int, int] = {}
        #: the one that is being written
        self._live: Segment | None = None
        self._is_closed = False
        #: ends the thread that looks for those who listen; None without one
        self._watching: threading.Event | None = None
        self.snapshot()

    def snapshot(self) -> Snapshot | None:
        """Return what is visible now, the same object until that changes; None while the log is
        empty.

        Raises:
            NotReady: the log was closed or removed.
            StorageError: it can't be read.
        """
        with self._looking, file_errors(self.directory, "follow the transaction log in"):
            end = self._look()
            before = self._end
            if end != before:
                if not end.last_start_lsn:
                    self._forget()
                    self._visible = None
                elif before is not None and self._visible is not None and end.has_files_of(before):
                    self._grow(end)
                    self._visible = Snapshot(self._visible.segments, end.end, end.decoded_lsn)
                else:
                    end = self._take_in(end)
                self._end = end
            return self._visible

    @property
    def restart_lsn(self) -> int:
        """Where the writer would decode again from; 0 while the log is empty."""
        self.snapshot()
        end = self._end
        return end.restart_lsn if end is not None else 0

    def index(self, segment: Segment, limit: int) -> None:
        if segment.indexed_to is not None and segment.indexed_to < limit:
            # Where it is removed meanwhile, who has it open goes on from where the index ends.
            with self._looking, contextlib.suppress(FileNotFoundError):
                segment.index_to(limit)

    def close(self) -> None:
        """Look no more; cursors that have a segment open may read it to its end. Safe to repeat."""
        with self._looking:
            self._is_closed = True
            self._announced.close()
            self._end_watching()

    # -- looking, under the lock --------------------------------------------------------------

    def _look(self) -> LogEnd:
        if self._is_closed:
            raise NotReady(f"this reader of the transaction log {self.directory} is closed")
        values = self._announced.look()
        if values is None:
            raise NotReady(
                f"no service has opened a transaction log in {self.directory}",
                hint="Start the service that decodes into this directory.",
                path=str(self.directory),
            )
        return LogEnd(*values)

    def _grow(self, end: LogEnd) -> None:
        """Take in how far the segment that is being written has come."""
        live = self._live
        assert live is not None
        live.last_final_lsn, live.last_end_lsn = end.last_final_lsn, end.last_end_lsn
        live.decoded_lsn, live.restart_lsn = end.decoded_lsn, end.restart_lsn
        live.size = end.end

    def _forget(self) -> None:
        """Have cursors in the last segment look again where they are: it is not what it was."""
        if self._live is not None:
            self._live.cut = True
        self._live = None
        self._sealed.clear()
        self._links.clear()

    def _take_in(self, end: LogEnd) -> LogEnd:
        """List the segments; return the announcement that they are of, *end* or a later one.

        Raises:
            CorruptTransactionLog: the last segment is gone.
            OSError: something can't be read.
        """
        before = self._visible.segments if self._visible is not None else ()
        if self._end is not None and self._end.epoch != end.epoch:
            self._forget()
        while True:
            try:
                segments = self._segments(end, before)
            except FileNotFoundError:
                # One of them was removed just now.
                segments = None
            now = self._look()
            if now.has_files_of(end) and segments is not None:
                break
            if (
                now == end
                and not (self.directory / frames.segment_name(end.last_start_lsn)).exists()
            ):
                raise frames.corrupt(
                    str(self.directory / frames.segment_name(end.last_start_lsn)),
                    0,
                    end.last_start_lsn,
                    "the segment is lost",
                )
            if now.epoch != end.epoch:
                self._forget()
            end = now
            if not end.last_start_lsn:
                self._forget()
                self._visible = None
                return end
        self._live = segments[-1]
        self._grow(end)
        self._visible = Snapshot(segments, end.end, end.decoded_lsn)
        return end

    def _segments(self, end: LogEnd, before: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """Return the segments of *end*, with those that are lost between them, as ``opening.py``
        finds them.
        """
        sealed: dict[int, tuple[tuple[int, ...], Segment]] = {}
        links: dict[int, int] = {}
        found: list[Segment] = []
        for path in listed(self.directory, ".txlog"):
            start_lsn = int(path.stem, 16)
            if not end.start_lsn <= start_lsn <= end.last_start_lsn:
                continue
            links[start_lsn] = link = self._link(path, start_lsn)
            if start_lsn == end.last_start_lsn:
                segment = self._live_segment(path, end)
            else:
                status = path.stat()
                same = (status.st_ino, status.st_size, status.st_mtime_ns)
                segment = self._sealed_segment(path, start_lsn, same)
                if not segment.lost:
                    sealed[start_lsn] = same, segment
            if not found and start_lsn > end.start_lsn:
                found.append(self._lost(end.start_lsn))
            last = found[-1] if found else None
            if (
                last is not None
                and not last.lost
                and link
                and link != frames.segment_link(last.start_lsn)
            ):
                found.append(self._lost(max(last.last_final_lsn, last.start_lsn) + 1))
            found.append(segment)
        if not found or found[-1].start_lsn != end.last_start_lsn:
            raise FileNotFoundError
        first = found[0]
        if first.follows is None:
            # One that was removed since: who has it open goes on from there.
            first.follows = next(
                (s.start_lsn for s in before
                 if frames.segment_link(s.start_lsn) == links.get(first.start_lsn)),
                None,
            )  # fmt: skip
        for segment, following in itertools.pairwise(found):
            following.follows = segment.start_lsn
        self._sealed, self._links = sealed, links
        return tuple(found)

    def _link(self, path: Path, start_lsn: int) -> int:
        if start_lsn not in self._links:
            with path.open("rb") as file:
                header = frames.decode_segment_header(
                    file.read(frames.SEGMENT_HEADER_SIZE), str(path)
                )
            return 0 if header is None else header.link
        return self._links[start_lsn]

    def _live_segment(self, path: Path, end: LogEnd) -> Segment:
        live = self._live
        if live is None or live.start_lsn != end.last_start_lsn:
            live = Segment(path, end.last_start_lsn, indexed_to=frames.SEGMENT_HEADER_SIZE)
        return live

    def _sealed_segment(self, path: Path, start_lsn: int, same: tuple[int, ...]) -> Segment:
        known = self._sealed.get(start_lsn)
        if known is not None and known[0] == same:
            return known[1]
        segment = Segment(path, start_lsn)
        try:
            if not segment.load_index() and segment.scan() < path.stat().st_size:
                return self._lost(start_lsn)
        except CorruptTransactionLog as damage:
            log.error("%s", damage)  # noqa: TRY400 - the place is in the message
            return self._lost(start_lsn)
        live = self._live
        if live is not None and live.start_lsn == start_lsn:
            # Cursors have it. Its index goes on as it began.
            live.last_final_lsn, live.last_end_lsn = segment.last_final_lsn, segment.last_end_lsn
            live.decoded_lsn, live.restart_lsn = segment.decoded_lsn, segment.restart_lsn
            live.size = segment.size
            return live
        return segment

    def _lost(self, start_lsn: int) -> Segment:
        return Segment(
            self.directory / frames.segment_name(start_lsn), start_lsn, size=0, lost=True
        )

    # -- telling ------------------------------------------------------------------------------

    def add_listener(self, listener: Callable[[], None]) -> None:
        super().add_listener(listener)
        with self._looking:
            if self._watching is None and not self._is_closed:
                self._watching = stop = threading.Event()
                threading.Thread(
                    target=self._watch, args=(stop,), name="spillway-follow-log", daemon=True
                ).start()

    def remove_listener(self, listener: Callable[[], None]) -> None:
        super().remove_listener(listener)
        with self._looking:
            if not self._listeners:
                self._end_watching()

    def _end_watching(self) -> None:
        if self._watching is not None:
            self._watching.set()
            self._watching = None

    def _watch(self, stop: threading.Event) -> None:
        """Look for more until *stop*, and tell those who listen."""
        seen: object = None
        changed_s = time.monotonic()
        while not stop.is_set():
            try:
                now: object = self.snapshot()
            except SpillwayError as error:
                # Whoever is told looks, and gets it.
                now = error.code
            if now is not seen:
                seen, changed_s = now, time.monotonic()
                self.tell_first()
                self.tell()
            stop.wait(pause_s(time.monotonic() - changed_s))
