"""The mirror as bytes, for ``<lsn>.snap``: a restart, a rewind or a branch begins with one.

A deserialised mirror behaves as the original did, bit for bit: states of tuples, pages' LSNs,
storage being rewritten, transactions that are not finished. Not kept is what can be made again:
indexes, rows of tuples whose bytes are there, cached resolutions.

Bytes of pg_authid's tuples are there as WAL has them, with passwords as the server keeps them.

Layout, integers little-endian::

    0   8   magic
    8   4   format version
    12  4   CRC-32C of what follows the header
    16  8   size of what follows
    24      u32 size, then JSON: facts, layouts, transactions, and the list of storages
            of each storage its pages, as ``packed_pages`` has them

Some hundred kB to a few MB; 60 MB for 20,000 tables. Written again is what has changed since the
last time, and tuples are made of what was read when they are asked for: tenths of a second for such
a catalog, either way.
"""

from __future__ import annotations

import json
import struct
from array import array
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from spillway._kernels.pg.crc32c import crc32c
from spillway.catalog import shared_catalogs
from spillway.catalog.database_facts import DatabaseFacts
from spillway.catalog.heaps import CatalogHeaps
from spillway.catalog.layout import TRACKED_CATALOGS, CatalogLayout, PhysicalColumn
from spillway.catalog.mirror import CatalogMirror
from spillway.catalog.packed_pages import keep_keys, pack_storage, read_page, sent_row
from spillway.catalog.storage_map import Rewrite, Unidentified
from spillway.errors import SourceError, StorageError
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from spillway.catalog.descriptor_registry import DescriptorRegistry
    from spillway.catalog.tuple_store import Storage

_MAGIC: Final = b"SPWLCATM"
_VERSION: Final = 5
_HEADER: Final = struct.Struct("<8sIIQ")
_SIZE: Final = struct.Struct("<I")


def serialize(mirror: CatalogMirror) -> bytes:
    """Return *mirror* as bytes; may be called between any two records."""
    return b"".join(serialized_parts(mirror))


def serialized_parts(mirror: CatalogMirror) -> list[bytes]:
    """Return what :func:`serialize` does in pieces, which whoever writes more than that joins
    once.
    """
    heaps = mirror.heaps
    locations = heaps.locations
    head = {
        "facts": asdict(heaps.facts) | {"default_tablespace": locations.default_tablespace},
        "copied_to": locations.copied_to,
        "layouts": {oid: layout.columns for oid, layout in heaps.layouts.items()},
        "consistent_lsn": mirror.consistent_lsn,
        "consistent": mirror.consistent,
        "last_lsn": mirror.last_lsn,
        "transactions": heaps.fates.to_json(),
        "known_values": _pairs(heaps.known_values),
        "relation_map": _pairs(locations.relation_map),
        "rewrites": [[xid, rewrites] for xid, rewrites in _rewrites(heaps)],
        "own_map": [[xid, _pairs(own)] for xid, own in locations.own_map.items()],
        "storages": [
            {
                "locator": storage.locator,
                "catalog": storage.catalog.oid,
                "complete": storage.complete,
                "current": locations.current.get(storage.catalog.oid) is storage,
                "unplaced": storage.unplaced,
                "stand_ins": [
                    [tup.row, tup.xmin, tup.xmin_pending, tup.deleter]
                    for tup in storage.stand_ins.values()
                    if not tup.dead
                ],
            }
            for storage in _storages(heaps)
        ],
        "unidentified": [
            [
                locator,
                unidentified.xid,
                [shared_catalogs.record_to_json(r) for r in unidentified.records],
            ]
            for locator, unidentified in locations.unidentified.items()
        ],
    }
    encoded = json.dumps(head, separators=(",", ":")).encode()
    parts = [_SIZE.pack(len(encoded)), encoded]
    for storage in _storages(heaps):
        _write_storage(storage, parts)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return [_HEADER.pack(_MAGIC, _VERSION, crc, sum(map(len, parts))), *parts]


