"""The raw bootstrap: catalogs from their files, for superusers, and where full_page_writes is off.

``pg_read_binary_file`` reads the files of the catalogs, of the relation map and of pg_xact while
the server works. What is read is at least as new as the last checkpoint's redo point R, since a
checkpoint writes everything before it; WAL from R on brings the rest. A page that was written
meanwhile is ahead of WAL: its pd_lsn says up to where, and records before that are skipped, but an
image is taken in any case.

Unlike SQL's rows, the files have every tuple with its header: dead ones, those of unfinished
transactions, and missing values as they are. So nothing waits for old transactions, and no type is
unreadable.

- A file is read until two readings of each page agree: a page may be caught half written. With
  full_page_writes on, its image in WAL would mend that; with it off nothing would.
- What became of a tuple's transactions: see ``raw_storage``.
- Updaters of multixacts from before R are asked of pg_get_multixact_members.

Source: src/backend/access/transam/clog.c, src/backend/utils/adt/genfile.c, CreateCheckPoint in
xlog.c
"""

from __future__ import annotations

import contextlib
import posixpath
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.sql import Identifier

from spillway.catalog.bootstrap import Bootstrap
from spillway.catalog.heaps import CatalogHeaps
from spillway.catalog.layout import PG_CLASS, catalogs_of
from spillway.catalog.mirror import CatalogMirror
from spillway.catalog.page import PAGE_SIZE
from spillway.catalog.raw_storage import Transactions, admit, read_storage
from spillway.catalog.relation_map import parse_map_file
from spillway.catalog.source_queries import (
    checkpoint_at_hand,
    connected,
    locked_catalogs,
    provoke_running_xacts,
    query_row,
    query_value,
    read_facts,
    read_layouts,
    read_locations,
    silent,
)
from spillway.errors import SourceError
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.catalog.descriptor_registry import DescriptorRegistry
    from spillway.catalog.tuple_store import CatalogTuple

    Connection = psycopg.Connection[tuple[Any, ...]]

#: A multiple of the page size; small beside the 1 GB that a bytea may have.
_CHUNK_SIZE: Final = 8 * 1024 * 1024
_SEGMENT_SIZE: Final = 1024 * 1024 * 1024
_READINGS_MAX: Final = 100


