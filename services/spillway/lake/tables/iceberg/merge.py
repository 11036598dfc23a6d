"""A batch's plain changes merged into an Iceberg table without a Spark job: copy on write, by
Arrow.

::

    history's files of the batch ──▶ last change per key (plain_changes)
        ──▶ new and changed rows ──────────────────────────────────────────────────────┐
    the table's files ──bounds of the key──▶ candidates ──key columns──▶ touched files │
        ──▶ rows whose key did not change ─────────────────────────────────────────────┴─▶ new files

A file is read only if the bounds of its first key column have room for one of the changed keys, and
written anew only if it has one of them. Small files are written anew together when there are many,
in the same commit: compaction costs no snapshot of its own.

Files of any age are read by field id, as the table's schema has the columns now. Memory: the batch,
and one file at a time; what is too large for that is left to Spark, by
:class:`~spillway.lake.tables.plain_changes.NotDirect`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask

from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.files import DataFileWriter, Written
from spillway.lake.tables.plain_changes import NotDirect, check_plain, last_changes
from spillway.storage.place import stored_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

#: Smaller files are small, and so many of them are made into files of the second size.
_SMALL_BYTES: Final = 8 << 20
_SMALL_FILES_MAX: Final = 24
_MERGED_BYTES: Final = 32 << 20
#: Files that a batch touches, compressed: what is more is Spark's, which reads them side by side.
_TOUCHED_BYTES_MAX: Final = 1 << 30
#: A file larger than this, another engine's, is not read whole by one process.
_FILE_BYTES_MAX: Final = 256 << 20


def merge(
    current: Table, changes: pa.Table, columns: pa.Schema, key: tuple[str, ...]
) -> tuple[list[DataFile], list[Written]]:
    """Write what *current* becomes by history's *changes*, in order; return the files that go and
    those that come.

    Raises:
        NotDirect: this is not for one process.
    """
    last = last_changes(changes, columns, key)
    check_plain(last)
    schema = current.schema()
    files, deletes = snapshots.live_files(current, current.current_snapshot())
    if deletes:
        raise NotDirect("rows are marked as deleted, by position")
    keys = last.rows.select(list(key)).cast(_keys_schema(schema, key))
    small = [file for file in files if file.file_size_in_bytes < _SMALL_BYTES]
    gone = small if len(small) > _SMALL_FILES_MAX else []
    picked = {file.file_path for file in gone}
    for file in _candidates(files, schema, keys):
        if file.file_path not in picked and _has_any(current, file, keys):
            gone.append(file)
    if (
        sum(file.file_size_in_bytes for file in gone) > _TOUCHED_BYTES_MAX
        or max((file.file_size_in_bytes for file in gone), default=0) > _FILE_BYTES_MAX
    ):
        raise NotDirect("the batch touches large files")
    layout = types.file_schema(schema)
    writer = DataFileWriter(stored_path(current.location()) / "data", layout, _MERGED_BYTES)
    for file in gone:
        rows = read_file(current, schema, file).select(layout.names).cast(layout)
        writer.write(rows.filter(pa.array(~_among(rows.select(list(key)), keys))))
    there = last.rows.filter(last.is_set)
    if len(there):
        writer.write(there.select(layout.names))
    return gone, writer.close()


def without(
    table: Table, files: list[DataFile], drop: Callable[[pa.Table], pa.ChunkedArray]
) -> tuple[list[DataFile], list[Written], int]:
    """Write *files* anew without the rows of which *drop* says true; return those that have any,
    what comes, and how many rows go.
    """
    schema = table.schema()
    layout = types.file_schema(schema)
    gone, removed = [], 0
    writer = DataFileWriter(stored_path(table.location()) / "data", layout)
    for file in files:
        rows = read_file(table, schema, file).select(layout.names)
        kept = rows.filter(pc.invert(pc.fill_null(drop(rows), False)))
        if len(kept) < len(rows):
            gone.append(file)
            removed += len(rows) - len(kept)
            writer.write(kept)
    return gone, writer.close(), removed


def _keys_schema(schema: Schema, key: Sequence[str]) -> pa.Schema:
    layout = types.file_schema(schema)
    return pa.schema([pa.field(name, layout.field(name).type) for name in key])


def _candidates(files: list[DataFile], schema: Schema, keys: pa.Table) -> Iterator[DataFile]:
    """Yield the files that can have one of the keys, by the bounds of the first key column."""
    field = schema.find_field(keys.column_names[0])
    wanted = pc.unique(keys.column(0))
    if pa.types.is_date(wanted.type):
        wanted = wanted.cast(pa.int32())
    elif pa.types.is_timestamp(wanted.type):
        wanted = wanted.cast(pa.int64())
    for file in files:
        low, high = (
            _bound(bounds.get(field.field_id), field.field_type)
            for bounds in (file.lower_bounds or {}, file.upper_bounds or {})
        )
        found = wanted
        if low is not None:
            found = found.filter(pc.greater_equal(found, pa.scalar(low, found.type)))
        if high is not None:
            found = found.filter(pc.less_equal(found, pa.scalar(high, found.type)))
        if len(found):
            yield file


def _bound(value: bytes | None, type_: Any) -> Any:
    return None if value is None else from_bytes(type_, value)


def _has_any(table: Table, file: DataFile, keys: pa.Table) -> bool:
    if file.file_size_in_bytes > _FILE_BYTES_MAX:
        raise NotDirect("a file is large")
    schema = table.schema().select(*keys.column_names)
    rows = read_file(table, schema, file).select(keys.column_names).cast(keys.schema)
    return bool(_among(rows, keys).any())


def _among(rows: pa.Table, keys: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say of each row whether its key is one of *keys*, which are distinct and have no null."""
    if len(keys.column_names) == 1:
        return pc.is_in(rows.column(0), pc.unique(keys.column(0))).to_numpy()  # type: ignore[no-any-return]
    # By numbers: a table's column may have any name.
    numbers = [str(n) for n in range(len(keys.column_names))]
    rows, keys = rows.rename_columns(numbers), keys.rename_columns(numbers)
    numbered = rows.append_column("at", pa.array(np.arange(len(rows))))
    found = numbered.join(keys, numbers, join_type="left semi").column("at").to_numpy()
    among = np.zeros(len(rows), dtype=bool)
    among[found] = True
    return among


def read_file(table: Table, schema: Schema, file: DataFile) -> pa.Table:
    """Return a file's rows with the columns of *schema*, found by their ids, as files have them."""
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    return scan.to_table([FileScanTask(file)])
