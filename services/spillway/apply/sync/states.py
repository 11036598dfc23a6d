"""How far each table of a subscription is synchronized, durable on the target.

``spillway.tables`` has a row for each table, and its states are those of pg_subscription_rel::

    i  init           known, nothing copied
    d  data sync      rows are copied; what is durable is whole ranges, which the row counts
    f  finished copy  all rows are there as of ``lsn``; the stream may be further by now
    s  sync done      the table is the source's as of ``lsn``: changes from there are the stream's
    r  ready          the stream has passed ``lsn``: it is a table like any other

``lsn`` divides transactions as the snapshot does: what has its commit record before it is in the
table, and nothing else. So a transaction belongs to the stream when its *commit_lsn* (``final_lsn``
of pgoutput's Begin) is not before it.

A table in ``i`` that has an ``lsn`` is *set aside*: the stream wrote it up to there, and met what
it could not write. It keeps its rows, and DDL that comes for it waits, until somebody has emptied
it on the target; then it is like any other that has nothing yet.

A row is changed in the target's transaction that it is about, so that state and rows can't differ,
whichever process or server dies. What is in memory here follows the commit, never leads it.

:class:`TableStates` is shared by the worker (:meth:`TableStates.should_apply`) and the threads that
copy. Reading is without a lock: what readers see is replaced as a whole.

Source: pg_subscription_rel.h (src/include/catalog), should_apply_changes_for_rel
(src/backend/replication/logical/worker.c)
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from spillway.apply.schema.names_in_the_way import aside, is_aside
from spillway.apply.sync.deferred_ddl import DEFERRED_SQL, DeferredDdl
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import psycopg

    Connection = psycopg.Connection[Any]

#: What whoever sets the target up runs.
TABLES_SQL: Final = (
    """CREATE TABLE IF NOT EXISTS spillway.tables (
    subscription text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    state "char" NOT NULL,
    lsn pg_lsn,
    snapshot text,
    ranges text,
    ranges_done int[] NOT NULL DEFAULT '{}',
    is_ours boolean NOT NULL DEFAULT false,
    dropped_indexes text[] NOT NULL DEFAULT '{}',
    rows bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    bytes_total bigint,
    error text,
    started_at timestamptz,
    ended_at timestamptz,
    PRIMARY KEY (subscription, schema_name, table_name))""",
    DEFERRED_SQL,
    # A table of its own, for a target whose role may not alter what its owner has made.
    """CREATE TABLE IF NOT EXISTS spillway.relations (
    subscription text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    relation_id bigint NOT NULL,
    PRIMARY KEY (subscription, schema_name, table_name))""",
)
_LOAD: Final = """
SELECT schema_name, table_name, state::text, lsn::text, snapshot, ranges, ranges_done, is_ours,
       dropped_indexes, rows, bytes, bytes_total, error
  FROM spillway.tables WHERE subscription = %s
"""
_DELETE: Final = """
DELETE FROM spillway.tables WHERE subscription = %s AND schema_name = %s AND table_name = %s
"""
_RENAME: Final = """
UPDATE spillway.tables SET schema_name = %s, table_name = %s
 WHERE subscription = %s AND schema_name = %s AND table_name = %s
"""
_RELATIONS: Final = """
SELECT schema_name, table_name, relation_id FROM spillway.relations WHERE subscription = %s
"""
_NAMED: Final = """
SELECT schema_name, table_name, relation_id FROM spillway.relations
 WHERE subscription = %s
   AND (schema_name, table_name) IN (
           SELECT * FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[]))
                      AS named(schema, name))
"""
_STORE_RELATION: Final = """
INSERT INTO spillway.relations VALUES (%s, %s, %s, %s)
    ON CONFLICT (subscription, schema_name, table_name)
    DO UPDATE SET relation_id = excluded.relation_id WHERE relations.relation_id = %s
