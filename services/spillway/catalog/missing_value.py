"""attmissingval: the value of rows that were written before ``ALTER TABLE … ADD COLUMN … DEFAULT``.

pg_attribute keeps it as a one-element array of the column's type (pseudo-type anyarray). Encoders
want the element as the raw datum that a tuple would hold, which is what :func:`element_of_array`
cuts out of a physical catalog tuple. The SQL bootstrap sees only the type's send format;
``send_format`` rebuilds the datum from that.

Source: src/backend/access/common/attmissing.c and StoreAttrMissingVal; src/include/utils/array.h,
src/include/varatt.h
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from spillway._kernels.pg import compress
from spillway.errors import DecodingError

_ARRAY_HEADER: Final = struct.Struct("<iiI")
_U32: Final = struct.Struct("<I")
_ALIGNMENT: Final = {"c": 1, "s": 2, "i": 4, "d": 8}
_MAX_ALIGNMENT: Final = 8
_COMPRESSION_LZ4: Final = 1


class UnreadableMissing(NamedTuple):
    """A missing value that SQL could not give exactly: its type's send format is not known.

    It stays in the mirror until a descriptor needs it, and an error is raised then, so that one
    column of an exotic type does not keep a whole database from being decoded.
    """

    type_name: str


MissingValue: TypeAlias = bytes | UnreadableMissing | None


def element_of_array(array: bytes, length: int, align: str, *, by_value: bool) -> bytes:
    """Return the only element of a one-element array datum, as a raw datum.

    *array* has its varlena header, short, long or compressed in line. By-value types come as
    *length* bytes, varlenas with their header, cstrings without the final zero.

    Raises:
        ValueError: the array contradicts itself, or has not exactly one element that is not null.
        DecodingError: the array is stored out of line, which pg_attribute can't do.
    """
    body = varlena_body(array)
    if len(body) < _ARRAY_HEADER.size + 8:
        raise ValueError("a missing value's array is cut short")
    dimensions, data_offset, _ = _ARRAY_HEADER.unpack_from(body)
    if dimensions != 1 or data_offset != 0 or _U32.unpack_from(body, 12)[0] != 1:
        raise ValueError("a missing value's array has not exactly one element")
    # Offsets inside an array count from its 4-byte header.
    start = 4 + _ARRAY_HEADER.size + 8
    start += -start % _MAX_ALIGNMENT
    element = body[start - 4 :]
    if by_value or length > 0:
        size = length
    elif length == -1:
        size = varlena_size(element)
    elif length == -2:
        size = element.index(b"\0")
    else:
        raise ValueError(f"a type has length {length}")
    if size > len(element):
        raise ValueError("a missing value's array is cut short")
    if align not in _ALIGNMENT:
        raise ValueError(f"a type has alignment {align!r}")
    return element[:size]


def varlena_size(datum: bytes) -> int:
    """Return how long the in-line varlena at the start of *datum* is, header included."""
    if not datum or datum[0] == 1:
        raise ValueError("a varlena is cut short or out of line")
    if datum[0] & 1:
        return datum[0] >> 1
    if len(datum) < 4:
        raise ValueError("a varlena is cut short")
    size = int(_U32.unpack_from(datum)[0]) >> 2
    if size < 4:
        raise ValueError(f"a varlena has length {size}")
    return size


def varlena_body(datum: bytes) -> bytes:
    """Return the content of an in-line varlena, decompressed."""
    if datum[:1] == b"\1":
        raise DecodingError(
            "a catalog column that has no TOAST table holds an out-of-line value",
            hint="The catalog page is damaged, or this server is not PostgreSQL's own.",
        )
    size = varlena_size(datum)
    if size > len(datum):
        raise ValueError("a varlena is cut short")
    if datum[0] & 1:
        return datum[1:size]
    if not datum[0] & 2:
        return datum[4:size]
    if size < 8:
        raise ValueError("a compressed varlena is cut short")
    info = int(_U32.unpack_from(datum, 4)[0])
    raw_size, method = info & 0x3FFFFFFF, info >> 30
    decompress = compress.decompress_lz4 if method == _COMPRESSION_LZ4 else compress.decompress_pglz
    return bytes(decompress(datum[8:size], raw_size))
