"""The WAL store's state file: which bytes of the segment files may be believed after a crash.

Segment files can't say where their durable part ends: they are preallocated, and after a power cut
the bytes behind the last fsync are anything. So each sync of the store ends with one small durable
write here, and only then is the position confirmed to the primary, which may recycle the WAL at
once.

The file has two 4 kB pages. A state of generation *g* goes to page *g* mod 2: the page that is
being written is never the one that holds the last durable state, so a torn write loses nothing that
was confirmed. A state is read from the valid page with the higher generation. After a kill -9 that
page may live only in the kernel's cache; :meth:`StateFile.open` therefore writes the *same bytes*
to the *same page* again and syncs, before anything is built on it. Its sister page is not touched
until that is durable.

A failed fsync is never retried and believed: the kernel may have dropped the dirty page and marked
it clean. The caller reopens, and the next write repeats the same generation in the same page.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import CorruptWalStore
from spillway.failpoints import failpoint
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import is_valid_segment_size
from spillway.storage.durable_files import put_in_place

if TYPE_CHECKING:
    from pathlib import Path

STATE_NAME: Final = "walstore.state"

_MAGIC: Final = b"SPWALST1"
_PAGE_BYTES: Final = 4096
#: magic, segment_size, timeline, system_id, generation, first_lsn, flushed_lsn
_BODY: Final = struct.Struct("<8sIIQQQQ")
_CHECKSUM: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class StoreState:
    """What is durable: ``[first_lsn, flushed_lsn)`` of cluster *system_id*, ending on
    *timeline*.
    """

    system_id: int
    segment_size: int
    timeline: int
    first_lsn: Lsn
    flushed_lsn: Lsn


class StateFile:
    """The open state file. Not thread-safe: the store serialises its writes."""

    def __init__(self, path: Path, fd: int, state: StoreState, generation: int) -> None:
        self._path = path
        self._fd = fd
        self._generation = generation
        self.state = state

    @classmethod
    def create(cls, path: Path, state: StoreState) -> StateFile:
        """Create the file with *state*; whole and durable or not there at all.

        The caller syncs the directory's own entry in its parent.
        """
        temporary = path.with_suffix(".new")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, bytes(2 * _PAGE_BYTES), 0)
            os.pwrite(fd, _encode(state, 1), _PAGE_BYTES)
            os.fsync(fd)
            put_in_place(temporary, path)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, state, 1)

    @classmethod
    def open(cls, path: Path) -> StateFile:
        """Open the file and make the state that it shows durable.

        Raises:
            CorruptWalStore: neither page holds a state.
            FileNotFoundError: there is no such file.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            state, generation = _latest(os.pread(fd, 2 * _PAGE_BYTES, 0), path)
            os.pwrite(fd, _encode(state, generation), generation % 2 * _PAGE_BYTES)
            os.fsync(fd)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, state, generation)

    def write(self, state: StoreState) -> None:
        """Make *state* the durable one. When it raises, :attr:`state` is what it was; reopen, then
        write again.

        Raises:
            OSError: the write or the sync failed.
        """
        generation = self._generation + 1
        os.pwrite(self._fd, _encode(state, generation), generation % 2 * _PAGE_BYTES)
        failpoint("walstore.before_state_fsync")
        os.fdatasync(self._fd)
        failpoint("walstore.after_state_fsync")
        self._generation = generation
        self.state = state

    def reopen(self) -> None:
        """Take a new file handle after a failed sync, whose handle must not be believed any
        more.
        """
        if self._fd < 0:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Close the file; all that was written is durable already. A write after that fails."""
        os.close(self._fd)
        self._fd = -1  # never a number that may be another file's by now


def _encode(state: StoreState, generation: int) -> bytes:
    body = _BODY.pack(
        _MAGIC,
        state.segment_size,
        state.timeline,
        state.system_id,
        generation,
        state.first_lsn,
        state.flushed_lsn,
    )
    return (body + _CHECKSUM.pack(zlib.crc32(body))).ljust(_PAGE_BYTES, b"\0")


def _latest(data: bytes, path: Path) -> tuple[StoreState, int]:
    """Return the state of the valid page with the highest generation, and that generation."""
    valid = [
        decoded
        for page in range(2)
        if (decoded := _decode(data[page * _PAGE_BYTES : (page + 1) * _PAGE_BYTES])) is not None
        and decoded[1] % 2 == page
    ]
    if not valid:
        raise CorruptWalStore(
            f"the WAL store's state file {path} holds no valid state",
            hint="It is made again of the segments beside it by itself; without any, WAL is "
            "received anew.",
            path=str(path),
        )
    return max(valid, key=lambda found: found[1])


def _decode(page: bytes) -> tuple[StoreState, int] | None:
    if len(page) < _BODY.size + _CHECKSUM.size:
        return None
    body = page[: _BODY.size]
    if _CHECKSUM.unpack_from(page, _BODY.size)[0] != zlib.crc32(body):
        return None
    magic, segment_size, timeline, system_id, generation, first_lsn, flushed_lsn = _BODY.unpack(
        body
    )
    if magic != _MAGIC or not is_valid_segment_size(segment_size) or first_lsn > flushed_lsn:
        return None
    return StoreState(
        system_id, segment_size, timeline, Lsn(first_lsn), Lsn(flushed_lsn)
    ), generation
