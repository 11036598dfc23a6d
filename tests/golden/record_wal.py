"""Record golden WAL: a stretch of WAL that a real server of each major wrote, and what it is.

    PYTHONPATH=tests python tests/golden/record_wal.py [MAJOR …]

For each major two files in ``tests/golden/wal``: ``pg<major>.wal.xz``, whole segments of 1 MiB from
``start_lsn`` on, and ``pg<major>.json`` with where they begin and, from 15 on, what the server's
own pg_walinspect says of every record up to ``end_lsn``. The workload goes through everything that
is laid out in a way of its own: images plain and compressed with each method, records over pages
and segments, segment switches, origins, subtransactions, multi-inserts, pruning and freezing,
catalog rewrites, two-phase commit. Files are committed: tests read them, and need no server.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import psycopg

from harness.cluster import Cluster
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import segment_name, segment_number, segment_start

HERE = Path(__file__).resolve().parent / "wal"
SEGMENT_SIZE = 1 << 20

WORKLOAD = """
CREATE TABLE narrow (id int PRIMARY KEY, v text);
CREATE TABLE wide (id serial PRIMARY KEY, v text, n numeric);
ALTER TABLE wide ALTER v SET STORAGE EXTERNAL;
INSERT INTO narrow SELECT g, md5(g::text) FROM generate_series(1, 500) g;
INSERT INTO wide (v, n) SELECT string_agg(md5(g::text), ''), 1.5 FROM generate_series(1, 300) g;
BEGIN;
INSERT INTO narrow VALUES (1001, 'top');
SAVEPOINT a;
INSERT INTO narrow VALUES (1002, 'sub');
SAVEPOINT b;
UPDATE narrow SET v = 'subsub' WHERE id = 1001;
ROLLBACK TO a;
COMMIT;
UPDATE narrow SET v = v || '!' WHERE id % 10 = 0;
UPDATE narrow SET id = id + 10000 WHERE id % 50 = 0;
DELETE FROM narrow WHERE id % 7 = 0;
SELECT pg_logical_emit_message(false, 'cross', repeat('pages', 10000));
SELECT pg_logical_emit_message(true, 'cross', repeat('segments ', 150000));
SELECT count(*) FROM pg_switch_wal();
SELECT pg_replication_origin_create('golden');
SELECT pg_replication_origin_session_setup('golden');
INSERT INTO narrow VALUES (2001, 'with origin');
SELECT pg_replication_origin_session_reset();
VACUUM (FREEZE) narrow;
BEGIN;
SELECT id FROM narrow WHERE id = 1001 FOR SHARE;
COMMIT;
INSERT INTO narrow VALUES (3001, 'a') ON CONFLICT DO NOTHING;
BEGIN;
INSERT INTO narrow VALUES (3002, 'b');
PREPARE TRANSACTION 'golden';
COMMIT PREPARED 'golden';
TRUNCATE wide;
VACUUM FULL pg_namespace;
VACUUM FULL pg_class;
DROP TABLE wide;
SELECT pg_logical_emit_message(false, 'last', 'one')
"""


def record(major: int) -> None:
    with Cluster(
        major,
        wal_segment_size_mb=1,
        wal_level="logical",
        autovacuum=False,
        max_prepared_transactions=5,
        wal_keep_size="100MB",
        checkpoint_timeout="1h",
    ) as cluster:
        if major >= 15:
            cluster.execute("CREATE EXTENSION pg_walinspect")
        start = Lsn.parse(cluster.value("SELECT pg_switch_wal()"))
        start = segment_start(start + SEGMENT_SIZE - 1, SEGMENT_SIZE)
        with cluster.connect() as connection:
            for statement in WORKLOAD.strip().split(";\n"):
                connection.execute(statement)
            _write_images(connection, major)
            end = Lsn.parse(str(_one(connection, "SELECT pg_current_wal_insert_lsn()")))
            records = _inspect(connection, start, end) if major >= 15 else None
            system_id = int(
                str(_one(connection, "SELECT system_identifier FROM pg_control_system()"))
            )
            timeline = int(str(_one(connection, "SELECT timeline_id FROM pg_control_checkpoint()")))
            connection.execute("SELECT pg_switch_wal()")
        wal = b"".join(
            (
                cluster.data_directory / "pg_wal" / segment_name(timeline, number, SEGMENT_SIZE)
            ).read_bytes()
            for number in range(
                segment_number(start, SEGMENT_SIZE), segment_number(end, SEGMENT_SIZE) + 1
            )
        )
    (HERE / f"pg{major}.wal.xz").write_bytes(lzma.compress(wal, preset=9 | lzma.PRESET_EXTREME))
    description = {
        "start_lsn": str(start),
        "end_lsn": str(end),
        "segment_size": SEGMENT_SIZE,
        "system_id": system_id,
        "timeline": timeline,
        "columns": [
            "lsn",
            "end_lsn",
            "prev_lsn",
            "xid",
            "rmgr",
            "total_len",
            "main_len",
            "fpi_len",
        ],
        "records": records,
    }
    lines = json.dumps(description).replace("], [", "],\n[")
    (HERE / f"pg{major}.json").write_text(lines + "\n")
    print(major, len(wal), (HERE / f"pg{major}.wal.xz").stat().st_size, len(records or ()))


def _write_images(connection: psycopg.Connection, major: int) -> None:
    for method in ("off", "pglz", "lz4", "zstd") if major >= 15 else ("off", "on"):
        connection.execute("CHECKPOINT")
        try:
            connection.execute(f"SET wal_compression = {method}")
        except psycopg.errors.InvalidParameterValue:
            continue  # this build has not that method
        connection.execute("UPDATE narrow SET v = 'image' WHERE id % 100 = 1")


def _inspect(connection: psycopg.Connection, start: Lsn, end: Lsn) -> list[list[object]]:
    rows = connection.execute(
        "SELECT start_lsn::text, end_lsn::text, prev_lsn::text, xid::text::int8, resource_manager,"
        " record_length, main_data_length, fpi_length"
        " FROM pg_get_wal_records_info(%s, %s) ORDER BY start_lsn",
        [str(start), str(end)],
    )
    return [list(row) for row in rows]


def _one(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ("14", "15", "16", "17", "18"):
        record(int(name))
