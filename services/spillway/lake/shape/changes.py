"""What changed between two shapes of a table, and the lake's table of all such changes:
``<path>/ddl/events``.

::

    shape before ──┐
    shape after ───┴─▶ changes ──▶ a row each: kind, column, names and types at the source and in
                                   the lake, and where

WAL has the catalog's rows, not the statement. So a change of a table's shape is found where the
first row was changed in the new shape, and stands at that place (``_commit_lsn``, ``_seq``). DDL
that no change of a row follows leaves no event.

A row says the whole shape after it, too (``shape``). So the table is its own memory: what a table
looked like when a job began is read from the rows that are there, which came to be in one commit
with the LSN that they go up to, as in every table here. A batch that comes again adds nothing to
what it added before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spillway.lake.shape.columns import Shape, TableColumn
from spillway.lake.shape.kinds import DDL
from spillway.lake.shape.type_changes import SourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row

    from spillway.lake.shape.columns import Place

#: The one table of its kind.
EVENTS: Final = "events"

FIRST_SEEN: Final = "first seen"
CREATED_AGAIN: Final = "created again"
RENAMED_TABLE: Final = "rename table"
ADD: Final = "add column"
DROP: Final = "drop column"
RENAME: Final = "rename column"
RETYPE: Final = "alter type"
#: beyond every LSN
_EVER: Final = (1 << 63) - 1
KINDS: Final = (FIRST_SEEN, CREATED_AGAIN, RENAMED_TABLE, ADD, DROP, RENAME, RETYPE)

EVENT: Final = pa.schema(
    [
        # The first change of a row that was made after it.
        pa.field("_commit_lsn", pa.int64()),
        pa.field("_seq", pa.int64()),
        pa.field("_xid", pa.int64()),
        pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
        # in the order of these among those of one place
        pa.field("number", pa.int32()),
        pa.field("table", pa.string()),
        pa.field("oid", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("column", pa.string()),
        pa.field("old_name", pa.string()),
        pa.field("new_name", pa.string()),
        # as format_type prints them
        pa.field("old_type", pa.string()),
        pa.field("new_type", pa.string()),
        # as Spark prints them
        pa.field("old_lake_type", pa.string()),
        pa.field("new_lake_type", pa.string()),
        pa.field("shape", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference between two shapes that follow each other."""

    #: ``schema.table``
    table: str
    kind: str
    #: after it
    shape: Shape
    before: TableColumn | None = None
    after: TableColumn | None = None
    #: the table's, of one that was renamed
    old_name: str = ""

    @property
    def place(self) -> Place:
        """The first change of a row that was made after it."""
        return self.shape.first

    @property
    def needs_nothing(self) -> bool:
        """Whether the lake's tables hold what comes after it as they are."""
        if self.kind == FIRST_SEEN:
            return True
        if self.before is None or self.after is None or self.kind != RETYPE:
            return False
        return self.before.type == self.after.type and self.before.becomes(self.after)

    @property
    def loses_values(self) -> bool:
        """Whether the rows that the table has now, or values of them, are not known."""
        return self.kind == RENAMED_TABLE or (
            self.before is not None
            and self.after is not None
            and not self.before.becomes(self.after)
        )

    def __str__(self) -> str:
        before, after = self.before, self.after
        if self.kind == ADD and after is not None:
            return f"column {after.name!r} {_type_of(after)} was added"
        if self.kind == DROP and before is not None:
            return f"column {before.name!r} was dropped"
        if self.kind == RENAME and before is not None and after is not None:
            return f"column {before.name!r} was renamed to {after.name!r}"
        if self.kind == RETYPE and before is not None and after is not None:
            if renamed := before.source.renamed_labels(after.source):
                labels = ", ".join(f"{old!r} is {new!r} now" for old, new in renamed.items())
                return f"values of column {after.name!r} {_type_of(after)} were renamed: {labels}"
            if before.source == after.source and before.type == after.type:
                return f"column {after.name!r} {_type_of(after)} may have other values"
            return f"column {after.name!r} was {_type_of(before)} and is {_type_of(after)}"
        if self.kind == RENAMED_TABLE:
            return f"the table was {self.old_name} before"
        if self.kind == CREATED_AGAIN:
            return "the table was dropped and created again"
        return "the table is new"