def bootstrap_raw(
    conninfo: str,
    *,
    first_lsn: int = 0,
    registry: DescriptorRegistry | None = None,
    progress: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Bootstrap:
    """Read the catalogs' files of the database that *conninfo* names; otherwise as
    ``bootstrap_sql``.

    The role must be a superuser, or have been granted EXECUTE on
    ``pg_read_binary_file(text, bigint, bigint, boolean)``. Runs a CHECKPOINT where the role may.

    Raises:
        SourceError: the server can't be reached, is a standby, does not let the role read files, or
            has a damaged one.
        UnsupportedWal: it is of a major that Spillway does not read.
        CheckpointNotStored: as bootstrap_sql.
        NotReady: cancelled while it waited for a rewrite of a catalog.
    """
    progress = progress or silent
    cancel = cancel or threading.Event()
    with connected(conninfo, cancel) as connection:
        facts, server_version, system_id = read_facts(connection)
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute("CHECKPOINT")
        checkpoint = checkpoint_at_hand(connection, first_lsn, progress, cancel)
        catalogs = catalogs_of(facts.major)
        with locked_catalogs(connection, catalogs, progress, cancel):
            xmin, xmax = query_row(
                connection,
                "SELECT pg_snapshot_xmin(s)::text::int8, pg_snapshot_xmax(s)::text::int8"
                " FROM pg_current_snapshot() AS s",
            )
            layouts = read_layouts(connection, catalogs, facts)
            locations, _ = read_locations(connection, catalogs, facts)
            paths = dict(
                connection.execute(
                    "SELECT oid::int8, pg_relation_filepath(oid) FROM pg_catalog.pg_class"
                    " WHERE oid = ANY(%s::oid[])",
                    [list(locations)],
                ).fetchall()
            )
            files = _Files(connection)
            directory = posixpath.dirname(paths[PG_CLASS.oid])
            map_file = files.read(posixpath.join(directory, "pg_filenode.map"), 0, PAGE_SIZE)
            heaps = CatalogHeaps(facts, layouts, horizon=checkpoint.next_xid & 0xFFFFFFFF)
            try:
                heaps.locations.relation_map = parse_map_file(map_file, heaps.version)
                tuples: list[CatalogTuple] = []
                for oid in layouts:
                    storage = heaps.locations.add(locations[oid], oid, complete=True)
                    heaps.locations.current[oid] = storage
                    tuples.extend(read_storage(files, paths[oid], storage))
            except ValueError as error:
                raise SourceError(
                    f"a catalog's file contradicts itself: {error}",
                    hint="Is the server damaged? Compare with pg_amcheck, or use the SQL "
                    "bootstrap.",
                ) from error
            transactions = Transactions(files, checkpoint)
            admit(heaps, tuples, transactions, partial(_updater, connection))
            consistent_lsn = Lsn.parse(
                query_value(connection, "SELECT pg_current_wal_insert_lsn()::text")
            )
        provoke_running_xacts(connection)
        return Bootstrap(
            mirror=CatalogMirror(heaps, consistent_lsn=consistent_lsn, registry=registry),
            redo_lsn=checkpoint.redo_lsn,
            consistent_lsn=consistent_lsn,
            timeline_id=checkpoint.timeline_id,
            system_id=system_id,
            server_version=server_version,
            snapshot_xmin=xmin,
            snapshot_xmax=xmax,
        )


class _Files:
    """The server's files, by pg_read_binary_file."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Return up to *size* bytes; b'' beyond the end or when there is no such file."""
        try:
            # A savepoint: a refusal must not end the transaction that holds the locks.
            with self._connection.transaction():
                row = self._connection.execute(
                    "SELECT pg_read_binary_file(%s, %s, %s, true)",
                    [path, offset, size],
                    binary=True,
                ).fetchone()
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceError(
                "the role may not read the server's files, which the raw bootstrap needs",
                hint="GRANT EXECUTE ON FUNCTION pg_catalog.pg_read_binary_file(text, bigint, "
                "bigint, boolean) TO "
                f"{Identifier(self._connection.info.user).as_string(self._connection)}; in this "
                "database. Or set full_page_writes = on: then a login is enough.",
                path=path,
            ) from error
        return b"" if row is None or row[0] is None else bytes(row[0])

    def pages(self, path: str) -> dict[int, bytes]:
        """Return every page of a relation's main fork, each as two readings agreed on it."""
        pages: dict[int, bytes] = {}
        position = 0
        while True:
            name = path if position < _SEGMENT_SIZE else f"{path}.{position // _SEGMENT_SIZE}"
            chunk = self._stable(name, position % _SEGMENT_SIZE)
            for at in range(0, len(chunk) - PAGE_SIZE + 1, PAGE_SIZE):
                pages[(position + at) // PAGE_SIZE] = chunk[at : at + PAGE_SIZE]
            position += _CHUNK_SIZE
            if len(chunk) < _CHUNK_SIZE:
                return pages

    def _stable(self, name: str, offset: int) -> bytes:
        previous = self.read(name, offset, _CHUNK_SIZE)
        agreed: dict[int, bytes] = {}
        for _ in range(_READINGS_MAX):
            chunk = self.read(name, offset, _CHUNK_SIZE)
            starts = range(0, len(chunk) - len(chunk) % PAGE_SIZE, PAGE_SIZE)
            for at in starts:
                page = chunk[at : at + PAGE_SIZE]
                if at not in agreed and previous[at : at + PAGE_SIZE] == page:
                    agreed[at] = page
            if all(at in agreed for at in starts):
                return b"".join(agreed[at] for at in starts)
            previous = chunk
        raise SourceError(
            f"{name} changes faster than it can be read", hint="Try again when fewer DDL runs."
        )


def _updater(connection: Connection, multixact: int) -> int:
    """The member of a multixact that updates, 0 without one or when it is too old to be known."""
    try:
        with connection.transaction():
            rows = connection.execute(
                "SELECT xid::text::int8 FROM pg_get_multixact_members(%s::text::xid)"
                " WHERE mode IN ('nokeyupd', 'upd')",
                [str(multixact)],
            ).fetchall()
    except psycopg.Error:
        return 0
    return int(rows[0][0]) if rows else 0
