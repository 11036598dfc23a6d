"""Transactions in progress in pgoutput, streamed change by change on both sides."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from harness.decoding_session import DecodingSession
from harness.tiers import majors_by_tier
from oracle.test_streaming import ABORTS, IMMEDIATELY, SCRIPT
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Cluster, Database

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
    cluster = session_cluster(major)
    database = cluster.create_database(f"pgoutput_{secrets.token_hex(4)}")
    options = {
        "proto_version": "4", "publication_names": "p", "streaming": mode, "messages": "on",
        "two_phase": "on" if two_phase else "off",
    }  # fmt: skip
    tables, _, script = SCRIPT.partition("BEGIN\n")
    try:
        play(database, f"{tables}CREATE PUBLICATION p FOR ALL TABLES")
        session = DecodingSession(
            database, tmp_path, two_phase=two_phase, stream_bytes=0, options=options,
            settings=IMMEDIATELY,
            plugin="pgoutput",
        )  # fmt: skip
        play(database, f"BEGIN\n{script}{ABORTS}{ANNOUNCED}")
        ours = session.decode()
        last = session.decoder.position
        theirs = [line for line in session.slot.peek_binary(options) if Lsn.parse(line.lsn) <= last]
        for i, (mine, expected) in enumerate(zip(ours, theirs, strict=False)):
            assert mine == expected, f"message {i} of {len(theirs)}"
        assert len(ours) == len(theirs)
        assert any(line.data.startswith(r"\x53") for line in theirs)
        session.close()
    finally:
        cluster.drop_database(database.name)
