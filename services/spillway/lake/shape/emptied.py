"""Partitions of a table that is one in the lake, whose rows are gone at once: truncated, detached,
dropped.

A change says only which partition (``_op`` P, :mod:`spillway.plugins.partition_roots`). The current
table knows which rows those are, for each has its partition's oid. Each becomes a DELETE where the
change stands, and what the batch did in the partition before that counts no more.

Of a table with soft deletes a TRUNCATE is the same for all of its rows.

The cost is that of deleting the partition's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from spillway.lake.shape.columns import stored_copies
from spillway.lake.shape.net_effect import DELETED_AT, quoted
from spillway.lake.shape.payload import OLD_KEY
from spillway.plugins.arrow_schema import PARTITION
from spillway.plugins.partition_roots import ATTACHED, EMPTIED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row

_PLACE: Final = ("_commit_lsn", "_seq")


def as_deletes(
    events: DataFrame, columns: Sequence[str], current: DataFrame | None, *, softly: bool = False
) -> DataFrame:
    """Return *events* with deletes for what partitions lost.

    Args:
        events: rows of history, as of their last shape.
        columns: the table's.
        current: the table before them, in that shape; None: there is none.
        softly: rows that are gone stay (:func:`spillway.lake.shape.net_effect.softly`): a TRUNCATE
            is deletes, too, and what came before it in the batch counts.
    """
    by_partition = PARTITION in columns
    if not (by_partition or softly):
        return events
    ops = [EMPTIED, *(["T"] if softly else [])]
    lost = events.where(F.col("_op").isin(ops))
    if by_partition:
        lost = lost.where((F.col("_op") == "T") | F.col(PARTITION).isNotNull())
    partition = F.col(PARTITION) if by_partition else F.lit(None).cast("bigint")
    at = F.struct(*_PLACE, "_commit_time")
    places = lost.groupBy("_op", partition.alias("_of")).agg(F.max(at).alias("at")).collect()
    events = events.where(~F.col("_op").isin([*ops, ATTACHED]))
    if OLD_KEY not in events.columns and places:
        events = events.withColumn(
            OLD_KEY, F.lit(None).cast(StructType([events.schema[c] for c in columns]))
        )
    own = frozenset(columns)
    rows = events
    for place in places:
        mine = F.lit(True)
        if place["_op"] == EMPTIED:
            mine = F.coalesce(F.col(PARTITION) == place["_of"], F.lit(False))
        before = F.struct(*_PLACE) < F.struct(*_literals(place))
        if softly:
            gone = rows.where(mine & before & F.col("_op").isin("I", "U"))
            events = events.unionByName(_deletes(gone, rows.schema, own, place))
        else:
            events = events.where(~(mine & before))
        if current is None:
            continue
        gone = current.where(mine)
        if softly and DELETED_AT in current.columns:
            gone = gone.where(F.col(DELETED_AT).isNull())
        counted = stored_copies(current.schema)
        if counted is not None:
            copies = F.explode(F.sequence(F.lit(1), F.col(counted)))
            gone = gone.withColumn("_spillway_copy", copies)
        events = events.unionByName(_deletes(gone, rows.schema, own, place))
    return events


def _literals(place: Row) -> list[Column]:
    return [F.lit(place["at"][name]).cast("bigint").alias(name) for name in _PLACE]


def _deletes(gone: DataFrame, shape: StructType, own: frozenset[str], place: Row) -> DataFrame:
    """Return rows of history that delete *gone* at a place."""
    of_key = shape[OLD_KEY].dataType
    assert isinstance(of_key, StructType)  # it is made of columns
    lsn, seq = _literals(place)
    made: dict[str, Column] = {
        "_op": F.lit("D"),
        "_commit_lsn": lsn,
        "_seq": seq,
        "_commit_time": F.lit(place["at"]["_commit_time"]).cast("timestamp"),
        OLD_KEY: F.struct(*(F.col(quoted(f.name)).cast(f.dataType).alias(f.name) for f in of_key)),
    }
    return gone.select(
        *(
            made[f.name].alias(f.name)
            if f.name in made and f.name not in own
            else F.lit(None).cast(f.dataType).alias(f.name)
            for f in shape
        )
    )
