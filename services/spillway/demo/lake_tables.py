"""Read a lake's current tables as anybody with Spark would, knowing only where they are.

A program of its own (``python -m spillway.demo.lake_tables``), so that the JVM ends with it; the demo reads
the files that it writes. Parquet tables need no Spark: see :func:`spillway.lake.parquet_tables.current_path`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow.parquet as pq

from spillway.lake.session import spark_session


def main(arguments: list[str] | None = None) -> int:
    """Write each Delta table's current rows to ``INTO/<name>.parquet``."""
    parser = argparse.ArgumentParser(prog="python -m spillway.demo.lake_tables")
    parser.add_argument("--lake", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("names", nargs="+", metavar="SCHEMA.TABLE")
    chosen = parser.parse_args(arguments)
    chosen.into.mkdir(parents=True, exist_ok=True)
    spark = spark_session(table_format="delta")
    try:
        for name in chosen.names:
            frame = spark.read.format("delta").load(str(chosen.lake / "current" / name))
            pq.write_table(frame.toArrow(), chosen.into / f"{name}.parquet")
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
