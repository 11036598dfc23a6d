"""Audit mode: what the server says of catalog tuples, held against the mirror, right and wrong."""

from __future__ import annotations

from typing import Any

import pytest

from harness.decoding_session import DecodingSession
from spillway.catalog.audit import NewCid
from spillway.errors import CatalogAuditFailed, CorruptWal

DDL = """
    CREATE TABLE t (id int PRIMARY KEY, v text);
    BEGIN; CREATE TABLE u (id int); ALTER TABLE u ADD COLUMN v text;
    SAVEPOINT a; ALTER TABLE u RENAME v TO w; RELEASE a;
    SAVEPOINT b; DROP TABLE u; ROLLBACK TO b; ALTER TABLE u DROP COLUMN w; COMMIT;
    VACUUM FULL pg_class; ALTER TABLE t ADD COLUMN n int DEFAULT 1; DROP TABLE u;
"""


@pytest.fixture
def session(pg, tmp_path):
    session = DecodingSession(pg, tmp_path)
    yield session
    session.close()


def run_ddl(pg, script: str) -> None:
    with pg.connect() as connection:
        for statement in script.split(";"):
            if statement.strip():
                connection.execute(statement)


def test_the_mirror_is_as_the_server_says(pg, session):
    audit = session.decoder.audit()
    run_ddl(pg, DDL)
    session.decode()
    assert audit.checked > 100


@pytest.mark.parametrize(
    ("method", "says"),
    [("insert", "no such tuple"), ("judge_xmax", "the mirror says otherwise")],
)
def test_a_mirror_that_lost_something_is_found_out(pg, session, monkeypatch, method, says):
    session.decoder.audit()
    run_ddl(pg, "CREATE TABLE before (id int); INSERT INTO before VALUES (1)")
    session.decode()
    # Plain records, too, go by the rules that something is taken from here.
    session.decoder.mirror.plain_redo.set_storages([])
    monkeypatch.setattr(type(session.decoder.mirror.heaps), method, lambda *_, **__: None)
    run_ddl(pg, "CREATE TABLE t (id int); DROP TABLE t")
    with pytest.raises(CatalogAuditFailed, match=says) as failed:
        session.decode()
    details: Any = failed.value.details
    assert details["relation"].startswith("pg_")
    assert details["lsn"]
    assert len(details["ctid"]) == 2


def test_a_record_that_is_cut_is_corrupt_wal():
    with pytest.raises(CorruptWal):
        NewCid.parse(b"\0" * 33, 0x1000)
