"""Where each mirrored catalog is stored, for everybody and for a transaction that is moving it.

VACUUM FULL and CLUSTER fill a new relfilenode, a *transient heap*, and swap it with the old one.
Three points in WAL count:

1. The pg_class row of the transient heap, whose relrewrite names the catalog. Its storage is
   tracked from here on, because its pages come next. The heap of a mapped catalog is mapped itself:
   its row has relfilenode 0, and its storage is numbered by its oid.
2. The swap, for the moving transaction. Of a mapped catalog there is no record of it: it is over
   when that transaction first changes the new storage by a heap record, rather than filling it with
   whole pages; until then both hold the same rows. Of any other catalog its pg_class row says it.
3. The swap, for all others. Of a mapped catalog it is the XLOG_RELMAP_UPDATE, whatever becomes of
   the transaction, as in crash recovery; of any other the commit.

Source: src/backend/commands/cluster.c (make_new_heap, swap_relation_files, finish_heap_swap),
src/backend/utils/cache/relmapper.c
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spillway.catalog.layout import CLASS_BY_OID, GLOBAL_TABLESPACE, PG_CLASS, PG_NAMESPACE
from spillway.catalog.tuple_store import CatalogTuple, CountingStorage, Storage
from spillway.errors import DecodingError
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from spillway.catalog.layout import CatalogLayout, PgClass
    from spillway.wal.record import Record

NO_XIDS: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A transient heap that a transaction fills for a catalog."""

    catalog_oid: int
    locator: RelFileLocator


@dataclass(slots=True)
class Unidentified:
    """New storage in pg_global, which may turn out to be a shared catalog's; see
    ``shared_catalogs``.
    """

    #: of the transaction that made it
    xid: int
    records: list[Record] = field(default_factory=list)


