"""WAL that is read by its directory alone: durable, never what a writer may cut off, whatever
happens to the files.
"""

from __future__ import annotations

import random
import shutil
import threading
from array import array
from typing import TYPE_CHECKING

import pytest

from spillway import failpoints
from spillway.errors import (
    LsnNotRetained,
    NotReady,
    StorageError,
    SystemIdMismatch,
    WalFlushFailed,
    WalGap,
)
from spillway.pg.wal_segment import segment_name
from spillway.receiver import store_state
from spillway.receiver.segment_directory import SegmentDirectory
from spillway.receiver.wal_reader import END_NAME, FollowedWal
from spillway.receiver.wal_writer import WalWriter
from spillway.storage.announcement import Announcer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spillway.receiver.store_state import StoreState

SIZE = 1 << 20
START = 3 * SIZE
WAL = array("Q", range(30 * SIZE // 8)).tobytes()


def open_store(path: Path, system_id: str = "1") -> WalWriter:
    return WalWriter(path, system_id=system_id, segment_size=SIZE, start_lsn=START)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WalWriter]:
    with open_store(tmp_path / "wal") as store:
        yield store


@pytest.fixture
def followed(store: WalWriter) -> Iterator[FollowedWal]:
    followed = FollowedWal(store.directory)
    yield followed
    followed.close()


def append(store: WalWriter, count: int) -> None:
    lsn = store.received_lsn
    store.append(lsn, WAL[lsn : lsn + count])


def read_all(followed: FollowedWal, lsn: int = START) -> bytes:
    pieces = []
    while piece := followed.read(lsn, 300_000):
        pieces.append(piece)
        lsn += len(piece)
    return b"".join(pieces)


def test_what_is_durable_can_be_read(store: WalWriter, followed: FollowedWal) -> None:
    assert (followed.system_id, followed.segment_size, followed.timeline) == ("1", SIZE, 1)
    assert followed.first_lsn == followed.flushed_lsn == followed.received_lsn == START
    for count in (100, SIZE - 100, 3 * SIZE + 5):
        before = followed.flushed_lsn
        append(store, count)
        assert followed.read(before, 10) == b"", "it is received, and not durable"
        store.sync()
        assert followed.received_lsn == followed.flushed_lsn == store.flushed_lsn
        assert read_all(followed) == WAL[START : store.flushed_lsn]
    assert len(followed.read(START + 10, 5 * SIZE)) == SIZE - 10, "not beyond the segment"


def test_not_before_the_state_is_durable(
    store: WalWriter, followed: FollowedWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that is written may be gone after a power failure."""
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(
        store_state, "failpoint", lambda name: seen.append((name, followed.flushed_lsn))
    )
    append(store, 100)
    store.sync()
    assert seen == [("walstore.before_state_fsync", START), ("walstore.after_state_fsync", START)]
    assert followed.flushed_lsn == START + 100


def test_a_sync_that_fails_shows_nothing(store: WalWriter, followed: FollowedWal) -> None:
    append(store, 100)
    store.sync()
    for name in ("walstore.before_fsync", "walstore.before_state_fsync"):
        append(store, 50)
        with failpoints.armed(f"{name}=error:EIO"), pytest.raises(WalFlushFailed):
            store.sync()
        assert followed.received_lsn == START + 100
    append(store, 50)
    store.sync()
    assert read_all(followed) == WAL[START : START + 150]


def test_what_was_removed_is_said(store: WalWriter, followed: FollowedWal) -> None:
    append(store, 3 * SIZE)
    store.sync()
    assert followed.read(START + 5, 10) == WAL[START + 5 : START + 15]
    store.remove_before(START + 2 * SIZE)
    with pytest.raises(LsnNotRetained) as caught:
        followed.read(START + 5, 10)
    assert caught.value.details["first_lsn"] == str(followed.first_lsn) == "0/500000"
    assert read_all(followed, START + 2 * SIZE) == WAL[START + 2 * SIZE : START + 3 * SIZE]


def test_removed_between_look_and_open(
    store: WalWriter, followed: FollowedWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(store, 3 * SIZE)
    store.sync()
    find = SegmentDirectory.find

    def remove_first(directory: SegmentDirectory, state: StoreState) -> None:
        store.remove_before(START + 2 * SIZE)
        find(directory, state)

    monkeypatch.setattr(SegmentDirectory, "find", remove_first)
    with pytest.raises(LsnNotRetained):
        followed.read(START, 10)


def test_a_file_that_vanished_is_a_gap(store: WalWriter, followed: FollowedWal) -> None:
    append(store, 2 * SIZE)
    store.sync()
    path = store.directory / segment_name(1, 3, SIZE)
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(WalGap, match="is missing"):
        followed.read(START, 10)
    path.write_bytes(data[:500])
    assert followed.read(START, 1000) == WAL[START : START + 500]
    with pytest.raises(WalGap, match="is too short"):
        followed.read(START + 600, 10)


@pytest.mark.parametrize("at", [100, SIZE, SIZE + 100])
def test_over_a_fork(store: WalWriter, followed: FollowedWal, at: int) -> None:
    append(store, at)
    store.sync()
    assert read_all(followed) == WAL[START : START + at]
    store.switch_timeline(2, store.received_lsn, b"1\t0/0\tno reason\n")
    assert followed.timeline == 2
    append(store, 2 * SIZE)
    store.sync()
    assert read_all(followed) == WAL[START : START + at + 2 * SIZE]


def test_a_store_that_is_opened_again(store: WalWriter, followed: FollowedWal) -> None:
    append(store, SIZE + 100)
    store.sync()
    append(store, SIZE)
    assert read_all(followed) == WAL[START : START + SIZE + 100]
    store.close()
    assert read_all(followed) == WAL[START : START + SIZE + 100], "without a writer, too"
    with open_store(store.directory) as again:
        lsn = again.received_lsn
        again.append(lsn, b"something else")
        assert read_all(followed) == WAL[START : START + SIZE + 100]
        again.sync()
        assert read_all(followed, lsn) == b"something else"


def test_a_store_that_lost_its_state_receives_its_last_segment_again(
    store: WalWriter, followed: FollowedWal
) -> None:
    """Then bytes come that were there before, in a file of the same name."""
    header = bytearray(40)
    header[:2], header[2:4], header[4:8] = b"\x13\xd1", b"\x02\x00", b"\x01\0\0\0"
    for number in (3, 4):
        header[8:16] = (number * SIZE).to_bytes(8, "little")
        header[24:32] = (1).to_bytes(8, "little")
        header[32:36], header[36:40] = SIZE.to_bytes(4, "little"), (8192).to_bytes(4, "little")
        store.append(number * SIZE, bytes(header))
        rest = SIZE - 40 if number == 3 else 5000
        append(store, rest)
    store.sync()
    end = int(store.flushed_lsn)
    assert len(read_all(followed)) == end - START
    store.close()
    (store.directory / store_state.STATE_NAME).unlink()
    with WalWriter(store.directory, system_id="1", segment_size=SIZE) as again:
        assert followed.received_lsn == again.received_lsn == 4 * SIZE
        assert followed.read(end, 10) == b"", "who is ahead waits"
        assert followed.read(4 * SIZE, 10) == b""
        again.append(4 * SIZE, b"!" * 6000)
        again.sync()
        assert read_all(followed, 4 * SIZE) == b"!" * 6000


def test_a_store_that_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    with pytest.raises(NotReady, match="no service has opened") as early:
        FollowedWal(path)
    # The hint is right.
    assert "Start the service that receives into this directory" in early.value.hint
    open_store(path).close()
    followed = FollowedWal(path)
    shutil.rmtree(path)
    for ask in (lambda: followed.read(START, 1), lambda: followed.flushed_lsn):
        with pytest.raises(NotReady, match="no service has opened"):
            ask()
    with open_store(path) as store:
        append(store, 100)
        store.sync()
        assert read_all(followed) == WAL[START : START + 100]
    shutil.rmtree(path)
    with open_store(path, "2"), pytest.raises(SystemIdMismatch, match="of cluster 2 now"):
        followed.read(START, 1)
    followed.close()


def test_waiting(store: WalWriter, followed: FollowedWal) -> None:
    append(store, 10)
    assert not followed.wait(START, 0.01), "not durable"
    store.sync()
    assert followed.wait(START + 9, 0)
    assert not followed.wait(START + 10, 0.01)
    called: list[bool] = []
    calling = threading.Timer(0.05, lambda: (called.append(True), followed.wake()))
    calling.start()
    assert not followed.wait(START + 10, 60, lambda: bool(called))
    coming = threading.Timer(0.05, lambda: (append(store, 10), store.sync()))
    coming.start()
    assert followed.wait(START + 10, 60)
    closing = threading.Timer(0.05, followed.close)
    closing.start()
    assert not followed.wait(START + 20, 60)
    with pytest.raises(NotReady, match="closed"):
        followed.read(START, 1)
    for timer in (calling, coming, closing):
        timer.join()


def test_a_directory_that_cannot_be_told_fails_the_call(store: WalWriter) -> None:
    """Nothing is lost with it: what is durable is, and the next call tells."""
    append(store, 100)

    def refuse(_announcer: Announcer, *_: int) -> None:
        raise OSError(5, "no")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Announcer, "announce", refuse)
        with pytest.raises(StorageError):
            store.sync()
    assert store.flushed_lsn == store.received_lsn == START + 100
    append(store, 100)
    store.sync()
    followed = FollowedWal(store.directory)
    assert read_all(followed) == WAL[START : START + 200]
    followed.close()


def test_read_beside_a_writer(store: WalWriter, followed: FollowedWal) -> None:
    """Threads stand in for processes: they share no more than the directory."""
    end = START + 12 * SIZE
    wrong: list[int] = []

    def follow(seed: int) -> None:
        numbers, lsn = random.Random(seed), START
        while lsn < end:
            followed.wait(lsn, 10)
            try:
                data = followed.read(lsn, numbers.randrange(1, 200_000))
            except LsnNotRetained:
                lsn = int(followed.first_lsn)
                continue
            if data != WAL[lsn : lsn + len(data)]:
                wrong.append(lsn)
                return
            lsn += len(data)

    readers = [threading.Thread(target=follow, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    numbers = random.Random(0)
    while store.received_lsn < end:
        append(store, min(numbers.randrange(1, 300_000), end - store.received_lsn))
        if numbers.random() < 0.5:
            store.sync()
        if numbers.random() < 0.1:
            store.remove_before(store.flushed_lsn - 2 * SIZE)
    store.sync()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    assert not wrong


def test_the_file_that_tells_is_small(store: WalWriter) -> None:
    append(store, 3 * SIZE)
    store.sync()
    assert (store.directory / END_NAME).stat().st_size == 512
