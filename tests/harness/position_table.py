"""A Delta table that is merged by position, without Spark, and the rows that it should have."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from spillway.lake.tables.delta.positions import DeltaPositionTable, Mark
from spillway.lake.tables.plain_changes import LastChanges
from spillway.lake.tables.positions import Shape
from spillway.storage.place import ObjectPath, storage_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spillway.storage.place import LakePath

ITEMS = pa.schema([("id", pa.int64()), ("name", pa.string())])

Row = dict[str, Any]


def items(*ids: int, name: str = "n") -> list[Row]:
    return [{"id": id_, "name": name} for id_ in ids]


class PositionMerged:
    def __init__(
        self,
        directory: Path,
        columns: pa.Schema = ITEMS,
        key: tuple[str, ...] = ("id",),
        *,
        path: LakePath | None = None,
    ) -> None:
        """Make the table below *directory*, or at *path*; its index is below *directory*."""
        self.path = path or directory / "table"
        self.index = directory / "keys"
        self.shape = Shape(columns, key)
        self.lsn = 0
        self.model: dict[tuple[Any, ...], Row] = {}
        self.options = storage_options(self.path)
        DeltaTable.create(str(self.path), columns, storage_options=self.options)
        self.open()

    def open(self) -> None:
        """Begin with nothing in memory."""
        self.table = DeltaPositionTable(self.path, self.index)

    def delta(self) -> DeltaTable:
        """Return the table as delta-rs has it."""
        return DeltaTable(str(self.path), storage_options=self.options)

    def identity(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.shape.key)

    def changes(self, rows: Iterable[Row], gone: Iterable[tuple[Any, ...]] = ()) -> LastChanges:
        rows, gone = list(rows), list(gone)
        deleted = [
            dict.fromkeys(self.shape.columns.names) | dict(zip(self.shape.key, key, strict=True))
            for key in gone
        ]
        table = pa.Table.from_pylist([*rows, *deleted], schema=self.shape.columns)
        return LastChanges(table, pa.array([True] * len(rows) + [False] * len(deleted), pa.bool_()))

    def merge(self, rows: Iterable[Row], gone: Iterable[tuple[Any, ...]] = ()) -> int:
        rows, gone = list(rows), list(gone)
        self.lsn += 10
        version = self.table.merge(
            self.changes(rows, gone), self.shape, Mark("spillway/s", self.lsn, "{}")
        )
        for key in gone:
            self.model.pop(key, None)
        for row in rows:
            self.model[self.identity(row)] = row
        return version

    def stored(self) -> list[Row]:
        """Return the rows as delta-rs reads them, with the vectors in the log; of a table on object
        storage from a copy, as its engine has no patience with a store in its own process.
        """
        if isinstance(self.path, ObjectPath):
            with tempfile.TemporaryDirectory() as directory:
                for stored, _ in self.path.objects():
                    copy = Path(directory) / stored.key.removeprefix(self.path.key).strip("/")
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(stored.read_bytes())
                return self._read(DeltaTable(directory))
        return self._read(self.delta())

    def _read(self, table: DeltaTable) -> list[Row]:
        found = QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
        rows: list[Row] = pa.table(found).cast(self.shape.columns).to_pylist()
        return rows

    def check(self) -> None:
        stored = sorted(self.stored(), key=self.identity)
        assert stored == sorted(self.model.values(), key=self.identity)
        assert self.delta().transaction_version("spillway/s") == (self.lsn or None)
