"""A table's history as versions of rows, each with the times between which the table had it: what
is called a slowly changing dimension of type 2.

::

    history ──▶ effects on keys ──▶ in order, per key: a version begins where its row is set, and
                                    ends where the key's next change, a TRUNCATE, or the loss of its
                                    partition stands

Times are those of commits. What a transaction makes and ends itself is no version. A value that was
left out as unchanged is the one that was logged last under its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from spillway.lake.shape import net_effect
from spillway.lake.shape.net_effect import SET, own, quoted
from spillway.plugins.arrow_schema import PARTITION
from spillway.plugins.partition_roots import EMPTIED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"


def versions(events: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Return the versions of a keyed table's rows: *columns*, and from when on and until when each
    was there; null: it still is.

    Args:
        events: rows of its history.
        columns: the table's.
        key: what tells its rows.
    """
    # A row that was loaded is there from then on.
    op = F.when(F.col("_op") == "R", "I").otherwise(F.col("_op"))
    effects = net_effect.effects_on_keys(events.withColumn("_op", op), columns, key)
    in_order = Window.partitionBy("_k").orderBy("_at", SET)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def latest(column: str) -> Column:
        logged = F.col(SET) & ~F.array_contains("_unchanged", column)
        value = F.struct(F.col(quoted(own(column))).alias("value"))
        return F.last(F.when(logged, value), ignorenulls=True).over(so_far)["value"]

    end = F.struct(F.col("_at"), F.col("_time"))
    found = effects.select(
        SET,
        F.col("_at"),
        F.col("_time"),
        *((F.col("_k")[c] if c in key else latest(c)).alias(own(c)) for c in columns),
        F.lead(end).over(in_order).alias("_next"),
    ).where(SET)
    ends = [F.col("_next"), *_ends_of_all(events, columns)]
    # Nulls are no ends.
    last = F.least(*ends) if len(ends) > 1 else ends[0]
    found = found.withColumn("_end", last)
    same = F.col("_end")["_at"]["_commit_lsn"] == F.col("_at")["_commit_lsn"]
    return found.where(~F.coalesce(same, F.lit(False))).select(
        *(F.col(quoted(own(c))).alias(c) for c in columns),
        F.col("_time").alias(VALID_FROM),
        F.col("_end")["_time"].alias(VALID_TO),
    )


def _ends_of_all(events: DataFrame, columns: Sequence[str]) -> list[Column]:
    """Return where versions end by changes that are of no one row: each as a struct like that of
    the next change, null where it isn't an end of the version at hand.
    """
    by_partition = PARTITION in columns
    partition = F.col(PARTITION) if by_partition else F.lit(None).cast("bigint")
    rows = events.where(F.col("_op").isin("T", EMPTIED)).select(
        "_op", "_commit_lsn", "_seq", "_commit_time", partition.alias("_of")
    )
    made = []
    for row in rows.collect():
        at = F.struct(
            F.lit(row["_commit_lsn"]).cast("bigint").alias("_commit_lsn"),
            F.lit(row["_seq"]).cast("bigint").alias("_seq"),
        )
        is_end = F.col("_at") < at
        if row["_op"] == EMPTIED:
            is_end &= F.coalesce(F.col(quoted(own(PARTITION))) == row["_of"], F.lit(False))
        time = F.lit(row["_commit_time"]).cast("timestamp")
        made.append(F.when(is_end, F.struct(at.alias("_at"), time.alias("_time"))))
    return made
