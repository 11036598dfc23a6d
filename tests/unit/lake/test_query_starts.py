"""A query whose Python processes start too late, on a busy machine, is started again."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from spillway.errors import LakeError, SpillwayError
from spillway.lake import job
from spillway.lake.slot import SlotPosition

LATE = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class Query:
    """A streaming query, and the reader and writer that lead to it: fails with each of *failures*, then ends."""

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


class Slot:
    """A service that answers."""

    def position(self, slot_name: str) -> SlotPosition:
        return SlotPosition(slot_name, "arrow", "main", "db", 0, 0)


@pytest.fixture
def run_with(tmp_path: Any) -> Any:
    def run(query: Query) -> job.JobSummary:
        made = job._Run.__new__(job._Run)
        made._settings = job.JobSettings("s", tmp_path, tmp_path)
        made._spark = query  # type: ignore[assignment]
        made._client = Slot()  # type: ignore[assignment]
        made._stopping = threading.Event()
        made._failure = None
        made._summary = job.JobSummary(lsn=0)  # type: ignore[arg-type]
        return made.run()

    return run


def test_late_workers(run_with: Any) -> None:
    query = Query(LATE, LATE)
    run_with(query)
    assert query.starts == 3
    with pytest.raises(LakeError, match="failed to connect back"):
        run_with(Query(LATE, LATE, LATE))


def test_other_failures_are_final(run_with: Any) -> None:
    query = Query("spillway.errors.SlotInvalidated: slot s was invalidated")
    with pytest.raises(SpillwayError, match="invalidated"):
        run_with(query)
    assert query.starts == 1
