"""A partitioned table that is one table in the lake, however its partitions come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.service import Service, service_in_process
from harness.tiers import deep
from spillway.errors import LakeSchemaConflict
from spillway.lake.job.run import JobSettings, JobSummary, run_job
from spillway.lake.load import initial_load
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.read import Lake
from spillway.lake.state import quarantine
from spillway.lake.state.shown_tables import ShownTables
from spillway.lake.verify.run import VerifySettings, verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database

TABLES = """
CREATE TABLE orders (region text, id int, note text, PRIMARY KEY (region, id))
    PARTITION BY LIST (region);
CREATE TABLE orders_north PARTITION OF orders FOR VALUES IN ('north');
CREATE TABLE dropped_first (gone int, id int NOT NULL, note text, region text NOT NULL);
ALTER TABLE dropped_first DROP COLUMN gone;
ALTER TABLE dropped_first ADD PRIMARY KEY (region, id);
ALTER TABLE orders ATTACH PARTITION dropped_first FOR VALUES IN ('south');
CREATE TABLE orders_rest PARTITION OF orders DEFAULT PARTITION BY LIST (region);
CREATE TABLE orders_west PARTITION OF orders_rest FOR VALUES IN ('west');
CREATE TABLE lines (day int, line text) PARTITION BY RANGE (day);
CREATE TABLE lines_1 PARTITION OF lines FOR VALUES FROM (0) TO (10);
CREATE TABLE lines_2 PARTITION OF lines FOR VALUES FROM (10) TO (20);
ALTER TABLE lines_1 REPLICA IDENTITY FULL;
ALTER TABLE lines_2 REPLICA IDENTITY FULL;
ALTER TABLE dropped_first REPLICA IDENTITY FULL;
CREATE TABLE plain (id int PRIMARY KEY);
"""
ROOTS = ("public.orders", "public.lines")


class Shop:
    """A source, a slot and a lake with roots."""

    def __init__(
        self, spark: SparkSession, pg: Database, service: Service, path: Path, table_format: str
    ) -> None:
        self.spark = spark
        self.pg = pg
        self.service = service
        self.path = path / "lake"
        self.table_format: Any = table_format

    def run(self, **changed: Any) -> JobSummary:
        self.service.wait_decoded("s", self.pg)
        settings: dict[str, Any] = {
            "slot": "s",
            "path": self.path,
            "checkpoint": self.path.parent / "checkpoint",
            "table_format": self.table_format,
            "grpc": self.service.grpc_address,
            "source_dsn": self.pg.dsn,
            "shown": ShownTables(ROOTS),
        }
        return run_job(JobSettings(**settings | changed), spark=self.spark)

    def load(self, *tables: str, **changed: Any) -> int:
        settings: dict[str, Any] = {
            "slot": "s",
            "path": self.path,
            "source_dsn": self.pg.dsn,
            "tables": tables,
            "table_format": self.table_format,
            "grpc": self.service.grpc_address,
            "range_bytes": 8192,
        }
        return run_load(LoadSettings(**settings | changed), lambda _: None, spark=self.spark)

    def check(self, *skipped: str) -> None:
        """Bring the lake up to date, and compare every table with the source."""
        found = verify(
            VerifySettings(path=self.path, source_dsn=self.pg.dsn, grpc=self.service.grpc_address),
            spark=self.spark,
        )
        assert found.equal, "\n".join(map(str, found.tables))
        assert sorted(t.table for t in found.tables if t.skipped) == sorted(skipped)
        assert not [t.notes for t in found.tables if t.notes]

    def rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        """Compare a table with the source by what is read of both, and return its rows."""
        names = [name.strip() for name in columns.split(",")]
        frame = Lake(self.spark, self.path).at().current(table)
        ours = sorted(tuple(row) for row in frame.select(*names).collect())
        theirs = sorted(self.pg.query(f"SELECT {columns} FROM {table}"))
        assert ours == theirs
        return ours

    def partitions(self, table: str) -> dict[int, int]:
        frame = Lake(self.spark, self.path).at().current(table)
        return {row[0]: row[1] for row in frame.groupBy("_partition").count().collect()}

    def oid(self, table: str) -> int:
        return int(self.pg.query(f"SELECT '{table}'::regclass::oid::int8")[0][0])


@pytest.fixture(params=["delta", deep("iceberg"), deep("parquet")])
def shop(
    request: pytest.FixtureRequest, spark: SparkSession, pg: Database, tmp_path: Path
) -> Iterator[Shop]:
    pg.execute(TABLES)
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg.dsn)
        service.create_slot("s", plugin="arrow", database=pg.name)
        yield Shop(spark, pg, service, tmp_path, request.param)


@pytest.mark.long
def test_rows_move_and_partitions_come_and_go(shop: Shop) -> None:
    pg = shop.pg
    pg.execute(
        "INSERT INTO orders SELECT r, g, r || g FROM unnest(ARRAY['north','south','west']) r,"
        " generate_series(1, 4) g;"
        "INSERT INTO lines SELECT g % 20, 'a' FROM generate_series(0, 59) g;"
        "INSERT INTO plain VALUES (1)"
    )
    shop.run(initial_load=True)
    shop.check()
    assert len(shop.rows("public.orders", "region, id, note")) == 12
    assert shop.partitions("public.orders") == {
        shop.oid("orders_north"): 4,
        shop.oid("dropped_first"): 4,
        shop.oid("orders_west"): 4,
    }
    assert sorted(Lake(shop.spark, shop.path).at().tables()) == [
        "public.lines", "public.orders", "public.plain",
    ]  # fmt: skip

    # Rows move between partitions, and within; a key comes back in another one.
    pg.execute(
        "UPDATE orders SET region = 'south', id = id + 100 WHERE region = 'north' AND id <= 2;"
        "UPDATE orders SET note = 'changed' WHERE region = 'south' AND id IN (3, 101);"
        "DELETE FROM orders WHERE region = 'west' AND id = 1;"
        "UPDATE lines SET day = day + 10 WHERE day = 3; UPDATE lines SET line = 'b' WHERE day = 12;"
        "DELETE FROM lines WHERE day = 5"
    )
    shop.run()
    shop.rows("public.orders", "region, id, note")
    shop.check()

    # A partition is truncated, with changes in it before and after, all in one batch.
    pg.execute("UPDATE orders SET note = 'lost' WHERE region = 'south'")
    pg.execute(
        "BEGIN; INSERT INTO orders VALUES ('south', 7, 'lost'); TRUNCATE dropped_first;"
        " INSERT INTO orders VALUES ('south', 3, 'anew'); COMMIT"
    )
    pg.execute("TRUNCATE lines_2; INSERT INTO lines VALUES (11, 'anew'), (11, 'anew')")
    shop.run()
    assert ("south", 3, "anew") in shop.rows("public.orders", "region, id, note")
    shop.rows("public.lines", "day, line")

    # DDL of the root goes to all of it, between changes.
    pg.execute(
        "INSERT INTO orders VALUES ('north', 50, 'before');"
        "ALTER TABLE orders ADD COLUMN state text DEFAULT 'new';"
        "INSERT INTO orders VALUES ('west', 50, 'after', 'old');"
        "ALTER TABLE orders RENAME COLUMN note TO remark"
    )
    pg.execute("UPDATE orders SET remark = 'both' WHERE id = 50")
    shop.run()
    assert len(shop.rows("public.orders", "region, id, remark, state")) > 4
    shop.check()

    # One is made, one is detached, one is dropped; a table that goes on by itself is its own.
    pg.execute(
        "CREATE TABLE orders_east PARTITION OF orders FOR VALUES IN ('east');"
        "INSERT INTO orders VALUES ('east', 1, 'e', 's');"
        "ALTER TABLE orders DETACH PARTITION orders_north;"
        "INSERT INTO orders_north VALUES ('north', 99, 'own', 'x')"
    )
    pg.execute("DROP TABLE lines_1")
    pg.execute("INSERT INTO lines VALUES (12, 'still')")
    shop.run()
    found = shop.rows("public.orders", "region, id, remark, state")
    assert ("east", 1, "e", "s") in found
    assert not [row for row in found if row[0] == "north"]
    shop.rows("public.lines", "day, line")
    history = Lake(shop.spark, shop.path).at().history("public.orders")
    lost = history.where("_op = 'P'").orderBy("_commit_lsn").collect()
    assert [row["_partition"] for row in lost] == [
        shop.oid("dropped_first"),
        shop.oid("orders_north"),
    ]

    # All of it.
    pg.execute("TRUNCATE orders")
    pg.execute("INSERT INTO orders VALUES ('west', 1, 'last', 's')")
    shop.run()
    assert shop.rows("public.orders", "region, id, remark, state") == [("west", 1, "last", "s")]


def test_one_table_of_many_partitions(shop: Shop) -> None:
    pg = shop.pg
    pg.execute(
        "INSERT INTO orders SELECT r, g, r || g FROM unnest(ARRAY['north','south','west']) r,"
        " generate_series(1, 4) g; INSERT INTO lines SELECT g, 'a' FROM generate_series(0, 19) g"
    )
    shop.run(initial_load=True)
    pg.execute(
        "UPDATE orders SET region = 'south', id = 100 WHERE region = 'north' AND id = 1;"
        "UPDATE lines SET day = day + 10 WHERE day = 3; DELETE FROM lines WHERE day = 5;"
        "INSERT INTO orders VALUES ('west', 7, 'lost'); TRUNCATE orders_west;"
        "INSERT INTO orders VALUES ('west', 3, 'anew'); DROP TABLE lines_2"
    )
    shop.run()
    assert len(shop.rows("public.orders", "region, id, note")) == 9
    assert len(shop.rows("public.lines", "day, line")) == 8
    assert shop.partitions("public.orders") == {
        shop.oid("orders_north"): 3,
        shop.oid("dropped_first"): 5,
        shop.oid("orders_west"): 1,
    }


@pytest.mark.long
def test_a_table_with_rows_is_attached(shop: Shop) -> None:
    pg = shop.pg
    pg.execute("INSERT INTO orders VALUES ('north', 1, 'n')")
    shop.run()
    # Made and attached at once it begins empty.
    pg.execute(
        "BEGIN; CREATE TABLE orders_east (LIKE orders INCLUDING ALL);"
        " ALTER TABLE orders ATTACH PARTITION orders_east FOR VALUES IN ('east');"
        " INSERT INTO orders VALUES ('east', 1, 'e'); COMMIT"
    )
    shop.run()
    assert ("east", 1, "e") in shop.rows("public.orders", "region, id, note")
    # One with rows of before is another matter.
    pg.execute("CREATE TABLE orders_centre (LIKE orders INCLUDING ALL)")
    pg.execute("INSERT INTO orders_centre VALUES ('centre', 1, 'c')")
    pg.execute("ALTER TABLE orders ATTACH PARTITION orders_centre FOR VALUES IN ('centre')")
    pg.execute("INSERT INTO orders VALUES ('north', 2, 'kept'); INSERT INTO plain VALUES (5)")
    summary = shop.run()
    assert "orders_centre" in summary.quarantined[0]
    assert shop.rows("public.plain", "id") == [(5,)]
    shop.run()
    assert list(quarantine.quarantined(shop.path)) == ["public.orders"]
    # As it is told.
    shop.load("public.orders", resync=True)
    shop.run()
    assert not quarantine.quarantined(shop.path)
    assert len(shop.rows("public.orders", "region, id, note")) == 4


@pytest.mark.long
def test_one_is_attached_while_the_table_is_loaded(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATTACH PARTITION waits for no reader of the partitioned table, so not for a load either."""
    pg = shop.pg
    pg.execute("INSERT INTO lines VALUES (1, 'a'); INSERT INTO plain VALUES (1)")
    pg.execute("CREATE TABLE lines_3 (LIKE lines); ALTER TABLE lines_3 REPLICA IDENTITY FULL")
    pg.execute("INSERT INTO lines_3 VALUES (21, 'before')")
    shop.run()
    told: list[tuple[str, ...]] = []

    def attach(point: str) -> None:
        if point == "lake.load_copied" and not told:
            pg.execute(
                "SET lock_timeout = '20s';"
                "ALTER TABLE lines ATTACH PARTITION lines_3 FOR VALUES FROM (20) TO (30)"
            )
            pg.execute("INSERT INTO lines VALUES (2, 'kept')")
            told.append(shop.run().quarantined)
            told.append(shop.run().quarantined)

    monkeypatch.setattr(initial_load, "failpoint", attach)
    shop.load("public.lines", resync=True)
    pg.execute("INSERT INTO lines VALUES (3, 'kept')")
    told.append(shop.run().quarantined)
    assert ["lines_3" in "".join(each) for each in told] == [True, True, True]
    assert list(quarantine.quarantined(shop.path)) == ["public.lines"]
    shop.load("public.lines", resync=True)
    assert shop.run().quarantined == ()
    assert len(shop.rows("public.lines", "day, line")) == 4
    # What came meanwhile is in history, once.
    history = Lake(shop.spark, shop.path).at().history("public.lines")
    kept = history.where("line = 'kept' AND _op = 'I'").collect()
    assert sorted(row["day"] for row in kept) == [2, 3]


@pytest.mark.long
def test_partitions_that_tell_rows_otherwise(shop: Shop) -> None:
    pg = shop.pg
    pg.execute("INSERT INTO orders VALUES ('north', 1, 'n'), ('west', 1, 'w')")
    shop.run()
    pg.execute("ALTER TABLE orders_west REPLICA IDENTITY NOTHING")
    pg.execute("UPDATE orders SET note = 'x' WHERE region = 'west'")
    summary = shop.run()
    assert "orders_west, a partition of public.orders" in summary.quarantined[0]
    assert "REPLICA IDENTITY DEFAULT" in summary.quarantined[0]
    pg.execute("ALTER TABLE orders_west REPLICA IDENTITY DEFAULT")
    shop.load("public.orders", resync=True)
    shop.run()
    assert shop.rows("public.orders", "region, id, note") == [("north", 1, "n"), ("west", 1, "x")]
    pg.execute("ALTER TABLE lines_1 REPLICA IDENTITY DEFAULT")
    with pytest.raises(LakeSchemaConflict, match="tell their rows differently"):
        shop.load("public.lines")
