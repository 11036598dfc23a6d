"""A database's serialised decoder states, which a restart goes on from, and the spill files that
they name.

``snapshots/<lsn>.snap`` is a decoder's state as of <lsn> (``decoding/serialization.py``): whole and
durable under its name, or not there. One that carries transactions in progress names spill files,
which several snapshots may share, each up to another byte; such a file goes when no snapshot names
it any more, whether its transaction has ended or not.

A database in which nothing happens *moves* its state instead of writing it again: the file gets a
second name, of a later LSN. What is in it was made at an earlier one, so whoever goes on from a
snapshot or a base takes the LSN of its name. Of fifty databases, one of them busy, most of what the
others cost were such states.

``snapshots/<lsn>-<logged>.base`` is an older one that names no files, kept for a transaction log
that is damaged: with WAL from <lsn> on it gives all that commits from <logged> on again
(``mending.py``). There is one for each segment of the log, at most :data:`_BASES_MAX`, as long as
there is WAL from its <lsn> on. It is another link to the same file, so while a snapshot is the
newest its base takes no space.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.failpoints import failpoint
from spillway.storage.durable_files import (
    remove_files,
    remove_leftovers,
    replace_file,
    sync_directory,
)
from spillway.storage.file_errors import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from spillway.decoding.decoder import Decoder
    from spillway.sessions.layout import DatabaseLayout

_SNAPSHOTS_MAX: Final = 16
_BASES_MAX: Final = 16
#: A state that is moved is written anew after so long: it does not hear that old transactions have
#: ended, and xids come round.
_MOVED_S: Final = 3600.0


class Base(NamedTuple):
    """A state from which a range of the transaction log can be decoded again."""

    #: WAL is needed from here on
    lsn: int
    #: all that commits from here on is given
    logged: int
    path: Path


class Snapshots:
    """One database's. For the decoding thread."""

    def __init__(self, layout: DatabaseLayout) -> None:
        self._directory: Final = layout.snapshots
        self._spill_dir: Final = layout.spill
        self._reserve: Final = layout.reserve
        # Names of spill files, by the LSN of the snapshot that needs them.
        self._named: dict[int, frozenset[str]] = {}
        #: the newest state, if it carries nothing, and when it was written
        self._newest: Path | None = None
        self._written_at = 0.0

    def prepare(self) -> None:
        """Make the directory, without what a crash left half written."""
        self._directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._directory)
        # Of releases that wrote them so.
        for leftover in listed(self._directory, ".tmp"):
            leftover.unlink()

    def all(self) -> list[tuple[int, Path]]:
        """Return (lsn, path) of the snapshots, oldest first."""
        found = [(int(p.stem, 16), p) for p in listed(self._directory, ".snap")]
        return sorted(found)

    def candidates(
        self, wal_from: int, log_restart: int, logged: int, needed: int = 0
    ) -> Iterator[tuple[int, Path, int | None]]:
        """Yield those to go on from, best first: LSN, file, and up to where all is logged that it
        does not have.

        None for that: what is in progress in the snapshot is not known to be logged, and decoding
        must wait for its end.

        Args:
            wal_from: the WAL that is here begins here.
            log_restart: the restart_lsn that the transaction log names, 0 for none.
            logged: transactions that commit before this are all in the log that names it.
            needed: the oldest position of a slot, 0 without slots; it counts when the log is lost.
        """
        usable = [found for found in self.all() if found[0] >= wal_from]
        for lsn, path in reversed(usable):
            if lsn <= log_restart:
                yield lsn, path, logged
        # Behind the log's end nothing is missed with one of these; without a log, nothing that a
        # slot needs.
        bases = [base for base in self.bases() if base.lsn >= wal_from]
        for base in reversed(bases):
            if base.logged <= (logged or needed):
                yield base.lsn, base.path, base.logged
        if not logged and needed and bases:
            yield bases[0].lsn, bases[0].path, bases[0].logged
        for lsn, path in usable:
            if lsn > log_restart:
                yield lsn, path, None

    def restored(self, lsn: int, decoder: Decoder) -> None:
        """Hear that *decoder* began with the snapshot at *lsn*: later ones are of no use any more.

        They may name more of a spill file than there is now, for it was cut to what this one names.
        """
        remove_files([path for later, path in self.all() if later > lsn])
        self._named = {lsn: decoder.carried_files}

    def write(self, decoder: Decoder, *, carries: bool) -> None:
        """Write the state of *decoder*, durably; with *carries* it holds the transactions in
        progress.

        One that holds them stays as it is: whoever stops where the last one was written would put a
        poorer one in its place, and what it carried could not be had again.
        """
        if not carries and decoder.position in self._named:
            return
        path = self._directory / f"{decoder.position:016X}.snap"
        self._reserve.admit()
        if not carries and self._moved(decoder, path):
            return
        state = decoder.carry() if carries else decoder.serialize()
        try:
            replace_file(path, state, at="session.before_snapshot_rename")
        finally:
            # After an error it may be in place, too, and then it needs its files.
            if carries and path.exists():
                self._named[decoder.position] = decoder.carried_files
        self._newest, self._written_at = None if carries else path, time.monotonic()

    def _moved(self, decoder: Decoder, path: Path) -> bool:
        """Give the newest state the name *path*, durably, if it is as good as one of now."""
        is_old = time.monotonic() - self._written_at >= _MOVED_S
        if self._newest is None or self._newest == path or is_old or not decoder.is_as_serialized:
            return False
        try:
            path.hardlink_to(self._newest)
            sync_directory(self._directory)
        except OSError:
            # It was taken away, or the file system has no links. What is wrong with the disk is
            # met again when the state is written.
            return False
        self._newest = path
        return True

    def remove_all(self) -> None:
        """Remove every one; spill files are the next decoder's to remove."""
        remove_files([path for _, path in self.all()])
        remove_files([base.path for base in self.bases()])
        self._named = {}

    def remove_before(self, needed: int) -> None:
        """Remove the snapshots before *needed*, and thin out those after it.

        A transaction that stays open for long keeps *needed* back while new snapshots come; any of
        them may be the one that is needed next, and a coarser choice only means more WAL to decode
        again.
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
        if gone := before.difference(*self._named.values()):
            # A snapshot that came back after a power failure would want them.
            sync_directory(self._directory)
            for name in gone:
                (self._spill_dir / name).unlink(missing_ok=True)

    # -- bases --------------------------------------------------------------------------------

    def bases(self) -> list[Base]:
        """Return the bases, oldest first."""
        found: list[Base] = []
        for path in listed(self._directory, ".base"):
            lsn, _, logged = path.stem.partition("-")
            found.append(Base(int(lsn, 16), int(logged, 16), path))
        return sorted(found)

    def keep_base(self, needed: int, logged: int) -> None:
        """Keep the snapshot at *needed*, with which all that commits from *logged* on is decoded,
        as a base.

        One that carries transactions is of no use as one: its spill files are the decoder's.
        """
        if needed in self._named or any(base.lsn == needed for base in self.bases()):
            return
        path = self._directory / f"{needed:016X}-{logged:016X}.base"
        # Without one, on a file system that has no links, damage costs more.
        with contextlib.suppress(OSError):
            path.hardlink_to(self._directory / f"{needed:016X}.snap")

    def remove_bases(self, starts: Iterable[int] = (), wal_from: int = 1 << 63) -> None:
        """Remove the bases but the newest, and the best for each of the log's segments, which start
        at *starts*.

        There is WAL from *wal_from* on. A coarser choice only means more WAL to decode again.
        """
        bases = self.bases()
        usable = [base for base in bases if base.lsn >= wal_from]
        kept = set(usable[-1:])
        for start in starts:
            before = [base for base in usable if base.logged <= start]
            kept.update(before[-1:] or usable[:1])
        chosen = sorted(kept)
        if len(chosen) > _BASES_MAX:
            del chosen[1 : -_BASES_MAX // 2 : 2]
        for base in set(bases).difference(chosen):
            base.path.unlink(missing_ok=True)
