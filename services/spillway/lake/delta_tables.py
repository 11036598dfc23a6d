"""Lake tables in Delta Lake, through Spark.

A commit's LSN is the *transaction version* of the writer's application id in the same Delta commit
(``txnAppId``/``txnVersion``, the protocol's SetTransaction): Delta skips a write whose version it has, keeps the version in
checkpoints when old log entries go, and hands it out with the snapshot. An LSN below 2^63 fits a version, grows with
each batch and means the same to every process, where a batch id would begin at 0 again with a new Spark checkpoint. The commit's
``userMetadata`` says the same for people: ``DESCRIBE HISTORY`` shows slot and LSN range.

Current tables are merged with deletion vectors: MERGE marks rows instead of rewriting their files.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spillway.errors import LakeTableConflict
from spillway.lake.net_effect import COPIES, KEEP, SET, NetEffect, quoted
from spillway.lake.tables import CURRENT, HISTORY, MULTISET, Batch, check_same_key
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_KEY_PROPERTY: Final = "spillway.key"
_SLOT_PROPERTY: Final = "spillway.slot"
#: Names that Delta stores only with column mapping.
_NEEDS_MAPPING: Final = re.compile(r"[ ,;{}()\n\t=]")
_VIEW: Final = "spillway_net_effect"


class DeltaTables:
    """See :class:`spillway.lake.tables.LakeTables`."""

    def __init__(self, spark: SparkSession, path: Path, slot_name: str) -> None:
        # Merges read their transaction id from the session's configuration: a session of our own for that.
        self._spark = spark.newSession()
        self._path = path
        self._slot_name = slot_name
        self._application = f"spillway/{slot_name}"

    def durable_lsn(self, kind: str, name: str) -> int:
        snapshot = self._snapshot(kind, name)
        if snapshot is None:
            return 0
        owner = snapshot.metadata().configuration().get(_SLOT_PROPERTY)
        if not owner.isDefined() or owner.get() != self._slot_name:
            raise LakeTableConflict(
                f"{self._location(kind, name)} was not made for slot {self._slot_name}",
                hint="Use a path of its own for each slot, or move that table away.",
                relation=name,
            )
        version = snapshot.transactions().get(self._application)
        return int(version.get()) if version.isDefined() else 0

    def schema(self, kind: str, name: str) -> pa.Schema | None:
        if not self._exists(kind, name):
            return None
        return to_arrow_schema(self._frame(kind, name).schema, timezone="UTC")

    def append_history(self, name: str, rows: DataFrame, batch: Batch) -> None:
        if not self._exists(HISTORY, name):
            self._create(HISTORY, name, rows.schema, {})
        self._append(HISTORY, name, rows, batch)

    def history(self, name: str, start_lsn: int, end_lsn: int) -> DataFrame:
        commit = F.col("_commit_lsn")
        return self._frame(HISTORY, name).where((commit >= start_lsn) & (commit < end_lsn))

    def current(self, name: str) -> DataFrame | None:
        return self._frame(CURRENT, name) if self._exists(CURRENT, name) else None

    def key(self, name: str) -> tuple[str, ...] | None:
        snapshot = self._snapshot(CURRENT, name)
        if snapshot is None:
            return None
        stored = snapshot.metadata().configuration().get(_KEY_PROPERTY)
        return tuple(json.loads(stored.get())) if stored.isDefined() else None

    def apply(
        self, name: str, effect: NetEffect, columns: pa.Schema, key: tuple[str, ...], batch: Batch
    ) -> None:
        stored = self.schema(CURRENT, name)
        if stored is None:
            schema = from_arrow_schema(columns, prefer_timestamp_ntz=True)
            if key == MULTISET:
                schema = schema.add(COPIES, "bigint")
            self._create(
                CURRENT,
                name,
                schema,
                {_KEY_PROPERTY: json.dumps(key), "delta.enableDeletionVectors": "true"},
            )
            present = F.col(COPIES) > 0 if key == MULTISET else F.col(SET)
            rows = effect.frame.where(present).select(*(quoted(c) for c in schema.names))
            self._append(CURRENT, name, rows, batch)
            return
        check_same_key(name, self.key(name) or MULTISET, key)
        added = [field for field in columns if stored.get_field_index(field.name) < 0]
        if added:
            self._add_columns(name, columns)
        effect.frame.createOrReplaceTempView(_VIEW)
        statement = (
            merge_copies(columns.names, truncated=effect.truncated)
            if key == MULTISET
            else merge_rows(columns.names, key, effect.kept_columns, truncated=effect.truncated)
        )
        target = f"delta.{quoted(self._location(CURRENT, name))}"
        settings = {
            "spark.databricks.delta.write.txnAppId": self._application,
            "spark.databricks.delta.write.txnVersion": str(batch.end_lsn),
            "spark.databricks.delta.commitInfo.userMetadata": _user_metadata(batch),
        }
        for setting, value in settings.items():
            self._spark.conf.set(setting, value)
        try:
            self._spark.sql(f"MERGE INTO {target} AS t USING {_VIEW} AS s {statement}")
        finally:
            for setting in settings:
                self._spark.conf.unset(setting)
            self._spark.catalog.dropTempView(_VIEW)

    def _add_columns(self, name: str, columns: pa.Schema) -> None:
        """Evolve the current table's schema: a commit without rows, and without an LSN."""
        empty = self._spark.createDataFrame(
            [], from_arrow_schema(columns, prefer_timestamp_ntz=True)
        )
        writer = empty.write.format("delta").mode("append").option("mergeSchema", "true")
        writer.save(self._location(CURRENT, name))

    def _create(self, kind: str, name: str, schema: StructType, properties: dict[str, str]) -> None:
        table = f"delta.{quoted(self._location(kind, name))}"
        writer = self._spark.createDataFrame([], schema).writeTo(table).using("delta")
        properties = {_SLOT_PROPERTY: self._slot_name, **properties}
        if any(_NEEDS_MAPPING.search(column) for column in schema.names):
            properties["delta.columnMapping.mode"] = "name"
        for key, value in properties.items():
            writer = writer.tableProperty(key, value)
        writer.create()

    def _append(self, kind: str, name: str, rows: DataFrame, batch: Batch) -> None:
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        writer = writer.option("txnAppId", self._application).option("txnVersion", batch.end_lsn)
        writer.option("userMetadata", _user_metadata(batch)).save(self._location(kind, name))

    def _location(self, kind: str, name: str) -> str:
        return str(self._path / kind / name)

    def _exists(self, kind: str, name: str) -> bool:
        return (self._path / kind / name / "_delta_log").is_dir()

    def _frame(self, kind: str, name: str) -> DataFrame:
        return self._spark.read.format("delta").load(self._location(kind, name))

    def _snapshot(self, kind: str, name: str) -> Any:
        """Return the table's newest snapshot (Delta's Scala object), or None."""
        if not self._exists(kind, name):
            return None
        jvm = self._spark._jvm  # noqa: SLF001 - SetTransaction versions have no other reader in Python
        assert jvm is not None  # classic Spark has one
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession,  # noqa: SLF001 - as above
            self._location(kind, name),
        )
        return log.update(*(getattr(log, f"update$default${position}")() for position in (1, 2, 3)))


