"""The proof of a lease, inside the statement or the transaction that relies on it.

A process that was paused does not know that its lease has run out, so no look before a write helps.
The proof reads the lease's row and locks it for sharing: until the write has committed, nobody can
take the lease over, and whoever takes it then reads what was written. SQLite has one writer at a
time, which is such a lock.

Statements with the proof are built once, at import: SQLAlchemy takes longer to build one than a
database to run it. Which lease it is they are told as they run (:func:`proof`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, select

from spillway.errors import LeaseLost
from spillway.store.schema import LEASES

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from spillway.store.rows import Fence


_LEASE: Final = (
    select(LEASES.c.token)
    .where(
        LEASES.c.resource == bindparam("fence_resource", type_=LEASES.c.resource.type),
        LEASES.c.token == bindparam("fence_token", type_=LEASES.c.token.type),
    )
    .with_for_update(read=True)
)
#: The condition that the lease is still the one that a fence proves, for a statement's WHERE. The
#: statement is run with what :func:`proof` gives.
IS_HELD: Final = _LEASE.exists()


def proof(fence: Fence) -> dict[str, Any]:
    """Give the parameters of ``IS_HELD``."""
    return {"fence_resource": fence.resource, "fence_token": fence.token}


def check_fence(connection: Connection, fence: Fence | None) -> None:
    """Rely on the lease from here to the end of the transaction.

    Raises:
        LeaseLost: it is another's.
    """
    if fence is not None and connection.execute(_LEASE, proof(fence)).first() is None:
        raise lease_lost(fence)


def lease_lost(fence: Fence) -> LeaseLost:
    """Make the error for a write whose *fence* is out of date."""
    return LeaseLost(
        f'the lease on "{fence.resource}" was taken over by another process',
        hint="Nothing was written. Another process serves it now: ask that one. This one takes it "
        "over again when that one stops.",
        resource=fence.resource,
        token=fence.token,
    )
