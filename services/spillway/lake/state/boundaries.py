"""LSNs at which a micro-batch must end, asked for from outside the job:
``<path>/_spillway/boundaries/``.

A job ends its batches where it likes, and only there do all tables agree
(:mod:`spillway.lake.state.commit_points`). Who wants the lake as of an LSN of its own, to compare
it with a snapshot of the source, asks for a batch to end there::

    _spillway/boundaries/hold                     while it is locked, no batch is planned
    _spillway/boundaries/hold-<token>             the same, on object storage: while it is kept
    _spillway/boundaries/<decimal, 20 digits>     an LSN that no batch goes across

The LSN of a snapshot is known when it is taken, and a quick job may be past it by then. So:
:func:`hold` the job, take the snapshot, :func:`request` its LSN, let the job go on. Spark records
where it cut a batch, so a request may go at any time.

Who asked takes the request back. Who was killed doesn't: the job removes a request that it has
served, once its batch is durable everywhere (:func:`served`), and at its start those that it is
past (:func:`forget`), which nobody needs any more. One that is still ahead costs a batch that ends
there.

A job asks :class:`Limits` *after* it has learnt how far it could go. Where nobody holds it by then,
a snapshot that is still to come is later than that; where somebody did until just now, the request
is there.

In a directory a lock holds the job, and goes with the process that has it, however it ends. On
object storage each holder keeps a lease of its own (:mod:`spillway.storage.lease`), and the job,
which looks at them as often as it has something to plan, goes on when one was not kept: as long
after its holder's death as a lease lasts. A holder that could not keep it is told.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from spillway.errors import LakeError, NotReady
from spillway.storage.lease import Lease, Watch
from spillway.storage.place import ObjectPath, replace_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spillway.storage.place import LakePath

_HOLD: Final = "hold-"


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
        NotReady: at the end: the object store could not be reached for so long that the job may
            have gone on.
    """
    where = folder(lake)
    if isinstance(where, ObjectPath):
        with _lease(where / f"{_HOLD}{secrets.token_hex(8)}"):
            yield
        return
    with _lock_file(where) as descriptor:
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


def is_asked(lake: LakePath, lsn: int) -> bool:
    """Say whether somebody waits for a batch that ends at *lsn*."""
    return (folder(lake) / f"{lsn:020d}").is_file()


def served(lake: LakePath, lsn: int) -> None:
    """Remove the request for a batch that ends at *lsn*, which is done; whoever asked looks at the
    commit points.
    """
    (folder(lake) / f"{lsn:020d}").unlink(missing_ok=True)


def forget(lake: LakePath, upto: int) -> None:
    """Remove the requests that a lake which has everything before *upto* is past: of processes that
    were killed, or are done with waiting.
    """
    where = folder(lake)
    if isinstance(where, ObjectPath):
        names = [file.name for file in where.tags()]
    else:
        names = [entry.name for entry in where.iterdir()] if where.is_dir() else []
    for name in names:
        if name.isdecimal() and int(name) <= upto:
            (where / name).unlink(missing_ok=True)


class Limits:
    """How far a job's next batch may go. For one thread."""

    def __init__(self, requests: LakePath) -> None:
        """Take the folder of the requests."""
        self._requests = requests
        self._watch = Watch()

    def end_of_batch(self, begin: int, end: int, *, is_last: bool = False) -> int:
        """Return where the batch from *begin* to *end* is to end: at the first LSN asked for in
        between, at *begin* while somebody holds the job.

        Args:
            begin: where the last batch ended.
            end: after it, and learnt before this is called.
            is_last: the job ends at *end*, so that it need not be held.
        """
        requests = self._requests
        if isinstance(requests, ObjectPath):
            tags = requests.tags()
            holds = {file: tag for file, tag in tags.items() if file.name.startswith(_HOLD)}
            kept = self._watch.kept(holds)
            for left in holds.keys() - kept:
                # By a process that was killed.
                left.unlink(missing_ok=True)
            is_held, names = bool(kept), [file.name for file in tags]
        elif requests.is_dir():
            is_held, names = _is_locked(requests), [entry.name for entry in requests.iterdir()]
        else:
            return end
        if is_held and not is_last:
            return begin
        asked = (int(name) for name in names if name.isdecimal())
        return min((lsn for lsn in asked if begin < lsn < end), default=end)


@contextmanager
def _lease(where: ObjectPath) -> Iterator[None]:
    kept = Lease(where)
    kept.acquire()
    try:
        yield
        if kept.is_lost:
            raise NotReady(
                f"the job at work on {where.parent.parent.parent} could not be held: the object "
                "store was not reached for longer than a lease lasts",
                hint="Try again when the store answers.",
            )
    finally:
        kept.release()
        # Else the job removes it when it was not kept for long enough.
        with suppress(LakeError):
            where.unlink(missing_ok=True)


def _is_locked(requests: Path) -> bool:
    with _lock_file(requests) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def _lock_file(requests: Path) -> Iterator[int]:
    requests.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(requests / "hold", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
