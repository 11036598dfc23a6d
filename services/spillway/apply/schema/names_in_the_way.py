"""Tables that have the name which another one is to get, put aside until their own event comes.

Two tables may swap their names in one transaction of the source, or one takes the name that another
had until then (``ALTER TABLE t RENAME TO t_old; ALTER TABLE t_new RENAME TO t``), and their events
come one by one, in any order. So who is in the way of the first gets a name of ours on the target,
by which it is found when its own event comes::

    a → b    b is called spillway_aside_…, a is called b
    b → a    spillway_aside_… is called a

Such a name lives within a transaction of the target only: what still has one at its end is no table
that the source has renamed, but one that it has dropped, or somebody else's. Nobody may take its
place silently, whose rows would then be among the other's: the transaction is rolled back.

The names follow from those that the tables had, and whether a table has one is asked of the target,
because part of a transaction may be taken back with a savepoint.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    TableName = tuple[str, str]

_PREFIX: Final = "spillway_aside_"
_STILL_ASIDE: Final = """
SELECT n.nspname::text, c.relname::text
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE (n.nspname::text, c.relname::text) IN (
           SELECT * FROM ROWS FROM (
               pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS named(schema, name))
"""


def aside(name: TableName) -> TableName:
    """Return what a table is called while it is aside, which was called *name*: in its schema."""
    # A name has 63 bytes at most.
    return name[0], _PREFIX + hashlib.sha256("\0".join(name).encode()).hexdigest()[:32]


def is_aside(name: TableName) -> bool:
    """Say whether that is the name of a table that is aside."""
    return name[1].startswith(_PREFIX)


class NamesInTheWay:
    """Which tables one session on the target has put aside in its transaction.

    Args:
        connection: to the target.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        #: by the name that a table has aside, what it was called, and the event of who is now
        self._put: dict[TableName, tuple[TableName, Mapping[str, Any]]] = {}
        #: by the source's OID, what a table is to be called, and what it is called
        self._places: dict[int, tuple[TableName, TableName]] = {}

    def place(self, oid: int, name: TableName) -> TableName:
        """Return what a table is called on the target that was to be called *name* up to here.

        Args:
            oid: of the table on the source.
            name: by the source, as the target has it.
        """
        was, there = self._places.get(oid, (None, None))
        if was == name and there is not None:
            return there
        there = aside(name)
        taken = {place for _, place in self._places.values()}
        return there if there in self._put and there not in taken else name

    def took(self, oid: int, name: TableName) -> None:
        """Note that a table was given its name."""
        self._places[oid] = (name, name)

    def put(self, name: TableName, event: Mapping[str, Any]) -> TableName:
        """Note that the table of that name is put aside, for the one of *event* to have it; return
        what it is called then.
        """
        there = aside(name)
        self._put[there] = name, event
        for oid, (to_be, place) in self._places.items():
            if place == name:
                self._places[oid] = to_be, there
        return there

    def left(self) -> Sequence[tuple[TableName, Mapping[str, Any]]]:
        """Return what those were called that are still aside, and the events of who is now.

        Raises:
            psycopg.Error: the target did not answer.
        """
        if not self._put:
            return []
        columns = [list(column) for column in zip(*self._put, strict=True)]
        found = self._connection.execute(_STILL_ASIDE, columns).fetchall()
        return [self._put[schema, table] for schema, table in sorted(found)]

    def forget(self) -> None:
        """Begin a transaction in which nothing is aside."""
        self._put.clear()
        self._places.clear()
