"""Syncs beside the receiver: one at a time, and no error lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from spillway.errors import SpillwayError, WalFlushFailed
from spillway.receiver.sync_thread import SyncThread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Store:
    """Counts syncs, which wait while ``go`` is cleared."""

    directory: Path | str = "wal"

    def __init__(self) -> None:
        self.syncs = 0
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def sync(self) -> None:
        assert self.go.wait(10)
        self.syncs += 1
        if self.error is not None:
            raise self.error


class Syncs(SyncThread):
    def __init__(self, store: Any) -> None:
        self.done = threading.Semaphore(0)
        super().__init__(store, "sync", self.done.release)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def syncs(store: Store) -> Iterator[Syncs]:
    syncs = Syncs(store)
    syncs.start()
    yield syncs
    store.go.set()
    syncs.stop()


def test_one_at_a_time_and_told_after_each(syncs: Syncs, store: Store) -> None:
    for number in range(1, 4):
        store.go.clear()
        assert syncs.begin()
        assert not syncs.begin()
        store.go.set()
        assert syncs.done.acquire(timeout=10)
        syncs.finish()
        assert store.syncs == number


@pytest.mark.parametrize("error", [WalFlushFailed("bad disk"), ZeroDivisionError("bug")])
def test_an_error_waits_for_the_receiver_and_is_raised_once(
    syncs: Syncs, store: Store, error: Exception
) -> None:
    store.error = error
    assert syncs.begin()
    assert syncs.done.acquire(timeout=10)
    assert not syncs.begin(), "the receiver would go on without knowing"
    with pytest.raises(SpillwayError, match=r"bad disk|bug"):
        syncs.check()
    syncs.check()
    store.error = None
    assert syncs.begin()
    syncs.finish()
    assert store.syncs == 2


def test_finish_waits(syncs: Syncs, store: Store) -> None:
    store.error = WalFlushFailed("bad disk")
    store.go.clear()
    assert syncs.begin()
    threading.Timer(0.05, store.go.set).start()
    with pytest.raises(WalFlushFailed):
        syncs.finish()


def test_stop_waits_for_the_sync_under_way(store: Store) -> None:
    syncs = Syncs(store)
    syncs.start()
    store.go.clear()
    assert syncs.begin()
    threading.Timer(0.05, store.go.set).start()
    syncs.stop()
    assert store.syncs <= 1
    assert not syncs._thread.is_alive()
