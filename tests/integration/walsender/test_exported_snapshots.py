"""CREATE_REPLICATION_SLOT with snapshots over PostgreSQL's protocol: exact, of the lifetime that
PostgreSQL gives them, and without anything left behind by who fails or goes away.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq

from harness.pg_port import create_user, dsn_of, serving
from harness.replication_client import Failure, ReplicationClient
from spillway.service.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

_TIMEOUT_S = 60.0
CREATE = "CREATE_REPLICATION_SLOT {} LOGICAL test_decoding"


BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

#: What runs before a slot is made with a snapshot.
BEFORE: dict[str, tuple[str, ...]] = {
    "no transaction": (),
    "read committed": ("BEGIN",),
    "serializable": ("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY",),
    "read write": ("BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE",),
    "a query": (BEGIN, "SELECT 1"),
    "no query": (BEGIN, "SHOW transaction_isolation", "SET LOCAL work_mem = '5MB'"),
    "a subtransaction": (BEGIN, "SAVEPOINT s"),
    "a query in a subtransaction": (BEGIN, "SAVEPOINT s", "SELECT 1"),
    "a subtransaction that is over": (BEGIN, "SAVEPOINT s", "RELEASE s"),
    "a failure": (BEGIN, "SELECT 1/0"),
    "a failed command": (BEGIN, "START_REPLICATION SLOT s LOGICAL"),
    "all is right": (BEGIN,),
}


def _until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _seen(server: Database, snapshot: str) -> list[int]:
    """Import a snapshot on the source, and read the table there."""
    with server.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        return [row[0] for row in connection.execute("SELECT id FROM t ORDER BY id").fetchall()]


def _is_there(server: Database, snapshot: str) -> bool:
    try:
        _seen(server, snapshot)
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
        return False
    return True


def _streamed(client: ReplicationClient, server: Database, slot: str, start: str) -> list[int]:
    """Read a slot from *start* to the end of what is written, and leave it."""
    end = str(server.value("SELECT pg_current_wal_flush_lsn()::text"))
    client.start(slot, "\"skip-empty-xacts\" 'on'", start)
    lines = [frame.data.decode() for frame in client.read_to(end)]
    client.finish_copy()
    return [int(line.rpartition(":")[2]) for line in lines if line.startswith("table ")]


def _slots(service: Service) -> set[str]:
    return {slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]}


def test_exact_under_load(pg: Database, tmp_path: Path) -> None:
    """What a snapshot sees and what its slot brings are all rows, and none of them twice."""
    pg.execute("CREATE TABLE t (id int)")
    stop, written = threading.Event(), [0]

    def write() -> None:
        with pg.connect() as connection:
            while not stop.is_set():
                first = written[0]
                connection.execute(
                    f"BEGIN; INSERT INTO t VALUES ({first}); SAVEPOINT s; "
                    f"INSERT INTO t VALUES ({first + 1}); COMMIT".encode()
                )
                written[0] += 2

    def used(name: str) -> tuple[list[int], ReplicationClient, str]:
        client = ReplicationClient(dsn)
        client.run(BEGIN)
        reply = client.run(CREATE.format(name) + " USE_SNAPSHOT")
        assert reply.failure is None, reply
        ((made, point, snapshot, plugin),) = reply.rows
        assert (made, snapshot, plugin) == (name, None, "test_decoding")
        # Others commit meanwhile, and it does not see that.
        moved = written[0]
        _until(lambda: written[0] > moved)
        rows = [int(str(row[0])) for row in client.run("SELECT id FROM t").rows]
        assert client.run("COMMIT").tag == "COMMIT"
        return rows, client, str(point)

    writer = threading.Thread(target=write)
    with serving(pg, tmp_path) as (service, dsn), ReplicationClient(pg.dsn) as theirs:
        # Its creation waits for what runs, as those of PostgreSQL always do.
        service.create_slot("first", pg.name)
        service.call("PATCH", "/users/alice", json={"run_sql": True})
        expected = theirs.run(CREATE.format("s TEMPORARY"))
        # Prepared before, and committed after: no snapshot sees it, all slots bring it.
        pg.execute("BEGIN; INSERT INTO t VALUES (-1); PREPARE TRANSACTION 'p'")
        writer.start()
        try:
            made = []
            for name in ("one", "two", "three"):
                ours = ReplicationClient(dsn)
                reply = ours.run(CREATE.format(name))
                assert reply.failure is None, reply
                made.append((ours, reply))
                # Not before others have written: a snapshot waits for its readers.
                seen = written[0]
                _until(lambda least=seen: written[0] > least + 20)  # type: ignore[misc]
            through_sql = [used(name) for name in ("four", "five")]
            found = made[0][1]
            assert (found.columns, found.tag) == (expected.columns, expected.tag)
        finally:
            stop.set()
            writer.join(_TIMEOUT_S)
        pg.execute("COMMIT PREPARED 'p'")
        everything = [-1, *range(written[0])]
        for ours, reply in made:
            ((slot, point, snapshot, plugin),) = reply.rows
            assert plugin == "test_decoding"
            assert point is not None
            assert snapshot is not None
            with ours:
                seen_rows = _seen(pg, snapshot)
                assert len(seen_rows) not in (0, len(everything))
                came = _streamed(ours, pg, str(slot), point)
            assert sorted(seen_rows + came) == everything
        for number, (rows, client, begin) in enumerate(through_sql):
            with client:
                assert 0 < len(rows) < len(everything)
                came = _streamed(client, pg, ("four", "five")[number], begin)
            assert sorted(rows + came) == everything


def test_lifetime(pg15: Database, tmp_path: Path) -> None:
    """Until the next command of the connection, or its end: no clock, and nobody else, ends it."""
    pg15.execute("CREATE TABLE t (id int)")
    pg15.execute("INSERT INTO t VALUES (1)")
    short = EngineSettings(snapshot_hold_s=2.0)
    with serving(pg15, tmp_path, engine=short) as (service, dsn), ReplicationClient(dsn) as other:

        def exported(client: ReplicationClient, name: str) -> str:
            reply = client.run(CREATE.format(name) + " EXPORT_SNAPSHOT")
            assert reply.failure is None, reply
            return str(reply.rows[0][2])

        # What another way of asking is held for so long only is given up meanwhile.
        service.create_slot("by_rest", pg15.name, snapshot="export")
        with ReplicationClient(dsn) as client:
            snapshot = exported(client, "kept")
            first_until = service.call("GET", "/slots/kept/snapshot")["held_until"]
            _until(
                lambda: service.http.request("GET", "/v1/slots/by_rest/snapshot").status_code == 404
            )
            # The same clock holds this one on, at a time of its own.
            _until(lambda: service.call("GET", "/slots/kept/snapshot")["held_until"] > first_until)
            # Another connection reads the slot.
            assert _streamed(other, pg15, "kept", "0/0") == []
            with pg15.connect() as early:
                early.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                early.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                assert _seen(pg15, snapshot) == [1]
                # It ends with any command, who has it keeps it.
                client.run("IDENTIFY_SYSTEM")
                _until(lambda: not _is_there(pg15, snapshot))
                assert early.execute("SELECT id FROM t").fetchall() == [(1,)]
            for number, command in enumerate(("SELECT 1", "", "START_REPLICATION SLOT x y")):
                snapshot = exported(client, f"by_{number}")
                assert _is_there(pg15, snapshot)
                client.run(command)
                _until(lambda gone=snapshot: not _is_there(pg15, gone))  # type: ignore[misc]
            snapshot = exported(client, "last TEMPORARY")
            assert _is_there(pg15, snapshot)
        _until(lambda: not _is_there(pg15, snapshot))
        _until(lambda: _slots(service) == {"by_rest", "kept", "by_0", "by_1", "by_2"})


def test_nothing_is_left(pg15: Database, tmp_path: Path) -> None:
    """Who may not, can't, cancels or goes away while it is waited for has no slot."""
    pg15.execute("CREATE TABLE t (id int)")
    with serving(pg15, tmp_path) as (service, dsn):
        create_user(service, "reader", pg15.name)
        with ReplicationClient(dsn_of(service, "reader", pg15.name)) as reader:
            failure = reader.run(CREATE.format("s")).failure
            assert failure is not None
            assert failure.sqlstate == "42501"
        with pg15.connect() as hanging:
            # The first slot of a database waits for what runs.
            hanging.execute("BEGIN; INSERT INTO t VALUES (1)")
            for ending in ("reset", "terminate", "cancel"):
                client = ReplicationClient(dsn)
                client.pgconn.send_query(CREATE.format("s").encode())
                client.pgconn.flush()
                _until(lambda: service.call("GET", "/sources/main")["sessions"])
                if ending == "reset":
                    _make_abortive(client.pgconn.socket)
                elif ending == "cancel":
                    assert "canceling statement due to user request" in _cancelled(client)
                client.pgconn.finish()
            hanging.execute("COMMIT")
        with ReplicationClient(dsn) as client:
            assert client.run(CREATE.format("t") + " NOEXPORT_SNAPSHOT").failure is None
            assert _slots(service) == {"t"}
            # No snapshot is to be had where nobody may connect.
            with pg15.cluster.connect() as admin:
                admin.execute(f"ALTER DATABASE {pg15.name} ALLOW_CONNECTIONS false")
                try:
                    failure = client.run(CREATE.format("s")).failure
                finally:
                    admin.execute(f"ALTER DATABASE {pg15.name} ALLOW_CONNECTIONS true")
            assert failure is not None
            assert "is not currently accepting connections" in failure.message
            assert _slots(service) == {"t"}
            assert client.run(CREATE.format("s")).failure is None


