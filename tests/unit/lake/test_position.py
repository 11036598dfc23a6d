"""Slot, lake and checkpoint must belong together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spillway.errors import LakeBehindSlot, LakeTableConflict
from spillway.lake import position
from spillway.lake.slot import SlotPosition
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

SLOT = SlotPosition(
    "shop", "arrow", "primary", "shop", confirmed_flush_lsn=0x2000, decoded_lsn=0x5000
)


def test_a_new_lake_begins_where_the_slot_stands(tmp_path: Path) -> None:
    assert position.load(tmp_path) is None
    lake = position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    assert (lake.lsn, lake.lsn_value) == ("0/2000", 0x2000)
    assert position.load(tmp_path) == lake


def test_a_slot_that_somebody_else_confirmed(tmp_path: Path) -> None:
    position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    behind = replace(SLOT, confirmed_flush_lsn=0x1000)
    assert position.check(tmp_path, "delta", behind, has_checkpoint=True).lsn == "0/2000"
    with pytest.raises(LakeBehindSlot, match="everything before 0/2000 only") as caught:
        position.check(
            tmp_path, "delta", replace(SLOT, confirmed_flush_lsn=0x2001), has_checkpoint=True
        )
    assert "spillway slot rewind shop 0/2000" in caught.value.hint


def test_what_was_skipped_on_purpose_counts_as_in_the_lake(tmp_path: Path) -> None:
    skipped = replace(SLOT, confirmed_flush_lsn=0x3000)
    position.skip(tmp_path, skipped, Lsn(0x3000))
    assert position.load(tmp_path) is None, "a new lake begins where the slot is"
    position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    # Not further than the slot was moved, and somebody else's confirmation beyond it is still found.
    position.skip(tmp_path, SLOT, Lsn(0x3000))
    with pytest.raises(LakeBehindSlot):
        position.check(tmp_path, "delta", skipped, has_checkpoint=True)
    position.skip(tmp_path, replace(SLOT, confirmed_flush_lsn=0x4000), Lsn(0x3000))
    assert position.check(tmp_path, "delta", skipped, has_checkpoint=True).lsn == "0/3000"
    position.skip(tmp_path, skipped, Lsn(0x2500))
    assert position.check(tmp_path, "delta", skipped, has_checkpoint=True).lsn == "0/3000"


@pytest.mark.parametrize(
    "change", [{"slot_name": "other"}, {"source": "other"}, {"database": "other"}]
)
def test_a_lake_of_another_slot(tmp_path: Path, change: dict[str, str]) -> None:
    position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    with pytest.raises(LakeTableConflict, match="not 'other'"):
        position.check(tmp_path, "delta", replace(SLOT, **change), has_checkpoint=False)  # type: ignore[arg-type]
    with pytest.raises(LakeTableConflict, match="table format 'delta', not 'parquet'"):
        position.check(tmp_path, "parquet", SLOT, has_checkpoint=False)


def test_a_checkpoint_without_its_lake(tmp_path: Path) -> None:
    with pytest.raises(LakeTableConflict, match="no lake at"):
        position.check(tmp_path, "delta", SLOT, has_checkpoint=True)


def test_a_damaged_position(tmp_path: Path) -> None:
    position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    (tmp_path / "_spillway" / "lake.json").write_text('{"version": 99}')
    with pytest.raises(LakeTableConflict, match="can't be read"):
        position.load(tmp_path)


def test_one_job_a_lake(tmp_path: Path) -> None:
    with position.locked(tmp_path):
        second = position.locked(tmp_path)
        with pytest.raises(LakeTableConflict, match="another job"):
            second.__enter__()
    with position.locked(tmp_path):
        pass
