"""Time zones as tables of transitions, for kernels that print timestamptz values.

Zones are those of the tzdata package, whatever the machine has, so that a slot prints the same
everywhere. The server's may be of another release of the IANA database: its own, that of its minor
version, or its machine's.

PostgreSQL knows a zone as a TZif file with a rule for the time after its last transition. Python's
zoneinfo reads the same files but only answers one question: the offset at an instant. The table is
made from its answers, offset and abbreviation: sampled every three days (no zone has changed its
mind twice in less) and, where two samples differ, bisected to the second. It ends with one whole
cycle of the calendar, 400 years, in which nothing but a zone's present rule counts; that is enough
for all time to come, see ``_kernels/values/text/datetime``. A time before the first sample has the
zone's first offset, local mean time as a rule, as in PostgreSQL.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

from spillway.errors import InvalidOption

_DATA: Final = files("tzdata")

#: Before the first time zone law (Swiss, 1853).
_FIRST_YEAR: Final = 1800
#: The end of the cycle 2100 to 2499, and one more sample.
_LAST_YEAR: Final = 2501
_STEP: Final = 3 * 86400
_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
#: Before every timestamp.
BEGINNING: Final = -(1 << 63)

_UTC_NAMES: Final = {"UTC": "UTC", "ETC/UTC": "UTC", "ZULU": "UTC", "GMT": "GMT"}

#: Start in microseconds since 2000-01-01 00:00 UTC; from then on, seconds east of UTC and the
#: abbreviation.
Transition = tuple[int, int, str]


@lru_cache(maxsize=64)
def transitions(name: str) -> tuple[Transition, ...]:
    """Return the transitions of the zone *name*, in order; the first starts at :data:`BEGINNING`.

    Names match whatever the case, as in PostgreSQL.

    Raises:
        InvalidOption: no zone has that name; the text is PostgreSQL's.
    """
    if name.upper() in _UTC_NAMES:
        return ((BEGINNING, 0, _UTC_NAMES[name.upper()]),)
    try:
        known = _names()[name.lower()]
    except KeyError as error:
        raise InvalidOption(
            f'invalid value for parameter "TimeZone": "{name}"',
            hint="Give a name of the IANA time zone database, Europe/Berlin for one, or UTC.",
        ) from error

    with _DATA.joinpath("zoneinfo", *known.split("/")).open("rb") as file:
        zone = zoneinfo.ZoneInfo.from_file(file, known)

    def state_at(seconds: int) -> tuple[int, str]:
        local = (_POSTGRES_EPOCH + timedelta(seconds=seconds)).astimezone(zone)
        offset = local.utcoffset() or timedelta()
        return offset.days * 86400 + offset.seconds, local.tzname() or ""

    position = _seconds(datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC))
    end = _seconds(datetime(_LAST_YEAR, 1, 1, tzinfo=UTC))
    state = state_at(position)
    found = [(BEGINNING, *state)]
    while position < end:
        after = position + _STEP
        if (later := state_at(after)) != state:
            low, high = position, after
            while high - low > 1:
                middle = (low + high) // 2
                if state_at(middle) == state:
                    low = middle
                else:
                    high = middle
            # Twice within one step: go on from the first; the next round finds the second.
            state = state_at(high)
            found.append((high * 1_000_000, *state))
            position = high
        else:
            state, position = later, after
    return tuple(found)


@cache
def _names() -> dict[str, str]:
    """Every zone's name by its name in lower case."""
    names = _DATA.joinpath("zones").read_text().split()
    return {name.lower(): name for name in names}


def _seconds(moment: datetime) -> int:
    return int((moment - _POSTGRES_EPOCH).total_seconds())
