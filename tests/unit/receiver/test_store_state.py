"""The state file: what was durable stays readable whatever happens to the page that was being
written.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.remedies import remedy
from spillway import failpoints
from spillway.errors import CorruptWalStore
from spillway.pg.lsn import Lsn
from spillway.receiver.store_state import STATE_NAME, StateFile, StoreState
from spillway.receiver.wal_writer import WalWriter

if TYPE_CHECKING:
    from pathlib import Path

STATE = StoreState(7710534080520979443, 1 << 20, 3, Lsn(0x100000), Lsn(0x100000))
PAGE = 4096
#: bytes of a page that say something, the checksum among them
WRITTEN = 52


def at(lsn: int) -> StoreState:
    return replace(STATE, flushed_lsn=Lsn(lsn))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STATE_NAME


def test_survives_reopening(path: Path) -> None:
    file = StateFile.create(path, STATE)
    for lsn in range(0x100000, 0x100010):
        file.write(at(lsn))
    file.close()

    reopened = StateFile.open(path)
    assert reopened.state == at(0x10000F)
    reopened.write(at(0x100020))
    reopened.close()
    again = StateFile.open(path)
    assert again.state == at(0x100020)
    again.close()


@pytest.mark.parametrize("torn_bytes", [0, 1, 17, 51, 52, 512, PAGE])
def test_torn_write_leaves_the_state_before(path: Path, torn_bytes: int) -> None:
    file = StateFile.create(path, STATE)
    file.write(at(0x100001))
    durable = path.read_bytes()
    file.write(at(0x100002))
    written = path.read_bytes()
    file.close()
    page = next(n for n in range(2) if durable[n * PAGE :][:PAGE] != written[n * PAGE :][:PAGE])
    start = page * PAGE
    torn = bytearray(durable)
    torn[start : start + torn_bytes] = written[start : start + torn_bytes]
    path.write_bytes(torn)

    reopened = StateFile.open(path)
    assert reopened.state in (at(0x100001), at(0x100002))
    if torn_bytes < WRITTEN:
        assert reopened.state == at(0x100001)
    reopened.close()


def test_every_flipped_byte_of_the_newer_page_falls_back(path: Path) -> None:
    file = StateFile.create(path, STATE)
    file.write(at(0x100001))
    file.close()
    good = path.read_bytes()
    newer = 0  # generation 2
    for offset in range(WRITTEN):
        bad = bytearray(good)
        bad[newer * PAGE + offset] ^= 0x40
        path.write_bytes(bad)
        reopened = StateFile.open(path)
        assert reopened.state == STATE, offset
        reopened.close()


@pytest.mark.parametrize("contents", [b"", b"\0" * 2 * PAGE, os.urandom(2 * PAGE), b"SPWALST1"])
@pytest.mark.follows_hint("corrupt_wal_store")
def test_no_valid_page_is_an_error(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)
    with pytest.raises(CorruptWalStore) as caught:
        StateFile.open(path)
    assert caught.value.code == "corrupt_wal_store"
    assert "made again of the segments beside it" in remedy(caught.value, "corrupt_wal_store")
    # As a service opens it: of a segment that is there, and without one where it is told to begin.
    again = {"system_id": "1", "segment_size": 1 << 20, "start_lsn": 0x500000}
    path.unlink()
    with WalWriter(path.parent, **again) as store:  # type: ignore[arg-type]
        header = struct.pack("<HHIQI4xQII", 0xD110, 2, 1, 0x500000, 0, 1, 1 << 20, 8192)
        store.append(0x500000, header + bytes(100))
        store.sync()
    path.write_bytes(contents)
    with WalWriter(path.parent, system_id="1", segment_size=1 << 20) as store:
        assert store.first_lsn == 0x500000
    for segment in path.parent.glob("0*"):
        segment.unlink()
    path.write_bytes(contents)
    with WalWriter(path.parent, **again) as store:  # type: ignore[arg-type]
        assert store.received_lsn == 0x500000


def test_failed_sync_repeats_the_same_page(path: Path) -> None:
    """The page of the last durable state is not touched until the other one is durable."""
    file = StateFile.create(path, STATE)
    file.write(at(0x100001))
    with (
        failpoints.armed("walstore.before_state_fsync=error:EIO"),
        pytest.raises(OSError, match="failpoint"),
    ):
        file.write(at(0x100002))
    assert file.state == at(0x100001)
    before = path.read_bytes()
    file.reopen()
    file.write(at(0x100003))
    after = path.read_bytes()
    file.close()
    assert before[:PAGE] == after[:PAGE], "the durable page (generation 2)"
    assert before[PAGE:] != after[PAGE:]
