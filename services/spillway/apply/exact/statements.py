"""The SQL that writes one change into one table, by what the change has.

Texts are made once for each set of columns and kept (:class:`TableStatements`), so that the session
prepares them once. Parameters are text in the source's form, of a type that the server infers from
where they stand, so that the type's input function reads them, as with PostgreSQL's worker; where
nothing says the type, there is a cast.

Values in binary form never come here: the stream is asked for text.

A statement changes at most one row. It finds it as :mod:`spillway.apply.tables.matched` says; by a
whole row the first that is equal is locked, and written by its ctid. PostgreSQL's worker asks for a
type's equality when it has two values, record_eq before it looks whether there are any: so NULLs of
types that may have none (json, point) are compared by themselves.

Source: apply_handle_update_internal, apply_handle_delete_internal, FindReplTupleInLocalRel
(src/backend/replication/logical/worker.c), RelationFindReplTupleSeq
(src/backend/executor/execReplication.c)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.apply.changes import UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.apply.changes import Change
    from spillway.apply.exact.facts import TableFacts
    from spillway.apply.tables.matched import MatchedTable

Value = bytes | None
Values = list[Value]

#: Texts that one table may keep; a table with many columns that are often not sent has many.
_TEXTS_MAX: Final = 200
#: The one row, by where it is.
_BY_PLACE: Final = "ctid = (SELECT ctid FROM found) AND tableoid = (SELECT tableoid FROM found)"
#: Who wrote the row last, if that is known: the origin's number.
_ORIGIN: Final = (
    "(SELECT roident FROM pg_catalog.pg_xact_commit_timestamp_origin((SELECT xmin FROM found)))"
)


class TableStatements:
    """The texts for one table.

    Args:
        table: the table.
        facts: what else its catalog says. With a deferrable unique constraint PostgreSQL refuses ON
            CONFLICT.
        tells_origins: that updates and deletes return the number of the origin that wrote the row
            before.
    """

    def __init__(self, table: MatchedTable, facts: TableFacts, *, tells_origins: bool) -> None:
        self.table = table
        self.tells_origins = tells_origins
        self._on_conflict = "" if facts.has_deferrable else " ON CONFLICT DO NOTHING"
        #: a comparison needs one collation on both sides
        self._collate = {one.name: one.collate for one in facts.columns}
        #: columns that record_eq may not be asked for where one of the two values is NULL
        self._incomparable = {one.name for one in facts.columns if not one.has_equality}
        self._texts: dict[tuple[Any, ...], bytes] = {}

    def insert(self, new: Sequence[Any], *, plain: bool = False) -> tuple[bytes, Values]:
        """Write a row; unless *plain*, one whose key is there already is passed over."""
        text = self._texts.get(("insert", plain))
        if text is None:
            columns = self.table.columns
            names = ", ".join(one.quoted for one in columns)
            places = ", ".join(f"${i + 1}" for i in range(len(columns)))
            rows = (
                f"({names}) OVERRIDING SYSTEM VALUE VALUES ({places})"
                if columns
                else "DEFAULT VALUES"
            )
            tail = "" if plain else self._on_conflict
            text = self._keep(("insert", plain), f"INSERT INTO {self.table.quoted} {rows}{tail}")
        return text, list(new)

    def update(self, change: Change) -> tuple[bytes, Values] | None:
        """Find a row and write it; None if only its present values tell how."""
        new: Sequence[Any] | None = change.new
        assert new is not None
        sets = self.set_positions(change)
        if sets is None:
            return None
        search = self.search_values(change)
        key = ("update", sets, self._nulls(search))
        text = self._texts.get(key)
        if text is None:
            text = self._keep(key, self._update(sets, search))
        values = self._parameters(search)
        values += [new[i] for i in sets]
        return text, values

    def delete(self, change: Change) -> tuple[bytes, Values]:
        """Find a row and delete it."""
        search = self.search_values(change)
        key = ("delete", self._nulls(search))
        text = self._texts.get(key)
        if text is None:
            condition = self._condition(search)
            what = f"DELETE FROM {self.table.only} WHERE"  # noqa: S608 - quoted
            if self._is_found_by_statement:
                sql = f"{what} {condition}"
            else:
                sql = f"{self._found(condition)} {what} {_BY_PLACE}{self._returning}"
            text = self._keep(key, sql)
        return text, self._parameters(search)

    def find(self, change: Change, columns: str, tail: str) -> tuple[bytes, Values]:
        """Read the first row that a change is about: *columns*, and *tail* behind the condition."""
        search = self.search_values(change)
        key = ("find", columns, tail, self._nulls(search))
        text = self._texts.get(key)
        if text is None:
            text = self._keep(
                key,
                f"SELECT {columns} FROM {self.table.only} WHERE {self._condition(search)}"  # noqa: S608 - quoted
                f" LIMIT 1 {tail}",
            )
        return text, self._parameters(search)

    def search_values(self, change: Change) -> tuple[Any, ...]:
        """The row that is looked for: the old one where the source sent it."""
        values = change.new if change.old is None else change.old
        assert values is not None
        return values

    def set_positions(self, change: Change) -> tuple[int, ...] | None:
        """Which values an update sets; None if the row's present values have to say.

        A column that is GENERATED ALWAYS AS IDENTITY can't be set, so it is left out where the
        change tells that its value stays. Where columns are merged, those that the source did not
        change are: the target's may be somebody else's.
        """
        assert change.new is not None
        found: list[int] = []
        before = change.old if self.table.merges and not change.old_is_key else None
        for i, column in enumerate(self.table.columns):
            value = change.new[i]
            if value is UNCHANGED or (before is not None and before[i] == value):
                continue
            if column.identity == "a":
                is_key = self.table.relation.columns[i].is_key
                if change.old is None:
                    if not is_key:
                        return None
                    continue
                if change.old_is_key and not is_key:
                    return None
                if change.old[i] != value:
                    return None
                continue
            found.append(i)
        return tuple(found) if found else None

    @property
    def _is_found_by_statement(self) -> bool:
        return self.table.find == "key" and not self.tells_origins

    def _update(self, sets: tuple[int, ...], search: Sequence[Any]) -> str:
        table = self.table
        before = len(self._parameters(search))
        assigned = ", ".join(
            f"{table.columns[i].quoted} = ${before + n + 1}" for n, i in enumerate(sets)
        )
        condition = self._condition(search)
        what = f"UPDATE {table.only} SET {assigned} WHERE"  # noqa: S608 - quoted
        if self._is_found_by_statement:
            return f"{what} {condition}"
        return f"{self._found(condition)} {what} {_BY_PLACE}{self._returning}"

    @property
    def _returning(self) -> str:
        return f" RETURNING {_ORIGIN}" if self.tells_origins else ""

    def _found(self, condition: str) -> str:
        return (
            "WITH found AS MATERIALIZED (SELECT tableoid, ctid, xmin"  # noqa: S608 - quoted
            f" FROM {self.table.only} WHERE {condition} LIMIT 1 FOR UPDATE)"
        )

    def _nulls(self, search: Sequence[Any]) -> tuple[bool, ...]:
        nulls = [search[one.position] is None for one in self.table.key]
        if self.table.find != "key" and self._incomparable:
            nulls += [
                value is None
                for one, value in zip(self.table.columns, search, strict=True)
                if one.name in self._incomparable
            ]
        return tuple(nulls)

    def _parameters(self, search: Sequence[Any]) -> Values:
        if self.table.find == "key":
            return [search[one.position] for one in self.table.key]
        return list(search)

    def _condition(self, search: Sequence[Any]) -> str:
        table = self.table
        if table.find == "key":
            return " AND ".join(
                f"{one.column.quoted} {one.equals} ${n + 1}::{one.column.type_name}"
                for n, one in enumerate(table.key)
            )
        compared = [
            f"{one.column.quoted} IS NULL"
            if search[one.position] is None
            else f"{one.column.quoted} {one.equals} ${one.position + 1}::{one.column.type_name}"
            for one in table.key
        ]
        ours: list[str] = []
        theirs: list[str] = []
        nulls: list[str] = []
        for i, one in enumerate((*table.columns, *table.unsent)):
            is_sent = i < len(table.columns)
            place = f"${i + 1}::{one.type_name}" if is_sent else f"NULL::{one.type_name}"
            if one.name in self._incomparable:
                if not is_sent or search[i] is None:
                    nulls.append(f"{one.quoted} IS NOT DISTINCT FROM NULL AND {place} IS NULL")
                    continue
                nulls.append(f"{one.quoted} IS DISTINCT FROM NULL")
            ours.append(one.quoted)
            theirs.append(place + (self._collate[one.name] if is_sent else ""))
        rows = f"pg_catalog.record_eq(ROW({', '.join(ours)}), ROW({', '.join(theirs)}))"
        if nulls:
            # Asked for last, whatever the planner takes for cheap.
            rows = f"CASE WHEN {' AND '.join(nulls)} THEN {rows} END"
        return " AND ".join([*compared, rows])

    def _keep(self, key: tuple[Any, ...], text: str) -> bytes:
        if len(self._texts) >= _TEXTS_MAX:
            self._texts.clear()
        found = self._texts[key] = text.encode()
        return found
