"""Types of the extensions that come with PostgreSQL: hstore and ltree.

Source: hstore_out (contrib/hstore/hstore_io.c), hstore.h; deparse_ltree (contrib/ltree/ltree_io.c), ltree.h
"""

from __future__ import annotations

import struct
from typing import Final

_HS_COUNT_MASK: Final = 0x0FFFFFFF
_HS_FLAG_NEWVERSION: Final = 0x80000000
_HENTRY_ISNULL: Final = 0x40000000
_HENTRY_POSMASK: Final = 0x3FFFFFFF
#: struct ltree without its length word, aligned to 8 with it
_LTREE_HEADER: Final = 4
_LTREE_LEVEL_HEADER: Final = 2


def hstore_text(data: bytes) -> str:
    """Return ``"key"=>"value", "key"=>NULL``.

    A value is a count, an entry each for key, value, key, value… that says where its string ends, and
    the strings.

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


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
