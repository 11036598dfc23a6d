"""A driver that is killed at a failpoint: a Python process of its own, as ``spillway lake run`` and
``lake load`` are.

Its end is a real SIGKILL, a failpoint's or the test's (:func:`driven`). What a start of such a
process costs is Spark's (half a minute of a core), so there are two kinds:

- :func:`run_killed` with jars starts a JVM, which dies with the driver, whatever its threads are in
  the middle of.
- :func:`run_killed` with a session borrows that session's JVM over a Py4J server of its own. The
  driver dies as before; what it had asked the JVM for is cancelled, and waited for, as it would be
  over with a JVM that had ended too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[3])
from harness.killed_driver import drive
drive(sys.argv[1], json.loads(sys.argv[2]))
"""
_TESTS = Path(__file__).parents[1]
_TIMEOUT_S = 280
#: what the JVM calls the threads that serve a Python process, and those of some pools
_SERVING = re.compile(r"Thread-\d+")
#: A pool keeps a thread for a minute that has nothing to do.
_IDLE = re.compile(r"ThreadPoolExecutor\.getTask")


def run_killed(
    spark: SparkSession | Path, failpoint: str, what: str, settings: dict[str, Any]
) -> None:
    """Run what *what* says in a process that *failpoint* kills.

    Args:
        spark: a session to borrow, or a folder of jars to start one with.
        failpoint: see :mod:`spillway.failpoints`.
        what: ``job``, ``load`` or ``verify``.
        settings: of :class:`JobSettings`, :class:`LoadSettings` or :class:`VerifySettings`, as JSON
            has them; with
            ``by_position`` no table is small, so that all are merged by position that may be, and
            ``small_files_max`` says how many small files are folded, ``commits_per_checkpoint``
            how often a Delta table's log has one; ``upkeep_s`` is the time between two rounds of
            maintenance.
    """
    environment = os.environ | {"SPILLWAY_FAILPOINTS": failpoint}
    if not isinstance(spark, SparkSession):
        _run(what, settings | {"jars": str(spark)}, environment)
        return
    with lent(spark) as gateway:
        _run(what, settings, environment | gateway)


def command(what: str, settings: dict[str, Any]) -> list[str]:
    """Return what runs the job or the load of *what*; its environment says whose JVM, if it is lent
    one, and which failpoints are armed.

    Args:
        what: ``job`` or ``load``.
        settings: as of :func:`run_killed`.
    """
    return [sys.executable, "-c", _PROGRAM, what, json.dumps(settings), str(_TESTS)]


@contextmanager
def driven(
    spark: SparkSession, what: str, settings: dict[str, Any]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job or the load of *what* in a process on the session's JVM, for the block to kill.

    Args:
        spark: the session.
        what: ``job`` or ``load``.
        settings: as of :func:`run_killed`.
    """
    with lent(spark) as gateway:
        process = subprocess.Popen(
            command(what, settings),
            env=os.environ | gateway,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
            assert process.poll() == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()


def _run(what: str, settings: dict[str, Any], environment: dict[str, str]) -> None:
    for _ in range(3):
        done = subprocess.run(
            command(what, settings),
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        # Spark gives a stream's Python process ten seconds to start, before any batch; a busy
        # machine may need more.
        if done.returncode != 1 or "worker failed to connect back" not in done.stderr:
            break
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


@contextmanager
def lent(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Let another process use the session's JVM, by the environment that is yielded; at the end
    nothing of what it began goes on.
    """
    context = spark.sparkContext
    jvm: Any = context._jvm
    before = _serving_threads(jvm)
    server = jvm.org.apache.spark.api.python.Py4JServer(context._jsc.sc().conf())
    server.start()
    try:
        yield {
            "PYSPARK_GATEWAY_PORT": str(server.getListeningPort()),
            "PYSPARK_GATEWAY_SECRET": server.secret(),
        }
    finally:
        for query in spark.streams.active:
            query.stop()
        context.cancelAllJobs()
        server.shutdown()
        deadline = time.monotonic() + _TIMEOUT_S
        while left := _serving_threads(jvm) - before:
            assert time.monotonic() < deadline, f"still at work for the killed driver: {left}"
            time.sleep(0.05)


def _serving_threads(jvm: Any) -> set[str]:
    found = set()
    for thread in jvm.Thread.getAllStackTraces().keySet():
        name = str(thread.getName())
        if _SERVING.fullmatch(name) and not any(
            _IDLE.search(str(frame)) for frame in thread.getStackTrace()
        ):
            found.add(name)
    return found


def _borrowed_session() -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    jvm: Any = gateway.jvm
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    return SparkSession(
        SparkContext(
            gateway=gateway,
            jsc=jvm.org.apache.spark.api.java.JavaSparkContext(context),
            conf=SparkConf(_jvm=jvm, _jconf=context.getConf()),
        )
    )


def drive(what: str, settings: dict[str, Any]) -> None:
    """Be that process."""
    from spillway.lake.job.run import JobSettings, run_job
    from spillway.lake.load.run import LoadSettings, run_load
    from spillway.lake.tables import positions
    from spillway.lake.tables.delta import positions as delta_positions
    from spillway.lake.tables.maintenance import Upkeep
    from spillway.lake.verify.run import VerifySettings, verify
    from spillway.pg.lsn import Lsn

    for name in ("path", "checkpoint", "jars"):
        if name in settings:
            settings[name] = Path(settings[name])
    if settings.pop("by_position", False):
        positions.SMALL_TABLE_BYTES = 0  # type: ignore[misc] # for good: it is this process's
    if "until_lsn" in settings:
        settings["until_lsn"] = Lsn.parse(settings["until_lsn"])
    if "upkeep_s" in settings:
        settings["upkeep"] = Upkeep(interval=timedelta(seconds=settings.pop("upkeep_s")))
    files_max = settings.pop("small_files_max", positions._SMALL_FILES_MAX)
    positions._SMALL_FILES_MAX = files_max  # type: ignore[misc] # as above
    every = settings.pop("commits_per_checkpoint", delta_positions._CHECKPOINT_INTERVAL)
    delta_positions._CHECKPOINT_INTERVAL = every  # type: ignore[misc] # as above
    spark = None
    if "jars" in settings:
        settings |= {"master": "local[2]", "driver_memory": "1g"}
    else:
        spark = _borrowed_session()
    if what == "job":
        run_job(JobSettings(**settings), spark=spark)
    elif what == "verify":
        verify(VerifySettings(**settings), spark=spark)
    else:
        run_load(LoadSettings(**settings), print, spark=spark)
