"""``--merge-interval``: current tables that are merged at their own pace, beside the batches."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest

from harness.service import service_in_process
from spillway.errors import LakeError
from spillway.failpoints import armed
from spillway.lake.batch import pace
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.job.status_file import LakeStatusFile
from spillway.lake.read import Lake
from spillway.lake.state import commit_points, position, quarantine, waiting
from spillway.lake.state.loads import merge_lock
from spillway.lake.state.quarantine import quarantined
from spillway.lake.tables import positions
from spillway.lake.verify.run import Verification, VerifySettings, verify
from spillway.pg.lsn import Lsn
from spillway.subscriber.run_status import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database
    from harness.service import Service
    from spillway.storage.place import LakePath
    from spillway.subscriber.model import TableState

BIG, SMALL = "public.big", "public.small"
HOUR = 3600.0
#: A round of tables that are due each second has begun by then.
_ROUNDS_S = 3.0


class _Stage:
    """A source with a large and a small table, and a lake of them."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        service: Service,
        directory: Path,
        table_format: Literal["delta", "iceberg", "parquet"],
        merge: Literal["copy", "position"],
    ) -> None:
        self.spark, self.database, self.service = spark, database, service
        self.status = directory
        self.settings = JobSettings(
            slot="s",
            path=directory / "lake",
            checkpoint=directory / "checkpoint",
            table_format=table_format,
            merge=merge,
            trigger="continuous",
            interval_s=0.1,
            grpc=service.grpc_address,
            merge_intervals={BIG: HOUR},
        )
        database.execute(
            "CREATE TABLE big (id int PRIMARY KEY, v text, note text); "
            "ALTER TABLE big ALTER note SET STORAGE EXTERNAL; "
            "CREATE TABLE small (id int PRIMARY KEY, v text)"
        )
        service.create_source(database.dsn)
        service.create_slot("s", database.name, "arrow")
        database.execute(
            "INSERT INTO big SELECT n, 'v', repeat('x', 4000) FROM generate_series(1, 100) n; "
            "INSERT INTO small VALUES (1, 'v')"
        )

    @contextmanager
    def running(self, intervals: dict[str, float]) -> Iterator[None]:
        """Have a job at work."""
        stop, failure = threading.Event(), []

        def work() -> None:
            with LakeStatusFile(self.status / "status.json") as status:
                try:
                    run_job(
                        replace(self.settings, merge_intervals=intervals),
                        spark=self.spark,
                        stop=stop,
                        status=status,
                        on_batch=lambda report: status.heard(self.settings.path, report),
                    )
                except Exception as error:  # noqa: BLE001 - raised below
                    failure.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failure:
            raise failure[0]

    def change(self, statements: str) -> Lsn:
        """Change the source, and wait until the lake has it."""
        self.database.execute(statements)
        end = Lsn.parse(self.service.wait_decoded("s", self.database))
        _wait(lambda: _position(self.settings.path) >= end)
        return end

    def change_later(self, statements: str) -> None:
        """Change the source while no job is at work."""
        self.database.execute(statements)
        self.service.wait_decoded("s", self.database)

    def rows(self, table: str, lsn: Lsn | None = None) -> list[tuple[object, ...]]:
        pin = Lake(self.spark, self.settings.path).at(lsn, tables=[table])
        return sorted(tuple(row) for row in pin.current(table).select("id", "v").collect())

    def source(self, table: str) -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in self.database.query(f"SELECT id, v FROM {table}"))

    def on_disk(self, table: str) -> list[tuple[object, ...]]:
        """Return the newest rows of a lake of Delta, as of whatever LSN they are."""
        found = self.spark.read.format("delta").load(str(self.settings.path / "current" / table))
        return sorted(tuple(row) for row in found.select("id", "v").collect())

    def compared(self) -> Verification:
        return verify(
            VerifySettings(self.settings.path, self.database.dsn, grpc=self.service.grpc_address),
            spark=self.spark,
        )

    def verified(self) -> None:
        outcome = self.compared()
        assert [str(t) for t in outcome.tables if not t.equal or t.skipped] == []
        assert len(outcome.tables) == 2


