"""A table read again and again by Spark over JDBC: the lake without change data capture.

Each time the whole table is read, in as many ranges of its key as there are cores, and overwrites a
Delta table. There is no history, and a row that was there for less than a round was never seen.

A child of the benchmark (:mod:`bench.child`). It answers ``read LAST`` once the table, whose keys
go up to LAST, is written.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench.child import tell
from spillway.lake.session import spark_session


def _main(conninfo: dict[str, str], directory: Path, driver: str, table: str) -> None:
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {driver} pyspark-shell"
    spark = spark_session(table_format="delta", master="local[2]")
    url = f"jdbc:postgresql://{conninfo['host']}:{conninfo['port']}/{conninfo['dbname']}"
    properties = {
        "user": conninfo["user"],
        "password": conninfo.get("password", ""),
        "driver": "org.postgresql.Driver",
        "fetchsize": "10000",
    }
    for line in sys.stdin:
        last = int(line.split()[1])
        rows = spark.read.jdbc(
            url,
            table,
            column="id",
            lowerBound=1,
            upperBound=last,
            numPartitions=2,
            properties=properties,
        )
        rows.write.format("delta").mode("overwrite").save(str(directory / "current"))
        tell({})
    spark.stop()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
