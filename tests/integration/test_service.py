"""The whole service over REST on real servers: slots' semantics, restarts, and bad input."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.oracle import create_slot
from harness.remedies import command, remedy, statements
from harness.service import Service, service_in_process
from spillway.cli.program import main
from spillway.demo.private_postgres import SUPERUSER
from spillway.errors import MetadataError, SlotActive
from spillway.failpoints import armed
from spillway.pg.lsn import Lsn
from spillway.receiver.wal_reader import LENT_BYTES, AppendedWal
from spillway.service.settings import EngineSettings
from spillway.store.slots import SlotTable
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database


@pytest.fixture
def service(tmp_path: Path, pg15: Database) -> Iterator[Service]:
    with service_in_process(tmp_path / "data") as running:
        running.create_source(pg15.dsn)
        yield running
        for slot in running.call("GET", "/slots")["slots"]:
            running.drop_slot(slot["slot_name"])
        running.call("DELETE", "/sources/main")


@pytest.fixture
def table(pg15: Database) -> Database:
    pg15.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return pg15


def texts(changes: list[tuple[str, int, str]]) -> list[str]:
    return [data for _, _, data in changes]


def test_get_consumes_and_peek_does_not(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    oracle = create_slot(table, f"o_{secrets.token_hex(4)}")
    table.execute("INSERT INTO t VALUES (1, 'a')")
    table.execute("INSERT INTO t VALUES (2, 'b')")
    service.wait_decoded("s", table)
    assert service.peek("s") == service.peek("s") == [tuple(r) for r in oracle.peek()]
    # upto_nchanges stops at the end of the transaction that reaches it.
    assert service.peek("s", upto_nchanges=1) == [tuple(r) for r in oracle.peek(upto_nchanges=1)]
    assert len(service.get("s", upto_nchanges=2)) == 3
    oracle.get(upto_nchanges=2)
    assert service.get("s") == [tuple(r) for r in oracle.get()]
    assert service.get("s") == [] == oracle.get()
    oracle.drop()


def test_upto_lsn_takes_the_transaction_that_begins_its_commit_before_it(
    service: Service, table: Database
) -> None:
    service.create_slot("s", table.name)
    oracle = create_slot(table, f"o_{secrets.token_hex(4)}")
    for i in range(5):
        table.execute(f"INSERT INTO t VALUES ({i}, 'x')")
    service.wait_decoded("s", table)
    for lsn, _, _ in oracle.peek():
        for position in (Lsn.parse(lsn) - 1, Lsn.parse(lsn), Lsn.parse(lsn) + 1):
            text = str(Lsn(position))
            theirs = [tuple(r) for r in oracle.peek(upto_lsn=text)]
            assert service.peek("s", upto_lsn=text) == theirs
    oracle.drop()


def test_advance_rewind_copy(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    start = service.slot("s")["confirmed_flush_lsn"]
    for i in range(4):
        table.execute(f"INSERT INTO t VALUES ({i}, 'x')")
    service.wait_decoded("s", table)
    everything = service.peek("s")
    second_commit = [lsn for lsn, _, data in everything if data.startswith("COMMIT")][1]
    answer = service.call("POST", "/slots/s/advance", json={"upto_lsn": second_commit})
    assert answer == {"slot_name": "s", "end_lsn": second_commit}
    assert service.peek("s") == everything[6:]
    problem = service.problem("POST", "/slots/s/advance", json={"upto_lsn": start})
    assert problem["code"] == "advance_backward"
    assert problem["hint"]
    # Never past what is decoded.
    end = service.call("POST", "/slots/s/advance", json={"upto_lsn": "FFFF/0"})["end_lsn"]
    assert Lsn.parse(end) <= Lsn.parse(service.slot("s")["decoded_lsn"])
    assert service.peek("s") == []
    service.call("POST", "/slots/s/rewind", json={"lsn": start})
    assert service.peek("s") == everything
    service.call("POST", "/slots/s/copy", json={"slot_name": "s2"})
    assert service.peek("s2") == everything
    service.get("s2")
    assert service.peek("s") == everything


def test_a_slot_may_begin_in_the_past(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    start = service.slot("s")["confirmed_flush_lsn"]
    table.execute("INSERT INTO t VALUES (1, 'a')")
    service.wait_decoded("s", table)
    service.create_slot("late", table.name)
    assert service.peek("late") == []
    service.create_slot("early", table.name, start_lsn=start)
    assert service.peek("early") == service.peek("s")
    problem = service.problem(
        "POST",
        "/slots",
        json={"slot_name": "no", "source": "main", "database": table.name, "start_lsn": "0/1"},
    )
    assert problem["code"] == "lsn_not_retained"


def test_a_slot_sees_nothing_that_committed_before_it(service: Service, table: Database) -> None:
    for i in range(20):
        table.execute(f"INSERT INTO t VALUES ({i}, 'before')")
        service.create_slot(f"s{i}", table.name)
        service.wait_decoded(f"s{i}", table)
        assert service.peek(f"s{i}") == []


def test_slots_have_every_column_of_pg_replication_slots(tmp_path: Path, pg18: Database) -> None:
    slots = "SELECT slot_name FROM pg_replication_slots ORDER BY 1"
    others = pg18.query(slots)
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg18.dsn)
        slot = service.create_slot("s", pg18.name)
        oracle = create_slot(pg18, f"o_{secrets.token_hex(4)}")
        columns = pg18.query(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'pg_replication_slots'::regclass"
        )
        assert {name for (name,) in columns} <= set(slot)
        assert slot["database"] == pg18.name
        assert slot["datoid"] == pg18.oid
        assert slot["wal_status"] == "reserved"
        oracle.drop()
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
        # Another test of this server may have left one of that name.
        assert set(pg18.query(slots)) == {*others} - {("spillway_main",)}


def test_several_databases_of_one_source(service: Service, table: Database) -> None:
    other = table.cluster.create_database(f"other_{secrets.token_hex(4)}")
    try:
        other.execute("CREATE TABLE o (id int)")
        service.create_slot("one", table.name)
        service.create_slot("two", other.name)
        table.execute("INSERT INTO t VALUES (1, 'here')")
        other.execute("INSERT INTO o VALUES (2)")
        service.wait_decoded("one", table)
        service.wait_decoded("two", other)
        assert any("here" in text for text in texts(service.peek("one")))
        assert [t for t in texts(service.peek("two")) if t.startswith("table")] == [
            "table public.o: INSERT: id[integer]:2"
        ]
        service.drop_slot("two")
    finally:
        table.cluster.drop_database(other.name)


@pytest.mark.follows_hint("database_dropped")
def test_a_database_that_is_gone_with_its_directory_is_not_waited_for(
    tmp_path: Path, pg18: Database
) -> None:
    data = tmp_path / "data"
    pg18.execute("CREATE TABLE t (id int)")
    other = pg18.cluster.create_database(f"other_{secrets.token_hex(4)}")
    with service_in_process(data) as service:
        service.create_source(pg18.dsn)
        service.create_slot("stays", pg18.name)
        service.create_slot("goes", other.name)
    shutil.rmtree(data / "sources/main/databases" / str(other.oid))
    pg18.cluster.drop_database(other.name)
    with service_in_process(data) as service:
        pg18.execute("INSERT INTO t VALUES (1)")
        service.wait_decoded("stays", pg18)
        deadline = time.monotonic() + 60
        while (ready := service.http.get("/readyz")).status_code != 200:
            assert time.monotonic() < deadline, ready.text
            time.sleep(0.05)
        decoding = service.slot("goes")["decoding"]
        assert decoding["state"] == "stopped"
        assert other.name in decoding["error"]
        assert "DELETE /v1/slots/NAME" in remedy(decoding, "database_dropped")
        service.drop_slot("goes")
        assert [slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]] == ["stays"]
        assert any("INSERT" in text for text in texts(service.peek("stays")))
    # Nothing of it comes back.
    with service_in_process(data) as service:
        service.wait_decoded("stays", pg18)
        service.drop_slot("stays")
        service.call("DELETE", "/sources/main")


def test_everything_is_there_after_a_restart(tmp_path: Path, pg: Database) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    oracle = create_slot(pg, f"o_{secrets.token_hex(4)}")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name, options={"include-xids": "0"})
        pg.execute("INSERT INTO t VALUES (1, 'first life')")
    pg.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 5")
    pg.execute("INSERT INTO t VALUES (2, 'while it was down')")
    with service_in_process(tmp_path / "data") as service:
        pg.execute("UPDATE t SET n = 6 WHERE id = 1")
        service.wait_decoded("s", pg)
        theirs = [tuple(r) for r in oracle.peek({"include-xids": "0"})]
        assert service.peek("s") == theirs
        assert service.get("s") == theirs
    with service_in_process(tmp_path / "data") as service:
        service.wait_decoded("s", pg)
        assert service.get("s") == []
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    oracle.drop()


def test_slots_are_served_while_the_primary_is_down(tmp_path: Path, fresh_cluster) -> None:
    cluster = fresh_cluster(15)
    database = cluster.create_database("d")
    database.execute("CREATE TABLE t (id int)")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(database.dsn)
        service.create_slot("s", "d")
        database.execute("INSERT INTO t VALUES (1)")
        service.wait_decoded("s", database)
        expected = service.peek("s")
    cluster.stop()
    with service_in_process(tmp_path / "data") as service:
        deadline = time.monotonic() + 30
        while service.call("GET", "/sources/main")["sessions"] == []:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert service.peek("s") == expected
        cluster.start()
        database.execute("INSERT INTO t VALUES (2)")
        service.wait_decoded("s", database)
        assert len(service.peek("s")) == len(expected) + 3


@pytest.mark.follows_hint("source_unreachable")
def test_a_source_is_dropped_whose_server_is_gone_for_good(
    tmp_path: Path, fresh_cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fresh_cluster(18)
    database = cluster.create_database("d")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(database.dsn)
        cluster.stop()
        refused = service.problem("DELETE", "/sources/main")
        hint = remedy(refused, "source_unreachable")
        assert service.call("GET", "/sources/main")["name"] == "main"
        monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
        assert main(command(hint, "source drop")) == 0
        assert service.call("GET", "/sources")["sources"] == []
        # Should it come back.
        cluster.start()
        for statement in statements(hint):
            cluster.execute(statement)
        assert cluster.value("SELECT count(*) FROM pg_replication_slots") == 0
        service.create_source(database.dsn)


def test_greedy_slots_are_invalidated_with_a_reason(tmp_path: Path, pg15: Database) -> None:
    settings = EngineSettings(max_slot_retained_bytes=256 * 1024, log_keep_bytes=0)
    with service_in_process(tmp_path / "data", engine=settings) as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name)
        pg15.execute("CREATE TABLE t (v text)")
        for _ in range(8):
            pg15.execute("INSERT INTO t SELECT repeat('x', 100) FROM generate_series(1, 1000)")
        service.wait_decoded("s", pg15)
        deadline = time.monotonic() + 10
        while service.slot("s")["invalidation_reason"] is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        slot = service.slot("s")
        assert slot["wal_status"] == "lost"
        assert slot["invalidation_reason"] == "wal_removed"
        assert service.problem("GET", "/slots/s/peek")["code"] == "slot_invalidated"
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


def test_metadata_on_postgresql(tmp_path: Path, pg15: Database, pg18: Database) -> None:
    pg15.execute("CREATE TABLE t (id int)")
    url = f"postgresql://postgres@127.0.0.1:{pg18.cluster.port}/{pg18.name}"
    for life in range(2):
        with service_in_process(tmp_path / "data", metadata_url=url) as service:
            if life == 0:
                service.create_source(pg15.dsn)
                service.create_slot("s", pg15.name)
            pg15.execute("INSERT INTO t VALUES (1)")
            service.wait_decoded("s", pg15)
            assert len(service.get("s")) == 3
            if life == 1:
                service.drop_slot("s")
                service.call("DELETE", "/sources/main")


BAD_SLOTS: list[tuple[dict[str, object], str]] = [
    ({"slot_name": "Upper"}, "invalid_slot_name"),
    ({"slot_name": "taken"}, "duplicate_name"),
    ({"source": "nowhere"}, "unknown_source"),
    ({"database": "nosuchdb"}, "unknown_database"),
    ({"plugin": "nosuchplugin"}, "unknown_plugin"),
    ({"options": {"no-such-option": "1"}}, "invalid_option"),
    ({"start_lsn": "not an lsn"}, "invalid_lsn"),
]


def test_bad_requests_for_slots(service: Service, table: Database) -> None:
    service.create_slot("taken", table.name)
    for change, code in BAD_SLOTS:
        body: dict[str, object] = {
            "slot_name": "s",
            "source": "main",
            "database": table.name,
            "plugin": "test_decoding",
            **change,
        }
        problem = service.problem("POST", "/slots", json=body)
        assert (problem["code"], bool(problem["hint"])) == (code, True), problem
    assert [s["slot_name"] for s in service.call("GET", "/slots")["slots"]] == ["taken"]
    assert service.problem("GET", "/slots/nosuch")["code"] == "unknown_slot"
    assert service.problem("GET", "/slots/nosuch/peek")["code"] == "unknown_slot"
    assert service.problem("DELETE", "/slots/nosuch")["code"] == "unknown_slot"
    problem = service.problem("GET", "/slots/taken/peek", params={"upto_lsn": "zzz"})
    assert problem["code"] == "invalid_lsn"
    problem = service.problem("GET", "/slots/taken/peek", params={"options.bogus": "1"})
    assert problem["code"] == "invalid_option"
    # After all of that it still works.
    table.execute("INSERT INTO t VALUES (1, 'alive')")
    service.wait_decoded("taken", table)
    assert len(service.get("taken")) == 3


def test_a_source_with_slots_is_not_dropped(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    problem = service.problem("DELETE", "/sources/main")
    assert problem["code"] == "conflict"
    assert problem["details"]["slots"] == ["s"]


def test_a_second_process_on_the_directory_is_refused(tmp_path: Path) -> None:
    from spillway.errors import Conflict

    with (
        service_in_process(tmp_path / "data"),
        pytest.raises(Conflict, match="another process serves"),
        service_in_process(tmp_path / "data"),
    ):
        pass


@pytest.mark.follows_hint("physical_slot_active")
def test_two_services_do_not_share_a_physical_slot(
    service: Service, table: Database, tmp_path: Path
) -> None:
    """Another service's source of the same name: refused at once, and shown on a source that comes
    back.
    """
    cluster = table.cluster
    taken = (
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'spillway_main' AND active"
    )
    wait_until(lambda: bool(cluster.query(taken)), "the first service streams")
    pid = cluster.value(taken)
    request = {"name": "main", "dsn": table.dsn}
    with service_in_process(tmp_path / "second") as second:
        problem = second.problem("POST", "/sources", json=request)
        assert (problem["status"], problem["code"]) == (409, "physical_slot_active")
        assert problem["detail"] == f'the physical slot "spillway_main" is active for PID {pid}'
        (ends_it,) = statements(remedy(problem, "physical_slot_active"))
        assert str(pid) in ends_it
        assert second.call("GET", "/sources")["sources"] == []
        # Under another name the two live side by side.
        second.create_source(table.dsn, "other")
        second.call("DELETE", "/sources/other")
        # And the statement ends the one that streams; a live service only connects again.
        cluster.query(ends_it)
        left = "SELECT 1 FROM pg_stat_replication WHERE pid = %s"
        wait_until(lambda: not cluster.query(left, [pid]), "it still streams")

    third = tmp_path / "third"
    service.call("DELETE", "/sources/main")
    with service_in_process(third) as early:
        early.create_source(table.dsn)
    # The third service has the source and is down: the first one can take the slot.
    service.create_source(table.dsn)
    wait_until(lambda: bool(cluster.query(taken)), "the first service streams again")
    with service_in_process(third) as late:

        def error_code() -> str | None:
            (source,) = late.call("GET", "/sources")["sources"]
            code: str | None = source["error_code"]
            return code

        wait_until(lambda: error_code() == "physical_slot_active", "the source says why it waits")
        (source,) = late.call("GET", "/sources")["sources"]
        assert "is active for PID" in source["error"]
        assert "another name" in source["hint"]


def test_spilling_changes_nothing(tmp_path: Path, pg: Database) -> None:
    """A memory bound far below the transactions: the same bytes, and the spill is counted."""
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    oracle = create_slot(pg, f"o_{secrets.token_hex(4)}")
    settings = EngineSettings(logical_decoding_work_mem=64 * 1024)
    with service_in_process(tmp_path / "data", engine=settings) as service:
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name)
        with pg.connect() as one, pg.connect() as two:
            one.execute("BEGIN")
            two.execute("BEGIN")
            for part in range(10):
                one.execute(f"SAVEPOINT s{part}")
                one.execute(
                    "INSERT INTO t SELECT i, repeat(md5(i::text), 4) FROM generate_series(%s::int, "
                    "%s::int) i",
                    [part * 2000, part * 2000 + 999],
                )
                two.execute(
                    "INSERT INTO t SELECT i, repeat(md5(i::text), 200) FROM "
                    "generate_series(%s::int, %s::int) i",
                    [part * 2000 + 1000, part * 2000 + 1019],
                )
                if part % 3 == 0:
                    one.execute(f"ROLLBACK TO s{part}")
            two.execute("COMMIT")
            one.execute("UPDATE t SET v = 'u' WHERE id % 3 = 0")
            one.execute("COMMIT")
        end = service.wait_decoded("s", pg)
        assert service.peek("s", upto_lsn=end) == [tuple(r) for r in oracle.peek(upto_lsn=end)]
        stats = service.call("GET", "/slots/s/stats")
        assert stats["spill_txns"] >= 1
        assert stats["spill_bytes"] > 64 * 1024
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    oracle.drop()


def test_a_database_in_another_encoding(tmp_path: Path, fresh_cluster) -> None:
    cluster = fresh_cluster(15)
    cluster.execute(
        "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    with service_in_process(tmp_path / "data") as service:
        service.create_source(cluster.dsn("latin"))
        service.create_slot("s", "latin")
        cluster.execute(
            "SELECT pg_create_logical_replication_slot('o', 'test_decoding')", dbname="latin"
        )
        cluster.execute("CREATE TABLE größe (straße text)", dbname="latin")
        cluster.execute("INSERT INTO größe VALUES ('Åäö ÿ')", dbname="latin")
        lsn = cluster.query("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        service.wait_for("s", lsn)
        theirs = cluster.query(
            "SELECT lsn::text, xid::text::bigint, data FROM pg_logical_slot_peek_changes('o', %s, "
            "NULL)",
            [lsn],
            dbname="latin",
        )
        assert any("Åäö ÿ" in data for _, _, data in theirs)
        assert service.peek("s", upto_lsn=lsn) == theirs


def test_what_could_not_be_confirmed_comes_again(
    service: Service, table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.create_slot("s", table.name)
    table.execute("INSERT INTO t VALUES (1, 'a')")
    service.wait_decoded("s", table)
    expected = service.peek("s")

    async def fail(*_: object, **__: object) -> None:
        raise MetadataError("the metadata store does not answer", hint="Try again.")

    with monkeypatch.context() as patch:
        patch.setattr(SlotTable, "advance", fail)
        assert service.problem("POST", "/slots/s/get", json={})["code"] == "metadata_unavailable"
        end = service.slot("s")["decoded_lsn"]
        problem = service.problem("POST", "/slots/s/advance", json={"upto_lsn": end})
        assert problem["code"] == "metadata_unavailable"
    assert service.get("s") == expected


def test_one_consumer_at_a_time(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    table.execute("INSERT INTO t VALUES (1, 'a')")
    service.wait_decoded("s", table)
    with open_stream(service.grpc_address, "s") as stream:
        next(stream)
        for method, path, body in (
            ("GET", "/slots/s/peek", None),
            ("POST", "/slots/s/get", {}),
            ("POST", "/slots/s/advance", {"upto_lsn": "FFFF/0"}),
            ("POST", "/slots/s/rewind", {"lsn": "0/1"}),
            ("DELETE", "/slots/s", None),
        ):
            problem = service.problem(method, path, json=body)
            assert (problem["code"], problem["status"]) == ("slot_active", 409), path
        with pytest.raises(SlotActive):
            open_stream(service.grpc_address, "s")
        # Looking beside it is allowed.
        with open_stream(service.grpc_address, "s", peek=True) as beside:
            assert next(batch for batch in beside if batch.count).count == 3
    deadline = time.monotonic() + 10
    while service.slot("s")["active"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(service.peek("s")) == 3


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("lent", [False, True])
def test_a_flipped_byte_in_wal_is_named_and_lives_no_longer_than_the_damage(
    service: Service, table: Database, monkeypatch: pytest.MonkeyPatch, *, lent: bool
) -> None:
    service.create_slot("s", table.name)
    table.execute("INSERT INTO t VALUES (1, 'sound')")
    service.wait_decoded("s", table)
    sound = service.peek("s")
    read, tell = AppendedWal.read, AppendedWal.tell
    damaged = Lsn.parse(service.slot("s")["decoded_lsn"])

    def flip(store: AppendedWal, lsn: int, max_bytes: int) -> bytes:
        data = bytearray(read(store, lsn, max_bytes))
        at = damaged + 30 - lsn
        if 0 <= at < len(data):
            data[at] ^= 0x40
        return bytes(data)

    def lend(store: AppendedWal, nbytes: int) -> Callable[[int, memoryview], bool] | None:
        # What the receiver's thread decodes in the session's stead it has not read; else the
        # session does it itself.
        instead = tell(store, nbytes if lent else LENT_BYTES + 1)
        if instead is None:
            return None
        return lambda lsn, data: instead(lsn, memoryview(flip(store, lsn, len(data))))

    def session() -> dict[str, str]:
        found: dict[str, str] = service.call("GET", "/sources/main")["sessions"][0]
        return found

    with monkeypatch.context() as patch:
        patch.setattr(AppendedWal, "read", flip)
        patch.setattr(AppendedWal, "tell", lend)
        table.execute("INSERT INTO t VALUES (2, 'after the damage')")
        wait_until(lambda: session()["error_code"] == "corrupt_wal", "the damage was not seen")
        # It says where, and what was decoded before is served all the same.
        assert str(damaged) in session()["error"]
        assert service.peek("s") == sound
    wait_until(lambda: session()["error_code"] is None, "decoding did not go on", 60)
    service.wait_decoded("s", table)
    assert [t for t in texts(service.peek("s")) if t.startswith("table")] == [
        "table public.t: INSERT: id[integer]:1 v[text]:'sound'",
        "table public.t: INSERT: id[integer]:2 v[text]:'after the damage'",
    ]


def test_a_full_disk_in_the_wal_store_is_waited_out(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    with armed("walstore.write=error:ENOSPC"):
        table.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
        wait_until(
            lambda: service.call("GET", "/sources/main")["error_code"] == "disk_full",
            "the full disk is not shown",
        )
        assert service.call("GET", "/sources/main")["hint"]
        assert service.peek("s") == []
    service.wait_decoded("s", table)
    assert len(service.peek("s")) == 102
    assert service.call("GET", "/sources/main")["error_code"] is None


# Little is decoded, and written, by the receiver's thread in the session's stead.
@pytest.mark.parametrize("rows", [1, 400])
def test_a_full_disk_in_the_transaction_log_is_waited_out(
    service: Service, table: Database, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    service.create_slot("s", table.name)
    write = os.write

    def no_space(fd: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".txlog":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_space)
        table.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, %s) i", [rows])
        wait_until(
            lambda: (
                service.call("GET", "/sources/main")["sessions"][0]["error_code"] == "disk_full"
            ),
            "the full disk is not shown",
        )
        assert service.problem("GET", "/slots/s/peek")["code"] == "disk_full"
    service.wait_decoded("s", table)
    assert len(service.peek("s")) == rows + 2


def test_other_options_of_a_slot(service: Service, table: Database) -> None:
    service.create_slot("s", table.name)
    table.execute("INSERT INTO t VALUES (1, 'a')")
    service.wait_decoded("s", table)
    assert texts(service.peek("s"))[0].startswith("BEGIN ")
    changed = service.call("PATCH", "/slots/s", json={"options": {"include-xids": "0"}})
    assert changed["options"] == {"include-xids": "0"}
    # From the same position, by the new ones.
    assert texts(service.peek("s"))[0] == "BEGIN"
    problem = service.problem("PATCH", "/slots/s", json={"options": {"no-such": "1"}})
    assert problem["code"] == "invalid_option"
    with open_stream(service.grpc_address, "s") as stream:
        next(stream)
        problem = service.problem("PATCH", "/slots/s", json={"options": {}})
        assert problem["code"] == "slot_active"
    wait_until(lambda: not service.slot("s")["active"], "its stream has not left it")
    assert service.slot("s")["options"] == {"include-xids": "0"}


def test_another_dsn_of_the_same_cluster(
    service: Service, table: Database, session_cluster: Callable[[int], Cluster]
) -> None:
    def receivers() -> list[str]:
        rows = table.query(
            "SELECT application_name FROM pg_stat_replication WHERE application_name LIKE 'by %'"
        )
        return [str(name) for (name,) in rows]

    def alter(application_name: str) -> str:
        dsn = f"{table.dsn} application_name='{application_name}'"
        return str(service.call("PATCH", "/sources/main", json={"dsn": dsn})["dsn"])

    service.create_slot("s", table.name)
    table.execute("INSERT INTO t VALUES (1, 'a')")
    assert "by one" in alter("by one")
    wait_until(lambda: receivers() == ["by one"], "it is not received by the new DSN")
    table.execute("INSERT INTO t VALUES (2, 'b')")
    # A database that was not decoded before is read by the DSN as it is now.
    alter("by two")
    wait_until(lambda: receivers() == ["by two"], "it is not received by the newest DSN")
    service.wait_decoded("s", table)
    assert [t for t in texts(service.peek("s")) if t.startswith("table")] == [
        "table public.t: INSERT: id[integer]:1 v[text]:'a'",
        "table public.t: INSERT: id[integer]:2 v[text]:'b'",
    ]
    # What is refused changes nothing.
    other = session_cluster(18)
    wrong = f"host=127.0.0.1 port={other.port} user={SUPERUSER} dbname=postgres"
    unreachable = f"host=127.0.0.1 port=1 user={SUPERUSER} dbname=postgres"
    for dsn, code in (
        (wrong, "system_id_mismatch"),
        (unreachable, "source_unreachable"),
        ("host=", "source_unreachable"),
        ("no such thing", "invalid_dsn"),
    ):
        problem = service.problem("PATCH", "/sources/main", json={"dsn": dsn})
        assert problem["code"] == code, problem
        assert problem["hint"]
    assert receivers() == ["by two"]
    source = service.call("GET", "/sources/main")
    assert source["state"] == "streaming"
    assert "by two" in source["dsn"]


def test_another_release_of_the_server_is_noted(tmp_path: Path, pg15: Database) -> None:
    """Its version was stored when the source was made; what plugins print depends on the one that
    runs.
    """
    real = int(str(pg15.value("SHOW server_version_num")))
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name)
    with closing(sqlite3.connect(tmp_path / "data" / "spillway.db")) as metadata, metadata:
        metadata.execute("UPDATE sources SET server_version_num = 150000")
    # A third of a lease's time passes between two looks.
    settings = EngineSettings(lease_ttl_s=3)
    with service_in_process(tmp_path / "data", engine=settings) as service:
        wait_until(
            lambda: service.call("GET", "/sources/main")["server_version_num"] == real,
            "the server's version is not noted",
        )
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
