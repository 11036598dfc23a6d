"""WAL that is walked once for many: readers that share, that are left behind and meet again, and
WAL that is damaged.
"""

from __future__ import annotations

import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from harness.wal_writer import WalWriter, main_data
from spillway._kernels.wal.walker import Walker
from spillway.errors import CorruptWal, SpillwayError, StorageError, WalGap
from spillway.pg import rmgr
from spillway.pg.versions import WAL_VERSIONS
from spillway.wal import shared_walk
from spillway.wal.shared_walk import LATER, NOW, PASSED, RecordReader, SharedWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from spillway._kernels.wal.record_batch import RecordBatch
    from spillway.wal.shared_walk import StandIn

START = 3 << 20
V15 = WAL_VERSIONS[15]
JOIN_S = 30
#: databases: most records are of the first one
BUSY, OTHER, THIRD = 16400, 16401, 16402
EVERYONE = 0


def of_database(oid: int, length: int) -> bytes:
    """Return a record's body: a block of a database, and *length* bytes."""
    return struct.pack("<BBHIIII", 0, 0, 0, 1663, oid, 16384, 9) + main_data(bytes(length))


class Stored:
    """WAL of a writer, of which a reader sees what was stored so far."""

    def __init__(self) -> None:
        self.wal = WalWriter(V15, START)
        self.changed = threading.Condition()
        self.error: StorageError | WalGap | None = None
        self.reads = 0
        self.waits = 0
        self.woken = 0
        #: what each walk that reads here has passed
        self.told: dict[Hashable, int] = {}
        self._data = b""
        #: what one who waits lends, and whether it is used; whoever stores uses it if *lends*
        self.instead: Callable[[int, memoryview], bool] | None = None
        self.lends = False
        self.slept_on: list[bool] = []

    def append(self, records: int, length: int = 50, database: int = BUSY) -> list[int]:
        """Store *records* more of *database*; return where they start."""
        body = of_database(database, length)
        lsns = [self.wal.append(body, xid=7) for _ in range(records)]
        self.store()
        return lsns

    def end_transaction(self) -> None:
        """Store an abort that does not say of which database."""
        self.wal.append(main_data(bytes(8)), xid=7, rmid=rmgr.RM_XACT_ID, info=rmgr.XLOG_XACT_ABORT)
        self.store()

    def store(self) -> None:
        with self.changed:
            before, self._data = len(self._data), bytes(self.wal.data)
            instead = self.instead if self.lends else None
            if instead is not None:
                # With the lock held, so that who waits sleeps on.
                self.slept_on.append(
                    instead(START + before, memoryview(self._data)[before:]) is True
                )
            if instead is None or not self.slept_on[-1]:
                self.instead = None
                self.woken += 1
                self.changed.notify_all()

    def read(self, lsn: int, max_bytes: int) -> bytes:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self._data[lsn - START :][:max_bytes]

    def wait(
        self,
        lsn: int,
        timeout_s: float,
        called: Callable[[], bool] = lambda: False,
        instead: Callable[[int, memoryview], bool] | None = None,
    ) -> bool:
        with self.changed:
            self.waits += 1
            woken = self.woken
            self.instead = instead
            try:
                return (
                    self.changed.wait_for(
                        lambda: self.woken != woken or len(self._data) > lsn - START or called(),
                        timeout_s,
                    )
                    and len(self._data) > lsn - START
                )
            finally:
                if self.instead is instead:
                    self.instead = None

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def passed(self, reader: Hashable, lsn: int) -> None:
        self.told[reader] = lsn

    def leave(self, reader: Hashable) -> None:
        self.told.pop(reader, None)


class Interested:
    """Decodes *database*, and may be eager, or follow the ends of transactions; it counts how often
    it is asked.
    """

    def __init__(self, database: int, *, is_eager: bool = False, sees_ends: bool = False) -> None:
        self.database_oid = database
        self.is_eager = is_eager
        self.sees_ends = sees_ends
        self.asked = 0

    def interest(self, batch: RecordBatch, start: int) -> int:
        self.asked += 1
        routes = {
            oid: [i for i in indexes if i >= start]
            for oid, indexes in batch.routes_by_database().items()
        }
        if routes.get(self.database_oid) or (routes.get(EVERYONE) and self.is_eager):
            return NOW
        ends = any(i >= start for i in batch.plain_ends())
        return LATER if routes.get(EVERYONE) or (ends and self.sees_ends) else PASSED


ALL = Interested(BUSY)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    # So that little WAL makes many batches.
    monkeypatch.setattr(shared_walk, "_BATCH_RECORDS", 256)
    monkeypatch.setattr(shared_walk, "_READ_BYTES", 1 << 15)
    return Stored()


@pytest.fixture
def shared(stored: Stored) -> SharedWalk:
    return SharedWalk(stored, stored.wal.segment_size, stored.wal.system_id)


def take_all(reader: RecordReader) -> list[int]:
    """Return where the records start that are stored and that *reader* has not taken."""
    lsns: list[int] = []
    while (taken := reader.take(0)) is not None:
        batch, start = taken
        lsns += [batch.header(i)[0] for i in range(start, len(batch))]
    assert reader.caught_up
    return lsns


