"""Transactions in progress in pgoutput, streamed change by change on both sides."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from harness.decoding_session import DecodingSession
from harness.tiers import majors_by_tier
from oracle.test_streaming import ABORTS, IMMEDIATELY, SCRIPT
from spillway.certify.wire.connection import Frame
from spillway.certify.wire.transactions import Assembler
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.cluster import Cluster, Database
    from harness.oracle import OracleChange

#: What makes tables known within a streamed transaction, and unknown again.
ANNOUNCED = """
INSERT INTO t VALUES (200, 'known')
BEGIN
INSERT INTO t VALUES (201, 'known here')
INSERT INTO t VALUES (202, 'still')
ALTER TABLE t ADD COLUMN n int DEFAULT 5
INSERT INTO t VALUES (203, 'again')
SAVEPOINT a
CREATE TABLE made (id int PRIMARY KEY)
INSERT INTO made VALUES (1)
INSERT INTO t VALUES (204, 'in a savepoint')
COMMIT
INSERT INTO t VALUES (205, 'after')
INSERT INTO made VALUES (2)
BEGIN
INSERT INTO t VALUES (210, 'known', '', 6)
ALTER TABLE t ADD COLUMN m int
INSERT INTO t VALUES (211, 'again', '', 6, 7)
SAVEPOINT a
ALTER TABLE t ALTER m SET STATISTICS 9
INSERT INTO t VALUES (212, 'announced', '', 6, 8)
ALTER TABLE t ALTER m TYPE text
INSERT INTO t VALUES (215, 'rewritten, with TOAST', '', 6, 'seven')
RELEASE a
ALTER TABLE t DROP COLUMN m
INSERT INTO t VALUES (213, 'dropped', '', 6)
CREATE INDEX ON t (n)
TRUNCATE made
COMMIT
INSERT INTO t VALUES (214, 'after', '', 6)
BEGIN
INSERT INTO t VALUES (220, 'nothing is left at the end', '', 6)
ALTER TABLE t ALTER v SET STATISTICS 10
INSERT INTO t VALUES (221, 'announced for good', '', 6)
2> INSERT INTO t VALUES (222, 'beside', '', 6)
INSERT INTO t VALUES (223, 'known', '', 6)
COMMIT
INSERT INTO t VALUES (224, 'after', '', 6)
BEGIN
INSERT INTO t VALUES (230, 'prepared', '', 6)
ALTER TABLE t ALTER v SET STATISTICS 11
INSERT INTO t VALUES (231, 'prepared', '', 6)
PREPARE TRANSACTION 'alters-{0}'
INSERT INTO t VALUES (232, 'beside', '', 6)
COMMIT PREPARED 'alters-{0}'
INSERT INTO t VALUES (233, 'after', '', 6)
"""


#: What a transaction from elsewhere begins with, and what of it came from there.
ORIGINS = """
SELECT pg_replication_origin_create('{0}')
BEGIN
INSERT INTO t VALUES (300, 'local')
COMMIT
SELECT pg_replication_origin_session_setup('{0}')
BEGIN
INSERT INTO t VALUES (301, 'a row')
INSERT INTO t VALUES (302, 'another')
COMMIT
BEGIN
SELECT pg_logical_emit_message(true, 'a', 'a message')
INSERT INTO t VALUES (303, 'a row')
COMMIT
BEGIN
CREATE TABLE begun (id int PRIMARY KEY)
INSERT INTO begun VALUES (1)
INSERT INTO t VALUES (304, 'a row')
COMMIT
BEGIN
DROP TABLE begun
INSERT INTO t VALUES (305, 'a row')
COMMIT
BEGIN
TRUNCATE u
INSERT INTO t VALUES (306, 'a row')
COMMIT
BEGIN
SAVEPOINT a
INSERT INTO t VALUES (307, repeat('with TOAST', 400))
ROLLBACK TO a
SELECT pg_logical_emit_message(true, 'a', 'a message')
INSERT INTO t VALUES (308, 'a row')
ROLLBACK
BEGIN
SAVEPOINT a
SELECT pg_logical_emit_message(true, 'a', 'a message')
RELEASE a
INSERT INTO t VALUES (309, 'a row')
INSERT INTO t VALUES (310, 'a row')
SELECT pg_replication_origin_session_reset()
INSERT INTO t VALUES (311, 'local')
COMMIT
BEGIN
INSERT INTO t VALUES (312, 'local')
SELECT pg_replication_origin_session_setup('{0}')
INSERT INTO t VALUES (313, 'a row')
SELECT pg_replication_origin_session_reset()
INSERT INTO t VALUES (314, 'local')
COMMIT
BEGIN
INSERT INTO t VALUES (315, 'local, ends as remote')
SELECT pg_replication_origin_session_setup('{0}')
COMMIT
BEGIN
INSERT INTO t VALUES (316, 'a row, ends as local')
SELECT pg_replication_origin_session_reset()
COMMIT
INSERT INTO t VALUES (317, 'local')
"""


#: Others change tables while a transaction from elsewhere is in progress.
LEFT_OUT = """
INSERT INTO t VALUES (1, 'announced')
2> SELECT pg_replication_origin_create('{0}')
2> SELECT pg_replication_origin_session_setup('{0}')
2> BEGIN
2> INSERT INTO t VALUES (400, 'from elsewhere')
2> INSERT INTO u VALUES (400)
ALTER TABLE t ALTER v SET STATISTICS 9
INSERT INTO t VALUES (2, 'announced again')
2> COMMIT
INSERT INTO t VALUES (3, 'known')
2> BEGIN
2> INSERT INTO t VALUES (401, 'from elsewhere')
2> ALTER TABLE u ALTER id SET STATISTICS 9
ALTER TABLE t ALTER v SET STATISTICS 10
INSERT INTO t VALUES (4, 'announced again')
2> COMMIT
INSERT INTO t VALUES (5, 'known')
INSERT INTO u VALUES (5)
2> BEGIN
2> ALTER TABLE u ALTER id SET STATISTICS 10
2> COMMIT
INSERT INTO u VALUES (6)
"""


def play(database: Database, script: str) -> None:
    with database.connect() as connection, database.connect() as other:
        for line in script.strip().splitlines():
            if line != "+":
                session = other if line.startswith("2> ") else connection
                session.execute(line.removeprefix("2> ").replace("{0}", database.name))


@pytest.mark.parametrize("mode", ["on", "parallel"])
@pytest.mark.parametrize("two_phase", [True, False], ids=["two_phase", "ordinary"])
@pytest.mark.parametrize("major", majors_by_tier([16, 17, 18]), ids=lambda major: f"pg{major}")
def test_parts_equal_postgresqls(
    major: int,
    mode: str,
    two_phase: bool,
    tmp_path: Path,
    session_cluster: Callable[[int], Cluster],
) -> None:
    more = {"streaming": mode, "two_phase": "on" if two_phase else "off"}
    _, _, script = SCRIPT.partition("BEGIN\n")
    _compare(session_cluster(major), tmp_path, f"BEGIN\n{script}{ABORTS}{ANNOUNCED}", **more)


@pytest.mark.parametrize("origin", ["any", "none"])
@pytest.mark.parametrize("major", majors_by_tier([16, 17, 18]), ids=lambda major: f"pg{major}")
def test_origins_equal_postgresqls(
    major: int, origin: str, tmp_path: Path, session_cluster: Callable[[int], Cluster]
) -> None:
    """The first part has the origin of its first change, and what is left out has no part."""
    cluster = session_cluster(major)
    name = _compare(
        cluster, tmp_path, ORIGINS, streaming="parallel", two_phase="off", origin=origin
    )
    cluster.execute(f"SELECT pg_replication_origin_drop('{name}')")


@pytest.mark.parametrize("major", majors_by_tier([16, 17, 18]), ids=lambda major: f"pg{major}")
def test_what_a_transaction_that_is_left_out_makes_invalid(
    major: int, tmp_path: Path, session_cluster: Callable[[int], Cluster]
) -> None:
    """Its own, and nothing that others made invalid while it was in progress."""
    cluster = session_cluster(major)
    more = {"streaming": "off", "two_phase": "off", "origin": "none"}
    name = _compare(cluster, tmp_path, LEFT_OUT, **more)
    cluster.execute(f"SELECT pg_replication_origin_drop('{name}')")


def _applied(lines: Sequence[OracleChange]) -> list[Any]:
    """What a subscriber makes of it."""
    assembler = Assembler()
    found: list[Any] = []
    announced: dict[bytes, bytes] = {}
    for line in lines:
        lsn = int(Lsn.parse(line.lsn))
        frame = Frame(lsn, lsn, bytes.fromhex(line.data.removeprefix(r"\x")))
        if (transaction := assembler.take(frame)) is not None:
            found += [transaction.title, *transaction.applied(announced)]
            transaction.close()
    assembler.close()
    return found


def _compare(cluster: Cluster, tmp_path: Path, script: str, **more: str) -> str:
    """Stream what *script* writes from both sides; return the database's name, its ``{0}``."""
    database = cluster.create_database(f"pgoutput_{secrets.token_hex(4)}")
    options = {"proto_version": "4", "publication_names": "p", "messages": "on", **more}
    tables, _, _ = SCRIPT.partition("BEGIN\n")
    try:
        play(database, f"{tables}CREATE PUBLICATION p FOR ALL TABLES")
        session = DecodingSession(
            database, tmp_path, two_phase=more["two_phase"] == "on", stream_bytes=0,
            options=options, settings=IMMEDIATELY, plugin="pgoutput",
        )  # fmt: skip
        play(database, script)
        ours = session.decode()
        last = session.decoder.position
        theirs = [line for line in session.slot.peek_binary(options) if Lsn.parse(line.lsn) <= last]
        streamed = theirs
        is_streaming = more["streaming"] != "off"
        if is_streaming and more.get("origin") == "none":
            # Where something changes the catalog PostgreSQL has parts without a row.
            ours, theirs = _applied(ours), _applied(theirs)
        for i, (mine, expected) in enumerate(zip(ours, theirs, strict=False)):
            assert mine == expected, f"message {i} of {len(theirs)}"
        assert len(ours) == len(theirs)
        assert any(line.data.startswith(r"\x53") for line in streamed) == is_streaming
        session.close()
    finally:
        cluster.drop_database(database.name)
    return database.name
