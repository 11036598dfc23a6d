"""Partitions of a table that is one in the lake, whose rows are gone at once: truncated, detached,
dropped.

A change says only which partition (``_op`` P, :mod:`spillway.plugins.partition_roots`). Which rows
those are the current table knows, for each has its partition's oid: each becomes a DELETE where the
change stands, and what the batch did in the partition before it counts no more.

It costs what the partition has in rows, as they are deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from spillway.lake.shape.columns import stored_copies
from spillway.lake.shape.net_effect import quoted
from spillway.lake.shape.payload import OLD_KEY
from spillway.plugins.arrow_schema import PARTITION
from spillway.plugins.partition_roots import ATTACHED, EMPTIED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

_PLACE: Final = ("_commit_lsn", "_seq")


def as_deletes(events: DataFrame, columns: Sequence[str], current: DataFrame | None) -> DataFrame:
    """Return *events* with deletes for what partitions lost.

    Args:
        events: rows of history, as of their last shape.
        columns: the table's.
        current: the table before them, in that shape; None: there is none.
    """
    if PARTITION not in columns:
        return events
    at = F.struct(*_PLACE)
    lost = events.where((F.col("_op") == EMPTIED) & F.col(PARTITION).isNotNull())
    places = lost.groupBy(PARTITION).agg(F.max(at).alias("at")).collect()
    events = events.where(~F.col("_op").isin(EMPTIED, ATTACHED))
    if OLD_KEY not in events.columns and places:
        events = events.withColumn(
            OLD_KEY, F.lit(None).cast(StructType([events.schema[c] for c in columns]))
        )
    shape = events.schema
    for place in places:
        mine = F.coalesce(F.col(PARTITION) == place[PARTITION], F.lit(False))
        lsn, seq = place["at"]["_commit_lsn"], place["at"]["_seq"]
        then = F.struct(
            F.lit(lsn).cast("bigint").alias("_commit_lsn"), F.lit(seq).cast("bigint").alias("_seq")
        )
        events = events.where(~(mine & (at < then)))
        if current is None:
            continue
        gone = current.where(mine)
        counted = stored_copies(current.schema)
        if counted is not None:
            copies = F.explode(F.sequence(F.lit(1), F.col(counted)))
            gone = gone.withColumn("_spillway_copy", copies)
        of_key = shape[OLD_KEY].dataType
        assert isinstance(of_key, StructType)  # it is made of columns
        made: dict[str, Column] = {
            "_op": F.lit("D"),
            "_commit_lsn": F.lit(lsn).cast("bigint"),
            "_seq": F.lit(seq).cast("bigint"),
            OLD_KEY: F.struct(
                *(F.col(quoted(f.name)).cast(f.dataType).alias(f.name) for f in of_key)
            ),
        }
        own = set(columns)
        values = [
            made[f.name].alias(f.name)
            if f.name in made and f.name not in own
            else F.lit(None).cast(f.dataType).alias(f.name)
            for f in shape
        ]
        events = events.unionByName(gone.select(*values))
    return events
