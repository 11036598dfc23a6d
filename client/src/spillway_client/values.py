"""PostgreSQL's text of a value as a Python value, by the type's OID.

==========================================  ========================================================
PostgreSQL                                  Python
==========================================  ========================================================
boolean                                     bool
smallint, integer, bigint, oid, xid, xid8   int
real, double precision                      float
numeric                                     Decimal
date, time, timestamp, timestamptz, timetz  date, time, datetime; those with a zone are aware, at
                                            the offset printed
uuid, bytea                                 UUID, bytes
json, jsonb                                 what :func:`json.loads` makes of it
an array of one of these                    list, of lists where it has several dimensions; its
                                            lower bounds are left out
a domain                                    what its base type is
anything else                               str: what PostgreSQL prints
==========================================  ========================================================

A value that its Python type has no room for (``infinity``, a year before Christ or after 9999,
``24:00:00``, JSON that Python refuses) is a :class:`PgText`, a str that is PostgreSQL's text: it is
never changed to fit, and no such value stops the stream.

The text is that of ``DateStyle = ISO``, ``bytea_output = hex`` and ``extra_float_digits = 1``,
which the client asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

Converter = Callable[[str], Any]


class PgText(str):
    """PostgreSQL's text of a value that its Python type has no room for, such as ``infinity`` of a
    date.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"PgText({super().__repr__()})"


_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME: Final = re.compile(
    r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?)?", re.ASCII
)


def _boolean(text: str) -> bool:
    if text == "t":
        return True
    if text == "f":
        return False
    raise ValueError(text)


