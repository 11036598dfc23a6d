"""Record golden decoding of minor releases that the tests do not install: WAL, our state before it,
and the server's lines.

    SPILLWAY_TEST_POSTGRES_18=…/bin PYTHONPATH=tests python tests/golden/record_releases.py 18

What releases of one major write and print in ways of their own is in docs/explanation/majors.md.
For each release one file in ``tests/golden/releases``, named by ``server_version_num``, compressed
JSON: ``state``, a decoder's at the beginning, and ``wal``, the segments from there on, both in
base64; ``lines``, what the server's own slot gave for them. The test decodes that WAL from the
state; it needs no server.

The workload changes pages that VACUUM has marked all-visible, of a table and of catalogs: from
17.11 and 18.6 on records of such changes bear the visibility map's page as a block of their own. It
prepares transactions of which nothing is replayed, and has bounds of segments that are about so
much.
"""

from __future__ import annotations

import base64
import json
import lzma
import sys
import tempfile
from pathlib import Path

from harness.cluster import Cluster
from harness.decoding_session import DecodingSession
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import segment_name, segment_number

HERE = Path(__file__).resolve().parent / "releases"
SEGMENT_SIZE = 1 << 20
CATALOGS = "pg_class, pg_attribute, pg_type, pg_index, pg_depend, pg_namespace, pg_enum"

WORKLOAD = f"""
CREATE TABLE t (id int PRIMARY KEY, v text) WITH (fillfactor = 70)
ALTER TABLE t ALTER v SET STORAGE PLAIN
CREATE TYPE mood AS ENUM ('sad')
CREATE TABLE u (id int, m mood)
CREATE EXTENSION seg
CREATE TABLE bounds (s seg)
INSERT INTO bounds VALUES ('1 .. ~2'), ('~1 .. 2'), ('~1 .. ~2'), ('<2 .. ~3'), ('~1 .. <2'), ('~5')
INSERT INTO t SELECT g, repeat('v', 100) FROM generate_series(1, 120) g
CHECKPOINT
VACUUM (FREEZE) t
VACUUM (FREEZE) {CATALOGS}
INSERT INTO t VALUES (1001, 'inserted')
VACUUM (FREEZE) t
UPDATE t SET v = 'updated in place' WHERE id = 1
VACUUM (FREEZE) t
UPDATE t SET id = 1002, v = repeat('w', 3000) WHERE id = 2
VACUUM (FREEZE) t
UPDATE t SET v = repeat('x', 7000) WHERE id = 3
VACUUM (FREEZE) t
DELETE FROM t WHERE id BETWEEN 60 AND 100
VACUUM (FREEZE) t
UPDATE t SET v = repeat('y', 3000) WHERE id = 4
VACUUM (FREEZE) t
BEGIN
SELECT id FROM t WHERE id = 5 FOR UPDATE
UPDATE t SET v = 'locked' WHERE id = 5
COMMIT
VACUUM (FREEZE) t
INSERT INTO t SELECT g, 'many' FROM generate_series(2001, 2010) g
INSERT INTO t VALUES (1001, 'x') ON CONFLICT (id) DO UPDATE SET v = 'upsert'
ALTER TABLE t ADD COLUMN n int DEFAULT 7
INSERT INTO t VALUES (3001, 'with n', 8)
VACUUM (FREEZE) {CATALOGS}
ALTER TYPE mood ADD VALUE 'ok'
INSERT INTO u VALUES (1, 'ok')
ALTER TABLE t RENAME COLUMN v TO w
INSERT INTO t VALUES (3002, 'as w', 8)
VACUUM (FREEZE) {CATALOGS}
BEGIN
ALTER TABLE t DROP COLUMN n
CREATE TABLE made (a int, b text)
INSERT INTO made VALUES (1, 'made')
SAVEPOINT a
ALTER TABLE made ADD COLUMN c int
INSERT INTO made VALUES (2, 'lost', 3)
ROLLBACK TO a
INSERT INTO made VALUES (3, 'kept')
COMMIT
UPDATE t SET w = 'without n' WHERE id = 6
TRUNCATE made
BEGIN
INSERT INTO t VALUES (4001, 'prepared')
PREPARE TRANSACTION 'one'
COMMIT PREPARED 'one'
BEGIN
LOCK TABLE t IN ACCESS EXCLUSIVE MODE
PREPARE TRANSACTION 'a lock'
COMMIT PREPARED 'a lock'
BEGIN
SELECT id FROM t WHERE id = 7 FOR UPDATE
PREPARE TRANSACTION 'a row lock'
ROLLBACK PREPARED 'a row lock'
BEGIN
PREPARE TRANSACTION 'nothing'
COMMIT PREPARED 'nothing'
BEGIN
INSERT INTO t VALUES (4002, 'lost')
PREPARE TRANSACTION 'two'
ROLLBACK PREPARED 'two'
BEGIN
CREATE TABLE only_catalogs (i int)
PREPARE TRANSACTION 'only catalogs'
COMMIT PREPARED 'only catalogs'
INSERT INTO t VALUES (5001, 'last')
"""


def record(major: int) -> None:
    with (
        Cluster(
            major,
            wal_segment_size_mb=1,
            wal_level="logical",
            autovacuum=False,
            max_prepared_transactions=5,
            checkpoint_timeout="1h",
        ) as cluster,
        tempfile.TemporaryDirectory() as directory,
    ):
        database = cluster.create_database("golden")
        session = DecodingSession(database, Path(directory), two_phase=True)
        session.decode()
        state, start = session.decoder.serialize(), session.decoder.position
        with database.connect() as connection:
            for statement in WORKLOAD.strip().splitlines():
                connection.execute(statement)  # type: ignore[arg-type]
                if statement.startswith("PREPARE"):
                    session.collect()
        session.decode()
        end = session.decoder.position
        version = session.context.server_version_num
        session.collect()
        lines = [line for line in session._collected if start < Lsn.parse(line.lsn) <= end]
        while not lines[0].data.startswith("BEGIN"):
            # The end of a transaction that began before.
            del lines[0]
        wal = b"".join(
            (cluster.wal_directory / segment_name(1, number, SEGMENT_SIZE)).read_bytes()
            for number in range(
                segment_number(start, SEGMENT_SIZE), segment_number(end, SEGMENT_SIZE) + 1
            )
        )
        session.close()
    facts = {
        "server_version_num": version,
        "position": str(Lsn(start)),
        "state": base64.b64encode(state).decode(),
        "wal": base64.b64encode(wal).decode(),
        "lines": lines,
    }
    HERE.mkdir(exist_ok=True)
    path = HERE / f"{version}.json.xz"
    path.write_bytes(lzma.compress(json.dumps(facts).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(version, len(wal), len(state), path.stat().st_size, len(lines))


if __name__ == "__main__":
    for major in map(int, sys.argv[1:]):
        record(major)
