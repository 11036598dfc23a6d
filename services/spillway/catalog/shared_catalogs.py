"""Shared catalogs: what is different about storage that belongs to every database of the cluster.

Their records, and those who write them, are seen as any other catalog's. Two things are not:

*Rows without a place.* pg_authid holds passwords, and a login may read the names in it by pg_roles
only: neither ctid nor xmin. Each such row is kept as a *stand-in*: a tuple outside every page.
Images do bring the tuples that it stands for, beside older versions of them, and can't tell which
is which: an xmin without a hint may have aborted. But it need not be told. Whoever changed a row
and was not finished in the bootstrap's snapshot has an xid that is in WAL as a whole. So what was
there before the snapshot is dead to the mirror, by its ordinary rules (``_judge_xmin``), and a
stand-in is deleted by the first transaction of which a record inserts or deletes a tuple of the
same key, whatever tuple that is; when it commits the stand-in is gone, when it aborts it is back.
What such a transaction inserts is an ordinary tuple.

*Rewrites from another database.* VACUUM FULL's transient heap has its pg_class row there, not here.
That storage in pg_global was made is in WAL, but not what for, before the relation map says so at
the transaction's end. Its records are kept until then and applied once it is known to be a mirrored
catalog's; they are forgotten when the transaction ends without that, and at once when a page is an
index's. When the making of it was not seen (the copy of a data directory may begin in the middle),
rows of the old storage are stand-ins in the new one.

Memory: stand-ins, as other rows; the pages of a shared catalog while another database rewrites it.

Source: src/backend/commands/cluster.c; src/backend/utils/cache/relmapper.c;
src/backend/catalog/storage.c
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from spillway.catalog.layout import GLOBAL_TABLESPACE
from spillway.catalog.page import PAGE_SIZE
from spillway.catalog.storage_map import Unidentified
from spillway.catalog.tuple_store import NO_BLOCK, CatalogTuple
from spillway.wal.record import BlockRef, Record, RelFileLocator

if TYPE_CHECKING:
    from spillway.catalog.heaps import CatalogHeaps
    from spillway.catalog.tuple_store import Storage

_MAIN_FORK: Final = 0
#: pd_special, where a page's special space begins: at its end in a heap, earlier in an index
_SPECIAL: Final = slice(16, 18)


# Stand-ins.


def stand_in(
    heaps: CatalogHeaps,
    storage: Storage,
    row: Any,
    xmin: int,
    *,
    pending: bool = False,
    deleter: int = 0,
) -> None:
    """Enter *row* into *storage*, its place being unknown."""
    tup = CatalogTuple(storage, NO_BLOCK << 16, xmin=xmin, xmax=None, row=row)
    tup.xmin_pending = pending
    tup.deleter = deleter
    heaps.admit(tup)


def supersede(heaps: CatalogHeaps, storage: Storage, block: int, xid: int) -> None:
    """Delete the stand-ins of rows that *xid* has tuples of in a page; a record of its was just
    applied there.

    A stand-in that has a deleter keeps it: others can only be subtransactions beside or below it.
    """
    page = storage.pages.get(block)
    if page is None or not xid:
        return
    for tup in page.tuples.values():
        if (tup.xmin_pending and tup.xmin == xid) or heaps.fates.deleter_of(tup) == xid:
            held = storage.stand_ins.get(tup.row[0])
            if held is not None and not held.dead and not held.deleter:
                heaps.note_deleter(held, xid)


# Rewrites from another database.


def note_creation(heaps: CatalogHeaps, locator: RelFileLocator, xid: int) -> None:
    """Watch new storage in pg_global."""
    locations = heaps.locations
    if locator.spc == GLOBAL_TABLESPACE and xid and locator not in locations.storages:
        locations.unidentified[locator] = Unidentified(xid)
        locations.track()


def keep(heaps: CatalogHeaps, record: Record) -> bool:
    """Keep *record* if it is about storage that is still to be identified; return whether it is."""
    unidentified = heaps.locations.unidentified
    for ref in record.blocks:
        found = unidentified.get(ref.locator)
        if found is None:
            continue
        if ref.image is not None and int.from_bytes(ref.image[_SPECIAL], "little") != PAGE_SIZE:
            del unidentified[ref.locator]
            heaps.locations.track()
        elif ref.fork == _MAIN_FORK:
            found.records.append(record)
        return True
    return False


def replace_map(heaps: CatalogHeaps, mappings: dict[int, int]) -> list[Record]:
    """Take over a new relation map of the shared catalogs; return records that are to be applied
    now.

    They are of storage that has turned out to be a catalog's by it.
    """
    locations = heaps.locations
    records: list[Record] = []
    for oid, storage in list(locations.current.items()):
        rel = mappings.get(oid)
        if not storage.catalog.is_shared or rel is None or rel == storage.locator.rel:
            continue
        locator = storage.locator._replace(rel=rel)
        found = locations.storages.get(locator)
        if found is None:
            unidentified = locations.unidentified.get(locator)
            found = locations.add(locator, oid, complete=unidentified is not None)
            if unidentified is not None:
                records += unidentified.records
            else:
                _stand_in_for(heaps, storage, found)
        locations.current[oid] = found
    heaps.drop_unread()
    return records


def _stand_in_for(heaps: CatalogHeaps, old: Storage, new: Storage) -> None:
    new.unplaced = True
    for tup in old.tuples():
        if not tup.dead:
            stand_in(heaps, new, tup.row, tup.xmin, pending=tup.xmin_pending, deleter=tup.deleter)


# Serialised.


def record_to_json(record: Record) -> list[Any]:
    """Return a kept record as JSON values; :func:`record_from_json` reverses it."""
    return [
        record.lsn, record.end_lsn, record.xid, record.rmid, record.info, _encoded(record.data),
        [
            [ref.id, ref.locator, ref.fork, ref.block, _encoded(ref.data),
             None if ref.image is None else _encoded(ref.image), ref.apply_image, ref.will_init]
            for ref in record.blocks
        ],
        record.origin, record.top_xid,
    ]  # fmt: skip


def record_from_json(value: list[Any]) -> Record:
    """Return the record that :func:`record_to_json` was given."""
    lsn, end_lsn, xid, rmid, info, data, blocks, origin, top_xid = value
    refs = tuple(
        BlockRef(
            number, RelFileLocator(*locator), fork, block, base64.b64decode(block_data),
            None if image is None else base64.b64decode(image), apply_image, will_init,
        )
        for number, locator, fork, block, block_data, image, apply_image, will_init in blocks
    )  # fmt: skip
    return Record(lsn, end_lsn, xid, rmid, info, base64.b64decode(data), refs, origin, top_xid)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
