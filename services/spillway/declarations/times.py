"""Times as options give them, and times by table: ``public.orders=5m``, or ``all=1m``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spillway.declarations.tables import is_table_or_all
from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: seconds of each
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
TIME: Final = re.compile(r"([0-9]{1,9})([smhdw])")


def seconds(text: object) -> float | None:
    """Return how long a time such as 5m is; None: it is none."""
    found = TIME.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else float(int(found[1]) * UNITS[found[2]])


def given(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse TABLE=TIME, as *option* of a command is given.

    Raises:
        InvalidRequest: one is none, or names a table twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        table, _, time = (part.strip() for part in text.rpartition("="))
        if not is_table_or_all(table) or seconds(time) is None or table in found:
            raise InvalidRequest(
                f"{option} {text!r} is no time of a table, or of one that has one",
                hint=f"Write {option} public.orders=5m, or all=1m; each table once.",
            )
        found[table] = time
    return found


def in_seconds(times: Mapping[str, str]) -> dict[str, float]:
    """Return the times in seconds."""
    return {table: seconds(time) or 0.0 for table, time in times.items()}
