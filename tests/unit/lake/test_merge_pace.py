"""Merges beside the batches (:mod:`spillway.lake.batch.pace`), without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spillway.lake.batch import pace
from spillway.lake.shape.changes import shape_text
from spillway.lake.shape.columns import Shape
from spillway.lake.shape.kinds import CURRENT
from spillway.lake.state import waiting
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from spillway.lake.batch.catch_up import Behind
    from spillway.lake.tables.contract import Batch


class _Tables:
    """One table, whose history is ahead of it."""

    def durable_lsn(self, kind: str, _: str) -> int:
        return 100 if kind == CURRENT else 900

    def key(self, _: str) -> tuple[str, ...]:
        return ("id",)


def test_a_merge_has_plain_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Lsn prints as 0/2BC, and so it would come into Spark."""
    batches: list[Batch] = []

    def catch_up_directly(_: Any, behind: Behind, batch: Batch) -> bool:
        assert behind.table == "public.t"
        batches.append(batch)
        return True

    monkeypatch.setattr(pace, "catch_up_directly", catch_up_directly)
    shape = shape_text(Shape((0, 0), (0, 0), ()))
    state = waiting.Waiting("public.t", shape, False, "2026-11-25T00:00:00+00:00")
    (tmp_path / "_spillway").mkdir()
    waiting.store(tmp_path, {"public.t": state})
    tables: Any = _Tables()
    with pace.Pace(tables, tmp_path, "s", Lsn(700), {}) as keeper:
        assert keeper.settle(Lsn(700)) == []
    (batch,) = batches
    assert (batch.start_lsn, batch.end_lsn) == (100, 700)
    assert {type(batch.start_lsn), type(batch.end_lsn)} == {int}
