"""The metadata's reserve, on a file system whose free space the test says."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from spillway.storage.disk_reserve import RESERVE_BYTES, DiskReserve

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


class Disk:
    """Of *total* bytes, of which *used* are others'."""

    def __init__(self, reserve: Path, total: int) -> None:
        self._reserve = reserve
        self._total = total
        self.used = 0

    def statvfs(self, path: object) -> object:
        held = self._reserve.stat().st_size if self._reserve.exists() else 0
        free = max(0, self._total - self.used - held)
        return SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=self._total)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path / "reserve", 1024 * MIB)
    monkeypatch.setattr(os, "statvfs", disk.statvfs)
    return disk


def test_the_steps_of_a_disk_that_fills(disk: Disk, tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path / "reserve")
    assert reserve.path.stat().st_size == RESERVE_BYTES
    assert not reserve.is_low
    reserve.admit()
    reserve.admit_segment(16 * MIB)
    disk.used = 900 * MIB
    reserve.look()
    assert reserve.is_low
    reserve.admit_segment(16 * MIB)
    disk.used = 950 * MIB
    reserve.look()
    reserve.admit()
    with pytest.raises(OSError, match="for decoding") as caught:
        reserve.admit_segment(16 * MIB)
    assert caught.value.errno == errno.ENOSPC
    disk.used = 1014 * MIB
    reserve.look()
    assert reserve.full_since is not None
    with pytest.raises(OSError, match="reserve"):
        reserve.admit()
    # It is there still: who filled the disk would take it.
    assert reserve.path.stat().st_size == RESERVE_BYTES
    disk.used = 1016 * MIB
    # Nor can they take all of it when a part is given up for a write.
    assert reserve.release()
    assert reserve.path.stat().st_size == 6 * MIB
    disk.used = 1018 * MIB
    reserve.look()
    assert reserve.path.stat().st_size == 6 * MIB
    assert [reserve.release() for _ in range(3)] == [True] * 3
    assert not reserve.path.exists()
    assert not reserve.release(), "there is nothing more to try"
    # Metadata took a little; the rest is kept again.
    disk.used = 1017 * MIB
    reserve.look()
    assert 6 * MIB < reserve.path.stat().st_size < 7 * MIB
    assert reserve.full_since is not None
    disk.used = 100 * MIB
    reserve.look()
    assert (reserve.path.stat().st_size, reserve.full_since) == (RESERVE_BYTES, None)
    reserve.admit()


def test_a_reserve_is_found_again(disk: Disk, tmp_path: Path) -> None:
    DiskReserve(tmp_path / "reserve")
    disk.used = 1016 * MIB
    again = DiskReserve(tmp_path / "reserve")
    assert again.full_since is not None
    assert again.release()
