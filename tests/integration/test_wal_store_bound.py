"""A WAL store with a bound, and transactions that stay open while many times the bound is
written.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.open_transactions import end, leave_open
from harness.oracle import create_slot
from harness.remedies import remedy, variables
from harness.service import service_in_process
from spillway.errors import StorageError
from spillway.pg.lsn import Lsn
from spillway.service.settings import EngineSettings
from spillway.sessions.layout import DatabaseLayout
from spillway.sessions.session import Session
from spillway.sessions.wal_horizon import GIVE_UP_AFTER_S
from spillway.storage.disk_reserve import DiskReserve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Cluster, Database
    from harness.service import Service
    from spillway.decoding.decoder import Decoder

SEGMENT = 1 << 20
BOUND = 4 * SEGMENT
SETTINGS = EngineSettings(
    wal_store_max_bytes=BOUND, logical_decoding_work_mem=128 << 10, log_keep_bytes=0
)


def stored_bytes(data_dir: Path) -> int:
    return sum(file.stat().st_size for file in data_dir.glob("sources/main/wal/0*"))


def until(reached: Callable[[], bool], service: Service, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, service.call("GET", "/sources")
        time.sleep(0.05)


def write(database: Database, rounds: int) -> None:
    for number in range(rounds):
        database.execute(
            f"INSERT INTO beside SELECT {number} FROM generate_series(1, 8000); DELETE FROM beside"
        )


def source(service: Service) -> dict[str, str]:
    (found,) = service.call("GET", "/sources")["sources"]
    return dict(found)


def received(service: Service) -> int:
    return int(Lsn.parse(source(service)["received_lsn"]))


PGOUTPUT = {"publication_names": "everything", "proto_version": "1", "messages": "true"}


#: What goes by beside is much, and the same for all.
WAL2JSON = {
    "format-version": "2",
    "include-transaction": "0",
    "filter-tables": "public.beside",
}


def inserted(text: str) -> tuple[str, ...]:
    """What test_decoding shows of an insert: its table and its columns' values."""
    table, _, columns = text.removeprefix("table ").partition(": INSERT: ")
    return (table, *(v.strip("'") for v in re.findall(r"\]:('[^']*'|\S+)", columns)))


def inserted_by_wal2json(text: str) -> tuple[str, ...]:
    change = json.loads(text)
    values = ("null" if c["value"] is None else str(c["value"]) for c in change["columns"])
    return (f"{change['schema']}.{change['table']}", *values)


def inserted_by_arrow(data: str) -> Iterator[tuple[str, ...]]:
    with pa.ipc.open_stream(bytes.fromhex(data.removeprefix("\\x"))) as stream:
        relation = json.loads(stream.schema.metadata[b"spillway.relation"])
        name = f"{relation['schema']}.{relation['table']}"
        for row in stream.read_all().to_pylist():
            if row["_op"] == "I":
                values = (v for column, v in row.items() if not column.startswith("_"))
                yield (name, *("null" if v is None else str(v) for v in values))


