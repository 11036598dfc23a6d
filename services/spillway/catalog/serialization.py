"""The mirror as bytes, for ``<lsn>.snap``: a restart, a rewind or a branch begins with one.

A deserialised mirror behaves as the original did, bit for bit: states of tuples, pages' LSNs, storage
being rewritten, transactions that are not finished. Not kept is what can be made again: indexes, rows of
tuples whose bytes are there, cached resolutions.

Bytes of pg_authid's tuples are there as WAL has them, with passwords as the server keeps them.

Layout, integers little-endian::

    0   8   magic
    8   4   format version
    12  4   CRC-32C of what follows the header
    16  8   size of what follows
    24      u32 size, then JSON: facts, layouts, transactions, and the list of storages
            of each storage its pages, its tuples (fixed fields, then bytes), and rows that SQL showed (JSON)

Some hundred kB to a few MB, tens of milliseconds either way.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from spillway._kernels.crc32c import crc32c
from spillway.catalog import shared_catalogs
from spillway.catalog.layout import (
    PG_ATTRIBUTE,
    TRACKED_CATALOGS,
    CatalogLayout,
    PhysicalColumn,
)
from spillway.catalog.mirror import CatalogMirror, DatabaseFacts
from spillway.catalog.missing_value import UnreadableMissing
from spillway.catalog.storage_map import Rewrite
from spillway.catalog.tuple_store import CatalogTuple, Page, Storage
from spillway.errors import SourceError, StorageError
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.catalog.descriptors import DescriptorRegistry

_MAGIC: Final = b"SPWLCATM"
_VERSION: Final = 4
_HEADER: Final = struct.Struct("<8sIIQ")
_SIZE: Final = struct.Struct("<I")
_COUNTS: Final = struct.Struct("<III")
_PAGE: Final = struct.Struct("<IQ?")
#: tid, xmin, xmax, deleter, infomask2, infomask, hoff, state bits, bytes of data
_TUPLE: Final = struct.Struct("<QIIIHHBBI")

_XMAX_UNKNOWN: Final = 1
_XMIN_PENDING: Final = 2
_DEAD: Final = 4
_FROM_SQL: Final = 8


def serialize(mirror: CatalogMirror) -> bytes:
    """Return *mirror* as bytes; may be called between any two records."""
    locations = mirror.locations
    head = {
        "facts": asdict(mirror.facts) | {"default_tablespace": locations.default_tablespace},
        "copied_to": locations.copied_to,
        "layouts": {oid: layout.columns for oid, layout in mirror.layouts.items()},
        "consistent_lsn": mirror.consistent_lsn,
        "consistent": mirror.consistent,
        "last_lsn": mirror.last_lsn,
        "transactions": mirror.transactions(),
        "known_values": _pairs(mirror.known_values),
        "relation_map": _pairs(locations.relation_map),
        "rewrites": [[xid, rewrites] for xid, rewrites in _rewrites(mirror)],
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
            for storage in _storages(mirror)
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
    for storage in _storages(mirror):
        _write_storage(storage, parts)
    body = b"".join(parts)
    return _HEADER.pack(_MAGIC, _VERSION, crc32c(body), len(body)) + body


def deserialize(data: bytes, registry: DescriptorRegistry | None = None) -> CatalogMirror:
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
    body = data[_HEADER.size :]
    if len(body) != size or crc32c(body) != crc:
        raise _damaged("its checksum does not match")
    try:
        return _read(body, registry)
    except (ValueError, KeyError, IndexError, TypeError, struct.error, SourceError) as error:
        raise _damaged(f"it contradicts itself: {error}") from error


def _read(body: bytes, registry: DescriptorRegistry | None) -> CatalogMirror:
    (size,) = _SIZE.unpack_from(body)
    head = json.loads(body[_SIZE.size : _SIZE.size + size])
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
    mirror = CatalogMirror(
        facts,
        layouts,
        consistent_lsn=head["consistent_lsn"],
        horizon=head["transactions"]["horizon"],
        registry=registry,
    )
    mirror.consistent = head["consistent"]
    mirror.last_lsn = head["last_lsn"]
    mirror.restore_transactions(head["transactions"])
    mirror.known_values.update((value_id, text) for value_id, text in head["known_values"])
    locations = mirror.locations
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
        at = _read_storage(mirror, storage, body, at)
        storage.unplaced = item["unplaced"]
        for values, xmin, pending, deleter in item["stand_ins"]:
            shared_catalogs.stand_in(
                mirror,
                storage,
                _row(storage.layout, values),
                xmin,
                pending=pending,
                deleter=deleter,
            )
    for unidentified, xid, records in head["unidentified"]:
        locations.unidentified[RelFileLocator(*unidentified)] = shared_catalogs.Unidentified(
            xid, [shared_catalogs.record_from_json(record) for record in records]
        )
    locations.track()
    if copied_to := head.get("copied_to", 0):
        locations.copy_to(copied_to)
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes are left over")
    return mirror


def _storages(mirror: CatalogMirror) -> list[Storage]:
    """Every storage once: while the database moves, one may have two names."""
    return [s for locator, s in mirror.locations.storages.items() if s.locator == locator]


def _write_storage(storage: Storage, parts: list[bytes]) -> None:
    sql_rows: list[Any] = []
    tuples: list[bytes] = []
    count = 0
    for page in storage.pages.values():
        for tup in page.tuples.values():
            count += 1
            state = _XMIN_PENDING * tup.xmin_pending | _DEAD * tup.dead
            if tup.xmax is None:
                state |= _XMAX_UNKNOWN
            data = tup.data
            if data is None:
                state |= _FROM_SQL
                sql_rows.append(tup.row)
                data = b""
            tuples.append(
                _TUPLE.pack(
                    tup.tid, tup.xmin, tup.xmax or 0, tup.deleter, tup.infomask2, tup.infomask,
                    tup.hoff, state, len(data),
                )
            )  # fmt: skip
            tuples.append(data)
    if storage.catalog is PG_ATTRIBUTE:
        sql_rows = [_plain_attribute(row) for row in sql_rows]
    encoded = json.dumps(sql_rows, separators=(",", ":")).encode()
    parts.append(_COUNTS.pack(len(storage.pages), count, len(encoded)))
    parts.extend(_PAGE.pack(b, page.lsn, page.physical) for b, page in storage.pages.items())
    parts.extend(tuples)
    parts.append(encoded)


def _read_storage(mirror: CatalogMirror, storage: Storage, body: bytes, at: int) -> int:
    page_count, tuple_count, rows_size = _COUNTS.unpack_from(body, at)
    at += _COUNTS.size
    for _ in range(page_count):
        block, lsn, physical = _PAGE.unpack_from(body, at)
        storage.pages[block] = Page(lsn, physical=physical)
        at += _PAGE.size
    from_sql: list[CatalogTuple] = []
    tuples: list[CatalogTuple] = []
    layout = storage.layout
    for _ in range(tuple_count):
        tid, xmin, xmax, deleter, infomask2, infomask, hoff, state, size = _TUPLE.unpack_from(
            body, at
        )
        at += _TUPLE.size
        tup = CatalogTuple(
            storage,
            tid,
            xmin=xmin,
            row=None,
            xmax=None if state & _XMAX_UNKNOWN else xmax,
            infomask2=infomask2,
            infomask=infomask,
            hoff=hoff,
        )
        tup.deleter = deleter
        tup.xmin_pending = bool(state & _XMIN_PENDING)
        tup.dead = bool(state & _DEAD)
        if state & _FROM_SQL:
            from_sql.append(tup)
        else:
            tup.data = body[at : at + size]
            tup.row = layout.row(infomask2, infomask, hoff, tup.data)
        at += size
        tuples.append(tup)
    rows = json.loads(body[at : at + rows_size])
    for tup, values in zip(from_sql, rows, strict=True):
        tup.row = _row(layout, values)
    for tup in tuples:
        mirror.admit(tup)
    return at + int(rows_size)


def _plain_attribute(row: Any) -> Any:
    """A pg_attribute row whose attmissingval JSON can hold."""
    missing = row.attmissingval
    if missing is None:
        return row
    if isinstance(missing, UnreadableMissing):
        return row._replace(attmissingval={"type": missing.type_name})
    return row._replace(attmissingval={"datum": base64.b64encode(missing).decode()})


def _row(layout: CatalogLayout, values: Sequence[Any]) -> Any:
    row = layout.sent_row(tuple(tuple(v) if isinstance(v, list) else v for v in values))
    if layout.catalog is PG_ATTRIBUTE and row.attmissingval is not None:
        missing = row.attmissingval
        value = (
            base64.b64decode(missing["datum"])
            if "datum" in missing
            else UnreadableMissing(missing["type"])
        )
        row = row._replace(attmissingval=value)
    return row


def _pairs(mapping: dict[int, Any]) -> list[list[Any]]:
    return [[key, value] for key, value in mapping.items()]


def _rewrites(mirror: CatalogMirror) -> list[tuple[int, list[tuple[int, RelFileLocator]]]]:
    return [
        (xid, [(r.catalog_oid, r.locator) for r in rewrites])
        for xid, rewrites in mirror.locations.rewrites.items()
    ]


def _damaged(why: str) -> StorageError:
    return StorageError(
        f"a serialised catalog can't be read: {why}",
        hint="Remove the file: decoding begins at an older one, or bootstraps again.",
    )
