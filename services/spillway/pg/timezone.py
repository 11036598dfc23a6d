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

A zone may also be its offset: in POSIX's form, ``<+03>-03`` or ``GMT-03:00`` (what pgjdbc sends of
a JVM that runs in GMT+03:00), where west is positive; and as a number of hours, where east is. One
with summer time is not known in that form: its rules, where they are not given, depend on the
server's files.

Source: pg_tzset, pg_tzset_offset (src/timezone/pgtz.c), tzparse (src/timezone/localtime.c),
check_timezone (src/backend/commands/variable.c)
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

from spillway.errors import InvalidOption
from spillway.pg.timestamps import EPOCH

_DATA: Final = files("tzdata")

#: Before the first time zone law (Swiss, 1853).
_FIRST_YEAR: Final = 1800
#: The end of the cycle 2100 to 2499, and one more sample.
_LAST_YEAR: Final = 2501
_STEP: Final = 3 * 86400
#: Before every timestamp.
BEGINNING: Final = -(1 << 63)

_UTC_NAMES: Final = {"UTC": "UTC", "ETC/UTC": "UTC", "ZULU": "UTC", "GMT": "GMT"}

#: A name of letters, or in angle brackets, or none, and an offset: hours, minutes, seconds.
_POSIX: Final = re.compile(
    r"(?:<(?P<quoted>[!-=?-~]*)>|(?P<name>(?:(?![0-9,+<-])[!-~])*))"
    r"(?P<sign>[+-]?)(?P<hours>[0-9]+)(?::(?P<minutes>[0-9]+)(?::(?P<seconds>[0-9]+))?)?",
    re.ASCII,
)
_HOURS: Final = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)
_HOURS_MAX: Final = 167
_MINUTES_MAX: Final = 59
_SECONDS_MAX: Final = 60
#: what is printed of an abbreviation (MAXTZLEN), and how long a zone's name may be
_ABBREVIATION_MAX: Final = 10
_NAME_MAX: Final = 255

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
    known = _names().get(name.lower())
    if known is None:
        fixed = _fixed(canonical_name(name))
        if fixed is None:
            raise InvalidOption(
                f'invalid value for parameter "TimeZone": "{name}"',
                hint="Give a name of the IANA time zone database, Europe/Berlin for one, UTC, or "
                "an offset from it: <+03>-03.",
            )
        return (fixed,)

    with _DATA.joinpath("zoneinfo", *known.split("/")).open("rb") as file:
        zone = zoneinfo.ZoneInfo.from_file(file, known)

    def state_at(seconds: int) -> tuple[int, str]:
        local = (EPOCH + timedelta(seconds=seconds)).astimezone(zone)
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


def canonical_name(name: str) -> str:
    """Return the name that a server reports of a zone; what is none stays as it is."""
    if len(name) <= _NAME_MAX and _HOURS.fullmatch(name):
        return _of_hours(float(name))
    known = _names().get(name.lower())
    if known is not None:
        return known
    return name.upper() if _fixed(name.upper()) else name


def _of_hours(hours: float) -> str:
    """Return the POSIX form of so many hours east of UTC."""
    seconds = int(hours * 3600)
    rest, shown_seconds = divmod(abs(seconds), 60)
    shown_hours, shown_minutes = divmod(rest, 60)
    shown = f"{shown_hours:02}"
    if shown_minutes or shown_seconds:
        shown += f":{shown_minutes:02}"
    if shown_seconds:
        shown += f":{shown_seconds:02}"
    return f"<-{shown}>+{shown}" if seconds < 0 else f"<+{shown}>-{shown}"


def _fixed(name: str) -> Transition | None:
    """Return the one transition of a zone in POSIX's form, without summer time; None: it is no such
    zone.
    """
    match = _POSIX.fullmatch(name)
    if match is None or len(name) > _NAME_MAX:
        return None
    hours, minutes, seconds = (int(match[part] or 0) for part in ("hours", "minutes", "seconds"))
    if hours > _HOURS_MAX or minutes > _MINUTES_MAX or seconds > _SECONDS_MAX:
        return None
    west = (hours * 60 + minutes) * 60 + seconds
    if west % 60:
        # Refused, for it appears to use leap seconds (pg_tz_acceptable).
        return None
    abbreviation = match["name"] if match["quoted"] is None else match["quoted"]
    shown = abbreviation.upper()[:_ABBREVIATION_MAX]
    return BEGINNING, west if match["sign"] == "-" else -west, shown


@cache
def _names() -> dict[str, str]:
    """Every zone's name by its name in lower case."""
    names = _DATA.joinpath("zones").read_text().split()
    return {name.lower(): name for name in names}


def _seconds(moment: datetime) -> int:
    return int((moment - EPOCH).total_seconds())
