"""Exact snapshots of the source: a snapshot at an LSN, and the tables as of it, for whoever copies
tables and follows a slot then.

A snapshot that SQL takes has no LSN: transactions become visible in another order than their commit
records stand in WAL. What is needed is both, an LSN S and a snapshot that has every transaction
whose commit record starts before S and no other: changes from S on complete what is copied as of
it. The service, which decodes the source's WAL, pairs the two and waits for nobody
(:mod:`spillway.source_snapshots.pairing`). Where it can't be asked, or has none to give, the server
does, which waits for transactions that run (:mod:`spillway.receiver.temporary_slot`). So::

    source                       writes a record of WAL, which ends behind F: where WAL ended when
                                 it was asked
    the service, or the server   ──▶ S > F, the name of a snapshot
    holder (SQL)                 BEGIN; SET TRANSACTION SNAPSHOT; pg_export_snapshot() ──▶ what
                                 those who copy import
    the service, or the server   gives its own up: nothing keeps WAL
    holder                       LOCK … ACCESS SHARE; describe the tables; stay open until all is
                                 copied

S is behind F, and so behind whatever the slot has delivered, and behind each snapshot that was
taken before: a consumer tells by the LSN which of two it has, and its tables move forward only. The
service's snapshot would not always be so by itself. Where nothing was written since the last one,
it is at the same LSN: that is why a record is written. Where a commit waits for a synchronous
standby, the snapshot is before that commit, which the slot may have delivered: then another
snapshot is taken, a few times, and at last the server is asked, which waits for that commit.

The holder keeps two things: the snapshot, so VACUUM keeps the rows that it sees, and the shape of
the tables: DDL waits (as for pg_dump). DDL that came between S and the lock would show other
columns, or an empty heap, to the older snapshot. So the tables are described as of the snapshot and
as they are now, and where the two differ a new snapshot is taken.

Runs in one process; those that copy (:mod:`spillway.consumer.table_copy`) may be others. The DSN's
password is in no message and no ``repr``.

Source: ImportSnapshot (src/backend/utils/time/snapmgr.c)
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
from psycopg import sql

from spillway.catalog.descriptor import ColumnDescriptor, RelationDescriptor, TypeDescriptor
from spillway.errors import LakeError, NotReady, SourceError, SpillwayError
from spillway.pg.byte_session import Name, take_bytes
from spillway.pg.connecting import connect
from spillway.pg.conninfo import redact, resolve_hosts, sql_conninfo
from spillway.pg.encoding import readable
from spillway.pg.lsn import Lsn
from spillway.pg.text_settings import TextSettings
from spillway.plugins.arrow_copy import session_settings
from spillway.plugins.arrow_schema import (
    ALL_ROOTS,
    SchemaOptions,
    TablePlan,
    plan_partition,
    plan_table,
)
from spillway.plugins.shown_tables import shown_tables
from spillway.receiver.table_privileges import check_readable
from spillway.receiver.temporary_slot import exported_by_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from spillway.consumer.slot import ExportedSnapshot, SourceIdentity

Connection = psycopg.Connection[tuple[Any, ...]]

_ATTEMPTS: Final = 5
_LOCK_TIMEOUT: Final = "10s"
#: Who looks at a table that the holder has locked waits only behind DDL that waits for the holder:
#: nobody would see that deadlock.
_LOOK_TIMEOUT: Final = "100ms"
_POLL_S: Final = 0.2
#: Snapshots of the service that are not late enough, until the server is asked: a commit may be
#: about to be visible.
_EARLY_MAX: Final = 10
#: How often a snapshot that the service holds may be missing before it is another server's.
_MISSING_MAX: Final = 3
#: SQLSTATEs of SET TRANSACTION SNAPSHOT for one that is not there: up to 16, from 17 on, and for
#: one of another database.
_NO_SUCH_SNAPSHOT: Final = ("22023", "42704", "0A000")

_TABLES: Final = """
SELECT nspname, relname, pg_catalog.pg_table_size(c.oid)::int8
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = relnamespace
 WHERE relkind = 'r' AND relpersistence = 'p' AND c.oid >= 16384
   AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
 ORDER BY 1, 2
