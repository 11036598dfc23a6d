"""The proof of a lease, inside the statement or the transaction that relies on it.

A process that was paused does not know that its lease has run out, so no look before a write helps.
The proof reads the lease's row and locks it for sharing: until the write has committed, nobody can
take the lease over, and whoever takes it then reads what was written. SQLite has one writer at a
time, which is such a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from spillway.errors import LeaseLost
from spillway.store.schema import LEASES

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.engine import Connection

    from spillway.store.rows import Fence


def is_held(fence: Fence) -> ColumnElement[bool]:
    """Give the condition that the lease is still the one that *fence* proves, for a statement's
    WHERE.
    """
    return _lease(fence).exists()


def check_fence(connection: Connection, fence: Fence | None) -> None:
    """Rely on the lease from here to the end of the transaction.

    Raises:
        LeaseLost: it is another's.
    """
    if fence is not None and connection.execute(_lease(fence)).first() is None:
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


def _lease(fence: Fence) -> Select[int]:
    held = select(LEASES.c.token).where(
        LEASES.c.resource == fence.resource, LEASES.c.token == fence.token
    )
    return held.with_for_update(read=True)
