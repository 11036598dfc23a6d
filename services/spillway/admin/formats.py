"""How values are written on pages: sizes, rates, durations, counts. PostgreSQL's units: 1 kB is
1024 bytes.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spillway.pg.versions import release_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DASH: Final = "\N{EN DASH}"

#: a hint that is SQL or a line of a configuration file is shown as something to copy
_CODE: Final = re.compile(r"(ALTER|GRANT|SELECT|CREATE|DROP|host|local|hostssl)\s", re.ASCII)


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


def assignments(values: Mapping[str, object]) -> str:
    """Write options as a form's lines: ``name = value``, of lists ``name = one, another``."""
    return "\n".join(
        f"{name} = {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for name, value in values.items()
    )


def rate(value: float | None) -> str:
    """Write bytes a second."""
    return DASH if value is None or math.isnan(value) else f"{size(value)}/s"


def per_second(value: float | None) -> str:
    """Write how many of something come in a second: ``0``, ``0.4``, ``1,250``."""
    if value is None or math.isnan(value):
        return DASH
    return f"{value:.1f}" if 0 < value < 10 else f"{value:,.0f}"


def count(value: int | None) -> str:
    """Write a number with its thousands apart."""
    return DASH if value is None else f"{value:,}"


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


def short_time(text: str) -> str:
    """Write a time that is an ISO text in UTC; what is none as it is."""
    try:
        return moment(datetime.fromisoformat(text))
    except ValueError:
        return text


def major(server_version_num: int) -> str:
    """Write PostgreSQL's version: ``18.4``."""
    return release_text(server_version_num)


def is_code(hint: str) -> bool:
    """Say whether a hint is something to type rather than something to read."""
    return _CODE.match(hint) is not None


def sparkline(values: Sequence[float], width: int = 96, height: int = 24) -> str:
    """Make the points of an SVG polyline; empty where there is nothing to draw."""
    known = [(i, v) for i, v in enumerate(values) if not math.isnan(v)]
    if len(known) < 2:
        return ""
    top = max(v for _, v in known) or 1.0
    step = width / max(1, len(values) - 1)
    return " ".join(f"{i * step:.1f},{height - 2 - v / top * (height - 4):.1f}" for i, v in known)