"""
#: A partitioned table's rows are in its leaves, and each of them is a table of its own in WAL.
_LEAVES: Final = """
SELECT leaf_schema.nspname, leaf.relname
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace,
       LATERAL pg_catalog.pg_partition_tree(c.oid) t
  JOIN pg_catalog.pg_class leaf ON leaf.oid = t.relid
  JOIN pg_catalog.pg_namespace leaf_schema ON leaf_schema.oid = leaf.relnamespace
 WHERE c.relkind = 'p' AND n.nspname || '.' || c.relname = %s AND t.isleaf ORDER BY 1, 2
"""
_LEAVES_OF: Final = """
SELECT leaf_schema.nspname, leaf.relname FROM pg_catalog.pg_partition_tree(%s::oid::regclass) t
  JOIN pg_catalog.pg_class leaf ON leaf.oid = t.relid
  JOIN pg_catalog.pg_namespace leaf_schema ON leaf_schema.oid = leaf.relnamespace
 WHERE t.isleaf AND leaf.relkind <> 'p' ORDER BY 1, 2
"""
#: Every partitioned table, those that it is a partition of, its leaves in order, and their size.
_PARTITIONED: Final = """
SELECT c.oid::int8, n.nspname, c.relname,
       ARRAY(SELECT a.relid::oid::int8 FROM pg_catalog.pg_partition_ancestors(c.oid) a
              WHERE a.relid <> c.oid),
       coalesce(l.leaves, '[]'::jsonb), coalesce(l.size, 0)::int8
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace,
       LATERAL (
           SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('schema', leaf_schema.nspname,
                      'table', leaf.relname) ORDER BY leaf_schema.nspname, leaf.relname) AS leaves,
                  sum(pg_catalog.pg_table_size(leaf.oid)) AS size
             FROM pg_catalog.pg_partition_tree(c.oid) t
             JOIN pg_catalog.pg_class leaf ON leaf.oid = t.relid
             JOIN pg_catalog.pg_namespace leaf_schema ON leaf_schema.oid = leaf.relnamespace
            WHERE t.isleaf AND leaf.relkind <> 'p'
       ) l
 WHERE c.relkind = 'p' AND c.relpersistence = 'p' AND c.oid >= 16384
"""
_RELATION: Final = """
SELECT c.oid::int8, relkind::text, relpersistence::text, relreplident::text, relfilenode::int8,
       pg_catalog.has_table_privilege(c.oid, 'SELECT')
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = relnamespace
      WHERE nspname = %s AND relname = %s
"""
_COLUMNS: Final = """
SELECT attnum::int, attname::text, atttypid::int8, atttypmod, attlen::int, attbyval, attalign::text,
    attisdropped,
       attnotnull, attgenerated::text, attidentity::text
  FROM pg_catalog.pg_attribute WHERE attrelid = %s AND attnum > 0 ORDER BY attnum
"""
_KEYS: Final = """
SELECT indisprimary, indisreplident, indisvalid AND indimmediate, indimmediate,
       (indkey::int2[])[0:indnkeyatts - 1]
  FROM pg_catalog.pg_index WHERE indrelid = %s ORDER BY indexrelid
"""
_TYPES: Final = """
WITH RECURSIVE used(oid) AS (
    SELECT pg_catalog.unnest(%s::oid[])
    UNION
    SELECT x.oid FROM used JOIN pg_catalog.pg_type t USING (oid), LATERAL (VALUES (typelem),
        (typbasetype)) x(oid)
     WHERE x.oid <> 0
)
SELECT t.oid::int8, nspname::text, typname::text, typtype::text, typcategory::text, typlen::int,
    typbyval, typalign::text,
       typelem::int8, typelem <> 0 AND typsubscript = 'pg_catalog.array_subscript_handler'::regproc,
       typdelim::text, typbasetype::int8, typtypmod,
       ARRAY(SELECT e.oid::int8 FROM pg_catalog.pg_enum e WHERE enumtypid = t.oid
             ORDER BY enumsortorder),
       ARRAY(SELECT enumlabel::text FROM pg_catalog.pg_enum e WHERE enumtypid = t.oid
             ORDER BY enumsortorder)
  FROM used JOIN pg_catalog.pg_type t USING (oid) JOIN pg_catalog.pg_namespace n
      ON n.oid = typnamespace
