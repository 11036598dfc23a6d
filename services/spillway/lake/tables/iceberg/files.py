"""Data files of Iceberg tables: written where the rows are, by executors or the driver, and
described by their footers.

::

    rows ──DataFileWriter──▶ data/<uuid>.parquet, synced
        ──footer──▶ data_file: counts and bounds ──▶ a manifest, by the commit

A file's columns have their field ids, in lists and structs, too. Its bounds are made of the
footer's raw values: those that Python's dates can't say, before the year 1 and after 9999, are
values like others. Floats get none: footers leave NaN out, and readers don't agree on where it
belongs.

Everything that a commit names is durable before it: data files, and by :class:`SyncedFileIO` what
PyIceberg writes. On object storage a file is an object, which is there whole or not at all
(:class:`~spillway.storage.place.ObjectWriter`), and :class:`StoreFileIO` is PyIceberg's way to it,
by the same client and environment as all else of the lake's. A file that no commit names, of a task
that was repeated or a batch that was cut off, is removed by maintenance.
"""

from __future__ import annotations

import struct
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

from spillway.errors import LakeError
from spillway.lake.shape.net_effect import numbered, quoted
from spillway.lake.tables.dictionaries import with_dictionary
from spillway.lake.tables.plain_changes import NotDirect
from spillway.storage.durable_files import sync_directory, sync_open_file
from spillway.storage.place import ObjectPath, stored_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType
    from pyspark.sql import DataFrame

    from spillway.storage.place import LakePath

#: What an executor says of the files that it wrote.
WRITTEN: Final = pa.schema(
    [pa.field("path", pa.string()), pa.field("size", pa.int64()), pa.field("footer", pa.binary())]
)
#: A file is closed when it is as large; it may be larger by a row group.
_FILE_BYTES: Final = 128 << 20
#: Rows are gathered up to it and written as a row group.
_GROUP_ROWS: Final = 128 << 10
_GROUP_BYTES: Final = 64 << 20
#: Characters or bytes of a bound, as Iceberg's other writers have it.
_BOUND_LENGTH: Final = 16
#: Code points that are no characters begin there, and end before the second.
_SURROGATES: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000
_COMPRESSION: Final = "zstd"
_FIELD_ID: Final = b"PARQUET:field_id"
#: An object up to it is read by one request, a larger one in the ranges that its reader asks for.
_WHOLE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """A data file that is durable and that no table names yet."""

    path: str
    size: int
    footer: bytes


class DataFileWriter:
    """Writes tables of one schema below a directory, as many files as it takes.

    Memory: a row group, and on object storage the parts of a file that are on their way.
    """

    def __init__(
        self, directory: LakePath, schema: pa.Schema, file_bytes: int = _FILE_BYTES
    ) -> None:
        self._directory = directory
        self._schema = schema
        self._file_bytes = file_bytes
        self._held: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0
        self._file: Any = None
        self._writer: pq.ParquetWriter | None = None
        #: of the file that is written, or will be
        self.path = self._new_path()
        self._done: list[Written] = []

    def write(self, rows: pa.Table) -> None:
        """Take *rows*, whose columns are in the schema's order; types are cast."""
        if not len(rows):
            return
        self._held.append(rows.cast(self._schema))
        self._rows += len(rows)
        self._bytes += rows.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_held()

    def close(self) -> list[Written]:
        """Make what was written durable and return it."""
        self._write_held()
        self._close_file()
        if self._done and isinstance(self._directory, Path):
            sync_new_directory(self._directory)
        return self._done

    def remove(self) -> None:
        """Remove the file that is being written, as far as that can be done: nothing names it."""
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
                self._file.close()
        with suppress(Exception):
            self.path.unlink(missing_ok=True)

    def _new_path(self) -> LakePath:
        return self._directory / f"{uuid.uuid4()}.parquet"

    def _write_held(self) -> None:
        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        self._held, self._rows, self._bytes = [], 0, 0
        if self._writer is None:
            self._open_file(rows)
        assert self._writer is not None  # just opened
        # A rest of a few rows is no row group of its own.
        size = len(rows) if len(rows) < 2 * _GROUP_ROWS else _GROUP_ROWS
        self._writer.write_table(rows, row_group_size=size)
        if self._file.tell() >= self._file_bytes:
            self._close_file()

    def _open_file(self, rows: pa.Table) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        at = self.path
        self._file = at.open_writer() if isinstance(at, ObjectPath) else at.open("wb")
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression=_COMPRESSION,
            use_dictionary=with_dictionary(rows),
            store_decimal_as_integer=True,
            # Readers go by Iceberg's schema.
            store_schema=False,
        )

    def _close_file(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        size = self._file.tell()
        if isinstance(self.path, Path):
            sync_open_file(self._file)
        self._file.close()
        footer = pa.BufferOutputStream()
        self._writer.writer.metadata.write_metadata_file(footer)
        self._done.append(Written(str(self.path), size, footer.getvalue().to_pybytes()))
        self._writer = self._file = None
        self.path = self._new_path()


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """For ``mapInArrow``: a task's rows become data files; what it yields, :data:`WRITTEN`, says
    which.

    The rows' columns are *schema*'s, in its order, under whatever names.
    """

    directory: LakePath
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = DataFileWriter(self.directory, self.schema)
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]).rename_columns(self.schema.names))
        done = writer.close()
        if done:
            rows = [{"path": each.path, "size": each.size, "footer": each.footer} for each in done]
            yield pa.RecordBatch.from_pylist(rows, schema=WRITTEN)


