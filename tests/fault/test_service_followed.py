"""A service that is followed from another process, by its directory alone, while it is killed: here
is the other process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from harness.oracle import create_slot
from harness.plugin_output import messages
from harness.serve_process import ServeProcess
from spillway.delivery.reader import SlotReader
from spillway.pg.lsn import Lsn
from spillway.pg.wal_segment import segment_name, segment_number
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin
from spillway.receiver.wal_reader import FollowedWal
from spillway.txlog import FollowedLog

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Cluster

SEGMENT = 1 << 20


def test_its_wal_and_its_log(tmp_path: Path, fresh_cluster) -> None:
    cluster: Cluster = fresh_cluster(18, wal_segment_size_mb=1)
    database = cluster.create_database("followed")
    database.execute("CREATE TABLE t (i int PRIMARY KEY, a text)")
    serve = ServeProcess(tmp_path / "data")
    try:
        service = serve.service()
        service.create_source(database.dsn)
        theirs = create_slot(database, "theirs")
        service.create_slot("ours", database.name)
        begin = Lsn.parse(service.slot("ours")["confirmed_flush_lsn"])
        source = tmp_path / "data/sources/main"
        (txlog,) = source.glob("databases/*/txlog")
        log, wal = FollowedLog(txlog), FollowedWal(source / "wal")
        context = PluginContext("ours", database.name, 180000)
        reader = SlotReader.on_log(log, create_plugin("test_decoding", {}, context), begin, None)
        lines: list[tuple[int, int, str]] = []
        read_lsn = first_lsn = int(wal.first_lsn)
        received = bytearray()

        def follow() -> None:
            nonlocal read_lsn
            while (batch := reader.step(1 << 20).messages).count:
                lines.extend(messages(batch))
            while data := wal.read(read_lsn, 1 << 18):
                received.extend(data)
                read_lsn += len(data)

        still_open = database.connect(autocommit=False)
        for number in range(2):
            still_open.execute("INSERT INTO t VALUES (%s, 'open')", [-number - 1])
            for part in range(4):
                database.execute(
                    "INSERT INTO t SELECT i, repeat(md5(i::text), 20) FROM "
                    "generate_series(%s::int, %s) i",
                    [(4 * number + part) * 500, (4 * number + part) * 500 + 499],
                )
                database.execute("UPDATE t SET a = 'new' WHERE i % 50 = 0 AND i >= 0")
                follow()
            # In the middle of what it is doing.
            serve.kill()
            follow()
            assert log.decoded_lsn
            serve.start()
        still_open.commit()
        end = service.wait_decoded("ours", database)
        follow()
        expected = [(Lsn.parse(lsn), xid, text) for lsn, xid, text in theirs.peek({}, upto_lsn=end)]
        assert len(expected) > 4000
        assert lines == expected
        deadline = time.monotonic() + 120
        while read_lsn < Lsn.parse(end):
            assert time.monotonic() < deadline
            wal.wait(read_lsn, 1)
            follow()
        # The server's own files have the same, byte for byte.
        written = b"".join(
            (cluster.wal_directory / segment_name(1, number, SEGMENT)).read_bytes()
            for number in range(
                segment_number(first_lsn, SEGMENT), segment_number(read_lsn, SEGMENT) + 1
            )
        )
        assert bytes(received) == written[first_lsn % SEGMENT :][: len(received)]
        reader.close()
        log.close()
        wal.close()
        still_open.close()
    finally:
        serve.stop()
