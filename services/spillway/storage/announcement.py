"""A few numbers that the writer of a directory tells those who read the directory in other
processes.

Readers of another process see files, and a file does not say how far it may be believed: bytes are
written before they are durable, and before the transaction that they belong to is whole. So a
writer announces, in a small file beside the others, how far it vouches for them. A reader needs
nothing else of the writer, which may be dead::

    slot 0  │ crc32 │ kind │ sequence │ value … │      the announcement whose sequence is even
    slot 1  │ crc32 │ kind │ sequence │ value … │      the one whose sequence is odd

An announcement goes over the one before the last, with one ``pwrite``. A reader takes the valid one
with the higher sequence. A writer that is killed in between leaves one that fails its checksum, and
the one before is still there; a reader that looks while it is written finds the same.

Nothing here is synced, for readers are on the same machine. After a power failure the file may be
of any age, or damaged. What it says was true once, and the writer announces anew when it opens its
directory; whatever could make an old announcement wrong (a position that falls back, a file that
goes) a writer announces *before* it does it.

A reader looks; nobody wakes it. :func:`pause_s` says how long it may sleep until it looks again.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from typing import TYPE_CHECKING, Final

from spillway.storage.durable_files import replace_cache

if TYPE_CHECKING:
    from pathlib import Path

_SLOT_BYTES: Final = 256
#: crc32 of what follows, kind, sequence
_HEAD: Final = struct.Struct("<I4sQ")
_CRC_BYTES: Final = 4
#: A look costs some microseconds. One that is late by so much is late for nobody.
_PAUSE_MIN_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.02


def pause_s(quiet_s: float) -> float:
    """Return how long to sleep between two looks when nothing was announced for *quiet_s*."""
    return min(max(quiet_s / 8, _PAUSE_MIN_S), _PAUSE_MAX_S)


def _slot(sequence: int) -> int:
    return sequence % 2 * _SLOT_BYTES


def _latest(data: bytes, kind: bytes, count: int) -> tuple[int, tuple[int, ...]] | None:
    """Return sequence and values of the newest announcement that is whole; None without one."""
    body = struct.Struct(f"<{count}Q")
    found = None
    for start in (0, _SLOT_BYTES):
        slot = data[start : start + _HEAD.size + body.size]
        if len(slot) < _HEAD.size + body.size:
            continue
        crc, found_kind, sequence = _HEAD.unpack_from(slot)
        if (
            found_kind == kind
            and crc == zlib.crc32(slot[_CRC_BYTES:])
            and _slot(sequence) == start
            and (found is None or sequence > found[0])
        ):
            found = sequence, body.unpack_from(slot, _HEAD.size)
    return found


class Announcer:
    """Announces *count* numbers, each from 0 to 2**64 - 1. For one thread at a time, of the
    directory's one writer.
    """

    def __init__(self, path: Path, kind: bytes, count: int) -> None:
        """Open the file, made if it is absent or damaged; what it says stays until the first
        announcement.

        Args:
            path: the file.
            kind: four bytes that tell announcements of one kind from all others.
            count: of the numbers.

        Raises:
            OSError: it can't be used.
        """
        self._kind = kind
        self._rest = struct.Struct(f"<4sQ{count}Q")
        latest = None
        with contextlib.suppress(FileNotFoundError):
            latest = _latest(path.read_bytes(), kind, count)
        if latest is None:
            # Its space is taken now: an announcement finds it on a full disk, too.
            replace_cache(path, bytes(2 * _SLOT_BYTES), mode=0o600)
        self._values: tuple[int, ...] | None = None
        self._sequence = 0
        if latest is not None:
            self._sequence, self._values = latest
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def values(self) -> tuple[int, ...] | None:
        """What was announced last, maybe by a writer before this one; None when nothing was."""
        return self._values

    def announce(self, *values: int) -> None:
        """Announce *values*, if they are others than the last.

        Raises:
            OSError: it can't be written; what was announced before stands.
        """
        if values == self._values or self._fd < 0:
            return
        sequence = self._sequence + 1
        rest = self._rest.pack(self._kind, sequence, *values)
        os.pwrite(self._fd, zlib.crc32(rest).to_bytes(_CRC_BYTES, "little") + rest, _slot(sequence))
        self._sequence, self._values = sequence, values

    def close(self) -> None:
        """Close the file; what was announced last stands. Safe to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Announced:
    """Reads what is announced. For one thread at a time."""

    def __init__(self, path: Path, kind: bytes, count: int) -> None:
        """Read nothing yet; the arguments are those of :class:`Announcer`."""
        self._path = path
        self._kind = kind
        self._count = count
        self._fd = -1
        self._inode = (0, 0)
        self._data = b""
        self._values: tuple[int, ...] | None = None

    def look(self) -> tuple[int, ...] | None:
        """Return what was announced last, the same object as before if that is unchanged; None when
        there is no file.

        Raises:
            OSError: the file can't be read.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:
            # The directory was removed. One that takes its place has nothing to do with it.
            self.close()
            return None
        if self._fd < 0 or (status.st_dev, status.st_ino) != self._inode:
            self.close()
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            status = os.fstat(self._fd)
            self._inode = status.st_dev, status.st_ino
        data = os.pread(self._fd, 2 * _SLOT_BYTES, 0)
        if data != self._data:
            latest = _latest(data, self._kind, self._count)
            if latest is not None:
                self._data, self._values = data, latest[1]
        return self._values

    def close(self) -> None:
        """Forget what was announced, and close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._data, self._values = b"", None
