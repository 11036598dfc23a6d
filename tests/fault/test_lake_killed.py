"""kill -9 of driver, JVM, Python worker, service and PostgreSQL while a lake is kept: lake = source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.lake_kills import VICTIMS, LakeKills
from harness.servers import cache_directory
from spillway.lake import jars


@pytest.mark.timeout(900)
def test_one_of_each(tmp_path: Path, fresh_cluster) -> None:
    folder = Path(os.environ.get("SPILLWAY_JARS") or cache_directory() / "jars")
    jars.resolve(folder)
    run = LakeKills(tmp_path, fresh_cluster(18), folder, seed=2)
    try:
        run.run(kills=len(VICTIMS))
    finally:
        run.close()
    assert set(run.kills) == set(VICTIMS)
