"""Time zones as tables of transitions, for kernels that print timestamptz values.

PostgreSQL knows a zone as a TZif file with a rule for the time after its last transition. Python's
zoneinfo reads the same files but only answers one question: the offset at an instant. The table is
made from its answers: sampled every three days (no zone has changed its mind twice in less) and, where
two samples differ, bisected to the second. It ends with one whole cycle of the calendar, 400 years, in which
nothing but a zone's present rule counts; that is enough for all time to come, see
``_kernels/text_datetime``. A time before the first sample has the zone's first offset, local mean time as a
rule, as in PostgreSQL.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from spillway.errors import InvalidOption

#: Before the first time zone law (Swiss, 1853).
_FIRST_YEAR: Final = 1800
#: The end of the cycle 2100 to 2499, and one more sample.
_LAST_YEAR: Final = 2501
_STEP: Final = 3 * 86400
_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
#: Before every timestamp.
BEGINNING: Final = -(1 << 63)

#: Start in microseconds since 2000-01-01 00:00 UTC, seconds east of UTC from then on.
Transition = tuple[int, int]


@lru_cache(maxsize=64)
def transitions(name: str) -> tuple[Transition, ...]:
    """Return the transitions of the zone *name*, in order; the first starts at :data:`BEGINNING`.

    Raises:
        InvalidOption: no zone has that name; the text is PostgreSQL's.
    """
    if name.upper() in {"UTC", "GMT", "ETC/UTC", "Z", "ZULU"}:
        return ((BEGINNING, 0),)
    try:
        zone = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidOption(
            f'invalid value for parameter "TimeZone": "{name}"',
            hint="Give a name of the IANA time zone database, Europe/Berlin for one, or UTC.",
        ) from error

    def offset_at(seconds: int) -> int:
        offset = (_POSTGRES_EPOCH + timedelta(seconds=seconds)).astimezone(zone).utcoffset()
        return 0 if offset is None else offset.days * 86400 + offset.seconds

    position = _seconds(datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC))
    end = _seconds(datetime(_LAST_YEAR, 1, 1, tzinfo=UTC))
    offset = offset_at(position)
    found = [(BEGINNING, offset)]
    while position < end:
        after = position + _STEP
        if (later := offset_at(after)) != offset:
            low, high = position, after
            while high - low > 1:
                middle = (low + high) // 2
                if offset_at(middle) == offset:
                    low = middle
                else:
                    high = middle
            # Twice within one step: go on from the first; the next round finds the second.
            offset = offset_at(high)
            found.append((high * 1_000_000, offset))
            position = high
        else:
            offset, position = later, after
    return tuple(found)


def _seconds(moment: datetime) -> int:
    return int((moment - _POSTGRES_EPOCH).total_seconds())
