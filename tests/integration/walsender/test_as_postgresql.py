"""Commands, frames and pg_recvlogical: the service's port beside a real walsender, on the same
WAL.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from harness.pg_port import serving
from harness.replication_client import Frame, ReplicationClient, Reply
from harness.servers import ClientNotThere, client
from harness.tiers import deep
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

# What says the same whatever slots there are, and where the WAL is.
COMMANDS = [
    'CREATE_REPLICATION_SLOT "taken" LOGICAL test_decoding NOEXPORT_SNAPSHOT',
    "CREATE_REPLICATION_SLOT s LOGICAL test_decoding USE_SNAPSHOT",
    "CREATE_REPLICATION_SLOT Bad-Name LOGICAL test_decoding NOEXPORT_SNAPSHOT",
    'CREATE_REPLICATION_SLOT "Bad" LOGICAL test_decoding NOEXPORT_SNAPSHOT',
    "CREATE_REPLICATION_SLOT s LOGICAL no_such_plugin NOEXPORT_SNAPSHOT",
    "CREATE_REPLICATION_SLOT s LOGICAL test_decoding (SNAPSHOT 'nothing', SNAPSHOT 'nothing')",
    "CREATE_REPLICATION_SLOT s LOGICAL test_decoding (SNAPSHOT 'some')",
    "CREATE_REPLICATION_SLOT s LOGICAL test_decoding (SNAPSHOT 'nothing', TWO_PHASE 'perhaps')",
    "CREATE_REPLICATION_SLOT s LOGICAL test_decoding (RESERVE_WAL, SNAPSHOT 'nothing')",
    "CREATE_REPLICATION_SLOT s LOGICAL test_decoding (COLOUR 'blue')",
    "CREATE_REPLICATION_SLOT s LOGICAL test_decoding NOEXPORT_SNAPSHOT USE_SNAPSHOT",
    "CREATE_REPLICATION_SLOT s LOGICAL",
    "CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL test_decoding (FAILOVER, SNAPSHOT 'nothing')",
    "CREATE_REPLICATION_SLOT SLOT LOGICAL test_decoding",
    "DROP_REPLICATION_SLOT none",
    'DROP_REPLICATION_SLOT "none" WAIT;',
    "DROP_REPLICATION_SLOT",
    "READ_REPLICATION_SLOT none",
    "READ_REPLICATION_SLOT taken",
    "START_REPLICATION SLOT none LOGICAL 0/0",
    "START_REPLICATION SLOT elsewhere LOGICAL 0/0",
    "START_REPLICATION SLOT taken LOGICAL 0/0 (\"no-such-option\" 'on')",
    "START_REPLICATION SLOT taken LOGICAL 0/0 (\"include-xids\" 'perhaps')",
    "START_REPLICATION SLOT taken LOGICAL 0/0 ()",
    "START_REPLICATION SLOT taken LOGICAL 0/0 (a 'unterminated)",
    "START_REPLICATION SLOT taken LOGICAL zero",
    "START_REPLICATION SLOT publishing LOGICAL 0/0",
    "START_REPLICATION SLOT publishing LOGICAL 0/0 (proto_version '1')",
    "START_REPLICATION SLOT publishing LOGICAL 0/0 (proto_version '99', publication_names 'p')",
    "START_REPLICATION SLOT publishing LOGICAL 0/0 (proto_version 'x', publication_names 'p')",
    "START_REPLICATION SLOT publishing LOGICAL 0/0 (proto_version '1', proto_version '1')",
    "START_REPLICATION SLOT publishing LOGICAL 0/0 (colour 'blue')",
    "START_REPLICATION SLOT taken LOGICAL 0/0 (\"include-xids\" 'perhaps', \"include-xids\" 'on')",
    "START_REPLICATION SLOT taken LOGICAL 0/0 (\"q\" 'it's')",
    'START_REPLICATION SLOT taken LOGICAL 0/0 ("a"b" \'1\')',
    'DROP_REPLICATION_SLOT "taken',
    'DROP_REPLICATION_SLOT taken "',
    "CREATE_REPLICATION_SLOT s LOGICAL test_decoding (SNAPSHOT 'nothing', TWO_PHASE 02)",
    "SHOW data_directory_mode",
    "SHOW wal_segment_size;",
    "SHOW a b",
    "IDENTIFY_SYSTEM x",
    "ALTER_REPLICATION_SLOT taken (COLOUR 'blue')",
    "ALTER_REPLICATION_SLOT none (FAILOVER)",
    "ALTER_REPLICATION_SLOT taken (FAILOVER, FAILOVER)",
    "ALTER_REPLICATION_SLOT taken (FAILOVER 'perhaps')",
    "ALTER_REPLICATION_SLOT taken ()",
    "ALTER_REPLICATION_SLOT taken (TWO_PHASE)",
    "ALTER_REPLICATION_SLOT taken (FAILOVER)",
    "SELECT pg_catalog.set_config('search_path', '', false);",
    "",
    " ; ",
]

WORKLOAD = """
CREATE TABLE t (a int PRIMARY KEY, b text, c mood);
CREATE TABLE other (i int);
INSERT INTO t SELECT i, repeat('x', i), 'sad' FROM generate_series(1, 100) i;
BEGIN; INSERT INTO t VALUES (200, 'ä', 'happy'); SAVEPOINT s; \
UPDATE t SET a = 300 WHERE a = 200; DELETE FROM t WHERE a = 1; COMMIT;
BEGIN; ROLLBACK;
SELECT pg_logical_emit_message(true, 'p', 'in a transaction');
SELECT pg_logical_emit_message(false, 'p', 'outside of one');
CREATE TABLE nothing_to_see (i int);
TRUNCATE other, t;
ALTER TABLE t ADD COLUMN d int DEFAULT 7;
INSERT INTO t VALUES (5, 'after', 'sad');
SELECT pg_replication_origin_create('an_origin');
BEGIN; INSERT INTO t VALUES (6, 'before', 'sad'); PREPARE TRANSACTION 'p1';
COMMIT PREPARED 'p1';
BEGIN; INSERT INTO t VALUES (7, 'gone', 'sad'); PREPARE TRANSACTION 'p2';
ROLLBACK PREPARED 'p2';
"""

STREAMS = [
    ("test_decoding", ""),
    ("test_decoding", "\"skip-empty-xacts\" 'on', \"include-xids\" 'off'"),
    ("test_decoding", "\"include-xids\" 'on', \"include-xids\" 'off'"),
    ("pgoutput", "proto_version '1', publication_names 'p'"),
    ("pgoutput", "proto_version '2', publication_names 'p', messages 'true', binary 'true'"),
]


@pytest.fixture
def made(pg: Database) -> Database:
    pg.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    pg.execute("CREATE PUBLICATION p FOR ALL TABLES")
    return pg


def test_commands(made: Database, tmp_path: Path) -> None:
    other = made.cluster.create_database(f"{made.name}_other")
    with (
        serving(made, tmp_path) as (service, dsn),
        ReplicationClient(dsn) as ours,
        ReplicationClient(made.dsn) as theirs,
        ReplicationClient(other.dsn) as elsewhere,
    ):
        for slot, plugin in (("taken", "test_decoding"), ("publishing", "pgoutput")):
            create = f"CREATE_REPLICATION_SLOT {slot} LOGICAL {plugin} NOEXPORT_SNAPSHOT"
            replies = [connection.run(create) for connection in (theirs, ours)]
            assert [_without_lsn(reply) for reply in replies[1:]] == [_without_lsn(replies[0])]
        elsewhere.run("CREATE_REPLICATION_SLOT elsewhere LOGICAL test_decoding NOEXPORT_SNAPSHOT")
        service.create_slot("elsewhere", other.name)
        service.call("PATCH", "/users/alice", json={"databases": ["main/*"]})
        with ReplicationClient(dsn) as everywhere:
            differing = {
                command: (expected, found)
                for command in COMMANDS
                if (expected := theirs.run(command)) != (found := everywhere.run(command))
            }
        unexpected = [
            f"{command}: {expected}, ours {found}"
            for command, (expected, found) in differing.items()
            if not _is_other_on_purpose(command, expected, found)
        ]
        assert not unexpected, "\n".join(unexpected)
        identity = [connection.run("IDENTIFY_SYSTEM") for connection in (theirs, ours)]
        assert identity[0].columns == identity[1].columns
        assert [(row[0], row[1], row[3]) for reply in identity for row in reply.rows] == [
            (identity[0].rows[0][0], "1", made.name)
        ] * 2
        if made.cluster.major >= 18:
            columns = (
                "SELECT failover, two_phase FROM pg_replication_slots WHERE slot_name = 'taken'"
            )
            ((failover, two_phase),) = made.query(columns)
            altered = service.slot("taken")
            assert (altered["failover"], altered["two_phase"]) == (failover, two_phase)
            assert failover
            assert two_phase
            # What is prepared from here on is told of.
            assert altered["two_phase_at"] == altered["confirmed_flush_lsn"]
            assert ours.run("ALTER_REPLICATION_SLOT taken (TWO_PHASE false)").failure is None
            assert service.slot("taken")["two_phase_at"] is None
        for connection in (theirs, ours):
            assert connection.run("DROP_REPLICATION_SLOT taken") == Reply(
                "COMMAND_OK", tag="DROP_REPLICATION_SLOT"
            )
        theirs.run("DROP_REPLICATION_SLOT publishing")
        elsewhere.run("DROP_REPLICATION_SLOT elsewhere")
    made.cluster.drop_database(other.name)


def _without_lsn(reply: Reply) -> object:
    ((name, _, snapshot, plugin),) = reply.rows
    return reply.columns, name, snapshot, plugin, reply.tag


def _is_other_on_purpose(command: str, expected: Reply, found: Reply) -> bool:
    """What is known not to be said in PostgreSQL's words."""
    assert found.failure is not None, (command, expected, found)
    if command.startswith(("READ_REPLICATION_SLOT", "ALTER_")):
        # Before the major that knows it the text is SQL, which is not served.
        return found.failure.sqlstate == "42501"
    return False


