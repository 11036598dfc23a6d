"""SQL through the port: the same bytes as from the server itself, and what is ours of slots."""

from __future__ import annotations

import asyncio
import os
import re
import struct
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import pq

from harness.pg_port import PASSWORD, create_user, dsn_of, serving
from harness.replication_client import ReplicationClient
from harness.servers import client
from spillway.walsender.messages import message, query
from spillway.walsender.sql.upstream import Upstream

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

SCRIPT = r"""
\set VERBOSITY verbose
CREATE TABLE t (a int PRIMARY KEY, b text);
\d t
\d pg_replication_slots
\df pg_*_replication_slot
\copy t FROM STDIN
1	one
2	zwei
3	\N
\.
COPY t FROM STDIN;
4	four
no number	x
\.
SELECT * FROM t ORDER BY a;
\copy (SELECT * FROM t ORDER BY a) TO STDOUT WITH (FORMAT csv, HEADER)
SELECT 1; SELECT 2 \; SELECT 3;
DO $$BEGIN RAISE NOTICE 'noted %', 1; RAISE WARNING 'warned'; END$$;
BEGIN;
SELECT 1/0;
SELECT 1;
ROLLBACK;
\echo :SERVER_VERSION_NUM :ENCODING
SET client_encoding = 'LATIN1';
SHOW client_encoding;
RESET client_encoding;
PREPARE p (int) AS SELECT b FROM t WHERE a = $1;
EXECUTE p (2);
SELECT b, $1 FROM t WHERE a = 1 \bind x \g
LISTEN c;
NOTIFY c, 'heard';
\dt
SELECT length(repeat('x', 3000000));
DROP TABLE t;
"""


def test_psql(pg: Database, tmp_path: Path) -> None:
    with serving(pg, tmp_path) as (service, _):
        service.call("PATCH", "/users/alice", json={"run_sql": True})
        found = _psql(pg, port=service.pg_port or 0, user="alice", script=SCRIPT)
        expected = _psql(pg, port=int(pg.cluster.port), user="postgres", script=SCRIPT)
        assert _masked(found) == _masked(expected)
        assert "zwei" in found[1]
        assert "noted 1" in found[2]


