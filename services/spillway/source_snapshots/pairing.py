"""A snapshot of the source that SQL took, paired with an LSN: the position from which changes
complete what it sees.

A backend commits in this order: its commit record, its flush, the commit log, the wait for
synchronous standbys, and only then does it leave the ProcArray, which is what makes others see it.
So what a snapshot sees is not a prefix of WAL: the commit record of a transaction that is not seen
may stand before one of a transaction that is. Mostly there is no such pair, and then the commit
record of the first transaction that is not seen is an exact position: all that is seen committed
before it, and nothing else. Where there is one, the snapshot is of no use, and another is taken.

What must be known for that is which commit records stand before the snapshot's moment P
(``pg_current_wal_insert_lsn``, read after it was taken: whatever it sees has its commit record
before P). The transaction log says so, once WAL is decoded up to P. It need not be read from its
beginning. At first, it is noted how far WAL is decoded (A); then, which transactions run (R); then
the snapshot is taken. A transaction that is not seen and is not in R got its xid after A, and its
commit record is behind A. One that is in R and is not seen was in the ProcArray all the time. Its
commit record is before A only if it hung between that record and its leave. It did not if

- the decoder has it in progress, at P or later: then its commit record comes later;
- it is of another database: then nothing of it concerns us;
- its backend idled in a transaction when R was read: who commits does not idle.

Of the others nothing is known: they wait for a standby, or run and have written nothing that is
decoded (unlogged tables). For these the log is read from where the first of them can't have had its
xid yet: running-xacts records say that of xids (the *marks*). Where they don't, the snapshot stays
unpaired (:class:`Undecided`).

Transactions that stay open for long are not waited for: they are not seen, and come whole when they
commit, as the reorder buffer has had them since they began. Those that are prepared likewise.

Cost: the log between A and P is read once, runs of small transactions by the kernel.

Source: RecordTransactionCommit, CommitTransaction (src/backend/access/transam/xact.c),
FinishPreparedTransaction (twophase.c), ProcArrayEndTransaction, GetSnapshotData (procarray.c),
pg_stat_get_activity (pgstatfuncs.c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.decoding.transaction import TransactionKind
from spillway.source_snapshots.visibility import SeenXids, distance
from spillway.txlog.cursor import TransactionCursor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from spillway.decoding.moment import DecodingMoment
    from spillway.decoding.transaction import TransactionHeader
    from spillway.txlog import LogReader

#: of the log, that may be read for transactions of which nothing is known
_LOOK_BACK_BYTES: Final = 1 << 30
_COMMITS: Final = frozenset({TransactionKind.COMMIT, TransactionKind.COMMIT_PREPARED})


@dataclass(frozen=True, slots=True)
class Running:
    """A transaction that ran on the source before the snapshot was taken."""

    #: 32 bits, of the top-level transaction
    xid: int
    database_oid: int
    #: its backend idled in it
    is_idle: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that a session of the source holds."""

    #: what ran before it was taken
    running: Sequence[Running]
    #: pg_current_snapshot()
    contents: str
    #: what it sees has its commit record before this
    insert_lsn: int
    #: microseconds since 1970
    taken_at_us: int


@dataclass(frozen=True, slots=True)
class Paired:
    """The position that belongs to the snapshot: it sees what has its commit record before, and
    nothing else.
    """

    lsn: int


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The snapshot sees a transaction that committed behind one that it does not see."""

    #: start of the commit record of the latter
    hidden_lsn: int
    hidden_xid: int
    #: and of the former
    seen_lsn: int
    seen_xid: int

    def __str__(self) -> str:
        return (
            f"transaction {self.seen_xid} was visible before transaction {self.hidden_xid}, which "
            "committed earlier"
        )


@dataclass(frozen=True, slots=True)
class Undecided:
    """Of these transactions it can't be told whether they have committed."""

    xids: tuple[int, ...]

    def __str__(self) -> str:
        return (
            "of transactions that write nothing to WAL, or wait for a standby "
            f"({', '.join(map(str, self.xids))}), it is not known whether they have committed"
        )