def merge_rows(
    columns: Sequence[str], key: Sequence[str], kept: Sequence[str], *, truncated: bool
) -> str:
    """Return the clauses of a keyed MERGE of target ``t`` with the net effect ``s``."""
    on = " AND ".join(f"t.{quoted(k)} = s.{quoted(k)}" for k in key)
    updates = ", ".join(
        f"t.{quoted(c)} = CASE WHEN s.{quoted(KEEP + c)} THEN t.{quoted(c)} ELSE s.{quoted(c)} END"
        if c in kept
        else f"t.{quoted(c)} = s.{quoted(c)}"
        for c in columns
    )
    return " ".join(
        [
            f"ON {on}",
            f"WHEN MATCHED AND s.{SET} THEN UPDATE SET {updates}",
            "WHEN MATCHED THEN DELETE",
            f"WHEN NOT MATCHED AND s.{SET} THEN {_insert(columns)}",
            *_emptied(truncated=truncated),
        ]
    )


def merge_copies(columns: Sequence[str], *, truncated: bool) -> str:
    """Return the clauses of a MERGE of copies of distinct rows."""
    on = " AND ".join(f"t.{quoted(c)} <=> s.{quoted(c)}" for c in columns)
    copies = f"s.{COPIES}" if truncated else f"t.{COPIES} + s.{COPIES}"
    return " ".join(
        [
            f"ON {on}",
            f"WHEN MATCHED AND {copies} > 0 THEN UPDATE SET t.{COPIES} = {copies}",
            "WHEN MATCHED THEN DELETE",
            f"WHEN NOT MATCHED AND s.{COPIES} > 0 THEN {_insert([*columns, COPIES])}",
            *_emptied(truncated=truncated),
        ]
    )


def _insert(columns: Sequence[str]) -> str:
    names = ", ".join(quoted(c) for c in columns)
    values = ", ".join(f"s.{quoted(c)}" for c in columns)
    return f"INSERT ({names}) VALUES ({values})"  # noqa: S608 - names are quoted


def _emptied(*, truncated: bool) -> Iterator[str]:
    if truncated:
        yield "WHEN NOT MATCHED BY SOURCE THEN DELETE"


def _user_metadata(batch: Batch) -> str:
    return json.dumps(
        {
            "spillway": {
                "slot": batch.slot_name,
                "start_lsn": str(Lsn(batch.start_lsn)),
                "end_lsn": str(Lsn(batch.end_lsn)),
                "batch_id": batch.batch_id,
            }
        }
    )
