"""Tables that are loaded anew by the lake's own job, because somebody asked: while it goes on, with
what is in the way told, and through kills at each step.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from harness.killed_driver import run_killed
from harness.service import service_in_process
from spillway.errors import LakeError
from spillway.lake.commands.app import app as lake_commands
from spillway.lake.job.run import JobSettings
from spillway.lake.job.several import run_jobs
from spillway.lake.job.status_file import LakeStatusFile
from spillway.lake.state import quarantine, resyncs
from spillway.lake.state.loads import load_state
from spillway.subscriber.run_status import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database
    from harness.service import Service
    from spillway.subscriber.model import TableState

T, U = "public.t", "public.u"


@dataclass
class Stage:
    """A source with two tables, a slot, and a lake of Delta tables that has both."""

    spark: SparkSession
    pg: Database
    service: Service
    path: Path

    @property
    def lake(self) -> Path:
        return self.path / "lake"

    def settings(self, **changed: Any) -> JobSettings:
        values: dict[str, Any] = {
            "slot": "s",
            "path": self.lake,
            "checkpoint": self.path / "checkpoint",
            "grpc": self.service.grpc_address,
            "source_dsn": self.pg.dsn,
            "interval_s": 0.5,
        }
        return JobSettings(**values | changed)

    def run(self, **changed: Any) -> None:
        """Take what there is, and end."""
        self.service.wait_decoded("s", self.pg)
        with LakeStatusFile(self.path / "status.json") as status:
            run_jobs(
                [self.settings(**changed)], tell=print, status=status, spark=self.spark,
                stop=threading.Event(),
            )  # fmt: skip

    @contextmanager
    def running(self, **changed: Any) -> Iterator[None]:
        """Have a job go on beside the block."""
        stop = threading.Event()
        settings = self.settings(trigger="continuous", **changed)
        failed: list[BaseException] = []

        def run() -> None:
            try:
                with LakeStatusFile(self.path / "status.json") as status:
                    run_jobs([settings], tell=print, status=status, spark=self.spark, stop=stop)
            except BaseException as error:
                failed.append(error)
                raise

        job = threading.Thread(target=run)
        job.start()
        try:
            yield
        finally:
            stop.set()
            job.join()
        assert not failed

    def told(self, table: str = T) -> TableState:
        told = RunStatus.load(self.path)
        assert told is not None
        return {each.table: each for each in told.tables}[table]

    def wait(self, ready: Callable[[TableState], object], table: str = T) -> TableState:
        deadline = time.monotonic() + 120
        while not ready(found := self.told(table)):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    def current(self, table: str = T) -> list[tuple[int, str]]:
        rows = DeltaTable(str(self.lake / "current" / table)).to_pyarrow_table()
        return sorted(zip(*(rows.column(n).to_pylist() for n in ("id", "v")), strict=True))

    def source(self, table: str = T) -> list[tuple[int, str]]:
        return [tuple(row) for row in self.pg.query(f"SELECT id, v FROM {table} ORDER BY id")]

    def history(self, table: str = T) -> list[dict[str, Any]]:
        rows = DeltaTable(str(self.lake / "history" / table)).to_pyarrow_table()
        return rows.select(["id", "_op", "_commit_lsn", "_seq"]).to_pylist()

    def loads(self, table: str = T) -> Counter[int]:
        """How many rows came by each load, by its LSN."""
        return Counter(row["_commit_lsn"] + 1 for row in self.history(table) if row["_op"] == "R")

    def spoil(self) -> None:
        """Have the lake's table lack what the source has."""
        self.spark.sql(f"DELETE FROM delta.`{self.lake / 'current' / T}` WHERE id % 2 = 0")

    def loaded_as_of(self, table: str = T) -> int:
        state = load_state(self.lake, table)
        assert state is not None
        return state.lsn_value


def done(table: TableState) -> bool:
    return table.resync is not None and table.resync.state == "done"


def failed(table: TableState) -> bool:
    return table.resync is not None and table.resync.state == "failed"


def reason_of(table: TableState) -> str:
    assert table.resync is not None
    return table.resync.reason or ""


