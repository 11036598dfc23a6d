"""What a database's first consistent point is waiting for, in words: for whoever wants to create a
slot there meanwhile.

Made on the decoding thread, which alone may ask a decoder, and read by others. PostgreSQL's slots
wait for the same: transactions that were open when decoding began must end first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.decoding.snapshot_builder import SnapshotState
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from spillway.decoding.decoder import Decoder

_XIDS_SHOWN: Final = 10
#: Less of it is decoded before anybody could read about it.
_WAL_WORTH_BYTES: Final = 16 << 20

_END_THEM: Final = (
    "See whose transactions they are in pg_stat_activity (backend_xid) and, prepared ones, in "
    "pg_prepared_xacts (transaction); end them, or wait; then try again."
)


class Waiting(NamedTuple):
    """What it is, and what to do."""

    what: str
    hint: str


def reading_catalog(progress: str) -> Waiting:
    """Say how far the catalog is read, in the bootstrap's words."""
    return Waiting(
        f"its catalog is being read ({progress})",
        _END_THEM if "transaction" in progress else "This goes on by itself: try again.",
    )


def decoding(decoder: Decoder, read_lsn: int, stored_lsn: int) -> Waiting:
    """Say why *decoder*, which was given WAL up to *read_lsn*, has no consistent point yet; the
    store has it to *stored_lsn*.
    """
    if stored_lsn - read_lsn >= _WAL_WORTH_BYTES:
        return Waiting(
            f"WAL is decoded up to {Lsn(decoder.position)} and stored up to {Lsn(stored_lsn)}",
            "This goes on by itself: try again.",
        )
    if decoder.snapshot_state < SnapshotState.FULL_SNAPSHOT:
        return Waiting(
            "the source has not said yet which transactions run",
            "It does so 15 s after something was written at the latest; CHECKPOINT on the source "
            "has it say so at once.",
        )
    xids = sorted(decoder.awaited_xids())
    if not xids:
        return Waiting("decoding has just become consistent", "Try again.")
    shown = ", ".join(map(str, xids[:_XIDS_SHOWN])) + (", …" if len(xids) > _XIDS_SHOWN else "")
    return Waiting(
        f"{'transaction' if len(xids) == 1 else 'transactions'} {shown} must end first", _END_THEM
    )