class StorageMap:
    """Every tracked storage, and which of them is a catalog's for whom."""

    def __init__(
        self, layouts: Mapping[int, CatalogLayout], database_oid: int, default_tablespace: int
    ) -> None:
        self._layouts: Final = layouts
        self._database_oid: Final = database_oid
        #: pg_database.dattablespace: where relations with reltablespace 0 are
        self.default_tablespace = default_tablespace
        #: where the database has been copied to, which it may be about to move to; 0 for nowhere
        self.copied_to = 0
        self.storages: dict[RelFileLocator, Storage] = {}
        #: what may be, or may not, a shared catalog's before long; see ``shared_catalogs``
        self.unidentified: Final[dict[RelFileLocator, Unidentified]] = {}
        #: the locators of ``storages`` and ``unidentified``; a new set whenever it changes
        self.tracked: set[RelFileLocator] = set()
        self.tracked_generation = 0
        #: catalog oid → where it is for all but a transaction that is moving it
        self.current: Final[dict[int, Storage]] = {}
        #: oid → relfilenumber of every mapped relation of the database
        self.relation_map: dict[int, int] = {}
        #: transient heaps by the transaction that fills them
        self.rewrites: Final[dict[int, list[Rewrite]]] = {}
        #: mapped catalogs that such a transaction has gone over to
        self.own_map: Final[dict[int, dict[int, RelFileLocator]]] = {}

    def add(self, locator: RelFileLocator, catalog_oid: int, *, complete: bool) -> Storage:
        """Track *locator* as storage of a catalog; returns it, empty."""
        kind = CountingStorage if catalog_oid == PG_NAMESPACE.oid else Storage
        storage = kind(self._layouts[catalog_oid], locator, complete=complete)
        self.storages[locator] = storage
        self.unidentified.pop(locator, None)
        self.track()
        return storage

    def of(self, catalog_oid: int, own_xids: Collection[int]) -> Storage:
        """Return where a catalog's rows are for a transaction with *own_xids*."""
        if self.rewrites and own_xids:
            for xid, rewrites in self.rewrites.items():
                if xid not in own_xids or all(r.catalog_oid != catalog_oid for r in rewrites):
                    continue
                if catalog_oid in self.relation_map:
                    locator = self.own_map.get(xid, {}).get(catalog_oid)
                else:
                    locator = self._locator_in_pg_class(catalog_oid, own_xids)
                if locator is not None and locator in self.storages:
                    return self.storages[locator]
        return self.current[catalog_oid]

    def note_pg_class_row(self, tup: CatalogTuple) -> None:
        """Track the transient heap that an unfinished pg_class row with relrewrite is of."""
        row: PgClass = tup.row
        if row.relrewrite not in self.current:
            return
        locator = self._locator(row, row.relfilenode or row.oid)
        rewrites = self.rewrites.setdefault(tup.xmin, [])
        # A pg_class that is being moved itself holds a copy of the row.
        if any(r.locator == locator for r in rewrites):
            return
        rewrites.append(Rewrite(row.relrewrite, locator))
        if locator not in self.storages:
            self.add(locator, row.relrewrite, complete=True)

    def copy_to(self, tablespace: int) -> None:
        """Have every storage in the default tablespace answer to *tablespace* too; see
        ``database_redo``.
        """
        self._stay()
        if tablespace == self.default_tablespace:
            return
        self.copied_to = tablespace
        for locator, storage in list(self.storages.items()):
            if locator.spc == self.default_tablespace:
                self.storages[locator._replace(spc=tablespace)] = storage
        self.track()

    def settle(self, locator: RelFileLocator) -> bool:
        """While the database is copied, learn from a use of *locator* which is it; return whether
        it moved.
        """
        if locator.db != self._database_oid or not self.copied_to:
            return False
        if locator.spc == self.default_tablespace:
            self._stay()
        if locator.spc != self.copied_to:
            return False
        self.default_tablespace, old = self.copied_to, self.default_tablespace
        for storage in self.storages.values():
            if storage.locator.spc == old:
                storage.locator = storage.locator._replace(spc=self.default_tablespace)
        self._stay()
        return True

    def _stay(self) -> None:
        """Give each storage its one name again."""
        if self.copied_to:
            self.copied_to = 0
            self.storages = {storage.locator: storage for storage in self.storages.values()}
            self.track()

    def note_heap_change(self, storage: Storage, xid: int) -> None:
        """Notice that *xid* changes a storage by a heap record: of a new mapped one, the swap is
        over.
        """
        if not self.rewrites:
            return
        oid = storage.catalog.oid
        if oid in self.relation_map and any(
            r.locator == storage.locator for r in self.rewrites.get(xid, ())
        ):
            self.own_map.setdefault(xid, {})[oid] = storage.locator

    def replace_relation_map(self, mappings: dict[int, int]) -> list[Storage]:
        """Take over a new relation map; returns storages that nobody reads any more.

        Raises:
            DecodingError: it points a catalog to storage whose pages were not seen.
        """
        self.relation_map = mappings
        for oid, storage in list(self.current.items()):
            rel = mappings.get(oid)
            if rel is not None and rel != storage.locator.rel:
                self._move(oid, storage.locator._replace(rel=rel))
        return self.drop_unread()

    def finish(self, xids: Collection[int]) -> list[Storage] | None:
        """Forget the rewrites of transactions that are over, their pg_class rows being stamped
        already.

        Returns storages that nobody reads any more; None when none of *xids* rewrote a catalog.

        Raises:
            DecodingError: a catalog is now where no page was seen.
        """
        if self.unidentified:
            self.forget_unidentified(xids)
        if not self.rewrites:
            return None
        found = False
        for xid in xids:
            self.own_map.pop(xid, None)
            found = self.rewrites.pop(xid, None) is not None or found
        if not found:
            return None
        for oid, storage in list(self.current.items()):
            if oid not in self.relation_map and not storage.catalog.is_shared:
                self._move(oid, self._locator_in_pg_class(oid, NO_XIDS))
        return self.drop_unread()

    def forget_unidentified(self, xids: Collection[int]) -> None:
        """Forget new shared storage of transactions that are over: had it become a catalog's, we
        would know.
        """
        for locator, unidentified in list(self.unidentified.items()):
            if unidentified.xid in xids:
                del self.unidentified[locator]
                self.track()

    def _move(self, oid: int, locator: RelFileLocator | None) -> None:
        replacement = None if locator is None else self.storages.get(locator)
        if replacement is None:
            name = self._layouts[oid].catalog.name
            raise DecodingError(
                f"{name} moved to storage {locator}, whose pages were not seen",
                hint="Bootstrap this database's catalog again.",
                relation=name,
            )
        self.current[oid] = replacement

    def _locator_in_pg_class(
        self, catalog_oid: int, own_xids: Collection[int]
    ) -> RelFileLocator | None:
        found = self.of(PG_CLASS.oid, own_xids).with_key(CLASS_BY_OID, catalog_oid)
        rows = [tup.row for tup in found if tup.visible(own_xids)]
        if len(rows) != 1:
            raise DecodingError(
                f"pg_class has {len(rows)} visible rows for the catalog {catalog_oid}",
                hint="The catalog mirror went wrong: bootstrap this database again, and report it"
                " as a bug.",
                relation="pg_class",
                ctids=[list(tup.ctid) for tup in found],
            )
        return self._locator(rows[0], rows[0].relfilenode)

    def _locator(self, row: PgClass, rel: int) -> RelFileLocator:
        spc = row.reltablespace or self.default_tablespace
        return RelFileLocator(spc, 0 if spc == GLOBAL_TABLESPACE else self._database_oid, rel)

    def drop_unread(self) -> list[Storage]:
        """Forget storages that no one reads or fills; returns them."""
        kept = {storage.locator for storage in self.current.values()}
        kept.update(r.locator for rewrites in self.rewrites.values() for r in rewrites)
        dropped = [
            self.storages.pop(locator) for locator in list(self.storages) if locator not in kept
        ]
        if dropped:
            self.track()
        return dropped

    def track(self) -> None:
        """Say which storages there are now."""
        self.tracked = set(self.storages).union(self.unidentified)
        self.tracked_generation += 1
