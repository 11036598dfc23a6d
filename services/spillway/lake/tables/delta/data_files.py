"""Data files of Delta tables as a merge by position writes and reads them: Parquet by Arrow, and
what the log says of them.

:class:`DataFile` writes one, a batch after the other, durable when it is closed, and gathers its
statistics on the way. Readers leave files out by them, so each one either bounds what is in the
file or isn't there:

- texts: up to 32 characters; a longer smallest one by its beginning, a longer largest one not at
  all;
- timestamps: milliseconds, the largest rounded up; years 1 to 9999;
- decimals: those that a double has exactly;
- other types have none, and so have columns beyond the first 32, but for keys.

Memory: a batch, and a row group of the file that is written.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.lake.tables.dictionaries import with_dictionary
from spillway.lake.tables.partitions import by_partition
from spillway.lake.tables.plain_changes import NotDirect
from spillway.storage.durable_files import sync_directory, sync_open_file
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from spillway.lake.tables.delta.log import Action
    from spillway.storage.place import LakePath

#: Rows wait for so many, or so many bytes: each row group costs whoever reads the table.
_ROWS_PER_GROUP: Final = 1 << 18
_BYTES_PER_GROUP: Final = 64 << 20
_INDEXED_COLUMNS: Final = 32
_TEXT_MAX: Final = 32
#: A double holds each number of so many digits, and its shortest text is that number.
_DIGITS_OF_DOUBLE: Final = 15
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
#: The first instant of year 1, and of year 10,000.
_FIRST_US: Final = -62_135_596_800_000_000
_BEYOND_US: Final = 253_402_300_800_000_000
_DAY_US: Final = 86_400_000_000
_WHOLE_BYTES: Final = 8 << 20


class Statistics:
    """What the log says of a file's columns."""

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        names = [*dict.fromkeys([*key, *schema.names[:_INDEXED_COLUMNS]])]
        self._columns = [name for name in names if has_statistics(schema.field(name).type)]
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._nulls = dict.fromkeys(self._columns, 0)
        self.rows = 0

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        self.rows += len(rows)
        for name in self._columns:
            column = rows.column(name)
            self._nulls[name] += column.null_count
            if column.null_count == len(column):
                continue
            least, most = _bounds(column)
            if name in self._bounds:
                before = self._bounds[name]
                least, most = min(least, before[0]), max(most, before[1])
            self._bounds[name] = least, most

    def text(self, schema: pa.Schema) -> str:
        """Return it as the log has it."""
        least, most = {}, {}
        for name, (low, high) in self._bounds.items():
            type_ = schema.field(name).type
            if (shown := _shown(low, type_, up=False)) is not None:
                least[name] = shown
            if (shown := _shown(high, type_, up=True)) is not None:
                most[name] = shown
        found = {
            "numRecords": self.rows,
            "minValues": least,
            "maxValues": most,
            "nullCount": self._nulls,
            "tightBounds": True,
        }
        return json.dumps(found, separators=(",", ":"))


def has_statistics(type_: pa.DataType) -> bool:
    """Say whether what the log says of such a column's smallest and largest values is exact, or
    bounds them, whoever wrote the file.
    """
    types = pa.types
    return bool(
        types.is_integer(type_)
        or types.is_string(type_)
        or types.is_date32(type_)
        or types.is_timestamp(type_)
        or (types.is_decimal(type_) and type_.precision <= _DIGITS_OF_DOUBLE)
    )


