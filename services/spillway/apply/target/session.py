"""The session that applies: its transactions, each with the position in its own commit, and what of
them is durable.

The position is a row of ``spillway.progress`` that the same transaction updates. Where the role
may, the session has a replication origin as well, as PostgreSQL's apply worker: rows and commits
carry it, with the position and the time of the source's commit, which is what conflicts and
subscriptions that go the other way look at. An origin's own position is not believed: PostgreSQL 18
moves it when a transaction is rolled back, too, once it is set up, so a COMMIT that fails would
lose what it had.

Commits don't wait for the disk (``synchronous_commit`` off, by default). So that the slot never
moves past what a crash of the target could take away, commits leave pairs (LSN at the source,
LSN in the target's WAL somewhere after it), and :meth:`TargetSession.flushed` says which pairs the
target's flush has passed. A commit need not ask for the latter: then the next look at the flush
does, once for all commits before it. ::

    begin ─▶ statements ─▶ commit(head) ─▶ pair ─▶ flushed() ─▶ the slot may be confirmed
                │ fails
                └▶ rollback: the origin's position of the transaction is forgotten, too

A session-level advisory lock, (:data:`LOCK_CLASS`, crc32 of the subscription's name), keeps a
second program of the subscription out for as long as the session lives. Sessions beside it that
commit, too (:mod:`spillway.apply.parallel`), share another one, :data:`LANES_CLASS`; whoever gets
the first lock waits until nobody has the second, and only then reads the position. That lock also
tells those beside it that they are on the same server (:mod:`~spillway.apply.target.whereabouts`).

A commit of theirs may come before an earlier one of the source. Then it leaves a row in
``spillway.committed``, and the position stays where everything before it is committed.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import psycopg
from psycopg import pq

from spillway.apply.target.connection import connect_target
from spillway.apply.target.facts import ORIGIN_FUNCTIONS, TargetFacts, ask
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.own_schema import PROGRESS_SQL, prepare_schema
from spillway.apply.target.stop import Stop, Stopped
from spillway.apply.target.whereabouts import Whereabouts, lock_holder
from spillway.errors import TargetInUse, TargetNotPermitted, TargetOriginsExhausted
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.lsn import Lsn
from spillway.pg.timestamps import moment, now_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Any, Never, Self

#: "SPIL": the first key of the advisory lock
LOCK_CLASS: Final = 0x5350494C
#: "SPIM"
LANES_CLASS: Final = LOCK_CLASS + 1
#: A backend whose client was killed notices that when it next reads or writes.
_LOCK_WAIT_S: Final = 15.0
_LOCK_PAUSE_S: Final = 0.25
_ORIGINS_OF_OTHERS: Final = (
    "Or drop those whose subscriptions are gone for good: SELECT external_id FROM "
    "pg_replication_origin_status; names all that take room, and SELECT "
    "pg_replication_origin_drop('NAME'); drops one."
)
#: Before it, max_replication_slots bounds origins, too.
_MAJOR_OF_ORIGINS_OWN_BOUND: Final = 18
#: A commit that is not flushed by then is flushed by us: the target's own WAL may end just short of
#: it until somebody writes again.
_FLUSH_AFTER_S: Final = 1.0
_INSERT_LSN: Final = b"SELECT pg_catalog.pg_current_wal_insert_lsn()"
#: in this order: what is flushed may be all there is
_ENDS: Final = (
    b"SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_wal_flush_lsn()"
)
_MOVE: Final = (
    b"UPDATE spillway.progress SET remote_lsn = $1::pg_catalog.pg_lsn,"
    b" commit_time = $2::pg_catalog.timestamptz WHERE subscription = "
)
_WITH_XACT_SETUP: Final = (
    b" RETURNING pg_catalog.pg_replication_origin_xact_setup("
    b"$1::pg_catalog.pg_lsn, $2::pg_catalog.timestamptz)"
)
_OK: Final = frozenset({pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK})


class Head(Protocol):
    """What a commit needs to know of the last source transaction in it."""

    @property
    def end_lsn(self) -> int:
        """Where the stream goes on after it."""

    @property
    def commit_time(self) -> int:
        """Microseconds since 2000-01-01 00:00 UTC."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A position that no transaction ends at: a :class:`Head` of its own."""

    end_lsn: int
    commit_time: int

    @classmethod
    def now(cls, lsn: int) -> Idle:
        """Return *lsn* as of now."""
        return cls(lsn, now_us())


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """Whom a session is for, and where."""

    subscription: str
    #: of this subscription and no other that ever had its name: hexadecimal
    identity: str
    dsn: str = field(repr=False)
    synchronous_commit: str = "off"
    #: ``CREATE TABLE IF NOT EXISTS spillway.…`` of other rooms
    own_tables: tuple[str, ...] = ()
    #: of the program's sessions, which share the plan
    whereabouts: Whereabouts = field(default_factory=Whereabouts, repr=False, compare=False)

    @property
    def origin(self) -> str:
        """The name of its replication origin; other origins of ours begin with it."""
        return f"spillway_{self.subscription}_{self.identity[:8]}"

    @property
    def lock(self) -> tuple[int, int]:
        """The keys of its advisory lock."""
        crc = zlib.crc32(self.subscription.encode())
        return LOCK_CLASS, crc - (1 << 32) if crc >> 31 else crc


