"""What a replication connection's own state does to what follows in it, as in PostgreSQL."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import pq

from harness.pg_port import create_user, dsn_of, serving
from harness.replication_client import ReplicationClient
from spillway.walsender import printing

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

TEMPORARY = "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL test_decoding NOEXPORT_SNAPSHOT"
#: A statement, and whether temporary slots are there behind it.
STATEMENTS = [
    ("SELECT 1", True),
    ("SHOW no_such_setting", False),
    ("BEGIN; SELECT 1; SELECT no_such_column; COMMIT", False),
]


def _left(dsn: str, statement: str, *, is_ours: bool) -> bool:
    """Whether a temporary slot outlives *statement*."""
    with ReplicationClient(dsn) as client:
        made = client.run(TEMPORARY.format("passing"))
        assert made.failure is None, made
        client.run(statement)
        client.run("ROLLBACK")
        # Its name is free again, or it is not.
        again = client.run(TEMPORARY.format("passing"))
        assert again.failure is None or again.failure.sqlstate == "42710", (again, is_ours)
        return again.failure is not None


def test_an_error_ends_temporary_slots(pg15: Database, tmp_path: Path) -> None:
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "both", pg15.name, manage_slots=True, run_sql=True)
        dsn = dsn_of(service, "both", pg15.name)
        for statement, is_left in STATEMENTS:
            assert _left(pg15.dsn, statement, is_ours=False) is is_left, statement
            assert _left(dsn, statement, is_ours=True) is is_left, statement
        for conninfo in (pg15.dsn, dsn):
            with psycopg.connect(conninfo, autocommit=True) as session:
                session.execute(
                    "SELECT pg_create_logical_replication_slot('passing', 'test_decoding', true)"
                )
                count = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'passing'"
                assert session.execute(count).fetchone() == (1,)
                with pytest.raises(psycopg.Error):
                    session.execute("SELECT 1 / 0")
                assert session.execute(count).fetchone() == (0,)


def test_a_name_that_is_set_later(pg15: Database, tmp_path: Path) -> None:
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "both", pg15.name, manage_slots=True, run_sql=True)
        service.create_slot("s", pg15.name)
        dsn = dsn_of(service, "both", pg15.name)
        with ReplicationClient(f"{dsn} application_name=first") as client:
            client.run("SET application_name = 'second'")
            client.start("s")
            assert service.slot("s")["consumer"]["client"] == "second"


def test_strings_with_backslashes(pg15: Database, tmp_path: Path) -> None:
    """What looks like a string's end is none, where standard_conforming_strings is off."""
    statement = r"SELECT 'it\'s', slot_name FROM pg_replication_slots WHERE slot_name = 's'"
    setting = "options='-c standard_conforming_strings=off -c escape_string_warning=off'"
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "both", pg15.name, manage_slots=True, run_sql=True)
        service.create_slot("s", pg15.name)
        dsn = f"{dsn_of(service, 'both', pg15.name)} {setting}"
        with ReplicationClient(dsn) as client:
            assert client.run(statement).rows == (("it's", "s"),)
        with psycopg.connect(dsn, autocommit=True) as session:
            found = session.execute(statement.encode(), prepare=False).fetchall()
            assert found == [("it's", "s")]
            session.execute("SET standard_conforming_strings = on")
            conforming = statement.replace(r"\'", "''").encode()
            assert session.execute(conforming).fetchall() == [("it's", "s")]