def asked_for(lake: Path, *tables: str) -> str:
    """Ask as a person does."""
    words = ["resync", "--lake", str(lake), *(f"--table={table}" for table in tables)]
    result = CliRunner().invoke(lake_commands, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def taken_back(lake: Path, table: str) -> tuple[int, str]:
    """Take a wish back as a person does; return the exit code, and what is said."""
    words = ["cancel-resync", "--lake", str(lake), f"--table={table}"]
    result = CliRunner().invoke(lake_commands, words)
    return result.exit_code, result.stdout + str(result.exception or "")


def cancelled(table: TableState) -> bool:
    return table.resync is not None and table.resync.state == "cancelled"


@contextmanager
def on_stage(spark: SparkSession, pg: Database, path: Path) -> Iterator[Stage]:
    with service_in_process(path / "data") as service:
        for name in ("t", "u"):
            pg.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
            pg.execute(f"INSERT INTO {name} SELECT i, 'before' FROM generate_series(1, 400) i")
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name, "arrow")
        stage = Stage(spark, pg, service, path)
        stage.run(initial_load=True)
        assert stage.current() == stage.source()
        yield stage
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


def test_a_running_job_loads_what_is_asked_for(
    spark: SparkSession, pg18: Database, tmp_path: Path
) -> None:
    with on_stage(spark, pg18, tmp_path) as stage:
        first = stage.loaded_as_of()
        stage.spoil()
        half = stage.current()
        assert len(half) == 200
        with stage.running():
            assert f"{T} is loaded anew by the lake's job" in asked_for(stage.lake, T)
            stop = threading.Event()
            sizes: list[int] = []

            def work() -> None:
                """Write, and read what a reader finds."""
                number = 1000
                while not stop.wait(0.05):
                    number += 1
                    pg18.execute(f"INSERT INTO t VALUES ({number}, 'while'); DELETE FROM u WHERE "
                                 f"id = {number - 1000}")  # fmt: skip
                    sizes.append(len(stage.current()))

            worker = threading.Thread(target=work)
            worker.start()
            try:
                told = stage.wait(done)
            finally:
                stop.set()
                worker.join()
            assert told.state == "ready"
            assert told.resync is not None
            assert told.resync.lsn == stage.loaded_as_of() > first
            assert told.resync.asked_at < (told.resync.ended_at or told.resync.asked_at)
            # Never half of it: what was there, or all that is in the source by then.
            between = [size for size in sizes if 200 + len(sizes) < size < 400]
            assert not between
            assert sizes[0] < 300
            assert resyncs.asked(stage.lake) == {}
            # Others were not loaded, and went on.
            assert stage.told(U).resync is None
        stage.run()
        assert stage.current() == stage.source()
        assert stage.current(U) == stage.source("public.u")
        # History keeps both loads, each once.
        loads = stage.loads()
        assert loads.keys() == {first, stage.loaded_as_of()}
        assert loads[first] == 400 <= loads[stage.loaded_as_of()]
        assert stage.loads(U).keys() == {stage.loaded_as_of(U)}
        seen = Counter((r["_commit_lsn"], r["_seq"]) for r in stage.history())
        assert set(seen.values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        "lake.resync_asked=kill",
        "lake.load_begun=kill",
        "lake.load_copied=kill",
        "lake.load_published=kill",
        "lake.resync_done=kill",
    ],
)
def test_killed(spark: SparkSession, pg18: Database, tmp_path: Path, point: str) -> None:
    """Between the wish and the load, in it, and before the wish is removed."""
    with on_stage(spark, pg18, tmp_path) as stage:
        first = stage.loaded_as_of()
        stage.spoil()
        pg18.execute("UPDATE t SET v = 'later' WHERE id <= 10; INSERT INTO t VALUES (900, 'new')")
        asked_for(stage.lake, T)
        settings = {
            "slot": "s",
            "path": str(stage.lake),
            "checkpoint": str(tmp_path / "checkpoint"),
            "grpc": stage.service.grpc_address,
            "source_dsn": pg18.dsn,
        }
        run_killed(spark, point, "job", settings)
        (wish,) = resyncs.asked(stage.lake).values()
        assert wish.table == T
        after_kill = stage.loaded_as_of() if "done" in point else 0
        for _ in range(100):
            # The session that keeps the snapshot ends with its client.
            if not pg18.value(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            ):
                break
            time.sleep(0.1)
        pg18.execute("DELETE FROM t WHERE id = 20")
        stage.run()
        assert resyncs.asked(stage.lake) == {}
        assert stage.current() == stage.source()
        loads = stage.loads()
        assert loads.keys() == {first, stage.loaded_as_of()}
        assert loads[stage.loaded_as_of()] in (400, 401)
        if after_kill:
            # It was loaded for that wish, once.
            assert stage.loaded_as_of() == after_kill
        told = stage.told()
        assert (told.state, done(told)) == ("ready", True)


