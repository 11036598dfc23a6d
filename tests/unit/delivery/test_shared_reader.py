"""Streams that share a reader get what each would get alone, however they start, lag and catch
up.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.catalog.descriptor import Memberships, TableMembership
from spillway.decoding.transaction import TransactionHeader, TransactionKind
from spillway.delivery.reader import SlotReader
from spillway.delivery.shared_readers import PASSED_STEPS, SharedReaders
from spillway.delivery.shared_steps import share_steps
from spillway.delivery.stragglers import Pace
from spillway.errors import CorruptTransactionLog
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin
from unit.plugins.test_pgoutput import TABLE, insert, invalidation
from unit.test_transaction_log import FakeTransaction, begin, open_log
from unit.test_transaction_run import entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.delivery.shared_steps import SharedSteps
    from spillway.plugins.interface import OutputPlugin
    from spillway.txlog import LogWriter

BATCH_BYTES = 2000
OPTIONS = {
    "pgoutput": {"proto_version": "1", "publication_names": "p"},
    "test_decoding": {},
    "wal2json": {"format-version": "2"},
    "arrow": {},
}
PLUGINS = pytest.mark.parametrize("plugin", OPTIONS)


def table(number: int) -> RelationDescriptor:
    oid = 16400 + number
    membership = Memberships(oid, 2200, (TableMembership(16500),))
    return replace(TABLE, oid=oid, name=f"t{number}", memberships=(membership,))


TABLES = {number: table(number) for number in range(1, 6)}


def transaction(number: int, *pieces: bytes, **more: Any) -> FakeTransaction:
    lsn = lsn_of(number)
    header = TransactionHeader(700 + number, lsn - 64, lsn, lsn + 48, 1_000_000 * number, **more)
    return FakeTransaction(header, TABLES, list(pieces))  # type: ignore[arg-type]


def lsn_of(number: int) -> int:
    return 0x2000 + number * 0x100


def small(number: int, relation: int = 1) -> FakeTransaction:
    return transaction(number, insert(number, lsn=lsn_of(number) - 32, relation=relation))


def large(number: int, rows: int, chunks: int) -> FakeTransaction:
    lsn = lsn_of(number) - 32
    chunk = b"".join(insert(n, lsn=lsn, relation=1 + n % 2) for n in range(rows))
    return transaction(number, *[chunk] * chunks)


@dataclass
class World:
    """A log, and the streams that read it."""

    log: LogWriter
    workers: ThreadPoolExecutor
    plugin: str
    kept_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        self.readers = SharedReaders(self.workers, self.kept_bytes)
        self.opened = 0

    def new_plugin(self) -> OutputPlugin:
        return create_plugin(self.plugin, OPTIONS[self.plugin], PluginContext("s", "d", 180000))

    def open_reader(self, plugin: OutputPlugin, lsn: int) -> SlotReader:
        self.opened += 1
        return SlotReader.on_log(self.log.reader, plugin, lsn, None)

    async def steps(self, number: int) -> SharedSteps:
        return await share_steps(
            self.readers,
            (self.plugin,),
            self.log.reader,
            lsn_of(number) - 8,
            self.new_plugin(),
            self.new_plugin,
            self.open_reader,
            BATCH_BYTES,
            at_once=True,
        )

    def alone(self, number: int) -> list[tuple[bytes, bytes, bytes]]:
        """What a reader of its own makes from there to the end, as it is now."""
        reader = SlotReader.on_log(self.log.reader, self.new_plugin(), lsn_of(number) - 8, None)
        steps = []
        while True:
            steps.append(reader.step(BATCH_BYTES))
            if steps[-1].exhausted:
                reader.close()
                found = [step.messages for step in steps]
                return [(bytes(m.payload), bytes(m.lsns), bytes(m.xids)) for m in found]

    @property
    def number_of_readers(self) -> int:
        return sum(map(len, self.readers._by_key.values()))

    @property
    def bytes_kept(self) -> int:
        return self.readers._bytes


@dataclass
class Got:
    """What one stream got."""

    steps: SharedSteps
    payload: bytes = b""
    lsns: bytes = b""
    xids: bytes = b""
    exhausted: bool = False
    transactions: int = 0
    confirm_lsn: int = 0

    async def step(self, *, ahead: bool = False) -> None:
        kept = await self.steps.step()
        self.payload += kept.step.messages.payload
        self.lsns += kept.step.messages.lsns
        self.xids += kept.step.messages.xids
        # Others may have gone on since a step found the log's end.
        self.exhausted = kept.step.exhausted and kept.visible is self.steps._shared._log.snapshot()
        self.transactions += kept.counts.total_txns - kept.counted.total_txns
        self.confirm_lsn = max(self.confirm_lsn, kept.step.confirm_lsn)
        if ahead and not kept.step.exhausted:
            self.steps.begin()

    async def to_the_end(self) -> None:
        self.exhausted = False
        while not self.exhausted:
            await self.step()

    @property
    def all(self) -> tuple[bytes, bytes, bytes]:
        return self.payload, self.lsns, self.xids


def joined(steps: list[tuple[bytes, bytes, bytes]]) -> tuple[bytes, ...]:
    return tuple(b"".join(part) for part in zip(*steps, strict=True))


@pytest.fixture
def workers() -> Any:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
async def world(
    tmp_path: Path, workers: ThreadPoolExecutor, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    with open_log(tmp_path) as log:
        begin(log)
        yield World(log, workers, getattr(request, "param", "pgoutput"))


EVERY = pytest.mark.parametrize("world", OPTIONS, indirect=True)


@EVERY
async def test_those_who_begin_together_are_encoded_for_once(world: World) -> None:
    for n in range(200):
        world.log.transaction(small(n))
    world.log.publish()
    streams = [Got(await world.steps(0)) for _ in range(8)]
    for stream in streams:
        await stream.to_the_end()
        assert stream.all == joined(world.alone(0))
        assert stream.transactions == 200
        assert stream.confirm_lsn == lsn_of(199) + 48
    assert (world.opened, world.number_of_readers) == (1, 1)
    for stream in streams:
        await stream.steps.close()
    assert (world.number_of_readers, world.bytes_kept) == (0, 0)


async def test_positions_may_differ_as_long_as_no_transaction_lies_between(world: World) -> None:
    for n in range(10):
        world.log.transaction(small(n))
    world.log.publish()
    first = Got(await world.steps(0))
    await first.to_the_end()
    key = ("pgoutput",)
    second = Got(
        await share_steps(
            world.readers,
            key, world.log.reader, lsn_of(0) - 100, world.new_plugin(), world.new_plugin,
            world.open_reader,
            BATCH_BYTES, at_once=True,
        )
    )  # fmt: skip
    await second.to_the_end()
    assert second.all == first.all
    assert world.opened == 1
    for stream in (first, second):
        await stream.steps.close()


async def test_pgoutput_shares_only_what_the_consumer_can_read(world: World) -> None:
    """Who comes later was not told of the table; at the end of the log both were, and share."""
    for n in range(200):
        world.log.transaction(small(n))
    world.log.publish()
    first, second = Got(await world.steps(0)), Got(await world.steps(100))
    await first.to_the_end()
    await second.to_the_end()
    assert second.all == joined(world.alone(100))
    assert world.number_of_readers == 1
    world.log.transaction(small(200))
    world.log.publish()
    for stream in (first, second):
        stream.payload = b""
        await stream.to_the_end()
        assert stream.payload[:1] == b"B"
        assert b"public" not in stream.payload
        await stream.steps.close()


async def test_others_share_wherever_they_meet(tmp_path: Path, workers: ThreadPoolExecutor) -> None:
    with open_log(tmp_path) as log:
        begin(log)
        world = World(log, workers, "test_decoding")
        for n in range(300):
            log.transaction(small(n))
        log.publish()
        first = Got(await world.steps(0))
        await first.step()
        number = first.transactions
        await first.step()
        second = Got(await world.steps(number))
        await second.to_the_end()
        assert world.opened == 1
        assert second.all == joined(world.alone(number))
        for stream in (first, second):
            await stream.steps.close()


@EVERY
async def test_who_is_too_slow_goes_on_alone(
    tmp_path: Path, workers: ThreadPoolExecutor, world: World
) -> None:
    world.readers = SharedReaders(workers, 4 * BATCH_BYTES)
    for n in range(100):
        world.log.transaction(small(n, 1 + n % 5))
    world.log.transaction(large(100, 50, 40))
    for n in range(101, 200):
        world.log.transaction(small(n, 1 + n % 5))
    world.log.publish()
    fast, slow = Got(await world.steps(0)), Got(await world.steps(0))
    await slow.step()
    await fast.to_the_end()
    # Beside the newest step, which arrow makes as large as it likes.
    assert world.bytes_kept <= 4 * BATCH_BYTES + (1 << 18)
    await slow.to_the_end()
    assert slow.all == fast.all == joined(world.alone(0))
    assert (slow.transactions, fast.transactions) == (200, 200)
    # All of it is one batch of Arrow.
    assert world.opened == (1 if world.plugin == "arrow" else 2)
    # Both have seen the end.
    assert world.number_of_readers == 1
    for stream in (fast, slow):
        await stream.steps.close()
    assert world.bytes_kept == 0


@EVERY
async def test_who_is_left_behind_in_the_middle_of_a_large_transaction(world: World) -> None:
    world.readers = SharedReaders(world.workers, 1)
    world.log.transaction(small(0))
    world.log.transaction(large(1, 50, 40))
    world.log.transaction(small(2))
    world.log.publish()
    fast, slow = Got(await world.steps(0)), Got(await world.steps(0))
    for _ in range(3):
        await slow.step()
        await fast.step()
    await fast.to_the_end()
    await slow.to_the_end()
    assert slow.all == fast.all == joined(world.alone(0))
    assert (slow.transactions, fast.transactions) == (3, 3)
    for stream in (fast, slow):
        await stream.steps.close()


async def test_live_steps_come_together_to_who_is_late(world: World) -> None:
    first, second = Got(await world.steps(0)), Got(await world.steps(0))
    for n in range(20):
        world.log.transaction(small(n))
        world.log.publish()
        await first.to_the_end()
    steps = 0
    second.exhausted = False
    while second.transactions < 20:
        await second.step()
        steps += 1
    assert steps < 5
    assert second.all == first.all
    for stream in (first, second):
        await stream.steps.close()


async def test_live_only_few_steps_are_kept_that_all_have_passed(world: World) -> None:
    world.readers = SharedReaders(world.workers)
    world.log.transaction(small(0))
    world.log.publish()
    late, stream = Got(await world.steps(0)), Got(await world.steps(0))
    assert late.steps._shared is stream.steps._shared
    shared = stream.steps._shared
    for n in range(1, 2 * PASSED_STEPS):
        await stream.to_the_end()
        world.log.transaction(small(n))
        world.log.publish()
    await stream.to_the_end()
    # All, as long as somebody has yet to take them.
    assert shared.next - shared.first == 2 * PASSED_STEPS
    await late.to_the_end()
    world.log.transaction(small(2 * PASSED_STEPS))
    world.log.publish()
    await stream.to_the_end()
    assert shared.next - shared.first == PASSED_STEPS
    await late.to_the_end()
    assert late.all == stream.all == joined(world.alone(0))
    for each in (stream, late):
        await each.steps.close()
    assert (world.number_of_readers, world.bytes_kept) == (0, 0)


async def test_a_failure_is_everybodys(world: World) -> None:
    for n in range(100):
        world.log.transaction(small(n))
    world.log.publish()
    (segment,) = world.log.reader.snapshot().segments  # type: ignore[union-attr]
    data = bytearray(segment.path.read_bytes())
    data[-100] ^= 1
    segment.path.write_bytes(data)
    streams = [Got(await world.steps(0)) for _ in range(2)]
    for stream in streams:
        with pytest.raises(CorruptTransactionLog):
            await stream.to_the_end()
    third = Got(await world.steps(0))
    with pytest.raises(CorruptTransactionLog):
        await third.to_the_end()
    for stream in (*streams, third):
        await stream.steps.close()
    assert world.bytes_kept == 0


async def test_one_step_at_a_time_for_all(world: World) -> None:
    for n in range(300):
        world.log.transaction(small(n))
    world.log.publish()
    streams = [Got(await world.steps(0)) for _ in range(5)]
    await asyncio.gather(*(stream.to_the_end() for stream in streams))
    assert {stream.all for stream in streams} == {joined(world.alone(0))}
    assert world.opened == 1
    for stream in streams:
        await stream.steps.close()


# ---- who is ahead waits

#: Nothing but what happens ends a wait.
FOR_EVER = Pace(4 * BATCH_BYTES, 1 << 20, 1e6, 1e6)


@pytest.fixture
async def backlog(world: World) -> World:
    """300 transactions, more than is kept; who is behind by half of what is kept is waited for."""
    for n in range(300):
        world.log.transaction(small(n, 1 + n % 5))
    world.log.publish()
    world.readers = SharedReaders(world.workers, 8 * (BATCH_BYTES + 2000), FOR_EVER)
    return world


async def turns(count: int = 50) -> None:
    """Let everything happen that can."""
    for _ in range(count):
        await asyncio.sleep(0.001)


async def test_nobody_runs_away(backlog: World) -> None:
    fast, slow = Got(await backlog.steps(0)), Got(await backlog.steps(0))
    running = asyncio.create_task(fast.to_the_end())
    while not slow.exhausted:
        await slow.step(ahead=True)
        await turns(2)
        assert slow.exhausted or fast.transactions - slow.transactions < 150
    await running
    assert backlog.opened == 1
    assert slow.all == fast.all == joined(backlog.alone(0))
    for stream in (fast, slow):
        await stream.steps.close()


@pytest.mark.parametrize("pace", [FOR_EVER._replace(stalled_s=0), FOR_EVER._replace(patience_s=0)])
async def test_who_does_not_read_holds_nobody_up(backlog: World, pace: Pace) -> None:
    backlog.readers = SharedReaders(backlog.workers, 4 * BATCH_BYTES, pace)
    fast, slow = Got(await backlog.steps(0)), Got(await backlog.steps(0))
    await fast.to_the_end()
    await slow.to_the_end()
    assert backlog.opened == 2
    assert slow.all == fast.all == joined(backlog.alone(0))
    for stream in (fast, slow):
        await stream.steps.close()


async def test_who_stalls_holds_up_nobody_for_long(backlog: World) -> None:
    pace = FOR_EVER._replace(stalled_s=0.05)
    backlog.readers = SharedReaders(backlog.workers, 1 << 20, pace)
    fast, slow = Got(await backlog.steps(0)), Got(await backlog.steps(0))
    await slow.step()
    await fast.to_the_end()
    for stream in (fast, slow):
        await stream.steps.close()


async def test_who_closes_lets_the_others_go_on(backlog: World) -> None:
    streams = [Got(await backlog.steps(0)) for _ in range(3)]
    *fast, slow = streams
    running = [asyncio.create_task(stream.to_the_end()) for stream in fast]
    await turns()
    assert not any(task.done() for task in running)
    await slow.steps.close()
    await asyncio.gather(*running)
    assert {stream.all for stream in fast} == {joined(backlog.alone(0))}
    for stream in fast:
        await stream.steps.close()
    assert (backlog.number_of_readers, backlog.bytes_kept) == (0, 0)


async def test_who_is_cancelled_while_waiting_takes_nobody_along(backlog: World) -> None:
    streams = [Got(await backlog.steps(0)) for _ in range(3)]
    running = [asyncio.create_task(stream.to_the_end()) for stream in streams[:2]]
    await turns()
    running[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await running[0]
    assert not running[1].done()
    await streams[0].steps.close()
    await streams[2].to_the_end()
    await running[1]
    assert streams[1].all == streams[2].all == joined(backlog.alone(0))
    for stream in streams[1:]:
        await stream.steps.close()


async def test_all_may_close_while_they_wait(backlog: World) -> None:
    streams = [Got(await backlog.steps(0)) for _ in range(3)]
    running = [asyncio.create_task(stream.to_the_end()) for stream in streams[:2]]
    await turns()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for stream in streams:
        await stream.steps.close()
    assert (backlog.number_of_readers, backlog.bytes_kept) == (0, 0)


async def test_who_begins_a_little_later_catches_up(backlog: World) -> None:
    """Its place is kept no longer; but who began there before waits for it, and they share from
    there on.
    """
    backlog.readers = SharedReaders(backlog.workers, 5 * (BATCH_BYTES + 2000), FOR_EVER)
    first = Got(await backlog.steps(0))
    while first.steps._shared.first < 4:
        await first.step()
    second = Got(await backlog.steps(0))
    assert backlog.number_of_readers == 2
    running = asyncio.create_task(first.to_the_end())
    await turns()
    assert not running.done()
    while backlog.number_of_readers == 2:
        await second.step()
        await turns(2)
    assert not second.exhausted
    await asyncio.gather(running, second.to_the_end())
    assert backlog.opened == 2
    assert first.all == second.all == joined(backlog.alone(0))
    assert (first.transactions, second.transactions) == (300, 300)
    for stream in (first, second):
        await stream.steps.close()
    assert (backlog.number_of_readers, backlog.bytes_kept) == (0, 0)


async def test_catching_up_in_the_middle_of_a_large_transaction(world: World) -> None:
    world.readers = SharedReaders(world.workers, 5 * (BATCH_BYTES + 2000))
    world.log.transaction(small(0))
    world.log.transaction(large(1, 50, 40))
    world.log.publish()
    first = Got(await world.steps(0))
    while first.steps._shared.first < 4:
        await first.step()
    second = Got(await world.steps(0))
    while second.steps._shared is not first.steps._shared:
        await second.step()
    await asyncio.gather(first.to_the_end(), second.to_the_end())
    assert first.all == second.all == joined(world.alone(0))
    for stream in (first, second):
        await stream.steps.close()


@EVERY
@pytest.mark.parametrize("seed", range(10))
async def test_random_streams_get_what_they_would_alone(world: World, seed: int) -> None:
    rng = random.Random(seed)
    pace = Pace(
        rng.choice([1, 5000, 1 << 20]),
        rng.choice([10_000, 1 << 20]),
        rng.choice([0.0, 0.005]),
        rng.choice([0.0, 0.1]),
    )
    world.readers = SharedReaders(world.workers, rng.choice([1, 5000, 50_000, 1 << 20]), pace)
    streams: list[tuple[int, Got]] = []
    number = 0

    def write() -> None:
        nonlocal number
        match rng.randrange(5):
            case 0:
                world.log.transaction(large(number, rng.randrange(1, 60), rng.randrange(1, 12)))
            case 1:
                oids = [16400 + rng.randrange(1, 6)]
                world.log.transaction(transaction(number, invalidation(*oids), insert(1)))
            case 2:
                made = transaction(number, kind=TransactionKind.MESSAGE)
                world.log.transaction(made)
            case _:
                count = rng.randrange(1, 80)
                run = b"".join(entry(small(number + i, rng.randrange(1, 6))) for i in range(count))
                world.log.transactions(TransactionRun(run, TABLES))
                number += count - 1
        number += 1

    for _ in range(rng.randrange(1, 10)):
        write()
    for _ in range(150):
        if rng.random() < 0.15:
            write()
        if rng.random() < 0.3:
            world.log.publish()
        if len(streams) < 6 and rng.random() < 0.1:
            begins = rng.choice([0, rng.randrange(number)])
            streams.append((begins, Got(await world.steps(begins))))
        elif streams and rng.random() < 0.03:
            await streams.pop(rng.randrange(len(streams)))[1].steps.close()
        elif streams:
            some = rng.sample(streams, rng.randrange(1, len(streams) + 1))
            await asyncio.gather(*(one.step(ahead=rng.random() < 0.5) for _, one in some))
    world.log.publish()
    await asyncio.gather(*(stream.to_the_end() for _, stream in streams))
    for begins, stream in streams:
        assert stream.transactions == number - begins
        if world.plugin != "arrow":
            # Where its batches are cut depends on what was there by then.
            assert stream.all == joined(world.alone(begins))
    for _, stream in streams:
        await stream.steps.close()
    assert (world.number_of_readers, world.bytes_kept) == (0, 0)
