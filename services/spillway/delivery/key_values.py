"""The values of a key that somebody looks for: what a row must print to have one, and what its
tuple must hold.

In comes a value as somebody wrote it, of a column's type. Out comes a :class:`KeyValue`: whether
texts that PostgreSQL prints mean the same value, and a *needle*, bytes that every tuple with that
value has somewhere, so that changes without them are passed over unread. A needle may be found
where the value is not; it must never be missing where the value is. So there is none (an empty one)
where the same value can lie in a tuple in several ways: a long one, which may be compressed or
elsewhere, and what is equal in PostgreSQL without being the same bytes.

numeric is that: 1.0 and 1.00 are equal, and differ in their headers' display scale. Their digits,
groups of four without zeros at either end, are the same, and so is the header where the column's
type says the scale. A timestamptz is an instant, however its zone was written.

Source: src/backend/utils/adt/numeric.c (NumericShort), src/include/datatype/timestamp.h.
"""

from __future__ import annotations

import re
import struct
import uuid
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spillway.errors import InvalidRequest
from spillway.pg.encoding import readable
from spillway.pg.timestamps import EPOCH

_INTEGERS: Final = {21: "<h", 23: "<i", 20: "<q"}
_TEXTS: Final = frozenset({25, 1042, 1043})
_CHAR: Final = 1042
_BOOL: Final = 16
_UUID: Final = 2950
_NUMERIC: Final = 1700
_DATE: Final = 1082
_TIME: Final = 1083
_TIMESTAMP: Final = 1114
_TIMESTAMPTZ: Final = 1184
#: A longer value may lie compressed in its tuple, or beside it.
_NEEDLE_BYTES_MAX: Final = 20
_BOOLS: Final = {
    **dict.fromkeys(("t", "true", "y", "yes", "on", "1"), "t"),
    **dict.fromkeys(("f", "false", "n", "no", "off", "0"), "f"),
}
_NUMBER: Final = re.compile(r"([+-]?)([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]{1,6}))?")
#: What a numeric has of digits on either side of the point, at most.
_NUMERIC_DIGITS_MAX: Final = 131_072
_NUMBERS_WITHOUT_DIGITS: Final = {
    "nan": "NaN", "infinity": "Infinity", "+infinity": "Infinity", "inf": "Infinity",
    "+inf": "Infinity", "-infinity": "-Infinity", "-inf": "-Infinity",
}  # fmt: skip
_EPOCH: Final = EPOCH.replace(tzinfo=None)
_MICROSECOND: Final = timedelta(microseconds=1)
#: By the type: what ``infinity`` and ``-infinity`` lie as.
_INFINITIES: Final = {_DATE: ("<i", 31), _TIMESTAMP: ("<q", 63), _TIMESTAMPTZ: ("<q", 63)}
_PLURALS: Final = {_UUID: "UUIDs", _BOOL: "booleans", _NUMERIC: "numbers"}


class KeyValue(NamedTuple):
    """A value that is looked for in a column."""

    type_oid: int
    #: as PostgreSQL prints it; a numeric without zeros behind its last digit
    text: str
    #: what every tuple has that has it; empty: nothing is known
    needle: bytes

    def is_in(self, values: pa.Array) -> pa.Array:
        """Say which of *values*, printed by PostgreSQL, mean this one; null of those that are."""
        if self.type_oid == _CHAR:
            values = pc.utf8_rtrim(values, characters=" ")
        elif self.type_oid == _NUMERIC:
            values = pc.replace_substring_regex(values, r"(\.[0-9]*?)0+$", r"\1")
            values = pc.replace_substring_regex(values, r"\.$", "")
        return pc.equal(values, self.text)


def key_value(value: str, type_oid: int, typmod: int, name: str, encoding: str) -> KeyValue:
    """Return what to look for.

    Args:
        value: as somebody wrote it: as PostgreSQL prints it, or another way of a number or a time.
        type_oid: the column's type; of a domain, the one below.
        typmod: the type's modifier; -1: it has none.
        name: the column's, for errors.
        encoding: of the server's texts, as Python calls it.

    Raises:
        InvalidRequest: it can't be a value of that type.
    """
    try:
        if type_oid in _INTEGERS:
            return _integer(value, type_oid, name)
        if type_oid == _UUID:
            found = uuid.UUID(value)
            return KeyValue(type_oid, str(found), found.bytes)
        if type_oid == _BOOL:
            return KeyValue(type_oid, _BOOLS[value.lower()], b"")
        if type_oid == _NUMERIC:
            return _numeric(value, typmod)
    except (ValueError, KeyError):
        raise InvalidRequest(
            f'column "{readable(name)}" has {_PLURALS.get(type_oid, "whole numbers")}, and '
            f"{value!r} is none",
            hint="Give the value as PostgreSQL prints it.",
        ) from None
    if type_oid in (_DATE, _TIME, _TIMESTAMP, _TIMESTAMPTZ):
        return _moment(value, type_oid)
    if type_oid in _TEXTS:
        text = value.rstrip(" ") if type_oid == _CHAR else value
        try:
            raw = text.encode(encoding)
        except (UnicodeEncodeError, LookupError):
            raw = b""
        return KeyValue(type_oid, text, raw if len(raw) <= _NEEDLE_BYTES_MAX else b"")
    return KeyValue(type_oid, value, b"")