class TargetSession:
    """A connection of its own; used by one thread."""

    def __init__(
        self, plan: TargetPlan, stop: Stop | None = None, *, is_beside: bool = False
    ) -> None:
        """Connect, prepare the schema, take the lock, and find where to go on.

        A session that is beside the one that applies does nothing of that but to connect, has no
        position, and marks nothing with the origin.

        Args:
            plan: whom it is for, and where.
            stop: ends it once it is set, whatever the target does.
            is_beside: see above.

        Raises:
            Stopped: it was to end before it had the lock, or the origin.
            TargetMoved: it is beside another, and not on the same server.
            TargetError: its subclass says why not.
        """
        self.plan = plan
        self.stop = stop or Stop()
        self.subscription = plan.subscription
        self.connection = connect_target(
            plan.dsn,
            f"spillway subscription {plan.subscription}",
            {"synchronous_commit": plan.synchronous_commit},
            self.stop,
        )
        self._pgconn = self.connection.pgconn
        #: (LSN at the source, the target's LSN that must be flushed, when it was committed)
        self._pending: deque[tuple[int, int, float]] = deque()
        #: the last commit that did not ask where the target's WAL ends, and when the first was
        self._unplaced: tuple[int, float] | None = None
        self._flushed = Lsn(0)
        #: whether triggers and foreign keys rest, as for PostgreSQL's worker
        self.may_replicate_role = False
        #: whether rows and commits carry a replication origin
        self.uses_origin = False
        #: the stream begins here; every transaction that ends before is on the target
        self.position = Lsn(0)
        #: the position that the target keeps
        self.recorded = Lsn(0)
        #: [from, to) at the source, behind the position: transactions there are on the target
        self.committed_ahead: tuple[tuple[Lsn, Lsn], ...] = ()
        try:
            self.facts: TargetFacts = ask(self.connection)
            self.facts.check_writable()
            self.may_replicate_role = self._replicate_role()
            if is_beside:
                plan.whereabouts.check(self.connection)
            else:
                self._lock()
                plan.whereabouts.settle(plan.lock)
                prepare_schema(self.connection, (PROGRESS_SQL, *plan.own_tables))
                self._find_position()
        except psycopg.Error as error:
            self.close()
            raise from_postgres(error, "the target can't be prepared", plan.dsn) from error
        except BaseException:
            self.close()
            raise

    @property
    def major(self) -> int:
        """The target's PostgreSQL."""
        return self.facts.major

    @property
    def dsn(self) -> str:
        """The target's connection string, password and all."""
        return self.plan.dsn

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, failed or not."""
        return self._pgconn.transaction_status not in (
            pq.TransactionStatus.IDLE,
            pq.TransactionStatus.UNKNOWN,
        )

    def close(self) -> None:
        """End the session; what is open is rolled back."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- transactions -------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction.

        Raises:
            psycopg.Error: the connection is gone.
        """
        self._run(b"BEGIN")

    def savepoint(self, name: str) -> None:
        """Define a savepoint; *name* is an identifier.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self._run(b"SAVEPOINT " + name.encode())

    def roll_back_to(self, name: str) -> None:
        """Take back everything since :meth:`savepoint`.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self._run(b"ROLLBACK TO SAVEPOINT " + name.encode())

    def release(self, name: str) -> None:
        """Forget a savepoint; what was written since :meth:`savepoint` stays.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self._run(b"RELEASE SAVEPOINT " + name.encode())

    def bound_lock_waits(self, milliseconds: int) -> None:
        """Have statements fail that wait longer for a lock; 0: none does. Between transactions.

        Raises:
            psycopg.Error: the target did not answer.
        """
        self._run(b"SET lock_timeout = %d" % milliseconds)

    def commit(self, head: Head) -> int:
        """Commit what is open, with *head*'s position; return the target's LSN behind it.

        Raises:
            psycopg.Error: it is not committed, or, when the connection broke, perhaps not.
        """
        lsn = lsn_of(self._run(self.commit_statements(head)))
        self.committed(head, lsn)
        return lsn

    def commit_statements(self, head: Head) -> bytes:
        """Return :meth:`commit`'s statements for the simple protocol; the last gives the LSN that
        :meth:`committed` takes.
        """
        # An LSN, a time and a quoted name.
        update = "UPDATE spillway.progress SET remote_lsn = '{}', commit_time = '{}' WHERE {}; "
        position = update.format(
            Lsn(head.end_lsn), _time(head), f"subscription = {self._literal()}"
        ).encode()
        return position + self._xact_setup(head) + b"COMMIT; " + _INSERT_LSN

    def position_query(self) -> bytes:
        """Return the statement that keeps a position, and marks the commit with it: the same for
        all commits, so that it may stay prepared. :meth:`position_values` are its parameters.
        """
        setup = _WITH_XACT_SETUP if self.uses_origin else b""
        return _MOVE + self._literal().encode() + setup

    def position_values(self, head: Head) -> tuple[bytes, bytes]:
        """Return *head*'s position as :meth:`position_query` takes it: both in the binary form."""
        return struct.pack(">Q", head.end_lsn), struct.pack(">q", head.commit_time)

    def prepare(self, head: Head, gid: str) -> int:
        """PREPARE TRANSACTION what is open, and then keep *head*'s position: a row in the prepared
        transaction would stay locked. One that comes again is told by its *gid*. Return the
        target's LSN behind it.

        Raises:
            psycopg.Error: as for commit.
        """
        literal = pq.Escaping(self._pgconn).escape_literal(gid.encode())
        self._run(self._xact_setup(head) + b"PREPARE TRANSACTION " + literal)
        return self.record(head)

    def finish_prepared(self, head: Head, gid: str, *, commit: bool) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED *gid*, and then keep *head*'s position.

        Raises:
            psycopg.Error: as for commit; UndefinedObject: there is no such prepared transaction.
        """
        literal = pq.Escaping(self._pgconn).escape_literal(gid.encode())
        statement = (b"COMMIT" if commit else b"ROLLBACK") + b" PREPARED " + literal
        if self.uses_origin:
            self._run(self._xact_setup(head))
        # It may not stand in one string with others.
        self._run(statement)
        self.record(head)

    def record(self, head: Head) -> int:
        """Keep *head*'s position in a transaction of its own; return the target's LSN behind it.

        Raises:
            psycopg.Error: as for commit.
        """
        self.begin()
        return self.commit(head)

    def committed(self, head: Head, local_lsn: int | None = None) -> None:
        """Hear that a transaction with *head*'s position is committed, and that the target's WAL
        ended at *local_lsn* after that; without it, that is asked for at the next look.
        """
        self.position = self.recorded = Lsn(head.end_lsn)
        now = time.monotonic()
        if local_lsn is not None:
            self._place(local_lsn)
            self._pending.append((head.end_lsn, local_lsn, now))
        else:
            since = now if self._unplaced is None else self._unplaced[1]
            self._unplaced = head.end_lsn, since

    def passed(self, end_lsn: int) -> None:
        """Hear that nothing before *end_lsn* is left to write, and nothing was written for it.

        The target does not have that position, so it is not flushed: a slot that were confirmed up
        to it would be taken for one that is ahead of a target which lost commits.
        """
        self.position = max(self.position, Lsn(end_lsn))

    # -- beside the one that applies ----------------------------------------------------------

    def join(self) -> None:
        """Share the lock of sessions that commit beside the one that applies, which must live.

        Raises:
            psycopg.Error: the connection is gone.
        """
        keys = [LANES_CLASS, self.plan.lock[1]]
        self.connection.execute("SELECT pg_catalog.pg_advisory_lock_shared(%s::int, %s::int)", keys)

    def commit_first(self, head: Head, *, tidies: bool) -> int:
        """Commit what is open, with *head*'s position: everything before it is committed. Return
        the end of the target's WAL after that.

        Args:
            head: the last source transaction in it.
            tidies: rows of ``spillway.committed`` that are behind it are deleted.

        Raises:
            psycopg.Error: as for commit.
        """
        tidy = ""
        if tidies:
            tidy = (
                f"DELETE FROM spillway.committed WHERE subscription = {self._literal()}"  # noqa: S608
                f" AND end_lsn <= '{Lsn(head.end_lsn)}'; "
            )
        return lsn_of(self._run(tidy.encode() + self.commit_statements(head)))

    def commit_ahead(self, head: Head, from_lsn: int) -> int:
        """Commit what is open before something that is earlier at the source, of which this begins
        at *from_lsn*. Return the end of the target's WAL after that.

        Raises:
            psycopg.Error: as for commit.
        """
        insert = (
            "INSERT INTO spillway.committed (subscription, from_lsn, end_lsn) VALUES"  # noqa: S608
            f" ({self._literal()}, '{Lsn(from_lsn)}', '{Lsn(head.end_lsn)}'); "
        )
        ended = insert.encode() + self._xact_setup(head) + b"COMMIT; " + _INSERT_LSN
        return lsn_of(self._run(ended))

    def find_committed_ahead(self) -> None:
        """Look for what lanes have committed ahead, move the position behind what is whole of it,
        and keep the rest in ``committed_ahead``.

        Raises:
            psycopg.Error: the connection is gone.
        """
        self.committed_ahead = ()
        row = self.connection.execute(
            "SELECT pg_catalog.to_regclass('spillway.committed') IS NOT NULL"
        ).fetchone()
        if row is None or not row[0]:
            return
        ahead: list[tuple[Lsn, Lsn]] = []
        for begin, end in self.connection.execute(
            "SELECT from_lsn::text, end_lsn::text FROM spillway.committed"
            " WHERE subscription = %s ORDER BY from_lsn",
            [self.subscription],
        ):
            from_lsn, end_lsn = Lsn.parse(begin), Lsn.parse(end)
            if from_lsn <= self.position:
                self.position = self.recorded = max(self.position, end_lsn)
                self._flushed = max(self._flushed, self.position)
            else:
                ahead.append((from_lsn, end_lsn))
        self.committed_ahead = tuple(ahead)

    def rollback(self) -> None:
        """Roll back what is open, and forget what was set up for its commit.

        Raises:
            psycopg.Error: the connection is gone.
        """
        if self.in_transaction:
            self._run(b"ROLLBACK")
        if self.uses_origin:
            # It is the session's, not the transaction's: the next commit would have it.
            self._run(b"SELECT pg_catalog.pg_replication_origin_xact_reset()")

    # -- what is durable ----------------------------------------------------------------------

    @property
    def flushed_lsn(self) -> Lsn:
        """What :meth:`flushed` last returned."""
        return self._flushed

    @property
    def awaits_flush(self) -> bool:
        """Whether :meth:`flushed` has something to ask for."""
        return bool(self._pending) or self._unplaced is not None

    def flushed(self) -> Lsn:
        """Return up to where at the source everything is durable on the target; call it between
        transactions.

        Raises:
            psycopg.Error: the connection is gone.
        """
        if not self.awaits_flush:
            return self._flushed
        if time.monotonic() - self._oldest() >= _FLUSH_AFTER_S:
            self._flush()
            return self._flushed
        ends = self._run(_ENDS)
        self._place(lsn_of(ends))
        local_lsn = lsn_of(ends, 1)
        while self._pending and self._pending[0][1] <= local_lsn:
            self._flushed = max(self._flushed, Lsn(self._pending.popleft()[0]))
        return self._flushed

    def _oldest(self) -> float:
        """When the oldest commit was that is not known to be flushed."""
        if self._pending:
            return self._pending[0][2]
        return time.monotonic() if self._unplaced is None else self._unplaced[1]

    def _place(self, local_lsn: int) -> None:
        """Take note that the target's WAL ended at *local_lsn* after what has no pair yet."""
        if self._unplaced is not None:
            end_lsn, since = self._unplaced
            self._unplaced = None
            self._pending.append((end_lsn, local_lsn, since))

    def flush(self) -> Lsn:
        """Have everything durable, and return :meth:`flushed`.

        Raises:
            psycopg.Error: the connection is gone.
        """
        if self.awaits_flush:
            self._flush()
        return self._flushed

    def _flush(self) -> None:
        """Have the target flush what was committed, by a commit that waits for it."""
        self._run(
            b"BEGIN; SET LOCAL synchronous_commit TO local;"
            # A commit waits only if its transaction wrote WAL before it: an xid alone is none.
            b" SELECT pg_catalog.pg_logical_emit_message(true, 'spillway', ''); COMMIT"
        )
        last = self._pending[-1][0] if self._unplaced is None else self._unplaced[0]
        self._flushed = max(self._flushed, Lsn(last))
        self._pending.clear()
        self._unplaced = None

    # -- the position -------------------------------------------------------------------------

    def _xact_setup(self, head: Head) -> bytes:
        if not self.uses_origin:
            return b""
        return (
            "SELECT pg_catalog.pg_replication_origin_xact_setup("
            f"'{Lsn(head.end_lsn)}', '{_time(head)}'); "
        ).encode()

    def _literal(self) -> str:
        # [a-z0-9_]{1,63}, as subscriptions are named; quoted all the same.
        return "'" + self.subscription.replace("'", "''") + "'"

    def _find_position(self) -> None:
        plan = self.plan
        with self.connection.transaction():
            row = self.connection.execute(
                "SELECT identity, origin, remote_lsn::text FROM spillway.progress"
                " WHERE subscription = %s",
                [plan.subscription],
            ).fetchone()
            if row is None:
                self.connection.execute(
                    "INSERT INTO spillway.progress (subscription, identity) VALUES (%s, %s)",
                    [plan.subscription, plan.identity],
                )
                row = plan.identity, None, "0/0"
        identity, origin, remote_lsn = row
        if identity != plan.identity:
            raise TargetInUse(
                f'the target keeps the position of another subscription "{plan.subscription}"',
                hint="Give this one another name. If the other one is gone for good, remove what "
                "it left, in the target's database: "
                + forget_sql(plan.subscription, origin, ("progress",)),
                subscription=plan.subscription,
            )
        self.position = self.recorded = self._flushed = Lsn.parse(remote_lsn)
        self.find_committed_ahead()
        if self.facts.may_use_origins:
            # Also where the row has it: neither a dump nor, before 17, pg_upgrade brings it along.
            origin = origin or plan.origin
            with self.connection.transaction():
                # Origins are the cluster's: one of a database that was dropped is there still.
                self.connection.execute(
                    "SELECT pg_catalog.pg_replication_origin_create(%s) WHERE NOT EXISTS"
                    " (SELECT FROM pg_catalog.pg_replication_origin WHERE roname = %s)",
                    [origin, origin],
                )
                self.connection.execute(
                    "UPDATE spillway.progress SET origin = %s"
                    " WHERE subscription = %s AND origin IS DISTINCT FROM %s",
                    [origin, plan.subscription, origin],
                )
        if origin is not None:
            self._use_origin(origin)

    def _use_origin(self, origin: str) -> None:
        if not self.facts.may_use_origins:
            raise TargetNotPermitted(
                f"the subscription has the replication origin {origin}, which the role "
                f"{self.facts.role} may not use any more",
                hint="As a superuser of the target: " + grant_origins_sql(self.facts.role),
            )
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                self.connection.execute(
                    "SELECT pg_catalog.pg_replication_origin_session_setup(%s)", [origin]
                )
                break
            except psycopg.errors.ObjectInUse as error:
                if time.monotonic() >= deadline:
                    raise TargetInUse(
                        f"another session uses the replication origin {origin}: "
                        f"{error.diag.message_primary}",
                        hint="End that session, or the program that it is of.",
                        subscription=self.subscription,
                    ) from error
                self._pause()
            except (
                psycopg.errors.ConfigurationLimitExceeded,
                psycopg.errors.ObjectNotInPrerequisiteState,  # there is room for none at all
            ) as error:
                setting = (
                    "max_active_replication_origins"
                    if self.facts.major >= _MAJOR_OF_ORIGINS_OWN_BOUND
                    else "max_replication_slots"
                )
                raise TargetOriginsExhausted(
                    f"the target has no room for the replication origin {origin}: "
                    f"{error.diag.message_primary}",
                    hint=f"Raise {setting} of the target and restart it: each subscription needs "
                    "one origin, and one more for each connection while tables are copied. "
                    + _ORIGINS_OF_OTHERS,
                    setting=setting,
                ) from error
        self.uses_origin = True

    # -- small things -------------------------------------------------------------------------

    def _replicate_role(self) -> bool:
        """Have triggers and foreign keys rest, as for PostgreSQL's worker, if the role may."""
        try:
            self.connection.execute("SET session_replication_role = replica")
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True

    def _lock(self) -> None:
        deadline = time.monotonic() + _LOCK_WAIT_S
        keys = list(self.plan.lock)
        while True:
            row = self.connection.execute(
                "SELECT pg_catalog.pg_try_advisory_lock(%s::int, %s::int)", keys
            ).fetchone()
            if row is not None and row[0]:
                self._await_lanes(deadline)
                return
            if time.monotonic() >= deadline:
                break
            self._pause()
        self._raise_in_use(keys)

    def _await_lanes(self, deadline: float) -> None:
        """Wait until no session of an earlier program commits any more."""
        keys = [LANES_CLASS, self.plan.lock[1]]
        while True:
            row = self.connection.execute(
                "SELECT pg_catalog.pg_try_advisory_lock(%s::int, %s::int)", keys
            ).fetchone()
            if row is not None and row[0]:
                self.connection.execute(
                    "SELECT pg_catalog.pg_advisory_unlock(%s::int, %s::int)", keys
                )
                return
            if time.monotonic() >= deadline:
                self._raise_in_use(keys)
            self._pause()

    def _pause(self) -> None:
        """Let some time go by before the next look whether others are gone."""
        if self.stop.wait(_LOCK_PAUSE_S):
            raise Stopped

    def _raise_in_use(self, keys: Sequence[int]) -> Never:
        pid = lock_holder(self.connection, keys)
        raise TargetInUse(
            f'another program applies the subscription "{self.subscription}": it holds its '
            f"advisory lock on the target (PID {pid} there)",
            hint="End that program. If it is gone, so is its session soon; at once by SELECT "
            f"pg_terminate_backend({pid});",
            subscription=self.subscription,
        )

    def _run(self, statements: bytes) -> pq.abc.PGresult:
        """Run statements by the simple protocol and return the last one's result."""
        result = self._pgconn.exec_(statements)
        if result.status not in _OK:
            raise psycopg.errors.error_from_result(result)
        return result