def _psql(database: Database, *, port: int, user: str, script: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [client("psql"), "-X", "-h", "127.0.0.1", "-p", str(port), "-U", user, "-d", database.name],
        env={**os.environ, "PGPASSWORD": PASSWORD},
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def _masked(output: tuple[int, str, str]) -> tuple[object, ...]:
    return tuple(
        re.sub("PID [0-9]+", "PID", text) if isinstance(text, str) else text for text in output
    )


def _parse(name: bytes, text: bytes, *types: int) -> bytes:
    return message(
        b"P", name + b"\0" + text + b"\0" + struct.pack(f">H{len(types)}I", len(types), *types)
    )


def _bind(portal: bytes, name: bytes, *values: bytes, formats: tuple[int, ...] = ()) -> bytes:
    body = portal + b"\0" + name + b"\0" + struct.pack(f">H{len(formats)}H", len(formats), *formats)
    body += struct.pack(">H", len(values))
    body += b"".join(struct.pack(">i", len(value)) + value for value in values)
    return message(b"B", body + b"\0\0")


def _execute(portal: bytes, rows: int = 0) -> bytes:
    return message(b"E", portal + b"\0" + struct.pack(">i", rows))


SYNC = message(b"S")
#: What a client sends before it reads on, and how many ReadyForQuery it waits for.
EXCHANGES = [
    (query("SELECT 1; SELECT 'two'; "), 1),
    (query(""), 1),
    (query("-- nothing"), 1),
    (query("SELECT 1; SELECT nothing; SELECT 3"), 1),
    (query("BEGIN") + _parse(b"", b"SELECT $1::int + 1") + _bind(b"", b"", b"41")
     + message(b"D", b"P\0") + _execute(b"") + SYNC + query("COMMIT"), 3),
    (_parse(b"s", b"SELECT generate_series(1, $1::int)", 23) + message(b"D", b"Ss\0")
     + message(b"H") + _bind(b"p", b"s", struct.pack(">i", 5), formats=(1,)) + _execute(b"p", 2)
     + _execute(b"p", 2) + _execute(b"p") + message(b"C", b"Pp\0") + message(b"C", b"Ss\0")
     + SYNC, 1),
    (_parse(b"", b"SELECT wrong") + _bind(b"", b"") + _execute(b"") + SYNC + query("SELECT 2"), 2),
    (_bind(b"", b"no such statement") + SYNC, 1),
    (query("CREATE TEMP TABLE c (i int); COPY c FROM STDIN") + message(b"d", b"1\n2\n")
     + message(b"H") + SYNC + message(b"d", b"3\n") + message(b"c"), 1),
    (query("COPY c FROM STDIN") + message(b"f", b"no more\0"), 1),
    (query("COPY c FROM STDIN; SELECT 1") + message(b"d", b"x\n") + message(b"c"), 1),
    (query("COPY c TO STDOUT"), 1),
    (query("SET DateStyle = 'German'; SELECT date '2026-11-23'"), 1),
    (message(b"F", struct.pack(">IHHHi", 1396, 0, 1, 4, 0)[:-4] + b"\0\0"), 1),
    (query("SELECT repeat('long', 600000)"), 1),
    (query(f"SELECT length('{'x' * 2_500_000}')"), 1),
]  # fmt: skip


def test_bytes_are_the_servers_own(pg18: Database, tmp_path: Path) -> None:
    with serving(pg18, tmp_path) as (service, _):
        create_user(service, "bob", pg18.name, run_sql=True)
        port = dsn_of(service, "bob", pg18.name)

        async def both() -> None:
            theirs = await Upstream.open(pg18.dsn, {"application_name": "x"})
            ours = await Upstream.open(port, {"application_name": "x"})
            assert ours.statuses == theirs.statuses
            try:
                for number, (sent, ready) in enumerate(EXCHANGES):
                    expected = await _answer(theirs, sent, ready)
                    assert await _answer(ours, sent, ready) == expected, (number, sent[:80])
            finally:
                ours.abort()
                theirs.abort()

        asyncio.run(asyncio.wait_for(both(), 60))


async def _answer(upstream: Upstream, sent: bytes, ready: int) -> bytes:
    """Send, and return what comes back."""
    writing = asyncio.create_task(upstream.write(sent))
    answer = b""
    while ready:
        kind, body = await upstream.read_message(1 << 24)
        answer += message(kind, body)
        ready -= kind == b"Z"
    await writing
    return answer


def test_drivers(pg15: Database, tmp_path: Path) -> None:
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "bob", pg15.name, run_sql=True)
        dsn = dsn_of(service, "bob", pg15.name)
        with psycopg.connect(dsn, autocommit=True) as bob, pg15.connect() as direct:
            assert bob.info.backend_pid == bob.execute("SELECT pg_backend_pid()").fetchone()[0]  # type: ignore[index]
            # Both ways, more than any buffer holds.
            bob.execute("CREATE TABLE big (i int, t text)")
            with bob.cursor().copy("COPY big FROM STDIN") as copy:
                for number in range(20_000):
                    copy.write_row((number, "x" * 200))
            with bob.cursor().copy("COPY big TO STDOUT") as copy:
                assert sum(len(piece) for piece in copy) > 4_000_000
            assert direct.execute("SELECT count(*) FROM big").fetchone() == (20_000,)
            # A pipeline, read while it is written.
            with bob.pipeline(), bob.cursor() as cursor:
                for number in range(300):
                    cursor.execute("SELECT %s::int, repeat('y', 20000)", [number])
            # Cancel.
            timer = threading.Timer(0.2, bob.cancel_safe)
            timer.start()
            with pytest.raises(psycopg.errors.QueryCanceled):
                bob.execute("SELECT pg_sleep(60)")
            timer.join()
            # Notifications come from others, and while nothing is asked.
            bob.execute("LISTEN news")
            direct.execute("NOTIFY news, 'of today'")
            (heard,) = bob.notifies(timeout=30, stop_after=1)
            assert heard.payload == "of today"
            # Prepared, and by a cursor of the server's.
            for _ in range(2):
                cursor = bob.execute("SELECT %s::text || 'b'", ["a"], prepare=True)
                assert cursor.fetchone() == ("ab",)
            with bob.transaction(), bob.cursor(name="c") as named:
                named.execute("SELECT i FROM big ORDER BY i")
                assert named.fetchmany(2) == [(0,), (1,)]
            direct.execute("DROP TABLE big")


