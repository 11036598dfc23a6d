"""The event loop's turn: another thread may use what is the loop's own while the loop sleeps.

To hand a transaction to a client the decoder's thread would wake the event loop, which wakes a
task: two turns of two threads, which cost more than the delivery. But whoever wakes a loop that
sleeps knows that nobody uses what is the loop's. So the loop has a *turn*, a lock, that it holds
whenever it does not wait for sockets and timers, and another thread may *borrow* it then::

    the loop   ██ callbacks ██│ select, without the turn …………………………………│██ callbacks ██
    a thread                        borrow ─ a step, a send ─ give_back

Who has borrowed it is the loop, as far as anything that is used "on the event loop" can tell: no
callback runs meanwhile, and the loop that wakes waits until the turn is given back. So it must not
wait for anything, nor await; it may set futures and call ``call_soon``, which wakes the loop when
the turn is given back. Nobody waits to borrow: a loop that is awake is asked by
``call_soon_threadsafe`` as ever. With asyncio's debug mode, which looks at threads, nothing is
lent.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
from typing import TYPE_CHECKING, Protocol, TypeVarTuple, cast

if TYPE_CHECKING:
    from asyncio import Handle, TimerHandle
    from collections.abc import Callable
    from contextvars import Context

    class Turn(Protocol):
        """What another thread does with a loop's turn."""

        def borrow(self) -> bool: ...

        def give_back(self) -> None: ...


_Ts = TypeVarTuple("_Ts")


class _Selector(selectors.DefaultSelector):
    """Waits without the turn."""

    def __init__(self, turn: threading.Lock) -> None:
        super().__init__()
        self._turn = turn

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait as ever; with 0 it is no wait, and the turn is kept."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._turn.release()
        try:
            return super().select(timeout)
        finally:
            self._turn.acquire()


class LendingLoop(asyncio.SelectorEventLoop):
    """An event loop whose turn can be borrowed. :meth:`borrow` and :meth:`give_back` are for other
    threads.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        # The loop's, until it waits for the first time; and again once it has stopped.
        self._turn.acquire()
        self._is_lent = False
        self._has_more = False
        super().__init__(_Selector(self._turn))

    def borrow(self) -> bool:
        """Have the loop's turn, if the loop sleeps; :meth:`give_back` must follow."""
        if not self._turn.acquire(blocking=False):
            return False
        if self.get_debug():
            self._turn.release()
            return False
        self._is_lent = True
        return True

    def give_back(self) -> None:
        """End what :meth:`borrow` began; the loop runs what was scheduled meanwhile."""
        has_more, self._has_more, self._is_lent = self._has_more, False, False
        self._turn.release()
        if has_more:
            # The loop may be gone when the service stops.
            with contextlib.suppress(RuntimeError):
                self.call_soon_threadsafe(_nothing)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> Handle:
        """Schedule as ever."""
        if self._is_lent:
            self._has_more = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> TimerHandle:
        """Schedule as ever."""
        if self._is_lent:
            self._has_more = True
        return super().call_at(when, callback, *args, context=context)


class _NoTurn:
    """The turn of a loop that lends none."""

    def borrow(self) -> bool:
        return False

    def give_back(self) -> None:
        """Nothing was borrowed."""


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the turn of *loop*, which may be of any kind."""
    return cast("Turn", loop) if isinstance(loop, LendingLoop) else _NoTurn()


def _nothing() -> None:
    """Have the loop look."""
