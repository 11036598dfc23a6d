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
from harness.postgresql_subscription import wait_until
from harness.tiers import on_every_major
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


@on_every_major
def test_replication_api(pg: Database, tmp_path: Path, jvm: Jvm) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    pg.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with serving(pg, tmp_path) as (service, _):
        both = doors(pg, service)
        connections = [connect(jvm, door, replication=True) for door in both]
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
        # The connections can be gone on with, by SQL and by other commands. (For another stream a
        # walsender wants a new one.) Nothing comes twice, wherever the client asks it to begin.
        assert all(connection.createStatement().execute("SELECT 1") for connection in connections)
        failures = [_failures(api) for api in apis]
        assert failures[0] == failures[1]
        assert [one and one.sqlstate for one in failures[0]] == ["42710", "42704", "42704"]
        pg.execute("SELECT pg_logical_emit_message(true, 'p', 'later')")
        for connection in connections:
            connection.close()
        connections = [connect(jvm, door, replication=True) for door in both]
        apis = [connection.getReplicationAPI() for connection in connections]
        streams = [
            stream(jvm, connection, "jdbc", PGOUTPUT, start=first[0][0].lsn)
            for connection in connections
        ]
        second = [read_until(one, lambda read: _types(read) == "BMC") for one in streams]
        assert second[0] == second[1]
        assert second[0][1].data.endswith(b"later")
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
        failure(api.dropReplicationSlot, "none"),
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
            _keep(reader, kept, _has(kept, len(kept) + 30))
            # It dies right after it has confirmed what a keepalive said.
            for _ in range(3):
                pending(reader)
                reader.forceUpdateStatus()
                time.sleep(0.02)
            jvm.kill()
            jvm = start_jvm()
    produced = {number for (number,) in database.query("SELECT id FROM t")}
    reader = stream(jvm, connect(jvm, door, replication=True), "jdbc", PGOUTPUT)
    _keep(reader, kept, lambda: kept >= produced)
    assert kept == produced


def _has(kept: set[int], amount: int) -> Callable[[], bool]:
    return lambda: len(kept) >= amount


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
        if message is None:
            # With what the driver has confirmed by itself.
            reader.forceUpdateStatus()
        elif message.data[:1] == b"C":
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


@on_every_major
def test_sql(pg: Database, tmp_path: Path, jvm: Jvm) -> None:
    with serving(pg, tmp_path) as (service, _):
        said = []
        for door in doors(pg, service):
            connection = connect(jvm, door, ApplicationName="a program")
            told: list[object] = [(step.__name__, step(jvm, connection)) for step in STEPS]
            told += [_cancel(pg, connection), _drop(connection)]
            said.append(told)
            connection.close()
        assert said[1] == said[0]


def _prepared(_: Jvm, connection: Any) -> object:
    """The fifth time the driver names the statement, and takes results in binary."""
    statement = connection.prepareStatement(
        "SELECT ?::int + 1, ?::text, now() - now(), 1.50::numeric"
    )
    found = []
    for number in range(8):
        statement.setInt(1, number)
        statement.setString(2, f"ä{number}")
        found += all_rows(statement.executeQuery())
    statement.close()
    return found


def _batch(_: Jvm, connection: Any) -> object:
    connection.createStatement().execute("CREATE TABLE made (id int PRIMARY KEY, name text)")
    connection.setAutoCommit(False)
    statement = connection.prepareStatement("INSERT INTO made VALUES (?, ?)")
    for number in range(300):
        statement.setInt(1, number)
        statement.setString(2, "n" * number)
        statement.addBatch()
    counts = list(statement.executeBatch())
    connection.commit()
    connection.setAutoCommit(True)
    return counts


def _cursor(_: Jvm, connection: Any) -> object:
    """Some rows at a time of a portal, with another statement between."""
    connection.setAutoCommit(False)
    statement = connection.createStatement()
    statement.setFetchSize(70)
    result = statement.executeQuery("SELECT id, name FROM made ORDER BY id")
    found = []
    while result.next():
        found.append((result.getInt(1), result.getString(2)))
        if len(found) % 100 == 0:
            assert rows(connection, "SELECT count(*) FROM made") == [("300",)]
    connection.commit()
    connection.setAutoCommit(True)
    return found


def _errors(_: Jvm, connection: Any) -> object:
    connection.setAutoCommit(False)
    statement = connection.createStatement()
    found = [failure(statement.execute, sql) for sql in ("SELECT 1 / 0", "SELECT 1", "no")]
    connection.rollback()
    statement.execute("DELETE FROM made WHERE id = 1")
    savepoint = connection.setSavepoint()
    found.append(failure(statement.execute, "INSERT INTO made VALUES (2)"))
    connection.rollback(savepoint)
    connection.commit()
    connection.setAutoCommit(True)
    return [*found, *rows(connection, "SELECT count(*) FROM made")]


