"""Which classes write a lake's tables: one place that knows the formats by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.errors import InvalidRequest, UnsupportedFeature
from spillway.lake.tables.iceberg.catalog import check_installed
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spillway.lake.tables.contract import LakeTables
    from spillway.lake.tables.figures import Looks
    from spillway.lake.tables.load_contract import LoadTables
    from spillway.storage.place import LakePath

FORMATS: Final = ("delta", "iceberg", "parquet")


def check_format(table_format: str, path: LakePath) -> None:
    """See to it that there are tables of such a format at such a place.

    Raises:
        InvalidRequest: there is no such format.
        UnsupportedFeature: it takes directories.
    """
    if table_format not in FORMATS:
        raise InvalidRequest(
            f"unknown format {table_format!r}", hint=f"One of {', '.join(FORMATS)}."
        )
    if table_format == "parquet" and isinstance(path, ObjectPath):
        raise UnsupportedFeature(
            f"a lake of plain Parquet files can't be at {path}: a batch is committed by renaming "
            "its directory, and object storage has neither",
            hint="Use --format delta or iceberg, which commit by one write, or a directory.",
        )
    if table_format == "iceberg":
        if isinstance(path, ObjectPath) and path.scheme != "s3":
            raise UnsupportedFeature(
                f"a lake of Iceberg tables can't be at {path}: of object storage, it takes S3",
                hint="Use --format delta, or a bucket of S3 or of what speaks its protocol.",
            )
        check_installed()
        if "?" in str(path) and not isinstance(path, ObjectPath):
            raise InvalidRequest(
                f"a lake of Iceberg tables can't be at {path}: the catalog's database is named by "
                "a URL",
                hint="Name a directory without a question mark.",
            )


def lake_tables(
    table_format: str, spark: SparkSession, path: LakePath, slot_name: str, *, merge: str = "copy"
) -> LakeTables:
    """Return the tables of the lake at *path*; *merge* is the option of that name
    (:mod:`spillway.declarations.lake_options`).
    """
    # Each imports PySpark, an extra; Delta's also delta-rs, which the other needs not.
    if table_format == "delta":
        from spillway.lake.tables.delta.tables import DeltaTables  # noqa: PLC0415

        return DeltaTables(spark, path.absolute(), slot_name, by_position=merge == "position")
    if table_format == "iceberg":
        from spillway.lake.tables.iceberg.tables import IcebergTables  # noqa: PLC0415

        where = _checked("iceberg", path)
        return IcebergTables(spark, where, slot_name, by_position=merge == "position")
    from spillway.lake.tables.parquet.tables import ParquetTables  # noqa: PLC0415

    return ParquetTables(spark, _directory(path), slot_name)


def load_tables(
    table_format: str, spark: SparkSession, path: LakePath, slot_name: str
) -> LoadTables:
    """Return the same tables as an initial load writes them."""
    from spillway.lake.tables.delta.load_tables import DeltaLoadTables  # noqa: PLC0415 - imports PySpark
    from spillway.lake.tables.parquet.load_tables import ParquetLoadTables  # noqa: PLC0415 - imports PySpark

    if table_format == "delta":
        return DeltaLoadTables(spark, path.absolute(), slot_name)
    if table_format == "iceberg":
        from spillway.lake.tables.iceberg.load_tables import IcebergLoadTables  # noqa: PLC0415

        return IcebergLoadTables(spark, _checked("iceberg", path), slot_name)
    return ParquetLoadTables(spark, _directory(path), slot_name)


def table_looks(table_format: str, path: LakePath) -> Looks:
    """Return what looks at the current tables of the lake at *path*."""
    # Each imports its format's library.
    if table_format == "delta":
        from spillway.lake.tables.delta.figures import DeltaLooks  # noqa: PLC0415

        return DeltaLooks(path.absolute())
    if table_format == "iceberg":
        from spillway.lake.tables.iceberg.figures import IcebergLooks  # noqa: PLC0415

        return IcebergLooks(path.absolute())
    from spillway.lake.tables.parquet.figures import ParquetLooks  # noqa: PLC0415

    return ParquetLooks(_directory(path))


def _checked(table_format: str, path: LakePath) -> LakePath:
    check_format(table_format, path)
    return path.absolute()


def _directory(path: LakePath) -> Path:
    checked = _checked("parquet", path)
    assert isinstance(checked, Path)  # it was checked
    return checked
