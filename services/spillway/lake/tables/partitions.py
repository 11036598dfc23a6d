"""The derived columns that a lake table is partitioned by: in Spark's frames, in Arrow's tables, in
a table's schema.

A derived column's field says in its metadata what it is made of (``spillway.partition``:
``day(created_at)``), in the table's own schema: with the table's commits, versions and copies, and
nowhere else. Everything above :mod:`spillway.lake.tables.delta.tables` works with the source's
columns; :func:`removed` and :func:`added` stand at that border.

=================  ========================  =======================================================
of                 type                      value
=================  ========================  =======================================================
day, month, year   date                      the first day of it, in UTC; null beyond the years 1 to
                                             9999
a date, a boolean  the same                  itself
an integer         the same                  itself
a text             text                      its first 40 letters, all but ``A-Za-z0-9_.-`` as
                                             ``_``; the empty one as ``_``
=================  ========================  =======================================================

It tells where a row lies and nothing else: two values that share a partition are only stored
together. So Spark and Arrow, each of which derives it on its own, need not agree in the last case
for the tables to be right; they do, by test.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    DateType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spillway.lake.shape.net_effect import KEEP, own, quoted
from spillway.lake.shape.partition import Partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from spillway.lake.shape.net_effect import NetEffect

METADATA: Final = "spillway.partition"
_TEXT_LENGTH: Final = 40
_NOT_PLAIN: Final = "^$|[^A-Za-z0-9_.-]"
_FIRST, _LAST = date(1, 1, 1), date(9999, 12, 31)
_TIMES: Final = (DateType, TimestampType, TimestampNTZType)


def made_with(fields: Iterable[Mapping[str, Any]]) -> tuple[Partition, ...]:
    """Return what a table is partitioned by, of its schema's fields as Delta's log has them."""
    found = ((field.get("metadata") or {}).get(METADATA) for field in fields)
    return tuple(Partition.parse(text) for text in found if text is not None)


def partitions_of(schema: StructType) -> tuple[Partition, ...]:
    """Return what the table of a schema is partitioned by."""
    return made_with({"metadata": field.metadata} for field in schema.fields)


def names(partitions: Iterable[Partition]) -> list[str]:
    """Return the derived columns' names."""
    return [partition.name for partition in partitions]


def removed(frame: DataFrame) -> DataFrame:
    """Return *frame* without its derived columns."""
    derived = names(partitions_of(frame.schema))
    return frame.drop(*derived) if derived else frame


def added(frame: DataFrame, partitions: Sequence[Partition]) -> DataFrame:
    """Return *frame* with the columns that *partitions* are made of.

    Raises:
        LakeSchemaConflict: :func:`fields`.
    """
    columns = []
    for partition, field in zip(partitions, fields(frame.schema, partitions), strict=True):
        value = _value(quoted(partition.column), frame.schema[partition.column].dataType, partition)
        columns.append(value.cast(field.dataType).alias(field.name, metadata=field.metadata))
    return frame.select("*", *columns) if columns else frame


def added_to_effect(effect: NetEffect, partitions: Sequence[Partition]) -> DataFrame:
    """Return the frame of *effect* with the columns that *partitions* are made of, called by
    :func:`~spillway.lake.shape.net_effect.own` as the others are.

    Columns that it keeps have one beside them that says which of their values are the stored row's
    still (:data:`KEEP`); so get those that are derived from them.
    """
    frame, columns = effect.frame, []
    for partition in partitions:
        column = own(partition.column)
        value = _value(quoted(column), frame.schema[column].dataType, partition)
        columns.append(value.alias(own(partition.name)))
        if partition.column in effect.kept_columns:
            columns.append(F.col(quoted(KEEP + partition.column)).alias(KEEP + partition.name))
    return frame.select("*", *columns) if columns else frame


def fields(schema: StructType, partitions: Iterable[Partition]) -> list[StructField]:
    """Return the derived columns that a table with the columns of *schema* has.

    Raises:
        LakeSchemaConflict: one can't be made of them.
    """
    partitions = tuple(partitions)
    if not partitions:
        return []
    columns = to_arrow_schema(schema, timezone="UTC")
    found = []
    for partition in partitions:
        partition.check(columns)
        type_ = DateType() if partition.unit else schema[partition.column].dataType
        found.append(StructField(partition.name, type_, True, {METADATA: str(partition)}))
    return found


def with_fields(schema: StructType, partitions: Iterable[Partition]) -> StructType:
    """Return *schema* with the derived columns behind it; raises as :func:`fields`."""
    return StructType([*schema.fields, *fields(schema, partitions)])


def _value(column: str, type_: DataType, partition: Partition) -> Column:
    return F.expr(_expression(column, type_, partition))


def _expression(column: str, type_: DataType, partition: Partition) -> str:
    if isinstance(type_, StringType):
        return f"regexp_replace(left({column}, {_TEXT_LENGTH}), '{_NOT_PLAIN}', '_')"
    if isinstance(type_, _TIMES):
        day = f"CAST({column} AS DATE)"
        if partition.unit in ("month", "year"):
            day = f"trunc({day}, '{partition.unit}')"
        return f"CASE WHEN {day} BETWEEN DATE'{_FIRST}' AND DATE'{_LAST}' THEN {day} END"
    return column


def added_to_arrow(table: pa.Table, partitions: Iterable[Partition]) -> pa.Table:
    """Return an Arrow table with the columns that *partitions* are made of: what :func:`added` does
    to a frame.
    """
    for partition in partitions:
        table = table.append_column(
            partition.name, _derived(table.column(partition.column), partition)
        )
    return table


def _derived(values: pa.ChunkedArray, partition: Partition) -> pa.ChunkedArray:
    types = pa.types
    if types.is_string(values.type):
        start = pc.utf8_slice_codeunits(values, 0, _TEXT_LENGTH)
        return pc.replace_substring_regex(start, _NOT_PLAIN, "_")
    if types.is_timestamp(values.type) or types.is_date32(values.type):
        days = values.cast(pa.date32(), safe=False)
        there = pc.and_(
            pc.greater_equal(days, pa.scalar(_FIRST)), pc.less_equal(days, pa.scalar(_LAST))
        )
        days = pc.if_else(there, days, pa.scalar(None, pa.date32()))
        if partition.unit in ("month", "year"):
            days = pc.floor_temporal(days, unit=partition.unit)
        return days
    return values


def by_partition(
    rows: pa.Table, names: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], Any]]:
    """Yield the partitions of *rows*, as the log has their values, and which rows are in each."""
    if not len(rows):
        return
    if not names:
        yield {}, np.arange(len(rows))
        return
    numbered = rows.select(names).append_column(" row", pa.array(np.arange(len(rows))))
    groups = numbered.group_by(names).aggregate([(" row", "list")])
    for group in groups.to_pylist():
        at = np.sort(np.array(group[" row_list"], dtype=np.int64))
        yield {name: partition_text(group[name]) for name in names}, at


def partition_text(value: Any) -> str | None:
    """Return the value of a partition's column as Delta's log has it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
