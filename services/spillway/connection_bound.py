"""How many connections a door (REST, gRPC) lets in, in all and of one address, and what is said of
those that it doesn't.

In all there may be what descriptors and memory allow (``open_files``). Without a second bound one
address could take them all, by mistake as well as by will: a pool that leaks. So an address gets a
quarter. IPv6 counts by /64, as guesses at the token do. Loopback has no such bound unless one is
set: there all clients of this machine are one address, and so are those of a proxy on it.
"""

from __future__ import annotations

import logging
import time
from typing import Final, Literal

from spillway.loopback import is_loopback
from spillway.token_gate import network_of

log = logging.getLogger(__name__)

#: One line a minute is enough to say that connections are refused.
_SAY_AGAIN_S: Final = 60.0
_SHARE: Final = 4

Reason = Literal["total", "address"]


class ConnectionBound:
    """The bound of one door. Used on the event loop."""

    def __init__(self, door: str, total: int, per_address: int | None = None) -> None:
        """Set it.

        Args:
            door: its name, for the log and metrics.
            total: how many connections may be open at once.
            per_address: how many of one address, loopback too; 0: as many as there may be; None: a
                quarter, loopback excepted.
        """
        self.door = door
        self.total = total
        self._spares_loopback = per_address is None
        share = max(1, total // _SHARE)
        self.per_address = share if per_address is None else min(per_address or total, total)
        #: how many were refused since the start, by why
        self.refused: dict[Reason, int] = {"total": 0, "address": 0}
        self._to_say: dict[Reason, int] = {"total": 0, "address": 0}
        self._said_at_s: dict[Reason, float] = {}

    def holder(self, address: str) -> str | None:
        """Give what connections from *address* are counted under; None if it has no bound of its
        own.
        """
        if self.per_address >= self.total:
            return None
        network = network_of(address)
        spared = self._spares_loopback and (is_loopback(address) or is_loopback(network))
        return None if spared else network

    def refuse(self, reason: Reason, count: int = 1) -> None:
        """Count that *count* connections were refused, and say so once a minute."""
        self.refused[reason] += count
        self._to_say[reason] += count
        now_s = time.monotonic()
        if now_s - self._said_at_s.get(reason, -_SAY_AGAIN_S) >= _SAY_AGAIN_S:
            log.warning(
                "%d connections to %s were refused: at most %d%s may be open at once",
                self._to_say[reason], self.door,
                self.total if reason == "total" else self.per_address,
                "" if reason == "total" else " of one address (SPILLWAY_CONNECTIONS_PER_ADDRESS)",
            )  # fmt: skip
            self._to_say[reason] = 0
            self._said_at_s[reason] = now_s
