"""Several connections to the target: groups that do not touch the same keys are written at the same
time.

::

    worker ─▶ submit(group) ─▶ lane 1: net ─▶ wait for blockers ─▶ statements ─▶ turn ─▶ COMMIT
                             ─▶ lane 2: net ─▶ wait for blockers ─▶ statements ─▶ turn ─▶ COMMIT
    worker ◀─ settle(): what is committed, in the source's order; what is to be written exactly

A lane is a thread with a connection. It finds out what its group comes to, and with it the set of
all keys that the group touches and all values that it takes of other unique indexes. When an
earlier group that is not committed yet touches one of them, too, it waits for that one's commit
before its first statement. So what runs at the same time touches different rows, and leaves what
one after the other would have left.

**Commits.** By order of the source, a group is committed when all before it are, so that nobody
sees a later one without an earlier one; its commit moves ``spillway.progress`` as always.
Relaxed, it is committed when its statements are done. One that is committed before an earlier one
leaves a row in ``spillway.committed`` instead, in the same commit: from where to where at the
source it reaches. The position is then as far as everything is committed, and whoever begins again
there passes over what these rows name.

A relaxed group waits for its turn all the same where keys are equal in other bytes than its own
(numeric's 1.0 and 1.00, a collation that folds case, an index on an expression): the set does not
tell them from others. Committed ahead, its row could meet an earlier group's DELETE of an equal
key. Until it is committed it is nobody else's, and who runs into its lock has it roll back.

**What is optimistic.** The set lacks the values that a change frees, because the stream does not
tell them. A group that needs one of these fails, or finds another count of rows. It is rolled back,
and tried once more when all before it are committed; if it fails again, it is no matter of order,
and the worker writes it change by change, when its turn has come.

**Waiting for each other.** A group that waits for its turn holds locks. If an earlier one runs into
them (by a value that was freed, or by whatever else the server locks), neither would go on, and the
server sees no deadlock, as one of them waits here. So who waits for its turn looks from time to
time whether an earlier one waits for him, rolls back if so, and is written after that.

A lane marks its commits with an origin of its own, as sessions that copy tables do: an origin is
one session's at a time. It holds a shared advisory lock (:meth:`TargetSession.join`): a program
that begins waits until nobody has that, so that no lane of a killed program still writes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway._kernels.apply.key_set import KeySet
from spillway._kernels.apply.netting import steps
from spillway.apply.grouped.writer import GroupedWriter, is_of_rows
from spillway.apply.sync.origins import mark
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.session import TargetSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spillway._kernels.apply.change_group import ChangeGroup
    from spillway.apply.changes import Step, Touched, TransactionHead
    from spillway.apply.grouped.writer import Plans
    from spillway.apply.tables.target_tables import TargetTables

_log = logging.getLogger(__name__)

#: after which a lane that waits for its turn looks whether it is in an earlier one's way
_LOOK_S: Final = 0.25
_IN_THE_WAY: Final = (
    "SELECT pg_catalog.bool_or(pg_catalog.pg_backend_pid()"
    " = ANY (pg_catalog.pg_blocking_pids(pid))) FROM unnest(%s::int[]) AS pid"
)


class State(Enum):
    """Of a group that was submitted."""

    WORKING = "working"
    #: committed, or there was nothing to write
    DONE = "done"
    #: rolled back: the worker has to write it exactly, when all before it are done
    DECLINED = "declined"
    #: see ``error``; rolled back, or nobody knows
    FAILED = "failed"


@dataclass(eq=False, slots=True)
class Submitted:
    """A group on its way."""

    group: ChangeGroup
    plans: Plans
    touched: Sequence[Touched]
    head: TransactionHead
    #: where what is before it ends at the source
    from_lsn: int
    #: those that were not settled when it came; () when it is finished
    before: tuple[Submitted, ...] = ()
    state: State = State.WORKING
    keys: KeySet = field(default_factory=KeySet)
    #: whether ``keys`` has all; what can't be netted touches everything
    is_netted: bool = False
    touches_all: bool = False
    #: oids of tables, one for all that foreign keys join
    joined: frozenset[int] = frozenset()
    #: whether it is committed when all before it are
    in_turn: bool = True
    #: the target's WAL after its commit; None: nothing was written
    local_lsn: int | None = None
    error: BaseException | None = None

    def touches(self, other: Submitted) -> bool:
        """Say whether it and *other* may not be written at the same time."""
        return (
            self.touches_all
            or other.touches_all
            or not self.joined.isdisjoint(other.joined)
            or self.keys.overlaps(other.keys)
        )


class Lanes:
    """Connections, each with a thread; used by the worker's thread.

    Args:
        main: the worker's session, which knows the position.
        tables: the target's.
        number: of connections; fewer if the target has no room for their origins.
        in_order: commits are in the source's order.
        wake: called when something is settled, on a lane's thread.

    Attributes:
        submitted: groups, of this run.
        waited: how many of them waited for an earlier one's commit before their first statement.
        again: how many were rolled back and tried again after those before them.

    Raises:
        TargetError: a connection could not be made.
    """

    def __init__(
        self,
        main: TargetSession,
        tables: TargetTables,
        number: int,
        *,
        in_order: bool,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._main = main
        self._in_order = in_order
        self._wake = wake
        self.submitted = self.waited = self.again = 0
        self._changed = threading.Condition()
        #: those that are not settled, in the source's order
        self._flight: deque[Submitted] = deque()
        self._abandoned = False
        self._closed = False
        self._local_lsn = 0
        self._lanes: list[_Lane] = []
        sessions: list[TargetSession] = []
        try:
            for _ in range(number):
                session = _session(main)
                if session is None:
                    _log.warning("the target has no room for one more replication origin")
                    break
                sessions.append(session)
            # Only who has the subscription's lock until here may have lanes: see the session.
            main.connection.execute("SELECT")
            # All origins are there by now, which their writers look for.
            self._lanes = [_Lane(self, session, tables) for session in sessions]
        except psycopg.Error as error:
            for session in sessions:
                session.close()
            raise from_postgres(error, "the target can't be prepared", main.dsn) from error
        except BaseException:
            for session in sessions:
                session.close()
            raise
        #: oids of the target's tables to one of all that foreign keys join with it
        self._joined: dict[int, int] = {}
        self.look_at_foreign_keys()
        self._pids = [main.connection.info.backend_pid, *(lane.pid for lane in self._lanes)]
        for lane in self._lanes:
            lane.start()

    def look_at_foreign_keys(self) -> None:
        """Learn which tables foreign keys join: what is relaxed keeps the order among them, as
        nobody shall see a row without the one that it refers to.

        Raises:
            psycopg.Error: the target did not answer.
        """
        if self._in_order:
            return
        joined: dict[int, int] = {}
        for one, other in self._main.connection.execute(
            "SELECT conrelid::int8, confrelid::int8 FROM pg_catalog.pg_constraint"
            " WHERE contype = 'f'"
        ):
            kept, gone = joined.get(one, one), joined.get(other, other)
            joined |= {table: kept for table, of in joined.items() if of == gone}
            joined[one] = joined[other] = kept
        self._joined = joined

    @property
    def number(self) -> int:
        """How many there are; 0 if the target has no room for any."""
        return len(self._lanes)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way, nor waits to be settled."""
        return not self._flight

    @property
    def has_room(self) -> bool:
        """Whether one more may be submitted."""
        return len(self._flight) < len(self._lanes)

    def submit(
        self, group: ChangeGroup, plans: Plans, touched: Sequence[Touched], head: TransactionHead
    ) -> None:
        """Have a group written; there must be room."""
        with self._changed:
            before = self._flight[-1].head.end_lsn if self._flight else self._main.position
            written = [plan.target for _, plan in plans.values()]
            joined = frozenset(self._joined[one] for one in written if one in self._joined)
            one = Submitted(
                group,
                plans,
                touched,
                head,
                int(before),
                tuple(self._flight),
                joined=joined,
                in_turn=self._in_order
                or not all(table.keys_by_bytes for table, _ in plans.values()),
            )
            self._flight.append(one)
            lane = next(lane for lane in self._lanes if lane.work is None)
            lane.work = one
            self.submitted += 1
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until the first that is on its way is not any more, or there is room."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._flight or self._flight[0].state is not State.WORKING, timeout_s
            )

    def settle(self, write_exactly: Callable[[ChangeGroup], None]) -> list[Submitted]:
        """Tell the worker's session of what is committed, in the source's order; have what is
        declined written exactly when its turn has come. Return what was settled.

        Raises:
            TargetError: a lane's; nothing is settled behind it.
        """
        settled: list[Submitted] = []
        while self._flight:
            one = self._flight[0]
            if one.state is State.WORKING:
                break
            if one.state is State.FAILED:
                assert one.error is not None
                raise one.error
            if one.state is State.DECLINED:
                write_exactly(one.group)
                with self._changed:
                    one.state = State.DONE
                    self._changed.notify_all()
            elif one.local_lsn is None:
                self._main.passed(one.head.end_lsn)
            else:
                self._local_lsn = max(self._local_lsn, one.local_lsn)
                self._main.committed(one.head, self._local_lsn)
            with self._changed:
                self._flight.popleft()
                # Nobody is behind it any more.
                self._changed.notify_all()
            settled.append(one)
        return settled

    def abandon(self) -> None:
        """Have everything that is not committed yet rolled back, and forget it."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(lane.work is None for lane in self._lanes))
            while self._flight and self._flight[0].state is State.DONE:
                one = self._flight.popleft()
                if one.local_lsn is not None:
                    self._local_lsn = max(self._local_lsn, one.local_lsn)
                    self._main.committed(one.head, self._local_lsn)
            self._flight.clear()
            self._abandoned = False

    def close(self) -> None:
        """End all of them; what is not committed is rolled back."""
        with self._changed:
            self._closed = self._abandoned = True
            self._changed.notify_all()
        for lane in self._lanes:
            lane.join()

    # -- on the lanes' threads ----------------------------------------------------------------

    def next_work(self, lane: _Lane) -> Submitted | None:
        with self._changed:
            self._changed.wait_for(lambda: lane.work is not None or self._closed)
            return None if self._closed else lane.work

    def finished(self, lane: _Lane, one: Submitted, state: State) -> None:
        with self._changed:
            one.state = state
            one.before = ()
            lane.work = None
            self._changed.notify_all()
        self._wake()

    def netted(self, one: Submitted) -> None:
        with self._changed:
            one.is_netted = True
            self._changed.notify_all()

    def wait_for_blockers(self, one: Submitted) -> None:
        """Wait for the commit of every earlier group that touches what this one does.

        Raises:
            _AbandonedError: none of it counts any more.
        """
        with self._changed:
            self._wait(lambda: all(other.is_netted for other in one.before))
        blockers = [other for other in one.before if one.touches(other)]
        if not blockers:
            return
        with self._changed:
            self.waited += 1
            self._wait(lambda: all(other.state is State.DONE for other in blockers))

    def is_first(self, one: Submitted) -> bool:
        """Whether everything before it is done."""
        with self._changed:
            return all(other.state is State.DONE for other in one.before)

    def wait_for_turn(self, one: Submitted, connection: psycopg.Connection[Any] | None) -> bool:
        """Wait until everything before it is done; return False if it is in the way of that.

        Args:
            one: the group.
            connection: where its transaction is open; None if there is none.

        Raises:
            _AbandonedError: none of it counts any more.
            psycopg.Error: the connection broke.
        """
        while True:
            with self._changed:
                if self._wait(
                    lambda: all(other.state is State.DONE for other in one.before),
                    None if connection is None else _LOOK_S,
                ):
                    return True
            assert connection is not None
            row = connection.execute(_IN_THE_WAY, [self._pids]).fetchone()
            if row is not None and row[0]:
                return False

    @property
    def in_order(self) -> bool:
        return self._in_order

    def _wait(self, reached: Callable[[], bool], timeout_s: float | None = None) -> bool:
        found = self._changed.wait_for(lambda: self._abandoned or reached(), timeout_s)
        if self._abandoned:
            raise _AbandonedError
        return found


class _AbandonedError(Exception):
    """What is on its way does not count any more."""


class _Lane(threading.Thread):
    """A connection, and who writes on it."""

    def __init__(self, lanes: Lanes, session: TargetSession, tables: TargetTables) -> None:
        super().__init__(name="lane", daemon=True)
        self._lanes = lanes
        self._session = session
        self.pid = session.connection.info.backend_pid
        self._writer = GroupedWriter(session, tables)
        #: under the lanes' lock
        self.work: Submitted | None = None

    def join(self, timeout: float | None = None) -> None:
        if self.ident is not None:
            super().join(timeout)
        self._session.close()

    def run(self) -> None:
        while (one := self._lanes.next_work(self)) is not None:
            try:
                state = self._write(one)
            except _AbandonedError:
                state = State.FAILED
                try:
                    self._writer.give_up()
                except psycopg.Error as error:
                    one.error = error
            except psycopg.Error as error:
                state = State.FAILED
                one.error = from_postgres(
                    error, "a group of transactions can't be applied", self._session.dsn
                )
            except BaseException as error:  # noqa: BLE001 - raised on the worker's thread
                state = State.FAILED
                one.error = error
            finally:
                self._lanes.netted(one)
            self._lanes.finished(self, one, state)

    def _write(self, one: Submitted) -> State:
        lanes = self._lanes
        made = steps(one.group, {r: plan for r, (_, plan) in one.plans.items()}, one.keys)
        one.touches_all = made is None
        lanes.netted(one)
        if made is None:
            return State.DECLINED
        if not made:
            return State.DONE
        lanes.wait_for_blockers(one)
        while True:
            alone = lanes.is_first(one)
            if self._is_written(one, made):
                if not one.in_turn or lanes.wait_for_turn(one, self._session.connection):
                    break
                self._writer.give_up()
            elif alone:
                return State.DECLINED
            # The next time it is alone.
            lanes.again += 1
            lanes.wait_for_turn(one, None)
        try:
            self._commit(one)
        except psycopg.Error as error:
            # A deferred constraint speaks at the commit.
            self._writer.give_up()
            if not is_of_rows(error):
                raise
            lanes.wait_for_turn(one, None)
            return State.DECLINED
        return State.DONE

    def _is_written(self, one: Submitted, made: Sequence[Step]) -> bool:
        """Write into an open transaction; otherwise nothing is left of it."""
        try:
            if not self._writer.attempt(made, one.plans):
                return True
        except psycopg.Error as error:
            self._writer.give_up()
            if not is_of_rows(error):
                raise
            return False
        self._writer.give_up()
        self._writer.look_for_origins()
        return False

    def _commit(self, one: Submitted) -> None:
        lanes = self._lanes
        if lanes.in_order or lanes.is_first(one):
            one.local_lsn = self._session.commit_first(one.head, tidies=not lanes.in_order)
        else:
            one.local_lsn = self._session.commit_ahead(one.head, one.from_lsn)


def _session(main: TargetSession) -> TargetSession | None:
    """Connect; None when the target has no room for an origin, which *main* has."""
    session = TargetSession(main.plan, main.stop, is_beside=True)
    try:
        session.join()
        if main.uses_origin:
            if not mark(session.connection, main.plan.origin):
                session.close()
                return None
            session.uses_origin = True
    except psycopg.Error as error:
        session.close()
        raise from_postgres(error, "the target can't be prepared", main.dsn) from error
    except BaseException:
        session.close()
        raise
    return session
