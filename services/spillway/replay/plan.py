"""The light pass: where WAL can be cut, what a decoder must know at each cut, and who commits
where.

::

    beginning ─────────────┬──────────────┬──────────────┬───────── to        one walk over all WAL
        catalog, xids      │ state 1      │ state 2      │ state 3
                           └ who is in progress here, and where it commits

One decoder goes through WAL once, *skimming*: it applies catalog records to the mirror and follows
who begins, commits and aborts, and leaves the tables' changes out, which is nearly all of the work.
Every ``stretch_bytes`` it serialises its state. From such a state another process decodes the
stretch behind it, with the catalog exactly as of there.

A transaction in progress at a cut goes over it. Where it commits, or that it does not within the
range, is known when the pass is over: so a stretch hands on only what is wanted, to where it is
wanted, and the transactions that abort later go no further. An xid names one of those in progress
at a cut, however often xids have wrapped around before.

Cuts are possible from where decoding is consistent, as it is with everything that begins from a
base backup or a saved state. What begins before that and commits after it is whole, too, because
the first stretch begins where this pass does.

Memory: the decoder's. Disk: a state for each stretch, mostly the catalog (3 MB for a fresh
database).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.catalog.bootstrap_files import bootstrap_files
from spillway.decoding import serialization
from spillway.decoding.invalidations import NO_INVALIDATIONS
from spillway.decoding.offline import offline_decoder
from spillway.decoding.snapshot_builder import SnapshotState
from spillway.errors import InvalidRequest, NotReady, StorageError, UnsupportedWal, WalGap
from spillway.pg.lsn import Lsn
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.catalog.bootstrap import Bootstrap
    from spillway.decoding.decoder import Decoder
    from spillway.decoding.transaction import Transaction

STRETCH_BYTES_DEFAULT: Final = 64 << 20
#: Cuts are between batches of records; a stretch of less than some megabytes wants small ones.
_BATCH_RECORDS_MAX: Final = 4096
_RECORD_BYTES: Final = 256


class StretchBegins(Enum):
    """What a stretch's state is."""

    #: the catalog of a base backup: decoding becomes consistent on the way
    BOOTSTRAP = "bootstrap"
    #: a saved state: what is in progress in it is left out
    STATE = "state"
    #: a cut: what is in progress in it goes on
    CUT = "cut"


@dataclass(slots=True)
class Stretch:
    """WAL between two cuts, decoded by one task. Pickled to executors."""

    number: int
    start_lsn: int
    end_lsn: int
    #: the state to begin from
    state: Path
    begins: StretchBegins
    #: commits in [range_start, range_end) are wanted; an empty range: only of transactions that
    #: commit later
    range_start: int = 0
    range_end: int = 0
    #: top-level transactions in progress at ``end_lsn`` whose commit is wanted: xid → its place
    ends_later: dict[int, int] = field(default_factory=dict)

    @property
    def has_commits(self) -> bool:
        return self.range_start < self.range_end


