"""What Python's collector leaves alone, and when it looks after all."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from spillway.collector import GATHER_S, Collector

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
    collector.look()
    assert collector.collections == 0
    collector.ask()
    clock.now_s += GATHER_S - 1
    collector.ask()
    collector.look()
    assert collector.collections == 0
    assert all(cycle() is not None for cycle in cycles)
    clock.now_s += 1
    collector.look()
    assert collector.collections == 1
    assert all(cycle() is None for cycle in cycles)
    assert gc.get_freeze_count() > 0
    clock.now_s += 10 * GATHER_S
    collector.look()
    assert collector.collections == 1


def test_it_is_left_alone_where_nobody_began(collector: Collector, clock: Clock) -> None:
    collector.set_aside()
    collector.ask()
    clock.now_s += GATHER_S
    collector.look()
    assert (gc.get_freeze_count(), collector.collections) == (0, 0)
