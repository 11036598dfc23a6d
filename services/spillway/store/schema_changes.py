"""What DDL did to tables, in the metadata store: a row of a table and a transaction, and what
subscriptions made of it.

Bounded: :data:`KEPT_MAX` rows, none older than :data:`KEPT_FOR`, each of some kilobytes at most.
What is decoded again after a start is there once: a row is known by its database, the transaction's
commit and its number in that. Rows go with their source.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, delete, func, insert, or_, select, update

from spillway.errors import LeaseLost
from spillway.store.fencing import check_fence
from spillway.store.rows import SchemaChangeRow
from spillway.store.schema import SCHEMA_CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from spillway.store.database import Database
    from spillway.store.rows import Fence

KEPT_MAX: Final = 20_000
KEPT_FOR: Final = timedelta(days=30)

_SETTLE: Final = (
    update(SCHEMA_CHANGES)
    .where(SCHEMA_CHANGES.c.id == bindparam("of_id"))
    .values(outcomes=bindparam("now"))
)


class SchemaChangeTable:
    """The changes. Every method may raise :class:`~spillway.errors.MetadataError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, rows: Sequence[SchemaChangeRow], fences: Mapping[str, Fence]) -> bool:
        """Remember what is not there yet, in one transaction; return whether that was anything.

        What is of a source without a fence, or whose fence is out of date, is left out: another
        process writes it.
        """
        mine = [row for row in rows if row.source in fences]
        if not mine:
            return False
        return await self._database.write(lambda connection: _add(connection, mine, fences))

    async def settle(self, rows: Iterable[SchemaChangeRow]) -> None:
        """Store the outcomes of *rows*."""
        values = [{"of_id": row.id, "now": dict(row.outcomes)} for row in rows]
        if values:
            await self._database.write(lambda connection: connection.execute(_SETTLE, values))

    async def last(
        self,
        limit: int,
        *,
        source: str | None = None,
        database: str | None = None,
        table: str | None = None,
        since: datetime | None = None,
        before: int | None = None,
    ) -> list[SchemaChangeRow]:
        """Return changes, the newest first: below the id *before*, not older than *since*; of the
        *table* under a name that it has or had.
        """
        columns = SCHEMA_CHANGES.c
        statement = select(SCHEMA_CHANGES)
        if source is not None:
            statement = statement.where(columns.source == source)
        if database is not None:
            statement = statement.where(columns.database == database)
        if table is not None:
            was = columns.document["was"].as_string()
            statement = statement.where(or_(columns.table_name == table, was == table))
        if since is not None:
            statement = statement.where(columns.committed_at >= since)
        if before is not None:
            statement = statement.where(columns.id < before)
        statement = statement.order_by(columns.id.desc()).limit(limit)
        found = await self._database.read(lambda c: list(c.execute(statement).mappings()))
        return [SchemaChangeRow(**row) for row in found]


def _add(
    connection: Connection, rows: Sequence[SchemaChangeRow], fences: Mapping[str, Fence]
) -> bool:
    by_database: dict[tuple[str, str], list[SchemaChangeRow]] = defaultdict(list)
    for row in rows:
        by_database[row.source, row.database].append(row)
    new: list[dict[str, Any]] = []
    columns = SCHEMA_CHANGES.c
    for (source, database), of_one in by_database.items():
        try:
            check_fence(connection, fences[source])
        except LeaseLost:
            continue
        there: set[tuple[int, int]] = {
            (found[0], found[1])
            for found in connection.execute(
                select(columns.commit_lsn, columns.number).where(
                    columns.source == source,
                    columns.database == database,
                    columns.commit_lsn >= min(row.commit_lsn for row in of_one),
                )
            )
        }
        for row in of_one:
            key = row.commit_lsn, row.number
            if key not in there:
                there.add(key)
                new.append(_values(row))
    if not new:
        return False
    connection.execute(insert(SCHEMA_CHANGES), new)
    last = connection.scalar(select(func.max(columns.id))) or 0
    too_old = columns.committed_at < datetime.now(UTC) - KEPT_FOR
    connection.execute(delete(SCHEMA_CHANGES).where(too_old | (columns.id <= last - KEPT_MAX)))
    return True


def _values(row: SchemaChangeRow) -> dict[str, Any]:
    values = {column.name: getattr(row, column.name) for column in SCHEMA_CHANGES.c}
    del values["id"]
    return values
