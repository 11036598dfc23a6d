"""The points at which a lake's tables agree, and tables that are behind at them for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spillway.errors import LakeError
from spillway.lake.state import commit_points, waiting
from spillway.lake.state.waiting import Waiting

if TYPE_CHECKING:
    from pathlib import Path


def behind(lake: Path) -> dict[int, list[str]]:
    return {point.lsn_value: point.loading for point in commit_points.points(lake)}


def test_tables_that_come_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some files of points.
    monkeypatch.setattr(commit_points, "_POINTS_PER_FILE", 2)
    for lsn in (10, 20, 30, 40, 50):
        waits = ["a", "b", "c"] if lsn >= 20 else []
        commit_points.publish(tmp_path, lsn, lsn, 1, waits)
    # One has had nothing since 30, of another more came.
    commit_points.caught_up(tmp_path, 30, ["a", "b"], ["a"])
    assert behind(tmp_path) == {
        10: [],
        20: ["a", "b", "c"],
        30: ["c"],
        40: ["b", "c"],
        50: ["b", "c"],
    }
    # At an LSN that is no point, only what nothing followed is said.
    commit_points.caught_up(tmp_path, 45, ["b", "c"], ["b"])
    assert behind(tmp_path)[50] == ["c"]
    assert behind(tmp_path)[40] == ["b", "c"]
    assert [commit_points.at(tmp_path, None, [name]).lsn_value for name in "abc"] == [50, 50, 10]
    assert commit_points.at(tmp_path, 40, ["b"]).lsn_value == 30
    assert commit_points.at(tmp_path).lsn_value == 50
    with pytest.raises(LakeError, match="with all of c"):
        commit_points.at(tmp_path, 9, ["c"])


def test_what_waits_is_known_to_the_next_run(tmp_path: Path) -> None:
    assert waiting.load(tmp_path) == {}
    told = {"public.t": Waiting("public.t", "{}", False, "2026-11-25T12:00:00+00:00")}
    (tmp_path / "_spillway").mkdir()
    waiting.store(tmp_path, told)
    assert waiting.load(tmp_path) == told
    file = tmp_path / "_spillway" / "waiting.json"
    for damaged in (
        "{",
        "[]",
        '{"version": 2, "tables": {}}',
        '{"version": 1, "tables": {"t": {}}}',
    ):
        file.write_text(damaged)
        with pytest.raises(LakeError, match=r"waiting\.json"):
            waiting.load(tmp_path)
