"""What the lake needs of a slot: three calls, synchronous, whoever answers them.

Spark runs its Python in processes of its own (the planner, the executors' workers), and none of them has an event
loop to share; what they need is small: where the slot stands, the messages of an LSN range, and, from the driver
only, to confirm. :class:`SlotClient` is that need; :mod:`spillway.lake.slot_connection` answers it with the gRPC client.

Messages are read by *peek*: beside the slot's consumer, without making the slot active and without moving it. So a
range can be read again, by a retried task or after a restart, and several ranges at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class SlotPosition:
    """Where a slot stands. LSNs are plain integers; 0 where there is none yet."""

    slot_name: str
    plugin: str
    source: str
    database: str
    confirmed_flush_lsn: int
    #: every transaction that commits before this is ready to be read
    decoded_lsn: int
    #: why the slot is of no use any more; '' while it is
    invalidation_reason: str = ""
    #: the plugin's, of the slot: how values are shown
    options: Mapping[str, str] = field(default_factory=dict)


class SlotClient(Protocol):
    """What the lake asks of the service. Every call may raise a :class:`spillway.errors.SpillwayError`."""

    def position(self, slot_name: str) -> SlotPosition: ...

    def read(self, slot_name: str, start_lsn: int, upto_lsn: int) -> Iterator[bytes]:
        """Yield the payloads of the transactions whose commit record starts in [*start_lsn*, *upto_lsn*).

        Ends by itself, which needs *upto_lsn* ≤ ``decoded_lsn``. What the slot has confirmed is left out. The
        same range always gives the same rows in the same order; where it is cut into messages may differ.
        """
        ...

    def advance(self, slot_name: str, upto_lsn: int) -> int:
        """Confirm everything before *upto_lsn* and return where the slot stands then."""
        ...

    def close(self) -> None: ...
