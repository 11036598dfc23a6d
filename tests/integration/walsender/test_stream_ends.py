"""How a stream ends: by what its client sends, as a walsender's does, and by the service's stop."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import pq

from harness.pg_port import serving
from harness.replication_client import ReplicationClient

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

CREATE = "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL test_decoding NOEXPORT_SNAPSHOT"
#: what is sent in CopyData: of an unknown kind, cut, and what says nothing here
SENT = [
    b"x",
    b"rshort",
    b"h" + struct.pack(">qIIII", 0, 0, 0, 0, 0),
    b"r" + struct.pack(">QQQqB", 0, 0, 0, 0, 1),
    b"r" + struct.pack(">QQQqB", (1 << 64) - 1, 0, 0, 0, 1),
]


def _outcome(dsn: str, sent: bytes) -> tuple[bool, str | None]:
    """Whether a keepalive answers *sent*; and how the stream ends, None if it goes on."""
    with ReplicationClient(dsn) as client:
        assert client.run(CREATE.format("ending")).failure is None
        client.start("ending")
        client.pgconn.put_copy_data(sent)
        client.pgconn.flush()
        update = struct.pack(">cQQQqB", b"r", 0, 0, 0, 0, 1)
        try:
            client.pgconn.put_copy_data(update)
            client.pgconn.flush()
            # More than come by themselves before the end: reading goes on asking for them.
            client.read_until(lambda: len(client.keepalives) >= 5)
            client.finish_copy()
        except (EOFError, psycopg.OperationalError) as error:
            # What libpq says of a connection that has gone is its own affair.
            said = str(error).removeprefix("consuming input failed: ").splitlines()[0]
            said = said.removeprefix("ERROR:  ")
            return False, "" if "server closed the connection" in said else said
        return True, None


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: repr(sent[:1]))
def test_what_is_sent_in_a_stream(pg18: Database, tmp_path: Path, sent: bytes) -> None:
    theirs = _outcome(pg18.dsn, sent)
    with serving(pg18, tmp_path) as (_, dsn):
        ours = _outcome(dsn, sent)
    assert ours == theirs


def _is_kept(dsn: str, timeout: str) -> bool:
    """Whether a client that says nothing for two seconds has its stream then."""
    with ReplicationClient(f"{dsn} options='-c wal_sender_timeout={timeout}'") as client:
        assert client.run(CREATE.format("silent")).failure is None
        client.start("silent")
        time.sleep(2)
        try:
            # What was sent before the end comes first.
            for _ in range(5):
                client.pgconn.consume_input()
        except psycopg.OperationalError:
            return False
        return True


@pytest.mark.parametrize("timeout", ["400us", "0.4s", ".005min", "1d"])
def test_timeouts(pg18: Database, tmp_path: Path, timeout: str) -> None:
    """They are rounded to milliseconds, 0 being none; and need not be whole numbers."""
    with serving(pg18, tmp_path) as (_, dsn):
        assert _is_kept(dsn, timeout) is _is_kept(pg18.dsn, timeout)


def test_the_service_stops(pg18: Database, tmp_path: Path) -> None:
    """All that was written is there, and an end that a subscriber doesn't log as an error."""
    pg18.execute("CREATE TABLE t (i int)")
    with serving(pg18, tmp_path) as (_, dsn):
        client = ReplicationClient(dsn)
        client.run(CREATE.format("stopped"))
        client.start("stopped")
        pg18.execute("INSERT INTO t VALUES (1)")
        assert client.read_to(str(pg18.value("SELECT pg_current_wal_flush_lsn()::text")))
    with client:
        while (size := client.pgconn.get_copy_data(1)[0]) >= 0:
            if size == 0:
                client.pgconn.consume_input()
        result = client.result()
        assert result is not None
        assert result.status == pq.ExecStatus.COMMAND_OK
        assert result.command_status == b"COPY 0"
