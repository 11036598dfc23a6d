"""Physical redo of the records that change catalog storage.

What ``heap_redo``, ``heap2_redo``, ``xlog_redo`` and their siblings do to pages, done to the
mirror's tuples. Catalog rows are logged physically only: a record either bears the page's image,
which replaces the page, or says what to change in it.

The order of rules for a block, which is what makes a bootstrap under load come out right:

1. An image that is to be applied, or WILL_INIT, replaces what is known of the page,
   unconditionally, and the page's own LSN with it: the page may have been read at a later state
   than the image's.
2. Otherwise a record that the page already contains (its end is not after the page's LSN) is
   skipped.
3. Otherwise the change is applied.

Source: src/backend/access/heap/heapam_xlog.c (heapam.c before 18),
src/include/access/heapam_xlog.h, src/backend/access/transam/{xlog,multixact}.c,
src/backend/catalog/storage.c
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from spillway._kernels.catalog import heap
from spillway.catalog import database_redo, shared_catalogs
from spillway.catalog.page import infomask_of_infobits
from spillway.catalog.relation_map import parse_update
from spillway.catalog.tuple_store import CatalogTuple, Page, Storage
from spillway.errors import DecodingError
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spillway.catalog.heaps import CatalogHeaps
    from spillway.wal.record import BlockRef, Record

_MAIN_FORK: Final = 0
_HEADER_SIZE: Final = 23

_HEAP_INSERT: Final = struct.Struct("<HB")
_HEAP_DELETE: Final = struct.Struct("<IHBB")
_HEAP_UPDATE: Final = struct.Struct("<IHBBIH")
_HEAP_LOCK: Final = struct.Struct("<IHB")
_HEAP_HEADER: Final = struct.Struct("<HHB")
_U16: Final = struct.Struct("<H")
_MULTI_INSERT: Final = struct.Struct("<BxH")
_MULTI_INSERT_TUPLE: Final = struct.Struct("<HHHB")
_FREEZE_TUPLE: Final = struct.Struct("<IHHHB")
_FREEZE_TUPLE_SIZE: Final = 12
_FREEZE_PLAN: Final = struct.Struct("<IHHBxH")
_PRUNE: Final = struct.Struct("<IHH")
_FREEZE_PAGE: Final = struct.Struct("<IH")
_SMGR_CREATE: Final = struct.Struct("<IIIi")
_SMGR_TRUNCATE: Final = struct.Struct("<IIIIi")
_MULTIXACT_CREATE: Final = struct.Struct("<IIi")
_MULTIXACT_MEMBER: Final = struct.Struct("<Ii")

_XLH_UPDATE_PREFIX_FROM_OLD: Final = 1 << 5
_XLH_UPDATE_SUFFIX_FROM_OLD: Final = 1 << 6

_XLHP_HAS_FREEZE_PLANS: Final = 1 << 4
_XLHP_HAS_REDIRECTIONS: Final = 1 << 5
_XLHP_HAS_DEAD_ITEMS: Final = 1 << 6
_XLHP_HAS_NOW_UNUSED_ITEMS: Final = 1 << 7

_SMGR_TRUNCATE_HEAP: Final = 1
#: MultiXactStatusNoKeyUpdate; it and MultiXactStatusUpdate are updaters, lower ones lock
_MULTIXACT_STATUS_NO_KEY_UPDATE: Final = 4


def apply(heaps: CatalogHeaps, record: Record) -> None:
    """Redo *record* on the mirrored *heaps*.

    Raises:
        ValueError: the record contradicts itself or the page.
        DecodingError: a tuple that must be there is not.
    """
    info = record.info & rmgr.XLR_RMGR_INFO_MASK
    if record.rmid == rmgr.RM_HEAP_ID:
        handler = _HEAP.get(info & rmgr.XLOG_HEAP_OPMASK)
    elif record.rmid == rmgr.RM_HEAP2_ID:
        handler = _HEAP2.get(info & rmgr.XLOG_HEAP_OPMASK)
    else:
        handler = _OTHER.get((record.rmid, info))
        if handler is not None:
            handler(heaps, record)
            return
    if heaps.locations.unidentified and shared_catalogs.keep(heaps, record):
        return
    # Of any resource manager: a block may come as an image, as XLOG_FPI's do.
    for ref in record.blocks:
        if ref.image is not None and ref.apply_image and ref.fork == _MAIN_FORK:
            storage = heaps.storage_at(ref.locator)
            if storage is not None:
                replace_page(heaps, storage, ref.block, ref.image, record)
    if handler is not None:
        handler(heaps, record)
        for ref in record.blocks:
            storage = heaps.storage_at(ref.locator)
            if storage is not None and ref.fork == _MAIN_FORK:
                heaps.locations.note_heap_change(storage, record.xid)
                if storage.stand_ins:
                    shared_catalogs.supersede(heaps, storage, ref.block, record.xid)


# Pages.


def replace_page(
    heaps: CatalogHeaps, storage: Storage, block: int, image: bytes, record: Record
) -> None:
    """Make *image* the content of a page; what is known of its tuples' transactions is carried
    over.
    """
    page = storage.pages.get(block)
    if page is None:
        page = storage.pages[block] = Page()
    page.packed = None
    tuples = heap.parse_page(image)
    offsets = {t[0] for t in tuples}
    for offset in [o for o in page.tuples if o not in offsets]:
        heaps.remove(page.tuples[offset])
    page.physical = True
    page.lsn = record.end_lsn
    layout = storage.layout
    for offset, xmin, xmax, infomask2, infomask, hoff, data in tuples:
        held = page.tuples.get(offset)
        if held is None or held.xmin != xmin:
            tup = CatalogTuple(
                storage,
                block << 16 | offset,
                xmin=xmin,
                xmax=xmax,
                infomask2=infomask2,
                infomask=infomask,
                hoff=hoff,
                data=data,
                row=layout.row(infomask2, infomask, hoff, data),
            )
            heaps.insert(tup, record.xid, fresh=False)
            continue
        if held.data != data:
            heaps.replace_row(held, data, layout.row(infomask2, infomask, hoff, data))
        held.infomask2, held.infomask, held.hoff, held.xmax = infomask2, infomask, hoff, xmax
        heaps.confirm_xmin(held, infomask)
        if not held.dead:
            heaps.judge_xmax(held, record.xid, held=True)


def _page_to_change(
    heaps: CatalogHeaps, record: Record, ref: BlockRef
) -> tuple[Storage, Page] | None:
    """Return a block's page when the record's change is to be made in it, None when that is
    done.
    """
    storage = heaps.storage_at(ref.locator)
    if storage is None or ref.fork != _MAIN_FORK or (ref.image is not None and ref.apply_image):
        return None
    page = storage.pages.get(ref.block)
    if ref.will_init:
        if page is not None:
            for tup in list(page.tuples.values()):
                heaps.remove(tup)
        page = storage.pages[ref.block] = Page()
    elif page is None:
        # Rows that SQL did not show, and no image since: the page is not known.
        page = storage.pages[ref.block] = Page(physical=False)
    elif record.end_lsn <= page.lsn:
        return None
    page.packed = None
    if page.lsn:
        page.lsn = record.end_lsn
    return storage, page


def _tuple(
    heaps: CatalogHeaps, record: Record, where: tuple[Storage, Page], ref: BlockRef, offset: int
) -> CatalogTuple | None:
    """Return the tuple that a record changes; None when the mirror rightly does not know it."""
    storage, page = where
    tup = page.tuples.get(offset)
    if tup is None and page.physical and heaps.consistent:
        raise DecodingError(
            f"record at {Lsn(record.lsn)} changes tuple ({ref.block},{offset}) of"
            f" {storage.catalog.name}, which the mirror has not",
            hint="The catalog mirror went wrong: bootstrap this database again, and report it as a "
            "bug.",
            lsn=str(Lsn(record.lsn)),
            relation=storage.catalog.name,
            ctids=[[ref.block, offset]],
        )
    return tup


def _set_xmax(
    heaps: CatalogHeaps, tup: CatalogTuple | None, xmax: int, infobits: int, record: Record
) -> None:
    if tup is None:
        return
    tup.xmax = xmax
    tup.infomask = infomask_of_infobits(tup.infomask, infobits)
    if not tup.dead:
        heaps.judge_xmax(tup, record.xid, held=True)


def _insert(
    heaps: CatalogHeaps,
    record: Record,
    where: tuple[Storage, Page],
    tid: tuple[int, int],
    header: tuple[int, int, int],
    data: bytes,
    xmax: int = 0,
) -> None:
    storage, _ = where
    infomask2, infomask, hoff = header
    block, offset = tid
    if not 0 < offset < 2048:
        raise ValueError(f"a tuple is inserted at offset {offset}")
    tup = CatalogTuple(
        storage,
        block << 16 | offset,
        xmin=record.xid,
        xmax=xmax,
        infomask2=infomask2,
        infomask=infomask,
        hoff=hoff,
        data=data,
        row=storage.layout.row(infomask2, infomask, hoff, data),
    )
    heaps.insert(tup, record.xid, fresh=True)


def _unpack(layout: struct.Struct, data: bytes, at: int, what: str) -> tuple[int, ...]:
    if at + layout.size > len(data):
        raise ValueError(f"{what} is cut short")
    return layout.unpack_from(data, at)


def _block(record: Record, number: int) -> BlockRef | None:
    for ref in record.blocks:
        if ref.id == number:
            return ref
    return None


# Heap.


def _heap_insert(heaps: CatalogHeaps, record: Record) -> None:
    ref = _block(record, 0)
    where = None if ref is None else _page_to_change(heaps, record, ref)
    if ref is None or where is None:
        return
    offset, _ = _unpack(_HEAP_INSERT, record.data, 0, "an insert")
    infomask2, infomask, hoff = _unpack(_HEAP_HEADER, ref.data, 0, "an inserted tuple")
    data = ref.data[_HEAP_HEADER.size :]
    _insert(heaps, record, where, (ref.block, offset), (infomask2, infomask, hoff), data)


def _heap_delete(heaps: CatalogHeaps, record: Record) -> None:
    ref = _block(record, 0)
    where = None if ref is None else _page_to_change(heaps, record, ref)
    if ref is None or where is None:
        return
    xmax, offset, infobits, _ = _unpack(_HEAP_DELETE, record.data, 0, "a delete")
    _set_xmax(heaps, _tuple(heaps, record, where, ref, offset), xmax, infobits, record)


def _heap_update(heaps: CatalogHeaps, record: Record) -> None:
    new_ref = _block(record, 0)
    if new_ref is None:
        return
    old_ref = _block(record, 1)
    old_xmax, old_offset, old_infobits, flags, new_xmax, new_offset = _unpack(
        _HEAP_UPDATE, record.data, 0, "an update"
    )
    new_where = _page_to_change(heaps, record, new_ref)
    if old_ref is None:
        old_ref, old_where = new_ref, new_where
    else:
        old_where = _page_to_change(heaps, record, old_ref)
    old = None
    if old_where is not None:
        old = _tuple(heaps, record, old_where, old_ref, old_offset)
        _set_xmax(heaps, old, old_xmax, old_infobits, record)
    if new_where is not None:
        header, data = _updated_tuple(new_ref.data, flags, old)
        _insert(heaps, record, new_where, (new_ref.block, new_offset), header, data, new_xmax)


def _updated_tuple(
    data: bytes, flags: int, old: CatalogTuple | None
) -> tuple[tuple[int, int, int], bytes]:
    """Put together an updated tuple, of which a prefix and a suffix may be the old one's.

    The record holds the null bitmap and padding always; prefix and suffix count from the old
    tuple's attributes and its end.
    """
    at = prefix_size = suffix_size = 0
    if flags & _XLH_UPDATE_PREFIX_FROM_OLD:
        (prefix_size,) = _unpack(_U16, data, at, "an update")
        at += 2
    if flags & _XLH_UPDATE_SUFFIX_FROM_OLD:
        (suffix_size,) = _unpack(_U16, data, at, "an update")
        at += 2
    infomask2, infomask, hoff = _unpack(_HEAP_HEADER, data, at, "an updated tuple")
    at += _HEAP_HEADER.size
    rest = data[at:]
    if not prefix_size and not suffix_size:
        return (infomask2, infomask, hoff), rest
    if old is None or old.data is None:
        raise ValueError("an update refers to the bytes of a tuple whose page was never imaged")
    attributes = old.data[old.hoff - _HEADER_SIZE :]
    bitmap_size = hoff - _HEADER_SIZE
    if bitmap_size < 0 or bitmap_size > len(rest):
        raise ValueError(f"an updated tuple has header length {hoff}")
    if prefix_size > len(attributes) or suffix_size > len(attributes):
        raise ValueError("an update takes more of the old tuple than there is")
    suffix = attributes[len(attributes) - suffix_size :]
    tuple_data = rest[:bitmap_size] + attributes[:prefix_size] + rest[bitmap_size:] + suffix
    return (infomask2, infomask, hoff), tuple_data


def _heap_lock(heaps: CatalogHeaps, record: Record) -> None:
    """LOCK, and heap2's LOCK_UPDATED, which is laid out alike."""
    ref = _block(record, 0)
    where = None if ref is None else _page_to_change(heaps, record, ref)
    if ref is None or where is None:
        return
    xmax, offset, infobits = _unpack(_HEAP_LOCK, record.data, 0, "a lock")
    _set_xmax(heaps, _tuple(heaps, record, where, ref, offset), xmax, infobits, record)


