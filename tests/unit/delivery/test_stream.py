"""A stream's steps: where they are taken, how far ahead, and what of them counts."""

from __future__ import annotations

import asyncio
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from harness.asleep import asleep
from spillway.delivery import stream as stream_module
from spillway.delivery.active_consumer import ActiveConsumer
from spillway.delivery.reader import Counts, Step
from spillway.delivery.shared_reader import AT_ONCE_BYTES, Boundary, SharedReader
from spillway.delivery.shared_readers import SharedReaders
from spillway.delivery.shared_steps import SharedSteps
from spillway.delivery.stream import BORROWED_BYTES, EngineStream
from spillway.errors import CorruptTransactionLog, InvalidRequest, LeaseLost
from spillway.loop_turn import LendingLoop
from spillway.plugins.messages import EncodedBatch
from spillway.txlog.reader import Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from spillway.pg.lsn import Lsn

BATCH_BYTES = 1000


class Log:
    """A transaction log of steps: each published one is a batch, or an exception."""

    def __init__(self) -> None:
        self.listeners: set[Callable[[], None]] = set()
        segment: Any = object()
        self.segments: tuple[Any, ...] = (segment,)
        self.end = 0
        self.steps: list[Step | Exception] = []
        self._visible = Snapshot(self.segments, 0, 0)

    def snapshot(self) -> Snapshot:
        return self._visible

    def add_listener(self, listener: Callable[[], None]) -> None:
        self.listeners.add(listener)

    def prefer(self, listener: Callable[[], None]) -> bool:
        return listener in self.listeners

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self.listeners.discard(listener)

    def publish(self, *steps: Step | Exception, nbytes: int = 100) -> None:
        """Make *steps* visible and say so, as the decoder's thread does."""
        self.steps += steps
        self.end += nbytes
        self._visible = Snapshot(self.segments, self.end, 0)
        self.notify()

    def notify(self) -> None:
        for listener in tuple(self.listeners):
            listener()


class Reader:
    """Gives the log's steps; says after the last that nothing is left."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.confirm_lsn = 0
        self.counts = Counts()
        self.first_lsn = self.place = 0
        self.between = True
        self.state = None
        self.threads: list[int] = []
        self.closed = False
        #: cleared, a step waits
        self.go = threading.Event()
        self.go.set()

    def step(self, batch_bytes: int) -> Step:
        assert batch_bytes == BATCH_BYTES
        self.threads.append(threading.get_ident())
        assert self.go.wait(10)
        if not self.log.steps:
            return Step(EncodedBatch(b"", b"", b"", b"", 0), self.confirm_lsn, True, False)
        step = self.log.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        self.confirm_lsn = step.confirm_lsn
        self.counts = self.counts.plus(Counts(total_txns=1, total_bytes=1))
        return step

    def close(self) -> None:
        assert self.go.is_set(), "closed in the middle of a step"
        self.closed = True


class Slot:
    def __init__(self) -> None:
        self.counts = Counts()
        self.confirmed = 0
        self.invalid: Exception | None = None
        self.listeners: set[Callable[[], None]] = set()

    def lose(self) -> None:
        self.invalid = LeaseLost("another process serves it")
        for listener in self.listeners:
            listener()

    def add_listener(self, listener: Callable[[], None]) -> None:
        self.listeners.add(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self.listeners.discard(listener)

    def check_valid(self) -> None:
        if self.invalid is not None:
            raise self.invalid

    def count(self, counts: Counts, before: Counts) -> None:
        self.counts = self.counts.plus(counts, before)

    def confirm(self, lsn: int) -> None:
        self.confirmed = lsn


class Session:
    decoded_lsn = 4711

    def __init__(self, log: Log) -> None:
        self.log = log
        self.error: Exception | None = None

    def check_readable(self) -> None:
        if self.error is not None:
            raise self.error


class Stream:
    """An EngineStream with what it stands on."""

    def __init__(
        self, workers: ThreadPoolExecutor, *, at_once: bool = True, peek: bool = False
    ) -> None:
        self.log = Log()
        self.reader = Reader(self.log)
        self.slot = Slot()
        self.session = Session(self.log)
        readers: Any = SharedReaders(workers)
        given: Any = (self.reader, self.log, workers, BATCH_BYTES, 0)
        shared = SharedReader(*given, at_once=at_once)
        steps = SharedSteps(readers, None, shared, shared.follow(0), _no_other_reader)
        slot: Any = self.slot
        session: Any = self.session
        holder = None if peek else ActiveConsumer("s", "stream")
        self.stream = EngineStream(slot, session, steps, 0, holder)

    async def lsn(self, timeout_s: float = 10.0) -> int:
        """Position of the next batch's message; 0 for a keepalive."""
        batch = await self.stream.next_batch(timeout_s)
        return batch.wal_start if batch.messages.count else 0

    async def live(self) -> None:
        """Take the stream to where steps are taken on the event loop."""
        self.log.publish(step(1))
        assert await self.lsn() == 1
        assert await self.lsn(0) == 0
        self.reader.threads.clear()

    async def steps_taken(self, count: int) -> None:
        while len(self.reader.threads) < count:  # noqa: ASYNC110 - another thread counts
            await asyncio.sleep(0.001)


