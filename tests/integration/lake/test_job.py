"""The job as a whole: schemas that change, tables without keys, replays, stops and refusals."""

from __future__ import annotations

import threading
import time
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, update
from spillway.errors import (
    InvalidRequest,
    LakeBehindSlot,
    LakeTableConflict,
    UnknownSlot,
)
from spillway.lake.job import decoded_watch
from spillway.lake.job.run import run_job
from spillway.lake.metrics import LakeMetrics

if TYPE_CHECKING:
    from harness.lake import Lake
    from spillway.lake.batch.materialize import BatchReport

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})
LOG = Table(
    "log", {"level": pa.string(), "line": pa.string()}, primary_key=(), replica_identity="f"
)
BARE = Table("bare", {"n": pa.int64()}, primary_key=(), replica_identity="d")


@pytest.mark.long
def test_columns_come_and_go(delta_lake: Lake) -> None:
    lake = delta_lake
    grown = ITEMS.with_columns(price=pa.decimal128(10, 2))
    shrunk = grown.without_column("name")
    lake.slot.commit(insert(ITEMS, id=1, name="a"))
    # Within one batch, and over two.
    lake.slot.commit(insert(grown, id=2, name="b", price=None))
    lake.run()
    lake.slot.commit(insert(shrunk, id=3, price=None), update(shrunk, {"id": 1, "price": None}))
    lake.run()
    assert lake.current("public.items") == [
        {"id": 1, "price": None},
        {"id": 2, "price": None},
        {"id": 3, "price": None},
    ]
    assert [row["name"] for row in lake.history("public.items")] == ["a", "b", None, None]

    confirmed = lake.slot.state["confirmed_flush_lsn"]
    end = lake.slot.commit(insert(Table("items", {"id": pa.string()}), id="x"))
    (aside,) = lake.run().quarantined
    assert "public.items is in quarantine" in aside
    assert "column 'id'" in aside
    assert confirmed < end <= lake.slot.state["confirmed_flush_lsn"]
    assert len(lake.history("public.items")) == 4


