"""Replication commands as PostgreSQL 14 to 18 parse them; what they answer is compared with servers
elsewhere.
"""

from __future__ import annotations

import random

import pytest

from spillway.pg.lsn import Lsn
from spillway.walsender.failures import WireError
from spillway.walsender.grammar import (
    AlterSlot,
    CreateSlot,
    DropSlot,
    IdentifySystem,
    NotServed,
    Option,
    Show,
    StartLogical,
    parse_command,
)

SENT = {
    # pg_recvlogical, of 15 and later and before
    'CREATE_REPLICATION_SLOT "s" LOGICAL "p" ( SNAPSHOT \'nothing\')': CreateSlot(
        "s", "p", snapshot="nothing"
    ),
    (
        'CREATE_REPLICATION_SLOT "s" LOGICAL "p" ( FAILOVER,  TWO_PHASE,  SNAPSHOT \'nothing\')'
    ): CreateSlot("s", "p", snapshot="nothing", two_phase=True, failover=True),
    'CREATE_REPLICATION_SLOT "s" LOGICAL "p" NOEXPORT_SNAPSHOT': CreateSlot(
        "s", "p", snapshot="nothing"
    ),
    # psycopg2, pgjdbc
    'CREATE_REPLICATION_SLOT "s" LOGICAL "p"': CreateSlot("s", "p"),
    "CREATE_REPLICATION_SLOT Debezium  LOGICAL pgoutput ": CreateSlot("debezium", "pgoutput"),
    # subscriptions
    "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'use')": CreateSlot(
        "s", "pgoutput", snapshot="use"
    ),
    "DROP_REPLICATION_SLOT pg_1_sync_2_3 WAIT": DropSlot("pg_1_sync_2_3", wait=True),
    'ALTER_REPLICATION_SLOT "s" ( FAILOVER true, TWO_PHASE false );': AlterSlot(
        "s", failover=True, two_phase=False
    ),
    (
        "START_REPLICATION SLOT \"s\" LOGICAL 1/2A (proto_version '4', publication_names "
        "'\"a\",\"b''c\"')"
    ): StartLogical(
        "s",
        Lsn(0x1_0000_002A),
        [Option("proto_version", "4"), Option("publication_names", '"a","b\'c"')],
    ),
    'START_REPLICATION SLOT "s" LOGICAL 0/00000000 ("Flag")': StartLogical(
        "s", Lsn(0), [Option("Flag", None)]
    ),
    "  IDENTIFY_SYSTEM\n;": IdentifySystem(),
    "SHOW a.b": Show("a.b"),
    "START_REPLICATION 0/0 TIMELINE 1": NotServed("START_REPLICATION ... PHYSICAL"),
    "BASE_BACKUP ( LABEL 'x', FAST )": NotServed("BASE_BACKUP"),
}


@pytest.mark.parametrize(("text", "command"), SENT.items())
def test_what_clients_send(text: str, command: object) -> None:
    assert parse_command(text, 18) == command


@pytest.mark.parametrize(
    "text",
    ["identify_system", "SELECT 1", "", "-- IDENTIFY_SYSTEM", "IDENTIFY_SYSTEMS", "(", "SHOWS a"],
)
def test_what_is_sql(text: str) -> None:
    assert parse_command(text, 18) is None


def test_majors_know_what_they_know() -> None:
    assert parse_command("READ_REPLICATION_SLOT s", 14) is None
    assert parse_command("ALTER_REPLICATION_SLOT s (FAILOVER)", 16) is None
    for text, major in (
        ("CREATE_REPLICATION_SLOT s LOGICAL p (SNAPSHOT 'nothing')", 14),
        ("CREATE_REPLICATION_SLOT s LOGICAL p (FAILOVER)", 16),
        ("ALTER_REPLICATION_SLOT s (TWO_PHASE)", 17),
    ):
        with pytest.raises(WireError):
            parse_command(text, major)
        assert parse_command(text, major + 1) is not None


def test_any_text_is_a_command_or_sql_or_an_error() -> None:
    draw = random.Random(20261123)
    texts = list(SENT)
    pieces = ["'", '"', "(", ")", ",", ";", "0/0", "\0", "é", " ", "SLOT", "x" * 100, "/", "."]
    for _ in range(3000):
        text = draw.choice(texts)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(pieces) + text[at + draw.randrange(3) :]
        assert _sqlstate(text, draw.randrange(14, 19)) in {"", "42601", "22023", "XX000", "0A000"}


def _sqlstate(text: str, major: int) -> str:
    try:
        parse_command(text, major)
    except WireError as error:
        return error.sqlstate
    return ""
