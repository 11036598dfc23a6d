"""Serialised mirrors, relation maps, the resolution cache, descriptors' registry, encodings."""

from __future__ import annotations

import contextlib
import random
import struct
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog_pages import empty_mirror, locator, page
from spillway._kernels.pg.crc32c import crc32c
from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor, TypeDescriptor
from spillway.catalog.descriptor_registry import DescriptorRegistry
from spillway.catalog.layout import (
    NAMESPACE_BY_OID,
    PG_ATTRIBUTE,
    PG_NAMESPACE,
    PG_PUBLICATION_REL,
    PgAttribute,
)
from spillway.catalog.missing_value import UnreadableMissing, element_of_array, varlena_body
from spillway.catalog.numeric_datum import numeric_body_of_text
from spillway.catalog.relation_map import parse_map_file, parse_update
from spillway.catalog.resolution_cache import ResolutionCache
from spillway.catalog.serialization import deserialize, serialize
from spillway.catalog.tuple_store import CatalogTuple, Page
from spillway.errors import DecodingError, SourceError, StorageError
from spillway.pg.encoding import server_encoding
from spillway.pg.versions import WAL_VERSIONS

if TYPE_CHECKING:
    from spillway.catalog.mirror import CatalogMirror


def _serialised() -> bytes:
    mirror = empty_mirror()
    storage = mirror.heaps.storage_at(locator(PG_NAMESPACE))
    assert storage is not None
    storage.pages[3] = Page(lsn=77)
    data = b"\0" + struct.pack("<I64s", 11, b"a")
    tup = CatalogTuple(
        storage, 3 << 16 | 2, xmin=800, row=storage.layout.row(2, 0, 24, data), xmax=801,
        infomask2=2, hoff=24, data=data,
    )  # fmt: skip
    tup.xmin_pending = True
    tup.deleter = 801
    mirror.heaps.admit(tup)
    attributes = mirror.heaps.storage_at(locator(PG_ATTRIBUTE))
    assert attributes is not None
    attributes.pages[0] = Page(physical=False)
    for offset, missing in enumerate((None, b"\7\0\0\0", UnreadableMissing("hstore")), 1):
        row = PgAttribute(
            9, "c", 23, 4, offset, -1, True, "i", False, False, missing is not None, "", "", False,
            0, missing,
        )  # fmt: skip
        mirror.heaps.admit(CatalogTuple(attributes, offset, xmin=3, row=row, xmax=None))
    mirror.heaps.fates.note_multixact(5, 801)
    return serialize(mirror)


def test_serialised_mirror_comes_back() -> None:
    content = _serialised()
    mirror = deserialize(content)
    assert serialize(mirror) == content
    assert mirror.has_changes({800})
    assert mirror.has_changes({801})
    storage = mirror.heaps.storage_at(locator(PG_ATTRIBUTE))
    assert storage is not None
    assert [t.row.attmissingval for t in storage.tuples()] == [
        None, b"\7\0\0\0", UnreadableMissing("hstore"),
    ]  # fmt: skip


def _schemas(count: int) -> CatalogMirror:
    """Schemas, each on a page of its own."""
    mirror = empty_mirror()
    storage = mirror.heaps.storage_at(locator(PG_NAMESPACE))
    assert storage is not None
    for oid in range(count):
        storage.pages[oid] = Page(lsn=77)
        data = b"\0" + struct.pack("<I64s", 100 + oid, b"s%d" % oid)
        row = storage.layout.row(2, 0, 24, data)
        mirror.heaps.admit(
            CatalogTuple(storage, oid << 16 | 1, xmin=3, row=row, infomask2=2, hoff=24, data=data)
        )
    return mirror


def _unpacked(mirror: CatalogMirror) -> list[int]:
    storage = mirror.heaps.storage_at(locator(PG_NAMESPACE))
    assert storage is not None
    return [block for block, page in storage.pages.items() if page.unpack is None]


def test_what_is_never_null_is_not_read_as_null() -> None:
    storages = empty_mirror().heaps.locations.storages.values()
    layouts = {storage.layout.catalog.oid: storage.layout for storage in storages}
    data = b"\0" + struct.pack("<I64s", 11, b"a")
    with pytest.raises(ValueError, match=r"pg_namespace\.nspname is NULL"):
        layouts[PG_NAMESPACE.oid].row(1, 0, 24, data)
    # Neither rule nor list of columns: pg_publication_rel's other columns may be NULL.
    row = layouts[PG_PUBLICATION_REL.oid].row(3, 0, 24, b"\0" + struct.pack("<III", 1, 2, 3))
    assert row == (1, 2, 3, None, None)


def test_tuples_are_made_of_pages_that_are_asked_for() -> None:
    mirror = deserialize(serialize(_schemas(50)))
    assert _unpacked(mirror) == []
    for _ in range(2):
        (tup,) = mirror.visible_rows().tuples(PG_NAMESPACE, NAMESPACE_BY_OID, 107)
        assert (tup.row.nspname, tup.ctid) == ("s7", (7, 1))
    assert mirror.visible_rows().tuples(PG_NAMESPACE, NAMESPACE_BY_OID, 99) == []
    assert _unpacked(mirror) == [7]
    assert len(mirror.visible_rows().whole(PG_NAMESPACE)) == 50
    assert len(_unpacked(mirror)) == 50