def changes_of(
    table: str,
    known: Shape | None,
    shapes: Sequence[Shape],
    names: Callable[[Shape], str | None] = lambda _: None,
) -> tuple[SchemaChange, ...]:
    """Return what changes from *known*, the shape before them if there is one, through *shapes*, in
    order.

    Args:
        table: its name.
        known: see above.
        shapes: the batch's.
        names: says which name the table of a shape had last before it; None: none that is known.
    """
    found: list[SchemaChange] = []
    if known is None and _renamed(table, shapes[0], names) is None:
        found.append(SchemaChange(table, FIRST_SEEN, shapes[0]))
    for before, after in pairwise([known, *shapes]):
        assert after is not None  # only the first one may be
        renamed = None
        if before is None or before is known or not before.is_of(after):
            renamed = _renamed(table, after, names)
        if renamed is not None:
            found.append(SchemaChange(table, RENAMED_TABLE, after, old_name=renamed))
        elif before is not None:
            found += _differences(table, before, after)
    return tuple(found)


def _renamed(table: str, shape: Shape, names: Callable[[Shape], str | None]) -> str | None:
    name = names(shape) if shape.oid else None
    return None if name == table else name


def _differences(table: str, before: Shape, after: Shape) -> Iterator[SchemaChange]:
    if not before.is_of(after):
        yield SchemaChange(table, CREATED_AGAIN, after)
        return
    for column in before.columns:
        if after.column(column.identity) is None:
            yield SchemaChange(table, DROP, after, before=column)
    for column in after.columns:
        was = before.column(column.identity)
        if was is None:
            yield SchemaChange(table, ADD, after, after=column)
            continue
        if was.name != column.name:
            yield SchemaChange(table, RENAME, after, was, column)
        if (was.type, was.source, was.source.labels) != (
            column.type,
            column.source,
            column.source.labels,
        ):
            yield SchemaChange(table, RETYPE, after, was, column)


class EventsTable(Protocol):
    """What is asked of :class:`spillway.lake.tables.contract.LakeTables`."""

    def durable_lsn(self, kind: str, name: str) -> int: ...

    def history(self, name: str, start_lsn: int, end_lsn: int, kind: str) -> DataFrame: ...

    def columns_plain(self, kind: str, name: str, columns: Sequence[str]) -> pa.Table | None: ...


class KnownShapes:
    """The shapes that the events of a lake say; of one job, on the driver."""

    def __init__(self, tables: EventsTable) -> None:
        self._tables = tables
        self._shapes: dict[str, list[tuple[Place, Shape]]] | None = None
        #: the names that a table had, by its oid, and since which place
        self._names: dict[int, list[tuple[Place, str]]] = {}

    def before(self, table: str, place: Place) -> Shape | None:
        """Return the shape that changes of *table* before *place* have last; None: none is
        known.
        """
        known = (shape for at, shape in self._loaded().get(table, ()) if at < place)
        return max(known, key=lambda shape: shape.first, default=None)

    def shapes(self, table: str) -> Iterator[Shape]:
        """Yield the shapes that *table* had."""
        yield from (shape for _, shape in self._loaded().get(table, ()))

    def names(self, oid: int) -> Iterator[tuple[Place, str]]:
        """Yield the names that a table had, and since which place."""
        self._loaded()
        yield from self._names.get(oid, ())

    def add(self, changes: Iterable[SchemaChange]) -> None:
        for change in changes:
            self._add(self._loaded(), change.table, change.place, change.shape)

    def _add(
        self, shapes: dict[str, list[tuple[Place, Shape]]], name: str, place: Place, shape: Shape
    ) -> None:
        shapes.setdefault(name, []).append((place, shape))
        self._names.setdefault(shape.oid, []).append((place, name))

    def _loaded(self) -> dict[str, list[tuple[Place, Shape]]]:
        if self._shapes is None:
            shapes: dict[str, list[tuple[Place, Shape]]] = {}
            if self._tables.durable_lsn(DDL, EVENTS):
                # A change of several columns has as many rows, all with the shape after it.
                for name, lsn, seq, text in set(self._stored()):
                    place = (lsn, seq)
                    self._add(shapes, name, place, shape_from_text(text, place))
            self._shapes = shapes
        return self._shapes

    def _stored(self) -> Iterator[tuple[Any, ...]]:
        """Return table, place and shape of each event."""
        columns = ("table", "_commit_lsn", "_seq", "shape")
        rows = self._tables.columns_plain(DDL, EVENTS, columns)
        if rows is None:
            events = self._tables.history(EVENTS, 0, _EVER, kind=DDL)
            return iter(events.select(*columns).distinct().collect())
        return zip(*(rows.column(name).to_pylist() for name in columns), strict=True)


