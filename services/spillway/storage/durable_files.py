"""Files that are there whole or not at all, and stay after a power failure.

A file's bytes are durable after its own fsync, its name after an fsync of its directory; a rename
is atomic for whoever looks, and durable as a name is. So a file is replaced in four steps::

    write .NAME.new ── fsync it ── rename it to NAME ── fsync the directory
                     storage.before_rename          storage.after_rename

Whoever dies before the rename leaves the old file whole, and at most one ``.NAME.new``, which the
next writer of NAME takes over (or :func:`remove_leftovers` removes, where names do not come again).
An error before the rename, such as a full disk, leaves nothing: the file that was begun is removed.
What is there and is no file (a pipe, ``/dev/null``) is refused, since a rename would put a file in
its place for everybody; of a link what it leads to is replaced.
An error behind it, of the directory's fsync, leaves the new file in place, and its name unsure; who
raises can't say which of the two there will be.

Errors are the system's own, OSError; :mod:`spillway.storage.file_errors` types them where a file
has a meaning. A failed fsync is never repeated and believed, since the kernel may count the pages
as clean: a repeated :func:`replace_file` writes all again.

One writer for each path at a time: who may write is decided elsewhere, by an flock or a lease.

A file that stays open and grows (a segment of WAL or of the transaction log) is synced by whoever
holds its descriptor. Which modules may is a list in tests/unit/test_architecture.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from spillway.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEFTOVERS: Final = ".*.new"


class OpenFile(Protocol):
    """A file that is open to be written, as :func:`open` returns one."""

    def flush(self) -> Any: ...
    def fileno(self) -> int: ...


def sync_directory(path: Path) -> None:
    """Make the creations, renames and removals in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make the contents of a file durable that somebody else has written and closed."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_files_in(directory: Path) -> None:
    """Make the files directly in a directory durable, and their names."""
    for entry in directory.iterdir():
        if entry.is_file():
            sync_file(entry)
    sync_directory(directory)


def sync_open_file(file: OpenFile) -> None:
    """Make durable what was written to *file* so far, but for its name."""
    file.flush()
    os.fsync(file.fileno())


def replace_file(
    path: Path, data: bytes | str, *, mode: int | None = None, at: str = "storage.before_rename"
) -> None:
    """Put *data* at *path* in one step: readers see the old file or the new one, which is durable
    on return.

    Args:
        path: its directory is there; the file may be.
        data: text is written as UTF-8.
        mode: the file's permissions; None leaves them to the process's umask.
        at: the failpoint between the fsync and the rename, for a place that has one of its own.

    Raises:
        OSError: what was there before is there still, unless only the directory's fsync failed.
    """
    replaced = _replace(path, data, mode, durably=True, at=at)
    failpoint("storage.after_rename")
    sync_directory(replaced.parent)


def put_new(path: Path, data: bytes | str) -> None:
    """Put *data* at *path* in one step, durably, where nothing is: of several who do, one succeeds.

    Raises:
        FileExistsError: there is a file; it stays what it is.
        OSError: nothing is there, unless only the directory's fsync failed.
    """
    # Its name is the writer's own: there may be others.
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
    try:
        with beside.open("xb") as file:
            failpoint("storage.write")
            file.write(data.encode() if isinstance(data, str) else data)
            sync_open_file(file)
        failpoint("storage.before_rename")
        os.link(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    failpoint("storage.after_rename")
    sync_directory(path.parent)


def replace_cache(path: Path, data: bytes | str, *, mode: int | None = None) -> None:
    """Put *data* at *path* in one step, as :func:`replace_file` does, but not durably: it can be
    made again.

    After a power failure the file may have anything in it, so that whoever reads it checks what it
    says.
    """
    _replace(path, data, mode, durably=False, at="storage.before_rename")


def is_replaceable(path: Path) -> bool:
    """Return whether nothing is at *path*, or at what it leads to as a link, or a file."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        # What can't be looked at is found out by whoever writes it.
        return True


def _replace(path: Path, data: bytes | str, mode: int | None, *, durably: bool, at: str) -> Path:
    """Return the path that was written: that of the file itself, if *path* is a link."""
    if not is_replaceable(path):
        raise OSError(errno.EINVAL, "it is no file, and is not replaced", str(path))
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            failpoint("storage.write")
            file.write(data.encode() if isinstance(data, str) else data)
            if durably:
                sync_open_file(file)
        failpoint(at)
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return path


def put_in_place(source: Path, target: Path) -> None:
    """Rename a file or directory, whose contents are durable, to *target*, and make that name
    durable.

    A file that is there is replaced in one step; a directory must be empty.
    """
    put_all_in_place([(source, target)])


def put_all_in_place(moves: Iterable[tuple[Path, Path]]) -> None:
    """Rename each of *moves*, as :func:`put_in_place` does; who dies in between leaves some where
    they were.
    """
    directories: dict[Path, None] = {}
    for source, target in moves:
        source.replace(target)
        directories[target.parent] = None
    failpoint("storage.after_rename")
    for directory in directories:
        sync_directory(directory)


def create_file(path: Path, data: bytes) -> int:
    """Create a file that begins with *data*, durably with its name; return its descriptor, open for
    writing behind that.

    Raises:
        FileExistsError: there is one.
        OSError: it can't be; none is left.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        failpoint("storage.write")
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        sync_directory(path.parent)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return fd


def overwrite_start(path: Path, data: bytes) -> None:
    """Write *data* over the first bytes of a file, in place and durably: others may have it open,
    or be writing behind that.

    Not in one step: who dies in between leaves some of both, which a checksum must tell.
    """
    with path.open("r+b") as file:
        file.write(data)
        sync_open_file(file)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files, in that order, so that none comes back after a power failure; one that is gone
    already is fine.
    """
    directories: dict[Path, None] = {}
    for path in paths:
        path.unlink(missing_ok=True)
        directories[path.parent] = None
    for directory in directories:
        sync_directory(directory)


def remove_leftovers(directory: Path) -> None:
    """Remove what a crash left half written in *directory*, where nobody writes now."""
    for path in directory.iterdir():
        if path.match(_LEFTOVERS):
            path.unlink(missing_ok=True)
