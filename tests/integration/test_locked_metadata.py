"""A service whose tables in PostgreSQL another session has locked, or whose PostgreSQL is down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from harness.reception import wait_until
from harness.serve_process import ServeProcess
from spillway.demo.private_postgres import SUPERUSER
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Cluster, Database

#: Prometheus's scrape_timeout.
_SCRAPE_S = 10.0
#: Half of what Kubernetes gives a process before it kills it.
_STOP_S = 15.0


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
