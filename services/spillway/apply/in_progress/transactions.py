"""Which transactions are in progress on the source, and what becomes of each.

As many as :data:`BESIDE_MAX` are applied as they come (:mod:`.beside`). Others are left: nothing is
kept of them, since the service has each whole in its log until the slot is confirmed past it. When
one of these ends, the worker peeks at the slot for it alone.

A transaction is also left when the subscription's tables change meanwhile, because only its commit
decides which of its changes count; and when the worker itself waited too long for a lock, which one
of these may hold. Those are remembered, because the stream, opened again, may bring them from their
beginning.

Source: src/backend/replication/logical/applyparallelworker.c (pa_can_start)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from spillway.apply.exact.two_phase import PreparedTransactions
from spillway.apply.in_progress.beside import Beside
from spillway.apply.target.failures import from_postgres

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway._kernels.apply.change_group import ChangeGroup
    from spillway.apply.changes import Touched, TransactionHead
    from spillway.apply.in_progress.beside import BesidePlan
    from spillway.apply.target.session import TargetSession

#: Connections to the target beside the subscription's own.
BESIDE_MAX: Final = 4
#: Of those that failed their xids are kept, the newest.
_FAILED_MAX: Final = 1000
#: Kinds of units that are about a transaction in progress.
KINDS: Final = frozenset("ScpA")
_PREPARE: Final = "p"


class InProgress:
    """The transactions in progress of one subscription.

    Args:
        plan: what each is applied with.
        tables: what tells the subscription's tables as they are now; None while one of them is
            being copied.
    """

    def __init__(self, plan: BesidePlan, tables: Callable[[], object | None]) -> None:
        self._plan = plan
        self._tables = tables
        self._open: dict[int, Beside] = {}
        #: what *tables* said when the first of those that are open was
        self._as_of: object | None = None
        self._failed: dict[int, None] = {}

    @property
    def is_any_open(self) -> bool:
        """Whether a connection of these may hold locks on the target."""
        return bool(self._open)

    def take(self, group: ChangeGroup, head: TransactionHead) -> None:
        """Take a stretch, a piece of one, or an abort."""
        if head.kind == "S":
            beside = self._open.get(head.xid)
            if beside is None and head.is_first_stretch and not head.is_continued:
                beside = self._begin(head.xid)
            if beside is not None:
                beside.stretch(*group.raw(0))
                self._see(beside)
        elif head.sub_xid == head.xid:
            self._failed.pop(head.xid, None)
            self._close(head.xid)
        elif (beside := self._open.get(head.xid)) is not None:
            beside.abort_subtransaction(head.sub_xid)

    def end(self, head: TransactionHead, session: TargetSession) -> list[Touched] | None:
        """Commit or prepare a transaction, with its position, of which *session* hears; return what
        it changed, or None for one that is left.

        Everything that commits before is on the target. After an error nothing of it is open.

        Raises:
            TargetTwoPhaseDisabled: the target takes no prepared transactions, or no more.
            TargetError: it is not committed, or, when the connection broke, perhaps not.
        """
        self.look()
        self._failed.pop(head.xid, None)
        beside = self._open.get(head.xid)
        if beside is None:
            return None
        try:
            if not beside.is_written() or self._is_prepared(head, session):
                return None
            touched = beside.touched()
            lsn = beside.prepare(head) if head.kind == _PREPARE else beside.commit(head)
            session.committed(head, lsn)
        except psycopg.IntegrityError:
            # A constraint that is checked now.
            return None
        except psycopg.Error as error:
            raise from_postgres(
                error, f"transaction {head.xid} can't be ended", session.dsn
            ) from error
        finally:
            self._close(head.xid)
        return touched

    @staticmethod
    def _is_prepared(head: TransactionHead, session: TargetSession) -> bool:
        """Whether it was prepared before, by a program that ended before it kept the position."""
        return head.kind == _PREPARE and PreparedTransactions(session).is_there(head)

    def look(self) -> None:
        """Leave all if the subscription's tables are not what they were."""
        if self._open and self._tables() != self._as_of:
            self.close()

    def fail(self) -> None:
        """Leave all that are open for good: the worker waits for a lock that one may hold."""
        for xid in self._open:
            self._failed[xid] = None
        while len(self._failed) > _FAILED_MAX:
            del self._failed[next(iter(self._failed))]
        self.close()

    def close(self) -> None:
        """Roll back whatever is open."""
        for xid in list(self._open):
            self._close(xid)

    def _begin(self, xid: int) -> Beside | None:
        """Begin to apply a transaction, if there is room and nothing speaks against it."""
        # Another one that had the xid, and of which no end came.
        self._close(xid)
        self.look()
        tables = self._tables()
        if tables is None or xid in self._failed or len(self._open) >= BESIDE_MAX:
            return None
        self._as_of = tables
        beside = self._open[xid] = Beside(xid, self._plan)
        return beside

    def _see(self, beside: Beside) -> None:
        """Let go of one that is left by now."""
        if beside.why_left:
            self._close(beside.xid)

    def _close(self, xid: int) -> None:
        beside = self._open.pop(xid, None)
        if beside is not None:
            beside.close()
