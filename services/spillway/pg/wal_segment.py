"""WAL segment files: their sizes, their names, and where an LSN falls in them.

The WAL is one byte string; on disk it is cut into files of ``wal_segment_size`` bytes. A file's
name is 24 hexadecimal digits: timeline, then the high 32 bits of the position, then the segment's
number within those 4 GiB. A timeline's history is in ``<timeline>.history``.

Source: src/include/access/xlog_internal.h (XLogFileName, XLogSegNoOffsetToRecPtr,
IsValidWalSegSize)
"""

from __future__ import annotations

import re
from typing import Final

from spillway.pg.lsn import Lsn

XLOG_BLCKSZ: Final = 8192
#: PostgreSQL's bounds for initdb --wal-segsize: a power of two from 1 MiB to 1 GiB.
SEGMENT_SIZE_MIN: Final = 1 << 20
SEGMENT_SIZE_MAX: Final = 1 << 30

_SEGMENT_NAME: Final = re.compile(r"([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})")
_HISTORY_NAME: Final = re.compile(r"([0-9A-F]{8})\.history")


def is_valid_segment_size(segment_size: int) -> bool:
    """Say whether a server can have been initialised with this ``wal_segment_size``."""
    return (
        SEGMENT_SIZE_MIN <= segment_size <= SEGMENT_SIZE_MAX
        and segment_size & (segment_size - 1) == 0
    )


def segment_number(lsn: int, segment_size: int) -> int:
    """Return the number of the segment that holds the byte at *lsn*."""
    return lsn // segment_size


def segment_start(lsn: int, segment_size: int) -> Lsn:
    """Return the first byte of the segment that holds the byte at *lsn*."""
    return Lsn(lsn - lsn % segment_size)


def segment_name(timeline: int, number: int, segment_size: int) -> str:
    """Return the file name of segment *number* on *timeline*."""
    per_id = (1 << 32) // segment_size
    return f"{timeline:08X}{number // per_id:08X}{number % per_id:08X}"


def parse_segment_name(name: str, segment_size: int) -> tuple[int, int] | None:
    """Split a file name into timeline and segment number; None if the name is not a segment's.

    A name whose last part is out of range for *segment_size* (a file of a cluster with smaller
    segments) is not a segment's either.
    """
    match = _SEGMENT_NAME.fullmatch(name)
    if match is None:
        return None
    per_id = (1 << 32) // segment_size
    timeline, high, low = (int(part, 16) for part in match.groups())
    if low >= per_id or timeline == 0:
        return None
    return timeline, high * per_id + low


def history_name(timeline: int) -> str:
    """Return the file name of the history of *timeline*."""
    return f"{timeline:08X}.history"


def parse_history_name(name: str) -> int | None:
    """Parse the timeline of a history file's name; None if the name is not a history file's."""
    match = _HISTORY_NAME.fullmatch(name)
    return int(match[1], 16) if match else None
