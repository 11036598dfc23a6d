"""kill -9 at each step of a checkpoint that carries open transactions, with a WAL store that has a
bound.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness.open_transactions import end, leave_open
from harness.oracle import create_slot
from harness.serve_process import ServeProcess

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import ClusterFactory

BOUND = 4 << 20
POINTS = (
    "session.before_snapshot_rename=kill@2",
    "session.before_log_sync=kill@3",
    "session.before_spill_removal=kill@2",
)


@pytest.mark.long
def test_open_transactions_survive(
    fresh_cluster: ClusterFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLWAY_WAL_STORE_MAX_BYTES", str(BOUND))
    monkeypatch.setenv("SPILLWAY_LOGICAL_DECODING_WORK_MEM", "131072")
    cluster = fresh_cluster(
        16, wal_segment_size_mb=1, max_prepared_transactions=4, max_wal_size="4GB"
    )
    database = cluster.create_database("killed")
    data_dir = tmp_path / "data"
    serve = ServeProcess(data_dir)
    try:
        service = serve.service()
        service.create_source(database.dsn)
        oracle = create_slot(database, "oracle")
        service.create_slot("ours", database.name)
        connections = leave_open(database, "long")
        service.wait_decoded("ours", database)
        serve.kill()
        for point in POINTS:
            serve.start(point)
            assert serve.process is not None
            deadline = time.monotonic() + 60
            while serve.process.poll() is None:
                assert time.monotonic() < deadline, point
                connections["catalog"].execute("INSERT INTO own SELECT generate_series(1, 500)")
                database.execute("INSERT INTO beside SELECT generate_series(1, 8000)")
            stored = sum(file.stat().st_size for file in data_dir.glob("sources/main/wal/0*"))
            assert stored <= BOUND
        serve.start()
        end(database, connections, "long")
        upto = service.wait_decoded("ours", database)
        ours = service.get("ours", upto_lsn=upto)
        theirs = [tuple(line) for line in oracle.get(upto_lsn=upto)]
        assert len(ours) == len(theirs) > 10_000
        assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]][:3] == []
    finally:
        serve.stop()
