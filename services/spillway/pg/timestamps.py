"""PostgreSQL's timestamps: whole microseconds since 2000-01-01 00:00, of a timestamptz in UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
#: from Unix's epoch to PostgreSQL's
UNIX_EPOCH_US: Final = 946_684_800_000_000
_MICROSECOND: Final = timedelta(microseconds=1)


def moment(timestamp: int) -> datetime:
    """Return the moment that *timestamp* counts to.

    Raises:
        OverflowError: datetime has no such year.
    """
    return EPOCH + timedelta(microseconds=timestamp)


def microseconds(at: datetime) -> int:
    """Reverse :func:`moment`."""
    return (at - EPOCH) // _MICROSECOND


def now_us() -> int:
    """Give the present time as PostgreSQL counts it."""
    return time.time_ns() // 1000 - UNIX_EPOCH_US