@dataclass(frozen=True, slots=True)
class Plan:
    """What the light pass found."""

    from_lsn: int
    to_lsn: int
    #: those that are needed, in order
    stretches: tuple[Stretch, ...]
    #: Python's name of the database's encoding
    encoding: str
    major: int
    database_oid: int
    wal_bytes: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the catalog comes from: a saved state, or the data directory of a base backup and a
    database's name.
    """

    state: Path | None = None
    data_directory: Path | None = None
    database: str = ""


def read_beginning(wal: WalDirectory, begin: Beginning) -> Bootstrap | bytes:
    """Read a saved state, or the catalogs of a base backup.

    Raises:
        InvalidRequest: not one of them is named.
        StorageError: the state can't be read.
        What ``bootstrap_files`` raises.
    """
    if (begin.state is None) == (begin.data_directory is None):
        raise InvalidRequest(
            "where the catalog comes from must be given once",
            hint="Give a saved state (<lsn>.snap) or the data directory of a base backup.",
        )
    if begin.data_directory is not None:
        return bootstrap_files(begin.data_directory, begin.database, wal)
    assert begin.state is not None
    try:
        return begin.state.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{begin.state} can't be read: {error.strerror}", hint="Give a state that was saved."
        ) from error


def make_plan(
    archive: Path,
    begin: Beginning,
    directory: Path,
    *,
    from_lsn: int | None = None,
    to_lsn: int | None = None,
    stretch_bytes: int = STRETCH_BYTES_DEFAULT,
) -> Plan:
    """Walk the archive once, and write the states of the stretches into *directory*, which is
    there.

    Args:
        archive: directory of WAL segment files.
        begin: where the catalog comes from.
        directory: what stretches are decoded with; the executors must see it under the same path.
        from_lsn: what commits before this is not wanted; None: where decoding becomes consistent.
        to_lsn: neither is what commits from here on; None: where the archive ends.
        stretch_bytes: WAL between two cuts, about.

    Raises:
        WalGap: a segment is missing, or the archive ends before *to_lsn*.
        CorruptWal, DecodingError, SystemIdMismatch, UnsupportedWal: WAL can't be read, or is of
            another cluster.
        NotReady: *from_lsn* is before decoding is consistent, or it never is.
        StorageError: *begin* is damaged, or *directory* can't be written.
    """
    if not archive.is_dir():
        raise StorageError(f"{archive} is no directory", hint="Give a directory of WAL segments.")
    wal = WalDirectory(archive)
    started = read_beginning(wal, begin)
    first_state, begins = (
        (started, StretchBegins.STATE)
        if isinstance(started, bytes)
        else (_bootstrap_state(started), StretchBegins.BOOTSTRAP)
    )
    ends = _Ends(from_lsn or 0, to_lsn)
    with offline_decoder(wal, started, ends, spill_dir=directory) as decoder:
        if decoder.mirror.facts.major != wal.version.major:
            raise UnsupportedWal(
                f"the state is of PostgreSQL {decoder.mirror.facts.major}, the WAL of "
                f"{wal.version.major}",
                hint="Give WAL and state of the same cluster.",
                lsn=str(Lsn(decoder.position)),
            )
        decoder.skim()
        start = decoder.position
        first = _Cut(0, start, _save(directory, 0, first_state), begins)
        stretches = list(_stretches(wal, decoder, ends, first, stretch_bytes))
        facts = decoder.mirror.facts
        position = decoder.position
    if to_lsn is not None and position < to_lsn:
        raise WalGap(
            f"the archive ends at {Lsn(position)}, before {Lsn(to_lsn)}",
            hint="Give more WAL, or an end within it; without one all of it is replayed.",
            lsn=str(Lsn(position)),
        )
    if ends.consistent_lsn is None:
        raise NotReady(
            f"the archive ends at {Lsn(position)}, before decoding was consistent",
            hint="Give more WAL: up to a checkpoint after the backup, and the end of the "
            "transactions that ran then.",
        )
    begin_lsn, end_lsn = from_lsn or ends.consistent_lsn, to_lsn or position
    if begin_lsn < ends.consistent_lsn:
        raise NotReady(
            f"decoding is consistent from {Lsn(ends.consistent_lsn)} on, after {Lsn(begin_lsn)}",
            hint="Begin with an older backup or state; transactions that ran when it was made are "
            "not in it.",
        )
    for stretch in stretches:
        stretch.range_start = max(stretch.start_lsn, begin_lsn)
        stretch.range_end = min(stretch.end_lsn, end_lsn)
        stretch.ends_later = {
            xid: lsn for xid, lsn in stretch.ends_later.items() if begin_lsn <= lsn < end_lsn
        }
    needed = [s for s in stretches if s.has_commits or s.ends_later]
    for stretch in stretches:
        if stretch not in needed:
            stretch.state.unlink()
    return Plan(
        begin_lsn, end_lsn, tuple(needed), facts.encoding, facts.major, facts.database_oid,
        position - start
    )  # fmt: skip


class _Cut(NamedTuple):
    """Where a stretch begins."""

    number: int
    lsn: int
    state: Path
    begins: StretchBegins

    def stretch(self, end_lsn: int) -> Stretch:
        return Stretch(self.number, self.lsn, end_lsn, self.state, self.begins)


def _stretches(
    wal: WalDirectory, decoder: Decoder, ends: _Ends, cut: _Cut, stretch_bytes: int
) -> Iterator[Stretch]:
    """Walk to the end, and yield each stretch when it ends; where its transactions end is entered
    later.
    """
    records_max = max(1, min(_BATCH_RECORDS_MAX, stretch_bytes // _RECORD_BYTES))
    wal.check_from(cut.lsn)
    for batch in wal.batches(cut.lsn, ends.to_lsn, records_max=records_max):
        decoder.process(batch)
        position = decoder.position
        if position - cut.lsn < stretch_bytes or (
            decoder.snapshot_state is not SnapshotState.CONSISTENT
        ):
            continue
        stretch = cut.stretch(position)
        ends.cut(stretch, (xid for xid, top_xid, *_ in decoder.transactions() if not top_xid))
        yield stretch
        number = cut.number + 1
        state = _save(cut.state.parent, number, decoder.serialize())
        cut = _Cut(number, position, state, StretchBegins.CUT)
    if ends.to_lsn is None or decoder.position < ends.to_lsn:
        wal.check_ended(decoder.position)
    yield cut.stretch(decoder.position)


class _Ends:
    """A transaction sink that learns where the transactions commit that go over a cut."""

    def __init__(self, from_lsn: int, to_lsn: int | None) -> None:
        self.to_lsn = to_lsn
        self.consistent_lsn: int | None = None
        self._from_lsn = from_lsn
        #: xid → the stretches that it was in progress at the end of
        self._open: dict[int, list[Stretch]] = {}

    def cut(self, stretch: Stretch, in_progress: Iterable[int]) -> None:
        """Take note of who goes over the end of *stretch*; who does not any more and has not
        committed is gone.
        """
        self._open = {xid: self._open.get(xid, []) for xid in in_progress}
        for stretches in self._open.values():
            stretches.append(stretch)

    def consistent(self, lsn: int) -> None:
        if self.consistent_lsn is None:
            self.consistent_lsn = lsn

    def transaction(self, transaction: Transaction) -> None:
        header = transaction.header
        if header.is_ordinary:
            self._ended(header.xid, header.final_lsn)

    def transactions(self, run: TransactionRun) -> None:
        if self._open and run.has_any_of(self._open):
            for transaction in run:
                self._ended(transaction.header.xid, transaction.header.final_lsn)

    def progress(self, decoded_lsn: int) -> None:
        """Nothing to say."""

    def _ended(self, xid: int, final_lsn: int) -> None:
        for stretch in self._open.pop(xid, ()):
            stretch.ends_later[xid] = final_lsn


def _bootstrap_state(begin: Bootstrap) -> bytes:
    """Return where a bootstrap begins in the form of a decoder's state; of that only LSN and
    catalog count.
    """
    return serialization.dump(
        serialization.DecoderState(
            begin.mirror.facts.database_oid, begin.redo_lsn, 0, (), begin.mirror, NO_INVALIDATIONS
        )
    )


def _save(directory: Path, number: int, state: bytes) -> Path:
    file = directory / f"{number:08d}.snap"
    try:
        file.write_bytes(state)
    except OSError as error:
        raise StorageError(
            f"can't write {file}: {error.strerror}", hint="Mend that and run the replay again."
        ) from error
    return file
