"""Parquet tables as an initial load writes them: see
:class:`spillway.lake.tables.load_contract.LoadTables`.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.tables.load_contract import in_shape
from spillway.lake.tables.parquet.tables import LOAD_MARK, ParquetTables
from spillway.pg.lsn import Lsn
from spillway.storage.durable_files import put_all_in_place, put_in_place
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from spillway.lake.tables.contract import Batch


class ParquetLoadTables(ParquetTables):
    """See :class:`spillway.lake.tables.load_contract.LoadTables`. Chunks wait where readers don't
    look, and become one of history's directories together.

    ::

    history/<table>/.load-<LSN>/chunk-000000/part-*.parquet
    history/<table>/end_lsn=<LSN - 1>/part-*.parquet, _load.json
    """

    #: Directories are what Spark's writer makes.
    by_files = None

    def prepare_history(self, name: str, schema: StructType, lsn: int) -> None:
        (self._path / HISTORY / name).mkdir(parents=True, exist_ok=True)
        self._widen(name, to_arrow_schema(schema, timezone="UTC"), begins=lsn)

    def loaded_chunks(self, name: str, lsn: int) -> int:
        mark = self._sealed(name, lsn) / LOAD_MARK
        if mark.exists():
            return int(json.loads(mark.read_text())["chunks"])
        return sum(1 for _ in self._gathered(name, lsn).glob("chunk-*"))

    def append_loaded(self, name: str, rows: DataFrame, lsn: int, chunk: int) -> None:
        if self.loaded_chunks(name, lsn) <= chunk:
            gathered = self._gathered(name, lsn)
            gathered.mkdir(exist_ok=True)
            self._write(rows, gathered, f"chunk-{chunk:06d}")

    def seal_loaded(self, name: str, lsn: int) -> None:
        sealed, gathered = self._sealed(name, lsn), self._gathered(name, lsn)
        if sealed.exists():
            return
        # Moved, not copied, in steps that can be repeated; the last one is the commit.
        whole = gathered / "whole"
        whole.mkdir(parents=True, exist_ok=True)
        chunks = sorted(gathered.glob("chunk-*"))
        put_all_in_place(
            (part, whole / f"{part.stem}-{chunk.name}.parquet")
            for chunk in chunks
            for part in chunk.glob("*.parquet")
        )
        replace_json(whole / LOAD_MARK, {"lsn": str(Lsn(lsn)), "chunks": len(chunks)})
        put_in_place(whole, sealed)
        shutil.rmtree(gathered)

    def drop_loaded(self, name: str, lsn: int) -> None:
        for directory in (self._gathered(name, lsn), self._sealed(name, lsn)):
            if directory.exists():
                shutil.rmtree(directory)

    def replace_current(
        self, name: str, rows: DataFrame, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        (self._path / CURRENT / name).mkdir(parents=True, exist_ok=True)
        rows = in_shape(rows, columns, key)
        copy = f"v-{batch.end_lsn:020d}"
        self._replace(name, rows, rows.schema, copy, lsn=batch.end_lsn, key=key)

    def _gathered(self, name: str, lsn: int) -> Path:
        return self._path / HISTORY / name / f".load-{lsn:020d}"

    def _sealed(self, name: str, lsn: int) -> Path:
        return self._path / HISTORY / name / f"end_lsn={lsn - 1:020d}"
