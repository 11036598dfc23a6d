"""A stream's steps: where they are taken, how far ahead, and what of them counts."""

from __future__ import annotations

import asyncio
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from spillway.delivery import stream as stream_module
from spillway.delivery.active_consumer import ActiveConsumer
from spillway.delivery.reader import Counts, Step
from spillway.delivery.shared_reader import AT_ONCE_BYTES, Boundary, SharedReader
from spillway.delivery.shared_readers import SharedReaders
from spillway.delivery.shared_steps import SharedSteps
from spillway.delivery.stream import EngineStream
from spillway.errors import CorruptTransactionLog, InvalidRequest, LeaseLost
from spillway.plugins.messages import EncodedBatch
from spillway.txlog.reader import Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

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
