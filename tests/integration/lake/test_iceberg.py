"""Lakes of Iceberg tables: what is special about them. What other readers see is asked of
PyIceberg's own scans (harness.lake).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from harness.arrow_slot import Table, delete, insert, truncate, update
from harness.killed_driver import run_killed
from harness.lake import Lake
from harness.service import service_in_process
from spillway.errors import LakeError, LakeTableConflict
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.read import Lake as Reader
from spillway.lake.tables.formats import lake_tables, load_tables
from spillway.lake.tables.maintenance import Upkeep, maintain
from spillway.lake.verify.run import VerifySettings, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})
ORDERS = Table("orders", {"id": pa.int64(), "total": pa.int64()})


@pytest.fixture
def iceberg_lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path, "iceberg")


@pytest.mark.long
def test_killed_between_commits(iceberg_lake: Lake) -> None:
    lake = iceberg_lake
    settings = {
        "slot": lake.slot.slot_name,
        "path": str(lake.path),
        "checkpoint": str(lake.checkpoint),
        "table_format": "iceberg",
        "source_options": lake.slot.options,
    }
    for number, failpoint in enumerate(
        ("lake.after_history=kill@1", "lake.before_merge=kill@1", "lake.before_position=kill")
    ):
        base = 10 * number
        lake.slot.commit(
            *(insert(ITEMS, id=base + i, name="n") for i in (1, 2, 3)),
            insert(ORDERS, id=base, total=5),
        )
        if number:
            lake.slot.commit(
                update(ITEMS, {"id": base - 9, "name": "renamed"}), delete(ITEMS, id=base - 8)
            )
        confirmed = lake.slot.state["confirmed_flush_lsn"]
        run_killed(lake.spark, failpoint, "job", settings)
        assert lake.slot.state["confirmed_flush_lsn"] == confirmed, failpoint
        lake.slot.commit(insert(ORDERS, id=base + 1, total=9))
        lake.run()
        operations = "".join(row["_op"] for row in lake.history("public.items"))
        assert operations == "III" + "IIIUD" * number, failpoint
        orders = [row["id"] for row in lake.history("public.orders")]
        assert orders == [10 * n + i for n in range(number + 1) for i in (0, 1)], failpoint
        assert sorted(row["id"] for row in lake.current("public.orders")) == orders, failpoint
    assert [(row["id"], row["name"]) for row in lake.current("public.items")] == [
        (1, "renamed"), (11, "renamed"), (13, "n"), (21, "n"), (22, "n"), (23, "n"), (3, "n"),
    ]  # fmt: skip
    said = lake.iceberg("current", "public.items").current_snapshot()
    assert said is not None
    assert said.summary is not None
    assert said.summary["spillway.slot"] == lake.slot.slot_name


@pytest.mark.long
def test_columns_by_id(iceberg_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """ALTER TABLE that moves columns about writes no file anew; what was pinned before has them as
    they were.
    """
    lake = iceberg_lake
    monkeypatch.setattr("spillway.lake.tables.iceberg.tables._WHOLE_BYTES", 0)
    before = Table("items", {"id": pa.int32(), "a": pa.string(), "b": pa.string(), "n": pa.int16()})
    lake.slot.commit(*(insert(before, id=i, a=f"a{i}", b=f"b{i}", n=i) for i in range(1, 4)))
    lake.run()
    first = Reader(lake.spark, lake.path).at()
    files = set(_files(lake, "current", "public.items"))

    # Names change places, one goes and comes back as another column, types become wider.
    after = before.without_column("a").renamed_column("b", "a").with_columns(b=pa.int64())
    after = after.with_columns(id=pa.int64(), n=pa.int32())
    lake.slot.commit(insert(after, id=1 << 40, a="x", n=70000, b=9))
    lake.run()
    now = [(row["id"], row["a"], row["n"], row["b"]) for row in lake.current("public.items")]
    assert now == [
        (1, "b1", 1, None),
        (1 << 40, "x", 70000, 9),
        (2, "b2", 2, None),
        (3, "b3", 3, None),
    ]
    assert files <= set(_files(lake, "current", "public.items"))
    then = sorted(tuple(row) for row in first.current("public.items").collect())
    assert then == [(i, f"a{i}", f"b{i}", i) for i in range(1, 4)]
    assert dict(first.current("public.items").dtypes)["id"] == "int"

    # What is not one of Iceberg's promotions: current is written anew, history has a column beside
    # it.
    other = after.with_columns(n=pa.decimal128(12, 2))
    other = other.with_columns(filled=pa.int32()).with_default("filled", "7")
    lake.slot.commit(update(other, {"id": 2, "a": "y", "n": None, "b": 1, "filled": 8}))
    lake.run()
    rows = [(row["id"], str(row["n"]), row["filled"]) for row in lake.current("public.items")]
    assert rows == [(1, "1.00", 7), (1 << 40, "70000.00", 7), (2, "None", 8), (3, "3.00", 7)]
    history = lake.history("public.items")
    assert [row["n"] for row in history] == [1, 2, 3, 70000, None]
    assert "n__decimal_12_2" in history[0]

    # Dropped and created again under its name.
    again = Table("items", {"id": pa.int64(), "a": pa.int32()}, oid=16999)
    lake.slot.commit(insert(again, id=5, a=50))
    lake.run()
    assert lake.current("public.items") == [{"id": 5, "a": 50}]
    lake.slot.commit(update(again, {"id": 5, "a": 51}), insert(again, id=6, a=60))
    lake.run()
    assert lake.current("public.items") == [{"id": 5, "a": 51}, {"id": 6, "a": 60}]
    assert len(lake.history("public.items")) == 8


@pytest.mark.long
def test_a_part_of_the_old_key(iceberg_lake: Lake) -> None:
    """Spark reads a part of a struct by other rules than all of it: a changed key's old row went on
    being there.
    """
    lake = iceberg_lake
    before = replace(ITEMS, replica_identity="f").with_columns(gone=pa.string())
    lake.slot.commit(*(insert(before, id=i, name=f"n{i}", gone="x") for i in range(1, 4)))
    lake.run()
    full = before.without_column("gone")
    # What is left out as unchanged makes the batch Spark's.
    lake.slot.commit(
        update(full, {"id": 10, "name": "moved"}, old={"id": 1, "name": "n1"}),
        update(full, {"id": 2, "name": None}, old={"id": 2, "name": None}, unchanged=("name",)),
        delete(full, id=3, name="n3"),
    )
    lake.run()
    assert lake.current("public.items") == [{"id": 10, "name": "moved"}, {"id": 2, "name": "n2"}]
    history = Reader(lake.spark, lake.path).at().history("public.items")
    old = history.orderBy("_seq").where("_op <> 'I'").select("_old_key.id").collect()
    assert [row["id"] for row in old] == [1, 2, 3]


def _files(lake: Lake, kind: str, table: str) -> list[str]:
    return [task.file.file_path for task in lake.iceberg(kind, table).scan().plan_files()]


@pytest.mark.long
def test_only_touched_files_are_written_anew(
    iceberg_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = iceberg_lake
    for base in (0, 100, 200):
        lake.slot.commit(*(insert(ITEMS, id=base + i, name="n") for i in range(10)), gap=1 << 20)
    lake.run(max_bytes_per_batch=1 << 20)
    low, *others = sorted(_files(lake, "current", "public.items"), key=_lowest(lake))
    lake.slot.commit(update(ITEMS, {"id": 3, "name": "new"}), delete(ITEMS, id=55))
    lake.run()
    after = _files(lake, "current", "public.items")
    assert low not in after
    assert set(others) < set(after)
    # By Spark, too: a row whose value is not logged, and the table too large to be joined whole.
    monkeypatch.setattr("spillway.lake.tables.iceberg.tables._WHOLE_BYTES", 0)
    lake.slot.commit(
        update(ITEMS, {"id": 103, "name": None}, unchanged=("name",)),
        insert(ITEMS, id=300, name="z")
    )  # fmt: skip
    lake.run()
    last = _files(lake, "current", "public.items")
    assert len(set(others) & set(last)) == len(others) - 1
    assert {row["id"]: row["name"] for row in lake.current("public.items")} == {
        base + i: "new" if (base, i) == (0, 3) else "n" for base in (0, 100, 200) for i in range(10)
    } | {300: "z"}
    lake.slot.commit(truncate(ITEMS), insert(ITEMS, id=1, name="only"))
    lake.run()
    assert lake.current("public.items") == [{"id": 1, "name": "only"}]


def _lowest(lake: Lake) -> Callable[[str], int]:
    low = {
        task.file.file_path: task.file.lower_bounds[1]
        for task in lake.iceberg("current", "public.items").scan().plan_files()
    }
    return lambda path: int.from_bytes(low[path], "little")


@pytest.mark.long
def test_maintenance(iceberg_lake: Lake) -> None:
    lake = iceberg_lake
    for i in range(4):
        lake.slot.commit(insert(ITEMS, id=i, name="n"), gap=1 << 20)
    lake.slot.commit(update(ITEMS, {"id": 1, "name": "new"}), delete(ITEMS, id=2))
    lake.run(max_bytes_per_batch=1 << 20)
    before = (lake.history("public.items"), lake.current("public.items"))
    *_, first, _ = Reader(lake.spark, lake.path).points()

    def round_of(upkeep: Upkeep, now: datetime | None = None) -> int:
        tables = lake_tables("iceberg", lake.spark, lake.path, lake.slot.slot_name)
        done = maintain(lake.spark, lake.path, "iceberg", tables, upkeep, now=now)
        assert done.failures == {}
        assert all(table.files <= 1 for table in done.tables)
        return sum(table.rows_removed for table in done.tables)

    assert round_of(Upkeep()) == 0
    assert len(_files(lake, "history", "public.items")) == 1
    assert before == (lake.history("public.items"), lake.current("public.items"))
    assert Reader(lake.spark, lake.path).at(first.lsn).history("public.items").count() == 1
    # The job goes on from what was written anew.
    lake.slot.commit(insert(ITEMS, id=9, name="z"))
    lake.run()
    assert len(lake.history("public.items")) == len(before[0]) + 1
    current = lake.current("public.items")

    later = datetime.now(UTC) + timedelta(days=2)
    assert round_of(Upkeep(timedelta(days=1), timedelta(days=1)), later) == len(before[0]) + 1
    with pytest.raises(LakeError, match="no consistent LSN up to"):
        Reader(lake.spark, lake.path).at(first.lsn)
    assert lake.history("public.items") == []
    assert lake.current("public.items") == current
    # What no snapshot names is gone; the commits' LSNs are known without those that said them.
    for kind in ("history", "current"):
        table = lake.iceberg(kind, "public.items")
        assert len(table.metadata.snapshots) == 1
        named = {file.rpartition("/")[2] for file in _files(lake, kind, "public.items")}
        assert {p.name for p in (lake.path / kind / "public.items" / "data").iterdir()} == named
    lake.slot.commit(delete(ITEMS, id=9))
    lake.run()
    assert [row["_op"] for row in lake.history("public.items")] == ["D"]
    assert lake.current("public.items") == [row for row in current if row["id"] != 9]


@pytest.mark.long
def test_a_catalog_by_name(
    iceberg_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = iceberg_lake
    for name, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/shared.db",
        "WAREHOUSE": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__SHARED__{name}", value)
    # Its configuration is read when the library is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    lake.slot.commit(insert(ITEMS, id=1, name="a"))
    lake.run(iceberg_catalog="shared", iceberg_prefix="shop_")
    lake.slot.commit(insert(ITEMS, id=2, name="b"))
    # It is remembered, by readers as well; another one is refused.
    lake.run()
    with pytest.raises(LakeTableConflict, match="in catalog 'shared', prefix 'shop_'"):
        lake.run(iceberg_catalog="another")
    assert not (lake.path / "catalog.db").exists()
    properties = {"uri": f"sqlite:///{tmp_path}/shared.db", "type": "sql"}
    rows = load_catalog("shared", **properties).load_table("shop_current_public.items").scan()
    assert sorted(rows.to_arrow().column("id").to_pylist()) == [1, 2]
    assert Reader(lake.spark, lake.path).at().current("public.items").count() == 2


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, n smallint, price numeric(12,2), big numeric(38,9),
    at timestamptz, plain timestamp,
    d date, data bytea, f float8, "odd.name, of `it" text, note text, "real.part" real);
ALTER TABLE items ALTER note SET STORAGE EXTERNAL;
CREATE TABLE pairs (a text, b bigint, v text, PRIMARY KEY (a, b));
CREATE TABLE bag (line text, n real);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO items SELECT g, g, g / 7.0, -g, '2024-02-29 12:00+02'::timestamptz + g * interval '1 s',
    '0044-03-15 10:00 BC', '4713-01-01 BC',
    '\\xff00', 'NaN', repeat('ä', 40), repeat('x', 9000), g / 3.0 FROM generate_series(1, 50) g;
INSERT INTO pairs SELECT 'k' || g % 7, g, NULL FROM generate_series(1, 40) g;
INSERT INTO bag SELECT 'twice', 0.1 FROM generate_series(1, 2);
"""