def test_who_ends_first(pg15: Database, tmp_path: Path) -> None:
    with serving(pg15, tmp_path, sql_connections=2) as (service, dsn):
        create_user(service, "bob", pg15.name, run_sql=True)
        bobs = dsn_of(service, "bob", pg15.name)
        # Without the right.
        with pytest.raises(psycopg.OperationalError, match="permission denied to run SQL"):
            psycopg.connect(dsn)
        # The backend ends: the client is told in its words, in a statement and between two.
        with psycopg.connect(bobs, autocommit=True) as bob:
            pid = bob.info.backend_pid
            threading.Timer(
                0.2, lambda: pg15.execute(f"SELECT pg_terminate_backend({pid})")
            ).start()
            with pytest.raises(psycopg.errors.AdminShutdown):
                bob.execute("SELECT pg_sleep(60)")
        with ReplicationClient(bobs) as bob_too:
            pid_text = bob_too.run("SELECT pg_backend_pid()").rows[0][0]
            pg15.execute(f"SELECT pg_terminate_backend({pid_text}, 30000)")
            with pytest.raises(psycopg.OperationalError, match="due to administrator command"):
                bob_too.run("SELECT 1")
        # The client ends, with a transaction open and a lock held: both are gone.
        pg15.execute("CREATE TABLE locked (i int)")
        for connect in (psycopg.connect, ReplicationClient):
            connection = connect(bobs)
            if isinstance(connection, ReplicationClient):
                connection.run("BEGIN")
                connection.run("LOCK TABLE locked")
                pgconn = connection.pgconn
            else:
                connection.execute("LOCK TABLE locked")
                pgconn = connection.pgconn
            pgconn.finish()
            with pg15.connect(autocommit=False) as direct:
                direct.execute("SET lock_timeout = '30s'")
                direct.execute("LOCK TABLE locked")
        # No more than there may be.
        with psycopg.connect(bobs), psycopg.connect(bobs):
            with pytest.raises(psycopg.OperationalError, match="too many connections for SQL"):
                psycopg.connect(bobs)
            with ReplicationClient(bobs) as third:
                refused = third.run("SELECT 1").failure
                assert refused is not None
                assert refused.sqlstate == "53300"
                assert third.run("IDENTIFY_SYSTEM").failure is None
        _wait_until_free(bobs)


