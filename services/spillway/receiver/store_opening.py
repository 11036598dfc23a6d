"""Opening a WAL store: its state as it was written down, or made of its segment files when that is
gone or damaged.

Each segment's first page says of which cluster it is, and where. The newest run of segments without
a gap counts; older ones are removed by the store. Files can't say where their durable part ends.
The last one is therefore received again as a whole, unless every page of it was written: the
primary's slot stands where the store confirmed, which is in the last segment, or at its end when
that is complete.

Source: src/include/access/xlog_internal.h (XLogPageHeaderData, XLogLongPageHeaderData)
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final

from spillway.errors import (
    CorruptWalStore,
    InvalidRequest,
    NotReady,
    StorageError,
    SystemIdMismatch,
)
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import (
    XLOG_BLCKSZ,
    is_valid_segment_size,
    parse_segment_name,
    segment_start,
)
from spillway.receiver.store_state import STATE_NAME, StateFile, StoreState
from spillway.storage.durable_files import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

#: xlp_magic, xlp_info, xlp_tli, xlp_pageaddr, xlp_rem_len, padding, xlp_sysid, xlp_seg_size,
#: xlp_xlog_blcksz
_LONG_PAGE_HEADER: Final = struct.Struct("<HHIQI4xQII")
_XLP_LONG_HEADER: Final = 0x0002
_PAGE_ADDRESS_AT: Final = 8


def open_state(
    directory: Path,
    system_id: str | None,
    segment_size: int | None,
    timeline: int,
    start_lsn: int | None,
) -> StateFile:
    """Open the state file of the store in *directory*, or make it; see
    :class:`~spillway.receiver.wal_writer.WalWriter`.

    Raises:
        SystemIdMismatch, NotReady, InvalidRequest, StorageError: as there.
        OSError: a file can't be used.
    """
    path = directory / STATE_NAME
    try:
        file = StateFile.open(path)
    except (FileNotFoundError, CorruptWalStore) as error:
        if start_lsn is None and system_id is not None and segment_size is not None:
            found = state_of_segments(directory, int(system_id), segment_size)
            if found is not None:
                log.error(  # noqa: TRY400 - where is in the message
                    "the state of the WAL store is lost (%s); made of its segments, it is from %s "
                    "to %s",
                    error,
                    found.first_lsn,
                    found.flushed_lsn,
                )
                return StateFile.create(path, found)
        if start_lsn is None or system_id is None or segment_size is None:
            raise NotReady(
                f"there is no WAL store in {directory}",
                hint="Create the source first, or name the directory that holds its WAL.",
                path=str(directory),
            ) from None
        if not is_valid_segment_size(segment_size):
            raise InvalidRequest(
                f"{segment_size} is not a WAL segment size of PostgreSQL"
            ) from None
        start = segment_start(start_lsn, segment_size)
        state = StoreState(int(system_id), segment_size, timeline, start, start)
        file = StateFile.create(path, state)
        _sync_ancestors(directory)
        return file
    held = file.state
    if system_id is not None and int(system_id) != held.system_id:
        file.close()
        raise SystemIdMismatch(
            f"the WAL store {directory} holds WAL of cluster {held.system_id}, not of {system_id}",
            hint="Point the source at the cluster it was created for, or drop it and create it "
            "again.",
            expected_system_id=str(held.system_id),
            system_id=system_id,
            path=str(directory),
        )
    if segment_size is not None and segment_size != held.segment_size:
        file.close()
        raise StorageError(
            f"the WAL store {directory} has segments of {held.segment_size} bytes, the cluster of "
            f"{segment_size}",
            hint="pg_resetwal --wal-segsize was run on the cluster: drop the source and create it "
            "again.",
            path=str(directory),
        )
    return file


def _sync_ancestors(directory: Path) -> None:
    """Make the path to a new store durable: any of its directories may have been made just now."""
    for ancestor in directory.absolute().parents:
        try:
            sync_directory(ancestor)
        except OSError:  # not ours to read, so not ours to have made
            return


def state_of_segments(directory: Path, system_id: int, segment_size: int) -> StoreState | None:
    """Return what the segment files in *directory* are worth; None when that is nothing.

    Raises:
        OSError: they can't be read.
    """
    found: dict[int, tuple[int, Path]] = {}
    for path in directory.iterdir():
        named = parse_segment_name(path.name, segment_size)
        if named is not None and _is_segment(path, system_id, segment_size, named[1]):
            timeline, number = named
            if number not in found or found[number][0] < timeline:
                found[number] = (timeline, path)
    if not found:
        return None
    last = first = max(found)
    while first - 1 in found:
        first -= 1
    timeline, path = found[last]
    end = last + 1 if _is_complete(path, segment_size, last) else last
    return StoreState(
        system_id, segment_size, timeline, Lsn(first * segment_size), Lsn(end * segment_size)
    )


def _is_segment(path: Path, system_id: int, segment_size: int, number: int) -> bool:
    """Say whether a file is, by its first page, that cluster's segment *number*, and whole."""
    with path.open("rb") as file:
        header = file.read(_LONG_PAGE_HEADER.size)
    if len(header) < _LONG_PAGE_HEADER.size or path.stat().st_size != segment_size:
        return False
    _, info, _, address, _, found_system_id, found_size, block_size = _LONG_PAGE_HEADER.unpack(
        header
    )
    return bool(
        info & _XLP_LONG_HEADER
        and address == number * segment_size
        and found_system_id == system_id
        and found_size == segment_size
        and block_size == XLOG_BLCKSZ
    )


def _is_complete(path: Path, segment_size: int, number: int) -> bool:
    """Say whether every page of a segment was written."""
    with path.open("rb") as file:
        for offset in range(0, segment_size, XLOG_BLCKSZ):
            file.seek(offset + _PAGE_ADDRESS_AT)
            if int.from_bytes(file.read(8), "little") != number * segment_size + offset:
                return False
    return True