def test_a_source_loaded_followed_and_verified(
    spark: SparkSession, pg15: Database, tmp_path: Path
) -> None:
    """On a real server: rows from before the slot, changes, ALTER TABLE, and a re-sync; then both
    sides agree.
    """
    pg15.execute(TABLES)
    path = tmp_path / "lake"
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s", path=path, checkpoint=tmp_path / "checkpoint", table_format="iceberg",
            grpc=service.grpc_address, source_dsn=pg15.dsn, initial_load=True,
        )  # fmt: skip
        checking = VerifySettings(path=path, source_dsn=pg15.dsn, grpc=service.grpc_address)

        def run(*statements: str) -> None:
            for statement in statements:
                pg15.execute(statement)
            service.wait_decoded("s", pg15)
            run_job(settings, spark=spark, on_load=lambda _: None)
            outcome = verify(checking, spark=spark)
            assert [str(table) for table in outcome.tables if not table.equal] == []
            assert len(outcome.tables) == 3

        run()
        run(
            "UPDATE items SET price = price + 1 WHERE id % 5 = 0",
            "DELETE FROM items WHERE id = 7",
            "INSERT INTO items (id, d) VALUES (1000, '9999-12-31'), (-5, '0001-01-01')",
            "UPDATE pairs SET b = b + 1000 WHERE a = 'k3'",
            "UPDATE pairs SET v = 'v' WHERE b < 10",
            "INSERT INTO bag VALUES ('once', 'NaN')",
            "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
        )
        run(
            "ALTER TABLE items RENAME note TO remark",
            "ALTER TABLE items ALTER id TYPE bigint",
            "ALTER TABLE items ADD flag bool DEFAULT true",
            "ALTER TABLE items DROP data",
            "UPDATE items SET price = NULL WHERE id < 4",
            "TRUNCATE bag",
            "INSERT INTO bag VALUES ('anew', 2)",
        )
        load = LoadSettings(
            slot="s", path=path, source_dsn=pg15.dsn, tables=("public.items",), resync=True,
            grpc=service.grpc_address, range_bytes=8192,
        )  # fmt: skip
        assert run_load(load, lambda _: None, spark=spark) == 1
        run("UPDATE items SET price = 5 WHERE id = 1000")
        # Each load's rows are in history, and leave it as if they had never been there.
        loads = _loads(spark, path)
        assert len(loads) == 2
        load_tables("iceberg", spark, path, "s").drop_loaded("public.items", loads[0] + 1)
        assert _loads(spark, path) == loads[1:]
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


def _loads(spark: SparkSession, path: Path) -> list[int]:
    reads = Reader(spark, path).at().history("public.items").where("_op = 'R'")
    return sorted(row[0] for row in reads.select("_commit_lsn").distinct().collect())
