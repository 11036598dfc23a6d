"""How many changes a second the Spark job brings into Delta Lake.

The job is a process of its own, as ``spillway lake run`` is, whose Spark session stays from run to
run: what is timed is batches, from the first envelope to the confirmed slot, not the start of a
JVM. A table without a key has a history only; one with a key has its current state merged as well.
Warm-up runs come first, since Java compiles while it runs.

The parent half is :class:`LakeJob`.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.child import Child, tell
from bench.freshness import CHANGES_PER_S, written
from bench.freshness import figures as freshness_figures
from bench.service import bench_source
from bench.source import flushed_lsn
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.scenarios import Scene
    from harness.cluster import Database
    from spillway.lake.batch.materialize import BatchReport

_WARM_UPS: Final = 3
_WARM_UP_ROWS: Final = 20_000
#: freshness is measured for so long; below this scale it is only tried
_FOLLOW_S: Final = 60.0
_FRESHNESS_SCALE: Final = 0.1
ROW: Final = (
    "n, 'note number ' || n || ' of a text that is about sixty characters', now(), n % 100000 / "
    "100.0, n * 0.37"
)
COLUMNS: Final = "(id int{key}, note text, at timestamptz, amount numeric(12, 2), reading float8)"


class LakeJob(Child):
    """The parent's half; use it as a context manager."""

    def __init__(self, grpc: str, slot: str, directory: Path) -> None:
        super().__init__("bench.lake", grpc, slot, str(directory))

    def run(self) -> dict[str, Any]:
        """Bring everything that is decoded now into the lake; return changes, seconds in batches,
        CPU seconds.
        """
        return self.ask("run")

    def follow(self, seconds: float) -> dict[str, Any]:
        """Follow the slot for so long; return its batches as :class:`bench.freshness.FollowedBatch`
        has them.
        """
        return self.ask(f"follow {seconds}")


def lake(scene: Scene) -> dict[str, Any]:
    """Changes a second into Delta Lake: history alone, and history with the current state
    merged.
    """
    database, service = scene.on.bench, scene.service
    rows = max(100, int(1_000_000 * scene.scale))
    database.execute(f"CREATE TABLE lake_events {COLUMNS.format(key='')}")
    database.execute(f"CREATE TABLE lake_rows {COLUMNS.format(key=' PRIMARY KEY')}")
    database.execute("ALTER TABLE lake_events REPLICA IDENTITY NOTHING")
    figures: dict[str, Any] = {}
    with (
        bench_source(service, database, {}),
        service.awake(),
        tempfile.TemporaryDirectory(prefix="spillway-bench-lake-") as directory,
    ):
        slot = {"slot_name": "lake", "source": "bench", "database": database.name}
        service.call("POST", "/slots", json={**slot, "plugin": "arrow"})
        with LakeJob(service.grpc_target, "lake", Path(directory)) as job:

            def run(name: str, *statements: str) -> dict[str, Any]:
                for statement in statements:
                    database.execute(statement)
                service.wait_decoded("lake", flushed_lsn(database))
                answer = job.run()
                answer["changes_per_s"] = round(answer["changes"] / answer["batch_s"])
                scene.say(f"   {name}: {answer}")
                return answer

            # The short form compares no speed.
            for n in range(_WARM_UPS if rows > _WARM_UP_ROWS else 0):
                first = 1 - (n + 1) * _WARM_UP_ROWS
                run(
                    "warming up",
                    _insert("lake_events", first, _WARM_UP_ROWS),
                    _insert("lake_rows", first, _WARM_UP_ROWS),
                    f"UPDATE lake_rows SET amount = amount + 1 WHERE id < {first + _WARM_UP_ROWS}",
                )
            for name, count, make in (
                ("history", rows, _history),
                ("inserts", rows // 2, _inserts),
                ("updates", rows // 2, _updates),
            ):
                runs = [run(name, make(count, n)) for n in range(scene.repeats)]
                figures[name] = {
                    "changes": count,
                    "changes_per_s": statistics.median(one["changes_per_s"] for one in runs),
                    "runs": runs,
                }
            figures["freshness"] = _freshness(scene, job, 1 + scene.repeats * (rows // 2))
    _drop(database)
    return figures


def _freshness(scene: Scene, job: LakeJob, first: int) -> dict[str, Any]:
    small = scene.scale < _FRESHNESS_SCALE
    rate = CHANGES_PER_S // 50 if small else CHANGES_PER_S
    seconds = 6.0 if small else _FOLLOW_S
    began_s = time.monotonic()
    with written(scene.on.bench, rate, first, ROW) as changes:
        answer = job.follow(seconds)
        reached = changes() / (time.monotonic() - began_s)
    made = freshness_figures(answer, reached)
    scene.say(f"   freshness: {made}")
    return made


def _history(count: int, n: int) -> str:
    return _insert("lake_events", 1 + n * count, count)


def _inserts(count: int, n: int) -> str:
    return _insert("lake_rows", 1 + n * count, count)


def _updates(count: int, n: int) -> str:
    last = (n + 1) * count
    return (
        "UPDATE lake_rows SET amount = amount + 1, note = note || '.' WHERE id BETWEEN "
        f"{last - count + 1} AND {last}"
    )


def _insert(table: str, first: int, count: int) -> str:
    return f"INSERT INTO {table} SELECT {ROW} FROM generate_series({first}, {first + count - 1}) n"


def _drop(database: Database) -> None:
    for table in ("lake_events", "lake_rows"):
        database.execute(f"DROP TABLE {table}")


def _serve(grpc: str, slot: str, directory: Path) -> None:
    """The child's half."""
    spark = spark_session(table_format="delta", master="local[2]")
    settings = JobSettings(slot, directory / "lake", directory / "checkpoint", grpc=grpc)
    for line in sys.stdin:
        if line.startswith("follow "):
            tell(_follow(settings, spark, float(line.split()[1])))
            continue
        assert line == "run\n"
        seconds: list[float] = []
        started_s = time.monotonic()
        summary = run_job(settings, spark=spark, on_batch=lambda r: seconds.append(r.seconds))  # noqa: B023
        answer = {
            "changes": sum(summary.changes.values()),
            "batches": summary.batches,
            "batch_s": round(sum(seconds), 3),
            "wall_s": round(time.monotonic() - started_s, 3),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "open_files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - links, not files
        }
        tell(answer)
    spark.stop()


def _follow(settings: JobSettings, spark: SparkSession, seconds: float) -> dict[str, Any]:
    """Follow the slot for *seconds*, and until there was a batch; what was committed while the
    query started is left out.
    """
    stop = threading.Event()
    began_s = time.time()
    followed: list[tuple[int, float, float]] = []

    def batch(report: BatchReport) -> None:
        now_s = time.time()
        if report.newest_commit is None or report.delay_s is None:
            return
        if now_s - report.delay_s > began_s + seconds / 4:
            newest_s = max(0.0, now_s - report.newest_commit.timestamp())
            followed.append((sum(report.changes.values()), newest_s, report.delay_s))
        if followed and now_s > began_s + seconds:
            stop.set()

    continuous = replace(settings, trigger="continuous", interval_s=0.5)
    run_job(continuous, spark=spark, on_batch=batch, stop=stop)
    return {"followed": followed}


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