def _wait_until_free(dsn: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


#: On a walsender: what it says, and the transaction's status after it.
IN_BLOCKS = [
    "SELECT pg_catalog.set_config('search_path', '', false);",
    "SHOW search_path",
    'SHOW "client_encoding";',
    "SELECT 1; SELECT 2",
    "",
    "identify_system",
    "BEGIN",
    "SHOW transaction_isolation",
    "START_REPLICATION SLOT none LOGICAL 0/0",
    "SHOW wal_level",
    "IDENTIFY_SYSTEM x",
    "SELECT 1",
    "COMMIT",
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "DROP_REPLICATION_SLOT none",
    "DROP_REPLICATION_SLOT none",
    "ROLLBACK",
    "BEGIN",
    "SELECT 1/0",
    "START_REPLICATION SLOT none LOGICAL 0/0",
    "ROLLBACK",
    "SET statement_timeout = 90000; CREATE TEMP TABLE p (i int);",
    "SHOW statement_timeout;",
    "SET statement_timeout = '0'; DROP TABLE p; SELECT 1/0;",
    "SHOW statement_timeout",
    "START_REPLICATION_ SLOT",
    "start_replication slot s logical 0/0",
    "/* a comment */ SHOW wal_level",
]


def test_replication_connections(pg: Database, tmp_path: Path) -> None:
    with serving(pg, tmp_path) as (service, _):
        create_user(service, "bob", pg.name, run_sql=True)
        given = "options='-c intervalstyle=postgres_verbose -c statement_timeout=5min'"
        bobs = f"{dsn_of(service, 'bob', pg.name)} {given}"
        with ReplicationClient(bobs) as ours, ReplicationClient(f"{pg.dsn} {given}") as theirs:
            for command in IN_BLOCKS:
                expected = theirs.run(command), theirs.pgconn.transaction_status
                assert (ours.run(command), ours.pgconn.transaction_status) == expected, command
            for connection in (theirs, ours):
                connection.run("CREATE TEMP TABLE copied (i int)")
                assert connection.copy_in("COPY copied FROM STDIN", b"1\n2\n").tag == "COPY 2"
                failed = connection.copy_in("COPY copied FROM STDIN", b"x\n").failure
                assert failed is not None
                assert failed.sqlstate == "22P02"
                assert connection.copy_out("COPY copied TO STDOUT") == b"1\n2\n"
            # The extended protocol's refusal fails a block, too.
            for connection in (theirs, ours):
                connection.run("BEGIN")
                assert connection.run_extended("SELECT 1").failure is not None
                assert connection.pgconn.transaction_status == pq.TransactionStatus.INERROR
                connection.run("ROLLBACK")
        # A connection without a database.
        physical = [
            ReplicationClient(dsn, replication="true")
            for dsn in (pg.dsn, dsn_of(service, "bob", "main"))
        ]
        for command in (
            "SELECT 1",
            "",
            "SHOW wal_level",
            "DROP_REPLICATION_SLOT none",
            "READ_REPLICATION_SLOT none",
            "CREATE_REPLICATION_SLOT s LOGICAL test_decoding NOEXPORT_SNAPSHOT",
        ):
            expected_reply, found_reply = (one.run(command) for one in physical)
            assert found_reply == expected_reply, command
        expected_reply, found_reply = (one.run("IDENTIFY_SYSTEM") for one in physical)
        assert found_reply.columns == expected_reply.columns
        assert found_reply.rows[0][3] is None
        for one in physical:
            one.pgconn.finish()


def test_slots(pg: Database, tmp_path: Path) -> None:
    """The same statements on both sides, in the forms that clients have: columns, types and what
    is not of time and place are the same.
    """
    with serving(pg, tmp_path) as (service, _):
        create_user(service, "bob", pg.name, run_sql=True, manage_slots=True)
        pg.execute("CREATE TABLE t (i int)")
        bobs = dsn_of(service, "bob", pg.name)
        with (
            psycopg.connect(bobs, autocommit=True) as ours,
            pg.connect() as theirs,
            ReplicationClient(bobs) as simple,
        ):
            for statement, given in _statements("s"):
                if statement.startswith("INSERT"):
                    pg.execute(statement)
                    service.wait_decoded(str(given[0]) if given else "s", pg)
                    continue
                expected = _outcome(theirs, statement, given)
                assert _outcome(ours, statement, given) == expected, statement
            for statement, bound in _statements("r"):
                if bound:
                    continue
                if statement.startswith("INSERT"):
                    pg.execute(statement)
                    service.wait_decoded("r", pg)
                    continue
                reply = simple.run(statement)
                expected_reply = theirs.pgconn.exec_(statement.encode())
                columns = tuple(
                    ((expected_reply.fname(at) or b"").decode(), expected_reply.ftype(at))
                    for at in range(expected_reply.nfields)
                )
                assert reply.columns == columns, statement
                assert len(reply.rows) == expected_reply.ntuples, statement
            assert ours.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


_REFUSED = [
    "SELECT pg_create_logical_replication_slot('Bad', 'test_decoding')",
    "SELECT pg_create_logical_replication_slot('f', 'test_decoding', false, false, true)",
    "SELECT pg_logical_slot_peek_changes('s', NULL, NULL, 'odd')",
    "SELECT pg_logical_slot_peek_changes('none', NULL, NULL)",
    "SELECT pg_copy_logical_replication_slot('none', 'other')",
    "SELECT pg_replication_slot_advance('none', '0/1')",
    "SELECT pg_replication_slot_advance('s', '0/0')",
    "SELECT pg_logical_slot_get_changes(NULL, NULL, NULL)",
    "SELECT * FROM pg_logical_slot_get_changes('s', NULL, NULL, 'skip-empty-xacts', NULL)",
    "SELECT pg_drop_replication_slot('none')",
]


def test_what_is_refused(pg: Database, tmp_path: Path) -> None:
    """With the server's SQLSTATE; a hint that it has is there. Who has a slot is named by the
    number that its row has, which is no backend's of the source.
    """
    with serving(pg, tmp_path) as (service, _):
        create_user(service, "bob", pg.name, run_sql=True, manage_slots=True)
        bobs = dsn_of(service, "bob", pg.name)
        with psycopg.connect(bobs, autocommit=True) as ours, pg.connect() as theirs:
            made = "SELECT pg_create_logical_replication_slot('s', 'test_decoding')"
            for side in (ours, theirs):
                side.execute(made.encode())
            for statement in _REFUSED:
                if "'f'" in statement and pg.cluster.major >= 17:
                    continue
                found: list[psycopg.Error] = []
                for side in (theirs, ours):
                    with pytest.raises(psycopg.Error) as refused:
                        side.execute(statement.encode())
                    found.append(refused.value)
                expected, error = found
                assert error.sqlstate == expected.sqlstate, statement
                hints = error.diag.message_hint, expected.diag.message_hint
                assert bool(hints[0]) == bool(hints[1]), statement
            with ReplicationClient(bobs) as reader:
                reader.start("s")
                for statement in (
                    "pg_drop_replication_slot('s')",
                    "pg_replication_slot_advance('s', '0/1')",
                ):
                    with pytest.raises(psycopg.errors.ObjectInUse) as active:
                        ours.execute(f"SELECT {statement}".encode())
                    row = ours.execute("SELECT active_pid FROM pg_replication_slots").fetchone()
                    assert row is not None
                    assert f"is active for PID {row[0]}" in str(active.value)
                    assert row[0] > 4_194_304
            theirs.execute("SELECT pg_drop_replication_slot('s')")


def _statements(slot: str) -> list[tuple[str, list[object] | None]]:
    """Forms of the field: drivers with parameters, and without."""
    constant: list[tuple[str, list[object] | None]] = [
        (f"SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')", None),
        ("SELECT * FROM pg_replication_slots WHERE NOT starts_with(slot_name::text, 'sp')", None),
        (
            (
                "SELECT r.slot_name, r.active"
                f" FROM pg_catalog.\"pg_replication_slots\" AS r WHERE r.slot_name = '{slot}'"
            ),
            None,
        ),
        ("INSERT INTO t VALUES (1), (2)", None),
        (
            (
                "SELECT data FROM pg_logical_slot_peek_changes("
                f"'{slot}', NULL, NULL, 'include-xids', '0')"
            ),
            None,
        ),
        (f"SELECT pg_logical_slot_peek_changes('{slot}', NULL, NULL)", None),
        (
            (
                "SELECT count(*)"
                f" FROM (SELECT pg_logical_slot_peek_changes('{slot}', NULL, NULL)) AS c"
            ),
            None,
        ),
        (
            f"SELECT * FROM pg_logical_slot_get_binary_changes('{slot}', NULL, 1) AS c (l, x, d)",
            None,
        ),
        (f"SELECT count(*) FROM pg_logical_slot_get_changes('{slot}', NULL, NULL)", None),
        (f"SELECT pg_drop_replication_slot('{slot}')", None),
        (f"SELECT pg_drop_replication_slot('{slot}')", None),
        (
            (
                "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot("
                f"'{slot}', 'pgoutput', false, true)"
            ),
            None,
        ),
        (
            (
                f"SELECT data FROM pg_logical_slot_peek_changes('{slot}', NULL, NULL, "
                "'proto_version', '1', 'publication_names', 'p')"
            ),
            None,
        ),
        (f"SELECT * FROM pg_copy_logical_replication_slot('{slot}', '{slot}_2')", None),
        (f"SELECT pg_copy_logical_replication_slot('{slot}', '{slot}_4', true)", None),
        (
            (
                f"SELECT pg_copy_logical_replication_slot('{slot}', '{slot}_5', temporary => true, "
                "plugin => 'test_decoding')"
            ),
            None,
        ),
        (f"SELECT pg_copy_logical_replication_slot('{slot}', '{slot}_6', NULL)", None),
        (f"SELECT * FROM pg_copy_logical_replication_slot('{slot}', NULL)", None),
        (
            (
                "SELECT slot_name, plugin, temporary, two_phase FROM pg_replication_slots "
                f"WHERE slot_name LIKE '{slot}\\_%' ORDER BY 1"
            ),
            None,
        ),
        (
            (
                "SELECT s.*, r.slot_name AS name FROM pg_replication_slots r JOIN "
                "(SELECT slot_name, spill_txns, spill_bytes, stream_count, stats_reset IS NULL "
                f"FROM pg_stat_replication_slots WHERE slot_name LIKE '{slot}%') s "
                "ON s.slot_name = r.slot_name ORDER BY 1"
            ),
            None,
        ),
        (f"SELECT pg_drop_replication_slot('{slot}_4')", None),
        (f"SELECT pg_drop_replication_slot('{slot}_5')", None),
        ("SELECT pg_drop_replication_slot(NULL)", None),
        ("SELECT pg_drop_replication_slot(NULL) IS NULL AS is_null", None),
        ("SELECT * FROM pg_create_logical_replication_slot(NULL, 'test_decoding')", None),
        (f"SELECT * FROM pg_replication_slot_advance('{slot}', NULL)", None),
        (
            f"SELECT slot_name FROM pg_replication_slot_advance('{slot}', pg_current_wal_lsn())",
            None,
        ),
        (
            (
                "SELECT 1, pg_drop_replication_slot(slot_name)"
                f" FROM pg_replication_slots WHERE slot_name = '{slot}_2'"
            ),
            None,
        ),
        (
            (
                "SELECT pg_drop_replication_slot(r.slot_name)"
                f" FROM pg_replication_slots r WHERE r.slot_name = '{slot}'"
            ),
            None,
        ),
        (
            (
                "SELECT pg_drop_replication_slot(slot_name)"
                f" FROM pg_replication_slots WHERE slot_name = '{slot}'"
            ),
            None,
        ),
        ("SELECT pg_terminate_backend(0)", None),
        ("SELECT 'pg_replication_slots'::regclass::text, 1 AS pg_replication_slots", None),
        ("WITH pg_replication_slots AS (SELECT 1 AS one) SELECT * FROM pg_replication_slots", None),
    ]
    bound: list[tuple[str, list[object] | None]] = [
        (
            "SELECT * FROM pg_create_logical_replication_slot(%s, %s, %s)",
            [f"{slot}_3", "test_decoding", False],
        ),
        (
            (
                "SELECT slot_name, plugin, database, active"
                " FROM pg_replication_slots WHERE slot_name = %s AND plugin = %s"
            ),
            [f"{slot}_3", "test_decoding"],
        ),
        (
            (
                "SELECT (row_to_json(s)->>'slot_name')::text"
                " FROM pg_replication_slots s, pg_stat_activity a"
                " WHERE slot_name = %s AND a.pid = pg_backend_pid()"
            ),
            [f"{slot}_3"],
        ),
        ("SELECT * FROM pg_replication_slot_advance(%s, %s)", [f"{slot}_3", "0/1"]),
        ("INSERT INTO t VALUES (3)", [f"{slot}_3"]),
        ("SELECT pg_logical_slot_peek_changes(%s, NULL, NULL)", [f"{slot}_3"]),
        (
            "SELECT * FROM pg_copy_logical_replication_slot(%s, %s, %s, %s)",
            [f"{slot}_3", f"{slot}_7", True, "pgoutput"],
        ),
        (
            "SELECT plugin, temporary FROM pg_replication_slots WHERE slot_name = %s",
            [f"{slot}_7"],
        ),
        ("SELECT pg_drop_replication_slot(%s)", [None]),
        ("SELECT pg_drop_replication_slot(%s)", [f"{slot}_7"]),
        (
            (
                "SELECT pg_drop_replication_slot(slot_name)"
                " FROM pg_replication_slots WHERE slot_name = %s"
            ),
            [f"{slot}_3"],
        ),
        ("SELECT pg_drop_replication_slot(%s)", [f"{slot}_3"]),
    ]
    return constant + bound


def _outcome(
    connection: psycopg.Connection[tuple[object, ...]], statement: str, given: list[object] | None
) -> object:
    try:
        cursor = connection.execute(statement.encode(), given)
    except psycopg.Error as error:
        return error.sqlstate, re.sub("0/[0-9A-F]+", "LSN", error.diag.message_primary or "")
    columns = [(column.name, column.type_code) for column in cursor.description or ()]
    rows = [
        tuple(
            re.sub("[0-9]+", "n", re.sub("[0-9A-F]+/[0-9A-F]+", "LSN", str(value)))
            if column.type_code != 16
            else value
            for value, column in zip(row, cursor.description or (), strict=True)
            if column.name not in _OF_TIME_AND_PLACE
        )
        for row in cursor.fetchall()
    ]
    return columns, rows, cursor.statusmessage


#: Ours pin nothing of the catalog, and what is retained is ours to say.
_OF_TIME_AND_PLACE = {"catalog_xmin", "safe_wal_size"}


def test_copies(pg15: Database, tmp_path: Path) -> None:
    """A temporary one goes with its connection; one of another plugin has none of the options."""
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "bob", pg15.name, run_sql=True, manage_slots=True)
        options = {"include-xids": "off", "spillway.takeover": "on"}
        service.create_slot("s", pg15.name, options=options, two_phase=True)
        copy = "SELECT pg_copy_logical_replication_slot('s', {})"
        with psycopg.connect(dsn_of(service, "bob", pg15.name), autocommit=True) as bob:
            for arguments in ("'same'", "'passing', true", "'other', false, 'pgoutput'"):
                bob.execute(copy.format(arguments).encode())
            found = {name: service.slot(name) for name in ("same", "passing", "other")}
            assert {name: slot["temporary"] for name, slot in found.items()} == {
                "same": False,
                "passing": True,
                "other": False,
            }
            assert found["same"]["options"] == found["passing"]["options"] == options
            assert found["other"]["plugin"] == "pgoutput"
            assert found["other"]["options"] == {"spillway.takeover": "on"}
            # As PostgreSQL's.
            assert not found["same"]["two_phase"]
            # Of a form that can't be answered nothing is done.
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                bob.execute("SELECT (pg_copy_logical_replication_slot('s', 'never')).lsn")
        deadline = time.monotonic() + 30
        while len(left := service.call("GET", "/slots")["slots"]) > 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [slot["slot_name"] for slot in left] == ["other", "s", "same"]


