"""Read a lake as anybody with Spark would, knowing only where it is.

A program of its own (``python -m spillway.demo.lake_tables``), so that the JVM ends with it. Its
last line is JSON: per table the rows that it has now, under ``current``, and the changes in its
history by operation.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from spillway.lake.read import Lake
from spillway.lake.session import spark_session
from spillway.lake.state import position


def main(arguments: list[str] | None = None) -> int:
    """Print how many rows and changes there are, as of the newest LSN at which all tables agree."""
    parser = argparse.ArgumentParser(prog="python -m spillway.demo.lake_tables")
    parser.add_argument("--lake", type=Path, required=True)
    parser.add_argument("names", nargs="+", metavar="SCHEMA.TABLE")
    chosen = parser.parse_args(arguments)
    found = position.load(chosen.lake)
    spark = spark_session(table_format="delta" if found is None else found.table_format, short=True)
    try:
        now = Lake(spark, chosen.lake).at()
        counts = {}
        for name in chosen.names:
            operations = now.history(name).groupBy("_op").count().collect()
            by_kind = dict.fromkeys("IUD", 0) | {row["_op"]: row["count"] for row in operations}
            counts[name] = {"current": now.current(name).count(), **by_kind}
    finally:
        spark.stop()
    sys.stdout.write(f"{json.dumps(counts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
