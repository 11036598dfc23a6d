"""What is known of a port that listens: whether it does, who is connected, who was turned away.

The listener itself says so, not somebody who looks from outside: what it can't accept it knows at
once, and a port that another program answers on is not taken for its own. Interfaces read it for
``/readyz``, gRPC's health, the overview and metrics.

Used on the event loop. A counter for each reason that the listener has, which are few.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple


class ListenerTrouble(NamedTuple):
    """Why nobody new comes in."""

    #: time.time()
    since_s: float
    message: str


class ListenerSigns:
    """The signs of one door.

    Args:
        door: its name, as in the log and in metrics.
        address: where it listens, host:port.
    """

    def __init__(self, door: str, address: str) -> None:
        self.door = door
        self.address = address
        #: sessions that are open, by what they do
        self.sessions: Counter[str] = Counter()
        #: connections that were accepted since the start
        self.accepted = 0
        #: connections that were turned away since the start, by why
        self.refused: Counter[str] = Counter()
        self._trouble: ListenerTrouble | None = ListenerTrouble(time.time(), "it has not begun yet")

    @property
    def is_listening(self) -> bool:
        """Whether whoever connects is answered."""
        return self._trouble is None

    @property
    def trouble(self) -> ListenerTrouble | None:
        """Why nobody is, if so."""
        return self._trouble

    def listens(self) -> None:
        """Take note that it accepts connections."""
        self._trouble = None

    def fails(self, message: str) -> None:
        """Take note that it does not, and why; since when stays what it was."""
        since_s = time.time() if self._trouble is None else self._trouble.since_s
        self._trouble = ListenerTrouble(since_s, message)
