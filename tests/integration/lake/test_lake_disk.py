"""A lake whose disk is full when its job begins."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.service import service_in_process
from spillway.cli.program import main
from spillway.errors import DiskFull, LakeError
from spillway.lake.job.run import JobSettings, check_settings
from spillway.lake.job.several import run_jobs
from spillway.lake.read import Lake
from spillway.lake.state import position
from spillway.lake.state.position import LakePosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.cluster import Database

_POSITION = LakePosition("s", "main", "shop", "delta", "0/1")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, where mounting one is allowed."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a file system is not allowed here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def _fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass


def test_what_it_writes_first(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hint, followed."""
    lake = small_disk / "lake"
    settings = JobSettings(slot="s", path=lake, checkpoint=lake / "checkpoint", grpc="")
    check_settings(settings)
    with position.locked(lake):
        position.store(lake, _POSITION)
    (lake / "history" / "public.t").mkdir(parents=True)
    _fill(small_disk / "ballast")
    later = replace(_POSITION, lsn="0/2")
    with pytest.raises(DiskFull, match="No space left") as refused, position.locked(lake):
        position.store(lake, later)
    assert refused.value.hint.startswith("Free space on that file system, and run it again")
    new = small_disk / "new"
    with pytest.raises(DiskFull, match="No space left"), position.locked(new):
        position.store(new, _POSITION)
    # So is what is said beside a job.
    assert main(["lake", "pause", "--lake", str(lake), "--table", "public.t"]) == 1
    assert "disk_full" in capsys.readouterr().err
    assert position.load(lake) == _POSITION
    (small_disk / "ballast").unlink()
    with position.locked(lake):
        position.store(lake, later)
    assert position.load(lake) == later


@pytest.mark.long
def test_one_of_two_jobs(
    spark: SparkSession, pg18: Database, tmp_path: Path, small_disk: Path
) -> None:
    """It is told, and begins anew until there is space; the other one goes on."""
    pg18.execute("CREATE TABLE items (id int PRIMARY KEY)")
    said: list[str] = []
    stop = threading.Event()
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg18.dsn)
        for slot in ("roomy", "full"):
            service.create_slot(slot, pg18.name, "arrow")
        lakes = {"roomy": tmp_path / "roomy", "full": small_disk / "full"}
        jobs = [
            JobSettings(
                slot=slot,
                path=lake,
                checkpoint=lake / "_spillway" / "checkpoint",
                trigger="continuous",
                interval_s=0.2,
                grpc=service.grpc_address,
            )
            for slot, lake in lakes.items()
        ]
        for job in jobs:
            check_settings(job)
        _fill(small_disk / "ballast")
        pg18.execute("INSERT INTO items VALUES (1), (2)")
        thread = threading.Thread(
            target=lambda: run_jobs(jobs, tell=said.append, stop=stop, spark=spark)
        )
        thread.start()
        try:
            _wait(lambda: any(line.startswith("full: failed, and begins anew") for line in said))
            _wait(lambda: _rows(spark, lakes["roomy"]) == [1, 2])
            assert not any(line.startswith("roomy: failed") for line in said)
            (small_disk / "ballast").unlink()
            _wait(lambda: _rows(spark, lakes["full"]) == [1, 2])
        finally:
            stop.set()
            thread.join()


def _rows(spark: SparkSession, path: Path) -> list[int]:
    if not (path / "current" / "public.items" / "_delta_log").is_dir():
        return []
    try:
        found = Lake(spark, path).at().current("public.items").collect()
    except LakeError:
        return []  # its first point is yet to come
    return sorted(row["id"] for row in found)


def _wait(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)
