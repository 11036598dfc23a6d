"""A bound on gRPC's connections, which gRPC for Python has none of.

gRPC accepts whatever comes, on threads of its own, until the process has no descriptor left; then its receivers
can't open a file either. So the sockets of the process are looked at, and of those that were accepted on gRPC's
port the newest beyond the bound are shut down: gRPC sees their end and closes them. Those that were there first, streams at
work, stay. While the process has few descriptors open, a look costs one listing of ``/proc/self/fd``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import stat
import time
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
#: One line a minute is enough to say that connections are refused.
_SAY_AGAIN_S: Final = 60.0


class GrpcConnections:
    """The connections of one port."""

    def __init__(self, port: int, connections_max: int) -> None:
        self._port = port
        self._max = connections_max
        #: when each was first seen, by its inode
        self._seen: dict[int, int] = {}
        self._looks = 0
        self._refused_count = 0
        self._said_at_s = -_SAY_AGAIN_S

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Shut down the newest connections beyond the bound."""
        descriptors = _open_descriptors()
        # There can't be more connections than descriptors.
        if len(descriptors) <= self._max:
            return
        self._looks += 1
        present = {}
        for descriptor in descriptors:
            inode = self._connection(descriptor)
            if inode is not None:
                present[inode] = descriptor
        self._seen = {inode: self._seen.get(inode, self._looks) for inode in present}
        beyond = len(present) - self._max
        if beyond <= 0:
            return
        newest = sorted(present, key=lambda inode: self._seen[inode], reverse=True)[:beyond]
        for inode in newest:
            if self._connection(present[inode]) == inode:
                _shut_down(present[inode])
        self._say(beyond)

    def _connection(self, descriptor: int) -> int | None:
        """Give the inode of a socket that was accepted on the port; None for anything else."""
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
            accepted.getpeername()  # the listener has none
        except OSError:
            return None
        else:
            return status.st_ino
        finally:
            # It is gRPC's.
            accepted.detach()

    def _say(self, count: int) -> None:
        self._refused_count += count
        now_s = time.monotonic()
        if now_s - self._said_at_s >= _SAY_AGAIN_S:
            log.warning(
                "%d connections to gRPC were ended: at most %d may be open at once",
                self._refused_count, self._max,
            )  # fmt: skip
            self._refused_count = 0
            self._said_at_s = now_s


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
