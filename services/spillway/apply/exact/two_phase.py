"""Prepared transactions: PREPARE on the source is PREPARE TRANSACTION on the target.

The identifier is our own, ``spillway_<subscription>_<identity>_<xid>_<where the PREPARE ends>``,
for the reasons for which PostgreSQL makes one of subscription and xid: two subscriptions may bring
the same transaction here, the source's identifier may be taken on the target by somebody else, and
subscriptions in a row of servers must not prepare under one name. The end of the PREPARE is in it
because a target tells of a prepared transaction nothing but its identifier; so a ROLLBACK PREPARED
finds the one that it means, and passes over one that never came (PostgreSQL compares the prepare's
LSN and time, which only the server itself can see). A COMMIT PREPARED does not say where the
PREPARE ended; it finds the transaction by the rest.

Exactly once. A position is a row, and a row that a prepared transaction updated would stay locked
until it is finished. So PREPARE and what finishes it are followed by the position in a transaction
of its own, and may come again when the program ends between. The prepared transaction has inserted
a row of its own into ``spillway.prepared``, by which that is known:

=======================  ====================  ==================================================
prepared transaction     row                   what comes again
=======================  ====================  ==================================================
there                    (not visible)         PREPARE is passed over
gone                     there                 it was committed: PREPARE and COMMIT are passed over
gone                     not there             never prepared here, or rolled back: PREPARE is done
=======================  ====================  ==================================================

While a table of the subscription's is not the stream's, nothing is prepared: the rows of that table
would be missing when it is committed, and the table's copy, as of before that, has not got them.
Then it is *passed by*: a row of ``spillway.prepared`` says so, and what commits it raises
:class:`NotPrepared`, for whoever writes it whole.

One that is skipped is prepared all the same, without its rows (:mod:`spillway.apply.skipped`).

Rows of transactions whose end is behind the position are deleted when the next one is finished.

Source: TwoPhaseTransactionGid, apply_handle_prepare, apply_handle_commit_prepared,
apply_handle_rollback_prepared (src/backend/replication/logical/worker.c), LookupGXact
(src/backend/access/transam/twophase.c)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from spillway.apply.exact.failures import skip_command
from spillway.errors import TargetTransactionLost, TargetTwoPhaseDisabled
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from spillway.apply.changes import TransactionHead
    from spillway.apply.target.session import TargetSession

_COMMIT_PREPARED: Final = "K"
#: before the identifier of one that was passed by, in ``spillway.prepared``
_PASSED: Final = "passed by: "
_HINT: Final = (
    "On the target: ALTER SYSTEM SET max_prepared_transactions = 100; and restart it: the "
    "subscription goes on by itself. Or use a slot without two_phase: transactions come when they "
    "commit, then."
)


class NotPrepared(Exception):
    """What is to be committed was passed by when it was prepared: it is to be written whole. What
    came before it is committed, and nothing is open.

    Args:
        head: of the COMMIT PREPARED.
    """

    def __init__(self, head: TransactionHead) -> None:
        super().__init__(f"transaction {head.xid} was not prepared")
        self.head = head


class PreparedTransactions:
    """The prepared transactions of one subscription on the target."""

    def __init__(self, session: TargetSession) -> None:
        self._session = session
        self._connection = session.connection
        self._stem = f"{session.plan.origin}_"

    def is_there(self, head: TransactionHead) -> bool:
        """Whether a transaction that is prepared on the source is so on the target already, or was,
        and is committed.

        Raises:
            psycopg.Error: the target did not answer.
        """
        gid = self._gid(head)
        return bool(self._find(f"{gid}")) or self._was_committed(gid)

    def pass_by(self, head: TransactionHead) -> None:
        """Write down, in the transaction that is open, that one is not prepared here."""
        self._connection.execute(
            "INSERT INTO spillway.prepared (subscription, gid, end_lsn) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            [self._session.subscription, _PASSED + self._gid(head), str(Lsn(head.end_lsn))],
        )

    def forget_passed(self, head: TransactionHead) -> None:
        """Forget that one was passed by which *head* commits, and which was written whole."""
        self._connection.execute(
            "DELETE FROM spillway.prepared WHERE subscription = %s"
            " AND pg_catalog.starts_with(gid, %s)",
            [self._session.subscription, f"{_PASSED}{self._stem}{head.xid}_"],
        )

    def prepare(self, head: TransactionHead) -> int:
        """Prepare the transaction that is open; the position is *head*'s. Return the target's LSN
        behind it.

        Raises:
            TargetTwoPhaseDisabled: the target takes no prepared transactions, or no more.
            psycopg.Error: it is not prepared, or, when the connection broke, perhaps not.
        """
        gid = self._gid(head)
        session = self._session
        self._connection.execute(
            "INSERT INTO spillway.prepared (subscription, gid, end_lsn) VALUES (%s, %s, %s)",
            [session.subscription, gid, str(Lsn(head.end_lsn))],
        )
        try:
            return session.prepare(head, gid)
        except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.OutOfMemory) as error:
            raise TargetTwoPhaseDisabled(
                f"transaction {head.xid}, which is prepared at {Lsn(head.end_lsn)} on the source, "
                f"can't be prepared on the target: {error.diag.message_primary}",
                hint=_HINT,
                xid=head.xid,
            ) from error

    def finish(self, head: TransactionHead, *, may_be_lost: bool = False) -> None:
        """Commit or roll back what was prepared, as the source did.

        Args:
            head: of what finishes it.
            may_be_lost: one that is to be committed, and is not there, is passed over.

        Raises:
            NotPrepared: it was passed by, and is to be committed.
            TargetTransactionLost: there is nothing to commit, and it was not committed before.
            psycopg.Error: as for :meth:`prepare`.
        """
        session = self._session
        commits = head.kind == _COMMIT_PREPARED
        gid = self._to_finish(head, commits=commits, may_be_lost=may_be_lost)
        if gid is not None:
            session.finish_prepared(head, gid, commit=commits)
        else:
            session.record(head)
        # Behind the position: what it is about does not come again. Of those that are still
        # prepared no row is seen here.
        self._connection.execute(
            "DELETE FROM spillway.prepared WHERE subscription = %s AND end_lsn <= %s"
            " AND (NOT pg_catalog.starts_with(gid, %s) OR pg_catalog.starts_with(gid, %s))",
            [
                session.subscription,
                str(Lsn(head.end_lsn)),
                _PASSED,
                f"{_PASSED}{self._stem}{head.xid}_",
            ],
        )

    def _to_finish(self, head: TransactionHead, *, commits: bool, may_be_lost: bool) -> str | None:
        session = self._session
        if not commits:
            return self._find(self._gid(head, head.commit_lsn))
        stem = f"{self._stem}{head.xid}_"
        found = self._find(stem, is_prefix=True)
        if found is not None or may_be_lost:
            return found
        if self._was_committed(_PASSED + stem, is_prefix=True):
            raise NotPrepared(head)
        if not self._was_committed(stem, is_prefix=True):
            raise TargetTransactionLost(
                f"transaction {head.xid}, which commits at {Lsn(head.commit_lsn)} on the source, "
                f'is not prepared on the target: "{stem}…" is not in '
                "pg_prepared_xacts",
                hint="It was finished there by somebody else, or skipped when the service did not "
                "have it any more. To go on without "
                f"it: {skip_command(session.subscription, head)}; if it was rolled back there, "
                "repair its tables afterwards (spillway subscription repair).",
                xid=head.xid,
                lsn=str(Lsn(head.commit_lsn)),
            )
        return None

    def _gid(self, head: TransactionHead, end_lsn: int | None = None) -> str:
        end = head.end_lsn if end_lsn is None else end_lsn
        return f"{self._stem}{head.xid}_{end:X}"

    def _find(self, gid: str, *, is_prefix: bool = False) -> str | None:
        row = self._connection.execute(
            "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() AND "  # noqa: S608 - quoted
            + ("pg_catalog.starts_with(gid, %s)" if is_prefix else "gid = %s"),
            [gid],
        ).fetchone()
        return None if row is None else str(row[0])

    def _was_committed(self, gid: str, *, is_prefix: bool = False) -> bool:
        row = self._connection.execute(
            "SELECT 1 FROM spillway.prepared WHERE subscription = %s AND "  # noqa: S608 - quoted
            + ("pg_catalog.starts_with(gid, %s)" if is_prefix else "gid = %s"),
            [self._session.subscription, gid],
        ).fetchone()
        return row is not None
