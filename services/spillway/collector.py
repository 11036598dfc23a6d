"""Python's collector of reference cycles, kept away from what stays.

The collector looks at every object that may be part of a cycle, with the interpreter's lock held:
of all that an idle service has 200,000, which takes it a tenth of a second, and a large catalog's
mirror has more. In the meantime nothing is received, decoded or delivered. It does so whenever
those that outlived two collections have grown by a quarter, which a stream of small transactions
brings about in the midst of its work.

So what stays is *set aside* (``gc.freeze``): the program's code once it listens, a session's
catalog once the session has caught up. What is set aside is freed as ever when nothing refers to it
any more; only cycles among it stay. So whoever ends such a thing lets go of what is large in it by
itself, and asks for a look, which finds the rest: the engine's upkeep has all looked through once,
for all who asked, and what is left is set aside again.

A look stops everything, too. So it waits for a calm moment: nothing was decoded for CALM_S. Where
none comes, it is taken after LATEST_S, or when ASKS_MAX have asked, which bounds what waits for it.

And it is *off* while much is made that stays: while a program is imported and started
(:meth:`Collector.start`, a fifth of the imports' CPU otherwise), and while a catalog is read.

Only a program that serves sets aside. Where nobody has said :meth:`Collector.begin` nothing is.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: How long to gather what has ended before all is looked through.
GATHER_S: Final = 5.0
#: For how long nothing was decoded where it is calm.
CALM_S: Final = 1.0
#: A service that is never calm looks that long after the first who asked, or when so many have. A
#: session that has ended leaves a few hundred kilobytes to be found.
LATEST_S: Final = 3600.0
ASKS_MAX: Final = 100


class Collector:
    """The collector of a program. For any thread.

    Args:
        clock: seconds that pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = False
        self._starts = False
        # How many keep it off, and whether it was on before the first of them.
        self._off = 0
        self._was_on = False
        # When somebody asked first since the last look; None: nobody has.
        self._asked_s: float | None = None
        self._asks = 0
        # What was decoded at the last look around, and since when that is so.
        self._decoded = -1
        self._calm_since_s = 0.0
        #: how often all was looked through, for who counts
        self.collections = 0

    def start(self) -> None:
        """Keep it off until :meth:`begin` or :meth:`end`: what the program is made of is made."""
        with self._lock:
            if not self._starts:
                self._starts = True
                self._turn_off()

    def begin(self) -> None:
        """Set aside what the program is made of, and from now on what it says."""
        with self._lock:
            self._begun = True
            gc.freeze()
            self._started()

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Keep it off within the block; several may be at work."""
        with self._lock:
            self._turn_off()
        try:
            yield
        finally:
            with self._lock:
                self._turn_on()

    def set_aside(self) -> None:
        """Leave alone what there is: something has been made that stays."""
        with self._lock:
            if self._begun:
                gc.freeze()

    def ask(self) -> None:
        """Have all looked through soon: something that was set aside has ended."""
        with self._lock:
            if self._begun:
                if self._asked_s is None:
                    self._asked_s = self._clock()
                self._asks += 1

    def look(self, decoded: int) -> None:
        """Free cycles among what was set aside if somebody asked for that GATHER_S ago, and it is
        calm or can't wait any more: once for all who have since.

        To be called several times a second.

        Args:
            decoded: another number when anything was decoded since the last call.
        """
        with self._lock:
            now_s = self._clock()
            if decoded != self._decoded:
                self._decoded, self._calm_since_s = decoded, now_s
            if self._asked_s is None or now_s - self._asked_s < GATHER_S:
                return
            is_calm = now_s - self._calm_since_s >= CALM_S
            if is_calm or now_s - self._asked_s >= LATEST_S or self._asks >= ASKS_MAX:
                self._asked_s, self._asks = None, 0
                gc.unfreeze()
                gc.collect()
                gc.freeze()
                self.collections += 1

    def end(self) -> None:
        """Set nothing aside any more: the program ends, or goes on without what was."""
        with self._lock:
            if self._begun:
                self._begun, self._asked_s, self._asks = False, None, 0
                gc.unfreeze()
            self._started()

    def _started(self) -> None:
        if self._starts:
            self._starts = False
            self._turn_on()

    def _turn_off(self) -> None:
        if self._off == 0:
            self._was_on = gc.isenabled()
            gc.disable()
        self._off += 1

    def _turn_on(self) -> None:
        self._off -= 1
        if self._off == 0 and self._was_on:
            gc.enable()


#: The process has one.
collector: Final = Collector()
