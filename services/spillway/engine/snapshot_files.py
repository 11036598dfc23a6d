"""The decoding snapshots of one database on disk, and the spill files that they name.

``snapshots/<lsn>.snap`` is a decoder's state as of <lsn>: synced, then renamed into place. One that carries transactions
in progress names spill files, which several snapshots may share, each up to another byte; such a file goes when no
snapshot names it any more, whether its transaction has ended or not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from spillway.failpoints import failpoint

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.decoding.decoder import Decoder
    from spillway.engine.layout import DatabaseLayout

_SNAPSHOTS_MAX: Final = 16


class SnapshotFiles:
    """One database's. For the decoding thread."""

    def __init__(self, layout: DatabaseLayout) -> None:
        self._directory: Final = layout.snapshots
        self._spill_dir: Final = layout.spill
        # Names of spill files, by the LSN of the snapshot that needs them.
        self._named: dict[int, frozenset[str]] = {}

    def all(self) -> list[tuple[int, Path]]:
        """Return (lsn, path) of the snapshots, oldest first."""
        found = [(int(p.stem, 16), p) for p in self._directory.glob("*.snap")]
        return sorted(found)

    def clear(self) -> None:
        """Remove every snapshot; spill files are the next decoder's to remove."""
        for _, path in self.all():
            path.unlink()
        self._named = {}

    def restored(self, lsn: int, decoder: Decoder) -> None:
        """Hear that *decoder* began with the snapshot at *lsn*: later ones are of no use any more.

        They may name more of a spill file than there is now, for it was cut to what this one names.
        """
        for later, path in self.all():
            if later > lsn:
                path.unlink()
        self._named = {lsn: decoder.carried_files}

    def write(self, decoder: Decoder, *, carries: bool) -> None:
        """Write the state of *decoder*, durably; with *carries* it holds the transactions in progress."""
        path = self._directory / f"{decoder.position:016X}.snap"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(decoder.carry() if carries else decoder.serialize())
            file.flush()
            os.fsync(file.fileno())
        failpoint("session.before_snapshot_rename")
        temporary.replace(path)
        if carries:
            self._named[decoder.position] = decoder.carried_files
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove_before(self, needed: int) -> None:
        """Remove the snapshots before *needed*, and thin out those after it.

        A transaction that stays open for long keeps *needed* back while new snapshots come; any of them may be
        the one that is needed next, and a coarser choice only means more WAL to decode again.
        """
        snapshots = self.all()
        for lsn, path in snapshots:
            if lsn < needed:
                path.unlink()
        later = [path for lsn, path in snapshots if lsn > needed]
        if len(later) > _SNAPSHOTS_MAX:
            for path in later[: -_SNAPSHOTS_MAX // 2 : 2]:
                path.unlink()
        failpoint("session.before_spill_removal")
        kept = {lsn for lsn, _ in self.all()}
        before = frozenset[str]().union(*self._named.values())
        self._named = {lsn: names for lsn, names in self._named.items() if lsn in kept}
        for name in before.difference(*self._named.values()):
            (self._spill_dir / name).unlink(missing_ok=True)
