"""What the system says of a file, as a typed error: which file, what stands in the way, and what to
do.

A file that can't be read is not lost. Whoever may make lost state again must tell the two apart,
for what is made again takes the place of what is there. So only "no such file" means that one is
gone; everything else ends in :class:`StorageError`, with which nothing is ever given up. Beware of
``Path.glob``, which takes a directory that can't be read for an empty one
(``pathlib._WildcardSelector``): :func:`listed` does not.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spillway.errors import DiskFull, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_PERMITTED: Final = frozenset({errno.EACCES, errno.EPERM})
_SPACE_HINT: Final = (
    "Free space on that file system or drop slots that nobody reads; decoding goes on by itself."
)


def file_error(
    error: OSError, path: Path | str, verb: str = "use", hint: str | None = None
) -> StorageError:
    """Type what the system said of *path*, or of the file that it names itself; *hint* is for a
    disk that is full.
    """
    path = error.filename if isinstance(error.filename, str) else str(path)
    message = f"can't {verb} {path}: {error.strerror or error}"
    if error.errno in NO_SPACE:
        return DiskFull(message, hint=hint or _SPACE_HINT, path=path)
    return StorageError(message, hint=_what_to_do(error.errno, path), path=path)


def _what_to_do(number: int | None, path: str) -> str:
    waits = (
        "Nothing is given up for it: it is tried again by itself, at once by spillway source "
        "restart SOURCE DATABASE."
    )
    if number in NOT_PERMITTED:
        return f"Give the user that the service runs as the right to read and write {path}. {waits}"
    if number == errno.EROFS:
        return f"Mount the file system of {path} so that it can be written. {waits}"
    return (
        f"See what the kernel's log says of the disk. {waits} If the disk has lost it for good, "
        f"move {path} away and restart the service: it is made again as far as something else has "
        "it, and slots that need what nothing has are invalidated."
    )


@contextmanager
def file_errors(path: Path, verb: str = "use") -> Iterator[None]:
    """Turn an OSError into :func:`file_error`."""
    try:
        yield
    except OSError as error:
        raise file_error(error, path, verb) from error


def listed(directory: Path, suffix: str) -> list[Path]:
    """Return the files in *directory* with *suffix*, sorted; none if there is no such directory.

    Raises:
        OSError: it can't be read.
    """
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == suffix)
    except FileNotFoundError:
        return []
