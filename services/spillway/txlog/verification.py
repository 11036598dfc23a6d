"""Whether the segments of a transaction log are still what was written, found out before a slot
needs them.

A disk that changes bytes says nothing, and a log is read by its slowest slot, maybe days later,
when the WAL that could mend it is gone. So every sealed segment is read again once in
:data:`PERIOD_S`, and its checksums are compared; the one whose turn is longest ago comes first. It
costs a call of :meth:`Verification.step` for each :data:`STEP_BYTES`, which the engine's upkeep
makes five times a second: 5 MB/s at most, of one core a hundredth, and no memory. When a segment
was verified is written beside the log, so that a restart begins where the last one ended and not
with all of it.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Final

from spillway._kernels.reorder.transaction_run import find_run
from spillway.errors import StorageError
from spillway.storage.durable_files import replace_cache
from spillway.txlog import frames
from spillway.txlog.segment import NONE_WANTED, SegmentReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spillway.txlog.segment import Segment
    from spillway.txlog.writer import LogWriter

log = logging.getLogger(__name__)

PERIOD_S: Final = 24 * 3600.0
STEP_BYTES: Final = 1 << 20
_RETRY_S: Final = 60.0


class Verification:
    """Of one log. One thread calls :meth:`step`."""

    def __init__(
        self, transactions: LogWriter, path: Path, now: Callable[[], float] = time.time
    ) -> None:
        """Go on as the file *path* says, which is a cache: without it, all segments are verified
        anew.
        """
        self._log = transactions
        self._path = path
        self._now = now
        #: start LSN of a segment: when it was found whole
        self._verified: dict[int, float] = {}
        self._damaged: set[int] = set()
        #: start LSN of a segment: when it could not be read last
        self._unreadable: dict[int, float] = {}
        self._segment: Segment | None = None
        self._offset = 0
        #: bytes read by this process
        self.read_bytes = 0
        try:
            found = json.loads(path.read_bytes())
            self._verified = {int(start, 16): float(at) for start, at in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            self._verified = {}

    def all_verified_at(self) -> float | None:
        """Return when all sealed segments had been found whole; None while one was not, or without
        one.
        """
        times = [self.verified_at(segment) for segment in self._log.segments()[:-1]]
        known = [at for at in times if at is not None]
        return min(known) if known and len(known) == len(times) else None

    def verified_at(self, segment: Segment) -> float | None:
        """Return when *segment* was found whole, in seconds since the epoch."""
        return self._verified.get(segment.start_lsn)

    def step(self) -> None:
        """Read on, at most :data:`STEP_BYTES` and a frame; damage is noted with the log.

        Raises:
            StorageError: a segment can't be read; it is tried again after a minute.
        """
        segment = self._segment
        sealed = self._log.segments()[:-1]
        if segment is None or segment not in sealed:
            segment = self._segment = self._next(sealed)
            self._offset = frames.SEGMENT_HEADER_SIZE
        if segment is None:
            return
        try:
            with SegmentReader(segment.path) as reader:
                is_whole = self._read(reader, segment)
                reader.forget(self._offset)
        except FileNotFoundError:
            is_whole = False
        except StorageError:
            # It is not known to be damaged, nor to be whole.
            self._segment = None
            self._unreadable[segment.start_lsn] = self._now()
            raise
        if not is_whole:
            if segment in self._log.segments():
                log.error("%s is damaged at byte %d", segment.path, self._offset)
                self._log.note_damage(segment)
            # Not again and again until it is mended.
            self._damaged.add(segment.start_lsn)
            self._segment = None
        elif self._offset >= segment.size:
            self._note(segment, sealed)

    def _next(self, sealed: tuple[Segment, ...]) -> Segment | None:
        """Return the segment whose turn it is."""
        due, retried = self._now() - PERIOD_S, self._now() - _RETRY_S
        if not self._log.is_damaged:
            self._damaged.clear()
        candidates = [
            segment
            for segment in sealed
            if not segment.lost
            and segment.start_lsn not in self._damaged
            and self._unreadable.get(segment.start_lsn, 0.0) <= retried
            and self._verified.get(segment.start_lsn, 0.0) <= due
        ]
        return min(
            candidates,
            key=lambda segment: self._verified.get(segment.start_lsn, 0.0),
            default=None,
        )

    def _read(self, reader: SegmentReader, segment: Segment) -> bool:
        """Check frames from where the last step ended; say whether all were whole."""
        upto = min(segment.size, self._offset + STEP_BYTES)
        began = self._offset
        try:
            while self._offset < upto:
                window = reader.window(self._offset, segment.size)
                # Most of a log are entries of runs, which need no look of Python's.
                _, size, _ = find_run(window, NONE_WANTED, {})
                if not size:
                    frame = reader.frame(self._offset, segment.size)
                    if frame is None:
                        return False
                    size = frame.next_offset - self._offset
                self._offset += size
        finally:
            self.read_bytes += self._offset - began
        return True

    def _note(self, segment: Segment, sealed: tuple[Segment, ...]) -> None:
        self._segment = None
        self._verified[segment.start_lsn] = self._now()
        known = {s.start_lsn for s in sealed}
        self._verified = {start: at for start, at in self._verified.items() if start in known}
        text = json.dumps({f"{start:X}": at for start, at in self._verified.items()})
        try:
            replace_cache(self._path, text)
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error)
