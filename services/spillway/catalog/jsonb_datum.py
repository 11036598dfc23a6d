"""jsonb as PostgreSQL stores it, from its text.

A container is a header (count and kind), one JEntry a child (two a pair: keys first, then values),
and the children's bytes. A JEntry has its child's length, but every 32nd of a container the end
offset. Numbers and containers are aligned to 4 bytes from the start of the varlena; padding counts
as theirs.

Source: src/include/utils/jsonb.h; convertJsonbValue and its siblings,
src/backend/utils/adt/jsonb_util.c
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from spillway.catalog.numeric_datum import numeric_body_of_text

_STRIDE: Final = 32
_HAS_OFFSET: Final = 0x80000000
_TYPE_MASK: Final = 0x70000000
_LENGTH_MASK: Final = 0x0FFFFFFF
_STRING: Final = 0x00000000
_NUMERIC: Final = 0x10000000
_FALSE: Final = 0x20000000
_TRUE: Final = 0x30000000
_NULL: Final = 0x40000000
_CONTAINER: Final = 0x50000000
_SCALAR_FLAG: Final = 0x10000000
_OBJECT_FLAG: Final = 0x20000000
_ARRAY_FLAG: Final = 0x40000000
_ALIGNMENT: Final = 4


class _Number(str):
    """Digits as jsonb printed them: the display scale counts."""

    __slots__ = ()


def jsonb_body(text: bytes, encoding: str, errors: str) -> bytes:
    """Return the varlena's content for what jsonb prints as *text*, in the server's *encoding*.

    Raises:
        ValueError: *text* is no JSON.
    """
    value = json.loads(text.decode(encoding, errors), parse_float=_Number, parse_int=_Number)
    writer = _Writer(encoding, errors)
    if isinstance(value, (dict, list)):
        writer.append(value)
    else:
        writer.append_children([value], _ARRAY_FLAG | _SCALAR_FLAG | 1)
    return bytes(writer.out)


class _Writer:
    def __init__(self, encoding: str, errors: str) -> None:
        self.out = bytearray()
        self._encoding = encoding
        self._errors = errors

    def append(self, value: Any) -> int:
        """Append *value*'s bytes; returns its JEntry with the length."""
        start = len(self.out)
        if value is None:
            return _NULL
        if value is True:
            return _TRUE
        if value is False:
            return _FALSE
        if isinstance(value, _Number):
            self._pad()
            body = numeric_body_of_text(value)
            self.out += struct.pack("<I", (len(body) + 4) << 2) + body
            return _NUMERIC | len(self.out) - start
        if isinstance(value, str):
            self.out += value.encode(self._encoding, self._errors)
            return _STRING | len(self.out) - start
        if isinstance(value, list):
            self.append_children(value, _ARRAY_FLAG | len(value))
        else:
            keys = sorted(value, key=self._key_order)
            children = [*keys, *(value[key] for key in keys)]
            self.append_children(children, _OBJECT_FLAG | len(keys))
        return _CONTAINER | len(self.out) - start

    def append_children(self, children: list[Any], header: int) -> None:
        """Append a container's header, its JEntries and its children."""
        # The content begins behind the varlena's 4-byte header, which keeps the alignment.
        self._pad()
        self.out += struct.pack("<I", header)
        at = len(self.out)
        self.out += bytes(4 * len(children))
        total = 0
        for i, child in enumerate(children):
            entry = self.append(child)
            total += entry & _LENGTH_MASK
            if i % _STRIDE == 0:
                entry = entry & _TYPE_MASK | total | _HAS_OFFSET
            struct.pack_into("<I", self.out, at + 4 * i, entry)

    def _key_order(self, key: str) -> tuple[int, bytes]:
        encoded = key.encode(self._encoding, self._errors)
        return len(encoded), encoded

    def _pad(self) -> None:
        self.out += bytes(-len(self.out) % _ALIGNMENT)
