"""A lake under test: a slot in a directory, the job that reads it, and what the tables say
afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from harness.arrow_slot import ArrowSlot, DirectoryClient
from spillway.lake.batch.materialize import Materializer
from spillway.lake.job.run import JobSettings, JobSummary, run_job
from spillway.lake.shape.payload import ENVELOPE
from spillway.lake.source.data_source import envelopes
from spillway.lake.state import position
from spillway.lake.tables.formats import lake_tables
from spillway.lake.tables.parquet.tables import current_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from spillway.lake.batch.materialize import BatchReport


#: with which lakes under test hash
MASK_SECRET: Final = "a secret of a lake under test"


class Lake:
    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        table_format: Literal["delta", "iceberg", "parquet"],
    ) -> None:
        self.spark = spark
        self.table_format = table_format
        self.path = directory / "lake"
        self.checkpoint = directory / "checkpoint"
        self.slot = ArrowSlot(directory / "slot")
        self.reports: list[BatchReport] = []
        self._job: Materializer | None = None

    def settings(self, **changed: Any) -> JobSettings:
        settings: dict[str, Any] = {
            "slot": self.slot.slot_name,
            "path": self.path,
            "checkpoint": self.checkpoint,
            "table_format": self.table_format,
            "source_options": self.slot.options,
        }
        return JobSettings(**settings | changed)

    def run(self, **changed: Any) -> JobSummary:
        """Bring the lake up to what the slot has decoded."""
        return run_job(self.settings(**changed), spark=self.spark, on_batch=self.reports.append)

    def batch(self) -> BatchReport:
        """Do a batch of what the slot has, as a running job does, without a streaming query."""
        settings, client = self.settings(), DirectoryClient(self.slot.directory)
        at = client.position(self.slot.slot_name)
        start, end = at.confirmed_flush_lsn, at.decoded_lsn
        if self._job is None:
            lake = position.check(self.path, self.table_format, at, has_checkpoint=False)
            tables = lake_tables(self.table_format, self.spark, self.path, at.slot_name)
            report = self.reports.append
            self._job = Materializer(tables, client, settings.path, lake, report=report)
        bodies = client.read(at.slot_name, start, end)
        rows = pa.Table.from_batches(envelopes(bodies, start, end, ENVELOPE))
        self._job.process(self.spark.createDataFrame(rows), len(self.reports))
        return self.reports[-1]

    def history(self, table: str) -> list[dict[str, Any]]:
        frame = self._frame("history", table).orderBy("_commit_lsn", "_seq")
        return [row.asDict(recursive=True) for row in frame.collect()]

    def current(self, table: str) -> list[dict[str, Any]]:
        """Return the current rows, in the order of all their columns."""
        rows = [row.asDict(recursive=True) for row in self._frame("current", table).collect()]
        return sorted(rows, key=lambda row: tuple(str(value) for value in row.values()))

    def _frame(self, kind: str, table: str) -> DataFrame:
        if self.table_format == "delta":
            return self.spark.read.format("delta").load(str(self.path / kind / table))
        if self.table_format == "iceberg":
            return self._iceberg_frame(kind, table)
        if kind == "current":
            return self.spark.read.parquet(str(current_path(self.path, table)))
        return self.spark.read.option("mergeSchema", "true").parquet(str(self.path / kind / table))

    def iceberg(self, kind: str, table: str) -> Table:
        """Return a table as a catalog of PyIceberg's own has it."""
        return iceberg_table(self.path, kind, table)

    def _iceberg_frame(self, kind: str, table: str) -> DataFrame:
        """Read a table as PyIceberg does, which shares nothing with how the job reads it."""
        return iceberg_frame(self.spark, self.path, kind, table)


def iceberg_table(lake: Path, kind: str, table: str) -> Table:
    """Return a table of a lake with a catalog of its own, as one of PyIceberg's has it."""
    schema, name = table.split(".")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{lake}/catalog.db")
    return catalog.load_table((f"{kind}_{schema}", name))


def iceberg_frame(spark: SparkSession, lake: Path, kind: str, table: str) -> DataFrame:
    """Return such a table's rows, as PyIceberg reads them."""
    rows = iceberg_table(lake, kind, table).scan().to_arrow()
    return spark.createDataFrame(rows.cast(small_types(rows.schema)))


def small_types(schema: pa.Schema) -> pa.Schema:
    plain = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return pa.schema([pa.field(f.name, plain.get(f.type, f.type)) for f in schema])


def without(rows: Sequence[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]
