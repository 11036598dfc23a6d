"""Tables that were merged by position, as Spark reads them, merges into them and maintains them:
by its JVM alone, without the job.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spillway.lake.tables.delta import positions
from spillway.lake.tables.delta.positions import DeltaPositionTable, Mark
from spillway.lake.tables.plain_changes import LastChanges
from spillway.lake.tables.positions import Shape

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])


@pytest.mark.long
def test_spark_reads_and_writes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "_CHECKPOINT_INTERVAL", 3)
    path = tmp_path / "table"
    where = f"delta.`{path}`"
    spark.sql(f"CREATE TABLE {where} (id BIGINT, name STRING, day DATE) USING delta")
    table = DeltaPositionTable(path, tmp_path / "keys")
    shape = Shape(_COLUMNS, ("id",))
    model: dict[int, str] = {}
    lsn = 0

    def merge(rows: dict[int, str], gone: list[int] | None = None) -> None:
        nonlocal lsn
        lsn += 1
        gone = gone or []
        changes: list[dict[str, Any]] = [
            {"id": id_, "name": name, "day": None} for id_, name in rows.items()
        ]
        changes += [{"id": id_, "name": None, "day": None} for id_ in gone]
        is_set = pa.array([n < len(rows) for n in range(len(changes))], pa.bool_())
        last = LastChanges(pa.Table.from_pylist(changes, schema=_COLUMNS), is_set)
        table.merge(last, shape, Mark("spillway/s", lsn, "{}"))
        table.checkpoint()
        for id_ in gone:
            model.pop(id_, None)
        model.update(rows)

    def check() -> None:
        frame = spark.read.format("delta").load(str(path))
        found = {row["id"]: row["name"] for row in frame.select("id", "name").collect()}
        assert found == model
        # From statistics and vectors' sizes alone.
        assert frame.count() == len(model)
        assert frame.where("id >= 100 AND name = 'c'").count() == sum(
            id_ >= 100 and name == "c" for id_, name in model.items()
        )

    merge(dict.fromkeys(range(300), "a"))
    check()
    merge(dict.fromkeys(range(0, 300, 3), "b"), [1, 2])
    merge(dict.fromkeys(range(0, 300, 6), "c") | {900: "c"}, [4, 5, 3])
    check()
    merge({7: "d"})
    log = path / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] >= 2
    check()
    # Spark's own changes, which write vectors, too.
    spark.sql(f"DELETE FROM {where} WHERE id BETWEEN 10 AND 12").collect()
    for id_ in (10, 11, 12):
        del model[id_]
    check()
    spark.sql(
        f"MERGE INTO {where} t USING (SELECT * FROM VALUES (20L, 's'), (950L, 's') AS v (id, name))"
        " s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name "
        "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)"
    ).collect()
    model |= {20: "s", 950: "s"}
    check()
    merge({20: "e", 12: "e"}, [950])
    check()
    assert table.fold(shape, nullcontext) > 0
    assert not any("deletionVector" in file for file in table.snapshot().files.values())
    check()
    merge({30: "f"}, [31])
    check()
    spark.sql(f"OPTIMIZE {where}").collect()
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"VACUUM {where} RETAIN 0 HOURS").collect()
    merge({30: "g", 31: "g"}, [32])
    check()
    versions = DeltaTable(str(path)).version()
    assert spark.sql(f"DESCRIBE HISTORY {where}").count() == versions + 1
