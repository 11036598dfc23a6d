"""Which WAL the kernel may drop from its page cache: what is durable, and behind every reader.

WAL is read once, just after it was written; only a restart reads some of it again. Left alone, its
pages stay in memory until memory is short, and each MiB of WAL takes a MiB of memory that nothing
has used before. Dropped at once, the same few MiB are written to again and again. On a virtual
machine whose host gives it memory at the first touch, that is most of what receiving costs
(docs/explanation/performance.md, "Pages of WAL"); anywhere it leaves memory to the transaction log,
which slots read later.

::

            ┌ dropped ┐
    first_lsn         min(readers, flushed_lsn)      received_lsn
        |─────────────|───────────────|────────────────|

A reader is a walk of the WAL, which many sessions may share (:mod:`spillway.wal.shared_walk`); it
has passed what none of those that it is of concern to will read again, however long the others
sleep. One that never comes on holds everything back: then it is the kernel's to decide, as it would
be without us. A restart reads from the disk what comes after its snapshot, 256 MB at most
(EngineSettings.checkpoint_wal_bytes). No file changes: what is dropped can be read as before.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from spillway.errors import WalGap

if TYPE_CHECKING:
    from collections.abc import Hashable

    from spillway.receiver.segment_directory import SegmentDirectory

#: Each drop is a system call.
_STEP_BYTES: Final = 1 << 20


class PassedWal:
    """Hears how far readers are. For any thread.

    Args:
        segments: the files.
        segment_size: of each.
    """

    def __init__(self, segments: SegmentDirectory, segment_size: int) -> None:
        self._segments = segments
        self._segment_size = segment_size
        self._lock = threading.Lock()
        self._readers: dict[Hashable, int] = {}
        # Everything before it was dropped, or is not ours: it was there when nobody had told us of
        # readers.
        self._dropped_lsn = 0

    def note(self, reader: Hashable, lsn: int, flushed_lsn: int) -> None:
        """Hear that *reader* has read what is before *lsn*; drop what everybody has read and is
        durable.
        """
        with self._lock:
            begins = not self._readers
            self._readers[reader] = lsn
            if begins:
                self._dropped_lsn = max(self._dropped_lsn, lsn)
            passed = min(*self._readers.values(), flushed_lsn)
            # Whole pages, and few calls.
            passed -= passed % _STEP_BYTES
            if passed > self._dropped_lsn:
                self._drop(passed)
                self._dropped_lsn = passed

    def leave(self, reader: Hashable) -> None:
        """Wait for *reader* no longer."""
        with self._lock:
            self._readers.pop(reader, None)

    def _drop(self, passed: int) -> None:
        """Drop what is before *passed* of the segments that were not done with."""
        size = self._segment_size
        for number in range(self._dropped_lsn // size, -(-passed // size)):
            try:
                file = self._segments.reader(number)
            except (WalGap, OSError):
                continue  # it was removed meanwhile, or is for whoever reads it to complain of
            # From the segment's beginning: what was being written to the disk just now stays at the
            # first attempt.
            file.drop_cached(min(size, passed - number * size))
