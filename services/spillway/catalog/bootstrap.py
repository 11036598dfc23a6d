"""Bootstrap: how a mirror begins, on a running server and without stopping anything.

:func:`bootstrap_sql` needs a login only. It reads the catalogs as any client does, with ctid and xmin,
in one snapshot S, and has WAL from an older redo point R put right what SQL does not show:

1. R and N, the redo point and the next xid of the last checkpoint (pg_control_checkpoint). Any page that
   changes after R begins with a full-page image in WAL; any xid from N on is in WAL as a whole.
2. Wait until no transaction before N runs any more.
3. In one REPEATABLE READ transaction, under ACCESS SHARE locks on the catalogs, which exclude VACUUM FULL
   and CLUSTER of them: snapshot S, the rows, where each catalog is stored.
4. ``consistent_lsn`` is where WAL ends afterwards, the locks still held. From there on the mirror is exact.

What this rests on:

- Rows that SQL shows have a committed xmin; their xmax means nothing. Whoever deleted such a row and is
  not finished has an xid from N on, so the deletion, with an image, comes in WAL.
- A tuple in an image that SQL did not show at its place is dead to S, unless its xid is from N on: then
  WAL says what becomes of it.

:func:`~spillway.catalog.bootstrap_raw.bootstrap_raw` is the other way, for superusers and for servers
with full_page_writes = off.

Source: GetRunningTransactionData, src/backend/storage/ipc/procarray.c; CreateCheckPoint, xlog.c;
BackgroundWriterMain, bgwriter.c
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spillway._kernels import heap
from spillway.catalog.layout import (
    PG_ATTRIBUTE,
    PG_ENUM,
    PG_TYPE,
    CatalogLayout,
    PhysicalColumn,
    TrackedCatalog,
    catalogs_of,
)
from spillway.catalog.mirror import CatalogMirror, DatabaseFacts
from spillway.catalog.send_format import SentValues
from spillway.catalog.tuple_store import CatalogTuple, Page
from spillway.errors import NotReady, SourceError
from spillway.pg.encoding import server_encoding
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spillway.catalog.descriptors import DescriptorRegistry

#: called with a sentence for people, now and then while the bootstrap waits
Progress = "Callable[[str], None]"

_POLL_SECONDS: Final = 0.2
_LOCK_TIMEOUT: Final = "2s"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A mirror and where to go on from.

    The owner applies WAL from ``redo_lsn`` on (see :class:`CatalogMirror`), and keeps it until a later
    state is serialised. Nothing before ``consistent_lsn`` may be decoded.
    """

    mirror: CatalogMirror
    #: apply WAL from here
    redo_lsn: Lsn
    #: descriptors are exact from here
    consistent_lsn: Lsn
    timeline_id: int
    system_id: int
    #: server_version_num
    server_version: int
    #: the snapshot in which the catalogs were read, 64-bit xids
    snapshot_xmin: int
    snapshot_xmax: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What pg_control_checkpoint() says."""

    redo_lsn: Lsn
    timeline_id: int
    #: with the epoch
    next_xid: int
    oldest_active_xid: int


def bootstrap_sql(
    conninfo: str,
    *,
    registry: DescriptorRegistry | None = None,
    progress: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Bootstrap:
    """Read the catalogs of the database that *conninfo* names, over plain SQL.

    Any role that may log in will do. WAL from the returned ``redo_lsn`` on must be at hand: make the
    physical slot, reserving WAL, *before* the call. Takes tens of milliseconds, but waits for every
    transaction that was running at the last checkpoint: *progress* is told so, setting *cancel* ends it.
    Leaves the server with a running-xacts record due within 15 s, so that decoding can begin.

    Raises:
        SourceError: the server can't be reached, is a standby, or has full_page_writes = off.
        UnsupportedWal: it is of a major that Spillway does not read.
        NotReady: cancelled.
    """
    progress = progress or _silent
    cancel = cancel or threading.Event()
    with connected(conninfo) as connection:
        facts, server_version, system_id = read_facts(connection)
        if _value(connection, "SHOW full_page_writes") != "on":
            raise SourceError(
                "the server has full_page_writes = off, and its catalogs can't be read over SQL then",
                hint="ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf(); CHECKPOINT;"
                " or give a superuser's DSN, for the raw bootstrap.",
            )
        checkpoint = read_checkpoint(connection)
        wait_for_old_transactions(connection, checkpoint.next_xid, progress, cancel)
        return _read_in_snapshot(
            connection, facts, server_version, system_id, checkpoint, registry, progress, cancel
        )


def _read_in_snapshot(
    connection: psycopg.Connection[tuple[Any, ...]],
    facts: DatabaseFacts,
    server_version: int,
    system_id: int,
    checkpoint: Checkpoint,
    registry: DescriptorRegistry | None,
    progress: Callable[[str], None],
    cancel: threading.Event,
) -> Bootstrap:
    catalogs = catalogs_of(facts.major)
    with locked_catalogs(connection, catalogs, progress, cancel):
        xmin, xmax = _row(
            connection,
            "SELECT pg_snapshot_xmin(s)::text::int8, pg_snapshot_xmax(s)::text::int8"
            " FROM pg_current_snapshot() AS s",
        )
        layouts = read_layouts(connection, catalogs, facts)
        locations, relation_map = read_locations(connection, catalogs, facts)
        tables = _copy_catalogs(connection, layouts, facts)
        consistent_lsn = Lsn.parse(_value(connection, "SELECT pg_current_wal_insert_lsn()::text"))
    _provoke_running_xacts(connection)
    mirror = CatalogMirror(
        facts,
        layouts,
        consistent_lsn=consistent_lsn,
        horizon=checkpoint.next_xid & 0xFFFFFFFF,
        registry=registry,
    )
    mirror.locations.relation_map = relation_map
    for oid, rows in tables.items():
        storage = mirror.locations.add(locations[oid], oid, complete=False)
        mirror.locations.current[oid] = storage
        for block, offset, row_xmin, row in rows:
            if block not in storage.pages:
                storage.pages[block] = Page(physical=False)
            mirror.admit(
                CatalogTuple(storage, block << 16 | offset, xmin=row_xmin, xmax=None, row=row)
            )
    return Bootstrap(
        mirror=mirror,
        redo_lsn=checkpoint.redo_lsn,
        consistent_lsn=consistent_lsn,
        timeline_id=checkpoint.timeline_id,
        system_id=system_id,
        server_version=server_version,
        snapshot_xmin=xmin,
        snapshot_xmax=xmax,
    )


def _copy_catalogs(
    connection: psycopg.Connection[tuple[Any, ...]],
    layouts: dict[int, CatalogLayout],
    facts: DatabaseFacts,
) -> dict[int, list[tuple[int, int, int, Any]]]:
    """Read every catalog: block, offset, xmin, row."""
    # Names come as they are stored: SQL_ASCII means no conversion.
    connection.execute("SET LOCAL client_encoding = 'SQL_ASCII'")
    tables: dict[int, list[tuple[int, int, int, Any]]] = {}
    for oid, layout in layouts.items():
        query = sql.SQL(
            "COPY (SELECT ctid, xmin, {} FROM pg_catalog.{}) TO STDOUT (FORMAT binary)"
        ).format(
            sql.SQL(", ").join(map(sql.Identifier, layout.catalog.columns)),
            sql.Identifier(layout.catalog.name),
        )
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            content = b"".join(bytes(block) for block in copy)
        tables[oid] = [
            (block, offset, xmin, layout.sent_row(values))
            for block, offset, xmin, values in heap.parse_copy(
                content, layout.kinds, facts.encoding, facts.encoding_errors
            )
        ]
    connection.execute("SET LOCAL client_encoding = 'UTF8'")
    types = {row.oid: row for *_, row in tables[PG_TYPE.oid]}
    enums: dict[int, list[Any]] = {}
    for *_, row in tables[PG_ENUM.oid]:
        enums.setdefault(row.enumtypid, []).append(row)
    sent = SentValues(types, enums)
    tables[PG_ATTRIBUTE.oid] = [
        (block, offset, xmin, row)
        if row.attmissingval is None
        else (
            block,
            offset,
            xmin,
            row._replace(attmissingval=sent.missing_value(row.attmissingval, row.atttypid)),
        )
        for block, offset, xmin, row in tables[PG_ATTRIBUTE.oid]
    ]
    return tables


# What both ways of bootstrapping ask the server.


@contextlib.contextmanager
def connected(conninfo: str) -> Any:
    """Connect, and turn what PostgreSQL objects to into a SourceError.

    Raises:
        SourceError: it can't be reached, or a query failed.
    """
    try:
        with psycopg.connect(
            conninfo, autocommit=True, application_name="spillway bootstrap", client_encoding="UTF8"
        ) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise SourceError(
            f"the catalog can't be read: {error}".strip(),
            hint="Check that the server runs and that the DSN's role may log in to this database.",
        ) from error
    except psycopg.Error as error:
        raise SourceError(
            f"the catalog can't be read: {error}".strip(),
            hint="The DSN's role must be allowed to read the system catalogs, as any role is by default.",
            sqlstate=error.sqlstate,
        ) from error


def read_facts(
    connection: psycopg.Connection[tuple[Any, ...]],
) -> tuple[DatabaseFacts, int, int]:
    """Return facts of the database, server_version_num and the system identifier.

    Raises:
        SourceError: the server is in recovery, or the database has an encoding that Python lacks.
        UnsupportedWal: the major is not supported.
    """
    in_recovery, version, system_id, oid, tablespace, encoding = _row(
        connection,
        "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int,"
        " (SELECT system_identifier FROM pg_control_system()), oid::int8, dattablespace::int8,"
        " pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()",
    )
    major = version_of_server(version).major
    if in_recovery:
        raise SourceError(
            "the server is a standby: its catalog can't be read at a position in WAL",
            hint="Give the primary's DSN.",
        )
    codec = server_encoding(encoding)
    facts = DatabaseFacts(major, oid, tablespace, codec.codec, codec.errors)
    return facts, version, system_id & 0xFFFFFFFFFFFFFFFF


def read_checkpoint(connection: psycopg.Connection[tuple[Any, ...]]) -> Checkpoint:
    """Return the last checkpoint's facts."""
    redo, timeline, next_xid, oldest_active = _row(
        connection,
        "SELECT redo_lsn::text, timeline_id, next_xid, oldest_active_xid::text::int8"
        " FROM pg_control_checkpoint()",
    )
    epoch, xid = next_xid.split(":")
    return Checkpoint(Lsn.parse(redo), timeline, int(epoch) << 32 | int(xid), oldest_active)