def test_frames(made: Database, tmp_path: Path) -> None:
    with (
        serving(made, tmp_path) as (_, dsn),
        ReplicationClient(dsn) as ours,
        ReplicationClient(made.dsn) as theirs,
    ):
        for number, (plugin, _) in enumerate(STREAMS):
            for connection in (theirs, ours):
                create = f"CREATE_REPLICATION_SLOT f{number} LOGICAL {plugin} NOEXPORT_SNAPSHOT"
                assert connection.run(create).status == "TUPLES_OK"
        _work(made)
        end = str(made.value("SELECT pg_current_wal_flush_lsn()::text"))
        for number, (plugin, options) in enumerate(STREAMS):
            expected = _stream(made.dsn, f"f{number}", options, end)
            assert len(expected) > 100
            assert _stream(dsn, f"f{number}", options, end) == expected, (plugin, options)
            if plugin == "pgoutput":
                origins = [frame for frame in expected if frame.data[:1] == b"O"]
                relations = [frame for frame in expected if frame.data[:1] in b"RY"]
                assert origins
                assert {frame.start for frame in relations} == {0}
        for number in range(len(STREAMS)):
            theirs.run(f"DROP_REPLICATION_SLOT f{number}")


def test_names_of_publications(made: Database, tmp_path: Path) -> None:
    """One that is not quoted is in lower case; subscribers quote all."""
    made.execute('CREATE TABLE "Mine" (i int); CREATE TABLE mine (i int)')
    made.execute('CREATE PUBLICATION "MyPub" FOR TABLE "Mine"')
    made.execute("CREATE PUBLICATION mypub FOR TABLE mine")
    relations = {
        "MyPub": {b"mine"},
        '"MyPub"': {b"Mine"},
        'mypub, "MyPub"': {b"mine", b"Mine"},
    }
    with (
        serving(made, tmp_path) as (_, dsn),
        ReplicationClient(dsn) as ours,
        ReplicationClient(made.dsn) as theirs,
    ):
        for connection in (theirs, ours):
            create = "CREATE_REPLICATION_SLOT named LOGICAL pgoutput NOEXPORT_SNAPSHOT"
            assert connection.run(create).status == "TUPLES_OK"
        made.execute('INSERT INTO "Mine" VALUES (1)')
        made.execute("INSERT INTO mine VALUES (2)")
        end = str(made.value("SELECT pg_current_wal_flush_lsn()::text"))
        for names, found in relations.items():
            options = f"proto_version '1', publication_names '{names}'"
            expected = _stream(made.dsn, "named", options, end)
            assert _stream(dsn, "named", options, end) == expected, names
            described = [frame.data[5:] for frame in expected if frame.data[:1] == b"R"]
            assert {data.split(b"\0")[1] for data in described} == found
        theirs.run("DROP_REPLICATION_SLOT named")