def _bytea(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def _date(text: str) -> date:
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return date(int(match[1]), int(match[2]), int(match[3]))


def _time(text: str) -> time:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    hours, minutes, seconds, fraction, sign, zone_hours, zone_minutes, zone_seconds = match.groups()
    zone = None
    if sign:
        offset = timedelta(
            hours=int(zone_hours), minutes=int(zone_minutes or 0), seconds=int(zone_seconds or 0)
        )
        zone = timezone(-offset if sign == "-" else offset)
    microseconds = int(fraction.ljust(6, "0")) if fraction else 0
    return time(int(hours), int(minutes), int(seconds), microseconds, zone)


def _timestamp(text: str) -> datetime:
    day, blank, clock = text.partition(" ")
    if not blank:
        raise ValueError(text)
    return datetime.combine(_date(day), _time(clock))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(text) from None


def _numeric(text: str) -> Decimal:
    return Decimal(text)


#: type OID → how its text is read; an array is made of its element's
_SCALARS: Final[Mapping[int, Converter]] = {
    16: _boolean,
    17: _bytea,
    20: int,
    21: int,
    23: int,
    26: int,
    28: int,
    29: int,
    114: _json,
    700: float,
    701: float,
    1082: _date,
    1083: _time,
    1114: _timestamp,
    1184: _timestamp,
    1266: _time,
    1700: _numeric,
    2950: UUID,
    3802: _json,
    5069: int,
}
#: OID → name of the built-in types that have a converter, or elements
_NAMES: Final[Mapping[int, str]] = {
    16: "bool", 17: "bytea", 18: "char", 19: "name", 20: "int8", 21: "int2", 23: "int4", 25: "text",
    26: "oid",
    28: "xid", 29: "cid", 114: "json", 142: "xml", 600: "point", 601: "lseg", 602: "path",
    603: "box", 604: "polygon",
    628: "line", 650: "cidr", 700: "float4", 701: "float8", 718: "circle", 774: "macaddr8",
    790: "money",
    829: "macaddr", 869: "inet", 1042: "bpchar", 1043: "varchar", 1082: "date", 1083: "time",
    1114: "timestamp",
    1184: "timestamptz", 1186: "interval", 1266: "timetz", 1560: "bit", 1562: "varbit",
    1700: "numeric", 2950: "uuid", 3220: "pg_lsn", 3614: "tsvector", 3615: "tsquery", 3802: "jsonb",
    3904: "int4range",
    3906: "numrange", 3908: "tsrange", 3910: "tstzrange", 3912: "daterange", 3926: "int8range",
    5069: "xid8",
}  # fmt: skip
#: OID of an array type → OID of its elements
_ELEMENTS: Final[Mapping[int, int]] = {
    143: 142, 199: 114, 271: 5069, 629: 628, 651: 650, 719: 718, 775: 774, 791: 790, 1000: 16,
    1001: 17, 1002: 18,
    1003: 19, 1005: 21, 1007: 23, 1009: 25, 1011: 28, 1012: 29, 1014: 1042, 1015: 1043, 1016: 20,
    1017: 600,
    1018: 601, 1019: 602, 1020: 603, 1021: 700, 1022: 701, 1027: 604, 1028: 26, 1040: 829,
    1041: 869, 1115: 1114,
    1182: 1082, 1183: 1083, 1185: 1184, 1187: 1186, 1231: 1700, 1270: 1266, 1561: 1560, 1563: 1562,
    2951: 2950,
    3221: 3220, 3643: 3614, 3645: 3615, 3807: 3802, 3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910,
    3913: 3912,
    3927: 3926,
}  # fmt: skip
_BOX: Final = 603
_BY_NAME: Final[Mapping[str, int]] = {
    **{name: oid for oid, name in _NAMES.items()},
    **{f"_{_NAMES[element]}": oid for oid, element in _ELEMENTS.items()},
}


def built_in_name(oid: int) -> str | None:
    """Return the name of a built-in type as pg_type has it; None of one that the client knows
    nothing of.
    """
    element = _ELEMENTS.get(oid)
    return _NAMES.get(oid) if element is None else f"_{_NAMES[element]}"


def built_in_oid(name: str) -> int | None:
    """Return the OID of a built-in type by its name in pg_type."""
    return _BY_NAME.get(name)


def converter_of(oid: int) -> Converter:
    """Return what reads a built-in type's text. What it can't read as its type it returns as
    :class:`PgText`.
    """
    return _CONVERTERS.get(oid, str)


def _tolerant(read: Converter, text: str) -> Any:
    try:
        return read(text)
    except (ValueError, ArithmeticError, OverflowError):
        return PgText(text)


_WHITE: Final = " \t\n\r\v\f"


def parse_array(text: str, element: Converter = str, delimiter: str = ",") -> list[Any]:
    """Read PostgreSQL's text of an array.

    Args:
        text: as ``array_out`` writes it: ``{1,NULL,3}``, ``{{a,b},{c,d}}``, ``[0:1]={1,2}``.
        element: reads the text of an element that is not NULL.
        delimiter: the element type's ``typdelim``: a comma, of ``box`` a semicolon.

    Raises:
        ValueError: it is no array's text.
    """
    start = 0
    if text.startswith("["):
        start = text.find("=") + 1
    if not start < len(text) or text[start] != "{" or not text.endswith("}"):
        raise ValueError(f"{text!r} is not the text of an array")
    stack: list[list[Any]] = []
    root: list[Any] | None = None
    position, end = start, len(text)
    while position < end:
        character = text[position]
        if character == "{":
            inner: list[Any] = []
            if stack:
                stack[-1].append(inner)
            elif root is None:
                root = inner
            else:
                break
            stack.append(inner)
            position += 1
        elif character == "}":
            if not stack:
                break
            stack.pop()
            position += 1
        elif not stack:
            break
        elif character == delimiter:
            position += 1
        elif character == '"':
            value, position = _quoted(text, position + 1)
            stack[-1].append(element(value))
        else:
            stop = position
            while stop < end and text[stop] not in (delimiter, "}"):
                stop += 1
            word = text[position:stop].strip(_WHITE)
            stack[-1].append(None if word == "NULL" else element(word))
            position = stop
    if root is None or stack or position != end:
        raise ValueError(f"{text!r} is not the text of an array")
    return root


def _quoted(text: str, position: int) -> tuple[str, int]:
    """Read from behind a quote to behind the one that closes it."""
    pieces = []
    while True:
        stop = position
        while text[stop : stop + 1] not in ('"', "\\", ""):
            stop += 1
        pieces.append(text[position:stop])
        if stop >= len(text):
            raise ValueError(f"{text!r} is not the text of an array")
        if text[stop] == '"':
            return "".join(pieces), stop + 1
        pieces.append(text[stop + 1 : stop + 2])
        position = stop + 2


def _array_converter(element: int) -> Converter:
    return partial(
        parse_array, element=converter_of(element), delimiter=";" if element == _BOX else ","
    )


_CONVERTERS: dict[int, Converter] = {
    oid: partial(_tolerant, read) for oid, read in _SCALARS.items()
}
_CONVERTERS |= {
    array: partial(_tolerant, _array_converter(element)) for array, element in _ELEMENTS.items()
}
