"""A table's columns over time: ALTER TABLE between the changes of a batch, and between batches.

A column is its attribute number, not its name: PostgreSQL never gives a number twice, so ADD, DROP
and RENAME COLUMN are all told by comparing numbers (the plugin's field metadata
``spillway.column``; the current table's fields keep them, too).

::

    messages of a batch ──▶ shapes: from which change on a name is which table, with which columns
    current (its fields' numbers) ──follow──▶ the newest shape: one atomic rewrite
    history's rows of the batch   ──as_of_last──▶ read as if they had been made in the newest shape
                                    ──▶ net effect ──▶ merge

A table is its oid: one that was dropped and created again under its name has nothing of the old
one, whose rows leave current there as by TRUNCATE. A column whose type changed has its old values
cast, where that is what PostgreSQL made of them (:mod:`spillway.lake.shape.type_changes`); else
:class:`~spillway.errors.LakeSchemaConflict`.

A row that is older than a column has in it the value that PostgreSQL shows: that of ADD COLUMN …
DEFAULT (pg_attribute.attmissingval, ``missing`` in the metadata), else null. A dropped column
leaves current and stays in history. DDL waits for everybody's changes of the table, so in commit
order each shape ends before the next one begins.

Neither step remembers anything, which is why a kill at any instant and a batch that comes again,
cut elsewhere even, do no harm. *follow* compares what current's own fields say with the batch, and
adds and fills in one commit: a column is there with its values or isn't there. *as_of_last* depends
on the batch's messages only, not on whether current was rewritten already. The rewrite carries no
LSN: the merge after it does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, StructField, StructType

from spillway.errors import LakeSchemaConflict
from spillway.lake.load_anew import load_anew
from spillway.lake.shape.net_effect import COPIES, DELETED_AT, copies_field, copies_name, quoted
from spillway.lake.shape.payload import (
    CHANGE_COLUMNS,
    OLD_KEY,
    column_for,
    lake_schema,
    relation_of,
    table_columns,
)
from spillway.lake.shape.type_changes import SourceType, cast_is_exact, tells_the_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_ATTNUM: Final = "spillway.attnum"
_UNCHANGED: Final = "_unchanged_toast"

_UNKNOWN: Final = SourceType()

#: a change's place: ``_commit_lsn``, ``_seq``
Place = tuple[int, int]
#: what a column is told by: its attribute number; its name where a message or a table doesn't say
Identity = int | str


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a shape."""

    identity: Identity
    name: str
    type: pa.DataType
    #: PostgreSQL's text of what rows made before the column show; None: null
    missing: str | None = None
    source: SourceType = _UNKNOWN
    #: whether rows are told by it
    in_key: bool = field(default=False, compare=False)

    def becomes(self, after: TableColumn) -> bool:
        """Say whether the lake can make the values that *after* has, the same column later, of this
        one's.
        """
        if after.in_key and not tells_the_same(self.source, after.source):
            return False
        return cast_is_exact(self.type, self.source, after.type, after.source)


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that a table has in the changes from ``first`` to ``last``."""

    first: Place
    last: Place
    columns: tuple[TableColumn, ...]
    #: of the table; 0: not known
    oid: int = 0

    def column(self, identity: Identity) -> TableColumn | None:
        return next((c for c in self.columns if c.identity == identity), None)

    def name_of(self, identity: Identity) -> str | None:
        column = self.column(identity)
        return None if column is None else column.name

    def is_of(self, other: Shape) -> bool:
        """Say whether both are of one table, not of two that had its name one after the other."""
        return not self.oid or not other.oid or self.oid == other.oid

    @property
    def facts(self) -> object:
        """What makes a shape another one, beside labels of enums."""
        return self.oid, {c.identity: (c.name, c.type, c.source) for c in self.columns}

    def goes_on_as(self, after: Shape) -> bool:
        """Say whether *after*, whose changes come later, is no other shape.

        It isn't where an enum has other labels from some place on. But nobody's changes of the
        table have to end for that, so that those of both may be mixed up.
        """
        if self.facts != after.facts:
            return False
        pairs = [(was, c) for c in after.columns if (was := self.column(c.identity)) is not None]
        if all(was.source.labels == column.source.labels for was, column in pairs):
            return True
        return self.last > after.first and all(was.becomes(column) for was, column in pairs)

    def until(self, after: Shape) -> Shape:
        """Return the shape of both, where it goes on as *after*."""
        sources = {c.identity: c.source for c in after.columns}
        columns = tuple(replace(c, source=sources[c.identity]) for c in self.columns)
        return replace(self, last=max(self.last, after.last), columns=columns)


@dataclass(frozen=True, slots=True)
class Followed:
    """The current table in the newest shape."""

    frame: DataFrame
    #: rows change, not only null columns are added
    rewritten: bool
    #: the key of another table that has the name now; None: it stays
    key: tuple[str, ...] | None = None
    #: which stored column each column is; those that aren't in it are new
    sources: Mapping[str, str] = field(default_factory=dict)
    #: new columns have values in rows that are there
    filled: bool = False


def shapes(messages: Iterable[tuple[pa.Schema, Place, Place]], relation: str) -> tuple[Shape, ...]:
    """Return a table's shapes in order, from its messages' schemas and where each one's changes
    begin and end.

    Raises:
        LakeSchemaConflict: a shape is left and come back to, so that a message does not say which
            time it is of.
    """
    found: list[Shape] = []
    for schema, first, last in sorted(messages, key=lambda message: message[1]):
        shape = Shape(first, last, columns_of(schema), relation_of(schema).oid)
        if found and found[-1].goes_on_as(shape):
            shape = found.pop().until(shape)
        found.append(shape)
    for before, after in pairwise(found):
        if before.last > after.first:
            raise LakeSchemaConflict(
                f"columns of {relation} were changed and changed back within one batch",
                hint="Run the job with a new checkpoint and smaller batches, so that they come one "
                "after the other.",
                relation=relation,
            )
    # A later message may not know it any more: VACUUM FULL writes the values into the rows.
    newest = found[-1]
    missing: dict[Identity, str | None] = {}
    for shape in found:
        if shape.is_of(newest):
            for column in shape.columns:
                missing.setdefault(column.identity, column.missing)
    columns = tuple(replace(c, missing=missing[c.identity]) for c in newest.columns)
    return (*found[:-1], replace(newest, columns=columns))


def current_schema(columns: Sequence[TableColumn]) -> pa.Schema:
    """Return the current table's schema; its fields keep their attribute numbers."""
    return pa.schema(
        pa.field(
            c.name, c.type,
            metadata={_ATTNUM: str(c.identity)} if isinstance(c.identity, int) else None
        )
        for c in columns
    )  # fmt: skip


def with_deleted_at(shape: Shape, relation: str) -> Shape:
    """Return the shape of a current table that keeps rows which are gone.

    Raises:
        LakeSchemaConflict: the source has a column of that name.
    """
    if any(c.name.lower() == DELETED_AT for c in shape.columns):
        raise LakeSchemaConflict(
            f"{relation} has a column {DELETED_AT!r}, and its soft deletes would be in it",
            hint="Rename it at the source, or fill another lake without --soft-deletes of it.",
            relation=relation,
            column=DELETED_AT,
        )
    column = TableColumn(DELETED_AT, DELETED_AT, pa.timestamp("us", tz="UTC"))
    return replace(shape, columns=(*shape.columns, column))


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's form of :func:`current_schema`'s result, attribute numbers included."""
    plain = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    numbers = [(field.metadata or {}).get(_ATTNUM.encode()) for field in schema]
    return StructType(
        [
            StructField(f.name, f.dataType, True, _metadata(None if n is None else int(n)))
            for f, n in zip(plain.fields, numbers, strict=True)
        ]
    )


def dropped_columns(stored: StructType, newest: Shape) -> list[str]:
    """Return the columns of a current table that the source has no more."""
    kept = {*_sources(stored, newest).values(), stored_copies(stored)}
    return [name for name in stored.names if name not in kept]


def stored_copies(stored: StructType) -> str | None:
    """Return the column in which a current table counts copies, which has no attribute number; None
    if it doesn't.
    """
    found = (
        f.name for f in stored if f.name.rstrip("_") == COPIES and _ATTNUM not in (f.metadata or {})
    )
    return max(found, key=len, default=None)


def follow(
    current: DataFrame, newest: Shape, relation: str, stored_shape: Shape | None = None
) -> Followed | None:
    """Return the current table with the newest shape's columns; None when it has them.

    Args:
        current: the table.
        newest: the shape.
        relation: its name.
        stored_shape: the shape of the changes that *current* has last, as far as it is known.

    Raises:
        LakeSchemaConflict: what the source made of a column's values is not known.
    """
    stored = current.schema
    held = to_arrow_schema(stored, timezone="UTC")
    sources = _sources(stored, newest)
    wanted = spark_schema(current_schema(newest.columns))
    values, rewritten, added, filled = [], bool(dropped_columns(stored, newest)), False, False
    carried = {}
    for column, field_ in zip(newest.columns, wanted.fields, strict=True):
        source = sources.get(column.identity)
        if source is None:
            added = True
            filled |= column.missing is not None
            value = _literal(column.missing, field_.dataType)
        else:
            known = stored_shape and stored_shape.column(column.identity)
            type_ = held.field(source).type
            # Of another type than it should have, it was made what it is to be by a batch that was
            # cut off since.
            kept = known.source if known and known.type == type_ else _UNKNOWN
            before = TableColumn(column.identity, source, type_, source=kept)
            check_values(relation, before, column)
            rewritten |= source != column.name or before.type != column.type
            value = F.col(quoted(source)).cast(field_.dataType)
            carried[column.name] = source
        values.append(value.alias(column.name, metadata=field_.metadata))
    if not (rewritten or added):
        return None
    counted = stored_copies(stored)
    if counted is not None:
        name = copies_name(carried.keys() | {column.name for column in newest.columns})
        rewritten |= name != counted
        values.append(F.col(counted).alias(name))
        carried[name] = counted
    frame = current.select(*values)
    return Followed(frame, rewritten or filled, sources=carried, filled=filled)


def begun_anew(current: DataFrame, newest: Shape, key: tuple[str, ...]) -> Followed:
    """Return the current table of another table than the one that had the name before: without
    rows.
    """
    wanted = current_schema(newest.columns)
    if not key:
        wanted = wanted.append(copies_field(wanted.names))
    empty = current.sparkSession.createDataFrame([], spark_schema(wanted))
    return Followed(empty, rewritten=True, key=key)


def as_of_last(events: DataFrame, of_batch: Sequence[Shape], relation: str) -> DataFrame:
    """Return history's rows as if all had been made in the last of the batch's shapes, with its
    columns.

    Rows of a table that had the name before the last shape's table are left out.

    Raises:
        LakeSchemaConflict: what the source made of a column's values is not known.
    """
    newest = of_batch[-1]
    at = F.struct("_commit_lsn", "_seq")

    def before(place: Place) -> Column:
        lsn, seq = (F.lit(n).cast("bigint") for n in place)
        return at < F.struct(lsn.alias("_commit_lsn"), seq.alias("_seq"))

    others = [after for shape, after in pairwise(of_batch) if not shape.is_of(after)]
    if others:
        events = events.where(~before(others[-1].first))
        of_batch = of_batch[of_batch.index(others[-1]) :]

    def by_shape(value: Callable[[Shape], Column]) -> Column:
        result = value(newest)
        for shape, after in reversed(list(pairwise(of_batch))):
            result = F.when(before(after.first), value(shape)).otherwise(result)
        return result

    held = to_arrow_schema(events.schema, timezone="UTC")
    types = {field.name: field.type for field in held}
    old_types = {f.name: f.type for f in types[OLD_KEY]} if OLD_KEY in types else {}
    wanted = spark_schema(current_schema(newest.columns))

    def value(column: TableColumn, type_: DataType, shape: Shape) -> Column:
        source = shape.column(column.identity)
        if source is None:
            return _literal(column.missing, type_)
        check_values(relation, source, column)
        return F.col(quoted(column_for(source.name, source.type, types))).cast(type_)

    def old_value(column: TableColumn, type_: DataType, shape: Shape) -> Column:
        source = shape.column(column.identity)
        if source is None:
            return _literal(column.missing, type_)
        name = column_for(source.name, source.type, old_types)
        return (F.col(OLD_KEY)[name] if name in old_types else F.lit(None)).cast(type_)

    fields = list(zip(newest.columns, (f.dataType for f in wanted.fields), strict=True))
    replaced = {
        c.name: by_shape(lambda shape, c=c, t=t: value(c, t, shape))  # type: ignore[misc]
        for c, t in fields
    }
    replaced[_UNCHANGED] = by_shape(lambda shape: _renamed(shape, newest))
    kept = [name for name in events.columns if name in CHANGE_COLUMNS.names]
    identifying = [
        (c, t)
        for c, t in fields
        if any((was := s.column(c.identity)) and was.name in old_types for s in of_batch)
    ]
    if identifying:
        old = (
            by_shape(lambda shape, c=c, t=t: old_value(c, t, shape)).alias(c.name)  # type: ignore[misc]
            for c, t in identifying
        )
        replaced[OLD_KEY] = F.when(F.col(OLD_KEY).isNotNull(), F.struct(*old))
        kept.append(OLD_KEY)
    return events.select(
        *(replaced.get(n, F.col(quoted(n))).alias(n) for n in kept),
        *(replaced[c.name].alias(c.name) for c in newest.columns),
    )


def plainly_stored(history: pa.Schema, shape: Shape) -> bool:
    """Say whether history holds the shape's columns under their names, in their types."""
    types = {field.name: field.type for field in history}
    return all(types.get(c.name) == c.type for c in shape.columns)


