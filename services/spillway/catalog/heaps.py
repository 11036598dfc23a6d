"""The heaps of the mirrored catalogs: every tuple where its page has it, and who sees it.

This is what changes. ``redo`` puts tuples in, takes them out and says what happened to their
headers; ``bootstrap`` and ``serialization`` fill empty heaps; the mirror says who committed and who
aborted. What others read goes through ``visible_rows``, and what was made of rows is dropped from
:attr:`CatalogHeaps.resolved` as they change.

The rules that judge what a page image brings are in ``_judge_xmin`` and
:meth:`CatalogHeaps.judge_xmax`: a bootstrap began with rows that SQL showed in a snapshot S, or
with files copied while the server worked, and an image of WAL from before also holds what S did not
see. They are exact from the mirror's ``consistent_lsn`` on, not before.

Memory: one tuple object per catalog row and per version that no prune record has removed, or their
bytes only (``packed_pages``); a few MB for an ordinary database.

Source: HeapTupleSatisfiesMVCC and its siblings, src/backend/access/heap/heapam_visibility.c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spillway._kernels.catalog.tuples import CatalogRedo
from spillway.catalog.layout import (
    PG_CLASS,
    PG_PUBLICATION_REL,
    TRACKED_CATALOGS,
    WHOLE_CATALOG,
)
from spillway.catalog.page import (
    HEAP_XMAX_COMMITTED,
    HEAP_XMAX_IS_MULTI,
    HEAP_XMIN_COMMITTED,
    HEAP_XMIN_FROZEN,
    HEAP_XMIN_INVALID,
    precedes,
)
from spillway.catalog.resolution_cache import ResolutionCache
from spillway.catalog.storage_map import StorageMap
from spillway.catalog.toast_value import ToastPointer
from spillway.catalog.transaction_fates import TransactionFates
from spillway.catalog.tuple_store import NO_BLOCK
from spillway.pg.versions import WAL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.catalog.database_facts import DatabaseFacts
    from spillway.catalog.layout import CatalogLayout, TrackedCatalog
    from spillway.catalog.tuple_store import CatalogTuple, Storage
    from spillway.pg.versions import WalVersion
    from spillway.wal.record import RelFileLocator


class CatalogHeaps:
    """Every tuple of one database's mirrored catalogs."""

    def __init__(
        self, facts: DatabaseFacts, layouts: dict[int, CatalogLayout], *, horizon: int
    ) -> None:
        """Make empty heaps; *layouts* is by catalog oid, *horizon* as for
        :class:`TransactionFates`.
        """
        self.facts: Final = facts
        self.version: Final[WalVersion] = WAL_VERSIONS[facts.major]
        self.layouts: Final = layouts
        self.catalogs: Final[tuple[TrackedCatalog, ...]] = tuple(
            TRACKED_CATALOGS[oid] for oid in layouts
        )
        #: where the catalogs are
        self.locations: Final = StorageMap(layouts, facts.database_oid, facts.default_tablespace)
        #: out-of-line values whose text SQL showed and whose chunks it did not, by va_valueid
        self.known_values: Final[dict[int, str]] = {}
        self.fates: Final = TransactionFates(horizon)
        #: what was made of rows for everybody, until they change
        self.resolved: Final = ResolutionCache()
        #: redo of plain records, and how far redo is
        self.plain_redo: Final = CatalogRedo(
            self.fates.pending, self.locations.rewrites, self.locations.unidentified
        )

    @property
    def consistent(self) -> bool:
        """Whether WAL was read to where the catalogs are exact."""
        return self.plain_redo.consistent

    @property
    def last_lsn(self) -> int:
        """End of the last record applied, or position of the last commit or abort."""
        return self.plain_redo.last_lsn

    # Storage.

    def storage_at(self, locator: RelFileLocator) -> Storage | None:
        """Return the tracked storage at *locator*."""
        self.settle(locator)
        return self.locations.storages.get(locator)

    def settle(self, locator: RelFileLocator) -> None:
        """While a copy of the database may become it, learn from a use of *locator* whether it
        did.
        """
        if self.locations.copied_to and self.locations.settle(locator):
            self.resolved.clear()

    def replace_relation_map(self, mappings: dict[int, int]) -> None:
        """Take over a new relation map of the database; from here on all read the catalogs where it
        says.

        Raises:
            DecodingError: it points a catalog to storage whose pages were not seen.
        """
        self._forget_storages(self.locations.replace_relation_map(mappings))

    def drop_unread(self) -> None:
        """Forget storages that no one reads or fills any more."""
        self._forget_storages(self.locations.drop_unread())

    def _forget_storages(self, storages: list[Storage] | None) -> None:
        for storage in storages or ():
            for tup in list(storage.tuples()):
                self.remove(tup)

    # Tuples.

    def admit(self, tup: CatalogTuple) -> None:
        """Enter a tuple whose states are set already, under a page that exists; or a stand-in."""
        block, offset = tup.ctid
        if block == NO_BLOCK:
            tup.storage.stand_ins[tup.row[0]] = tup
        else:
            tup.storage.pages[block].tuples[offset] = tup
        if tup.dead:
            return
        tup.storage.index(tup)
        if tup.xmin_pending:
            self.fates.wait(tup.xmin, tup)
        if tup.deleter:
            self.fates.wait(tup.deleter, tup)

    def insert(self, tup: CatalogTuple, record_xid: int, *, fresh: bool) -> None:
        """Put a tuple that was not known before into its place, and find out about its xids.

        *fresh*: the record itself wrote it. Otherwise it came with a page image.
        """
        storage = tup.storage
        block, offset = tup.ctid
        page = storage.pages[block]
        page.packed = None
        previous = page.tuples.get(offset)
        if previous is not None:
            self.remove(previous)
        page.tuples[offset] = tup
        if fresh:
            tup.xmin_pending = True
            self.fates.wait(tup.xmin, tup)
        else:
            self._judge_xmin(tup, record_xid)
        if not tup.dead:
            self.judge_xmax(tup, record_xid, held=False)
        if not tup.dead:
            storage.index(tup)
            # No rewrite is under way between the bootstrap's snapshot, which was taken under locks
            # that exclude one, and consistent_lsn; what WAL shows of earlier ones is over.
            if (
                storage.catalog is PG_CLASS
                and tup.row.relrewrite
                and self.consistent
                and tup.xmin_pending
            ):
                self.locations.note_pg_class_row(tup)
            if not tup.xmin_pending:
                self.resolved.forget_of(tup)

    def remove(self, tup: CatalogTuple) -> None:
        """Forget a tuple that its page forgets."""
        block, offset = tup.ctid
        page = tup.storage.pages.get(block)
        if page is not None and page.tuples.get(offset) is tup:
            del page.tuples[offset]
            page.packed = None
        if not tup.dead:
            tup.storage.unindex(tup)
            if not tup.xmin_pending:
                self.resolved.forget_of(tup)
        for xid in (tup.xmin, tup.deleter):
            self.fates.drop(xid, tup)

    def replace_row(self, tup: CatalogTuple, data: bytes, row: Any) -> None:
        """Overwrite a tuple's attributes, as an in-place update does, or an image what SQL
        showed.
        """
        before = tup.row
        tup.data = data
        if before is None or row == before:
            return
        if tup.storage.catalog is PG_PUBLICATION_REL:
            pointer, shown = row.prqual, before.prqual
            if isinstance(pointer, ToastPointer) and isinstance(shown, str):
                self.known_values[pointer.value_id] = shown
        if tup.dead:
            tup.forget_row()
            return
        tup.storage.unindex(tup)
        self.resolved.invalidate(tup.storage.keys(before))
        tup.row = row
        tup.storage.index(tup)
        self.resolved.forget_of(tup)

    def confirm_xmin(self, tup: CatalogTuple, infomask: int) -> None:
        """Take over what hint bits of an image say about a tuple that is known."""
        if tup.dead or not tup.xmin_pending:
            return
        if infomask & HEAP_XMIN_COMMITTED:
            tup.xmin_pending = False
            tup.storage.index(tup)
            self.resolved.forget_of(tup)
        elif infomask & HEAP_XMIN_INVALID:
            self._bury(tup)

    def _judge_xmin(self, tup: CatalogTuple, record_xid: int) -> None:
        """Find out about the xmin of a tuple that an image brought and that was not known before.

        In storage that SQL showed, it is one that snapshot S did not see, unless its transaction
        was not yet finished then: dead. In storage watched from its first page on, it is new, or a
        copy of a live one: committed.
        """
        hints = tup.infomask & HEAP_XMIN_FROZEN
        complete = tup.storage.complete
        if hints == HEAP_XMIN_FROZEN:
            tup.dead = not complete
        elif hints == HEAP_XMIN_INVALID:
            tup.dead = True
        elif hints == HEAP_XMIN_COMMITTED:
            tup.dead = not complete and precedes(tup.xmin, self.fates.horizon)
        else:
            fate = self.fates.of(tup.xmin, record_xid, unknown=complete)
            if fate is None:
                tup.xmin_pending = True
                self.fates.wait(tup.xmin, tup)
            else:
                tup.dead = not fate

    def judge_xmax(self, tup: CatalogTuple, record_xid: int, *, held: bool) -> None:
        """Find out from a tuple's raw xmax and infomask whether, and by whom, it is deleted.

        *held*: the mirror had the tuple before, alive. A known tuple's deleter that has finished
        without a commit being seen has aborted; that of a copied tuple, not copied with an aborted
        xmax and no hint, has committed.
        """
        infomask = tup.infomask
        deleter = self.fates.deleter_of(tup)
        if deleter:
            fate: bool | None
            if infomask & HEAP_XMAX_COMMITTED and not infomask & HEAP_XMAX_IS_MULTI:
                fate = True
            else:
                fate = self.fates.of(deleter, record_xid, unknown=not held)
            if fate is True:
                tup.deleter = 0
                self._bury(tup)
                return
            if fate is False:
                deleter = 0
        if deleter != tup.deleter:
            if tup.deleter and not (tup.xmin_pending and tup.xmin == tup.deleter):
                self.fates.drop(tup.deleter, tup)
            self.note_deleter(tup, deleter)

    def note_deleter(self, tup: CatalogTuple, xid: int) -> None:
        """Say that *xid*, which has not finished, deletes a tuple; 0: no one does."""
        tup.deleter = xid
        if xid:
            self.fates.wait(xid, tup)
            if tup.xmin_pending:
                tup.storage.unindex(tup)
        elif tup.xmin_pending:
            tup.storage.index(tup)

    def _bury(self, tup: CatalogTuple) -> None:
        """Mark a tuple as dead for good."""
        tup.storage.unindex(tup)
        tup.dead = True
        tup.deleter = 0
        tup.xmin_pending = False
        self.resolved.forget_of(tup)
        tup.forget_row()

    # Ends of transactions.

    def commit(self, xids: Sequence[int]) -> None:
        """Show everybody what *xids* did."""
        for xid in xids:
            tuples = self.fates.pending.pop(xid, None)
            if tuples is None and self.consistent:
                continue
            self.fates.finish(xid, committed=True)
            if not tuples:
                continue
            changed = self.plain_redo.commit(tuples, xid, self.resolved.dependents, WHOLE_CATALOG)
            if changed is not None:
                self.resolved.forget_changed(changed)
        self._forget_storages(self.locations.finish(xids))

    def abort(self, xids: Sequence[int]) -> None:
        """Undo what *xids* did, which nobody else has seen."""
        for xid in xids:
            tuples = self.fates.pending.pop(xid, None)
            if tuples is None and self.consistent:
                continue
            self.fates.finish(xid, committed=False)
            self.plain_redo.abort(tuples or (), xid)
        self._forget_storages(self.locations.finish(xids))

    def advance(self, oldest_running_xid: int) -> None:
        """Say that every transaction before *oldest_running_xid* has finished; see the mirror."""
        lost = self.fates.lost(oldest_running_xid)
        if lost:
            self.abort(lost)
        for xid in {u.xid for u in self.locations.unidentified.values()}:
            if precedes(xid, oldest_running_xid):
                self.locations.forget_unidentified((xid,))
        self.fates.advance(oldest_running_xid)
        if self.fates.has_multixacts:
            used = {
                tup.xmax or 0
                for storage in self.locations.storages.values()
                for tup in storage.live_tuples()
                if tup.infomask & HEAP_XMAX_IS_MULTI
            }
            self.fates.forget_multixacts(used)
