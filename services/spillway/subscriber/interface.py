"""What the subscriber does for the interfaces above it (REST, UI).

As with :mod:`spillway.service.interface`: they depend on this protocol, production runs on
:class:`spillway.subscriber.subscriptions.Subscriptions`. All methods are called on the event loop
and never block it. All raise :class:`spillway.errors.SpillwayError` and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.pg.lsn import Lsn
    from spillway.subscriber.model import SubscriptionInfo, SubscriptionSpec


class SubscriptionInterface(Protocol):
    """Subscriptions."""

    async def create(self, spec: SubscriptionSpec) -> SubscriptionInfo:
        """Create a subscription, and its slot unless that is there; when it returns both are, and
        its program is started.

        Returns:
            the subscription, with what :meth:`check` would have returned as its notes.
        """
        ...

    async def check(self, spec: SubscriptionSpec) -> list[str]:
        """Look whether :meth:`create` could go on, at the target too; nothing is made.

        Returns:
            what is good to know and in nobody's way.

        Raises:
            SpillwayError: what is in the way.
        """
        ...

    async def list_all(self) -> list[SubscriptionInfo]: ...
    async def get(self, name: str) -> SubscriptionInfo: ...

    async def alter(self, name: str, changes: Mapping[str, object]) -> SubscriptionInfo:
        """Change what can change in place: tables or publications, options, enabled, how the
        target's program runs.

        Args:
            name: the subscription.
            changes: fields of :class:`~spillway.subscriber.model.SubscriptionSpec`; what equals
                what is there changes nothing.

        Raises:
            Conflict: one of them can't change in place.
        """
        ...

    async def enable(self, name: str) -> SubscriptionInfo: ...

    async def disable(self, name: str) -> SubscriptionInfo:
        """Stop its program; when it returns, there is none any more."""
        ...

    async def refresh(self, name: str) -> SubscriptionInfo:
        """Look again which tables its publications, or its partitioned tables, have; new ones are
        copied first.
        """
        ...

    async def skip(self, name: str, lsn: Lsn) -> SubscriptionInfo:
        """Give up what commits before *lsn* and is not in the target: move the slot there, never
        backward.
        """
        ...

    async def pause_table(self, name: str, table: str) -> SubscriptionInfo:
        """Have one table, ``schema.table``, wait while the others go on: what comes for it is kept
        at the target, and the slot is confirmed.

        Raises:
            InvalidRequest: it has no such table.
            Conflict: the table is being copied.
            UnsupportedFeature: its kind of target can't.
        """
        ...

    async def resume_table(self, name: str, table: str) -> SubscriptionInfo:
        """Have a table that is paused, or was set aside, take in what was kept for it.

        Raises:
            as :meth:`pause_table`; LakeError: nothing is kept for it.
        """
        ...

    async def resync_table(self, name: str, table: str) -> SubscriptionInfo:
        """Have its program load a table anew, as of an LSN, while the others go on; the wish is
        durable when this returns. One that waits already stays.

        Raises:
            InvalidRequest: it has no such table.
            Conflict: the table is being copied, or the subscription is disabled.
            TableNotReadable: the source does not let the role read it; with the SQL that mends it.
            UnsupportedFeature: its kind of target can't.
        """
        ...

    async def cancel_resync(self, name: str, table: str) -> SubscriptionInfo:
        """Take back that a table is to be loaded anew; it is durable when this returns.

        Raises:
            InvalidRequest: it has no such table.
            Conflict: nobody asks for it, or its load has begun.
            UnsupportedFeature: its kind of target can't.
        """
        ...

    async def verify(self, name: str, tables: Sequence[str] = ()) -> SubscriptionInfo:
        """Begin to compare *tables*, ``schema.table``, all without any, with the source, as of one
        LSN, while its program goes on; what comes out is its ``verification``.

        Raises:
            InvalidRequest: it has no such table.
            Conflict: one is at work, or its program does not follow the slot.
            UnsupportedFeature: its kind of target can't.
        """
        ...

    async def drop(self, name: str, *, keep_slot: bool = False) -> list[str]:
        """Drop a subscription and its slot; the target's data stay as they are.

        Return what it could not remove from its target, which does not answer for one, and how that
        is removed by hand; [] if nothing is left there.
        """
        ...

    async def check_unused(self, source: str) -> None:
        """Check that no subscription is of *source*, which is to be dropped.

        Raises:
            Conflict: they are named.
        """
        ...

    async def log(self, name: str, lines: int) -> list[str]:
        """Return the last *lines* of what its programs printed."""
        ...

    async def conflicts(
        self, name: str, limit: int, *, kind: str | None = None, table: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the last conflicts that its programs met, the newest first; at most *limit*.

        Args:
            name: the subscription.
            limit: how many.
            kind: only those of this kind.
            table: only those of this one, ``schema.table`` as on the target.
        """
        ...

    async def conflict(self, name: str, conflict_id: str) -> dict[str, Any]:
        """Return one conflict.

        Raises:
            UnknownConflict: it is not, or no longer, kept.
        """
        ...
