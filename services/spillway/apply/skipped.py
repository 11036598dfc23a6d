"""What is left of transactions that are skipped: rows are given up by whoever skips them; the shape
of their tables is not, and neither is that they are prepared.

*DDL.* What comes behind has the shape that the tables got, and a row that fits the target's table
by accident (a column dropped and made again, a rename) would be written wrong, unseen.

*Prepared transactions.* What commits or rolls back one that is skipped comes later, and looks for
it. So it is prepared without its rows, as PostgreSQL's worker prepares one that it skips. What
finishes an earlier one finishes it: those rows are on the target already, with their locks, and
nothing else would ever end it. One that is not there is what was skipped, then.

So before the stream begins where it was told to skip to, what lies between the target's position
and there is read once more, beside the slot::

    B  DDL ─┐                     b  BEGIN, DDL, PREPARE,      K, r  COMMIT or ROLLBACK
    B  DDL ─┴▶ COMMIT up to here     position                        PREPARED, position

Ordinary transactions are one of the target; what prepares and finishes stands by itself, as ever
(:mod:`spillway.apply.exact.two_phase`), and each moves the position as far as it has come. Killed
anywhere, the next program reads from there, and passes over what is prepared already. An event that
is not done is the pause that it always is: the position stays before it, and the next start meets
it again.

What the service does not keep any more can't be read. The tables are as they are then: a column
that is missing is told with the next row that has it, and a table that has another name gets it in
front of its next row (:meth:`~spillway.apply.schema.changes.SchemaChanges.find_renamed`); what
commits a prepared transaction is ``target_transaction_lost``.

Source: apply_handle_begin_prepare, apply_handle_prepare, maybe_start_skipping_changes
(src/backend/replication/logical/worker.c)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.exact.two_phase import PreparedTransactions
from spillway.apply.schema.changes import PREFIX
from spillway.apply.stream import ArrivingChanges
from spillway.apply.target.session import Idle
from spillway.errors import LsnNotRetained
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator

    from spillway.apply.changes import Change, TransactionHead
    from spillway.apply.schema.changes import SchemaChanges
    from spillway.apply.settings import ApplySettings
    from spillway.apply.target.session import TargetSession

_log = logging.getLogger(__name__)

_GROUP_BYTES: Final = 4 << 20
_PREPARED: Final = "b"
_FINISHING: Final = ("K", "r")


class SkippedGroup(Protocol):
    """What is asked of a group of transactions, in commit order."""

    @property
    def is_piece(self) -> bool:
        """Whether its transaction goes on in the next group."""

    def heads(self) -> list[TransactionHead]:
        """The transactions."""

    def changes(self, transaction: int) -> Iterator[Change]:
        """Changes of one of them, in their order."""


class Skipped:
    """Takes transactions that are skipped, in commit order.

    Args:
        session: whose position moves; nobody else uses it meanwhile.
        changes: acts on DDL; None: it is passed over.
    """

    def __init__(self, session: TargetSession, changes: SchemaChanges | None) -> None:
        self._session = session
        self._changes = changes
        self._prepared = PreparedTransactions(session)
        #: what was taken ends here
        self._reached = session.position
        #: within a prepared transaction that goes on in the next group
        self._is_within = False
        #: … which is on the target already
        self._is_there = False

    def take(self, group: SkippedGroup) -> None:
        """Take a group.

        Raises:
            TargetSchemaChange: an event is not done.
            TablesBehind: one has to wait.
            TargetTwoPhaseDisabled: the target takes no prepared transactions, or no more.
            SpillwayError: as :meth:`~spillway.apply.schema.changes.SchemaChanges.meet`.
            psycopg.Error: the target did not answer.
        """
        for unit, head in enumerate(group.heads()):
            if head.kind in _FINISHING:
                self._commit()
                self._prepared.finish(head, may_be_lost=True)
            elif head.kind == _PREPARED:
                self._prepare(head, group.changes(unit), ends=not group.is_piece)
            else:
                self._meet(head, group.changes(unit))
            self._reached = max(self._reached, Lsn(head.end_lsn))

    def end(self, upto_lsn: Lsn) -> None:
        """Have the position be at *upto_lsn*, or where what began before that ends.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self._reached = max(self._reached, upto_lsn)
        self._commit()

    def _prepare(self, head: TransactionHead, changes: Iterable[Change], *, ends: bool) -> None:
        if not self._is_within:
            self._commit()
            # By a program that ended before it had kept the position; or it was not what failed.
            self._is_there = self._prepared.is_there(head)
            self._session.begin()
        self._is_within = not ends
        if not self._is_there:
            self._meet(head, changes)
        if ends and self._is_there:
            self._session.commit(head)
        elif ends:
            self._end_changes()
            self._prepared.prepare(head)

    def _meet(self, head: TransactionHead, changes: Iterable[Change]) -> None:
        """Meet DDL in the open transaction, which is begun if there is none."""
        if self._changes is None:
            return
        for change in changes:
            if change.message is not None and change.message[0] == PREFIX:
                if not self._session.in_transaction:
                    self._session.begin()
                self._changes.meet(head, change.message[1])

    def _end_changes(self) -> None:
        if self._changes is not None:
            self._changes.end()

    def _commit(self) -> None:
        """Commit what ordinary transactions have left, with the position behind them."""
        if self._session.in_transaction:
            self._end_changes()
            self._session.commit(Idle.now(self._reached))
        elif self._reached > self._session.position:
            self._session.record(Idle.now(self._reached))


def meet_skipped(
    settings: ApplySettings,
    session: TargetSession,
    changes: SchemaChanges | None,
    upto_lsn: Lsn,
    stopping: threading.Event,
    *,
    two_phase: bool,
) -> bool:
    """Do what is left of transactions that commit, or are prepared, from the session's position up
    to *upto_lsn*, and have the target be there; return False if it was stopped before, and is not.

    Args:
        settings: what the program does.
        session: the one that has the position.
        changes: acts on DDL; None: it is passed over.
        upto_lsn: where the stream will begin.
        stopping: ends it.
        two_phase: the stream will have prepared transactions as such.

    Raises:
        SpillwayError: as :meth:`Skipped.take`; or the service can't be reached.
        psycopg.Error: the target did not answer.
    """
    skipped = Skipped(session, changes)

    def roll_back() -> None:
        session.rollback()
        if changes is not None:
            changes.rolled_back()

    try:
        try:
            if not _read(settings, session, skipped, upto_lsn, stopping, two_phase=two_phase):
                roll_back()
                return False
        except LsnNotRetained as error:
            roll_back()
            _log.warning(
                "what was skipped is gone, and what it leaves not known: %s", error.message
            )
        skipped.end(upto_lsn)
    except BaseException:
        if not session.connection.broken:
            roll_back()
        raise
    return True


def _read(
    settings: ApplySettings,
    session: TargetSession,
    skipped: Skipped,
    upto_lsn: Lsn,
    stopping: threading.Event,
    *,
    two_phase: bool,
) -> bool:
    group = ChangeGroup(_GROUP_BYTES)

    def take() -> None:
        skipped.take(group)
        group.clear()

    with ArrivingChanges(
        settings.grpc,
        settings.slot,
        session.position,
        settings.selection.plugin_options(
            two_phase=two_phase,
            only_local=settings.only_local,
            ddl=settings.options.on_schema_change != "ignore",
        ),
        upto_lsn=upto_lsn,
        peek=True,
        token=settings.token,
        tls=settings.tls,
    ) as stream:
        return stream.read_into(group, take, stopping)
