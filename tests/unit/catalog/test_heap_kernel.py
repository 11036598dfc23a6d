"""Pages, tuples and COPY output: sound ones are read, damaged ones raise ValueError, none
crashes.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog_pages import namespace_data, page
from spillway._kernels.catalog import heap

_COLUMNS = [
    (4, "i", heap.OID), (2, "s", heap.INT2), (-1, "i", heap.SKIP), (1, "c", heap.BOOL),
    (1, "c", heap.CHAR), (64, "c", heap.NAME), (4, "i", heap.FLOAT4), (-1, "i", heap.INT2VECTOR),
    (-1, "d", heap.RAW), (4, "i", heap.INT4),
]  # fmt: skip


def _int2vector(*values: int) -> bytes:
    body = struct.pack("<iiIii", 1, 0, 21, len(values), 0) + struct.pack(
        f"<{len(values)}h", *values
    )
    return struct.pack("<I", (len(body) + 4) << 2) + body


def _tuple(text: bytes) -> bytes:
    """Attributes of the columns above, aligned as the server would."""
    out = bytearray(struct.pack("<Ih", 42, -3))
    out += bytes([len(text) + 1 << 1 | 1]) + text
    out += b"\1x" + b"name".ljust(64, b"\0")
    out += bytes(-len(out) % 4) + struct.pack("<f", 1.5)
    out += _int2vector(1, -2, 3)
    out += bytes(-len(out) % 8) + struct.pack("<I", 10 << 2) + b"raw!!!"
    out += bytes(-len(out) % 4) + struct.pack("<i", -7)
    return bytes(out)


@pytest.mark.parametrize("text", [b"", b"a", b"abcdef"])
def test_deform_every_kind(text: bytes) -> None:
    deformer = heap.Deformer(_COLUMNS, "utf-8")
    values = deformer.deform(10, 0, 24, b"\0" + _tuple(text))
    raw = struct.pack("<I", 10 << 2) + b"raw!!!"
    assert values == (42, -3, True, "x", "name", 1.5, (1, -2, 3), raw, -7)


def test_deform_nulls_and_columns_beyond_the_tuple() -> None:
    deformer = heap.Deformer(_COLUMNS, "utf-8")
    bitmap = bytes([0b00000010, 0])
    values = deformer.deform(3, 1, 26, bitmap + b"\0" + struct.pack("<h", 5))
    assert values == (None, 5, None, None, None, None, None, None, None)


def test_deform_bounds() -> None:
    deformer = heap.Deformer(_COLUMNS, "utf-8")
    whole = b"\0" + _tuple(b"abc")
    for size in range(len(whole)):
        with pytest.raises(ValueError):  # noqa: PT011 - every cut says something else
            deformer.deform(10, 0, 24, whole[:size])
    for hoff in (0, 22, 255):
        with pytest.raises(ValueError, match="header length"):
            deformer.deform(10, 0, hoff, whole)
    with pytest.raises(ValueError, match="null bitmap"):
        deformer.deform(10, 1, 24, whole)


@given(st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 255), st.binary(max_size=300))
def test_deform_any_bytes(infomask2: int, infomask: int, hoff: int, data: bytes) -> None:
    deformer = heap.Deformer(_COLUMNS, "utf-8")
    try:
        deformer.deform(infomask2, infomask, hoff, data)
    except ValueError:
        return


@pytest.mark.parametrize(
    "columns",
    [
        [(2, "i", heap.OID)],
        [(4, "q", heap.OID)],
        [(0, "i", heap.SKIP)],
        [(-3, "i", heap.SKIP)],
        [(4, "i", heap.RAW)],
        [(4, "i", heap.OID)] * 129,
    ],
)
def test_a_layout_that_makes_no_sense(columns: list[tuple[int, str, int]]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        heap.Deformer(columns, "utf-8")


def test_page_round_trip() -> None:
    tuples = [
        (1, 700, 0, 0x0800, namespace_data(11, "a")),
        (3, 701, 702, 0x0100, namespace_data(12, "b")),
    ]
    content = page(tuples, lsn=0x1_0000_0028)
    assert heap.page_lsn(content) == 0x1_0000_0028
    assert heap.parse_page(content) == [
        (1, 700, 0, 2, 0x0800, 24, tuples[0][4]),
        (3, 701, 702, 2, 0x0100, 24, tuples[1][4]),
    ]
    assert heap.parse_page(bytes(8192)) == []


@pytest.mark.parametrize("size", [0, 24, 8191, 8193])
def test_a_page_of_another_size(size: int) -> None:
    with pytest.raises(ValueError, match="a page has"):
        heap.parse_page(bytes(size))
    with pytest.raises(ValueError, match="a page has"):
        heap.page_lsn(bytes(size))


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_page_with_flipped_bytes(flips: list[tuple[int, int]]) -> None:
    content = bytearray(page([(i, 700, 0, 0, namespace_data(i, "x")) for i in range(1, 20)]))
    for at, value in flips:
        content[at] = value
    try:
        heap.parse_page(bytes(content))
    except ValueError:
        return


def _copy(*fields: bytes | None) -> bytes:
    out = b"PGCOPY\n\xff\r\n\0" + struct.pack(">II", 0, 0) + struct.pack(">h", len(fields))
    for field in fields:
        out += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return out + struct.pack(">h", -1)


_CTID = struct.pack(">IH", 7, 3)
_XMIN = struct.pack(">I", 700)


def test_copy() -> None:
    vector = struct.pack(">iiIii", 1, 0, 21, 2, 0) + struct.pack(">ihih", 2, 5, 2, -1)
    kinds = (
        heap.OID, heap.INT2, heap.BOOL, heap.CHAR, heap.NAME, heap.FLOAT4, heap.INT2VECTOR,
        heap.RAW,
        heap.INT4,
    )  # fmt: skip
    content = _copy(
        _CTID, _XMIN, struct.pack(">I", 9), struct.pack(">h", -1), b"\0", b"r", "ä".encode(),
        struct.pack(">f", 2.5), vector, b"raw", None,
    )  # fmt: skip
    assert heap.parse_copy(content, kinds, "utf-8") == [
        (7, 3, 700, (9, -1, False, "r", "ä", 2.5, (5, -1), b"raw", None))
    ]
    for size in range(len(content)):
        with pytest.raises(ValueError):  # noqa: PT011 - every cut says something else
            heap.parse_copy(content[:size], kinds, "utf-8")


def test_copy_with_other_columns() -> None:
    with pytest.raises(ValueError, match="columns"):
        heap.parse_copy(_copy(_CTID, _XMIN), (heap.OID,), "utf-8")
    with pytest.raises(ValueError, match="2 bytes for a column"):
        heap.parse_copy(_copy(_CTID, _XMIN, b"ab"), (heap.OID,), "utf-8")


@given(st.binary(max_size=200))
def test_copy_of_any_bytes(data: bytes) -> None:
    start = _copy()[:19]
    try:
        heap.parse_copy(start + data, (heap.INT2VECTOR, heap.NAME), "utf-8")
    except ValueError:
        return
