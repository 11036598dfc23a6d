"""What streams print by while their source is down and the service was started again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from psycopg import pq

from harness.pg_port import create_user, dsn_of
from harness.remedies import remedy
from harness.replication_client import ReplicationClient
from harness.service import service_in_process

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from harness.replication_client import Frame

SETTINGS = {
    "TimeZone": "Europe/Berlin",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
}
PRINTED = b"'01/07/2024 14:00:00 CEST' b[date]:'02/07/2024' c[interval]:'P1DT2H'"


def _filled(database: Database) -> None:
    """Print otherwise than PostgreSQL's built-in settings do, by the server, the database and the
    role.
    """
    for name, value in SETTINGS.items():
        database.execute(f"ALTER DATABASE \"{database.name}\" SET {name} = '{value}'")
    database.execute("ALTER ROLE ALL SET bytea_output = 'escape'")
    database.execute("CREATE TABLE t (a timestamptz, b date, c interval, d bytea, e float8)")


def _insert(database: Database) -> None:
    database.execute(
        "INSERT INTO t VALUES ('2024-07-01 12:00Z', '2024-07-02', '1 day 2 hours', '\\x00ff', 0.1)"
    )


def _stream(dsn: str, end: str) -> list[Frame]:
    with ReplicationClient(dsn) as client:
        client.start("s")
        return client.read_to(end)


def test_it_is_what_it_was(tmp_path: Path, fresh_cluster) -> None:
    cluster = fresh_cluster(18)
    database = cluster.create_database("d")
    _filled(database)
    database.query("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(cluster.dsn())
        create_user(service, "alice", "d", manage_slots=True)
        service.create_slot("s", "d")
        _insert(database)
        end = service.wait_decoded("s", database)
        expected = _stream(database.dsn, end)
        assert PRINTED in b"".join(frame.data for frame in expected)
        assert _stream(dsn_of(service, "alice", "d"), end) == expected
    cluster.stop()
    with service_in_process(tmp_path / "data") as service:
        assert _stream(dsn_of(service, "alice", "d"), end) == expected


@pytest.mark.follows_hint("session_settings_unknown")
def test_it_is_not_guessed(tmp_path: Path, fresh_cluster) -> None:
    cluster = fresh_cluster(18)
    database = cluster.create_database("d")
    _filled(database)
    with service_in_process(tmp_path / "data") as service:
        service.create_source(cluster.dsn())
        # Nobody comes in by this port before the source is down.
        create_user(service, "alice", "d", manage_slots=True)
        service.create_slot("s", "d")
        _insert(database)
        end = service.wait_decoded("s", database)
    cluster.stop()
    with service_in_process(tmp_path / "data") as service:
        dsn = dsn_of(service, "alice", "d")
        with ReplicationClient(dsn) as client:
            refused = client.run_bytes(b"START_REPLICATION SLOT s LOGICAL 0/0")
            said = {
                field: (refused.error_field(field) or b"").decode()
                for field in (
                    pq.DiagnosticField.SQLSTATE,
                    pq.DiagnosticField.MESSAGE_PRIMARY,
                    pq.DiagnosticField.MESSAGE_HINT,
                )
            }
            state, message, hint = said.values()
            assert state == "57P03"
            assert message == (
                "the source's TimeZone, DateStyle, IntervalStyle, extra_float_digits, bytea_output "
                "are not known, and it can't be asked"
            )
            # The session goes on, as after any other error.
            assert client.run("IDENTIFY_SYSTEM").failure is None
        code = "session_settings_unknown"
        hint = remedy({"code": code, "hint": hint}, code)
        options = re.search(r"PGOPTIONS=('.*?')", hint)
        assert options is not None
        (built_in,) = (
            frame.data
            for frame in _stream(f"{dsn} options={options[1]}", end)
            if b"INSERT" in frame.data
        )
        assert b"'2024-07-01 12:00:00+00'" in built_in
        assert b"'1 day 02:00:00'" in built_in
        # The same of what the client gives its plugin.
        with ReplicationClient(dsn) as client:
            given = {**SETTINGS, "TimeZone": "Asia/Tokyo"}
            client.start("s", ", ".join(f"\"{name}\" '{value}'" for name, value in given.items()))
            assert b"21:00:00 JST" in b"".join(frame.data for frame in client.read_to(end))
        # A client that is there already is told what is known as soon as the source is back.
        with ReplicationClient(dsn) as client:
            cluster.start()
            command = "START_REPLICATION SLOT s LOGICAL 0/0"
            while (failure := client.run(command).failure) is not None:
                assert failure.sqlstate == "57P03"
        assert PRINTED in b"".join(frame.data for frame in _stream(dsn, end))
