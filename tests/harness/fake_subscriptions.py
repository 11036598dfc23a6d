"""Subscriptions in memory, for tests of the interfaces above them: no programs; the test says how
one is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from spillway.errors import Conflict, DuplicateName, InvalidRequest, UnknownSubscription
from spillway.pg.lsn import Lsn
from spillway.subscriber.model import (
    SubscriptionInfo,
    SubscriptionSpec,
    SubscriptionState,
    TableResync,
    Verification,
    VerificationState,
)
from spillway.subscriber.subscriptions import check_unused, unknown_conflict
from spillway.subscriber.targets import target_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CREATED_AT = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)


class FakeSubscriptions:
    """Implements SubscriptionInterface."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, SubscriptionInfo] = {}
        self.logs: dict[str, list[str]] = {}
        self.met: dict[str, list[dict[str, Any]]] = {}
        #: (name, whether its slot was kept) of each drop
        self.dropped: list[tuple[str, bool]] = []
        #: the tables of each comparison
        self.compared: list[tuple[str, ...]] = []
        #: what the drop of each can't remove from its target
        self.left: dict[str, list[str]] = {}

    # What tests call

    def change(self, name: str, **values: Any) -> SubscriptionInfo:
        """Say how a subscription is."""
        self.subscriptions[name] = dataclasses.replace(self.subscriptions[name], **values)
        return self.subscriptions[name]

    # The interface

    async def check_unused(self, source: str) -> None:
        check_unused(source, [n for n, s in self.subscriptions.items() if s.source == source])

    async def create(self, spec: SubscriptionSpec) -> SubscriptionInfo:
        target = target_kind(spec.target.get("kind")).check(spec.target)
        if spec.name in self.subscriptions:
            raise DuplicateName(f'subscription "{spec.name}" already exists')
        values = {field.name: getattr(spec, field.name) for field in fields(SubscriptionSpec)}
        values |= {"target": target, "slot": spec.slot or spec.name}
        streaming = SubscriptionState.STREAMING
        self.subscriptions[spec.name] = SubscriptionInfo(
            **values,
            state=streaming if spec.enabled else SubscriptionState.PAUSED,
            error=None,
            confirmed_flush_lsn=Lsn.parse("0/1000000"),
            lag_bytes=0,
            lag_seconds=0.0,
            rows=0,
            restarts=0,
            pid=None,
            table_states=(),
            created_at=CREATED_AT,
        )
        return self.subscriptions[spec.name]

    async def check(self, spec: SubscriptionSpec) -> list[str]:
        target_kind(spec.target.get("kind")).check(spec.target)
        return []

    async def list_all(self) -> list[SubscriptionInfo]:
        return [found for _, found in sorted(self.subscriptions.items())]

    async def get(self, name: str) -> SubscriptionInfo:
        try:
            return self.subscriptions[name]
        except KeyError:
            raise UnknownSubscription(name) from None

    async def alter(self, name: str, changes: Mapping[str, object]) -> SubscriptionInfo:
        found = await self.get(name)
        for field, value in changes.items():
            if field in {"source", "database", "slot"} and getattr(found, field) != value:
                raise Conflict(f"{field} can't be changed in place", hint="Drop and create.")
        tuples = {f: tuple(v) if isinstance(v, list) else v for f, v in changes.items()}
        changed = self.change(name, **tuples)
        state = SubscriptionState.STREAMING if changed.enabled else SubscriptionState.PAUSED
        return self.change(name, state=state)

    async def enable(self, name: str) -> SubscriptionInfo:
        return await self.alter(name, {"enabled": True})

    async def disable(self, name: str) -> SubscriptionInfo:
        return await self.alter(name, {"enabled": False})

    async def refresh(self, name: str) -> SubscriptionInfo:
        return await self.get(name)

    async def skip(self, name: str, lsn: Lsn) -> SubscriptionInfo:
        await self.get(name)
        return self.change(name, confirmed_flush_lsn=lsn)

    async def pause_table(self, name: str, table: str) -> SubscriptionInfo:
        return await self._of_table(name, table, "paused")

    async def resume_table(self, name: str, table: str) -> SubscriptionInfo:
        return await self._of_table(name, table, "ready")

    async def resync_table(self, name: str, table: str) -> SubscriptionInfo:
        await self._of_table(name, table, "ready")
        states = {each.table: each for each in (await self.get(name)).table_states}
        states[table] = replace(states[table], resync=TableResync("waiting", CREATED_AT))
        return self.change(name, table_states=tuple(states.values()))

    async def cancel_resync(self, name: str, table: str) -> SubscriptionInfo:
        await self._of_table(name, table, "ready")
        states = {each.table: each for each in (await self.get(name)).table_states}
        resync = TableResync("cancelled", CREATED_AT, CREATED_AT)
        states[table] = replace(states[table], resync=resync)
        return self.change(name, table_states=tuple(states.values()))

    async def verify(self, name: str, tables: Sequence[str] = ()) -> SubscriptionInfo:
        await self.get(name)
        self.compared.append(tuple(tables))
        return self.change(name, verification=Verification(VerificationState.RUNNING, CREATED_AT))

    async def _of_table(self, name: str, table: str, state: str) -> SubscriptionInfo:
        states = {each.table: each for each in (await self.get(name)).table_states}
        if table not in states:
            raise InvalidRequest(f"{name} has told of no table {table}", hint="Name one it has.")
        states[table] = replace(states[table], state=state)
        return self.change(name, table_states=tuple(states.values()))

    async def drop(self, name: str, *, keep_slot: bool = False) -> list[str]:
        await self.get(name)
        del self.subscriptions[name]
        self.dropped.append((name, keep_slot))
        return self.left.pop(name, [])

    async def log(self, name: str, lines: int) -> list[str]:
        await self.get(name)
        return self.logs.get(name, [])[-lines:] if lines else []

    async def conflicts(
        self, name: str, limit: int, *, kind: str | None = None, table: str | None = None
    ) -> list[dict[str, Any]]:
        await self.get(name)
        found = [
            one
            for one in self.met.get(name, [])
            if kind in (None, one["kind"]) and table in (None, f"{one['schema']}.{one['table']}")
        ]
        return found[:limit]

    async def conflict(self, name: str, conflict_id: str) -> dict[str, Any]:
        await self.get(name)
        for one in self.met.get(name, []):
            if one["id"] == conflict_id:
                return one
        raise unknown_conflict(name, conflict_id)