@pytest.fixture
def stage(
    spark: SparkSession,
    pg18: Database,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[_Stage]:
    """A lake of the format and with the merge that the parameter says."""
    monkeypatch.setattr(positions, "SMALL_TABLE_BYTES", 0)
    with service_in_process(tmp_path / "data") as service:
        yield _Stage(spark, pg18, service, tmp_path, *request.param)
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


@pytest.mark.parametrize("stage", [("delta", "position")], indirect=True, ids=str)
def test_a_table_at_its_own_pace(stage: _Stage) -> None:
    path = stage.settings.path
    with stage.running({BIG: HOUR}):
        stage.change("INSERT INTO small VALUES (2, 'v')")
        stage.change("UPDATE big SET v = 'w' WHERE id <= 10; UPDATE small SET v = 'w'")
        assert list(waiting.load(path)) == [BIG]
        assert next(commit_points.points(path)).loading == [BIG]
        # A batch is told after it is durable.
        assert _wait(lambda: _table_told(stage, BIG).waiting_since is not None)
        assert _table_told(stage, SMALL).waiting_since is None
    at = next(commit_points.points(path))
    assert at.loading == [BIG]
    with stage.running({"all": 1.0, SMALL: 0.0}):
        assert _wait(lambda: next(commit_points.points(path)).loading == [])
    # As of what the job had when it began, or a moment later: WAL goes on by itself.
    agreed = next(commit_points.points(path))
    assert agreed.lsn_value >= at.lsn_value
    assert stage.rows(BIG, Lsn(agreed.lsn_value)) == stage.source("big")
    assert stage.rows(SMALL) == stage.source("small")


@pytest.mark.long
@pytest.mark.parametrize(
    "stage",
    [
        ("delta", "position"),
        ("delta", "copy"),
        ("iceberg", "copy"),
        ("iceberg", "position"),
        ("parquet", "copy"),
    ],
    indirect=True,
    ids=str,
)
def test_no_table_waits_for_another(stage: _Stage) -> None:
    path = stage.settings.path
    with stage.running({BIG: HOUR}):
        first = stage.change("INSERT INTO small VALUES (2, 'v')")
        stage.change("UPDATE big SET v = 'w' WHERE id <= 10; UPDATE small SET v = 'w'")
        # The slot is confirmed: the large table's history has it, and only that.
        assert list(waiting.load(path)) == [BIG]
        assert stage.rows(SMALL) == stage.source("small")
        newest = next(commit_points.points(path))
        assert newest.loading == [BIG]
        pin = Lake(stage.spark, path).at()
        assert pin.tables() == [SMALL]
        assert pin.history(BIG).where("_op = 'U'").count() == 10
        with pytest.raises(LakeError, match="its own pace") as refused:
            pin.current(BIG)
        # The remedy.
        assert f"tables=['{BIG}']" in refused.value.hint
        before = Lake(stage.spark, path).at(tables=[BIG])
        assert int(first) <= before.lsn < newest.lsn_value
        assert before.current(BIG).where("v = 'v'").count() == 100
        assert before.tables() == [BIG, SMALL]
        # A batch is told after it is durable, since when a table waits a moment before the rest.
        assert _wait(lambda: _waits_since_its_newest_change(_table_told(stage, BIG)))
        assert _table_told(stage, SMALL).waiting_since is None

        # More waits, of every kind; then who compares asks for an LSN, and all tables come to it.
        stage.change(
            "UPDATE big SET v = 'unchanged note' WHERE id BETWEEN 5 AND 20; "
            "UPDATE big SET id = id + 1000, note = 'short' WHERE id = 30; "
            "DELETE FROM big WHERE id BETWEEN 90 AND 100"
        )
        assert list(waiting.load(path)) == [BIG]
        stage.verified()
        assert _wait(lambda: _table_told(stage, BIG).waiting_since is None)
        assert next(commit_points.points(path)).loading == []

        stage.change("TRUNCATE big; INSERT INTO big VALUES (1, 'after', '')")
        stage.change("INSERT INTO big VALUES (2, 'after', '')")
        assert stage.rows(BIG) != stage.source("big")
        # Another shape: what waited comes with it.
        stage.change("ALTER TABLE big ADD c int; INSERT INTO big VALUES (3, 'c', '', 7)")
        assert stage.rows(BIG) == stage.source("big")
        stage.change("UPDATE big SET v = 'last'; UPDATE small SET v = 'last'")
        assert stage.rows(BIG) != stage.source("big")

    # It waits on while no job runs, until one has another interval, or none.
    assert list(waiting.load(path)) == [BIG]
    lsn = next(commit_points.points(path))
    assert lsn.loading == [BIG]
    with stage.running({"all": 1.0}):
        assert _wait(lambda: next(commit_points.points(path)).loading == [])
        # As of what the job had when it began, or a moment later: WAL goes on by itself.
        last, agreed = [(n, "last") for n in (1, 2, 3)], next(commit_points.points(path))
        assert agreed.lsn_value >= lsn.lsn_value
        assert stage.rows(BIG, Lsn(agreed.lsn_value)) == last
        stage.change("UPDATE big SET v = v || '.'; UPDATE small SET v = v || '.'")
        assert _wait(lambda: next(commit_points.points(path)).loading == [])
        assert stage.rows(BIG) == stage.source("big")
        assert stage.rows(SMALL) == stage.source("small")
    if stage.settings.table_format != "parquet":
        # There the last two copies stay, and more came.
        assert stage.rows(BIG, Lsn(agreed.lsn_value)) == last

    # A job that ends by itself leaves nothing that waits.
    stage.change_later("DELETE FROM big WHERE id = 1; DELETE FROM small")
    run_job(replace(stage.settings, trigger="available-now"), spark=stage.spark)
    assert next(commit_points.points(path)).loading == []
    assert stage.rows(BIG) == stage.source("big")
    stage.verified()


@pytest.mark.long
@pytest.mark.parametrize("stage", [("delta", "position")], indirect=True, ids=str)
def test_another_shape_while_a_merge_has_not_had_its_turn(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose merge is put off by another one's gets a column: what waits from there on has
    that, and the merge that comes late has been done by the batch, to another LSN than its own.
    """
    monkeypatch.setattr(pace, "_AT_ONCE", 1)
    path = stage.settings.path
    with stage.running({"all": 1.0}):
        stage.change("INSERT INTO small VALUES (2, 'v')")
        assert _wait(lambda: next(commit_points.points(path)).loading == [])
        with merge_lock(path, BIG):
            stage.change("UPDATE big SET v = 'w' WHERE id <= 10")
            # It is being merged by now, and waits for us.
            time.sleep(_ROUNDS_S)
            seen = [_seen(stage, "UPDATE small SET v = 'w'")]
            time.sleep(_ROUNDS_S)
            seen += [
                _seen(stage, "ALTER TABLE small ADD c int; UPDATE small SET c = 1 WHERE id = 1"),
                _seen(stage, "UPDATE small SET v = 'x', c = id + 5"),
            ]
        assert _wait(lambda: next(commit_points.points(path)).loading == [])
        found = Lake(stage.spark, path).at().current(SMALL).select("id", "v", "c").collect()
        assert sorted(map(tuple, found)) == [(1, "x", 6), (2, "x", 7)]
    assert _points_that_differ(stage, seen) == []


@pytest.mark.long
@pytest.mark.parametrize("stage", [("delta", "position")], indirect=True, ids=str)
def test_merges_of_a_table_while_the_rest_of_its_round_is_at_work(stage: _Stage) -> None:
    """A round whose slowest table takes longer than others' intervals: an LSN between two merges of
    a quick one is none as of which that is.
    """
    path = stage.settings.path
    with stage.running({"all": 4.0}):
        stage.change("INSERT INTO small VALUES (2, 'v')")
        assert _wait(lambda: next(commit_points.points(path)).loading == [])
        with merge_lock(path, BIG):
            seen = [_seen(stage, "BEGIN; UPDATE big SET v = 'w'; UPDATE small SET v = 'w'; COMMIT")]
            assert _wait(lambda: stage.on_disk(SMALL) == stage.source("small"))
            seen += [_seen(stage, f"UPDATE small SET v = 'w{n}'") for n in range(5)]
            assert _wait(lambda: stage.on_disk(SMALL) == stage.source("small"))
            time.sleep(1)
        assert _wait(lambda: next(commit_points.points(path)).loading == [])
    assert _points_that_differ(stage, seen) == []


@pytest.mark.long
@pytest.mark.parametrize("stage", [("delta", "copy")], indirect=True, ids=str)
def test_waited_since_before_the_lakes_position(stage: _Stage) -> None:
    """A table that waits when its job begins, and had nothing of the lake's last batches."""
    path = stage.settings.path
    with stage.running({BIG: HOUR}):
        stage.change("INSERT INTO small VALUES (2, 'v')")
        stage.change("UPDATE big SET v = 'w' WHERE id <= 10")
        stage.change("UPDATE small SET v = 'w'")
    with stage.running({BIG: 1.0}):
        assert _wait(lambda: stage.on_disk(BIG) == stage.source("big"))
        assert _wait(lambda: _table_told(stage, BIG).waiting_since is None)
        stage.change("UPDATE small SET v = 'x'")
        assert next(commit_points.points(path)).loading == []


@pytest.mark.long
@pytest.mark.parametrize("stage", [("delta", "copy")], indirect=True, ids=str)
def test_set_aside_in_another_shape(stage: _Stage) -> None:
    """What a table was set aside for is in its history; it is not merged as what waited before."""
    path = stage.settings.path
    with stage.running({SMALL: HOUR}):
        stage.change("INSERT INTO small VALUES (2, 'v')")
        stage.change("UPDATE small SET v = 'w'")
        with armed("lake.after_history=error:EDQUOT@1-2"):
            stage.change("ALTER TABLE small ADD c int; UPDATE small SET v = 'x', c = id + 5")
        assert SMALL in quarantined(path)
        stage.change("INSERT INTO big VALUES (1000, 'v')")
    with stage.running({SMALL: 1.0}):
        assert _wait(lambda: stage.on_disk(SMALL) == [(1, "w"), (2, "w")])
        stage.change("INSERT INTO big VALUES (1001, 'v')")
        time.sleep(_ROUNDS_S)
        assert stage.on_disk(SMALL) == [(1, "w"), (2, "w")]
        quarantine.resume(path, [SMALL])
        stage.change("INSERT INTO big VALUES (1002, 'v')")
        assert _wait(lambda: SMALL not in quarantined(path))
        stage.change("INSERT INTO big VALUES (1003, 'v')")
        found = Lake(stage.spark, path).at().current(SMALL).select("id", "v", "c").collect()
        assert sorted(map(tuple, found)) == [(1, "x", 6), (2, "x", 7)]


@pytest.mark.long
@pytest.mark.parametrize("stage", [("delta", "copy")], indirect=True, ids=str)
def test_compared_while_its_merge_fails(stage: _Stage) -> None:
    """It is told as that, and not as a load; its next batch merges it."""
    path = stage.settings.path
    with stage.running({SMALL: HOUR}):
        stage.change("INSERT INTO small VALUES (2, 'v')")
        stage.change("UPDATE small SET v = 'w'")
        with armed("lake.before_own_merge=error:EIO"):
            outcome = stage.compared()
        told = {table.table: table.skipped for table in outcome.tables}
        assert "a merge of what waits in its history failed" in told[SMALL]
        assert not told[BIG]
        assert next(commit_points.points(path)).loading == [SMALL]
        stage.change("UPDATE small SET v = 'x' WHERE id = 1")
        stage.verified()


def _seen(stage: _Stage, statements: str) -> tuple[int, list[tuple[object, ...]]]:
    """Change the source; return an LSN as of which the small table is as it is now."""
    lsn = int(stage.change(statements))
    return lsn, stage.source("small")


def _points_that_differ(
    stage: _Stage, seen: list[tuple[int, list[tuple[object, ...]]]]
) -> list[str]:
    """Return the LSNs at which the lake shows the small table as it was not."""
    points = [
        point
        for point in commit_points.points(stage.settings.path)
        if SMALL not in point.loading and point.lsn_value >= seen[0][0]
    ]
    assert points
    return [
        point.lsn
        for point in points
        if stage.rows(SMALL, Lsn(point.lsn_value))
        != [rows for lsn, rows in seen if lsn <= point.lsn_value][-1]
    ]


def _position(path: LakePath) -> int:
    found = position.load(path)
    return 0 if found is None else found.lsn_value


def _table_told(stage: _Stage, name: str) -> TableState:
    told = RunStatus.load(stage.status)
    assert told is not None
    return next(table for table in told.tables if table.table == name)


def _waits_since_its_newest_change(table: TableState) -> bool:
    return table.waiting_since is not None and table.waiting_since == table.newest_change_at


def _wait(ready: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return True
