"""Replay of a real server's WAL into a catalog mirror, and the comparison of the two."""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from psycopg import sql

from spillway.catalog.layout import PG_PUBLICATION_REL_TOAST
from spillway.catalog.resolution import SkipReason
from spillway.catalog.toast_value import ToastPointer, text_of_chunks
from spillway.pg import rmgr
from spillway.pg.lsn import Lsn
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from harness.cluster import Cluster, Database
    from spillway.catalog.bootstrap import Bootstrap
    from spillway.catalog.mirror import CatalogMirror
    from spillway.wal.record import Record

_INSERT_CONTAINS_NEW_TUPLE = 1 << 3
_UPDATE_CONTAINS_NEW_TUPLE = 1 << 4
_UPDATE_COMPRESSED = 1 << 5 | 1 << 6


class CatalogReplay:
    """Feeds a mirror from a cluster's pg_wal, as decoding does, without anything of decoding.

    With *audit*, the storage of every record that holds a row is resolved when the record is read,
    and the row must fit the descriptor: that is what the mirror is for.
    """

    def __init__(self, bootstrap: Bootstrap, cluster: Cluster, *, audit: bool = False) -> None:
        self.audit = audit
        self.audited = self.audited_privately = 0
        self.parents: dict[int, int] = {}
        self.mirror: CatalogMirror = bootstrap.mirror
        self.cluster = cluster
        self.position = int(bootstrap.redo_lsn)
        #: top-level xid → its subtransactions, of those that are not finished
        self.subxids: dict[int, set[int]] = {}
        self.commits = 0
        self.apply_seconds = 0.0
        self.applied = 0

    def run(self, until: int | None = None) -> None:
        """Apply everything that the server has written by now."""
        if until is None:
            # A record of our own after all others, and everything flushed up to it.
            with self.cluster.connect() as connection:
                row = connection.execute(
                    "SELECT pg_logical_emit_message(false, 'replay', 'end')::text"
                ).fetchone()
                assert row is not None
                until = int(Lsn.parse(row[0]))
                connection.execute("CREATE TABLE IF NOT EXISTS flush_me (); DROP TABLE flush_me")
        deadline = time.monotonic() + 20
        while self.position < until:
            for record in WalDirectory(self.cluster.wal_directory).records(self.position, until):
                self.feed(record)
                self.position = record.end_lsn
            if self.position < until:
                assert time.monotonic() < deadline, "WAL ends before what the server wrote"
                time.sleep(0.05)

    def feed(self, record: Record) -> None:
        if record.top_xid:
            self.subxids.setdefault(record.top_xid, set()).add(record.xid)
            self.parents[record.xid] = record.top_xid
        mirror = self.mirror
        if record.rmid == rmgr.RM_XACT_ID:
            self._transaction(record)
        elif record.rmid == rmgr.RM_STANDBY_ID and record.info & 0xF0 == rmgr.XLOG_RUNNING_XACTS:
            oldest = struct.unpack_from("<I", record.data, 16)[0]
            mirror.advance(oldest, record.lsn)
        elif record.rmid in (rmgr.RM_RELMAP_ID, rmgr.RM_SMGR_ID, rmgr.RM_MULTIXACT_ID) or any(
            ref.locator in mirror.tracked and ref.fork == 0 for ref in record.blocks
        ):
            started = time.perf_counter()
            mirror.apply(record)
            self.apply_seconds += time.perf_counter() - started
            self.applied += 1
        elif self.audit and mirror.consistent:
            self._audit(record)

    def own_xids(self, top_xid: int) -> frozenset[int]:
        return frozenset({top_xid} | self.subxids.get(top_xid, set()))

    def _audit(self, record: Record) -> None:
        operation = record.info & rmgr.XLOG_HEAP_OPMASK
        if not record.blocks or record.blocks[0].locator.db != self.mirror.facts.database_oid:
            return
        at = 0
        if record.rmid == rmgr.RM_HEAP_ID and operation == rmgr.XLOG_HEAP_INSERT:
            logical = record.data[2] & _INSERT_CONTAINS_NEW_TUPLE
        elif record.rmid == rmgr.RM_HEAP_ID and operation in (
            rmgr.XLOG_HEAP_UPDATE,
            rmgr.XLOG_HEAP_HOT_UPDATE,
        ):
            logical = record.data[7] & _UPDATE_CONTAINS_NEW_TUPLE
            at = 2 * (record.data[7] & _UPDATE_COMPRESSED).bit_count()
        elif record.rmid == rmgr.RM_HEAP2_ID and operation == rmgr.XLOG_HEAP2_MULTI_INSERT:
            logical = record.data[0] & _INSERT_CONTAINS_NEW_TUPLE
            at = 2
        else:
            return
        if not logical:
            return
        natts = struct.unpack_from("<H", record.blocks[0].data, at)[0] & 0x07FF
        own = self.own_xids(self.parents.get(record.xid, record.xid))
        resolution = self.mirror.resolve(record.blocks[0].locator, own)
        self.audited += 1
        self.audited_privately += self.mirror.has_changes(own)
        where = f"{resolution} at {Lsn(record.lsn)}"
        assert resolution.reason in (SkipReason.NONE, SkipReason.REWRITE), where
        if resolution.descriptor is not None:
            assert natts == len(resolution.descriptor.columns), where

    def _transaction(self, record: Record) -> None:
        operation = record.info & rmgr.XLOG_XACT_OPMASK
        if operation not in (
            rmgr.XLOG_XACT_COMMIT,
            rmgr.XLOG_XACT_ABORT,
            rmgr.XLOG_XACT_COMMIT_PREPARED,
            rmgr.XLOG_XACT_ABORT_PREPARED,
        ):
            return
        xids = self._xids(record, operation)
        if operation in (rmgr.XLOG_XACT_COMMIT, rmgr.XLOG_XACT_COMMIT_PREPARED):
            self.mirror.commit(xids, record.lsn)
            self.commits += 1
        else:
            self.mirror.abort(xids, record.lsn)
        for xid in xids:
            self.subxids.get(self.parents.pop(xid, 0), set()).discard(xid)
        self.subxids.pop(xids[0], None)

    def _xids(self, record: Record, operation: int) -> list[int]:
        data, at = record.data, 8
        xinfo = 0
        if record.info & rmgr.XLOG_XACT_HAS_INFO:
            xinfo = struct.unpack_from("<I", data, at)[0]
            at += 4
        if xinfo & rmgr.XACT_XINFO_HAS_DBINFO:
            at += 8
        subxids: tuple[int, ...] = ()
        if xinfo & rmgr.XACT_XINFO_HAS_SUBXACTS:
            count = struct.unpack_from("<i", data, at)[0]
            subxids = struct.unpack_from(f"<{count}I", data, at + 4)
            at += 4 + 4 * count
        if xinfo & rmgr.XACT_XINFO_HAS_RELFILELOCATORS:
            at += 4 + 12 * struct.unpack_from("<i", data, at)[0]
        if xinfo & rmgr.XACT_XINFO_HAS_DROPPED_STATS:
            at += (
                4
                + self.mirror.heaps.version.dropped_stats_item_size
                * struct.unpack_from("<i", data, at)[0]
            )
        if xinfo & rmgr.XACT_XINFO_HAS_INVALS:
            at += 4 + 16 * struct.unpack_from("<i", data, at)[0]
        xid = record.xid
        if xinfo & rmgr.XACT_XINFO_HAS_TWOPHASE:
            xid = struct.unpack_from("<I", data, at)[0]
        return [xid, *subxids]


