"""only-local drops by the origin of each record, and of the record that ends a transaction."""

from __future__ import annotations

from typing import Any

import pytest

from harness.decoding_session import DecodingSession
from harness.tiers import majors_by_tier
from oracle.test_pgoutput_streaming import ORIGINS, play
from oracle.test_streaming import IMMEDIATELY
from oracle.test_streaming import SCRIPT as STREAMED
from spillway.pg.lsn import Lsn

#: One command a line.
SCRIPT = """
INSERT INTO t VALUES (1, 'local')
SELECT pg_replication_origin_session_setup('{0}')
INSERT INTO t VALUES (2, 'remote')
SELECT pg_logical_emit_message(true, 'a', 'remote')
SELECT pg_logical_emit_message(false, 'a', 'remote, at once')
SELECT pg_replication_origin_session_reset()
BEGIN
INSERT INTO t VALUES (3, 'local')
SELECT pg_replication_origin_session_setup('{0}')
INSERT INTO t SELECT g, 'remote' FROM generate_series(4, 6) g
UPDATE t SET v = repeat(md5(id::text), 400) WHERE id = 4
SELECT pg_logical_emit_message(true, 'a', 'remote')
SELECT pg_logical_emit_message(false, 'a', 'remote, at once')
SAVEPOINT a
DELETE FROM t WHERE id = 5
TRUNCATE u
SELECT pg_replication_origin_session_reset()
UPDATE t SET v = 'local' WHERE id = 3
SELECT pg_logical_emit_message(true, 'a', 'local')
COMMIT
BEGIN
INSERT INTO t VALUES (10, 'local, in a transaction that ends as remote')
SELECT pg_replication_origin_session_setup('{0}')
COMMIT
BEGIN
INSERT INTO t VALUES (11, 'prepared, remote')
PREPARE TRANSACTION 'remote-{0}'
SELECT pg_replication_origin_session_reset()
COMMIT PREPARED 'remote-{0}'
BEGIN
INSERT INTO t VALUES (12, 'prepared, local')
PREPARE TRANSACTION 'local-{0}'
SELECT pg_replication_origin_session_setup('{0}')
COMMIT PREPARED 'local-{0}'
BEGIN
INSERT INTO t VALUES (13, 'all of it remote')
SELECT pg_replication_origin_session_reset()
COMMIT
"""


@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "ordinary"])
@pytest.mark.parametrize("only_local", ["on", "off"])
def test_equals_the_server(pg, tmp_path, two_phase, only_local):
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (i int)")
    pg.query("SELECT pg_replication_origin_create(%s)", [pg.name])
    session = DecodingSession(pg, tmp_path, two_phase=two_phase, options={"only-local": only_local})
    with pg.connect() as connection:
        for line in SCRIPT.strip().splitlines():
            connection.execute(line.replace("{0}", pg.name))
    lines = [line.data for line in session.assert_equal_to_server()]
    remote = [line for line in lines if "remote" in line]
    assert bool(remote) == (only_local == "off" or two_phase)
    session.close()
    pg.query("SELECT pg_replication_origin_drop(%s)", [pg.name])


@pytest.mark.parametrize("skips", ["on", "off"])
@pytest.mark.parametrize("major", majors_by_tier([16, 17, 18]), ids=lambda m: f"pg{m}")
def test_streamed_parts_equal_the_servers(major, skips, tmp_path, session_cluster):
    """What is left out has no part, and what ends as another's is taken back or forgotten."""
    database = session_cluster(major).create_database(f"origins_{skips}")
    options = {"stream-changes": "on", "only-local": "on", "skip-empty-xacts": skips}
    tables, _, _ = STREAMED.partition("BEGIN\n")
    try:
        play(database, tables)
        session = DecodingSession(
            database, tmp_path, stream_bytes=0, options=options, settings=IMMEDIATELY
        )
        play(database, ORIGINS)
        ours = session.decode()
        last = session.decoder.position
        theirs = [line for line in session.slot.peek(options) if Lsn.parse(line.lsn) <= last]
        assert _with_content(ours) == _with_content(theirs)
        assert any("streaming change" in line.data for line in theirs)
        session.close()
        database.query("SELECT pg_replication_origin_drop(%s)", [database.name])
    finally:
        database.cluster.drop_database(database.name)


def _with_content(lines):
    """Leave out what is empty: where something changes the catalog, as autovacuum does whenever it
    likes, PostgreSQL streams blocks of nothing, and ends a transaction of nothing else as streamed.
    """
    frames = ("BEGIN", "COMMIT", "opening", "closing", "committing", "aborting")
    content = {line.xid for line in lines if not line.data.startswith(frames)}
    kept: list[Any] = []
    for line in lines:
        if line.data.startswith("closing") and kept and kept[-1].data.startswith("opening"):
            kept.pop()
        elif line.xid in content or line.data.startswith("aborting"):
            kept.append(line)
    return kept
