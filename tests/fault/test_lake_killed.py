"""kill -9 of driver, service and PostgreSQL while a lake is kept: lake = source.

Each start of the job is half a minute of two cores; JVM and Python workers are killed too, and all
of them more often, by ``python -m harness.lake_kills``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.lake_kills import OF_THE_COMMAND, LakeKills
from harness.servers import cache_directory
from harness.tiers import deep
from spillway.lake import jars


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("table_format", "by_position"),
    [deep("delta", False), deep("delta", True), deep("iceberg", True)],
)
def test_the_three_that_keep_it(
    tmp_path: Path, fresh_cluster, table_format: str, by_position: bool
) -> None:
    folder = Path(os.environ.get("SPILLWAY_JARS") or cache_directory() / "jars")
    jars.resolve(folder)
    run = LakeKills(tmp_path, fresh_cluster(18), folder, 2, table_format, by_position=by_position)
    try:
        run.run(kills=3)
    finally:
        run.close()
    assert set(run.kills) == {"driver", "service", "postgres"}


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("table_format", "by_position"), [("delta", False), ("delta", True), ("iceberg", True)]
)
def test_killed_in_merges(
    tmp_path: Path, fresh_cluster, table_format: str, by_position: bool
) -> None:
    """``SPILLWAY_LAKE_KILLS`` of them; each is a start of the driver, on a JVM that stays."""
    kills = int(os.environ.get("SPILLWAY_LAKE_KILLS", "3"))
    folder = Path(os.environ.get("SPILLWAY_JARS") or cache_directory() / "jars")
    jars.resolve(folder)
    run = LakeKills(
        tmp_path, fresh_cluster(18), folder, 3, table_format, by_position=by_position, lent_jvm=True
    )
    try:
        run.run(kills, in_merges=True)
    finally:
        run.close()
    assert run.kills.total() == kills


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("by_position", [False, True], ids=["copy", "position"])
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_the_command_and_its_jvm(
    tmp_path: Path, fresh_cluster, table_format: str, by_position: bool
) -> None:
    """``SPILLWAY_LAKE_KILLS`` of them, of the seed ``SPILLWAY_LAKE_SEED``: the whole command, its
    driver alone, and its driver while the JVM is stopped, which goes on beside the next command.
    """
    kills = int(os.environ.get("SPILLWAY_LAKE_KILLS", "3"))
    seed = int(os.environ.get("SPILLWAY_LAKE_SEED", "4"))
    folder = Path(os.environ.get("SPILLWAY_JARS") or cache_directory() / "jars")
    jars.resolve(folder)
    run = LakeKills(
        tmp_path, fresh_cluster(18), folder, seed, table_format,
        by_position=by_position, victims=OF_THE_COMMAND,
    )  # fmt: skip
    try:
        run.run(kills)
    finally:
        run.close()
    assert run.kills.total() == kills
