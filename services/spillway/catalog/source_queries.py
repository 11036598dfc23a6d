"""What a bootstrap, of either kind, asks the server about itself and its catalogs.

Nothing here needs more than a login. Whatever PostgreSQL objects to becomes a SourceError.

Source: src/backend/utils/misc/pg_controldata.c; src/backend/utils/adt/{xid8funcs,dbsize}.c
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spillway.catalog.database_facts import DatabaseFacts
from spillway.catalog.layout import (
    GLOBAL_TABLESPACE,
    CatalogLayout,
    PhysicalColumn,
    TrackedCatalog,
)
from spillway.errors import CheckpointNotStored, NotReady, SourceError, SourceUnreachable
from spillway.pg.connecting import connect, ended_by
from spillway.pg.encoding import server_encoding
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Connection = psycopg.Connection[tuple[Any, ...]]

_POLL_SECONDS: Final = 0.2
_LOCK_TIMEOUT: Final = "2s"
#: Less than creating a slot waits for a consistent point, which so is told the reason.
_CHECKPOINT_WAIT_MAX_S: Final = 60.0
#: A checkpoint that was asked for goes on when nobody waits for it; we wait where we can be
#: cancelled. With more WAL than this since the last checkpoint, a bootstrap asks for another.
_WAL_TO_READ_BYTES: Final = 64 << 20
#: … and waits this long for it. A role that may not ask for one has all of the WAL redone.
_NEW_CHECKPOINT_WAIT_S: Final = 10.0
_CHECKPOINT_REQUEST_TIMEOUT: Final = "1s"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What pg_control_checkpoint() says."""

    redo_lsn: Lsn
    timeline_id: int
    #: with the epoch
    next_xid: int
    oldest_active_xid: int


@contextlib.contextmanager
def connected(conninfo: str, cancel: threading.Event | None = None) -> Iterator[Connection]:
    """Connect, and turn what PostgreSQL objects to into a SourceError.

    Raises:
        SourceError: there is no connection (its subclass says why), or a query failed.
        NotReady: *cancel* was set while an answer was waited for.
    """
    try:
        with (
            connect(
                conninfo, application_name="spillway bootstrap", client_encoding="UTF8"
            ) as connection,
            ended_by(cancel or threading.Event(), connection),
        ):
            # Whatever the role's settings are: names mean the system's, and waiting is our own
            # affair.
            connection.execute("SET search_path = pg_catalog")
            connection.execute("SET statement_timeout = 0")
            yield connection
    except psycopg.OperationalError as error:
        if cancel is not None and cancel.is_set():
            raise _cancelled() from None
        raise SourceUnreachable(
            f"the catalog can't be read: {' '.join(str(error).split())}",
            hint="Check that the server runs, and its log.",
            sqlstate=error.sqlstate,
        ) from error
    except psycopg.Error as error:
        raise SourceError(
            f"the catalog can't be read: {error}".strip(),
            hint="The DSN's role must be allowed to read the system catalogs, as any role is by "
            "default.",
            sqlstate=error.sqlstate,
        ) from error


