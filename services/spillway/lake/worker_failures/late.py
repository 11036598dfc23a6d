"""Spark's Python processes that start too late, because the machine has too much to do.

A query, and a job in it, begins with new Python processes, which Spark gives ten seconds to connect
back, whatever else the machine does; no setting changes that. What failed so is begun again at
growing distances for as long as a machine may be busy. To give up instead costs a new JVM and its
own start, in the same crowd.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading

_log = logging.getLogger(__name__)

_LATE: Final = "Python worker failed to connect back"
#: Since it last got on.
PATIENCE_S: Final = 900.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0


class Patience:
    """How often something is begun again that began too late. Waits on *stopping*."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self.got_on()

    def got_on(self) -> None:
        """Begin to count anew: something came of it, so what comes now is another crowd."""
        self._pause_s = _FIRST_PAUSE_S
        self._until = time.monotonic() + PATIENCE_S

    def waited(self, error: object) -> bool:
        """Wait, and return whether to begin again; False at once when *error* is another one, or it
        takes too long.
        """
        if _LATE not in str(error) or self._stopping.is_set() or time.monotonic() >= self._until:
            return False
        _log.warning(
            "the machine is busy: Spark's Python did not start in time; again in %.0f s",
            self._pause_s,
        )
        self._stopping.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True
