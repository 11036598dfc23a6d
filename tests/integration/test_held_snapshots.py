"""Snapshots of a source that the service holds for consumers, when things go wrong."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.service import Service, service_in_process
from spillway.consumer.connect import exports_of
from spillway.consumer.snapshots import Source, SourceSnapshot
from spillway.errors import SourceError, SourceInRecovery
from spillway.service import exports
from spillway.service.settings import EngineSettings
from spillway.source_snapshots.holding import SnapshotSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Database

OPTIONS = {"include-xids": "0", "skip-empty-xacts": "1"}


@pytest.fixture
def service(pg18: Database, tmp_path: Path) -> Iterator[Service]:
    pg18.execute("CREATE TABLE t (id int)")
    settings = EngineSettings(snapshot_pairing_timeout_s=1.0)
    with service_in_process(tmp_path / "data", engine=settings) as service:
        service.create_source(pg18.dsn)
        service.create_slot("first", pg18.name)
        yield service


def _until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def _importing(server: Database, name: str) -> Iterator[psycopg.Connection[Any]]:
    with server.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT '{name}'")
        yield connection


def _copied(server: Database, snapshot: dict[str, Any]) -> list[int]:
    with _importing(server, snapshot["snapshot_name"]) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM t ORDER BY id").fetchall()]


def _changes(service: Service, slot: str) -> list[str]:
    answer = service.call("POST", f"/slots/{slot}/get", json={"options": OPTIONS})
    lines = [change["data"] for change in answer["changes"]]
    return [line.rpartition(":")[2] for line in lines if line.startswith("table ")]


def _name_standbys(server: Database, names: str) -> None:
    with server.cluster.connect() as connection:
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        connection.execute("SELECT pg_reload_conf()")
    _until(lambda: server.value("SHOW synchronous_standby_names") == names)


def test_commits_that_wait_for_a_standby(service: Service, pg18: Database) -> None:
    """Their commit records are in WAL, and nobody sees them."""
    with pg18.connect() as hanging:
        thread = threading.Thread(target=lambda: hanging.execute("INSERT INTO t VALUES (1)"))
        _name_standbys(pg18, "nobody")
        try:
            thread.start()
            _until(
                lambda: pg18.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                )
            )
            # It is before all that is looked at: the log is read back to it.
            service.wait_decoded("first", pg18)
            slot = service.create_slot("paired", pg18.name, snapshot="export")
            assert (slot["snapshot"]["method"], slot["snapshot"]["reason"]) == ("paired", None)
            assert _copied(pg18, slot["snapshot"]) == []
            told: list[str] = []
            loads: list[SourceSnapshot] = []
            source = Source(pg18.dsn, {}, exports_of({"grpc": service.grpc_address}, "first"))
            behind = source.wal_lsn()
            tables = source.tables(["public.t"])
            loading = threading.Thread(
                target=lambda: loads.append(source.snapshot(tables, told.append, threading.Event()))
            )
            loading.start()
            _until(lambda: told)
            # One that is seen, and committed later: no LSN tells the two apart, and the server has
            # to make a slot for it, which waits.
            pg18.execute("SET synchronous_commit = local; INSERT INTO t VALUES (2)")
            answers: list[Any] = []
            asking = threading.Thread(
                target=lambda: answers.append(
                    service.create_slot("by_slot", pg18.name, snapshot="export")
                )
            )
            asking.start()
            _until(
                lambda: pg18.value(
                    "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE "
                    "'spillway\\_snapshot\\_%'"
                )
            )
        finally:
            _name_standbys(pg18, "")
            thread.join(60)
    asking.join(120)
    loading.join(120)
    # Who has the lake at the commit already has no use for what was before it.
    (loaded,) = loads
    loaded.close()
    assert loaded.lsn > behind
    assert "before a commit that is in WAL and that nobody sees yet" in told[0]
    snapshot = answers[0]["snapshot"]
    assert snapshot["method"] == "temporary_slot"
    assert "was visible before transaction" in snapshot["reason"]
    assert _copied(pg18, snapshot) == [1, 2]
    _until(lambda: not pg18.value("SELECT count(*) FROM pg_replication_slots WHERE temporary"))
    pg18.execute("INSERT INTO t VALUES (3)")
    service.wait_decoded("first", pg18)
    assert _changes(service, "paired") == ["1", "2", "3"]
    assert _changes(service, "by_slot") == ["3"]


def test_how_long_one_is_held(
    service: Service, pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def holders() -> list[int]:
        rows = pg18.query(
            "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' AND backend_xmin "
            "IS NOT NULL"
        )
        return [row[0] for row in rows]

    monkeypatch.setattr(exports, "HELD_MAX", 1)
    name = service.create_slot("s", pg18.name, snapshot="export")["snapshot"]["snapshot_name"]
    refused = service.problem("POST", "/slots/first/snapshot")
    assert (refused["code"], refused["details"]["slots"]) == ("conflict", ["s"])
    assert "DELETE /v1/slots/SLOT/snapshot" in refused["hint"]
    with _importing(pg18, name) as imported:
        # Who has it has his own.
        service.call("DELETE", "/slots/s/snapshot")
        assert imported.execute("SELECT count(*) FROM t").fetchone() == (0,)
    _until(lambda: not holders())
    with pytest.raises(psycopg.Error, match="snapshot"), _importing(pg18, name):
        pass
    service.call("POST", "/slots/first/snapshot")
    (pid,) = holders()
    pg18.execute("SELECT pg_terminate_backend(%s)", [pid])
    _until(lambda: not holders())
    assert service.problem("GET", "/slots/first/snapshot")["code"] == "unknown_snapshot"
    # A consumer that takes the slot, and a slot that goes.
    service.call("POST", "/slots/first/snapshot")
    service.call("POST", "/slots/first/get", json={})
    _until(lambda: not holders())
    service.call("POST", "/slots/s/snapshot")
    service.drop_slot("s")
    _until(lambda: not holders())


def test_a_session_serves_the_next_one(
    service: Service, pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "SPARE_S", 60.0)
    is_held = "state = 'idle in transaction' AND backend_xmin IS NOT NULL"
    sessions = f"SELECT pid, {is_held} FROM pg_stat_activity WHERE datname = current_database()"
    first = service.call("POST", "/slots/first/snapshot")["snapshot_name"]
    ((pid,),) = pg18.query(f"SELECT pid FROM pg_stat_activity WHERE {is_held}")
    service.call("DELETE", "/slots/first/snapshot")
    _until(lambda: (pid, False) in pg18.query(sessions))
    again = service.call("POST", "/slots/first/snapshot")["snapshot_name"]
    assert again != first
    assert (pid, True) in pg18.query(sessions)
    service.call("DELETE", "/slots/first/snapshot")
    _until(lambda: (pid, False) in pg18.query(sessions))
    # One that has ended is not used, nor is one kept for long.
    pg18.execute("SELECT pg_terminate_backend(%s)", [pid])
    monkeypatch.setattr(exports, "SPARE_S", 0.0)
    service.call("POST", "/slots/first/snapshot")
    ((other,),) = pg18.query(f"SELECT pid FROM pg_stat_activity WHERE {is_held}")
    assert other != pid
    service.call("DELETE", "/slots/first/snapshot")
    _until(lambda: other not in [row[0] for row in pg18.query(sessions)])


def test_one_is_given_up_in_time_and_when_the_service_stops(pg18: Database, tmp_path: Path) -> None:
    pg18.execute("CREATE TABLE t (id int)")
    held = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    with service_in_process(tmp_path, engine=EngineSettings(snapshot_hold_s=0.2)) as service:
        service.create_source(pg18.dsn)
        service.create_slot("late", pg18.name)
        service.call("POST", "/slots/late/snapshot")
        _until(lambda: not pg18.value(held))
        assert service.problem("GET", "/slots/late/snapshot")["code"] == "unknown_snapshot"
    with service_in_process(tmp_path) as service:
        name = service.create_slot("s", pg18.name, snapshot="export")["snapshot"]["snapshot_name"]
        assert pg18.value(held) == 1
    assert not pg18.value(held)
    with pytest.raises(psycopg.Error, match="snapshot"), _importing(pg18, name):
        pass


def test_who_loads_a_lake_waits_for_nobody(service: Service, pg18: Database) -> None:
    """A consumer's copy of tables takes the service's snapshot; without the service it asks the
    source, which waits.
    """
    told: list[str] = []
    pg18.execute("INSERT INTO t VALUES (1)")
    take = exports_of({"grpc": service.grpc_address}, "first")
    with pg18.connect(autocommit=False) as running:
        running.execute("INSERT INTO t VALUES (2)")
        source = Source(pg18.dsn, {}, take)
        snapshot = source.snapshot(source.tables(["public.t"]), told.append, threading.Event())
        try:
            assert not told
            assert snapshot.alive()
            assert "public.t" in snapshot.tables
            rows = snapshot.connection.execute("SELECT id FROM public.t").fetchall()
            assert rows == [(1,)]
            # The service's is given up, for there is one of the consumer's own.
            assert service.problem("GET", "/slots/first/snapshot")["code"] == "unknown_snapshot"
        finally:
            snapshot.close()
        running.commit()
    # Nothing is written, and the next one is later: they are told apart by their LSNs.
    for _ in range(2):
        earlier, end = snapshot.lsn, source.wal_lsn()
        snapshot = source.snapshot(source.tables(["public.t"]), told.append, threading.Event())
        snapshot.close()
        assert not told
        assert snapshot.lsn > max(earlier, end)
    nobody = Source(pg18.dsn, {}, exports_of({"grpc": "127.0.0.1:1"}, "first"))
    snapshot = nobody.snapshot(nobody.tables(["public.t"]), told.append, threading.Event())
    snapshot.close()
    assert "asking the source" in told[0]


def test_who_reads_another_server_is_told(service: Service, pg18: Database, pg15: Database) -> None:
    """Its snapshot is not there, which is no reason to ask that server for one of its own: rows
    and LSN would be another source's.
    """
    told: list[str] = []
    take = exports_of({"grpc": service.grpc_address}, "first")
    beside = pg18.cluster.create_database(f"{pg18.name}_beside")
    # Where its WAL ends says nothing of whose it is.
    for _ in range(2):
        for other in (pg15, beside):
            source = Source(other.dsn, {}, take)
            with pytest.raises(SourceError, match="are not the same") as caught:
                source.take(told.append, threading.Event())
            assert "the DSN of the server that the service's source is" in caught.value.hint
        end = Source(pg18.dsn, {}).wal_lsn()
        while Source(pg15.dsn, {}).wal_lsn() <= end:
            pg15.execute("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
    assert not told
    Source(pg18.dsn, {}, take).take(told.append, threading.Event()).close()
    assert not told
    pg18.cluster.drop_database(beside.name)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("loaded", "ddl"),
    [
        ("public.t", "ALTER TABLE t ADD late int"),
        ("public.r", "TRUNCATE r_1"),
        ("public.r", "ALTER TABLE r ADD late int"),
    ],
)
def test_ddl_between_two_looks_goes_first(
    pg18: Database, monkeypatch: pytest.MonkeyPatch, loaded: str, ddl: str
) -> None:
    """It waited for the session that had the table's lock, and who looked at the table once more,
    from another session, waited for it: for ever, and for each other.
    """
    pg18.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE r (id int) PARTITION BY RANGE (id);"
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (0) TO (9)"
    )
    source = Source(pg18.dsn, {"partition_root": '["public.r"]'})
    describe = Source._describe_whole
    altering: list[threading.Thread] = []

    def described(self: Source, connection: Any, wanted: Any) -> Any:
        found = describe(self, connection, wanted)
        if not altering:
            altering.append(threading.Thread(target=pg18.execute, args=(ddl,)))
            altering[0].start()
            _until(lambda: pg18.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        return found

    monkeypatch.setattr(Source, "_describe_whole", described)
    told: list[str] = []
    snapshot = source.snapshot(source.tables([loaded]), told.append, threading.Event())
    try:
        assert told == [
            f"somebody waits to alter {loaded} while the snapshot was taken: taking another one"
        ]
        altering[0].join()
        names = [column.name for column in snapshot.tables[loaded].plan.descriptor.columns]
        assert ("late" in names) == ("late" in ddl)
    finally:
        snapshot.close()


def test_a_standby(fresh_cluster: ClusterFactory) -> None:
    """What its snapshots see is not said in top-level xids."""
    cluster = fresh_cluster(15)
    cluster.stop()
    (cluster.data_directory / "standby.signal").touch()
    cluster.start()
    session = SnapshotSession(cluster.dsn())
    try:
        with pytest.raises(SourceInRecovery, match="no exact snapshot"):
            session.take()
    finally:
        session.close()
