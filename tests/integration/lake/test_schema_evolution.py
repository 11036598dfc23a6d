"""A table's shape changes between its rows: followed, stopped before, set aside; and told of in the
lake's own table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, update
from harness.service import service_in_process
from spillway.errors import LakeError, LakeSchemaChange
from spillway.failpoints import armed
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.read import Lake as Reader
from spillway.lake.shape.changes import EVENTS
from spillway.lake.shape.kinds import DDL
from spillway.lake.state import commit_points
from spillway.lake.tables.formats import lake_tables
from spillway.lake.verify.run import VerifySettings, verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database
    from harness.lake import Lake

ITEMS = Table("items", {"id": pa.int32(), "n": pa.int16(), "v": pa.string()})
WIDER = ITEMS.with_columns(id=pa.int64(), n=pa.decimal128(12, 2))
#: dropped and created again under its name: columns of the same names, numbers and other types
AGAIN = Table("items", {"id": pa.int64(), "v": pa.int32()}, oid=16999)
OTHERS = Table("others", {"id": pa.int64()}, oid=17000)


def _events(lake: Lake) -> list[tuple[str, str, str | None]]:
    rows = Reader(lake.spark, lake.path).at().ddl().orderBy("_commit_lsn", "_seq", "number")
    events = [(row["table"], row["kind"], row["column"]) for row in rows.collect()]
    # A job that begins reads them without Spark, where the format has readers of its own.
    tables = lake_tables(lake.table_format, lake.spark, lake.path, lake.slot.slot_name)
    plain = tables.columns_plain(DDL, EVENTS, ("table", "kind", "column"))
    assert (plain is None) == (lake.table_format == "parquet")
    if plain is not None:
        assert sorted(map(str, zip(*plain.to_pydict().values(), strict=True))) == sorted(
            map(str, events)
        )
    return events


@pytest.mark.long
def test_wider_and_created_again(lake: Lake) -> None:
    """In one batch: rows of each shape before and after, each where it belongs."""
    lake.slot.commit(*(insert(ITEMS, id=i, n=i, v="a") for i in range(4)))
    lake.run()
    lake.slot.commit(insert(ITEMS, id=4, n=4, v="b"), delete(ITEMS, id=0))
    lake.slot.commit(
        insert(WIDER, id=1 << 40, n=5, v="c"), delete(WIDER, id=1), delete(WIDER, id=4)
    )
    with armed("lake.after_ddl=error:EIO"), pytest.raises(LakeError):
        lake.run()
    lake.run()
    assert [(r["id"], str(r["n"])) for r in lake.current("public.items")] == [
        (1 << 40, "5.00"),
        (2, "2.00"),
        (3, "3.00"),
    ]
    held = Reader(lake.spark, lake.path).at().history("public.items")
    assert dict(held.dtypes)["id"] == "bigint"
    # smallint: Delta Lake counts ten digits for it.
    assert dict(held.dtypes)["n"] == "decimal(12,2)"
    assert held.count() == 9
    lake.slot.commit(update(WIDER, {"id": 2, "n": 7, "v": "d"}))
    lake.slot.commit(
        insert(WIDER, id=9, n=9, v="gone"), insert(AGAIN, id=1, v=10), insert(AGAIN, id=2, v=20)
    )
    lake.run()
    assert lake.current("public.items") == [{"id": 1, "v": 10}, {"id": 2, "v": 20}]
    history = (
        Reader(lake.spark, lake.path).at().history("public.items").orderBy("_commit_lsn", "_seq")
    )
    assert [(r["id"], r["v"], r["v__int"]) for r in history.collect()][-4:] == [
        (2, "d", None),
        (9, "gone", None),
        (1, None, 10),
        (2, None, 20),
    ]
    # Plain changes, merged directly in Delta, find the column that is the table's now.
    lake.slot.commit(update(AGAIN, {"id": 2, "v": 21}))
    lake.run()
    assert lake.current("public.items") == [{"id": 1, "v": 10}, {"id": 2, "v": 21}]
    assert _events(lake) == [
        ("public.items", "first seen", None),
        ("public.items", "alter type", "id"),
        ("public.items", "alter type", "n"),
        ("public.items", "created again", None),
    ]


def test_policies(any_lake: Lake) -> None:
    lake = any_lake
    grown = ITEMS.with_columns(extra=pa.string())
    lake.slot.commit(insert(ITEMS, id=1, n=1, v="a"), insert(OTHERS, id=1))
    lake.run(on_schema_change="pause")
    lake.slot.commit(insert(ITEMS, id=2, n=2, v="b"), insert(OTHERS, id=2))
    lake.slot.commit(insert(OTHERS, id=3), insert(grown, id=3, n=3, v="c", extra="x"))
    lake.slot.commit(insert(OTHERS, id=4))
    for _ in range(2):
        with pytest.raises(LakeSchemaChange, match="column 'extra' string was added") as caught:
            lake.run(on_schema_change="pause")
        # The batch ended before that transaction: nothing of it is anywhere.
        assert [r["id"] for r in lake.current("public.items")] == [1, 2]
        assert [r["id"] for r in lake.current("public.others")] == [1, 2]
        stop = next(commit_points.points(lake.path)).lsn_value
        assert str(caught.value.details["lsn"]) == next(commit_points.points(lake.path)).lsn
        assert lake.slot.state["confirmed_flush_lsn"] == stop

    # Set aside instead, killed in between; the others go on.
    for point in ("lake.after_quarantined", "lake.after_quarantine"):
        with armed(f"{point}=error:EIO"), pytest.raises(LakeError):
            lake.run(on_schema_change="quarantine")
    summary = lake.run(on_schema_change="quarantine")
    assert len(summary.quarantined) == 1
    assert "public.items is in quarantine since" in summary.quarantined[0]
    assert [r["id"] for r in lake.current("public.others")] == [1, 2, 3, 4]
    lake.slot.commit(delete(grown, id=1), insert(OTHERS, id=5))
    lake.run(on_schema_change="quarantine")
    pin = Reader(lake.spark, lake.path).at()
    assert pin.point.loading == ["public.items"]
    with pytest.raises(LakeError, match="in quarantine"):
        pin.current("public.items")
    aside = pin.quarantine("public.items").orderBy("_commit_lsn").collect()
    assert [(r["_op"], json.loads(r["_row"])["id"]) for r in aside] == [("I", 3), ("D", None)]
    assert [r["id"] for r in lake.current("public.items")] == [1, 2]

    # Back by a run that may follow; the job's batch has changes of it, too.
    lake.slot.commit(update(grown, {"id": 2, "n": 2, "v": "b", "extra": "y"}))
    assert lake.run(on_schema_change="evolve").quarantined == ()
    assert [(r["id"], r["extra"]) for r in lake.current("public.items")] == [(2, "y"), (3, "x")]
    assert [r["_op"] for r in lake.history("public.items")] == ["I", "I", "I", "D", "U"]
    assert Reader(lake.spark, lake.path).at().point.loading == []
    assert _events(lake)[2:] == [("public.items", "add column", "extra")]

    # What can't be followed sets the table aside exactly there, too, and is no reason to stop.
    other = grown.with_columns(v=pa.int32())
    lake.slot.commit(insert(OTHERS, id=6))
    lake.slot.commit(insert(other, id=7, n=7, v=7, extra="z"))
    for _ in range(2):
        (told,) = lake.run().quarantined
        assert "column 'v' was string and is int" in told
        assert "--resync --table public.items" in told
        assert len(lake.current("public.others")) == 6
        assert len(lake.history("public.items")) == 5


@pytest.mark.long
def test_ddl_of_a_source(spark: SparkSession, pg15: Database, tmp_path: Path) -> None:
    """On a real server: what ALTER TABLE made of the rows that were there is what the lake makes of
    them.
    """
    for sql in (
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        (
            "CREATE TABLE t (id int PRIMARY KEY, n int2, f real, p numeric(8,2), v varchar(5), m "
            "mood, i int, d date, q numeric(6,3))"
        ),
        "CREATE TABLE r (id int PRIMARY KEY, old text)",
    ):
        pg15.execute(sql)
    columns = "id, n, f, p, v, m::text, i, d, q::text"
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = JobSettings(
            slot="s",
            path=tmp_path / "lake",
            checkpoint=tmp_path / "checkpoint",
            grpc=service.grpc_address,
        )

        def run(policy: str, *statements: str) -> tuple[str, ...]:
            for statement in statements:
                pg15.execute(statement)
            service.wait_decoded("s", pg15)
            changed = replace(settings, on_schema_change=policy)  # type: ignore[arg-type]
            return run_job(changed, spark=spark).quarantined

        def check(frame_columns: str = columns) -> None:
            rows = Reader(spark, settings.path).at().current("public.t").orderBy("id").collect()
            assert [tuple(r) for r in rows] == pg15.query(
                f"SELECT {frame_columns} FROM t ORDER BY id"
            )

        run(
            "evolve",
            "INSERT INTO t VALUES (1, 1, 0.1, 1.50, 'a', 'sad', 7, '2024-02-29', 0.001),"
            " (2, -2, 1e30, -0.01, NULL, 'glad', -8, NULL, -1), (3, 3, 3, 3, 'c', NULL, 3, NULL, "
            "NULL)",
            "INSERT INTO r VALUES (1, 'x'), (2, 'y')",
        )
        with armed("lake.after_reshape=error:EIO"), pytest.raises(LakeError):
            run(
                "evolve",
                "INSERT INTO t VALUES (4, 4, 0.3, 4, 'd', 'sad', 4, '1900-01-01', 100)",
                (
                    "ALTER TABLE t ALTER id TYPE bigint, ALTER n TYPE int, ALTER f TYPE double "
                    "precision, ALTER p TYPE numeric(12,4), ALTER v TYPE text, ALTER m TYPE text, "
                    "ALTER i TYPE numeric(20,2), ALTER d TYPE timestamp, ALTER q TYPE numeric"
                ),
                "INSERT INTO t VALUES (5000000000, 70000, 0.1, 12345678.1234, 'longer than five', "
                "'neither', 1e10, NULL, 1e-9)",
                "UPDATE t SET p = 2.0001 WHERE id = 2",
                "DELETE FROM t WHERE id = 3",
                "INSERT INTO r VALUES (3, 'z')",
                "DROP TABLE r",
                "CREATE TABLE r (id int PRIMARY KEY, fresh bool, old int)",
                "INSERT INTO r VALUES (1, true, 1)",
            )
        run("evolve")
        check()
        pin = Reader(spark, settings.path).at()
        assert [tuple(row) for row in pin.current("public.r").collect()] == [(1, True, 1)]
        types = dict(pin.history("public.t").dtypes)
        assert (types["id"], types["n"], types["f"]) == ("bigint", "int", "double")
        assert types["p"] == "decimal(12,4)"
        assert pin.history("public.r").count() == 4
        events = (
            pin.ddl()
            .where("kind <> 'first seen'")
            .orderBy("_commit_lsn", "_seq", "number")
            .collect()
        )
        assert [(e["table"], e["kind"], e["column"]) for e in events] == [
            *(
                ("public.t", "alter type", c)
                for c in ("id", "n", "f", "p", "v", "m", "i", "d", "q")
            ),
            ("public.r", "created again", None),
        ]
        of_v = events[4]
        assert (of_v["old_type"], of_v["new_type"]) == ("character varying(5)", "text")
        made = pin.history("public.t").where("id = 5000000000").first()
        assert made is not None
        assert (of_v["_xid"], of_v["_commit_time"]) == (made["_xid"], made["_commit_time"])

        # What USING computes can't be followed: set aside, and back by a load.
        aside = run(
            "quarantine",
            "UPDATE t SET n = 8 WHERE id = 1",
            "ALTER TABLE t ALTER v TYPE int USING length(v)",
            "INSERT INTO t VALUES (6, 6, 6, 6, 66, 'm', 6, NULL, 6)",
        )
        assert "column 'v' was text and is integer" in aside[0]
        found = verify(
            VerifySettings(settings.path, pg15.dsn, grpc=service.grpc_address), spark=spark
        )
        said = {table.table: str(table) for table in found.tables}
        assert "public.t: not compared, it is in quarantine since" in said["public.t"]
        load = LoadSettings(
            slot="s",
            path=settings.path,
            source_dsn=pg15.dsn,
            tables=("public.t",),
            resync=True,
            grpc=service.grpc_address,
        )
        assert run_load(load, lambda _: None, spark=spark) == 1
        assert run("quarantine", "DELETE FROM t WHERE id = 4") == ()
        check()
        changes = Reader(spark, settings.path).at().history("public.t").where("_op <> 'R'")
        # 3 + 4 + 2 + 1: no change was lost, none is there twice.
        assert changes.count() == 10
        assert changes.select("_commit_lsn", "_seq").distinct().count() == 10
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
