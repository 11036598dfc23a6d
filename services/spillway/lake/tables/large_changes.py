"""A batch's changes that are too many to be in memory, reduced to the last one of each key for a
merge by position.

::

    history's files ──keys and places alone──▶ last change per key
                    ──those rows, a piece at a time──▶ new data files

What is small is reduced at once (:mod:`spillway.lake.tables.plain_changes`). Memory: keys and
places of :data:`_CHANGES_MAX` changes, some hundred bytes each, and a piece of rows. More than
these, and large batches with values left out as unchanged, are left to Spark.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.lake.tables.plain_changes import (
    LastChanges,
    NotDirect,
    changes_from,
    is_large,
    last_changes,
    read_changes,
)
from spillway.lake.tables.stored_rows import ROWS_AT_ONCE, rows_at
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spillway.storage.place import LakePath

#: Changes of a batch.
_CHANGES_MAX: Final = 4_000_000
#: A piece of rows.
_PIECE_BYTES: Final = 32 << 20


def last_changes_in(
    files: Iterable[LakePath], start_lsn: int, schema: pa.Schema, key: Sequence[str]
) -> LastChanges:
    """Reduce history's changes from *start_lsn* on, which are in *files*; see
    :func:`spillway.lake.tables.plain_changes.last_changes`.

    Raises:
        NotDirect: this is Spark's.
    """
    files = sorted(files, key=str)
    if not is_large(files):
        return last_changes(read_changes(files, start_lsn, schema), schema, key)
    place = "_row"
    while place in schema.names:
        place += "_"
    narrow: list[pa.Table] = []
    counts: list[int] = []
    for path in files:
        with _opened(path) as parquet:
            stored = parquet.schema_arrow.names
            wanted = ["_op", "_commit_lsn", "_seq", *key]
            missing = {*wanted, *schema.names}.difference(stored)
            if missing:
                raise NotDirect(f"history has no column {', '.join(sorted(missing))}")
            if parquet.metadata.num_rows + sum(counts) > _CHANGES_MAX:
                raise NotDirect("the batch is very large")
            more = [name for name in ("_old_key", "_unchanged_toast") if name in stored]
            rows = parquet.read(columns=[*wanted, *more])
            first = sum(counts)
            narrow.append(rows.append_column(place, pa.array(np.arange(first, first + len(rows)))))
            counts.append(len(rows))
    changes = changes_from(pa.concat_tables(narrow, promote_options="default"), start_lsn)
    if "_unchanged_toast" in changes.column_names:
        left_out = pc.list_value_length(changes.column("_unchanged_toast"))
        if pc.max(left_out).as_py():
            raise NotDirect("the batch is large, and values are left out as unchanged")
        changes = changes.drop_columns(["_unchanged_toast"])
    fields = [pa.field(name, schema.field(name).type) for name in key]
    last = last_changes(changes, pa.schema([*fields, pa.field(place, pa.int64())]), key)
    there = last.rows.filter(last.is_set).column(place)
    at = np.sort(there.to_numpy())
    own = pa.schema([pa.field(f.name, f.type) for f in schema])

    def pieces() -> Iterator[pa.Table]:
        held: list[pa.Table] = []
        for rows in _chosen(files, counts, own, at):
            held.append(rows)
            if (
                sum(map(len, held)) >= ROWS_AT_ONCE
                or sum(each.nbytes for each in held) >= _PIECE_BYTES
            ):
                yield pa.concat_tables(held)
                held = []
        if held:
            yield pa.concat_tables(held)

    return LastChanges(last.rows.select(list(key)), last.is_set, last.truncated, pieces=pieces)


def _chosen(
    files: Sequence[LakePath], counts: Sequence[int], schema: pa.Schema, at: Any
) -> Iterator[pa.Table]:
    first = 0
    names = {name: name for name in schema.names}
    for path, count in zip(files, counts, strict=True):
        a, b = np.searchsorted(at, [first, first + count])
        if b > a:
            with _opened(path) as parquet:
                yield from rows_at(parquet, schema, names, at[a:b] - first)
        first += count


def _opened(path: LakePath) -> pq.ParquetFile:
    # Nearly all of it is read, twice at the most.
    source: Any = BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else path
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