def _heap_inplace(heaps: CatalogHeaps, record: Record) -> None:
    ref = _block(record, 0)
    where = None if ref is None else _page_to_change(heaps, record, ref)
    if ref is None or where is None:
        return
    (offset,) = _unpack(_U16, record.data, 0, "an in-place update")
    tup = _tuple(heaps, record, where, ref, offset)
    if tup is None:
        return
    if tup.data is None:
        raise ValueError("an in-place update refers to a tuple whose page was never imaged")
    bitmap_size = tup.hoff - _HEADER_SIZE
    if len(ref.data) != len(tup.data) - bitmap_size:
        raise ValueError("an in-place update changes the length of a tuple")
    data = tup.data[:bitmap_size] + ref.data
    row = where[0].layout.row(tup.infomask2, tup.infomask, tup.hoff, data)
    heaps.replace_row(tup, data, row)


# Heap2.


def _heap2_multi_insert(heaps: CatalogHeaps, record: Record) -> None:
    ref = _block(record, 0)
    where = None if ref is None else _page_to_change(heaps, record, ref)
    if ref is None or where is None:
        return
    _, count = _unpack(_MULTI_INSERT, record.data, 0, "a multi-insert")
    if record.info & rmgr.XLOG_HEAP_INIT_PAGE:
        offsets: tuple[int, ...] = tuple(range(1, count + 1))
    else:
        offsets = _unpack(
            struct.Struct(f"<{count}H"), record.data, _MULTI_INSERT.size, "a multi-insert"
        )
    data = ref.data
    at = 0
    for offset in offsets:
        at += at & 1
        size, infomask2, infomask, hoff = _unpack(
            _MULTI_INSERT_TUPLE, data, at, "a multi-insert's tuple"
        )
        at += _MULTI_INSERT_TUPLE.size
        if at + size > len(data):
            raise ValueError("a multi-insert's tuple is cut short")
        header = (infomask2, infomask, hoff)
        _insert(heaps, record, where, (ref.block, offset), header, data[at : at + size])
        at += size


