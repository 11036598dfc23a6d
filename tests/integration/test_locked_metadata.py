"""A service whose metadata can't be written: another session has its tables in PostgreSQL locked,
that is down or stands still, or another program has SQLite's file locked.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest

from harness.reception import wait_until
from harness.serve_process import ServeProcess
from spillway.demo.private_postgres import SUPERUSER
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database
    from harness.service import Service

#: Prometheus's scrape_timeout.
_SCRAPE_S = 10.0
#: Half of what Kubernetes gives a process before it kills it.
_STOP_S = 15.0


@pytest.mark.long
def test_its_metrics_and_its_end_wait_for_nobody(tmp_path: Path, pg15: Database) -> None:
    pg15.execute("CREATE TABLE t (id int)")
    metadata = pg15.cluster.create_database("locked_metadata")
    url = f"postgresql://{SUPERUSER}@127.0.0.1:{pg15.cluster.port}/{metadata.name}"
    process = ServeProcess(tmp_path / "data", environment={"SPILLWAY_METADATA_URL": url})
    service = process.service()
    try:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name)
        with open_stream(service.grpc_address, "s") as stream:
            wait_until(lambda: service.slot("s")["active"])
            tables = metadata.query(
                "SELECT string_agg(quote_ident(tablename), ',') FROM pg_tables"
                " WHERE schemaname = 'public'"
            )
            with metadata.connect(autocommit=False) as other:
                other.execute(f"LOCK TABLE {tables[0][0]} IN ACCESS EXCLUSIVE MODE")
                pg15.execute("INSERT INTO t VALUES (1)")
                batch = next(batch for batch in stream if batch.count)
                stream.confirm(batch.confirm_lsn)
                # By now the service's own looks wait, too.
                time.sleep(5)
                began_s = time.monotonic()
                text = service.http.get("/metrics").text
                assert "spillway_slot_confirmed_flush_lsn" in text
                assert time.monotonic() - began_s < _SCRAPE_S / 2
                assert process.process is not None
                process.process.terminate()
                began_s = time.monotonic()
                assert process.process.wait(120) == 0, process.log()
                assert time.monotonic() - began_s < _STOP_S
        # What could not be stored comes again.
        process.start()
        wait_until(lambda: service.call("GET", "/sources")["sources"][0]["state"] == "streaming")
        with open_stream(service.grpc_address, "s") as stream:
            assert next(batch.count for batch in stream if batch.count) == batch.count
        wait_until(lambda: not service.slot("s")["active"])
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    finally:
        process.stop()
        pg15.cluster.drop_database(metadata.name)


def test_a_store_that_is_down_is_told_once(
    tmp_path: Path, pg15: Database, fresh_cluster: Callable[..., Cluster]
) -> None:
    pg15.execute("CREATE TABLE t (id int)")
    metadata = fresh_cluster(15)
    url = f"postgresql://{SUPERUSER}@127.0.0.1:{metadata.port}/postgres"
    process = ServeProcess(tmp_path / "data", environment={"SPILLWAY_METADATA_URL": url})
    service = process.service()
    try:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name)
        with open_stream(service.grpc_address, "s") as stream:
            pg15.execute("INSERT INTO t VALUES (1)")
            batch = next(batch for batch in stream if batch.count)
            metadata.stop()
            stream.confirm(batch.confirm_lsn)
            wait_until(lambda: "upkeep: " in process.log(), 20)
            time.sleep(2)
            assert process.log().count("upkeep: ") <= 2, process.log()
            metadata.start()
            wait_until(lambda: service.http.get("/readyz").is_success)
        wait_until(lambda: not service.slot("s")["active"])
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    finally:
        process.stop()


@pytest.mark.long
def test_a_store_that_stands_still(
    tmp_path: Path, pg15: Database, fresh_cluster: Callable[..., Cluster]
) -> None:
    """All its processes are stopped: its kernel takes connections and acknowledges what is sent."""
    pg15.execute("CREATE TABLE t (id int)")
    metadata = fresh_cluster(15)
    url = f"postgresql://{SUPERUSER}@127.0.0.1:{metadata.port}/postgres"
    process = ServeProcess(tmp_path / "data", environment={"SPILLWAY_METADATA_URL": url})
    service = process.service()
    try:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name)
        with open_stream(service.grpc_address, "s") as stream:
            with _stopped(metadata):
                with ThreadPoolExecutor(40) as clients:
                    asked = [
                        clients.submit(_ask, service, "POST", "/v1/slots", f"s{n}")
                        for n in range(20)
                    ]
                    asked += [clients.submit(_ask, service, "GET", "/v1/events") for _ in range(10)]
                    asked += [clients.submit(_ask, service, "GET", "/v1/alerts") for _ in range(10)]
                    # What is not in the store goes on.
                    pg15.execute("INSERT INTO t VALUES (1)")
                    batch = next(batch for batch in stream if batch.count)
                    stream.confirm(batch.confirm_lsn)
                    assert _ask(service, "GET", "/healthz").seconds < 5
                    answers = [one.result() for one in asked]
                for answer in answers:
                    assert answer.response.status_code == 503
                    assert answer.response.json()["code"] == "metadata_unavailable"
                    # A statement's own time, for one that was under way, and what the service says.
                    assert answer.seconds < 40, answer
                assert "processes are stopped" in answers[0].response.json()["hint"]
                # By now everybody knows.
                wait_until(lambda: service.http.get("/readyz").status_code == 503)
                for path in ("/v1/events", "/v1/alerts", "/readyz", "/metrics", "/v1/slots"):
                    assert _ask(service, "GET", path).seconds < 8, path
                assert process.log().count(" ERROR ") == 1, process.log()
                assert "Traceback" not in process.log()
            wait_until(lambda: service.http.get("/readyz").is_success, 15)
            wait_until(
                lambda: service.slot("s")["confirmed_flush_lsn"] >= str(batch.confirm_lsn), 15
            )
        service.create_slot("t", pg15.name)
        service.drop_slot("t")
        wait_until(lambda: not service.slot("s")["active"])
        with _stopped(metadata):
            time.sleep(2)
            _ends_in_time(process)
        process.start()
        wait_until(lambda: service.http.get("/readyz").is_success, 60)
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    finally:
        process.stop()


@pytest.mark.long
def test_a_file_that_another_program_has_locked(tmp_path: Path, pg15: Database) -> None:
    process = ServeProcess(tmp_path / "data")
    service = process.service()
    try:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name)
        file = tmp_path / "data" / "spillway.db"
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with ThreadPoolExecutor(10) as clients:
                asked = [
                    clients.submit(_ask, service, "POST", "/v1/slots", f"s{n}") for n in range(10)
                ]
                # Who only reads does not wait for that.
                for path in ("/v1/events", "/v1/alerts", "/v1/slots", "/healthz", "/readyz"):
                    assert _ask(service, "GET", path).seconds < 5, path
                answers = [one.result() for one in asked]
            for answer in answers:
                assert answer.response.json()["code"] == "metadata_unavailable"
                assert "Another program has the file locked" in answer.response.json()["hint"]
                assert answer.seconds < 40, answer
            assert _ask(service, "POST", "/v1/slots", "late").seconds < 8
            assert service.http.get("/readyz").status_code == 503
            assert "Traceback" not in process.log()
            other.execute("ROLLBACK")
            wait_until(lambda: service.http.get("/readyz").is_success, 15)
            service.create_slot("t", pg15.name)
            service.drop_slot("t")
            other.execute("BEGIN IMMEDIATE")
            time.sleep(2)
            _ends_in_time(process)
            other.execute("ROLLBACK")
        process.start()
        wait_until(lambda: service.http.get("/readyz").is_success, 60)
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    finally:
        process.stop()


class _Answer(NamedTuple):
    response: httpx.Response
    seconds: float


def _ask(service: Service, method: str, path: str, slot: str = "") -> _Answer:
    began_s = time.monotonic()
    document = {"slot_name": slot, "source": "main", "database": "postgres", "plugin": "pgoutput"}
    with httpx.Client(base_url=service.http.base_url, timeout=150) as client:
        response = client.request(method, path, json=document if slot else None)
    return _Answer(response, time.monotonic() - began_s)


def _ends_in_time(process: ServeProcess) -> None:
    assert process.process is not None
    process.process.terminate()
    began_s = time.monotonic()
    assert process.process.wait(120) == 0, process.log()
    assert time.monotonic() - began_s < _STOP_S
    assert "Traceback" not in process.log()


@contextmanager
def _stopped(cluster: Cluster) -> Iterator[None]:
    """Have every process of *cluster* stand still."""
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
