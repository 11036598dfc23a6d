"""The WAL store by itself: contiguous, durable up to flushed_lsn, consistent after any failure."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from harness.remedies import remedy
from spillway import failpoints
from spillway.errors import (
    DiskFull,
    LsnNotRetained,
    NotReady,
    StorageError,
    SystemIdMismatch,
    WalFlushFailed,
    WalGap,
    WalNotContiguous,
    WalStoreFull,
    WalStoreInUse,
)
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import segment_name
from spillway.receiver.segment_file import SegmentFile
from spillway.receiver.wal_reader import LENT_BYTES, AppendedWal
from spillway.receiver.wal_writer import WalWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIZE = 1 << 20
START = 3 * SIZE
SYSTEM_ID = "7710534080520979443"


#: Made-up WAL: every position differs from its neighbours and from all other segments.
WAL = array("Q", range(60 * SIZE // 8)).tobytes()


def wal(lsn: int, count: int) -> bytes:
    return WAL[lsn : lsn + count]


def waits(store: WalWriter, wait: Callable[[], None]) -> threading.Thread:
    """Return a thread that *wait*s for more in *store*, and lends its turn, once it does."""
    reader = store.reader
    assert isinstance(reader, AppendedWal)
    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 30
    while reader._instead is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return thread


def read_all(store: WalWriter, lsn: int | None = None) -> bytes:
    position = store.first_lsn if lsn is None else lsn
    pieces = []
    while piece := store.reader.read(position, 300_000):
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)


def append(store: WalWriter, count: int) -> None:
    store.append(store.received_lsn, wal(store.received_lsn, count))


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir() if len(file.name) == 24)


class Opener:
    """Opens the store of one directory, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[WalWriter] = []

    def __call__(self, **options: Any) -> WalWriter:
        arguments: dict[str, Any] = {
            "system_id": SYSTEM_ID,
            "segment_size": SIZE,
            "start_lsn": START + 4711,
        }
        store = WalWriter(self.path, **{**arguments, **options})
        self.opened.append(store)
        return store

    def again(self, **options: Any) -> WalWriter:
        self.opened[-1].close()
        return self(**options)


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path / "wal")
    yield opener
    for store in opener.opened:
        store.close()


# -- the ordinary course ----------------------------------------------------------------------


def test_begins_at_the_segments_start(opener: Opener) -> None:
    store = opener()
    assert store.first_lsn == store.received_lsn == store.flushed_lsn == START
    assert store.reader.read(START, 100) == b""
    assert store.system_id == SYSTEM_ID
    assert store.segment_size == SIZE
    assert store.timeline == 1


def test_segments_are_ordinary_files(opener: Opener) -> None:
    store = opener(timeline=5)
    append(store, 2 * SIZE + 1000)
    store.sync()

    assert names(opener.path) == [segment_name(5, number, SIZE) for number in (3, 4, 5)]
    for number, name in enumerate(names(opener.path), 3):
        contents = (opener.path / name).read_bytes()
        assert len(contents) == SIZE, "preallocated, as PostgreSQL's own"
        if number < 5:
            assert contents == wal(number * SIZE, SIZE)
        else:
            assert contents == wal(number * SIZE, 1000) + bytes(SIZE - 1000)


def test_read_stops_at_segment_and_end(opener: Opener) -> None:
    store = opener()
    append(store, SIZE + 100)
    assert len(store.reader.read(START + 10, 10 * SIZE)) == SIZE - 10
    assert store.reader.read(START + SIZE + 40, 10 * SIZE) == wal(START + SIZE + 40, 60)
    assert store.reader.read(START + SIZE + 100, 10) == b""
    assert store.reader.read(START + 50 * SIZE, 10) == b""
    assert read_all(store) == wal(START, SIZE + 100)


@pytest.mark.parametrize("chunk", [1, 7, 8192, 100_003, SIZE, SIZE + 1, 3 * SIZE])
def test_any_chunk_size_gives_the_same_files(opener: Opener, chunk: int) -> None:
    store = opener()
    total = 40 * chunk if chunk < 100 else 4 * SIZE
    for _ in range(0, total, chunk):
        append(store, chunk)
    store.sync()
    length = store.received_lsn - START
    assert read_all(store) == wal(START, length)
    assert read_all(opener.again()) == wal(START, length)


