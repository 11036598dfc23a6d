"""A slot's reader that several streams follow: what is encoded once is delivered to every slot that
wants just that.

Whoever needs the next step has it taken, and it is kept for the others. ::

    SlotReader ──step──▶  s4  s5  s6  s7      kept; the oldest goes when all readers keep too much
                           ▲       ▲   ▲
                      stream A     B   C      each at its own pace, A not yet done with s4

Which streams share a reader: :mod:`spillway.delivery.shared_readers`. A stream's way along it:
:mod:`spillway.delivery.shared_steps`.

Used on the event loop; steps are taken there when they are little, otherwise on a worker, one at a
time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from spillway.delivery.reader import Counts, SlotReader, Step
    from spillway.delivery.stragglers import StragglerWait
    from spillway.txlog.reader import LogReader, Snapshot

#: What the event loop may spend on one step: some 500 small rows, which take the slowest of our
#: plugins less than a millisecond.
AT_ONCE_BYTES: Final = 64 * 1024
#: What a kept step costs beside its messages: many live steps are a transaction each, or nothing.
_STEP_COST: Final = 1024


class Boundary(NamedTuple):
    """Where a step begins: *steps* after one that began between two transactions, at *place* with
    *state*.
    """

    place: int
    state: object
    steps: int


class KeptStep(NamedTuple):
    """A step of a reader."""

    step: Step
    #: the reader's, before and after it
    counted: Counts
    counts: Counts
    #: final_lsn of the first transaction that it met, 0 for none
    first_lsn: int
    #: what was visible before it was taken
    visible: Snapshot | None
    #: where the next one begins; None: that can't be told
    after: Boundary | None
    #: about the bytes that it takes
    cost: int


@dataclass(slots=True, eq=False)
class Follower:
    """Where a stream is that follows a shared reader."""

    #: of the step that it takes next
    number: int
    #: about the bytes of all steps before that
    made: int
    #: when it took its last step, by the event loop's clock
    moved_s: float
    #: it was too slow, and went on with a reader of its own
    left: bool = False


class SharedReader:
    """A slot's reader with the steps that it has taken last."""

    def __init__(
        self,
        reader: SlotReader,
        log: LogReader,
        workers: Executor,
        batch_bytes: int,
        place: int,
        *,
        at_once: bool,
    ) -> None:
        """Own *reader*, which begins at *place*; with *at_once* its plugin waits for nothing, so
        that the event loop may take steps.
        """
        self._reader = reader
        self._log = log
        self._workers = workers
        #: of a step
        self.batch_bytes = batch_bytes
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._kept: deque[KeptStep] = deque()
        self._bytes = 0
        #: number of the oldest step that is kept; numbers go up from 0
        self.first = 0
        state = reader.state
        # Of what was counted before the first step.
        self._counted_before = reader.counts
        # Where the oldest step begins.
        self._before = None if state is None else Boundary(place, state, 0)
        #: where step 0 began, of this reader or of one that it was left from
        self.origin = self._before
        #: about the bytes of all steps from there on
        self.made = 0
        self._step: asyncio.Future[KeptStep] | None = None
        self._failure: BaseException | None = None
        # Made at once, and not kept yet.
        self._made: tuple[Step, Snapshot | None] | None = None
        #: called with this reader whenever it keeps one more step
        self.on_kept: Callable[[SharedReader], None] | None = None
        # A worker has had rows, so that what a plugin loads at its first is loaded.
        self._began = False
        #: the streams that hang on it
        self.followers: set[Follower] = set()
        #: for those just behind it; None: it waits for nobody
        self.wait: StragglerWait | None = None

    @property
    def next(self) -> int:
        """Number of the step that is taken next."""
        return self.first + len(self._kept)

    @property
    def head(self) -> Boundary | None:
        """Where the next step begins."""
        return self._kept[-1].after if self._kept else self._before

    @property
    def at_end(self) -> bool:
        """Whether the newest step found the log's end and nothing is under way."""
        return self._step is None and bool(self._kept) and self._kept[-1].step.exhausted

    @property
    def is_behind(self) -> bool:
        """Whether there is a backlog to go through, and no step under way."""
        return self._step is None and bool(self._kept) and not self._kept[-1].step.exhausted

    @property
    def is_usable(self) -> bool:
        """Whether it has not failed."""
        return self._failure is None

    def boundary(self, number: int) -> Boundary | None:
        """Return where the kept step *number* begins."""
        return self._before if number == self.first else self._kept[number - self.first - 1].after

    def kept(self, number: int) -> KeptStep | None:
        """Return step *number* if it is kept."""
        return self._kept[number - self.first] if self.first <= number < self.next else None

    def made_before(self, number: int) -> int:
        """Return about the bytes of all steps before *number*."""
        behind = range(max(number, self.first), self.next)
        return self.made - sum(self._kept[n - self.first].cost for n in behind)

    def follow(self, number: int) -> Follower:
        """Let a stream follow from step *number* on."""
        follower = Follower(number, self.made_before(number), self._loop.time())
        self.followers.add(follower)
        return follower

    def find(self, first_lsn: int, state: object) -> int | None:
        """Return the number of the kept step that begins with the transaction at *first_lsn*, for
        an encoder in *state*.
        """
        for number in range(self.next - 1, self.first - 1, -1):
            kept, before = self._kept[number - self.first], self.boundary(number)
            if kept.first_lsn == first_lsn and before is not None:
                return number if not before.steps and before.state == state else None
        return None

    # ---- steps

    async def take(self) -> KeptStep:
        """Take the next step, which is kept; or wait for it, when another stream has asked for it.

        Raises:
            What the reader raises, to everyone who asks.
        """
        if self.make_at_once(AT_ONCE_BYTES) is not None:
            self.keep_made()
            return self._kept[-1]
        self.begin()
        assert self._step is not None
        future = self._step
        # When a caller is cancelled the step stays, for whoever asks next.
        kept = await asyncio.shield(future)
        # Who waited may run before the future's callback does.
        self._taken(future)
        return kept

    def make_at_once(self, limit_bytes: int) -> Step | None:
        """Take the next step here and now; None if it may be more than *limit_bytes* of the log, or
        has to be waited for. :meth:`keep_made` must follow before anything else happens.

        Raises:
            What the reader raises.
        """
        if self._failure is not None or self._step is not None or not self._is_little(limit_bytes):
            return None
        visible = self._log.snapshot()
        try:
            step = self._reader.step(self.batch_bytes)
        except BaseException as error:
            self._failure = error
            raise
        self._made = step, visible
        return step

    def keep_made(self) -> None:
        """Keep the step that was made at once, if one was."""
        made, self._made = self._made, None
        if made is not None:
            self._keep(self._described(*made))

    def begin(self) -> None:
        """Have the next step taken on a worker, unless one is under way."""
        if self._failure is not None:
            raise self._failure
        if self._step is None:
            self._step = self._loop.run_in_executor(self._workers, self._take)
            self._step.add_done_callback(self._taken)

    def _taken(self, future: asyncio.Future[KeptStep]) -> None:
        if self._step is not future:
            return
        self._step = None
        if future.cancelled():
            return
        self._failure = future.exception()
        if self._failure is None:
            kept = future.result()
            self._began = self._began or kept.step.messages.count > 0
            self._keep(kept)

    def _take(self) -> KeptStep:
        visible = self._log.snapshot()
        return self._described(self._reader.step(self.batch_bytes), visible)

    def _described(self, step: Step, visible: Snapshot | None) -> KeptStep:
        """Return what there is to say of the step that the reader has just taken."""
        reader, before = self._reader, self.head
        counted = self._kept[-1].counts if self._kept else self._counted_before
        after = None
        if not reader.between:
            after = None if before is None else before._replace(steps=before.steps + 1)
        elif (state := reader.state) is not None:
            after = Boundary(reader.place, state, 0)
        cost = _STEP_COST + len(step.messages.payload) + 16 * step.messages.count
        return KeptStep(step, counted, reader.counts, reader.first_lsn, visible, after, cost)

    def _is_little(self, limit_bytes: int) -> bool:
        """Say whether the event loop may read from where the reader found the log's end: not more
        than *limit_bytes* have come, in the same file.
        """
        newest = self._kept[-1] if self._kept else None
        visible = self._log.snapshot()
        return (
            self._at_once
            and self._began
            and newest is not None
            and newest.step.exhausted
            and newest.visible is not None
            and visible is not None
            and visible.segments[-1] is newest.visible.segments[-1]
            and visible.end - newest.visible.end <= limit_bytes
        )

    # ---- what is kept

    def _keep(self, kept: KeptStep) -> None:
        self._kept.append(kept)
        cost = kept.cost
        self._bytes += cost
        self.made += cost
        if self.on_kept is not None:
            self.on_kept(self)

    @property
    def newest_cost(self) -> int:
        """About the bytes that the newest step takes."""
        return self._kept[-1].cost

    def forget_before(self, number: int) -> int:
        """Keep steps before *number* no longer, but the newest; return the bytes that this
        frees.
        """
        freed = 0
        while self.first < number and len(self._kept) > 1:
            forgotten = self._kept.popleft()
            self._bytes -= forgotten.cost
            freed += forgotten.cost
            self._before = forgotten.after
            self.first += 1
        return freed

    def sibling(self, reader: SlotReader, after: Boundary, number: int, made: int) -> SharedReader:
        """Return another one of the same log, of *reader*, which begins at the boundary that
        *after* was counted from.

        Where *after* is, *number* steps of *made* bytes have been taken, here as there.
        """
        own = SharedReader(
            reader, self._log, self._workers, self.batch_bytes, after.place, at_once=self._at_once
        )
        own.origin = self.origin
        own.first = number - after.steps
        own.made = made - after.steps * self.batch_bytes
        return own

    def limit(self, limit_bytes: int, limit_steps: int) -> int:
        """Forget steps that every follower has passed, oldest first, until what is kept fits both
        limits.

        Return the bytes that this frees.
        """
        if self._fits(limit_bytes, limit_steps):
            return 0
        freed, passed = 0, min((each.number for each in self.followers), default=self.next)
        while self.first < passed and len(self._kept) > 1:
            freed += self.forget_before(self.first + 1)
            if self._fits(limit_bytes, limit_steps):
                break
        return freed

    def _fits(self, limit_bytes: int, limit_steps: int) -> bool:
        return self._bytes <= limit_bytes and len(self._kept) <= limit_steps

    def forget(self) -> int:
        """Keep nothing any more; return the bytes that this frees."""
        freed, self._bytes = self._bytes, 0
        self._kept.clear()
        return freed

    async def close(self) -> None:
        """Close the reader, once a step that is under way has ended."""
        if self._step is not None:
            await asyncio.wait([self._step])
            self._step = None
        # Also the step that was under way. Who has the reader may be kept by a traceback for long.
        self.forget()
        self._reader.close()
