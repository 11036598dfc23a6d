"""A reader waits for those just behind it, and for nobody else, and never for long."""

from __future__ import annotations

import asyncio

from spillway.delivery.stragglers import Pace, Straggler, StragglerWait

#: Nothing but what happens ends a wait.
FOR_EVER = Pace(lead_bytes=1000, reach_bytes=10_000, stalled_s=1e6, patience_s=1e6)


class Runners:
    """Those behind, and the wait that looks at them."""

    def __init__(self, pace: Pace, *lags: int) -> None:
        self.behind = [Straggler(lag, self.now_s) for lag in lags]
        self.wait = StragglerWait(pace, lambda: self.behind)

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def move(self, index: int, lag_bytes: int) -> None:
        self.behind[index] = Straggler(lag_bytes, self.now_s)
        self.wait.look()


async def test_it_waits_until_who_was_behind_has_come_up_by_half() -> None:
    runners = Runners(FOR_EVER, 0, 1001, 400)
    held = runners.wait.begin()
    assert held is not None
    assert runners.wait.begin() is held
    runners.move(1, 501)
    assert not held.done()
    runners.move(1, 500)
    assert held.done()
    assert runners.wait.begin() is None


async def test_all_of_them() -> None:
    runners = Runners(FOR_EVER, 1001, 2000)
    held = runners.wait.begin()
    assert held is not None
    runners.move(0, 0)
    assert not held.done()
    runners.move(1, 0)
    assert held.done()


async def test_who_goes_away_ends_the_wait() -> None:
    runners = Runners(FOR_EVER, 2000)
    held = runners.wait.begin()
    assert held is not None
    runners.behind.clear()
    runners.wait.look()
    assert held.done()


async def test_neither_for_who_is_near_nor_for_who_is_out_of_reach_nor_ahead() -> None:
    assert Runners(FOR_EVER, 0, 1000, 10_001, -5000).wait.begin() is None


async def test_not_for_who_has_stalled() -> None:
    runners = Runners(FOR_EVER._replace(stalled_s=10.0), 2000)
    runners.behind[0] = Straggler(2000, runners.now_s - 11)
    assert runners.wait.begin() is None


async def test_who_stalls_meanwhile_ends_the_wait() -> None:
    runners = Runners(FOR_EVER._replace(stalled_s=0.02), 2000)
    held = runners.wait.begin()
    assert held is not None
    await held
    assert runners.wait.begin() is None


async def test_who_moves_on_is_waited_for_on() -> None:
    runners = Runners(FOR_EVER._replace(stalled_s=0.02), 2000)
    held = runners.wait.begin()
    assert held is not None
    for _ in range(10):
        runners.move(0, 2000)
        await asyncio.sleep(0)
    assert not held.done()
    await held


async def test_patience_ends_and_comes_back_with_time() -> None:
    """However well those behind move: so one who stays slow does not hold up the rest."""
    runners = Runners(FOR_EVER._replace(patience_s=0.06), 2000)
    held = runners.wait.begin()
    assert held is not None
    while not held.done():
        runners.move(0, 2000)
        await asyncio.sleep(0.001)
    assert runners.wait.begin() is None
    while runners.wait.begin() is None:
        runners.move(0, 2000)
        await asyncio.sleep(0.001)
    runners.wait.end()


async def test_without_patience_it_never_waits() -> None:
    assert Runners(FOR_EVER._replace(patience_s=0.0), 2000).wait.begin() is None


async def test_an_ended_wait_leaves_no_timer() -> None:
    runners = Runners(FOR_EVER, 2000)
    held = runners.wait.begin()
    assert held is not None
    runners.wait.end()
    runners.wait.end()
    assert held.done()
    again = runners.wait.begin()
    assert again is not None
    assert again is not held
    runners.wait.end()
