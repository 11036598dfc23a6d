"""Transactions streamed while they are in progress, against the server's own slots."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from harness.decoding_session import DecodingSession

if TYPE_CHECKING:
    from harness.cluster import Database

LONG = "(SELECT string_agg(md5({0}::text || g::text), '') FROM generate_series(1, 300) g)"
IMMEDIATELY = {"debug_logical_replication_streaming": "immediate"}

#: One command a line; {0} makes identifiers of prepared transactions the test's own.
SCRIPT = f"""
CREATE TABLE t (id int PRIMARY KEY, v text, big text)
CREATE TABLE u (id int PRIMARY KEY)
ALTER TABLE t ALTER big SET STORAGE EXTERNAL
BEGIN
INSERT INTO t VALUES (1, 'top')
SAVEPOINT a
INSERT INTO t VALUES (2, 'sub')
SAVEPOINT b
INSERT INTO u VALUES (3)
RELEASE b
INSERT INTO t SELECT g, 'several' FROM generate_series(10, 14) g
RELEASE a
UPDATE t SET v = 'changed' WHERE id < 12
SELECT pg_logical_emit_message(true, 'in', 'side')
DELETE FROM t WHERE id = 12
SELECT pg_logical_emit_message(false, 'at', 'once')
TRUNCATE u
COMMIT
BEGIN
INSERT INTO t VALUES (20, 'large', {LONG.format("1")})
SAVEPOINT a
UPDATE t SET big = {LONG.format("2")} WHERE id = 20
UPDATE t SET big = 'small', id = 21 WHERE id = 20
INSERT INTO t VALUES (22, 'large', {LONG.format("3")})
RELEASE a
DELETE FROM t WHERE id = 22
INSERT INTO t VALUES (1, 'new') ON CONFLICT (id) DO UPDATE SET v = 'old'
INSERT INTO t VALUES (23, 'new', {LONG.format("4")}) ON CONFLICT (id) DO UPDATE SET v = 'old'
COMMIT
INSERT INTO t VALUES (30, 'alone')
BEGIN
SELECT pg_logical_emit_message(true, 'only', 'a message')
COMMIT
BEGIN
SELECT pg_logical_emit_message(false, 'only', 'a message at once')
COMMIT
BEGIN
INSERT INTO t VALUES (40, 'prepared')
SAVEPOINT a
INSERT INTO t VALUES (41, 'prepared')
PREPARE TRANSACTION 'one-{{0}}'
INSERT INTO t VALUES (42, 'meanwhile')
COMMIT PREPARED 'one-{{0}}'
BEGIN
SELECT 1
COMMIT
"""

#: What ends in aborts has to be seen by the server before: it looks up who was rolled back.
ABORTS = """
BEGIN
INSERT INTO t VALUES (100, 'kept')
SAVEPOINT a
INSERT INTO t VALUES (101, 'lost')
+
ROLLBACK TO a
INSERT INTO t VALUES (102, 'kept')
SAVEPOINT b
SAVEPOINT c
INSERT INTO t VALUES (103, 'lost')
SAVEPOINT d
INSERT INTO t VALUES (104, 'lost')
+
ROLLBACK TO b
SAVEPOINT e
ROLLBACK TO e
COMMIT
BEGIN
INSERT INTO t VALUES (110, 'lost')
SAVEPOINT a
INSERT INTO t VALUES (111, 'lost')
+
ROLLBACK
BEGIN
INSERT INTO t VALUES (120, 'lost')
SAVEPOINT a
INSERT INTO t VALUES (121, 'lost')
+
PREPARE TRANSACTION 'two-{0}'
+
ROLLBACK PREPARED 'two-{0}'
"""


@pytest.fixture(params=[16, 17, 18], ids=lambda major: f"pg{major}")
def database(request, session_cluster) -> Database:
    cluster = session_cluster(request.param)
    name = f"streaming_{random.getrandbits(32):08x}"
    yield cluster.create_database(name)
    cluster.start()
    for (gid,) in cluster.query("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]):
        cluster.execute(f"ROLLBACK PREPARED '{gid}'", dbname=name)
    cluster.drop_database(name)


def play(session: DecodingSession, script: str) -> None:
    with session.database.connect() as connection:
        connection.execute("SET lock_timeout = '20s'")
        for line in script.strip().splitlines():
            if line != "+":
                connection.execute(line.replace("{0}", session.database.name))


OPTIONS = [
    {},
    {"include-xids": "off", "skip-empty-xacts": "on"},
    {"include-timestamp": "on"},
]


@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "ordinary"])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "skip-empty-xacts", "timestamps"])
def test_immediate_parts_equal_the_server(database, tmp_path, options, two_phase):
    session = DecodingSession(
        database,
        tmp_path,
        two_phase=two_phase,
        stream_bytes=0,
        options={"stream-changes": "on", **options},
        settings=IMMEDIATELY,
    )
    play(session, SCRIPT)
    lines = [line.data for line in session.assert_equal_to_server()]
    assert sum(line.startswith("opening a streamed block") for line in lines) > 20
    session.close()
