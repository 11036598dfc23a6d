"""A decoder's states on disk."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from spillway.failpoints import armed
from spillway.sessions.layout import DatabaseLayout
from spillway.sessions.snapshots import Snapshots
from spillway.storage.disk_reserve import DiskReserve


@dataclass
class Decoder:
    """Stands somewhere; its states say whether they carry what is in progress."""

    position: int
    carried_files: frozenset[str] = frozenset({"xid-1.spill"})
    is_as_serialized: bool = False
    serialized: int = 0

    def carry(self) -> bytes:
        return b"carried"

    def serialize(self) -> bytes:
        self.serialized += 1
        return b"plain"


def test_a_state_that_carries_is_not_replaced_by_one_that_does_not(tmp_path: Path) -> None:
    """A service that was stopped just where it had carried an open transaction lost it: seen on 18,
    with a bounded store.
    """
    layout = DatabaseLayout(tmp_path, DiskReserve(tmp_path))
    snapshots = Snapshots(layout)
    snapshots.prepare()
    decoder: Any = Decoder(0x1000)
    snapshots.write(decoder, carries=True)
    snapshots.remove_before(0x1000)
    snapshots.write(decoder, carries=False)
    ((lsn, path),) = snapshots.all()
    assert (lsn, path.read_bytes()) == (0x1000, b"carried")
    # After a restart from it, too.
    again = Snapshots(layout)
    again.restored(0x1000, decoder)
    again.write(decoder, carries=False)
    assert path.read_bytes() == b"carried"
    decoder.position = 0x2000
    again.write(decoder, carries=False)
    assert [lsn for lsn, _ in again.all()] == [0x1000, 0x2000]


def test_spill_files_go_after_the_snapshots_that_named_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot whose removal was not durable is back after a power failure, and wants its
    files.
    """
    layout = DatabaseLayout(tmp_path, DiskReserve(tmp_path))
    layout.spill.mkdir()
    spilled = layout.spill / "xid-1.spill"
    spilled.touch()
    snapshots = Snapshots(layout)
    snapshots.prepare()
    snapshots.write(cast("Any", Decoder(0x1000)), carries=True)
    snapshots.write(cast("Any", Decoder(0x2000, frozenset())), carries=True)
    synced: list[tuple[str, int, bool]] = []

    def fsync(fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        synced.append((name, len(snapshots.all()), spilled.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    snapshots.remove_before(0x2000)
    assert synced == [("snapshots", 1, True)], "before the file went, and after the snapshot"
    assert not spilled.exists()


def test_half_written_snapshots_go_at_start(tmp_path: Path) -> None:
    layout = DatabaseLayout(tmp_path, DiskReserve(tmp_path))
    snapshots = Snapshots(layout)
    snapshots.prepare()
    snapshots.write(cast("Any", Decoder(0x1000)), carries=True)
    (kept,) = layout.snapshots.iterdir()
    for name in (".0000000000002000.snap.new", "0000000000003000.tmp"):
        (layout.snapshots / name).write_bytes(b"half")
    snapshots.prepare()
    assert list(layout.snapshots.iterdir()) == [kept]


def test_a_full_disk_keeps_the_snapshot_that_was_there(tmp_path: Path) -> None:
    layout = DatabaseLayout(tmp_path, DiskReserve(tmp_path))
    snapshots = Snapshots(layout)
    snapshots.prepare()
    snapshots.write(cast("Any", Decoder(0x1000)), carries=True)
    with (
        armed("session.before_snapshot_rename=error:ENOSPC"),
        pytest.raises(OSError, match="space"),
    ):
        snapshots.write(cast("Any", Decoder(0x2000)), carries=True)
    assert [path.name for path in layout.snapshots.iterdir()] == ["0000000000001000.snap"]


def test_a_state_that_is_as_good_as_before_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = DatabaseLayout(tmp_path, DiskReserve(tmp_path))
    snapshots = Snapshots(layout)
    snapshots.prepare()
    decoder: Any = Decoder(0x1000, is_as_serialized=True)
    snapshots.write(decoder, carries=False)
    assert decoder.serialized == 1, "there was none before"
    for at in (0x2000, 0x3000):
        decoder.position = at
        snapshots.write(decoder, carries=False)
        snapshots.keep_base(at, at)
        snapshots.remove_before(at)
    assert decoder.serialized == 1
    ((lsn, path),) = snapshots.all()
    assert (lsn, path.read_bytes()) == (0x3000, b"plain")
    assert [base.lsn for base in snapshots.bases()] == [0x2000, 0x3000]
    # One that is gone, or was written long ago, is written again; and so is what has changed.
    path.unlink()
    decoder.position = 0x4000
    snapshots.write(decoder, carries=False)
    assert decoder.serialized == 2
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3601)
    decoder.position = 0x5000
    snapshots.write(decoder, carries=False)
    assert decoder.serialized == 3
    decoder.position, decoder.is_as_serialized = 0x6000, False
    snapshots.write(decoder, carries=False)
    assert decoder.serialized == 4


def test_a_state_that_carries_is_not_moved(tmp_path: Path) -> None:
    """The files that it names are the decoder's, of that position."""
    snapshots = Snapshots(DatabaseLayout(tmp_path, DiskReserve(tmp_path)))
    snapshots.prepare()
    decoder: Any = Decoder(0x1000, is_as_serialized=True)
    snapshots.write(decoder, carries=True)
    decoder.position = 0x2000
    snapshots.write(decoder, carries=False)
    assert [path.read_bytes() for _, path in snapshots.all()] == [b"carried", b"plain"]
