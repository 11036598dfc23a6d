"""When a lake is maintained, and which consistent LSNs are given up."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import typer

from spillway.declarations.command_line import duration
from spillway.errors import InvalidRequest, LakeError
from spillway.lake.state import commit_points
from spillway.lake.tables import maintenance
from spillway.lake.tables.maintenance import Round, Upkeep

if TYPE_CHECKING:
    import threading
    from pathlib import Path


def publish(path: Path, *lsns: int) -> None:
    for lsn in lsns:
        commit_points.publish(path, lsn, 0, 1, [])


def backdate(path: Path, hours: dict[int, int]) -> None:
    """Say of some points that they were published so many hours ago."""
    for file in (path / "_spillway" / "commits").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            ago = hours.get(int(line["lsn"].partition("/")[2], 16), 0)
            line["published_at"] = (datetime.now(UTC) - timedelta(hours=ago)).isoformat()
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lsns(path: Path) -> list[int]:
    return [point.lsn_value for point in commit_points.points(path)]


def test_points_older_than_the_retention_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_points, "_POINTS_PER_FILE", 3)
    publish(tmp_path, *range(1, 9))
    backdate(tmp_path, {n: 20 - n for n in range(1, 6)})
    now = datetime.now(UTC)
    assert commit_points.forget(tmp_path, now - timedelta(hours=100)) == 0
    assert commit_points.forget(tmp_path, now - timedelta(hours=15, minutes=30)) == 4
    assert lsns(tmp_path) == [8, 7, 6, 5]
    with pytest.raises(LakeError, match="no consistent LSN up to 0/4"):
        commit_points.at(tmp_path, 4)
    publish(tmp_path, 9, 10)
    assert lsns(tmp_path) == [10, 9, 8, 7, 6, 5]
    # The newest stays, however old it is: it is what the lake has.
    assert commit_points.forget(tmp_path, now + timedelta(hours=1)) == 5
    assert lsns(tmp_path) == [10]
    publish(tmp_path, 11)
    assert lsns(tmp_path) == [11, 10]


def test_a_round_is_due_an_interval_after_the_first_look(tmp_path: Path) -> None:
    upkeep = Upkeep(interval=timedelta(hours=1))
    (tmp_path / "_spillway").mkdir()
    now = datetime.now(UTC)
    assert not maintenance.due(tmp_path, upkeep, now)
    assert not maintenance.due(tmp_path, upkeep, now + timedelta(minutes=59))
    assert maintenance.due(tmp_path, upkeep, now + timedelta(minutes=60))
    assert not maintenance.due(tmp_path, Upkeep(interval=None), now + timedelta(days=9))
    # A record that can't be read is no record.
    (tmp_path / "_spillway" / "maintenance.json").write_text("{")
    assert not maintenance.due(tmp_path, upkeep, now)


def test_rounds_beside_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails is no end of the job, and is not repeated at once."""
    monkeypatch.setattr(maintenance, "_POLL_S", 0.01)
    (tmp_path / "_spillway").mkdir()
    rounds: list[bool] = []

    def one_round(stopping: threading.Event) -> Round:
        rounds.append(stopping.is_set())
        if len(rounds) == 1:
            raise RuntimeError("no")
        maintenance._store_time(tmp_path, datetime.now(UTC))
        return Round()

    upkeep = Upkeep(interval=timedelta(milliseconds=20))
    with maintenance.beside(one_round, tmp_path, upkeep):
        deadline = time.monotonic() + 30
        while len(rounds) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    done = len(rounds)
    with maintenance.beside(one_round, tmp_path, Upkeep(interval=None)):
        time.sleep(0.1)
    assert len(rounds) == done
    assert not any(rounds)


def test_retentions_that_a_batch_may_outlive_are_refused() -> None:
    for wrong in ({"retention": timedelta(minutes=59)}, {"history_retention": timedelta(0)}):
        with pytest.raises(InvalidRequest, match="less than an hour"):
            Upkeep(**wrong)  # type: ignore[arg-type]


def test_durations() -> None:
    assert duration("90s") == timedelta(seconds=90)
    assert [duration(t) for t in ("30m", "12h", "7d", "2w")] == [
        timedelta(minutes=30), timedelta(hours=12), timedelta(days=7), timedelta(weeks=2),
    ]  # fmt: skip
    assert duration(timedelta(days=1)) == timedelta(days=1)
    for wrong in ("", "7", "d", "-1d", "1.5h", "7 d", "7y"):
        with pytest.raises(typer.BadParameter):
            duration(wrong)
