"""What a database's decoding does when its state is lost, damaged, or of no use: where it may go
on, and what is missed.

There are three kinds of state: WAL, snapshots of the decoder, the transaction log. A lost one is
made again of those left:

=============================== ====================================================================
lost                            made again
=============================== ====================================================================
log, whole or its end           a snapshot and WAL from there on; what they don't reach back to is
                                missed
log, a segment before the last  an older state and WAL (``mending.py``); without them the log begins
                                behind it
snapshots                       the catalog is read anew from the server; decoding begins at the
                                next consistent point
WAL, damaged or gone            from the archive or the primary (``receiver/refetch.py``); else by
                                who decides to begin anew behind it (``POST …/restart``)
=============================== ====================================================================

However decoding begins again, it becomes consistent at some LSN S, and the log that is there ends
at E: what commits from E up to S is missed. If S is at E or before, nothing is. If WAL from E to S
is here and shows that nothing of this database committed in it, nothing is, either. Else the log
begins anew behind the last commit that was missed (``first_whole_lsn``). So there is one rule for
slots, which the engine applies: a slot that stands before the log's beginning has missed something
and is invalidated; any other has missed nothing and goes on.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from spillway._kernels.wal.walker import Walker
from spillway.decoding.snapshot_builder import RunningXacts, xid_precedes
from spillway.decoding.xact import parse_transaction_end
from spillway.errors import (
    DecodingError,
    DecodingStateLost,
    LsnNotRetained,
    SpillwayError,
    TransactionLogError,
    WalError,
    WalGap,
    WalLevelNotLogical,
)
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import segment_start

if TYPE_CHECKING:
    import threading

    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.decoding.transaction import Transaction
    from spillway.pg.versions import WalVersion
    from spillway.receiver.wal_reader import WalReader
    from spillway.txlog import LogWriter
    from spillway.wal.record import Record

_READ_BYTES: Final = 1 << 20
_OID: Final = struct.Struct("<I")

#: Reasons of invalidation: PostgreSQL's own where it has one (ReplicationSlotInvalidationCause,
#: slot.h).
WAL_REMOVED: Final = "wal_removed"
WAL_LEVEL_INSUFFICIENT: Final = "wal_level_insufficient"


class LogSink:
    """Hands transactions to the log, and begins it where the decoder became consistent."""

    def __init__(self, transaction_log: LogWriter, whole: WholeFrom) -> None:
        self._log = transaction_log
        self._whole = whole
        self._is_consistent = False

    def consistent(self, lsn: int) -> None:
        """Begin the log at *lsn*, or go on with the one that is there if nothing is missed in
        between.
        """
        here, self._is_consistent = self._log, True
        begins = here.start_lsn
        if begins is None:
            here.start(self._whole.first_lsn(lsn))
            return
        end = here.decoded_lsn
        if lsn > end and (first := self._whole.first_lsn(lsn, end)) > end:
            here.begin_anew(first)

    def transaction(self, transaction: Transaction) -> None:
        self._log.transaction(transaction)

    def transactions(self, run: TransactionRun) -> None:
        self._log.transactions(run)

    def progress(self, decoded_lsn: int) -> None:
        """Move the log's end; not before decoding is consistent, for until then it lets
        transactions pass.
        """
        if self._is_consistent:
            self._log.progress(decoded_lsn)


class WholeFrom:
    """Finds from where on nothing is missed of one database, by the WAL that is stored."""

    def __init__(
        self, store: WalReader, version: WalVersion, database_oid: int, stop: threading.Event
    ) -> None:
        self._store = store
        self._version = version
        self._database_oid = database_oid
        self._stop = stop
        #: the oldest position that a slot of the database has; 0 without slots
        self.needed_lsn = 0

    def first_lsn(self, consistent_lsn: int, known_to: int = 0) -> int:
        """Return the first LSN from which on all commits are known, *consistent_lsn* at most.

        Args:
            consistent_lsn: decoding is complete from here on.
            known_to: what commits before is known.
        """
        since = known_to or self.needed_lsn
        if not since or since >= consistent_lsn:
            return consistent_lsn
        since = max(since, int(self._store.first_lsn))
        try:
            return self._behind_last_commit(since, consistent_lsn)
        except (WalError, LsnNotRetained):
            return consistent_lsn

    def _behind_last_commit(self, since: int, upto: int) -> int:
        """Return *since*, or what is behind the last commit in [*since*, *upto*) that a slot would
        have delivered.
        """
        store = self._store
        lsn = int(segment_start(since, store.segment_size))
        walker = Walker(self._version, lsn, store.segment_size, system_id=int(store.system_id))
        whole, seen = since, _Seen()
        while lsn < upto:
            data = store.read(lsn, min(_READ_BYTES, upto - lsn))
            if not data or self._stop.is_set():
                return upto
            walker.feed(lsn, data)
            lsn += len(data)
            while (batch := walker.next_batch()) is not None:
                for i in range(len(batch)):
                    at, _, _, _, xid, rmid, info = batch.header(i)
                    if rmid in _CHANGES and xid and self._is_ours(batch.record(i)):
                        seen.changed(xid)
                    if rmid == rmgr.RM_LOGICALMSG_ID and at >= since:
                        # xl_logical_message begins with its database
                        (oid,) = _OID.unpack_from(batch.record(i).data)
                        whole = at + 1 if oid in (0, self._database_oid) else whole
                    elif rmid == rmgr.RM_STANDBY_ID and info & 0xF0 == rmgr.XLOG_RUNNING_XACTS:
                        seen.begins(RunningXacts.parse(batch.record(i).data, at).next_xid)
                    elif rmid == rmgr.RM_XACT_ID and at >= since:
                        op = info & rmgr.XLOG_XACT_OPMASK
                        if op == rmgr.XLOG_XACT_PREPARE:
                            whole = at + 1
                        elif op in _COMMITS:
                            record = batch.record(i)
                            end = parse_transaction_end(self._version, info, xid, record.data, at)
                            elsewhere = end.database_oid not in (0, self._database_oid)
                            if not elsewhere and seen.any_changed((end.xid, *end.subxids)):
                                whole = at + 1
        return whole

    def _is_ours(self, record: Record) -> bool:
        """Say whether a change is in the database, or in what all databases share."""
        oids = {block.locator.db for block in record.blocks}
        return not oids or not oids.isdisjoint((0, self._database_oid))


_CHANGES: Final = frozenset({rmgr.RM_HEAP_ID, rmgr.RM_HEAP2_ID, rmgr.RM_LOGICALMSG_ID})
_COMMITS: Final = frozenset({rmgr.XLOG_XACT_COMMIT, rmgr.XLOG_XACT_COMMIT_PREPARED})


class _Seen:
    """Which transactions changed anything, as far as WAL from some LSN on tells."""

    def __init__(self) -> None:
        self._changed: set[int] = set()
        self._known_from: int | None = None

    def begins(self, next_xid: int) -> None:
        """Take note of the next xid to be given: from there on, all that a transaction did is
        seen.
        """
        if self._known_from is None:
            self._known_from = next_xid

    def changed(self, xid: int) -> None:
        self._changed.add(xid)

    def any_changed(self, xids: tuple[int, ...]) -> bool:
        """Say whether one of a transaction's *xids* may have changed something."""
        known = self._known_from
        return any(
            xid in self._changed or known is None or xid_precedes(xid, known) for xid in xids
        )


def begin_behind(error: SpillwayError, segment_size: int) -> int | None:
    """Return behind which LSN to begin anew to get past *error*; None when only trying again can
    help.

    What is full, unreachable or not permitted is as it was once that is mended: nothing may be
    given up for it.
    """
    lost = (
        WalError,
        DecodingError,
        DecodingStateLost,
        TransactionLogError,
        LsnNotRetained,
        WalLevelNotLogical,
    )
    if not isinstance(error, lost) and type(error) is not SpillwayError:
        return None
    text = error.details.get("lsn")
    if not isinstance(text, str):
        return 0
    lsn = Lsn.parse(text)
    return lsn + (segment_size if isinstance(error, WalGap) else 1)
