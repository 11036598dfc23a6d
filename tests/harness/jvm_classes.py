"""A small lake, for the classes that it makes a JVM load: see :mod:`harness.jvm`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa

from harness.arrow_slot import Table, delete, insert, update
from harness.lake import Lake
from harness.servers import cache_directory
from spillway.lake.session import spark_session

_ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})


def main() -> None:
    """Make tables, change rows by MERGE, add a column, and read what is there."""
    with tempfile.TemporaryDirectory() as directory:
        spark = spark_session(
            table_format="delta",
            master="local[2]",
            driver_memory="1g",
            jar_folder=Path(os.environ.get("SPILLWAY_JARS") or cache_directory() / "jars"),
            short=True,
        )
        lake = Lake(spark, Path(directory), "delta")
        lake.slot.commit(*(insert(_ITEMS, id=number, name="n") for number in range(10)))
        lake.run()
        wider = _ITEMS.with_columns(price=pa.int64())
        lake.slot.commit(update(wider, {"id": 1, "name": "n", "price": 7}), delete(wider, id=2))
        lake.run()
        assert len(lake.current("public.items")) == 9
        spark.stop()


if __name__ == "__main__":
    main()