@pytest.mark.long
def test_tables_without_a_primary_key(any_lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    lake = any_lake
    line = {"level": "info", "line": "started"}
    lake.slot.commit(
        *(insert(LOG, **line) for _ in range(3)),
        insert(LOG, level=None, line=None),
        insert(BARE, n=1),
    )
    lake.run()
    lake.slot.commit(
        delete(LOG, **line),
        update(LOG, {"level": "warn", "line": "started"}, old=line),
        delete(LOG, level=None, line=None),
    )
    lake.run()
    assert lake.current("public.log") == [
        {"level": "info", "line": "started", "_copies": 1},
        {"level": "warn", "line": "started", "_copies": 1},
    ]
    assert [row["n"] for row in lake.history("public.bare")] == [1]
    assert not (lake.path / "current" / "public.bare").exists()
    assert "public.bare has neither a primary key nor a replica identity" in caplog.text


@pytest.mark.long
def test_changes_that_come_again_change_nothing(lake: Lake) -> None:
    first = lake.slot.commit(insert(ITEMS, id=1, name="a"), insert(ITEMS, id=2, name="b"))
    lake.run()
    # The slot is rewound, and the checkpoint lost: batches are counted from 0 again and cut
    # elsewhere.
    lake.slot.set(confirmed_flush_lsn=0x1000000)
    lake.slot.commit(delete(ITEMS, id=1))
    summary = lake.run(checkpoint=lake.path / "another")
    assert [row["_op"] for row in lake.history("public.items")] == ["I", "I", "D"]
    assert lake.current("public.items") == [{"id": 2, "name": "b"}]
    assert summary.lsn == lake.slot.state["confirmed_flush_lsn"] > first


@pytest.mark.long
def test_a_small_bound_makes_many_batches(delta_lake: Lake) -> None:
    lake = delta_lake
    for i in range(3):
        lake.slot.commit(insert(ITEMS, id=i, name="n"), gap=1 << 20)
    summary = lake.run(max_bytes_per_batch=1 << 20)
    assert summary.batches == 4
    assert [row["id"] for row in lake.current("public.items")] == [0, 1, 2]


def test_continuous_until_stopped(lake: Lake) -> None:
    stop = threading.Event()
    reports: list[BatchReport] = []

    def on_batch(report: BatchReport) -> None:
        reports.append(report)
        if len(reports) == 1:
            lake.slot.commit(insert(ITEMS, id=2, name="b"))
        else:
            stop.set()

    lake.slot.commit(insert(ITEMS, id=1, name="a"))
    settings = lake.settings(trigger="continuous", interval_s=0.2)
    summary = run_job(settings, spark=lake.spark, on_batch=on_batch, stop=stop)
    assert summary.batches == 2
    # Confirmed without waiting for a batch after the last one.
    assert lake.slot.state["confirmed_flush_lsn"] == lake.slot.state["decoded_lsn"]
    assert [row["id"] for row in lake.current("public.items")] == [1, 2]


def test_a_batch_that_hangs_is_seen_in_the_metrics(
    delta_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark tells nothing of a trigger before it is over."""
    monkeypatch.setattr(decoded_watch, "_LOOK_S", 0.1)
    monkeypatch.setattr(decoded_watch, "_PATIENCE_S", 0.5)
    metrics, stop, hangs, go_on = LakeMetrics(), Event(), Event(), Event()
    delta_lake.slot.commit(insert(ITEMS, id=1, name="a"))

    def hang(_: BatchReport) -> None:
        hangs.set()
        go_on.wait(120)

    def work() -> None:
        settings = delta_lake.settings(trigger="continuous", interval_s=0.2)
        run_job(settings, on_batch=hang, stop=stop, spark=delta_lake.spark, metrics=metrics)

    def until(is_fresh: bool) -> None:
        deadline = time.monotonic() + 60
        while (metrics.freshness("shop") == 0) != is_fresh:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert hangs.wait(120)
        assert metrics.freshness("shop") == 0
        delta_lake.slot.commit(insert(ITEMS, id=2, name="b"))
        until(is_fresh=False)
        go_on.set()
        until(is_fresh=True)
    finally:
        go_on.set()
        stop.set()
        thread.join()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_table_that_is_set_aside_is_not_told_as_fresh(delta_lake: Lake) -> None:
    """Its readers see it as it was, however fresh the others are."""
    lake, grown = delta_lake, ITEMS.with_columns(price=pa.int64())

    def run(metrics: LakeMetrics, policy: str) -> None:
        settings = lake.settings(on_schema_change=policy)
        run_job(settings, spark=lake.spark, metrics=metrics)

    def ages(metrics: LakeMetrics) -> list[bool]:
        tables = ("public.items", "public.log")
        return [metrics.table_freshness("shop", table) > 0 for table in tables]

    metrics = LakeMetrics()
    lake.slot.commit(insert(ITEMS, id=1, name="a"), insert(LOG, level="info", line="a"))
    run(metrics, "quarantine")
    assert ages(metrics) == [False, False]
    lake.slot.commit(insert(grown, id=2, name="b", price=3), insert(LOG, level="info", line="b"))
    run(metrics, "quarantine")
    assert ages(metrics) == [True, False]
    assert metrics.freshness("shop") == 0
    lake.slot.commit(insert(LOG, level="info", line="c"))
    run(metrics, "quarantine")
    assert ages(metrics) == [True, False]
    # The next process knows it, too.
    metrics = LakeMetrics()
    run(metrics, "quarantine")
    assert ages(metrics) == [True, False]
    lake.slot.commit(insert(LOG, level="info", line="d"))
    run(metrics, "evolve")
    assert [row["id"] for row in lake.current("public.items")] == [1, 2]
    assert ages(metrics) == [False, False]


def test_refusals(delta_lake: Lake) -> None:
    lake = delta_lake
    with pytest.raises(UnknownSlot):
        lake.run(slot="other")
    with pytest.raises(InvalidRequest, match="unknown format"):
        lake.run(table_format="csv")
    lake.slot.commit(insert(ITEMS, id=1, name="a"))
    lake.run()
    with pytest.raises(LakeTableConflict, match="table format"):
        lake.run(table_format="parquet")
    lake.slot.commit(insert(ITEMS, id=2, name="b"))
    lake.slot.set(confirmed_flush_lsn=lake.slot.state["decoded_lsn"])
    with pytest.raises(LakeBehindSlot, match="Something else consumed the slot"):
        lake.run()
