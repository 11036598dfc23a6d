"""A WAL archive: a directory of complete segment files, as archive_command or pg_receivewal leave
them.

The receiver falls back to it for WAL that the primary has removed, and offline decoding reads from
it. It is read like the store (:meth:`WalArchive.read`), but nothing is believed because of its name
alone: each segment's first page says which cluster, which position and which segment size it is of,
and an archive in the wrong place is found out before its bytes mix with ours.

Where the archive holds a segment on several timelines, the one that leads to *timeline* counts, by
that timeline's history file; without one, the highest timeline that is not above it.

Files that are still being written (``.partial``) or compressed are not looked at.

Source: src/include/access/xlog_internal.h (XLogLongPageHeaderData),
src/backend/access/transam/xlogarchive.c
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.errors import CorruptWal, InvalidRequest, StorageError, SystemIdMismatch, WalGap
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import (
    XLOG_BLCKSZ,
    history_name,
    is_valid_segment_size,
    parse_segment_name,
    segment_name,
    segment_number,
)
from spillway.receiver.segment_file import SegmentFile
from spillway.receiver.timeline_history import TimelineFork, parse_history

if TYPE_CHECKING:
    import os

#: xlp_magic, xlp_info, xlp_tli, xlp_pageaddr, xlp_rem_len, padding, xlp_sysid, xlp_seg_size,
#: xlp_xlog_blcksz
_LONG_PAGE_HEADER: Final = struct.Struct("<HHIQI4xQII")
_XLP_LONG_HEADER: Final = 0x0002


class WalArchive:
    """Reads WAL of one cluster from *directory*. For one thread.

    Args:
        directory: where the segment files are.
        segment_size: the cluster's ``wal_segment_size``.
        system_id: checked against every segment; None takes that of the first one read.
        timeline: the branch of history to follow; None follows the highest one there is.

    Raises:
        StorageError: the directory can't be read.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        segment_size: int,
        system_id: str | None = None,
        timeline: int | None = None,
    ) -> None:
        if not is_valid_segment_size(segment_size):
            raise InvalidRequest(f"{segment_size} is not a WAL segment size of PostgreSQL")
        self.directory = Path(directory)
        self.system_id = system_id
        self._segment_size = segment_size
        self._timeline = timeline
        self._open: tuple[int, SegmentFile] | None = None
        self._timelines_of()  # an unreadable archive is an error now, not in an emergency

    def read(self, lsn: int, max_bytes: int) -> bytes:
        """Return up to *max_bytes* from *lsn* on, not beyond the segment's end; ``b""`` when the
        archive lacks it.

        Raises:
            SystemIdMismatch: the segment is another cluster's.
            CorruptWal: the segment is not what its name says.
            WalGap: the segment is too short.
            StorageError: it can't be read.
        """
        number, offset = segment_number(lsn, self._segment_size), lsn % self._segment_size
        try:
            if self._open is None or self._open[0] != number:
                path = self._find(number)
                if path is None:
                    return b""
                file = SegmentFile.open_to_read(path, self._segment_size)
                self._check(file, number)
                self._open = (number, file)
            return self._open[1].read(offset, min(max_bytes, self._segment_size - offset))
        except OSError as error:
            raise self._storage_error(error) from error

    def first_lsn(self) -> Lsn | None:
        """Return the oldest position that is there, None for an empty archive; gaps may follow."""
        numbers = self._timelines_of()
        return Lsn(min(numbers) * self._segment_size) if numbers else None

    # -- choosing a file ----------------------------------------------------------------------

    def _timelines_of(self) -> dict[int, list[int]]:
        """List the archive: segment number → timelines, ascending."""
        found: dict[int, list[int]] = {}
        try:
            for path in self.directory.iterdir():
                if (parsed := parse_segment_name(path.name, self._segment_size)) is not None:
                    found.setdefault(parsed[1], []).append(parsed[0])
        except OSError as error:
            raise self._storage_error(error) from error
        for timelines in found.values():
            timelines.sort()
        return found

    def _find(self, number: int) -> Path | None:
        """Return the file of segment *number* on our branch of history. Looked up anew: archives
        grow.
        """
        target = self._timeline
        if target is None:
            target = max(
                (timeline for found in self._timelines_of().values() for timeline in found),
                default=1,
            )
        for timeline in _candidates(
            self._history(target), target, (number + 1) * self._segment_size
        ):
            path = self.directory / segment_name(timeline, number, self._segment_size)
            if path.is_file():
                return path
        return None

    def _history(self, timeline: int) -> list[TimelineFork] | None:
        try:
            return parse_history((self.directory / history_name(timeline)).read_bytes())
        except FileNotFoundError:
            return None

    # -- believing a file ---------------------------------------------------------------------

    def _check(self, file: SegmentFile, number: int) -> None:
        start = Lsn(number * self._segment_size)
        size = file.path.stat().st_size
        if size != self._segment_size:
            raise WalGap(
                f"archived segment {file.path.name} has {size} bytes, not {self._segment_size}",
                hint="Copy the whole segment into the archive, uncompressed.",
                lsn=str(start),
                path=str(file.path),
            )
        header = file.read(0, _LONG_PAGE_HEADER.size)
        _, info, _, page_address, _, system_id, segment_size, block_size = _LONG_PAGE_HEADER.unpack(
            header
        )
        if (
            not info & _XLP_LONG_HEADER
            or page_address != start
            or segment_size != self._segment_size
            or block_size != XLOG_BLCKSZ
        ):
            raise CorruptWal(
                f"archived segment {file.path.name} does not begin as the WAL at {start} does",
                hint="It is damaged, compressed, or was renamed; copy it into the archive again.",
                lsn=str(start),
                path=str(file.path),
            )
        if self.system_id is None:
            self.system_id = str(system_id)
        elif int(self.system_id) != system_id:
            raise SystemIdMismatch(
                f"archived segment {file.path.name} is of cluster {system_id}, not of "
                f"{self.system_id}",
                hint="Point the source at the archive of its own cluster.",
                expected_system_id=self.system_id,
                system_id=str(system_id),
                path=str(file.path),
            )

    def _storage_error(self, error: OSError) -> StorageError:
        return StorageError(
            f"could not read the WAL archive {self.directory}: {error.strerror or error}",
            hint="Check the path and the service's rights on it.",
            path=str(self.directory),
        )


def _candidates(history: list[TimelineFork] | None, target: int, segment_end: int) -> list[int]:
    """List the timelines whose file of a segment that ends at *segment_end* is on the way to
    *target*, best first.

    A fork inside the segment counts for the newer timeline, whose file has the older one's bytes
    before the fork; so a timeline that was left before the segment's end is still good if the newer
    file is missing, but only for what comes before the fork: it is left out, for a short answer
    beats a wrong one.
    """
    if history is None:
        return list(range(target, 0, -1))
    return [target, *(fork.timeline for fork in reversed(history) if fork.fork_lsn >= segment_end)]