def test_one_reader_is_given_what_the_walker_makes_and_keeps_nothing(
    stored: Stored, shared: SharedWalk
) -> None:
    lsns = stored.append(2_000)
    reader = shared.reader(START, V15, ALL)
    assert take_all(reader) == lsns
    walker = Walker(V15, START, stored.wal.segment_size)
    walker.feed(START, stored.wal.data)
    while walker.next_batch(8192) is not None:
        pass
    assert reader.position == walker.position
    assert reader.read_lsn == stored.wal.lsn
    assert shared.kept_bytes == 0
    assert take_all(reader) == []


def test_records_are_walked_once_for_all(stored: Stored, shared: SharedWalk) -> None:
    readers = [shared.reader(START, V15, ALL) for _ in range(5)]
    lsns = stored.append(2_000)
    taken = [readers[0].take(0) for _ in range(2)]
    for other in readers[1:]:
        assert [other.take(0) for _ in range(2)] == taken, "the very same batches"
    rest = [take_all(reader) for reader in readers]
    assert all(lsns[-len(one) :] == one == rest[0] for one in rest)
    reads = stored.reads
    once = shared.batches_walked
    for reader in readers:
        reader.close()
    alone = shared.reader(START, V15, ALL)
    assert take_all(alone) == lsns
    assert shared.batches_walked == 2 * once >= 20
    assert stored.reads > reads


def test_a_record_that_is_stored_in_pieces_is_read_by_all(
    stored: Stored, shared: SharedWalk
) -> None:
    readers = [shared.reader(START, V15, ALL) for _ in range(2)]
    (lsn,) = stored.append(1, 100_000)
    whole = bytes(stored.wal.data)
    stored._data = whole[:50_000]
    assert [take_all(reader) for reader in readers] == [[], []]
    assert [reader.read_lsn - START for reader in readers] == [50_000, 50_000]
    stored.store()
    assert [take_all(reader) for reader in readers] == [[lsn], [lsn]]


def test_one_left_behind_walks_for_itself_until_it_meets_the_others(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "KEPT_BYTES", 1 << 17)
    fast, slow = shared.reader(START, V15, ALL), shared.reader(START, V15, ALL)
    lsns = stored.append(5_000)
    assert take_all(fast) == lsns
    assert shared.kept_bytes <= 1 << 17
    assert shared.walks == 1
    first = slow.take(0)
    assert first is not None
    assert shared.walks == 2, "its first batch is not kept any more"
    batch, start = first
    taken = [batch.header(i)[0] for i in range(start, len(batch))]
    assert taken + take_all(slow) == lsns
    assert shared.walks == 1
    before = shared.batches_walked
    more = stored.append(10)
    assert take_all(fast) == more == take_all(slow)
    assert shared.batches_walked == before + 1


def test_one_that_begins_elsewhere_meets_the_others(stored: Stored, shared: SharedWalk) -> None:
    lsns = stored.append(1_000)
    ahead, behind = shared.reader(lsns[900], V15, ALL), shared.reader(lsns[10], V15, ALL)
    assert take_all(ahead) == lsns[900:]
    assert shared.walks == 2
    assert take_all(behind) == lsns[10:]
    inside = shared.reader(lsns[950], V15, ALL)
    assert shared.walks == 1
    before = shared.batches_walked
    assert take_all(inside) == lsns[950:]
    assert shared.batches_walked == before, "what is kept is not walked again"


def test_no_one_joins_within_a_record(stored: Stored, shared: SharedWalk) -> None:
    lsns = stored.append(100)
    first, _ = shared.reader(START, V15, ALL), shared.reader(START, V15, ALL)
    assert take_all(first) == lsns
    astray = shared.reader(lsns[50] + 8, V15, ALL)
    assert shared.walks == 2
    with pytest.raises(CorruptWal):
        take_all(astray)
    assert take_all(first) == []


def test_damage_ends_each_at_the_same_place_with_an_error_of_its_own(
    stored: Stored, shared: SharedWalk
) -> None:
    lsns = stored.append(2_000)
    at = lsns[1_500]
    right = bytes(stored.wal.data)
    stored._data = right[: at - START + 30] + b"\xff" + right[at - START + 31 :]
    readers = [shared.reader(START, V15, ALL) for _ in range(3)]
    errors = []
    for reader in readers[:2]:
        with pytest.raises(CorruptWal, match="checksum") as caught:
            take_all(reader)
        assert reader.position == at
        caught.value.hint += "mine"
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].details == errors[1].details
    assert errors[1].hint.count("mine") == 1
    again = shared.reader(lsns[1_400], V15, ALL)
    with pytest.raises(CorruptWal):
        take_all(again)
    stored._data = right
    mended = shared.reader(lsns[1_400], V15, ALL)
    assert take_all(mended) == lsns[1_400:]
    # Who had not come as far finds what is kept, then where it ended: as if it had been told when
    # the others were.
    with pytest.raises(CorruptWal, match="checksum"):
        take_all(readers[2])
    assert take_all(mended) == []


