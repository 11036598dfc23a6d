"""The catalog mirror: the physical catalog of one database as of the LSN being read, from WAL alone.

Comes in: the records that touch a mirrored catalog, in WAL order (:meth:`CatalogMirror.apply`), and the
fate of every transaction that did so (:meth:`~CatalogMirror.commit`, :meth:`~CatalogMirror.abort`).
Goes out: descriptors, as a transaction sees them at this very point (:meth:`~CatalogMirror.resolve`).

Why it is right to look at the present only: whoever writes a row of a table holds a lock on the table
that excludes a concurrent change of its descriptor. So when a row's record is read, the descriptor
that counts is made of catalog rows that are committed by now or the transaction's own. A tuple is
visible iff its xmin is committed or own, and its xmax is neither committed nor own. No command ids, no
old snapshots.

Why it is hard:

- *Bootstrap.* It begins with rows that SQL showed in a snapshot S, or with files copied while the server
  worked, and then WAL from an older redo point R is applied. The first record for a page since R bears
  its image, which replaces what SQL showed. An image also holds what S did not see. The rules that decide
  are in ``_judge_xmin`` and :meth:`CatalogMirror.judge_xmax`; they are exact from ``consistent_lsn`` on, not before.
- *Rewrites.* VACUUM FULL and CLUSTER give a catalog a new relfilenode while a transaction, their own, may
  go on changing it, and reads the new storage before others do: see ``storage_map``.

Memory: one tuple object per catalog row and per version that no prune record has removed, or their bytes only
(``packed_pages``), and a cache of resolutions; a few MB for an ordinary database. Statuses of transactions are stamped into
tuples and forgotten at the next :meth:`~CatalogMirror.advance`.

Not safe for concurrent use: one decoder owns a mirror.

Source: HeapTupleSatisfiesMVCC and its siblings, src/backend/access/heap/heapam_visibility.c;
src/backend/commands/cluster.c; src/backend/utils/cache/relmapper.c
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spillway._kernels.catalog_tuples import CatalogRedo
from spillway.catalog import descriptors, redo, shared_catalogs
from spillway.catalog.layout import (
    ORIGIN_BY_ID,
    PG_CLASS,
    PG_PUBLICATION_REL,
    PG_REPLICATION_ORIGIN,
    TRACKED_CATALOGS,
    WHOLE_CATALOG,
)
from spillway.catalog.page import (
    HEAP_XMAX_COMMITTED,
    HEAP_XMAX_INVALID,
    HEAP_XMAX_IS_MULTI,
    HEAP_XMIN_COMMITTED,
    HEAP_XMIN_FROZEN,
    HEAP_XMIN_INVALID,
    precedes,
    xmax_is_lock_only,
)
from spillway.catalog.resolution_cache import ResolutionCache
from spillway.catalog.storage_map import NO_XIDS, StorageMap
from spillway.catalog.toast_value import ToastPointer
from spillway.errors import CorruptWal, DecodingError, NotReady
from spillway.pg.lsn import Lsn
from spillway.pg.versions import WAL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from spillway.catalog.descriptors import DescriptorRegistry, Resolution
    from spillway.catalog.layout import CatalogLayout, TrackedCatalog
    from spillway.catalog.tuple_store import CatalogTuple, Storage
    from spillway.pg.versions import WalVersion
    from spillway.wal.record import Record, RelFileLocator


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What does not change while a database is decoded, or is where it began."""

    major: int
    database_oid: int
    #: pg_database.dattablespace at bootstrap; the mirror's ``locations`` has it as of now
    default_tablespace: int
    #: Python's name of the server encoding, and how names that don't fit it are decoded
    encoding: str
    encoding_errors: str


