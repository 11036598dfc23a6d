"""Readers that several streams share: what is encoded once is delivered to every slot that wants just that.

Slots with the same plugin and options, at the same place of one log, get the same messages. Their streams then hang on
one :class:`SharedReader`: whoever needs the next step has it taken, and it is kept for the others. ::

    SlotReader ──step──▶  s4  s5  s6  s7          kept; the oldest goes when all shared readers keep too much
                           ▲       ▲   ▲
                      stream A     B   C          each at its own pace, A not yet done with s4

A stream *joins* where it stands at one of the boundaries between the kept steps with an encoder in the same state
(pgoutput's knows what its consumer was told). That is so when it begins where another began, and when both have seen the end
of the log: who was behind has caught up. A stream *leaves* when the step that it needs next is not kept any more:
it was too slow, and goes on with a reader of its own, whose plugin resumes from the state at the boundary.
Whoever is ahead waits for those who are just behind, but not for long: :mod:`spillway.engine.hold`.

Readers that began at the same place number their steps alike (their *origin*; it is kept when a stream leaves). So a stream whose
reader is behind another of the same origin *catches up* when the other keeps the step that it needs: clients that begin
together come within tenths of a second, in which the first has had more made than is kept.

Only our own plugins share, those whose state can be told (``OutputPlugin.state``), and streams that end at the same place or never.

Used on the event loop; steps are taken there when they are little, otherwise on a worker, one at a time. Memory: KEPT_BYTES of
kept steps in a :class:`SharedReaders`, and the newest step of each reader. Of what all its streams have taken, a reader keeps
no more than brings it to PASSED_BYTES.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.engine.hold import Behind, Hold, Pace
from spillway.engine.seat import Seat
from spillway.txlog import TransactionCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from concurrent.futures import Executor

    from spillway.engine.reader import Counts, SlotReader, Step
    from spillway.plugins.interface import OutputPlugin
    from spillway.txlog.log import Snapshot, TransactionLog

KEPT_BYTES: Final = 32 << 20
#: What a reader keeps though all its streams have taken it: for those who begin just behind them.
PASSED_BYTES: Final = 8 << 20
#: What the event loop may spend on one step: some 500 small rows, which take the slowest of our plugins
#: less than a millisecond.
AT_ONCE_BYTES: Final = 64 * 1024
#: What a kept step costs beside its messages: many live steps are a transaction each, or nothing.
_STEP_COST: Final = 1024


class Boundary(NamedTuple):
    """Where a step begins: *steps* after one that began between two transactions, at *place* with *state*."""

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

    @property
    def cost(self) -> int:
        """About the bytes that it takes."""
        messages = self.step.messages
        return _STEP_COST + len(messages.payload) + 16 * messages.count


class SharedReader:
    """A slot's reader with the steps that it has taken last."""

    def __init__(
        self,
        reader: SlotReader,
        log: TransactionLog,
        workers: Executor,
        batch_bytes: int,
        place: int,
        *,
        at_once: bool,
    ) -> None:
        """Own *reader*, which begins at *place*; with *at_once* its plugin waits for nothing, so that the event loop may take steps."""
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
        # Where the oldest step begins.
        self._before = None if state is None else Boundary(place, state, 0)
        #: where step 0 began, of this reader or of one that it was left from
        self.origin = self._before
        #: about the bytes of all steps from there on
        self.made = 0
        self._step: asyncio.Future[KeptStep] | None = None
        self._failure: BaseException | None = None
        #: called with this reader whenever it keeps one more step
        self.on_kept: Callable[[SharedReader], None] | None = None
        # A worker has had rows, so that what a plugin loads at its first is loaded.
        self._began = False
        #: of the streams that hang on it
        self.seats: set[Seat] = set()
        #: None: it waits for nobody
        self.hold: Hold | None = None

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

    def find(self, first_lsn: int, state: object) -> int | None:
        """Return the number of the kept step that begins with the transaction at *first_lsn*, for an encoder in *state*."""
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
        if self._failure is None and self._step is None and self._is_little():
            try:
                self._keep(self._take())
            except BaseException as error:
                self._failure = error
                raise
            return self._kept[-1]
        self.begin()
        assert self._step is not None
        future = self._step
        # When a caller is cancelled the step stays, for whoever asks next.
        kept = await asyncio.shield(future)
        # Who waited may run before the future's callback does.
        self._taken(future)
        return kept

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
        reader = self._reader
        before = self.head
        visible, counted = self._log.snapshot(), reader.counts
        step = reader.step(self.batch_bytes)
        after = None
        if not reader.between:
            after = None if before is None else before._replace(steps=before.steps + 1)
        elif (state := reader.state) is not None:
            after = Boundary(reader.place, state, 0)
        return KeptStep(step, counted, reader.counts, reader.first_lsn, visible, after)

    def _is_little(self) -> bool:
        """Say whether the event loop may read from where the reader found the log's end."""
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
            and visible.end - newest.visible.end <= AT_ONCE_BYTES
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
        """Keep steps before *number* no longer, but the newest; return the bytes that this frees."""
        freed = 0
        while self.first < number and len(self._kept) > 1:
            forgotten = self._kept.popleft()
            self._bytes -= forgotten.cost
            freed += forgotten.cost
            self._before = forgotten.after
            self.first += 1
        return freed

    def sibling(self, reader: SlotReader, after: Boundary, number: int, made: int) -> SharedReader:
        """Return another one of the same log, of *reader*, which begins at the boundary that *after* was counted from.

        Where *after* is, *number* steps of *made* bytes have been taken, here as there.
        """
        own = SharedReader(
            reader, self._log, self._workers, self.batch_bytes, after.place, at_once=self._at_once
        )
        own.origin = self.origin
        own.first = number - after.steps
        own.made = made - after.steps * self.batch_bytes
        return own

    def limit(self, limit_bytes: int) -> int:
        """Of what all seats have passed, keep no more than brings all that is kept to *limit_bytes*; return the bytes that this frees."""
        if self._bytes <= limit_bytes:
            return 0
        freed, passed = 0, min((seat.number for seat in self.seats), default=self.next)
        while self._bytes > limit_bytes and self.first < passed and len(self._kept) > 1:
            freed += self.forget_before(self.first + 1)
        return freed

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


