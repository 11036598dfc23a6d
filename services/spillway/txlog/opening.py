"""Which segment files of a transaction log may be believed, when it is opened.

A damaged header is written again of what is known without it. A segment before the last that is
damaged or missing is *lost*: its place stays, for it may be decoded again
(``sessions/mending.py``). The last one is cut where damage, or what a crash left half written,
begins.
"""

from __future__ import annotations

import itertools
import logging
import os
from typing import TYPE_CHECKING

from spillway.errors import CorruptTransactionLog
from spillway.storage.durable_files import overwrite_start
from spillway.storage.file_errors import listed
from spillway.txlog import frames
from spillway.txlog.segment import SIDECARS, Segment, SegmentReader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

log = logging.getLogger(__name__)


class _Damaged(Exception):
    """A segment is of no use."""


def open_segments(directory: Path, system_id: int, database_oid: int) -> list[Segment]:
    """Return the segments in *directory*, oldest first, with the lost ones between them; never is
    the newest one lost.

    Raises:
        CorruptTransactionLog: a segment is of another cluster or database, or of another format.
        OSError: the files can't be used.
    """
    paths = listed(directory, ".txlog")
    segments: list[Segment] = []
    for path in paths:
        is_last = path is paths[-1]
        try:
            segment, link = _open_segment(path, system_id, database_oid, is_last=is_last)
        except _Damaged as damage:
            log.error("%s", damage)  # noqa: TRY400 - the place is in the message
            start_lsn = _start_lsn(path)
            if is_last or start_lsn is None:
                remove_segments([path])
                continue
            segment, link = _lost(directory, start_lsn), 0
        before = segments[-1] if segments else None
        if (
            before is not None
            and not before.lost
            and link
            and link != frames.segment_link(before.start_lsn)
        ):
            log.error("a segment of the transaction log before %s is missing", path)
            segments.append(_lost(directory, max(before.last_final_lsn, before.start_lsn) + 1))
        segments.append(segment)
    while segments and segments[-1].lost:
        remove_segments([segments.pop().path])
    # A last segment that lost its only PROGRESS frame still follows the one before it.
    for before, segment in itertools.pairwise(segments):
        segment.follows = before.start_lsn
        if not segment.restart_lsn:
            segment.restart_lsn, segment.decoded_lsn = before.restart_lsn, before.decoded_lsn
    if segments and not segments[-1].restart_lsn:
        # Provisional: the process died before the first checkpoint.
        remove_segments([s.path for s in segments])
        return []
    return segments


def _open_segment(
    path: Path, system_id: int, database_oid: int, *, is_last: bool
) -> tuple[Segment, int]:
    """Return a segment and its link to the one before.

    Raises:
        _Damaged: it is of no use.
        CorruptTransactionLog: it is another log's.
    """
    with path.open("rb") as file:
        head = file.read(frames.SEGMENT_HEADER_SIZE)
    if len(head) < frames.SEGMENT_HEADER_SIZE:
        # The process died between creating the file and writing its header, if it is the last one.
        raise _Damaged(f"{path} is cut in its header")
    header = frames.decode_segment_header(head, str(path))
    if header is None:
        header = _write_header_again(path, system_id, database_oid)
    if header[:2] != (system_id, database_oid):
        raise CorruptTransactionLog(
            f"{path} belongs to database {header.database_oid} of system {header.system_id}, "
            f"not to database {database_oid} of system {system_id}",
            hint="Point --data-dir at the directory of this source.",
        )
    segment = Segment(path, header.start_lsn)
    try:
        if not is_last and segment.load_index():
            return segment, header.link
    except CorruptTransactionLog as damage:
        raise _Damaged(damage.message) from damage
    good, size = segment.scan(), path.stat().st_size
    if is_last:
        if good < size:
            os.truncate(path, good)
        for suffix in SIDECARS:
            path.with_suffix(suffix).unlink(missing_ok=True)
    elif good < size:
        raise _Damaged(f"{path} is damaged at byte {good}")
    else:
        segment.save_index()
    return segment, header.link


def _lost(directory: Path, start_lsn: int) -> Segment:
    return Segment(directory / frames.segment_name(start_lsn), start_lsn, size=0, lost=True)


def _start_lsn(path: Path) -> int | None:
    try:
        return int(path.stem, 16)
    except ValueError:
        return None


def _write_header_again(path: Path, system_id: int, database_oid: int) -> frames.SegmentHeader:
    """Make a damaged header of what is known, if what follows is a segment's content."""
    start_lsn = _start_lsn(path)
    if start_lsn is None:
        raise _Damaged(f"{path} is not a transaction log segment")
    with SegmentReader(path) as reader:
        frame = reader.frame(frames.SEGMENT_HEADER_SIZE, reader.file_size())
    if frame is None:
        raise _Damaged(f"{path} is not a transaction log segment")
    header = frames.SegmentHeader(system_id, database_oid, 0, start_lsn)
    overwrite_start(
        path, frames.encode_segment_header(header.system_id, header.database_oid, start_lsn)
    )
    log.warning("the header of %s was damaged, and is written again", path)
    return header


def remove_segments(paths: Iterable[Path]) -> None:
    """Remove segment files with what lies beside them, the oldest first: a crash in between leaves
    no gap.
    """
    for path in paths:
        path.unlink(missing_ok=True)
        for suffix in SIDECARS:
            path.with_suffix(suffix).unlink(missing_ok=True)
