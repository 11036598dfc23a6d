"""Warnings of an output plugin reach the client in their places between the changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import pq

from harness.pg_port import serving
from harness.replication_client import ReplicationClient

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

FIELDS = (
    pq.DiagnosticField.SEVERITY_NONLOCALIZED,
    pq.DiagnosticField.SQLSTATE,
    pq.DiagnosticField.MESSAGE_PRIMARY,
    pq.DiagnosticField.MESSAGE_DETAIL,
    pq.DiagnosticField.MESSAGE_HINT,
)


def _told(conninfo: str, end: str) -> tuple[list[Any], list[bytes]]:
    """What a client is warned of, each behind how many frames, and the frames."""
    seen: list[Any] = []
    with ReplicationClient(conninfo) as client:
        client.pgconn.notice_handler = lambda result: seen.append(
            (len(client.frames), *(result.error_field(field) for field in FIELDS))
        )
        client.start("warned", "proto_version '1', publication_names 'p,q'")
        frames = [frame.data for frame in client.read_to(end)]
        client.finish_copy()
    return seen, frames


def test_a_publication_that_is_not_there(pg18: Database, tmp_path: Path) -> None:
    pg18.execute("CREATE TABLE t (i int); CREATE TABLE u (i int); CREATE PUBLICATION p FOR TABLE t")
    with serving(pg18, tmp_path) as (service, dsn):
        service.create_slot("warned", pg18.name, "pgoutput")
        pg18.query("SELECT pg_create_logical_replication_slot('warned', 'pgoutput')")
        for statement in (
            "INSERT INTO t VALUES (1)",
            "INSERT INTO t VALUES (2)",
            "ALTER PUBLICATION p SET (publish = 'insert')",
            "INSERT INTO t VALUES (3)",
            "CREATE PUBLICATION q FOR TABLE u",
            "INSERT INTO u VALUES (4)",
        ):
            pg18.execute(statement)
        end = str(pg18.value("SELECT pg_current_wal_flush_lsn()::text"))
        theirs, ours = _told(pg18.dsn, end), _told(dsn, end)
        assert ours == theirs
        notices, frames = theirs
        # One is between frames.
        assert len(notices) >= 2
        assert notices[-1][0] > 0
        assert {frame[:1] for frame in frames} == {b"B", b"R", b"I", b"C"}
        assert _told(f"{dsn} options='-c client_min_messages=error'", end) == ([], frames)
        pg18.query("SELECT pg_drop_replication_slot('warned')")