def event_rows(
    changes: Iterable[SchemaChange], made: Mapping[Place, Mapping[str, Any] | Row]
) -> Iterator[dict[str, Any]]:
    """Yield :data:`EVENT`'s rows; *made* says ``_xid`` and ``_commit_time`` of the changes at their
    places.
    """
    numbers: dict[Place, int] = {}
    for change in changes:
        numbers[change.place] = number = numbers.get(change.place, -1) + 1
        before, after = change.before, change.after
        row = made.get(change.place)
        column = after or before
        yield {
            "_commit_lsn": change.place[0],
            "_seq": change.place[1],
            "_xid": None if row is None else row["_xid"],
            "_commit_time": None if row is None else row["_commit_time"],
            "number": number,
            "table": change.table,
            "oid": change.shape.oid,
            "kind": change.kind,
            "column": None if column is None else column.name,
            "old_name": change.old_name or None if before is None else before.name,
            "new_name": (change.table if change.old_name else None)
            if after is None
            else after.name,
            "old_type": None if before is None else before.source.name or None,
            "new_type": None if after is None else after.source.name or None,
            "old_lake_type": None if before is None else _lake_type(before),
            "new_lake_type": None if after is None else _lake_type(after),
            "shape": shape_text(change.shape),
        }


def shape_text(shape: Shape) -> str:
    """Return a shape as JSON, without its place."""
    return json.dumps(
        {
            "oid": shape.oid,
            "columns": [
                {
                    "attnum": c.identity,
                    "name": c.name,
                    "type": c.source.name,
                    "type_oid": c.source.oid,
                    "typmod": c.source.typmod,
                    "enum": c.source.is_enum,
                    "labels": dict(c.source.labels),
                    "missing": c.missing,
                    "lake_type": _spark_type(c),
                }
                for c in shape.columns
            ],
        }
    )


def shape_from_text(text: str, first: Place) -> Shape:
    """Return the shape of :func:`shape_text`, which begins at *first*."""
    value = json.loads(text)
    fields = [
        {"name": str(n), "type": c["lake_type"], "nullable": True, "metadata": {}}
        for n, c in enumerate(value["columns"])
    ]
    types = to_arrow_schema(
        StructType.fromJson({"type": "struct", "fields": fields}), timezone="UTC"
    ).types
    columns = (
        TableColumn(
            c["attnum"],
            c["name"],
            type_,
            c["missing"],
            SourceType(c["type"], c["type_oid"], c["typmod"], c["enum"], c.get("labels", {})),
        )
        for c, type_ in zip(value["columns"], types, strict=True)
    )
    return Shape(first, first, tuple(columns), value["oid"])


def _type_of(column: TableColumn) -> str:
    return column.source.name or _lake_type(column)


def _lake_type(column: TableColumn) -> str:
    schema = from_arrow_schema(pa.schema([pa.field("c", column.type)]), prefer_timestamp_ntz=True)
    return schema.fields[0].dataType.simpleString()


def _spark_type(column: TableColumn) -> Any:
    schema = from_arrow_schema(pa.schema([pa.field("c", column.type)]), prefer_timestamp_ntz=True)
    return schema.fields[0].dataType.jsonValue()
