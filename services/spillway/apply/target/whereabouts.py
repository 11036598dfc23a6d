"""Whether all sessions of a program are on one server.

An address may lead to another server while a program is at work: a proxy, a virtual address or a
name that moved when a standby took over, a name with several addresses. What is connected stays
where it is, also on a former primary that goes on. A session that is opened then is on the
successor, which lacks what the others have written since: written there, a group would come without
those before it, and its position would say that they are there.

So each session that is opened later looks for the advisory lock that the one that applies holds for
as long as it lives. Locks are in a server's memory, and neither copied nor replicated: only a
session on the same server, in the same database, sees it. One that does not is closed, and the
program ends: the next one has all of its sessions, and its position, on the server where the
address leads by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.apply.target.failures import from_postgres
from spillway.errors import TargetMoved

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of an advisory lock with two keys; ``%s`` are these, as they are without a sign.
_HOLDERS: Final = """
SELECT pid FROM pg_catalog.pg_locks
 WHERE locktype = 'advisory' AND granted AND objsubid = 2
   AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND classid = %s::bigint::oid AND objid = %s::bigint::oid
"""


def lock_holder(connection: psycopg.Connection[Any], keys: Sequence[int]) -> int | None:
    """Return the PID of who has the advisory lock of two *keys* in the session's database.

    Raises:
        psycopg.Error: the server did not answer.
    """
    row = connection.execute(_HOLDERS, [key % (1 << 32) for key in keys]).fetchone()
    return None if row is None else row[0]


class Whereabouts:
    """Where the session that applies is, for those beside it; on any thread.

    Attributes:
        parted: what the first session met that came elsewhere; then the program is to end.
    """

    def __init__(self) -> None:
        self._keys: Sequence[int] | None = None
        self.parted: TargetMoved | None = None

    def settle(self, keys: Sequence[int]) -> None:
        """Hear which lock the session that applies holds. Before that nothing is checked."""
        self._keys = keys

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Check that a session is where the one is that applies.

        Raises:
            TargetMoved: it is not, or that one is gone.
            TargetError: the server did not answer.
        """
        if self._keys is None:
            return
        try:
            if lock_holder(connection, self._keys) is not None:
                return
        except psycopg.Error as error:
            raise from_postgres(error, "the target can't be looked at") from error
        self.parted = TargetMoved(
            "a new connection to the target does not see the lock of the one that is at work: the "
            "address in the DSN leads to another server now, or that connection has ended",
            hint="It begins anew by itself, with all of its connections on one server, from the "
            "position that is there. If this comes again and again, the address leads to several "
            "servers by turns: name the one that takes writes, or add "
            "target_session_attrs=read-write to the DSN.",
        )
        raise self.parted

    def ensure_together(self) -> None:
        """Refuse to go on once a session came elsewhere.

        Raises:
            TargetMoved: one did.
        """
        if self.parted is not None:
            raise self.parted