def deserialize(
    data: bytes | memoryview, registry: DescriptorRegistry | None = None
) -> CatalogMirror:
    """Return the mirror that :func:`serialize` was given; *registry* as for :class:`CatalogMirror`.

    Raises:
        StorageError: *data* is damaged, cut, no serialised mirror, or of a format that this release
            does not know.
    """
    if len(data) < _HEADER.size:
        raise _damaged("it is cut short")
    magic, version, crc, size = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise _damaged("it is no serialised catalog")
    if version != _VERSION:
        raise _damaged(f"its format {version} is not the one of this release, {_VERSION}")
    # Of a large catalog these are megabytes, and each page copies its own: none of it is copied
    # before.
    body = memoryview(data)[_HEADER.size :]
    if len(body) != size or crc32c(body) != crc:
        raise _damaged("its checksum does not match")
    try:
        return _read(body, registry)
    except (ValueError, KeyError, IndexError, TypeError, struct.error, SourceError) as error:
        raise _damaged(f"it contradicts itself: {error}") from error


def _read(body: memoryview, registry: DescriptorRegistry | None) -> CatalogMirror:
    (size,) = _SIZE.unpack_from(body)
    head = json.loads(bytes(body[_SIZE.size : _SIZE.size + size]))
    facts = DatabaseFacts(**head["facts"])
    layouts = {
        int(oid): CatalogLayout(
            TRACKED_CATALOGS[int(oid)],
            [PhysicalColumn(*column) for column in columns],
            facts.encoding,
            facts.encoding_errors,
        )
        for oid, columns in head["layouts"].items()
    }
    heaps = CatalogHeaps(facts, layouts, horizon=head["transactions"]["horizon"])
    heaps.plain_redo.consistent = head["consistent"]
    heaps.plain_redo.last_lsn = head["last_lsn"]
    heaps.fates.restore(head["transactions"])
    heaps.known_values.update((value_id, text) for value_id, text in head["known_values"])
    locations = heaps.locations
    locations.relation_map = {oid: rel for oid, rel in head["relation_map"]}  # noqa: C416
    for xid, rewrites in head["rewrites"]:
        locations.rewrites[xid] = [Rewrite(oid, RelFileLocator(*loc)) for oid, loc in rewrites]
    for xid, own in head["own_map"]:
        locations.own_map[xid] = {oid: RelFileLocator(*locator) for oid, locator in own}
    at = _SIZE.size + size
    for item in head["storages"]:
        locator = RelFileLocator(*item["locator"])
        storage = locations.add(locator, item["catalog"], complete=item["complete"])
        if item["current"]:
            locations.current[item["catalog"]] = storage
        storage.unplaced = item["unplaced"]
        at = _read_storage(heaps, storage, body, at)
        for values, xmin, pending, deleter in item["stand_ins"]:
            shared_catalogs.stand_in(
                heaps,
                storage,
                sent_row(storage.layout, values),
                xmin,
                pending=pending,
                deleter=deleter,
            )
    for unidentified, xid, records in head["unidentified"]:
        locations.unidentified[RelFileLocator(*unidentified)] = Unidentified(
            xid, [shared_catalogs.record_from_json(record) for record in records]
        )
    locations.track()
    if copied_to := head.get("copied_to", 0):
        locations.copy_to(copied_to)
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes are left over")
    return CatalogMirror(heaps, consistent_lsn=head["consistent_lsn"], registry=registry)


def _storages(heaps: CatalogHeaps) -> list[Storage]:
    """Every storage once: while the database moves, one may have two names."""
    return [s for locator, s in heaps.locations.storages.items() if s.locator == locator]


def _write_storage(storage: Storage, parts: list[bytes]) -> None:
    parts.append(_SIZE.pack(len(storage.pages)))
    parts += pack_storage(storage)


def _read_storage(heaps: CatalogHeaps, storage: Storage, body: memoryview, at: int) -> int:
    (page_count,) = _SIZE.unpack_from(body, at)
    at += _SIZE.size
    keys = [array("Q") for _ in storage.indexes]
    for _ in range(page_count):
        at, tuples = read_page(storage, keys, body, at)
        for tup in tuples:
            heaps.admit(tup)
    keep_keys(storage, keys)
    return at


def _pairs(mapping: dict[int, Any]) -> list[list[Any]]:
    return [[key, value] for key, value in mapping.items()]


def _rewrites(heaps: CatalogHeaps) -> list[tuple[int, list[tuple[int, RelFileLocator]]]]:
    return [
        (xid, [(r.catalog_oid, r.locator) for r in rewrites])
        for xid, rewrites in heaps.locations.rewrites.items()
    ]


def _damaged(why: str) -> StorageError:
    return StorageError(
        f"a serialised catalog can't be read: {why}",
        hint="Remove the file: decoding begins at an older one, or bootstraps again.",
    )
