"""Extended statistics, which a table may copy out of pg_statistic_ext_data: pg_ndistinct and
pg_dependencies.

Both are magic, type, a count, and items without alignment: a float8, how many attributes, their
numbers.

Source: pg_ndistinct_out, statext_ndistinct_serialize (src/backend/statistics/mvdistinct.c),
pg_dependencies_out, statext_dependencies_serialize (dependencies.c)
"""

from __future__ import annotations

import struct
from typing import Final

_HEADER: Final = struct.Struct("<III")
_NDISTINCT_MAGIC: Final = 0xA352BFA4
_DEPENDENCIES_MAGIC: Final = 0xB4549A2C
_TYPE_BASIC: Final = 1


def ndistinct_text(data: bytes) -> str:
    """Return ``{"1, 2": 3, …}``: how many combinations the columns have.

    Raises:
        ValueError, struct.error: *data* is malformed.
    """
    items = [
        f'"{", ".join(map(str, attributes))}": {int(number)}'
        for number, attributes in _items(data, _NDISTINCT_MAGIC, "<di")
    ]
    return "{" + ", ".join(items) + "}"


def dependencies_text(data: bytes) -> str:
    """Return ``{"1, 2 => 3": 0.500000, …}``: how far the last column follows from the others.

    Raises:
        ValueError, struct.error: *data* is malformed.
    """
    items = [
        f'"{", ".join(map(str, attributes[:-1]))} => {attributes[-1]}": {degree:.6f}'
        for degree, attributes in _items(data, _DEPENDENCIES_MAGIC, "<dh")
    ]
    return "{" + ", ".join(items) + "}"


def _items(data: bytes, magic: int, layout: str) -> list[tuple[float, tuple[int, ...]]]:
    found_magic, kind, count = _HEADER.unpack_from(data)
    if found_magic != magic or kind != _TYPE_BASIC:
        raise ValueError(f"statistics of magic {found_magic:#x} and type {kind}")
    items = []
    position = _HEADER.size
    for _ in range(count):
        number, attributes = struct.unpack_from(layout, data, position)
        position += struct.calcsize(layout)
        if not 0 < attributes <= len(data):
            raise ValueError(f"statistics of {attributes} attributes")
        items.append((number, struct.unpack_from(f"<{attributes}h", data, position)))
        position += 2 * attributes
    return items
