"""The data source in a session of Spark Connect: registered from the client, run by the server,
filters pushed down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from harness.arrow_slot import ArrowSlot, Table, insert

ITEMS = Table("items", {"id": pa.int64(), "body": pa.string()})

#: A client in a process of its own: a process has one kind of session. It starts the server, and
#: ends it.
_CLIENT = """
import json, sys
from pyspark.sql import SparkSession
from spillway.lake.source.data_source import SpillwayDataSource

slot = json.loads(sys.argv[1])
builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
spark.dataSource.register(SpillwayDataSource)
table = {**slot, "table": "public.items"}
reader = spark.read.format("spillway").options(**table, filter_pushdown="true")
batch = reader.option("columns", '["id", "_op"]').load()
wanted = batch.where("id > 2").orderBy("id")
stream = spark.readStream.format("spillway").options(**table).load()
query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
query.awaitTermination()
print(json.dumps({
    "kind": type(spark).__module__,
    "columns": batch.columns,
    "rows": [row.id for row in wanted.collect()],
    "streamed": spark.table("seen").count(),
}))
spark.stop()
"""


@pytest.mark.long
def test_batch_and_streaming(tmp_path: Path) -> None:
    slot = ArrowSlot(tmp_path)
    slot.commit(*(insert(ITEMS, id=i, body="b") for i in range(5)))
    given = json.dumps({**slot.options, "slot": slot.slot_name})
    tests = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, given],
        env=os.environ | {"PYTHONPATH": tests, "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (answer,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert answer == {
        "kind": "pyspark.sql.connect.session",
        "columns": ["id", "_op"],
        "rows": [3, 4],
        "streamed": 5,
    }
