"""A table of the source and the one of the target that it is replicated into, as rows that can be
compared: by buckets, and by keys.

Values are compared as texts, as both servers print them under the same settings: what pgoutput
sends is such a text, too. Columns of the target that the source does not send don't count.

What a side in SQL_ASCII has is told by :class:`spillway.consumer.row_checksums.TextForm`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spillway.consumer.row_checksums import (
    RowTexts,
    TextForm,
    execute,
    form_beside_characters,
    printed,
    text_array,
)
from spillway.consumer.row_differences import Difference, by_key, differences
from spillway.errors import SourceError
from spillway.pg.byte_session import is_without_encoding, take_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spillway.apply.sync.published import PublishedTable
    from spillway.apply.tables.matched import MatchedTable, TargetColumn

Connection = psycopg.Connection[Any]
#: the texts of a key's columns
Key = tuple[str | None, ...]

#: How both sides print values.
PRINTED: Final = {
    "search_path": "",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
}
_BUCKETS_AT_ONCE: Final = 16


def print_alike(connection: Connection) -> None:
    """Have a session print values as the other side's does."""
    connection.execute(
        "SELECT pg_catalog.set_config(w.name, w.value, false)"
        " FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[]))"
        " w(name, value)",
        [list(PRINTED), list(PRINTED.values())],
    )


def speak_alike(source: Connection, target: Connection) -> tuple[TextForm, TextForm]:
    """Have both sessions speak so that their texts can be compared; return what each one's are."""
    sides = source, target
    if all(map(is_without_encoding, sides)):
        for side in sides:
            take_bytes(side, shown=True)
        return TextForm.BYTES, TextForm.BYTES
    for side in sides:
        side.execute("SET client_encoding = 'UTF8'")
    return form_beside_characters(source), form_beside_characters(target)


@dataclass(frozen=True, slots=True)
class Found:
    """What comparing a table by buckets found; ``more``: there is what was not looked for."""

    source_rows: int
    target_rows: int
    differences: list[Difference]
    more: bool


