"""The LSNs of a lake and of its slot must be of one history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.remedies import remedy
from spillway.consumer.slot import SlotPosition, SourceIdentity
from spillway.errors import LakeBehindSlot, LakeTableConflict
from spillway.lake.state import position, source_history
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.lake.state.position import LakePosition

SLOT = SlotPosition(
    "shop", "arrow", "primary", "shop", confirmed_flush_lsn=0x5000, decoded_lsn=0x5000
)
SOURCE = SourceIdentity("7000000000000000001", 1, "2026-01-01T00:00:00+00:00")
#: dropped and created again under its name
AGAIN = replace(SOURCE, created_at="2026-01-02T00:00:00+00:00")
#: where a cluster stands whose WAL begins anew
BEFORE = replace(SLOT, confirmed_flush_lsn=0x2000, decoded_lsn=0x3000)


@pytest.fixture
def lake(tmp_path: Path) -> LakePosition:
    lake = position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    source_history.settle(tmp_path, lake, SLOT, SOURCE)
    return lake


@pytest.mark.follows_hint("lake_table_conflict")
@pytest.mark.parametrize(
    ("source", "slot"),
    [
        # Made anew of a dump, or by initdb.
        (replace(AGAIN, system_id="7000000000000000002"), BEFORE),
        # … whose LSNs have come as far in the meantime: those before are another cluster's.
        (replace(AGAIN, system_id="7000000000000000002"), replace(BEFORE, decoded_lsn=0x9000)),
        # Set back to an older state, by recovery to a point in time, and by its files' copy.
        (replace(AGAIN, timeline=2), replace(BEFORE, decoded_lsn=0x9000)),
        (AGAIN, BEFORE),
    ],
)
def test_a_source_that_was_created_again_behind_the_lake(
    tmp_path: Path, lake: LakePosition, source: SourceIdentity, slot: SlotPosition
) -> None:
    assert position.check(tmp_path, "delta", slot, has_checkpoint=True) == lake
    with pytest.raises(LakeTableConflict, match="The source was created again") as caught:
        source_history.settle(tmp_path, lake, slot, source)
    assert caught.value.message.count("cluster") == 2
    assert "everything before 0/5000" in caught.value.message
    assert "name another directory" in remedy(caught.value, "lake_table_conflict")
    new = position.check(tmp_path / "another", "delta", slot, has_checkpoint=False)
    source_history.settle(tmp_path / "another", new, slot, source)
    # What was found stays so.
    with pytest.raises(LakeTableConflict):
        source_history.settle(tmp_path, lake, slot, source)


def test_what_goes_on(tmp_path: Path, lake: LakePosition) -> None:
    """The same source, where only the job or its service was killed, or its slot rewound; one that
    failed over; one that was created again from where the lake is.
    """
    for source, slot in (
        (SOURCE, BEFORE),
        (replace(SOURCE, timeline=2), BEFORE),
        (replace(AGAIN, timeline=2), SLOT),
        (replace(AGAIN, timeline=2), replace(BEFORE, decoded_lsn=0x5000)),
        (None, BEFORE),
    ):
        source_history.settle(tmp_path, lake, slot, source)
    assert source_history.load(tmp_path) == replace(AGAIN, timeline=2)


def test_a_lake_of_an_older_release_knows_from_its_next_run_on(tmp_path: Path) -> None:
    lake = position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    assert source_history.load(tmp_path) is None
    source_history.check(tmp_path, lake, BEFORE, AGAIN)
    assert source_history.load(tmp_path) is None
    source_history.settle(tmp_path, lake, BEFORE, SOURCE)
    with pytest.raises(LakeTableConflict, match="created again"):
        source_history.check(tmp_path, lake, BEFORE, AGAIN)


def test_a_cluster_whose_lsns_go_on(tmp_path: Path, lake: LakePosition) -> None:
    """pg_upgrade sets WAL behind what it was: what is in between is given up by who says so."""
    upgraded = replace(AGAIN, system_id="7000000000000000002")
    slot = replace(SLOT, confirmed_flush_lsn=0x8000, decoded_lsn=0x9000)
    with pytest.raises(LakeBehindSlot, match="--skip-to 0/8000"):
        position.check(tmp_path, "delta", slot, has_checkpoint=True)
    position.skip(tmp_path, slot, Lsn(0x8000))
    lake = position.check(tmp_path, "delta", slot, has_checkpoint=True)
    source_history.settle(tmp_path, lake, slot, upgraded)
    assert source_history.load(tmp_path) == upgraded
