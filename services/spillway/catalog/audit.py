"""Audit mode: NEW_CID records as a cross-check of the mirror.

PostgreSQL's own decoder can't do without these records: it reads catalogs as they were, and
XLOG_HEAP2_NEW_CID says by which command of which transaction a catalog tuple came or went. We don't
need them, since the mirror is the catalog as it is; which makes them an independent witness. With
wal_level = logical the server writes one for every catalog tuple that it inserts, updates or
deletes, *before* the heap record that does it, in the same transaction. In comes each, then each
heap record when the mirror has applied it; what the first said must then be true of the mirror's
tuple:

====================  ==========  ==================================================================
NEW_CID says          it is       so the tuple there must
====================  ==========  ==================================================================
cmin, no cmax         inserted    be the transaction's: xmin is the record's xid, not finished, not
                                  deleted by it
no cmin, cmax         deleted     have the record's xid as its deleter, and an xmin that is not the
                                  transaction's
both (combo)          both        have an xmin of this transaction and the record's xid as its
                                  deleter
====================  ==========  ==================================================================

A transaction's heap record may have several NEW_CIDs before it (both versions of an update, all
tuples of a multi-insert); the heap record of another backend may come between. Tuples in storage
that is not mirrored (other catalogs, TOAST tables, user_catalog_table) are passed over. Nothing is
known before the mirror is consistent; NEW_CIDs whose heap record lies on the other side of a
restart are not checked.

Memory: NEW_CIDs whose heap record is still to come, a handful.

Source: log_heap_new_cid, src/backend/access/heap/heapam.c; xl_heap_new_cid,
src/include/access/heapam_xlog.h
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import CatalogAuditFailed, CorruptWal
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Collection

    from spillway.catalog.mirror import CatalogMirror
    from spillway.catalog.tuple_store import CatalogTuple
    from spillway.wal.record import Record

#: top xid, cmin, cmax, combo cid, locator, tid (block in two halves, the higher first; offset)
_NEW_CID: Final = struct.Struct("<IIIIIIIHHH")
_INVALID_COMMAND_ID: Final = 0xFFFFFFFF
_CHANGES: Final = frozenset(
    {
        (rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_INSERT),
        (rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_DELETE),
        (rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_UPDATE),
        (rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_HOT_UPDATE),
        (rmgr.RM_HEAP2_ID, rmgr.XLOG_HEAP2_MULTI_INSERT),
    }
)


class NewCid(NamedTuple):
    """An XLOG_HEAP2_NEW_CID record."""

    lsn: int
    cmin: int | None
    cmax: int | None
    locator: RelFileLocator
    block: int
    offset: int

    @classmethod
    def parse(cls, data: bytes, lsn: int) -> NewCid:
        """Parse the main data of a NEW_CID record at *lsn*.

        Raises:
            CorruptWal: it is cut short.
        """
        if len(data) < _NEW_CID.size:
            raise CorruptWal(
                f"the NEW_CID record at {Lsn(lsn)} is cut short",
                hint="Fetch the WAL segment again from the source or the archive.",
                lsn=str(Lsn(lsn)),
            )
        _, cmin, cmax, _, spc, db, rel, high, low, offset = _NEW_CID.unpack_from(data)
        return cls(
            lsn,
            None if cmin == _INVALID_COMMAND_ID else cmin,
            None if cmax == _INVALID_COMMAND_ID else cmax,
            RelFileLocator(spc, db, rel),
            high << 16 | low,
            offset,
        )


class CatalogAudit:
    """Holds NEW_CIDs until their heap record is applied, then the mirror to them."""

    def __init__(self, mirror: CatalogMirror) -> None:
        self._heaps = mirror.heaps
        #: xid → what it announced
        self._announced: dict[int, list[NewCid]] = {}
        #: how many were found right
        self.checked = 0

    def announce(self, xid: int, data: bytes, lsn: int) -> None:
        """Take a NEW_CID record.

        Raises:
            CorruptWal: it is cut short.
        """
        new_cid = NewCid.parse(data, lsn)
        if self._heaps.consistent and self._heaps.storage_at(new_cid.locator) is not None:
            self._announced.setdefault(xid, []).append(new_cid)

    def check(self, record: Record, own_xids: Collection[int]) -> None:
        """Check what was announced for *record*, which the mirror has just applied.

        *own_xids*: of its transaction, with all subtransactions that have not aborted.

        Raises:
            CatalogAuditFailed: the mirror is not as the server says.
        """
        announced = self._announced.get(record.xid)
        if not announced or (record.rmid, record.info & rmgr.XLOG_HEAP_OPMASK) not in _CHANGES:
            return
        locators = {ref.locator for ref in record.blocks}
        later = []
        for new_cid in announced:
            if new_cid.locator in locators:
                self._check(new_cid, record.xid, own_xids)
            else:
                later.append(new_cid)
        if later:
            self._announced[record.xid] = later
        else:
            del self._announced[record.xid]

    def forget(self, xids: Collection[int]) -> None:
        """Forget transactions that have ended."""
        if self._announced:
            for xid in xids:
                self._announced.pop(xid, None)

    def _check(self, new_cid: NewCid, xid: int, own_xids: Collection[int]) -> None:
        storage = self._heaps.storage_at(new_cid.locator)
        if storage is None:
            return
        tup = storage.tuple_at(new_cid.block, new_cid.offset)
        if storage.unplaced and tup is not None and tup.dead:
            # Dead or a stand-in's: see ``shared_catalogs``.
            return
        problem = (
            "the mirror has no such tuple" if tup is None else _problem(new_cid, tup, xid, own_xids)
        )
        if problem:
            relation = storage.catalog.name
            raise CatalogAuditFailed(
                f"the NEW_CID record at {Lsn(new_cid.lsn)} of transaction {xid} is about tuple"
                f" ({new_cid.block},{new_cid.offset}) of {relation}: {problem}",
                hint="The catalog mirror went wrong: bootstrap this database again, and report it "
                "as a bug.",
                lsn=str(Lsn(new_cid.lsn)),
                relation=relation,
                ctid=[new_cid.block, new_cid.offset],
                xid=xid,
            )
        self.checked += 1


def _problem(new_cid: NewCid, tup: CatalogTuple, xid: int, own_xids: Collection[int]) -> str:
    """Say what is wrong with the tuple; '' for nothing."""
    if tup.dead:
        return f"the mirror takes it for dead: {tup!r}"
    own = tup.xmin_pending and tup.xmin in own_xids
    if new_cid.cmax is None:
        if not (tup.xmin_pending and tup.xmin == xid):
            return f"the transaction inserted it, the mirror says otherwise: {tup!r}"
        return f"it is new, the mirror has a deleter: {tup!r}" if tup.deleter else ""
    if tup.deleter != xid:
        return f"the transaction deleted it, the mirror says otherwise: {tup!r}"
    if (new_cid.cmin is not None) != own:
        return f"the mirror is wrong about who inserted it: {tup!r}"
    return ""