@pytest.mark.parametrize("major", [18])
def test_open_transactions_bound_neither_the_store_nor_a_restart(
    fresh_cluster: ClusterFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture, major: int
) -> None:
    cluster: Cluster = fresh_cluster(
        major, wal_segment_size_mb=1, max_prepared_transactions=4, max_wal_size="4GB"
    )
    database = cluster.create_database("bound")
    data_dir = tmp_path / "data"
    database.execute(
        "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish = 'insert, update, truncate')"
    )
    oracle = create_slot(database, "oracle")
    binary = create_slot(database, "binary", "pgoutput")
    ours: list[tuple[str, int, str]] = []
    caplog.set_level(logging.INFO, "spillway")
    with service_in_process(data_dir, engine=SETTINGS) as service:
        service.create_source(database.dsn)
        service.create_slot("ours", database.name)
        for plugin, options in (
            ("pgoutput", PGOUTPUT),
            ("wal2json", WAL2JSON),
            ("arrow", {}),
        ):
            service.create_slot(plugin, database.name, plugin, options=options)
        connections = leave_open(database, "long")
        begun = int(Lsn.parse(cluster.wal_lsn()))
    for _ in range(2):
        caplog.clear()
        with service_in_process(data_dir, engine=SETTINGS) as service:
            for _ in range(4):
                # One that goes on to write more than the bound itself.
                connections["subtransactions"].execute(
                    "INSERT INTO big SELECT g, repeat('y', 500) FROM generate_series(1, 2000) g"
                )
                write(database, 1)
                service.wait_decoded("ours", database)
                assert stored_bytes(data_dir) <= BOUND
            ours += service.get("ours")
            again = re.findall(r"decoded what is stored, from (\S+) to (\S+)", caplog.text)
            ((first, last),) = again
            assert Lsn.parse(last) - Lsn.parse(first) < BOUND, "read again at the start"
    assert int(Lsn.parse(cluster.wal_lsn())) - begun > 3 * BOUND
    with service_in_process(data_dir, engine=SETTINGS) as service:
        end(database, connections, "long")
        service.wait_decoded("ours", database)
        ours += service.get("ours")
        others = {name: service.peek(name) for name in ("pgoutput", "wal2json", "arrow")}
        # With the transactions their spill files have ended.
        write(database, 3)
        service.wait_decoded("ours", database)
        until(lambda: not list(data_dir.glob("sources/main/databases/*/spill/*")), service)
        assert stored_bytes(data_dir) <= BOUND
    theirs = oracle.get(upto_lsn=ours[-1][0])
    assert len(ours) == len(theirs) > 20_000
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != tuple(pair[1])][:3] == []
    # What was carried goes through the other plugins as it does through test_decoding.
    messages = [tuple(row) for row in binary.peek_binary(PGOUTPUT, upto_lsn=ours[-1][0])]
    assert len(others["pgoutput"]) == len(messages) > 20_000
    differing = (p for p in zip(others["pgoutput"], messages, strict=True) if p[0] != p[1])
    assert list(itertools.islice(differing, 3)) == []
    rows = [inserted(data) for _, _, data in ours if ": INSERT: " in data]
    carried = [row for row in rows if row[0] != "public.beside"]
    assert len(carried) > 10_000
    of_wal2json = [d for _, _, d in others["wal2json"] if d.startswith('{"action":"I"')]
    assert [inserted_by_wal2json(data) for data in of_wal2json] == carried
    # Arrow's batches are of one table each: in order within a table of a transaction.
    of_arrow = [row for _, _, data in others["arrow"] for row in inserted_by_arrow(data)]
    assert sorted(of_arrow) == sorted(rows)


def test_a_transaction_that_was_open_before_decoding_began(
    fresh_cluster: ClusterFactory, tmp_path: Path
) -> None:
    """It keeps slots from being made, but not WAL from being received; after its end there is
    one.
    """
    cluster: Cluster = fresh_cluster(15, wal_segment_size_mb=1, max_wal_size="4GB")
    database = cluster.create_database("before")
    database.execute("CREATE TABLE beside (id int)")
    data_dir = tmp_path / "data"
    with (
        database.connect(autocommit=False) as connection,
        service_in_process(data_dir, engine=SETTINGS) as service,
    ):
        connection.execute("INSERT INTO beside VALUES (-1)")
        service.create_source(database.dsn)
        made = threading.Thread(target=service.create_slot, args=("ours", database.name))
        made.start()
        for _ in range(2):
            write(database, 3)
            wanted = int(Lsn.parse(str(database.value("SELECT pg_current_wal_flush_lsn()::text"))))
            until(lambda wanted=wanted: received(service) >= wanted, service)  # type: ignore[misc]
            assert stored_bytes(data_dir) <= BOUND
        assert made.is_alive()
        connection.commit()
        cluster.execute("CHECKPOINT")
        made.join(60)
        database.execute("INSERT INTO beside VALUES (1)")
        service.wait_decoded("ours", database)
        assert any("INSERT" in data for _, _, data in service.get("ours"))


