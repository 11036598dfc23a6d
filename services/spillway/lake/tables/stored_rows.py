"""Rows of a data file, in Parquet, as the table has its columns now; some of them by position.

How a file's columns are found is a format's: by name, by field id. Memory: :data:`ROWS_AT_ONCE`
rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spillway.lake.tables.plain_changes import NotDirect
from spillway.lake.tables.row_sets import as_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt
    import pyarrow.parquet as pq
    from pyroaring import BitMap

#: Rows that are read or written at once.
ROWS_AT_ONCE: Final = 1 << 16
#: Rows of which some are wanted: their columns are large ones.
_FEW_AT_ONCE: Final = 1 << 10


def rows_of(
    parquet: pq.ParquetFile,
    schema: pa.Schema,
    stored: Mapping[str, str],
    without: BitMap | None = None,
) -> Iterator[pa.Table]:
    """Yield a file's rows, but those of *without*, with the columns of *schema*; *stored* says how
    the file calls them, and a column that it hasn't is null.

    Raises:
        NotDirect: a stored column's type can't become the table's.
    """
    gone = None if without is None else as_array(without)
    first = 0
    for batch in _batches(parquet, schema, stored, ROWS_AT_ONCE):
        rows = batch
        if gone is not None:
            a, b = np.searchsorted(gone, [first, first + len(batch)])
            if b > a:
                kept = np.ones(len(batch), dtype=bool)
                kept[gone[a:b].astype(np.int64) - first] = False
                rows = batch.filter(pa.array(kept))
        first += len(batch)
        if len(rows):
            yield rows


def rows_at(
    parquet: pq.ParquetFile,
    schema: pa.Schema,
    stored: Mapping[str, str],
    at: npt.NDArray[np.int64],
) -> Iterator[pa.Table]:
    """Yield a file's rows *at* some positions, which are in order; read are the row groups that
    have them.

    Raises:
        NotDirect: as :func:`rows_of`.
    """
    first = 0
    for group in range(parquet.metadata.num_row_groups):
        count = parquet.metadata.row_group(group).num_rows
        a, b = np.searchsorted(at, [first, first + count])
        if b > a:
            wanted = at[a:b] - first
            done = 0
            for batch in _batches(parquet, schema, stored, _FEW_AT_ONCE, [group]):
                c, d = np.searchsorted(wanted, [done, done + len(batch)])
                if d > c:
                    yield batch.take(pa.array(wanted[c:d] - done))
                done += len(batch)
                if d == len(wanted):
                    break
        first += count


def _batches(
    parquet: pq.ParquetFile,
    schema: pa.Schema,
    stored: Mapping[str, str],
    size: int,
    groups: list[int] | None = None,
) -> Iterator[pa.Table]:
    names = [stored[name] for name in schema.names if name in stored]
    if not names:
        metadata = parquet.metadata
        for group in range(metadata.num_row_groups) if groups is None else groups:
            count = metadata.row_group(group).num_rows
            for start in range(0, count, size):
                length = min(size, count - start)
                yield pa.table([pa.nulls(length, field.type) for field in schema], schema=schema)
        return
    for batch in parquet.iter_batches(size, row_groups=groups, columns=names):
        yield _conformed(batch, schema, stored)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, stored: Mapping[str, str]) -> pa.Table:
    # First of all: files of Arrow's own writers come back with view types, which have few
    # functions.
    columns: list[Any] = []
    for field in schema:
        name = stored.get(field.name)
        if name is None:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        column = batch.column(name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise NotDirect(f"{field.name} is stored as {column.type}") from error
    return pa.table(columns, schema=schema)
