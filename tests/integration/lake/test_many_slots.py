"""One job for several slots: kept apart, and one that fails is no reason for the others to stop."""

from __future__ import annotations

import threading
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from harness.service import service_in_process
from spillway.errors import LakeError
from spillway.lake.job.run import JobSettings
from spillway.lake.job.several import run_jobs, settings_of
from spillway.lake.metrics import LakeMetrics, MetricsServer
from spillway.lake.read import Lake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database


def wait_for(what: Callable[[], bool], said: list[str]) -> None:
    deadline = time.monotonic() + 240
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


@pytest.mark.long
def test_two_and_one_that_is_not_there_yet(
    spark: SparkSession, pg15: Database, tmp_path: Path
) -> None:
    pg15.execute("CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    said: list[str] = []
    metrics, stop = LakeMetrics(), threading.Event()
    with service_in_process(tmp_path / "data") as service, MetricsServer(metrics, 0) as server:
        service.create_source(pg15.dsn)
        service.create_slot("a", pg15.name, "arrow")
        every = JobSettings(
            slot="",
            path=tmp_path / "lakes",
            checkpoint=tmp_path,
            trigger="continuous",
            interval_s=0.2,
            grpc=service.grpc_address,
        )
        jobs = settings_of(every, ["a", "late"], None)
        outcome: dict[str, int] = {}

        def work() -> None:
            done = run_jobs(jobs, tell=said.append, metrics=metrics, stop=stop, spark=spark)
            outcome.update({slot: sum(each.changes.values()) for slot, each in done.items()})

        thread = threading.Thread(target=work)
        thread.start()
        try:
            pg15.execute("INSERT INTO items SELECT g FROM generate_series(1, 10) g")
            wait_for(
                lambda: any(s.startswith("a: batch") and "10 changes" in s for s in said), said
            )
            assert any(s.startswith("late: failed, and begins anew") for s in said)
            service.create_slot("late", pg15.name, "arrow")
            pg15.execute("INSERT INTO other VALUES (1); INSERT INTO items VALUES (11)")
            wait_for(
                lambda: any(s.startswith("late: batch") and "2 changes" in s for s in said), said
            )
            wait_for(
                lambda: any(s.startswith("a: batch") and " 2 changes" in s for s in said), said
            )
            url = f"http://127.0.0.1:{server.port}/metrics"
            # Spark tells its listeners when a trigger has ended.
            wait_for(
                lambda: b'phase="addBatch",slot="late"' in urllib.request.urlopen(url).read(),
                said,
            )
            text = urllib.request.urlopen(url).read().decode()
            assert 'spillway_lake_changes_total{slot="a",table="public.items"} 11.0' in text
            assert 'spillway_lake_changes_total{slot="late",table="public.items"} 1.0' in text
            assert 'spillway_lake_failures_total{slot="late"} 0.0' not in text
            assert 'spillway_lake_failures_total{slot="a"} 0.0' in text
        finally:
            stop.set()
            thread.join()
        assert outcome == {"a": 12, "late": 2}
        rows = Lake(spark, tmp_path / "lakes" / "late").at().current("public.items").collect()
        assert [row.id for row in rows] == [11]

        # To its end: who fails is told of when the others are done.
        pg15.execute("DELETE FROM items WHERE id = 11")
        for slot in ("a", "late"):
            service.wait_decoded(slot, pg15)
        once = JobSettings(slot="", path=every.path, checkpoint=tmp_path, grpc=every.grpc)
        with pytest.raises(LakeError, match=r"1 of 3 slots failed: lost: .*lost"):
            run_jobs(settings_of(once, ["a", "late", "lost"], None), tell=said.append, spark=spark)
        for slot in ("a", "late"):
            assert Lake(spark, every.path / slot).at().current("public.items").count() == (
                10 if slot == "a" else 0
            )
            service.drop_slot(slot)
        service.call("DELETE", "/sources/main")
