"""psycopg2's replication connections: what they read of the service is what they read of the
primary.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection, StopReplication

from harness.pg_port import serving
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Database

_TIMEOUT_S: Final = 60.0
OPTIONS: Final = {"skip-empty-xacts": "on", "include-xids": "off"}


def _connect(dsn: str) -> Any:
    return psycopg2.connect(dsn, connection_factory=LogicalReplicationConnection)


def _read(cursor: Any, reached: Callable[[], bool], take: Callable[[Any], None]) -> None:
    """Read as psycopg2's documentation has it, until *reached*."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline
        message = cursor.read_message()
        if message is None:
            cursor.send_feedback(reply=True, force=True)
            time.sleep(0.01)
        else:
            take(message)


def _whole(dsn: str, database: Database, slot: str, **how: Any) -> list[tuple[Any, ...]]:
    """Read a slot to where the server's WAL ends now, and confirm it."""
    end = int(Lsn.parse(str(database.value("SELECT pg_current_wal_flush_lsn()::text"))))
    found = []
    with closing(_connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.start_replication(slot_name=slot, **how)

        def take(message: Any) -> None:
            found.append((message.data_start, message.wal_end, message.payload))
            cursor.send_feedback(flush_lsn=message.data_start)

        _read(cursor, lambda: cursor.wal_end >= end, take)
        assert cursor.feedback_timestamp
        cursor.send_feedback(flush_lsn=end, force=True)
    return [(start, end, bytes(p) if isinstance(p, memoryview) else p) for start, end, p in found]


def test_reads_what_it_reads_of_the_primary(pg15: Database, tmp_path: Path) -> None:
    pg15.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    pg15.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with serving(pg15, tmp_path) as (service, dsn):
        service.call("PATCH", "/users/alice", json={"run_sql": True})
        both = (pg15.dsn, dsn)
        made: list[Any] = []
        for to in both:
            with closing(_connect(to)) as connection, connection.cursor() as cursor:
                for slot, plugin in (("text", "test_decoding"), ("publishing", "pgoutput")):
                    cursor.create_replication_slot(slot, output_plugin=plugin)
                    name, _, snapshot, of = cursor.fetchone()
                    # It exports one by default, which lives until the next command.
                    made.append((name, bool(snapshot), of, cursor.statusmessage))
                with pytest.raises(psycopg2.ProgrammingError, match="already exists") as again:
                    cursor.create_replication_slot("text", output_plugin="test_decoding")
                made.append((again.value.pgcode,))
                # SQL goes to the source.
                cursor.execute("SELECT current_database(), count(*) FROM t")
                made.append(cursor.fetchone())
        assert made[: len(made) // 2] == made[len(made) // 2 :]
        pg15.execute("INSERT INTO t SELECT i, 'ä' || i FROM generate_series(1, 50) i")
        middle = str(pg15.value("SELECT pg_current_wal_insert_lsn()::text"))
        pg15.execute("UPDATE t SET name = '€' WHERE id < 3")
        publishing = {"proto_version": "1", "publication_names": "p"}
        for slot, how in (
            ("text", {"decode": True, "options": OPTIONS, "status_interval": 1}),
            # All is confirmed.
            ("text", {"decode": False, "options": OPTIONS}),
            ("publishing", {"options": publishing, "start_lsn": middle}),
        ):
            expected, found = (_whole(to, pg15, slot, **how) for to in both)
            assert found == expected, (slot, how)
            assert bool(found) == (how.get("decode") is not False)
        for to in both:
            with closing(_connect(to)) as connection, connection.cursor() as cursor:
                cursor.drop_replication_slot("text")
                with pytest.raises(psycopg2.ProgrammingError, match="does not exist"):
                    cursor.drop_replication_slot("text")
                # consume_stream is ended by its consumer.
                taken: list[Any] = []

                def consume(message: Any, taken: list[Any] = taken) -> None:
                    taken.append(message.payload)
                    message.cursor.send_feedback(flush_lsn=message.data_start)
                    raise StopReplication

                cursor.start_replication(slot_name="publishing", options=publishing)
                pg15.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
                with pytest.raises(StopReplication):
                    cursor.consume_stream(consume)
                assert taken[0][:1] == b"B"
                connection.close()
        with closing(_connect(pg15.dsn)) as connection, connection.cursor() as cursor:
            cursor.drop_replication_slot("publishing")


def test_idle_clients_that_are_killed_lose_nothing(pg15: Database, tmp_path: Path) -> None:
    """psycopg2 confirms a keepalive's walEnd by itself once it has confirmed all that came: so that
    must not be ahead of what was sent to it.
    """
    pg15.execute("CREATE TABLE t (id int)")
    rows, cycles = 200, 12
    written, got = [0], []

    def write() -> None:
        with pg15.connect() as connection:
            while written[0] < rows:
                connection.execute("INSERT INTO t VALUES (%s)", [written[0]])
                written[0] += 1
                time.sleep(0.002)

    def take(message: Any) -> None:
        got.append(message.payload)
        if message.payload.startswith("COMMIT"):
            message.cursor.send_feedback(flush_lsn=message.data_start)

    with serving(pg15, tmp_path) as (service, dsn):
        service.create_slot("s", pg15.name)
        writer = threading.Thread(target=write)
        writer.start()
        for cycle in range(1, cycles + 1):
            connection = _connect(dsn)
            cursor = connection.cursor()
            _start(cursor)
            share = cycle * rows // cycles
            if cycle == cycles:
                _read(
                    cursor, lambda: f"table public.t: INSERT: id[integer]:{rows - 1}" in got, take
                )
            else:
                _read(cursor, lambda least=share: written[0] >= least, take)  # type: ignore[misc]
            # As kill -9 does where not all was read: without a word.
            with socket.socket(fileno=os.dup(connection.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        writer.join(_TIMEOUT_S)
    inserted = [int(line.rpartition(":")[2]) for line in got if line.startswith("table ")]
    assert sorted(set(inserted)) == list(range(rows))


def _start(cursor: Any) -> None:
    """Begin to read; whoever was killed a moment ago has the slot until the service hears of it."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            cursor.start_replication(slot_name="s", decode=True, options=OPTIONS)
        except psycopg2.OperationalError as error:
            assert "is active for PID" in str(error)  # noqa: PT017 - anything else is a failure
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return