def test_only_changed_pages_are_written_again() -> None:
    mirror = deserialize(serialize(_schemas(50)))
    storage = mirror.heaps.storage_at(locator(PG_NAMESPACE))
    assert storage is not None
    before = {block: page.packed for block, page in storage.pages.items()}
    (tup,) = mirror.visible_rows().tuples(PG_NAMESPACE, NAMESPACE_BY_OID, 107)
    mirror.heaps.note_deleter(tup, 900)
    mirror.commit((900,), 2000)
    content = serialize(mirror)
    assert [b for b, page in storage.pages.items() if page.packed is not before[b]] == [7]
    again = deserialize(content)
    assert again.visible_rows().tuples(PG_NAMESPACE, NAMESPACE_BY_OID, 107) == []
    assert len(again.visible_rows().whole(PG_NAMESPACE)) == 49


def test_what_has_not_changed_since_the_last_time_is_packed_again() -> None:
    mirror = _schemas(50)
    content = serialize(mirror)
    assert len(_unpacked(mirror)) == 50
    storage = mirror.heaps.storage_at(locator(PG_NAMESPACE))
    assert storage is not None
    tup = storage.tuple_at(7, 1)
    assert tup is not None
    # The page of an unfinished transaction's tuple is not packed: the transaction's end has to find
    # it.
    storage.pages[7].packed = None
    mirror.heaps.note_deleter(tup, 900)
    for _ in range(2):
        assert serialize(mirror) != content
        assert _unpacked(mirror) == [7]
    assert len(storage.indexes[NAMESPACE_BY_OID]) == 1
    mirror.abort((900,), 2000)
    assert [t.row.nspname for t in mirror.visible_rows().tuples(PG_NAMESPACE, 0, 107)] == ["s7"]
    assert [t.row.nspname for t in mirror.visible_rows().tuples(PG_NAMESPACE, 0, 108)] == ["s8"]
    assert _unpacked(mirror) == [7, 8]
    for _ in range(2):
        serialize(mirror)
    assert _unpacked(mirror) == []
    # Read and written again, and then condensed: as after one that a server's WAL has filled.
    assert len(mirror.visible_rows().whole(PG_NAMESPACE)) == 50
    assert len(_unpacked(mirror)) == 50
    mirror.condense()
    assert _unpacked(mirror) == []
    for oid in range(50):
        (found,) = mirror.visible_rows().tuples(PG_NAMESPACE, NAMESPACE_BY_OID, 100 + oid)
        assert found.ctid == (oid, 1)


