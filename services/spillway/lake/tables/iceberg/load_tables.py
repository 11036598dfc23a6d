"""Iceberg tables as an initial load writes them: see
:class:`spillway.lake.tables.load_contract.LoadTables`.

A chunk is one snapshot. That it is there is said by the table's property ``spillway.load.<LSN>``,
which the same commit sets: snapshots may be expired before a long load is done.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.catalog import typed
from spillway.lake.tables.iceberg.files import data_file, write_rows
from spillway.lake.tables.iceberg.merge import without
from spillway.lake.tables.iceberg.tables import KEY, IcebergTables, data_directory, kept, notes_of
from spillway.lake.tables.load_contract import NO_BATCH, in_shape
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_LOAD: Final = "spillway.load"
_CHUNK: Final = "spillway.chunk"
_LOADED: Final = "R"


class IcebergLoadTables(IcebergTables):
    """See :class:`spillway.lake.tables.load_contract.LoadTables`."""

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
        written = self._written(table, rows)
        said = {snapshots.SLOT: self.slot_name, _LOAD: str(Lsn(lsn)), _CHUNK: str(chunk)}

        def attempt(table: Table) -> None:
            if _chunks(table, lsn) <= chunk:
                self._add(table, written, said, {_property(lsn): str(chunk + 1)})

        self.attempts(HISTORY, name, attempt)

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
