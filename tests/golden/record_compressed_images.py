"""Record golden page images: compressed by a real server with each of its methods, and what they
must become.

    SPILLWAY_TEST_POSTGRES_15=/usr/lib/postgresql/15/bin PYTHONPATH=tests \
        python tests/golden/record_compressed_images.py

The servers that the tests install are built without lz4 and zstd; Debian's 15 has both. Two files
in ``tests/golden/wal``: ``images.wal.xz``, segments of 1 MiB, and ``images.json``, for each method
the record that bears the image of a table's first page, and that page as the server had it then.
"""

from __future__ import annotations

import base64
import json
import lzma

from record_wal import HERE, SEGMENT_SIZE

from harness.cluster import Cluster
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import segment_name, segment_number, segment_start

METHODS = ("off", "pglz", "lz4", "zstd")


def record() -> None:
    with (
        Cluster(15, wal_segment_size_mb=1, autovacuum=False, wal_keep_size="100MB") as cluster,
        cluster.connect() as connection,
    ):

        def value(query: str) -> str:
            row = connection.execute(query).fetchone()  # type: ignore[arg-type]
            assert row is not None
            return str(row[0])

        connection.execute("CREATE EXTENSION pageinspect")
        connection.execute("CREATE TABLE t (id int, v text) WITH (fillfactor = 60)")
        connection.execute(
            "INSERT INTO t SELECT g, repeat('page ' || g, 1 + g % 5) FROM generate_series(1, 400) g"
        )
        # No hint bit is set later, by reading: the page stays what the record made of it.
        connection.execute("VACUUM (FREEZE) t")
        start = Lsn.parse(value("SELECT pg_switch_wal()"))
        start = segment_start(start + SEGMENT_SIZE - 1, SEGMENT_SIZE)
        images = []
        for number, method in enumerate(METHODS):
            connection.execute(f"SET wal_compression = {method}")  # type: ignore[arg-type]
            connection.execute("CHECKPOINT")
            lsn = value("SELECT pg_current_wal_insert_lsn()")
            connection.execute(
                f"UPDATE t SET v = 'with {method}' WHERE ctid = '(0,{number + 1})'"  # type: ignore[arg-type]
            )
            page = base64.b64decode(
                value("SELECT translate(encode(get_raw_page('t', 0), 'base64'), E'\\n', '')")
            )
            images.append(
                {"method": method, "from_lsn": lsn, "page": base64.b64encode(page).decode()}
            )
        end = Lsn.parse(value("SELECT pg_current_wal_insert_lsn()"))
        relfilenode = int(value("SELECT pg_relation_filenode('t')"))
        system_id = int(value("SELECT system_identifier FROM pg_control_system()"))
        connection.execute("SELECT pg_switch_wal()")
        wal = b"".join(
            (cluster.wal_directory / segment_name(1, number, SEGMENT_SIZE)).read_bytes()
            for number in range(
                segment_number(start, SEGMENT_SIZE), segment_number(end, SEGMENT_SIZE) + 1
            )
        )
    (HERE / "images.wal.xz").write_bytes(lzma.compress(wal, preset=9 | lzma.PRESET_EXTREME))
    facts = {
        "start_lsn": str(start),
        "segment_size": SEGMENT_SIZE,
        "system_id": system_id,
        "relfilenode": relfilenode,
        "images": images,
    }
    (HERE / "images.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    record()
