"""Our messages on their way to the comparison: a file between the thread that decodes and the one
that compares.

Neither may wait for the other: who reads the WAL stream has to answer the server, and PostgreSQL's
slot returns a transaction only after it has decoded it again from the start. So what waits is on
disk, in a file without a name; it is emptied whenever all of it was read.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
from typing import TYPE_CHECKING, Final

from spillway.certify.rendering import Line
from spillway.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_FRAME: Final = struct.Struct("<QII")
_READ_BYTES: Final = 1 << 20
_EMPTY_FROM_BYTES: Final = 16 << 20


class LineSpool:
    """First in, first out; one thread puts, another gets."""

    def __init__(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix="spillway-certify-")  # noqa: SIM115 - closed in close()
        except OSError as error:
            raise _storage_error(error) from error
        self._changed = threading.Condition()
        self._read_at = self._end = 0
        self._buffer = b""
        self._buffer_at = 0

    def put(self, lines: Iterable[Line]) -> None:
        """Append.

        Raises:
            StorageError: the temporary directory can't be written.
        """
        data = b"".join(
            _FRAME.pack(line.lsn, line.xid, len(line.data)) + line.data for line in lines
        )
        with self._changed:
            view = memoryview(data)
            try:
                while view:
                    written = os.pwrite(self._file.fileno(), view, self._end)
                    self._end += written
                    view = view[written:]
            except OSError as error:
                raise _storage_error(error) from error
            self._changed.notify_all()

    def get(self, timeout_s: float = 0.0) -> Line | None:
        """Take the next one; None when there is none for so long."""
        frame = self._read(_FRAME.size, timeout_s)
        if frame is None:
            return None
        lsn, xid, length = _FRAME.unpack(frame)
        data = self._read(length, timeout_s)
        assert data is not None
        return Line(lsn, xid, data)

    def _read(self, count: int, timeout_s: float) -> bytes | None:
        while len(self._buffer) - self._buffer_at < count:
            with self._changed:
                if not self._changed.wait_for(lambda: self._end > self._read_at, timeout_s):
                    return None
                wanted = max(_READ_BYTES, count)
                more = os.pread(
                    self._file.fileno(), min(wanted, self._end - self._read_at), self._read_at
                )
                self._read_at += len(more)
                if self._read_at == self._end and self._end >= _EMPTY_FROM_BYTES:
                    self._file.truncate(0)
                    self._read_at = self._end = 0
            self._buffer = self._buffer[self._buffer_at :] + more
            self._buffer_at = 0
        found = self._buffer[self._buffer_at : self._buffer_at + count]
        self._buffer_at += count
        return found

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


def _storage_error(error: OSError) -> StorageError:
    return StorageError(
        f"the temporary directory {tempfile.gettempdir()} can't be written: {error.strerror}",
        hint="Name another one with TMPDIR.",
    )