def test_append_takes_any_buffer(opener: Opener) -> None:
    store = opener()
    data = wal(START, 30)
    store.append(START, data[:10])
    store.append(START + 10, bytearray(data[10:20]))
    store.append(START + 20, memoryview(data)[20:])
    store.append(START + 30, b"")
    assert read_all(store) == data


@pytest.mark.parametrize("off", [-1, 1, SIZE, -SIZE])
@pytest.mark.follows_hint("wal_not_contiguous")
def test_append_elsewhere_is_refused(opener: Opener, off: int) -> None:
    store = opener()
    append(store, SIZE + 5)
    with pytest.raises(WalNotContiguous) as caught:
        store.append(store.received_lsn + off, b"x")
    assert caught.value.details["received_lsn"] == str(store.received_lsn)
    assert read_all(store) == wal(START, SIZE + 5)
    assert "from where the store ends" in remedy(caught.value, "wal_not_contiguous")
    append(store, 10)
    assert read_all(store) == wal(START, SIZE + 15)


def test_wait(opener: Opener) -> None:
    store = opener()
    assert not store.reader.wait(START, 0.01)
    append(store, 10)
    assert store.reader.wait(START + 9, 0)
    assert not store.reader.wait(START + 10, 0.01)
    timer = threading.Timer(0.05, lambda: append(store, 1))
    timer.start()
    assert store.reader.wait(START + 10, 10)
    timer.join()
    timer = threading.Timer(0.05, store.close)
    timer.start()
    began = time.monotonic()
    assert not store.reader.wait(START + 11, 10)
    assert time.monotonic() - began < 5
    timer.join()


def test_what_comes_is_taken_by_who_appends_while_one_who_waits_sleeps(opener: Opener) -> None:
    store = opener()
    taken: list[tuple[int, bytes, int]] = []
    ended: list[bool] = []

    def take(lsn: int, data: memoryview) -> bool:
        # It is there to be read, by anybody.
        assert store.reader.read(lsn, len(data)) == bytes(data)
        taken.append((lsn, bytes(data), threading.get_ident()))
        return len(taken) % 3 != 0

    assert isinstance(store.reader, AppendedWal)

    def wait() -> None:
        ended.append(store.reader.wait(store.received_lsn, 30, is_called.is_set, take))

    is_called = threading.Event()
    waiting = waits(store, wait)
    append(store, 10)
    append(store, 20)
    assert taken == [
        (START, wal(START, 10), threading.get_ident()),
        (START + 10, wal(START + 10, 20), threading.get_ident()),
    ]
    assert not ended
    # Others who wait are told as ever.
    assert store.reader.wait(START + 29, 0)
    # It says that it is to wake; from then on nothing is taken for it, whenever it does.
    with store.reader.lock:
        append(store, 1)
        append(store, 1)
    waiting.join(30)
    assert ended == [True]
    append(store, 1)
    assert len(taken) == 3, "nobody waits"
    # Much wakes it, and so does a call.
    ended.clear()
    waiting = waits(store, wait)
    append(store, LENT_BYTES + 1)
    waiting.join(30)
    assert ended == [True]
    ended.clear()
    waiting = waits(store, wait)
    is_called.set()
    store.reader.wake()
    waiting.join(30)
    assert ended == [False]
    assert len(taken) == 3


def test_who_is_to_wake_waits_for_who_has_its_turn(opener: Opener) -> None:
    store = opener()
    ended = threading.Event()
    steps: list[str] = []

    def take(lsn: int, data: memoryview) -> bool:
        # It is woken, and does not go on before this has ended.
        store.reader.wake()
        assert not ended.wait(0.3)
        steps.append("taken")
        return True

    def wait() -> None:
        store.reader.wait(START, 30, instead=take)
        steps.append("awake")
        ended.set()

    waiting = waits(store, wait)
    append(store, 10)
    waiting.join(30)
    assert steps == ["taken", "awake"]


def test_readers_in_other_threads_see_every_byte(opener: Opener) -> None:
    store = opener()
    total = 6 * SIZE
    failures: list[BaseException] = []

    def reader(seed: int) -> None:
        numbers = random.Random(seed)
        position = START
        try:
            while position < START + total:
                assert store.reader.wait(position, 10)
                data = store.reader.read(position, numbers.randrange(1, 60_000))
                assert data == wal(position, len(data))
                position += len(data)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    while store.received_lsn < START + total:
        append(store, min(50_000, START + total - store.received_lsn))
        store.sync()
    for thread in threads:
        thread.join(30)
    assert not failures


