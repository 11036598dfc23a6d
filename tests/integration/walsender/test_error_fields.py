"""What errors and notices of the port have beside their text, as a server's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
from psycopg import pq

from harness.pg_port import create_user, dsn_of, serving
from harness.replication_client import ReplicationClient
from harness.tiers import on_every_major

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

FIELDS = (
    pq.DiagnosticField.SEVERITY,
    pq.DiagnosticField.SQLSTATE,
    pq.DiagnosticField.MESSAGE_PRIMARY,
    pq.DiagnosticField.MESSAGE_DETAIL,
    pq.DiagnosticField.MESSAGE_HINT,
    pq.DiagnosticField.CONTEXT,
)
#: Names of 63 bytes and more, of which one ends within a character.
LONG = "a" * 70
QUOTED = '"' + "é" * 32 + '"'


def said(result: pq.abc.PGresult) -> tuple[bytes | None, ...]:
    return tuple(result.error_field(field) for field in FIELDS)


class Answer(NamedTuple):
    command: str
    error: tuple[bytes | None, ...]
    notices: list[tuple[bytes | None, ...]]


def answers(dsn: str, commands: list[str]) -> list[Answer]:
    """Run commands on one connection; give what each of them said, with its notices."""
    found: list[Answer] = []
    with ReplicationClient(dsn) as client:
        notices: list[tuple[bytes | None, ...]] = []
        client.pgconn.notice_handler = lambda result: notices.append(said(result))
        for command in commands:
            notices.clear()
            error = said(client.run_bytes(command.encode()))
            found.append(Answer(command, error, list(notices)))
    return found


NAMES = [
    f"CREATE_REPLICATION_SLOT {LONG} TEMPORARY LOGICAL test_decoding NOEXPORT_SNAPSHOT",
    f"DROP_REPLICATION_SLOT {LONG}",
    f"DROP_REPLICATION_SLOT {QUOTED}",
    f"SHOW {LONG}",
    f"START_REPLICATION SLOT {LONG} LOGICAL 0/0",
]
WRITES = [
    "BEGIN",
    "SELECT count(*) FROM t",
    "CREATE_REPLICATION_SLOT x TEMPORARY LOGICAL test_decoding NOEXPORT_SNAPSHOT",
    "INSERT INTO t VALUES ('written')",
    "CREATE_REPLICATION_SLOT y TEMPORARY LOGICAL test_decoding NOEXPORT_SNAPSHOT",
    "ROLLBACK",
    "CREATE_REPLICATION_SLOT y TEMPORARY LOGICAL test_decoding NOEXPORT_SNAPSHOT",
    "DROP_REPLICATION_SLOT y",
]
STARTUP = [
    "START_REPLICATION SLOT s LOGICAL 0/0 (\"no-such\" '1')",
    "START_REPLICATION SLOT s LOGICAL 0/0 (\"include-xids\" 'maybe')",
    "START_REPLICATION SLOT o LOGICAL 0/0 (proto_version '1')",
    "START_REPLICATION SLOT o LOGICAL 0/0 (proto_version '99', publication_names 'p')",
    "START_REPLICATION SLOT o LOGICAL 0/0 (proto_version '1', publication_names ',')",
    "START_REPLICATION SLOT o LOGICAL 0/0 (proto_version '1', proto_version '1')",
    "START_REPLICATION SLOT o LOGICAL 0/0 (proto_version '1', publication_names 'p', origin)",
]


@on_every_major
def test_they_are_a_servers(pg: Database, tmp_path: Path) -> None:
    pg.execute("CREATE TABLE t (i text); CREATE PUBLICATION p FOR TABLE t")
    with serving(pg, tmp_path) as (service, _):
        create_user(service, "both", pg.name, run_sql=True, manage_slots=True)
        to = pg.dsn, dsn_of(service, "both", pg.name)
        for name, plugin in (("s", "test_decoding"), ("o", "pgoutput")):
            service.create_slot(name, pg.name, plugin)
            pg.query("SELECT pg_create_logical_replication_slot(%s, %s)", [name, plugin])
        for more, commands in (
            ("", [*NAMES, *STARTUP]),
            (" options='-c client_min_messages=warning'", NAMES),
        ):
            expected, found = (answers(dsn + more, commands) for dsn in to)
            assert found == expected
            assert bool(expected[0].notices) is not bool(more)
        expected, found = (answers(dsn, WRITES) for dsn in to)
        assert found == expected
        assert expected[4].error[1] == b"25001"
        functions = []
        for dsn in to:
            with psycopg.connect(dsn, autocommit=True) as session:
                with pytest.raises(psycopg.Error) as error:
                    session.execute(
                        "SELECT * FROM pg_logical_slot_peek_changes('s', NULL, NULL, 'none', '1')"
                    )
                diagnostics = error.value.diag
                functions.append((error.value.sqlstate, diagnostics.context))
        assert functions[0] == functions[1]
        assert "in the startup callback" in str(functions[0][1])
        # A character that the client's encoding lacks, in a change.
        for row in ("plain", "日"):
            pg.execute("INSERT INTO t VALUES (%s)", [row])
        pg.execute("SELECT pg_logical_emit_message(false, 'plain', 'x')")
        service.wait_decoded("o", pg)
        ends = []
        for dsn in to:
            with ReplicationClient(f"{dsn} client_encoding=LATIN1") as client:
                client.start("o", "proto_version '1', publication_names 'p'")
                ends.append(_end_of_stream(client))
        assert ends[0] == ends[1]
        assert b"in the change callback, associated LSN" in (ends[0][-1] or b"")
        for name in "so":
            pg.query("SELECT pg_drop_replication_slot(%s)", [name])


def _end_of_stream(client: ReplicationClient) -> tuple[bytes | None, ...]:
    """Read until the stream fails; give the error."""
    while True:
        size, _ = client.pgconn.get_copy_data(1)
        if size < 0:
            result = client.result()
            assert result is not None
            return said(result)
        if size == 0:
            client._wait()
            client.pgconn.consume_input()
