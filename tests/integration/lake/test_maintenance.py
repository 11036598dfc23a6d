"""Small files become few, and what is older than its retention goes; what is there stays as it
is.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, truncate, update
from harness.killed_driver import run_killed
from harness.lake import Lake
from spillway.errors import InvalidRequest, LakeError
from spillway.lake.job.run import run_job
from spillway.lake.read import Lake as Reader
from spillway.lake.tables.formats import lake_tables
from spillway.lake.tables.maintenance import Upkeep, maintain
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spillway.lake.tables.maintenance import Round

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})
ODD = Table("odd name", {"id": pa.int64(), "a b": pa.string()})


def round_of(lake: Lake, upkeep: Upkeep, now: datetime | None = None) -> Round:
    tables = lake_tables(lake.table_format, lake.spark, lake.path, lake.slot.slot_name)
    return maintain(lake.spark, lake.path, lake.table_format, tables, upkeep, now=now)


@pytest.mark.long
def test_rounds(delta_lake: Lake) -> None:
    lake, spark = delta_lake, delta_lake.spark
    lake.slot.commit(insert(ODD, **{"id": 0, "a b": "x"}))
    for i in range(4):
        lake.slot.commit(insert(ITEMS, id=i, name="n"), gap=1 << 20)
    lake.slot.commit(update(ITEMS, {"id": 1, "name": "new"}), delete(ITEMS, id=2))
    lake.run(max_bytes_per_batch=1 << 20)
    last, *_, first = Reader(spark, lake.path).points()
    before = (lake.history("public.items"), lake.current("public.items"))

    # Compaction alone: nothing is old enough to go, and each version can still be pinned.
    done = round_of(lake, Upkeep())
    assert done.failures == {}
    assert done.points_forgotten == 0
    by_table = {(t.kind, t.table): t for t in done.tables}
    assert set(by_table) == {
        ("ddl", "events"),
        *(
            (kind, table)
            for kind in ("history", "current")
            for table in ("public.items", "public.odd~20name")
        ),
    }
    history = by_table["history", "public.items"]
    assert history.files_before >= 4
    assert history.files == 1
    assert history.size_bytes > 0
    assert before == (lake.history("public.items"), lake.current("public.items"))
    assert Reader(spark, lake.path).at(last.lsn).current("public.items").count() == 3

    # The job goes on from what was rewritten, without writing anything twice.
    lake.slot.commit(insert(ITEMS, id=9, name="z"), update(ITEMS, {"id": 3, "name": "three"}))
    lake.run()
    current = lake.current("public.items")
    assert [row["name"] for row in current if row["id"] in (3, 9)] == ["three", "z"]
    assert len(lake.history("public.items")) == len(before[0]) + 2

    # Two days later with a day's retention: LSNs that need old versions are given up; old changes
    # go.
    later = datetime.now(UTC) + timedelta(days=2)
    done = round_of(lake, Upkeep(timedelta(days=1), timedelta(days=1)), later)
    assert done.failures == {}
    (newest,) = Reader(spark, lake.path).points()
    assert newest.lsn == str(Lsn(lake.slot.state["confirmed_flush_lsn"]))
    with pytest.raises(LakeError, match="no consistent LSN up to"):
        Reader(spark, lake.path).at(first.lsn)
    assert sum(t.rows_removed for t in done.tables) == len(before[0]) + 2 + 1
    assert "maintained history of public.items" in str(done.tables[0])
    assert lake.history("public.items") == []
    assert lake.current("public.items") == current

    # What comes later is taken up as ever.
    lake.slot.commit(delete(ITEMS, id=9))
    lake.run()
    assert [row["_op"] for row in lake.history("public.items")] == ["D"]
    assert lake.current("public.items") == [row for row in current if row["id"] != 9]


def test_a_job_maintains_its_lake(delta_lake: Lake) -> None:
    lake = delta_lake
    lake.slot.commit(insert(ITEMS, id=1, name="a"))
    lake.run(upkeep=Upkeep(interval=timedelta(0)))
    lake.slot.commit(truncate(ITEMS), insert(ITEMS, id=2, name="b"))
    told: list[str] = []
    settings = lake.settings(upkeep=Upkeep(interval=timedelta(0)))
    run_job(settings, spark=lake.spark, on_load=lambda step: told.append(str(step)))
    assert [line.split(":")[0] for line in told] == [
        "maintained history of public.items",
        "maintained current of public.items",
        "maintained ddl of events",
    ]
    assert lake.current("public.items") == [{"id": 2, "name": "b"}]


@pytest.mark.long
def test_what_is_set_aside(delta_lake: Lake) -> None:
    """By a job that is killed at both of its steps; maintained there, and when it is history's."""
    lake, spark = delta_lake, delta_lake.spark
    priced = ITEMS.with_columns(price=pa.int64())
    settings = {
        "slot": lake.slot.slot_name,
        "path": str(lake.path),
        "checkpoint": str(lake.checkpoint),
        "source_options": lake.slot.options,
        "on_schema_change": "quarantine",
    }
    lake.slot.commit(insert(ITEMS, id=0, name="n"), insert(ODD, **{"id": 0, "a b": "x"}))
    lake.run()
    for number, failpoint in enumerate(("after_quarantined", "after_quarantine"), 1):
        confirmed = lake.slot.state["confirmed_flush_lsn"]
        lake.slot.commit(insert(priced, id=number, name="aside", price=1))
        run_killed(spark, f"lake.{failpoint}=kill@1", "job", settings)
        assert lake.slot.state["confirmed_flush_lsn"] == confirmed
        lake.run(on_schema_change="quarantine")
        assert lake.slot.state["confirmed_flush_lsn"] == lake.slot.state["decoded_lsn"]

    short = Upkeep(timedelta(days=1), timedelta(days=1))
    done = round_of(lake, short)
    assert done.failures == {}
    by_table = {(t.kind, t.table): t for t in done.tables}
    assert ("ddl", "events") in by_table
    aside = by_table["quarantine", "public.items"]
    assert (aside.files_before, aside.files, aside.rows_removed) == (2, 1, 0)
    there = Reader(spark, lake.path).at().quarantine("public.items")
    assert sorted(row["_seq"] for row in there.collect()) == [0, 0]

    lake.slot.commit(update(priced, {"id": 1, "name": "back", "price": 2}))
    lake.run(on_schema_change="evolve")
    done = round_of(lake, short)
    assert done.failures == {}
    by_table = {(t.kind, t.table): t for t in done.tables}
    assert by_table["quarantine", "public.items"].rows_removed == 2
    assert lake.current("public.items") == [
        {"id": 0, "name": "n", "price": None},
        {"id": 1, "name": "back", "price": 2},
        {"id": 2, "name": "aside", "price": 1},
    ]
    # Set aside again, where there was something.
    lake.slot.commit(insert(priced.without_column("name"), id=9, price=9))
    lake.run(on_schema_change="quarantine")
    (row,) = Reader(spark, lake.path).at().quarantine("public.items").collect()
    assert json.loads(row["_row"])["id"] == 9


@pytest.mark.long
def test_plain_parquet_keeps_its_history(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "parquet")
    lake.slot.commit(insert(ITEMS, id=1, name="a"))
    lake.run()
    with pytest.raises(InvalidRequest, match="kept whole"):
        round_of(lake, Upkeep(history_retention=timedelta(days=1)))
    assert round_of(lake, Upkeep()).tables == []
