"""Debezium's embedded engine, stock: what it makes of the service's slot equals what it makes of
the primary's.
"""

from __future__ import annotations

import base64
import itertools
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from harness.debezium import Application, DebeziumEngine, properties
from harness.pg_port import create_user, serving
from harness.pgjdbc import Door
from harness.serve_process import ServeProcess
from spillway.demo.private_postgres import SUPERUSER, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Database
    from harness.debezium import Event
    from harness.java_clients import Jvm

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE kinds (id int PRIMARY KEY, big bigint, name text, price numeric(12,2), free numeric,
    at timestamptz, day date, hour time, doc jsonb, raw bytea, code uuid, tags text[],
    feeling mood, good bool, reading double precision, small smallint, letter char(3), place point,
    lasts interval);
CREATE TABLE whole (a int, b text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE parts (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
CREATE TABLE parts_us PARTITION OF parts FOR VALUES IN ('us');
INSERT INTO kinds (id, name, price, at, tags, feeling, doc)
    SELECT i, repeat('n', i), i * 1.25, '2026-01-01Z'::timestamptz + i * '1 hour'::interval,
        ARRAY['a', NULL, i::text], 'sad', jsonb_build_object('i', i)
    FROM generate_series(1, 60) i;
INSERT INTO whole SELECT i, 'w' || i FROM generate_series(1, 20) i;
INSERT INTO parts SELECT i, (ARRAY['eu', 'us'])[1 + i % 2] FROM generate_series(1, 20) i;
"""
#: Debezium reads the rows of partitions by their parent, too.
SNAPSHOT_ROWS = 120

LOGICAL_SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'"

#: A transaction a line.
WORKLOAD = [
    """INSERT INTO kinds VALUES ({0}, 1 << 40, 'ä€', 1.5, 1e30, '2026-05-05 05:05:05.123456+02',
        '2026-05-05', '05:05', '{{"a": [1]}}', '\\x00ff', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
        '{{x,"y z"}}', 'happy', true, 0.1, -3, 'ab', '(1,2)', '1 mon 2 days')""",
    """UPDATE kinds SET id = id + 1000 WHERE id = {0};
        UPDATE kinds SET price = NULL WHERE id = {0} + 1000""",
    "DELETE FROM kinds WHERE id = {0} + 1000",
    # A large value that a later change leaves alone.
    """INSERT INTO kinds (id, name)
        SELECT {0} + 1, string_agg(md5(g::text), '') FROM generate_series(1, 2000) g""",
    "UPDATE kinds SET big = 7 WHERE id = {0} + 1",
    """SAVEPOINT s; INSERT INTO whole VALUES ({0}, 'gone');
        ROLLBACK TO s; INSERT INTO whole VALUES ({0}, 'stays')""",
    "UPDATE whole SET b = 'other' WHERE a = {0}; DELETE FROM whole WHERE a = {0}",
    """INSERT INTO parts
        SELECT i, (ARRAY['eu', 'us'])[1 + i % 2] FROM generate_series({0}, {0} + 30) i""",
    "UPDATE parts SET region = 'us' WHERE id = {0} + 2",
    """SELECT pg_logical_emit_message(true, 'within', 'a transaction'),
        pg_logical_emit_message(false, 'outside', 'of one')""",
    "ALTER TABLE whole ADD COLUMN c{0} int DEFAULT 7; INSERT INTO whole VALUES ({0}, 'wider')",
    "TRUNCATE whole",
    "SELECT pg_logical_emit_message(true, 'end', '{0}')",
]


def configuration(door: Door, directory: Path, **more: str) -> dict[str, str]:
    return properties(door, directory, snapshot_max_threads="4", skipped_operations="none", **more)


def work(database: Database, number: int) -> None:
    """Run the workload, which ends with the message *number*."""
    with database.connect() as connection:
        for line in WORKLOAD:
            connection.execute(f"BEGIN; {line.format(number)}; COMMIT".encode())


def has_ended(number: int) -> Callable[[list[Event]], bool]:
    return lambda events: bool(events) and _is_end(events[-1], number)


def _is_end(event: Event, number: int) -> bool:
    message = event.value and event.value.get("message")
    return bool(message) and message["prefix"] == "end" and message["content"] == _base64(number)


def _base64(number: int) -> str:
    return base64.b64encode(str(number).encode()).decode()


def test_events_equal_the_primarys(
    pg: Database, tmp_path: Path, start_jvm: Callable[[], Jvm]
) -> None:
    pg.execute(SCHEMA)
    with serving(pg, tmp_path / "data") as (service, _):
        service.call("PATCH", "/users/alice", json={"run_sql": True})
        assert service.pg_port is not None
        doors = {
            "primary": Door(pg.cluster.port, SUPERUSER, pg.name),
            "service": Door(service.pg_port, "alice", pg.name),
        }
        # Two connectors of one name don't fit into one JVM.
        jvms = {name: start_jvm() for name in doors}
        events: dict[str, list[Event]] = {name: [] for name in doors}
        for number, more in enumerate(({}, {"slot_drop_on_stop": "true"})):
            if number:
                # While nobody reads.
                work(pg, 10_000)
            with ExitStack() as stack:
                # One after the other: the first makes the publication.
                engines = {}
                for name, door in doors.items():
                    options = configuration(door, tmp_path / name, slot_name=f"from_{name}", **more)
                    engines[name] = stack.enter_context(DebeziumEngine(jvms[name], options))
                    if not number:
                        engines[name].wait_until(lambda seen: len(seen) >= SNAPSHOT_ROWS)
                assert [slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]] == [
                    "from_service"
                ]
                assert pg.query(LOGICAL_SLOTS) == [("from_primary",)]
                work(pg, 10_000 * (number + 2))
                for name, engine in engines.items():
                    engine.wait_until(has_ended(10_000 * (number + 2)))
                    events[name] += engine.events
        assert service.call("GET", "/slots")["slots"] == []
        assert pg.query(LOGICAL_SLOTS) == []
    rows = {
        name: sorted(event.compared() for event in seen if event.read)
        for name, seen in events.items()
    }
    assert len(rows["primary"]) == SNAPSHOT_ROWS
    assert rows["service"] == rows["primary"]
    streams = {
        name: [event.compared() for event in seen if not event.read]
        for name, seen in events.items()
    }
    assert len(streams["primary"]) >= 3 * 50
    assert streams["service"] == streams["primary"]
    operations = {(event.value or {}).get("op") for event in events["service"]}
    assert operations == set("rcudtm") | {None}


@pytest.mark.long
def test_over_kills(pg18: Database, tmp_path: Path, start_jvm: Callable[[], Jvm]) -> None:
    """The snapshot is exact under load, and whatever is killed afterwards, nothing lacks and the
    order is the primary's.
    """
    pg18.execute("CREATE TABLE ledger (id int PRIMARY KEY, note text)")
    pg18.execute("CREATE TABLE state (id int PRIMARY KEY, n int)")
    pg18.execute("INSERT INTO ledger SELECT -i, 'before' FROM generate_series(1, 3000) i")
    pg18.execute("INSERT INTO state SELECT i, 0 FROM generate_series(0, 99) i")
    port = free_port()
    (tmp_path / "serve").mkdir()
    serve = ServeProcess(tmp_path / "serve" / "data", environment={"SPILLWAY_PG_PORT": str(port)})
    try:
        serve.service().create_source(pg18.cluster.dsn())
        create_user(serve.service(), "alice", pg18.name, manage_slots=True, run_sql=True)
        primary = Application()
        ours = Application()
        with _load(pg18):
            door = Door(pg18.cluster.port, SUPERUSER, pg18.name)
            options = configuration(door, tmp_path / "primary", slot_name="from_primary")
            oracle = DebeziumEngine(start_jvm(), options, primary)
            oracle.wait_until(_streams)
            options = configuration(
                Door(port, "alice", pg18.name), tmp_path / "service",
                slot_name="from_service", retriable_restart_connector_wait_ms="500",
                # A killed one has kept all but some: it does not begin with a snapshot again.
                max_batch_size="50", offset_flush_interval_ms="0",
            )  # fmt: skip
            jvm = start_jvm()
            engine = DebeziumEngine(jvm, options, ours)
            engine.wait_until(_streams)
            for kill in range(4):
                engine.wait_until(_has(len(ours.events) + 300))
                if kill % 2:
                    serve.kill()
                    serve.start()
                else:
                    jvm.kill()
                    jvm = start_jvm()
                    engine = DebeziumEngine(jvm, options, ours)
        pg18.execute("SELECT pg_logical_emit_message(true, 'end', '1')")
        oracle.wait_until(has_ended(1))
        engine.wait_until(has_ended(1))
    finally:
        serve.kill()
        serve.stop()
    expected = _in_order(primary.events)
    found = _in_order(ours.events)
    # The later of the two slots has less: from there on they are equal.
    assert found == expected[expected.index(found[0]) :]
    tables = {
        table: dict(pg18.query(f"SELECT id, {column} FROM {table}"))
        for table, column in (("ledger", "note"), ("state", "n"))
    }
    for application in (primary, ours):
        assert _as_tables(application.events) == tables
        read, created = (
            {event.key["id"] for event in application.events if _is(event, "ledger", operation)}
            for operation in "rc"
        )
        assert not read & created
        assert len(read | created) == len(tables["ledger"])


def _has(amount: int) -> Callable[[list[Event]], bool]:
    return lambda events: len(events) >= amount


def _streams(events: list[Event]) -> bool:
    return bool(events) and _is(events[-1], "ledger", "c")


def _is(event: Event, table: str, operation: str) -> bool:
    return event.topic.endswith(table) and bool(event.value) and event.value["op"] == operation


def _in_order(events: list[Event]) -> list[tuple[str, str, str]]:
    """What was streamed, without tombstones, which are all alike; what came again after a kill
    counts where it came first.
    """
    streamed = (event for event in events if event.value and not event.read)
    return list(dict.fromkeys(event.compared(restarted=True) for event in streamed))


def _as_tables(events: list[Event]) -> dict[str, dict[int, object]]:
    """Apply all of them, as a consumer with upserts does."""
    tables: dict[str, dict[int, object]] = {"ledger": {}, "state": {}}
    for event in events:
        table = tables.get(event.topic.rpartition(".")[2])
        if table is None or event.value is None:
            continue
        row = event.value["after"]
        if row is None:
            table.pop(event.key["id"], None)
        else:
            table[row["id"]] = row.get("note", row.get("n"))
    return tables


@contextmanager
def _load(database: Database) -> Iterator[None]:
    """Transactions that overlap, each with a new row of the one table and changes of the other."""
    ended = threading.Event()

    def work() -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(database.connect()) for _ in range(3)]
            for number in itertools.count():
                connection = connections[number % 3]
                connection.execute("COMMIT" if connection.info.transaction_status else "SELECT")
                if ended.is_set():
                    break
                # Three that are open at once never change the same row.
                row = number % 99
                connection.execute(
                    f"BEGIN; INSERT INTO ledger VALUES ({number}, 'n{number}');"
                    f"UPDATE state SET n = n + 1 WHERE id = {row};"
                    + (f"DELETE FROM state WHERE id = {row};" if number % 7 == 0 else "")
                    + (f"INSERT INTO state VALUES ({row}, 1) ON CONFLICT (id) DO NOTHING;")
                )
                ended.wait(0.02)
            for connection in connections:
                connection.execute("COMMIT" if connection.info.transaction_status else "SELECT")

    writer = threading.Thread(target=work)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