def _make_abortive(descriptor: int) -> None:
    """Have a socket closed without a word: by RST."""
    with socket.socket(fileno=os.dup(descriptor)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _cancelled(client: ReplicationClient) -> str:
    """Cancel what is at work, which may not have begun yet, and return what is said of it."""

    def over() -> bool:
        # Nothing waits inside libpq, as with the client itself.
        request = client.pgconn.cancel_conn()
        request.start()
        while request.poll() != pq.PollingStatus.OK:
            time.sleep(0.001)
        request.finish()
        client.pgconn.consume_input()
        return not client.pgconn.is_busy()

    _until(over)
    result = client.result()
    assert result is not None
    return result.error_message.decode()


def test_rules_are_those_of_postgresql(pg: Database, tmp_path: Path) -> None:
    """Which transaction a slot's snapshot is given to, and what becomes of it when it fails."""
    with serving(pg, tmp_path) as (service, dsn):
        service.call("PATCH", "/users/alice", json={"run_sql": True})
        service.create_slot("first", pg.name)
        differing = []
        for what, before in BEFORE.items():
            for spelling in ("USE_SNAPSHOT", "EXPORT_SNAPSHOT", "NOEXPORT_SNAPSHOT"):
                said = [_said(to, before, spelling) for to in (pg.dsn, dsn)]
                if said[0] != said[1]:
                    differing.append((what, spelling, *said))
        assert not differing, "\n".join(map(str, differing))
        assert _slots(service) == {"first"}
        # The first command of all makes the connection to the source as well.
        with ReplicationClient(dsn) as client:
            client.run(BEGIN)
            assert client.run(CREATE.format("first")).failure == Failure(
                "42710", 'replication slot "first" already exists'
            )
            assert client.run("SELECT 1").failure is not None


def _said(to: str, before: tuple[str, ...], spelling: str) -> object:
    """What is answered, and how the transaction stands then; without where the slot begins."""
    with ReplicationClient(to) as client:
        for statement in before:
            client.run(statement)
        reply = client.run(CREATE.format("s TEMPORARY") + f" {spelling}")
        rows = [(row[0], row[2] is None, row[3]) for row in reply.rows]
        status = int(client.pgconn.transaction_status)
        after = client.run("SELECT 2").failure, client.run("ROLLBACK").tag
        # It goes with the connection, and with whatever fails there.
        client.run("DROP_REPLICATION_SLOT s")
        return reply.failure, reply.columns, reply.tag, rows, status, after
