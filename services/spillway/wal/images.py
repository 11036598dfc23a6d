"""Restore page images: what a record stores of a page → its 8192 bytes.

A full-page image leaves out the page's hole, the unused bytes between line pointers and tuples, and
may be compressed after that. The stored bytes come from the walker, which has checked the numbers
against one another and against the record's length; the compressed content is checked here.

Source: RestoreBlockImage, src/backend/access/transam/xlogreader.c
"""

from __future__ import annotations

from typing import Final

import zstandard

from spillway._kernels.pg.compress import decompress_lz4, decompress_pglz

PAGE_SIZE: Final = 8192

# How an image is stored, as the walker says (ImageMethod in _kernels/wal/walker.pxd).
IMAGE_PLAIN: Final = 0
IMAGE_PGLZ: Final = 1
IMAGE_LZ4: Final = 2
IMAGE_ZSTD: Final = 3


def restore_image(stored: bytes, method: int, hole_offset: int, hole_length: int) -> bytes:
    """Return the page: *stored* decompressed, with *hole_length* zeros put in at *hole_offset*.

    Raises:
        ValueError: the compressed content is malformed or has another length.
    """
    raw_size = PAGE_SIZE - hole_length
    if method == IMAGE_PLAIN:
        raw = stored
    elif method == IMAGE_PGLZ:
        raw = decompress_pglz(stored, raw_size)
    elif method == IMAGE_LZ4:
        raw = decompress_lz4(stored, raw_size)
    elif method == IMAGE_ZSTD:
        raw = _decompress_zstd(stored, raw_size)
    else:
        raise ValueError(f"unknown image compression method {method}")
    if len(raw) != raw_size or hole_offset > raw_size:
        raise ValueError(f"an image of {len(raw)} bytes where {raw_size} were expected")
    if hole_length == 0:
        return raw
    return raw[:hole_offset] + bytes(hole_length) + raw[hole_offset:]


def _decompress_zstd(stored: bytes, raw_size: int) -> bytes:
    """Decompress one frame; the size that the frame itself claims is not trusted for allocation."""
    try:
        claimed = zstandard.frame_content_size(stored)
        if claimed not in {raw_size, -1}:
            raise ValueError(f"a zstd frame of {claimed} bytes where {raw_size} were expected")
        return zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_size)
    except zstandard.ZstdError as error:
        raise ValueError(f"malformed zstd data: {error}") from error
