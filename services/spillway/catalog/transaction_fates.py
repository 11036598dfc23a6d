"""What became of the transactions that changed a catalog, as far as tuples don't say it themselves.

A status is stamped into a transaction's tuples when it ends (``_kernels/catalog/tuples``) and needs
no table afterwards. Until then the transaction is *pending* here, with the tuples that wait for it.
That it has *finished* is remembered until every transaction of its time has, because a page image
may still bring tuples of it without a hint; the *horizon* is where that is the case.

Memory: the tuples that unfinished transactions changed, statuses since the horizon, and the
multixacts that tuples bear.

Source: src/backend/access/transam/{transam,multixact}.c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.page import (
    HEAP_XMAX_INVALID,
    HEAP_XMAX_IS_MULTI,
    precedes,
    xmax_is_lock_only,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from spillway.catalog.tuple_store import CatalogTuple


class TransactionFates:
    """Who has finished, and how; and what waits for those that have not."""

    def __init__(self, horizon: int) -> None:
        """Every xid that precedes *horizon* had finished when the catalog was read."""
        self.horizon = horizon
        #: xid → tuples whose xmin or deleter is that unfinished transaction; an empty set says that
        #: it is not finished
        self.pending: Final[dict[int, set[CatalogTuple]]] = {}
        # Of transactions that are not before the horizon: True for committed.
        self._finished: dict[int, bool] = {}
        # Updater of each multixact that has one.
        self._multixacts: dict[int, int] = {}

    def of(self, xid: int, record_xid: int, *, unknown: bool) -> bool | None:
        """Say whether *xid* committed (True), aborted (False) or goes on (None).

        *unknown* is the answer for one that finished at a time that we did not watch; *record_xid*,
        whose record is being read, goes on.
        """
        if xid == record_xid or xid in self.pending:
            return None
        fate = self._finished.get(xid)
        if fate is not None:
            return fate
        return None if not precedes(xid, self.horizon) else unknown

    def finish(self, xid: int, *, committed: bool) -> None:
        """Say how *xid* ended; what was pending for it was taken out before."""
        self._finished[xid] = committed

    def wait(self, xid: int, tup: CatalogTuple) -> None:
        """Have *tup* wait for the end of *xid*."""
        self.pending.setdefault(xid, set()).add(tup)

    def drop(self, xid: int, tup: CatalogTuple) -> None:
        """Forget that *tup* waits for *xid*, which is not finished by that."""
        waiting = self.pending.get(xid)
        if waiting is not None:
            waiting.discard(tup)

    def has_changes(self, xids: Collection[int]) -> bool:
        """Say whether one of *xids* has unfinished catalog changes."""
        return not self.pending.keys().isdisjoint(xids)

    def lost(self, oldest_running_xid: int) -> list[int]:
        """List those pending that have finished, unseen: every transaction before
        *oldest_running_xid* has.
        """
        return [xid for xid in self.pending if precedes(xid, oldest_running_xid)]

    def advance(self, oldest_running_xid: int) -> None:
        """Say that every transaction before *oldest_running_xid* has finished."""
        if precedes(self.horizon, oldest_running_xid):
            self.horizon = oldest_running_xid
            self._finished = {
                xid: fate for xid, fate in self._finished.items() if not precedes(xid, self.horizon)
            }

    # Multixacts.

    def deleter_of(self, tup: CatalogTuple) -> int:
        """Return the xid that deletes a tuple by its xmax and infomask, whatever became of it; 0
        for none.
        """
        xmax, infomask = tup.xmax, tup.infomask
        if not xmax or infomask & HEAP_XMAX_INVALID or xmax_is_lock_only(infomask):
            return 0
        return self._multixacts.get(xmax, 0) if infomask & HEAP_XMAX_IS_MULTI else xmax

    def note_multixact(self, multixact: int, updater: int) -> None:
        """Remember which member of a multixact updates; 0 for none."""
        if updater:
            self._multixacts[multixact] = updater
        else:
            self._multixacts.pop(multixact, None)

    @property
    def has_multixacts(self) -> bool:
        """Whether any is remembered."""
        return bool(self._multixacts)

    def forget_multixacts(self, used: Collection[int]) -> None:
        """Forget multixacts whose updater has finished, but for those *used* as a tuple's xmax."""
        self._multixacts = {
            multixact: updater
            for multixact, updater in self._multixacts.items()
            if multixact in used or not precedes(updater, self.horizon)
        }

    # Serialised.

    def to_json(self) -> dict[str, Any]:
        """Return what tuples don't say themselves, as JSON values."""
        return {
            "horizon": self.horizon,
            "pending": list(self.pending),
            "finished": [[xid, fate] for xid, fate in self._finished.items()],
            "multixacts": [[multixact, xid] for multixact, xid in self._multixacts.items()],
        }

    def restore(self, value: dict[str, Any]) -> None:
        """Take over the result of :meth:`to_json`; tuples that wait follow."""
        self.horizon = value["horizon"]
        self.pending.update((xid, set()) for xid in value["pending"])
        self._finished.update((xid, fate) for xid, fate in value["finished"])
        self._multixacts.update((multixact, xid) for multixact, xid in value["multixacts"])
