"""An Iceberg table that is merged by position, without Spark, and the rows that it should have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from harness.position_table import ITEMS, Row
from spillway.lake.tables.iceberg import snapshots, types
from spillway.lake.tables.iceberg.catalog import LakeCatalog
from spillway.lake.tables.iceberg.positions import IcebergPositionTable, Mark
from spillway.lake.tables.iceberg.tables import PROPERTIES
from spillway.lake.tables.plain_changes import LastChanges
from spillway.lake.tables.positions import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyiceberg.table import Table


class IcebergMerged:
    def __init__(
        self, directory: Path, columns: pa.Schema = ITEMS, key: tuple[str, ...] = ("id",)
    ) -> None:
        """Make the table in a lake at *directory*, unless it is there; its index is beside it."""
        self.directory = directory
        self.index = directory / "keys"
        self.shape = Shape(columns, key)
        self.lsn = 0
        self.model: dict[tuple[Any, ...], Row] = {}
        self.catalog = LakeCatalog(directory)
        if self.catalog.load("current", "t") is None:
            properties = {**PROPERTIES, snapshots.SLOT: "s"}
            self.catalog.create("current", "t", types.iceberg_schema(columns), properties)
        self.open()

    def open(self) -> None:
        """Begin with nothing in memory."""
        self.table = IcebergPositionTable(self.loaded, "t", self.index, lambda: None)

    def loaded(self) -> Table:
        found = self.catalog.load("current", "t")
        assert found is not None
        return found

    def theirs(self) -> Table:
        """Return the table as another program opens it."""
        uri = f"sqlite:///{self.directory / 'catalog.db'}"
        return SqlCatalog("lake", uri=uri).load_table(self.catalog.identifier("current", "t"))

    def identity(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.shape.key)

    def merge(self, rows: Iterable[Row], gone: Iterable[tuple[Any, ...]] = ()) -> int:
        rows, gone = list(rows), list(gone)
        self.lsn += 16
        deleted = [
            dict.fromkeys(self.shape.columns.names) | dict(zip(self.shape.key, key, strict=True))
            for key in gone
        ]
        table = pa.Table.from_pylist([*rows, *deleted], schema=self.shape.columns)
        is_set = pa.array([True] * len(rows) + [False] * len(deleted), pa.bool_())
        said = {snapshots.SLOT: "s", snapshots.END: f"0/{self.lsn:X}"}
        version = self.table.merge(LastChanges(table, is_set), self.shape, Mark(said, {}))
        for key in gone:
            self.model.pop(key, None)
        for row in rows:
            self.model[self.identity(row)] = row
        return version

    def stored(self) -> list[Row]:
        """Return the rows as PyIceberg reads them, with their deletes."""
        found = self.loaded().scan().to_arrow().select(self.shape.columns.names)
        rows: list[Row] = found.cast(self.shape.columns).to_pylist()
        return rows

    def check(self, *, theirs: bool = False) -> None:
        """Compare; *theirs*: the newest snapshot may be another's, which says other things."""
        table = self.loaded()
        stored = sorted(self.stored(), key=self.identity)
        assert stored == sorted(self.model.values(), key=self.identity)
        assert snapshots.durable_lsn(table.metadata, "s") == self.lsn
        newest = table.current_snapshot()
        if not theirs and newest is not None and newest.summary is not None:
            files, deletes = snapshots.live_files(table, newest)
            said = newest.summary
            assert said.get("total-data-files") == str(len(files))
            assert said.get("total-delete-files") == str(len(deletes))
            gone = sum(file.record_count for file in deletes)
            assert said.get("total-position-deletes") == str(gone)
