"""A current table's rows and a batch's net effect, joined: what the table is after the batch, as
one plan of Spark's.

For table formats whose files are written anew and that have no MERGE of their own. *current* may be
a part of the table, as long as it has every row that the effect touches.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from spillway.lake.shape.net_effect import (
    COPIES,
    KEEP,
    SET,
    NetEffect,
    copies_name,
    own,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def merged_rows(
    current: DataFrame,
    effect: NetEffect,
    schema: StructType,
    columns: tuple[str, ...],
    key: tuple[str, ...],
) -> DataFrame:
    """Return the rows of a keyed table after *effect*, with *schema*'s columns; *columns* are the
    effect's.
    """
    stored, changed = _sides(current, effect.frame)
    joined = stored.join(changed, _and(_s(own(k)) == _t(k) for k in key), "full_outer")
    set_, touched = _s(SET), _s(SET).isNotNull()

    def value(c: str) -> Column:
        if c not in columns:
            return _t(c).alias(c)
        after = _s(own(c))
        if c in effect.kept_columns:
            after = F.when(_s(KEEP + c), _t(c)).otherwise(after)
        return F.when(touched, after).otherwise(_t(c)).alias(c)

    kept = F.lit(not effect.truncated)
    return joined.where(F.when(touched, set_).otherwise(kept)).select(
        *(value(c) for c in schema.names)
    )


def merged_copies(
    current: DataFrame,
    effect: NetEffect,
    _schema: StructType,
    columns: tuple[str, ...],
    _key: tuple[str, ...],
) -> DataFrame:
    """Return the distinct rows of a multiset after *effect*, with their copies."""
    stored, changed = _sides(current, effect.frame)
    joined = stored.join(changed, _and(_s(own(c)).eqNullSafe(_t(c)) for c in columns), "full_outer")
    counted = copies_name(columns)
    before = F.lit(0) if effect.truncated else F.coalesce(_t(counted), F.lit(0))
    copies = (before + F.coalesce(_s(COPIES), F.lit(0))).cast("bigint")
    there = _s(COPIES).isNotNull()

    def value(c: str) -> Column:
        return F.when(there, _s(own(c))).otherwise(_t(c)).alias(c)

    return joined.where(copies > 0).select(*(value(c) for c in columns), copies.alias(counted))


def _sides(current: DataFrame, effect: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Give both sides' columns names that can't meet."""
    return (
        current.select(*(F.col(quoted(c)).alias(f"t {c}") for c in current.columns)),
        effect.select(*(F.col(quoted(c)).alias(f"s {c}") for c in effect.columns)),
    )


def _t(name: str) -> Column:
    return F.col(quoted(f"t {name}"))


def _s(name: str) -> Column:
    return F.col(quoted(f"s {name}"))


def _and(conditions: Iterable[Column]) -> Column:
    return reduce(lambda a, b: a & b, conditions)
