"""The slot of a worker that copies a table, when it is gone and the worker comes back for it.

What a real subscriber makes of it: test_create_subscription.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness.pg_port import PASSWORD, create_user, dsn_of, serving
from harness.replication_client import Failure, ReplicationClient
from harness.serve_process import ServeProcess
from spillway.demo.private_postgres import free_port
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

SLOT = "pg_16412_sync_16390_7711382632175866584"
OPTIONS = "proto_version '1', publication_names 'p'"


def test_a_slot_that_is_gone(
    pg15: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pg15.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pg15.execute("CREATE PUBLICATION p FOR TABLE t")
    with serving(pg15, tmp_path) as (service, dsn):
        service.create_slot("keeps", pg15.name)
        pg15.execute("INSERT INTO t VALUES (1)")
        begin = str(pg15.value("SELECT pg_current_wal_insert_lsn()::text"))
        pg15.execute("INSERT INTO t VALUES (2)")
        end = str(pg15.value("SELECT pg_current_wal_flush_lsn()::text"))

        # The worker has what committed before; it gets the rest, and has its slot as it was.
        with ReplicationClient(dsn) as worker:
            worker.start(SLOT, OPTIONS, begin)
            # Neither a connection that ends nor a service that dies leaves it behind, until then.
            assert service.slot(SLOT)["temporary"]
            assert [frame.data[:1] for frame in worker.read_to(end)] == [b"B", b"R", b"I", b"C"]
            # Its answer is on its way.
            _wait_kept(service)
            slot = service.slot(SLOT)
            assert (slot["plugin"], slot["database"], slot["two_phase"]) == (
                "pgoutput", pg15.name, False,
            )  # fmt: skip
            worker.feedback(int(Lsn.parse(begin)))
            worker.finish_copy()
        # It has answered, so that the slot outlives its connection.
        assert f'"{SLOT}" is made anew at {begin}' in caplog.text
        assert service.slot(SLOT)["confirmed_flush_lsn"] == begin
        with ReplicationClient(dsn) as worker:
            assert worker.run(f"DROP_REPLICATION_SLOT {SLOT} WAIT").failure is None

        # One that was ended before it could answer leaves none behind.
        with ReplicationClient(dsn) as worker:
            worker.start(SLOT, OPTIONS, begin)
        _wait_gone(service)

        create_user(service, "reader", pg15.name)
        gone = Failure("42704", f'replication slot "{SLOT}" does not exist')
        removed = Failure("58P01", "requested WAL segment has already been removed")
        for user, name, lsn, expected in (
            ("reader", SLOT, begin, gone),
            ("alice", SLOT, "0/0", gone),
            ("alice", "mine", begin, Failure("42704", 'replication slot "mine" does not exist')),
            ("alice", SLOT, "0/1", removed),
        ):
            with ReplicationClient(dsn_of(service, user, pg15.name)) as worker:
                command = f"START_REPLICATION SLOT {name} LOGICAL {lsn} ({OPTIONS})"
                assert worker.run(command).failure == expected
        assert _slots(service) == ["keeps"]

        service.create_slot(SLOT, "postgres", "pgoutput")
        create_user(service, "anywhere", "", databases=["*"], manage_slots=True)
        with ReplicationClient(dsn_of(service, "anywhere", pg15.name)) as worker:
            failure = worker.run(f"START_REPLICATION SLOT {SLOT} LOGICAL {begin}").failure
        assert failure == Failure(
            "55000", f'replication slot "{SLOT}" was not created in this database'
        )


@pytest.mark.long
def test_a_service_that_dies_first(pg15: Database, tmp_path: Path) -> None:
    """Before its worker answers. Its subscription may be gone when it is up again."""
    port = free_port()
    serve = ServeProcess(tmp_path / "data", environment={"SPILLWAY_PG_PORT": str(port)})
    try:
        service = serve.service()
        source = service.create_source(pg15.cluster.dsn())
        create_user(service, "alice", pg15.name, manage_slots=True)
        service.create_slot("keeps", pg15.name)
        pg15.execute("CREATE PUBLICATION p FOR ALL TABLES")
        begin = str(pg15.value("SELECT pg_current_wal_insert_lsn()::text"))
        dsn = f"host=127.0.0.1 port={port} user=alice password='{PASSWORD}' dbname={pg15.name}"
        answers = "pg_2_sync_2_2"
        with ReplicationClient(dsn) as silent, ReplicationClient(dsn) as worker:
            silent.start(SLOT, OPTIONS, begin)
            worker.start(answers, OPTIONS, begin)
            worker.feedback(int(Lsn.parse(begin)), reply_requested=True)
            worker.read_until(lambda: bool(worker.keepalives))
            assert service.slot(SLOT)["temporary"]
            serve.kill()
        serve.start()
        assert _slots(service) == ["keeps", answers]
        assert not service.slot(answers)["temporary"]
    finally:
        serve.stop()
        pg15.execute("SELECT pg_drop_replication_slot(%s)", [source["slot_name"]])


def _slots(service: Service) -> list[str]:
    return [slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]]


def _wait_kept(service: Service) -> None:
    deadline = time.monotonic() + 30
    while service.slot(SLOT)["temporary"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _wait_gone(service: Service) -> None:
    deadline = time.monotonic() + 60
    while SLOT in _slots(service):
        assert time.monotonic() < deadline
        time.sleep(0.01)
