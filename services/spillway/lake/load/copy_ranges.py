"""What an executor does for an initial load: copy ranges of a table's blocks, as rows of its
history; and, where the tables' format lets it, write the files of both tables
(:class:`CopyToFiles`).

The columns are :class:`spillway.consumer.table_copy.TableCopy`'s, with the change's columns before
them:

=================  =====================================================================
``_op``            R: the row was read, not changed
``_lsn``           the last position before the snapshot's LSN S, S - 1
``_commit_lsn``    the same: changes that the snapshot doesn't have are from S on
``_commit_end_lsn``  S
``_seq``           where in the table: the block's number times 65536, plus the offset
``_commit_time``   when the snapshot was taken
``_xid`` and rest  null
=================  =====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spillway.consumer.table_copy import TableCopy
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.payload import CHANGE_COLUMNS, conform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spillway.consumer.snapshots import CopiedTable, Source, SourceSnapshot
    from spillway.consumer.table_copy import BlockRange
    from spillway.lake.tables.load_contract import LoadFiles, RowWriter

#: The ``_op`` of a row that was loaded.
READ: Final = "R"
#: What :class:`CopyToFiles` yields: of which table a file is, and what the commit is told of it.
FILES: Final = pa.schema([pa.field("kind", pa.string()), pa.field("file", pa.string())])


class CopyRanges:
    """The function given to mapInArrow: numbers of ranges in, their rows out. Pickled to executors.

    Args:
        source: where from.
        snapshot: what is copied is as of it; it must stay open.
        copied: the table.
        columns: the rows' schema: that of the table's history.
        ranges: what the numbers mean.
    """

    def __init__(
        self,
        source: Source,
        snapshot: SourceSnapshot,
        copied: CopiedTable,
        columns: pa.Schema,
        ranges: Sequence[BlockRange],
    ) -> None:
        self._copy = TableCopy(source, snapshot, copied)
        self._lsn = snapshot.lsn
        self._taken_at_us = snapshot.taken_at_us
        self._columns = columns
        self._relation = copied.name
        self._ranges = tuple(ranges)

    def __repr__(self) -> str:
        # Spark shows a function's name in query plans; this one's state has a password in it.
        return type(self).__name__

    @property
    def relation(self) -> str:
        """The table's name."""
        return self._relation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0):
                for rows in self.rows(number.as_py()):
                    yield conform(rows, self._columns, relation=self._relation)

    def rows(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range: the change's columns and the table's, in the plugin's
        types.
        """
        for places, arrays in self._copy.batches(*self._ranges[number]):
            yield self._with_change(places, arrays)

    def _with_change(self, places: pa.Array, arrays: list[pa.Array]) -> pa.RecordBatch:
        count = len(places)
        before = pa.repeat(pa.scalar(self._lsn - 1, pa.int64()), count)
        known = {
            "_op": pa.repeat(READ, count),
            "_lsn": before,
            "_commit_lsn": before,
            "_commit_end_lsn": pa.repeat(pa.scalar(self._lsn, pa.int64()), count),
            "_seq": places,
            "_commit_time": pa.repeat(
                pa.scalar(self._taken_at_us, CHANGE_COLUMNS.field("_commit_time").type), count
            ),
        }
        names = [*known, *self._copy.columns]
        return pa.RecordBatch.from_arrays([*known.values(), *arrays], names=names)


class CopyToFiles:
    """The same for a lake whose files are written where rows are copied: numbers of ranges in,
    :data:`FILES` out. Pickled to executors.

    A range that fails leaves no file, or one that nothing names.
    """

    def __init__(self, ranges: CopyRanges, files: LoadFiles) -> None:
        self._ranges = ranges
        self._files = files

    def __repr__(self) -> str:
        return type(self).__name__

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0):
                done = self.copied(number.as_py())
                rows = [{"kind": kind, "file": file} for kind, file in done]
                yield pa.RecordBatch.from_pylist(rows, schema=FILES)

    def copied(self, number: int) -> list[tuple[str, str]]:
        """Copy one range; return its files as :data:`FILES` has them."""
        wanted = {HISTORY: self._files.history, CURRENT: self._files.current}
        writers: dict[str, tuple[pa.Schema, RowWriter]] = {
            kind: (files.columns, files.writer())
            for kind, files in wanted.items()
            if files is not None
        }
        try:
            for rows in self._ranges.rows(number):
                for columns, writer in writers.values():
                    shown = conform(rows, columns, relation=self._ranges.relation)
                    writer.write(pa.Table.from_batches([shown]))
            return [
                (kind, file) for kind, (_, writer) in writers.items() for file in writer.close()
            ]
        except BaseException:
            for _, writer in writers.values():
                writer.remove()
            raise