def test_what_the_store_raises_is_of_who_read(stored: Stored, shared: SharedWalk) -> None:
    readers = [shared.reader(START, V15, ALL) for _ in range(2)]
    lsns = stored.append(10)
    stored.error = StorageError("the disk")
    for reader in readers:
        with pytest.raises(StorageError):
            reader.take(0)
    stored.error = None
    assert [take_all(reader) for reader in readers] == [lsns, lsns]
    assert shared.walks == 1


def test_who_waits_is_given_what_comes_whoever_leads(stored: Stored, shared: SharedWalk) -> None:
    rounds, count = 20, 4
    went_on = threading.Barrier(count + 1)
    got: list[list[int]] = [[] for _ in range(count)]

    def follow(number: int) -> None:
        reader = shared.reader(START, V15, ALL)
        went_on.wait(JOIN_S)
        for turn in range(rounds):
            # By turns one does not come back before the others have what comes: none may wait for
            # it to lead.
            if turn % count == number:
                went_on.wait(JOIN_S)
            while len(got[number]) <= turn:
                taken = reader.take(JOIN_S)
                assert taken is not None
                batch, start = taken
                got[number] += [batch.header(i)[0] for i in range(start, len(batch))]
            if turn % count != number:
                went_on.wait(JOIN_S)
            went_on.wait(JOIN_S)
        reader.close()

    threads = [threading.Thread(target=follow, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    went_on.wait(JOIN_S)
    lsns = []
    for _ in range(rounds):
        lsns += stored.append(1)
        went_on.wait(JOIN_S)
        went_on.wait(JOIN_S)
    for thread in threads:
        thread.join(JOIN_S)
    assert got == [lsns] * count
    assert shared.batches_walked == rounds
    assert shared.walks == 0


def test_who_waits_can_be_called(stored: Stored, shared: SharedWalk) -> None:
    stored.append(1)
    called = threading.Event()
    answers: list[object] = []

    def follow(reader: RecordReader) -> None:
        reader.take(0)
        answers.append(reader.take(JOIN_S, called.is_set))

    readers = [shared.reader(START, V15, ALL) for _ in range(3)]
    threads = [threading.Thread(target=follow, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    called.set()
    for reader in readers:
        reader.wake()
    for thread in threads:
        thread.join(JOIN_S)
    assert answers == [None] * 3


def test_what_is_of_no_interest_is_passed_over(stored: Stored, shared: SharedWalk) -> None:
    busy = shared.reader(START, V15, ALL)
    idle = shared.reader(START, V15, Interested(OTHER))
    lsns = stored.append(2_000)
    assert idle.take(0) is None, "it leads past all of it"
    assert idle.caught_up
    assert idle.position == stored.wal.lsn
    assert take_all(busy) == lsns
    before = shared.batches_walked
    (mine,) = stored.append(1, database=OTHER)
    stored.append(2_000)
    taken = take_all(idle)
    assert mine in taken, "with what else is in that batch"
    assert len(taken) <= 256
    assert take_all(busy)[0] == mine
    # The same alone, and begun within.
    alone = shared.reader(lsns[1_000], V15, Interested(OTHER))
    assert take_all(alone) == taken
    assert shared.batches_walked >= before


class Waiting:
    """A reader that waits on a thread of its own, until it is given something or called."""

    def __init__(
        self,
        shared: SharedWalk,
        interest: Interested,
        timeout_s: float = 2 * JOIN_S,
        stand_in: StandIn | None = None,
        live: Callable[[RecordBatch, int], bool] | None = None,
        takes: int = 1,
    ) -> None:
        self.reader = shared.reader(START, V15, interest, stand_in)
        self._takes = takes
        self._timeout_s = timeout_s
        self._live = live
        self.taken: list[object] = []
        self._called = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for _ in range(self._takes):
                self.taken.append(
                    self.reader.take(self._timeout_s, self._called.is_set, self._live)
                )
        except SpillwayError as error:
            self.taken.append(error)

    def call(self) -> object:
        """Call it, and return what it was given."""
        self.stop()
        return self.result()

    def stop(self) -> None:
        """Call it, and wait for it to have been given something."""
        self._called.set()
        self.reader.wake()
        self.join()

    def result(self) -> object:
        """Return what it was given, once it was."""
        self.join()
        (taken,) = self.taken
        return taken

    def join(self) -> None:
        """Wait for it to be given something, or to fail."""
        self._thread.join(JOIN_S)
        assert not self._thread.is_alive()


def until(holds: Callable[[], bool]) -> None:
    """Wait for *holds*."""
    tick = threading.Event()
    for _ in range(JOIN_S * 100):
        if holds():
            return
        tick.wait(0.01)
    raise AssertionError("it never came to that")


def walked_lsn(shared: SharedWalk) -> int:
    """Return how far the walk that is furthest has come."""
    return max(walk.end_lsn for walk in shared._walks)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks again by itself."""
    monkeypatch.setattr(shared_walk, "_LOOK_S", 2 * JOIN_S)


@pytest.mark.usefixtures("patient")
def test_who_waits_passes_without_being_woken(stored: Stored, shared: SharedWalk) -> None:
    first, second = Waiting(shared, Interested(OTHER)), Waiting(shared, Interested(THIRD))
    stored.append(600)
    until(lambda: walked_lsn(shared) == stored.wal.lsn)
    assert not first.taken
    assert not second.taken
    stored.append(1, database=THIRD)
    assert second.result() is not None
    assert not first.taken
    # The one that is there has to lead, whoever did before.
    stored.append(1)
    until(lambda: walked_lsn(shared) == stored.wal.lsn)
    assert first.call() is None
    assert first.reader.position == stored.wal.lsn
    assert shared.walks == 1


@pytest.mark.usefixtures("patient")
def test_what_can_wait_is_taken_when_it_looks(stored: Stored, shared: SharedWalk) -> None:
    leads = Waiting(shared, Interested(OTHER))
    until(lambda: bool(stored.waits))
    waits = Waiting(shared, Interested(THIRD, sees_ends=True))
    until(lambda: any(walk.waiting for walk in shared._walks))
    stored.end_transaction()
    until(lambda: walked_lsn(shared) == stored.wal.lsn)
    stored.append(1)
    until(lambda: walked_lsn(shared) == stored.wal.lsn)
    assert not waits.taken
    assert waits.reader.position == START
    taken = waits.call()
    assert isinstance(taken, tuple)
    assert taken[0].header(0)[5] == rmgr.RM_XACT_ID
    assert leads.call() is None


@pytest.mark.usefixtures("patient")
def test_what_can_wait_is_taken_before_it_is_forgotten(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "KEPT_BYTES", 1 << 19)
    leads = Waiting(shared, Interested(OTHER))
    until(lambda: bool(stored.waits))
    waits = Waiting(shared, Interested(THIRD, sees_ends=True))
    until(lambda: any(walk.waiting for walk in shared._walks))
    stored.end_transaction()
    stored.append(5_000)
    taken = waits.result()
    assert isinstance(taken, tuple)
    assert taken[0].header(0)[5] == rmgr.RM_XACT_ID
    assert leads.call() is None


class Indifferent(Interested):
    """Is concerned by nothing: it leads on, and nobody is called to lead."""

    def interest(self, batch: RecordBatch, start: int) -> int:
        return PASSED


@pytest.mark.usefixtures("patient")
def test_who_is_eager_is_woken_by_what_is_everyones(stored: Stored, shared: SharedWalk) -> None:
    leads = Waiting(shared, Indifferent(OTHER))
    until(lambda: bool(stored.waits))
    eager = Waiting(shared, Interested(THIRD, is_eager=True))
    until(lambda: any(walk.waiting for walk in shared._walks))
    stored.append(1, database=EVERYONE)
    assert eager.result() is not None
    assert leads.call() is None


def test_a_batch_asks_nobody_whom_it_does_not_concern(stored: Stored, shared: SharedWalk) -> None:
    interests = [Interested(OTHER + n) for n in range(20)]
    idle = [Waiting(shared, interest) for interest in interests]
    until(lambda: sum(len(walk.waiting) for walk in shared._walks) == len(idle) - 1)
    busy = shared.reader(START, V15, ALL)
    lsns: list[int] = []
    taken: list[int] = []
    for _ in range(30):
        lsns += stored.append(1)
        while len(taken) < len(lsns):
            batch, start = busy.take(JOIN_S) or pytest.fail("it was given nothing")
            taken += [batch.header(i)[0] for i in range(start, len(batch))]
    assert taken == lsns
    for one in idle:
        one.call()
        assert one.reader.position <= stored.wal.lsn
    # Who leads asks itself.
    assert sum(interest.asked for interest in interests) <= shared.batches_walked


def test_any_number_of_batches_is_passed_at_once(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "KEPT_BYTES", 1 << 19)
    other, third = Interested(OTHER), Interested(THIRD)
    busy = shared.reader(START, V15, ALL)
    readers = [shared.reader(START, V15, interest) for interest in (other, third)]
    stored.append(100)
    (everyones,) = stored.append(1, database=EVERYONE)
    stored.append(8_000)
    take_all(busy)
    assert busy.position == stored.wal.lsn
    assert shared.kept_bytes <= 1.5 * (1 << 19)
    for reader in readers:
        # It is not kept any more but for those that have not passed it.
        batch, _ = reader.take(0) or pytest.fail("it was given nothing")
        assert everyones in [batch.header(i)[0] for i in range(len(batch))]
        assert reader.take(0) is None
        assert reader.position == stored.wal.lsn
    assert shared.walks == 1
    assert other.asked == third.asked == 1
    assert shared.kept_bytes <= 1 << 19
    # Who has something of its own among what is forgotten walks for itself.
    (mine,) = stored.append(1, database=THIRD)
    stored.append(8_000)
    take_all(busy)
    assert readers[0].take(0) is None
    assert other.asked == 1
    assert mine in take_all(readers[1])
    assert readers[1].take(0) is None
    assert shared.walks == 1, "it has met the others"


def test_who_sleeps_holds_back_nothing_that_does_not_concern_it(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "SPARE_BYTES", 1 << 16)
    busy = shared.reader(START, V15, ALL)
    idle, late = (shared.reader(START, V15, Interested(oid)) for oid in (OTHER, THIRD))
    stored.append(100, database=EVERYONE)
    stored.append(8_000)
    take_all(busy)
    batch, start = idle.take(0) or pytest.fail("it was given nothing")
    assert start == 0, "what is everyone's is kept for who is late"
    # Batches go as soon as the busy one has them, and so do WAL's pages.
    assert shared.kept_bytes <= (1 << 17) + 2 * batch.memory_bytes
    (told,) = stored.told.values()
    assert stored.wal.lsn - told <= 3 * (1 << 15)
    # What is of one that sleeps stays for it, with all behind it.
    (mine,) = stored.append(1, database=THIRD)
    stored.append(8_000)
    take_all(busy)
    (told,) = stored.told.values()
    assert told <= mine
    assert shared.kept_bytes > 1 << 19
    # It is given what is everyone's, and then its own, however much it has passed asleep.
    walked, taken = shared.batches_walked, take_all(late)
    assert mine in taken
    assert len(taken) < 1_000
    assert shared.walks == 1
    assert shared.batches_walked == walked
    stored.append(8_000)
    take_all(busy)
    (told,) = stored.told.values()
    assert stored.wal.lsn - told <= 3 * (1 << 15)
    assert shared.kept_bytes <= (1 << 17) + 2 * batch.memory_bytes
    for reader in (busy, idle, late):
        reader.close()
    assert not stored.told


def test_what_is_everyones_is_not_kept_for_ever(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "KEPT_BYTES", 1 << 17)
    eager, behind = Interested(BUSY, is_eager=True), Interested(OTHER)
    ahead, slow = shared.reader(START, V15, eager), shared.reader(START, V15, behind)
    lsns = stored.append(5_000, database=EVERYONE)
    assert take_all(ahead) == lsns
    assert shared.kept_bytes <= 1.5 * (1 << 17)
    assert take_all(slow) == lsns
    assert shared.walks == 1


@pytest.mark.usefixtures("patient")
def test_who_is_concerned_leads_from_then_on(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "_AWAY_S", JOIN_S)
    other = Interested(OTHER)
    idle = Waiting(shared, other)
    until(lambda: bool(stored.waits))
    first = Waiting(shared, ALL)
    until(lambda: any(walk.waiting for walk in shared._walks))
    stored.append(1)
    assert first.result() is not None
    assert other.asked == 1
    for _ in range(20):
        stored.append(1)
        assert first.reader.take(JOIN_S) is not None
    assert other.asked == 1, "nobody else has led meanwhile"
    assert idle.call() is None
    assert other.asked == 1
    assert idle.reader.position == stored.wal.lsn


@pytest.mark.usefixtures("patient")
def test_who_only_passes_does_not_leave_a_busy_one_behind(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "SPARE_BYTES", 1 << 16)
    monkeypatch.setattr(shared_walk, "_AWAY_S", JOIN_S)
    busy = shared.reader(START, V15, ALL)
    idle = Waiting(shared, Interested(OTHER))
    until(lambda: bool(stored.waits))
    # The busy one does not come yet: the other walks ahead, but not too far.
    lsns = stored.append(5_000)
    until(lambda: any(walk.waiting for walk in shared._walks))
    decoded = take_all(busy)
    assert idle.call() is None
    assert decoded == lsns
    assert shared.walks == 1
    assert idle.reader.position == stored.wal.lsn


@pytest.mark.usefixtures("patient")
def test_who_was_given_something_and_only_passes_leaves_no_busy_one_behind(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "SPARE_BYTES", 1 << 16)
    monkeypatch.setattr(shared_walk, "KEPT_BYTES", 1 << 18)
    monkeypatch.setattr(shared_walk, "_AWAY_S", JOIN_S)
    busy = shared.reader(START, V15, ALL)
    idle = Waiting(shared, Interested(OTHER), takes=2)
    stored.append(1, database=OTHER)
    until(lambda: bool(idle.taken))
    # It comes back from that at once, while there is much to walk, and the busy one does not.
    lsns = stored.append(5_000)
    until(lambda: any(walk.waiting for walk in shared._walks))
    decoded = take_all(busy)
    idle.stop()
    assert idle.taken[1] is None
    assert decoded == lsns
    assert shared.walks == 1
    assert idle.reader.position == stored.wal.lsn


def test_who_would_be_left_behind_is_waited_for_longer_each_time(shared: SharedWalk) -> None:
    slow, other = shared.reader(START, V15, ALL), shared.reader(START, V15, ALL)
    (walk,) = shared._walks
    waited_s = []
    for _ in range(6):
        walk.resign(slow, is_overtaken=True)
        waited_s.append(walk.away_for_s)
    assert waited_s == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.1, 0.1])
    walk.resign(other, is_overtaken=True)
    assert walk.away_for_s == pytest.approx(0.01)
    walk.resign(other, is_overtaken=True)
    walk.resign(other)
    assert walk.away_for_s == pytest.approx(0.01), "it came back"


def test_who_waits_for_an_end_has_met_it_though_more_has_come_since(
    stored: Stored, shared: SharedWalk
) -> None:
    leads = Waiting(shared, Interested(OTHER))
    until(lambda: bool(stored.waits))
    (walk,) = shared._walks
    # It is not at its end, and somebody leads: who asks for no more than what is stored waits.
    with shared._lock:
        walk.is_at_end = False
    late = Waiting(shared, Interested(THIRD), 0.0)
    until(lambda: late.reader in walk.waiting)
    with shared._lock:
        # What the leader does at an end, and at more that comes before anybody else looks.
        walk.ends += 1
        late.reader.woken.notify()
    assert late.result() is None
    assert late.reader.caught_up
    leads.call()


def test_the_more_wait_the_less_often_each_looks(stored: Stored, shared: SharedWalk) -> None:
    readers = [shared.reader(START, V15, ALL)]
    assert shared.look_s == 0.5
    readers += [shared.reader(START, V15, ALL) for _ in range(9)]
    assert shared.look_s == pytest.approx(4.0)
    readers += [shared.reader(START, V15, ALL) for _ in range(64)]
    assert {reader.look_s for reader in readers} == {20.0}


@pytest.mark.usefixtures("patient")
def test_who_sleeps_says_how_far_it_passed_when_that_is_much(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "_LOOK_BYTES", 1 << 18)
    # Else the one that sleeps may lead, on a slow machine, and is not told then.
    monkeypatch.setattr(shared_walk, "_AWAY_S", JOIN_S)
    busy = Waiting(shared, ALL)
    until(lambda: bool(stored.waits))
    idle = Waiting(shared, Interested(OTHER))
    until(lambda: idle.reader in shared._walks[0].waiting)
    lsns = stored.append(8_000)
    assert busy.result() is not None
    take_all(busy.reader)
    assert idle.result() is None
    assert lsns[0] < idle.reader.position <= stored.wal.lsn


def test_who_does_not_come_back_is_not_waited_for(stored: Stored, shared: SharedWalk) -> None:
    idle = [Waiting(shared, Interested(OTHER + n)) for n in range(3)]
    until(lambda: sum(len(walk.waiting) for walk in shared._walks) == 2)
    busy = Waiting(shared, ALL)
    until(lambda: sum(len(walk.waiting) for walk in shared._walks) == 3)
    stored.append(1)
    assert busy.result() is not None
    stored.append(1, database=OTHER + 2)
    assert idle[2].result() is not None
    # Nor does that one come back, nor the next.
    stored.append(1, database=OTHER)
    assert idle[0].result() is not None
    stored.append(1, database=OTHER + 1)
    assert idle[1].result() is not None
    assert shared.walks == 1


class Substitute:
    """Stands in, and notes what for: where batches begin, and up to where it was told to pass."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.lsns: list[int] = []
        self.threads: set[int] = set()
        self.has_more_to_do = False
        self.failure: SpillwayError | None = None
        self.began = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self, taken: tuple[RecordBatch, int] | None, lsn: int) -> bool:
        self.threads.add(threading.get_ident())
        self.began.set()
        assert self.goes_on.wait(JOIN_S)
        if self.failure is not None:
            raise self.failure
        if taken is not None:
            self.batches.append(taken[0].header(taken[1])[0])
        # Whoever waits for what is noted may change the answer to the next call then, not to this.
        has_more_to_do = self.has_more_to_do
        self.lsns.append(lsn)
        return has_more_to_do


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads stands in at every end, and is expected back for long."""
    monkeypatch.setattr(shared_walk, "STAND_IN_S", 0.001)
    monkeypatch.setattr(shared_walk, "_AWAY_S", JOIN_S)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads does so when it has to, and is expected back for long."""
    monkeypatch.setattr(shared_walk, "STAND_IN_S", 2 * JOIN_S)
    monkeypatch.setattr(shared_walk, "_AWAY_S", JOIN_S)


@contextmanager
def asleep(
    shared: SharedWalk, *substitutes: Substitute
) -> Iterator[tuple[RecordReader, list[Waiting]]]:
    """Have a busy reader, which is expected to lead, and those that sleep, each with its
    substitute.
    """
    busy = shared.reader(START, V15, ALL)
    with shared._lock:
        shared._walks[0].leader = busy  # nobody else is to lead meanwhile
    deputy = Waiting(shared, Indifferent(OTHER + 1000))
    until(lambda: deputy.reader in shared._walks[0].waiting)
    idle = [
        Waiting(shared, Interested(OTHER + n), stand_in=one) for n, one in enumerate(substitutes)
    ]
    until(lambda: len(shared._walks[0].waiting) == len(idle) + 1)
    with shared._lock:
        # None of the others is woken to look whether somebody leads.
        shared._walks[0].deputy = deputy.reader
        shared._walks[0].resign(busy)
    try:
        yield busy, idle
    finally:
        assert deputy.call() is None


@pytest.mark.usefixtures("patient", "at_once")
def test_who_leads_stands_in_for_who_sleeps(stored: Stored, shared: SharedWalk) -> None:
    substitutes = [Substitute() for _ in range(20)]
    with asleep(shared, *substitutes) as (busy, idle):
        stored.append(5)
        (everyones,) = stored.append(1, database=EVERYONE)
        stored.append(600)
        take_all(busy)
        for one, substitute in zip(idle, substitutes, strict=True):
            assert one.reader.position == one.reader.read_lsn == stored.wal.lsn
            assert substitute.lsns[-1] == stored.wal.lsn
            assert substitute.threads == {threading.get_ident()}
            # What can wait is looked at, and what is another's is not.
            assert len(substitute.batches) == 1
            assert substitute.batches[0] <= everyones
            assert not one.taken
        called = [one.call() for one in idle]
        assert called == [None] * 20
        assert all(len(substitute.batches) == 1 for substitute in substitutes)


@pytest.mark.usefixtures("patient", "seldom")
def test_a_backlog_s_end_is_told_to_who_sleeps_without_delay(
    stored: Stored, shared: SharedWalk
) -> None:
    substitute = Substitute()
    with asleep(shared, substitute) as (busy, (idle,)):
        stored.append(1)
        take_all(busy)
        before = len(substitute.lsns)
        stored.append(1)
        take_all(busy)
        assert len(substitute.lsns) == before, "it is not time yet"
        stored.append(5_000)
        take_all(busy)
        assert substitute.lsns[-1] == stored.wal.lsn
        assert idle.call() is None


@pytest.mark.usefixtures("patient", "seldom")
def test_much_that_is_passed_is_told_within_a_backlog(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "_LOOK_BYTES", 1 << 17)
    substitute = Substitute()
    with asleep(shared, substitute) as (busy, (idle,)):
        stored.append(8_000)
        take_all(busy)
        assert len(substitute.lsns) >= 3
        assert substitute.lsns == sorted(substitute.lsns)
        assert idle.call() is None


@pytest.mark.usefixtures("patient", "at_once")
def test_who_wakes_waits_for_who_stands_in(stored: Stored, shared: SharedWalk) -> None:
    substitute = Substitute()
    with asleep(shared, substitute) as (busy, (idle,)):
        substitute.goes_on.clear()
        stored.append(1)
        leads = threading.Thread(target=take_all, args=(busy,))
        leads.start()
        assert substitute.began.wait(JOIN_S)
        # It is woken by what is its own, which the other is not to take.
        (mine,) = stored.append(1, database=OTHER)
        with shared._lock:
            idle.reader.woken.notify()
        until(lambda: idle.reader.is_stirred)
        assert not idle.taken
        substitute.goes_on.set()
        leads.join(JOIN_S)
        taken = idle.result()
        assert isinstance(taken, tuple)
        assert taken[0].header(taken[1])[0] == mine
        assert not substitute.batches


@pytest.mark.usefixtures("patient", "at_once")
def test_who_stands_in_calls_the_owner(stored: Stored, shared: SharedWalk) -> None:
    busy_one, failing = Substitute(), Substitute()
    busy_one.has_more_to_do = True
    failing.failure = CorruptWal("not what was written", hint="Mend it.", lsn="0/1")
    with asleep(shared, busy_one, failing) as (busy, (owner, other)):
        stored.append(1)
        take_all(busy)
        assert owner.result() is None
        assert owner.reader.position == stored.wal.lsn
        assert other.result() is failing.failure


@pytest.mark.usefixtures("patient", "at_once")
def test_who_leads_for_long_stands_in_for_itself(stored: Stored, shared: SharedWalk) -> None:
    substitute = Substitute()
    idle = Waiting(shared, Interested(OTHER), stand_in=substitute)
    until(lambda: bool(stored.waits))
    other = Waiting(shared, Interested(THIRD), stand_in=Substitute())
    until(lambda: other.reader in shared._walks[0].waiting)
    stored.append(5)
    until(lambda: stored.wal.lsn in substitute.lsns)
    assert not idle.taken
    before = stored.wal.lsn
    substitute.has_more_to_do = True
    stored.append(5)
    assert idle.result() is None
    # Who leads may have stood in once more before there was more.
    assert before <= idle.reader.position <= stored.wal.lsn
    assert other.call() is None


@pytest.mark.usefixtures("patient", "seldom")
def test_few_owners_are_called_at_once(stored: Stored, shared: SharedWalk) -> None:
    substitutes = [Substitute() for _ in range(5)]
    for substitute in substitutes:
        substitute.has_more_to_do = True
    with asleep(shared, *substitutes) as (busy, idle):
        stored.append(1)
        # The others come to it later, though nothing more has come.
        for called in (2, 4, 5):
            take_all(busy)
            shared._walks[0].sleepers_due = True
            until(lambda called=called: sum(bool(one.taken) for one in idle) == called)  # type: ignore[misc]
            assert all(substitute.lsns[-1] == stored.wal.lsn for substitute in substitutes)
        assert [one.result() for one in idle] == [None] * 5


def first_lsn(taken: object) -> int:
    """Return where the first record starts of what a reader was given."""
    assert isinstance(taken, tuple)
    batch, start = taken
    return int(batch.header(start)[0])


class Live:
    """Takes batches in the stead of one who sleeps, until it has *enough*, or is to raise."""

    def __init__(self, enough: int = 1 << 30) -> None:
        self.enough = enough
        self.lsns: list[int] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None

    def __call__(self, batch: RecordBatch, start: int) -> bool:
        if self.error is not None:
            raise self.error
        self.threads.add(threading.get_ident())
        self.lsns += [batch.header(i)[0] for i in range(start, len(batch))]
        return len(self.lsns) < self.enough


@pytest.mark.usefixtures("patient")
def test_little_is_taken_while_who_leads_sleeps(stored: Stored, shared: SharedWalk) -> None:
    stored.lends = True
    live = Live()
    leads = Waiting(shared, ALL, live=live)
    until(lambda: stored.instead is not None)
    lsns = [lsn for _ in range(30) for lsn in stored.append(2)]
    assert live.lsns == lsns
    assert live.threads == {threading.get_ident()}
    assert stored.slept_on == [True] * 30
    # A record that comes in two pieces is taken with the second.
    (whole,) = (stored.wal.append(of_database(BUSY, 500), xid=7),)
    end = bytes(stored.wal.data)
    del stored.wal.data[-200:]
    stored.store()
    assert live.lsns == lsns
    stored.wal.data[:] = end
    stored.store()
    assert live.lsns == [*lsns, whole]
    assert leads.call() is None
    assert leads.reader.position == stored.wal.lsn
    assert leads.reader.caught_up
    # It goes on by itself from there.
    more = stored.append(3)
    assert take_all(leads.reader) == more


@pytest.mark.usefixtures("patient")
def test_who_has_enough_is_woken_and_goes_on(stored: Stored, shared: SharedWalk) -> None:
    stored.lends = True
    live = Live(enough=2)
    leads = Waiting(shared, ALL, live=live)
    until(lambda: stored.instead is not None)
    first = stored.append(1)
    assert not leads.taken
    second = stored.append(1)
    assert stored.slept_on == [True, False]
    assert live.lsns == [*first, *second]
    assert leads.result() is None
    assert leads.reader.position == stored.wal.lsn


@pytest.mark.usefixtures("patient")
def test_what_live_raises_is_raised_where_the_leader_waits(
    stored: Stored, shared: SharedWalk
) -> None:
    stored.lends = True
    live = Live()
    live.error = StorageError("the disk is gone")
    leads = Waiting(shared, ALL, live=live)
    until(lambda: stored.instead is not None)
    lsns = stored.append(1)
    assert leads.result() is live.error
    # Who begins again takes it.
    again = shared.reader(START, V15, ALL)
    assert take_all(again) == lsns


@pytest.mark.usefixtures("patient")
def test_damage_that_comes_while_the_leader_sleeps_ends_its_walk(
    stored: Stored, shared: SharedWalk
) -> None:
    stored.lends = True
    live = Live()
    leads = Waiting(shared, ALL, live=live)
    until(lambda: stored.instead is not None)
    stored.append(1)
    at = len(stored.wal.data)
    lsn = stored.wal.append(of_database(BUSY, 50), xid=7)
    stored.wal.data[at + 30] ^= 0x40
    stored.store()
    failure = leads.result()
    assert isinstance(failure, CorruptWal)
    assert failure.details["lsn"] == f"0/{lsn:X}"
    assert len(live.lsns) == 1
    assert shared.walks == 0


@pytest.mark.usefixtures("patient")
def test_who_sleeps_and_only_passes_lets_lead_whom_it_concerns(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "_AWAY_S", JOIN_S)
    stored.lends = True
    idle_live, busy_live = Live(), Live()
    other = Interested(OTHER)
    idle = Waiting(shared, other, live=idle_live)
    until(lambda: stored.instead is not None)
    busy = Waiting(shared, ALL, live=busy_live)
    (walk,) = shared._walks
    until(lambda: bool(walk.waiting))
    (first,) = stored.append(1)
    assert first_lsn(busy.result()) == first
    assert stored.slept_on == [False]
    # From here on the busy one leads, and lends.
    called = threading.Event()
    thread = threading.Thread(target=busy.reader.take, args=(JOIN_S, called.is_set, busy_live))
    thread.start()
    until(lambda: walk.leader is busy.reader and stored.instead is not None)
    lsns = [lsn for _ in range(20) for lsn in stored.append(1)]
    assert busy_live.lsns == lsns
    assert stored.slept_on[1:] == [True] * 20
    assert other.asked == 1
    # What is the other's wakes it, and nobody else.
    (lsn,) = stored.append(1, database=OTHER)
    assert first_lsn(idle.result()) == lsn
    assert not idle_live.lsns
    called.set()
    busy.reader.wake()
    thread.join(JOIN_S)
    assert not thread.is_alive()
