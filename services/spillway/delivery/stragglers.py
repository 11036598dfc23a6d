"""When a shared reader waits for streams that are just behind it.

Eight clients on two cores do not run side by side: the kernel lets one of them go ahead for a
while, then another. Whoever is ahead has steps taken, and when those behind come to need them they
are kept no longer (:mod:`spillway.delivery.shared_readers`). Then each encodes for itself what one
would have encoded for all, which takes the time that they lack. So whoever is ahead waits a
little. ::

    made ────────────────┬──────────── LEAD ───────────▶ R, next step
                         B: took a step just now

    B is too far behind: R takes no step until B has come up to half of LEAD

Nobody is held up by one who is slow for good:

- It is waited for only who took a step within STALLED_S. Whoever does not read costs the others
  nothing.
- A reader has PATIENCE_S for waiting, and gets it back at a quarter of the time that passes
  otherwise. So waiting takes a fifth of the time at most, whatever is behind; who is slower than
  that is left behind, and goes on alone.
- Whoever went on alone is not waited for and waits for nobody; nor is anyone waited for who is more
  than REACH behind.
- It waits only in a backlog: what comes live waits for nobody.

Each wait has a timer, and ends at once when those behind have come up, left, or closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Pace(NamedTuple):
    """How streams that share keep together; see the module."""

    #: begin to wait for one who is so far behind; until it is half of it
    lead_bytes: int = 6 << 20
    #: who is further behind has lost touch, or begins where others were long ago
    reach_bytes: int = 64 << 20
    stalled_s: float = 0.5
    patience_s: float = 2.0


#: Patience regained for each second that a reader did not wait.
_REGAINED: Final = 0.25
#: With less patience than that no wait begins: a timer costs something, too.
_LEAST_S: Final = 0.05


class Straggler(NamedTuple):
    """A stream that is behind a reader."""

    #: of what was made
    lag_bytes: int
    #: when it took its last step, by the event loop's clock
    moved_s: float


class StragglerWait:
    """One reader's waiting for those behind it. Used on the event loop."""

    def __init__(self, pace: Pace, behind: Callable[[], Iterable[Straggler]]) -> None:
        """Wait for whom *behind* gives: those who may be waited for at all."""
        self._pace = pace
        self._behind = behind
        self._loop = asyncio.get_running_loop()
        self._patience_s = pace.patience_s
        # The last wait's end; its beginning while one lasts.
        self._since_s = self._loop.time()
        self._held: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> asyncio.Future[None] | None:
        """Return what to wait for before the next step is taken; None to take it now."""
        if self._held is None:
            now_s = self._loop.time()
            regained_s = (now_s - self._since_s) * _REGAINED
            self._patience_s = min(self._pace.patience_s, self._patience_s + regained_s)
            self._since_s = now_s
            if self._patience_s < _LEAST_S:
                return None
            left_s = self._left_s(now_s, self._pace.lead_bytes)
            if left_s <= 0:
                return None
            self._held = self._loop.create_future()
            self._timer = self._loop.call_later(left_s, self._look_again)
        return self._held

    def look(self) -> None:
        """End the wait if there is nobody to wait for any more: someone has taken a step, or has
        gone.
        """
        if self._held is not None:
            now_s = self._loop.time()
            if self._left_s(now_s, self._pace.lead_bytes // 2) <= 0:
                self._end(now_s)

    def end(self) -> None:
        """End the wait."""
        if self._held is not None:
            self._end(self._loop.time())

    def _look_again(self) -> None:
        now_s = self._loop.time()
        left_s = self._left_s(now_s, self._pace.lead_bytes // 2)
        if left_s <= 0:
            self._end(now_s)
        else:
            self._timer = self._loop.call_later(left_s, self._look_again)

    def _left_s(self, now_s: float, lead_bytes: int) -> float:
        """Return how long to wait for those who are more than *lead_bytes* behind."""
        waited_s = 0.0 if self._held is None else now_s - self._since_s
        latest_s = max(
            (
                moved_s
                for lag_bytes, moved_s in self._behind()
                if lead_bytes < lag_bytes <= self._pace.reach_bytes
            ),
            default=float("-inf"),
        )
        return min(self._patience_s - waited_s, latest_s + self._pace.stalled_s - now_s)

    def _end(self, now_s: float) -> None:
        assert self._held is not None
        assert self._timer is not None
        self._timer.cancel()
        self._patience_s -= now_s - self._since_s
        self._since_s = now_s
        held, self._held, self._timer = self._held, None, None
        held.set_result(None)
