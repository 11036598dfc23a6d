"""Iceberg tables as an initial load writes them: see
:class:`spillway.lake.tables.load_contract.LoadTables`.

Who copies a range writes a file of it for each table, as batches' rows are written
(:mod:`spillway.lake.tables.iceberg.files`); Spark writes current tables of copies, and those that
are there with other columns.

A chunk is one snapshot. That it is there is said by the table's property ``spillway.load.<LSN>``,
which the same commit sets: snapshots may be expired before a long load is done.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from spillway.lake.shape.columns import spark_schema
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.tables.contract import MULTISET, Batch
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.catalog import typed
from spillway.lake.tables.iceberg.files import DataFileWriter, Written, data_file, write_rows
from spillway.lake.tables.iceberg.merge import without
from spillway.lake.tables.iceberg.tables import (
    KEY,
    IcebergTables,
    columns_of,
    data_directory,
    kept,
    key_of,
    notes_of,
)
from spillway.lake.tables.load_contract import NO_BATCH, LoadFiles, in_shape
from spillway.pg.lsn import Lsn
from spillway.storage.place import stored_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from spillway.lake.tables.load_contract import FileLoads
    from spillway.storage.place import LakePath

#: By which a file's columns are the table's.
_ID: Final = b"PARQUET:field_id"
_LOAD: Final = "spillway.load"
_CHUNK: Final = "spillway.chunk"
_LOADED: Final = "R"


@dataclass(frozen=True, slots=True)
class IcebergRowFiles:
    """See :class:`spillway.lake.tables.load_contract.RowFiles`."""

    directory: LakePath
    #: with field ids, in the order of :attr:`columns`
    stored: pa.Schema
    columns: pa.Schema

    def writer(self) -> IcebergRowWriter:
        return IcebergRowWriter(DataFileWriter(self.directory, self.stored))


class IcebergRowWriter:
    """See :class:`spillway.lake.tables.load_contract.RowWriter`."""

    def __init__(self, files: DataFileWriter) -> None:
        self._files = files

    def write(self, rows: pa.Table) -> None:
        self._files.write(rows)

    def close(self) -> list[str]:
        return [_told(each) for each in self._files.close()]

    def remove(self) -> None:
        self._files.remove()


class IcebergLoadTables(IcebergTables):
    """See :class:`spillway.lake.tables.load_contract.LoadTables`."""

    @property
    def by_files(self) -> FileLoads:
        return self

    def prepare_history(self, name: str, schema: StructType, lsn: int) -> None:
        self._with_columns(HISTORY, name, schema)
        if self.durable_lsn(HISTORY, name) == 0:
            self._append(HISTORY, name, [], Batch(self.slot_name, lsn, lsn, NO_BATCH))

    def loaded_chunks(self, name: str, lsn: int) -> int:
        table = self._catalog.load(HISTORY, name)
        return 0 if table is None else _chunks(table, lsn)

    def append_loaded(self, name: str, rows: DataFrame, lsn: int, chunk: int) -> None:
        if self.loaded_chunks(name, lsn) > chunk:
            return
        table = self._with_columns(HISTORY, name, rows.schema)
        self._append_chunk(name, self._written(table, rows), lsn, chunk)

    def _append_chunk(self, name: str, written: Sequence[Written], lsn: int, chunk: int) -> None:
        said = {snapshots.SLOT: self.slot_name, _LOAD: str(Lsn(lsn)), _CHUNK: str(chunk)}

        def attempt(table: Table) -> None:
            if _chunks(table, lsn) <= chunk:
                self._add(table, written, said, {_property(lsn): str(chunk + 1)})

        self.attempts(HISTORY, name, attempt)

    def load_files(
        self, name: str, current: pa.Schema | None, key: tuple[str, ...], taken_at_us: int
    ) -> LoadFiles | None:
        del taken_at_us  # no table has partitions
        table = self.existing(HISTORY, name)
        columns = types.lake_schema(table.schema(), notes_of(table))
        stored = types.file_schema(table.schema())
        files = IcebergRowFiles(data_directory(table), stored, columns)
        if current is None:
            return LoadFiles(files, None)
        return LoadFiles(files, self._current_files(name, current, key))

    def _current_files(
        self, name: str, columns: pa.Schema, key: tuple[str, ...]
    ) -> IcebergRowFiles | None:
        if key == MULTISET:
            return None
        schema = spark_schema(columns)
        lake = to_arrow_schema(schema, timezone="UTC")
        table = self._catalog.load(CURRENT, name)
        if table is None:
            # As it will be made: whether it was so is looked at before the files are its own.
            stored = types.file_schema(types.iceberg_schema(lake))
            return IcebergRowFiles(self.path / CURRENT / name / "data", stored, lake)
        if not _is_of(table, schema, key):
            return None
        by_name = types.file_schema(table.schema())
        stored = pa.schema([by_name.field(column) for column in lake.names])
        return IcebergRowFiles(data_directory(table), stored, lake)

    def append_files(self, name: str, files: Sequence[str], lsn: int, chunk: int) -> None:
        if self.loaded_chunks(name, lsn) <= chunk:
            self._append_chunk(name, [_written(file) for file in files], lsn, chunk)

    def replace_current_files(
        self,
        name: str,
        files: Sequence[str],
        columns: pa.Schema,
        key: tuple[str, ...],
        batch: Batch,
    ) -> bool:
        schema = spark_schema(columns)
        written = [_written(file) for file in files]
        # Maintenance of the same hours takes what no snapshot names.
        if not all(stored_path(each.path).is_file() for each in written):
            return False
        table = self._catalog.load(CURRENT, name)
        if table is None:
            table = self._create(CURRENT, name, schema, {KEY: json.dumps(key)})
        if not _is_of(table, schema, key) or not all(_has_ids(table, each) for each in written):
            return False
        with typed(f"{CURRENT} of {name}"), self.transaction(table) as transaction:
            transaction.set_properties(kept(batch))
            gone, deletes = snapshots.everything(table)
            added = [data_file(each, table.schema()) for each in written]
            said = snapshots.mark(batch)
            snapshots.Replacing(transaction, table, said, gone, added, deletes).commit()
        return True

    def seal_loaded(self, name: str, lsn: int) -> None:
        """Do nothing: history shows each chunk from its commit on."""

    def drop_loaded(self, name: str, lsn: int) -> None:
        if self._catalog.load(HISTORY, name) is not None:
            self.attempts(HISTORY, name, lambda table: self._without_loaded(table, lsn))

    def _without_loaded(self, table: Table, lsn: int) -> None:
        """Take the load's rows out: files of nothing else go, others are written anew without
        them.
        """
        schema = table.schema()
        field = schema.find_field("_commit_lsn")
        files = snapshots.data_files(table, table.current_snapshot())
        candidates = [file for file in files if snapshots.may_have(file, field, lsn - 1)]

        def is_loaded(rows: pa.Table) -> pa.ChunkedArray:
            return pc.and_(
                pc.equal(rows.column("_op"), _LOADED), pc.equal(rows.column("_commit_lsn"), lsn - 1)
            )

        gone, written, _ = without(table, candidates, is_loaded)
        with self.transaction(table) as transaction:
            if _property(lsn) in table.properties:
                transaction.remove_properties(_property(lsn))
            if gone:
                added = [data_file(each, schema) for each in written]
                snapshots.Replacing(transaction, table, {}, gone, added).commit()

    def replace_current(
        self, name: str, rows: DataFrame, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        rows = in_shape(rows, columns, key)
        schema, lake = rows.schema, to_arrow_schema(rows.schema, timezone="UTC")
        table = self._catalog.load(CURRENT, name)
        if table is None:
            table = self._create(CURRENT, name, schema, {KEY: json.dumps(key)})
        # Columns are those of their numbers; what can't be read as the new type is another column.
        sources = _same_columns(types.spark_schema(table.schema(), notes_of(table)), schema)
        with typed(f"{CURRENT} of {name}"), self.transaction(table) as transaction:
            types.follow_columns(transaction, lake, sources)
            after = transaction.table_metadata.schema()
            noted = types.noted(after, schema, lake, notes_of(table))
            transaction.set_properties(
                {types.NOTES: noted, KEY: json.dumps(key), **kept(batch)}
            )  # fmt: skip
            gone, deletes = snapshots.everything(table)
            written = write_rows(rows, data_directory(table), types.file_schema(after))
            added = [data_file(each, after) for each in written]
            said = snapshots.mark(batch)
            snapshots.Replacing(transaction, table, said, gone, added, deletes).commit()


def _told(written: Written) -> str:
    footer = base64.b64encode(written.footer).decode("ascii")
    return json.dumps({"path": written.path, "size": written.size, "footer": footer})


def _written(told: str) -> Written:
    file = json.loads(told)
    return Written(file["path"], file["size"], base64.b64decode(file["footer"]))


def _is_of(table: Table, schema: StructType, key: tuple[str, ...]) -> bool:
    """Say whether a current table has these columns and this key."""
    stored = types.spark_schema(table.schema(), notes_of(table))
    return columns_of(stored) == columns_of(schema) and key_of(table) == key


def _has_ids(table: Table, written: Written) -> bool:
    """Say whether a file lies with a table, and its columns have the ids that the table gives
    them.
    """
    if stored_path(written.path).parent != data_directory(table):
        return False
    footer = pq.read_metadata(pa.BufferReader(written.footer))
    stored = footer.schema.to_arrow_schema()
    wanted = types.file_schema(table.schema())
    return {(f.name, f.metadata[_ID]) for f in stored} == {
        (f.name, f.metadata[_ID]) for f in wanted
    }


def _chunks(table: Table, lsn: int) -> int:
    return int(table.properties.get(_property(lsn), "0"))


def _property(lsn: int) -> str:
    return f"{_LOAD}.{Lsn(lsn)}"


def _same_columns(stored: StructType, wanted: StructType) -> dict[str, str]:
    """Return which stored column each wanted one is: by attribute numbers, and names where there
    are none.
    """
    by_number = {types.attnum(f): f.name for f in stored if types.attnum(f) is not None}
    unnumbered = {f.name for f in stored if types.attnum(f) is None}
    found = {f.name: by_number.get(types.attnum(f)) for f in wanted}
    return {
        name: source or name
        for name, source in found.items()
        if source is not None or name in unnumbered
    }
