"""How long to wait before what failed is tried again.

Twice as long each time, up to a bound; a run that went well for a good while begins anew. Jitter
spreads what failed together (a service that came back finds all its subscriptions waiting) over the
second half of each wait.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_S: Final = 1.0
MAX_S: Final = 60.0
#: A program takes ten seconds to start; one that lived so long after that was well.
GOOD_WHILE_S: Final = 60.0


class Backoff:
    """The waits of one thing that is tried again and again."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        """Begin with the shortest wait; *uniform* is where jitter comes from."""
        self._uniform = uniform
        self._next_s = FIRST_S

    def failed(self, well_s: float) -> float:
        """Return how long to wait, in seconds, after an attempt that went well for *well_s*."""
        if well_s >= GOOD_WHILE_S:
            self._next_s = FIRST_S
        pause_s = self._next_s
        self._next_s = min(MAX_S, 2 * pause_s)
        return self._uniform(pause_s / 2, pause_s)