def _heap2_10_30(heaps: CatalogHeaps, record: Record) -> None:
    """Info codes 0x10, 0x20 and 0x30: PRUNE, VACUUM and FREEZE_PAGE up to 16, the prune family
    since.
    """
    ref = _block(record, 0)
    where = None if ref is None else _page_to_change(heaps, record, ref)
    if ref is None or where is None:
        return
    if heaps.version.prune_family:
        _prune_family(heaps, record, where, ref)
        return
    operation = record.info & rmgr.XLOG_HEAP_OPMASK
    if operation == rmgr.XLOG_HEAP2_PRUNE:
        _, redirected, _ = _unpack(_PRUNE, record.data, 0, "a prune")
        offsets = _offsets(ref.data, 0, len(ref.data) // 2)
        if 2 * redirected > len(offsets):
            raise ValueError("a prune is cut short")
        _drop(heaps, where[1], offsets[: 2 * redirected : 2])
        _drop(heaps, where[1], offsets[2 * redirected :])
    elif operation == rmgr.XLOG_HEAP2_VACUUM:
        _drop(heaps, where[1], _offsets(ref.data, 0, len(ref.data) // 2))
    elif heaps.version.freeze_plans:
        _, count = _unpack(_FREEZE_PAGE, record.data, 0, "a freeze")
        plans = [
            _unpack(_FREEZE_PLAN, ref.data, _FREEZE_PLAN.size * i, "a freeze") for i in range(count)
        ]
        _freeze_by_plans(heaps, record, where, ref, plans, _FREEZE_PLAN.size * count)
    else:
        _, count = _unpack(_FREEZE_PAGE, record.data, 0, "a freeze")
        for i in range(count):
            xmax, offset, infomask2, infomask, _ = _unpack(
                _FREEZE_TUPLE, ref.data, _FREEZE_TUPLE_SIZE * i, "a freeze"
            )
            tup = _tuple(heaps, record, where, ref, offset)
            _freeze(heaps, record, tup, (xmax, infomask2, infomask))


def _prune_family(
    heaps: CatalogHeaps, record: Record, where: tuple[Storage, Page], ref: BlockRef
) -> None:
    """Sub-records in the block's data: freeze plans, redirections, dead, unused, offsets to
    freeze.
    """
    if len(record.data) < 2:
        raise ValueError("a prune is cut short")
    flags = record.data[1]
    data = ref.data
    at = 0
    plans: list[tuple[int, ...]] = []
    if flags & _XLHP_HAS_FREEZE_PLANS:
        (count,) = _unpack(_U16, data, at, "a prune's freeze plans")
        at += 4
        for _ in range(count):
            plans.append(_unpack(_FREEZE_PLAN, data, at, "a prune's freeze plans"))
            at += _FREEZE_PLAN.size
    dropped: list[int] = []
    for flag, step in (
        (_XLHP_HAS_REDIRECTIONS, 2),
        (_XLHP_HAS_DEAD_ITEMS, 1),
        (_XLHP_HAS_NOW_UNUSED_ITEMS, 1),
    ):
        if flags & flag:
            (count,) = _unpack(_U16, data, at, "a prune")
            at += 2
            dropped.extend(_offsets(data, at, count * step)[::step])
            at += 2 * count * step
    _drop(heaps, where[1], dropped)
    _freeze_by_plans(heaps, record, where, ref, plans, at)


def _freeze_by_plans(
    heaps: CatalogHeaps,
    record: Record,
    where: tuple[Storage, Page],
    ref: BlockRef,
    plans: list[tuple[int, ...]],
    at: int,
) -> None:
    for xmax, infomask2, infomask, _, count in plans:
        for offset in _offsets(ref.data, at, count):
            tup = _tuple(heaps, record, where, ref, offset)
            _freeze(heaps, record, tup, (xmax, infomask2, infomask))
        at += 2 * count


def _freeze(
    heaps: CatalogHeaps, record: Record, tup: CatalogTuple | None, header: tuple[int, int, int]
) -> None:
    if tup is None:
        return
    tup.xmax, tup.infomask2, tup.infomask = header
    heaps.confirm_xmin(tup, tup.infomask)
    if not tup.dead:
        heaps.judge_xmax(tup, record.xid, held=True)


def _drop(heaps: CatalogHeaps, page: Page, offsets: Iterable[int]) -> None:
    for offset in offsets:
        tup = page.tuples.get(offset)
        if tup is not None:
            heaps.remove(tup)


def _offsets(data: bytes, at: int, count: int) -> tuple[int, ...]:
    if at + 2 * count > len(data):
        raise ValueError("a list of offsets is cut short")
    return struct.unpack_from(f"<{count}H", data, at)


# Other resource managers.


def _smgr_truncate(heaps: CatalogHeaps, record: Record) -> None:
    block, spc, db, rel, flags = _unpack(_SMGR_TRUNCATE, record.data, 0, "a truncation")
    storage = heaps.storage_at(RelFileLocator(spc, db, rel))
    if storage is None or not flags & _SMGR_TRUNCATE_HEAP:
        return
    for number in [n for n in storage.pages if n >= block]:
        for tup in list(storage.pages[number].tuples.values()):
            heaps.remove(tup)
        del storage.pages[number]


def _smgr_create(heaps: CatalogHeaps, record: Record) -> None:
    """Of our database a transient heap is known by its pg_class row, see ``storage_map``."""
    spc, db, rel, fork = _unpack(_SMGR_CREATE, record.data, 0, "a storage's creation")
    if fork == _MAIN_FORK:
        shared_catalogs.note_creation(heaps, RelFileLocator(spc, db, rel), record.xid)


def _multixact_create(heaps: CatalogHeaps, record: Record) -> None:
    multixact, _, count = _unpack(_MULTIXACT_CREATE, record.data, 0, "a multixact")
    updater = 0
    for i in range(count):
        xid, status = _unpack(
            _MULTIXACT_MEMBER,
            record.data,
            _MULTIXACT_CREATE.size + _MULTIXACT_MEMBER.size * i,
            "a multixact",
        )
        if status >= _MULTIXACT_STATUS_NO_KEY_UPDATE:
            updater = xid
    heaps.fates.note_multixact(multixact, updater)


def _relmap_update(heaps: CatalogHeaps, record: Record) -> None:
    """A new relation map counts from its record on, whatever becomes of the transaction.

    The map that the bootstrap read is at least as new as consistent_lsn's; older updates are
    ignored.
    """
    update = parse_update(record.data, heaps.version)
    if not heaps.consistent:
        return
    if update.database_oid == heaps.facts.database_oid:
        heaps.replace_relation_map(update.mappings)
    elif not update.database_oid:
        for kept in shared_catalogs.replace_map(heaps, update.mappings):
            apply(heaps, kept)


_HEAP: Final[dict[int, Callable[[CatalogHeaps, Record], None]]] = {
    rmgr.XLOG_HEAP_INSERT: _heap_insert,
    rmgr.XLOG_HEAP_DELETE: _heap_delete,
    rmgr.XLOG_HEAP_UPDATE: _heap_update,
    rmgr.XLOG_HEAP_HOT_UPDATE: _heap_update,
    rmgr.XLOG_HEAP_LOCK: _heap_lock,
    rmgr.XLOG_HEAP_INPLACE: _heap_inplace,
    # TRUNCATE is logical only; CONFIRM is of speculative inserts, which catalogs don't have.
}

_HEAP2: Final[dict[int, Callable[[CatalogHeaps, Record], None]]] = {
    rmgr.XLOG_HEAP2_PRUNE: _heap2_10_30,
    rmgr.XLOG_HEAP2_VACUUM: _heap2_10_30,
    rmgr.XLOG_HEAP2_FREEZE_PAGE: _heap2_10_30,
    rmgr.XLOG_HEAP2_MULTI_INSERT: _heap2_multi_insert,
    rmgr.XLOG_HEAP2_LOCK_UPDATED: _heap_lock,
    # REWRITE maps tuples for logical decoding in the server, VISIBLE and NEW_CID change no tuple.
}

_OTHER: Final[dict[tuple[int, int], Callable[[CatalogHeaps, Record], None]]] = {
    (rmgr.RM_SMGR_ID, rmgr.XLOG_SMGR_TRUNCATE): _smgr_truncate,
    (rmgr.RM_SMGR_ID, rmgr.XLOG_SMGR_CREATE): _smgr_create,
    (rmgr.RM_MULTIXACT_ID, rmgr.XLOG_MULTIXACT_CREATE_ID): _multixact_create,
    (rmgr.RM_RELMAP_ID, rmgr.XLOG_RELMAP_UPDATE): _relmap_update,
    **{(rmgr.RM_DBASE_ID, info): database_redo.redo for info in (0x00, 0x10, 0x20)},
}
