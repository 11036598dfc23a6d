"""Some megabytes of disk, kept for what must be written on a full one: the metadata.

To drop a slot or to advance it is what frees space, and it is a write. So a file of
:data:`RESERVE_BYTES` stands beside the metadata. A step of it goes when metadata can't be written
otherwise (:meth:`release`), not before and not more: who filled the disk would take that, too. What
metadata has left of it is kept again at the next :meth:`look`.

Whoever writes much asks before, and is refused as by the disk itself (ENOSPC). Steps, by what is
free on the file system:

===========================  =======================================================================
less than ``_LOW_BYTES``     transaction logs keep nothing but what slots need
                             (``SPILLWAY_LOG_KEEP_BYTES`` counts as 0), and are cut into small
                             segments, so that what is not needed can go; decoding checkpoints often
                             and WAL goes as soon as it is decoded
less than ``_RECEIVE_BYTES`` no new WAL segment is begun: what is left is for decoding, which frees
WAL
less than ``_FULL_BYTES``    the disk is full: transaction logs are not written, metadata is
===========================  =======================================================================

All of it mends itself as space comes back. Methods are for any thread; each costs a system call or
two.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: Metadata is a few hundred bytes a slot, and SQLite's log of it is taken in at 4 MB.
RESERVE_BYTES: Final = 8 << 20
_STEP_BYTES: Final = 2 << 20
_FULL_BYTES: Final = 4 << 20
#: Of what is free so much stays: other files of this directory are small, and not of metadata.
_LEFT_BYTES: Final = 128 << 10
#: Of a small disk not more than these shares.
_RECEIVE_BYTES: Final = 64 << 20
_RECEIVE_SHARE: Final = 16
_LOW_BYTES: Final = 256 << 20
_LOW_SHARE: Final = 8


class DiskReserve:
    """The reserve of one directory; *path* is its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._low = False
        #: since when the disk is full; None while it is not
        self.full_since: datetime | None = None
        with contextlib.suppress(OSError):
            self._held_bytes = path.stat().st_size
        self.look()

    def look(self) -> None:
        """See what is free, and make the reserve whole again as far as that goes."""
        with self._lock:
            free, total = self._space()
            self._low = free < min(_LOW_BYTES, total // _LOW_SHARE)
            if free < _FULL_BYTES and self.full_since is None:
                self.full_since = datetime.now(UTC)
            missing = min(RESERVE_BYTES - self._held_bytes, free - _LEFT_BYTES)
            if missing > 0:
                self._grow(missing)
                free, _ = self._space()
            # With something over: what ends at once would begin again at once.
            if self._held_bytes >= RESERVE_BYTES and free >= 2 * _FULL_BYTES:
                self.full_since = None

    def release(self) -> bool:
        """Give a step of the reserve up for metadata; say whether there was one, so that what
        failed may be tried again.
        """
        with self._lock:
            if self.full_since is None:
                self.full_since = datetime.now(UTC)
            if self._held_bytes <= 0:
                return False
            self._held_bytes = max(self._held_bytes - _STEP_BYTES, 0)
            with contextlib.suppress(OSError):
                if self._held_bytes:
                    os.truncate(self.path, self._held_bytes)
                else:
                    self.path.unlink(missing_ok=True)
            return True

    def admit(self) -> None:
        """Let a writer of much pass.

        Raises:
            OSError: ENOSPC: the disk is full, but for what is kept for metadata.
        """
        if self.full_since is not None:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (but for metadata's reserve)")

    def admit_segment(self, nbytes: int) -> None:
        """Let the WAL store begin a file of *nbytes*.

        Raises:
            OSError: ENOSPC: what is left is for decoding.
        """
        self.admit()
        free, total = self._space()
        if free < nbytes + min(_RECEIVE_BYTES, total // _RECEIVE_SHARE):
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (but for decoding)")

    @property
    def is_low(self) -> bool:
        """Whether what nobody needs should go, as of the last :meth:`look`."""
        return self._low or self.full_since is not None

    def _space(self) -> tuple[int, int]:
        """Return (free, total) bytes of the file system."""
        try:
            found = os.statvfs(self.path.parent)
        except OSError:
            # Whoever writes there is told why that can't be.
            return 1 << 62, 1 << 62
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def _grow(self, nbytes: int) -> None:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(fd, self._held_bytes, nbytes)
            self._held_bytes += nbytes
        except OSError:
            # Somebody was quicker.
            os.ftruncate(fd, self._held_bytes)
        finally:
            os.close(fd)
