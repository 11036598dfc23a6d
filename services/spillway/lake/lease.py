"""One job a lake, on object storage: a lease in ``<lake>/_spillway/lease.json``.

An object store has no lock that goes with its holder. What it has is the conditional PUT: an object is created only if there
is none, replaced only if it still is the one that was read. So whoever is at work writes its name into one object and writes it again
every :data:`_BEAT_S`; nobody else's PUT goes through meanwhile, as each of these changes the object.

A newcomer watches. If the object changes, its holder is alive, and the newcomer is refused within a beat, told who that is. If it
stays as it is for :data:`_LEASE_S`, its holder is dead, or cut off, and the newcomer replaces it, on condition that it is still that
one. Durations are measured by each side's own clock, one that goes on while the machine sleeps; what time it is plays no part.

A holder that could not write for that long, less a margin, counts itself as out (:func:`check`): it may have been replaced. It
asks before each commit to a table and before the lake's position, which the slot is confirmed by, is
written. What remains is a process that stops between asking and the request's arrival for longer than the margin.
Tables are still safe from most of that: a commit by delta-rs is a conditional PUT, and a batch's transaction version is refused by a table
that has it; one of Iceberg's is its catalog's compare-and-swap. The position, too, is replaced on condition (:func:`spillway.lake.state.position.store`).

Locks within a process, for a load that runs beside its job, are threads' own (:func:`thread_lock`): the lease keeps other
processes out of all of it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections import defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import LakeError, LakeTableConflict, LeaseLost
from spillway.lake.storage import ObjectPath, StorageChanged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.lake.storage import LakePath

_LEASE_S: Final = 20.0
_BEAT_S: Final = 4.0
#: The holder gives up so long before a newcomer may take over.
_MARGIN_S: Final = 5.0
_WATCH_S: Final = 0.5
#: The clock that goes on while the machine sleeps, where there is one.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: leases that this process has, by their lakes
_held: dict[ObjectPath, _Lease] = {}
_thread_locks: defaultdict[tuple[ObjectPath, str], threading.Lock] = defaultdict(threading.Lock)


def check(lake: LakePath) -> None:
    """See to it that this process may write to *lake*; directories are locked by the kernel.

    Raises:
        LeaseLost: it may not, or not any more.
    """
    if not isinstance(lake, ObjectPath):
        return
    lease = _held.get(lake)
    if lease is None or lease.is_lost:
        raise LeaseLost(
            f"the lease on the lake at {lake} is lost: another job may be at work on it",
            hint="The store could not be reached, or this process was stopped, for longer than the lease lasts. What was "
            "confirmed is durable; run the job again to go on from there.",
        )


def is_held(lake: ObjectPath) -> bool:
    """Say whether this process holds *lake*."""
    return lake in _held


def holder(lake: ObjectPath) -> str | None:
    """Return who holds *lake*, or did when it died; None: nobody."""
    try:
        value = json.loads(_object(lake).read_text())
    except FileNotFoundError:
        return None
    return _told(value) if value.get("owner") else None


@contextmanager
def held(lake: ObjectPath) -> Iterator[None]:
    """Hold *lake* for this process.

    Raises:
        LakeTableConflict: somebody else has it.
    """
    with thread_lock(lake, "lease", wait=False):
        lease = _Lease(lake)
        lease.acquire()
        _held[lake] = lease
        try:
            yield
        finally:
            del _held[lake]
            lease.release()


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


class _Lease:
    def __init__(self, lake: ObjectPath) -> None:
        self._lake = lake
        self._object = _object(lake)
        self._value: dict[str, Any] = {
            "owner": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "beat": 0,
        }
        self._tag: str | None = None
        #: the start of the last write that is known to have gone through
        self._written = 0.0
        self._replaced = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="spillway-lake-lease", daemon=True)

    @property
    def is_lost(self) -> bool:
        return self._replaced or _now() - self._written > _LEASE_S - _MARGIN_S

    def acquire(self) -> None:
        """Take it, when it is free or its holder dead.

        Raises:
            LakeTableConflict: its holder is alive.
        """
        tag, value = self._read()
        if value.get("owner"):
            seen, watched = tag, _now()
            while _now() - watched < _LEASE_S:
                time.sleep(_WATCH_S)
                tag, value = self._read()
                if not value.get("owner"):
                    break
                if tag != seen:
                    raise self._conflict(value)
        self._tag = tag
        if not self._write():
            raise self._conflict(self._read()[1])
        self._thread.start()

    def release(self) -> None:
        """Give it back, unless it is somebody else's."""
        self._ending.set()
        self._thread.join()
        if not self.is_lost:
            self._value = {"owner": None}
            try:
                self._write()
            except LakeError:
                # It runs out by itself.
                return

    def _beat(self) -> None:
        while not self._ending.wait(_BEAT_S):
            self._value["beat"] += 1
            try:
                if not self._write():
                    self._replaced = True
                    return
            except LakeError:
                # Tried again at the next beat; if none goes through, is_lost says so.
                continue

    def _write(self) -> bool:
        """Write the value if the object is still ours; return whether it was."""
        began = _now()
        text = json.dumps(self._value)
        try:
            self._tag = self._object.replace_if(self._tag, text)
        except StorageChanged:
            # By us, perhaps: a request whose answer got lost is repeated.
            tag, value = self._read()
            if value != self._value:
                return False
            self._tag = tag
        self._written = began
        return True

    def _read(self) -> tuple[str | None, dict[str, Any]]:
        try:
            data, tag = self._object.read_with_tag()
        except FileNotFoundError:
            return None, {}
        try:
            return tag, dict(json.loads(data))
        except ValueError as error:
            raise LakeTableConflict(
                f"{self._object} can't be read: {error}",
                hint="It is damaged. Remove it when no job is at work.",
            ) from error

    def _conflict(self, value: dict[str, Any]) -> LakeTableConflict:
        return LakeTableConflict(
            f"another job is at work on the lake at {self._lake}: {_told(value)}",
            hint="Stop it first: one job a lake.",
        )


def _object(lake: ObjectPath) -> ObjectPath:
    return lake / "_spillway" / "lease.json"


def _told(value: dict[str, Any]) -> str:
    return f"process {value.get('pid')} of {value.get('host')}, since {value.get('since')}"


def _now() -> float:
    return time.clock_gettime(_CLOCK)
