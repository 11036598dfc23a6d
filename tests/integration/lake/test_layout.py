"""Partitioned and clustered tables hold what others would, whoever merges them, and however rows
move.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from harness.arrow_slot import Table, delete, insert, truncate, update
from harness.lake import Lake
from spillway.errors import LakeSchemaConflict, LakeTableConflict, UnsupportedFeature
from spillway.lake.read import Lake as Reader
from spillway.lake.state import quarantine
from spillway.lake.tables import layout, partitions
from spillway.lake.tables.delta.tables import DeltaTables
from spillway.lake.tables.maintenance import Upkeep, maintain

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

EVENTS = Table(
    "events",
    {
        "id": pa.int64(),
        "region": pa.string(),
        "at": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "n": pa.int32(),
        "note": pa.string(),
    },
)
COPIES = Table("copies", {"n": pa.int32(), "word": pa.string()}, (), "f")
ASKED = layout.parse(
    "day",
    ["public.events=day(at),region,month(day)", "public.copies=n"],
    ["public.events=n,note"],
)


def event(id_: int, region: str | None, **more: Any) -> dict[str, Any]:
    at = datetime(2026, 2, 1 + id_, 23, 59, tzinfo=UTC)
    row = {
        "id": id_,
        "region": region,
        "at": at,
        "day": date(2026, 1 + id_, 3),
        "n": id_,
        "note": "n" * id_,
    }
    return row | more  # fmt: skip


def rows(lake: Lake, table: str = "public.events") -> list[dict[str, Any]]:
    found = [row.asDict() for row in Reader(lake.spark, lake.path).at().current(table).collect()]
    return in_order(found)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])


def check_derived(lake: Lake, kind: str, table: str) -> list[str]:
    """Check that every row is in the partition of its values; return the table's derived
    columns.
    """
    where = str(lake.path / kind / table)
    stored = lake.spark.read.format("delta").load(where)
    made = partitions.partitions_of(stored.schema)
    # A column that was added since is behind them.
    anew = partitions.added(partitions.removed(stored), made).select(*stored.columns)
    assert stored.exceptAll(anew).isEmpty()
    names = partitions.names(made)
    assert DeltaTable(where).metadata().partition_columns == names
    return names


def last_commit(lake: Lake, table: str = "public.events") -> tuple[str, str]:
    found = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.path / 'current' / table}` LIMIT 1")
    (row,) = found.collect()
    return row["engineInfo"].partition(":")[0].partition("/")[0], row["operation"]


def shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"at": None if row["at"] is None else row["at"].replace(tzinfo=None)}


@pytest.mark.long
def test_rows_move_between_partitions(delta_lake: Lake) -> None:
    lake = delta_lake
    there = {
        1: event(1, ""),
        2: event(2, None, at=None, day=None),
        3: event(3, "São Paulo/50 %"),
        4: event(4, "r" * 300, at=datetime(1500, 1, 1, tzinfo=UTC)),
        5: event(5, "plain"),
    }

    def check(by: tuple[str, str]) -> None:
        lake.run()
        assert last_commit(lake) == by
        assert rows(lake) == in_order([shown(row) for row in there.values()])
        check_derived(lake, "current", "public.events")

    lake.slot.commit(
        *(insert(EVENTS, **row) for row in there.values()),
        *(insert(COPIES, n=n, word="w") for n in (1, 1, 2)),
    )
    lake.run(layout=ASKED)
    first = Reader(lake.spark, lake.path).at()
    before = rows(lake)
    assert check_derived(lake, "current", "public.events") == ["_by_at", "_by_region", "_by_day"]
    assert check_derived(lake, "current", "public.copies") == ["_by_n"]
    assert check_derived(lake, "history", "public.events") == ["_by_commit_time"]
    regions = {row["id"]: row["region"] for row in before}
    assert regions == {id_: row["region"] for id_, row in there.items()}

    # By delta-rs: to another partition, to none, out of it, and a new one. Nothing was said anew.
    there[1] = event(1, "plain")
    there[5] = event(5, None, at=there[4]["at"])
    there[6] = event(6, "München")
    there[30] = there.pop(3) | {"id": 30, "region": "plain"}
    lake.slot.commit(
        update(EVENTS, there[1]),
        update(EVENTS, there[5]),
        insert(EVENTS, **there[6]),
        update(EVENTS, there[30], old={"id": 3}),
        delete(EVENTS, id=2),
    )
    del there[2]
    check(("delta-rs", "MERGE"))

    # By Spark: what a partition is made of is not in the change.
    there[4] = there[4] | {"n": 40}
    lake.slot.commit(update(EVENTS, there[4] | {"region": None}, unchanged=("region",)))
    check(("Apache-Spark", "MERGE"))

    # Columns come and go: a schema alone, then all files; then as before.
    wider = EVENTS.with_columns(extra=pa.int64())
    there[6] |= {"extra": 7, "region": "plain"}
    lake.slot.commit(update(wider, there[6]))
    there = {id_: {"extra": None} | row for id_, row in there.items()}
    check(("Apache-Spark", "MERGE"))
    narrower = wider.without_column("note")
    there = {id_: {k: v for k, v in row.items() if k != "note"} for id_, row in there.items()}
    there[5] |= {"region": "plain"}
    lake.slot.commit(update(narrower, there[5]))
    check(("Apache-Spark", "MERGE"))

    # Copies of rows, and a table that is emptied.
    lake.slot.commit(delete(COPIES, n=1, word="w"), insert(COPIES, n=3, word="v"))
    lake.slot.commit(truncate(narrower), insert(narrower, **there[5]))
    there = {5: there[5]}
    check(("Apache-Spark", "MERGE"))
    assert rows(lake, "public.copies") == [
        {"n": 1, "word": "w"}, {"n": 2, "word": "w"}, {"n": 3, "word": "v"},
    ]  # fmt: skip
    check_derived(lake, "current", "public.copies")
    then = Reader(lake.spark, lake.path).at(first.lsn)
    assert sorted(map(str, then.current("public.events").collect())) == sorted(
        str(row) for row in first.current("public.events").collect()
    )
    history = Reader(lake.spark, lake.path).at().history("public.events")
    assert history.where(F.col("_by_commit_time") == "2026-01-01").count() == history.count() == 15


@pytest.mark.long
def test_maintenance_clusters(delta_lake: Lake) -> None:
    lake = delta_lake
    wide = Table("wide", {"id": pa.int64()} | {f"c{i}": pa.int32() for i in range(40)})
    lake.slot.commit(
        *(insert(EVENTS, **event(id_, "ab"[id_ % 2])) for id_ in range(1, 9)),
        insert(wide, id=1, c39=1),
    )
    lake.run(
        layout=layout.parse(
            None, ["public.events=region"], ["public.events=n,note", "public.wide=c39"]
        )
    )

    def round_of() -> list[str]:
        tables = DeltaTables(lake.spark, lake.path, lake.slot.slot_name)
        done = maintain(lake.spark, lake.path, "delta", tables, Upkeep())
        assert done.failures == {}
        where = f"delta.`{lake.path / 'current' / 'public.events'}`"
        made = lake.spark.sql(f"DESCRIBE HISTORY {where}").where("operation = 'OPTIMIZE'")
        return [row["operationParameters"]["zOrderBy"] for row in made.collect()]

    before = rows(lake)
    once = ['["n","note"]']
    assert round_of() == once
    assert rows(lake) == before
    assert round_of() == once, "nothing came since"
    lake.slot.commit(update(EVENTS, event(1, "b", n=100)))
    lake.run()
    assert last_commit(lake) == ("delta-rs", "MERGE")
    assert [row["n"] for row in rows(lake) if row["id"] == 1] == [100]
    check_derived(lake, "current", "public.events")


def test_what_contradicts_a_table(delta_lake: Lake) -> None:
    lake = delta_lake
    lake.slot.commit(insert(EVENTS, **event(1, "a")))
    with pytest.raises(LakeSchemaConflict, match="'gone'"):
        lake.run(layout=layout.parse(None, ["public.events=gone"], ()))
    assert lake.slot.state["confirmed_flush_lsn"] < lake.slot.state["decoded_lsn"]
    lake.run(layout=layout.parse(None, ["public.events=region"], ()))
    lake.run(layout=layout.parse("none", ["public.events=region"], ()))
    with pytest.raises(LakeTableConflict, match=r"partitioned by region, not by day\(at\)") as one:
        lake.run(layout=layout.parse(None, ["public.events=day(at)"], ()))
    assert "--resync --table public.events --partition-by 'public.events=day(at)'" in one.value.hint
    with pytest.raises(
        LakeTableConflict, match=r"history of public\.events is partitioned by noth"
    ):
        lake.run(layout=layout.parse("day", (), ()))
    with pytest.raises(LakeSchemaConflict, match="'gone'"):
        lake.run(layout=layout.parse(None, (), ["public.events=gone"]))
    assert layout.load(lake.path) == layout.parse("none", ["public.events=region"], ())


@pytest.mark.long
def test_the_column_of_a_partition_goes(delta_lake: Lake) -> None:
    lake = delta_lake
    other = Table("other", {"id": pa.int64()})
    lake.slot.commit(insert(EVENTS, **event(1, "a")))
    lake.run(layout=layout.parse(None, ["public.events=region"], ()))
    lake.slot.commit(insert(other, id=1))
    stop = lake.slot.state["decoded_lsn"]
    renamed = EVENTS.renamed_column("region", "area")
    row = {"area" if name == "region" else name: value for name, value in event(2, "b").items()}
    lake.slot.commit(insert(renamed, **row), gap=64)
    with pytest.raises(
        LakeSchemaConflict, match="'region' was renamed to 'area', and its current"
    ) as one:
        lake.run(on_schema_change="pause")
    assert "--partition-by 'public.events=…'" in one.value.hint
    assert lake.slot.state["confirmed_flush_lsn"] >= stop, "what was before is there"
    assert rows(lake) == [shown(event(1, "a"))]
    (aside,) = lake.run().quarantined
    assert "--partition-by 'public.events=…'" in aside
    assert list(quarantine.quarantined(lake.path)) == ["public.events"]
    assert lake.slot.state["confirmed_flush_lsn"] == lake.slot.state["decoded_lsn"]


def test_plain_parquet_has_none(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "parquet")
    with pytest.raises(UnsupportedFeature, match="Delta"):
        lake.run(layout=layout.parse("day", (), ()))
