"""Python's collector of reference cycles, kept away from what stays.

The collector looks at every object that may be part of a cycle, with the interpreter's lock held:
of all that an idle service has 200,000, which takes it a tenth of a second, and a large catalog's
mirror has more. In the meantime nothing is received, decoded or delivered. It does so whenever
those that outlived two collections have grown by a quarter, which a stream of small transactions
brings about in the midst of its work.

So what stays is *set aside* (``gc.freeze``): the program's code once it listens, a session's
catalog once the session has caught up. What is set aside is freed as ever when nothing refers to it
any more; only cycles among it stay. So whoever ends such a thing asks for a look: the engine's
upkeep has all looked through once, for all who asked, and what is left is set aside again.

Only a program that serves does that. Where nobody has said :meth:`Collector.begin` the collector is
left alone.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long to gather what has ended before all is looked through.
GATHER_S: Final = 5.0


class Collector:
    """The collector of a program. For any thread.

    Args:
        clock: seconds that pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = False
        # When somebody asked first since the last look; None: nobody has.
        self._asked_s: float | None = None
        #: how often all was looked through, for who counts
        self.collections = 0

    def begin(self) -> None:
        """Set aside what the program is made of, and from now on what it says."""
        with self._lock:
            self._begun = True
            gc.freeze()

    def set_aside(self) -> None:
        """Leave alone what there is: something has been made that stays."""
        with self._lock:
            if self._begun:
                gc.freeze()

    def ask(self) -> None:
        """Have all looked through soon: something that was set aside has ended."""
        with self._lock:
            if self._begun and self._asked_s is None:
                self._asked_s = self._clock()

    def look(self) -> None:
        """Free cycles among what was set aside if somebody asked for that GATHER_S ago: once for
        all who have since.
        """
        with self._lock:
            if self._asked_s is not None and self._clock() - self._asked_s >= GATHER_S:
                self._asked_s = None
                gc.unfreeze()
                gc.collect()
                gc.freeze()
                self.collections += 1

    def end(self) -> None:
        """Set nothing aside any more: the program ends, or goes on without what was."""
        with self._lock:
            if self._begun:
                self._begun, self._asked_s = False, None
                gc.unfreeze()


#: The process has one.
collector: Final = Collector()
