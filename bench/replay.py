"""How replaying an archive scales: ``python -m bench.replay --archive DIR --state FILE``.

The same range on ``local[1]``, ``local[2]`` and a standalone cluster of two workers of a core each,
which is started here on loopback and ended by process id. Timed apart: the light pass (driver, one
core), decoding (tasks, shuffle, encoding; the messages are counted and thrown away), so that what
Spark takes to write tables does not hide it. CPU seconds are those of all Python workers and JVMs
of a run, as the kernel counts them for this process's children.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spillway.lake.replay import envelopes_of
from spillway.lake.session import spark_session
from spillway.replay.assemble import Encoding
from spillway.replay.plan import Beginning, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_S = 60.0


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[str]:
    """Start a master and *workers* workers of one core each; yield the master's URL."""
    import pyspark  # noqa: PLC0415 - an extra

    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    with tempfile.TemporaryDirectory() as directory:
        commands = [
            [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port",
             "0"]
        ]  # fmt: skip
        commands += [
            [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g",
             "--webui-port", "0", "--work-dir", f"{directory}/{n}", url]
            for n in range(workers)
        ]  # fmt: skip
        processes = []
        # The driver's, too, which is started by this process.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        environment = os.environ | {
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        log = Path(directory) / "master.log"
        try:
            for number, command in enumerate(commands):
                with log.open("ab") if number == 0 else open(os.devnull, "wb") as output:  # noqa: PTH123
                    processes.append(
                        subprocess.Popen(
                            [str(spark_class), *command],
                            stdout=output, stderr=output, env=environment,
                        )
                    )  # fmt: skip
                if number == 0:
                    _wait(log, r"I have been elected leader", 1)
            _wait(log, r"Registering worker", workers)
            yield url
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


def _wait(log: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + _START_S
    while len(re.findall(pattern, log.read_text())) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(log.read_text())
        time.sleep(0.2)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and all below it, those that have ended included."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # It may end while we look; then it is in its parent's figures the next time.
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                processes[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    wanted, ticks = {os.getpid()}, 0
    while wanted:
        ticks += sum(processes[pid][1] for pid in wanted)
        wanted = {pid for pid, (parent, _) in processes.items() if parent in wanted}
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(archive: Path, begin: Beginning, stretch_mb: int, master: str, runs: int) -> None:
    """Replay on *master*, *runs* times, and print what it took."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra

    with tempfile.TemporaryDirectory() as directory:
        started, cpu = time.monotonic(), time.process_time()
        plan = make_plan(archive, begin, Path(directory), stretch_bytes=stretch_mb << 20)
        light = time.monotonic() - started
        light_cpu = time.process_time() - cpu
        spark = spark_session(table_format="parquet", master=master, driver_memory="1g")
        spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(32 << 20))
        encoding = Encoding("bench", "bench", plan.database_oid, plan.major, plan.encoding)
        times = []
        try:
            for _ in range(runs):
                began, cpu = time.monotonic(), _cpu_seconds()
                frame = envelopes_of(spark, archive, plan, encoding)
                (row,) = frame.agg(F.sum("changes"), F.sum(F.length("payload"))).collect()
                took = time.monotonic() - began
                times.append(f"{took:.1f} ({_cpu_seconds() - cpu:.1f})")
        finally:
            spark.stop()
    print(
        f"{master:24} {plan.wal_bytes >> 20} MiB of WAL, {row[0]} changes, {row[1] >> 20} MiB of "
        f"messages; light pass {light:.2f} s ({light_cpu:.2f} CPU); decode, s (CPU s): "
        f"{', '.join(times)}",
        flush=True,
    )


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--archive", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--stretch-mb", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["1", "2", "cluster"])
    arguments = parser.parse_args()
    begin = Beginning(arguments.state)
    for name in ("1", "2", "cluster"):
        if arguments.only not in (None, name):
            continue
        if name == "cluster":
            with cluster(2) as url:
                measure(arguments.archive, begin, arguments.stretch_mb, url, arguments.runs)
        else:
            measure(
                arguments.archive, begin, arguments.stretch_mb, f"local[{name}]", arguments.runs
            )


if __name__ == "__main__":
    main()
