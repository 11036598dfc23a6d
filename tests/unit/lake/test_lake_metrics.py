"""What a lake job tells Prometheus, and how the settings of several slots are made."""

from __future__ import annotations

import socket
import time
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.remedies import remedy
from spillway.consumer.slot import SlotPosition
from spillway.errors import InvalidRequest, LakeTableConflict, NotReady
from spillway.lake.batch.materialize import BatchReport
from spillway.lake.job import decoded_watch
from spillway.lake.job.decoded_watch import decoded_told
from spillway.lake.job.run import JobSettings
from spillway.lake.job.several import settings_of
from spillway.lake.listener import SlotQueryListener
from spillway.lake.metrics import LakeMetrics, MetricsServer
from spillway.lake.state import position
from spillway.lake.state.position import LakePosition
from spillway.pg.lsn import Lsn


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def report(end: int, age_s: float) -> BatchReport:
    committed = datetime.now(UTC) - timedelta(seconds=age_s)
    return BatchReport(0, Lsn(0), Lsn(end), {"public.t": 7}, Lsn(end), 0.5, committed, age_s)


def test_freshness_is_the_age_of_the_newest_commit_while_newer_ones_wait() -> None:
    metrics = LakeMetrics()
    metrics.begun("s", 100, 100, ago(900))
    assert metrics.freshness("s") == 0
    metrics.decoded("s", 900)
    assert 900 <= metrics.freshness("s") < 920, "what an earlier run wrote is at least as old"
    metrics.batch("s", BatchReport(0, Lsn(100), Lsn(200), {}, Lsn(200), 0.5))
    assert metrics.freshness("s") >= 900, "a batch without changes has no newer commit"
    metrics.batch("s", report(300, age_s=1000))
    assert metrics.freshness("s") >= 1000, "a commit's own time says more"
    metrics.begun("s", 300, 900, ago(5))
    assert metrics.freshness("s") >= 1000, "a run that begins anew in this process"
    metrics.batch("s", report(500, age_s=40))
    assert 40 <= metrics.freshness("s") < 60
    metrics.batch("s", report(900, age_s=10))
    assert metrics.freshness("s") == 0, "nothing newer is decoded"
    metrics.decoded("s", 901)
    assert 10 <= metrics.freshness("s") < 30
    metrics.decoded("s", 400)
    assert metrics.freshness("s") >= 10, "what is decoded does not go back"


def test_a_table_that_others_are_ahead_of() -> None:
    """Set aside, or being loaded: its readers see it as it was, however fresh all others are."""
    metrics = LakeMetrics()
    metrics.begun("s", 100, 100, ago(900))

    def batch(end: int, **behind: datetime | None) -> None:
        metrics.batch("s", replace(report(end, age_s=1), behind=behind))

    def age(table: str) -> float:
        return metrics.table_freshness("s", table)

    batch(200, aside=ago(40), quiet=None)
    assert 40 <= age("aside") < 60
    assert age("quiet") == age("public.t") == 0, "it lacks nothing"
    batch(300, aside=ago(20), quiet=ago(10))
    assert 40 <= age("aside") < 60, "the oldest change counts"
    assert 10 <= age("quiet") < 20
    batch(400, aside=None, quiet=None)
    assert 40 <= age("aside") < 60
    # At its own pace as well: what it lacks longest.
    metrics.waits("s", "aside", ago(5))
    assert age("aside") >= 40
    metrics.waits("s", "aside", None)
    metrics.loaded("s", "quiet")
    assert age("quiet") == 0
    batch(500)
    assert age("aside") == 0, "it is back"
    metrics.behind("s", "aside", ago(70))
    assert age("aside") >= 70, "since before this process"


def test_series() -> None:
    metrics = LakeMetrics()
    metrics.begun("s", 100, 300, ago(0))
    metrics.batch("s", report(200, age_s=2.5))
    metrics.phases("s", {"addBatch": 1500, "walCommit": 20})
    metrics.failed("s")
    with MetricsServer(metrics, 0) as server:
        text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
        with pytest.raises(InvalidRequest, match=f"127.0.0.1:{server.port}"):
            MetricsServer(metrics, server.port)
    lines = set(text.splitlines())
    assert lines >= {
        'spillway_lake_batches_total{slot="s"} 1.0',
        'spillway_lake_changes_total{slot="s",table="public.t"} 7.0',
        'spillway_lake_batch_seconds_sum{slot="s"} 0.5',
        'spillway_lake_commit_to_lake_seconds_bucket{le="2.0",slot="s"} 0.0',
        'spillway_lake_commit_to_lake_seconds_bucket{le="3.0",slot="s"} 1.0',
        'spillway_lake_phase_seconds_total{phase="addBatch",slot="s"} 1.5',
        'spillway_lake_failures_total{slot="s"} 1.0',
        'spillway_lake_lsn{slot="s"} 200.0',
        'spillway_lake_lag_bytes{slot="s"} 100.0',
    }
    assert "process_cpu_seconds_total" in text
    with socket.socket() as gone:
        assert gone.connect_ex(("127.0.0.1", server.port)) != 0


