"""Delta tables as an initial load writes them: see
:class:`spillway.lake.tables.load_contract.LoadTables`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spillway.lake import lease
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.net_effect import quoted
from spillway.lake.tables import layout, partitions
from spillway.lake.tables.contract import Batch
from spillway.lake.tables.delta.tables import KEY_PROPERTY, DeltaTables
from spillway.lake.tables.load_contract import NO_BATCH, in_shape
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class DeltaLoadTables(DeltaTables):
    """See :class:`spillway.lake.tables.load_contract.LoadTables`. A chunk's mark is its number, as
    version of the load's own application id.
    """

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
            self._create(CURRENT, name, rows.schema, {KEY_PROPERTY: json.dumps(key)})
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
