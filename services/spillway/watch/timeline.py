"""What changed in the schema, as pages, REST and commands show it: newest first, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import InvalidRequest
from spillway.watch.ddl_words import words_of
from spillway.watch.newest_first import page_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from spillway.pg.lsn import Lsn
    from spillway.store.schema_changes import SchemaChangeTable
    from spillway.watch.newest_first import Page

LIMIT_MAX: Final = 1000
#: What a subscription may have made of a change.
OUTCOMES: Final[Mapping[str, str]] = {
    "followed": "the target has it, or needs nothing done for it",
    "set_aside": "the table was set aside: its changes since then are not in the target",
    "paused": "the subscription waits there, until somebody acts",
    "waiting": "the subscription has not come that far yet",
}


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What DDL did to one table."""

    id: int
    source: str
    database: str
    table: str
    #: its name before; None: it was not there
    was: str | None
    kind: str
    committed_at: datetime
    commit_lsn: Lsn
    xid: int
    words: tuple[str, ...]
    changes: tuple[Mapping[str, Any], ...]
    #: how many more tables the transaction changed, of which nothing is noted
    more: int
    #: by the subscription's name: outcome, of :data:`OUTCOMES`, detail, at, was_paused
    outcomes: Mapping[str, Mapping[str, Any]]


class Timeline:
    """What DDL did, of thirty days. Every method may raise MetadataError."""

    def __init__(self, table: SchemaChangeTable) -> None:
        self._table = table

    async def last(self, limit: int, **where: Any) -> list[SchemaChange]:
        """Return changes, the newest first; see
        :meth:`spillway.store.schema_changes.SchemaChangeTable.last` for *where*.

        Raises:
            InvalidRequest: the limit is out of bounds.
        """
        if not 1 <= limit <= LIMIT_MAX + 1:
            raise InvalidRequest(f"limit is {limit}", hint=f"Give a number from 1 to {LIMIT_MAX}.")
        return [
            SchemaChange(
                row.id,
                row.source,
                row.database,
                row.table_name,
                row.document.get("was"),
                row.kind,
                row.committed_at,
                row.commit_lsn,
                row.xid,
                tuple(words_of(row.kind, row.table_name, row.document)),
                tuple(row.document["changes"]),
                row.document.get("more_in_transaction", 0),
                row.outcomes,
            )
            for row in await self._table.last(limit, **where)
        ]

    async def page(self, limit: int, **where: Any) -> Page[SchemaChange]:
        """Return a page of changes; as :meth:`last`."""
        return page_of(await self.last(limit + 1, **where), limit)
