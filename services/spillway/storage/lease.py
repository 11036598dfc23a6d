"""A lease by conditional PUT: an object that one process at a time may hold, where no kernel can
lock.

An object store has no lock that goes with its holder. What it has is the conditional PUT: an object
is created only if there is none, replaced only if it still is the one that was read. So whoever is
at work writes its name into one object and writes it again every :data:`_BEAT_S`; nobody else's PUT
goes through meanwhile, as each of these changes the object.

A newcomer watches. If the object changes, its holder is alive, and the newcomer is refused within a
beat, told who that is. If it stays as it is for :data:`_LEASE_S`, its holder is dead, or cut off,
and the newcomer replaces it, on condition that it is still that one. Durations are measured by each
side's own clock, one that goes on while the machine sleeps; what time it is plays no part.

A holder that could not write for that long, less a margin, counts itself as out
(:attr:`Lease.is_lost`): it may have been replaced. It asks before each step that another holder
must not see. What remains is a process that stops between asking and the request's arrival for
longer than the margin; so such a step is a conditional PUT, too, where it can be.

Who only has to know whether a lease is kept, for as long as it goes on itself, looks at its object
from time to time and lets a :class:`Watch` tell.

What is protected, and what its users are told, is for rooms above (:mod:`spillway.lake.lease`,
:mod:`spillway.lake.state.boundaries`).
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import LakeError
from spillway.storage.place import StorageChanged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spillway.storage.place import ObjectPath

_LEASE_S: Final = 20.0
_BEAT_S: Final = 4.0
#: The holder gives up so long before a newcomer may take over.
_MARGIN_S: Final = 5.0
_WATCH_S: Final = 0.5
#: The clock that goes on while the machine sleeps, where there is one.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LeaseTaken(Exception):
    """Somebody else holds it: the text says who."""


class LeaseUnreadable(Exception):
    """The object is there, and is no lease: the text says which object, and what is wrong with
    it.
    """


class Lease:
    """The lease in one object, for this process. :meth:`acquire` starts a thread that keeps it,
    :meth:`release` ends that.
    """

    def __init__(self, where: ObjectPath) -> None:
        self._object = where
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
        self._thread = threading.Thread(target=self._beat, name="spillway-lease", daemon=True)

    @property
    def is_lost(self) -> bool:
        """Whether somebody else may hold it by now."""
        return self._replaced or _now() - self._written > _LEASE_S - _MARGIN_S

    def acquire(self) -> None:
        """Take it, when it is free or its holder dead. Blocks for :data:`_LEASE_S` at most.

        Raises:
            LeaseTaken: its holder is alive.
            LeaseUnreadable: the object is something else.
            LakeError: the store failed.
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
                    raise LeaseTaken(_told(value))
        self._tag = tag
        if not self._write():
            raise LeaseTaken(_told(self._read()[1]))
        self._thread.start()

    def release(self) -> None:
        """Give it back, unless it is somebody else's."""
        self._ending.set()
        self._thread.join()
        if not self.is_lost:
            self._value = {"owner": None}
            try:
                self._write()
            except (LakeError, LeaseUnreadable):
                # It runs out by itself.
                return

    def _beat(self) -> None:
        while not self._ending.wait(_BEAT_S):
            self._value["beat"] += 1
            try:
                if not self._write():
                    self._replaced = True
                    return
            except (LakeError, LeaseUnreadable):
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
        return tag, _value_of(self._object, data)


class Watch:
    """Tells leases that are kept from those whose holders are dead, by whether their objects change
    between looks. For one thread.
    """

    def __init__(self) -> None:
        #: the object's tag, and when it was first seen with it
        self._seen: dict[ObjectPath, tuple[str, float]] = {}

    def kept(self, tags: Mapping[ObjectPath, str]) -> set[ObjectPath]:
        """Return which of the leases in these objects, by their tags now, somebody may hold; those
        that are not named are forgotten.
        """
        now = _now()
        self._seen = {
            where: before if (before := self._seen.get(where, ("", now)))[0] == tag else (tag, now)
            for where, tag in tags.items()
        }
        return {where for where, (_, since) in self._seen.items() if now - since <= _LEASE_S}


def holder(where: ObjectPath) -> str | None:
    """Return who holds the lease in an object, or did when it died; None: nobody.

    Raises:
        LeaseUnreadable: the object is something else.
        LakeError: the store failed.
    """
    try:
        data, _ = where.read_with_tag()
    except FileNotFoundError:
        return None
    value = _value_of(where, data)
    return _told(value) if value.get("owner") else None


def _value_of(where: ObjectPath, data: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError) as error:
        raise LeaseUnreadable(f"{where} can't be read: {error}") from error


def _told(value: dict[str, Any]) -> str:
    return f"process {value.get('pid')} of {value.get('host')}, since {value.get('since')}"


def _now() -> float:
    return time.clock_gettime(_CLOCK)
