"""Slot, lake and checkpoint must belong together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.commands import parse_command
from harness.remedies import command, remedy
from spillway.consumer.slot import SlotPosition
from spillway.errors import LakeBehindSlot, LakeError, LakeTableConflict
from spillway.lake.state import position
from spillway.pg.lsn import Lsn

SLOT = SlotPosition(
    "shop", "arrow", "primary", "shop", confirmed_flush_lsn=0x2000, decoded_lsn=0x5000
)


def test_a_new_lake_begins_where_the_slot_stands(tmp_path: Path) -> None:
    assert position.load(tmp_path) is None
    lake = position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    assert (lake.lsn, lake.lsn_value) == ("0/2000", 0x2000)
    assert position.load(tmp_path) == lake


@pytest.mark.follows_hint("lake_behind_slot")
def test_a_slot_that_somebody_else_confirmed(tmp_path: Path) -> None:
    position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    behind = replace(SLOT, confirmed_flush_lsn=0x1000)
    assert position.check(tmp_path, "delta", behind, has_checkpoint=True).lsn == "0/2000"
    with pytest.raises(LakeBehindSlot, match="everything before 0/2000 only") as caught:
        position.check(
            tmp_path, "delta", replace(SLOT, confirmed_flush_lsn=0x2001), has_checkpoint=True
        )
    words = command(remedy(caught.value, "lake_behind_slot"), "slot rewind", SLOT="shop")
    assert (words[2], words[3]) == ("shop", "0/2000")
    parse_command(words)
    rewound = replace(SLOT, confirmed_flush_lsn=int(Lsn.parse(words[3])))
    assert position.check(tmp_path, "delta", rewound, has_checkpoint=True).lsn == "0/2000"


def test_what_was_skipped_on_purpose_counts_as_in_the_lake(tmp_path: Path) -> None:
    skipped = replace(SLOT, confirmed_flush_lsn=0x3000)
    position.skip(tmp_path, skipped, Lsn(0x3000))
    assert position.load(tmp_path) is None, "a new lake begins where the slot is"
    position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    # Not further than the slot was moved, and somebody else's confirmation beyond it is still
    # found.
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
@pytest.mark.follows_hint("lake_table_conflict")
def test_a_lake_of_another_slot(tmp_path: Path, change: dict[str, str]) -> None:
    position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    other = replace(SLOT, **change)  # type: ignore[arg-type]
    with pytest.raises(LakeTableConflict, match="not 'other'") as caught:
        position.check(tmp_path, "delta", other, has_checkpoint=False)
    assert "a path of its own" in remedy(caught.value, "lake_table_conflict")
    position.check(tmp_path / "own", "delta", other, has_checkpoint=False)
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


@pytest.mark.follows_hint("lake_table_conflict")
def test_one_job_a_lake(tmp_path: Path) -> None:
    position.check(tmp_path, "delta", SLOT, has_checkpoint=False)
    program = (
        "import sys; from pathlib import Path; from spillway.lake.state import position\n"
        "with position.locked(Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        try:
            assert first.stdout.readline() == "held\n"
            who = f"another job is at work on the lake at {tmp_path}: process {first.pid} of "
            for second in (
                lambda: position.locked(tmp_path).__enter__(),
                lambda: position.check_free(tmp_path, SLOT.slot_name, "delta"),
                lambda: position.check_free(tmp_path, "another", "delta"),
            ):
                with pytest.raises(LakeTableConflict, match=re.escape(who)) as caught:
                    second()
                said = remedy(caught.value, "lake_table_conflict")
                assert "with SIGTERM" in said
                assert "--lake" in said
            # A lake of its own, as it says.
            position.check_free(tmp_path / "another", "another", "delta")
            first.send_signal(signal.SIGTERM)
            first.wait()
            position.check_free(tmp_path, SLOT.slot_name, "delta")
        finally:
            first.kill()
    # What stands in the file is of one that has ended.
    with position.locked(tmp_path), pytest.raises(LakeTableConflict, match=f"{os.getpid()} of"):
        position.locked(tmp_path).__enter__()
    for slot, table_format, why in (
        ("another", "delta", "slot 'shop'"),
        ("shop", "parquet", "table format 'delta'"),
    ):
        with pytest.raises(LakeTableConflict, match=f"is of {why}"):
            position.check_free(tmp_path, slot, table_format)
    # One that says nothing of itself, as that of an older release.
    with position.locked(tmp_path):
        (tmp_path / "_spillway" / "lock").write_text("")
        with pytest.raises(LakeTableConflict, match=re.escape(f"{tmp_path} (Stop")):
            position.locked(tmp_path).__enter__()


@pytest.mark.follows_hint("lake_error")
def test_no_lake_at_a_path(tmp_path: Path) -> None:
    position.check(tmp_path / "lake", "delta", SLOT, has_checkpoint=False)
    with pytest.raises(LakeError, match="no lake at") as caught:
        position.existing(tmp_path)
    # What `spillway lake run --lake` was given.
    words = command(remedy(caught.value, "lake_error"), "lake run")
    assert words[-1] == "--lake"
    given = parse_command([*words, str(tmp_path / "lake"), "--slot", "shop"])
    assert position.existing(Path(given["path"])).lsn == "0/2000"
