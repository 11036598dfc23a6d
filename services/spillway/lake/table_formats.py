"""Which classes write a lake's tables: one place that knows the formats by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spillway.lake.initial_load_tables import LoadTables
    from spillway.lake.tables import LakeTables

FORMATS: Final = ("delta", "parquet")


def lake_tables(table_format: str, spark: SparkSession, path: Path, slot_name: str) -> LakeTables:
    """Return the tables of the lake at *path*."""
    # Each imports PySpark, an extra; Delta's also delta-rs, which the other needs not.
    if table_format == "delta":
        from spillway.lake.delta_tables import DeltaTables  # noqa: PLC0415

        return DeltaTables(spark, path.absolute(), slot_name)
    from spillway.lake.parquet_tables import ParquetTables  # noqa: PLC0415

    return ParquetTables(spark, path.absolute(), slot_name)


def load_tables(table_format: str, spark: SparkSession, path: Path, slot_name: str) -> LoadTables:
    """Return the same tables as an initial load writes them."""
    from spillway.lake.initial_load_tables import (  # noqa: PLC0415 - imports PySpark
        DeltaLoadTables,
        ParquetLoadTables,
    )

    kind = DeltaLoadTables if table_format == "delta" else ParquetLoadTables
    return kind(spark, path.absolute(), slot_name)
