"""Bootstrap: how a mirror begins, on a running server and without stopping anything.

:func:`bootstrap_sql` needs a login only. It reads the catalogs as any client does, with ctid and
xmin, in one snapshot S, and has WAL from an older redo point R put right what SQL does not show:

1. R and N, the redo point and the next xid of the last checkpoint (pg_control_checkpoint). Any page
   that changes after R begins with a full-page image in WAL; any xid from N on is in WAL as a
   whole.
2. Wait until no transaction before N runs any more.
3. In one REPEATABLE READ transaction, under ACCESS SHARE locks on the catalogs, which exclude
   VACUUM FULL and CLUSTER of them: snapshot S, the rows, where each catalog is stored.
4. ``consistent_lsn`` is where WAL ends afterwards, the locks still held. From there on the mirror
   is exact.

What this rests on:

- Rows that SQL shows have a committed xmin; their xmax means nothing. Whoever deleted such a row
  and is not finished has an xid from N on, so the deletion, with an image, comes in WAL.
- A tuple in an image that SQL did not show at its place is dead to S, unless its xid is from N on:
  then WAL says what becomes of it.
- pg_authid, which a login may not read, is shown by pg_roles, without places: see
  ``shared_catalogs``.
- SQL does not show the rows of TOAST tables, which a login may not read, but the values in them:
  see ``toast_value``.

:func:`~spillway.catalog.bootstrap_raw.bootstrap_raw` is the other way, for superusers and for
servers with full_page_writes = off.

Source: GetRunningTransactionData, src/backend/storage/ipc/procarray.c; CreateCheckPoint, xlog.c;
BackgroundWriterMain, bgwriter.c
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spillway._kernels.catalog import heap
from spillway.catalog.heaps import CatalogHeaps
from spillway.catalog.layout import PG_ATTRIBUTE, catalogs_of
from spillway.catalog.mirror import CatalogMirror
from spillway.catalog.packed_pages import pack_rows
from spillway.catalog.send_format import SentValues
from spillway.catalog.source_queries import (
    Checkpoint,
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
    wait_for_old_transactions,
)
from spillway.catalog.tuple_store import NO_BLOCK, CatalogTuple
from spillway.collector import collector
from spillway.errors import SourceError
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from spillway.catalog.database_facts import DatabaseFacts
    from spillway.catalog.descriptor_registry import DescriptorRegistry
    from spillway.catalog.layout import CatalogLayout


#: Every so much of a catalog is worth saying.
_TELL_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 1 << 20
#: of COPY's binary format: its fixed header, of which the last four bytes are the length of what
#: extends it
_HEADER_BYTES: Final = 19
_EXTENSION_AT: Final = 15
_TRAILER: Final = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A mirror and where to go on from.

    The owner applies WAL from ``redo_lsn`` on (see :class:`CatalogMirror`), and keeps it until a
    later state is serialised. Nothing before ``consistent_lsn`` may be decoded.
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


def bootstrap_sql(
    conninfo: str,
    *,
    first_lsn: int = 0,
    registry: DescriptorRegistry | None = None,
    progress: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Bootstrap:
    """Read the catalogs of the database that *conninfo* names, over plain SQL.

    Any role that may log in will do. WAL from the returned ``redo_lsn`` on must be at hand: make
    the physical slot, reserving WAL, *before* the call. Takes tens of milliseconds, but waits for
    every transaction that was running at the last checkpoint: *progress* is told so, setting
    *cancel* ends it. A caller whose WAL begins at *first_lsn* gets a ``redo_lsn`` from there on;
    that may take a new checkpoint. Leaves the server with a running-xacts record due within 15 s,
    so that decoding can begin.

    Raises:
        SourceError: the server can't be reached, is a standby, or has full_page_writes = off.
        UnsupportedWal: it is of a major that Spillway does not read.
        CheckpointNotStored: the last checkpoint is from before *first_lsn*, and no other one came.
        NotReady: cancelled.
    """
    progress = progress or silent
    cancel = cancel or threading.Event()
    with connected(conninfo, cancel) as connection:
        facts, server_version, system_id = read_facts(connection)
        if query_value(connection, "SHOW full_page_writes") != "on":
            raise SourceError(
                "the server has full_page_writes = off, and its catalogs can't be read over SQL "
                "then",
                hint="ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf(); CHECKPOINT;"
                " or give a superuser's DSN, for the raw bootstrap.",
            )
        checkpoint = checkpoint_at_hand(connection, first_lsn, progress, cancel)
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
        xmin, xmax = query_row(
            connection,
            "SELECT pg_snapshot_xmin(s)::text::int8, pg_snapshot_xmax(s)::text::int8"
            " FROM pg_current_snapshot() AS s",
        )
        layouts = read_layouts(connection, catalogs, facts)
        locations, relation_map = read_locations(connection, catalogs, facts)
        heaps = CatalogHeaps(facts, layouts, horizon=checkpoint.next_xid & 0xFFFFFFFF)
        heaps.locations.relation_map = relation_map
        for oid in layouts:
            heaps.locations.current[oid] = heaps.locations.add(locations[oid], oid, complete=False)
        # Rows of a large catalog are a million objects within a few seconds, none of them in a
        # cycle, and the collector would go through those that there are again and again: for
        # 20,000 tables two of five seconds, when all were there at once.
        with collector.off():
            _copy_catalogs(connection, heaps, progress)
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


def _copy_catalogs(
    connection: psycopg.Connection[tuple[Any, ...]],
    heaps: CatalogHeaps,
    progress: Callable[[str], None],
) -> None:
    """Read every catalog into its storage, a piece at a time: what is kept of a row is bytes, as
    after a restart.
    """
    # Names come as they are stored: SQL_ASCII means no conversion. Rows come in the order in which
    # they lie.
    connection.execute(
        "SET LOCAL client_encoding = 'SQL_ASCII'; SET LOCAL max_parallel_workers_per_gather = 0"
    )
    sent = SentValues(heaps)
    # What attmissingval is made of is read before it.
    for oid, layout in sorted(heaps.layouts.items(), key=lambda of: of[0] == PG_ATTRIBUTE.oid):
        if layout.catalog.is_toast:
            continue
        storage = heaps.locations.current[oid]
        name, place = layout.catalog.name, "ctid, xmin"
        if layout.catalog.view and not query_value(
            connection, f"SELECT has_table_privilege('pg_catalog.{name}', 'SELECT')"
        ):
            name, place = layout.catalog.view, f"'({NO_BLOCK},0)'::tid, '2'::xid"
            storage.unplaced = True
        query = sql.SQL("COPY (SELECT {}, {} FROM pg_catalog.{}) TO STDOUT (FORMAT binary)").format(
            sql.SQL(place),
            sql.SQL(", ").join(map(sql.Identifier, layout.names)),
            sql.Identifier(name),
        )
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            rows = _rows(copy_pieces(_told(copy, name, progress)), layout, heaps.facts)
            if storage.unplaced:
                for block, offset, xmin, row in rows:
                    tid = block << 16 | offset
                    heaps.admit(CatalogTuple(storage, tid, xmin=xmin, xmax=None, row=row))
            else:
                pack_rows(storage, _with_missing(rows, sent) if oid == PG_ATTRIBUTE.oid else rows)
    connection.execute("SET LOCAL client_encoding = 'UTF8'")


def _rows(
    pieces: Iterable[bytes], layout: CatalogLayout, facts: DatabaseFacts
) -> Iterator[tuple[int, int, int, Any]]:
    """Yield block, offset, xmin, row. The block is NO_BLOCK of what only a view shows."""
    for piece in pieces:
        for block, offset, xmin, values in heap.parse_copy(
            piece, layout.kinds, facts.encoding, layout.errors
        ):
            yield block, offset, xmin, layout.sent_row(values)


def _with_missing(
    attributes: Iterable[tuple[int, int, int, Any]], sent: SentValues
) -> Iterator[tuple[int, int, int, Any]]:
    for block, offset, xmin, row in attributes:
        if row.attmissingval is None:
            yield block, offset, xmin, row
        else:
            value = sent.missing_value(row.attmissingval, row.atttypid)
            yield block, offset, xmin, row._replace(attmissingval=value)


def copy_pieces(messages: Iterable[bytes], piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
    """Cut what ``COPY … (FORMAT binary)`` sends, a message a row, into pieces that have header and
    trailer each.

    A catalog of 500,000 rows is 70 MB as it comes, and several times that as objects; nobody needs
    all of it at once.

    Source: protocol.sgml, "COPY Operations" (the backend's messages are one row each)
    """
    header, size = b"", 0
    parts: list[bytes] = []
    for message in messages:
        if size >= piece_bytes:
            piece = b"".join(parts)
            if not header:
                header = piece[: _HEADER_BYTES + int.from_bytes(piece[_EXTENSION_AT:_HEADER_BYTES])]
            yield piece + _TRAILER
            parts, size = [header], 0
        parts.append(message)
        size += len(message)
    # Its trailer is the server's: without it, it is cut short.
    yield b"".join(parts)


def _told(copy: psycopg.Copy, name: str, progress: Callable[[str], None]) -> Iterator[bytes]:
    """Yield what *copy* brings, and say how much it was."""
    size = told = 0
    for block in copy:
        size += len(block)
        if size - told >= _TELL_BYTES:
            told = size
            progress(f"{size >> 20} MB of {name}")
        yield bytes(block)