async def _describe(dsn: str) -> None:
    upstream = await Upstream.open(dsn, {})
    statement = b"SELECT slot_name FROM pg_replication_slots WHERE plugin = $1"
    described = _parse(b"d", statement) + message(b"D", b"Sd\0") + SYNC
    answer = await _answer(upstream, described, 1)
    assert message(b"t", struct.pack(">HI", 1, 19)) in answer
    upstream.abort()


def test_prepared_statements_are_fresh(pg15: Database, tmp_path: Path) -> None:
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "bob", pg15.name, run_sql=True, manage_slots=True)
        with psycopg.connect(dsn_of(service, "bob", pg15.name), autocommit=True) as bob:
            statement = "SELECT slot_name, active FROM pg_replication_slots WHERE plugin = %s"

            def slots() -> list[tuple[object, ...]]:
                return bob.execute(statement, ["test_decoding"], prepare=True).fetchall()

            assert slots() == []
            service.create_slot("new", pg15.name)
            assert slots() == [("new", False)]
            # Describe tells of the client's own parameters alone.
            asyncio.run(_describe(dsn_of(service, "bob", pg15.name)))
            # Whoever streams is seen, and can be ended.
            with ReplicationClient(dsn_of(service, "bob", pg15.name)) as streaming:
                streaming.start("new")
                assert slots() == [("new", True)]
                found = bob.execute(
                    "SELECT r.state, r.sync_state, s.slot_name FROM pg_stat_replication r "
                    "JOIN pg_replication_slots s ON s.active_pid = r.pid"
                ).fetchall()
                assert ("streaming", "async", "new") in found
                ended = bob.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                    "WHERE slot_name = %s",
                    ["new"],
                ).fetchall()
                assert ended == [(True,)]
            assert slots() == [("new", False)]
            # The source's own of the same name is not seen, any other one is.
            for name in ("new", "old"):
                pg15.execute(
                    "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [name]
                )
            assert sorted(slots()) == [("new", False), ("old", False)]
            pg15.execute("SELECT pg_drop_replication_slot('new')")
            assert bob.execute("SELECT pg_drop_replication_slot('old')").fetchall() == [("",)]
            assert (
                pg15.value("SELECT count(*) FROM pg_replication_slots WHERE plugin IS NOT NULL")
                == 0
            )
            service.slot("new")
            # Forms that can't be served are refused, and say what can.
            for refused in (
                "SELECT pg_drop_replication_slot('new') WHERE now() > '2020-01-01'",
                "PREPARE p AS SELECT * FROM pg_replication_slots",
                "SELECT 1; SELECT pg_drop_replication_slot('new')",
            ):
                with pytest.raises(psycopg.errors.FeatureNotSupported) as error:
                    bob.execute(refused.encode())
                assert error.value.diag.message_hint
            # Of a user who may not make slots.
            create_user(service, "carol", pg15.name, run_sql=True)
            with psycopg.connect(dsn_of(service, "carol", pg15.name)) as carol:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    carol.execute("SELECT pg_drop_replication_slot('new')")
                assert carol.info.transaction_status == pq.TransactionStatus.INERROR


