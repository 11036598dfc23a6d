"""Which changes of a column's type lose nothing, whatever the value: those that are made on the
target without asking.

Types are told by name, as format_type gives them. They are a list and not a rule about casts: one
from text to integer may fail, and one from double precision to text changes what is compared.
"""

from __future__ import annotations

import re
from typing import Final

_TYPE: Final = re.compile(r"([^()]+?)(?:\((\d+)(?:,(-?\d+))?\))?( with(?:out)? time zone)?")
_INTEGERS: Final = ("smallint", "integer", "bigint")
_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_CHARACTERS: Final = ("character varying", "text")
_WITH_PRECISION: Final = (
    "timestamp without time zone",
    "timestamp with time zone",
    "time without time zone",
    "time with time zone",
    "bit varying",
)


def is_widening(before: str, after: str) -> bool:
    """Say whether every value of type *before* is the same value of type *after*."""
    if before == after:
        return True
    old, old_size, old_scale = _parts(before)
    new, new_size, new_scale = _parts(after)
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) <= _INTEGERS.index(new)
    if new == "numeric" and (old in _INTEGERS or old == "numeric"):
        return _is_wider_numeric(old, (old_size, old_scale), (new_size, new_scale))
    if (old, new) == ("real", "double precision"):
        return True
    if old in _CHARACTERS and new in _CHARACTERS:
        return new_size is None or (old_size is not None and old_size <= new_size)
    if old == new and new in _WITH_PRECISION:
        return new_size is None or (old_size is not None and old_size <= new_size)
    return False


def _is_wider_numeric(
    old: str, before: tuple[int | None, int | None], after: tuple[int | None, int | None]
) -> bool:
    precision, scale = after
    if precision is None:
        return True
    whole = precision - (scale or 0)
    if old in _INTEGERS:
        return whole >= _DIGITS[old] and (scale or 0) >= 0
    old_precision, old_scale = before
    if old_precision is None:
        return False
    # Digits behind the point are printed as many as the scale has: a larger scale shows others.
    return (scale or 0) == (old_scale or 0) and precision >= old_precision


def _parts(name: str) -> tuple[str, int | None, int | None]:
    """Split a type's name into itself, its size or precision, and its scale."""
    match = _TYPE.fullmatch(name)
    if match is None:
        return name, None, None
    kind, size, scale, zone = match.groups()
    return (
        kind + (zone or ""),
        None if size is None else int(size),
        None if scale is None else int(scale),
    )
