"""LSNs at which a micro-batch must end, asked for from outside the job:
``<path>/_spillway/boundaries/``.

A job ends its batches where it likes, and only there do all tables agree
(:mod:`spillway.lake.state.commit_points`). Who wants the lake as of an LSN of its own, to compare
it with a snapshot of the source, asks for a batch to end there::

    _spillway/boundaries/hold                     while it is locked, no batch is planned
    _spillway/boundaries/<decimal, 20 digits>     an LSN that no batch goes across

The LSN of a snapshot is known when it is taken, and a quick job may be past it by then. So:
:func:`hold` the job, take the snapshot, :func:`request` its LSN, let the job go on. The lock goes
with the process that has it, however it ends. Spark records where it cut a batch, so a request may
go at any time.

On object storage there is no such lock: :func:`hold` is refused while a job is at work. Requests
are objects, and no job looks at them but one that the asker runs itself.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from spillway.lake import lease
from spillway.storage.place import ObjectPath, replace_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spillway.storage.place import LakePath


def folder(lake: LakePath) -> LakePath:
    """Return where the requests for the lake at *lake* are: the data source's option
    ``boundaries``.
    """
    return lake / "_spillway" / "boundaries"


@contextmanager
def hold(lake: LakePath) -> Iterator[None]:
    """Let the job plan no batch that ends after now; a batch that is planned goes on. Several may
    hold it.

    Raises:
        LakeTableConflict: a job is at work on a lake on object storage, which can't be held.
    """
    if isinstance(lake, ObjectPath):
        # Given back at once: whoever holds the job runs one itself next.
        with lease.held(lake):
            pass
        yield
        return
    with _lock_file(lake / "_spillway" / "boundaries") as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def request(lake: LakePath, lsn: int) -> Iterator[None]:
    """Have a batch end at *lsn*, if none has gone across it yet."""
    file = folder(lake) / f"{lsn:020d}"
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(file, ObjectPath):
        replace_text(file, "")
    else:
        file.touch()
    try:
        yield
    finally:
        # Another one may have asked for the same, and be done.
        with suppress(FileNotFoundError):
            file.unlink()


def held(requests: LakePath) -> bool:
    """Say whether somebody holds the job."""
    if isinstance(requests, ObjectPath) or not requests.is_dir():
        return False
    with _lock_file(requests) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_asked(lake: LakePath, lsn: int) -> bool:
    """Say whether somebody waits for a batch of a job at work that ends at *lsn*."""
    return not isinstance(lake, ObjectPath) and (folder(lake) / f"{lsn:020d}").exists()


def first_after(requests: LakePath, begin: int, end: int) -> int:
    """Return the first LSN asked for between *begin* and *end*, else *end*."""
    if not requests.is_dir():
        return end
    asked = (int(entry.name) for entry in requests.iterdir() if entry.name.isdecimal())
    return min((lsn for lsn in asked if begin < lsn < end), default=end)


@contextmanager
def _lock_file(requests: Path) -> Iterator[int]:
    requests.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(requests / "hold", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
