"""pgjdbc, stock, with the service beside a real server: its replication API and ordinary SQL."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from harness.pg_port import serving
from harness.pgjdbc import (
    Door,
    Failure,
    confirm,
    connect,
    failure,
    pending,
    read_until,
    stream,
)
from spillway.demo.private_postgres import SUPERUSER
from spillway.pg.lsn import Lsn

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
        connections = [connect(jvm, door, replication=True) for door in doors(pg, service)]
        apis = [connection.getReplicationAPI() for connection in connections]
        for api in apis:
            made = _create(api, "jdbc").make()
            assert (made.getSlotName(), made.getOutputPlugin()) == ("jdbc", "pgoutput")
            assert made.getSnapshotName()
        _work(pg)
        streams = [stream(jvm, connection, "jdbc", PGOUTPUT) for connection in connections]
        first = [read_until(one, lambda read: _types(read).endswith("TC")) for one in streams]
        assert first[0] == first[1]
        assert set(_types(first[0])) == set("BRIUMTC")
        for one in streams:
            confirm(one)
            one.close()
        confirmed = Lsn.parse(service.slot("jdbc")["confirmed_flush_lsn"])
        assert confirmed >= Lsn.parse(first[1][-1].lsn)
        # The connections can be gone on with: SQL, errors, and the stream. Nothing comes twice,
        # wherever the client asks it to begin.
        assert all(connection.createStatement().execute("SELECT 1") for connection in connections)
        failures = [_failures(api) for api in apis]
        assert failures[0] == failures[1]
        assert [one and one.sqlstate for one in failures[0]] == ["42710", "42704", "42704"]
        pg.execute("SELECT pg_logical_emit_message(false, 'p', 'later')")
        streams = [
            stream(jvm, connection, "jdbc", PGOUTPUT, start=first[0][0].lsn)
            for connection in connections
        ]
        second = [read_until(one, lambda read: len(read) == 1) for one in streams]
        assert second[0] == second[1]
        assert second[0][0].data.endswith(b"later")
        for one, api, connection in zip(streams, apis, connections, strict=True):
            one.close()
            api.dropReplicationSlot("jdbc")
            assert _create(api, "passing").withTemporaryOption().make().getSlotName() == "passing"
            connection.close()
        _wait_for(lambda: service.call("GET", "/slots")["slots"] == [])


def _create(api: Any, slot: str) -> Any:
    return api.createReplicationSlot().logical().withSlotName(slot).withOutputPlugin("pgoutput")


def _work(database: Database) -> None:
    with database.connect() as connection:
        for number in range(1, 4):
            connection.execute("INSERT INTO t VALUES (%s, 'ä')", [number])
            connection.execute("UPDATE t SET id = -id WHERE id = %s", [number])
        connection.execute("SELECT pg_logical_emit_message(true, 'p', 'said')")
        connection.execute("TRUNCATE t")


def _types(messages: list[Message]) -> str:
    return "".join(chr(message.data[0]) for message in messages)


def _wait_for(reached: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _failures(api: Any) -> list[Failure | None]:
    return [
        failure(_create(api, "jdbc").make),
        failure(api.replicationStream().logical().withSlotName("none").start),
        failure(lambda: api.dropReplicationSlot("none")),
    ]


def test_an_idle_client_of_a_slow_producer(
    pg: Database, tmp_path: Path, start_jvm: Callable[[], Jvm]
) -> None:
    """The driver confirms keepalives by itself: what they promise was sent, whatever kills it."""
    with serving(pg, tmp_path) as (service, _):
        _kill_readers(pg, doors(pg, service)[1], start_jvm, kills=3)


def _kill_readers(database: Database, door: Door, start_jvm: Callable[[], Jvm], kills: int) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE TABLE unpublished (id int)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    jvm = start_jvm()
    with_slot = connect(jvm, door, replication=True)
    _create(with_slot.getReplicationAPI(), "jdbc").make()
    with_slot.close()
    kept: set[int] = set()
    with _producing(database):
        for _ in range(kills):
            reader = stream(jvm, connect(jvm, door, replication=True), "jdbc", PGOUTPUT)
            known = len(kept)
            _keep(reader, kept, lambda known=known: len(kept) >= known + 30)
            jvm.kill()
            jvm = start_jvm()
    produced = {number for (number,) in database.query("SELECT id FROM t")}
    reader = stream(jvm, connect(jvm, door, replication=True), "jdbc", PGOUTPUT)
    _keep(reader, kept, lambda: kept >= produced)
    assert kept == produced


def _keep(reader: Any, kept: set[int], enough: Callable[[], bool]) -> None:
    """Read, and keep and confirm all; ask for a keepalive at every turn, and confirm it by
    reading.
    """
    session: set[int] = set()
    deadline = time.monotonic() + 60
    while not enough():
        assert time.monotonic() < deadline, (
            f"{len(kept)} rows were kept, {len(session)} of them now"
        )
        message = pending(reader)
        if message is not None and message.data[:1] == b"I":
            number = int(message.data[13:])
            assert number not in session
            session.add(number)
            kept.add(number)
        if message is None or message.data[:1] == b"C":
            confirm(reader)


@contextmanager
def _producing(database: Database) -> Iterator[None]:
    """Commit a row now and then, each some time after others that began later, among WAL that
    nobody is sent.
    """
    ended = threading.Event()

    def produce() -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(database.connect()) for _ in range(4)]
            for number in itertools.count():
                connection = connections[number % 3]
                if ended.is_set():
                    break
                if connection.info.transaction_status:
                    connection.execute("COMMIT")
                connection.execute("BEGIN")
                connection.execute("INSERT INTO t VALUES (%s)", [number])
                connections[3].execute("INSERT INTO unpublished VALUES (1)")
                ended.wait(0.003)
            for connection in connections[:3]:
                connection.execute("COMMIT")

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield
    finally:
        ended.set()
        producer.join()