#: Calls under a condition that is not true, or is; what people's scripts have.
_CONDITIONAL = [
    "SELECT pg_drop_replication_slot('a') WHERE false",
    "SELECT pg_drop_replication_slot('a') FROM pg_replication_slots WHERE slot_name = 'none'",
    (
        "SELECT pg_drop_replication_slot('a') FROM pg_replication_slots WHERE slot_name = 'a' "
        "AND active"
    ),
    (
        "SELECT lsn IS NULL FROM pg_create_logical_replication_slot('a', 'test_decoding') "
        "WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = 'a')"
    ),
    (
        "SELECT (SELECT 1 FROM pg_create_logical_replication_slot('c', 'test_decoding')) "
        "WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'none')"
    ),
    (
        "SELECT 'made' FROM pg_create_logical_replication_slot('d', 'test_decoding') WHERE "
        "NOT EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = 'd')"
    ),
    (
        "SELECT slot_name, pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        "WHERE slot_name LIKE 'none%' OR slot_name IN ('b', 'd') AND NOT active"
    ),
    (
        "SELECT data FROM pg_logical_slot_peek_changes('a', NULL, NULL, VARIADIC "
        "ARRAY['skip-empty-xacts', '1']) WHERE data LIKE 'none%' LIMIT 5"
    ),
    (
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = "
        "'a' AND active_pid IS NOT NULL"
    ),
]
#: Of none of them PostgreSQL asks for a row.
_WITHOUT_ROWS = [
    "SELECT pg_drop_replication_slot('a') LIMIT 0",
    "SELECT pg_drop_replication_slot('a') LIMIT '0'::int8",
    "SELECT pg_drop_replication_slot('a') LIMIT (1 - 1)",
    "SELECT pg_drop_replication_slot('a') LIMIT 1 - 1",
    "SELECT pg_drop_replication_slot('a') FETCH FIRST 0 ROWS ONLY",
    "SELECT * FROM (SELECT pg_drop_replication_slot('a')) AS s LIMIT 0",
    "SELECT * FROM (SELECT pg_drop_replication_slot('a')) AS s WHERE false",
    "SELECT (SELECT pg_drop_replication_slot('a')) FROM pg_class WHERE oid = 0",
    "SELECT pg_drop_replication_slot('a') UNION ALL SELECT NULL LIMIT 0",
    "SELECT data FROM pg_logical_slot_get_changes('a', NULL, NULL) LIMIT 0",
    "SELECT data FROM pg_logical_slot_get_changes('a', NULL, NULL) LIMIT 1 - 1",
    "SELECT data FROM pg_logical_slot_get_changes('a', NULL, NULL) FETCH NEXT 0 ROWS ONLY",
    "SELECT * FROM (SELECT * FROM pg_logical_slot_get_changes('a', NULL, NULL)) AS s LIMIT 0",
]


