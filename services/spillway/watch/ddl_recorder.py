"""The timeline of DDL: what is decoded of it is stored, and what each subscription made of it.

What DDL did is taken from the sessions (:meth:`EngineInterface.take_ddl`) and stored by the process
that holds the source's lease. A subscription that follows the table is then watched until it has
the change behind it::

    waiting ──▶ followed        its slot is confirmed beyond the commit
       │  ▲
       ▼  │
    paused ───▶ set_aside       beyond it, and the table is in quarantine

*paused* is the subscription's error: it waits at a change of the schema, of which the first that is
not behind it is the one. What was paused before says so. What has an outcome keeps it, whatever
becomes of the table later: this is what happened.

Bounded: :data:`WATCHED_MAX` changes are watched, the newest; what can't be stored waits, as many at
most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import SpillwayError
from spillway.store.rows import SchemaChangeRow
from spillway.watch.findings import SCHEMA_CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spillway.service.interface import EngineInterface
    from spillway.service.model import DdlChange
    from spillway.store.schema_changes import SchemaChangeTable
    from spillway.subscriber.model import SubscriptionInfo
    from spillway.watch.sampler import Sampler

log = logging.getLogger(__name__)

WATCHED_MAX: Final = 1000
#: columns of a new table, and changes of one that is altered, that are stored
_PARTS_MAX: Final = 200
#: outcomes that nothing changes any more
FINAL: Final = frozenset({"followed", "set_aside"})


class DdlRecorder:
    """Used on the event loop."""

    def __init__(self, table: SchemaChangeTable, engine: EngineInterface, sampler: Sampler) -> None:
        self._table = table
        self._engine = engine
        self._sampler = sampler
        self._waiting: list[SchemaChangeRow] = []
        #: the newest of what is stored; None: not read yet
        self._watched: list[SchemaChangeRow] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure = ""

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="spillway-ddl")

    async def stop(self) -> None:
        """Store what was taken, and end it; safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            await self.step(self._sampler.view.subscriptions)

    async def _run(self) -> None:
        while True:
            view = await self._sampler.next_look()
            try:
                await self.step(view.subscriptions)
            except Exception:
                log.exception("what DDL did is not noted")

    async def step(self, subscriptions: Sequence[SubscriptionInfo]) -> None:
        """Store what is new, and what became of it."""
        try:
            self._waiting += [_row(change) for change in await self._engine.take_ddl()]
            del self._waiting[:-WATCHED_MAX]
            if self._waiting:
                fences = {
                    source: fence
                    for source in {row.source for row in self._waiting}
                    if (fence := self._engine.fence(source)) is not None
                }
                if await self._table.add(self._waiting, fences):
                    self._watched = None
                self._waiting = []
            await self._settle(subscriptions)
        except SpillwayError as error:
            if not self._failure:
                log.warning("what DDL did is not stored (tried again): %s", error)
            self._failure = str(error)
        else:
            self._failure = ""

    async def _settle(self, subscriptions: Sequence[SubscriptionInfo]) -> None:
        if self._watched is None:
            self._watched = await self._table.last(WATCHED_MAX)
        mine = [one for one in subscriptions if self._engine.fence(one.source) is not None]
        settled = settled_rows(self._watched, mine)
        if settled:
            await self._table.settle(settled)
            now = {row.id: row for row in settled}
            self._watched = [now.get(row.id, row) for row in self._watched]


def settled_rows(
    rows: Iterable[SchemaChangeRow], subscriptions: Iterable[SubscriptionInfo]
) -> list[SchemaChangeRow]:
    """Return those of *rows* of which a subscription has made something else than is stored, with
    that.
    """
    found: dict[int, SchemaChangeRow] = {}
    # What is earliest is what a subscription waits at.
    ordered = sorted(rows, key=lambda row: (row.commit_lsn, row.number))
    for one in subscriptions:
        followed = followed_tables(one)
        paused_at: int | None = None
        for row in ordered:
            before = row.outcomes.get(one.name)
            if before is not None and before["outcome"] in FINAL:
                continue
            if not concerns(row, one, followed):
                continue
            is_behind = _is_behind(one, row)
            is_first = not is_behind and paused_at in (None, row.commit_lsn)
            if is_first:
                paused_at = row.commit_lsn
            outcome, detail = _outcome(one, row, is_behind=is_behind, is_first=is_first)
            was_paused = False
            if before is not None:
                if (before["outcome"], before["detail"]) == (outcome, detail):
                    continue
                was_paused = before["was_paused"] or before["outcome"] == "paused"
            now: dict[str, Any] = {
                "outcome": outcome,
                "detail": detail,
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "was_paused": was_paused,
            }
            known = found.get(row.id, row)
            found[row.id] = replace(known, outcomes={**known.outcomes, one.name: now})
    return list(found.values())


def followed_tables(one: SubscriptionInfo) -> frozenset[str] | None:
    """Return the tables that a subscription is known to follow; None: all."""
    if one.tables is None and one.publications is None:
        return None
    return frozenset(table.table for table in one.table_states) | frozenset(one.tables or ())


def concerns(row: SchemaChangeRow, one: SubscriptionInfo, followed: frozenset[str] | None) -> bool:
    """Say whether a subscription, which follows the tables *followed*, has to do with a change."""
    if (row.source, row.database) != (one.source, one.database):
        return False
    if one.created_at > row.committed_at:
        # It began with the table as it was then.
        return False
    return followed is None or row.table_name in followed or row.document.get("was") in followed


def _is_behind(one: SubscriptionInfo, row: SchemaChangeRow) -> bool:
    # Behind the commit record, whose beginning the row has.
    return one.confirmed_flush_lsn is not None and one.confirmed_flush_lsn > row.commit_lsn


def _outcome(
    one: SubscriptionInfo, row: SchemaChangeRow, *, is_behind: bool, is_first: bool
) -> tuple[str, str]:
    if is_behind:
        names = {row.table_name, row.document.get("was")}
        for table in one.table_states:
            if table.table in names and table.state == "quarantined":
                return "set_aside", table.reason or ""
        return "followed", ""
    if is_first and one.error is not None and one.error.code in SCHEMA_CHANGES:
        return "paused", one.error.message
    return "waiting", "" if one.enabled else "it is disabled"


def _row(change: DdlChange) -> SchemaChangeRow:
    event = change.event
    before, after = event["before"], event["after"]
    document: dict[str, Any] = {
        "changes": list(event["changes"][:_PARTS_MAX]),
        "rewritten": event["rewritten"],
        "oid": event["oid"],
        "was": None if before is None else f"{before['schema']}.{before['table']}",
    }
    if change.more:
        document["more_in_transaction"] = change.more
    if before is None and after is not None:
        document |= {
            "columns": [_column(column) for column in after["columns"][:_PARTS_MAX]],
            "column_count": len(after["columns"]),
            "primary_key": after["primary_key"],
            "parent": after["parent"],
        }
    return SchemaChangeRow(
        source=change.source,
        database=change.database,
        commit_lsn=change.commit_lsn,
        number=change.number,
        xid=change.xid,
        committed_at=change.committed_at,
        kind=event["kind"],
        table_name=f"{event['schema']}.{event['table']}",
        document=document,
    )


def _column(column: Mapping[str, Any]) -> dict[str, Any]:
    return {name: column[name] for name in ("name", "type", "not_null")}
