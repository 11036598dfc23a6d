"""Types of the extensions that come with PostgreSQL: hstore, ltree with its queries, intarray's
queries, seg.

Source: hstore_out (contrib/hstore/hstore_io.c), hstore.h; deparse_ltree, deparse_lquery
(contrib/ltree/ltree_io.c), infix (ltxtquery_io.c), ltree.h; infix (contrib/intarray/_int_bool.c),
_int.h; seg_out, restore (contrib/seg/seg.c)
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from spillway.pg.versions import prints_upper_certainty

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.pg.text_settings import TextSettings

_HS_COUNT_MASK: Final = 0x0FFFFFFF
_HS_FLAG_NEWVERSION: Final = 0x80000000
_HENTRY_ISNULL: Final = 0x40000000
_HENTRY_POSMASK: Final = 0x3FFFFFFF
#: struct ltree without its length word, aligned to 8 with it
_LTREE_HEADER: Final = 4
_LTREE_LEVEL_HEADER: Final = 2
#: struct lquery without its length word, aligned to 8 with it; lquery_level; lquery_variant: steps
#: and its name
_LQUERY_HEADER: Final = 12
_LQUERY_LEVEL_HEADER: Final = 16
_LQUERY_VARIANT_HEADER: Final = 8
_LQUERY_NAME: Final = 7
_LVAR_ANYEND, _LVAR_INCASE, _LVAR_SUBLEXEME = 0x01, 0x02, 0x04
_LQL_NOT, _LQL_COUNT = 0x10, 0x20
_LTREE_MAX_LEVELS: Final = 0xFFFF
#: Item types of ltxtquery and query_int.
_VALUE, _OPERATOR = 2, 3
#: FLT_DIG
_SEG_DIGITS_MAX: Final = 6
#: Exponents that seg prints without one.
_SEG_EXPONENT_MAX: Final = 4


def hstore_text(data: bytes) -> str:
    """Return ``"key"=>"value", "key"=>NULL``.

    A value is a count, an entry each for key, value, key, value… that says where its string ends,
    and the strings.

    Raises:
        ValueError, struct.error: *data* is malformed, or of the format before PostgreSQL 9.0.
    """
    if not data:
        return ""
    (header,) = struct.unpack_from("<I", data)
    count = header & _HS_COUNT_MASK
    if not header & _HS_FLAG_NEWVERSION:
        raise ValueError("an hstore of the format before PostgreSQL 9.0")
    entries = struct.unpack_from(f"<{2 * count}I", data, 4)
    strings = data[4 + 8 * count :]
    ends = [entry & _HENTRY_POSMASK for entry in entries]
    if any(start > end for start, end in zip([0, *ends], [*ends, len(strings)], strict=True)):
        raise ValueError("an hstore's strings lie beyond its end")
    texts = [
        _quoted(strings[start:end].decode(errors="surrogateescape"))
        for start, end in zip([0, *ends[:-1]], ends, strict=False)
    ]
    return ", ".join(
        f"{texts[i]}=>{'NULL' if entries[i + 1] & _HENTRY_ISNULL else texts[i + 1]}"
        for i in range(0, 2 * count, 2)
    )


def ltree_text(data: bytes) -> str:
    """Return the labels with dots between them.

    Raises:
        ValueError, struct.error: *data* is malformed.
    """
    (levels,) = struct.unpack_from("<H", data)
    position = _LTREE_HEADER
    labels = []
    for _ in range(levels):
        (length,) = struct.unpack_from("<H", data, position)
        start = position + _LTREE_LEVEL_HEADER
        if start + length > len(data):
            raise ValueError("an ltree's label lies beyond its end")
        labels.append(data[start : start + length].decode(errors="surrogateescape"))
        # Levels are aligned to 8 bytes.
        position += (length + _LTREE_LEVEL_HEADER + 7) // 8 * 8
    return ".".join(labels)


def lquery_text(data: bytes) -> str:
    """Return what lquery_out prints: levels of variants, ``*{1,2}.!foo*@|bar{,3}``.

    Raises:
        ValueError, struct.error: *data* is malformed.
    """
    (levels,) = struct.unpack_from("<H", data)
    position = _LQUERY_HEADER
    parts = []
    for _ in range(levels):
        size, flags, variants, low, high = struct.unpack_from("<5H", data, position)
        at = position + _LQUERY_LEVEL_HEADER
        names = []
        for _ in range(variants):
            length, flag = struct.unpack_from("<HB", data, at + 4)
            names.append(_slice(data, at + _LQUERY_NAME, length) + _modifiers(flag))
            at += _LQUERY_VARIANT_HEADER + (length + 7) // 8 * 8
        text = ("!" if flags & _LQL_NOT else "") + "|".join(names) if variants else "*"
        if flags & _LQL_COUNT or not variants:
            text += _lquery_count(low, high, default=not variants)
        parts.append(text)
        position += (size + 7) // 8 * 8
    return ".".join(parts)


def _lquery_count(low: int, high: int, *, default: bool) -> str:
    if low == high:
        return f"{{{low}}}"
    if low == 0 and high == _LTREE_MAX_LEVELS:
        return "" if default else "{,}"
    return f"{{{low or ''},{'' if high == _LTREE_MAX_LEVELS else high}}}"


def _modifiers(flag: int) -> str:
    return "".join(
        sign
        for bit, sign in ((_LVAR_SUBLEXEME, "%"), (_LVAR_INCASE, "@"), (_LVAR_ANYEND, "*"))
        if flag & bit
    )


def ltxtquery_text(data: bytes) -> str:
    """Return what ltxtq_out prints. Items are in prefix order, an operator's right operand first.

    Raises:
        ValueError, struct.error, RecursionError: *data* is malformed.
    """
    (count,) = struct.unpack_from("<i", data)
    operands = 4 + 12 * count

    def item(number: int) -> tuple[int, int, str]:
        if not 0 <= number < count:
            raise ValueError("an ltxtquery lacks an operand")
        kind, _, value, flag, length, distance = struct.unpack_from(
            "<hhiBBH", data, 4 + 12 * number
        )
        text = ""
        if kind == _VALUE:
            text = _slice(data, operands + distance, length) + _modifiers(flag)
        return kind, value, text

    return _infix(item, 0, 1, first=True)[0]


def query_int_text(data: bytes) -> str:
    """Return what bqarr_out prints. Items are in postfix order: read from the last to the first.

    Raises:
        ValueError, struct.error, RecursionError: *data* is malformed.
    """
    (count,) = struct.unpack_from("<i", data)

    def item(number: int) -> tuple[int, int, str]:
        if not 0 <= number < count:
            raise ValueError("a query_int lacks an operand")
        kind, _, value = struct.unpack_from("<hhi", data, 4 + 8 * number)
        return kind, value, str(value)

    return _infix(item, count - 1, -1, first=True)[0]


def _infix(
    item: Callable[[int], tuple[int, int, str]], number: int, step: int, *, first: bool
) -> tuple[str, int]:
    """Return the text of the subquery at item *number*, and the item after it.

    *item* gives an item's type, its operator and its operand's text; *step* leads to the next.
    """
    kind, operator, text = item(number)
    number += step
    if kind == _VALUE:
        return text, number
    if kind != _OPERATOR or chr(operator & 0xFF) not in "!&|":
        raise ValueError(f"a query's item has type {kind} and operator {operator}")
    if operator == ord("!"):
        nested = item(number)[0] == _OPERATOR
        text, number = _infix(item, number, step, first=nested)
        return (f"!( {text} )" if nested else f"!{text}"), number
    right, number = _infix(item, number, step, first=False)
    left, number = _infix(item, number, step, first=False)
    text = f"{left} {chr(operator)} {right}"
    return (f"( {text} )" if operator == ord("|") and not first else text), number


def seg_text(data: bytes, settings: TextSettings) -> str:
    """Return what seg_out prints: bounds with the certainty and the digits that they were given
    with.

    Raises:
        UnicodeDecodeError, struct.error: *data* is malformed.
    """
    lower, upper, lower_digits, upper_digits, lower_sign, upper_sign = struct.unpack(
        "<ffbbcc", data
    )
    text = lower_sign.decode() if lower_sign in {b"<", b">", b"~"} else ""
    if lower == upper and lower_sign == upper_sign:
        return text + _seg_number(lower, lower_digits)
    if lower_sign != b"-":
        text += _seg_number(lower, lower_digits) + " "
    text += ".."
    if upper_sign != b"-":
        text += " "
        fixed = prints_upper_certainty(settings.server_version_num)
        # Before, the server looked for the lower bound's ~, and its string ended where it then
        # printed no sign.
        if upper_sign in {b"<", b">"} or (upper_sign if fixed else lower_sign) == b"~":
            if upper_sign == b"\0":
                return text
            text += upper_sign.decode("ascii")
        text += _seg_number(upper, upper_digits)
    return text


def _seg_number(value: float, digits: int) -> str:
    """Print with exactly so many significant digits, zeros at the end included."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    digits = min(digits, _SEG_DIGITS_MAX) if digits > 0 else _SEG_DIGITS_MAX
    text = f"{value:.{digits - 1}e}"
    mantissa, _, exponent_text = text.partition("e")
    exponent = int(exponent_text)
    if exponent == 0:
        return mantissa
    if abs(exponent) > _SEG_EXPONENT_MAX:
        return text
    sign = "-" if value < 0 else ""
    figures = mantissa.removeprefix("-").replace(".", "")
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{figures}"
    if exponent + 1 >= digits:
        return f"{mantissa}e{exponent}"
    return f"{sign}{figures[: exponent + 1]}.{figures[exponent + 1 :]}"


def _slice(data: bytes, start: int, length: int) -> str:
    if start + length > len(data):
        raise ValueError("a string lies beyond its value's end")
    return data[start : start + length].decode(errors="surrogateescape")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
