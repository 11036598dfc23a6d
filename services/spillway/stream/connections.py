"""A bound on gRPC's connections, which gRPC for Python has none of.

gRPC accepts whatever comes, on threads of its own, until the process has no descriptor left; then
its receivers can't open a file either. So the sockets of the process are looked at, and of those
that were accepted on gRPC's port the newest beyond the bound, in all or of one address, are shut
down: gRPC sees their end and closes them. Those that were there first, streams at work, stay. While
the process has few descriptors open, a look costs one listing of ``/proc/self/fd``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.connection_bound import ConnectionBound

_LOOK_S: Final = 0.25


class GrpcConnections:
    """The connections of one port."""

    def __init__(self, port: int, bound: ConnectionBound) -> None:
        self._port = port
        self._bound = bound
        #: when each was first seen, by its inode
        self._seen: dict[int, int] = {}
        #: those that were shut down, and that gRPC has not closed yet
        self._ended: set[int] = set()
        self._looks = 0

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Shut down the newest connections beyond the bound."""
        descriptors = _open_descriptors()
        # There can't be more connections than descriptors.
        if len(descriptors) <= self._bound.per_address:
            return
        self._looks += 1
        present = {}
        closing = set()
        of_holder: dict[str, list[int]] = {}
        for descriptor in descriptors:
            found = self._connection(descriptor)
            if found is not None:
                inode, address = found
                if inode in self._ended:
                    closing.add(inode)
                    continue
                present[inode] = descriptor
                if (holder := self._bound.holder(address)) is not None:
                    of_holder.setdefault(holder, []).append(inode)
        self._seen = {inode: self._seen.get(inode, self._looks) for inode in present}
        ended: set[int] = set()
        for inodes in of_holder.values():
            ended |= self._newest(inodes, len(inodes) - self._bound.per_address)
        if ended:
            self._bound.refuse("address", len(ended))
        left = present.keys() - ended
        more = self._newest(left, len(left) - self._bound.total)
        if more:
            self._bound.refuse("total", len(more))
        self._ended = closing | ended | more
        for inode in ended | more:
            again = self._connection(present[inode])
            if again is not None and again[0] == inode:
                _shut_down(present[inode])

    def _newest(self, inodes: Iterable[int], count: int) -> set[int]:
        # Which of those came first that came between two looks, nothing says for sure: each
        # processor hands out inodes from a range of its own.
        in_order = sorted(inodes, key=lambda inode: (self._seen[inode], inode))
        return set(in_order[-count:]) if count > 0 else set()

    def _connection(self, descriptor: int) -> tuple[int, str] | None:
        """Give inode and peer's address of a socket that was accepted on the port; None for
        anything else.
        """
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                return None
            accepted = socket.socket(fileno=descriptor)
        except OSError:
            return None
        try:
            if accepted.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if accepted.getsockname()[1] != self._port:
                return None
            address: str = accepted.getpeername()[0]  # the listener has none
        except OSError:
            return None
        else:
            return status.st_ino, address
        finally:
            # It is gRPC's.
            accepted.detach()


def _open_descriptors() -> list[int]:
    try:
        return [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    except OSError:
        # No descriptor is left to list them with; then there are as many as there may be.
        return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        finally:
            connection.detach()