def _bounds(column: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value: numbers, texts' bytes, decimals."""
    type_ = column.type
    if pa.types.is_date32(type_):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(type_):
        column = column.cast(pa.int64())
    elif pa.types.is_string(type_):
        # As bytes they are in the order that the protocol has.
        column = column.cast(pa.binary())
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _shown(value: Any, type_: pa.DataType, *, up: bool) -> Any:
    """Return a bound as the log has it; None: it can't be said."""
    if pa.types.is_string(type_):
        text = value.decode()
        if len(text) <= _TEXT_MAX:
            return text
        return None if up else text[:_TEXT_MAX]
    if pa.types.is_date32(type_):
        return _day(value)
    if pa.types.is_timestamp(type_):
        value *= _MICROSECONDS[type_.unit]
        milliseconds = math.ceil(value / 1000) if up else value // 1000
        if up:
            milliseconds = -(-value // 1000)
        if not _FIRST_US <= milliseconds * 1000 < _BEYOND_US:
            return None
        text = str(np.datetime64(milliseconds, "ms"))
        return text if type_.tz is None else f"{text}Z"
    if pa.types.is_decimal(type_):
        return float(value)
    return value


def _day(days: int) -> str | None:
    if not _FIRST_US <= days * _DAY_US < _BEYOND_US:
        return None
    return str(np.datetime64(days, "D"))


class DataFile:
    """A new data file of a table; its directory is the table's own, whatever its partition is.

    Leaving the block by an error removes it.
    """

    def __init__(
        self,
        table: LakePath,
        schema: pa.Schema,
        key: Sequence[str],
        partition: Mapping[str, str | None],
    ) -> None:
        """Begin it, of rows of *schema*, without the partition's columns."""
        self.name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        self._path = table / self.name
        self._schema = schema
        self._partition = partition
        self._statistics = Statistics(schema, key)
        # A handle of its own: object storage's becomes the object when it is closed.
        path = self._path
        self._sink: Any = path.open_writer() if isinstance(path, ObjectPath) else path.open("xb")
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0

    @property
    def rows(self) -> int:
        return self._statistics.rows

    def write(self, rows: pa.Table) -> None:
        self._statistics.add(rows)
        self._held.append(rows)
        self._held_rows += len(rows)
        self._held_bytes += rows.nbytes
        if self._held_rows >= _ROWS_PER_GROUP or self._held_bytes >= _BYTES_PER_GROUP:
            self._write_held()

    def _write_held(self) -> None:
        if self._held_rows:
            # What is written at once is a row group of its own, however few rows it has.
            rows = pa.concat_tables(self._held)
            size = len(rows) if len(rows) < 2 * _ROWS_PER_GROUP else _ROWS_PER_GROUP
            self._opened(rows).write_table(rows, row_group_size=size)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _opened(self, rows: pa.Table) -> pq.ParquetWriter:
        """Return the file's writer, which is made for *rows* if they are its first."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression="snappy",
                use_dictionary=with_dictionary(rows),
            )
        return self._writer

    def close(self) -> Action:
        """Make it durable; return what a commit says of it."""
        self._write_held()
        self._opened(self._schema.empty_table()).close()
        path = self._path
        if isinstance(path, ObjectPath):
            self._sink.close()
            size = path.size()
        else:
            sync_open_file(self._sink)
            size = self._sink.tell()
            self._sink.close()
            sync_directory(path.parent)
        return {
            "path": self.name,
            "partitionValues": dict(self._partition),
            "size": size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": True,
            "stats": self._statistics.text(self._schema),
        }

    def remove(self) -> None:
        """Remove it again, as far as that can be done: nothing names it."""
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        with suppress(Exception):
            self._sink.close()
        with suppress(Exception):
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.remove()


def write_rows(
    table: LakePath, rows: pa.Table, indexed: Sequence[str], partition_by: Sequence[str]
) -> list[Action]:
    """Write *rows*, which are :func:`plain`, into files of *table*, one for each partition; return
    what a commit says of them. They are durable. The log has statistics of *indexed* whatever
    columns there are.
    """
    columns = rows.drop_columns(list(partition_by)).schema
    written = []
    for values, at in by_partition(rows, partition_by):
        own = rows.take(pa.array(at)) if len(at) < len(rows) else rows
        with DataFile(table, columns, indexed, values) as file:
            file.write(own.select(columns.names))
            written.append(file.close())
    return written


def plain(schema: pa.Schema) -> pa.Schema:
    """Return *schema* without what its fields say of the source, which is the table's to say."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def file_path(table: LakePath, action: Action) -> LakePath:
    """Return where a file of the log is.

    Raises:
        NotDirect: it is none of the table's own directory.
    """
    from urllib.parse import unquote  # noqa: PLC0415

    relative = unquote(action["path"])
    if relative.startswith("/") or ":" in relative.split("/", maxsplit=1)[0]:
        raise NotDirect(f"{relative} is outside of the table")
    path = table
    for part in relative.split("/"):
        path = path / part
    return path


def opened(path: LakePath) -> pq.ParquetFile:
    """Open a Parquet file whose old timestamps are of microseconds."""
    source: Any = path.open_reader(_WHOLE_BYTES) if isinstance(path, ObjectPath) else path
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")


def names_of(parquet: pq.ParquetFile, schema: pa.Schema) -> dict[str, str]:
    """Return those of *schema*'s columns that a file has, and how it calls them: the same."""
    there = set(parquet.schema_arrow.names)
    return {name: name for name in schema.names if name in there}


def row_count(table: LakePath, action: Action) -> int:
    """Return how many rows a file has, those of its vector among them."""
    found = json.loads(action.get("stats") or "{}").get("numRecords")
    if found is not None:
        return int(found)
    with opened(file_path(table, action)) as parquet:
        return int(parquet.metadata.num_rows)