class Client:
    """Where a slot stands, or why nobody knows."""

    def __init__(self, decoded_lsn: int) -> None:
        self.decoded_lsn = decoded_lsn
        self.asked = 0
        self.away = False

    def position(self, slot_name: str) -> SlotPosition:
        self.asked += 1
        if self.away:
            raise NotReady("no answer")
        return SlotPosition(slot_name, "arrow", "main", "db", 100, self.decoded_lsn)

    def until_asked(self, times: int = 2) -> None:
        before, deadline = self.asked, time.monotonic() + 30
        while self.asked < before + times:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_job_that_stands_still_is_not_told_as_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_watch, "_LOOK_S", 0.01)
    monkeypatch.setattr(decoded_watch, "_PATIENCE_S", 0.0)
    metrics, client = LakeMetrics(), Client(100)
    metrics.begun("s", 100, 100, ago(50))
    with decoded_told(client, metrics, "s", 0.0):  # type: ignore[arg-type]
        client.until_asked()
        assert metrics.freshness("s") == 0
        client.decoded_lsn = 900
        client.until_asked()
        assert metrics.freshness("s") >= 50
        client.away = True
        client.until_asked()
        assert metrics.freshness("s") >= 50
        metrics.batch("s", report(900, age_s=1))
        assert metrics.freshness("s") == 0
        client.away, client.decoded_lsn = False, 901
        client.until_asked()
        assert metrics.freshness("s") >= 1
    # What is decoded for a moment is nothing that the lake lacks.
    monkeypatch.setattr(decoded_watch, "_PATIENCE_S", 3600.0)
    metrics = LakeMetrics()
    metrics.begun("s", 100, 100, ago(50))
    with decoded_told(client, metrics, "s", 0.0):  # type: ignore[arg-type]
        client.until_asked()
        assert metrics.freshness("s") == 0


class Progress:
    """What of Spark's event the listener reads."""

    def __init__(self, name: str | None, latest: str | None) -> None:
        self.progress = self
        self.name = name
        self.durationMs = {"addBatch": 3}
        self.sources = [type("Source", (), {"latestOffset": latest})()]


def test_listener_takes_its_queries_only() -> None:
    metrics = LakeMetrics()
    metrics.begun("s", 100, 100, ago(0))
    metrics.batch("s", report(100, age_s=5))
    listener = SlotQueryListener(metrics, {"q": "s"})
    for name, latest in (
        ("other", '{"lsn": "0/FFF"}'), (None, '{"lsn": "0/FFF"}'),
        ("q", None), ("q", "17"), ("q", '{"files": 3}'), ("q", '{"lsn": "no"}'), ("q", "not JSON"),
    ):  # fmt: skip
        listener.onQueryProgress(Progress(name, latest))  # type: ignore[arg-type]
    assert metrics.freshness("s") == 0
    listener.onQueryProgress(Progress("q", '{"lsn": "0/100"}'))  # type: ignore[arg-type]
    assert metrics.freshness("s") >= 5
    assert metrics.registry.get_sample_value(
        "spillway_lake_phase_seconds_total", {"slot": "s", "phase": "addBatch"}
    ) == pytest.approx(0.018)


def test_settings_of_one_and_of_several(tmp_path: Path) -> None:
    every = JobSettings(slot="", path=tmp_path / "lake", checkpoint=Path(), interval_s=7)
    (one,) = settings_of(every, ["a"], None)
    assert (one.slot, one.path, one.checkpoint) == (
        "a",
        every.path,
        every.path / "_spillway" / "checkpoint",
    )
    two = settings_of(every, ["a", "b"], None)
    assert [(job.slot, job.path) for job in two] == [
        ("a", every.path / "a"),
        ("b", every.path / "b"),
    ]
    assert two[1].checkpoint == every.path / "b" / "_spillway" / "checkpoint"
    assert {job.interval_s for job in two} == {7}
    assert [job.checkpoint for job in settings_of(every, ["a", "b"], tmp_path)] == [
        tmp_path / "a",
        tmp_path / "b",
    ]
    with pytest.raises(InvalidRequest, match="twice"):
        settings_of(every, ["a", "a"], None)
    (every.path / "_spillway").mkdir(parents=True)
    position.store(every.path, LakePosition("a", "main", "db", "delta", "0/1"))
    with pytest.raises(LakeTableConflict, match="slot a alone"):
        settings_of(every, ["a", "b"], None)


@pytest.mark.follows_hint("lake_table_conflict")
def test_one_above_the_lakes_of_several(tmp_path: Path) -> None:
    every = JobSettings(slot="", path=tmp_path / "lakes", checkpoint=Path())
    for name in ("b", "a"):
        position.store(every.path / name, LakePosition(name, "main", "db", "delta", "0/1"))
    with pytest.raises(LakeTableConflict, match=r"several slots .*\(a, b\)") as caught:
        settings_of(every, ["c"], None)
    words = remedy(caught.value, "lake_table_conflict").split()
    own = Path(words[words.index("--lake") + 1])
    (one,) = settings_of(replace(every, path=own), ["c"], None)
    assert one.path == own == every.path / "c"
    # Theirs, and one of theirs alone.
    assert len(settings_of(every, ["a", "b"], None)) == 2
    (one,) = settings_of(replace(every, path=every.path / "a"), ["a"], None)
    # One that was there before goes on.
    position.store(every.path, LakePosition("c", "main", "db", "delta", "0/1"))
    (one,) = settings_of(every, ["c"], None)
