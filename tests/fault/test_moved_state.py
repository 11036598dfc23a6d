"""kill -9 of a service whose idle database has moved its decoder's state along, instead of writing
it again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness.oracle import create_slot
from harness.serve_process import ServeProcess
from spillway.decoding import serialization
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Database

#: A database makes a checkpoint after an eighth of it, whether it is busy or not.
BOUND = 4 << 20


def states(data_dir: Path, database: Database) -> list[tuple[int, int]]:
    """Return (LSN of the name, LSN inside) of a database's states, oldest first."""
    oid = database.value("SELECT oid FROM pg_database WHERE datname = current_database()")
    found = sorted(data_dir.glob(f"sources/main/databases/{oid}/snapshots/*.snap"))
    return [(int(p.stem, 16), serialization.load(p.read_bytes()).lsn) for p in found]


def until_moved(data_dir: Path, busy: Database, idle: Database) -> None:
    """Write in *busy* until *idle* stands by a state that was made earlier."""
    deadline = time.monotonic() + 60
    moved = False
    while not moved:
        assert time.monotonic() < deadline, states(data_dir, idle)
        busy.execute("INSERT INTO b SELECT generate_series(1, 3000)")
        moved = any(name > inside for name, inside in states(data_dir, idle))


@pytest.mark.long
def test_what_comes_after_a_moved_state_is_decoded_as_the_server_does(
    fresh_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = fresh_cluster(18, wal_segment_size_mb=1, max_wal_size="4GB")
    busy, idle = cluster.create_database("busy"), cluster.create_database("idle")
    busy.execute("CREATE TABLE b (n int)")
    idle.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    data_dir = tmp_path / "data"
    serve = ServeProcess(data_dir, environment={"SPILLWAY_WAL_STORE_MAX_BYTES": str(BOUND)})
    try:
        service = serve.service()
        service.create_source(busy.dsn)
        oracle = create_slot(idle, "oracle")
        service.create_slot("busy", busy.name)
        service.create_slot("idle", idle.name)
        idle.execute("INSERT INTO t VALUES (1, 'before')")
        idle.execute("ALTER TABLE t ADD COLUMN w int DEFAULT 7")
        for turn in range(3):
            until_moved(data_dir, busy, idle)
            serve.kill()
            idle.execute(f"INSERT INTO t VALUES ({turn + 2}, 'while it was down')")
            idle.execute(f"ALTER TABLE t ADD COLUMN x{turn} text DEFAULT 'x'")
            serve.start()
            idle.execute("UPDATE t SET v = 'after', w = w + 1")
            service.wait_decoded("idle", idle)
            assert all(name >= inside for name, inside in states(data_dir, idle))
        upto = service.wait_decoded("idle", idle)
        ours = service.get("idle", upto_lsn=upto)
        theirs = [tuple(line) for line in oracle.get(upto_lsn=upto)]
        assert ours == theirs
        assert sum("while it was down" in data for _, _, data in ours) == 3
    finally:
        serve.stop()


def test_what_is_everyones_has_the_state_written_again(
    fresh_cluster: ClusterFactory, tmp_path: Path
) -> None:
    """A catalog that all databases share was changed: by another database, while this one idled."""
    cluster = fresh_cluster(18, wal_segment_size_mb=1, max_wal_size="4GB")
    busy, idle = cluster.create_database("busy"), cluster.create_database("idle")
    busy.execute("CREATE TABLE b (n int)")
    data_dir = tmp_path / "data"
    serve = ServeProcess(data_dir, environment={"SPILLWAY_WAL_STORE_MAX_BYTES": str(BOUND)})
    try:
        service = serve.service()
        service.create_source(busy.dsn)
        service.create_slot("busy", busy.name)
        service.create_slot("idle", idle.name)
        until_moved(data_dir, busy, idle)
        before = Lsn.parse(service.wait_decoded("busy", busy))
        busy.execute("CREATE ROLE somebody")
        after = Lsn.parse(service.wait_decoded("busy", busy))
        deadline = time.monotonic() + 60
        while (found := states(data_dir, idle))[-1][0] < after:
            assert time.monotonic() < deadline, found
            busy.execute("INSERT INTO b SELECT generate_series(1, 3000)")
        assert found[-1][1] > before
        until_moved(data_dir, busy, idle)
    finally:
        serve.stop()
