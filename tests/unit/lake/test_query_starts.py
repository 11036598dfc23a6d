"""A query whose Python processes start too late, on a busy machine, is started again."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from spillway.consumer.slot import SlotPosition
from spillway.errors import LakeError, SpillwayError
from spillway.lake.job import run as job
from spillway.lake.worker_failures import late as late_workers

LATE = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class Query:
    """A streaming query, and the reader and writer that lead to it: fails with each of *failures*,
    then ends.
    """

    def __init__(self, *failures: str) -> None:
        self.failures = list(failures)
        self.starts = 0
        self.isActive = False
        self.readStream = self.writeStream = self

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def start(self) -> Query:
        self.starts += 1
        return self

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 - Spark's name
        if self.failures:
            raise StreamingQueryException(self.failures.pop(0))
        return True


class Clock:
    """Time, and the event that ends the run, on which it waits: no test sleeps."""

    def __init__(self, ends_at: float = float("inf")) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._ends_at = ends_at

    def monotonic(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return self.now >= self._ends_at

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return self.is_set()


class Slot:
    """A service that answers."""

    def position(self, slot_name: str) -> SlotPosition:
        return SlotPosition(slot_name, "arrow", "main", "db", 0, 0)


@pytest.fixture
def run_with(tmp_path: Any) -> Any:
    def run(query: Query, clock: Clock | None = None) -> job.JobSummary:
        made = job._Run.__new__(job._Run)
        made._settings = job.JobSettings("s", tmp_path, tmp_path)
        made._spark = query  # type: ignore[assignment]
        made._client = Slot()  # type: ignore[assignment]
        made._stopping = clock or threading.Event()  # type: ignore[assignment]
        made._failure = None
        made._summary = job.JobSummary(lsn=0)  # type: ignore[arg-type]
        return made.run()

    return run


def test_late_workers(run_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(late_workers, "time", clock)
    query = Query(*[LATE] * 20)
    run_with(query, clock)
    assert query.starts == 21
    # From one second on, twice as long each time, up to half a minute.
    assert clock.pauses == [1, 2, 4, 8, 16, *[30] * 15]


def test_a_machine_that_is_busy_for_ever(run_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(late_workers, "time", clock)
    with pytest.raises(LakeError, match="failed to connect back"):
        run_with(Query(*[LATE] * 1000), clock)
    assert 900 <= clock.now < 960


def test_a_stop_ends_the_wait(run_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(ends_at=10.0)
    monkeypatch.setattr(late_workers, "time", clock)
    query = Query(*[LATE] * 1000)
    run_with(query, clock)
    assert (query.starts, clock.pauses) == (4, [1, 2, 4, 8])


def test_other_failures_are_final(run_with: Any) -> None:
    query = Query("spillway.errors.SlotInvalidated: slot s was invalidated")
    with pytest.raises(SpillwayError, match="invalidated"):
        run_with(query)
    assert query.starts == 1
