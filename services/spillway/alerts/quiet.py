"""Quiet hours: from one time of day to another, by a time zone's clocks, on some days of the week.

Hours that go over midnight belong to the day on which they begin. What comes in quiet hours is told
when they end, unless it is over by then.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HINT: Final = (
    'Write {"from": "22:00", "to": "07:00", "timezone": "Europe/Vienna"}, and "days" with some of '
    f"{', '.join(DAYS)} for some nights only."
)


def checked_quiet(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return quiet hours as they are stored.

    Raises:
        InvalidRequest: they can't be.
    """
    if given is None:
        return None
    if unknown := given.keys() - {"from", "to", "timezone", "days"}:
        raise InvalidRequest(f"quiet has no {', '.join(sorted(unknown))}", hint=_HINT)
    begin, end = _time(given, "from"), _time(given, "to")
    if begin == end:
        raise InvalidRequest("quiet hours begin when they end", hint=_HINT)
    zone = given.get("timezone", "UTC")
    try:
        ZoneInfo(zone)
    except (ValueError, TypeError, OSError) as error:
        # ZoneInfoNotFoundError is a KeyError, of a name that the data has not.
        raise _unknown_zone(zone) from error
    except KeyError as error:
        raise _unknown_zone(zone) from error
    days = list(given.get("days") or DAYS)
    if wrong := [day for day in days if day not in DAYS]:
        raise InvalidRequest(f"quiet.days has {wrong[0]!r}, which is no day", hint=_HINT)
    return {"from": f"{begin:%H:%M}", "to": f"{end:%H:%M}", "timezone": zone, "days": days}


def is_quiet(quiet: Mapping[str, Any] | None, now: datetime) -> bool:
    """Say whether *now*, which has a zone, is within the quiet hours."""
    if quiet is None:
        return False
    local = now.astimezone(ZoneInfo(quiet["timezone"]))
    begin, end = (time.fromisoformat(quiet[name]) for name in ("from", "to"))
    clock = local.time().replace(tzinfo=None)
    today, yesterday = (DAYS[(local - timedelta(days=ago)).weekday()] for ago in (0, 1))
    if begin < end:
        return begin <= clock < end and today in quiet["days"]
    return (clock >= begin and today in quiet["days"]) or (
        clock < end and yesterday in quiet["days"]
    )


def _unknown_zone(zone: object) -> InvalidRequest:
    return InvalidRequest(
        f"quiet.timezone {zone!r} is not known",
        hint="Write a name of the IANA database, such as Europe/Vienna or UTC.",
    )


def _time(given: Mapping[str, Any], name: str) -> time:
    try:
        found = time.fromisoformat(str(given[name]))
    except (KeyError, ValueError) as error:
        raise InvalidRequest(f"quiet.{name} is no time of day", hint=_HINT) from error
    return found.replace(second=0, microsecond=0, tzinfo=None)