def _no_other_reader(boundary: Boundary) -> Any:
    raise AssertionError(boundary)


def step(lsn: int, *, exhausted: bool = False, reached_end: bool = False) -> Step:
    messages = EncodedBatch(b"m", struct.pack("<I", 1), struct.pack("<Q", lsn), bytes(4), 1)
    return Step(messages, lsn + 1, exhausted, reached_end)


@pytest.fixture
async def workers() -> AsyncIterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
async def stream(workers: ThreadPoolExecutor) -> AsyncIterator[Stream]:
    stream = Stream(workers)
    yield stream
    stream.reader.go.set()
    await stream.stream.close()


async def test_one_step_is_taken_ahead_and_no_more(stream: Stream) -> None:
    stream.log.publish(*map(step, (10, 20, 30, 40)))
    assert await stream.lsn() == 10
    await stream.steps_taken(2)
    await asyncio.sleep(0.05)
    assert len(stream.reader.threads) == 2
    assert [await stream.lsn() for _ in range(3)] == [20, 30, 40]


async def test_no_step_is_taken_behind_a_large_batch(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has stopped to read would hold that as well."""
    monkeypatch.setattr(stream_module, "AHEAD_BYTES_MAX", 0)
    stream.log.publish(*map(step, (10, 20, 30)))
    assert await stream.lsn() == 10
    await asyncio.sleep(0.05)
    assert len(stream.reader.threads) == 1
    assert [await stream.lsn() for _ in range(2)] == [20, 30]


async def test_what_lies_ahead_is_neither_confirmed_nor_counted(stream: Stream) -> None:
    stream.log.publish(step(10), step(20))
    batch = await stream.stream.next_batch(1)
    await stream.steps_taken(2)
    assert batch.confirm_lsn == 11
    await stream.stream.confirm(*[99] * 3)  # type: ignore[arg-type]
    assert stream.slot.confirmed == 11
    assert stream.slot.counts.total_txns == 1
    await stream.lsn()
    await stream.stream.confirm(*[99] * 3)  # type: ignore[arg-type]
    assert stream.slot.confirmed == 21
    assert stream.slot.counts.total_txns == 2


async def test_an_error_ahead_comes_after_the_batch_before_it(stream: Stream) -> None:
    stream.log.publish(step(10), CorruptTransactionLog("damaged"))
    assert await stream.lsn() == 10
    with pytest.raises(CorruptTransactionLog):
        await stream.lsn()


async def test_closing_waits_for_the_step_ahead_and_drops_its_error(stream: Stream) -> None:
    stream.log.publish(step(10), CorruptTransactionLog("damaged"))
    assert await stream.lsn() == 10
    stream.reader.go.clear()
    threading.Timer(0.05, stream.reader.go.set).start()
    await stream.stream.close()
    assert stream.reader.closed
    assert not stream.log.listeners


async def test_a_cancelled_caller_loses_nothing(stream: Stream) -> None:
    stream.log.publish(step(10), step(20))
    stream.reader.go.clear()
    caller = asyncio.create_task(stream.lsn())
    await stream.steps_taken(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    stream.reader.go.set()
    assert [await stream.lsn() for _ in range(2)] == [10, 20]


async def test_a_little_is_encoded_on_the_event_loop(stream: Stream) -> None:
    await stream.live()
    for lsn in (10, 20):
        stream.log.publish(step(lsn, exhausted=True), nbytes=AT_ONCE_BYTES)
        assert await stream.lsn() == lsn
    assert set(stream.reader.threads) == {threading.get_ident()}


@pytest.mark.parametrize("why", ["much", "another segment", "foreign plugin"])
async def test_the_rest_is_encoded_on_a_worker(workers: ThreadPoolExecutor, why: str) -> None:
    stream = Stream(workers, at_once=why != "foreign plugin")
    await stream.live()
    if why == "another segment":
        stream.log.segments = (*stream.log.segments, object())
    nbytes = AT_ONCE_BYTES + 1 if why == "much" else 1
    stream.log.publish(step(10, exhausted=True), nbytes=nbytes)
    assert await stream.lsn() == 10
    assert threading.get_ident() not in stream.reader.threads
    await stream.stream.close()


async def test_the_first_rows_are_encoded_on_a_worker(stream: Stream) -> None:
    """What a plugin loads with its first rows takes long."""
    assert await stream.lsn(0) == 0
    stream.log.publish(step(10, exhausted=True))
    assert await stream.lsn() == 10
    assert threading.get_ident() not in stream.reader.threads


async def test_a_step_that_stops_early_on_the_event_loop_goes_on_on_a_worker(
    stream: Stream,
) -> None:
    await stream.live()
    stream.log.publish(step(10), step(20))
    assert [await stream.lsn() for _ in range(2)] == [10, 20]
    assert stream.reader.threads[0] == threading.get_ident()
    assert stream.reader.threads[1] != threading.get_ident()


async def test_waiting_is_ended_by_the_log_from_another_thread(stream: Stream) -> None:
    await stream.live()
    waiting = asyncio.create_task(stream.lsn(60))
    await asyncio.sleep(0.01)
    await asyncio.to_thread(stream.log.publish, step(10))
    assert await waiting == 10


async def test_many_publications_are_one_wake_up(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream.live()
    # What live() published is on its way yet.
    await asyncio.sleep(0)
    loop, scheduled = asyncio.get_running_loop(), []
    original = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop,
        "call_soon_threadsafe",
        lambda callback: (scheduled.append(callback), original(callback))[1],
    )
    for _ in range(100):
        stream.log.publish()
    assert len(scheduled) == 1
    await asyncio.sleep(0)
    stream.log.publish(step(10, exhausted=True))
    assert len(scheduled) == 2
    assert await stream.lsn() == 10


async def test_nothing_is_read_while_nothing_came(stream: Stream) -> None:
    await stream.live()
    assert [await stream.lsn(0.01) for _ in range(3)] == [0, 0, 0]
    assert not stream.reader.threads


async def test_a_wake_up_without_anything_new_is_no_busy_loop(stream: Stream) -> None:
    await stream.live()
    stream.log.notify()
    assert await asyncio.wait_for(stream.lsn(0.05), 5) == 0
    assert not stream.reader.threads


async def test_a_waiting_stream_says_why_nothing_comes(stream: Stream) -> None:
    await stream.live()
    stream.session.error = CorruptTransactionLog("stopped")
    with pytest.raises(CorruptTransactionLog):
        await stream.lsn()
    # What is there is handed out all the same.
    stream.log.publish(step(10))
    assert await stream.lsn() == 10


async def test_an_invalidated_slot_gives_nothing_more(stream: Stream) -> None:
    stream.log.publish(step(10), step(20))
    assert await stream.lsn() == 10
    stream.slot.invalid = CorruptTransactionLog("invalidated")
    with pytest.raises(CorruptTransactionLog):
        await stream.lsn()


async def test_a_lost_slot_ends_the_wait_at_once(stream: Stream) -> None:
    waiting = asyncio.create_task(stream.stream.next_batch(60))
    await asyncio.sleep(0.01)
    stream.slot.lose()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(LeaseLost):
        await stream.stream.confirm(*[1] * 3)  # type: ignore[arg-type]
    await stream.stream.close()
    assert not stream.slot.listeners


async def test_a_session_that_ends_with_the_lease_is_not_to_blame(stream: Stream) -> None:
    stream.slot.invalid = None
    stream.log.publish(CorruptTransactionLog("the log is closed"))
    stream.slot.check_valid = _refuse_at_second_call(stream.slot)  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        await stream.lsn()


def _refuse_at_second_call(slot: Slot) -> Callable[[], None]:
    calls: list[None] = []

    def check_valid() -> None:
        calls.append(None)
        if len(calls) > 1:
            raise LeaseLost("another process serves it")

    return check_valid


async def test_the_end_is_final(stream: Stream) -> None:
    stream.log.publish(step(10, reached_end=True))
    batch = await stream.stream.next_batch(1)
    assert batch.final
    assert batch.wal_end == Session.decoded_lsn
    assert len(stream.reader.threads) == 1


async def test_a_peeking_stream_counts_and_confirms_nothing(workers: ThreadPoolExecutor) -> None:
    stream = Stream(workers, peek=True)
    stream.log.publish(step(10))
    assert await stream.lsn() == 10
    assert stream.slot.counts == Counts()
    with pytest.raises(InvalidRequest):
        await stream.stream.confirm(*[1] * 3)  # type: ignore[arg-type]
    await stream.stream.close()


# ---- what is handed over while the caller waits


class Live:
    """Takes what comes live: (LSN of the message, what may be confirmed, the thread)."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, int]] = []
        self.ready = True
        self.failure: Exception | None = None

    def is_ready(self) -> bool:
        return self.ready

    def take(self, messages: EncodedBatch, confirm_lsn: Lsn) -> None:
        if self.failure is not None:
            raise self.failure
        lsn = int.from_bytes(messages.lsns[:8], "little")
        self.taken.append((lsn, confirm_lsn, threading.get_ident()))


class Waiting:
    """A stream that is live, whose caller waits for a batch and has somebody take what comes."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.loop = asyncio.get_running_loop()
        self.live = Live()
        self.batch = asyncio.create_task(stream.stream.next_batch(60, self.live))

    async def from_another_thread(self, *published: Step | Exception, nbytes: int = 100) -> int:
        """Publish while the loop sleeps; return the thread that did."""

        def publish() -> int:
            assert isinstance(self.loop, LendingLoop)
            asleep(self.loop)
            self.stream.log.publish(*published, nbytes=nbytes)
            return threading.get_ident()

        return await asyncio.to_thread(publish)


def on_lending_loop(test: Callable[[Waiting], Awaitable[None]]) -> None:
    """Run *test* on a loop as the service has it."""

    async def main() -> None:
        with ThreadPoolExecutor(2) as workers:
            stream = Stream(workers)
            await stream.live()
            waiting = Waiting(stream)
            await asyncio.sleep(0)
            try:
                await test(waiting)
            finally:
                stream.reader.go.set()
                waiting.batch.cancel()
                await asyncio.gather(waiting.batch, return_exceptions=True)
                await stream.stream.close()

    with asyncio.Runner(loop_factory=LendingLoop) as runner:
        runner.run(asyncio.wait_for(main(), 60))


def test_what_comes_live_is_taken_by_who_publishes_it() -> None:
    async def test(waiting: Waiting) -> None:
        stream = waiting.stream
        first = await waiting.from_another_thread(step(10, exhausted=True))
        second = await waiting.from_another_thread(step(20, exhausted=True))
        assert waiting.live.taken == [(10, 11, first), (20, 21, second)]
        assert stream.reader.threads == [first, second]
        assert not waiting.batch.done()
        assert stream.slot.counts.total_txns == 3
        await stream.stream.confirm(*[99] * 3)  # type: ignore[arg-type]
        assert stream.slot.confirmed == 21

    on_lending_loop(test)


def test_a_loop_that_is_awake_takes_it_itself() -> None:
    async def test(waiting: Waiting) -> None:
        waiting.stream.log.publish(step(10, exhausted=True))
        assert waiting.live.taken == []
        await waiting.from_another_thread(step(20, exhausted=True))
        here = threading.get_ident()
        assert [(lsn, thread == here) for lsn, _, thread in waiting.live.taken] == [
            (10, True), (20, False),
        ]  # fmt: skip
        assert not waiting.batch.done()

    on_lending_loop(test)


def test_more_than_a_little_is_not_taken_in_the_midst_of_decoding() -> None:
    async def test(waiting: Waiting) -> None:
        stream = waiting.stream
        await waiting.from_another_thread(step(10, exhausted=True), nbytes=BORROWED_BYTES + 1)
        while not waiting.live.taken:  # noqa: ASYNC110 - as soon as the loop has come to it
            await asyncio.sleep(0)
        assert waiting.live.taken == [(10, 11, threading.get_ident())]
        # Nor on the event loop.
        await waiting.from_another_thread(step(20, exhausted=True), nbytes=AT_ONCE_BYTES + 1)
        batch = await waiting.batch
        assert batch.confirm_lsn == 21
        assert len(waiting.live.taken) == 1
        assert stream.reader.threads[-1] != threading.get_ident()

    on_lending_loop(test)


def test_who_is_not_ready_gets_it_when_it_asks() -> None:
    async def test(waiting: Waiting) -> None:
        waiting.live.ready = False
        await waiting.from_another_thread(step(10, exhausted=True))
        batch = await waiting.batch
        assert (batch.wal_start, batch.confirm_lsn) == (10, 11)
        assert waiting.live.taken == []

    on_lending_loop(test)


def test_what_a_taker_raises_is_its_streams_own() -> None:
    """Not the decoder's; and what it was given does not come again."""

    async def test(waiting: Waiting) -> None:
        waiting.live.failure = ValueError("can't be converted")
        await waiting.from_another_thread(step(10, exhausted=True))
        with pytest.raises(ValueError, match="converted"):
            await waiting.batch
        waiting.stream.log.publish(step(20, exhausted=True))
        assert await waiting.stream.lsn() == 20

    on_lending_loop(test)


@pytest.mark.parametrize("why", ["damage", "lost", "stopped"])
def test_what_ends_a_stream_is_raised_to_its_caller(why: str) -> None:
    async def test(waiting: Waiting) -> None:
        error = CorruptTransactionLog("damaged")
        if why == "lost":
            waiting.stream.slot.invalid = LeaseLost("another process serves it")
        if why == "stopped":
            waiting.stream.session.error = error
        await waiting.from_another_thread(error if why == "damage" else step(10, exhausted=True))
        if why == "stopped":
            # What is there already is handed over first.
            assert (await waiting.batch).confirm_lsn == 11
            waiting.batch = asyncio.create_task(waiting.stream.stream.next_batch(60, waiting.live))
        with pytest.raises(LeaseLost if why == "lost" else CorruptTransactionLog):
            await waiting.batch
        assert waiting.live.taken == []

    on_lending_loop(test)


def test_who_ends_a_stream_waits_for_the_step_that_is_being_taken() -> None:
    async def test(waiting: Waiting) -> None:
        reader, loop = waiting.stream.reader, waiting.loop
        events: list[str] = []

        def end() -> None:
            events.append(f"ended, {len(waiting.live.taken)} taken")
            waiting.batch.cancel()

        def publish() -> None:
            assert isinstance(loop, LendingLoop)
            asleep(loop)
            waiting.stream.log.publish(step(10, exhausted=True))

        def both() -> None:
            reader.go.clear()
            publisher = threading.Thread(target=publish)
            publisher.start()
            while not reader.threads:
                threading.Event().wait(0.001)
            loop.call_soon_threadsafe(end)
            # If it could run in the midst of the step it would by now.
            threading.Event().wait(0.05)
            reader.go.set()
            publisher.join()

        await asyncio.to_thread(both)
        assert events == ["ended, 1 taken"]
        with pytest.raises(asyncio.CancelledError):
            await waiting.batch
        # It is accounted for, as any that was sent.
        assert waiting.stream.slot.counts.total_txns == 2
        waiting.stream.log.publish(step(20, exhausted=True))
        assert await waiting.stream.lsn() == 20

    on_lending_loop(test)
