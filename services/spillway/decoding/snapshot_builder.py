"""From which point on is output complete? The snapshot builder's four states.

In come running-xacts records, which the server logs at checkpoints and every 15 seconds while it is
busy, and the ends of transactions. Out goes, for a record, whether its change can be decoded
(:meth:`SnapshotBuilder.process_change`, which the reorder kernel repeats for itself) and, for a
commit, whether the transaction is delivered.

::

                     running-xacts before the catalog mirror is exact
           ┌───────┐ ───────────────────────────▶ ┌───────────────────┐
           │ START │                              │ BUILDING_SNAPSHOT │
           └───────┘                              └───────────────────┘
               │ running-xacts at or after              │ running-xacts at or after
               │ mirror.consistent_lsn                  │ mirror.consistent_lsn
               │                ┌───────────────┐       │
               ├───────────────▶│ FULL_SNAPSHOT │◀──────┤
               │ some running   └───────────────┘       │
               │                        │ all that ran then have ended, or a running-xacts
               │                        │ record that names none of them any more
               │ none running           ▼               │ none running
               │                ┌────────────┐          │
               └───────────────▶│ CONSISTENT │◀─────────┘
                                └────────────┘

- START, BUILDING_SNAPSHOT: tables can't be told by the relfile that a record names; nothing is
  kept.
- FULL_SNAPSHOT: changes of transactions that began after the record are kept, whole; older ones, of
  which we missed the beginning, are not, and no commit is delivered.
- CONSISTENT: every transaction that commits from here on is complete.

PostgreSQL waits in BUILDING_SNAPSHOT for the transactions then running to end, because it does not
know which of them change the catalog. Our mirror knows the fate of each from WAL, so that state
lasts only until the mirror is exact. And PostgreSQL leaves FULL_SNAPSHOT only at a running-xacts
record: one that it names as running may have written its commit record already, and is then never
seen to end. The same can happen to us; the record's list of xids lets us be quicker when it does
not.

After a restart the builder begins CONSISTENT, with ``start_decoding_at``, before which nothing is
delivered; or, from a serialised state alone, in FULL_SNAPSHOT, waiting for the transactions that
were in progress there.

Source: src/backend/replication/logical/snapbuild.c
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import CorruptWal
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable

_RUNNING_XACTS: Final = struct.Struct("<ii?3xIII")
_FIRST_NORMAL_XID: Final = 3


class SnapshotState(IntEnum):
    """SnapBuildState; the numbers are the kernel's."""

    START = 0
    BUILDING_SNAPSHOT = 1
    FULL_SNAPSHOT = 2
    CONSISTENT = 3

    @property
    def label(self) -> str:
        """The state as interfaces show it, ``full_snapshot`` for one."""
        return self.name.lower()


class RunningXacts(NamedTuple):
    """xl_running_xacts: the transactions that run while the record is written."""

    next_xid: int
    oldest_running_xid: int
    #: top-level xids
    xids: tuple[int, ...]

    @classmethod
    def parse(cls, data: bytes, lsn: int) -> RunningXacts:
        """Parse the main data of an XLOG_RUNNING_XACTS record at *lsn*.

        Raises:
            CorruptWal: it names more xids than it holds.
        """
        if len(data) >= _RUNNING_XACTS.size:
            xcnt, subxcnt, _, next_xid, oldest, _ = _RUNNING_XACTS.unpack_from(data)
            if min(xcnt, subxcnt) >= 0 and len(data) >= _RUNNING_XACTS.size + 4 * (xcnt + subxcnt):
                xids = struct.unpack_from(f"<{xcnt}I", data, _RUNNING_XACTS.size)
                return cls(next_xid, oldest, xids)
        raise CorruptWal(
            f"the running-xacts record at {Lsn(lsn)} names more xids than it holds",
            hint="Fetch the WAL segment again from the source or the archive.",
            lsn=str(Lsn(lsn)),
        )


