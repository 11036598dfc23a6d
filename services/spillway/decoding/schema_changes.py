"""What transactions change of tables' definitions, queued as changes where it happened.

The server logs no DDL, but what DDL does to the catalogs, and behind each command the caches that
it has invalidated. So it is known which tables a transaction has touched, and the mirror knows each
of them as everybody sees it and as the transaction does. What differs is a SCHEMA_CHANGE: queued in
front of the first row that the transaction writes, into whatever table, after it has touched one,
or at its end::

    INSERT INTO t …         INSERT
    ALTER TABLE t …         catalog records, invalidations: t is touched
    ALTER TABLE u …         catalog records, invalidations: u is touched
    INSERT INTO t …         SCHEMA_CHANGE t, SCHEMA_CHANGE u, INSERT
    ALTER TABLE t …         catalog records, invalidations: t is touched
    COMMIT                  SCHEMA_CHANGE t

So several commands between two rows are one change of a table: what they come to. A table that a
transaction makes and drops, and one that is touched and left as it was, are none. Temporary and
unlogged tables have no rows in WAL, and no changes here.

ALTER SCHEMA … RENAME says nothing of tables: the mirror tells of schemas that have other names to
the transaction than to everybody, and the tables of those are looked at, once for each name.

The next change of a table is compared with the one before. A subtransaction that is rolled back
takes the changes with it that were queued in it; what the rest of the transaction had done to their
tables is looked at again.

Whether there is anything to tell is seen by the catalogs' rows (``catalog/table_state.py``): most
of what touches a table changes none of those that define it. Where one differs, the table is
described as it was and as it is.

What is queued is both definitions, as JSON (:func:`_content`), and of a partition the tables above
it, as a whole where it comes or goes; an output plugin makes of them what it tells
(``plugins/ddl_event.py``), when somebody asks. This costs each transaction that changes a
table's definition some tenths of a millisecond a table, and others nothing.

Memory: the definitions of tables that transactions in progress have changed.

Whoever decodes may have what commits *noted* (:meth:`SchemaChanges.note`), for people to look at
later: of a transaction :data:`NOTED_MAX` changes at most. Nothing is kept for that otherwise.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway.catalog.storage_map import NO_XIDS
from spillway.errors import DecodingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence

    from spillway._kernels.reorder.buffer import ReorderBuffer
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.catalog.mirror import CatalogMirror
    from spillway.catalog.table_state import TableRows, TableState
    from spillway.decoding.capture import CaptureFilter
    from spillway.decoding.invalidations import Invalidations


#: of one transaction
NOTED_MAX: Final = 500
#: pg_class.relkind
_PARTITIONED: Final = "p"


class CommittedDdl(NamedTuple):
    """What a transaction that committed did to tables."""

    xid: int
    #: where its commit record starts
    commit_lsn: int
    #: microseconds since 2000-01-01 00:00 UTC
    commit_time: int
    #: of SCHEMA_CHANGEs
    contents: tuple[bytes, ...]
    #: how many more there were
    more: int


class SchemaChanges:
    """The changes of definitions by one decoder's transactions in progress."""

    def __init__(
        self,
        mirror: CatalogMirror,
        buffer: ReorderBuffer,
        invalidations: Invalidations,
        capture: CaptureFilter,
    ) -> None:
        self._mirror: Final = mirror
        self._buffer: Final = buffer
        self._invalidations: Final = invalidations
        self._capture: Final = capture
        self._is_left_out = False
        #: of each top-level transaction, by table: what was told of it last, and with the changes
        #: of which (sub)transaction that goes
        self._told: Final[dict[int, dict[int, list[tuple[int, TableState | None]]]]] = {}
        #: of each top-level transaction: the names that it gave to schemas, of whose tables it was
        #: told
        self._schemas_told: Final[dict[int, dict[int, str]]] = {}
        #: told of what commits
        self._note: Callable[[CommittedDdl], None] | None = None
        #: of each top-level transaction, for that: the (sub)transaction, and a content
        self._noted: Final[dict[int, list[tuple[int, bytes]]]] = {}
        #: and as of when that was looked at
        self._looked_at: Final[dict[int, Hashable]] = {}

    def note(self, note: Callable[[CommittedDdl], None]) -> None:
        """Have *note* called with what each transaction that commits did to tables."""
        self._note = note

    def leave_out(self) -> None:
        """Queue nothing from here on."""
        self._is_left_out = True

    def flush(self, xid: int, lsn: int, rewriting: int = 0) -> None:
        """Queue at *lsn*, in (sub)transaction *xid*, what its whole transaction did to tables since
        the last time. *rewriting*: the oid of a table that is being rewritten, and has its old
        storage yet.
        """
        top_xid = self._buffer.top_xid(xid)
        touched = self._invalidations.take_touched(top_xid)
        if self._is_left_out:
            return
        own_xids = self._buffer.own_xids(xid)
        if self._mirror.has_changes(own_xids):
            moved = self._moved(top_xid, own_xids)
            oids = list(dict.fromkeys((*touched, *moved)))
            rewritten = self._with_those_above(rewriting, own_xids) if rewriting else frozenset()
            for oid in oids:
                self._compare(oid, oids, top_xid, xid, own_xids, lsn, is_rewritten=oid in rewritten)

    def _with_those_above(self, oid: int, own_xids: Collection[int]) -> frozenset[int]:
        """Return a table and the partitioned ones above it, whose rows are its."""
        with contextlib.suppress(DecodingError):
            table = self._mirror.resolve_oid(oid, own_xids).descriptor
            if table is not None:
                return frozenset((oid, *(above.oid for above in table.ancestors)))
        return frozenset((oid,))

    def flush_all(self, lsn: int) -> None:
        """Queue at *lsn* what transactions in progress did so far."""
        for top_xid in self._invalidations.invalidated():
            self.flush(top_xid, lsn)

    def recall(self) -> None:
        """Take what transactions in progress have done by now for told, as :meth:`flush_all` did
        before they were carried.
        """
        for top_xid, oids in self._invalidations.invalidated().items():
            own_xids = self._buffer.own_xids(top_xid)
            if self._mirror.has_changes(own_xids):
                for oid in dict.fromkeys((*oids, *self._moved(top_xid, own_xids))):
                    after = self._state(self._rows(oid, own_xids), own_xids)
                    self._tell(oid, top_xid, top_xid, after)
                    self._recall_noted(oid, top_xid, own_xids, after)

    def _recall_noted(
        self, oid: int, top_xid: int, own_xids: Collection[int], after: TableState | None
    ) -> None:
        before = self._state(self._rows(oid, NO_XIDS), NO_XIDS)
        if before is None and after is None:
            return
        if before is not None and after is not None and after.defines_as(before):
            return
        if self._is_captured(oid, after, own_xids) or self._is_captured(oid, before, NO_XIDS):
            content = _content(oid, before, after, is_rewritten=False)
            text = json.dumps(content, separators=(",", ":")).encode()
            self._noted.setdefault(top_xid, []).append((top_xid, text))

    def abort(self, top_xid: int, xids: Collection[int]) -> None:
        """Forget what went with *xids*, which have aborted: all of *top_xid*, or a part of it."""
        if top_xid in xids:
            self.forget(top_xid)
            return
        if noted := self._noted.get(top_xid):
            noted[:] = [one for one in noted if one[0] not in xids]
        # Schemas may have other names again.
        if self._schemas_told.pop(top_xid, None) is not None:
            self._looked_at.pop(top_xid, None)
        again = []
        for oid, told in self._told.get(top_xid, {}).items():
            kept = [one for one in told if one[0] not in xids]
            if len(kept) < len(told):
                told[:] = kept
                again.append(oid)
        if again:
            self._invalidations.touch(top_xid, again)

    def commit(self, top_xid: int, lsn: int, time: int) -> None:
        """Have what a transaction did noted, which commits at *lsn*, and forget it."""
        if self._note is not None and (noted := self._noted.get(top_xid)):
            contents = tuple(content for _, content in noted[:NOTED_MAX])
            more = len(noted) - len(contents)
            self._note(CommittedDdl(top_xid, lsn, time, contents, more))
        self.forget(top_xid)

    def forget(self, top_xid: int) -> None:
        """Forget a transaction that has ended."""
        self._noted.pop(top_xid, None)
        self._told.pop(top_xid, None)
        self._schemas_told.pop(top_xid, None)
        self._looked_at.pop(top_xid, None)

    def _moved(self, top_xid: int, own_xids: Collection[int]) -> list[int]:
        """Return the tables of schemas that the transaction has renamed since this was asked."""
        versions = self._mirror.versions_of_schemas(own_xids)
        if self._looked_at.get(top_xid) == versions:
            return []
        self._looked_at[top_xid] = versions
        renamed = self._mirror.renamed_schemas(own_xids)
        told = self._schemas_told.get(top_xid, {})
        if renamed == told:
            return []
        self._schemas_told[top_xid] = renamed
        other = [oid for oid in {*renamed, *told} if renamed.get(oid) != told.get(oid)]
        return [table for oid in other for table in self._mirror.tables_in(oid, own_xids)]

    def _compare(
        self,
        oid: int,
        oids: Sequence[int],
        top_xid: int,
        xid: int,
        own_xids: Collection[int],
        lsn: int,
        *,
        is_rewritten: bool,
    ) -> None:
        rows = self._rows(oid, own_xids)
        told = self._told.get(top_xid, {}).get(oid)
        if told:
            before = told[-1][1]
        else:
            rows_before = self._rows(oid, NO_XIDS)
            if rows == rows_before:
                return
            before = self._state(rows_before, NO_XIDS)
        after = self._state(rows, own_xids)
        if before is None and after is None:
            return
        if before is not None and after is not None and after.defines_as(before):
            return
        self._tell(oid, top_xid, xid, after)
        if self._is_captured(oid, after, own_xids) or self._is_captured(oid, before, NO_XIDS):
            if before is not None and after is not None and after.descriptor.kind == _PARTITIONED:
                after = self._with_missing(oid, before, after, oids, own_xids)
            content = _content(oid, before, after, is_rewritten=is_rewritten)
            content |= self._of_partition(before, after, own_xids)
            text = json.dumps(content, separators=(",", ":")).encode()
            self._buffer.add_schema_change(xid, lsn, text)
            if self._note is not None:
                noted = self._noted.setdefault(top_xid, [])
                # Of those beyond the bound the number is what matters.
                noted.append((xid, text if len(noted) < NOTED_MAX else b""))

    def _with_missing(
        self,
        oid: int,
        before: TableState,
        after: TableState,
        oids: Sequence[int],
        own_xids: Collection[int],
    ) -> TableState:
        """Return *after* of a partitioned table with what rows from before have in columns that it
        has got: it has no rows, so only the columns of its partitions, among *oids*, say that.
        """
        table, known = after.descriptor, {column.attnum for column in before.descriptor.columns}
        new = {column.name for column in table.columns if column.attnum not in known}
        for other in oids if new else ():
            with contextlib.suppress(DecodingError):
                leaf = self._mirror.resolve_oid(other, own_xids).descriptor
                if leaf is None or leaf.kind == _PARTITIONED:
                    continue
                if any(above.oid == oid for above in leaf.ancestors):
                    missing = {c.name: c.missing for c in leaf.columns if c.name in new}
                    columns = tuple(
                        replace(column, missing=missing.get(column.name, column.missing))
                        for column in table.columns
                    )
                    return replace(after, descriptor=replace(table, columns=columns))
        return after

    def _of_partition(
        self, before: TableState | None, after: TableState | None, own_xids: Collection[int]
    ) -> dict[str, Any]:
        """Return what a SCHEMA_CHANGE says of the tables above a partition."""
        old, new = (None if state is None else state.parent for state in (before, after))
        joined = self._above(new, own_xids)
        left = joined if old == new else self._above(old, own_xids)
        said: dict[str, Any] = {}
        # A partition that comes or goes takes rows along: of whom, readers of roots must know.
        if before is not None and old != new:
            said = {
                key: [table.to_json() for table in found]
                for key, found in (("left", left), ("joined", joined))
            }
        if left or joined:
            said["above"] = [_names(left), _names(joined)]
        return said

    def _above(
        self, parent: tuple[int, str, str] | None, own_xids: Collection[int]
    ) -> list[RelationDescriptor]:
        """Return the partitioned table *parent* and those above it, the root last, as a transaction
        sees them, or, where it has dropped them, as all others do.
        """
        if parent is None:
            return []
        for xids in (own_xids, NO_XIDS):
            with contextlib.suppress(DecodingError):
                found = self._mirror.resolve_oid(parent[0], xids).descriptor
                if found is not None:
                    return [_plain(table) for table in (found, *found.ancestors)]
        return []

    def _rows(self, oid: int, own_xids: Collection[int]) -> TableRows | None:
        try:
            return self._mirror.table_rows(oid, own_xids)
        except DecodingError:
            return None

    def _state(self, rows: TableRows | None, own_xids: Collection[int]) -> TableState | None:
        try:
            return None if rows is None else self._mirror.table_state(rows, own_xids)
        except DecodingError:
            # Of a type that can't be described. Rows of such a table are an error, its DDL alone is
            # not: it is as if it were not there.
            return None

    def _is_captured(self, oid: int, state: TableState | None, own_xids: Collection[int]) -> bool:
        if state is None:
            return False
        if not self._capture.selects_tables:
            return True
        descriptor = self._mirror.resolve_oid(oid, own_xids).descriptor
        return descriptor is not None and self._capture.captures(descriptor)

    def _tell(self, oid: int, top_xid: int, xid: int, state: TableState | None) -> None:
        self._told.setdefault(top_xid, {}).setdefault(oid, []).append((xid, state))


def _content(
    oid: int, before: TableState | None, after: TableState | None, *, is_rewritten: bool
) -> dict[str, Any]:
    """Return a SCHEMA_CHANGE's section: the table's definitions, null where there is none."""
    return {
        "oid": oid,
        "before": None if before is None else before.to_json(),
        "after": None if after is None else after.to_json(),
        "replaced_defaults": after.replaced_defaults(before) if before and after else (),
        "rewritten": is_rewritten or bool(before and after and before.storage != after.storage),
    }


def _names(above: Sequence[RelationDescriptor]) -> list[tuple[int, str, str]]:
    """Return who partitioned tables are."""
    return [(table.oid, table.schema, table.name) for table in above]


def _plain(table: RelationDescriptor) -> RelationDescriptor:
    """Return a table without how it is published, and what is above it."""
    return replace(table, publications=(), database_publications=(), memberships=(), ancestors=())
