"""A source whose server stands still in the midst of an answer: its processes are stopped, its
kernel acknowledges what is sent, and no timeout of the server's own ends anything.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from harness.reception import wait_until
from harness.serve_process import ServeProcess
from spillway.errors import SourceUnreachable
from spillway.receiver import source_session
from spillway.source_snapshots.holding import SnapshotSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import ClusterFactory
    from harness.cluster import Cluster

#: Half of what Kubernetes gives a process before it kills it.
_STOP_S = 15.0
_WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'spillway%'"
    " AND wait_event_type = 'Lock'"
)


@contextmanager
def _stopped(cluster: Cluster) -> Iterator[None]:
    children = Path(f"/proc/{cluster.pid}/task/{cluster.pid}/children")
    stopped = [cluster.pid, *map(int, children.read_text().split())]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_a_service_that_reads_its_catalog_ends(
    tmp_path: Path, fresh_cluster: ClusterFactory
) -> None:
    cluster = fresh_cluster(15)
    cluster.execute("CREATE TABLE t (id int)")
    process = ServeProcess(tmp_path / "data")
    service = process.service()
    try:
        service.create_source(cluster.dsn())
        with cluster.connect(autocommit=False) as other:
            other.execute("LOCK TABLE pg_catalog.pg_publication IN ACCESS EXCLUSIVE MODE")
            asked = threading.Thread(target=_create_slot, args=(process.http_port,))
            asked.start()
            wait_until(lambda: cluster.value(_WAITING))
            with _stopped(cluster):
                time.sleep(1)
                assert process.process is not None
                process.process.terminate()
                began_s = time.monotonic()
                assert process.process.wait(40) == 0, process.log()
                assert time.monotonic() - began_s < _STOP_S
            asked.join()
        process.start()
        wait_until(lambda: service.http.get("/readyz").is_success)
        service.create_slot("s", "postgres")
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    finally:
        process.stop()


@pytest.mark.long
def test_a_service_that_takes_a_snapshot_ends(
    tmp_path: Path, fresh_cluster: ClusterFactory
) -> None:
    cluster = fresh_cluster(15)
    process = ServeProcess(tmp_path / "data")
    service = process.service()
    try:
        service.create_source(cluster.dsn())
        service.create_slot("s", "postgres")
        # A session that is kept for the next one, which has no turn any more.
        service.call("POST", "/slots/s/snapshot")
        with ThreadPoolExecutor(3) as clients, _stopped(cluster):
            asked = [clients.submit(_take_snapshot, process.http_port) for _ in range(3)]
            time.sleep(2)
            assert not any(one.done() for one in asked)
            assert process.process is not None
            process.process.terminate()
            began_s = time.monotonic()
            assert process.process.wait(40) == 0, process.log()
            assert time.monotonic() - began_s < _STOP_S
        assert "Traceback" not in process.log()
        process.start()
        wait_until(lambda: service.http.get("/readyz").is_success)
        assert service.call("POST", "/slots/s/snapshot")["snapshot_name"]
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    finally:
        process.stop()


def _take_snapshot(port: int) -> None:
    with suppress(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{port}/v1/slots/s/snapshot", timeout=150)


def test_who_holds_a_snapshot_waits_no_longer(
    fresh_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_session, "_ANSWER_S", 3.0)
    cluster = fresh_cluster(15)
    session = SnapshotSession(cluster.dsn())
    session.take()
    with _stopped(cluster), pytest.raises(SourceUnreachable, match="has not answered within 3 s"):
        session.export()
    assert not session.alive()
    session.close()


def _create_slot(port: int) -> None:
    document = {"slot_name": "s", "source": "main", "database": "postgres", "plugin": "pgoutput"}
    with suppress(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{port}/v1/slots", json=document, timeout=150)


def test_a_question_has_an_end(
    fresh_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_session, "_ANSWER_S", 3.0)
    cluster = fresh_cluster(15)
    with (
        pytest.raises(SourceUnreachable) as caught,
        source_session.source_session(cluster.dsn()) as connection,
        _stopped(cluster),
    ):
        connection.execute("SELECT 1")
    assert "has not answered within 3 s" in caught.value.message
    assert "whether it hangs" in caught.value.hint
    with source_session.source_session(cluster.dsn()) as connection:
        connection.execute("SELECT pg_sleep(2)")
