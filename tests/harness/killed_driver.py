"""A driver that is killed at a failpoint: a Python process of its own, as ``spillway lake run`` and
``lake load`` are.

Its end is a real SIGKILL. What a start of such a process costs is Spark's (half a minute of a
core), so there are two kinds:

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
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROGRAM = """
import json, sys
from harness.killed_driver import drive
drive(sys.argv[1], json.loads(sys.argv[2]))
"""
_TIMEOUT_S = 280
#: what the JVM calls the threads that serve a Python process
_SERVING = re.compile(r"Thread-\d+")


def run_killed(
    spark: SparkSession | Path, failpoint: str, what: str, settings: dict[str, Any]
) -> None:
    """Run the job or the load of *what* in a process that *failpoint* kills.

    Args:
        spark: a session to borrow, or a folder of jars to start one with.
        failpoint: see :mod:`spillway.failpoints`.
        what: ``job`` or ``load``.
        settings: of :class:`JobSettings` or :class:`LoadSettings`, as JSON has them.
    """
    environment = os.environ | {"SPILLWAY_FAILPOINTS": failpoint}
    if not isinstance(spark, SparkSession):
        _run(what, settings | {"jars": str(spark)}, environment)
        return
    with _lent(spark) as gateway:
        _run(what, settings, environment | gateway)


def _run(what: str, settings: dict[str, Any], environment: dict[str, str]) -> None:
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, what, json.dumps(settings)],
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
def _lent(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Let another process use the session's JVM; at the end nothing of what it began goes on."""
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
    names = (str(thread.getName()) for thread in jvm.Thread.getAllStackTraces().keySet())
    return {name for name in names if _SERVING.fullmatch(name)}


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
    from pathlib import Path

    from spillway.lake.job.run import JobSettings, run_job
    from spillway.lake.load.run import LoadSettings, run_load

    for name in ("path", "checkpoint", "jars"):
        if name in settings:
            settings[name] = Path(settings[name])
    spark = None
    if "jars" in settings:
        settings |= {"master": "local[2]", "driver_memory": "1g"}
    else:
        spark = _borrowed_session()
    if what == "job":
        run_job(JobSettings(**settings), spark=spark)
    else:
        run_load(LoadSettings(**settings), print, spark=spark)