def read_facts(
    connection: Connection,
) -> tuple[DatabaseFacts, int, int]:
    """Return facts of the database, server_version_num and the system identifier.

    Raises:
        SourceError: the server is in recovery, or the database has an encoding that Python lacks.
        UnsupportedWal: the major is not supported.
    """
    in_recovery, version, system_id, oid, tablespace, encoding = query_row(
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


def read_checkpoint(connection: Connection) -> Checkpoint:
    """Return the last checkpoint's facts."""
    redo, timeline, next_xid, oldest_active = query_row(
        connection,
        "SELECT redo_lsn::text, timeline_id, next_xid, oldest_active_xid::text::int8"
        " FROM pg_control_checkpoint()",
    )
    epoch, xid = next_xid.split(":")
    return Checkpoint(Lsn.parse(redo), timeline, int(epoch) << 32 | int(xid), oldest_active)


def checkpoint_at_hand(
    connection: Connection,
    first_lsn: int,
    progress: Callable[[str], None],
    cancel: threading.Event,
    *,
    wait_max_s: float = _CHECKPOINT_WAIT_MAX_S,
) -> Checkpoint:
    """Return the last checkpoint's facts once its redo point is at *first_lsn*, where WAL at hand
    begins, or later.

    An older one is of no use. Then the server is asked for a new one, where the role may; else its
    next one is awaited, and either for *wait_max_s*. WAL from *first_lsn* on must stay at hand
    meanwhile.

    Raises:
        CheckpointNotStored: there was none in that time.
        NotReady: *cancel* was set.
    """
    checkpoint = read_checkpoint(connection)
    behind = query_value(
        connection,
        f"SELECT (pg_current_wal_insert_lsn() - '{checkpoint.redo_lsn}')::int8",
    )
    if behind > _WAL_TO_READ_BYTES:
        # What the catalog went through since then is all to be redone; a new checkpoint is sooner
        # there.
        progress(
            f"having the source make a checkpoint: its last one is {behind >> 20} MB of WAL back"
        )
        deadline = time.monotonic() + _NEW_CHECKPOINT_WAIT_S
        before = checkpoint.redo_lsn
        if _request_checkpoint(connection):
            while (checkpoint := read_checkpoint(connection)).redo_lsn == before:
                if cancel.wait(_POLL_SECONDS) or time.monotonic() >= deadline:
                    break
    if checkpoint.redo_lsn >= first_lsn:
        return checkpoint
    progress(
        f"waiting for a checkpoint of the source: its last one began at {checkpoint.redo_lsn}, WAL "
        f"is stored from {Lsn(first_lsn)} on"
    )
    _request_checkpoint(connection)
    deadline = time.monotonic() + wait_max_s
    while (checkpoint := read_checkpoint(connection)).redo_lsn < first_lsn:
        if time.monotonic() >= deadline:
            raise CheckpointNotStored(
                f"WAL from the source's last checkpoint at {checkpoint.redo_lsn} on is no longer "
                f"stored; it begins at {Lsn(first_lsn)}",
                hint="Run CHECKPOINT on the source, or wait for its next one; decoding is tried "
                "again by itself.",
                lsn=str(checkpoint.redo_lsn),
                first_lsn=str(Lsn(first_lsn)),
            )
        if cancel.wait(_POLL_SECONDS):
            raise _cancelled()
    return checkpoint


def _request_checkpoint(connection: Connection) -> bool:
    """Ask for a checkpoint, without waiting for its end; return whether the role may."""
    connection.execute(f"SET statement_timeout = '{_CHECKPOINT_REQUEST_TIMEOUT}'")
    may = True
    try:
        connection.execute("CHECKPOINT")
    except psycopg.errors.InsufficientPrivilege:
        may = False
    except psycopg.errors.QueryCanceled:
        pass
    connection.execute("SET statement_timeout = 0")
    return may


def wait_for_old_transactions(
    connection: Connection,
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
        oldest = query_value(
            connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8"
        )
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
    connection: Connection,
    catalogs: Sequence[TrackedCatalog],
    progress: Callable[[str], None],
    cancel: threading.Event,
) -> Iterator[None]:
    """Run the block in one REPEATABLE READ transaction that keeps the catalogs from being
    rewritten.

    The locks come before the snapshot. ACCESS SHARE is what any query takes. The lock of a view is
    one of what it shows, too, and asks for no privilege on that.

    Raises:
        NotReady: *cancel* was set while somebody held ACCESS EXCLUSIVE on a catalog.
    """
    names = sql.SQL(", ").join(
        sql.Identifier("pg_catalog", c.view or c.name) for c in catalogs if not c.is_toast
    )
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
    connection: Connection,
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
    connection: Connection,
    catalogs: Sequence[TrackedCatalog],
    facts: DatabaseFacts,
) -> tuple[dict[int, RelFileLocator], dict[int, int]]:
    """Return where each catalog is stored, and the relation map (mapped relation's oid →
    relfilenode).

    Call it with the catalogs locked; pg_relation_filenode() looks at the present, not at a
    snapshot.
    """
    shared = {c.oid for c in catalogs if c.is_shared}
    locations = {
        oid: RelFileLocator(GLOBAL_TABLESPACE, 0, rel)
        if oid in shared
        else RelFileLocator(facts.default_tablespace, facts.database_oid, rel)
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


def provoke_running_xacts(connection: Connection) -> None:
    """Have a running-xacts record written: at once where the role may, else within 15 s.

    The background writer logs one every 15 s if anything was written since; a transaction that
    takes an xid is enough for that.
    """
    for statement in ("SELECT pg_log_standby_snapshot()", "CHECKPOINT"):
        try:
            connection.execute(statement)
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InsufficientPrivilege):
            continue
        return
    connection.execute("SELECT pg_current_xact_id()")


def silent(_message: str) -> None:
    """Take progress messages that nobody wants."""


def _cancelled() -> NotReady:
    return NotReady("the bootstrap was cancelled while it waited", hint="Start it again.")


def query_row(connection: Connection, query: str) -> tuple[Any, ...]:
    """Return the one row of *query*."""
    row = connection.execute(query).fetchone()
    if row is None:
        raise SourceError(f"the server gave no answer to: {query}")
    return row


def query_value(connection: Connection, query: str) -> Any:
    """Return the one value of *query*."""
    return query_row(connection, query)[0]