class TablePair:
    """A table on both sides.

    Args:
        published: the source's, as it is published.
        matched: the target's table.
        source_types: the source's types of columns, as SQL has them there, and their equalities,
            by name.
        forms: what the texts of source and target are, by :func:`speak_alike`.
    """

    def __init__(
        self,
        published: PublishedTable,
        matched: MatchedTable,
        source_types: Mapping[str, tuple[str, str]],
        forms: tuple[TextForm, TextForm],
    ) -> None:
        self._source_form, self._target_form = forms
        relation = published.relation
        self.matched = matched
        self.name = f"{relation.schema}.{relation.name}"
        self.columns = tuple(column.name for column in relation.columns)
        # By a collation that only the index has, the source's rows can't be told apart.
        is_keyed = matched.find == "key" and not any(
            k.equals.startswith("COLLATE ") for k in matched.key
        )
        #: the columns that tell rows apart; () where whole rows do
        self.key = tuple(k.column.name for k in matched.key) if is_keyed else ()
        #: columns that no UPDATE sets: those that are GENERATED ALWAYS AS IDENTITY
        self.unsettable = frozenset(
            name
            for name, column in zip(self.columns, matched.columns, strict=True)
            if column.identity == "a"
        )
        self._source = sql.SQL("{}{}").format(
            sql.SQL("" if published.kind == "p" else "ONLY "),
            sql.Identifier(relation.schema, relation.name),
        )
        filters = [sql.SQL(f"({one})") for one in published.filters]  # the server wrote it
        #: which of the source's rows are published
        self._where = (
            sql.SQL(" WHERE {}").format(sql.SQL(" OR ").join(filters)) if filters else None
        )
        self._target = sql.SQL("{}{}").format(
            sql.SQL("" if matched.kind == "p" else "ONLY "),
            sql.Identifier(matched.schema, matched.name),
        )
        self._texts = {name: printed(sql.Identifier(name)) for name in self.columns}
        #: type and equality of each of the key's columns. The source's are its own: an extension
        #: that brings the type may lie in another schema there, or the type be another.
        self._source_types = [source_types[name] for name in self.key]
        self._target_types = (
            [(k.column.type_name, k.equals) for k in matched.key] if is_keyed else []
        )

    # ---- all rows

    def compare(self, source: Connection, target: Connection, limit: int) -> Found:
        """Compare all rows, and look for *limit* differences.

        Both sessions are in a transaction with a snapshot. In memory are the rows of a few buckets.
        """
        left = self._source_texts(self._source)
        right = self._target_texts(self._target)
        with self._at_source():
            at_source = left.buckets(source)
        at_target = right.buckets(target)
        differing = sorted(
            b for b in at_source.keys() | at_target.keys() if at_source.get(b) != at_target.get(b)
        )
        found: list[Difference] = []
        more = False
        for at in range(0, len(differing), _BUCKETS_AT_ONCE):
            if len(found) >= limit:
                more = True
                break
            some = differing[at : at + _BUCKETS_AT_ONCE]
            with self._at_source():
                ours = by_key(left.rows(source, some))
            theirs = by_key(right.rows(target, some))
            for key in sorted(ours.keys() | theirs.keys()):
                found += differences(
                    key,
                    ours.get(key, []),
                    theirs.get(key, []),
                    self.columns,
                    keyed=bool(self.key),
                    other="target",
                )
        return Found(
            sum(bucket.rows for bucket in at_source.values()),
            sum(bucket.rows for bucket in at_target.values()),
            found[:limit],
            more or len(found) > limit,
        )

    # ---- rows by key

    def source_rows(self, connection: Connection, keys: Sequence[Key]) -> dict[str, list[Any]]:
        """Return the source's rows of *keys*, by their keys' texts."""
        chosen = _once(self._source_by(keys))
        with self._at_source():
            return dict(by_key(self._source_texts(chosen).all_rows(connection)))

    def target_rows(self, connection: Connection, keys: Sequence[Key]) -> dict[str, list[Any]]:
        """Return the target's rows of *keys*, by their keys' texts."""
        chosen = _once(self._target_by(keys))
        return dict(by_key(self._target_texts(chosen).all_rows(connection)))

    def source_versions(self, connection: Connection, keys: Sequence[Key]) -> dict[str, str]:
        """Return which versions of the source's rows of *keys* the session sees: another one after
        whatever was written to a row.
        """
        chosen = _once(self._source_by(keys))
        statement = sql.SQL(
            "SELECT {key}, string_agg(t.xmin::text || ' ' || t.ctid::text, ',' ORDER BY t.ctid)"
            " FROM {rows} GROUP BY 1"
        ).format(key=self._source_texts(chosen).key, rows=self._published(chosen))
        with self._at_source():
            return dict(execute(connection, statement, self._source_form).fetchall())

    def key_text(self, key: Key) -> str:
        """Return a key's text, as the other methods name it."""
        return "".join("-" if value is None else f"{len(value)}:{value}" for value in key)

    # ---- what repair does on the target

    def lock_target_rows(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Keep others from writing to the target's rows of *keys* until the transaction's end."""
        statement = sql.SQL("SELECT FROM {} FOR UPDATE OF t").format(self._target_by(keys))
        execute(connection, statement, self._target_form)

    def delete(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Delete the target's rows of *keys*."""
        statement = sql.SQL("DELETE FROM {} AS t USING {} WHERE {}").format(
            self._target, self._listed(keys, self._target_form), self._is_key(self._target_types)
        )
        execute(connection, statement, self._target_form)

    def insert(
        self,
        connection: Connection,
        rows: Sequence[Sequence[str | None]],
        more: Sequence[TargetColumn] = (),
    ) -> None:
        """Insert rows, given by the texts of their columns, and of *more* of the target's own."""
        names = [*self.columns, *(column.name for column in more)]
        statement = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
            sql.Identifier(self.matched.schema, self.matched.name),
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.SQL(", ").join(_values((*self.matched.columns, *more))),
            self._values_listed(rows),
        )
        execute(connection, statement, self._target_form)

    def replace(
        self, connection: Connection, rows: Mapping[Key, Sequence[Sequence[str | None]]]
    ) -> None:
        """Delete the target's rows of the keys of *rows*, and insert these, by their texts; columns
        of the target's own stay as they are. So no row meets what another one has had in a unique
        index.
        """
        own = self.matched.unsent
        statement = sql.SQL("DELETE FROM {} AS t USING {} WHERE {} RETURNING {}").format(
            self._target,
            self._listed(list(rows), self._target_form),
            self._is_key(self._target_types),
            sql.SQL(", ").join(
                [
                    *(printed(sql.Identifier("t", name)) for name in self.key),
                    *(printed(sql.Identifier("t", column.name)) for column in own),
                ]
            ),
        )
        gone = execute(connection, statement, self._target_form).fetchall()
        width = len(self.key)
        kept = {tuple(row[:width]): row[width:] for row in gone}
        again = [
            [*texts, *kept[key]] for key, some in rows.items() if key in kept for texts in some
        ]
        if again:
            self.insert(connection, again, own)

    def update(self, connection: Connection, rows: Sequence[Sequence[str | None]]) -> None:
        """Give the target's rows of the same keys these texts."""
        settable = [
            sql.SQL("{} = {}").format(sql.Identifier(name), value)
            for name, value, column in zip(
                self.columns, _values(self.matched.columns), self.matched.columns, strict=True
            )
            if name not in self.key and name not in self.unsettable
        ]
        if not settable:
            return
        places = [self.columns.index(name) for name in self.key]
        is_key = sql.SQL(" AND ").join(
            sql.SQL("t.{} {} v.{}::{}").format(
                sql.Identifier(name),
                sql.SQL(equals),
                sql.Identifier(f"v{place}"),
                sql.SQL(type_name),
            )
            for name, place, (type_name, equals) in zip(
                self.key, places, self._target_types, strict=True
            )
        )
        statement = sql.SQL("UPDATE {} AS t SET {} FROM {} WHERE {}").format(
            self._target, sql.SQL(", ").join(settable), self._values_listed(rows), is_key
        )
        execute(connection, statement, self._target_form)

    # ---- SQL

    @contextmanager
    def _at_source(self) -> Iterator[None]:
        """Tell what the source refuses from what the target does."""
        try:
            yield
        except psycopg.Error as error:
            said = error.diag.message_primary or " ".join(str(error).split())
            raise SourceError(
                f"rows of {self.name} can't be read at the source: {said}",
                hint=error.diag.message_hint or "The source's log says more.",
                sqlstate=error.sqlstate,
            ) from error

    def _source_texts(self, rows: sql.Composed) -> RowTexts:
        return RowTexts(self._published(rows), self._texts, self.key, self._source_form)

    def _target_texts(self, rows: sql.Composed) -> RowTexts:
        return RowTexts(rows, self._texts, self.key, self._target_form)

    def _published(self, rows: sql.Composed) -> sql.Composed:
        return rows if self._where is None else rows + self._where

    def _source_by(self, keys: Sequence[Key]) -> sql.Composed:
        return self._joined(self._source, self._source_types, keys, self._source_form)

    def _target_by(self, keys: Sequence[Key]) -> sql.Composed:
        return self._joined(self._target, self._target_types, keys, self._target_form)

    def _joined(
        self,
        relation: sql.Composable,
        types: Sequence[tuple[str, str]],
        keys: Sequence[Key],
        form: TextForm,
    ) -> sql.Composed:
        """The relation's rows of *keys*, behind FROM; a row as often as keys are equal to its."""
        return sql.SQL("{} AS t JOIN {} ON {}").format(
            relation, self._listed(keys, form), self._is_key(types)
        )

    def _listed(self, keys: Sequence[Key], form: TextForm) -> sql.Composed:
        lists = [list(values) for values in zip(*keys, strict=True)]
        return sql.SQL("ROWS FROM ({}) AS wanted ({})").format(
            sql.SQL(", ").join(
                sql.SQL("pg_catalog.unnest({}::text[])").format(text_array(values, form))
                for values in lists
            ),
            sql.SQL(", ").join(map(_wanted, range(len(lists)))),
        )

    def _is_key(self, types: Sequence[tuple[str, str]]) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("t.{} {} {}::{}").format(
                sql.Identifier(name), sql.SQL(equals), _wanted(i, "wanted"), sql.SQL(type_name)
            )
            for i, (name, (type_name, equals)) in enumerate(zip(self.key, types, strict=True))
        )

    def _values_listed(self, rows: Sequence[Sequence[str | None]]) -> sql.Composed:
        lists = [list(values) for values in zip(*rows, strict=True)]
        return sql.SQL("ROWS FROM ({}) AS v ({})").format(
            sql.SQL(", ").join(
                sql.SQL("pg_catalog.unnest({}::text[])").format(
                    text_array(values, self._target_form)
                )
                for values in lists
            ),
            sql.SQL(", ").join(sql.Identifier(f"v{i}") for i in range(len(lists))),
        )


def _once(joined: sql.Composed) -> sql.Composed:
    """Each row of what is joined with keys once, behind FROM: 1.5 and 1.50 are one key. Nothing but
    the relation's columns have names there.
    """
    return sql.SQL(
        "(SELECT DISTINCT ON (t.tableoid, t.ctid) t.xmin, t.ctid, t.* FROM {}) AS t"
    ).format(joined)


def _values(columns: Sequence[TargetColumn]) -> list[sql.Composed]:
    return [
        sql.SQL("v.{}::{}").format(sql.Identifier(f"v{i}"), sql.SQL(column.type_name))
        for i, column in enumerate(columns)
    ]


def _wanted(number: int, *of: str) -> sql.Identifier:
    return sql.Identifier(*of, f"_spillway_wanted_{number}")
