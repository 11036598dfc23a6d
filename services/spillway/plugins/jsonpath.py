"""jsonpath: from its stored form to text.

A value is a word of version and mode and then nodes. A node begins with its type and, 4-byte
aligned, the distance to the next node of its path; what follows depends on the type: operands (as
distances from the node, 0 for none), a string, a number. The first node is the path's head, not its
operator.

Node types are numbered by the order in which versions added them, which is on disk and never
changes.

Source: jsonpath_out, printJsonPathItem, jspInitByBuffer (src/backend/utils/adt/jsonpath.c),
utils/jsonpath.h
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Final

from spillway._kernels.values.text.number import numeric_to_text
from spillway.pg.versions import Since

if TYPE_CHECKING:
    from spillway.pg.text_settings import TextSettings

_HEADER_SIZE: Final = 4
_VERSION: Final = 1
_LAX: Final = 0x80000000
_LAST: Final = 0xFFFFFFFF

_NULL, _STRING, _NUMERIC, _BOOL = range(4)
_NOT, _IS_UNKNOWN = 6, 7
_PLUS, _MINUS = 19, 20
_ANY_ARRAY, _ANY_KEY, _INDEX_ARRAY, _ANY, _KEY, _CURRENT, _ROOT, _VARIABLE, _FILTER, _EXISTS = (
    range(21, 31)
)
_LAST_SUBSCRIPT: Final = 40
_LIKE_REGEX: Final = 42
_DECIMAL: Final = 46

#: Binary operators: sign and priority.
_BINARY: Final = {
    4: ("&&", 1), 5: ("||", 0), 8: ("==", 2), 9: ("!=", 2), 10: ("<", 2), 11: (">", 2),
    12: ("<=", 2), 13: (">=", 2),
    14: ("+", 3), 15: ("-", 3), 16: ("*", 4), 17: ("/", 4), 18: ("%", 4), 41: ("starts with", 2),
}  # fmt: skip
_UNARY_PRIORITY: Final = 5
_HIGHEST_PRIORITY: Final = 6
_CONSTANT: Final = {
    _NULL: "null",
    _ANY_ARRAY: "[*]",
    _CURRENT: "@",
    _ROOT: "$",
    _LAST_SUBSCRIPT: "last",
}
#: Methods without arguments.
_METHODS: Final = {
    31: "type", 32: "size", 33: "abs", 34: "floor", 35: "ceiling", 36: "double", 38: "keyvalue",
    43: "bigint", 44: "boolean", 45: "date", 47: "integer", 48: "number", 49: "string",
}  # fmt: skip
#: Methods with an argument that may be left out.
_METHODS_OF_ONE: Final = {
    37: "datetime",
    50: "time",
    51: "time_tz",
    52: "timestamp",
    53: "timestamp_tz",
}
_REGEX_FLAGS: Final = ((1, "i"), (2, "s"), (4, "m"), (8, "x"), (16, "q"))


def jsonpath_text(data: bytes, settings: TextSettings) -> str:
    """Return what jsonpath_out prints.

    Raises:
        ValueError, IndexError, struct.error, RecursionError: *data* is malformed.
    """
    (header,) = struct.unpack_from("<I", data)
    if header & ~_LAX != _VERSION:
        raise ValueError(f"jsonpath version {header & ~_LAX}")
    printer = _Printer(data[_HEADER_SIZE:], settings.server_version_num)
    return ("" if header & _LAX else "strict ") + printer.path(0, in_key=False, brackets=True)


class _Printer:
    """Prints the nodes of one value."""

    def __init__(self, data: bytes, server_version_num: int) -> None:
        self._data = data
        self._number_in_parentheses = server_version_num >= Since.JSONPATH_NUMBER_IN_PARENTHESES

    def path(self, node: int, *, in_key: bool, brackets: bool) -> str:
        """Return the text of *node* and of the nodes after it."""
        parts = []
        while True:
            following = self._ints(node, 1, -4)[0]
            parts.append(self._node(node, in_key=in_key, brackets=brackets, goes_on=following > 0))
            if following <= 0:
                return "".join(parts)
            # Nodes lie behind one another: a distance forward, so this ends.
            node += following
            in_key = brackets = True

    def _node(self, node: int, *, in_key: bool, brackets: bool, goes_on: bool) -> str:
        kind = self._data[node]
        dot = "." if in_key else ""
        if kind in _CONSTANT:
            return _CONSTANT[kind]
        if kind == _STRING:
            return self._string(node)
        if kind == _NUMERIC:
            text = self._number(node)
            return f"({text})" if goes_on and self._number_in_parentheses else text
        if kind == _BOOL:
            return "true" if self._data[_content(node)] else "false"
        if kind in _BINARY or kind in {_PLUS, _MINUS}:
            text = self._operation(kind, node)
            return f"({text})" if brackets else text
        if kind == _LIKE_REGEX:
            text = self._like_regex(node)
            return f"({text})" if brackets else text
        if kind == _ANY_KEY:
            return dot + "*"
        if kind == _KEY:
            return dot + self._string(node)
        if kind == _ANY:
            return dot + self._levels(node)
        if kind == _VARIABLE:
            return "$" + self._string(node)
        if kind == _INDEX_ARRAY:
            return self._subscripts(node)
        if kind == _NOT:
            return f"!({self._argument(node)})"
        if kind == _IS_UNKNOWN:
            return f"({self._argument(node)}) is unknown"
        if kind == _FILTER:
            return f"?({self._argument(node)})"
        if kind == _EXISTS:
            return f"exists ({self._argument(node)})"
        return self._method(kind, node)

    def _method(self, kind: int, node: int) -> str:
        if kind in _METHODS:
            return f".{_METHODS[kind]}()"
        if kind in _METHODS_OF_ONE:
            return f".{_METHODS_OF_ONE[kind]}({self._argument(node)})"
        if kind == _DECIMAL:
            left, right = self._ints(node, 2)
            return (
                ".decimal("
                + self._operand(node, left)
                + ("," + self._operand(node, right) if right else "")
                + ")"
            )
        raise ValueError(f"jsonpath item type {kind}")

    def _operation(self, kind: int, node: int) -> str:
        if kind in {_PLUS, _MINUS}:
            (distance,) = self._ints(node, 1)
            return ("+" if kind == _PLUS else "-") + self._ranked(node, distance, _UNARY_PRIORITY)
        left, right = self._ints(node, 2)
        sign, priority = _BINARY[kind]
        return f"{self._ranked(node, left, priority)} {sign} {self._ranked(node, right, priority)}"

    def _ranked(self, node: int, distance: int, priority: int) -> str:
        """Return an operand, in parentheses if its operator does not bind more strongly."""
        operand = node + _forward(distance)
        kind = self._data[operand]
        own = _BINARY[kind][1] if kind in _BINARY else _HIGHEST_PRIORITY
        if kind in {_PLUS, _MINUS}:
            own = _UNARY_PRIORITY
        return self.path(operand, in_key=False, brackets=own <= priority)

    def _operand(self, node: int, distance: int) -> str:
        return (
            self.path(node + _forward(distance), in_key=False, brackets=False) if distance else ""
        )

    def _argument(self, node: int) -> str:
        return self._operand(node, self._ints(node, 1)[0])

    def _subscripts(self, node: int) -> str:
        (count,) = self._ints(node, 1)
        if not 0 <= count <= len(self._data):
            raise ValueError(f"{count} jsonpath subscripts")
        bounds = self._ints(node, 2 * count, 4)
        parts = [
            self._operand(node, start) + (f" to {self._operand(node, end)}" if end else "")
            for start, end in zip(bounds[::2], bounds[1::2], strict=True)
        ]
        return f"[{','.join(parts)}]"

    def _levels(self, node: int) -> str:
        first, last = (bound & _LAST for bound in self._ints(node, 2))
        if (first, last) == (0, _LAST):
            return "**"
        names = ["last" if bound == _LAST else str(bound) for bound in (first, last)]
        return f"**{{{names[0]}}}" if first == last else f"**{{{names[0]} to {names[1]}}}"

    def _like_regex(self, node: int) -> str:
        flags, expression, length = self._ints(node, 3)
        text = (
            f"{self._ranked(node, expression, _HIGHEST_PRIORITY)} like_regex "
            f"{self._text(node, 12, length)}"
        )
        if flags:
            letters = "".join(letter for bit, letter in _REGEX_FLAGS if flags & bit)
            text += f' flag "{letters}"'
        return text

    def _string(self, node: int) -> str:
        return self._text(node, 4, self._ints(node, 1)[0])

    def _text(self, node: int, offset: int, length: int) -> str:
        start = _content(node) + offset
        if not 0 <= length <= len(self._data) - start:
            raise ValueError(f"a jsonpath string of {length} bytes")
        text = self._data[start : start + length].decode(errors="surrogateescape")
        return json.dumps(text, ensure_ascii=False)

    def _number(self, node: int) -> str:
        start = _content(node)
        (size,) = struct.unpack_from("<I", self._data, start)
        return numeric_to_text(self._data[start + 4 : start + (size >> 2)])

    def _ints(self, node: int, count: int, offset: int = 0) -> tuple[int, ...]:
        """Return *count* integers of the node's content, from *offset* on."""
        return struct.unpack_from(f"<{count}i", self._data, _content(node) + offset)


def _content(node: int) -> int:
    """Where a node's content begins: behind its type and the distance to the next node."""
    return (node + 1 + 3) // 4 * 4 + 4


def _forward(distance: int) -> int:
    """Check an operand's distance: operands lie behind their operator, so printing them ends."""
    if distance <= 0:
        raise ValueError("a jsonpath operand does not lie behind its operator")
    return distance
