"""Loads that a job makes itself: of the tables that the lake lacks, of those whose load failed,
and of those that somebody wants anew, one after the other, beside the batches.

::

    initial load ──▶ look ──▶ wishes (state/resyncs), failed loads that are due
                      ▲           │ what can't be loaded: noted in the wish, tried again later
                      └───────────┘ loaded, or taken back before: the wish is removed

Tables that are asked for together share a snapshot. While a load is at work wishes wait: one load a
lake at a time. What is wrong with a wish, or with the source at that time, ends no job: it is told
of, and tried again at growing distances, or at once when somebody asks again.

What a death leaves: a wish is there until its table is loaded. Whoever begins next finds it, and
goes on with a load that was begun, as :mod:`spillway.lake.load.initial_load` says; a table that was
loaded and whose wish was not removed is only told of.

With the trigger ``available-now`` there is one look, before the query.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from spillway.consumer.snapshots import Source
from spillway.errors import LakeError, NotReady, SpillwayError
from spillway.failpoints import failpoint
from spillway.lake.load import run as initial_load_run
from spillway.lake.state import resyncs, shown_tables
from spillway.lake.state.loads import failed_loads, load_state
from spillway.lake.state.resyncs import Resync, ResyncState, ResyncStep
from spillway.lake.worker_failures.errors import typed_error
from spillway.plugins.masks import with_secret
from spillway.storage.place import ObjectPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from spillway.consumer.slot import SlotPosition
    from spillway.lake.load.initial_load import InitialLoad, LoadFailed

_log = logging.getLogger(__name__)

#: How often somebody's wishes are looked for.
_LOOK_S: Final = 1.0
#: On object storage a look is a request.
_LOOK_IN_BUCKET_S: Final = 10.0
#: A table whose load failed is tried again after this long, then after twice as long, …
_LOAD_AGAIN_S: Final = 60.0
#: The same for what is not the table's own trouble: a source that does not answer.
_ASK_AGAIN_S: Final = 5.0
_AGAIN_LONGEST_S: Final = 900.0
#: How late an end is noticed that is asked of all runs.
_POLL_S: Final = 0.2


class LoadsBeside(initial_load_run.LoadsFrom, Protocol):
    """What of a job's settings its loads need."""

    @property
    def trigger(self) -> str: ...
    @property
    def tables(self) -> tuple[str, ...]: ...
    @property
    def initial_load(self) -> bool: ...


class Ending(threading.Event):
    """Set when it is set itself, or the event that it is of: one run ends without the others that
    have that event, too.
    """

    def __init__(self, of: threading.Event) -> None:
        super().__init__()
        self._of = of

    def is_set(self) -> bool:
        return super().is_set() or self._of.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if left <= 0:
                break
            super().wait(left)
        return self.is_set()


@contextmanager
def table_loads(
    settings: LoadsBeside,
    spark: SparkSession,
    slot: SlotPosition,
    stopping: threading.Event,
    report: Callable[[object], None],
) -> Iterator[Callable[[], None]]:
    """Take the tables that the lake lacks away from the job, if it is to load them; yield what
    loads them, and then whatever is asked for: of a continuous job, until *stopping* is set.

    Raises:
        SpillwayError: what :meth:`InitialLoad.choose` raises, and what is called, of the initial
            load; wishes raise nothing.
    """
    with ExitStack() as held:
        prepare = partial(initial_load_run.prepared, settings, spark, slot, stopping, report)
        load, chosen = None, []
        if settings.initial_load:
            load = held.enter_context(prepare())
            chosen = load.choose(settings.tables, missing_only=True, resync=False)

        def run() -> None:
            try:
                failed = [] if load is None else load.run(chosen)
            except NotReady:
                if not stopping.is_set():
                    raise
                return
            # Others may load from here on.
            held.close()
            follow = _Loader(settings, prepare, stopping, report)
            if settings.trigger == "continuous":
                follow.until_stopped([each.table for each in failed])
            else:
                follow.look()

        yield run