def test_a_failed_database_gives_way(
    fresh_cluster: ClusterFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others of its source go on without it, and it begins anew when it can be decoded again.

    When it began to fail is told by what an earlier process stored, however short a time this one
    lives.
    """
    cluster: Cluster = fresh_cluster(18, wal_segment_size_mb=1, max_wal_size="4GB")
    good, bad = cluster.create_database("good"), cluster.create_database("bad")
    good.execute("CREATE TABLE beside (id int)")
    bad.execute("CREATE TABLE beside (id int)")
    data_dir = tmp_path / "data"
    follow = Session._follow

    def fail(session: Session, decoder: Decoder) -> None:
        if session.database == "bad":
            raise StorageError("it does not work")
        follow(session, decoder)

    def problem(service: Service) -> dict[str, str]:
        (source,) = service.call("GET", "/sources")["sources"]
        (found,) = (s for s in source["sessions"] if s["database"] == "bad")
        return found  # type: ignore[no-any-return]

    with service_in_process(data_dir, engine=SETTINGS) as service:
        service.create_source(good.dsn)
        for database in (good, bad):
            service.create_slot(database.name, database.name)
    monkeypatch.setattr(Session, "_follow", fail)
    with service_in_process(data_dir, engine=SETTINGS) as service:
        until(lambda: problem(service)["error_code"] == "storage_error", service)
    (layout,) = (
        found
        for path in data_dir.glob("sources/main/databases/*")
        if (found := DatabaseLayout(path, DiskReserve(tmp_path / "reserve"))).failed() is not None
    )
    at, lsn = layout.failed() or (0.0, 0)
    layout.describe(failed=[at - GIVE_UP_AFTER_S, lsn])
    with service_in_process(data_dir, engine=SETTINGS) as service:
        until(lambda: problem(service)["error_code"] == "storage_error", service)
        for _ in range(3):
            write(good, 2)
            service.wait_decoded("good", good)
            assert stored_bytes(data_dir) <= BOUND
    monkeypatch.setattr(Session, "_follow", follow)
    with service_in_process(data_dir, engine=SETTINGS) as service:
        # It begins anew by itself, and says what the slot has missed.
        until(lambda: service.slot("bad")["invalidation_reason"] == "wal_removed", service)
        assert service.problem("GET", "/slots/bad/peek")["code"] == "slot_invalidated"
        service.drop_slot("bad")
        service.create_slot("bad", bad.name)
        bad.execute("INSERT INTO beside VALUES (1)")
        service.wait_decoded("bad", bad)
        assert any("INSERT" in data for _, _, data in service.get("bad"))
        assert service.wait_decoded("good", good)
        assert layout.failed() is None


@pytest.mark.follows_hint("wal_store_full")
def test_a_record_that_is_longer_than_the_store(
    fresh_cluster: ClusterFactory, tmp_path: Path
) -> None:
    """It can't be decoded in parts: the source says so, and with how much it goes on."""
    cluster: Cluster = fresh_cluster(18, wal_segment_size_mb=1, max_wal_size="4GB")
    database = cluster.create_database("long")
    data_dir = tmp_path / "data"

    def told(service: Service) -> dict[str, str]:
        until(lambda: source(service)["error_code"] == "wal_store_full", service)
        until(lambda: "restart the service" in str(source(service)["hint"]), service)
        return source(service)

    def needed(service: Service) -> int:
        hint = remedy(told(service), "wal_store_full")
        assert variables(hint) == {"SPILLWAY_WAL_STORE_MAX_BYTES"}
        (size,) = re.findall(r"SPILLWAY_WAL_STORE_MAX_BYTES to (\d+) or more", hint)
        return int(size)

    with service_in_process(data_dir, engine=SETTINGS) as service:
        service.create_source(database.dsn)
        service.create_slot("s", database.name)
        database.execute(f"SELECT pg_logical_emit_message(false, 'x', repeat('x', {2 * BOUND}))")
        size = needed(service)
        assert 2 * BOUND < size < 2 * BOUND + 5 * SEGMENT
    with service_in_process(
        data_dir, engine=replace(SETTINGS, wal_store_max_bytes=size)
    ) as service:
        service.wait_decoded("s", database)
        ((_, _, message),) = service.get("s")
        assert message.count("x") >= 2 * BOUND
        database.execute("CREATE TABLE beside (id int)")
        write(database, 2)
        service.wait_decoded("s", database)
        assert source(service)["error_code"] is None
        assert stored_bytes(data_dir) <= size
