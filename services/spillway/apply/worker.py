"""The loop: what has arrived is written as one group, committed with its position, and confirmed
when it is durable on the target.

::

    take what has arrived ─▶ whole transactions? ─▶ writers ─▶ sync.at_boundary ─┐
      ▲                                                                          │
      └──── confirm(min(flushed on the target, what sync holds)) ◀───────────────┘

Nothing waits for a group to fill: what is there when the last one is written is the next one, so a
group is one transaction when the target keeps up, and many when it does not. Which way a group is
written is :mod:`spillway.apply.writers`'.

A failure that is one table's own sets that table aside, where this is wished
(:mod:`spillway.apply.sync.setting_aside`): the stream is opened again at the target's position, and
the transaction that failed is written without it. Every other failure ends the program with a typed
error, except a deadlock or a serialization failure.
After those the stream is opened again at the target's position, where the transaction that failed
begins, :data:`_ATTEMPTS` times. So it is where DDL of a partitioned table meets partitions that
lack what is before it, when they have that.

Where the slot was moved past the target, to skip a transaction, the target is brought there first:
without the rows, with the DDL, if that is followed, and with what is prepared there
(:mod:`spillway.apply.skipped`).

**When nothing comes.** A keepalive says how far the slot may be confirmed though nothing came for
it. That position is written to the target, too, at most every :data:`_IDLE_RECORD_S`, and confirmed
after that: so the target is never behind the slot, and a target that is (restored from a backup, or
failed over to a standby that lacked commits) is told from one that only had nothing to do: see
:mod:`spillway.apply.position`.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

import psycopg

from spillway.apply.position import agree
from spillway.apply.schema.changes import TablesBehind
from spillway.apply.settings import ApplySettings, target_plan
from spillway.apply.stream import ArrivingChanges
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.session import Idle, TargetSession
from spillway.apply.target.stop import Stopped
from spillway.apply.writers import Writers
from spillway.errors import (
    SlotActive,
    SpillwayError,
    TargetSchemaChange,
    TargetSerialization,
)
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from spillway.apply.status import ApplyStatusFile
    from spillway.apply.sync.table_sync import TableSync
    from spillway.apply.target.stop import Stop

_log = logging.getLogger(__name__)

#: A small commit on the target each time, while the source writes what is not for it. Who waits
#: until the target has everything waits for that.
_IDLE_RECORD_S: Final = 1.0
#: Also bounds how late a signal is noticed.
_IDLE_S: Final = 0.5
#: how often the target is asked what it has flushed, while there is something to ask for
_FLUSH_LOOK_S: Final = 0.05
#: how often it is looked whether tables that are waited for can be handed over
_HAND_OVER_LOOK_S: Final = 0.05
_ATTEMPTS: Final = 5
#: within which a slot whose stream was closed is free again
_REOPEN_S: Final = 10.0


class ApplyWorker:
    """Applies one subscription until it is told to stop.

    Args:
        settings: what it does.
        status: hears of it.
        stopping: ends it, between two groups if the target lets it come to that.
    """

    def __init__(self, settings: ApplySettings, status: ApplyStatusFile, stopping: Stop) -> None:
        self._settings = settings
        self._status = status
        self._stopping = stopping
        self._plan = target_plan(settings)

    def run(self) -> None:
        """Apply.

        Raises:
            SpillwayError: it can't go on; everything that is confirmed is on the target.
        """
        try:
            self._run()
        except Stopped:
            pass
        except SpillwayError as error:
            # Table sync's sessions are ended behind an error, too, which is to be told then.
            if not (self._stopping.is_set() and self._stopping.has_ended_sessions):
                raise
            # The next program meets it again, if it is more than that.
            _log.info("stopped while the target was waited for: %s", error.message)

    def _run(self) -> None:
        with TargetSession(self._plan, self._stopping) as session:
            try:
                _Run(self._settings, self._status, self._stopping, session).run()
            except psycopg.Error as error:
                raise from_postgres(
                    error, "the target does not take a change", self._plan.dsn
                ) from error


class _Run:
    """One session on the target, from its position on."""

    def __init__(
        self,
        settings: ApplySettings,
        status: ApplyStatusFile,
        stopping: Stop,
        session: TargetSession,
    ) -> None:
        self._settings = settings
        self._status = status
        self._stopping = stopping
        self._session = session
        self._writers = Writers(settings, session, status, stopping, self._wake)
        self._sync = self._writers.sync
        self._stream: ArrivingChanges | None = None
        #: up to where rows are given up, while the rest from before that is not done; else 0
        self._skips_to = Lsn(0)
        self._flush_look_at = 0.0
        self._idle_record_at = 0.0

    def run(self) -> None:
        self._check_position()
        try:
            if self._sync is not None:
                self._copy_first(self._sync)
                self._sync.start()
            self._keep_following()
        finally:
            self._writers.close()

    def _wake(self) -> None:
        if self._stream is not None:
            self._stream.wake()

    def _copy_first(self, sync: TableSync) -> None:
        """Copy what has nothing yet, if it is to be, before the stream is opened, and tell of it
        meanwhile.
        """
        done = threading.Event()

        def look() -> None:
            while not done.wait(_IDLE_S):
                self._status.copied(sync)

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
        self._status.copied(sync)

    def _keep_following(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            before = self._session.position
            try:
                if self._skips_to and self._skip_to(self._skips_to):
                    self._skips_to = Lsn(0)
                if not self._skips_to:
                    self._follow()
            except TablesBehind as behind:
                self._let_catch_up(behind)
            except TargetSerialization as error:
                failures = failures + 1 if self._session.position == before else 1
                self._status.failed_once()
                if failures >= _ATTEMPTS:
                    raise
                _log.warning("%s; it is tried again", error.message)
                self._stopping.wait(0.1 * 2**failures)
            except SpillwayError as error:
                if not self._set_aside(error):
                    raise

    def _set_aside(self, error: SpillwayError) -> bool:
        """Go on without the table whose trouble *error* is, if that is wished; say whether it is
        so.
        """
        session = self._session
        if self._sync is None or session.connection.broken:
            return False
        if not self._sync.set_aside(session.connection, error, session.position):
            return False
        _log.warning("%s", error.message)
        # What is known of its table is what is to be mended.
        self._writers.forget_tables()
        self._status.failed_once()
        self._status.schema_change(None)
        self._status.copied(self._sync)
        return True

    def _skip_to(self, lsn: Lsn) -> bool:
        # As the stream will have them.
        two_phase = self._settings.two_phase and self._may_prepare()
        return self._writers.skip_to(lsn, two_phase=two_phase)

    def _let_catch_up(self, behind: TablesBehind) -> None:
        """Wait, with no stream open, until tables have what is before a transaction, or can't."""
        sync, session = self._sync, self._session
        assert sync is not None
        _log.info("%s", behind)
        while not self._stopping.is_set():
            session.plan.whereabouts.ensure_together()
            left = behind.tables & sync.states.behind(behind.commit_lsn)
            self._status.waits_for_tables(left)
            if not left:
                break
            sync.at_boundary(session.position, session.recorded)
            self._status.copied(sync)
            self._stopping.wait(_HAND_OVER_LOOK_S)

    def _check_position(self) -> None:
        session = self._session
        confirmed = agree(self._settings, session, self._sync, self._stopping)
        if confirmed <= session.position:
            return
        if session.position and (self._writers.follows_ddl or self._settings.two_phase):
            self._skips_to = confirmed
        else:
            self._record_idle(confirmed)

    def _follow(self) -> None:
        settings, session, writers = self._settings, self._session, self._writers
        writers.begin()
        two_phase = settings.two_phase and self._may_prepare()
        with self._open(two_phase=two_phase) as stream:
            self._stream = stream
            if not self._status.has_begun:
                self._status.begun()
            try:
                while not self._stopping.is_set() and not writers.must_reopen:
                    self._step(stream)
                    if settings.two_phase and not two_phase and self._may_prepare():
                        # It is opened again, with prepared transactions from there on.
                        break
                writers.drain()
            except BaseException as error:
                writers.give_up(error)
                if not session.connection.broken:
                    session.rollback()
                    if isinstance(error, TargetSchemaChange):
                        # What is before it is applied, and the slot is to know.
                        flushed = self._confirmable(session.flush())
                        stream.confirm(flushed, session.position, at_once=True)
                raise
            finally:
                writers.end_stream()
            session.rollback()
            stream.confirm(self._confirmable(session.flush()), session.position, at_once=True)

    def _open(self, *, two_phase: bool) -> ArrivingChanges:
        """Open the stream. The service may still be about to notice that an earlier one of this
        very program has ended.
        """
        settings = self._settings
        deadline = time.monotonic() + (0 if self._stream is None else _REOPEN_S)
        while True:
            try:
                return ArrivingChanges(
                    settings.grpc,
                    settings.slot,
                    self._session.position,
                    settings.selection.plugin_options(
                        two_phase=two_phase,
                        only_local=settings.only_local,
                        # Events of DDL come in whole transactions.
                        streaming=settings.streaming and not self._writers.follows_ddl,
                        ddl=self._writers.follows_ddl,
                    ),
                    token=settings.token,
                    tls=settings.tls,
                    own_socket=settings.own_socket,
                    silence_s=settings.client_timeout_s,
                )
            except SlotActive:
                if time.monotonic() >= deadline or self._stopping.is_set():
                    raise
                self._stopping.wait(0.05)

    def _may_prepare(self) -> bool:
        """Say whether prepared transactions may come as such: when no table is being copied. One
        that was prepared before a table's copy and is committed after it comes whole, so.
        """
        return (
            not self._session.in_transaction
            and not self._writers.is_busy
            and self._writers.may_prepare()
        )

    def _step(self, stream: ArrivingChanges) -> None:
        """Take what has arrived, write what is whole of it, and confirm."""
        session, writers = self._session, self._writers
        session.plan.whereabouts.ensure_together()
        wait_s = _FLUSH_LOOK_S if session.awaits_flush else _IDLE_S
        batch = last = stream.take(wait_s)
        wrote = False
        while batch is not None:
            last = batch
            wrote = writers.take(batch)
            is_enough = wrote or writers.should_write or self._stopping.is_set()
            batch = None if is_enough else stream.take(0)
        writers.write_if_due()
        if writers.must_reopen:
            return
        if not session.in_transaction:
            if writers.has_all:
                self._pass(Lsn(0) if last is None else last.confirm_lsn)
            writers.look()
            self._confirm(stream, at_once=last is not None and last.reply_requested)
        self._status.looked(session, stream, self._sync)
        writers.explain()

    def _pass(self, confirm_lsn: Lsn) -> None:
        """Have the target keep a position up to which nothing is left to write, if it is due."""
        session = self._session
        lsn = max(confirm_lsn, session.position)
        if lsn > session.recorded and time.monotonic() >= self._idle_record_at:
            self._record_idle(lsn)

    def _record_idle(self, lsn: Lsn) -> None:
        self._session.record(Idle.now(lsn))
        self._idle_record_at = time.monotonic() + _IDLE_RECORD_S

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
