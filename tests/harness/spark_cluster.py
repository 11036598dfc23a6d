"""A cluster of Spark's own on loopback: a master and workers of the PySpark wheel, a JVM each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: what `bin/spark-class` is beside
_SPEC: Final = util.find_spec("pyspark")
assert _SPEC is not None
assert _SPEC.origin is not None
SPARK_HOME: Final = Path(_SPEC.origin).parent
_START_S: Final = 240
_ADDRESS: Final = re.compile(r"Starting Spark master at (spark://\S+)")


class SparkCluster:
    """A master with workers of one core each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""

    def begin(self, workers: int) -> None:
        """Start the master and *workers*, and wait until they know each other."""
        master = "org.apache.spark.deploy.master.Master"
        self._start("master", [master, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
        self.address = self.wait("master", _ADDRESS)[1]
        for number in range(workers):
            self._add_worker(f"worker-{number}")
        for number in range(workers):
            self.wait(f"worker-{number}", re.compile("Successfully registered with master"))

    def _add_worker(self, name: str) -> None:
        work = self._directory / name
        worker = "org.apache.spark.deploy.worker.Worker"
        self._start(
            name,
            [
                worker, "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1",
                "--memory", "1g", "--work-dir", str(work), self.address,
            ],
        )  # fmt: skip

    def executors(self, name: str) -> list[Path]:
        """Return the directories of the executors that a worker has started."""
        return sorted((self._directory / name).glob("app-*/*"))

    def kill_worker(self, name: str) -> None:
        """Kill a worker; its executors end with it, as they watch it."""
        self._end(name, signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def wait(self, name: str, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until a process says *pattern* in its log."""
        deadline = time.monotonic() + _START_S
        while (found := pattern.search(self.log(name))) is None:
            assert self._processes[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.2)
        return found

    def end(self) -> None:
        for name in reversed([*self._processes]):
            self._end(name, signal.SIGTERM)

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Executors, which a worker starts, are of its group.
                start_new_session=True,
            )

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name)
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if how != signal.SIGKILL:
            # What it left.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def spark_cluster(directory: Path, workers: int = 2) -> Iterator[SparkCluster]:
    cluster = SparkCluster(directory)
    try:
        cluster.begin(workers)
        yield cluster
    finally:
        cluster.end()
