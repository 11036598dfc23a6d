"""What a replication connection's own state does to what follows in it, as in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.pg_port import create_user, dsn_of, serving
from harness.replication_client import ReplicationClient

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