@dataclass(slots=True)
class _Later:
    """When something is tried again."""

    pause_s: float
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = time.monotonic() + self.pause_s

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self.at

    def again(self) -> _Later:
        return _Later(min(2 * self.pause_s, _AGAIN_LONGEST_S))


class _Loader:
    """Loads what is asked for, and what failed."""

    def __init__(
        self,
        settings: LoadsBeside,
        prepare: Callable[[], AbstractContextManager[InitialLoad]],
        stopping: threading.Event,
        report: Callable[[object], None],
    ) -> None:
        self._settings = settings
        self._path = settings.path
        self._prepare = prepare
        self._stopping = stopping
        self._report = report
        #: loads that failed and nobody asked for again, by table
        self._failed: dict[str, _Later] = {}
        #: wishes that failed, by their files
        self._tried: dict[str, _Later] = {}
        #: files of wishes that were told of
        self._told: set[str] = set()
        #: what the last look failed by, so that it is told once
        self._trouble = ""

    def until_stopped(self, failed: Sequence[str]) -> None:
        """Look again and again; *failed* are tables that could not be loaded just now."""
        self._failed = {table: _Later(_LOAD_AGAIN_S) for table in failed}
        pause_s = _LOOK_IN_BUCKET_S if isinstance(self._path, ObjectPath) else _LOOK_S
        self.look()
        while not self._stopping.wait(pause_s):
            self.look()

    def look(self) -> None:
        """Do what there is to be done now; raises nothing, whatever is wrong with a wish's file."""
        try:
            self._look()
        except (SpillwayError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("wishes to load tables anew can't be looked at: %s", error)
        else:
            self._trouble = ""

    def _look(self) -> None:
        wishes = self._wishes()
        names = {wish.table for wish in wishes}
        due = [
            wish for wish in wishes if (tried := self._tried.get(wish.name)) is None or tried.is_due
        ]
        again = [table for table, later in self._failed.items() if later.is_due]
        again = [table for table in again if table not in names]
        if not due and not again:
            return
        ready = [wish for wish in due if self._can_be_loaded(wish)]
        if ready or again:
            self._load(ready, again)

    def _wishes(self) -> list[Resync]:
        """Return the wishes that are to be fulfilled; those that are, are removed."""
        wishes = list(resyncs.asked(self._path).values())
        waited_for = {wish.table for wish in wishes}
        for wish in resyncs.cancelled(self._path):
            self._take_leave(wish, is_told=wish.table not in waited_for)
        names = {wish.name for wish in wishes}
        self._told &= names
        self._tried = {name: later for name, later in self._tried.items() if name in names}
        open_ = [wish for wish in wishes if not self._is_fulfilled(wish)]
        for wish in open_:
            if wish.name not in self._told:
                self._told.add(wish.name)
                self._step(wish, ResyncState.WAITING)
        return open_

    def _is_fulfilled(self, wish: Resync) -> bool:
        """Say whether the table was loaded after the wish, and then remove that."""
        if not resyncs.is_done(self._path, wish):
            return False
        failpoint("lake.resync_done")
        state = load_state(self._path, wish.directory)
        resyncs.forget(self._path, wish)
        self._step(wish, ResyncState.DONE, lsn="" if state is None else state.lsn)
        return True

    def _can_be_loaded(self, wish: Resync) -> bool:
        """Look for what is in the way of one table before others are held up by it."""
        settings = self._settings
        try:
            if not settings.source_dsn:
                raise LakeError(
                    "the job was not told where to read the source",
                    hint=f"Run it with {initial_load_run.ENVIRONMENT} set, or load the table by "
                    "`spillway lake load --resync`.",
                    relation=wish.table,
                )
            options = with_secret(shown_tables.plugin_options(self._path.absolute()))
            source = Source(settings.source_dsn, options)
            if wish.table not in {each.name for each in source.tables(())}:
                self._give_up(
                    wish, "The source has no such table any more, or it is a part of one."
                )
                return False
            if not self._is_followed(wish.table, source):
                self._give_up(wish, "The job does not follow it: have its tables name it.")
                return False
            initial_load_run.check_load(settings, [wish.table], missing_only=False, resync=True)
        except SpillwayError as error:
            self._not_loaded(wish, error)
            return False
        return True

    def _is_followed(self, table: str, source: Source) -> bool:
        """Say whether the job's tables have it: by its name, or by that of what it is a part of."""
        followed = self._settings.tables
        if not followed or table in followed:
            return True
        return table in {each.name for each in source.tables(followed)}

    def _load(self, wishes: Sequence[Resync], again: Sequence[str]) -> None:
        failpoint("lake.resync_asked")
        names = [*(wish.table for wish in wishes), *again]
        failed: Sequence[LoadFailed] = ()
        trouble: BaseException | None = None
        try:
            with self._prepare() as load:
                # Somebody may have loaded them by command.
                still = failed_loads(self._path) if again else {}
                open_ = [wish for wish in wishes if not resyncs.is_done(self._path, wish)]
                # What is behind this can't be taken back.
                begun = {wish.name for wish in open_ if resyncs.begin(self._path, wish)}
                cancelled = [wish for wish in open_ if wish.name not in begun]
                wishes = [wish for wish in wishes if wish not in cancelled]
                for wish in cancelled:
                    self._take_leave(wish)
                failpoint("lake.resync_begun")
                names = [wish.table for wish in open_ if wish.name in begun]
                names += [table for table in again if table in still]
                chosen = load.choose(names, missing_only=False, resync=True) if names else []
                for wish in wishes:
                    self._step(wish, ResyncState.LOADING)
                failed = load.run(chosen)
        except Exception as error:  # noqa: BLE001 - noted in each wish
            if self._stopping.is_set():
                # Nothing is the matter: the next run goes on.
                return
            trouble = error
            _log.warning("loading %s failed", ", ".join(names), exc_info=True)
        own = {each.table: each.error for each in failed}
        for table in again:
            later = self._failed.pop(table)
            if table in failed_loads(self._path):
                self._failed[table] = later.again()
        for wish in wishes:
            if self._is_fulfilled(wish):
                continue
            why = own.get(wish.table) or trouble
            if why is None:
                self._give_up(wish, "The load found no such table.")
            else:
                self._not_loaded(wish, why, own=wish.table in own)

    def _not_loaded(self, wish: Resync, error: BaseException, *, own: bool = False) -> None:
        """Note why, and when it is tried again."""
        typed = typed_error(
            error,
            what=f"loading {wish.table} failed",
            hint="It is tried again; the job's log says more.",
            relation=wish.table,
        )
        reason = f"{typed.message.rstrip('.')}. {typed.hint}".strip()
        before = self._tried.get(wish.name)
        first = _Later(_LOAD_AGAIN_S if own else _ASK_AGAIN_S)
        self._tried[wish.name] = first if before is None else before.again()
        try:
            resyncs.failed(self._path, wish, reason)
        except (SpillwayError, OSError) as unwritten:
            _log.warning("why %s is not loaded can't be written: %s", wish.table, unwritten)
        self._step(wish, ResyncState.FAILED, reason=reason)

    def _give_up(self, wish: Resync, why: str) -> None:
        """Take leave of a wish that trying again does not help."""
        resyncs.forget(self._path, wish)
        reason = f"{why} It is not tried again"
        self._step(wish, ResyncState.FAILED, reason=reason)

    def _take_leave(self, wish: Resync, *, is_told: bool = True) -> None:
        """Tell of a wish that was taken back, and remove it: in this order, since who finds that an
        earlier run told of a wish which is gone takes it for fulfilled.
        """
        if is_told:
            self._step(wish, ResyncState.CANCELLED)
        resyncs.forget(self._path, wish)

    def _step(self, wish: Resync, state: ResyncState, *, reason: str = "", lsn: str = "") -> None:
        self._report(ResyncStep(wish.table, state, wish.asked_at, reason, lsn))