def connect_beside(
    plan: TargetPlan,
    application_name: str,
    settings: Mapping[str, str] | None = None,
    stop: Stop | None = None,
) -> psycopg.Connection[Any]:
    """Connect as :func:`connect_target`, beside the session that applies, on the same server.

    Raises:
        TargetMoved: it is another.
        TargetError: no connection; its subclass says why.
    """
    connection = connect_target(plan.dsn, application_name, settings, stop)
    try:
        plan.whereabouts.check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def forget_sql(subscription: str, origin: str | None, tables: Sequence[str]) -> str:
    """Return what removes everything that a subscription keeps on a target, but its rows."""
    literal = "'" + subscription.replace("'", "''") + "'"
    statements = []
    if origin is not None:
        name = "'" + origin.replace("'", "''") + "'"
        statements.append(f"SELECT pg_replication_origin_drop({name});")
    delete = "DELETE FROM spillway.{} WHERE subscription = {};"
    statements += [delete.format(name, literal) for name in tables]
    return " ".join(statements)


def grant_origins_sql(role: str) -> str:
    """Return what lets *role* keep positions in replication origins, from PostgreSQL 14 on."""
    functions = ", ".join(f"pg_catalog.{function}" for function in ORIGIN_FUNCTIONS)
    return f"GRANT EXECUTE ON FUNCTION {functions} TO {quote_identifier(role)};"


def lsn_of(result: pq.abc.PGresult, column: int = 0) -> Lsn:
    """Return the LSN that a commit's last statement gave."""
    value = result.get_value(0, column)
    return Lsn.parse((value or b"0/0").decode())


def _time(head: Head) -> str:
    return moment(head.commit_time).isoformat(sep=" ")