class SharedReaders:
    """The readers of the service's streams, by what streams must have in common to share one."""

    def __init__(
        self, workers: Executor, kept_bytes: int = KEPT_BYTES, pace: Pace | None = None
    ) -> None:
        self.workers = workers
        self._pace = pace or Pace()
        self._kept_bytes = kept_bytes
        self._by_key: dict[Hashable, list[SharedReader]] = {}
        # Whose steps are kept, the oldest first, by the number of the step behind; and the bytes of them all.
        self._order: deque[tuple[SharedReader, int]] = deque()
        self._bytes = 0

    async def seat(
        self,
        key: Hashable | None,
        log: TransactionLog,
        begin: int,
        plugin: OutputPlugin,
        new_plugin: Callable[[], OutputPlugin],
        open_reader: Callable[[OutputPlugin, int], SlotReader],
        batch_bytes: int,
        *,
        at_once: bool,
    ) -> Seat:
        """Return a stream's seat at position *begin*, beside others if that can be.

        Args:
            key: equal for streams that may share: log, plugin, options, batch_bytes; None for one that may not.
            log: what is read.
            begin: the stream's position.
            plugin: a fresh one; the seat's from here on.
            new_plugin: makes another one like it.
            open_reader: makes the reader of a plugin at a position; it owns the plugin. Called on a worker.
            batch_bytes: of a step.
            at_once: see :class:`SharedReader`.

        Raises:
            LsnNotRetained: the log begins after *begin*.
        """
        loop = asyncio.get_running_loop()

        def resume(boundary: Boundary) -> SlotReader:
            resumed = new_plugin()
            resumed.resume(boundary.state)
            return open_reader(resumed, boundary.place)

        try:
            for shared in tuple(self._by_key.get(key, ())):
                number = await self._number_at(shared, log, begin, plugin.state())
                if number is not None:
                    plugin.shutdown()
                    return Seat(self, key, shared, number, resume)
        except BaseException:
            plugin.shutdown()
            raise

        def open_at() -> tuple[SlotReader, int]:
            reader = open_reader(plugin, begin)
            # The same for all who begin before the same transaction.
            return reader, max(begin, _first_lsn(log, begin))

        reader, place = await loop.run_in_executor(self.workers, open_at)
        shared = SharedReader(reader, log, self.workers, batch_bytes, place, at_once=at_once)
        self.add(key, shared, waits=True)
        return Seat(self, key, shared, 0, resume)

    async def _number_at(
        self, shared: SharedReader, log: TransactionLog, begin: int, state: object
    ) -> int | None:
        """Return the number of the step of *shared* that a stream may begin with at *begin*, None for none."""
        head, number = shared.head, shared.next
        if head is None:
            return None
        loop = asyncio.get_running_loop()
        at_head, at_begin = await loop.run_in_executor(
            self.workers, _first_lsns, log, head.place, begin
        )
        if not shared.seats or not shared.is_usable:
            return None
        # It may have gone on meanwhile.
        if at_head == at_begin != _NOT_DECODED and shared.next == number and shared.head == head:
            return number if not head.steps and head.state == state else None
        return shared.find(at_begin, state) if at_begin > 0 else None

    def add(self, key: Hashable | None, shared: SharedReader, *, waits: bool) -> None:
        """Make a reader known to those who come; with *waits* it waits for those just behind."""
        if key is None:
            return
        self._by_key.setdefault(key, []).append(shared)
        shared.on_kept = self._note
        if waits:
            shared.hold = Hold(self._pace, lambda: self._behind(key, shared))

    def _behind(self, key: Hashable, shared: SharedReader) -> Iterator[Behind]:
        """Yield the seats whose streams may come to share the steps that *shared* takes."""
        for other in self._by_key[key]:
            if other.origin == shared.origin is not None:
                for seat in other.seats:
                    if not seat.left:
                        yield Behind(shared.made - seat.made, seat.moved_s)

    def look(self, key: Hashable) -> None:
        """See whether somebody waits for nobody any more: a stream has taken a step, or has gone."""
        for shared in self._by_key.get(key, ()):
            if shared.hold is not None:
                shared.hold.look()

    async def release(self, key: Hashable | None, shared: SharedReader, seat: Seat) -> None:
        """Take a stream off a reader; the last one closes it."""
        shared.seats.discard(seat)
        if key is not None:
            self.look(key)
        if shared.seats:
            return
        if key is not None:
            same = self._by_key[key]
            same.remove(shared)
            if not same:
                del self._by_key[key]
            shared.on_kept = None
            if shared.hold is not None:
                shared.hold.end()
            self._order = deque(entry for entry in self._order if entry[0] is not shared)
            self._bytes -= shared.forget()
        # To its end, also when the stream that was the last is cancelled.
        await asyncio.shield(asyncio.ensure_future(shared.close()))

    def find_ahead(
        self, key: Hashable | None, shared: SharedReader, number: int, after: Boundary | None
    ) -> SharedReader | None:
        """Return a reader ahead of *shared* whose step *number*, which it keeps, begins at *after*."""
        same = self._by_key.get(key, ()) if key is not None else ()
        if len(same) > 1 and after is not None:
            for other in same:
                if (
                    other.next > shared.next
                    and other.first <= number < other.next
                    and other.is_usable
                    and other.origin == shared.origin
                    and other.boundary(number) == after
                ):
                    return other
        return None

    def find_at_end(self, key: Hashable | None, shared: SharedReader) -> SharedReader | None:
        """Return an older reader that stands where *shared* does, both at the log's end."""
        for other in self._by_key.get(key, ()):
            if other is shared:
                break
            if other.at_end and shared.at_end and other.head == shared.head is not None:
                return other
        return None

    def _note(self, shared: SharedReader) -> None:
        """Account for a step that *shared* keeps from now on, and forget the oldest that are too much."""
        order = self._order
        order.append((shared, shared.next))
        self._bytes += shared.newest_cost
        self._bytes -= shared.limit(PASSED_BYTES)
        while order and order[0][0].first >= order[0][1]:
            order.popleft()
        for _ in range(len(order)):
            if self._bytes <= self._kept_bytes:
                break
            oldest, number = order.popleft()
            if number == oldest.next:
                # The newest of its reader, which stays.
                order.append((oldest, number))
            else:
                self._bytes -= oldest.forget_before(number)


#: What _first_lsn says when transactions before the position may yet become visible.
_NOT_DECODED: Final = -1


def _first_lsns(log: TransactionLog, head: int, begin: int) -> tuple[int, int]:
    """Return final_lsn of the first transaction from *head* on and from *begin* on.

    When they are equal, none lies between the two. In this order: what was before *head* is visible, also when *begin* is looked at.
    """
    return _first_lsn(log, head), _first_lsn(log, begin)


def _first_lsn(log: TransactionLog, begin: int) -> int:
    """Return final_lsn of the first transaction from *begin* on; 0 when there is none yet."""
    cursor = TransactionCursor(log, begin)
    try:
        found = cursor.next()
        if found is not None:
            return found.header.final_lsn
        return 0 if begin <= cursor.decoded_lsn else _NOT_DECODED
    finally:
        cursor.close()
