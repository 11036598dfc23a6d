"""One open WAL segment file.

Files are preallocated to the segment's whole size, as PostgreSQL does: space runs out when a file
is created, not in the middle of a record; a sync needs no new metadata; and tools such as
pg_waldump can open the segment that is still being filled (what is not received yet reads as
zeros).

A file handle closes when its last user lets go of it. A reader in another thread that still holds
one may finish after the file was removed or replaced; it never reads from a recycled descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final, Self

from spillway.failpoints import failpoint

if TYPE_CHECKING:
    from pathlib import Path

_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class SegmentFile:
    """A segment file, opened for reading, or for reading and writing."""

    def __init__(self, path: Path, fd: int, segment_size: int, *, allocated: bool) -> None:
        self.path = path
        self._fd = fd
        self._segment_size = segment_size
        self._allocated = allocated

    @classmethod
    def create(cls, path: Path, segment_size: int) -> Self:
        """Create the file and reserve its space; an older file of that name is replaced.

        Raises:
            OSError: among others ENOSPC; then no file is left behind.
        """
        failpoint("walstore.create_segment")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        file = cls(path, fd, segment_size, allocated=False)
        try:
            file._allocate()
        except OSError:
            path.unlink()
            raise
        return file

    @classmethod
    def open_tail(cls, path: Path, segment_size: int, keep_bytes: int) -> Self:
        """Open the file that is being filled, cut to its first *keep_bytes*; what follows reads as
        zeros.

        Its space is reserved again at once if there is any, else with the next write.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        file = cls(path, fd, segment_size, allocated=False)
        os.ftruncate(fd, keep_bytes)
        with contextlib.suppress(OSError):
            file._allocate()
        return file

    @classmethod
    def open_again(cls, path: Path, segment_size: int) -> Self:
        """Open for writing a file whose former handle had a failed sync."""
        return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), segment_size, allocated=False)

    @classmethod
    def open_to_read(cls, path: Path, segment_size: int) -> Self:
        """Open a file that is full, or is another thread's to fill."""
        return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), segment_size, allocated=True)

    def _allocate(self) -> None:
        try:
            os.posix_fallocate(self._fd, 0, self._segment_size)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            os.ftruncate(
                self._fd, self._segment_size
            )  # a sparse file; then a write may find no space
        self._allocated = True

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of *data*; when it raises, any prefix of it may be written."""
        failpoint("walstore.write")
        if not self._allocated:
            self._allocate()
        while data:
            written = os.pwrite(self._fd, data, offset)
            offset += written
            data = data[written:]
        failpoint("walstore.after_write")

    def read(self, offset: int, size: int) -> bytes:
        """Read up to *size* bytes at *offset*; any thread."""
        return os.pread(self._fd, size, offset)

    def drop_cached(self, size: int) -> None:
        """Let the kernel forget the first *size* bytes, those of them that are durable: the next
        read takes them from the disk.
        """
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, 0, size, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Make the contents durable.

        Raises:
            OSError: this handle must not be used any more, nor its fsync repeated and believed.
        """
        failpoint("walstore.before_fsync")
        os.fdatasync(self._fd)

    def __del__(self) -> None:
        os.close(self._fd)
