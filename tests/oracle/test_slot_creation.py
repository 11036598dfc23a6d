"""Slots and decoders that begin while transactions run, as contrib/test_decoding's specs have
it.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.decoding_session import DecodingSession
from harness.oracle import LogicalSlot, create_slot
from harness.servers import MAJORS
from harness.service import service_in_process
from harness.tiers import majors_by_tier
from spillway.service.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import psycopg

    from harness.cluster import Cluster, Database


@pytest.fixture(params=majors_by_tier(MAJORS), ids=[f"pg{major}" for major in MAJORS])
def database(
    request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]
) -> Iterator[Database]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"creation_{secrets.token_hex(4)}")
    yield database
    cluster.drop_database(database.name)


def test_a_decoder_that_begins_while_a_transaction_runs(database: Database, tmp_path: Path) -> None:
    """Neither the server's slot nor ours has a part of it; both have all that comes after."""
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, v text); CHECKPOINT")
    name = f"delayed_{secrets.token_hex(4)}"
    with database.connect(autocommit=False) as running:
        running.execute("INSERT INTO t (v) VALUES ('before either began')")
        creation = threading.Thread(target=create_slot, args=(database, name))
        creation.start()
        _wait_for_a_lock(database)
        session = DecodingSession(database, tmp_path, slot=LogicalSlot(database, name))
        session.decode()
        assert session.sink.consistent_at is None
        running.execute("INSERT INTO t (v) VALUES ('after')")
        running.execute("ALTER TABLE t ADD n int")
    creation.join()
    database.execute("INSERT INTO t (v, n) VALUES ('whole', 1)")
    with database.connect(autocommit=False) as running:
        running.execute("INSERT INTO t (v) VALUES ('not yet')")
        database.execute("INSERT INTO t (v) VALUES ('meanwhile')")
        assert "not yet" not in str(session.assert_equal_to_server())
    lines = [line.data for line in session.assert_equal_to_server()]
    assert any("not yet" in line for line in lines)
    assert any("whole" in line for line in lines)
    assert not any("before either" in line for line in lines)
    session.close()


def _wait_for_a_lock(database: Database) -> None:
    deadline = time.monotonic() + 30
    while not database.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
        "wait_event_type = 'Lock'"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_slot_made_while_a_transaction_is_open_gets_it_whole(
    pg: Database, tmp_path: Path
) -> None:
    """Where decoding runs already nobody waits: PostgreSQL's slot would, until the transaction has
    ended.
    """
    pg.execute("CREATE TABLE t (v text)")
    with service_in_process(tmp_path) as service:
        service.create_source(pg.dsn)
        service.create_slot("old", pg.name)
        oracle = create_slot(pg, f"oracle_{secrets.token_hex(4)}")
        with pg.connect(autocommit=False) as running:
            running.execute("INSERT INTO t VALUES ('before the slot')")
            pg.execute("INSERT INTO t VALUES ('is over'); CHECKPOINT")
            service.create_slot("new", pg.name)
            running.execute("INSERT INTO t VALUES ('after')")
        end = service.wait_decoded("new", pg)
        theirs = oracle.peek(upto_lsn=end)
        assert service.peek("old", upto_lsn=end) == theirs
        (start,) = [i for i, row in enumerate(theirs) if "before the slot" in row.data]
        assert service.peek("new", upto_lsn=end) == theirs[start - 1 :]
        oracle.drop()


def test_a_two_phase_slot_made_between_prepare_and_commit_prepared(
    pg: Database, tmp_path: Path
) -> None:
    """What was prepared before either slot's first position comes whole with its COMMIT
    PREPARED.
    """
    pg.execute("CREATE TABLE t (v text)")
    name = f"oracle_{secrets.token_hex(4)}"
    with service_in_process(tmp_path) as service, pg.connect() as second, pg.connect() as third:
        service.create_source(pg.dsn)
        service.create_slot("old", pg.name)
        second.execute("BEGIN; SELECT pg_current_xact_id()")
        creation = threading.Thread(target=create_slot, args=(pg, name), kwargs={"two_phase": True})
        creation.start()
        _wait_for_lock_on(pg, second)
        third.execute("BEGIN; SELECT pg_current_xact_id()")
        second.execute("COMMIT")
        _wait_for_lock_on(pg, third)
        second.execute("BEGIN; INSERT INTO t VALUES ('prepared')")
        second.execute(f"PREPARE TRANSACTION '{name}'")
        service.create_slot("new", pg.name, two_phase=True)
        third.execute("COMMIT")
        creation.join()
        pg.execute("INSERT INTO t VALUES ('in between')")
        second.execute(f"COMMIT PREPARED '{name}'")
        end = service.wait_decoded("new", pg)
        theirs = LogicalSlot(pg, name).peek(upto_lsn=end)
        assert [line for line in theirs if line.data.startswith("PREPARE")]
        assert service.peek("new", upto_lsn=end) == theirs
        pg.query("SELECT pg_drop_replication_slot(%s)", [name])


def _wait_for_lock_on(database: Database, holder: psycopg.Connection[Any]) -> None:
    """Wait until somebody waits for the end of *holder*'s transaction."""
    deadline = time.monotonic() + 30
    while not database.value(
        "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))",
        [holder.info.backend_pid],
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_slot_whose_creation_fails_is_not_there(pg: Database, tmp_path: Path) -> None:
    """The wait for transactions that ran before decoding began is given up, and can be begun
    again.
    """
    with service_in_process(tmp_path, engine=EngineSettings(consistent_timeout_s=0.5)) as service:
        with pg.connect(autocommit=False) as running:
            running.execute("SELECT pg_current_xact_id()")
            pg.execute("CHECKPOINT")
            service.create_source(pg.dsn)
            body = {
                "slot_name": "s",
                "source": "main",
                "database": pg.name,
                "plugin": "test_decoding",
            }
            assert service.problem("POST", "/slots", json=body)["code"] == "not_ready"
            assert service.problem("GET", "/slots/s")["code"] == "unknown_slot"
        deadline = time.monotonic() + 30
        while not service.http.post("/v1/slots", json=body).is_success:
            assert time.monotonic() < deadline
        assert service.slot("s")["slot_name"] == "s"


def test_temporary_slots_go_with_the_service_and_statistics_with_their_slot(
    pg: Database, tmp_path: Path
) -> None:
    pg.execute("CREATE TABLE t (v text)")
    with service_in_process(tmp_path) as service:
        service.create_source(pg.dsn)
        service.create_slot("kept", pg.name)
        service.create_slot("goes", pg.name, temporary=True)
        pg.execute("INSERT INTO t VALUES ('x')")
        end = service.wait_decoded("kept", pg)
        # Reading one and then the other, in turn, does not confuse them.
        first = service.peek("kept", upto_lsn=end)
        assert service.get("goes", upto_lsn=end) == first
        assert service.get("kept", upto_lsn=end) == first
        assert service.get("goes", upto_lsn=end) == []
        for slot in ("kept", "goes"):
            stats = service.call("GET", f"/slots/{slot}/stats")
            assert stats["slot_name"] == slot
            assert stats["total_txns"] >= 1
            assert stats["total_bytes"] > 0
    with service_in_process(tmp_path) as service:
        assert service.problem("GET", "/slots/goes/stats")["code"] == "unknown_slot"
        assert service.problem("DELETE", "/slots/goes")["code"] == "unknown_slot"
        assert [slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]] == ["kept"]
        service.drop_slot("kept")
        assert service.problem("DELETE", "/slots/kept")["code"] == "unknown_slot"
        assert service.problem("GET", "/slots/kept/stats")["code"] == "unknown_slot"
