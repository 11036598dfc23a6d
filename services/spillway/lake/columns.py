"""A table's columns over time: ALTER TABLE between the changes of a batch, and between batches.

A column is its attribute number, not its name: PostgreSQL never gives a number twice, so ADD, DROP and RENAME COLUMN are all
told by comparing numbers (the plugin's field metadata ``spillway.column``; the current table's fields keep them, too).

::

    messages of a batch ──▶ shapes: from which change on has the table which columns
    current (its fields' numbers) ──follow──▶ the newest shape: one atomic rewrite
    history's rows of the batch   ──as_of_last──▶ read as if they had been made in the newest shape
                                    ──▶ net effect ──▶ merge

A column that a row was made before has the value that PostgreSQL shows for it: that of ADD COLUMN … DEFAULT
(pg_attribute.attmissingval, ``missing`` in the metadata), else null. A dropped column leaves current and stays in history.
ALTER TABLE waits for everybody's changes of the table, so in commit order each shape ends before the next one begins.

Neither step remembers anything, which is why a kill at any instant and a batch that comes again, cut elsewhere
even, do no harm. *follow* compares what current's own fields say with the batch, and adds and fills
in one commit: a column is there with its values or isn't there. *as_of_last* depends on the batch's messages only, not on
whether current was rewritten already. The rewrite carries no LSN: the merge after it does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, BooleanType, StructField, StructType

from spillway.errors import LakeSchemaConflict
from spillway.lake.net_effect import COPIES, quoted
from spillway.lake.payload import OLD_KEY, lake_schema, table_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_ATTNUM: Final = "spillway.attnum"
_UNCHANGED: Final = "_unchanged_toast"

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


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that a table has in the changes from ``first`` to ``last``."""

    first: Place
    last: Place
    columns: tuple[TableColumn, ...]

    def name_of(self, identity: Identity) -> str | None:
        return next((c.name for c in self.columns if c.identity == identity), None)


@dataclass(frozen=True, slots=True)
class Followed:
    """The current table in the newest shape; *rewritten*: rows change, not only null columns are added."""

    frame: DataFrame
    rewritten: bool


def shapes(messages: Iterable[tuple[pa.Schema, Place, Place]], relation: str) -> tuple[Shape, ...]:
    """Return a table's shapes in order, from its messages' schemas and where each one's changes begin and end.

    Raises:
        LakeSchemaConflict: a shape is left and come back to, so that a message does not say which time it is of.
    """
    found: list[Shape] = []
    for schema, first, last in sorted(messages, key=lambda message: message[1]):
        shape = Shape(first, last, columns_of(schema))
        if found and _names(found[-1]) == _names(shape):
            shape = Shape(found[-1].first, max(found[-1].last, last), found[-1].columns)
            found.pop()
        found.append(shape)
    for before, after in pairwise(found):
        if before.last > after.first:
            raise LakeSchemaConflict(
                f"columns of {relation} were renamed and renamed back within one batch",
                hint="Run the job with a new checkpoint and smaller batches, so that they come one after the other.",
                relation=relation,
            )
    # A later message may not know it any more: VACUUM FULL writes the values into the rows.
    missing: dict[Identity, str | None] = {}
    for shape in found:
        for column in shape.columns:
            missing.setdefault(column.identity, column.missing)
    newest = found[-1]
    columns = (TableColumn(c.identity, c.name, c.type, missing[c.identity]) for c in newest.columns)
    return (*found[:-1], Shape(newest.first, newest.last, tuple(columns)))


def current_schema(columns: Sequence[TableColumn]) -> pa.Schema:
    """Return the current table's schema; its fields keep their attribute numbers."""
    return pa.schema(
        pa.field(
            c.name, c.type, metadata={_ATTNUM: str(c.identity)} if isinstance(c.identity, int) else None
        )
        for c in columns
    )  # fmt: skip


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
    kept = set(_sources(stored, newest).values())
    return [name for name in stored.names if name not in kept and name != COPIES]


def follow(current: DataFrame, newest: Shape, relation: str) -> Followed | None:
    """Return the current table with the newest shape's columns; None when it has them.

    Raises:
        LakeSchemaConflict: a renamed column has another type, too.
    """
    stored = current.schema
    sources = _sources(stored, newest)
    wanted = spark_schema(current_schema(newest.columns))
    values, rewritten, added = [], bool(dropped_columns(stored, newest)), False
    for column, field in zip(newest.columns, wanted.fields, strict=True):
        source = sources.get(column.identity)
        if source is None:
            added = True
            rewritten |= column.missing is not None
            value = _literal(column.missing, field.dataType)
        else:
            _check_type(relation, column, stored[source].dataType, field.dataType)
            rewritten |= source != column.name
            value = F.col(quoted(source))
        values.append(value.alias(column.name, metadata=field.metadata))
    if not (rewritten or added):
        return None
    if COPIES in stored.names:
        values.append(F.col(COPIES))
    return Followed(current.select(*values), rewritten)


