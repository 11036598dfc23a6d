"""Readers pin all tables to one commit LSN."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from typer.testing import CliRunner

from harness.arrow_slot import Table, delete, insert, update
from spillway.errors import LakeError, UnsupportedFeature
from spillway.lake.commands.app import app
from spillway.lake.pinned_tables import lsns, pinned
from spillway.lake.read import Lake as Reader
from spillway.lake.state import commit_points
from spillway.lake.state.loads import LoadState, store_state
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from harness.lake import Lake
    from spillway.lake.read import Pin

ORDERS = Table("orders", {"id": pa.int64(), "status": pa.string()})
LINES = Table("order lines", {"id": pa.int64(), "order": pa.int64()}, oid=16390)
LOG = Table("log", {"line": pa.string()}, primary_key=(), replica_identity="f", oid=16400)


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def _as_other_engines_pin_it(lake: Lake, now: Pin) -> None:
    """What `spillway lake pin` prints, read without this package, is what *now* shows."""
    if lake.table_format == "parquet":
        with pytest.raises(UnsupportedFeature, match="no versions to pin"):
            pinned(lake.path)
        return
    printed = CliRunner().invoke(app, ["pin", "--lake", str(lake.path), "--json"])
    found = json.loads(printed.stdout)
    assert (found["lsn"], found["left_out"]) == (str(now.lsn), [])
    assert len(found["tables"]) == 7
    tables = {(each["kind"], each["name"]): each for each in found["tables"]}
    orders = tables["current", "public.orders"]
    if lake.table_format == "delta":
        theirs = DeltaTable(orders["location"], version=orders["version"]).to_pyarrow_table()
    else:
        table = StaticTable.from_metadata(orders["metadata"])
        theirs = table.scan(snapshot_id=orders["snapshot_id"]).to_arrow()
    assert [tuple(row.values()) for row in theirs.to_pylist()] == rows(now.current("public.orders"))
    first = pinned(lake.path, lsns(lake.path)[-1])
    assert first.table("current", "public.orders").name == "public.orders"
    with pytest.raises(LakeError, match=r"no current table public\.order~20lines as of"):
        first.table("current", "public.order~20lines")
    said = CliRunner().invoke(app, ["pin", "--lake", str(lake.path), "--lsn", first.lsn]).stdout
    assert said.splitlines()[0] == f"as of {first.lsn}"
    assert "order~20lines" not in said


@pytest.mark.long
def test_tables_of_one_lsn(any_lake: Lake) -> None:
    lake = any_lake
    lake.slot.commit(insert(ORDERS, id=1, status="new"), insert(LOG, line="a"))
    lake.run()
    lake.slot.commit(update(ORDERS, {"id": 1, "status": "sent"}), insert(LINES, id=7, order=1))
    lake.slot.commit(insert(LOG, line="a"))
    lake.run()
    reader = Reader(lake.spark, lake.path)
    last, first = [point.lsn for point in reader.points()]

    then = reader.at(first)
    assert then.tables() == ["public.log", "public.orders"]
    assert rows(then.current("public.orders")) == [(1, "new")]
    assert [row["_op"] for row in then.history("public.orders").collect()] == ["I"]

    # Between two points it is the earlier one: no half of a batch is to be seen.
    between = reader.at(Lsn(Lsn.parse(last) - 1))
    assert between.lsn == then.lsn
    assert rows(between.current("public.orders")) == [(1, "new")]

    now = reader.at()
    assert str(now.lsn) == last
    assert rows(now.current("public.orders")) == [(1, "sent")]
    assert rows(now.current("public.order~20lines")) == [(7, 1)]
    assert rows(now.current("public.log")) == [("a",), ("a",)]
    assert sorted(now.create_views()) == ["public_log", "public_order_20lines", "public_orders"]
    joined = "SELECT status FROM public_orders o JOIN public_order_20lines l ON l.order = o.id"
    assert rows(lake.spark.sql(joined)) == [("sent",)]

    _as_other_engines_pin_it(lake, now)
    # What was pinned stays while the job goes on, and maintenance by others comes between.
    if lake.table_format == "delta":
        lake.spark.sql(f"OPTIMIZE delta.`{lake.path}/current/public.orders`")
    # A column that comes with the next batch is not seen before it; of plain files the copy without
    # it is gone.
    grown = ORDERS if lake.table_format == "parquet" else ORDERS.with_columns(paid=pa.bool_())
    lake.slot.commit(delete(grown, id=1))
    lake.run()
    assert now.current("public.orders").columns == ["id", "status"]
    assert reader.at().current("public.orders").columns == list(grown.columns)
    assert rows(now.current("public.orders")) == [(1, "sent")]
    assert rows(reader.at().current("public.orders")) == []
    # A table that a batch did not touch has its newest commit from before.
    assert rows(reader.at().current("public.log")) == [("a",), ("a",)]


def test_what_is_not_there(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there is no lake"):
        Reader(lake.spark, tmp_path / "nowhere")
    lake.run()
    reader = Reader(lake.spark, lake.path)
    with pytest.raises(LakeError, match="no consistent LSN yet"):
        reader.at()
    lake.slot.commit(insert(ORDERS, id=1, status="new"))
    lake.run()
    with pytest.raises(LakeError, match="no consistent LSN up to 0/1"):
        reader.at("0/1")
    with pytest.raises(LakeError, match=r"had no current table public\.lines"):
        reader.at().current("public.lines")


@pytest.mark.long
def test_a_table_that_was_being_loaded_is_left_out(delta_lake: Lake) -> None:
    lake = delta_lake
    lake.slot.commit(insert(ORDERS, id=1, status="new"), insert(LOG, line="a"))
    lake.run()
    store_state(lake.path, "public.orders", LoadState("public.orders"))
    lake.slot.commit(insert(ORDERS, id=2, status="new"), insert(LOG, line="b"))
    lake.run()
    pin = Reader(lake.spark, lake.path).at()
    assert pin.tables() == ["public.log"]
    assert len(rows(pin.history("public.orders"))) == 2
    with pytest.raises(LakeError, match="was being loaded at"):
        pin.current("public.orders")


@pytest.mark.long
def test_parquet_forgets(spark: object, tmp_path: Path) -> None:
    from harness.lake import Lake as Under

    lake = Under(spark, tmp_path, "parquet")  # type: ignore[arg-type] # the fixture's session
    for id_ in range(4):
        lake.slot.commit(insert(ORDERS, id=id_, status="new"))
        lake.run()
    reader = Reader(lake.spark, lake.path)
    lsns = [point.lsn for point in reader.points()]
    assert len(rows(reader.at(lsns[1]).current("public.orders"))) == 3
    with pytest.raises(LakeError, match="has no copy of"):
        reader.at(lsns[3]).current("public.orders")


@pytest.mark.long
def test_points_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_points, "_POINTS_PER_FILE", 3)
    monkeypatch.setattr(commit_points, "_FILES_MAX", 2)
    for lsn in range(1, 20):
        commit_points.publish(tmp_path, lsn * 8, lsn, 1, [])
        commit_points.publish(tmp_path, lsn * 8, lsn, 1, [])
    known = [point.lsn_value // 8 for point in commit_points.points(tmp_path)]
    assert known == list(range(19, 12, -1))
    assert commit_points.at(tmp_path, 15 * 8 + 7).batch_id == 15
    with pytest.raises(LakeError, match="no consistent LSN up to"):
        commit_points.at(tmp_path, 8)