def test_damaged_serialised_mirrors() -> None:
    content = _serialised()
    for size in (0, 10, 24, len(content) // 2, len(content) - 1):
        with pytest.raises(StorageError):
            deserialize(content[:size])
    r = random.Random(3)
    for _ in range(200):
        damaged = bytearray(content)
        damaged[r.randrange(len(content))] ^= 1 << r.randrange(8)
        with pytest.raises(StorageError):
            deserialize(bytes(damaged))


def test_contradictory_serialised_mirrors() -> None:
    """The checksum is right, the content is not: still a typed error, or a mirror."""
    content = _serialised()
    r = random.Random(4)
    for _ in range(300):
        body = bytearray(content[24:])
        body[r.randrange(len(body))] = r.randrange(256)
        head = struct.pack("<8sIIQ", b"SPWLCATM", 1, crc32c(bytes(body)), len(body))
        with contextlib.suppress(StorageError):
            deserialize(head + bytes(body))


@pytest.mark.parametrize("major", [15, 16])
def test_relation_map(major: int) -> None:
    version = WAL_VERSIONS[major]
    mappings = {1259: 20000, 1249: 20001}
    body = struct.pack("<ii", 0x592717, 2) + b"".join(
        struct.pack("<II", *m) for m in mappings.items()
    )
    body = body.ljust(8 + 8 * version.relmap_entries_max, b"\0")
    content = (body + struct.pack("<I", crc32c(body))).ljust(version.relmap_file_size, b"\0")
    assert parse_map_file(content, version) == mappings
    update = parse_update(struct.pack("<IIi", 5, 1663, len(content)) + content, version)
    assert (update.database_oid, update.tablespace_oid, update.mappings) == (5, 1663, mappings)
    for damaged in (
        content[:-1], b"\1" + content[1:], content[:12] + b"\1" + content[13:],
        struct.pack("<ii", 0x592717, 99) + content[8:],
    ):  # fmt: skip
        with pytest.raises(ValueError, match="relation map"):
            parse_map_file(damaged, version)
    for damaged in (b"", struct.pack("<IIi", 5, 1663, 3) + content):
        with pytest.raises(ValueError, match="relation map update"):
            parse_update(damaged, version)


def test_resolution_cache() -> None:
    cache = ResolutionCache()
    cache.put(("oid", 1), "one", [(1259, 0, 1), (2615, 0, 7)])
    cache.put(("oid", 2), "two", [(1259, 0, 2), (2615, 0, 7)])
    cache.invalidate([(1259, 0, 3)])
    assert not cache.take_dropped()
    cache.invalidate([(1259, 0, 1)])
    assert cache.take_dropped()
    assert not cache.take_dropped()
    assert cache.get(("oid", 1)) is None
    assert cache.get(("oid", 2)) is not None
    cache.invalidate([(2615, 0, 7)])
    assert cache.take_dropped()
    assert len(cache) == 0
    cache.put(("oid", 3), "three", [])
    cache.clear()
    assert cache.get(("oid", 3)) is None


def test_registry_interns_by_content() -> None:
    registry = DescriptorRegistry()
    type_ = TypeDescriptor(23, "pg_catalog", "int4", "b", "N", 4, True, "i")
    column = ColumnDescriptor(1, "id", 23, -1, 4, True, "i")
    table = RelationDescriptor(99, "public", "t", "r", "p", "d", (column,), {23: type_})
    first = registry.intern(table)
    assert first == (1, table)
    assert registry.intern(replace(table, types={23: replace(type_)})) == first
    assert registry.intern(replace(table, types={23: type_}))[1] is table
    second = registry.intern(replace(table, types={23: replace(type_, name="x")}))
    assert second[0] == 2
    assert registry[1] is table
    assert registry[2] is second[1]
    assert len(registry) == 2
    for unknown in (0, 3, -1):
        with pytest.raises(KeyError):
            registry[unknown]


def test_registry_forgets_what_nobody_holds() -> None:
    registry = DescriptorRegistry()
    column = ColumnDescriptor(1, "id", 23, -1, 4, True, "i")
    kept = RelationDescriptor(99, "public", "t", "r", "p", "d", (column,))
    assert registry.intern(kept)[0] == 1
    for oid in range(100, 200):
        assert registry.intern(replace(kept, oid=oid))[0] == 2, (
            "an id is free again once nobody holds its descriptor"
        )
    assert len(registry) == 1
    with pytest.raises(KeyError):
        registry[2]
    number, other = registry.intern(replace(kept, oid=200))
    assert (number, registry[2]) == (2, other)
    assert registry.intern(replace(kept))[1] is kept


def test_encodings() -> None:
    assert server_encoding("UTF8") == ("utf-8", "strict")
    assert (
        b"\xff".decode(*server_encoding("SQL_ASCII")).encode(*server_encoding("SQL_ASCII"))
        == b"\xff"
    )
    with pytest.raises(SourceError, match="MULE_INTERNAL"):
        server_encoding("MULE_INTERNAL")


def test_missing_value_arrays() -> None:
    def array(element: bytes, *, dimensions: int = 1, count: int = 1) -> bytes:
        body = struct.pack("<iiIii", dimensions, 0, 25, count, 1) + element
        return struct.pack("<I", (len(body) + 4) << 2) + body

    text = struct.pack("<I", 7 << 2) + b"abc"
    assert element_of_array(array(text + b"\0"), -1, "i", by_value=False) == text
    assert element_of_array(array(b"\5\0\0\0"), 4, "i", by_value=True) == b"\5\0\0\0"
    assert element_of_array(array(b"xyz\0"), -2, "c", by_value=False) == b"xyz"
    short = array(text)
    short = bytes([(len(short) - 3) << 1 | 1]) + short[4:]
    assert element_of_array(short, -1, "i", by_value=False) == text
    for damaged in (
        b"", b"\4", array(text)[:20], array(text, dimensions=2), array(text, count=2), array(b"ab"),
    ):  # fmt: skip
        with pytest.raises(ValueError):  # noqa: PT011 - each says something else
            element_of_array(damaged, -1, "i", by_value=False)
    with pytest.raises(DecodingError, match="out-of-line"):
        varlena_body(b"\1\x12" + bytes(16))


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=7, min_value=-(10**20), max_value=10**20
    )
)
def test_numeric_of_text(value: Decimal) -> None:
    """The digits mean what the text says."""
    body = numeric_body_of_text(f"{value:f}")
    header = struct.unpack_from("<H", body)[0]
    assert header & 0xC000 == 0x8000
    weight = (header & 0x3F) - (0x40 if header & 0x40 else 0)
    digits = struct.unpack_from(f"<{len(body) // 2 - 1}H", body, 2)
    total = sum(
        (Decimal(d) * Decimal(10000) ** (weight - i) for i, d in enumerate(digits)), Decimal(0)
    )
    assert (-total if header & 0x2000 else total) == value
    assert header >> 7 & 0x3F == 7
    assert not digits or digits[0] != 0 != digits[-1]


def test_a_page_of_the_harness_is_sound() -> None:
    assert len(page([])) == 8192
