"""One transaction that is in progress on the source, applied on a connection of its own.

A thread takes stretches from a queue that is bounded in bytes, and writes them change by change,
pipelined, into one transaction of the target. Before the first change of a subtransaction there is
a savepoint of its name; when it aborts, the target rolls back to that, which takes back whatever
came after it, too: that is its own, or its subtransactions'.

It is optimistic. The commit's LSN and time aren't known yet, so no conflict could be resolved or
told; another transaction of ours may have to commit before this one can go on. So whatever is not
as expected, such as a lock that is waited for longer than :data:`LOCK_WAIT_MS`, rolls the
transaction back, and it is *left*: at its end it comes whole, and is written as any other is.

The connection has an origin of the subscription's, as those that copy tables have: a subscription
in the other direction looks at each row's.

Source: src/backend/replication/logical/applyparallelworker.c (pa_start_subtrans, pa_stream_abort)
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.changes import Touched
from spillway.apply.exact.two_phase import PreparedTransactions
from spillway.apply.exact.writer import CHUNK_CHANGES, ExactOptions, ExactWriter
from spillway.apply.sync.origins import mark
from spillway.apply.tables.target_tables import TargetTables
from spillway.apply.target.session import TargetSession
from spillway.apply.target.stop import cancel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spillway.apply.changes import Change, SourceRelation, TransactionHead
    from spillway.apply.conflicts.log import ConflictLog
    from spillway.apply.tables.matching import Rename
    from spillway.apply.target.session import TargetPlan
    from spillway.apply.target.stop import Stop

_log = logging.getLogger(__name__)

#: PostgreSQL finds deadlocks after a second; that two connections of ours wait for one another it
#: can't see, as one of them waits for the stream.
LOCK_WAIT_MS: Final = 1000
_QUEUE_BYTES: Final = 8 << 20
_GROUP_BYTES: Final = 1 << 20
#: Each costs the target memory until the transaction ends.
_SAVEPOINTS_MAX: Final = 10_000
_CLOSING_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class BesidePlan:
    """What each of them is made with.

    Attributes:
        target: of the subscription's sessions.
        stop: ends their sessions, as it ends the subscription's.
        uses_origin: the subscription's session has one, so these need one.
        rename: the name on the target of a (schema, table) of the source.
        merging: whether ``schema.table`` of the target is merged column by column.
        should_apply: of a table and a commit's LSN.
        log: is not written to: conflicts are told when the transaction has ended.
    """

    target: TargetPlan
    stop: Stop
    uses_origin: bool
    rename: Rename
    merging: Callable[[str], bool]
    should_apply: Callable[[SourceRelation, int], bool]
    log: ConflictLog


class _Left(Exception):
    """The transaction is not gone on with; says why."""


class Beside:
    """A transaction in progress. Made, fed and ended on the worker's thread.

    Attributes:
        xid: the source's.
    """

    def __init__(self, xid: int, plan: BesidePlan) -> None:
        self.xid = xid
        self._plan = plan
        self._queue: deque[tuple[bytes, bytes] | int] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_all = False
        self._closed = False
        self._why_left = ""
        self._session: TargetSession | None = None
        #: subtransactions that have a savepoint, in their order, and what changed since each; the
        #: first is the transaction itself
        self._levels: list[tuple[int, dict[SourceRelation, list[int]]]] = [(xid, {})]
        self._begun = {xid}
        self._thread = threading.Thread(target=self._run, name=f"in progress {xid}", daemon=True)
        self._thread.start()

    @property
    def why_left(self) -> str:
        """Why it is not gone on with; "" while it is."""
        with self._changed:
            return self._why_left

    # -- the worker's thread ------------------------------------------------------------------

    def stretch(self, payload: bytes, lengths: bytes) -> None:
        """Have a stretch's messages written; waits while too much waits already."""
        with self._changed:
            self._changed.wait_for(lambda: self._why_left or self._bytes < _QUEUE_BYTES)
            if not self._why_left:
                self._queue.append((payload, lengths))
                self._bytes += len(payload)
                self._changed.notify_all()

    def abort_subtransaction(self, sub_xid: int) -> None:
        """Have what a subtransaction wrote taken back."""
        with self._changed:
            self._queue.append(sub_xid)
            self._changed.notify_all()

    def is_written(self) -> bool:
        """Wait until all that was given is written; return False if it is left."""
        with self._changed:
            self._is_all = True
            self._changed.notify_all()
        self._thread.join()
        return not self.why_left

    def commit(self, head: TransactionHead) -> int:
        """Commit what :meth:`is_written`, with its position; return the target's LSN behind it.

        Raises:
            psycopg.Error: it is not committed, or, when the connection broke, perhaps not.
        """
        assert self._session is not None
        return self._session.commit(head)

    def prepare(self, head: TransactionHead) -> int:
        """PREPARE TRANSACTION what :meth:`is_written`, and then keep its position; return the
        target's LSN behind it.

        Raises:
            TargetTwoPhaseDisabled: the target takes no prepared transactions, or no more.
            psycopg.Error: it is not prepared, or, when the connection broke, perhaps not.
        """
        assert self._session is not None
        return PreparedTransactions(self._session).prepare(head)

    def touched(self) -> list[Touched]:
        """What it changes, without what was taken back; once it :meth:`is_written`."""
        total: dict[SourceRelation, list[int]] = {}
        for _, counts in self._levels:
            for relation, numbers in counts.items():
                there = total.setdefault(relation, [0, 0, 0, 0])
                for i, number in enumerate(numbers):
                    there[i] += number
        return [Touched(relation, *numbers) for relation, numbers in total.items()]

    def close(self) -> None:
        """End it; what is not committed is rolled back when this returns, if the target answers."""
        with self._changed:
            self._closed = True
            session = self._session
            self._changed.notify_all()
        if session is not None and self._thread.is_alive():
            cancel(session.connection)
        self._thread.join(_CLOSING_S)
        if session is not None and not session.connection.closed:
            if not self._thread.is_alive():
                with suppress(psycopg.Error):
                    session.rollback()
            session.close()

    # -- its own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            session = self._connected()
            writer = ExactWriter(
                session,
                TargetTables(self._plan.rename, self._plan.merging),
                ExactOptions(),
                self._plan.log,
                self._plan.should_apply,
            )
            session.begin()
            self._write_all(writer)
        except Exception as error:  # noqa: BLE001 - it comes again, and fails there if it must
            self._leave(error)

    def _connected(self) -> TargetSession:
        session = TargetSession(self._plan.target, self._plan.stop, is_beside=True)
        with self._changed:
            self._session = session
        # The next program waits until this one's COMMIT, if it is on its way, is done or is not.
        session.join()
        if self._plan.uses_origin:
            if not mark(session.connection, self._plan.target.origin):
                raise _Left("no replication origin is free on the target")
            session.uses_origin = True
        session.bound_lock_waits(LOCK_WAIT_MS)
        return session

    def _leave(self, error: Exception) -> None:
        with self._changed:
            closed = self._closed
            self._why_left = " ".join(str(error).split()) or type(error).__name__
            self._queue.clear()
            self._bytes = 0
            session = self._session
            self._changed.notify_all()
        if not closed:
            _log.info(
                "transaction %d is not applied while it is in progress: %s", self.xid, self.why_left
            )
        # Its locks are free from now on.
        if session is not None:
            session.close()

    def _write_all(self, writer: ExactWriter) -> None:
        group = ChangeGroup(_GROUP_BYTES)
        while (item := self._next()) is not None:
            if isinstance(item, int):
                self._roll_back_to(item)
                continue
            payload, lengths = item
            taken, count = 0, len(lengths) // 4
            while taken < count:
                taken = group.feed(payload, lengths, taken)
                if group.is_full:
                    for unit, head in enumerate(group.heads()):
                        self._write(writer, head, group.changes(unit))
                    group.clear()

    def _next(self) -> tuple[bytes, bytes] | int | None:
        """The next of what was given; None when it is all."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_all or self._closed)
            if self._closed:
                raise _Left("it is ended")
            if not self._queue:
                return None
            item = self._queue.popleft()
            if not isinstance(item, int):
                self._bytes -= len(item[0])
            self._changed.notify_all()
            return item

    def _write(self, writer: ExactWriter, head: TransactionHead, changes: Iterator[Change]) -> None:
        """Write changes, with a savepoint before the first of each subtransaction."""
        run: list[Change] = []

        def write() -> None:
            if run and not writer.write_as_expected(head, run):
                raise _Left("something is in the way of its rows")
            run.clear()

        for change in changes:
            if change.xid not in self._begun:
                write()
                self._begin_subtransaction(change.xid)
            self._count(change)
            run.append(change)
            if len(run) >= CHUNK_CHANGES:
                write()
        write()

    def _begin_subtransaction(self, xid: int) -> None:
        if len(self._levels) > _SAVEPOINTS_MAX:
            raise _Left(f"it has more than {_SAVEPOINTS_MAX} subtransactions")
        assert self._session is not None
        self._session.savepoint(f"s{xid}")
        self._levels.append((xid, {}))
        self._begun.add(xid)

    def _roll_back_to(self, xid: int) -> None:
        """Take back what a subtransaction wrote, if it wrote anything."""
        for i in range(len(self._levels) - 1, 0, -1):
            if self._levels[i][0] == xid:
                assert self._session is not None
                self._session.roll_back_to(f"s{xid}")
                self._begun -= {level for level, _ in self._levels[i:]}
                del self._levels[i:]
                return

    def _count(self, change: Change) -> None:
        counts = self._levels[-1][1]
        place = "IUDT".find(change.kind)
        if place >= 0:
            for relation in change.truncated if change.relation is None else (change.relation,):
                counts.setdefault(relation, [0, 0, 0, 0])[place] += 1