def write_rows(rows: DataFrame, directory: LakePath, schema: pa.Schema) -> list[Written]:
    """Write *rows* by Spark; those of *schema*'s columns that they lack are null to readers."""
    present = [field for field in schema if field.name in rows.columns]
    writing = WriteFiles(directory, pa.schema(present))
    wanted = numbered(rows.select(*(quoted(field.name) for field in present)))
    done = wanted.mapInArrow(writing, "path string, size bigint, footer binary").collect()
    return [Written(row["path"], row["size"], bytes(row["footer"])) for row in done]


def data_file(written: Written, schema: Schema) -> DataFile:
    """Describe a file to a table, which is not partitioned."""
    footer = pq.read_metadata(pa.BufferReader(written.footer))
    columns: dict[str, Any] = {
        name: {} for name in ("column_sizes", "value_counts", "null_value_counts")
    }
    bounds: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    # The file may lack columns that the table has.
    present = [int(field.metadata[_FIELD_ID]) for field in footer.schema.to_arrow_schema()]
    leaves = [
        leaf
        for own in present
        for leaf in _leaves(own, schema.find_field(own).field_type, repeated=False)
    ]
    assert len(leaves) == footer.num_columns  # it was written from this schema
    for at, (own, type_, repeated) in enumerate(leaves):
        chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
        columns["column_sizes"][own] = sum(chunk.total_compressed_size for chunk in chunks)
        if repeated:
            continue
        columns["value_counts"][own] = sum(chunk.num_values for chunk in chunks)
        found = [chunk.statistics for chunk in chunks]
        if any(each is None or not each.has_null_count for each in found):
            continue
        columns["null_value_counts"][own] = sum(each.null_count for each in found)
        with_values = [
            each for each, chunk in zip(found, chunks, strict=True)
            if each.null_count < chunk.num_values
        ]  # fmt: skip
        if not with_values or not all(each.has_min_max for each in with_values):
            continue
        lowest, highest = _bounds(with_values, type_)
        if lowest is not None:
            bounds[0][own] = lowest
        if highest is not None:
            bounds[1][own] = highest
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=written.path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=footer.num_rows,
        file_size_in_bytes=written.size,
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        nan_value_counts={},
        split_offsets=[_start(footer.row_group(group)) for group in range(footer.num_row_groups)],
        sort_order_id=None,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
        **columns,
    )


def opened(file: DataFile) -> pq.ParquetFile:
    """Open a data file.

    Raises:
        NotDirect: it is none of Parquet.
    """
    if file.file_format != FileFormat.PARQUET:
        raise NotDirect(f"{file.file_path} is not of Parquet")
    path = stored_path(file.file_path)
    source: Any = path.open_reader(_WHOLE_BYTES) if isinstance(path, ObjectPath) else path
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")


def stored_names(parquet: pq.ParquetFile, schema: pa.Schema) -> dict[str, str]:
    """Return those of *schema*'s columns that a file has, by field id, and how it calls them.

    Raises:
        NotDirect: the file has no ids.
    """
    by_id = {
        field.metadata[_FIELD_ID]: field.name
        for field in parquet.schema_arrow
        if field.metadata and _FIELD_ID in field.metadata
    }
    if not by_id:
        raise NotDirect("a file has no field ids")
    found = {field.name: by_id.get(field.metadata[_FIELD_ID]) for field in schema}
    return {name: own for name, own in found.items() if own is not None}