def wait_for_old_transactions(
    connection: psycopg.Connection[tuple[Any, ...]],
    next_xid: int,
    progress: Callable[[str], None],
    cancel: threading.Event,
) -> None:
    """Wait until every transaction before *next_xid* (64 bits) has finished.

    Raises:
        NotReady: *cancel* was set.
    """
    told = None
    while True:
        oldest = _value(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8")
        if oldest >= next_xid:
            return
        if oldest != told:
            progress(
                f"waiting for transaction {oldest & 0xFFFFFFFF} and others before"
                f" {next_xid & 0xFFFFFFFF} to finish"
            )
            told = oldest
        if cancel.wait(_POLL_SECONDS):
            raise _cancelled()


@contextlib.contextmanager
def locked_catalogs(
    connection: psycopg.Connection[tuple[Any, ...]],
    catalogs: Sequence[TrackedCatalog],
    progress: Callable[[str], None],
    cancel: threading.Event,
) -> Any:
    """Run the block in one REPEATABLE READ transaction that keeps the catalogs from being rewritten.

    The locks come before the snapshot. ACCESS SHARE is what any query takes.

    Raises:
        NotReady: *cancel* was set while somebody held ACCESS EXCLUSIVE on a catalog.
    """
    names = sql.SQL(", ").join(sql.Identifier("pg_catalog", c.name) for c in catalogs)
    while True:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
            break
        except psycopg.errors.LockNotAvailable:
            connection.execute("ROLLBACK")
            progress("waiting for a VACUUM FULL or CLUSTER of a system catalog to finish")
            if cancel.wait(_POLL_SECONDS):
                raise _cancelled() from None
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


def read_layouts(
    connection: psycopg.Connection[tuple[Any, ...]],
    catalogs: Sequence[TrackedCatalog],
    facts: DatabaseFacts,
) -> dict[int, CatalogLayout]:
    """Read from pg_attribute how the catalogs' tuples are laid out."""
    columns: dict[int, list[PhysicalColumn]] = {c.oid: [] for c in catalogs}
    for relation, name, type_oid, length, align in connection.execute(
        "SELECT attrelid::int8, attname::text, atttypid::int8, attlen, attalign::text"
        " FROM pg_catalog.pg_attribute WHERE attrelid = ANY(%s::oid[]) AND attnum > 0"
        " ORDER BY attrelid, attnum",
        [list(columns)],
    ):
        columns[relation].append(PhysicalColumn(name, type_oid, length, align))
    return {
        c.oid: CatalogLayout(c, columns[c.oid], facts.encoding, facts.encoding_errors)
        for c in catalogs
    }


def read_locations(
    connection: psycopg.Connection[tuple[Any, ...]],
    catalogs: Sequence[TrackedCatalog],
    facts: DatabaseFacts,
) -> tuple[dict[int, RelFileLocator], dict[int, int]]:
    """Return where each catalog is stored, and the relation map (mapped relation's oid → relfilenode).

    Call it with the catalogs locked; pg_relation_filenode() looks at the present, not at a snapshot.
    """
    locations = {
        oid: RelFileLocator(facts.default_tablespace, facts.database_oid, rel)
        for oid, rel in connection.execute(
            "SELECT oid::int8, pg_relation_filenode(oid)::int8"
            " FROM pg_catalog.pg_class WHERE oid = ANY(%s::oid[])",
            [[c.oid for c in catalogs]],
        )
    }
    mapped: list[tuple[int, int]] = connection.execute(
        "SELECT oid::int8, pg_relation_filenode(oid)::int8 FROM pg_catalog.pg_class"
        " WHERE relfilenode = 0 AND NOT relisshared AND relkind IN ('r', 'i', 't', 'm')"
        " AND pg_relation_filenode(oid) IS NOT NULL"
    ).fetchall()
    return locations, dict(mapped)


def _provoke_running_xacts(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Have a running-xacts record written: at once where the role may, else within 15 s.

    The background writer logs one every 15 s if anything was written since; a transaction that takes an
    xid is enough for that.
    """
    for statement in ("SELECT pg_log_standby_snapshot()", "CHECKPOINT"):
        try:
            connection.execute(statement)
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InsufficientPrivilege):
            continue
        return
    connection.execute("SELECT pg_current_xact_id()")


def _silent(_message: str) -> None:
    pass


def _cancelled() -> NotReady:
    return NotReady("the bootstrap was cancelled while it waited", hint="Start it again.")


def _row(connection: psycopg.Connection[tuple[Any, ...]], query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    if row is None:
        raise SourceError(f"the server gave no answer to: {query}")
    return row


def _value(connection: psycopg.Connection[tuple[Any, ...]], query: str) -> Any:
    return _row(connection, query)[0]