@pytest.mark.long
def test_a_wish_is_taken_back(
    spark: SparkSession, pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the job loads another table, in the moment in which the load begins, and too late."""
    with on_stage(spark, pg18, tmp_path) as stage:
        first = stage.loaded_as_of()
        stage.spoil()
        begins, goes_on = threading.Event(), threading.Event()
        real = resyncs.begin

        def begin(path: Path, wish: resyncs.Resync) -> bool:
            begins.set()
            assert goes_on.wait(60)
            return real(path, wish)

        monkeypatch.setattr(resyncs, "begin", begin)
        with stage.running():
            asked_for(stage.lake, U)
            assert begins.wait(60)
            # Another load is about to begin: this one waits.
            asked_for(stage.lake, T)
            assert taken_back(stage.lake, T) == (0, f"{T} is not loaded anew\n")
            goes_on.set()
            stage.wait(done, U)
            assert stage.wait(cancelled).state == "ready"

            begins.clear()
            goes_on.clear()
            asked_for(stage.lake, T)
            assert begins.wait(60)
            assert taken_back(stage.lake, T)[0] == 0
            goes_on.set()
            stage.wait(cancelled)
            assert (resyncs.asked(stage.lake), stage.loaded_as_of()) == ({}, first)
            assert len(stage.current()) == 200

        # The job was first, and dies.
        monkeypatch.setattr(resyncs, "begin", real)
        asked_for(stage.lake, T)
        settings = {
            "slot": "s",
            "path": str(stage.lake),
            "checkpoint": str(tmp_path / "checkpoint"),
            "grpc": stage.service.grpc_address,
            "source_dsn": pg18.dsn,
        }
        run_killed(spark, "lake.resync_begun=kill", "job", settings)
        code, said = taken_back(stage.lake, T)
        assert (code, "has begun" in said) == (1, True), said
        stage.run()
        assert stage.current() == stage.source()
        assert (resyncs.asked(stage.lake), done(stage.told())) == ({}, True)
        assert list((stage.lake / "_spillway" / "resyncs").iterdir()) == []


@pytest.mark.long
def test_what_is_in_the_way_is_told(spark: SparkSession, pg18: Database, tmp_path: Path) -> None:
    with on_stage(spark, pg18, tmp_path) as stage:
        with pytest.raises(LakeError, match=r"no table public\.none"):
            resyncs.ask(stage.lake, ["public.none"])
        # Twice is once.
        first = resyncs.ask(stage.lake, [T])
        assert resyncs.ask(stage.lake, [T]) == first
        (file,) = (stage.lake / "_spillway" / "resyncs").iterdir()
        assert json.loads(file.read_text())["table"] == T

        # A job that can't reach the source says so, goes on, and the wish stays.
        pg18.execute("INSERT INTO u VALUES (1000, 'new')")
        stage.run(source_dsn="")
        told = stage.told()
        assert told.resync is not None
        assert told.resync.state == "waiting"
        with stage.running(source_dsn=""):
            told = stage.wait(failed)
            assert told.state == "ready"
            assert "SPILLWAY_LAKE_SOURCE_DSN" in reason_of(told)
        (wish,) = resyncs.asked(stage.lake).values()
        assert "SPILLWAY_LAKE_SOURCE_DSN" in str(wish)

        # A table that is paused comes back by it, with what was kept; one that is gone is not tried
        # again.
        resyncs.forget(stage.lake, wish)
        quarantine.pause(stage.lake, [T])
        pg18.execute("DROP TABLE u")
        with stage.running():
            pg18.execute("INSERT INTO t VALUES (999, 'the last before it')")
            stage.wait(lambda table: table.state == "paused")
            pg18.execute("INSERT INTO t VALUES (1000, 'while it is paused')")
            asked_for(stage.lake, T)
            stage.wait(done)
            asked_for(stage.lake, U)
            told = stage.wait(failed, U)
            assert "no such table" in reason_of(told)
            assert resyncs.asked(stage.lake) == {}
            pg18.execute("INSERT INTO t VALUES (1001, 'after')")
            stage.wait(lambda _: not quarantine.quarantined(stage.lake))
        stage.run()
        assert stage.current() == stage.source()
        ids = [row["id"] for row in stage.history() if row["_op"] == "I"]
        assert sorted(ids) == [999, 1000, 1001]
        # Damaged, it is in nobody's way.
        file.parent.joinpath("bad.json").write_text("{")
        stage.run()
        with pytest.raises(LakeError, match="can't be read"):
            resyncs.ask(stage.lake, [T])