def test_a_second_stream(pg15: Database, tmp_path: Path) -> None:
    """It is over as soon as it has begun: the client's CopyDone still counts."""
    pg15.execute("CREATE TABLE t (i int)")
    with serving(pg15, tmp_path) as (service, dsn):
        service.create_slot("s", pg15.name)
        pg15.query("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
        pg15.execute("INSERT INTO t VALUES (1)")
        end = str(pg15.value("SELECT pg_current_wal_flush_lsn()::text"))
        seen = []
        for conninfo in (pg15.dsn, dsn):
            with ReplicationClient(conninfo) as client:
                client.start("s")
                client.read_to(end)
                assert client.frames
                first = client.finish_copy()
                client.start("s")
                frames = len(client.frames)
                client.read_to_end()
                seen.append((first, len(client.frames) - frames))
        pg15.query("SELECT pg_drop_replication_slot('s')")
        assert seen[0] == seen[1]
        assert seen[0][1] == 0


#: In a file that initdb writes, or of one database.
SETTINGS = {
    "TimeZone": "Europe/Berlin",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
}


def test_what_the_source_has_is_printed_by(pg15: Database, tmp_path: Path) -> None:
    """What a client neither gives nor sets is as in its database's sessions."""
    for name, value in SETTINGS.items():
        pg15.execute(f"ALTER DATABASE \"{pg15.name}\" SET {name} = '{value}'")
    pg15.execute("CREATE TABLE t (a timestamptz, b date, c interval, d bytea, e float8)")

    def seen(conninfo: str, lsn: str, statement: str | None = None) -> list[bytes]:
        with ReplicationClient(conninfo) as client:
            if statement is not None:
                assert client.run(statement).failure is None
            client.start("s")
            client.read_to(lsn)
            return [frame.data for frame in client.frames]

    with serving(pg15, tmp_path) as (service, dsn):
        create_user(service, "both", pg15.name, manage_slots=True, run_sql=True)
        both = dsn_of(service, "both", pg15.name)
        service.create_slot("s", pg15.name)
        service.create_slot("own", pg15.name, options={"timezone": "Asia/Tokyo"})
        pg15.query("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
        pg15.execute(
            "INSERT INTO t VALUES "
            "('2024-07-01 12:00Z', '2024-07-02', '1 day 2 hours', '\\x00ff', 0.1)"
        )
        end = service.wait_decoded("s", pg15)
        expected = seen(pg15.dsn, end)
        assert b"'01/07/2024 14:00:00 CEST' b[date]:'02/07/2024' c[interval]:'P1DT2H'" in (
            b"".join(expected)
        )
        assert seen(dsn, end) == expected
        given = " options='-c datestyle=German -c timezone=America/Lima'"
        for statement, more in (
            (None, given),
            ("SET TimeZone = 'Asia/Tokyo'", ""),
            ("SET bytea_output = hex", given),
        ):
            expected = seen(pg15.dsn + more, end, statement)
            assert seen(both + more, end, statement) == expected
        peek = "SELECT data FROM pg_logical_slot_peek_changes('s', NULL, NULL)"
        with psycopg.connect(both) as session, pg15.connect() as theirs:
            found = session.execute(peek).fetchall()
            assert "CEST" in str(found)
            # What a server reports of its settings is what can be known of a session's.
            masked = [row[0].replace("\\x00ff", "\\000\\377") for row in found]
            assert masked == [row[0] for row in theirs.execute(peek).fetchall()]
        assert "21:00:00 JST" in str(service.peek("own", {"datestyle": "SQL"}))
        with ReplicationClient(dsn) as client:
            client.start("own")
            client.read_to(end)
            assert b"21:00:00 JST" in b"".join(frame.data for frame in client.frames)
        pg15.query("SELECT pg_drop_replication_slot('s')")


def test_settings_that_there_are_not(pg15: Database, tmp_path: Path) -> None:
    """They are refused at once, in the server's words."""
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "both", pg15.name, run_sql=True)
        for settings in (
            "options='-c no_such_setting=1'",
            "options='-c timezone=Nowhere'",
            "options='-c wal_sender_timeout=soon'",
            "options='-c fsync=off'",
            "options=word",
        ):
            refused = []
            for conninfo in (pg15.dsn, dsn_of(service, "both", pg15.name)):
                with pytest.raises(ConnectionRefusedError) as error:
                    ReplicationClient(f"{conninfo} {settings}")
                refused.append(str(error.value).partition("FATAL:")[2])
            assert refused[0] == refused[1] != "", settings


def test_answers_are_in_the_clients_encoding(pg15: Database, tmp_path: Path) -> None:
    """What is answered here is, too: errors with names, IDENTIFY_SYSTEM's database."""
    name = "dbé日"
    database = pg15.cluster.create_database(name)

    def answers(conninfo: str, encoding: str) -> list[bytes]:
        text = "é" if encoding == "LATIN1" else "日"
        codec = {"LATIN1": "latin-1", "EUC_JP": "euc_jp", "GB18030": "gb18030"}[encoding]
        commands = [f'DROP_REPLICATION_SLOT "{text}"']
        if encoding == "GB18030":
            commands.append("IDENTIFY_SYSTEM")
        found = []
        with ReplicationClient(f"{conninfo} client_encoding={encoding}") as client:
            for command in commands:
                result = client.run_bytes(command.encode(codec))
                if command == "IDENTIFY_SYSTEM":
                    found.append(result.get_value(0, 3) or b"")
                else:
                    found.append(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"")
        return found

    try:
        with serving(database, tmp_path) as (_, dsn):
            for encoding in ("LATIN1", "EUC_JP", "GB18030"):
                expected = answers(database.dsn, encoding)
                assert answers(dsn, encoding) == expected, encoding
    finally:
        pg15.cluster.drop_database(name)


@pytest.mark.long
def test_a_session_that_hangs_and_a_stream(
    pg15: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "WAIT_S", 0.2)
    pg15.execute("CREATE TABLE t (i int)")
    with serving(pg15, tmp_path) as (service, _):
        create_user(service, "both", pg15.name, manage_slots=True, run_sql=True)
        service.create_slot("s", pg15.name)
        pg15.execute("INSERT INTO t VALUES (1)")
        end = str(pg15.value("SELECT pg_current_wal_flush_lsn()::text"))
        with ReplicationClient(dsn_of(service, "both", pg15.name)) as client:
            ((backend,),) = client.run("SELECT pg_backend_pid()").rows
            assert backend is not None
            os.kill(int(backend), signal.SIGSTOP)
            try:
                client.start("s")
                client.read_to(end)
            finally:
                os.kill(int(backend), signal.SIGCONT)
            assert client.frames
            client.finish_copy()
            # What had been set there is not there any more, so nothing is answered in its stead.
            with pytest.raises(psycopg.Error):
                client.run("SELECT 1")


#: What the startup packet's options say, each character as it is there.
GIVEN = [
    "-c application_name=it's -c bytea_output=escape",
    '-c application_name=a"b -c bytea_output=escape',
    "-c application_name=two\\ words\\\\ -cbytea_output=escape",
    "-c bytea_output='escape'",
    "  --bytea-output=escape\t-c IntervalStyle=ISO_8601 ",
    "-c timezone='Europe/Berlin'",
    "-c bytea_output=escape\\",
    "bytea_output=escape",
    *(
        f"-c timezone={zone} -c datestyle={style}"
        for zone in (
            "+3", "-3", "5.5", "GMT-03:00", "<+03>-03", "UTC-5:30:15", "00:30", "foo3",
            "abcdefghijklmno-1", "<>3", "utc", "europe/BERLIN", "168", "X167", "X168", "X3:60",
        )
        for style in ("ISO", "SQL", "Postgres", "German")
    ),
]  # fmt: skip


def test_options_are_read_as_a_server_reads_them(pg: Database, tmp_path: Path) -> None:
    """A quote in one of them is a character of it, and ends none of the others; a zone may be an
    offset, which is what pgjdbc sends of a JVM without a place.
    """
    pg.execute("CREATE TABLE t (a timestamptz, b bytea, c interval)")

    def seen(dsn: str, options: str, lsn: str) -> object:
        escaped = options.replace("\\", "\\\\").replace("'", "\\'")
        try:
            with ReplicationClient(f"{dsn} options='{escaped}'") as client:
                reported = [
                    client.pgconn.parameter_status(name)
                    for name in (b"application_name", b"TimeZone", b"DateStyle", b"IntervalStyle")
                ]
                client.start("given")
                client.read_to(lsn)
                # So that the slot is free for the next one.
                client.finish_copy()
                return reported, [frame.data for frame in client.frames]
        except ConnectionRefusedError as error:
            return str(error).partition("FATAL: ")[2]

    with serving(pg, tmp_path) as (service, _):
        create_user(service, "both", pg.name, manage_slots=True, run_sql=True)
        both = dsn_of(service, "both", pg.name)
        service.create_slot("given", pg.name)
        pg.query("SELECT pg_create_logical_replication_slot('given', 'test_decoding')")
        pg.execute("INSERT INTO t VALUES ('2024-07-01 12:00Z', '\\x00ff', '1 day 2 hours')")
        end = service.wait_decoded("given", pg)
        differing = [
            (options, expected, found)
            for options in GIVEN
            if (expected := seen(pg.dsn, options, end)) != (found := seen(both, options, end))
        ]
        assert not differing
        # A slot prints by them, too.
        assert "15:00:00 +03" in str(service.peek("given", {"TimeZone": "+3", "datestyle": "SQL"}))
        pg.query("SELECT pg_drop_replication_slot('given')")
