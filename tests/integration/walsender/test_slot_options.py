"""Options of slots that PostgreSQL has not: a start before what is confirmed, and taking a slot
over from a client that does not answer.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.pg_port import serving
from harness.replication_client import Failure, ReplicationClient
from spillway.pg.lsn import Lsn
from spillway.service import engine

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

EARLY = {"spillway.start_before_confirmed": "on"}


def _read(dsn: str, database: Database, slot: str, lsn: str, options: str = "") -> list[str]:
    """Read a slot from *lsn* to the end of what is written, and confirm all."""
    end = str(database.value("SELECT pg_current_wal_flush_lsn()::text"))
    with ReplicationClient(dsn) as client:
        client.start(slot, f"\"skip-empty-xacts\" 'on'{options}", lsn)
        frames = client.read_to(end)
        client.feedback(int(Lsn.parse(end)))
        client.finish_copy()
    lines = [frame.data.decode() for frame in frames]
    return [line.rpartition(":")[2] for line in lines if line.startswith("table ")]


def test_a_start_before_what_is_confirmed(pg15: Database, tmp_path: Path) -> None:
    pg15.execute("CREATE TABLE t (id int)")
    with serving(pg15, tmp_path) as (service, dsn):
        service.create_slot("early", pg15.name, options=EARLY)
        service.create_slot("plain", pg15.name)
        # A third one keeps the log: what none needs is not kept.
        kept = service.create_slot("keeps", pg15.name)["confirmed_flush_lsn"]
        pg15.execute("INSERT INTO t VALUES (1)")
        begin = str(pg15.value("SELECT pg_current_wal_insert_lsn()::text"))
        pg15.execute("INSERT INTO t VALUES (2)")
        assert _read(dsn, pg15, "early", "0/0") == ["1", "2"]
        confirmed = service.slot("early")["confirmed_flush_lsn"]
        assert Lsn.parse(confirmed) > Lsn.parse(begin)
        assert _read(dsn, pg15, "early", "0/0") == []
        assert _read(dsn, pg15, "early", begin) == ["2"]
        assert _read(dsn, pg15, "early", kept) == ["1", "2"]
        # It has been set back: what is not confirmed then comes again, to anybody.
        with ReplicationClient(dsn) as client:
            client.start("early", lsn=begin)
        assert _until_free(service, "early")["confirmed_flush_lsn"] == begin
        assert _read(dsn, pg15, "early", "0/0") == ["2"]
        # Without the option it is as in PostgreSQL; a session may bring it.
        assert _read(dsn, pg15, "plain", "0/0") == ["1", "2"]
        assert _read(dsn, pg15, "plain", begin) == []
        more = ", \"spillway.start_before_confirmed\" 'on'"
        assert _read(dsn, pg15, "plain", begin, more) == ["2"]
        # What is not retained is said to be gone in PostgreSQL's words.
        with ReplicationClient(dsn) as client:
            failure = client.run("START_REPLICATION SLOT early LOGICAL 0/1").failure
            assert failure == Failure("58P01", "requested WAL segment has already been removed")
        for wrong in ({"spillway.no_such": "on"}, {"spillway.takeover": "perhaps"}):
            problem = service.problem("PATCH", "/slots/early", json={"options": wrong})
            assert problem["code"] == "invalid_option", problem


def _until_free(service: Service, slot: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (found := service.slot(slot))["active"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_takeover(pg15: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TAKEOVER_S", 0.3)
    with serving(pg15, tmp_path) as (service, dsn):
        service.create_slot("s", pg15.name, options={"spillway.takeover": "on"})
        service.create_slot("plain", pg15.name)
        with ReplicationClient(dsn) as silent, ReplicationClient(dsn) as second:
            silent.start("s")
            second.start("s")
            with pytest.raises(EOFError, match="terminating connection"):
                silent.read_until(lambda: False)
            # One that answers keeps it: it is asked, and the question is for it to answer.
            monkeypatch.setattr(engine, "TAKEOVER_S", 60.0)
            stop = threading.Event()
            answering = threading.Thread(target=_answer, args=(second, stop))
            answering.start()
            try:
                with ReplicationClient(dsn) as third:
                    failure = third.run("START_REPLICATION SLOT s LOGICAL 0/0").failure
            finally:
                stop.set()
                answering.join(60)
            assert failure is not None
            assert failure.sqlstate == "55006"
        monkeypatch.setattr(engine, "TAKEOVER_S", 0.3)
        with ReplicationClient(dsn) as silent, ReplicationClient(dsn) as second:
            silent.start("plain")
            failure = second.run("START_REPLICATION SLOT plain LOGICAL 0/0").failure
            assert failure is not None
            assert failure.sqlstate == "55006"


def _answer(client: ReplicationClient, stop: threading.Event) -> None:
    """Read, and answer, as a client does that lives."""
    while not stop.wait(0.01):
        client.pgconn.consume_input()
        while client.read_one():
            client.feedback(client.keepalives[-1][0])