def _work(database: Database) -> None:
    with database.connect() as connection:
        for line in WORKLOAD.strip().splitlines():
            for statement in line.split("; ") if line.startswith("BEGIN") else [line]:
                connection.execute(statement.encode())
        connection.execute("SELECT pg_replication_origin_session_setup('an_origin')")
        for statement in (
            "BEGIN",
            "SELECT pg_replication_origin_xact_setup('0/1234', now())",
            "INSERT INTO t VALUES (8, 'from elsewhere', 'happy')",
            "COMMIT",
            "SELECT pg_replication_origin_session_reset()",
            "SELECT pg_replication_origin_drop('an_origin')",
        ):
            connection.execute(statement.encode())


def _stream(dsn: str, slot: str, options: str, end: str) -> list[Frame]:
    with ReplicationClient(dsn) as connection:
        connection.start(slot, options)
        frames = connection.read_to(end)
        replies = connection.finish_copy()
        # Two: of the copy, and of the command.
        assert [(reply.status, reply.tag) for reply in replies] == [
            ("COMMAND_OK", "COPY 0"),
            ("COMMAND_OK", "START_REPLICATION"),
        ]
        # It can be gone on with.
        assert connection.run("IDENTIFY_SYSTEM").status == "TUPLES_OK"
        return frames


