"""A service whose primary has removed WAL goes on from the archive."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.service import service_in_process
from spillway.demo.private_postgres import server_account
from spillway.service.settings import EngineSettings

if TYPE_CHECKING:
    from conftest import ClusterFactory


def test_removed_wal_comes_from_the_archive(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    # A directory that the server's user may write, wherever tmp_path is.
    with tempfile.TemporaryDirectory(prefix="spillway-archive-") as root:
        archive = Path(root) / "main"
        archive.mkdir()
        account = server_account()
        if account is not None:
            for directory in (root, archive):
                os.chown(directory, account.uid, account.gid)
        cluster = fresh_cluster(
            18,
            wal_segment_size_mb=1,
            max_wal_size="4MB",
            min_wal_size="2MB",
            wal_keep_size=0,
            max_slot_wal_keep_size="1MB",
            archive_mode="on",
            archive_command=f"cp %p {archive}/%f",
        )
        database = cluster.create_database("shop")
        database.execute("CREATE TABLE t (id int)")
        # Before the source: WAL is kept from the last checkpoint on.
        database.execute("CHECKPOINT")
        settings = EngineSettings(wal_archives=Path(root), wal_store_max_bytes=64 << 20)
        with service_in_process(tmp_path / "data", engine=settings) as service:
            service.create_source(database.dsn)
            service.create_slot("s", "shop", options={"skip-empty-xacts": "1"})
            service.wait_decoded("s", database)
        for _ in range(4):
            database.execute("INSERT INTO t SELECT generate_series(1, 10000)")
            database.query("SELECT pg_switch_wal()")
            database.execute("CHECKPOINT")
        deadline = time.monotonic() + 60
        status = "SELECT wal_status FROM pg_replication_slots"
        while cluster.value(status) != "lost":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with service_in_process(tmp_path / "data", engine=settings) as service:
            database.execute("INSERT INTO t VALUES (0)")
            service.wait_decoded("s", database)
            rows = [data for _, _, data in service.peek("s") if data.startswith("table")]
            assert len(rows) == 40_001
            assert cluster.value(status) == "reserved"
            service.drop_slot("s")
            service.call("DELETE", "/sources/main")
