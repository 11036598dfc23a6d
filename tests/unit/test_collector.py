"""What Python's collector leaves alone, and when it looks after all."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from spillway.collector import ASKS_MAX, CALM_S, GATHER_S, LATEST_S, Collector

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cycle:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def dead_cycle() -> weakref.ref[Cycle]:
    return weakref.ref(Cycle())


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(clock: Clock) -> Iterator[Collector]:
    collector = Collector(clock)
    yield collector
    collector.end()
    assert gc.get_freeze_count() == 0


def test_what_is_set_aside_is_not_looked_at(collector: Collector) -> None:
    collector.begin()
    before = gc.get_freeze_count()
    assert before > 0
    cycle = dead_cycle()
    collector.set_aside()
    assert gc.get_freeze_count() > before
    gc.collect()
    assert cycle() is not None
    # Not the collector's, but what nobody refers to.
    alone = Cycle()
    alone.itself = None  # type: ignore[assignment]
    collector.set_aside()
    gone = weakref.ref(alone)
    del alone
    assert gone() is None


def test_what_has_ended_is_looked_through_once_for_all(collector: Collector, clock: Clock) -> None:
    collector.begin()
    cycles = [dead_cycle() for _ in range(3)]
    collector.set_aside()
    collector.look(0)
    assert collector.collections == 0
    collector.ask()
    clock.now_s += GATHER_S - 1
    collector.ask()
    collector.look(0)
    assert collector.collections == 0
    assert all(cycle() is not None for cycle in cycles)
    clock.now_s += 1
    collector.look(0)
    assert collector.collections == 1
    assert all(cycle() is None for cycle in cycles)
    assert gc.get_freeze_count() > 0
    clock.now_s += 10 * GATHER_S
    collector.look(0)
    assert collector.collections == 1


def test_it_waits_while_changes_are_decoded(collector: Collector, clock: Clock) -> None:
    collector.begin()
    cycle = dead_cycle()
    collector.set_aside()
    collector.ask()
    decoded = 0
    for _ in range(40):
        clock.now_s += GATHER_S
        decoded += 1
        collector.look(decoded)
    clock.now_s += CALM_S / 2
    collector.look(decoded)
    assert collector.collections == 0
    assert cycle() is not None
    clock.now_s += CALM_S / 2
    collector.look(decoded)
    assert collector.collections == 1
    assert cycle() is None


def test_it_waits_for_a_calm_moment_not_for_ever(collector: Collector, clock: Clock) -> None:
    collector.begin()
    collector.ask()
    clock.now_s += LATEST_S - 1
    collector.look(1)
    assert collector.collections == 0
    clock.now_s += 1
    collector.look(2)
    assert collector.collections == 1


def test_what_waits_for_a_calm_moment_is_bounded(collector: Collector, clock: Clock) -> None:
    collector.begin()
    for _ in range(ASKS_MAX - 1):
        collector.ask()
    clock.now_s += GATHER_S
    collector.look(1)
    assert collector.collections == 0
    collector.ask()
    collector.look(2)
    assert collector.collections == 1
    collector.ask()
    clock.now_s += GATHER_S
    collector.look(3)
    assert collector.collections == 1, "they are counted anew"


def test_it_is_left_alone_where_nobody_began(collector: Collector, clock: Clock) -> None:
    collector.set_aside()
    collector.ask()
    clock.now_s += GATHER_S
    collector.look(0)
    assert (gc.get_freeze_count(), collector.collections) == (0, 0)


def test_it_is_on_again_after_the_last_who_had_it_off(collector: Collector) -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector.off():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with collector.off():
        thread.start()
        assert inside.wait(10)
        assert not gc.isenabled()
    assert not gc.isenabled(), "the other one is still at work"
    leave.set()
    thread.join()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="lost"), collector.off():
        raise ValueError("lost")
    assert gc.isenabled()


def test_who_had_it_off_before_keeps_it_off(collector: Collector) -> None:
    gc.disable()
    try:
        with collector.off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_is_off_until_the_program_has_begun(collector: Collector) -> None:
    collector.start()
    collector.start()
    assert not gc.isenabled()
    with collector.off():
        collector.begin()
        assert not gc.isenabled(), "a catalog is being read"
    assert gc.isenabled()


def test_a_start_that_fails_leaves_it_on(collector: Collector) -> None:
    collector.start()
    collector.end()
    assert gc.isenabled()
