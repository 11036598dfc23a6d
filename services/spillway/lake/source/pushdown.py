"""Which of Spark's filters the data source applies itself: fewer rows leave Python, fewer LSNs are
read.

A filter on ``_commit_lsn`` narrows the range of LSNs, so what lies outside is not even asked of the
service. Filters on other columns leave rows out before they are copied to the JVM. Every filter
stays Spark's too: what is taken here need only be *implied* by the query, so a kind of value whose
comparison differs between Arrow and Spark (floats, for their NaN; timestamps, for their zones) is
left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark

if TYPE_CHECKING:
    from collections.abc import Iterable

_COMMIT_LSN: Final = "_commit_lsn"
_COMPARISONS: Final = {
    spark.EqualTo: "__eq__",
    spark.GreaterThan: "__gt__",
    spark.GreaterThanOrEqual: "__ge__",
    spark.LessThan: "__lt__",
    spark.LessThanOrEqual: "__le__",
}


@dataclass(frozen=True, slots=True)
class Pushed:
    """What the filters of a query say; pickled to executors."""

    #: only commits in [start, end); None: no bound
    start: int | None = None
    end: int | None = None
    #: column, operator (or ``in``, ``null``, ``present``), value; all of them hold
    conditions: tuple[tuple[str, str, Any], ...] = field(default=())

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out rows for which the conditions don't hold."""
        if not self.conditions or not rows.num_rows:
            return rows
        expression = pc.scalar(True)
        for name, operator, value in self.conditions:
            column = pc.field(name)
            if operator == "in":
                expression &= column.isin(value)
            elif operator == "null":
                expression &= column.is_null()
            elif operator == "present":
                expression &= column.is_valid()
            else:
                expression &= getattr(column, operator)(value)
        return rows.filter(expression)


def pushed(filters: Iterable[spark.Filter], schema: pa.Schema) -> Pushed:
    """Return what of *filters*, all of which hold, can be applied to rows of *schema*."""
    taken = Pushed()
    for each in filters:
        name = _column(each, schema)
        if name is None:
            continue
        kind = type(each)
        value: Any = getattr(each, "value", None)
        if kind in _COMPARISONS and _comparable(schema.field(name).type, value):
            if name == _COMMIT_LSN:
                taken = _narrowed(taken, kind, value)
            taken = replace(
                taken, conditions=(*taken.conditions, (name, _COMPARISONS[kind], value))
            )
        elif isinstance(each, spark.In):
            values = [v for v in each.value if v is not None]
            if all(_comparable(schema.field(name).type, v) for v in values):
                condition = (name, "in", pa.array(values, schema.field(name).type))
                taken = replace(taken, conditions=(*taken.conditions, condition))
        elif isinstance(each, spark.IsNull):
            taken = replace(taken, conditions=(*taken.conditions, (name, "null", None)))
        elif isinstance(each, spark.IsNotNull):
            taken = replace(taken, conditions=(*taken.conditions, (name, "present", None)))
    return taken


def _column(each: spark.Filter, schema: pa.Schema) -> str | None:
    """Return the top-level column that a filter is of, None if it is of something else."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1 or len(schema.get_all_field_indices(path[0])) != 1:
        return None
    return path[0]


def _comparable(type_: pa.DataType, value: Any) -> bool:
    """Say whether Arrow compares *value* with a column of *type_* just as Spark does."""
    if pa.types.is_integer(type_):
        return type(value) is int
    if pa.types.is_boolean(type_):
        return type(value) is bool
    return bool(pa.types.is_string(type_)) and type(value) is str


def _narrowed(taken: Pushed, kind: type[spark.Filter], value: int) -> Pushed:
    starts = [] if taken.start is None else [taken.start]
    ends = [] if taken.end is None else [taken.end]
    if kind in (spark.EqualTo, spark.GreaterThanOrEqual):
        starts.append(value)
    if kind is spark.GreaterThan:
        starts.append(value + 1)
    if kind in (spark.EqualTo, spark.LessThanOrEqual):
        ends.append(value + 1)
    if kind is spark.LessThan:
        ends.append(value)
    return replace(taken, start=max(starts, default=None), end=min(ends, default=None))
