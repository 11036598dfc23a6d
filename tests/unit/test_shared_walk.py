"""WAL that is walked once for many: readers that share, that are left behind and meet again, and WAL that is damaged."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from harness.wal_writer import WalWriter, main_data
from spillway._kernels.wal.walker import Walker
from spillway.errors import CorruptWal, StorageError, WalGap
from spillway.pg.versions import WAL_VERSIONS
from spillway.wal import shared_walk
from spillway.wal.shared_walk import LATER, NOW, PASSED, RecordReader, SharedWalk

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway._kernels.wal.record_batch import RecordBatch

START = 3 << 20
V15 = WAL_VERSIONS[15]
JOIN_S = 30


class Stored:
    """WAL of a writer, of which a reader sees what was stored so far."""

    def __init__(self) -> None:
        self.wal = WalWriter(V15, START)
        self.changed = threading.Condition()
        self.error: StorageError | WalGap | None = None
        self.reads = 0
        self.waits = 0
        self._data = b""

    def append(self, records: int, length: int = 50, xid: int = 7) -> list[int]:
        """Store *records* more; return where they start."""
        lsns = [self.wal.append(main_data(bytes(length)), xid=xid) for _ in range(records)]
        self.store()
        return lsns

    def store(self) -> None:
        with self.changed:
            self._data = bytes(self.wal.data)
            self.changed.notify_all()

    def read(self, lsn: int, max_bytes: int) -> bytes:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self._data[lsn - START :][:max_bytes]

    def wait(self, lsn: int, timeout_s: float, called: Callable[[], bool] = lambda: False) -> bool:
        with self.changed:
            self.waits += 1
            return self.changed.wait_for(
                lambda: len(self._data) > lsn - START or called(), timeout_s
            )

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()


class Interested:
    """Wants records of some xids: of *now* at once, of *later* in time."""

    def __init__(self, now: set[int], later: set[int] | None = None) -> None:
        self._now, self._later = now, later or set()

    def interest(self, batch: RecordBatch, start: int) -> int:
        xids = {batch.header(i)[4] for i in range(start, len(batch))}
        return NOW if xids & self._now else LATER if xids & self._later else PASSED


#: what all records here are of
XID = 7
ALL = Interested({XID})


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
    # Who had not come as far finds what is kept, then where it ended: as if it had been told when the others were.
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
            # By turns one does not come back before the others have what comes: none may wait for it to lead.
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

    def follow() -> None:
        reader = shared.reader(START, V15, ALL)
        reader.take(0)
        answers.append(reader.take(JOIN_S, called.is_set))

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    called.set()
    shared.wake()
    for thread in threads:
        thread.join(JOIN_S)
    assert answers == [None] * 3


def test_what_is_of_no_interest_is_passed_over(stored: Stored, shared: SharedWalk) -> None:
    busy = shared.reader(START, V15, ALL)
    idle = shared.reader(START, V15, Interested({8}))
    lsns = stored.append(2_000)
    assert idle.take(0) is None, "it leads past all of it"
    assert idle.caught_up
    assert idle.position == stored.wal.lsn
    assert take_all(busy) == lsns
    before = shared.batches_walked
    (mine,) = stored.append(1, xid=8)
    stored.append(2_000)
    taken = take_all(idle)
    assert mine in taken, "with what else is in that batch"
    assert len(taken) <= 256
    assert take_all(busy)[0] == mine
    # The same alone, and begun within.
    alone = shared.reader(lsns[1_000], V15, Interested({8}))
    assert take_all(alone) == taken
    assert shared.batches_walked >= before


class Waiting:
    """A reader that waits on a thread of its own, until it is given something or called."""

    def __init__(self, shared: SharedWalk, interest: Interested) -> None:
        self.reader = shared.reader(START, V15, interest)
        self.taken: list[object] = []
        self._shared = shared
        self._called = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.taken.append(self.reader.take(JOIN_S, self._called.is_set))

    def call(self) -> object:
        """Call it, and return what it was given."""
        self._called.set()
        self._shared.wake()
        return self.result()

    def result(self) -> object:
        """Return what it was given, once it was."""
        self._thread.join(JOIN_S)
        (taken,) = self.taken
        return taken


def until(holds: Callable[[], bool]) -> None:
    """Wait for *holds*."""
    tick = threading.Event()
    for _ in range(JOIN_S * 100):
        if holds():
            return
        tick.wait(0.01)
    raise AssertionError("it never came to that")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks again by itself."""
    monkeypatch.setattr(shared_walk, "_LOOK_S", JOIN_S)


@pytest.mark.usefixtures("patient")
def test_who_waits_passes_without_being_woken(stored: Stored, shared: SharedWalk) -> None:
    first, second = Waiting(shared, Interested({8})), Waiting(shared, Interested({9}))
    stored.append(600)
    until(lambda: first.reader.position == second.reader.position == stored.wal.lsn)
    assert not first.taken
    assert not second.taken
    stored.append(1, xid=9)
    assert second.result() is not None
    assert not first.taken
    # The one that is there has to lead, whoever did before.
    stored.append(1)
    until(lambda: first.reader.position == stored.wal.lsn)
    assert first.call() is None
    assert shared.walks == 1


@pytest.mark.usefixtures("patient")
def test_what_can_wait_is_taken_when_it_looks(stored: Stored, shared: SharedWalk) -> None:
    leads = Waiting(shared, Interested({8}))
    until(lambda: bool(stored.waits))
    waits = Waiting(shared, Interested({8}, {9}))
    until(lambda: any(walk.waiting for walk in shared._walks))
    stored.append(1, xid=9)
    until(lambda: leads.reader.position == stored.wal.lsn)
    stored.append(1)
    until(lambda: leads.reader.position == stored.wal.lsn)
    assert not waits.taken
    assert waits.reader.position == START
    taken = waits.call()
    assert isinstance(taken, tuple)
    assert taken[0].header(0)[4] == 9
    assert leads.call() is None


@pytest.mark.usefixtures("patient")
def test_what_can_wait_is_taken_before_it_is_forgotten(
    stored: Stored, shared: SharedWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_walk, "KEPT_BYTES", 1 << 19)
    leads = Waiting(shared, Interested({8}))
    until(lambda: bool(stored.waits))
    waits = Waiting(shared, Interested({8}, {9}))
    until(lambda: any(walk.waiting for walk in shared._walks))
    first = stored.append(5_000, xid=9)[0]
    taken = waits.result()
    assert isinstance(taken, tuple)
    assert taken[0].header(0)[0] == first
    assert leads.call() is None
