"""Current tables merged by position, which Spark reads, merges into and maintains in between."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from harness.arrow_slot import Table, delete, insert, truncate, update
from harness.lake import Lake
from spillway.errors import LakeError, StorageError
from spillway.failpoints import armed
from spillway.lake.read import Lake as Reader
from spillway.lake.tables import layout, positions
from spillway.lake.tables.delta import positions as delta_positions
from spillway.lake.tables.formats import lake_tables
from spillway.lake.tables.iceberg import snapshots
from spillway.lake.tables.maintenance import Upkeep, maintain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string(), "body": pa.string()})
_OURS, _SPARK = "spillway", "Apache-Spark"


@pytest.fixture(autouse=True)
def _no_table_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)


def operations(lake: Lake, table: str) -> list[tuple[str, str]]:
    """Return who made the current table's commits, and what they are called."""
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.path / 'current' / table}`")
    return [(re.split("[/:]", r["engineInfo"])[0], r["operation"]) for r in history.collect()][::-1]


def by_delta_rs(lake: Lake, table: str) -> list[dict[str, Any]]:
    """Return the current rows as delta-rs' own engine reads them."""
    stored = DeltaTable(str(lake.path / "current" / table))
    found = QueryBuilder().register("t", stored).execute("SELECT * FROM t").read_all()
    rows = pa.table(found).to_pylist()
    return sorted(rows, key=lambda row: tuple(str(value) for value in row.values()))


def row(id_: int, name: str = "n") -> dict[str, Any]:
    return {"id": id_, "name": name, "body": "b"}


@pytest.mark.long
def test_spark_reads_and_merges_what_is_marked(
    delta_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_positions, "_CHECKPOINT_INTERVAL", 3)
    lake, name = delta_lake, "public.items"
    model = {i: row(i) for i in range(60)}
    lake.slot.commit(*(insert(ITEMS, **each) for each in model.values()))
    lake.run(merge="position")

    def check() -> None:
        wanted = sorted(model.values(), key=lambda r: str(r["id"]))
        assert lake.current(name) == wanted
        assert by_delta_rs(lake, name) == wanted

    for n in range(4):
        changed = [row(i, f"round {n}") for i in range(n, 60, 7) if i in model]
        gone = [i for i in range(n * 3, n * 3 + 2) if i in model and i % 7 != n]
        lake.slot.commit(
            *(update(ITEMS, each) for each in changed),
            *(delete(ITEMS, id=i) for i in gone),
            insert(ITEMS, **row(100 + n)),
        )
        model |= {each["id"]: each for each in [*changed, row(100 + n)]}
        for i in gone:
            del model[i]
        lake.run(merge="position")
        assert operations(lake, name)[-1] == (_OURS, "MERGE")
        check()
    point = lake.reports[-1].end_lsn
    there = {id_: dict(each) for id_, each in model.items()}
    hint = (lake.path / "current" / name / "_delta_log" / "_last_checkpoint").read_text()
    assert json.loads(hint)["version"] > 1

    # A value that was not logged is read from the row's place.
    lake.slot.commit(
        update(ITEMS, {"id": 50, "name": "s", "body": None}, unchanged=("body",)),
        update(ITEMS, row(101, "s")),
    )
    model[50]["name"], model[101] = "s", row(101, "s")
    lake.run(merge="position")
    assert operations(lake, name)[-1] == (_OURS, "MERGE")
    check()
    # Spark's MERGE takes a row that moves and has one; it writes vectors, too, and its files are
    # found.
    lake.slot.commit(update(ITEMS, {"id": 252, "name": "m", "body": None}, {"id": 51}, ("body",)))
    model[252] = {**model.pop(51), "id": 252, "name": "m"}
    lake.run(merge="position")
    assert operations(lake, name)[-1][0] == _SPARK
    check()
    lake.slot.commit(
        update(ITEMS, row(50, "p")), update(ITEMS, row(101, "p")), delete(ITEMS, id=252)
    )
    model |= {50: row(50, "p"), 101: row(101, "p")}
    del model[252]
    lake.run(merge="position")
    assert operations(lake, name)[-1] == (_OURS, "MERGE")
    check()

    # A round of maintenance folds, and the job goes on from there.
    tables = lake_tables("delta", lake.spark, lake.path, lake.slot.slot_name, merge="position")
    done = maintain(lake.spark, lake.path, "delta", tables, Upkeep())
    assert done.failures == {}
    assert (_OURS, "OPTIMIZE") in operations(lake, name)
    check()
    lake.slot.commit(delete(ITEMS, id=50), update(ITEMS, row(101, "last")))
    model[101] = row(101, "last")
    del model[50]
    lake.run(merge="position")
    check()
    # Back to files written anew: Spark, which knows vectors, as delta-rs would not write them.
    lake.slot.commit(update(ITEMS, row(101, "copied")))
    model[101] = row(101, "copied")
    lake.run(merge="copy")
    check()
    lake.slot.commit(truncate(ITEMS), insert(ITEMS, **row(1, "after")))
    lake.run(merge="position")
    assert operations(lake, name)[-1] == (_OURS, "MERGE")
    model.clear()
    model[1] = row(1, "after")
    check()
    # As it was.
    then = Reader(lake.spark, lake.path).at(point).current(name).collect()
    assert {each["id"]: each.asDict() for each in then} == there


@pytest.mark.long
def test_partitions(delta_lake: Lake) -> None:
    lake, name = delta_lake, "public.items"
    asked = layout.parse(None, ["public.items=name"], [])
    lake.slot.commit(*(insert(ITEMS, **row(i, f"n {i % 3}")) for i in range(30)))
    lake.run(merge="position", layout=asked)
    # Rows that move to another partition, to a new one, and to that of null.
    lake.slot.commit(
        update(ITEMS, row(1, "n 0")),
        update(ITEMS, row(2, "né/w=1")),
        update(ITEMS, {"id": 3, "name": None, "body": "b"}),
        delete(ITEMS, id=4),
    )
    lake.run(merge="position")
    assert operations(lake, name)[-1] == (_OURS, "MERGE")
    model = {i: row(i, f"n {i % 3}") for i in range(30) if i != 4}
    model |= {1: row(1, "n 0"), 2: row(2, "né/w=1"), 3: {"id": 3, "name": None, "body": "b"}}
    wanted = sorted(model.values(), key=lambda r: str(r["id"]))
    frame = lake.spark.read.format("delta").load(str(lake.path / "current" / name))
    found = [r.asDict() for r in frame.select("id", "name", "body").collect()]
    assert sorted(found, key=lambda r: str(r["id"])) == wanted
    by = {r["id"]: r["_by_name"] for r in frame.collect()}
    assert [by[i] for i in (0, 1, 2, 3)] == ["n_0", "n_0", "n__w_1", None]
    assert frame.where("_by_name = 'n_0'").count() == sum(r["name"] == "n 0" for r in wanted)
    tables = lake_tables("delta", lake.spark, lake.path, lake.slot.slot_name, merge="position")
    assert maintain(lake.spark, lake.path, "delta", tables, Upkeep()).failures == {}
    found = [r.asDict() for r in frame.select("id", "name", "body").collect()]
    assert sorted(found, key=lambda r: str(r["id"])) == wanted


@pytest.mark.long
def test_iceberg_over_a_jobs_life(spark: SparkSession, tmp_path: Path) -> None:
    """Spark and PyIceberg (in ``current``) read what is marked, through maintenance and back."""
    lake, name = Lake(spark, tmp_path, "iceberg"), "public.items"
    model = {i: row(i) for i in range(60)}
    lake.slot.commit(*(insert(ITEMS, **each) for each in model.values()))
    lake.run(merge="position")

    def check() -> None:
        assert lake.current(name) == sorted(model.values(), key=lambda r: str(r["id"]))

    def deletes() -> list[str]:
        table = lake.iceberg("current", name)
        return [f.file_path for f in snapshots.live_files(table, table.current_snapshot())[1]]

    for n in range(3):
        changed = [row(i, f"round {n}") for i in range(n, 60, 7) if i in model]
        gone = [i for i in range(n * 3, n * 3 + 2) if i in model and i % 7 != n]
        lake.slot.commit(
            *(update(ITEMS, each) for each in changed),
            *(delete(ITEMS, id=i) for i in gone),
            insert(ITEMS, **row(100 + n)),
        )
        model |= {each["id"]: each for each in [*changed, row(100 + n)]}
        for i in gone:
            del model[i]
        lake.run(merge="position")
        assert deletes()
        check()
    point = lake.reports[-1].end_lsn
    there = {id_: dict(each) for id_, each in model.items()}

    tables = lake_tables("iceberg", lake.spark, lake.path, lake.slot.slot_name, merge="position")
    assert maintain(lake.spark, lake.path, "iceberg", tables, Upkeep()).failures == {}
    assert deletes() == []
    check()
    lake.slot.commit(delete(ITEMS, id=50), update(ITEMS, row(101, "last")))
    model[101] = row(101, "last")
    del model[50]
    lake.run(merge="position")
    assert len(deletes()) == 1
    check()
    lake.slot.commit(
        update(ITEMS, {"id": 49, "name": "s", "body": None}, unchanged=("body",)),
        update(ITEMS, {"id": 248, "name": "m", "body": None}, {"id": 48}, ("body",)),
    )
    model[49]["name"] = "s"
    model[248] = {**model.pop(48), "id": 248, "name": "m"}
    lake.run(merge="position")
    check()
    # Back to files written anew: Spark, as the direct merge knows no deletes, until they are gone.
    for who in ("Spark", "us"):
        lake.slot.commit(update(ITEMS, row(101, who)))
        model[101] = row(101, who)
        lake.run(merge="copy")
        check()
        tables = lake_tables("iceberg", lake.spark, lake.path, lake.slot.slot_name, merge="copy")
        assert maintain(lake.spark, lake.path, "iceberg", tables, Upkeep()).failures == {}
        assert deletes() == []
        check()
    lake.slot.commit(update(ITEMS, row(101, "marked")))
    model[101] = row(101, "marked")
    lake.run(merge="position")
    # A table that is written anew has no deletes any more.
    lake.slot.commit(truncate(ITEMS), insert(ITEMS, **row(1, "after")))
    lake.run(merge="copy")
    model.clear()
    model[1] = row(1, "after")
    assert deletes() == []
    check()
    # As it was.
    then = Reader(lake.spark, lake.path).at(point).current(name).collect()
    assert {each["id"]: each.asDict() for each in then} == there


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_what_was_left_between_history_and_current(
    spark: SparkSession, tmp_path: Path, table_format: Literal["delta", "iceberg"]
) -> None:
    """A batch of which only history was made durable is merged by position by the next run, with
    what came since: the files that were there stay.
    """
    lake, name = Lake(spark, tmp_path, table_format), "public.items"
    model = {i: row(i) for i in range(60)}
    lake.slot.commit(*(insert(ITEMS, **each) for each in model.values()))
    lake.run(merge="position")
    folder = lake.path / "current" / name
    for n, more in enumerate((False, True)):
        files = {file.name for file in folder.glob("**/*.parquet")}
        unchanged = {"id": 20 + n, "name": "kept", "body": None}
        lake.slot.commit(
            update(ITEMS, row(n, "left")),
            delete(ITEMS, id=10 + n),
            update(ITEMS, unchanged, unchanged=("body",)),
            insert(ITEMS, **row(100 + n)),
        )
        model |= {n: row(n, "left"), 100 + n: row(100 + n)}
        model[20 + n]["name"] = "kept"
        del model[10 + n]
        with armed("lake.after_history=error:EIO"), pytest.raises((LakeError, StorageError)):
            lake.run(merge="position")
        assert lake.current(name) != sorted(model.values(), key=lambda r: str(r["id"]))
        if more:
            lake.slot.commit(update(ITEMS, row(n, "later")), delete(ITEMS, id=100 + n))
            model[n] = row(n, "later")
            del model[100 + n]
        lake.run(merge="position")
        assert lake.current(name) == sorted(model.values(), key=lambda r: str(r["id"]))
        if table_format == "delta":
            assert operations(lake, name)[-1] == (_OURS, "MERGE")
            named = {Path(unquote(uri)).name for uri in DeltaTable(str(folder)).file_uris()}
        else:
            table = lake.iceberg("current", name)
            data, deletes = snapshots.live_files(table, table.current_snapshot())
            assert deletes
            named = {Path(file.file_path).name for file in data}
        assert named & files, "what is merged by position leaves files as they are"
    assert len(lake.history(name)) == 60 + 4 + 6
