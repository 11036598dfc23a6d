"""Which segment files a WAL store has, and open handles to read them.

Positions and durability are the store's business; here is the map from segment number to file. A
segment may have files on several timelines, after a fork; the newest counts. Handles for reading
are kept for the segments read last, at most ``_READERS_MAX``; a handle that a reader holds stays
good when its file is removed or replaced meanwhile.

Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from spillway.errors import WalGap
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import parse_segment_name, segment_name
from spillway.receiver.segment_file import SegmentFile
from spillway.storage.durable_files import overwrite_start, replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.receiver.store_state import StoreState

#: Decoding sessions read near each other; more than this many distinct segments at once is unusual.
_READERS_MAX: Final = 16


class SegmentDirectory:
    """The segment files in *path*, each of *segment_size* bytes."""

    def __init__(self, path: Path, segment_size: int) -> None:
        self.path = path
        self._segment_size = segment_size
        self._lock = threading.Lock()
        #: segment number → timeline of its file
        self._timelines: dict[int, int] = {}
        #: segments that should be there and are not; a reader of one gets WalGap
        self.missing: set[int] = set()
        self._readers: OrderedDict[int, SegmentFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._timelines)

    def __contains__(self, number: object) -> bool:
        return number in self._timelines

    def load(self, state: StoreState) -> list[Path]:
        """Find the files of ``[first_lsn, flushed_lsn)``; return those that are none of it, for
        removal.

        One that is missing, or shorter than what is durable in it, is in :attr:`missing` then.
        """
        size = self._segment_size
        first, end = state.first_lsn // size, -(-state.flushed_lsn // size)
        stale: list[Path] = []
        for path in self.path.iterdir():
            named = parse_segment_name(path.name, size)
            if named is None:
                continue
            timeline, number = named
            known = self._timelines.get(number, 0)
            if not first <= number < end or not known < timeline <= state.timeline:
                stale.append(path)
                continue
            if known:
                stale.append(self.file_path(number))
            self._timelines[number] = timeline
        for number in range(first, end):
            if number in self:
                path = self.file_path(number)
                if path.stat().st_size >= min(size, state.flushed_lsn - number * size):
                    continue
                stale.append(path)
                del self._timelines[number]
            self.missing.add(number)
        return stale

    def find(self, state: StoreState) -> None:
        """Find the files of ``[first_lsn, flushed_lsn)`` in a directory that another process
        writes: they come and go.

        Raises:
            OSError: it can't be read.
        """
        size = self._segment_size
        first, end = state.first_lsn // size, -(-state.flushed_lsn // size)
        for path in self.path.iterdir():
            named = parse_segment_name(path.name, size)
            if named is None:
                continue
            timeline, number = named
            if (
                first <= number < end
                and self._timelines.get(number, 0) < timeline <= state.timeline
            ):
                self._timelines[number] = timeline

    def file_path(self, number: int) -> Path:
        """Return the path of a segment that is there."""
        return self.path / segment_name(self._timelines[number], number, self._segment_size)

    def new_path(self, number: int, timeline: int) -> Path:
        """Return the path of a segment that is to be."""
        return self.path / segment_name(timeline, number, self._segment_size)

    def add(self, number: int, timeline: int) -> None:
        """Take in a new file."""
        with self._lock:
            self._timelines[number] = timeline
            self.missing.discard(number)

    def take_out_before(self, number: int) -> list[Path]:
        """Forget the segments before *number* and return their files, oldest first, for removal."""
        with self._lock:
            self.missing = {known for known in self.missing if known >= number}
            return self._take_out([known for known in sorted(self._timelines) if known < number])

    def replace_from(self, number: int, timeline: int | None) -> list[Path]:
        """Forget the segments from *number* on, which becomes that of *timeline* if given; return
        the old files.
        """
        with self._lock:
            old = self._take_out([known for known in sorted(self._timelines) if known >= number])
            if timeline is not None:
                self._timelines[number] = timeline
            return old

    def _take_out(self, numbers: list[int]) -> list[Path]:
        paths = [self.file_path(number) for number in numbers]
        for number in numbers:
            del self._timelines[number]
            self._readers.pop(number, None)
        return paths

    def reader(self, number: int) -> SegmentFile:
        """Return a handle to read a segment.

        Raises:
            WalGap: it has no file.
            OSError: it can't be opened.
        """
        with self._lock:
            file = self._readers.get(number)
            if file is not None:
                self._readers.move_to_end(number)
                return file
            if number not in self:
                raise self.gap(number, "is missing", 1)
            try:
                file = SegmentFile.open_to_read(self.file_path(number), self._segment_size)
            except FileNotFoundError:
                raise self.gap(number, "is missing", 1) from None
            self._readers[number] = file
            while len(self._readers) > _READERS_MAX:
                self._readers.popitem(last=False)
            return file

    def mend(self, number: int, data: bytes, timeline: int) -> bool:
        """Make a segment begin with *data*, durably; return whether it did not before.

        Raises:
            OSError: it can't be written.
        """
        if number in self:
            path = self.file_path(number)
            with path.open("rb") as file:
                if file.read(len(data)) == data:
                    return False
            # In place: the receiver may be writing behind it.
            overwrite_start(path, data)
        else:
            replace_file(self.new_path(number, timeline), data)
            self.add(number, timeline)
        self.drop_readers()
        return True

    def drop_readers(self) -> None:
        """Let go of all handles; the next reads open new ones."""
        with self._lock:
            self._readers.clear()

    def gap(self, number: int, what: str, timeline: int) -> WalGap:
        """Make the error for a segment whose file *what*; *timeline* names it if it is not
        known.
        """
        name = segment_name(self._timelines.get(number, timeline), number, self._segment_size)
        lsn = Lsn(number * self._segment_size)
        return WalGap(
            f"WAL from {lsn} on is missing: segment file {name} {what} in {self.path}",
            hint=f"Copy {name} there from a WAL archive or a backup, and restart the service. "
            "Without it, decoding begins anew behind it, and slots that need it are invalidated: "
            "spillway source restart SOURCE DATABASE.",
            lsn=str(lsn),
            path=str(self.path / name),
        )
