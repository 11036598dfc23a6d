"""One table at the source and in the lake, as of one LSN: which keys differ, and in which columns.

First the buckets of both sides (:mod:`spillway.lake.verify.checksums`), one pass over the table
each. Where all agree, that is all. Else rows of a few differing buckets at a time are held against
each other, until as many keys are found as are wanted: what is kept in memory is the rows of those
few, a 4096th of the table each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spillway.consumer.row_checksums import form_beside_escaped
from spillway.consumer.row_differences import Difference, by_key, differences
from spillway.lake.verify import checksums
from spillway.pg.encoding import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg
    from pyspark.sql import DataFrame

_BUCKETS_AT_ONCE: Final = 16


@dataclass(slots=True)
class TableComparison:
    """What came out for one table."""

    table: str
    source_rows: int = 0
    lake_rows: int = 0
    differences: list[Difference] = field(default_factory=list)
    #: there are differences that were not looked for
    more: bool = False
    #: columns that were not compared, and why
    notes: list[str] = field(default_factory=list)
    #: why the table was not compared at all
    skipped: str = ""

    @property
    def equal(self) -> bool:
        return not self.differences and not self.more

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.table}: not compared, {self.skipped}"
        counts = f"{self.source_rows} rows at the source, {self.lake_rows} in the lake"
        lines = [f"{self.table}: {'equal' if self.equal else 'DIFFERENT'}, {counts}"]
        lines += [f"  {difference}" for difference in self.differences]
        if self.more:
            lines.append("  and more")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def compare(
    connection: psycopg.Connection,
    frame: DataFrame,
    names: tuple[str, str],
    columns: Mapping[str, str],
    key: Sequence[str],
    *,
    limit: int,
    is_partitioned: bool = False,
) -> TableComparison:
    """Compare the rows of *frame* with those that *connection* sees of a table.

    Args:
        connection: to the source, in a transaction with a snapshot.
        frame: the lake's rows.
        names: schema and table, as the source has them.
        columns: which are compared, and what the source calls each; both sides have them, and
            :mod:`checksums` can.
        key: among *columns*; empty: rows are told by all their columns, and counted.
        limit: differences to look for.
        is_partitioned: the table's rows are its partitions'.
    """
    shown = list(columns)
    types = [frame.schema[c].dataType for c in shown]
    source = checksums.SourceTexts(
        *names,
        columns,
        types,
        key,
        is_partitioned=is_partitioned,
        form=form_beside_escaped(connection),
    )
    texts = checksums.lake_texts(frame, shown, key)
    at_source, in_lake = source.buckets(connection), checksums.lake_buckets(texts)
    outcome = TableComparison(
        readable(".".join(names)),
        sum(bucket.rows for bucket in at_source.values()),
        sum(bucket.rows for bucket in in_lake.values()),
    )
    differing = sorted(
        b for b in at_source.keys() | in_lake.keys() if at_source.get(b) != in_lake.get(b)
    )
    for at in range(0, len(differing), _BUCKETS_AT_ONCE):
        some = differing[at : at + _BUCKETS_AT_ONCE]
        if len(outcome.differences) >= limit:
            outcome.more = True
            break
        left = by_key(source.rows(connection, some))
        wanted = texts.where(texts[checksums.BUCKET].isin(some))
        rows = wanted.select(checksums.KEY, checksums.ROW, checksums.TEXTS).toLocalIterator()
        right = by_key(tuple(row) for row in rows)
        for each in sorted(left.keys() | right.keys()):
            outcome.differences += differences(
                each,
                left.get(each, []),
                right.get(each, []),
                shown,
                keyed=bool(key),
                other="lake",
            )
    if len(outcome.differences) > limit:
        outcome.more = True
        del outcome.differences[limit:]
    return outcome
