"""Conflicts of subscriptions in the metadata store: the last ones, and how many there were.

A subscription's program numbers what it writes down in its log (:class:`MetConflict`). What is
taken in and up to which number are one transaction, so a log may be read again from its beginning
whoever dies: what was taken in already is passed over. A number that is missing was overwritten
before anybody read it, and is told as missed.

Bounded: of each subscription :data:`KEPT_MAX` conflicts of :data:`SIZE_MAX` characters in all are
kept, the newest, and counts of :data:`TABLES_MAX` tables; those of further tables are one count.
A conflict whose transaction is tried again has the id that it had: it becomes the newest, as it was
met last, and counts once. (Unless it was dropped meanwhile: nobody knows it then.)
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, func, insert, select, update

from spillway.store.fencing import check_fence
from spillway.store.rows import ConflictTotals
from spillway.store.schema import CONFLICT_COUNTS, CONFLICT_LOGS, CONFLICTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

    from spillway.store.database import Database
    from spillway.store.rows import Fence, MetConflict

KEPT_MAX: Final = 10_000
SIZE_MAX: Final = 8 << 20
TABLES_MAX: Final = 1000
#: ids that one statement names
_IDS_AT_ONCE: Final = 500
_ID_CHARACTERS: Final = 200
_TABLE_CHARACTERS: Final = 200
_KIND_CHARACTERS: Final = 64


class ConflictTable:
    """The conflicts. Every method may raise :class:`~spillway.errors.MetadataError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self, subscription: str, met: Sequence[MetConflict], *, fence: Fence | None = None
    ) -> ConflictTotals:
        """Take in what a log has, oldest first, and return what there is then.

        Raises:
            LeaseLost: *fence* is out of date; nothing was written.
        """

        def write(connection: Connection) -> ConflictTotals:
            check_fence(connection, fence)
            new = _not_taken_in(connection, subscription, met)
            # Of one that comes twice the last says what became of it.
            by_id = {one["id"][:_ID_CHARACTERS]: one for one in new}
            known = _remove(connection, subscription, list(by_id))
            _insert(connection, subscription, by_id)
            _count(connection, subscription, [v for k, v in by_id.items() if k not in known])
            _trim(connection, subscription)
            return _totals(connection, subscription).get(subscription, ConflictTotals())

        return await self._database.write(write)

    async def last(
        self, subscription: str, limit: int, *, kind: str | None = None, table: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the last conflicts, the newest first: all of them, or those of a *kind*, or of a
        *table* (``schema.table``).
        """
        statement = select(CONFLICTS.c.document).where(CONFLICTS.c.subscription == subscription)
        if kind is not None:
            statement = statement.where(CONFLICTS.c.kind == kind)
        if table is not None:
            statement = statement.where(CONFLICTS.c.table_name == table)
        statement = statement.order_by(CONFLICTS.c.number.desc()).limit(limit)
        return await self._database.read(lambda c: [dict(one) for one in c.scalars(statement)])

    async def get(self, subscription: str, conflict_id: str) -> dict[str, Any] | None:
        """Return one; None when it is not, or no longer, there."""
        statement = select(CONFLICTS.c.document).where(
            CONFLICTS.c.subscription == subscription, CONFLICTS.c.conflict_id == conflict_id
        )
        return await self._database.read(lambda c: c.scalars(statement).one_or_none())

    async def totals(self) -> dict[str, ConflictTotals]:
        """Return how many there were, by subscription; those without are left out."""
        return await self._database.read(_totals)


def _not_taken_in(
    connection: Connection, subscription: str, met: Sequence[MetConflict]
) -> list[Mapping[str, Any]]:
    """Return the documents that are new, and write down up to where the logs are taken in."""
    where = CONFLICT_LOGS.c.subscription == subscription
    before = {
        row.log: row.position for row in connection.execute(select(CONFLICT_LOGS).where(where))
    }
    positions, missed, new = dict(before), Counter[str](), []
    for one in met:
        if not one.log:
            # These have no numbers: they are read once.
            positions[""] = 1
            if "" not in before:
                new.append(one.document)
            continue
        position = positions.get(one.log, 0)
        if one.position > position:
            missed[one.log] += one.position - position - 1
            positions[one.log] = one.position
            new.append(one.document)
    for log, position in positions.items():
        if log not in before:
            values = {"subscription": subscription, "log": log, "position": position}
            connection.execute(insert(CONFLICT_LOGS).values(**values, missed=missed[log]))
        elif position != before[log]:
            values = {"position": position, "missed": CONFLICT_LOGS.c.missed + missed[log]}
            connection.execute(
                update(CONFLICT_LOGS).where(where, CONFLICT_LOGS.c.log == log).values(values)
            )
    return new


def _remove(connection: Connection, subscription: str, ids: list[str]) -> set[str]:
    """Remove those of these ids; return which there were."""
    found: set[str] = set()
    for at in range(0, len(ids), _IDS_AT_ONCE):
        statement = delete(CONFLICTS).where(
            CONFLICTS.c.subscription == subscription,
            CONFLICTS.c.conflict_id.in_(ids[at : at + _IDS_AT_ONCE]),
        )
        found.update(connection.scalars(statement.returning(CONFLICTS.c.conflict_id)))
    return found


def _insert(
    connection: Connection, subscription: str, by_id: Mapping[str, Mapping[str, Any]]
) -> None:
    where = CONFLICTS.c.subscription == subscription
    last = connection.scalar(select(func.max(CONFLICTS.c.number)).where(where)) or 0
    rows = [
        {
            "subscription": subscription,
            "number": last + offset,
            "conflict_id": conflict_id,
            "kind": _kind(document),
            "table_name": _table(document),
            "size": len(json.dumps(document)),
            "document": document,
        }
        for offset, (conflict_id, document) in enumerate(by_id.items(), 1)
    ]
    if rows:
        connection.execute(insert(CONFLICTS), rows)


def _count(
    connection: Connection, subscription: str, documents: Sequence[Mapping[str, Any]]
) -> None:
    columns, where = CONFLICT_COUNTS.c, CONFLICT_COUNTS.c.subscription == subscription
    more = Counter((_table(one)[:_TABLE_CHARACTERS], _kind(one)) for one in documents)
    if not more:
        return
    found = connection.execute(select(columns.table_name, columns.kind).where(where)).all()
    known = {(table, kind) for table, kind in found}
    tables = {table for table, _ in known}
    for (name, kind), count in sorted(more.items()):
        table = name if name in tables or len(tables) < TABLES_MAX else ""
        tables.add(table)
        if (table, kind) in known:
            connection.execute(
                update(CONFLICT_COUNTS)
                .where(where, columns.table_name == table, columns.kind == kind)
                .values(count=columns["count"] + count)
            )
        else:
            known.add((table, kind))
            values = {"subscription": subscription, "table_name": table, "kind": kind}
            connection.execute(insert(CONFLICT_COUNTS).values(**values, count=count))


def _trim(connection: Connection, subscription: str) -> None:
    """Drop the oldest beyond what is kept."""
    newest_first = CONFLICTS.c.number.desc()
    ranked = (
        select(
            CONFLICTS.c.number,
            func.row_number().over(order_by=newest_first).label("place"),
            func.sum(CONFLICTS.c.size).over(order_by=newest_first).label("size"),
        )
        .where(CONFLICTS.c.subscription == subscription)
        .subquery()
    )
    beyond = (ranked.c.place > KEPT_MAX) | (ranked.c.size > SIZE_MAX)
    last = connection.scalar(select(func.max(ranked.c.number)).where(beyond))
    if last is not None:
        connection.execute(
            delete(CONFLICTS).where(
                CONFLICTS.c.subscription == subscription, CONFLICTS.c.number <= last
            )
        )


def _totals(connection: Connection, subscription: str | None = None) -> dict[str, ConflictTotals]:
    def of(table: Any, *columns: Any) -> Any:
        statement = select(table.c.subscription, *columns)
        if subscription is not None:
            statement = statement.where(table.c.subscription == subscription)
        return statement

    counts: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    columns = CONFLICT_COUNTS.c
    for name, table, kind, count in connection.execute(
        of(CONFLICT_COUNTS, columns.table_name, columns.kind, columns["count"])
    ):
        counts[name][table, kind] = count
    by_name = CONFLICTS.c.subscription
    kept = {
        row[0]: row[1] for row in connection.execute(of(CONFLICTS, func.count()).group_by(by_name))
    }
    sums = of(CONFLICT_LOGS, func.sum(CONFLICT_LOGS.c.missed))
    # A sum of bigint is numeric in PostgreSQL.
    missed = {
        name: int(count)
        for name, count in connection.execute(sums.group_by(CONFLICT_LOGS.c.subscription))
    }
    return {
        name: ConflictTotals(counts.get(name, {}), kept.get(name, 0), missed.get(name, 0))
        for name in {*counts, *kept, *missed}
    }


def _table(document: Mapping[str, Any]) -> str:
    return f"{document['schema']}.{document['table']}"


def _kind(document: Mapping[str, Any]) -> str:
    return str(document["kind"])[:_KIND_CHARACTERS]
