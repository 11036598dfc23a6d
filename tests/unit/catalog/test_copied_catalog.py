"""A catalog that COPY sends becomes packed pages a piece at a time: no more rows are objects than
one page has, and a piece.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from harness.catalog_pages import empty_mirror, locator
from spillway._kernels.catalog import heap
from spillway.catalog.bootstrap import copy_pieces
from spillway.catalog.layout import NAMESPACE_BY_OID, PG_NAMESPACE, PgNamespace
from spillway.catalog.packed_pages import pack_rows
from spillway.catalog.serialization import serialize
from spillway.decoding import serialization

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.catalog.mirror import CatalogMirror
    from spillway.catalog.tuple_store import Storage

BLOCKS, ROWS_A_BLOCK = 8, 5


def messages(extension: bytes) -> list[bytes]:
    """What a server sends of 40 rows: the first has the header, the last is the trailer."""
    rows = [
        struct.pack(">hiIHiIiI", 3, 6, n, 1, 4, 700 + n, 4, n) for n in range(BLOCKS * ROWS_A_BLOCK)
    ]
    header = b"PGCOPY\n\xff\r\n\0" + struct.pack(">II", 0, len(extension)) + extension
    return [header + rows[0], *rows[1:], b"\xff\xff"]


def parsed(pieces: Iterator[bytes]) -> list[Any]:
    return [row for piece in pieces for row in heap.parse_copy(piece, (heap.OID,), "utf-8")]


@pytest.mark.parametrize("extension", [b"", b"later"], ids=["plain", "extended"])
@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_pieces_have_every_row_once(piece_bytes: int, extension: bytes) -> None:
    sent = messages(extension)
    pieces = list(copy_pieces(sent, piece_bytes))
    assert parsed(iter(pieces)) == [(n, 1, 700 + n, (n,)) for n in range(40)]
    # A message more than the limit at most, and a header and trailer.
    longest = max(map(len, sent))
    assert max(map(len, pieces)) < piece_bytes + 2 * longest
    assert len(pieces) > 1 or piece_bytes > sum(map(len, sent))


@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_what_ends_without_a_trailer_is_no_catalog(piece_bytes: int) -> None:
    sent = messages(b"")
    for number in range(len(sent)):
        with pytest.raises(ValueError, match="COPY"):
            parsed(copy_pieces(sent[:number], piece_bytes))


def shown(mirror: CatalogMirror) -> Storage:
    storage = mirror.heaps.storage_at(locator(PG_NAMESPACE))
    assert storage is not None
    return storage


def rows() -> list[tuple[int, int, int, PgNamespace]]:
    return [
        (block, offset, 700, PgNamespace(100 * block + offset, f"s{block}_{offset}"))
        for block in range(BLOCKS)
        for offset in range(1, ROWS_A_BLOCK + 1)
    ]


def test_a_page_is_bytes_before_the_next_ones_rows_are_taken() -> None:
    storage = shown(empty_mirror())

    def told() -> Iterator[Any]:
        for row in rows():
            # All blocks before this one, if it has not just begun.
            assert len(storage.pages) >= row[0] - 1
            yield row

    pack_rows(storage, told())
    assert [page.unpack is not None for page in storage.pages.values()] == [True] * BLOCKS
    (tup,) = storage.with_key(NAMESPACE_BY_OID, 302)
    assert (tup.row.nspname, tup.xmin, tup.tid) == ("s3_2", 700, 3 << 16 | 2)
    assert [page.unpack is None for page in storage.pages.values()].count(True) == 1


def test_rows_of_a_block_that_come_later_are_added() -> None:
    in_order, torn = empty_mirror(), empty_mirror()
    pack_rows(shown(in_order), rows())
    pack_rows(shown(torn), sorted(rows(), key=lambda row: (row[1] > 2, row[0])))
    assert serialize(torn) == serialize(in_order)
    for oid in (101, 203, 705):
        (tup,) = shown(torn).with_key(NAMESPACE_BY_OID, oid)
        assert tup.row.oid == oid


def test_a_serialised_decoder_is_in_memory_twice_while_it_is_read() -> None:
    """As what was read from the file, and as its pages."""
    mirror = empty_mirror()
    names = (PgNamespace(n, "x" * 20_000) for n in range(200))
    pack_rows(shown(mirror), ((block, 1, 700, row) for block, row in enumerate(names)))
    data = serialization.dump(serialization.DecoderState(5, 1000, 1000, (), mirror, b""))
    tracemalloc.start()
    try:
        state = serialization.load(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) < peak < 1.2 * len(data)
    assert len(shown(state.mirror).pages) == 200
