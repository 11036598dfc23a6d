"""Which WAL of a source's store must be kept, and who holds it when the store is full.

A store with a bound stops receiving when it is full. Transactions can't fill it: what is decoded of
them is carried by snapshots. What can is a database that is not decoded: behind, or failed. One
that is behind catches up. One that has failed for good would stop all databases of its source, so
after :data:`GIVE_UP_AFTER_S` without progress, if the store is full, its WAL is given up and the
others go on; restarts don't set that time back (``failure_clock.py``). When it can be decoded again
it begins anew, and slots of it that missed something are invalidated (``healing.py``).

What never can be decoded in such a store is a record that is longer than it: a large row, or a
large logical message. Then only a larger store helps, and the hint has its size: it is reckoned
from the record's length, which its first bytes say.

Source: src/include/access/xlogrecord.h (XLogRecord, XLogRecordMaxSize),
src/include/access/xlog_internal.h
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.errors import SpillwayError
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import XLOG_BLCKSZ

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from spillway.receiver.wal_writer import WalWriter
    from spillway.sessions.session import Session

#: Long enough for an operator who is called, short beside what the primary's disk usually takes.
GIVE_UP_AFTER_S: Final = 600.0

#: xl_tot_len, and its bounds: SizeOfXLogRecord, XLogRecordMaxSize
_LENGTH_BYTES: Final = 4
_RECORD_BYTES_MIN: Final = 24
_RECORD_BYTES_MAX: Final = 1020 << 20
#: SizeOfXLogShortPHD, and SizeOfXLogLongPHD, of a segment's first page
_PAGE_HEADER: Final = 24
_SEGMENT_HEADER: Final = 40


def wal_kept_from(
    required: Sequence[int], redo_lsn: int, *, received_lsn: int, spare_bytes: int | None
) -> int:
    """Return where WAL begins that must be kept.

    Args:
        required: what each session needs; 0 while that is not known.
        redo_lsn: where new sessions begin; 0 while that is not known.
        received_lsn: end of what is stored.
        spare_bytes: how much of what is stored may be for new sessions only; None for any.
    """
    spare = redo_lsn if spare_bytes is None else max(redo_lsn, received_lsn - spare_bytes)
    return min((*required, spare))


def is_full(store: WalWriter) -> bool:
    """Say whether the store has no room for another segment."""
    return (
        store.max_bytes is not None and store.retained_bytes + store.segment_size > store.max_bytes
    )


def who_counts(sessions: Collection[Session], store: WalWriter) -> list[Session]:
    """Return the sessions whose need of WAL is met: not those whose WAL is gone, or given up
    now.
    """
    full = is_full(store)
    return [
        session
        for session in sessions
        if not (
            0 < session.required_lsn < store.first_lsn
            or (full and session.failed_for_s > GIVE_UP_AFTER_S)
        )
    ]


def bytes_for_record(store: WalWriter, lsn: int) -> int:
    """Return how large a store must be to hold the record that begins at *lsn* whole, in bytes; 0
    if that is not known.
    """
    if lsn % store.segment_size == 0:
        lsn += _SEGMENT_HEADER
    elif lsn % XLOG_BLCKSZ == 0:
        lsn += _PAGE_HEADER
    try:
        length = int.from_bytes(store.reader.read(lsn, _LENGTH_BYTES), "little")
    except SpillwayError:
        return 0
    if not _RECORD_BYTES_MIN <= length <= _RECORD_BYTES_MAX:
        return 0
    # It may fill pages to the last byte; each that it goes on to has a header, the long one at
    # most.
    pages = length // (XLOG_BLCKSZ - _SEGMENT_HEADER) + 2
    last = (lsn + length + pages * _SEGMENT_HEADER) // store.segment_size
    return (last - lsn // store.segment_size + 1) * store.segment_size


def what_holds(sessions: Collection[Session], store: WalWriter, *, complete: bool) -> str:
    """Return what an operator can do about a full store, for the database that holds the oldest
    WAL.
    """
    waits = "Receiving resumes by itself."
    if not complete or not sessions:
        return (
            "Not all databases of the source are being decoded yet, and before that nothing is "
            f"removed. GET /v1/sources shows what is in the way. {waits}"
        )
    counting = who_counts(sessions, store)
    if not counting:
        return waits
    session = min(counting, key=lambda one: one.required_lsn)
    database = f'database "{session.database}"'
    required = Lsn(session.required_lsn)
    error = session.error
    if error is not None:
        return (
            f"Decoding of {database} has stopped, and needs WAL from {required}: {error.message}. "
            f"Mend that; if it does not go on within {GIVE_UP_AFTER_S / 60:.0f} minutes its WAL is "
            f"given up, and slots that miss something of it are invalidated. {waits}"
        )
    if not session.required_lsn:
        return f"The catalog of {database} is being read. {waits}"
    behind = store.received_lsn - session.decoded_lsn
    if session.read_lsn >= store.received_lsn and store.max_bytes is not None:
        needed = bytes_for_record(store, session.decoded_lsn)
        if needed > store.max_bytes:
            # One segment more, for what comes beside it.
            return (
                f"The WAL record at {Lsn(session.decoded_lsn)} does not fit into it, and can't be "
                "decoded in parts: set SPILLWAY_WAL_STORE_MAX_BYTES to "
                f"{needed + store.segment_size} or more, and restart the service."
            )
    return (
        f"Decoding of {database}, which needs WAL from {required}, is {behind} bytes behind what "
        f"was received. {waits}"
    )
