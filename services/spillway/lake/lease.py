"""One job a lake, on object storage: a lease (:mod:`spillway.storage.lease`) in
``<lake>/_spillway/lease.json``.

Whoever holds it asks whether it still does (:func:`check`), before each commit to a table and
before it writes the lake's position, by which the slot is confirmed. A process that stops between
asking and the request's arrival, for longer than the lease's margin, may be late: tables are still
safe from most of that. A commit by delta-rs is a conditional PUT, and a batch's transaction version
is refused by a table that has it; one of Iceberg's is its catalog's compare-and-swap. The position,
too, is replaced on condition (:func:`spillway.lake.state.position.store`).

Locks within a process, for a load that runs beside its job, are threads' own (:func:`thread_lock`):
the lease keeps other processes out of all of it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spillway.errors import LakeTableConflict, LeaseLost
from spillway.storage import lease
from spillway.storage.lease import Lease, LeaseTaken, LeaseUnreadable
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.storage.place import LakePath

#: leases that this process has, by their lakes
_held: dict[ObjectPath, Lease] = {}
_thread_locks: defaultdict[tuple[ObjectPath, str], threading.Lock] = defaultdict(threading.Lock)


def check(lake: LakePath) -> None:
    """See to it that this process may write to *lake*; directories are locked by the kernel.

    Raises:
        LeaseLost: it may not, or not any more.
    """
    if not isinstance(lake, ObjectPath):
        return
    held_one = _held.get(lake)
    if held_one is None or held_one.is_lost:
        raise LeaseLost(
            f"the lease on the lake at {lake} is lost: another job may be at work on it",
            hint="The store could not be reached, or this process was stopped, for longer than the "
            "lease lasts. What was confirmed is durable; run the job again to go on from there.",
        )


def is_held(lake: ObjectPath) -> bool:
    """Say whether this process holds *lake*."""
    return lake in _held


def holder(lake: ObjectPath) -> str | None:
    """Return who holds *lake*, or did when it died; None: nobody.

    Raises:
        LakeTableConflict: the lease is damaged.
    """
    try:
        return lease.holder(_object(lake))
    except LeaseUnreadable as error:
        raise _damaged(error) from error


@contextmanager
def held(lake: ObjectPath, hint: str = "Stop it first: one job a lake.") -> Iterator[None]:
    """Hold *lake* for this process; *hint* is for whoever finds somebody else at work on it.

    Raises:
        LakeTableConflict: somebody else has it.
    """
    with thread_lock(lake, "lease", wait=False):
        taken = Lease(_object(lake))
        try:
            taken.acquire()
        except LeaseTaken as by:
            raise LakeTableConflict(
                f"another job is at work on the lake at {lake}: {by}", hint=hint
            ) from by
        except LeaseUnreadable as error:
            raise _damaged(error) from error
        _held[lake] = taken
        try:
            yield
        finally:
            del _held[lake]
            taken.release()


def _damaged(error: LeaseUnreadable) -> LakeTableConflict:
    return LakeTableConflict(str(error), hint="It is damaged. Remove it when no job is at work.")


@contextmanager
def thread_lock(lake: ObjectPath, name: str, *, wait: bool = True) -> Iterator[None]:
    """Hold one lock of *lake*'s among this process's threads.

    Raises:
        LakeTableConflict: another one has it, and *wait* is false.
    """
    lock = _thread_locks[lake, name]
    if not lock.acquire(blocking=wait):
        raise LakeTableConflict(
            f"another job of this process is at work on the lake at {lake}",
            hint="Stop it first: one job a lake.",
        )
    try:
        yield
    finally:
        lock.release()


def _object(lake: ObjectPath) -> ObjectPath:
    return lake / "_spillway" / "lease.json"