class _Hidden:
    """The xids that a snapshot does not see, as a container."""

    def __init__(self, seen: SeenXids) -> None:
        self._sees = seen.sees

    def __contains__(self, xid: object) -> bool:
        assert isinstance(xid, int)
        return not self._sees(xid)


def pair(
    log: LogReader,
    taken: Taken,
    decoding: DecodingMoment,
    database_oid: int,
    decoded_before: int,
) -> Paired | OutOfOrder | Undecided:
    """Find the position that belongs to a snapshot.

    Args:
        log: of the database, which has everything up to ``taken.insert_lsn``.
        taken: the snapshot.
        decoding: as of ``taken.insert_lsn`` or later.
        database_oid: the database's.
        decoded_before: up to where WAL was decoded before ``taken.running`` was read (A).

    Raises:
        LsnNotRetained: the log does not reach back to *decoded_before*.
        TransactionLogError: it can't be read.
    """
    assert decoding.position >= taken.insert_lsn
    seen = SeenXids.parse(taken.contents)
    unknown = [
        running.xid
        for running in taken.running
        if not seen.sees(running.xid)
        and running.database_oid == database_oid
        and not running.is_idle
        and running.xid not in decoding.in_progress
    ]
    from_lsn = decoded_before
    if unknown:
        mark = _before_all(unknown, decoding.marks)
        if mark is None or not _may_look_back(log, mark, decoded_before):
            # They may be of those that committed since, as most do that are short.
            unknown = _not_in(log, unknown, decoded_before)
            if unknown:
                return Undecided(tuple(sorted(unknown)))
        else:
            from_lsn = min(from_lsn, mark)
    return _first_hidden(log, seen, from_lsn, taken.insert_lsn)


def _before_all(xids: Iterable[int], marks: Sequence[tuple[int, int]]) -> int | None:
    """Return an LSN at which none of *xids* was given out yet, as late as is known."""
    found = None
    xids = tuple(xids)
    for lsn, next_xid in marks:
        if any(distance(xid, next_xid) < 0 for xid in xids):
            break
        found = lsn
    return found


def _may_look_back(log: LogReader, lsn: int, upto_lsn: int) -> bool:
    start = log.start_lsn
    if lsn >= upto_lsn:
        return True
    if start is None or lsn < start:
        return False
    return log.bytes_from(lsn) - log.bytes_from(upto_lsn) <= _LOOK_BACK_BYTES


def _not_in(log: LogReader, xids: Iterable[int], from_lsn: int) -> list[int]:
    """Return those of *xids* that the log has no commit of from *from_lsn* on."""
    left = set(xids)
    for header in _commits(log, from_lsn, left):
        left.discard(header.xid)
    return sorted(left)


def _first_hidden(
    log: LogReader, seen: SeenXids, from_lsn: int, upto_lsn: int
) -> Paired | OutOfOrder:
    hidden: TransactionHeader | None = None
    # Until there is one that is not seen, those that are need not be looked at.
    for header in _commits(log, from_lsn, _Hidden(seen)):
        if header.final_lsn >= upto_lsn:
            break
        if not seen.sees(header.xid):
            hidden = hidden or header
        elif hidden is not None:
            return OutOfOrder(hidden.final_lsn, hidden.xid, header.final_lsn, header.xid)
    return Paired(upto_lsn if hidden is None else hidden.final_lsn)


def _commits(
    log: LogReader, from_lsn: int, wanted: Collection[int] | _Hidden
) -> Iterator[TransactionHeader]:
    """Yield the headers of commits from *from_lsn* on; runs without any of *wanted* are passed over
    until there was one.
    """
    cursor = TransactionCursor(log, from_lsn)
    found = False
    try:
        while (piece := cursor.next_run()) is not None:
            if not isinstance(piece, TransactionRun):
                if piece.header.kind in _COMMITS:
                    found = found or piece.header.xid in wanted
                    yield piece.header
                continue
            found = found or piece.has_any_of(wanted)
            if found:
                for transaction in piece:
                    yield transaction.header
    finally:
        cursor.close()
