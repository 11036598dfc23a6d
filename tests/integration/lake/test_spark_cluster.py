"""docs/how-to/run-a-lake-on-a-cluster.md: its commands on a cluster of Spark's own with two
workers, one of which is killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from harness.service import service_in_process
from harness.spark_cluster import SPARK_HOME, spark_cluster
from spillway.lake.state import commit_points
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Database

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

_ROOT = Path(__file__).parents[3]
_PAGE = _ROOT / "docs" / "how-to" / "run-a-lake-on-a-cluster.md"
_TIMEOUT_S = 600


def _command(begins: str, said: dict[str, str]) -> str:
    """Return the command of the page that begins so, with what it says replaced."""
    commands = re.findall(r"```sh\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (command,) = [command for command in commands if command.startswith(begins)]
    for text, ours in said.items():
        assert text in command, text
        command = command.replace(text, ours)
    return str(command)


def _processes_of(path: Path, program: str = "") -> list[int]:
    """Return the processes of a program whose command lines name *path*."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:
            # It has ended since.
            continue
        name = Path(line.partition(b"\0")[0].decode(errors="replace")).name
        if str(path).encode() in line and name.startswith(program):
            found.append(int(entry.name))
    return found


def _wait(what: Callable[[], bool], job: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not what():
        assert job.poll() is None, log.read_text(errors="replace")[-4000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
        time.sleep(0.5)


def test_two_workers_of_which_one_is_killed(
    tmp_path: Path, pg18: Database, jar_folder: Path
) -> None:
    pg18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lake = tmp_path / "shared" / "lake"

    def has(end: str) -> bool:
        return any(p.lsn_value >= Lsn.parse(end) for p in commit_points.points(lake))

    def rows() -> list[tuple[int, str]]:
        table = DeltaTable(str(lake / "current" / "public.t")).to_pyarrow_table()
        return sorted((row["id"], row["v"]) for row in table.to_pylist())

    with (
        service_in_process(tmp_path / "data") as service,
        spark_cluster(tmp_path / "cluster") as cluster,
    ):
        service.create_source(pg18.dsn)
        service.create_slot("lake", pg18.name, "arrow")
        environment = {
            **os.environ,
            "PATH": f"{SPARK_HOME / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPILLWAY_GRPC": f"127.0.0.1:{service.grpc_port}",
            "SPILLWAY_JARS": str(jar_folder),
        }
        # An ordinary driver first: what is decoded, and its end.
        pg18.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i")
        service.wait_decoded("lake", pg18)
        said = {"spark://main:7077": cluster.address, "/shared/lake": str(lake)}
        done = subprocess.run(
            ["bash", "-ec", _command("spillway lake run", said)],
            env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert rows() == [(i, "v") for i in range(1, 101)]
        assert any(cluster.executors(f"worker-{number}") for number in (0, 1)), "nothing ran there"

        # Then one by spark-submit, which stays.
        said |= {
            ".cache/jars": str(jar_folder),
            "--executor-memory 4g": "--executor-memory 512m",
            "--total-executor-cores 8": "--total-executor-cores 2",
        }
        log = tmp_path / "submit.log"
        with log.open("wb") as output:
            job = subprocess.Popen(
                ["bash", "-ec", f"exec {_command('spark-submit', said)}"],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            pg18.execute("UPDATE t SET v = 'w' WHERE id <= 50")
            end = service.wait_decoded("lake", pg18)
            _wait(lambda: has(end), job, log)
            assert rows() == [(i, "w" if i <= 50 else "v") for i in range(1, 101)]
            both = [len(cluster.executors(f"worker-{number}")) for number in (0, 1)]
            assert min(both) > 0, f"both workers have executors: {both}"

            cluster.kill_worker("worker-1")
            pg18.execute("DELETE FROM t WHERE id > 90")
            last = service.wait_decoded("lake", pg18)
            _wait(lambda: has(last), job, log)
            assert rows() == [(i, "w" if i <= 50 else "v") for i in range(1, 91)]

            # To the driver: Spark's JVM, which started it, ends with it.
            (driver,) = _processes_of(lake, "python")
            os.kill(driver, signal.SIGTERM)
            assert job.wait(_TIMEOUT_S) == 0, log.read_text(errors="replace")[-4000:]
        finally:
            job.kill()
            job.wait()
    deadline = time.monotonic() + 60
    while (left := _processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == [], "processes that outlive the cluster"
