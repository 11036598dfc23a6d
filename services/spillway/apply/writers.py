"""Which way a group of transactions is written, and who writes it.

::

                    ┌▶ in progress   parts of transactions that are not committed yet
    take ─▶ group ──┼▶ lanes         several at once, when there is a backlog
                    ├▶ grouped       by few statements, on the session that has the position
                    └▶ exact         change by change: whatever the others do not take

**Lanes.** Groups that are large enough go to connections beside this session's
(:mod:`spillway.apply.parallel`). Whatever else writes, or asks for a boundary between transactions,
has them finish first (:meth:`Writers.drain`): what is written exactly, a transaction larger than a
group, TRUNCATE, a table that is being copied, a position that is recorded.

**Again.** A large transaction comes in pieces, of which one may not fit when those before it are
written. Then nothing of it is left, the stream has to be opened again
(:attr:`Writers.must_reopen`), and that transaction is written exactly.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.assembly import dead_rows_of, schema_changes_of, table_sync_of
from spillway.apply.conflicts.log import ConflictFile
from spillway.apply.conflicts.rules import ConflictRules
from spillway.apply.exact.two_phase import NotPrepared
from spillway.apply.exact.writer import ExactOptions, ExactWriter
from spillway.apply.grouped.writer import GroupedWriter
from spillway.apply.in_progress.beside import LOCK_WAIT_MS, BesidePlan
from spillway.apply.in_progress.transactions import KINDS, InProgress
from spillway.apply.parallel.lanes import Lanes
from spillway.apply.skipped import meet_skipped
from spillway.apply.stream import ArrivingChanges
from spillway.apply.tables.target_tables import TargetTables
from spillway.errors import TargetSerialization
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spillway.apply.changes import SourceRelation, Touched, TransactionHead
    from spillway.apply.settings import ApplySettings
    from spillway.apply.status import ApplyStatusFile
    from spillway.apply.target.session import TargetSession
    from spillway.apply.target.stop import Stop
    from spillway.stream.wire import Batch

#: how long a lane, or a part of the stream, is waited for before it is looked whether to stop
_WAIT_S: Final = 0.5
#: how often tables are looked at again for what the target's own DDL changed
_TABLES_LOOK_S: Final = 60.0
#: A group below that is written here when nothing else is on its way, and waits for that otherwise,
#: growing: a thread more is no gain for it.
_LANE_BYTES: Final = 256 << 10
#: From here on a group is worth a lane that is free: who waited for more would leave it, and the
#: target, without work.
_WORTH_BYTES: Final = 1 << 20
#: an LSN behind all
_NEVER: Final = 1 << 63


class Writers:
    """What a session of the target writes with, from its position on; used by the worker's thread.

    Args:
        settings: what the program does.
        session: where the position is.
        status: hears of what is written.
        stopping: ends waiting.
        wake: is called on other threads when there is something to :meth:`settle`.

    Attributes:
        sync: who copies tables; None if nobody does.
        must_reopen: what was taken and not written has to come again.
    """

    def __init__(
        self,
        settings: ApplySettings,
        session: TargetSession,
        status: ApplyStatusFile,
        stopping: Stop,
        wake: Callable[[], None],
    ) -> None:
        options = settings.options
        self._settings = settings
        self._session = session
        self._status = status
        self._stopping = stopping
        self._wake = wake
        conflicts = ConflictFile(settings.conflicts_file)
        exact = ExactOptions(
            rules=ConflictRules.parse(dict(options.conflicts)),
            conflicts_table=options.conflicts_table,
            dead_letter=options.dead_letter,
            may_set_aside=settings.copy_data and options.table_errors == "stop",
        )
        self._tables = TargetTables(options.rename.target_of, exact.rules.merging)
        self.sync = table_sync_of(settings, session, exact, conflicts, stopping)
        should_apply = self._is_synced if settings.copy_data else settings.selection.should_apply
        self._should_apply = should_apply
        self._schema_changes = schema_changes_of(settings, session, self.sync, status)
        self._dead_rows = dead_rows_of(settings, session)
        self._exact = ExactWriter(
            session,
            self._tables,
            exact,
            conflicts,
            self._is_wanted,
            self._schema_changes,
            self._dead_rows,
            self.may_prepare,
        )
        self._grouped = GroupedWriter(session, self._tables, should_apply)
        self._in_progress = InProgress(
            BesidePlan(
                session.plan,
                session.stop,
                session.uses_origin,
                options.rename.target_of,
                exact.rules.merging,
                # Which commit it is isn't known; it will be later than any table's beginning.
                lambda relation, _: should_apply(relation, _NEVER),
                conflicts,
            ),
            self._tables_as_of,
        )
        #: made when there is a backlog for the first time
        self._lanes: Lanes | None = None
        self._may_have_lanes = options.connections > 1
        self._lane_bytes = min(_LANE_BYTES, options.group_bytes // 2)
        self._always_exact = options.exact == "always"
        self._group = ChangeGroup(options.group_bytes)
        #: the commit of a large transaction that can't be written in groups
        self._exact_lsn = 0
        self.must_reopen = False
        self._has_bounded_waits = False
        self._tables_look_at = time.monotonic() + _TABLES_LOOK_S

    @property
    def follows_ddl(self) -> bool:
        """Whether the stream has to bring events of DDL."""
        return self._schema_changes is not None

    @property
    def is_busy(self) -> bool:
        """Whether lanes have something that is not settled."""
        return self._lanes is not None and not self._lanes.is_idle

    @property
    def has_all(self) -> bool:
        """Whether everything that was taken is written, and no part of a transaction with it."""
        return not self._group.is_within and not self._group.transactions and not self.is_busy

    # -- a stream's way -----------------------------------------------------------------------

    def begin(self) -> None:
        """Be ready for a stream that begins at the session's position."""
        self._group = ChangeGroup(self._settings.options.group_bytes)
        self.must_reopen = False
        self._bound_lock_waits()
        self._session.find_committed_ahead()

    def skip_to(self, lsn: Lsn, *, two_phase: bool) -> bool:
        """Have the target be at *lsn*, up to which the source's rows are given up, with its tables
        as the source's are there, if DDL is followed, and what is prepared there; return False if
        it was stopped before.

        Raises:
            SpillwayError: as :func:`~spillway.apply.skipped.meet_skipped`.
        """
        return meet_skipped(
            self._settings,
            self._session,
            self._schema_changes,
            lsn,
            self._stopping,
            two_phase=two_phase,
        )

    def take(self, batch: Batch) -> bool:
        """Take what has arrived; return whether a group was full on the way, and written.

        Raises:
            SpillwayError: it can't be; see the writers.
        """
        group = self._group
        wrote = False
        lengths = batch.lengths.cast("B")
        taken = 0
        while taken < batch.count:
            taken = group.feed(batch.payload, lengths, taken)
            if group.is_full:
                self._write()
                wrote = True
                if self.must_reopen:
                    break
        return wrote

    @property
    def should_write(self) -> bool:
        """Whether what was taken had better be written before more is taken: a lane is free."""
        group = self._group
        return (
            self._may_have_lanes
            and group.nbytes >= _WORTH_BYTES
            and group.transactions > 0
            and group.is_plain
            and (self._lanes is None or self._lanes.has_room)
        )

    def write_if_due(self) -> None:
        """Settle what lanes have done, and write what was taken unless it need not be yet: lanes
        are at work, and it is little.
        """
        self.settle()
        is_due = not self.is_busy or self._group.is_full or self._group.nbytes >= self._lane_bytes
        if self._group.transactions and not self.must_reopen and is_due:
            self._write()

    def look(self) -> None:
        """Do what is done between transactions, with none open."""
        if self.sync is not None:
            if not self.sync.states.are_steady:
                self.drain()
            self.sync.at_boundary(self._session.position, self._session.recorded)
        self._in_progress.look()
        ahead = self._session.committed_ahead
        if ahead and self._session.position >= ahead[-1][1]:
            self._session.committed_ahead = ()
        if time.monotonic() >= self._tables_look_at:
            self._tables_look_at = time.monotonic() + _TABLES_LOOK_S
            if self._tables.look_again(self._session.connection):
                self._exact.forget_tables()
            if self._lanes is not None:
                self._lanes.look_at_foreign_keys()

    def forget_tables(self) -> None:
        """Look at the target's tables anew when they are written next."""
        self._tables.forget()
        self._exact.forget_tables()

    def explain(self) -> None:
        """Tell why tables are not written in groups."""
        self._status.explain(self._tables, self._grouped)

    def give_up(self, error: BaseException) -> None:
        """Have nothing be on its way any more: writing ended with *error*."""
        if isinstance(error, TargetSerialization):
            # A lock that was waited for may be one of theirs.
            self._in_progress.fail()
        if self._lanes is not None:
            self._lanes.abandon()

    def end_stream(self) -> None:
        """Let go of transactions in progress: the next stream brings them again."""
        self._in_progress.close()

    def close(self) -> None:
        """End all connections of theirs."""
        if self._lanes is not None:
            self._lanes.close()
        if self.sync is not None:
            self.sync.stop()
        if self._schema_changes is not None:
            self._schema_changes.close()
        if self._dead_rows is not None:
            self._dead_rows.close()

    # -- whose changes count ------------------------------------------------------------------

    def _is_wanted(self, relation: SourceRelation, commit_lsn: int) -> bool:
        """Say whether a transaction's changes of a table are written, and not there already."""
        ahead = self._session.committed_ahead
        if ahead and any(from_lsn <= commit_lsn < end for from_lsn, end in ahead):
            return False
        return self._should_apply(relation, commit_lsn)

    def _is_synced(self, relation: SourceRelation, commit_lsn: int) -> bool:
        """Say whether the stream writes a table's changes of a transaction: those before it was
        copied are in the copy.
        """
        assert self.sync is not None
        states, key = self.sync.states, (relation.schema, relation.name)
        if key not in states.all():
            key = self.sync.known_as(relation.relation_id) or key
        return states.should_apply(*key, commit_lsn)

    def may_prepare(self) -> bool:
        """Say whether what is prepared on the source has all of its rows here: each table is the
        stream's.
        """
        return self.sync is None or self.sync.states.are_all_ready

    def _tables_as_of(self) -> object | None:
        """What tells the subscription's tables from those before and after; None while one is being
        copied, or transactions may come that are there already.
        """
        if self._session.committed_ahead:
            return None
        if self.sync is None:
            return True
        states = self.sync.states
        if not states.are_steady or (self._settings.two_phase and not self.may_prepare()):
            return None
        return frozenset(key for key, table in states.all().items() if table.is_synchronized)

    # -- a group's way ------------------------------------------------------------------------

    def _write(self) -> None:
        """Write the group, and be ready for the next."""
        group = self._group
        if (head := group.last) is not None and head.kind in KINDS:
            self._write_in_progress(head)
            return
        touched = group.touched()
        has_ddl = group.has_schema_change or self._has_renamed(touched, head)
        if not has_ddl and self._is_for_lanes(touched) and self._submit(touched):
            return
        self.drain()
        self._tables.learn(table.relation for table in touched)
        if not self._write_grouped(has_ddl=has_ddl):
            if self.must_reopen:
                return
            try:
                self._exact.write(group)
            except NotPrepared as passed_by:
                self._write_left(passed_by.head)
                if not self.must_reopen:
                    self._exact.forget_passed(passed_by.head)
                # What came behind it in the group comes again.
                self.must_reopen = True
                return
        self._tell(touched)
        group.clear()

    def _has_renamed(self, touched: Sequence[Touched], head: TransactionHead | None) -> bool:
        """Say whether a table is known by another name yet: its event was skipped."""
        changes = self._schema_changes
        if changes is None or head is None:
            return False
        return any(changes.find_renamed(one.relation, head.commit_lsn) for one in touched)

    def _tell(self, touched: Sequence[Touched]) -> None:
        has = self._settings.selection.has
        self._status.wrote(touched, [has(t.relation.schema, t.relation.name) for t in touched])

    def _write_grouped(self, *, has_ddl: bool) -> bool:
        """Write the group by few statements; return False for one that is to be written exactly."""
        group = self._group
        if self._always_exact or not group.is_plain or self._session.committed_ahead:
            return False
        head = group.last
        if head is None or head.commit_lsn == self._exact_lsn:
            return False
        if not has_ddl and self._grouped.write(group):
            return True
        if group.is_piece or head.is_continued:
            self._exact_lsn = head.commit_lsn
            self.must_reopen = head.is_continued
        return False

    # -- lanes --------------------------------------------------------------------------------

    def _is_for_lanes(self, touched: Sequence[Touched]) -> bool:
        """Whether the group may be written beside others, and is worth it."""
        group = self._group
        return (
            self._may_have_lanes
            # One may hold a lock that a lane would wait for, unseen.
            and not self._in_progress.is_any_open
            and not self._always_exact
            and group.is_plain
            and not group.is_piece
            and group.nbytes >= self._lane_bytes
            and not self._session.in_transaction
            and not self._session.committed_ahead
            and group.last is not None
            and not group.last.is_continued
            and group.last.commit_lsn != self._exact_lsn
            and not any(one.truncates for one in touched)
            and (self.sync is None or self.sync.states.are_steady)
        )

    def _submit(self, touched: Sequence[Touched]) -> bool:
        """Have a lane write the group, when one is free; return False if it has to be written here.

        Which tables are announced changes between groups only, and those on their way have theirs.
        """
        options, head = self._settings.options, self._group.last
        assert head is not None
        plans = self._grouped.plans(self._group)
        if plans is None:
            return False
        if self._lanes is None:
            self._lanes = Lanes(
                self._session,
                self._tables,
                options.connections,
                in_order=options.commit_order == "source",
                wake=self._wake,
            )
            self._may_have_lanes = self._lanes.number > 1
            self._grouped.look_for_origins()
            if not self._may_have_lanes:
                return False
        while not self._lanes.has_room:
            self._lanes.wait(_WAIT_S)
            self.settle()
        self._lanes.submit(self._group.take_out(), plans, touched, head)
        return True

    def settle(self) -> None:
        """Take note of what lanes have done, and do what they can't."""
        if self._lanes is not None:
            for one in self._lanes.settle(self._exact.write):
                self._tell(one.touched)

    def drain(self) -> None:
        """Have lanes finish: the session is at a boundary then, and nobody writes beside it."""
        while self.is_busy:
            assert self._lanes is not None
            self._lanes.wait(_WAIT_S)
            self.settle()

    # -- transactions in progress -------------------------------------------------------------

    def _write_in_progress(self, head: TransactionHead) -> None:
        """Have a part of a transaction in progress applied, or its end."""
        self.drain()
        group, in_progress = self._group, self._in_progress
        if head.kind in "SA":
            in_progress.take(group, head)
        elif (touched := in_progress.end(head, self._session)) is None:
            self._write_left(head)
        else:
            self._tell(touched)
        group.clear()
        self._bound_lock_waits()

    def _bound_lock_waits(self) -> None:
        """Wait for no lock for ever while another connection of ours may hold it."""
        if self._in_progress.is_any_open != self._has_bounded_waits:
            self._has_bounded_waits = self._in_progress.is_any_open
            self._session.bound_lock_waits(LOCK_WAIT_MS if self._has_bounded_waits else 0)

    def _write_left(self, head: TransactionHead) -> None:
        """Write a transaction that was left while it was in progress, or passed by when it was
        prepared: the slot has it whole.
        """
        settings, streamed = self._settings, self._group
        self._group = ChangeGroup(settings.options.group_bytes)
        try:
            with ArrivingChanges(
                settings.grpc,
                settings.slot,
                Lsn(head.commit_lsn),
                settings.selection.plugin_options(
                    two_phase=head.kind == "p",
                    only_local=settings.only_local,
                    whole_prepared=head.kind == "K",
                ),
                upto_lsn=Lsn(head.commit_lsn + 1),
                peek=True,
                token=settings.token,
                tls=settings.tls,
            ) as stream:
                while not stream.has_ended and not self.must_reopen:
                    if self._stopping.is_set():
                        self.must_reopen = True
                    elif (batch := stream.take(_WAIT_S)) is not None:
                        self.take(batch)
                if self._group.transactions and not self.must_reopen:
                    self._write()
                self.drain()
        finally:
            self._group = streamed
        if not self.must_reopen:
            # Of one that has nothing for the subscription nothing came.
            self._session.passed(head.end_lsn)
