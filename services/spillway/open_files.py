"""How many files and sockets the process may have open, and how many of them connections may take.

A connection is a descriptor, and so is a segment of WAL, a part of the transaction log and SQLite's
file. When a process has no descriptor left, whatever opens a file next fails, be it a receiver. So
connections get a share, REST, gRPC and PostgreSQL's protocol each theirs, and the rest is kept for
the work. The limit is raised first to what the process may raise it to.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from typing import Final

#: More is asked for by nobody, and some programs that are started walk through all that is allowed.
_LIMIT_MAX: Final = 65_536
#: What sources, databases and their slots may need: some ten for each database.
_RESERVED_MAX: Final = 4_096
_HTTP_MAX: Final = 1_000
_GRPC_MAX: Final = 4_000
_PG_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections may be open at once."""

    http: int
    grpc: int
    #: PostgreSQL's own protocol
    pg: int


def raise_limit() -> int:
    """Raise the limit of open files as far as the process may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _LIMIT_MAX if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connection_limits(files_max: int) -> ConnectionLimits:
    """Share out *files_max* descriptors: half for the work, but no more than it can need; of the
    rest a half each.

    PostgreSQL's own protocol, which most services don't serve, gets a sixteenth of all, out of the
    work's share.
    """
    left = files_max - min(files_max // 2, _RESERVED_MAX)
    return ConnectionLimits(
        http=min(left // 2, _HTTP_MAX),
        grpc=min(left // 2, _GRPC_MAX),
        pg=min(files_max // 16, _PG_MAX),
    )
