"""The catalog mirror: the physical catalog of one database as of the LSN being read, from WAL
alone.

Comes in: the records that touch a mirrored catalog, in WAL order (:meth:`CatalogMirror.apply`), and
the fate of every transaction that did so (:meth:`~CatalogMirror.commit`,
:meth:`~CatalogMirror.abort`).
Goes out: descriptors, as a transaction sees them at this very point
(:meth:`~CatalogMirror.resolve`).

Why it is right to look at the present only: whoever writes a row of a table holds a lock on the
table that excludes a concurrent change of its descriptor. So when a row's record is read, the
descriptor that counts is made of catalog rows that are committed by now or the transaction's own. A
tuple is visible iff its xmin is committed or own, and its xmax is neither committed nor own. No
command ids, no old snapshots.

Why it is hard:

- *Bootstrap.* It begins with rows that SQL showed in a snapshot S, or with files copied while the
  server worked, and then WAL from an older redo point R is applied. The first record for a page
  since R bears its image, which replaces what SQL showed. An image also holds what S did not see.
  The rules that decide are in ``heaps``; they are exact from ``consistent_lsn`` on, not before.
- *Rewrites.* VACUUM FULL and CLUSTER give a catalog a new relfilenode while a transaction, their
  own, may go on changing it, and reads the new storage before others do: see ``storage_map``.

Its parts, each for those who need just that::

    mirror            whoever has the WAL: records and ends of transactions in, descriptors out
      redo            what a record does to pages; shared_catalogs and database_redo: what is
                      special there
        heaps         every tuple where its page has it; filled by bootstrap and serialization
          storage_map, transaction_fates, tuple_store
      resolution      rows → descriptors, kept in resolution_cache until rows change; publications,
                      object_names
      table_rows      what says how a table is defined, for who compares before and after
      table_state     and how that is
        visible_rows  rows as a transaction sees them

Memory: that of the heaps, and a cache of resolutions.

Not safe for concurrent use: one decoder owns a mirror.

Source: src/backend/access/heap/heapam_visibility.c; src/backend/commands/cluster.c;
src/backend/utils/cache/relmapper.c
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from spillway.catalog import descriptor_registry, redo
from spillway.catalog.layout import (
    NAMESPACE_BY_OID,
    ORIGIN_BY_ID,
    PG_CLASS,
    PG_NAMESPACE,
    PG_REPLICATION_ORIGIN,
)
from spillway.catalog.packed_pages import pack_storage
from spillway.catalog.resolution import Resolver
from spillway.catalog.storage_map import NO_XIDS
from spillway.catalog.table_state import is_logged_table, table_rows, table_state
from spillway.catalog.tuple_store import CountingStorage
from spillway.catalog.visible_rows import VisibleRows
from spillway.errors import CorruptWal, DecodingError, NotReady
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence

    from spillway.catalog.database_facts import DatabaseFacts
    from spillway.catalog.descriptor_registry import DescriptorRegistry
    from spillway.catalog.heaps import CatalogHeaps
    from spillway.catalog.resolution import Resolution
    from spillway.catalog.resolution_cache import EntryKey
    from spillway.catalog.table_state import TableRows, TableState
    from spillway.catalog.tuple_store import CatalogTuple
    from spillway.wal.record import Record, RelFileLocator

#: Of one transaction's rows; with more, those of all schemas are looked through.
_ROWS_LOOKED_THROUGH: Final = 200


class CatalogMirror:
    """The mirrored catalog of one database.

    Made by ``bootstrap`` or ``serialization``. The owner then, for WAL from ``redo_lsn`` on, in
    order:

    - calls :meth:`apply` for each record that has a block reference to a locator in :attr:`tracked`
      (main fork), and for each XLOG_RELMAP_UPDATE, XLOG_SMGR_CREATE, XLOG_SMGR_TRUNCATE and
      XLOG_MULTIXACT_CREATE_ID;
      other records are ignored, so when in doubt, call;
    - calls :meth:`commit` or :meth:`abort` at each commit and abort record (prepared ones too) of a
      transaction that did the above. Before ``consistent_lsn``: of *every* transaction, because a
      catalog that was rewritten meanwhile may hold its rows without any record that we could have
      read;
    - calls :meth:`advance` at each running-xacts record, after it has dealt with what that says;
    - calls :meth:`resolve` for user tables' records at or after ``consistent_lsn``.
    """

    def __init__(
        self,
        heaps: CatalogHeaps,
        *,
        consistent_lsn: int,
        registry: DescriptorRegistry | None = None,
    ) -> None:
        """Go on from *heaps*, which belong to the mirror from here on; descriptors are interned in
        *registry*.
        """
        self.heaps: Final = heaps
        #: descriptors are exact from here on
        self.consistent_lsn: Final = consistent_lsn
        self.registry: Final = descriptor_registry.REGISTRY if registry is None else registry
        #: redo of plain records, for the kernel
        self.plain_redo: Final = heaps.plain_redo
        self._resolver: Final = Resolver(heaps, self.registry)

    # Where it stands.

    @property
    def facts(self) -> DatabaseFacts:
        """The database's."""
        return self.heaps.facts

    @property
    def consistent(self) -> bool:
        """Whether a record at or after consistent_lsn was seen."""
        return self.plain_redo.consistent

    @property
    def last_lsn(self) -> int:
        """End of the last record applied, or position of the last commit or abort."""
        return self.plain_redo.last_lsn

    @property
    def tracked(self) -> set[RelFileLocator]:
        """Storage of mirrored catalogs, or what may become such; records with a block in one of
        them go to :meth:`apply`.
        """
        return self.heaps.locations.tracked

    @property
    def tracked_generation(self) -> int:
        """Grows whenever :attr:`tracked` changes."""
        return self.heaps.locations.tracked_generation

    def number_storages(self, locators: Sequence[RelFileLocator]) -> None:
        """Have :attr:`plain_redo` know :attr:`tracked` storages by their places in *locators*."""
        storages = self.heaps.locations.storages
        moves = self.heaps.locations.copied_to != 0
        self.plain_redo.set_storages([None if moves else storages.get(each) for each in locators])

    # WAL.

    def apply(self, record: Record) -> None:
        """Redo *record*'s effect on the mirrored catalogs; a record without any is ignored.

        Records come once each and in order. After a call, resolutions that a transaction with
        *record*'s xid among its own got may be stale; nobody else's are.

        Raises:
            CorruptWal: the record contradicts itself or the page that it changes.
            DecodingError: it changes a tuple that the mirror should have and has not.
        """
        if not self.consistent and record.lsn >= self.consistent_lsn:
            self.plain_redo.consistent = True
        self.plain_redo.last_lsn = max(self.last_lsn, record.end_lsn)
        try:
            redo.apply(self.heaps, record)
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

        *lsn* is the commit record's start. May be called for transactions without catalog changes.
        Returns whether a resolution handed out for others may be different now: the owner then
        forgets every locator that it resolved.
        """
        self._note_position(lsn)
        self.heaps.commit(xids)
        return self.heaps.resolved.take_dropped()

    def abort(self, xids: Sequence[int], lsn: int) -> bool:
        """Say that transactions aborted: a top-level one with all its subtransactions, or one of
        these.

        Returns whether resolutions handed out for *others* changed, which an abort never does;
        those of the same top-level transaction are stale when a subtransaction aborts.
        """
        self._note_position(lsn)
        self.heaps.abort(xids)
        return False

    def advance(self, oldest_running_xid: int, lsn: int) -> None:
        """Say that every transaction before *oldest_running_xid* has finished (from
        xl_running_xacts).

        One whose end was never seen was lost in a crash and counts as aborted. Statuses that no
        tuple needs go.
        """
        self._note_position(lsn)
        self.heaps.advance(oldest_running_xid)

    def _note_position(self, lsn: int) -> None:
        self.plain_redo.last_lsn = max(self.last_lsn, lsn)
        if lsn >= self.consistent_lsn:
            self.plain_redo.consistent = True

    # Questions.

    def resolve(self, locator: RelFileLocator, own_xids: Collection[int] = NO_XIDS) -> Resolution:
        """Say what *locator* is the storage of, as a transaction with *own_xids* sees it now.

        *own_xids*: its top-level xid and those subtransactions that have not aborted.

        Raises:
            NotReady: WAL is not applied up to ``consistent_lsn`` yet.
            DecodingError: the mirror holds two visible versions of a row, or a type can't be
                described.
        """
        self.heaps.settle(locator)
        return self._resolve(("locator", locator), own_xids)

    def resolve_oid(self, relation_oid: int, own_xids: Collection[int] = NO_XIDS) -> Resolution:
        """Like :meth:`resolve`, by oid."""
        return self._resolve(("oid", relation_oid), own_xids)

    def table_rows(
        self, relation_oid: int, own_xids: Collection[int] = NO_XIDS
    ) -> TableRows | None:
        """Return the rows that say how a user's table is defined; None if there is no such table,
        or a temporary or unlogged one.

        Raises:
            DecodingError: the mirror holds two visible versions of a row.
        """
        return table_rows(self.visible_rows(own_xids), relation_oid)

    def table_state(self, rows: TableRows, own_xids: Collection[int] = NO_XIDS) -> TableState:
        """Return how the table is defined that has *rows* for a transaction with *own_xids* now.

        Raises:
            NotReady, DecodingError: as :meth:`resolve`.
        """
        self._require_consistent()
        columns = (tup.row for tup in rows.live)
        return table_state(rows, self._resolver.describe(rows.table, columns, own_xids))

    def versions_of_schemas(self, own_xids: Collection[int]) -> Hashable:
        """Return what is as it was for as long as no row of pg_namespace, as a transaction with
        *own_xids* finds it, was added or changed.
        """
        storage = self.heaps.locations.of(PG_NAMESPACE.oid, own_xids)
        assert isinstance(storage, CountingStorage)
        return storage.locator, storage.entered

    def renamed_schemas(self, own_xids: Collection[int]) -> dict[int, str]:
        """Return the schemas that a transaction with *own_xids* has renamed, by oid, with their
        names to it.

        Costs as much as it has subtransactions, and as there are schemas, or rows that it has
        changed, whichever is less: to be asked when :meth:`versions_of_schemas` says so.
        """
        storage = self.heaps.locations.of(PG_NAMESPACE.oid, own_xids)
        pending = [waiting for xid in own_xids if (waiting := self.heaps.fates.pending.get(xid))]
        changed: Iterable[CatalogTuple] = itertools.chain.from_iterable(pending)
        if sum(map(len, pending)) > _ROWS_LOOKED_THROUGH:
            changed = storage.live_tuples()
        own, others = self.visible_rows(own_xids), self.visible_rows()
        found: dict[int, str] = {}
        for tup in changed:
            if tup.storage is storage and not tup.dead and tup.xmin in own_xids:
                (oid, name) = tup.row.oid, tup.row.nspname
                before = others.row(PG_NAMESPACE, NAMESPACE_BY_OID, oid)
                if before is not None and before.nspname != name and tup.visible(own.own_xids):
                    found[oid] = name
        return found

    def tables_in(self, schema_oid: int, own_xids: Collection[int]) -> list[int]:
        """Return the oids of the users' tables of a schema that have rows in WAL, or are
        partitioned. Costs as much as the database has relations.
        """
        return [
            row.oid
            for row in self.visible_rows(own_xids).whole(PG_CLASS)
            if row.relnamespace == schema_oid and is_logged_table(row)
        ]

    def has_changes(self, xids: Collection[int]) -> bool:
        """Say whether one of *xids* has unfinished catalog changes: its resolutions are private
        then.
        """
        return self.heaps.fates.has_changes(xids)

    def origin_name(self, origin_id: int) -> str:
        """Return the name of a replication origin now; '' for one that does not exist
        (replorigin_by_oid).
        """
        if not origin_id:
            return ""
        tuples = self.visible_rows().tuples(PG_REPLICATION_ORIGIN, ORIGIN_BY_ID, origin_id)
        name = tuples[0].row.roname if tuples else ""
        return name if isinstance(name, str) else ""

    def condense(self) -> None:
        """Have the rows go that nobody has asked for since they were serialised last; their pages
        stay, as bytes.
        """
        for storage in self.heaps.locations.storages.values():
            pack_storage(storage)

    def visible_rows(self, own_xids: Collection[int] = NO_XIDS) -> VisibleRows:
        """Look rows up as a transaction with *own_xids* sees them now."""
        return VisibleRows(self.heaps, own_xids)

    def _resolve(self, key: EntryKey, own_xids: Collection[int]) -> Resolution:
        self._require_consistent()
        return self._resolver.resolve(key, own_xids)

    def _require_consistent(self) -> None:
        if not self.consistent:
            raise NotReady(
                f"the catalog is not known before {Lsn(self.consistent_lsn)}",
                hint="Changes before the mirror's consistent_lsn can't be decoded; skip them.",
                lsn=str(Lsn(self.last_lsn)),
            )
