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
        """Find and lock the rows that have a key of *row* in a unique index: one for each index, of
        one WITHOUT OVERLAPS all that *row* overlaps.

        Args:
            row: the columns whose values are known, :meth:`completed`; an index with another is
                not looked at.
            own: the row that *row* replaces, which is never in its way.
        """
        found: list[FoundRow] = []
        for index in self.facts.indexes:
            if index.is_immediate and None not in index.equals:
                key = self._key(index, row)
                if key is not None:
                    found += self._with_key(index, key, own)
        return found

    def completed(self, row: Row) -> Row:
        """A row as it would be written: with defaults of what it has not, and what is generated of
        the others; without what counts on, and what is generated of that.
        """
        columns = self.facts.columns
        generated = [one for one in columns if one.is_generated]
        found = {
            one.name: row[one.name] for one in columns if one.name in row and not one.is_generated
        }
        unsent = [one for one in columns if not (one.name in found or one.is_generated)]
        expected = [one for one in unsent if one.expression is not None and not one.is_counted]
        found |= {one.name: None for one in unsent if one.expression is None and not one.is_counted}
        if expected:
            text = f"SELECT {', '.join(f'({one.expression})' for one in expected)}"
            values = cells(raw(self.connection, text.encode()), 0)
            found |= {one.name: value for one, value in zip(expected, values, strict=True)}
        known = {one.attnum for one in columns if one.name in found}
        generated = [one for one in generated if known.issuperset(one.needs)]
        if generated:
            wanted = ", ".join(f"({one.expression})" for one in generated)
            made = self._of_row(wanted, "true", found)
            assert made is not None
            found |= {one.name: value for one, value in zip(generated, made, strict=True)}
        return found

    def _of_row(self, wanted: str, condition: str, row: Row) -> list[bytes | None] | None:
        """Expressions of a row; None if *condition* is not true of it. What is not known of it
        is NULL: whoever asks has seen that it does not matter.
        """
        columns = self.facts.columns
        made = ", ".join(
            f"${n + 1}::{one.type_name}{one.collate} AS {one.quoted}"
            for n, one in enumerate(columns)
        )
        text = f"SELECT {wanted} FROM (SELECT {made}) AS row WHERE {condition}"  # noqa: S608 - quoted
        cursor = raw(self.connection, text.encode(), [row.get(one.name) for one in columns])
        return cells(cursor, 0) if cursor.rowcount else None

    def _key(self, index: UniqueIndex, row: Row) -> tuple[bytes | None, ...] | None:
        """The key that *row* has in an index; None if it has none there, or none can be told."""
        names = {one.attnum: one.name for one in self.facts.columns}
        # All columns are known, but for those of an insert that count on.
        if not all(name in row for name in index.needs):
            return None
        if index.is_of_columns:
            key = tuple(row[names[attnum]] for attnum in index.attnums)
        else:
            wanted = ", ".join(f"({one})" for one in index.definitions)
            values = self._of_row(wanted, index.condition, row)
            if values is None:
                return None
            key = tuple(values)
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
                conditions.append(f"{definition} IS NOT DISTINCT FROM NULL")
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
            f"SELECT {self._columns} FROM {index.only or self.statements.table.only}"  # noqa: S608 - quoted
            f" WHERE {' AND '.join(conditions)}"
            f"{'' if index.is_of_periods else ' LIMIT 1'} FOR UPDATE"
        )
        cursor = raw(self.connection, text.encode(), values)
        return [
            self._with_index(index, key, self._found(cells(cursor, n)))
            for n in range(cursor.rowcount)
        ]

    def _with_index(
        self, index: UniqueIndex, key: tuple[bytes | None, ...], found: FoundRow
    ) -> FoundRow:
        """A row that was found, with the index that has its key."""
        name = self._name_in_partition(index, found.tableoid)
        if 0 not in index.attnums and not index.only:
            # Told is the key that is there: what is equal to it may be written otherwise (1.0 and
            # 1.00), and overlaps are not equal at all.
            names = {one.attnum: one.name for one in self.facts.columns}
            key = tuple(found.local.row[names[attnum]] for attnum in index.attnums)
        local = LocalRow(
            found.local.row, found.local.xid, found.local.origin, found.local.committed_at,
            name, index.definitions, key,
        )  # fmt: skip
        return FoundRow(found.tableoid, found.ctid, local, found.is_of_another)

    def _name_in_partition(self, index: UniqueIndex, tableoid: bytes) -> str:
        """What an index is called in the partition that has the row."""
        if self.statements.table.kind != "p" or index.only:
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
