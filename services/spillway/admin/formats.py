"""How values are written on pages, beyond what :mod:`spillway.amounts` writes."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from spillway.amounts import DASH, moment, since, size
from spillway.pg.versions import release_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: a hint that is SQL or a line of a configuration file is shown as something to copy
_CODE: Final = re.compile(r"(ALTER|GRANT|SELECT|CREATE|DROP|host|local|hostssl)\s", re.ASCII)
#: a time as :func:`spillway.amounts.moment` writes it
_MOMENT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} UTC")
_FORM: Final = "%Y-%m-%d %H:%M:%S UTC"


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


def short_time(text: str) -> str | Markup:
    """Write a time that is an ISO text in UTC; what is none as it is."""
    try:
        return when(datetime.fromisoformat(text))
    except ValueError:
        return text


def when(value: datetime | None) -> str | Markup:
    """Write a time that the browser shows in its own zone, with UTC beside it."""
    return DASH if value is None else _time("when", value, moment(value))


def timed(text: str) -> Markup:
    """Write a sentence with the times in it, which are in UTC, as :func:`when` does."""
    found, end = Markup(), 0
    for match in _MOMENT.finditer(text):
        found += escape(text[end : match.start()])
        found += when(datetime.strptime(match[0], _FORM).replace(tzinfo=UTC))
        end = match.end()
    return found + escape(text[end:])


def ago(value: datetime | None) -> str | Markup:
    """Write how long ago a time is; the time itself stands beside it."""
    return DASH if value is None else _time("ago", value, since(value))


def _time(kind: str, value: datetime, text: str) -> Markup:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    at = aware.astimezone(UTC).isoformat(timespec="seconds")
    return Markup('<time class="{}" datetime="{}" title="{}">{}</time>').format(
        kind, at, moment(value), text
    )


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
