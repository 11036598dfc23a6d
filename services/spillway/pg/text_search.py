"""tsvector and tsquery: from their stored form to text.

A tsvector is a count, an entry a lexeme (has positions: 1 bit, length: 11, offset: 20) and the
lexemes' bytes; a lexeme's positions follow it, 2-byte aligned: a count, then 14 bits of position
and 2 of weight each. A tsquery is a count, 12-byte items in prefix order with an operator's right
operand first, and the operands' bytes.

Source: tsvectorout (src/backend/utils/adt/tsvector.c), infix (tsquery.c), tsearch/ts_type.h
"""

from __future__ import annotations

import struct
from typing import Final

_QI_VAL: Final = 1
_OP_NOT, _OP_AND, _OP_OR, _OP_PHRASE = 1, 2, 3, 4
_PRIORITY: Final = {_OP_NOT: 4, _OP_AND: 2, _OP_OR: 1, _OP_PHRASE: 3}
_ITEM_SIZE: Final = 12
_WEIGHTS: Final = ("", "C", "B", "A")


def tsvector_text(data: bytes) -> str:
    """Return what tsvectorout prints.

    Raises:
        ValueError, struct.error: *data* is malformed.
    """
    (count,) = struct.unpack_from("<i", data)
    entries = struct.unpack_from(f"<{count}I", data, 4)
    base = 4 + 4 * count
    parts = []
    for entry in entries:
        length, offset = (entry >> 1) & 0x7FF, entry >> 12
        text = _quoted(_slice(data, base + offset, length))
        if entry & 1:
            # Aligned from the lexemes' beginning on.
            at = base + offset + length
            at += (at - base) & 1
            (positions,) = struct.unpack_from("<H", data, at)
            text += ":" + ",".join(
                f"{position & 0x3FFF}{_WEIGHTS[position >> 14]}"
                for position in struct.unpack_from(f"<{positions}H", data, at + 2)
            )
        parts.append(text)
    return " ".join(parts)


def tsquery_text(data: bytes) -> str:
    """Return what tsqueryout prints.

    Raises:
        ValueError, struct.error, RecursionError: *data* is malformed.
    """
    (count,) = struct.unpack_from("<i", data)
    if count == 0:
        return ""
    base = 4 + _ITEM_SIZE * count
    text, _ = _infix(data, base, count, 0, 0, right_of_phrase=False)
    return text


def _infix(
    data: bytes, base: int, count: int, item: int, parent_priority: int, *, right_of_phrase: bool
) -> tuple[str, int]:
    """Return the text of the subquery at *item*, and the item after it."""
    if item >= count:
        raise ValueError("a tsquery lacks an operand")
    at = 4 + _ITEM_SIZE * item
    if data[at] == _QI_VAL:
        weight, prefix, place = struct.unpack_from("<xB?5xI", data, at)
        text = _quoted(_slice(data, base + (place >> 12), place & 0xFFF))
        if weight or prefix:
            letters = "".join(
                letter for bit, letter in ((8, "A"), (4, "B"), (2, "C"), (1, "D")) if weight & bit
            )
            text += ":" + ("*" if prefix else "") + letters
        return text, item + 1
    operator, distance = struct.unpack_from("<xbh", data, at)
    priority = _PRIORITY[operator]
    if operator == _OP_NOT:
        operand, item = _infix(data, base, count, item + 1, priority, right_of_phrase=False)
        text = "!" + operand
        parentheses = priority < parent_priority
    else:
        right, item = _infix(
            data, base, count, item + 1, priority, right_of_phrase=operator == _OP_PHRASE
        )
        left, item = _infix(data, base, count, item, priority, right_of_phrase=False)
        sign = {_OP_AND: "&", _OP_OR: "|"}.get(operator) or (
            "<->" if distance == 1 else f"<{distance}>"
        )
        text = f"{left} {sign} {right}"
        parentheses = priority < parent_priority or (operator == _OP_PHRASE and right_of_phrase)
    return (f"( {text} )" if parentheses else text), item


def _slice(data: bytes, start: int, length: int) -> str:
    if start + length > len(data):
        raise ValueError("a lexeme lies beyond the value's end")
    return data[start : start + length].decode(errors="surrogateescape")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
