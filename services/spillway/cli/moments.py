"""Times as people write them on a command line: a day, an hour of it, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

Since: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Only from then on: 2026-11-22, 2026-11-22 10:00, today, yesterday, 2h (ago). In your "
        "time zone, unless it names one."
    ),
]
_UNITS: Final[Mapping[str, str]] = {
    "s": "seconds",
    "min": "minutes",
    "m": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
}
_AGO: Final = re.compile(r"(\d{1,6})\s*(s|min|m|h|d|w)")


def since_query(text: str | None) -> str | None:
    """Return what ``--since`` says as REST takes it.

    Raises:
        InvalidRequest: it is no time.
    """
    if text is None:
        return None
    return moment(text, datetime.now().astimezone(), "--since").astimezone(UTC).isoformat()


def moment(text: str, now: datetime, option: str) -> datetime:
    """Return the time that *text* says, in the zone of *now* unless it names one.

    Raises:
        InvalidRequest: it says none.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    word = text.strip().lower()
    if word in ("now", "today", "yesterday"):
        return {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}[word]
    ago = _AGO.fullmatch(word)
    if ago is not None:
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRequest(
            f"{option} is {text!r}, and no time",
            hint="Write 2026-11-22, 2026-11-22 10:00, 2026-11-22T10:00:00Z, today, yesterday, or "
            "how long ago: 30min, 2h, 7d.",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
