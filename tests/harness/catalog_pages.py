"""Heap pages, tuples and an empty mirror made by hand, for tests without a server."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from spillway.catalog.database_facts import DatabaseFacts
from spillway.catalog.heaps import CatalogHeaps
from spillway.catalog.layout import CatalogLayout, PhysicalColumn, catalogs_of
from spillway.catalog.mirror import CatalogMirror
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.catalog.layout import TrackedCatalog

DATABASE = 5
TABLESPACE = 1663
PAGE_SIZE = 8192

_TYPES = {
    "int": (26, 4, "i"),
    "str": (19, 64, "c"),
    "bool": (16, 1, "c"),
    "float": (700, 4, "i"),
    "tuple[int, ...]": (22, -1, "i"),
    "tuple[int, ...] | None": (22, -1, "i"),
    "MissingValue": (2277, -1, "d"),
    "TextDatum": (194, -1, "i"),
    "bytes": (17, -1, "i"),
}
_CHARACTERS = {
    "relpersistence", "relkind", "relreplident", "attalign", "attidentity", "attgenerated",
    "typtype", "typcategory", "typdelim", "typalign", "pubgencols",
}  # fmt: skip
_INT2 = {"attlen", "attnum", "typlen", "indnkeyatts"}


def physical_columns(catalog: TrackedCatalog) -> list[PhysicalColumn]:
    """The columns that are read, as if a catalog had no others."""
    columns = []
    for name, annotation in catalog.row_type.__annotations__.items():
        written = getattr(annotation, "__forward_arg__", annotation)
        type_oid, length, align = _TYPES[str(written)]
        if name in _CHARACTERS:
            type_oid, length = 18, 1
        elif name in _INT2:
            type_oid, length, align = 21, 2, "s"
        columns.append(PhysicalColumn(name, type_oid, length, align))
    return columns


def locator(catalog: TrackedCatalog) -> RelFileLocator:
    return RelFileLocator(TABLESPACE, DATABASE, catalog.oid)


def empty_mirror(major: int = 15, *, complete: bool = True, horizon: int = 700) -> CatalogMirror:
    """A mirror of catalogs without rows, each stored under its oid."""
    layouts = {
        c.oid: CatalogLayout(c, physical_columns(c), "utf-8", "strict") for c in catalogs_of(major)
    }
    facts = DatabaseFacts(major, DATABASE, TABLESPACE, "utf-8", "strict")
    heaps = CatalogHeaps(facts, layouts, horizon=horizon)
    for catalog in heaps.catalogs:
        storage = heaps.locations.add(locator(catalog), catalog.oid, complete=complete)
        heaps.locations.current[catalog.oid] = storage
    heaps.locations.relation_map = {oid: oid for oid in (1259, 1249, 1247, 1255)}
    return CatalogMirror(heaps, consistent_lsn=1000)


def namespace_data(oid: int, name: str) -> bytes:
    """A pg_namespace tuple from byte 23 on: padding, oid, name."""
    return b"\0" + struct.pack("<I64s", oid, name.encode())


def page(
    tuples: Sequence[tuple[int, int, int, int, bytes]], *, lsn: int = 0, natts: int = 2
) -> bytes:
    """A heap page: (offset, xmin, xmax, infomask, data from byte 23 on) for each tuple."""
    count = max((t[0] for t in tuples), default=0)
    items = [0] * count
    out = bytearray(PAGE_SIZE)
    upper = PAGE_SIZE
    for offset, xmin, xmax, infomask, data in tuples:
        header = struct.pack("<IIIHHHHHB", xmin, xmax, 0, 0, 0, offset, natts, infomask, 24)
        body = header + data
        upper -= len(body) + -len(body) % 8
        out[upper : upper + len(body)] = body
        items[offset - 1] = upper | 1 << 15 | len(body) << 17
    lower = 24 + 4 * count
    struct.pack_into(
        "<IIHHHHHHI", out, 0, lsn >> 32, lsn & 0xFFFFFFFF, 0, 0, lower, upper, PAGE_SIZE,
        PAGE_SIZE | 4, 0,
    )  # fmt: skip
    struct.pack_into(f"<{count}I", out, 24, *items)
    return bytes(out)
