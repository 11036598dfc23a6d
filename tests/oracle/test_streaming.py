"""Transactions streamed while they are in progress, against the server's own slots."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from harness.decoding_session import DecodingSession
from harness.logical_stream import LogicalStream, StreamedLine
from harness.tiers import majors_by_tier
from spillway.decoding.snapshot_builder import SnapshotState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.oracle import OracleChange

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
SAVEPOINT f
SAVEPOINT g
INSERT INTO t VALUES (105, 'lost')
+
RELEASE g
ROLLBACK TO f
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


@pytest.fixture(params=majors_by_tier([16, 17, 18]), ids=lambda major: f"pg{major}")
def database(request, session_cluster) -> Iterator[Database]:
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


@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "ordinary"])
def test_aborts_equal_the_server(database, tmp_path, two_phase):
    """With a consumer that is connected while the transactions run."""
    options = {"stream-changes": "on"}
    session = DecodingSession(
        database,
        tmp_path,
        two_phase=two_phase,
        stream_bytes=0,
        options=options,
        settings=IMMEDIATELY,
    )
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with LogicalStream(session.slot, options) as stream, database.connect() as connection:
        for line in ABORTS.strip().splitlines():
            if line == "+":
                connection.execute("SELECT pg_logical_emit_message(false, 'flush', '')")
                database.execute("CHECKPOINT")
                stream.read_to(database.value("SELECT pg_current_wal_flush_lsn()::text"))
            else:
                connection.execute(line.replace("{0}", database.name))
        ours = [StreamedLine(line.lsn, line.data) for line in session.decode()]
        stream.read_to(database.value("SELECT pg_current_wal_flush_lsn()::text"))
        aborts = sum(line.data.startswith("aborting streamed") for line in ours)
        assert aborts == (6 if two_phase else 8)
        first = next(i for i, line in enumerate(stream.lines) if line in ours)
        theirs = stream.lines[first:]
        for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
            assert our == their, f"line {i}: {our} != {their}"
    session.close()


class Rows:
    """What a reader of test_decoding's lines knows of each transaction: how many changes came in
    blocks, and its end.
    """

    def __init__(self, lines: list[OracleChange]) -> None:
        self.transactions: dict[int, list[str]] = {}
        for line in lines:
            kept = self.transactions.setdefault(line.xid, [])
            if not line.data.startswith(("opening a streamed", "closing a streamed")):
                kept.append(line.data)


@pytest.fixture(params=majors_by_tier([14, 15, 16, 17, 18]), ids=lambda major: f"pg{major}")
def any_major(request, session_cluster) -> Iterator[Database]:
    cluster = session_cluster(request.param)
    name = f"streaming_{random.getrandbits(32):08x}"
    yield cluster.create_database(name)
    cluster.start()
    cluster.drop_database(name)


def test_large_transactions_equal_the_server(any_major, tmp_path):
    """In parts of a size, which the server cuts elsewhere; the changes and their order are the
    same.
    """
    size = 64 << 10
    session = DecodingSession(
        any_major,
        tmp_path,
        work_mem_bytes=1 << 15,
        stream_bytes=size,
        options={"stream-changes": "on"},
        settings={"logical_decoding_work_mem": "64kB"},
    )
    many = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g"
    any_major.execute(
        f"CREATE TABLE t (i int, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL; {many}"
    )
    any_major.execute(
        f"BEGIN; {many}; SAVEPOINT a; {many}; UPDATE t SET v = v || '!' WHERE i < 500; RELEASE a;"
        f"SAVEPOINT b; DELETE FROM t WHERE i < 900; TRUNCATE t; {many};"
        f"INSERT INTO t SELECT g, {LONG.format('g')} FROM generate_series(1, 20) g;"
        "SELECT pg_logical_emit_message(true, 'a', 'b'); COMMIT"
    )
    any_major.execute("INSERT INTO t VALUES (1, 'small')")
    ours = session.decode()
    theirs = session.slot.peek(session.options)
    ends = [line for line in ours if line.data.startswith("committing streamed")]
    assert len(ends) == 2
    assert sum(line.data.startswith("opening a streamed") for line in ours) > 20
    first = min(Rows(ours).transactions)
    ours_by_xid = {x: t for x, t in Rows(ours).transactions.items() if x > first}
    theirs_by_xid = {x: t for x, t in Rows(theirs).transactions.items() if x in ours_by_xid}
    assert ours_by_xid == theirs_by_xid
    session.close()


def test_parts_are_made_again_after_restarts(any_major, tmp_path):
    """A decoder that is lost and restored at random tells what one tells that was not."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    any_major.execute("CREATE TABLE t (i int, v text)")
    options = {"stream-changes": "on"}
    sessions = [
        DecodingSession(
            any_major, tmp_path / str(n), stream_bytes=300, options=options, work_mem_bytes=1 << 14
        )
        for n in range(2)
    ]
    steady, restarted = sessions
    states: list[tuple[int, bytes]] = []
    clients = [any_major.connect() for _ in range(3)]
    open_ = [False] * 3
    for round_ in range(120):
        number = rng.randrange(3)
        client = clients[number]
        if not open_[number]:
            client.execute("BEGIN")
            open_[number] = True
        elif rng.random() < 0.15:
            client.execute(rng.choice(("COMMIT", "COMMIT", "ROLLBACK")))
            open_[number] = False
        else:
            insert = f"INSERT INTO t SELECT g, 'v' FROM generate_series(1, {rng.randint(1, 9)}) g"
            client.execute(
                rng.choice(
                    (insert, f"SAVEPOINT a; {insert}; ROLLBACK TO a", f"SAVEPOINT b; {insert}")
                )
            )
        if round_ % 10 == 9:
            restarted.decode()
            decoder = restarted.decoder
            if decoder.snapshot_state == SnapshotState.CONSISTENT:
                states.append((decoder.position, decoder.serialize()))
                usable = [state for lsn, state in states if lsn <= decoder.restart_lsn]
                if usable and rng.random() < 0.7:
                    restarted.restart(usable[-1], decoder.position)
    for number, client in enumerate(clients):
        if open_[number]:
            client.execute("COMMIT")
        client.close()
    lines = list(steady.decode())
    # The other also sees what flushed the WAL for the first.
    assert restarted.decode()[: len(lines)] == lines
    assert sum(line.data.startswith("opening a streamed") for line in lines) > 5
    for session in sessions:
        session.close()