def test_calls_for_no_row(pg15: Database, tmp_path: Path) -> None:
    """PostgreSQL does not call what nobody asks a row of; here it is not called either."""
    pg15.execute("CREATE TABLE t (i int)")
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "bob", pg15.name, run_sql=True, manage_slots=True)
        service.create_slot("a", pg15.name)
        pg15.query("SELECT pg_create_logical_replication_slot('a', 'test_decoding')")
        pg15.execute("INSERT INTO t VALUES (1)")
        service.wait_decoded("a", pg15)
        peek = "SELECT data FROM pg_logical_slot_peek_changes('a', NULL, NULL)"
        for conninfo in (pg15.dsn, dsn_of(service, "bob", pg15.name)):
            with psycopg.connect(conninfo, autocommit=True) as session:
                for statement in _WITHOUT_ROWS:
                    try:
                        assert session.execute(statement.encode()).fetchall() == []
                    except psycopg.errors.FeatureNotSupported:
                        assert conninfo != pg15.dsn, statement
                    assert len(session.execute(peek).fetchall()) == 3, statement
                for limit in (0, 1):
                    call = "SELECT pg_drop_replication_slot('a') LIMIT %s"
                    assert len(session.execute(call, [limit]).fetchall()) == limit


def test_calls_under_conditions(pg15: Database, tmp_path: Path) -> None:
    """They are run where PostgreSQL would run them, and nowhere else."""
    names = "SELECT slot_name FROM pg_replication_slots WHERE slot_name < 'e' ORDER BY 1"
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "bob", pg15.name, run_sql=True, manage_slots=True)
        bobs = dsn_of(service, "bob", pg15.name)
        seen: list[list[tuple[str, object, object]]] = []
        for conninfo in (bobs, pg15.dsn):
            with psycopg.connect(conninfo, autocommit=True) as session:
                for slot in "ab":
                    session.execute(
                        "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot]
                    )
                seen.append([])
                for statement in _CONDITIONAL:
                    found = session.execute(statement.encode()).fetchall()
                    left = session.execute(names.encode()).fetchall()
                    seen[-1].append((statement, found, left))
                with ReplicationClient(conninfo) as reader:
                    reader.start("a")
                    ended = session.execute(_CONDITIONAL[-1].encode()).fetchall()
                    seen[-1].append(("", ended, []))
                    reader.read_to_end()
                active = "SELECT FROM pg_replication_slots WHERE slot_name = 'a' AND active"
                while session.execute(active.encode()).fetchall():
                    time.sleep(0.02)
                session.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                    "WHERE slot_name IN ('a', 'b', 'c', 'd')"
                )
                assert session.execute(names.encode()).fetchall() == []
        assert seen[0] == seen[1]
        assert seen[0][-1][1] == [(True,)]