"""
_DELETE_RELATION: Final = """
DELETE FROM spillway.relations WHERE subscription = %s AND schema_name = %s AND table_name = %s
"""
_RENAME_RELATION: Final = """
UPDATE spillway.relations SET schema_name = %s, table_name = %s
 WHERE subscription = %s AND schema_name = %s AND table_name = %s
"""
_STORE: Final = """
UPDATE spillway.tables
   SET state = %s, lsn = %s, snapshot = %s, ranges = %s, ranges_done = %s, is_ours = %s,
       dropped_indexes = %s, rows = %s, bytes = %s, bytes_total = %s, error = nullif(%s, ''),
       started_at = CASE WHEN %s THEN pg_catalog.clock_timestamp() ELSE started_at END,
       ended_at = CASE WHEN %s THEN pg_catalog.clock_timestamp() END
 WHERE subscription = %s AND schema_name = %s AND table_name = %s
"""
_STORE_RANGE: Final = """
UPDATE spillway.tables
   SET ranges_done = ranges_done || %s::int, rows = rows + %s, bytes = bytes + %s
 WHERE subscription = %s AND schema_name = %s AND table_name = %s AND state = 'd'
"""
_ADD: Final = """
INSERT INTO spillway.tables (subscription, schema_name, table_name, state)
VALUES (%s, %s, %s, 'i') ON CONFLICT DO NOTHING
"""
_READY: Final = """
UPDATE spillway.tables SET state = 'r'
 WHERE subscription = %s AND schema_name = %s AND table_name = %s AND state = 's'
"""

_TAKE_OVER: Final = """
INSERT INTO spillway.tables (subscription, schema_name, table_name, state, lsn)
VALUES (%s, %s, %s, 's', %s) ON CONFLICT DO NOTHING
"""

#: A table's schema and name, on the source.
TableName = tuple[str, str]


class SyncState(StrEnum):
    """pg_subscription_rel.srsubstate."""

    INIT = "i"
    DATA_SYNC = "d"
    FINISHED_COPY = "f"
    SYNC_DONE = "s"
    READY = "r"


@dataclass(frozen=True, slots=True)
class CopyRange:
    """Blocks [first, end) of a table of the source: what one COPY reads. Without an end: to the
    table's; without both: however the table is read, a foreign one for instance.
    """

    schema: str
    table: str
    first: int | None
    end: int | None


@dataclass(frozen=True, slots=True)
class TableState:
    """A row of ``spillway.tables``; what is not said here is in the module's docstring."""

    schema: str
    table: str
    state: SyncState = SyncState.INIT
    lsn: int = 0
    #: name and contents of the snapshot that the ranges are of, while they are copied
    snapshot: tuple[str, str] | None = None
    ranges: tuple[CopyRange, ...] = ()
    #: places in :attr:`ranges` of those that are durable
    ranges_done: frozenset[int] = frozenset()
    #: the target's table was empty, so that what is in it is what was copied
    is_ours: bool = False
    #: what makes indexes that were dropped for the copy
    dropped_indexes: tuple[str, ...] = ()
    rows: int = 0
    #: of COPY's data
    bytes: int = 0
    #: of the source's heap, about
    bytes_total: int | None = None
    #: why it does not go on, '' when it does
    error: str = ""

    @property
    def key(self) -> TableName:
        return self.schema, self.table

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def is_set_aside(self) -> bool:
        """Whether it keeps what it has until somebody empties it."""
        return self.state == SyncState.INIT and self.lsn > 0

    @property
    def is_synchronized(self) -> bool:
        """Whether the stream writes the table."""
        return self.state in (SyncState.SYNC_DONE, SyncState.READY)