def test_two_phase_frames(made: Database, tmp_path: Path) -> None:
    if made.cluster.major < 15:
        pytest.skip("pgoutput knows no prepared transactions before 15")
    options = "proto_version '3', publication_names 'p', two_phase 'on'"
    create = "CREATE_REPLICATION_SLOT prepared LOGICAL pgoutput (TWO_PHASE, SNAPSHOT 'nothing')"
    with (
        serving(made, tmp_path) as (_, dsn),
        ReplicationClient(dsn) as ours,
        ReplicationClient(made.dsn) as theirs,
    ):
        assert ours.run(create).status == theirs.run(create).status == "TUPLES_OK"
        _work(made)
        end = str(made.value("SELECT pg_current_wal_flush_lsn()::text"))
        expected = _stream(made.dsn, "prepared", options, end)
        assert {frame.data[:1] for frame in expected} >= {b"b", b"P", b"K", b"r", b"O"}
        assert _stream(dsn, "prepared", options, end) == expected
        theirs.run("DROP_REPLICATION_SLOT prepared")


def test_pg_recvlogical(made: Database, tmp_path: Path) -> None:
    with serving(made, tmp_path) as (service, _):
        alice = ["-h", "127.0.0.1", "-p", str(service.pg_port), "-U", "alice"]
        server_dsn = conninfo_to_dict(made.dsn)
        server = [
            "-h",
            str(server_dsn["host"]),
            "-p",
            str(server_dsn["port"]),
            "-U",
            str(server_dsn["user"]),
        ]
        both = [alice, server]
        for flags in (
            ["--create-slot", "--slot", "r", "-P", "test_decoding"],
            ["--create-slot", "--slot", "r", "-P", "test_decoding", "--if-not-exists"],
            ["--create-slot", "--slot", "two", "-P", "test_decoding", "--two-phase"],
            ["--create-slot", "--slot", "f", "-P", "pgoutput", "--enable-failover", "-v"],
        ):
            if "--enable-failover" in flags and made.cluster.major < 17:
                # pg_recvlogical leaves the word out there.
                flags.remove("--enable-failover")
            assert [_recv(to, made, *flags)[0] for to in both] == [0, 0], flags
        assert [_recv(to, made, "--create-slot", "--slot", "r")[0] for to in both] == [1, 1]
        _work(made)
        end = str(made.value("SELECT pg_current_wal_flush_lsn()::text"))
        for flags in (
            ["--slot", "two", "-o", "include-xids=off", "-o", "skip-empty-xacts"],
            ["--slot", "r"],
            # All is confirmed: nothing comes again.
            ["--slot", "r"],
        ):
            found, expected = (
                _recv(to, made, "--start", "--no-loop", "-f", "-", "--endpos", end, *flags)
                for to in both
            )
            assert found[1].splitlines()[-30:] == expected[1].splitlines()[-30:], flags
            assert found == expected, flags
            assert found[0] == 0, found
        assert service.slot("r")["confirmed_flush_lsn"] == end
        assert service.slot("f")["failover"] == (made.cluster.major >= 17)
        # Made and read in one, from a position, into a file, with its own intervals.
        made.execute("INSERT INTO t VALUES (77, 'in a file', 'sad')")
        end = str(made.value("SELECT pg_current_wal_flush_lsn()::text"))
        written = []
        at = ["--startpos", str(service.slot("r")["confirmed_flush_lsn"])]
        for number, to in enumerate(both):
            file = tmp_path / f"out{number}"
            into = ["--file", str(file), "--no-loop", "--endpos", end, "--verbose"]
            intervals = ["--status-interval", "1", "--fsync-interval", "1"]
            assert _recv(to, made, "--start", "--slot", "r", *into, *intervals, *at)[0] == 0
            new = ["--create-slot", "--slot", "new", "-P", "test_decoding"]
            assert _recv(to, made, *new, "--start", *into)[0] == 0
            written.append(file.read_text())
        assert "in a file" in written[0]
        assert written[1] == written[0]
        for slot in ("r", "two", "f", "new", "r"):
            drops = [_recv(to, made, "--drop-slot", "--slot", slot)[0] for to in both]
            assert drops[0] == drops[1]