def check_values(relation: str, before: TableColumn, after: TableColumn) -> None:
    """Refuse a change of a column's type that leaves values nobody here knows.

    Raises:
        LakeSchemaConflict: it is one.
    """
    if not before.becomes(after):
        raise LakeSchemaConflict(
            f"column {after.name!r} of {relation} is {_described(after)} now, and was "
            f"{_described(before)}: what the source made of the values that were there is not in "
            "WAL",
            hint=f"Load the table anew: {load_anew(relation)}.",
            relation=relation,
            column=after.name,
        )


def columns_of(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Return the columns that a message's schema, or a copied table's, says the table has."""
    held = lake_schema(schema)
    relation = relation_of(schema)
    # All of the identity's tell rows of a multiset.
    key = set(relation.logged_key or relation.identity_columns)
    columns = []
    for name in table_columns(held):
        metadata = schema.field(name).metadata or {}
        described: dict[str, Any] = json.loads(metadata.get(b"spillway.column", b"{}"))
        columns.append(
            TableColumn(
                described.get("attnum", name),
                name,
                held.field(name).type,
                described.get("missing"),
                SourceType(
                    described.get("type", ""),
                    described.get("base_type_oid", described.get("type_oid", 0)),
                    described.get("base_typmod", described.get("typmod", -1)),
                    described.get("enum", False),
                    described.get("labels", {}),
                ),
                name in key,
            )
        )
    return tuple(columns)


def _metadata(attnum: int | None) -> dict[str, Any]:
    return {} if attnum is None else {_ATTNUM: attnum}


def _sources(stored: StructType, newest: Shape) -> dict[Identity, str]:
    """Return which column of the current table holds each column of the newest shape."""
    by_number = {f.metadata[_ATTNUM]: f.name for f in stored if _ATTNUM in (f.metadata or {})}
    unnumbered = {f.name for f in stored if _ATTNUM not in (f.metadata or {})}
    unnumbered.discard(stored_copies(stored) or "")
    sources: dict[Identity, str] = {}
    for column in newest.columns:
        if column.identity in by_number:
            sources[column.identity] = by_number[column.identity]
        elif column.name in unnumbered or (
            isinstance(column.identity, str) and column.name in stored.names
        ):
            sources[column.identity] = column.name
    return sources


def _described(column: TableColumn) -> str:
    return column.source.name or str(column.type)


def _renamed(shape: Shape, newest: Shape) -> Column:
    """Return the names of unchanged values as *newest* has them; of a column that is gone, a name
    that none has.
    """
    now = {c.name: newest.name_of(c.identity) or "" for c in shape.columns}
    changed = {before: after for before, after in now.items() if before != after}
    if not changed:
        return F.col(_UNCHANGED)

    def rename(name: Column) -> Column:
        result = name
        for before, after in changed.items():
            result = F.when(name == before, F.lit(after)).otherwise(result)
        return result

    return F.transform(_UNCHANGED, rename)


def _literal(text: str | None, type_: DataType) -> Column:
    """Return the value that PostgreSQL prints as *text*; Spark reads the same forms but of
    these types.
    """
    if text is None:
        return F.lit(None).cast(type_)
    if isinstance(type_, BinaryType):
        return F.unhex(F.lit(text.removeprefix("\\x")))
    if isinstance(type_, BooleanType):
        return F.lit(text == "t")
    return F.lit(text).cast(type_)