class TableStates:
    """The tables of one subscription.

    Methods that take a connection write in its transaction, or, when none is open on it, in one of
    their own. :meth:`changed` tells the others, after the commit.

    Args:
        connection: to the target, which has ``spillway.tables``.
        subscription: its name.
    """

    def __init__(self, connection: Connection, subscription: str) -> None:
        self._subscription = subscription
        #: DDL of tables that the stream does not write yet
        self.deferred = DeferredDdl(subscription)
        self._lock = threading.Lock()
        self._tables: Mapping[TableName, TableState] = {}
        self._from: Mapping[TableName, int] = {}
        #: the open transaction may have put tables aside
        self._may_have_aside = False
        #: a snapshot that is asked for will not be before this
        self._held: int | None = None
        self.load(connection)

    def load(self, connection: Connection) -> None:
        """Read them from the target."""
        found = self._read(connection)
        with self._lock:
            self._replace_locked(found)

    def committed(
        self, connection: Connection
    ) -> tuple[Mapping[TableName, TableState], Mapping[TableName, int]]:
        """Return the tables as the target keeps them, and their OIDs on the source, as far as they
        are known: both as of one moment, while the stream may be renaming some.

        Args:
            connection: to the target, with no transaction open.
        """
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            return self._read(connection), self.relation_ids(connection)

    def _read(self, connection: Connection) -> Mapping[TableName, TableState]:
        found = {}
        for row in connection.execute(_LOAD, [self._subscription]).fetchall():
            schema, table, state, lsn, snapshot, ranges, done, is_ours, indexes, *rest = row
            rows, size, total, error = rest
            found[schema, table] = TableState(
                schema,
                table,
                SyncState(state),
                int(Lsn.parse(lsn)) if lsn else 0,
                None if snapshot is None else tuple(json.loads(snapshot)),
                tuple(CopyRange(*one) for one in json.loads(ranges or "[]")),
                frozenset(done),
                is_ours,
                tuple(indexes),
                rows,
                size,
                total,
                error or "",
            )
        return found

    # --- for the worker and the writers -------------------------------------------------------

    def applies_from(self, schema: str, table: str) -> int | None:
        """Return the LSN from which transactions' changes of a table are the stream's; None when
        none are yet, or the table is not one of the subscription's. Names are the source's.
        """
        return self._from.get((schema, table))

    def should_apply(self, schema: str, table: str, commit_lsn: int) -> bool:
        """Say whether the stream writes a table's changes of a transaction.

        Args:
            schema: on the source.
            table: on the source.
            commit_lsn: start of the commit record (``final_lsn`` of Begin).
        """
        since = self._from.get((schema, table))
        return since is not None and commit_lsn >= since

    @property
    def are_all_ready(self) -> bool:
        """Whether :meth:`should_apply` is true for every table, whatever the LSN."""
        return all(table.state == SyncState.READY for table in self._tables.values())

    @property
    def are_steady(self) -> bool:
        """Whether what :meth:`should_apply` says of a table is the same for every LSN: each is
        ready, or set aside.
        """
        return all(
            table.state == SyncState.READY or table.is_set_aside for table in self._tables.values()
        )

    def hold_lsn(self) -> int | None:
        """Return the LSN beyond which the slot may not be confirmed: a table that was copied as of
        it has yet to catch up. None when there is none.
        """
        with self._lock:
            of = [
                table.lsn
                for table in self._tables.values()
                if table.lsn and table.state in (SyncState.DATA_SYNC, SyncState.FINISHED_COPY)
            ]
            return min([*of, *(() if self._held is None else (self._held,))], default=None)

    def behind(self, commit_lsn: int) -> frozenset[TableName]:
        """Return the tables that are to read what they lack since their copy, from before a
        transaction that commits at *commit_lsn*; those that failed are not waited for.
        """
        with self._lock:
            held = self._held
            return frozenset(
                table.key
                for table in self._tables.values()
                if not table.error
                and (
                    table.lsn <= commit_lsn
                    if table.state in (SyncState.DATA_SYNC, SyncState.FINISHED_COPY)
                    # The snapshot that it is about to get.
                    else table.state == SyncState.INIT and held is not None and held <= commit_lsn
                )
            )

    def all(self) -> Mapping[TableName, TableState]:
        """Return them as they are now; the mapping does not change."""
        return self._tables

    def set_aside(self, connection: Connection, key: TableName, lsn: int, why: str) -> None:
        """Have the stream write a table no more, which has what commits before *lsn*. In a
        transaction of its own, which is durable when this returns.
        """
        table = TableState(*key, lsn=lsn, error=why)
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = on")
            self.store(connection, table)
        self.changed(table)

    # --- for who follows DDL -------------------------------------------------------------------

    def rename(
        self, connection: Connection, old: TableName, new: TableName, relation_id: int
    ) -> bool:
        """Have a table that the stream writes keep its state under its new name on the source;
        return whether there was one. Another one that is known by that name is put aside until its
        own turn comes (:mod:`spillway.apply.schema.names_in_the_way`). To be loaded again when the
        transaction is rolled back.

        Args:
            connection: to the target, in a transaction.
            old: what it was called up to here.
            new: what it is called from here on.
            relation_id: its OID on the source.
        """
        names = [aside(old), old, new]
        columns = [list(column) for column in zip(*names, strict=True)]
        rows = connection.execute(_NAMED, [self._subscription, *columns]).fetchall()
        oids = {(schema, table): oid for schema, table, oid in rows}
        key = aside(old) if oids.get(aside(old)) == relation_id else old
        other = self._tables.get(new)
        if key not in self._tables or oids.get(key, relation_id) != relation_id:
            return False
        if other is not None and oids.get(new, relation_id) != relation_id:
            self.move(connection, new, aside(new))
            self._may_have_aside = True
        elif other is not None and other.state != SyncState.INIT:
            return False
        self.move(connection, key, new)
        self.load(connection)
        return True

    def end_renames(self, connection: Connection) -> None:
        """Forget those that are still aside at the end of the transaction: others have their names,
        on the target too. To be loaded again when the transaction is rolled back.
        """
        if not self._may_have_aside:
            return
        self._may_have_aside = False
        if gone := [key for key in self._tables if is_aside(key)]:
            self.forget(connection, gone)
            self.load(connection)

    def take_over(self, connection: Connection, key: TableName, relation_id: int, lsn: int) -> bool:
        """Have the stream write a table from *lsn* on that is not known yet, and has what is before
        it: as a partition, by its root. Return whether it was not. To be loaded again when the
        transaction is rolled back.
        """
        values = [self._subscription, *key, str(Lsn(lsn))]
        if not connection.execute(_TAKE_OVER, values).rowcount:
            return False
        self.identify(connection, {key: relation_id}, {})
        self.load(connection)
        return True

    # --- for those that copy ------------------------------------------------------------------

    def move(self, connection: Connection, old: TableName, new: TableName) -> None:
        """Write a table's row, and what waits for it, under its new name on the source, instead of
        one that has that name. For :meth:`changed`, after the commit.
        """
        for delete, rename in ((_DELETE, _RENAME), (_DELETE_RELATION, _RENAME_RELATION)):
            connection.execute(delete, [self._subscription, *new])
            connection.execute(rename, [*new, self._subscription, *old])
        self.deferred.forget(connection, new)
        self.deferred.move(connection, old, new)

    def hold(self, lsn: int | None) -> None:
        """Say that a snapshot is asked for, which will not be before *lsn*; None: it is no more."""
        with self._lock:
            self._held = lsn

    def add(self, connection: Connection, tables: Iterable[TableName]) -> list[TableState]:
        """Add tables that are not known yet, as init; return them: for :meth:`changed`, after the
        commit.
        """
        return [
            TableState(*key)
            for key in tables
            if connection.execute(_ADD, [self._subscription, *key]).rowcount
        ]

    def relation_ids(self, connection: Connection) -> Mapping[TableName, int]:
        """Return the source's OIDs of tables, as far as they are known."""
        rows = connection.execute(_RELATIONS, [self._subscription]).fetchall()
        return {(schema, table): oid for schema, table, oid in rows}

    def name_of(self, connection: Connection, relation_id: int) -> TableName | None:
        """Return the table that has an OID on the source, as it is known."""
        query = "SELECT schema_name, table_name FROM spillway.relations"
        where = " WHERE subscription = %s AND relation_id = %s"
        row = connection.execute(f"{query}{where}", [self._subscription, relation_id]).fetchone()
        return None if row is None else (row[0], row[1])

    def identify(
        self,
        connection: Connection,
        tables: Mapping[TableName, int],
        former: Mapping[TableName, int],
    ) -> None:
        """Write down the source's OIDs of tables, of those that have *former* ones or none."""
        with connection.cursor() as cursor:
            cursor.executemany(
                _STORE_RELATION,
                [[self._subscription, *key, oid, former.get(key)] for key, oid in tables.items()],
            )

    def forget(self, connection: Connection, tables: Iterable[TableName]) -> None:
        """Remove tables that are not the subscription's any more; their rows stay. For
        :meth:`forgotten`, after the commit.
        """
        for key in tables:
            connection.execute(_DELETE, [self._subscription, *key])
            connection.execute(_DELETE_RELATION, [self._subscription, *key])
            self.deferred.forget(connection, key)

    def forgotten(self, tables: Iterable[TableName]) -> None:
        """Make known that tables were removed."""
        gone = set(tables)
        with self._lock:
            self._replace_locked({k: v for k, v in self._tables.items() if k not in gone})

    def store(self, connection: Connection, table: TableState) -> None:
        """Write a table's row, but for its ranges' progress (:meth:`store_range`)."""
        connection.execute(
            _STORE,
            [
                table.state.value,
                str(Lsn(table.lsn)) if table.lsn else None,
                None if table.snapshot is None else json.dumps(table.snapshot),
                json.dumps([[r.schema, r.table, r.first, r.end] for r in table.ranges]),
                sorted(table.ranges_done),
                table.is_ours,
                list(table.dropped_indexes),
                table.rows,
                table.bytes,
                table.bytes_total,
                table.error,
                table.state == SyncState.DATA_SYNC and not table.ranges_done,
                table.state not in (SyncState.INIT, SyncState.DATA_SYNC),
                self._subscription,
                *table.key,
            ],
        )

    def store_range(
        self, connection: Connection, table: TableName, place: int, rows: int, size: int
    ) -> None:
        """Write that a range is durable with the transaction that *connection* is in: who reads it
        finds it only whole. Waits for others that write the same table's row, until they commit.
        """
        connection.execute(
            _STORE_RANGE,
            [place, rows, size, self._subscription, *table],
        )

    def changed(self, *tables: TableState, gone: Iterable[TableName] = ()) -> None:
        """Make what was committed known to the others: tables, and names that they had before."""
        old = set(gone)
        with self._lock:
            kept = {key: table for key, table in self._tables.items() if key not in old}
            self._replace_locked({**kept, **{table.key: table for table in tables}})

    def range_changed(self, table: TableName, place: int, rows: int, size: int) -> TableState:
        """Make a range that was committed known; return the table."""
        with self._lock:
            now = self._tables[table]
            now = replace(
                now,
                ranges_done=now.ranges_done | {place},
                rows=now.rows + rows,
                bytes=now.bytes + size,
            )
            self._replace_locked({**self._tables, table: now})
        return now

    def pass_by(self, connection: Connection, position: int) -> Sequence[TableState]:
        """Make those tables ready whose ``lsn`` the stream has passed; return them. In the
        transaction of *connection*: call :meth:`changed` with them after its commit.

        Args:
            connection: to the target.
            position: every transaction with its commit record before it is applied, and the target
                keeps that: a table that is ready takes whatever comes.
        """
        passed = [
            replace(table, state=SyncState.READY)
            for table in self._tables.values()
            if table.state == SyncState.SYNC_DONE and table.lsn <= position
        ]
        for table in passed:
            connection.execute(
                _READY,
                [self._subscription, *table.key],
            )
        return passed

    def _replace_locked(self, tables: Mapping[TableName, TableState]) -> None:
        self._tables = tables
        self._from = {
            key: 0 if table.state == SyncState.READY else table.lsn
            for key, table in tables.items()
            if table.is_synchronized
        }
