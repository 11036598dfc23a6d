"""The loop: what has arrived is written as one group, committed with its position, and confirmed
when it is durable on the target.

::

    take what has arrived ─▶ whole transactions? ─▶ grouped, else exact ─▶ sync.at_boundary ─┐
      ▲                              │ many: lanes                                          │
      └──── confirm(min(flushed on the target, what sync holds)) ◀──────────────────────────┘

Nothing waits for a group to fill: what is there when the last one is written is the next one, so a
group is one transaction when the target keeps up, and many when it does not.

**Lanes.** When there is a backlog, groups of transactions go to connections beside this session's
(:mod:`spillway.apply.parallel`). Whatever else writes, or asks for a boundary between transactions,
has them finish first (:meth:`_Run._drain`): what is written exactly, a transaction larger than a
group, TRUNCATE, a table that is being copied, a position that is recorded.

What goes wrong ends the program with a typed error, but for one: a deadlock or a serialization
failure. Then the stream is opened again at the position that the target has, which is where the
transaction begins that failed, :data:`_ATTEMPTS` times.

**When nothing comes.** A keepalive says how far the slot may be confirmed though nothing came for
it. That position is written to the target, too, at most every :data:`IDLE_RECORD_S`, and confirmed
after that: so the target is never behind the slot, and a target that is (restored from a backup, or
failed over to a standby that lacked commits) is told from one that only had nothing to do.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.conflicts.log import ConflictFile
from spillway.apply.conflicts.rules import ConflictRules
from spillway.apply.exact.own_tables import CONFLICTS, DEAD_LETTER, PREPARED
from spillway.apply.exact.writer import ExactOptions, ExactWriter
from spillway.apply.grouped.writer import GroupedWriter
from spillway.apply.in_progress.beside import LOCK_WAIT_MS, BesidePlan
from spillway.apply.in_progress.transactions import KINDS, InProgress
from spillway.apply.parallel.lanes import Lanes
from spillway.apply.stream import ArrivingChanges
from spillway.apply.sync.catching_up import SlotCatchUp
from spillway.apply.sync.settings import SyncSettings
from spillway.apply.sync.states import TABLES_SQL
from spillway.apply.sync.table_sync import TableSync
from spillway.apply.tables.target_tables import TargetTables
from spillway.apply.target.connection import connect_target
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.own_schema import COMMITTED_SQL
from spillway.apply.target.session import TargetPlan, TargetSession
from spillway.consumer.connect import exports_of
from spillway.errors import SpillwayError, TargetBehindSlot, TargetSerialization
from spillway.pg.lsn import Lsn
from spillway.stream.client import get_slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.apply.changes import SourceRelation, Touched, TransactionHead
    from spillway.apply.options import ApplyOptions
    from spillway.apply.selection import Selection
    from spillway.apply.status import ApplyStatusFile
    from spillway.stream.wire import Batch
    from spillway.tls import ClientTls

_log = logging.getLogger(__name__)

IDLE_RECORD_S: Final = 10.0
#: Also bounds how late a signal is noticed.
_IDLE_S: Final = 0.5
#: how often the target is asked what it has flushed, while there is something to ask for
_FLUSH_LOOK_S: Final = 0.05
#: how often tables are looked at again for what the target's own DDL changed
_TABLES_LOOK_S: Final = 60.0
_ATTEMPTS: Final = 5
#: A group below that is written here when nothing else is on its way, and waits for that otherwise,
#: growing: a thread more is no gain for it.
_LANE_BYTES: Final = 256 << 10
_POSTGRES_EPOCH_S: Final = 946_684_800
#: an LSN behind all
_NEVER: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """What a program is to do."""

    subscription: str
    identity: str
    slot: str
    grpc: str
    options: ApplyOptions
    selection: Selection
    token: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    two_phase: bool = False
    #: transactions in progress are applied as they come
    streaming: bool = False
    #: what came to the source through an origin is left out there
    only_local: bool = False
    copy_data: bool = True
    #: the slot may have been moved up to here past what the target has
    skip_to: Lsn = Lsn(0)  # noqa: RUF009 - immutable
    source_dsn: str = field(default="", repr=False)
    conflicts_file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Idle:
    """A position that no transaction ends at."""

    end_lsn: int
    commit_time: int


class ApplyWorker:
    """Applies one subscription until it is told to stop.

    Args:
        settings: what it does.
        status: hears of it.
        stopping: ends it, between two groups.
    """

    def __init__(
        self, settings: ApplySettings, status: ApplyStatusFile, stopping: threading.Event
    ) -> None:
        self._settings = settings
        self._status = status
        self._stopping = stopping
        self._plan = target_plan(settings)

    def run(self) -> None:
        """Apply.

        Raises:
            SpillwayError: it can't go on; everything that is confirmed is on the target.
        """
        with TargetSession(self._plan) as session:
            try:
                _Run(self._settings, self._status, self._stopping, session).run()
            except psycopg.Error as error:
                raise from_postgres(
                    error, "the target does not take a change", self._plan.dsn
                ) from error


def target_plan(settings: ApplySettings) -> TargetPlan:
    """Return what the settings say of the session on the target."""
    options = settings.options
    own_tables = (*TABLES_SQL, CONFLICTS, DEAD_LETTER, PREPARED)
    if options.connections > 1 and options.commit_order == "relaxed":
        own_tables += (COMMITTED_SQL,)
    return TargetPlan(
        settings.subscription,
        settings.identity,
        options.dsn,
        options.synchronous_commit,
        own_tables,
    )


class _Run:
    """One session on the target, from its position on."""

    def __init__(
        self,
        settings: ApplySettings,
        status: ApplyStatusFile,
        stopping: threading.Event,
        session: TargetSession,
    ) -> None:
        options = settings.options
        self._settings = settings
        self._status = status
        self._stopping = stopping
        self._session = session
        self._tables = TargetTables(options.rename.target_of)
        self._conflicts = ConflictFile(settings.conflicts_file or Path(os.devnull))
        exact = ExactOptions(
            rules=ConflictRules.parse(dict(options.conflicts)),
            conflicts_table=options.conflicts_table,
            dead_letter=options.dead_letter,
        )
        # Without a copy tables are as they are; whoever runs it by hand need not name the source.
        self._sync = self._table_sync(exact) if settings.source_dsn else None
        should_apply = self._is_synced if settings.copy_data else settings.selection.should_apply
        self._should_apply = should_apply
        self._exact = ExactWriter(session, self._tables, exact, self._conflicts, self._is_wanted)
        self._grouped = GroupedWriter(session, self._tables, should_apply)
        self._in_progress = InProgress(
            BesidePlan(
                session.plan,
                session.uses_origin,
                options.rename.target_of,
                # Which commit it is isn't known; it will be later than any table's beginning.
                lambda relation, _: should_apply(relation, _NEVER),
                self._conflicts,
            ),
            self._tables_as_of,
        )
        #: made when there is a backlog for the first time
        self._lanes: Lanes | None = None
        self._may_have_lanes = options.connections > 1
        self._always_exact = options.exact == "always"
        self._group = ChangeGroup(options.group_bytes)
        #: the commit of a large transaction that can't be written in groups
        self._exact_lsn = 0
        #: pieces of it are gone, and have to come again
        self._must_reopen = False
        self._has_bounded_waits = False
        self._stream: ArrivingChanges | None = None
        self._flush_look_at = 0.0
        self._tables_look_at = time.monotonic() + _TABLES_LOOK_S
        self._idle_record_at = 0.0

    def run(self) -> None:
        self._check_position()
        try:
            if self._sync is not None:
                self._copy_first(self._sync)
                self._sync.start()
            self._keep_following()
        finally:
            if self._lanes is not None:
                self._lanes.close()
            if self._sync is not None:
                self._sync.stop()

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
        assert self._sync is not None
        return self._sync.states.should_apply(relation.schema, relation.name, commit_lsn)

    def _table_sync(self, exact: ExactOptions) -> TableSync:
        settings, options, session = self._settings, self._settings.options, self._session
        plan = session.plan
        quiet = {"session_replication_role": "replica"} if session.may_replicate_role else {}
        name = f"spillway subscription {settings.subscription} table sync"
        plugin_options = settings.selection.plugin_options(
            two_phase=False, only_local=settings.only_local
        )
        reach = {"grpc": settings.grpc, "token": settings.token or ""}
        return TableSync(
            settings.subscription,
            SyncSettings(
                publications=settings.selection.publications or (),
                copy_data=settings.copy_data,
                connections=options.copy_connections,
                defer_indexes=options.defer_indexes,
                create_tables=options.create_tables,
                sequences_every_s=options.sync_sequences or None,
                origin=plan.origin if session.uses_origin else "",
                rename=options.rename.target_of,
                selected=settings.selection.has,
            ),
            settings.source_dsn,
            lambda: connect_target(plan.dsn, name, quiet),
            exports_of(reach, settings.slot),
            SlotCatchUp(
                settings.grpc,
                settings.slot,
                plugin_options,
                plan,
                self._conflicts,
                self._stopping,
                exact,
                options.rename.target_of,
                token=settings.token,
                tls=settings.tls,
            ),
            tell=_log.info,
        )

    def _copy_first(self, sync: TableSync) -> None:
        """Copy what has nothing yet, if it is to be, before the stream is opened, and tell of it
        meanwhile.
        """
        done = threading.Event()

        def look() -> None:
            while not done.wait(_IDLE_S):
                self._status.copied(sync.progress())
                if self._stopping.is_set():
                    sync.stop()
                    return

        looking = threading.Thread(target=look, name="first copy's status", daemon=True)
        looking.start()
        try:
            begin = sync.first_copy if self._settings.copy_data else sync.begin_without_copy
            begin(self._session.position)
        except SpillwayError:
            if not self._stopping.is_set():
                raise
        finally:
            done.set()
            looking.join()
        self._status.copied(sync.progress())

    def _keep_following(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            before = self._session.position
            try:
                self._follow()
            except TargetSerialization as error:
                failures = failures + 1 if self._session.position == before else 1
                self._status.failed_once()
                if failures >= _ATTEMPTS:
                    raise
                _log.warning("%s; it is tried again", error.message)
                self._stopping.wait(0.1 * 2**failures)

    def _check_position(self) -> None:
        """Refuse a target that lacks what the slot does not have any more."""
        settings, session = self._settings, self._session
        slot = get_slot(settings.grpc, settings.slot, token=settings.token, tls=settings.tls)
        confirmed = Lsn(slot.confirmed_flush_lsn)
        if session.position and confirmed > max(session.position, settings.skip_to):
            raise TargetBehindSlot(
                f"the target has everything before {session.position}, and the slot "
                f"{settings.slot} was confirmed up to {confirmed}: what lies between is gone",
                hint="Was the target restored from a backup, or failed over to a standby that "
                "lacked commits? Drop the subscription and create it again, to copy its tables "
                f"anew; or give up what is missing: spillway subscription skip "
                f"{settings.subscription} {confirmed}",
                subscription=settings.subscription,
                lsn=str(session.position),
            )
        if confirmed > session.position:
            self._record_idle(confirmed)

    def _follow(self) -> None:
        settings, session = self._settings, self._session
        self._group = ChangeGroup(settings.options.group_bytes)
        self._must_reopen = False
        self._bound_lock_waits()
        session.find_committed_ahead()
        two_phase = settings.two_phase and self._may_prepare()
        with ArrivingChanges(
            settings.grpc,
            settings.slot,
            session.position,
            settings.selection.plugin_options(
                two_phase=two_phase, only_local=settings.only_local, streaming=settings.streaming
            ),
            token=settings.token,
            tls=settings.tls,
        ) as stream:
            self._stream = stream
            if not self._status.has_begun:
                self._status.begun()
            try:
                while not self._stopping.is_set() and not self._must_reopen:
                    self._step(stream)
                    if settings.two_phase and not two_phase and self._may_prepare():
                        # It is opened again, with prepared transactions from there on.
                        break
                self._drain()
            except BaseException as error:
                if isinstance(error, TargetSerialization):
                    # A lock that was waited for may be one of theirs.
                    self._in_progress.fail()
                if self._lanes is not None:
                    self._lanes.abandon()
                if not session.connection.broken:
                    session.rollback()
                raise
            finally:
                self._in_progress.close()
            session.rollback()
            stream.confirm(self._confirmable(session.flush()), session.position, at_once=True)

    def _may_prepare(self) -> bool:
        """Say whether prepared transactions may come as such: when no table is being copied. One
        that was prepared before a table's copy and is committed after it comes whole, so.
        """
        return (
            not self._session.in_transaction
            and not self._is_busy
            and (self._sync is None or self._sync.states.are_all_ready)
        )

    def _tables_as_of(self) -> object | None:
        """What tells the subscription's tables from those before and after; None while one is being
        copied, or transactions may come that are there already.
        """
        if self._session.committed_ahead:
            return None
        if self._sync is None:
            return True
        states = self._sync.states
        return frozenset(states.all()) if states.are_all_ready else None

    def _step(self, stream: ArrivingChanges) -> None:
        """Take what has arrived, write what is whole of it, and confirm."""
        session, group = self._session, self._group
        wait_s = _FLUSH_LOOK_S if session.awaits_flush else _IDLE_S
        batch = last = stream.take(wait_s)
        wrote = False
        while batch is not None:
            last = batch
            wrote = self._feed(batch)
            batch = None if wrote or self._stopping.is_set() else stream.take(0)
        self._settle()
        if group.transactions and not self._must_reopen and self._is_due():
            self._write()
        if self._must_reopen:
            return
        if not session.in_transaction:
            if not group.is_within and not group.transactions and not self._is_busy:
                self._pass(Lsn(0) if last is None else last.confirm_lsn)
            self._at_boundary()
            self._confirm(stream, at_once=last is not None and last.reply_requested)
        self._status.looked(session, stream, self._sync)
        self._status.explain(self._tables, self._grouped)

    def _feed(self, batch: Batch) -> bool:
        """Take a batch into the group; return whether that was full on the way, and written."""
        group = self._group
        wrote = False
        lengths = batch.lengths.cast("B")
        taken = 0
        while taken < batch.count:
            taken = group.feed(batch.payload, lengths, taken)
            if group.is_full:
                self._write()
                wrote = True
                if self._must_reopen:
                    break
        return wrote

    def _write(self) -> None:
        """Write the group, and be ready for the next."""
        group = self._group
        if (head := group.last) is not None and head.kind in KINDS:
            self._write_in_progress(head)
            return
        touched = group.touched()
        if self._is_for_lanes(touched) and self._submit(touched):
            return
        self._drain()
        self._tables.learn(table.relation for table in touched)
        if not self._write_grouped():
            if self._must_reopen:
                return
            self._exact.write(group)
        self._tell(touched)
        group.clear()

    def _tell(self, touched: Sequence[Touched]) -> None:
        has = self._settings.selection.has
        self._status.wrote(touched, [has(t.relation.schema, t.relation.name) for t in touched])

    # -- lanes --------------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        """Whether lanes have something that is not settled."""
        return self._lanes is not None and not self._lanes.is_idle

    def _is_due(self) -> bool:
        """Whether the group is to be written now: it need not wait for lanes to be free."""
        return not self._is_busy or self._group.is_full or self._group.nbytes >= _LANE_BYTES

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
            and group.nbytes >= _LANE_BYTES
            and not self._session.in_transaction
            and not self._session.committed_ahead
            and group.last is not None
            and not group.last.is_continued
            and group.last.commit_lsn != self._exact_lsn
            and not any(one.truncates for one in touched)
            and (self._sync is None or self._sync.states.are_all_ready)
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
            self._lanes.wait(_IDLE_S)
            self._settle()
        self._lanes.submit(self._group.take_out(), plans, touched, head)
        return True

    def _wake(self) -> None:
        if self._stream is not None:
            self._stream.wake()

    def _settle(self) -> None:
        """Take note of what lanes have done, and do what they can't."""
        if self._lanes is not None:
            for one in self._lanes.settle(self._exact.write):
                self._tell(one.touched)

    def _drain(self) -> None:
        """Have lanes finish: the session is at a boundary then, and nobody writes beside it."""
        while self._is_busy:
            assert self._lanes is not None
            self._lanes.wait(_IDLE_S)
            self._settle()

    def _write_grouped(self) -> bool:
        """Write the group by few statements; return False for one that is to be written exactly.

        A large transaction comes in pieces. When one of them can't be written so, those before it
        are gone, too: the stream is opened again, and that transaction is written exactly.
        """
        group = self._group
        if self._always_exact or not group.is_plain or self._session.committed_ahead:
            return False
        head = group.last
        if head is None or head.commit_lsn == self._exact_lsn:
            return False
        if self._grouped.write(group):
            return True
        if group.is_piece or head.is_continued:
            self._exact_lsn = head.commit_lsn
            self._must_reopen = head.is_continued
        return False

    def _write_in_progress(self, head: TransactionHead) -> None:
        """Have a part of a transaction in progress applied, or its end."""
        self._drain()
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
        """Write a transaction that was left while it was in progress: the slot has it whole."""
        settings, streamed = self._settings, self._group
        self._group = ChangeGroup(settings.options.group_bytes)
        try:
            with ArrivingChanges(
                settings.grpc,
                settings.slot,
                Lsn(head.commit_lsn),
                settings.selection.plugin_options(
                    two_phase=head.kind == "p", only_local=settings.only_local
                ),
                upto_lsn=Lsn(head.commit_lsn + 1),
                peek=True,
                token=settings.token,
                tls=settings.tls,
            ) as stream:
                while not stream.has_ended and not self._must_reopen:
                    if self._stopping.is_set():
                        self._must_reopen = True
                    elif (batch := stream.take(_IDLE_S)) is not None:
                        self._feed(batch)
                if self._group.transactions and not self._must_reopen:
                    self._write()
                self._drain()
        finally:
            self._group = streamed
        if not self._must_reopen:
            # Of one that has nothing for the subscription nothing came.
            self._session.passed(head.end_lsn)

    def _pass(self, confirm_lsn: Lsn) -> None:
        """Have the target keep a position up to which nothing is left to write, if it is due."""
        session = self._session
        lsn = max(confirm_lsn, session.position)
        if lsn > session.recorded and time.monotonic() >= self._idle_record_at:
            self._record_idle(lsn)

    def _record_idle(self, lsn: Lsn) -> None:
        self._session.record(_Idle(lsn, int((time.time() - _POSTGRES_EPOCH_S) * 1e6)))
        self._idle_record_at = time.monotonic() + IDLE_RECORD_S

    def _at_boundary(self) -> None:
        """Do what is done between transactions, with none open."""
        if self._sync is not None:
            if not self._sync.states.are_all_ready:
                self._drain()
            self._sync.at_boundary(self._session.position)
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

    def _confirm(self, stream: ArrivingChanges, *, at_once: bool) -> None:
        session = self._session
        if session.awaits_flush and time.monotonic() < self._flush_look_at and not at_once:
            return
        self._flush_look_at = time.monotonic() + _FLUSH_LOOK_S
        stream.confirm(self._confirmable(session.flushed()), session.position, at_once=at_once)

    def _confirmable(self, flushed: Lsn) -> Lsn:
        """Return what the slot may forget: not what a table that was copied has yet to read."""
        held = None if self._sync is None else self._sync.states.hold_lsn()
        return flushed if held is None else Lsn(min(flushed, held))
