"""Rows of the target that a change meets: found, locked, and described.

A row that is found stays locked until its transaction ends, as PostgreSQL's worker locks it. Who
wrote it last, and when, is told where the target keeps it (track_commit_timestamp) and the server
can say the origin (14 and later).

Source: RelationFindReplTupleByIndex, RelationFindReplTupleSeq, FindConflictTuple
(src/backend/executor/execReplication.c), GetTupleTransactionInfo
(src/backend/replication/logical/conflict.c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.changes import UNCHANGED
from spillway.apply.conflicts.conflict import LocalRow, Row
from spillway.apply.exact.raw import cells, raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from spillway.apply.changes import Change
    from spillway.apply.exact.facts import TableFacts, UniqueIndex
    from spillway.apply.exact.origins import Origins
    from spillway.apply.exact.statements import TableStatements

    Connection = psycopg.Connection[tuple[Any, ...]]

_PLACE: Final = "tableoid, ctid, xmin"
_PLACE_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row, where it is, and who wrote it."""

    tableoid: bytes
    ctid: bytes
    local: LocalRow
    #: the origin is another than this session's
    is_of_another: bool


@dataclass(frozen=True, slots=True)
class TableRows:
    """What finds rows of one table."""

    connection: Connection
    statements: TableStatements
    facts: TableFacts
    origins: Origins

    def find(self, change: Change) -> FoundRow | None:
        """Find and lock the row that an update or a delete is about; None if there is none."""
        text, values = self.statements.find(change, self._columns, "FOR UPDATE")
        cursor = raw(self.connection, text, values, prepare=True)
        return self._found(cells(cursor, 0)) if cursor.rowcount else None

    def in_the_way(self, row: Row, own: FoundRow | None) -> list[FoundRow]:
        """Find and lock the rows that have a key of *row* in a unique index, one for each index.

        Args:
            row: the columns whose values are known; an index with another is not looked at.
            own: the row that *row* replaces, which is never in its way.
        """
        found: list[FoundRow] = []
        for index in self.facts.indexes:
            if index.is_immediate and None not in index.equals:
                key = self._key(index, row)
                if key is not None:
                    found += self._with_key(index, key, own)
        return found

    def _key(self, index: UniqueIndex, row: Row) -> tuple[bytes | None, ...] | None:
        """The key that *row* has in an index; None if it has none there, or none can be told."""
        names = {one.attnum: one.name for one in self.facts.columns}
        if index.is_of_columns:
            of = [names[attnum] for attnum in index.attnums]
            if not all(name in row for name in of):
                return None
            key = tuple(row[name] for name in of)
        else:
            known = [one for one in self.facts.columns if one.name in row]
            made = ", ".join(
                f"${n + 1}::{one.type_name} AS {one.quoted}" for n, one in enumerate(known)
            )
            wanted = ", ".join(f"({one})" for one in index.definitions)
            text = f"SELECT {wanted} FROM (SELECT {made}) AS row WHERE {index.predicate or 'true'}"  # noqa: S608 - quoted
            # A column that is not known would be an error: all are, but for an insert's defaults.
            if len(known) < len(self.facts.columns):
                return None
            cursor = raw(self.connection, text.encode(), [row[one.name] for one in known])
            if not cursor.rowcount:
                return None
            key = tuple(cells(cursor, 0))
        if None in key and not index.nulls_are_equal:
            return None
        return key

    def _with_key(
        self, index: UniqueIndex, key: tuple[bytes | None, ...], own: FoundRow | None
    ) -> list[FoundRow]:
        conditions: list[str] = []
        values: list[bytes | None] = []
        for n, one in enumerate(key):
            definition = f"({index.definitions[n]})"
            if one is None:
                conditions.append(f"{definition} IS NULL")
                continue
            values.append(one)
            conditions.append(
                f"{definition}{index.collations[n] or ''} {index.equals[n]}"
                f" ${len(values)}::{index.types[n]}"
            )
        if index.predicate is not None:
            conditions.append(f"({index.predicate})")
        if own is not None:
            values += [own.tableoid, own.ctid]
            conditions.append(f"(tableoid, ctid) <> (${len(values) - 1}::oid, ${len(values)}::tid)")
        text = (
            f"SELECT {self._columns} FROM {self.statements.table.only}"  # noqa: S608 - quoted
            f" WHERE {' AND '.join(conditions)} LIMIT 1 FOR UPDATE"
        )
        cursor = raw(self.connection, text.encode(), values)
        if not cursor.rowcount:
            return []
        found = self._found(cells(cursor, 0))
        name = self._name_in_partition(index, found.tableoid)
        local = LocalRow(
            found.local.row, found.local.xid, found.local.origin, found.local.committed_at,
            name, index.definitions, key,
        )  # fmt: skip
        return [FoundRow(found.tableoid, found.ctid, local, found.is_of_another)]

    def _name_in_partition(self, index: UniqueIndex, tableoid: bytes) -> str:
        """What an index is called in the partition that has the row."""
        if self.statements.table.kind != "p":
            return index.name
        cursor = raw(
            self.connection,
            b"SELECT c.relname::text FROM pg_catalog.pg_partition_tree($1::oid::regclass) t"
            b" JOIN pg_catalog.pg_index x ON x.indexrelid = t.relid"
            b" JOIN pg_catalog.pg_class c ON c.oid = t.relid WHERE x.indrelid = $2::oid",
            [str(index.oid).encode(), tableoid],
        )
        return str(cursor.fetchall()[0][0]) if cursor.rowcount else index.name

    @property
    def _columns(self) -> str:
        return ", ".join([_PLACE, *(one.quoted for one in self.facts.columns)])

    def _found(self, row: Sequence[bytes | None]) -> FoundRow:
        tableoid, ctid, xmin = row[:_PLACE_COLUMNS]
        assert tableoid is not None
        assert ctid is not None
        assert xmin is not None
        names = (one.name for one in self.facts.columns)
        values: Row = dict(zip(names, row[_PLACE_COLUMNS:], strict=True))
        written = self.origins.of(xmin)
        if written is None:
            return FoundRow(tableoid, ctid, LocalRow(values, int(xmin)), is_of_another=False)
        local = LocalRow(values, int(xmin), written.name, written.committed_at)
        return FoundRow(tableoid, ctid, local, is_of_another=not written.is_ours)


def names_of(statements: TableStatements, values: Sequence[Any]) -> Row:
    """A row of the source by the names of the target's columns, without what was not sent."""
    columns = statements.table.columns
    return {
        column.name: value
        for column, value in zip(columns, values, strict=True)
        if value is not UNCHANGED
    }
