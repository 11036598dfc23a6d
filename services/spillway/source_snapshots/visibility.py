"""Which transactions a snapshot of PostgreSQL sees: its text, ``xmin:xmax:xip``, as a question
about xids.

A transaction counts by its top-level xid: its subtransactions leave the ProcArray with it, whether
there is room for their xids there or not. So nothing depends on subxip, and nothing on its
overflow. A prepared transaction is a member of the ProcArray until its COMMIT PREPARED is through,
and is not seen before.

Source: pg_current_snapshot (src/backend/utils/adt/xid8funcs.c), GetSnapshotData
(src/backend/storage/ipc/procarray.c), XidInMVCCSnapshot (src/backend/utils/time/snapmgr.c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import SourceError

if TYPE_CHECKING:
    from typing import Self

_EPOCH: Final = 1 << 32
_HALF: Final = 1 << 31


def distance(xid: int, reference: int) -> int:
    """Return how far *xid*, of 32 bits, is behind *reference*; negative when it precedes it
    (TransactionIdPrecedes).
    """
    return (xid - reference + _HALF) % _EPOCH - _HALF


@dataclass(frozen=True, slots=True)
class SeenXids:
    """A snapshot, as far as transactions that are not its own go."""

    #: every transaction before it has ended
    xmin: int
    #: this one and all later ones are not seen
    xmax: int
    #: between the two: those that run, top-level ones; 64 bits, as all three
    xip: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``pg_current_snapshot()::text`` gives.

        Raises:
            SourceError: it is something else.
        """
        try:
            xmin, xmax, xip = text.split(":")
            running = frozenset(int(xid) for xid in xip.split(",") if xid)
            return cls(int(xmin), int(xmax), running)
        except ValueError:
            raise SourceError(
                f"the source gave {text!r} for its current snapshot", hint="Report this."
            ) from None

    def sees(self, xid: int) -> bool:
        """Say whether the transaction *xid* is seen, if it has committed; 32 bits, as in WAL."""
        full = self.xmax + distance(xid, self.xmax % _EPOCH)
        return full < self.xmin or (full < self.xmax and full not in self.xip)