def as_of_last(events: DataFrame, of_batch: Sequence[Shape], relation: str) -> DataFrame:
    """Return history's rows as if all had been made in the last of the batch's shapes.

    Raises:
        LakeSchemaConflict: a renamed column has another type, too.
    """
    newest = of_batch[-1]
    if len(of_batch) == 1:
        return events
    at = F.struct("_commit_lsn", "_seq")

    def by_shape(value: Callable[[Shape], Column]) -> Column:
        result = value(newest)
        for shape, after in reversed(list(pairwise(of_batch))):
            lsn, seq = (F.lit(n).cast("bigint") for n in after.first)
            before = at < F.struct(lsn.alias("_commit_lsn"), seq.alias("_seq"))
            result = F.when(before, value(shape)).otherwise(result)
        return result

    def value(column: TableColumn, shape: Shape) -> Column:
        type_ = events.schema[column.name].dataType
        source = shape.name_of(column.identity)
        if source is None:
            return _literal(column.missing, type_)
        _check_type(relation, column, events.schema[source].dataType, type_)
        return F.col(quoted(source))

    old_type = events.schema[OLD_KEY].dataType if OLD_KEY in events.columns else StructType()
    old_fields = set(old_type.names) if isinstance(old_type, StructType) else set()

    def old_value(column: TableColumn, shape: Shape) -> Column:
        type_ = events.schema[column.name].dataType
        source = shape.name_of(column.identity)
        if source is None:
            return _literal(column.missing, type_)
        return F.col(OLD_KEY)[source] if source in old_fields else F.lit(None).cast(type_)

    replaced = {
        c.name: by_shape(lambda shape, c=c: value(c, shape))  # type: ignore[misc]
        for c in newest.columns
    }
    replaced[_UNCHANGED] = by_shape(lambda shape: _renamed(shape, newest))
    identifying = [
        c for c in newest.columns if any(s.name_of(c.identity) in old_fields for s in of_batch)
    ]
    if identifying:
        fields = (
            by_shape(lambda shape, c=c: old_value(c, shape)).alias(c.name)  # type: ignore[misc]
            for c in identifying
        )
        replaced[OLD_KEY] = F.when(F.col(OLD_KEY).isNotNull(), F.struct(*fields))
    return events.select(
        *(replaced.get(n, F.col(quoted(n))).alias(n) for n in events.columns)
    )  # fmt: skip


def columns_of(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Return the columns that a message's schema, or a copied table's, says the table has."""
    held = lake_schema(schema)
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
            )
        )
    return tuple(columns)


def _names(shape: Shape) -> dict[Identity, str]:
    return {c.identity: c.name for c in shape.columns}


def _metadata(attnum: int | None) -> dict[str, Any]:
    return {} if attnum is None else {_ATTNUM: attnum}


def _sources(stored: StructType, newest: Shape) -> dict[Identity, str]:
    """Return which column of the current table holds each column of the newest shape."""
    by_number = {f.metadata[_ATTNUM]: f.name for f in stored if _ATTNUM in (f.metadata or {})}
    unnumbered = {f.name for f in stored if _ATTNUM not in (f.metadata or {})}
    sources: dict[Identity, str] = {}
    for column in newest.columns:
        if column.identity in by_number:
            sources[column.identity] = by_number[column.identity]
        elif column.name in unnumbered or (
            isinstance(column.identity, str) and column.name in stored.names
        ):
            sources[column.identity] = column.name
    return sources


def _check_type(relation: str, column: TableColumn, before: DataType, now: DataType) -> None:
    if before != now:
        raise LakeSchemaConflict(
            f"column {column.name!r} of {relation} is {now.simpleString()} now, and was {before.simpleString()}",
            hint="A column's type can't change in a lake table. Move the table's history and current away and load it "
            "afresh.",
            relation=relation,
            column=column.name,
        )


def _renamed(shape: Shape, newest: Shape) -> Column:
    """Return the names of unchanged values as *newest* has them; of a column that is gone, a name that none has."""
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
    """Return the value that PostgreSQL prints as *text*; Spark reads the same forms but of these types."""
    if text is None:
        return F.lit(None).cast(type_)
    if isinstance(type_, BinaryType):
        return F.unhex(F.lit(text.removeprefix("\\x")))
    if isinstance(type_, BooleanType):
        return F.lit(text == "t")
    return F.lit(text).cast(type_)
