"""What an initial load asks of a table format, beside :class:`spillway.lake.tables.LakeTables`.

Loaded rows go to history in chunks. A chunk is one commit, marked with the snapshot's LSN and the chunk's number
in the commit itself, so that repeating it does nothing.

A history that the load makes begins at the snapshot's LSN: what was changed before is in the rows. One that is there already
keeps every change that the slot delivered, and the loaded rows are among them where they belong.

The current table is written in one commit from all loaded rows, and is as of the snapshot's LSN then.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import to_arrow_schema

from spillway.lake import layout, lease, partitions
from spillway.lake.columns import spark_schema
from spillway.lake.delta_tables import _KEY_PROPERTY, DeltaTables
from spillway.lake.files import replace_json
from spillway.lake.net_effect import COPIES_FIELD, quoted
from spillway.lake.parquet_tables import LOAD_MARK, ParquetTables
from spillway.lake.tables import CURRENT, HISTORY, MULTISET, Batch, LakeTables
from spillway.pg.lsn import Lsn
from spillway.storage.durable_files import put_all_in_place, put_in_place

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: The batch id of a commit that no batch made.
NO_BATCH: Final = -1


class LoadTables(LakeTables, Protocol):
    """The lake tables of one path, for a load. Driver only."""

    def prepare_history(self, name: str, schema: StructType, lsn: int) -> None:
        """Make the history table, which then has nothing before *lsn*, or give it *schema*'s columns that it lacks."""
        ...

    def loaded_chunks(self, name: str, lsn: int) -> int:
        """Return how many chunks of the load as of *lsn* are durable; they come in order."""
        ...

    def append_loaded(self, name: str, rows: DataFrame, lsn: int, chunk: int) -> None:
        """Commit chunk *chunk* of the load as of *lsn*, unless it was committed before."""
        ...

    def seal_loaded(self, name: str, lsn: int) -> None:
        """All chunks of the load as of *lsn* are durable: let history show their rows, if it doesn't yet."""
        ...

    def drop_loaded(self, name: str, lsn: int) -> None:
        """Take the rows of the load as of *lsn* out of history, as if they had never been there."""
        ...

    def replace_current(
        self, name: str, rows: DataFrame, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        """Make *rows* the current table, whatever it was, as of the batch's end; *columns* without copies."""
        ...


def loaded_rows(tables: LoadTables, name: str, lsn: int) -> DataFrame:
    """Return the history's rows that the load as of *lsn* read."""
    return tables.history(name, lsn - 1, lsn).where(F.col("_op") == "R")


def in_shape(rows: DataFrame, columns: pa.Schema, key: tuple[str, ...]) -> DataFrame:
    """Return *rows* with the current table's columns, attribute numbers included."""
    wanted = spark_schema(columns.append(COPIES_FIELD) if key == MULTISET else columns)
    return rows.select(
        *(F.col(quoted(f.name)).alias(f.name, metadata=f.metadata) for f in wanted.fields)
    )


class DeltaLoadTables(DeltaTables):
    """See :class:`LoadTables`. A chunk's mark is its number, as version of the load's own application id."""

    def prepare_history(self, name: str, schema: StructType, lsn: int) -> None:
        empty = self._spark.createDataFrame([], schema)
        if not self._exists(HISTORY, name):
            self._create(HISTORY, name, schema, {})
        if self.durable_lsn(HISTORY, name) == 0:
            self._append(HISTORY, name, empty, Batch(self._slot_name, lsn, lsn, NO_BATCH))
            return
        self._widen(HISTORY, name, schema)
        self._allow_timestamps(HISTORY, name, schema)
        if set(schema.names) - set(self._frame(HISTORY, name).schema.names):
            writer = self._to_append(HISTORY, name, empty).option("mergeSchema", "true")
            writer.save(self._location(HISTORY, name))

    def loaded_chunks(self, name: str, lsn: int) -> int:
        if not self._exists(HISTORY, name):
            return 0
        found = self._snapshot(HISTORY, name).transactions().get(self._load(lsn))
        return int(found.get()) + 1 if found.isDefined() else 0

    def append_loaded(self, name: str, rows: DataFrame, lsn: int, chunk: int) -> None:
        lease.check(self._path)
        writer = self._to_append(HISTORY, name, rows)
        writer = writer.option("txnAppId", self._load(lsn)).option("txnVersion", chunk)
        about = {"slot": self._slot_name, "load": str(Lsn(lsn)), "chunk": chunk}
        writer = writer.option("userMetadata", json.dumps({"spillway": about}))
        writer.save(self._location(HISTORY, name))

    def seal_loaded(self, name: str, lsn: int) -> None:
        """Do nothing: history shows each chunk from its commit on."""

    def drop_loaded(self, name: str, lsn: int) -> None:
        lease.check(self._path)
        if self._exists(HISTORY, name):
            table = f"delta.{quoted(self._location(HISTORY, name))}"
            self._spark.sql(f"DELETE FROM {table} WHERE _op = 'R' AND _commit_lsn = {lsn - 1}")  # noqa: S608 - quoted

    def replace_current(
        self, name: str, rows: DataFrame, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        lease.check(self._path)
        rows = in_shape(rows, columns, key)
        if not self._exists(CURRENT, name):
            self._create(CURRENT, name, rows.schema, {_KEY_PROPERTY: json.dumps(key)})
        elif self.key(name) != key:
            self._set_key(name, key)
        self._allow_timestamps(CURRENT, name, rows.schema)
        # Written whole, it has what partitions are asked for now, whatever it was made with.
        made = layout.load(self._path).partitions(CURRENT, name)
        rows = partitions.added(rows, made)
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer = writer.partitionBy(*partitions.names(made))
        writer = writer.option("txnAppId", self._application).option("txnVersion", batch.end_lsn)
        about = {"slot": self._slot_name, "load": str(Lsn(batch.end_lsn))}
        writer = writer.option("userMetadata", json.dumps({"spillway": about}))
        writer.save(self._location(CURRENT, name))

    def _load(self, lsn: int) -> str:
        return f"{self._application}/load/{Lsn(lsn)}"


class ParquetLoadTables(ParquetTables):
    """See :class:`LoadTables`. Chunks wait where readers don't look, and become one of history's directories together.

    ::

    history/<table>/.load-<LSN>/chunk-000000/part-*.parquet
    history/<table>/end_lsn=<LSN - 1>/part-*.parquet, _load.json
    """

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