# -- opening again ----------------------------------------------------------------------------


def test_only_what_was_synced_is_there_again(opener: Opener) -> None:
    store = opener()
    append(store, SIZE + 500)
    assert store.sync() == START + SIZE + 500
    append(store, 2 * SIZE)

    again = opener.again()
    assert again.received_lsn == again.flushed_lsn == START + SIZE + 500
    assert names(opener.path) == [segment_name(1, n, SIZE) for n in (3, 4)]
    tail = (opener.path / names(opener.path)[-1]).read_bytes()
    assert tail == wal(START + SIZE, 500) + bytes(SIZE - 500), "the torn tail is cut off"
    append(again, 2 * SIZE)
    assert read_all(again) == wal(START, 3 * SIZE + 500)


@pytest.mark.parametrize("flushed", [0, 1, 8192, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 2 * SIZE + 17])
def test_power_cut(opener: Opener, flushed: int) -> None:
    """After a power cut, files hold anything behind the last sync, and files that were not synced
    may be missing.
    """
    store = opener()
    append(store, flushed)
    store.sync()
    state = (opener.path / "walstore.state").read_bytes()
    append(store, 2 * SIZE + 100)
    store.close()
    (opener.path / "walstore.state").write_bytes(state)
    for name in names(opener.path):
        number = int(name[8:16], 16) * 4096 + int(name[16:], 16)
        kept = max(0, min(SIZE, START + flushed - number * SIZE))
        path = opener.path / name
        if kept == 0 and number % 2:
            path.unlink()
        else:
            path.write_bytes(
                path.read_bytes()[:kept] + os.urandom(random.Random(number).randrange(SIZE))
            )

    again = opener()
    assert again.received_lsn == again.flushed_lsn == START + flushed
    append(again, 2 * SIZE)
    again.sync()
    assert read_all(opener.again()) == wal(START, flushed + 2 * SIZE)


def test_another_clusters_wal_is_refused(opener: Opener) -> None:
    opener()
    opener.opened[-1].close()
    with pytest.raises(SystemIdMismatch) as caught:
        opener(system_id="1")
    assert caught.value.code == "system_id_mismatch"
    assert caught.value.details["expected_system_id"] == SYSTEM_ID
    with pytest.raises(StorageError, match="wal-segsize"):
        opener(segment_size=2 * SIZE)
    assert opener(system_id=None, segment_size=None, start_lsn=None).system_id == SYSTEM_ID


def test_no_store_there(opener: Opener) -> None:
    with pytest.raises(NotReady):
        opener(start_lsn=None)


@pytest.mark.follows_hint("wal_store_in_use")
def test_second_process_is_kept_out(opener: Opener) -> None:
    store = opener()
    with pytest.raises(WalStoreInUse) as caught:
        WalWriter(opener.path)
    assert "Stop the other service" in remedy(caught.value, "wal_store_in_use")
    store.close()
    opener()


