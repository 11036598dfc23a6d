"""Current tables that are merged at a pace of their own (``--merge-interval``), beside the batches.

::

    a batch ──▶ history: appended, durable ──▶ slot confirmed     no table waits for another's merge
                   │ what waits, by table (state/waiting)
    every interval ▼
    a round, as of the lake's position L:                         on threads
                   │ history [current, L) ──net effect──▶ current, as of L
                   ▼ all of the round
    the point at L, and those after it to which nothing was added: these tables are as of them

**What is durable is as ever.** History has everything before the slot is confirmed, current says
for itself up to where it goes, and both are compared to find what is to be done: a merge that is
killed is begun again.

**Points.** A point (:mod:`spillway.lake.state.commit_points`) names the tables that are behind at
it. A round takes with it every table that waits and whose interval is not longer than one that is
due: so the slowest table's rounds bring all tables to one LSN, and its pace is that of the LSNs at
which all agree. A batch that ends at an LSN that somebody asked for (``lake verify``) merges what
it has, and what waits, at once.

A round ends with its slowest table, and much may come of the others meanwhile. What a batch merges
itself waits no more, though a round has it yet: its shape may be another one from there on, and it
never was as of the round's L. Points after L are told of a table to which nothing came since.

**What is merged with its batch all the same:** the first changes of a table, which make its current
table; changes in another shape than those that wait, which are merged with them; what comes back
from quarantine; and a table whose merge has failed, so that what is the matter with it is found
where tables are set aside.

Bound: :data:`_AT_ONCE` merges; for each table that waits, its shape and the times of
:data:`_TIMES_MAX` batches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from spillway.declarations.tables import ALL
from spillway.failpoints import failpoint
from spillway.lake.batch.catch_up import Behind, catch_up, catch_up_directly
from spillway.lake.shape.changes import shape_from_text, shape_text
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.state import commit_points, waiting
from spillway.lake.state.loads import is_loading, merge_lock, table_lock
from spillway.lake.state.quarantine import quarantined
from spillway.lake.state.shown_tables import shown_tables
from spillway.lake.state.waiting import Waiting
from spillway.lake.tables.contract import Batch
from spillway.lake.worker_failures.errors import typed_error
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from spillway.lake.batch.plan import TableBatch
    from spillway.lake.tables.contract import LakeTables
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

#: Merges beside the batches: planning and committing is work of one thread each.
_AT_ONCE: Final = 2
_LOOK_S: Final = 0.2
#: Of a table that waits, batches whose oldest commit is remembered.
_TIMES_MAX: Final = 1000
#: of a merge that is no batch's
_NO_BATCH: Final = -1


@dataclass(slots=True)
class _Table:
    """A table that waits."""

    state: Waiting
    #: when its last merge began, or it began to wait without one, of the monotonic clock
    merged_at: float
    #: of each batch, where it ends and its oldest commit's time; the oldest first
    times: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=_TIMES_MAX))
    #: a merge is at it
    merging: bool = False
    #: its last merge failed: the next batch is to do it
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge beside the batches, for people."""

    table: str
    lsn: Lsn
    seconds: float

    def __str__(self) -> str:
        return f"merged {self.table} up to {self.lsn}, {self.seconds:.1f} s"


