"""How amounts are written for people: sizes, durations, moments. PostgreSQL's units: 1 kB is 1024
bytes.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

DASH: Final = "\N{EN DASH}"


def size(value: float | None) -> str:
    """Write a number of bytes: ``1.5 MB``."""
    if value is None:
        return DASH
    number = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1024 or unit == "TB":
            break
        number /= 1024
    if unit == "B":
        return f"{number:.0f} B"
    return f"{number:.2f} {unit}" if number < 10 else f"{number:.1f} {unit}"


def duration(value: float | None) -> str:
    """Write seconds: ``0 s``, ``42 s``, ``5 min``, ``3 h 20 min``, ``2 d 4 h``."""
    if value is None or math.isnan(value):
        return DASH
    seconds = int(value)
    if seconds < 100:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def since(moment: datetime | None) -> str:
    """Write how long ago *moment* is."""
    if moment is None:
        return DASH
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return duration(max(0.0, (datetime.now(UTC) - aware).total_seconds()))


def moment(value: datetime | None) -> str:
    """Write a time in UTC."""
    if value is None:
        return DASH
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return f"{aware.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