MISTAKEN = [
    "SELECT slot_name FROM pg_replication_slots WHERE slotname = 'x'",
    "SELECT 'ä€', slot_name FROM pg_replication_slots ORDER BY nope",
    "SELECT nope FROM pg_replication_slots",
    "SELECT slot_name FROM pg_catalog.pg_replication_slots WHER slot_name = 'x'",
    "SELECT 1 FROM pg_stat_replication r, pg_replication_slots s WHERE r.pid = s.pid",
    "TABLE pg_replication_slots ORDER BY nope",
    "SELECT nope FROM pg_class",
]


def test_where_a_mistake_is(pg: Database, tmp_path: Path) -> None:
    """Errors tell the place in what the client wrote, not in what the source got; psql's caret
    stands there.
    """

    def told(dsn: str) -> list[object]:
        found: list[object] = []
        for encoding in ("UTF8", "EUC_JIS_2004"):
            with psycopg.connect(dsn, autocommit=True, client_encoding=encoding) as session:
                for mistaken in MISTAKEN:
                    text = mistaken if encoding == "UTF8" else mistaken.replace("ä€", "漢字")
                    for way in (b"simple", b"extended"):
                        pgconn = session.pgconn
                        written = text.encode(session.info.encoding)
                        if way == b"simple":
                            result = pgconn.exec_(written)
                        else:
                            result = pgconn.exec_params(written, [])
                        place = result.error_field(pq.DiagnosticField.STATEMENT_POSITION)
                        found.append((encoding, way, text, place))
                # Of several statements in a pipeline.
                with session.pipeline() as pipeline, session.cursor() as cursor:
                    for text in ("SELECT 1", MISTAKEN[0]):
                        cursor.execute(text)
                        try:
                            pipeline.sync()
                        except psycopg.Error as error:
                            found.append(error.diag.statement_position)
        return found

    with serving(pg, tmp_path) as (service, _):
        create_user(service, "bob", pg.name, run_sql=True)
        bobs = dsn_of(service, "bob", pg.name)
        expected = told(pg.dsn)
        assert told(bobs) == expected
        places = []
        for dsn in (pg.dsn, bobs):
            with ReplicationClient(dsn) as connection:
                results = [connection.run_bytes(text.encode()) for text in MISTAKEN]
                places.append(
                    [one.error_field(pq.DiagnosticField.STATEMENT_POSITION) for one in results]
                )
        assert places[1] == places[0]
        assert all(places[0])
