"""A decoder's states on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spillway.disk_reserve import DiskReserve
from spillway.engine.layout import DatabaseLayout
from spillway.engine.snapshots import Snapshots

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Decoder:
    """Stands somewhere; its states say whether they carry what is in progress."""

    position: int
    carried_files: frozenset[str] = frozenset({"xid-1.spill"})

    def carry(self) -> bytes:
        return b"carried"

    def serialize(self) -> bytes:
        return b"plain"


def test_a_state_that_carries_is_not_replaced_by_one_that_does_not(tmp_path: Path) -> None:
    """A service that was stopped just where it had carried an open transaction lost it: seen on 18, with a bounded store."""
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