class Pace:
    """One lake's tables that wait, and what merges them; a context manager, at whose end a merge at
    hand is finished. Batches are one thread's.
    """

    def __init__(
        self,
        tables: LakeTables,
        path: LakePath,
        slot_name: str,
        lsn: int,
        intervals: Mapping[str, float],
        *,
        tell: Callable[[object], None] = lambda _: None,
        waits: Callable[[str, datetime | None], None] = lambda _name, _since: None,
    ) -> None:
        """Take up what waits in the lake.

        Args:
            tables: the lake's.
            path: the lake's.
            slot_name: the slot's.
            lsn: the lake's position.
            intervals: seconds by ``schema.table``, or all; 0: with each batch.
            tell: called with each merge, on any thread.
            waits: called, on any thread, when a table begins to wait or the oldest change that
                waits is another one; with None when it waits no more.
        """
        self._tables = tables
        self._path = path
        self._slot = slot_name
        self._lsn = lsn
        self._intervals = intervals
        self._tell = tell
        self._waits = waits
        self._shown = shown_tables(path)
        self._lock = threading.Lock()
        now = time.monotonic()
        self._waiting = {
            name: _Table(state, now, deque([(lsn, state.since)], maxlen=_TIMES_MAX))
            for name, state in waiting.load(path).items()
        }
        self._stored = {name: table.state for name, table in self._waiting.items()}
        #: where the newest batch ended that had something of a table
        self._newest: dict[str, int] = {}
        #: held while a point is published, and while points are told of merges
        self._points = threading.Lock()
        self._rounds: set[threading.Thread] = set()
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(_AT_ONCE, "spillway-lake-pace")
        self._thread = threading.Thread(target=self._keep, name="spillway-lake-pace-rounds")

    def __enter__(self) -> Self:
        for table in self._waiting.values():
            self._waits(table.state.table, _time(table.state.since))
        if self._waiting or any(self._intervals.values()):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._threads.shutdown(cancel_futures=True)
        for each in tuple(self._rounds):
            each.join()

    def interval(self, table: str) -> float:
        """Return how long a table waits, in seconds; 0: not at all."""
        return self._intervals.get(table, self._intervals.get(ALL, 0.0))

    def defers(self, part: TableBatch) -> bool:
        """Say whether a table's part of a batch is only appended to its history."""
        if not self.interval(part.relation.name) or not part.is_whole or part.key is None:
            return False
        shapes, base = part.shapes, part.base
        if len(shapes) > 1 or base is None or base.facts != shapes[0].facts:
            return False
        name = part.relation.directory
        with self._lock:
            table = self._waiting.get(name)
            if table is not None and table.failed:
                return False
        return self._tables.durable_lsn(CURRENT, name) > 0 and self._tables.key(name) == part.key

    def deferred(self, part: TableBatch, oldest: datetime) -> None:
        """Hear that a part is in history and not in current; *oldest* is its first commit's time.

        It is durable by the next :meth:`store`.
        """
        name, since = part.relation.directory, oldest.isoformat()
        with self._lock:
            table = self._waiting.get(name)
            is_new = table is None
            if table is None:
                state = Waiting(
                    part.relation.name,
                    shape_text(part.shapes[0]),
                    part.is_key_deferrable,
                    since,
                )
                table = self._waiting[name] = _Table(state, time.monotonic())
            elif part.is_key_deferrable and not table.state.key_deferrable:
                table.state = replace(table.state, key_deferrable=True)
            if len(table.times) == _TIMES_MAX:
                # What is not told apart counts as the older one.
                _, before = table.times.popleft()
                table.times[0] = (table.times[0][0], before)
            table.times.append((part.batch.end_lsn, since))
        if is_new:
            self._waits(part.relation.name, oldest)

    def heard(self, names: Iterable[str], lsn: int) -> None:
        """Hear that a batch up to *lsn* has something of tables, wherever it was written; before
        its point is there.
        """
        with self._lock:
            self._newest.update(dict.fromkeys(names, lsn))

    def merged(self, names: Iterable[str]) -> None:
        """Hear that a batch has brought tables to its own end."""
        with self._lock:
            # A round that has one yet finds nothing to be done.
            popped = [self._waiting.pop(name, None) for name in names]
        for table in popped:
            if table is not None:
                self._waits(table.state.table, None)

    def store(self) -> None:
        """Make durable what waits, before the slot is confirmed."""
        with self._lock:
            states = {name: table.state for name, table in self._waiting.items()}
        if states != self._stored:
            waiting.store(self._path, states)
            self._stored = states

    def key_deferrable(self, name: str) -> bool:
        """Say whether two rows of a table may have one key within a transaction that waits."""
        with self._lock:
            return name in self._waiting and self._waiting[name].state.key_deferrable

    @contextmanager
    def behind(self) -> Iterator[list[str]]:
        """Yield the directories of the tables that wait, for the point that is published in the
        block.
        """
        with self._points:
            with self._lock:
                names = sorted(self._waiting)
            yield names

    def reached(self, lsn: int) -> None:
        """Hear that the lake's position is *lsn*, of which there is a point."""
        self._lsn = lsn

    def settle(self, upto: int) -> list[str]:
        """Merge all that waits up to *upto*, which is durable in all histories; return, when that
        is done, what is the matter with tables that could not be.
        """
        while True:
            with self._lock:
                names = [name for name, table in self._waiting.items() if not table.merging]
                at_work = len(names) < len(self._waiting)
                for name in names:
                    self._waiting[name].merging = True
            failed = self._round(names, upto)
            if not at_work:
                return failed
            time.sleep(_LOOK_S)

    def _keep(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self._rounds = {each for each in self._rounds if each.is_alive()}
            if names := self._due():
                # Not here: the next ones may be due before these are done.
                work = partial(self._round, names, self._lsn)
                each = threading.Thread(target=work, name="spillway-lake-round")
                self._rounds.add(each)
                each.start()

    def _due(self) -> list[str]:
        """Return the tables whose merges are due, and those that go with them, as being merged."""
        now = time.monotonic()
        with self._lock:
            due = [
                self.interval(table.state.table)
                for table in self._waiting.values()
                if not table.merging and now - table.merged_at >= self.interval(table.state.table)
            ]
            if not due:
                return []
            names = [
                name
                for name, table in self._waiting.items()
                if not table.merging and self.interval(table.state.table) <= max(due)
            ]
            for name in names:
                self._waiting[name].merging = True
        return names

    def _round(self, names: Collection[str], lsn: int) -> list[str]:
        """Merge tables up to *lsn*; return what is the matter with those that could not be."""
        if not names:
            return []
        merged, failed = [], []
        try:
            merges = [(name, self._threads.submit(self._merge, name, lsn)) for name in names]
        except RuntimeError:
            # The end was asked for: the next run finds what waits.
            return []
        for name, merge in merges:
            try:
                if merge.result():
                    merged.append(name)
            except CancelledError:
                continue
            except BaseException as error:  # noqa: BLE001 - the next batch finds what is the matter
                failed.append(self._failed(name, error))
        if merged:
            failpoint("lake.before_caught_up")
            # What is set aside has more changes than its history.
            merged = [name for name in merged if name not in quarantined(self._path)]
            with self._points:
                with self._lock:
                    ever = [
                        name
                        for name in merged
                        if name not in self._waiting and self._newest.get(name, 0) <= lsn
                    ]
                commit_points.caught_up(self._path, lsn, merged, ever)
        return failed

    def _failed(self, name: str, error: BaseException) -> str:
        """Leave a table to the next batch; return what is the matter."""
        with self._lock:
            # What a batch has merged meanwhile is all right.
            if (table := self._waiting.get(name)) is not None:
                table.merging, table.failed, table.merged_at = False, True, time.monotonic()
        known = name if table is None else table.state.table
        typed = typed_error(error, what=f"merging {known} failed", hint="")
        why = f"{known} is not merged: {typed.message.rstrip('.')}. {typed.hint}"
        _log.warning("%s", why.strip())
        return why.strip()

    def _merge(self, name: str, lsn: int) -> bool:
        """Bring a table up to *lsn*; return whether it is as of that, neither further nor
        somebody's who loads it.
        """
        with merge_lock(self._path, name):
            began = time.monotonic()
            with self._lock:
                if (table := self._waiting.get(name)) is None:
                    return False
                # Of what waits now: a batch may have merged what did when the round began.
                state = table.state
                table.merged_at = began
            with table_lock(self._path, name):
                loading = is_loading(self._path, name)
            start = self._tables.durable_lsn(CURRENT, name)
            # What a table was set aside for may be in its history, in another shape.
            aside = quarantined(self._path).get(name)
            upto = lsn if aside is None else min(lsn, aside.lsn_value)
            # Never ahead of its history, which says where a table in quarantine stopped.
            # A plain number, as Spark takes it: an Lsn prints otherwise.
            end = int(min(upto, self._tables.durable_lsn(HISTORY, name)))
            if not loading and start < end:
                failpoint("lake.before_own_merge")
                self._bring(name, state, Batch(self._slot, start, end, _NO_BATCH))
                failpoint("lake.after_own_merge")
                self._tell(Merged(state.table, Lsn(end), time.monotonic() - began))
            # All that history has before that: nothing more was to be merged.
            self._done(name, max(start, lsn))
        return not loading and start <= lsn

    def _bring(self, name: str, state: Waiting, batch: Batch) -> None:
        key = self._tables.key(name)
        assert key is not None  # it was there when it began to wait
        shape = shape_from_text(state.shape, (batch.start_lsn, 0))
        softly = self._shown.softly(state.table)
        behind = Behind(name, state.table, key, shape, state.key_deferrable, softly)
        if not catch_up_directly(self._tables, behind, batch):
            catch_up(self._tables, behind, batch)

    def _done(self, name: str, lsn: int) -> None:
        """Note that a table is as of *lsn*."""
        with self._lock:
            if (table := self._waiting.get(name)) is None:
                return
            table.merging = table.failed = False
            while table.times and table.times[0][0] <= lsn:
                table.times.popleft()
            since = _time(table.times[0][1]) if table.times else None
            if since is None:
                del self._waiting[name]
            else:
                table.state = replace(table.state, since=table.times[0][1])
        self._waits(table.state.table, since)


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC)
