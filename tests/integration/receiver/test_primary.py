"""Questions to the primary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.reception import flush_lsn
from spillway.errors import SourceUnreachable, UnknownDatabase
from spillway.pg.conninfo import parse_dsn
from spillway.receiver.primary import find_database, wal_flush_lsn, with_database

if TYPE_CHECKING:
    from harness.cluster import Database


def test_answers(pg15: Database) -> None:
    before = flush_lsn(pg15.cluster)
    assert before <= wal_flush_lsn(pg15.dsn) <= flush_lsn(pg15.cluster)
    expected = (pg15.name, pg15.oid, "UTF8")
    assert find_database(pg15.cluster.dsn("postgres"), pg15.name) == expected
    assert find_database(with_database(pg15.dsn, "template1"), pg15.name) == expected


@pytest.mark.parametrize("name", ["no such database", "template0"])
def test_unknown_database(pg15: Database, name: str) -> None:
    with pytest.raises(UnknownDatabase):
        find_database(pg15.dsn, name)


def test_unreachable() -> None:
    with pytest.raises(SourceUnreachable):
        wal_flush_lsn("host=127.0.0.1 port=1 user=u")


def test_with_database() -> None:
    changed = parse_dsn(with_database("postgresql://u:p%40ss@h:1/d", "other one"))
    assert changed == {
        "user": "u",
        "password": "p@ss",
        "host": "h",
        "port": "1",
        "dbname": "other one",
    }
