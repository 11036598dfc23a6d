"""Whether a server's WAL goes on what is stored, before a byte of it is taken.

A system identifier and a timeline's number do not name a history. A copy of the primary's files, a
snapshot of its disk that was rolled back, a backup that was restored without archive recovery: each
has both, and writes WAL of its own. So histories are compared first (:func:`check_history`), then
bytes: the server is asked to begin a little before the store's end, and what it sends again must be
what is stored (:class:`Overlap`)::

                  start                         end = received_lsn
    stored     ─────┼──────────────────────────────┤
    the server ─────┼══════════════════════════════┼──────────▶
                     compared, not taken            taken, once all before it was equal

Bytes that a server has sent never change on its timeline. It sends what it has flushed, and it
flushes whole pages or up to a record's end. Recovery after a crash begins to write where the last
whole record ends, or, when a record was cut by the end of a page, at the next page, with a mark
there that voids the first half (``XLOG_OVERWRITE_CONTRECORD``). Both are at or behind what was
flushed. So a difference is never a crash of the primary. It may be damage of what is stored: then
the stored records fail their own checks, which decoding names, and streaming goes on.

How much is compared: at most _BYTES_MAX, within the last segment that has stored bytes, which the
physical slot keeps on the server; from the segment before, if it is still there, when that is less
than _BYTES_MIN. When the server has removed even that (the store ends with a segment, and the
server had a checkpoint since), there is nothing to compare. Streaming goes on, and the first record
that comes must name the last one stored as the one before it (``xl_prev``), which decoding checks.

Source: src/backend/access/transam/xlog.c (XLogWrite, StartupXLOG, CreateOverwriteContrecordRecord),
xlogrecovery.c (ReadRecord), src/backend/replication/walsender.c (StartReplication)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spillway._kernels.wal.walker import Walker
from spillway.errors import (
    CorruptWal,
    ReplicationFailed,
    SystemIdMismatch,
    TimelineDiverged,
    UnsupportedWal,
    WalDiverged,
    WalGap,
)
from spillway.pg.conninfo import replication_conninfo
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_magic
from spillway.pg.wal_segment import XLOG_BLCKSZ, segment_start
from spillway.receiver.awaited_wal import awaited_wal
from spillway.receiver.replication_connection import (
    CommandFailed,
    ReplicationConnection,
    WakeUp,
)
from spillway.receiver.supported_versions import is_supported, unsupported_version
from spillway.receiver.timeline_history import fork_lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.receiver.wal_reader import WalReader

log = logging.getLogger(__name__)

#: Sent again at each connect: little beside what a reconnect costs, much beside what two histories
#: may have in common.
_BYTES_MAX: Final = 1 << 20
#: Less may hold nothing but page headers and records that any copy writes alike.
_BYTES_MIN: Final = 64 << 10
_READ_BYTES: Final = 128 << 10
_SILENCE_MAX_S: Final = 60.0
#: SQLSTATE of a server that has removed the WAL which it is asked for
UNDEFINED_FILE: Final = "58P01"

#: The way on where what was decoded is not of this server.
BEGIN_ANEW: Final = (
    "Begin the source anew: drop its subscriptions and slots, drop it, create it again, empty what "
    "its consumers have (a subscription's tables on its target; a lake begins in another "
    "directory), and load them anew."
)
_NOT_THE_ORIGINAL: Final = (
    "If the server is a copy of the source, or was set back to an older state: nothing of its WAL "
    "was taken. Point the source at the original again (spillway source alter NAME DSN, or PATCH "
    "/v1/sources/NAME; with the same DSN if its address leads there again), and receiving goes on "
    "where it stopped, with nothing lost. If this server is to take the original's place: what was "
    f"decoded of the original need not exist here. {BEGIN_ANEW}"
)


def check_history(connection: ReplicationConnection, store: WalReader, end: int) -> None:
    """Check that what is stored up to *end* is in the history of the server, as far as that says.

    START_REPLICATION checks the same, but in messages without an SQLSTATE of their own.

    Raises:
        UnsupportedVersion: the server is too old or too new.
        SystemIdMismatch: it is another cluster.
        TimelineDiverged: its history is another branch, or ends before *end*.
        ReplicationFailed: it is a former primary.
    """
    if not is_supported(connection.server_version_num):
        raise unsupported_version(connection.server_version_num)
    identity = connection.identify_system()
    if identity.system_id != store.system_id:
        raise SystemIdMismatch(
            f"the server is cluster {identity.system_id}, the source is cluster {store.system_id}",
            hint="Point the source at the cluster it was created for. Or was it upgraded by "
            f"pg_upgrade, or made anew of a dump? {BEGIN_ANEW}",
            expected_system_id=store.system_id,
            system_id=identity.system_id,
        )
    if identity.timeline < store.timeline:
        raise ReplicationFailed(
            f"the server is on timeline {identity.timeline}, the source has followed a failover to "
            f"timeline {store.timeline}",
            hint="The DSN leads to a former primary: point it at the present one.",
            timeline=identity.timeline,
        )
    if identity.timeline == store.timeline:
        if end > identity.flush_lsn:
            raise TimelineDiverged(
                f"WAL up to {Lsn(end)} of timeline {store.timeline} was received, but the server "
                f"has it only up to {identity.flush_lsn}",
                hint=_NOT_THE_ORIGINAL,
                lsn=str(identity.flush_lsn),
                received_lsn=str(Lsn(end)),
                timeline=identity.timeline,
            )
        return
    history = connection.timeline_history(identity.timeline)
    fork = fork_lsn(history, store.timeline)
    if fork is None:
        raise TimelineDiverged(
            f"timeline {store.timeline} is not in the history of the server's timeline "
            f"{identity.timeline}",
            hint=f"The server was promoted or restored from another branch. {BEGIN_ANEW}",
            timeline=identity.timeline,
        )
    if end > fork:
        raise TimelineDiverged(
            f"WAL up to {Lsn(end)} of timeline {store.timeline} was received, but the server's "
            f"history has it only up to {fork}",
            hint="What lies between was lost in a failover or a restore of the source; what was "
            f"decoded beyond {fork} never existed there. {BEGIN_ANEW}",
            lsn=str(fork),
            received_lsn=str(Lsn(end)),
            timeline=identity.timeline,
        )


def overlaps(store: WalReader, end: int) -> Iterator[Overlap]:
    """Yield what of the store may be compared, best first: the server may have removed where one
    begins.
    """
    if end <= store.first_lsn:
        return
    within = max(segment_start(end - 1, store.segment_size), end - _BYTES_MAX)
    starts = (within,) if end - within >= _BYTES_MIN else (end - _BYTES_MIN, within)
    for start in dict.fromkeys(max(start, store.first_lsn) for start in starts):
        yield Overlap(store, start, end)


class Overlap:
    """What a server sends again of what is stored, in [*start*, *end*). Used once, by one
    thread.
    """

    def __init__(self, store: WalReader, start: int, end: int) -> None:
        self.start = start
        self._store = store
        self._end = end
        self._damaged = False

    def compare(self, connection: ReplicationConnection) -> memoryview:
        """Read the stream that was opened at *start* up to *end*; return what the last message has
        behind it.

        Raises:
            WalDiverged: the server sends something else than what is stored.
            CommandFailed: the server ended the stream with an error, ``UNDEFINED_FILE`` if it has
                removed that WAL.
            ReplicationFailed: it ended the stream otherwise, sent something else, or nothing any
                more.
        """
        rest = memoryview(b"")
        for lsn, data in awaited_wal(connection, self.start, self._end, _SILENCE_MAX_S):
            rest = self._take(lsn, data)
        return rest

    def _take(self, lsn: int, data: memoryview) -> memoryview:
        """Compare a message; return what of it is behind the end."""
        rest = data[self._end - lsn :]
        known = data[: self._end - lsn]
        while known and not self._damaged:
            try:
                stored = self._store.read(lsn, min(len(known), _READ_BYTES))
            except WalGap as error:
                # Decoding names what it needs and can't find; the receiver is not the one to stop
                # for it.
                log.warning("WAL at %s can't be compared with the server's: %s", Lsn(lsn), error)
                self._damaged = True
                break
            sent = bytes(known[: len(stored)])
            if sent != stored:
                self._differ(lsn + _first_difference(sent, stored))
            lsn += len(stored)
            known = known[len(stored) :]
        return rest

    def _differ(self, lsn: int) -> None:
        """Say what a difference at *lsn* means.

        Raises:
            WalDiverged: what is stored is sound.
        """
        damage = self._damage()
        if damage is not None:
            self._damaged = True
            log.error("WAL in %s is damaged: %s", self._store.directory, damage)
            return
        store = self._store
        since = f"{Lsn(lsn)} or before" if lsn == self.start else f"{Lsn(lsn)}"
        raise WalDiverged(
            "the server is not the one that WAL was received from, though it has its system "
            f"identifier and its timeline {store.timeline}: their WAL differs from {since} on, and "
            f"was received up to {Lsn(self._end)}",
            hint=_NOT_THE_ORIGINAL,
            lsn=str(Lsn(lsn)),
            received_lsn=str(Lsn(self._end)),
            timeline=store.timeline,
        )

    def _damage(self) -> CorruptWal | UnsupportedWal | None:
        """Return what is wrong with the stored records; None when they are sound."""
        store, lsn = self._store, self.start // XLOG_BLCKSZ * XLOG_BLCKSZ
        try:
            version = version_of_magic(int.from_bytes(store.read(lsn, 2), "little"))
            walker = Walker(version, lsn, store.segment_size, system_id=int(store.system_id))
            while lsn < self._end:
                data = store.read(lsn, min(self._end - lsn, _READ_BYTES))
                walker.feed(lsn, data)
                lsn += len(data)
                while walker.next_batch() is not None:
                    pass
        except (CorruptWal, UnsupportedWal) as error:
            return error
        return None


def check_continues(dsn: str, store: WalReader) -> None:
    """Check that the server behind *dsn* has the WAL that is stored, and none instead of it.
    Blocking.

    Takes nothing and needs no slot: a receiver may be at work meanwhile. For a DSN that is to
    replace another.

    Raises:
        WalDiverged: its WAL is another.
        SourceError: as :func:`check_history`, or there is no connection.
    """
    end = store.received_lsn  # before the server is asked how far it is
    with ReplicationConnection.connect(replication_conninfo(dsn), WakeUp()) as connection:
        try:
            check_history(connection, store, end)
            for overlap in overlaps(store, end):
                try:
                    connection.start_replication(None, overlap.start, store.timeline)
                    overlap.compare(connection)
                except CommandFailed as failure:
                    if failure.sqlstate != UNDEFINED_FILE:
                        raise
                else:
                    return
        except CommandFailed as failure:
            raise ReplicationFailed(
                f"the server ended replication: {failure.message}",
                hint="Check the source's log.",
                sqlstate=failure.sqlstate,
            ) from failure


def _first_difference(left: bytes, right: bytes) -> int:
    """Return where two different texts of one length differ first."""
    low, high = 0, len(left)
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
