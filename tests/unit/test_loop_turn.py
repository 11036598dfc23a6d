"""An event loop's turn: lent while it sleeps, to one at a time, and it goes on with what was
scheduled meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from harness.asleep import asleep
from spillway.loop_turn import LendingLoop, turn_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Any


@pytest.fixture
def loop() -> Iterator[LendingLoop]:
    loop = LendingLoop()
    yield loop
    loop.close()


def _run(loop: LendingLoop, main: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(asyncio.wait_for(main, 60))


def test_a_loop_that_is_awake_lends_nothing(loop: LendingLoop) -> None:
    async def main() -> None:
        assert not loop.borrow()
        # Nor on another thread, for as long as no callback waits.
        thread = threading.Thread(target=lambda: found.append(loop.borrow()))
        thread.start()
        thread.join()

    found: list[bool] = []
    assert not loop.borrow()
    _run(loop, main())
    assert found == [False]
    assert not loop.borrow()


def test_nothing_runs_on_the_loop_while_its_turn_is_lent(loop: LendingLoop) -> None:
    events: list[str] = []

    def borrower() -> None:
        asleep(loop)
        assert loop.borrow()
        assert not loop.borrow()
        loop.call_soon_threadsafe(events.append, "woken")
        # By now the loop has found the byte that wakes it, or comes to find it.
        threading.Event().wait(0.05)
        events.append("lent")
        loop.give_back()

    async def main() -> None:
        await asyncio.to_thread(borrower)

    _run(loop, main())
    assert events == ["lent", "woken"]


def test_what_a_borrower_schedules_is_run(loop: LendingLoop) -> None:
    """The loop would sleep on: nothing else wakes it."""

    def borrower(future: asyncio.Future[None]) -> list[bool]:
        soon, later = threading.Event(), threading.Event()
        asleep(loop)
        assert loop.borrow()
        future.add_done_callback(lambda _: soon.set())
        future.set_result(None)
        loop.give_back()
        found = [soon.wait(20)]
        asleep(loop)
        assert loop.borrow()
        loop.call_later(0.001, later.set)
        loop.give_back()
        return [*found, later.wait(20)]

    async def main() -> None:
        assert await asyncio.to_thread(borrower, loop.create_future()) == [True, True]

    _run(loop, main())


def test_nothing_is_lent_where_threads_are_looked_at(loop: LendingLoop) -> None:
    def borrower() -> list[bool]:
        asleep(loop)
        loop.set_debug(True)
        found = [loop.borrow()]
        loop.set_debug(False)
        # Of either the loop is told, which wakes it.
        asleep(loop)
        found.append(loop.borrow())
        loop.give_back()
        return found

    async def main() -> None:
        assert await asyncio.to_thread(borrower) == [False, True]

    _run(loop, main())


def test_other_loops_lend_nothing() -> None:
    loop = asyncio.new_event_loop()
    try:
        turn = turn_of(loop)
        assert not turn.borrow()
        turn.give_back()
    finally:
        loop.close()
