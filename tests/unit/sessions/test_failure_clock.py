"""Since when a database fails to be decoded is a stored fact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spillway.receiver.primary import SourceDatabase
from spillway.sessions import failure_clock
from spillway.sessions.failure_clock import FailureClock
from spillway.sessions.layout import DatabaseLayout
from spillway.storage.disk_reserve import DiskReserve

if TYPE_CHECKING:
    from pathlib import Path

DATABASE = SourceDatabase("shop", 5, "UTF8")


class Clocks:
    """The machine's time, and the process's, which begins anew with it."""

    def __init__(self) -> None:
        self.wall, self.process = 1_000_000.0, 50.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.process

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.process += seconds

    def start_process(self, down_s: float) -> None:
        self.wall += down_s
        self.process = 50.0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(failure_clock, "time", clocks)
    return clocks


@pytest.fixture
def layout(tmp_path: Path) -> DatabaseLayout:
    layout = DatabaseLayout(tmp_path / "5", DiskReserve(tmp_path / "reserve"))
    layout.describe(**DATABASE._asdict(), streaming=[1, 2])
    return layout


def test_a_process_that_restarts_every_few_minutes_does_not_begin_anew(
    clocks: Clocks, layout: DatabaseLayout
) -> None:
    for start in range(6):
        clock = FailureClock(layout)
        assert clock.for_s == 120.0 * start
        clock.failed(0x2000)
        # From the last snapshot again, to the same place: that is no progress, whatever is written
        # on the way.
        clock.got_to(0x1000)
        clock.got_to(0x2000)
        clocks.pass_by(90)
        clock.failed(0x1800)
        assert clock.for_s == 120.0 * start + 90
        clocks.start_process(down_s=30)
    # What else is remembered is still there.
    assert (layout.database(), layout.streaming()) == (DATABASE, (1, 2))


def test_it_stops_when_decoding_gets_further(clocks: Clocks, layout: DatabaseLayout) -> None:
    for stop in (lambda clock: clock.got_to(0x2001), lambda clock: clock.stop()):
        clock = FailureClock(layout)
        assert (clock.for_s, clock.runs) == (0.0, False)
        clock.failed(0x2000)
        clocks.pass_by(90)
        stop(clock)
        assert (clock.for_s, clock.runs) == (0.0, False)
        assert layout.failed() is None
        clocks.start_process(down_s=30)
    # A failure behind that is another one.
    clock = FailureClock(layout)
    clock.failed(0x3000)
    clocks.pass_by(1)
    assert clock.for_s == 1.0


def test_a_clock_that_was_set_back_and_a_disk_that_is_full(
    clocks: Clocks, layout: DatabaseLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailureClock(layout).failed(0x2000)
    clocks.start_process(down_s=-3600)
    clock = FailureClock(layout)
    assert clock.for_s == 0.0
    clocks.pass_by(5)
    assert clock.for_s == 5.0

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("spillway.sessions.layout.replace_file", full)
        clock.failed(0x4000)
        clocks.pass_by(5)
        assert clock.for_s == 10.0
        assert layout.failed() == (1_000_000.0, 0x2000)
    # With space again the next failure at the same place is stored.
    clock.failed(0x4000)
    assert layout.failed() == (1_000_000.0, 0x4000)
    with monkeypatch.context() as patch:
        patch.setattr("spillway.sessions.layout.replace_file", full)
        clock.stop()
    assert not clock.runs
    assert layout.failed() is not None
    clock.stop()
    assert layout.failed() is None
