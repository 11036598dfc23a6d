"""The harness itself: servers come up, survive a kill, and the oracle decodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.forks import forks, without_forks
from harness.oracle import create_slot
from harness.tiers import majors_by_tier

if TYPE_CHECKING:
    from conftest import ClusterFactory
    from harness.cluster import Database

TESTS = Path(__file__).parents[1]


def test_oracle_peeks_changes(pg: Database) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    slot = create_slot(pg)
    pg.execute("INSERT INTO t VALUES (1, 'one')")

    begin, insert, commit = slot.peek({"include-xids": "0"})

    assert begin.data == "BEGIN"
    assert insert.data == "table public.t: INSERT: id[integer]:1 v[text]:'one'"
    assert commit.data == "COMMIT"
    assert insert.xid == begin.xid == commit.xid


def test_database_is_fresh(pg: Database) -> None:
    assert pg.value("SELECT count(*) FROM pg_class WHERE relname = 't'") == 0
    assert int(pg.value("SHOW server_version_num")) // 10000 == pg.cluster.major


def test_forks_are_counted() -> None:
    before = forks()
    subprocess.run(["true"], check=True, start_new_session=True, umask=0o077)
    assert forks() == before
    # Popen's word for it is not for programs that stay: see test_architecture.py.
    arguments: dict[str, Any] = {"user": os.geteuid()}
    subprocess.run(["true"], check=True, **arguments)
    assert forks() == before + 1


@pytest.mark.parametrize("major", majors_by_tier([14, 15, 16, 17, 18]))
def test_kill_and_recover(fresh_cluster: ClusterFactory, major: int) -> None:
    cluster = fresh_cluster(major, wal_segment_size_mb=1, full_page_writes=False)
    cluster.execute("CREATE TABLE t AS SELECT generate_series(1, 100) AS id")

    cluster.kill()
    assert not cluster.running
    with without_forks():
        cluster.start()

    assert cluster.value("SELECT count(*) FROM t") == 100
    assert cluster.value("SHOW wal_segment_size") == "1MB"
    assert int(cluster.value("SHOW server_version_num")) // 10000 == major


def test_copies_of_a_template_are_different_clusters(fresh_cluster: ClusterFactory) -> None:
    clusters = [fresh_cluster(18, initdb_options=["--wal-segsize=1"]) for _ in range(2)]
    identifiers = [
        cluster.value("SELECT system_identifier FROM pg_control_system()") for cluster in clusters
    ]
    assert len(set(identifiers)) == 2
    # As initdb makes one: the seconds since 1970 above.
    assert all(abs((identifier >> 32) - time.time()) < 3600 for identifier in identifiers)
    for cluster, identifier in zip(clusters, identifiers, strict=True):
        # WAL says the same in its long headers, which the server compares when it reads.
        *_, first = sorted(cluster.wal_directory.glob("0*"), reverse=True)
        assert int.from_bytes(first.read_bytes()[24:32], "little") == identifier
        cluster.execute("CREATE TABLE t AS SELECT 1 AS id")
        cluster.kill()
        cluster.start()
        assert cluster.value("SELECT count(*) FROM t") == 1


def test_a_server_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, signal; from harness.cluster import Cluster; cluster = Cluster(18); "
        "cluster.start(); print(cluster.pid, cluster.directory, flush=True); os.kill(os.getpid(), "
        "signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    pid, directory = done.stdout.split()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() or Path(directory).exists():
        assert time.monotonic() < deadline, f"process {pid} or {directory} is still there"
        time.sleep(0.05)
