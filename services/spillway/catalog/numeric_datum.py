"""numeric as PostgreSQL stores it, from its send format or from decimal digits.

Base-10000 digits behind a header of two bytes where display scale and weight are small, of four
else.

Source: make_result_opt_error, numeric_send and set_var_from_str, src/backend/utils/adt/numeric.c
"""

from __future__ import annotations

import struct
from typing import Final

_SENT: Final = struct.Struct(">hhHH")
_NEGATIVE: Final = 0x4000
_SPECIAL: Final = 0xC000
_SHORT: Final = 0x8000
_SHORT_NEGATIVE: Final = 0x2000
_SHORT_SCALE_MAX: Final = 0x3F
_SHORT_WEIGHT_MAX: Final = 63
_SHORT_WEIGHT_MIN: Final = -64
_DIGIT_WIDTH: Final = 4


def numeric_body(value: bytes) -> bytes:
    """Return the varlena's content for a numeric in its send format.

    Raises:
        ValueError: *value* is cut short.
    """
    if len(value) < _SENT.size:
        raise ValueError("a numeric is cut short")
    count, weight, sign, scale = _SENT.unpack_from(value)
    if count < 0 or len(value) != _SENT.size + 2 * count:
        raise ValueError("a numeric is cut short")
    digits = struct.unpack_from(f">{count}H", value, _SENT.size)
    return _body(digits, weight, sign, scale)


def numeric_body_of_text(text: str) -> bytes:
    """Return the varlena's content for digits with an optional sign and decimal point, no
    exponent.
    """
    sign = _NEGATIVE if text.startswith("-") else 0
    whole, _, fraction = text.lstrip("-").partition(".")
    scale = len(fraction)
    whole = whole.lstrip("0")
    whole = whole.rjust(len(whole) + -len(whole) % _DIGIT_WIDTH, "0")
    fraction = fraction.ljust(len(fraction) + -len(fraction) % _DIGIT_WIDTH, "0")
    joined = whole + fraction
    digits = [int(joined[i : i + _DIGIT_WIDTH]) for i in range(0, len(joined), _DIGIT_WIDTH)]
    weight = len(whole) // _DIGIT_WIDTH - 1
    while digits and digits[0] == 0:
        del digits[0]
        weight -= 1
    while digits and digits[-1] == 0:
        del digits[-1]
    if not digits:
        weight = sign = 0
    return _body(tuple(digits), weight, sign, scale)


def _body(digits: tuple[int, ...], weight: int, sign: int, scale: int) -> bytes:
    if sign & _SPECIAL == _SPECIAL:
        return struct.pack("<H", sign)
    packed = struct.pack(f"<{len(digits)}H", *digits)
    if scale <= _SHORT_SCALE_MAX and _SHORT_WEIGHT_MIN <= weight <= _SHORT_WEIGHT_MAX:
        header = _SHORT | scale << 7 | weight & 0x7F
        if sign == _NEGATIVE:
            header |= _SHORT_NEGATIVE
        return struct.pack("<H", header) + packed
    return struct.pack("<Hh", sign | scale & 0x3FFF, weight) + packed
