"""Catalog columns that may be out of line: a row filter's node tree is the one that is read.

A catalog's TOAST table is mirrored like a catalog (``layout.PG_PUBLICATION_REL_TOAST``), so its
chunks are there as of the point in WAL. What is not: chunks from before a SQL bootstrap, because a
login may not read TOAST tables. But it may read the values, and does; when the page with the row
comes as an image, the row's pointer is tied to the value that SQL showed
(``CatalogMirror.known_values``).

Source: src/include/varatt.h (postgres.h before 16); toast_fetch_datum,
src/backend/access/common/detoast.c
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from spillway._kernels.pg import compress
from spillway.catalog.missing_value import varlena_body

if TYPE_CHECKING:
    from collections.abc import Iterable

_POINTER: Final = struct.Struct("<BBiIII")
_EXTERNAL: Final = 1
_VARTAG_ONDISK: Final = 18
_EXTSIZE_MASK: Final = 0x3FFFFFFF
_VARHDRSZ: Final = 4
_COMPRESSION_LZ4: Final = 1


class ToastPointer(NamedTuple):
    """varatt_external."""

    #: original size, with its header
    raw_size: int
    #: size of what is stored, and in the two highest bits how it is compressed
    extinfo: int
    value_id: int
    toast_oid: int


#: A text as a tuple has it.
TextDatum: TypeAlias = str | ToastPointer | None


def text_of_datum(datum: bytes, encoding: str, errors: str) -> str | ToastPointer:
    """Return an in-line text datum's text, or what its pointer says.

    Raises:
        ValueError: *datum* contradicts itself, or the text is not in *encoding*.
    """
    if datum[:1] == b"\1":
        if len(datum) < _POINTER.size or datum[1] != _VARTAG_ONDISK:
            raise ValueError("a TOAST pointer in a catalog is of an unknown kind")
        return ToastPointer(*_POINTER.unpack_from(datum)[2:])
    return varlena_body(datum).decode(encoding, errors)


def text_of_chunks(
    pointer: ToastPointer, chunks: Iterable[Any], encoding: str, errors: str
) -> str | None:
    """Put a text together from its rows of the TOAST table; None when they are not all there.

    Raises:
        ValueError: they don't add up to the value.
    """
    rows = sorted(chunks, key=_chunk_seq)
    content = b"".join(row.chunk_data for row in rows)
    size = pointer.extinfo & _EXTSIZE_MASK
    if [row.chunk_seq for row in rows] != list(range(len(rows))) or len(content) < size:
        return None
    if len(content) != size:
        raise ValueError(f"TOAST value {pointer.value_id} has {len(content)} bytes, not {size}")
    raw_size = pointer.raw_size - _VARHDRSZ
    if size < raw_size:
        lz4 = pointer.extinfo >> 30 == _COMPRESSION_LZ4
        decompress = compress.decompress_lz4 if lz4 else compress.decompress_pglz
        # The raw size comes first, as in line.
        content = bytes(decompress(content[4:], raw_size))
    return content.decode(encoding, errors)


def _chunk_seq(row: Any) -> int:
    number: int = row.chunk_seq
    return number