def _integer(value: str, type_oid: int, name: str) -> KeyValue:
    number = int(value)
    try:
        return KeyValue(type_oid, str(number), struct.pack(_INTEGERS[type_oid], number))
    except struct.error:
        raise InvalidRequest(
            f'column "{readable(name)}" can\'t have the value {value}',
            hint="It is out of its type's range.",
        ) from None


def _numeric(value: str, typmod: int) -> KeyValue:
    """Read a number.

    Raises:
        ValueError: it is none.
    """
    if special := _NUMBERS_WITHOUT_DIGITS.get(value.strip().lower()):
        return KeyValue(_NUMERIC, special, b"")
    found = _NUMBER.fullmatch(value.strip())
    if found is None or not found[2] + found[3]:
        raise ValueError
    exponent = int(found[4] or 0)
    if abs(exponent) > _NUMERIC_DIGITS_MAX or len(value) > 2 * _NUMERIC_DIGITS_MAX:
        raise ValueError
    digits = found[2] + found[3]
    point = len(found[2]) + exponent
    # As many digits on either side of the point as are there, or zeros.
    whole = digits[: max(point, 0)].ljust(point, "0").lstrip("0")
    part = ("0" * max(-point, 0) + digits[max(point, 0) :]).rstrip("0")
    is_negative = found[1] == "-" and bool(whole or part)
    text = ("-" if is_negative else "") + (whole or "0") + (f".{part}" if part else "")
    return KeyValue(_NUMERIC, text, _numeric_needle(whole, part, typmod, is_negative=is_negative))


def _numeric_needle(whole: str, part: str, typmod: int, *, is_negative: bool) -> bytes:
    """Give the groups of four digits, and the header before them where it is known: of numbers that
    are neither huge nor tiny, in a column whose type says their scale.
    """
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    groups = whole + part.ljust(-(-len(part) // 4) * 4, "0")
    numbers = [int(groups[at : at + 4]) for at in range(0, len(groups), 4)]
    weight = len(whole) // 4 - 1
    while numbers and not numbers[0]:
        del numbers[0]
        weight -= 1
    while numbers and not numbers[-1]:
        del numbers[-1]
    needle = struct.pack(f"<{len(numbers)}h", *numbers)
    if not needle:
        # 0 has a header alone, and any tuple may have those two bytes.
        return b""
    if typmod >= 4:
        scale = ((typmod - 4) & 0x7FF ^ 0x400) - 0x400
        if 0 <= scale <= 63 and -64 <= weight <= 63:
            sign = 0x2000 if is_negative else 0
            header = 0x8000 | sign | scale << 7 | (0x40 if weight < 0 else 0) | weight & 0x3F
            needle = struct.pack("<H", header) + needle
    return needle if len(needle) <= _NEEDLE_BYTES_MAX else b""


def _moment(value: str, type_oid: int) -> KeyValue:
    """Read a date or a time; of one that Python has not (BC, beyond 9999) the text must be as
    PostgreSQL prints it.
    """
    text = value.strip()
    if type_oid in _INFINITIES and text.lower() in ("infinity", "-infinity"):
        form, bits = _INFINITIES[type_oid]
        last = -(1 << bits) if text.startswith("-") else (1 << bits) - 1
        return KeyValue(type_oid, text.lower(), struct.pack(form, last))
    try:
        if type_oid == _DATE:
            day = date.fromisoformat(text)
            return KeyValue(
                type_oid, day.isoformat(), struct.pack("<i", (day - _EPOCH.date()).days)
            )
        if type_oid == _TIME:
            clock = time.fromisoformat(text)
            if clock.tzinfo is not None:
                return KeyValue(type_oid, value, b"")
            since = datetime.combine(_EPOCH, clock) - _EPOCH
            return KeyValue(type_oid, _printed(clock), struct.pack("<q", since // _MICROSECOND))
        at = datetime.fromisoformat(text)
        if type_oid == _TIMESTAMPTZ and at.tzinfo is not None:
            at = at.astimezone(UTC)
        at = at.replace(tzinfo=None)
    except (ValueError, OverflowError):
        return KeyValue(type_oid, value, b"")
    shown = f"{at.date().isoformat()} {_printed(at.time())}"
    return KeyValue(
        type_oid,
        f"{shown}+00" if type_oid == _TIMESTAMPTZ else shown,
        struct.pack("<q", (at - _EPOCH) // _MICROSECOND),
    )


def _printed(clock: time) -> str:
    """Print a time of day as PostgreSQL does: of the fraction of a second what is not 0."""
    text = clock.isoformat()
    return text.rstrip("0") if clock.microsecond else text