def assert_equals_server(mirror: CatalogMirror, database: Database) -> int:
    """Compare every visible row of every mirrored catalog with SQL; returns how many there are.

    The server must be idle, and everything that it wrote be applied.
    """
    compared = 0
    for catalog in mirror.heaps.catalogs:
        if catalog.is_toast:
            # A SQL bootstrap does not show its rows; the values are compared with what they are of.
            continue
        # anyarray can't be compared in Python; test_missing_values does it.
        columns = [c for c in mirror.heaps.layouts[catalog.oid].names if c != "attmissingval"]
        query = sql.SQL("SELECT {} FROM pg_catalog.{}").format(
            sql.SQL(", ").join(
                sql.SQL("{}::{}").format(
                    sql.Identifier(c), sql.SQL(_sql_type(mirror, catalog.oid, c))
                )
                for c in columns
            ),
            sql.Identifier(catalog.name),
        )
        with database.connect() as connection:
            expected = connection.execute(query).fetchall()
        rows = [row[: len(columns)] for row in mirror.visible_rows().whole(catalog)]
        actual = [tuple(_plain(mirror, v) for v in row) for row in rows]
        surplus = list((Counter(actual) - Counter(expected)).elements())
        lacking = list((Counter(expected) - Counter(actual)).elements())
        assert (surplus, lacking) == ([], []), (
            f"{catalog.name}: mirror has {len(actual)} rows, the server {len(expected)};"
            f" only mirror: {surplus[:5]}; only server: {lacking[:5]}"
        )
        compared += len(actual)
    return compared


def _plain(mirror: CatalogMirror, value: Any) -> Any:
    if isinstance(value, ToastPointer):
        chunks = [
            row
            for row in mirror.visible_rows().whole(PG_PUBLICATION_REL_TOAST)
            if row.chunk_id == value.value_id
        ]
        text = text_of_chunks(value, chunks, mirror.facts.encoding, mirror.facts.encoding_errors)
        return mirror.heaps.known_values[value.value_id] if text is None else text
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _sql_type(mirror: CatalogMirror, catalog_oid: int, column: str) -> str:
    type_oid = next(
        c.type_oid for c in mirror.heaps.layouts[catalog_oid].columns if c.name == column
    )
    return {26: "int8", 24: "oid::int8", 21: "int4", 23: "int4", 16: "bool", 700: "float8"}.get(
        type_oid, "text"
    )