@pytest.mark.parametrize("damage", ["missing", "short"])
@pytest.mark.follows_hint("wal_gap")
def test_missing_segment_is_a_gap_with_its_lsn_to_who_needs_it(opener: Opener, damage: str) -> None:
    store = opener()
    append(store, 2 * SIZE + 500)
    store.sync()
    store.close()
    path = opener.path / names(opener.path)[1]
    if damage == "missing":
        path.unlink()
    else:
        os.truncate(path, 499)
    store = opener()
    with pytest.raises(WalGap) as caught:
        read_all(store)
    assert caught.value.details["lsn"] == str(Lsn(START + SIZE))
    hint = remedy(caught.value, "wal_gap")
    assert hint.startswith(f"Copy {path.name} there")
    assert store.missing == ((START + SIZE) // SIZE,)
    # Everything else is served, and goes on.
    assert store.reader.read(START, SIZE) == wal(START, SIZE)
    assert store.reader.read(START + 2 * SIZE, SIZE) == wal(START + 2 * SIZE, 500)
    append(store, 100)
    store.sync()
    store.close()

    path.write_bytes(wal(START + SIZE, SIZE))
    assert read_all(opener()) == wal(START, 2 * SIZE + 600), "mended as the hint says"


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_the_last_segment_is_received_again_when_it_is_lost(opener: Opener, damage: str) -> None:
    store = opener()
    append(store, 2 * SIZE + 500)
    store.sync()
    store.close()
    path = opener.path / names(opener.path)[2]
    if damage == "missing":
        path.unlink()
    else:
        os.truncate(path, 499)
    store = opener()
    assert store.received_lsn == store.flushed_lsn == START + 2 * SIZE
    assert store.missing == ()
    append(store, 500)
    assert read_all(store) == wal(START, 2 * SIZE + 500)


def test_what_another_has_mends_a_segment(opener: Opener) -> None:
    store = opener()
    append(store, 2 * SIZE + 500)
    store.sync()
    number = START // SIZE
    assert not store.mend(number, wal(START, SIZE)), "it was right"
    for index in (0, 2):
        path = opener.path / names(opener.path)[index]
        data = bytearray(path.read_bytes())
        data[77] ^= 1
        path.write_bytes(data)
    assert store.mend(number, wal(START, SIZE))
    assert store.mend(number + 2, wal(START + 2 * SIZE, SIZE)), "as far as it is durable here"
    assert not store.mend(number + 3, wal(START + 3 * SIZE, SIZE)), "nothing of it is here"
    store.close()
    (opener.path / names(opener.path)[1]).unlink()
    store = opener()
    assert store.mend(number + 1, wal(START + SIZE, SIZE))
    assert store.missing == ()
    append(store, 10)
    assert read_all(store) == wal(START, 2 * SIZE + 510)


def test_vanished_segment_is_a_gap_to_its_reader(opener: Opener) -> None:
    store = opener()
    append(store, 3 * SIZE)
    store.sync()
    (opener.path / segment_name(1, 4, SIZE)).unlink()
    with pytest.raises(WalGap) as caught:
        read_all(store)
    assert caught.value.details["lsn"] == str(Lsn(START + SIZE))


def test_closed_store_says_so(opener: Opener) -> None:
    store = opener()
    store.close()
    store.close()
    for call in (
        lambda: store.reader.read(START, 1),
        lambda: store.append(START, b"x"),
        store.sync,
        lambda: store.remove_before(START + SIZE),
    ):
        with pytest.raises(NotReady):
            call()


def test_close_under_a_running_sync_harms_no_other_file(opener: Opener, tmp_path: Path) -> None:
    """A thread that is stuck in a sync must not go on with a descriptor that is another file's by
    then.
    """
    store = opener()
    append(store, 1000)
    with failpoints.armed("walstore.after_fsync=sleep:200"):
        errors: list[BaseException] = []

        def sync() -> None:
            try:
                store.sync()
            except StorageError as error:
                errors.append(error)

        thread = threading.Thread(target=sync)
        thread.start()
        time.sleep(0.1)
        store.close()
        others = [(tmp_path / f"other{n}").open("w+b") for n in range(20)]
        thread.join()
    assert len(errors) == 1
    for other in others:
        other.close()
        assert (tmp_path / other.name).read_bytes() == b""
    assert opener().flushed_lsn == START


# -- removing ---------------------------------------------------------------------------------


def test_remove_before(opener: Opener) -> None:
    store = opener()
    append(store, 3 * SIZE + 500)
    store.sync()
    append(store, SIZE)

    store.remove_before(START + SIZE - 1)
    assert store.first_lsn == START
    store.remove_before(START + 2 * SIZE + 7)
    assert store.first_lsn == START + 2 * SIZE
    assert store.retained_bytes == 3 * SIZE
    with pytest.raises(LsnNotRetained):
        store.reader.read(START + SIZE, 10)
    assert read_all(store) == wal(START + 2 * SIZE, 2 * SIZE + 500)

    store.remove_before(START + 100 * SIZE)
    assert store.first_lsn == START + 3 * SIZE, "never beyond what is durable"
    again = opener.again()
    assert again.first_lsn == START + 3 * SIZE
    assert read_all(again) == wal(START + 3 * SIZE, 500)


def test_crash_while_removing_leaves_too_much_not_too_little(opener: Opener) -> None:
    store = opener()
    append(store, 4 * SIZE)
    store.sync()
    with failpoints.armed("walstore.remove=error:EIO@2"), pytest.raises(StorageError):
        store.remove_before(START + 3 * SIZE)
    again = opener.again()
    assert again.first_lsn == START + 3 * SIZE
    assert names(opener.path) == [segment_name(1, 6, SIZE)]
    assert read_all(again) == wal(START + 3 * SIZE, SIZE)


def test_reader_of_a_removed_segment_never_sees_other_bytes(opener: Opener) -> None:
    store = opener()
    stop = threading.Event()
    failures: list[BaseException] = []

    def reader() -> None:
        while not stop.is_set():
            position = store.first_lsn
            try:
                data = store.reader.read(position, 10_000)
                assert data == wal(position, len(data))
            except LsnNotRetained:
                pass
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
                return

    thread = threading.Thread(target=reader)
    thread.start()
    for _ in range(40):
        append(store, SIZE)
        store.sync()
        store.remove_before(store.received_lsn - SIZE)
    stop.set()
    thread.join()
    assert not failures


# -- no space, broken disks -------------------------------------------------------------------

FAILURES: list[tuple[str, type[StorageError]]] = [
    ("walstore.create_segment=error:ENOSPC@{n}", DiskFull),
    ("walstore.write=error:ENOSPC@{n}", DiskFull),
    ("walstore.write=error:EDQUOT@{n}", DiskFull),
    ("walstore.write=error:EIO@{n}", StorageError),
    ("walstore.after_write=error:EIO@{n}", StorageError),
    ("walstore.before_fsync=error:EIO@{n}", WalFlushFailed),
    ("walstore.before_fsync=error:ENOSPC@{n}", DiskFull),
    ("walstore.after_fsync=error:EIO@{n}", WalFlushFailed),
    ("walstore.before_state_fsync=error:EIO@{n}", WalFlushFailed),
    ("walstore.after_state_fsync=error:EIO@{n}", WalFlushFailed),
]


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(("spec", "kind"), FAILURES)
def test_failure_then_on_as_if_nothing_was(
    opener: Opener, spec: str, kind: type[StorageError], n: int
) -> None:
    store = opener()
    confirmed = START
    failed = 0
    hints: list[str] = []
    with failpoints.armed(spec.format(n=n)):
        while store.flushed_lsn < START + 5 * SIZE:
            try:
                append(store, 300_000)
                store.sync()
            except kind as error:
                failed += 1
                hints.append(error.hint)
                assert store.flushed_lsn >= confirmed
                assert store.received_lsn >= store.flushed_lsn
            confirmed = store.flushed_lsn
            assert read_all(store) == wal(START, store.received_lsn - START)
    assert failed == 1
    assert all(hints)
    total = store.flushed_lsn - START
    assert read_all(opener.again()) == wal(START, total)


@pytest.mark.follows_hint("wal_flush_failed")
def test_failed_sync_falls_back(opener: Opener) -> None:
    store = opener()
    append(store, 1000)
    store.sync()
    append(store, SIZE)
    with (
        failpoints.armed("walstore.before_fsync=error:EIO@2"),
        pytest.raises(WalFlushFailed) as caught,
    ):
        store.sync()
    assert "What is not durable is received again" in remedy(caught.value, "wal_flush_failed")
    assert store.received_lsn == store.flushed_lsn == START + 1000
    assert store.reader.read(START + 2000, 10) == b"", "a reader that is ahead waits"
    assert store.sync() == START + 1000
    append(store, SIZE)
    assert store.sync() == START + SIZE + 1000


class BesideSync:
    """Runs *action* in the middle of the store's next sync, when segments are being synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
        self.synced: list[str] = []
        actions = [action]

        def sync(segment: SegmentFile) -> None:
            if actions:
                actions.pop()()
            original(segment)
            self.synced.append(segment.path.name)

        original = SegmentFile.sync
        monkeypatch.setattr(SegmentFile, "sync", sync)


@pytest.mark.parametrize("count", [100, SIZE])
def test_append_beside_a_sync_is_of_the_next_one(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    store = opener()
    append(store, 1000)
    beside = BesideSync(monkeypatch, lambda: append(store, count))
    assert store.sync() == store.flushed_lsn == START + 1000
    assert store.received_lsn == START + 1000 + count
    first, second = (segment_name(1, 3 + n, SIZE) for n in range(2))
    assert beside.synced == [first]
    assert store.sync() == START + 1000 + count
    assert beside.synced == [first, first, second][: 2 + (count == SIZE)]
    assert read_all(opener.again()) == wal(START, 1000 + count)


def test_append_after_a_sync_that_failed_beside_it_is_refused(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opener()
    append(store, 1000)
    BesideSync(monkeypatch, lambda: append(store, 2 * SIZE))
    with failpoints.armed("walstore.before_fsync=error:EIO"), pytest.raises(WalFlushFailed):
        store.sync()
    assert store.received_lsn == store.flushed_lsn == START
    with pytest.raises(WalNotContiguous):
        store.append(START + 1000 + 2 * SIZE, b"more")
    append(store, 3 * SIZE)
    assert read_all(store) == wal(START, 3 * SIZE)
    assert store.sync() == START + 3 * SIZE
    assert read_all(opener.again()) == wal(START, 3 * SIZE)


@pytest.mark.parametrize("instant", ["create", "write"])
@pytest.mark.parametrize("position", [1000, SIZE, SIZE + 1000])
def test_sync_that_fails_in_the_middle_of_an_append(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, position: int, instant: str
) -> None:
    """The append fails, too; neither it nor the segment that it began is taken for what comes
    next.
    """
    store = opener()
    append(store, 500)
    store.sync()
    append(store, position - 500)
    failures: list[StorageError] = []

    def fail_once() -> None:
        if not failures:
            with failpoints.armed("walstore.before_fsync=error:EIO"):
                thread = threading.Thread(target=sync)
                thread.start()
                thread.join()

    def sync() -> None:
        try:
            store.sync()
        except StorageError as error:
            failures.append(error)

    if instant == "create":
        original_create = SegmentFile.create
        monkeypatch.setattr(
            SegmentFile,
            "create",
            lambda *arguments: (fail_once(), original_create(*arguments))[1],
        )
    else:
        original_write = SegmentFile.write
        monkeypatch.setattr(
            SegmentFile,
            "write",
            lambda *arguments: (fail_once(), original_write(*arguments))[1],
        )
    with pytest.raises(WalFlushFailed):
        append(store, 2 * SIZE)
    assert len(failures) == 1
    assert store.received_lsn == store.flushed_lsn == START + 500
    assert read_all(store) == wal(START, 500)
    for _ in range(5):
        append(store, SIZE // 2)
    assert read_all(store) == wal(START, 500 + 5 * SIZE // 2)
    store.sync()
    assert read_all(opener.again()) == wal(START, 500 + 5 * SIZE // 2)


def test_max_bytes(opener: Opener) -> None:
    store = opener(max_bytes=2 * SIZE)
    append(store, 2 * SIZE - 10)
    with pytest.raises(WalStoreFull) as caught:
        append(store, 100)
    assert isinstance(caught.value, DiskFull)
    assert store.received_lsn == START + 2 * SIZE, "what fits was taken"
    store.sync()
    store.remove_before(START + SIZE)
    append(store, 100)
    assert read_all(store) == wal(START + SIZE, SIZE + 100)


LIMITED = """
import resource, sys
from spillway.errors import DiskFull
from spillway.receiver.wal_writer import WalWriter
store = WalWriter(sys.argv[1], system_id="1", segment_size=1 << 20, start_lsn=0)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
try:
    store.append(0, b"x" * 100)
except DiskFull as error:
    assert store.received_lsn == 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.append(0, b"x" * 100)
    assert store.sync() == 100
    print(error.code)
"""


def test_file_size_limit_counts_as_full(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "wal")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "disk_full\n", done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB, where mounting one is allowed."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a file system is not allowed here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_really_full_disk(small_disk: Path) -> None:
    with WalWriter(small_disk / "wal", system_id="1", segment_size=SIZE, start_lsn=START) as store:
        with pytest.raises(DiskFull) as caught:
            append(store, 4 * SIZE)
        assert caught.value.code == "disk_full"
        assert str(small_disk) in caught.value.hint
        assert store.received_lsn == START + 2 * SIZE
        store.sync()
        (small_disk / "ballast").write_bytes(b"")
        store.remove_before(START + SIZE)
        append(store, SIZE)
        store.sync()
        assert read_all(store) == wal(START + SIZE, 2 * SIZE)


# -- timelines --------------------------------------------------------------------------------


@pytest.mark.parametrize("fork", [500, SIZE, SIZE + 8192, 2 * SIZE])
def test_switch_timeline(opener: Opener, fork: int) -> None:
    store = opener()
    append(store, fork)
    store.switch_timeline(2, START + fork, b"1\t0/300000\tno recovery target specified\n")
    assert store.timeline == 2
    append(store, SIZE)
    store.sync()
    forked_at = (START + fork) // SIZE
    numbers = range(START // SIZE, -(-(START + fork + SIZE) // SIZE))
    expected = [segment_name(2 if number >= forked_at else 1, number, SIZE) for number in numbers]
    assert names(opener.path) == sorted(expected)
    assert (opener.path / "00000002.history").read_bytes().startswith(b"1\t")
    assert read_all(store) == wal(START, fork + SIZE)
    again = opener.again()
    assert again.timeline == 2
    assert read_all(again) == wal(START, fork + SIZE)


def test_switch_timeline_elsewhere_is_refused(opener: Opener) -> None:
    store = opener()
    append(store, 500)
    with pytest.raises(WalNotContiguous):
        store.switch_timeline(2, START + 400, b"")
    with pytest.raises(WalNotContiguous):
        store.switch_timeline(1, START + 500, b"")


def test_interrupted_switch_is_repeated(opener: Opener) -> None:
    store = opener()
    append(store, 500)
    store.sync()
    with failpoints.armed("walstore.before_state_fsync=error:EIO"), pytest.raises(StorageError):
        store.switch_timeline(2, START + 500, b"")
    assert store.timeline == 1
    again = opener.again()
    if again.timeline == 1:
        again.switch_timeline(2, START + 500, b"")
    append(again, 100)
    assert again.timeline == 2
    assert read_all(again) == wal(START, 600)


def test_switch_after_failed_sync_forgets_the_old_timelines_files(opener: Opener) -> None:
    store = opener()
    append(store, 500)
    store.sync()
    append(store, 3 * SIZE)
    with failpoints.armed("walstore.before_fsync=error:EIO"), pytest.raises(WalFlushFailed):
        store.sync()
    store.switch_timeline(2, START + 500, b"")
    append(store, 2 * SIZE)
    store.sync()
    assert names(opener.path) == [segment_name(2, number, SIZE) for number in (3, 4, 5)]
    assert read_all(opener.again()) == wal(START, 2 * SIZE + 500)


# -- the kernel's page cache ------------------------------------------------------------------


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record what is dropped: file and bytes."""
    calls: list[tuple[str, int]] = []
    drop = SegmentFile.drop_cached

    def record(file: SegmentFile, size: int) -> None:
        calls.append((file.path.name, size))
        drop(file, size)

    monkeypatch.setattr(SegmentFile, "drop_cached", record)
    return calls


def segment(number: int) -> str:
    return segment_name(1, number, SIZE)


def test_what_is_durable_and_read_by_all_is_dropped(
    opener: Opener, dropped: list[tuple[str, int]]
) -> None:
    store = opener()
    store.reader.passed("first", START)
    store.reader.passed("second", START)
    append(store, 3 * SIZE + 100)
    store.reader.passed("first", store.received_lsn)
    store.reader.passed("second", store.received_lsn)
    assert dropped == []  # nothing is durable yet
    store.sync()
    store.reader.passed("first", START + 2 * SIZE)
    assert dropped == [(segment(3), SIZE), (segment(4), SIZE)]
    store.reader.passed("second", START + SIZE)
    store.reader.passed("first", store.received_lsn)
    assert len(dropped) == 2  # the second is behind
    store.reader.leave("second")
    store.reader.passed("first", store.received_lsn)
    assert dropped[2:] == [(segment(5), SIZE)]
    assert read_all(store) == wal(START, 3 * SIZE + 100)


def test_a_reader_that_begins_drops_nothing_behind_it(
    opener: Opener, dropped: list[tuple[str, int]]
) -> None:
    store = opener()
    append(store, 3 * SIZE)
    store.sync()
    store.reader.passed("first", START + 2 * SIZE)
    assert dropped == []
    store.reader.passed("first", START + 3 * SIZE)
    assert dropped == [(segment(5), SIZE)]


def test_what_was_removed_is_not_missed(opener: Opener, dropped: list[tuple[str, int]]) -> None:
    store = opener()
    store.reader.passed("first", START)
    append(store, 4 * SIZE)
    store.sync()
    store.remove_before(START + 2 * SIZE)
    store.reader.passed("first", START + 4 * SIZE)
    assert dropped == [(segment(5), SIZE), (segment(6), SIZE)]
    assert read_all(store) == wal(START + 2 * SIZE, 2 * SIZE)