def _copy(jvm: Jvm, connection: Any) -> object:
    manager = connection.getCopyAPI()
    reader = jvm.names.java.io.StringReader
    lines = "".join(f"{number}\tcopied\n" for number in range(1000, 4000))
    found = [
        manager.copyIn("COPY made FROM STDIN", reader(lines)),
        failure(manager.copyIn, "COPY made FROM STDIN", reader("x\ty\n")),
    ]
    cancelled = manager.copyIn("COPY made FROM STDIN")
    cancelled.writeToCopy(b"9999\tgone\n", 0, 10)
    cancelled.cancelCopy()
    written = jvm.names.java.io.StringWriter()
    found += [manager.copyOut("COPY made TO STDOUT", written), written.toString()]
    data = jvm.names.java.io.ByteArrayOutputStream()
    found += [manager.copyOut("COPY made TO STDOUT (FORMAT binary)", data)]
    return [*found, bytes(data.toByteArray())]


def _large_values(_: Jvm, connection: Any) -> object:
    large = "x" * 3_000_000
    return rows(connection, "SELECT ?::text, repeat('y', 2000000)", large)


def _catalog(_: Jvm, connection: Any) -> object:
    metadata = connection.getMetaData()
    return [
        metadata.getDatabaseProductVersion(),
        all_rows(metadata.getTables(None, "public", "%", None)),
        all_rows(metadata.getColumns(None, "public", "%", "%")),
        all_rows(metadata.getPrimaryKeys(None, "public", "made")),
        columns(connection, "SELECT * FROM made WHERE id = ?", 1),
    ]


def _state(_: Jvm, connection: Any) -> object:
    """What the server reports by itself, and what belongs to the session."""
    statement = connection.createStatement()
    statement.execute("SET application_name = 'renamed'; SET search_path = pg_catalog, public")
    statement.execute("DO $$ BEGIN RAISE WARNING 'look'; END $$")
    warning = statement.getWarnings().getMessage()
    statement.execute("LISTEN told; NOTIFY told, 'this'")
    (notification,) = connection.getNotifications()
    return [
        warning,
        notification.getParameter(),
        connection.getParameterStatus("application_name"),
        connection.getParameterStatus("server_version"),
        rows(connection, "SELECT current_setting('application_name'), current_setting('TimeZone')"),
        columns(connection, "SELECT * FROM pg_replication_slots"),
    ]


def _cancel(pg: Database, connection: Any) -> object:
    statement = connection.createStatement()
    sleeping: list[Failure | None] = []
    thread = threading.Thread(
        target=lambda: sleeping.append(failure(statement.execute, "SELECT pg_sleep(60)"))
    )
    thread.start()
    # A cancel that comes before the statement does ends nothing, and one behind it the next.
    at_work = "FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(60)'"
    wait_until("it sleeps", lambda: pg.value(f"SELECT count(*) {at_work}") == 1)
    statement.cancel()
    thread.join()
    return [sleeping, rows(connection, "SELECT 1")]


def _drop(connection: Any) -> object:
    return connection.createStatement().execute("DROP TABLE made")


STEPS = (
    _prepared,
    _batch,
    _cursor,
    _errors,
    _copy,
    _large_values,
    _catalog,
    _state,
)


@on_every_major
def test_slots_by_sql(pg: Database, tmp_path: Path, jvm: Jvm) -> None:
    """What tools ask of slots on an ordinary connection, by one statement that stays prepared."""
    with serving(pg, tmp_path) as (service, _):
        said = []
        for door in doors(pg, service):
            connection = connect(jvm, door)
            find = connection.prepareStatement(
                "SELECT slot_name, plugin, database, active, restart_lsn < confirmed_flush_lsn"
                " FROM pg_replication_slots WHERE slot_name = ? AND database = ?"
            )
            find.setString(1, "mine")
            find.setString(2, pg.name)
            found: list[object] = []
            for number in range(12):
                if number % 4 == 1:
                    found.append(_create_by_sql(connection))
                    found.append(failure(_create_by_sql, connection))
                elif number % 4 == 3:
                    found.append(_drop_by_sql(connection))
                found.append(all_rows(find.executeQuery()))
            find.close()
            found.append(failure(_drop_by_sql, connection))
            connection.close()
            said.append(found)
        assert said[1] == said[0]
        assert [("mine", "pgoutput", pg.name, "f", "t")] in said[0]


def _create_by_sql(connection: Any) -> object:
    return rows(
        connection, "SELECT slot_name FROM pg_create_logical_replication_slot('mine', 'pgoutput')"
    )


def _drop_by_sql(connection: Any) -> object:
    return rows(connection, "select pg_drop_replication_slot('mine')")