"""


class _NotThere(Exception):
    """The server that is read has no snapshot that the service holds: it is not its source."""


class _Changed(Exception):
    """A table is not what it was at the snapshot's LSN: take another snapshot."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table that could be loaded, with about what it holds.

    Of a database in SQL_ASCII names have surrogates for bytes that are no characters; :attr:`name`
    is what is shown.
    """

    schema: str
    table: str
    size_bytes: int
    #: schema and name of its partitions, if it is partitioned and taken as one
    partitions: tuple[tuple[str, str], ...] | None = None

    @property
    def shown(self) -> tuple[str, str]:
        """Schema and name as they are shown, and as changes of it have them."""
        return readable(self.schema), readable(self.table)

    @property
    def name(self) -> str:
        return ".".join(self.shown)

    @property
    def copied_names(self) -> list[str]:
        """The tables that its rows are read from, as the source has their names."""
        own = [(self.schema, self.table)] if self.partitions is None else self.partitions
        return [".".join(each) for each in own]


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table as of a snapshot: how its rows become columns, and how far its heap reaches."""

    plan: TablePlan
    #: pg_class.relfilenode
    relfilenode: int
    #: no row that the snapshot sees is in a block from here on; of a partitioned one, all
    #: partitions' together
    blocks: int
    #: of one that is partitioned: where its rows are
    partitions: tuple[CopiedTable, ...] | None = None

    @property
    def name(self) -> str:
        return self.plan.read_name

    @property
    def parts(self) -> tuple[CopiedTable, ...]:
        """What its blocks are of, in order."""
        return (self,) if self.partitions is None else self.partitions

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the copied columns, in the order in which they are copied."""
        plan = self.plan
        return tuple(c.name for c in plan.columns) + tuple(c.name for c in plan.made)

    @property
    def schema(self) -> pa.Schema:
        """What changes of it look like: of a partitioned one, those of its first partition."""
        return self.partitions[0].plan.schema if self.partitions else self.plan.schema

    def same_shape(self, other: CopiedTable) -> bool:
        """Say whether the rows of both mean the same, and are in the same heap."""
        return (
            self.plan.descriptor == other.plan.descriptor
            and self.relfilenode == other.relfilenode
            and len(self.partitions or ()) == len(other.partitions or ())
            and all(
                a.same_shape(b)
                for a, b in zip(self.partitions or (), other.partitions or (), strict=True)
            )
        )


class SourceSnapshot:
    """The source as of :attr:`lsn`, for as long as this is open."""

    def __init__(
        self, holder: Connection, lsn: int, name: str, contents: str, taken_at_us: int
    ) -> None:
        self._holder = holder
        #: everything whose commit record starts before it is in the snapshot
        self.lsn = lsn
        #: what SET TRANSACTION SNAPSHOT is given
        self.name = name
        #: pg_current_snapshot(): tells it from another one of the same name
        self.contents = contents
        #: microseconds since 1970
        self.taken_at_us = taken_at_us
        self.tables: dict[str, CopiedTable] = {}

    @property
    def connection(self) -> Connection:
        """The session that holds it, which may read as of it."""
        return self._holder

    def alive(self) -> bool:
        """Say whether it can still be imported."""
        try:
            self._holder.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        self._holder.close()


class Source:
    """The database that a slot decodes, over SQL.

    Args:
        dsn: a libpq connection string.
        options: the slot's plugin options: they say how values are shown.
        exports: gives snapshots that the service has paired with an LSN; without it, or when it has
            none to give, the server makes a temporary slot.
        identity: which cluster the service's source is; None: not known. A server of another one
            is not asked for a slot.
    """

    def __init__(
        self,
        dsn: str,
        options: Mapping[str, str],
        exports: Callable[[], AbstractContextManager[ExportedSnapshot]] | None = None,
        *,
        identity: SourceIdentity | None = None,
    ) -> None:
        self._dsn = dsn
        self._exports = exports
        self._identity = identity
        self._conninfo = resolve_hosts(sql_conninfo(dsn))
        with self._session() as connection:
            version = connection.info.server_version
            self.database = connection.info.dbname
        settings, rest = TextSettings.from_options(options, version)
        self.session_settings = session_settings(settings)
        self._schema_options = SchemaOptions(
            version,
            numeric_as_text=rest.get("numeric_as") == "text",
            temporal_as_text=rest.get("temporal_as") == "text",
            safe_names=rest.get("column_names") == "safe",
            settings=settings,
            not_utf8_escaped=rest.get("not_utf8") == "escape",
            **shown_tables(dict(rest)),
        )

    @property
    def conninfo(self) -> str:
        """How an executor connects. Holds the password: for a connection only, never for a
        message.
        """
        return self._conninfo

    def connected(self) -> Connection:
        """Connect to the source, in autocommit; whoever asks closes it.

        Raises:
            SourceError: no connection.
        """
        return self._connect()

    def wal_lsn(self) -> int:
        """Return how far the server's WAL is written."""
        with self._session() as connection:
            row = connection.execute("SELECT pg_catalog.pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return int(Lsn.parse(row[0]))

    def tables(self, wanted: Sequence[str]) -> list[SourceTable]:
        """Return the tables that *wanted* names, a partitioned one's leaves in its place; all of
        them when it is empty. Names with dots may be those of two tables.

        Raises:
            LakeError: there is none of a name.
        """
        with self._session() as connection:
            rows = cast("list[tuple[str, str, int]]", connection.execute(_TABLES).fetchall())
            found: dict[str, list[SourceTable]] = {}
            for table in (SourceTable(*row) for row in rows):
                found.setdefault(table.name, []).append(table)
            for root in self._roots(connection):
                for partition in root.copied_names:
                    found.pop(readable(partition), None)
                found[root.name] = [root]
            if not wanted:
                return [table for named in found.values() for table in named]
            chosen: dict[str, list[SourceTable]] = {}
            for name in wanted:
                names = [name] if name in found else self._leaves(connection, name)
                unknown = [n for n in names if n not in found]
                if unknown or not names:
                    raise LakeError(
                        f"there is no table {name} in database {self.database} that WAL has "
                        "changes of",
                        hint="Give schema.table of a permanent table; without a name all are "
                        "taken.",
                        relation=name,
                    )
                chosen.update((n, found[n]) for n in names)
        return [table for named in chosen.values() for table in named]

    def _roots(self, connection: Connection) -> list[SourceTable]:
        """Return the partitioned tables that are taken as one: the topmost of those asked for."""
        wanted = self._schema_options.partition_roots
        if not wanted:
            return []
        every = ALL_ROOTS in wanted
        roots: list[SourceTable] = []
        under: set[int] = set()
        rows = connection.execute(_PARTITIONED).fetchall()
        # A table comes behind those that it is a partition of.
        for oid, schema, table, above, leaves, size in sorted(rows, key=lambda row: len(row[3])):
            name = readable(f"{schema}.{table}")
            if under.intersection(above) or not (every or name in wanted):
                continue
            under.add(oid)
            names = tuple((each["schema"], each["table"]) for each in leaves)
            roots.append(SourceTable(schema, table, size, names))
        return roots

    def _leaves(self, connection: Connection, name: str) -> list[str]:
        return [readable(".".join(row)) for row in connection.execute(_LEAVES, [name]).fetchall()]

    def snapshot(
        self, tables: Sequence[SourceTable], tell: Callable[[str], None], stopping: threading.Event
    ) -> SourceSnapshot:
        """Take a snapshot and describe *tables* as of it. Its LSN is later than the end of WAL was.

        Raises:
            SourceError: the server refuses.
            LakeError: a table is locked, gone, or may not be read.
            NotReady: *stopping* was set.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            taken = self.take(tell, stopping)
            try:
                self._describe_all(taken, tables)
            except _Changed as change:
                taken.close()
                tell(f"{change} while the snapshot was taken: taking another one")
                if attempt == _ATTEMPTS or stopping.wait(attempt * _POLL_S):
                    break
            except BaseException:
                taken.close()
                raise
            else:
                return taken
        raise LakeError(
            f"the tables were altered each time that a snapshot was taken, {attempt} times",
            hint="Load again when no ALTER TABLE, TRUNCATE or VACUUM FULL is at work on them.",
        )

    def reopened(
        self, name: str, contents: str, lsn: int, tables: Sequence[SourceTable]
    ) -> SourceSnapshot | None:
        """Return a snapshot that somebody took before, None when it is there no more."""
        connection = self._connect()
        try:
            taken = self._import(connection, name, lsn)
            if taken.contents == contents:
                self._describe_all(taken, tables)
                return taken
        except (psycopg.Error, _Changed, LakeError):
            pass
        connection.close()
        return None

    def take(self, tell: Callable[[str], None], stopping: threading.Event) -> SourceSnapshot:
        """Take a snapshot without any tables. Its LSN is later than the end of WAL was.

        Raises:
            SourceError: the server refuses.
            NotReady: *stopping* was set.
        """
        if self._exports is not None:
            try:
                return self._exported(self._exports, self._write(), stopping)
            except _NotThere:
                # It has snapshots of its own to give, of other rows, at LSNs of other WAL.
                raise self._other_server() from None
            except SpillwayError as error:
                tell(f"the service has no snapshot to give ({error.message}): asking the source")

        def over() -> SpillwayError | None:
            return _stopped() if stopping.is_set() else None

        if stopping.is_set():
            raise _stopped()
        self._check_cluster()
        slot = f"spillway_load_{time.time_ns():x}"

        def slow() -> None:
            tell("waiting for the transactions that run on the source to finish")

        with exported_by_slot(self._dsn, slot, slow, over) as (lsn, name):
            return self._imported(name, lsn)

    def check_server(self) -> None:
        """Check that the server that is read is the service's source, as far as that can be told:
        it has what the service holds there, or at least its system identifier.

        Raises:
            SourceError: it is not, or refuses.
        """
        if self._exports is not None:
            try:
                self._exported(self._exports, 0, threading.Event()).close()
            except _NotThere:
                raise self._other_server() from None
            except SpillwayError:
                # There is none to be had.
                pass
            else:
                return
        self._check_cluster()

    def _check_cluster(self) -> None:
        if self._identity is None:
            return
        with self._session() as connection:
            row = connection.execute(
                "SELECT system_identifier::text FROM pg_catalog.pg_control_system()"
            ).fetchone()
        assert row is not None
        if row[0] != self._identity.system_id:
            raise self._other_server()

    def _exported(
        self,
        exports: Callable[[], AbstractContextManager[ExportedSnapshot]],
        behind_lsn: int,
        stopping: threading.Event,
    ) -> SourceSnapshot:
        """Import a snapshot of the service that is of a later LSN than *behind_lsn*.

        One that is too early is imported, too: whether the server has it says whose it is, and
        comparing LSNs of two servers says nothing.

        Raises:
            NotReady: there is none that is late enough.
            _NotThere: the server doesn't have what the service holds.
            SpillwayError: it has none to give, or the server refuses.
        """
        missing = 0
        for _ in range(_EARLY_MAX):
            with exports() as exported:
                try:
                    taken = self._imported(exported.name, exported.lsn, exported.contents)
                except _NotThere:
                    # The session that held it may have ended just now.
                    missing += 1
                    if missing == _MISSING_MAX:
                        raise
                else:
                    if taken.lsn > behind_lsn:
                        return taken
                    taken.close()
            if stopping.wait(_POLL_S):
                break
        raise NotReady(
            f"its snapshots are as of {Lsn(exported.lsn)}, before a commit that is in WAL and that "
            "nobody sees yet",
            hint="Does it wait for a synchronous standby? pg_stat_activity shows SyncRep then.",
        )

    def _write(self) -> int:
        """Have the server write a record of WAL; return where WAL ended before it."""
        with self._session() as connection:
            row = connection.execute(
                "SELECT pg_catalog.pg_current_wal_insert_lsn()::text"
            ).fetchone()
            assert row is not None
            # The commit of a transaction that wrote nothing waits for no standby.
            connection.execute("SELECT pg_catalog.pg_current_xact_id()")
        return int(Lsn.parse(row[0]))

    def _imported(self, name: str, lsn: int, contents: str | None = None) -> SourceSnapshot:
        """Import a snapshot, which is the service's and has these *contents* if they are given.

        Raises:
            _NotThere: the service's is not there, or another one has its name.
            SourceError: the server refuses.
        """
        holder = self._connect()
        try:
            taken = self._import(holder, name, lsn)
        except psycopg.Error as error:
            holder.close()
            if contents is not None and error.sqlstate in _NO_SUCH_SNAPSHOT:
                raise _NotThere from error
            raise self._failed(error) from error
        except BaseException:
            holder.close()
            raise
        if contents in (None, taken.contents):
            return taken
        taken.close()
        raise _NotThere

    def _other_server(self) -> SourceError:
        return SourceError(
            "the service's source and the server that is read are not the same, or not the same "
            f"database: {self.database}, which is read, has no snapshot that the service holds, or "
            "is another cluster's",
            hint="Give the DSN of the server that the service's source is, and of the slot's "
            "database there; not that of a standby, or of a copy.",
        )

    def _import(self, holder: Connection, name: str, lsn: int) -> SourceSnapshot:
        begin_with_snapshot(holder, self.session_settings, name)
        row = holder.execute(
            "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text,"
            " (EXTRACT(epoch FROM pg_catalog.now()) * 1000000)::int8"
        ).fetchone()
        assert row is not None
        return SourceSnapshot(holder, lsn, *row)

    def _describe_all(self, taken: SourceSnapshot, tables: Sequence[SourceTable]) -> None:
        holder = taken._holder  # noqa: SLF001 - made here
        holder.execute(
            sql.SQL("SELECT pg_catalog.set_config('lock_timeout', {}, true)").format(_LOCK_TIMEOUT)
        )
        with self._session() as now:
            now.execute("SELECT pg_catalog.set_config('lock_timeout', %s, false)", [_LOOK_TIMEOUT])
            for wanted in tables:
                schema, table, name = wanted.schema, wanted.table, wanted.name
                try:
                    with holder.transaction():
                        lock(holder, schema, table)
                        for partition in wanted.partitions or ():
                            lock(holder, *partition)
                except psycopg.errors.LockNotAvailable:
                    raise LakeError(
                        f"{name} is locked by somebody else for more than {_LOCK_TIMEOUT}",
                        hint="Try again when the ALTER TABLE, TRUNCATE or VACUUM FULL is done; "
                        "pg_locks shows whose.",
                        relation=name,
                    ) from None
                except psycopg.errors.InsufficientPrivilege:
                    # It was revoked since it was looked at.
                    check_readable(self._dsn, wanted.copied_names)
                    raise _Changed(f"privileges on {name} were granted") from None
                except psycopg.errors.UndefinedTable:
                    raise _Changed(f"{name} was dropped") from None
                except psycopg.Error as error:
                    raise self._failed(error) from error
                try:
                    described = self._describe_whole(holder, wanted)
                    present = self._describe_whole(now, wanted)
                except psycopg.errors.LockNotAvailable:
                    # It goes first; else it would have to wait for the whole copy.
                    raise _Changed(f"somebody waits to alter {name}") from None
                if described is None or present is None or not described.same_shape(present):
                    raise _Changed(f"{name} was altered")
                taken.tables[name] = described

    def _describe_whole(self, connection: Connection, wanted: SourceTable) -> CopiedTable | None:
        whole = self._describe(connection, wanted.schema, wanted.table)
        if whole is None or wanted.partitions is None:
            return whole
        root = whole.plan.descriptor
        rows = connection.execute(_LEAVES_OF, [root.oid]).fetchall()
        # Others were attached since the names were looked up: they are not locked.
        if {(schema, table) for schema, table in rows} != set(wanted.partitions):
            return None
        partitions = [self._describe(connection, *name, root=root) for name in wanted.partitions]
        known = [each for each in partitions if each is not None]
        if len(known) < len(partitions):
            return None
        return replace(whole, blocks=sum(each.blocks for each in known), partitions=tuple(known))

    def _describe(
        self,
        connection: Connection,
        schema: str,
        table: str,
        root: RelationDescriptor | None = None,
    ) -> CopiedTable | None:
        row = connection.execute(_RELATION, [schema, table]).fetchone()
        if row is None:
            return None
        oid, kind, persistence, identity, relfilenode, may_read = row
        if not may_read:
            check_readable(self._dsn, [f"{schema}.{table}"])
            raise _Changed(f"privileges on {readable(f'{schema}.{table}')} were granted")
        columns = tuple(
            ColumnDescriptor(*column) for column in connection.execute(_COLUMNS, [oid]).fetchall()
        )
        primary, deferrable, identifying = self._keys(connection, oid, identity, columns)
        oids = [c.type_oid for c in columns if not c.dropped]
        types = {
            row[0]: replace(
                TypeDescriptor(*row), enum_labels=tuple(zip(label_oids, labels, strict=True))
            )
            for *row, label_oids, labels in connection.execute(_TYPES, [oids]).fetchall()
        }
        descriptor = RelationDescriptor(
            oid, schema, table, kind, persistence, identity, columns, types,
            primary_key=primary, primary_key_deferrable=deferrable, identity_columns=identifying,
        )  # fmt: skip
        sizes = connection.execute(
            "SELECT pg_catalog.pg_relation_size(%s::oid::regclass) / "
            "current_setting('block_size')::int8",
            [oid],
        ).fetchone()
        assert sizes is not None
        options = self._schema_options
        plan = (
            plan_table(descriptor, options)
            if root is None
            else plan_partition(descriptor, root, options)
        )
        # A partitioned table has no storage.
        return CopiedTable(plan, relfilenode, sizes[0] or 0)

    @staticmethod
    def _keys(
        connection: Connection, oid: int, identity: str, columns: tuple[ColumnDescriptor, ...]
    ) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
        """Return the primary key's attnums, whether it is deferrable, and the replica identity's
        attnums.
        """
        primary: tuple[int, ...] = ()
        deferrable = False
        of: dict[str, tuple[int, ...]] = {"f": tuple(c.attnum for c in columns if not c.dropped)}
        for is_primary, is_identity, usable, immediate, attnums in connection.execute(
            _KEYS, [oid]
        ).fetchall():
            key = tuple(n for n in attnums if n > 0)
            if is_primary:
                primary, deferrable = key, not immediate
                of["d"] = key if usable else ()
            if is_identity and usable:
                of["i"] = key
        return primary, deferrable, of.get(identity, ())

    def _connect(self) -> Connection:
        return connect_sql(self._conninfo)

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        with self._connect() as connection:
            connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog', false)")
            try:
                yield connection
            except psycopg.Error as error:
                raise self._failed(error) from error

    def _failed(self, error: psycopg.Error) -> SourceError:
        return SourceError(
            f"the source refused: {' '.join(redact(str(error), self._dsn).split())}",
            hint="Check the source's log.",
            sqlstate=error.sqlstate,
        )


def names_any(error: SpillwayError, tables: Iterable[str]) -> bool:
    """Say whether a snapshot failed for one of *tables* (``schema.table``): without it there is one
    of the others.
    """
    one, some = error.details.get("relation"), error.details.get("relations")
    named = {one, *(some if isinstance(some, list) else ())}
    return any(readable(table) in named for table in tables)


def connect_sql(conninfo: str) -> Connection:
    """Connect in autocommit, in UTF8 or, where the database has no encoding, by bytes.

    Raises:
        SourceError: no connection.
        psycopg.Error: it broke.
    """
    connection = connect(conninfo, client_encoding="UTF8")
    try:
        take_bytes(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def begin_with_snapshot(connection: Connection, settings: Mapping[str, str], name: str) -> None:
    """Make *connection* see what the snapshot *name* sees, and print as *settings* say."""
    names, values = list(settings), list(settings.values())
    connection.execute(
        "SELECT pg_catalog.set_config(w.name, w.value, false)"
        " FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) w(name, "
        "value) JOIN pg_catalog.pg_settings s ON pg_catalog.lower(s.name) = "
        "pg_catalog.lower(w.name)",
        [names, values],
    )
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))


def lock(connection: Connection, schema: str, table: str, *, wait: bool = True) -> None:
    """Keep others from altering a table until the transaction's end."""
    connection.execute(
        sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE{}").format(
            Name(schema, table), sql.SQL("" if wait else " NOWAIT")
        )
    )


def _stopped() -> NotReady:
    return NotReady("the load was stopped while it waited for a snapshot", hint="Run it again.")
