"""A database's serialised decoder states: ``<lsn>.snap`` files, which a restart goes on from.

One is whole and durable under its name or not there. What is in them is the decoder's (``decoding/serialization.py``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from spillway.failpoints import failpoint
from spillway.receiver.store_state import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SNAPSHOTS_MAX: Final = 16


class Snapshots:
    """The snapshots in *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self) -> None:
        """Make the directory, without what a crash left half written."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for leftover in self._directory.glob("*.tmp"):
            leftover.unlink()

    def all(self) -> list[tuple[int, Path]]:
        """Return (lsn, path) of the snapshots, oldest first."""
        found = [(int(p.stem, 16), p) for p in self._directory.glob("*.snap")]
        return sorted(found)

    def candidates(
        self, wal_from: int, log_restart: int, logged: int
    ) -> Iterator[tuple[int, Path, int | None]]:
        """Yield those to go on from, best first: LSN, file, and up to where all is logged that it does not have.

        None for that: what is in progress in the snapshot is not known to be logged, and decoding must wait for its end.

        Args:
            wal_from: the WAL that is here begins here.
            log_restart: the restart_lsn that the transaction log names, 0 for none.
            logged: transactions that commit before this are all in the log that names it.
        """
        usable = [found for found in self.all() if found[0] >= wal_from]
        for lsn, path in reversed(usable):
            if lsn <= log_restart:
                yield lsn, path, logged
        for lsn, path in usable:
            if lsn > log_restart:
                yield lsn, path, None

    def write(self, lsn: int, data: bytes) -> None:
        """Write one, durably."""
        path = self._directory / f"{lsn:016X}.snap"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        failpoint("session.before_snapshot_rename")
        temporary.replace(path)
        sync_directory(path.parent)

    def remove_all(self) -> None:
        """Remove every one."""
        for _, path in self.all():
            path.unlink()

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
