"""pgjdbc, stock, with the service beside a real server: its replication API and ordinary SQL."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from harness.pg_port import serving
from harness.pgjdbc import (
    Door,
    Failure,
    all_rows,
    columns,
    confirm,
    connect,
    failure,
    pending,
    read_until,
    rows,
    stream,
)
from spillway.demo.private_postgres import SUPERUSER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Database
    from harness.java_clients import Jvm
    from harness.pgjdbc import Message
    from harness.service import Service

PGOUTPUT = {"proto_version": "1", "publication_names": "p", "messages": "true"}


def doors(database: Database, service: Service) -> tuple[Door, Door]:
    """The server's, and the service's for alice, who may do all."""
    service.call("PATCH", "/users/alice", json={"run_sql": True})
    assert service.pg_port is not None
    return (
        Door(database.cluster.port, SUPERUSER, database.name),
        Door(service.pg_port, "alice", database.name),
    )


def test_replication_api(pg: Database, tmp_path: Path, jvm: Jvm) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    pg.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with serving(pg, tmp_path) as (service, _):
        both = doors(pg, service)
        connections = [connect(jvm, door, replication=True) for door in both]
        apis = [connection.getReplicationAPI() for connection in connections]
        made = [
            api.createReplicationSlot()
            .logical()
            .withSlotName("jdbc")
            .withOutputPlugin("pgoutput")
            .make()
            for api in apis
        ]
        for slot in made:
            assert (slot.getSlotName(), slot.getOutputPlugin()) == ("jdbc", "pgoutput")
            assert str(slot.getReplicationType()) == "LOGICAL"
            assert slot.getSnapshotName()
        _work(pg, 1)
        said = [_read_in_two_sessions(jvm, pg, connection) for connection in connections]
        assert said[0] == said[1]
        assert len(said[0]) > 20
        assert service.slot("jdbc")["confirmed_flush_lsn"] == said[1][-1].lsn
        # It can be gone on with: by SQL too.
        assert all(connection.createStatement().execute("SELECT 1") for connection in connections)
        failures = [_failures(api) for api in apis]
        assert failures[0] == failures[1]
        assert [one and one.sqlstate for one in failures[0]] == ["42710", "42704", "42704"]
        for api, connection in zip(apis, connections, strict=True):
            api.dropReplicationSlot("jdbc")
            connection.close()
        assert service.call("GET", "/slots")["slots"] == []


def _work(database: Database, first: int) -> None:
    with database.connect() as connection:
        for number in range(first, first + 3):
            connection.execute("INSERT INTO t VALUES (%s, 'ä')", [number])
            connection.execute("UPDATE t SET id = -id WHERE id = %s", [number])
        connection.execute("SELECT pg_logical_emit_message(true, 'p', 'said')")
        connection.execute("TRUNCATE t")


def _read_in_two_sessions(jvm: Jvm, database: Database, connection: Any) -> list[Message]:
    """Read, confirm, end the stream and begin it again: nothing comes twice."""
    first = stream(jvm, connection, "jdbc", PGOUTPUT)
    messages = read_until(first, lambda read: bool(read) and _truncated(read))
    messages += read_until(first, lambda read: bool(read) and read[-1].data[:1] == b"C")
    assert failure(lambda: stream(jvm, connection, "jdbc", PGOUTPUT)) is None or messages
    confirm(first)
    first.close()
    # Where a stream begins is the client's to say; LSNs of the past are those that are confirmed.
    second = stream(jvm, connection, "jdbc", PGOUTPUT, start=messages[0].lsn)
    emitted = database.value("SELECT pg_logical_emit_message(false, 'p', 'later')::text")
    messages += read_until(second, lambda read: len(read) == 1)
    assert messages[-1].data.endswith(b"later"), emitted
    confirm(second)
    second.close()
    return messages


def _truncated(messages: list[Message]) -> bool:
    return messages[-1].data[:1] == b"T"


def _failures(api: Any) -> list[Failure | None]:
    create = api.createReplicationSlot().logical().withSlotName("jdbc")
    missing = api.replicationStream().logical().withSlotName("none")
    return [
        failure(create.withOutputPlugin("pgoutput").make),
        failure(missing.start),
        failure(lambda: api.dropReplicationSlot("none")),
    ]