def xid_precedes(a: int, b: int) -> bool:
    """Say whether *a* is older than *b*: modulo 2**32, the permanent xids below 3 plainly."""
    if a < _FIRST_NORMAL_XID or b < _FIRST_NORMAL_XID:
        return a < b
    return (a - b) & 0xFFFFFFFF > 0x7FFFFFFF


class SnapshotBuilder:
    """The state machine of one decoder. It asks nothing and tells nobody: callers read its
    attributes.
    """

    def __init__(self, mirror_consistent_lsn: int, start_decoding_at: int = 0) -> None:
        """Begin in START.

        Args:
            mirror_consistent_lsn: where the catalog mirror becomes exact.
            start_decoding_at: transactions whose commit record starts before this are not
                delivered.
        """
        self.state = SnapshotState.START
        self.start_decoding_at = start_decoding_at
        #: in FULL_SNAPSHOT: xids before this can't be decoded; 0 otherwise
        self.next_phase_at = 0
        self._mirror_consistent_lsn = mirror_consistent_lsn
        self._awaited: set[int] = set()

    @classmethod
    def restored(cls, start_decoding_at: int, awaited: Iterable[int] = ()) -> SnapshotBuilder:
        """Return the builder of a restored decoder.

        CONSISTENT already, it delivers what commits from *start_decoding_at* on; or in
        FULL_SNAPSHOT until the *awaited* top-level transactions, whose beginning is not read again,
        have ended.
        """
        builder = cls(0, start_decoding_at)
        builder._awaited = set(awaited)
        builder.state = (
            SnapshotState.FULL_SNAPSHOT if builder._awaited else SnapshotState.CONSISTENT
        )
        return builder

    def process_change(self, xid: int, lsn: int) -> bool:  # noqa: ARG002 - PostgreSQL's signature
        """Say whether a change of *xid* at *lsn* can be decoded (SnapBuildProcessChange)."""
        if self.state < SnapshotState.FULL_SNAPSHOT:
            return False
        return self.state == SnapshotState.CONSISTENT or not xid_precedes(xid, self.next_phase_at)

    def process_running_xacts(self, lsn: int, running: RunningXacts) -> bool:
        """Take a running-xacts record (SnapBuildFindSnapshot); return whether the state changed."""
        if self.state == SnapshotState.CONSISTENT:
            return False
        before = self.state
        # Who is not named any more has ended, whether we saw it or not.
        self._awaited.intersection_update(running.xids)
        if lsn < self._mirror_consistent_lsn:
            self.state = SnapshotState.BUILDING_SNAPSHOT
        elif running.oldest_running_xid == running.next_xid or (
            self.state == SnapshotState.FULL_SNAPSHOT and not self._awaited
        ):
            self._become_consistent(lsn)
        elif self.state != SnapshotState.FULL_SNAPSHOT:
            self.state = SnapshotState.FULL_SNAPSHOT
            self.next_phase_at = running.next_xid
            self._awaited = set(running.xids)
        return self.state != before

    @property
    def awaited(self) -> set[int]:
        """The top-level transactions that must end before it is CONSISTENT, in FULL_SNAPSHOT."""
        return self._awaited

    def delivers(self, lsn: int) -> bool:
        """Say whether a transaction whose commit record starts at *lsn* is delivered
        (SnapBuildXactNeedsSkip).
        """
        return self.state == SnapshotState.CONSISTENT and lsn >= self.start_decoding_at

    def process_end(self, xids: Iterable[int], lsn: int) -> bool:
        """Take the end, at *lsn*, of transactions; return whether the state changed.

        Called after ``delivers`` was asked for that commit: the last one waited for is not
        delivered itself.
        """
        if self.state != SnapshotState.FULL_SNAPSHOT:
            return False
        self._awaited.difference_update(xids)
        if self._awaited:
            return False
        self._become_consistent(lsn)
        return True

    def _become_consistent(self, lsn: int) -> None:
        self.state = SnapshotState.CONSISTENT
        self.next_phase_at = 0
        self._awaited = set()
        self.start_decoding_at = max(self.start_decoding_at, lsn + 1)
