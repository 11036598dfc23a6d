"""Events in the metadata store: what happened and who did what, the newest of it.

Bounded: :data:`KEPT_MAX` events, none older than :data:`KEPT_FOR`. What goes beyond is removed by
those who add, now and then: :data:`SLACK` more may be there. Events count up, so a page of them
begins below the last id of the page before, whatever is added meanwhile.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, func, insert, or_, select

from spillway.store.rows import EventRow
from spillway.store.schema import EVENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

    from spillway.store.database import Database

KEPT_MAX: Final = 50_000
KEPT_FOR: Final = timedelta(days=30)
#: events between two trims
SLACK: Final = 500
#: of a title and of a detail
_CHARACTERS: Final = 4000


class EventTable:
    """The events. Every method may raise :class:`~spillway.errors.MetadataError`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The first to be added trims: the process may never add many.
        self._until_trim = 0

    async def add(self, events: Sequence[EventRow]) -> None:
        """Remember *events*, oldest first, in one transaction."""
        if events:
            await self._database.write(lambda connection: self.insert(connection, events))

    def insert(self, connection: Connection, events: Sequence[EventRow]) -> None:
        """Remember *events* in a transaction that does more."""
        connection.execute(insert(EVENTS), [_values(event) for event in events])
        self._until_trim -= len(events)
        if self._until_trim <= 0:
            self._until_trim = SLACK
            _trim(connection)

    async def last(
        self,
        limit: int,
        *,
        before: int | None = None,
        since: datetime | None = None,
        search: str | None = None,
        **where: str | None,
    ) -> list[EventRow]:
        """Return events, the newest first: below the id *before*, not older than *since*, and equal
        in the columns that *where* names (kind, severity, source, slot, subscription).

        *search* is looked for in the title, the detail and who did it, in any case.
        """
        statement = select(EVENTS)
        if search is not None:
            who = [EVENTS.c.caller[name].as_string() for name in ("address", "client", "user")]
            columns = (EVENTS.c.title, EVENTS.c.detail, *who)
            found_in = [column.icontains(search, autoescape=True) for column in columns]
            statement = statement.where(or_(*found_in))
        for column, value in where.items():
            if value is not None:
                statement = statement.where(EVENTS.c[column] == value)
        if before is not None:
            statement = statement.where(EVENTS.c.id < before)
        if since is not None:
            statement = statement.where(EVENTS.c.at >= since)
        statement = statement.order_by(EVENTS.c.id.desc()).limit(limit)
        found = await self._database.read(lambda c: list(c.execute(statement).mappings()))
        return [EventRow(**columns) for columns in found]


def _values(event: EventRow) -> dict[str, Any]:
    values = {column.name: getattr(event, column.name) for column in EVENTS.c}
    del values["id"]
    for name in ("title", "detail"):
        values[name] = values[name][:_CHARACTERS]
    return values


def _trim(connection: Connection) -> None:
    oldest = datetime.now(UTC) - KEPT_FOR
    last = connection.scalar(select(func.max(EVENTS.c.id))) or 0
    beyond = (EVENTS.c.at < oldest) | (EVENTS.c.id <= last - KEPT_MAX)
    connection.execute(delete(EVENTS).where(beyond))