def _leaves(
    own: int, type_: IcebergType, *, repeated: bool
) -> Iterator[tuple[int, IcebergType, bool]]:
    if isinstance(type_, StructType):
        for field in type_.fields:
            yield from _leaves(field.field_id, field.field_type, repeated=repeated)
    elif isinstance(type_, ListType):
        element = type_.element_field
        yield from _leaves(element.field_id, element.field_type, repeated=True)
    else:
        yield own, type_, repeated


def _start(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    dictionary = first.dictionary_page_offset
    return int(dictionary if first.has_dictionary_page and dictionary else first.data_page_offset)


def _bounds(
    statistics: list[pq.Statistics], type_: IcebergType
) -> tuple[bytes | None, bytes | None]:
    """Return the smallest and the largest of raw values as Iceberg writes them; None: it has no
    bound.
    """
    lows, highs = [s.min_raw for s in statistics], [s.max_raw for s in statistics]
    if isinstance(type_, BooleanType):
        return to_bytes(type_, min(lows)), to_bytes(type_, max(highs))
    if isinstance(type_, IntegerType | DateType):
        return struct.pack("<i", min(lows)), struct.pack("<i", max(highs))
    if isinstance(type_, LongType | TimestampType | TimestamptzType):
        return struct.pack("<q", min(lows)), struct.pack("<q", max(highs))
    if isinstance(type_, DecimalType):
        return _unscaled(min(map(_integer, lows))), _unscaled(max(map(_integer, highs)))
    if isinstance(type_, StringType):
        return min(lows).decode()[:_BOUND_LENGTH].encode(), _text_above(max(highs).decode())
    if isinstance(type_, BinaryType):
        return min(lows)[:_BOUND_LENGTH], truncate_upper_bound_binary_string(
            max(highs), _BOUND_LENGTH
        )
    return None, None


def _text_above(text: str) -> bytes | None:
    """Return a text of a bound's length that is *text* or greater; None: there is none.

    PyIceberg's own takes half a character of UTF-16 for the one after U+D7FF.
    """
    if len(text) <= _BOUND_LENGTH:
        return text.encode()
    for at in reversed(range(_BOUND_LENGTH)):
        after = ord(text[at]) + 1
        if after <= sys.maxunicode:
            after = _AFTER_SURROGATES if after == _SURROGATES else after
            return (text[:at] + chr(after)).encode()
    return None


def _integer(raw: int | bytes) -> int:
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw


def _unscaled(value: int) -> bytes:
    """Return two's complement, big-endian, in as few bytes as it takes."""
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) // 8, "big", signed=True)


def sync_new_directory(path: Path) -> None:
    """Make the names in *path* durable, and its own, which may be new with those of the table and
    the kind above it.
    """
    for directory in (path, *list(path.parents)[:3]):
        sync_directory(directory)


class SyncedFileIO(PyArrowFileIO):
    """PyIceberg's files: what it writes to directories is durable when it is closed, so a commit
    names nothing that isn't.
    """

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        return _SyncedOutput(location, path, LocalFileSystem()) if scheme == "file" else file


class _SyncedOutput(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream:
    def __init__(self, path: Path, mode: str) -> None:
        self._path = path
        self._file = path.open(mode)

    def write(self, data: bytes) -> int:
        return int(self._file.write(data))

    def close(self) -> None:
        if not self._file.closed:
            sync_open_file(self._file)
            self._file.close()
            sync_new_directory(self._path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreFileIO(FileIO):
    """PyIceberg's files on object storage. What its configuration says of a store, or a catalog
    hands out, is not asked.
    """

    def new_input(self, location: str) -> _Object:
        return _Object(location)

    def new_output(self, location: str) -> _Object:
        return _Object(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        where = location if isinstance(location, str) else location.location
        try:
            _object(where).unlink(missing_ok=True)
        except LakeError as error:
            # Old metadata goes after a commit, which is not to fail for it: so the library wants
            # it.
            raise OSError(error.message) from error


class _Object(InputFile, OutputFile):
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._path = _object(location)

    def __len__(self) -> int:
        size = self._path.size()
        if size is None:
            raise FileNotFoundError(self.location)
        return size

    def exists(self) -> bool:
        return self._path.is_file()

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002 - the library's name
        return self._path.open_reader(_WHOLE_BYTES)

    def create(self, overwrite: bool = False) -> Any:
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        return self._path.open_writer()

    def to_input_file(self) -> _Object:
        return self


def _object(location: str) -> ObjectPath:
    path = stored_path(location)
    if not isinstance(path, ObjectPath):
        raise LakeError(
            f"{location} is not on object storage, and the lake is",
            hint="Its tables were made for a lake elsewhere: load them afresh.",
        )
    return path