class CatalogMirror:
    """The mirrored catalog of one database.

    Made by ``bootstrap`` or ``serialization``. The owner then, for WAL from ``redo_lsn`` on, in order:

    - calls :meth:`apply` for each record that has a block reference to a locator in :attr:`tracked`
      (main fork), and for each XLOG_RELMAP_UPDATE, XLOG_SMGR_CREATE, XLOG_SMGR_TRUNCATE and
      XLOG_MULTIXACT_CREATE_ID;
      other records are ignored, so when in doubt, call;
    - calls :meth:`commit` or :meth:`abort` at each commit and abort record (prepared ones too) of a
      transaction that did the above. Before ``consistent_lsn``: of *every* transaction, because a
      catalog that was rewritten meanwhile may hold its rows without any record that we could have read;
    - calls :meth:`advance` at each running-xacts record, after it has dealt with what that says;
    - calls :meth:`resolve` for user tables' records at or after ``consistent_lsn``.
    """

    def __init__(
        self,
        facts: DatabaseFacts,
        layouts: dict[int, CatalogLayout],
        *,
        consistent_lsn: int,
        horizon: int,
        registry: DescriptorRegistry | None = None,
    ) -> None:
        """Make an empty mirror; ``bootstrap`` and ``serialization`` fill it.

        *layouts* is by catalog oid. *horizon*: every xid that precedes it had finished when the
        catalog was read, or :meth:`advance` says so later.
        """
        self.facts: Final = facts
        self.version: Final[WalVersion] = WAL_VERSIONS[facts.major]
        self.layouts: Final = layouts
        self.catalogs: Final[tuple[TrackedCatalog, ...]] = tuple(
            TRACKED_CATALOGS[oid] for oid in layouts
        )
        #: descriptors are exact from here on
        self.consistent_lsn = consistent_lsn
        self.horizon = horizon
        self.registry: Final = descriptors.REGISTRY if registry is None else registry
        #: where the catalogs are
        self.locations: Final = StorageMap(layouts, facts.database_oid, facts.default_tablespace)
        #: out-of-line values whose text SQL showed and whose chunks it did not, by va_valueid
        self.known_values: Final[dict[int, str]] = {}

        # Tuples whose xmin or deleter is that unfinished transaction.
        self._pending: Final[dict[int, set[CatalogTuple]]] = {}
        #: redo of plain records
        self.plain_redo: Final = CatalogRedo(
            self._pending, self.locations.rewrites, self.locations.unidentified
        )
        # Fate of transactions that are not before the horizon: True for committed.
        self._finished: dict[int, bool] = {}
        # Updater of each multixact that has one.
        self._multixacts: dict[int, int] = {}
        self._cache = ResolutionCache()
        # Whether a cached resolution was dropped since the last commit said so: by an image, by pruning.
        self._dropped = False
        # Whether one was handed out since then that is cached nowhere: what it was made from is not known.
        self._private = False

    # What the owner calls.

    @property
    def consistent(self) -> bool:
        """Whether a record at or after consistent_lsn was seen."""
        return self.plain_redo.consistent

    @consistent.setter
    def consistent(self, value: bool) -> None:
        self.plain_redo.consistent = value

    @property
    def last_lsn(self) -> int:
        """End of the last record applied, or position of the last commit or abort."""
        return self.plain_redo.last_lsn

    @last_lsn.setter
    def last_lsn(self, value: int) -> None:
        self.plain_redo.last_lsn = value

    @property
    def tracked(self) -> set[RelFileLocator]:
        """Storage of mirrored catalogs, or what may become such; records with a block in one of them go to :meth:`apply`."""
        return self.locations.tracked

    @property
    def tracked_generation(self) -> int:
        """Grows whenever :attr:`tracked` changes."""
        return self.locations.tracked_generation

    def number_storages(self, locators: Sequence[RelFileLocator]) -> None:
        """Have :attr:`plain_redo` know :attr:`tracked` storages by their places in *locators*."""
        storages = self.locations.storages
        moves = self.locations.copied_to != 0
        self.plain_redo.set_storages([None if moves else storages.get(each) for each in locators])

    def apply(self, record: Record) -> None:
        """Redo *record*'s effect on the mirrored catalogs; a record without any is ignored.

        Records come once each and in order. After a call, resolutions that a transaction with *record*'s
        xid among its own got may be stale; nobody else's are.

        Raises:
            CorruptWal: the record contradicts itself or the page that it changes.
            DecodingError: it changes a tuple that the mirror should have and has not.
        """
        if not self.consistent and record.lsn >= self.consistent_lsn:
            self.consistent = True
        self.last_lsn = max(self.last_lsn, record.end_lsn)
        try:
            redo.apply(self, record)
        except DecodingError as error:
            error.details.setdefault("lsn", str(Lsn(record.lsn)))
            raise
        except ValueError as error:
            raise CorruptWal(
                f"record at {Lsn(record.lsn)} can't be applied to the catalog: {error}",
                hint="The WAL is damaged, or of a server that is not PostgreSQL's own.",
                lsn=str(Lsn(record.lsn)),
                rmid=record.rmid,
                info=record.info,
            ) from error

    def commit(self, xids: Sequence[int], lsn: int) -> bool:
        """Say that a transaction committed: *xids* is it and its committed subtransactions.

        *lsn* is the commit record's start. May be called for transactions without catalog changes. Returns whether
        a resolution handed out for others may be different now: the owner then forgets every locator that it resolved.
        """
        self._note_position(lsn)
        for xid in xids:
            tuples = self._pending.pop(xid, None)
            if tuples is None and self.consistent:
                continue
            self._finished[xid] = True
            if not tuples:
                continue
            changed = self.plain_redo.commit(tuples, xid, self._cache.dependents, WHOLE_CATALOG)
            if changed is not None:
                self._dropped |= self._cache.invalidate(changed) or self._private
        self._forget_storages(self.locations.finish(xids))
        dropped, self._dropped = self._dropped, False
        if dropped:
            self._private = False
        return dropped

    def abort(self, xids: Sequence[int], lsn: int) -> bool:
        """Say that transactions aborted: a top-level one with all its subtransactions, or one of these.

        Returns whether resolutions handed out for *others* changed, which an abort never does; those of the same
        top-level transaction are stale when a subtransaction aborts.
        """
        self._note_position(lsn)
        for xid in xids:
            self._abort(xid)
        self._forget_storages(self.locations.finish(xids))
        return False

    def advance(self, oldest_running_xid: int, lsn: int) -> None:
        """Say that every transaction before *oldest_running_xid* has finished (from xl_running_xacts).

        One whose end was never seen was lost in a crash and counts as aborted. Statuses that no tuple needs go.
        """
        self._note_position(lsn)
        lost = [xid for xid in self._pending if precedes(xid, oldest_running_xid)]
        if lost:
            self.abort(lost, lsn)
        for xid in {u.xid for u in self.locations.unidentified.values()}:
            if precedes(xid, oldest_running_xid):
                self.locations.forget_unidentified((xid,))
        if precedes(self.horizon, oldest_running_xid):
            self.horizon = oldest_running_xid
            self._finished = {
                xid: fate for xid, fate in self._finished.items() if not precedes(xid, self.horizon)
            }
        if self._multixacts:
            self._forget_multixacts()

    def resolve(self, locator: RelFileLocator, own_xids: Collection[int] = NO_XIDS) -> Resolution:
        """Say what *locator* is the storage of, as a transaction with *own_xids* sees it now.

        *own_xids*: its top-level xid and those subtransactions that have not aborted.

        Raises:
            NotReady: WAL is not applied up to ``consistent_lsn`` yet.
            DecodingError: the mirror holds two visible versions of a row, or a type can't be described.
        """
        self.settle(locator)
        return self._resolve(("locator", locator), own_xids)

    def resolve_oid(self, relation_oid: int, own_xids: Collection[int] = NO_XIDS) -> Resolution:
        """Like :meth:`resolve`, by oid."""
        return self._resolve(("oid", relation_oid), own_xids)

    def has_changes(self, xids: Collection[int]) -> bool:
        """Say whether one of *xids* has unfinished catalog changes: its resolutions are private then."""
        return not self._pending.keys().isdisjoint(xids)

    def origin_name(self, origin_id: int) -> str:
        """Return the name of a replication origin now; '' for one that does not exist (replorigin_by_oid)."""
        if not origin_id:
            return ""
        tuples = self.visible_tuples(PG_REPLICATION_ORIGIN, ORIGIN_BY_ID, origin_id, NO_XIDS)
        name = tuples[0].row.roname if tuples else ""
        return name if isinstance(name, str) else ""

    # Lookups, for ``descriptors``.

    def visible_tuples(
        self, catalog: TrackedCatalog, index: int, key: Any, own_xids: Collection[int]
    ) -> list[CatalogTuple]:
        """Find the tuples with *key* that a transaction with *own_xids* sees."""
        found = self.locations.of(catalog.oid, own_xids).with_key(index, key)
        return [tup for tup in found if tup.visible(own_xids)]

    def all_visible(
        self, catalog: TrackedCatalog, own_xids: Collection[int] = NO_XIDS
    ) -> list[Any]:
        """List every row of a mirrored catalog that a transaction with *own_xids* sees; for audits."""
        storage = self.locations.of(catalog.oid, own_xids)
        return [tup.row for tup in storage.tuples() if tup.visible(own_xids)]

    # What ``redo`` calls.

    def storage_at(self, locator: RelFileLocator) -> Storage | None:
        """Return the tracked storage at *locator*."""
        self.settle(locator)
        return self.locations.storages.get(locator)

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
            self._pending.setdefault(tup.xmin, set()).add(tup)
        else:
            self._judge_xmin(tup, record_xid)
        if not tup.dead:
            self.judge_xmax(tup, record_xid, held=False)
        if not tup.dead:
            storage.index(tup)
            # No rewrite is under way between the bootstrap's snapshot, which was taken under locks that
            # exclude one, and consistent_lsn; what WAL shows of earlier ones is over.
            if (
                storage.catalog is PG_CLASS
                and tup.row.relrewrite
                and self.consistent
                and tup.xmin_pending
            ):
                self.locations.note_pg_class_row(tup)
            if not tup.xmin_pending:
                self._invalidate((tup,))

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
                self._invalidate((tup,))
        for xid in (tup.xmin, tup.deleter):
            pending = self._pending.get(xid)
            if pending is not None:
                pending.discard(tup)
                # An empty set stays: it says that the transaction is not finished.

    def replace_row(self, tup: CatalogTuple, data: bytes, row: Any) -> None:
        """Overwrite a tuple's attributes, as an in-place update does, or an image what SQL showed."""
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
        self._dropped |= self._cache.invalidate(tup.storage.keys(before))
        tup.row = row
        tup.storage.index(tup)
        self._invalidate((tup,))

    def confirm_xmin(self, tup: CatalogTuple, infomask: int) -> None:
        """Take over what hint bits of an image say about a tuple that is known."""
        if tup.dead or not tup.xmin_pending:
            return
        if infomask & HEAP_XMIN_COMMITTED:
            tup.xmin_pending = False
            tup.storage.index(tup)
            self._invalidate((tup,))
        elif infomask & HEAP_XMIN_INVALID:
            self._bury(tup)

    def judge_xmax(self, tup: CatalogTuple, record_xid: int, *, held: bool) -> None:
        """Find out from a tuple's raw xmax and infomask whether, and by whom, it is deleted.

        *held*: the mirror had the tuple before, alive. A known tuple's deleter that has finished without a commit being
        seen has aborted; that of a copied tuple, not copied with an aborted xmax and no hint, has committed.
        """
        infomask = tup.infomask
        deleter = self.deleter_of(tup)
        if deleter:
            fate: bool | None
            if infomask & HEAP_XMAX_COMMITTED and not infomask & HEAP_XMAX_IS_MULTI:
                fate = True
            else:
                fate = self._fate(deleter, record_xid, unknown=not held)
            if fate is True:
                tup.deleter = 0
                self._bury(tup)
                return
            if fate is False:
                deleter = 0
        if deleter != tup.deleter:
            if tup.deleter and not (tup.xmin_pending and tup.xmin == tup.deleter):
                self._pending.get(tup.deleter, set()).discard(tup)
            self.note_deleter(tup, deleter)

    def deleter_of(self, tup: CatalogTuple) -> int:
        """Return the xid that deletes a tuple by its xmax and infomask, whatever became of it; 0 for none."""
        xmax, infomask = tup.xmax, tup.infomask
        if not xmax or infomask & HEAP_XMAX_INVALID or xmax_is_lock_only(infomask):
            return 0
        return self._multixacts.get(xmax, 0) if infomask & HEAP_XMAX_IS_MULTI else xmax

    def note_deleter(self, tup: CatalogTuple, xid: int) -> None:
        """Say that *xid*, which has not finished, deletes a tuple; 0: no one does."""
        tup.deleter = xid
        if xid:
            self._pending.setdefault(xid, set()).add(tup)
            if tup.xmin_pending:
                tup.storage.unindex(tup)
        elif tup.xmin_pending:
            tup.storage.index(tup)

    def note_multixact(self, multixact: int, updater: int) -> None:
        """Remember which member of a multixact updates; 0 for none."""
        if updater:
            self._multixacts[multixact] = updater
        else:
            self._multixacts.pop(multixact, None)

    def update_relation_map(
        self, mappings: dict[int, int], *, shared: bool = False
    ) -> Sequence[Record]:
        """Take over a new relation map; from here on all read the catalogs where it says.

        Returns records of storage that has turned out to be a catalog's by it, to be applied now.

        Raises:
            DecodingError: it points a catalog to storage whose pages were not seen.
        """
        if not shared:
            self._forget_storages(self.locations.replace_relation_map(mappings))
            return ()
        records = shared_catalogs.replace_map(self, mappings)
        self._forget_storages(self.locations.drop_unread())
        return records

    def settle(self, locator: RelFileLocator) -> None:
        """While a copy of the database may become it, learn from a use of *locator* whether it did."""
        if self.locations.copied_to and self.locations.settle(locator):
            self._cache = ResolutionCache()
            self._dropped = True

    # What ``bootstrap`` and ``serialization`` call.

    def admit(self, tup: CatalogTuple) -> None:
        """Enter a tuple whose states are set already, under a page that exists; or a stand-in."""
        block, offset = tup.ctid
        if block == shared_catalogs.NO_BLOCK:
            tup.storage.stand_ins[tup.row[0]] = tup
        else:
            tup.storage.pages[block].tuples[offset] = tup
        if tup.dead:
            return
        tup.storage.index(tup)
        if tup.xmin_pending:
            self._pending.setdefault(tup.xmin, set()).add(tup)
        if tup.deleter:
            self._pending.setdefault(tup.deleter, set()).add(tup)

    def transactions(self) -> dict[str, Any]:
        """Return what is known of transactions beside what tuples say, as JSON values."""
        return {
            "horizon": self.horizon,
            "pending": list(self._pending),
            "finished": [[xid, fate] for xid, fate in self._finished.items()],
            "multixacts": [[multixact, xid] for multixact, xid in self._multixacts.items()],
        }

    def restore_transactions(self, value: dict[str, Any]) -> None:
        """Take over the result of :meth:`transactions`; tuples are to follow by :meth:`admit`."""
        self.horizon = value["horizon"]
        self._pending.update((xid, set()) for xid in value["pending"])
        self._finished.update((xid, fate) for xid, fate in value["finished"])
        self._multixacts.update((multixact, xid) for multixact, xid in value["multixacts"])

    # Inside.

    def _note_position(self, lsn: int) -> None:
        self.last_lsn = max(self.last_lsn, lsn)
        if lsn >= self.consistent_lsn:
            self.consistent = True

    def _resolve(self, key: tuple[str, Any], own_xids: Collection[int]) -> Resolution:
        if not self.consistent:
            raise NotReady(
                f"the catalog is not known before {Lsn(self.consistent_lsn)}",
                hint="Changes before the mirror's consistent_lsn can't be decoded; skip them.",
                lsn=str(Lsn(self.last_lsn)),
            )
        if own_xids and self.has_changes(own_xids):
            if not self.locations.rewrites and (shared := self._shared(key, own_xids)) is not None:
                return shared
            self._private = True
            return descriptors.resolve(self, key, own_xids)
        return descriptors.resolve(self, key, NO_XIDS, self._cache)

    def _shared(self, key: tuple[str, Any], own_xids: Collection[int]) -> Resolution | None:
        """Return what all others see if a transaction with changes of its own must see the same; None if it may not.

        It must when none of the rows that were looked at, or looked for in vain, is one that it has changed.
        """
        with contextlib.suppress(DecodingError):
            resolution = descriptors.resolve(self, key, NO_XIDS, self._cache)
            entry = self._cache.get(key)
            if entry is not None and not self.plain_redo.concerns(
                entry[1], own_xids, self.locations.current
            ):
                return resolution
            if resolution.reason is descriptors.SkipReason.UNKNOWN:
                # Its own new table: nobody else will ever ask, if it aborts.
                self._cache.drop(key)
        return None

    def _fate(self, xid: int, record_xid: int, *, unknown: bool) -> bool | None:
        """Whether *xid* committed (True), aborted (False) or goes on (None); *unknown*: the answer for a
        transaction that finished at a time that we did not watch.
        """
        if xid == record_xid or xid in self._pending:
            return None
        fate = self._finished.get(xid)
        if fate is not None:
            return fate
        return None if not precedes(xid, self.horizon) else unknown

    def _judge_xmin(self, tup: CatalogTuple, record_xid: int) -> None:
        """Find out about the xmin of a tuple that an image brought and that was not known before.

        In storage that SQL showed, it is one that snapshot S did not see, unless its transaction was not yet finished
        then: dead. In storage watched from its first page on, it is new, or a copy of a live one: committed.
        """
        hints = tup.infomask & HEAP_XMIN_FROZEN
        complete = tup.storage.complete
        if hints == HEAP_XMIN_FROZEN:
            tup.dead = not complete
        elif hints == HEAP_XMIN_INVALID:
            tup.dead = True
        elif hints == HEAP_XMIN_COMMITTED:
            tup.dead = not complete and precedes(tup.xmin, self.horizon)
        else:
            fate = self._fate(tup.xmin, record_xid, unknown=complete)
            if fate is None:
                tup.xmin_pending = True
                self._pending.setdefault(tup.xmin, set()).add(tup)
            else:
                tup.dead = not fate

    def _bury(self, tup: CatalogTuple) -> None:
        """Mark a tuple as dead for good."""
        tup.storage.unindex(tup)
        tup.dead = True
        tup.deleter = 0
        tup.xmin_pending = False
        self._invalidate((tup,))
        tup.forget_row()

    def _abort(self, xid: int) -> None:
        tuples = self._pending.pop(xid, None)
        if tuples is None and self.consistent:
            return
        self._finished[xid] = False
        self.plain_redo.abort(tuples or (), xid)

    def _invalidate(self, tuples: Iterable[CatalogTuple]) -> None:
        for tup in tuples:
            self._dropped |= self._cache.forget_of(tup) or self._private

    def contradiction(
        self, catalog: TrackedCatalog, tuples: Sequence[CatalogTuple], key: str
    ) -> DecodingError:
        """Make the error for a row that must be there exactly once and is not."""
        return DecodingError(
            f"{catalog.name} has {len(tuples)} visible rows with {key} at {Lsn(self.last_lsn)}",
            hint="The catalog mirror went wrong: bootstrap this database again, and report it as a bug.",
            lsn=str(Lsn(self.last_lsn)),
            relation=catalog.name,
            ctids=[list(tup.ctid) for tup in tuples],
        )

    def _forget_storages(self, storages: list[Storage] | None) -> None:
        for storage in storages or ():
            for tup in list(storage.tuples()):
                self.remove(tup)

    def _forget_multixacts(self) -> None:
        """Drop multixacts whose updater has finished and that no tuple bears as its xmax."""
        used = {
            tup.xmax
            for storage in self.locations.storages.values()
            for tup in storage.live_tuples()
            if tup.infomask & HEAP_XMAX_IS_MULTI
        }
        self._multixacts = {
            multixact: updater
            for multixact, updater in self._multixacts.items()
            if multixact in used or not precedes(updater, self.horizon)
        }