def test_what_ends_where_the_slot_stands(made: Database, tmp_path: Path) -> None:
    """Who has all up to its --endpos gets nothing again, though a transaction begins just there: a
    walsender's first word is where its slot stands.
    """
    with serving(made, tmp_path) as (_, dsn):
        both = (dsn, made.dsn)
        for to in both:
            with ReplicationClient(to) as client:
                assert (
                    client.run(
                        "CREATE_REPLICATION_SLOT ends LOGICAL test_decoding NOEXPORT_SNAPSHOT"
                    ).status
                    == "TUPLES_OK"
                )
        end = str(made.value("SELECT pg_current_wal_insert_lsn()::text"))
        made.execute("SELECT pg_logical_emit_message(true, 'p', 'begins there')")
        keepalives = []
        for to in both:
            with ReplicationClient(to) as client:
                client.start("ends", "\"skip-empty-xacts\" 'off'")
                client.read_until(lambda c=client: len(c.frames) >= 3)  # type: ignore[misc]
                begin, *_ = client.frames
                client.feedback(begin.start)
                client.read_to(str(made.value("SELECT pg_current_wal_flush_lsn()::text")))
                client.finish_copy()
            with ReplicationClient(to) as client:
                client.start("ends")
                client.read_until(lambda c=client: bool(c.frames))  # type: ignore[misc]
                keepalives.append((begin.start, client.keepalives[0]))
                client.finish_copy()
        ours, theirs = keepalives
        assert theirs == (int(Lsn.parse(end)), (int(Lsn.parse(end)), 0))
        assert ours == theirs
        with ReplicationClient(made.dsn) as client:
            client.run("DROP_REPLICATION_SLOT ends")


@pytest.mark.parametrize("major", [deep(15), 16, deep(17)])
def test_pg_recvlogical_of_older(pg15: Database, tmp_path: Path, major: int) -> None:
    try:
        client("pg_recvlogical", major)
    except ClientNotThere as error:
        pytest.skip(str(error))
    pg15.execute("CREATE TABLE t (a int)")
    with serving(pg15, tmp_path) as (service, _):
        server_dsn = conninfo_to_dict(pg15.dsn)
        theirs = ["-h", str(server_dsn["host"]), "-p", str(server_dsn["port"])]
        both = [
            ["-h", "127.0.0.1", "-p", str(service.pg_port), "-U", "alice"],
            [*theirs, "-U", str(server_dsn["user"])],
        ]
        create = ["--create-slot", "--slot", "s", "-P", "test_decoding", "--two-phase"]
        assert [_recv(to, pg15, *create, major=major)[0] for to in both] == [0, 0]
        pg15.execute("INSERT INTO t SELECT generate_series(1, 100)")
        end = str(pg15.value("SELECT pg_current_wal_flush_lsn()::text"))
        start = ["--start", "--slot", "s", "--no-loop", "-f", "-", "--endpos", end]
        found, expected = (_recv(to, pg15, *start, major=major) for to in both)
        assert found == expected
        assert found[1].count("INSERT") == 100
        drop = ["--drop-slot", "--slot", "s"]
        assert [_recv(to, pg15, *drop, major=major)[0] for to in both] == [0, 0]


def _recv(to: list[str], database: Database, *flags: str, major: int = 18) -> tuple[int, str]:
    done = subprocess.run(
        [client("pg_recvlogical", major), *to, "-d", database.name, *flags],
        env={**os.environ, "PGPASSWORD": "a password"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout
