"""Sessions that copy, catch up or repair mark what they write with an origin of the subscription's,
as PostgreSQL's table sync workers do: a subscription in the other direction (``origin = none``)
leaves it out, and whoever compares origins finds it to be ours.

An origin is one session's at a time, so each takes the first that is free of a few. A role that may
not use origins, or a server that has no room for one more, writes without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

if TYPE_CHECKING:
    Connection = psycopg.Connection[tuple[Any, ...]]

#: More than there are connections, since one of a process that was killed is free only when its
#: backend notices.
_ORIGINS_MAX: Final = 40


def mark(connection: Connection, origin: str) -> bool:
    """Have a session's transactions marked; return whether they are.

    Args:
        connection: in autocommit.
        origin: the subscription's; those that are taken here begin with it.

    Raises:
        psycopg.Error: the connection broke.
    """
    for number in range(_ORIGINS_MAX):
        name = f"{origin}_copy_{number}"
        try:
            if not connection.execute(
                "SELECT FROM pg_catalog.pg_replication_origin WHERE roname = %s", [name]
            ).fetchall():
                connection.execute("SELECT pg_catalog.pg_replication_origin_create(%s)", [name])
            connection.execute("SELECT pg_catalog.pg_replication_origin_session_setup(%s)", [name])
        except (psycopg.errors.ObjectInUse, psycopg.errors.UniqueViolation):
            continue
        except psycopg.Error:
            if connection.closed:
                raise
            return False
        return True
    return False
