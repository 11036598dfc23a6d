"""Two services on one metadata store: one serves a source, and the other one can't touch what it
serves.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from sqlalchemy import create_engine, text

from harness.lease_holder import lease_holder
from harness.reception import wait_until
from harness.remedies import remedy
from harness.service import Service, service_in_process
from harness.tiers import deep
from spillway.errors import LeaseLost, SpillwayError
from spillway.service.settings import EngineSettings
from spillway.sessions.source import Source
from spillway.store.leases import TAKEOVER_S
from spillway.store.metadata import MetadataStore
from spillway.stream.client import open_stream
from spillway.subscriber import targets
from spillway.v1 import slots_pb2, slots_pb2_grpc

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database

LEASE_S = 3.0


def state(service: Service) -> str | None:
    """What a service says of the source; None when it does not know it."""
    sources = service.call("GET", "/sources")["sources"]
    return sources[0]["state"] if sources else None


def rows(changes: list[tuple[str, int, str]]) -> list[str]:
    return [data.rpartition(":")[2] for _, _, data in changes if data.startswith("table")]


def refused(service: Service, slot: str, database: str, dsn: str) -> None:
    """Everything that writes is refused, and says why."""
    body = {"slot_name": "mine", "source": "main", "database": database, "plugin": "test_decoding"}
    for method, path, json in (
        ("POST", "/slots", body),
        ("POST", "/slots", {**body, "temporary": True}),
        ("POST", f"/slots/{slot}/advance", {"upto_lsn": "FFFF/0"}),
        ("POST", f"/slots/{slot}/rewind", {"lsn": "0/1"}),
        ("POST", f"/slots/{slot}/get", {}),
        ("POST", f"/slots/{slot}/copy", {"slot_name": "copied"}),
        ("PATCH", f"/slots/{slot}", {"options": {"include-xids": "0"}}),
        ("DELETE", f"/slots/{slot}", None),
        ("POST", f"/slots/{slot}/end-session", None),
        ("PATCH", "/sources/main", {"dsn": dsn}),
        ("POST", f"/sources/main/databases/{database}/restart", None),
        ("POST", "/subscriptions", subscription("mine", database)),
        ("PATCH", "/subscriptions/kept_sub", {"options": {}, "enabled": False}),
        ("POST", "/subscriptions/kept_sub/disable", None),
        ("POST", "/subscriptions/kept_sub/refresh", None),
        ("DELETE", "/subscriptions/kept_sub", None),
    ):
        problem = service.problem(method, path, json=json)
        assert (problem["code"], problem["status"]) == ("lease_lost", 409), (path, problem)
        assert "Ask the process that serves it" in remedy(problem, "lease_lost")
        assert "takes it over" in problem["hint"]
    problem = service.problem("DELETE", "/sources/main")
    assert problem["status"] == 409
    with pytest.raises(LeaseLost), open_stream(service.grpc_address, slot) as stream:
        next(iter(stream))


def subscription(name: str, database: str) -> dict[str, Any]:
    return {
        "name": name, "source": "main", "database": database, "tables": ["public.t"],
        "copy_data": False, "target": {"kind": "fake", "path": f"/{name}"},
    }  # fmt: skip


def subscriptions(service: Service) -> dict[str, str]:
    """What a service says of each."""
    return {s["name"]: s["state"] for s in service.call("GET", "/subscriptions")["subscriptions"]}


def runs(service: Service, name: str) -> bool:
    found = service.call("GET", f"/subscriptions/{name}")
    return found["state"] == "streaming" and found["pid"] is not None


def has(service: Service, slot: str, pid: int | None, address: str | None) -> bool:
    """Whether a service shows, everywhere, that a client at *address* has the slot, served by
    process *pid*.
    """
    shown = service.slot(slot)
    with grpc.insecure_channel(service.grpc_address) as channel:
        request = slots_pb2.GetSlotRequest(slot_name=slot)
        told = slots_pb2_grpc.SlotServiceStub(channel).GetSlot(request)
    page = service.http.get(f"/ui/slots/{slot}").text
    consumer = shown["consumer"] or {"address": None}
    found = (shown["active"], shown["active_pid"], consumer["address"])
    wanted = (address is not None, pid, address)
    # Two looks may differ while it changes, but in the end they may not.
    return (
        found == wanted
        and (told.active, told.active_pid or None, told.consumer.address or None) == wanted
        and (shown["inactive_since"] is None) == (address is not None)
        and ("nobody reads it" in page) == (address is None)
        and (address is None or address in page)
    )


class Lease:
    """The row of the source's lease, as it is stored."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def stored(self) -> tuple[int, float]:
        """Return the token, and when the lease ends, in seconds of the database's clock."""
        with self._engine.connect() as connection:
            statement = text(
                "SELECT token, expires_at_ms FROM leases WHERE resource = 'source/main'"
            )
            token, expires_at_ms = connection.execute(statement).one()
        return token, expires_at_ms / 1000

    def close(self) -> None:
        self._engine.dispose()


class Follower(threading.Thread):
    """A consumer that confirms all it is given, until its stream ends."""

    def __init__(self, service: Service, slot: str) -> None:
        super().__init__()
        self._stream = open_stream(service.grpc_address, slot)
        self.batches = 0
        self.error: SpillwayError | None = None
        self.start()

    def run(self) -> None:
        try:
            with self._stream as stream:
                for batch in stream:
                    stream.confirm(batch.confirm_lsn)
                    self.batches += batch.count
        except SpillwayError as error:
            self.error = error


@pytest.mark.parametrize("metadata_url", [deep("sqlite"), "postgresql"], indirect=True)
@pytest.mark.follows_hint("lease_lost")
def test_a_paused_service_is_replaced_and_can_write_nothing(
    tmp_path: Path, metadata_url: str, pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {**targets._BUILT_IN, "fake": ("harness.fake_target", "FakeTarget")}
    monkeypatch.setattr(targets, "_BUILT_IN", kinds)
    lease = Lease(metadata_url)
    pg18.execute("CREATE TABLE t (id int)")

    def stored(service: Service) -> dict[str, Any]:
        return {
            slot["slot_name"]: (slot["confirmed_flush_lsn"], slot["temporary"])
            for slot in service.call("GET", "/slots")["slots"]
            if not slot["slot_name"].endswith("_sub")
        }

    with lease_holder(tmp_path / "first", metadata_url, LEASE_S) as holder:
        first = holder.service
        first.create_source(pg18.dsn)
        for slot in ("followed", "kept", "doomed"):
            first.create_slot(slot, pg18.name)
        pg18.execute("INSERT INTO t VALUES (1)")
        first.wait_decoded("kept", pg18)
        for name in ("kept_sub", "gone_sub"):
            first.call("POST", "/subscriptions", json=subscription(name, pg18.name))
            wait_until(lambda name=name: runs(first, name), what=str(subscriptions(first)))  # type: ignore[misc]
        follower = Follower(first, "followed")
        wait_until(lambda: follower.batches == 3)
        address = first.slot("followed")["consumer"]["address"]
        assert has(first, "followed", holder.pid, address)
        engine = EngineSettings(lease_ttl_s=LEASE_S)
        with service_in_process(
            tmp_path / "second", metadata_url=metadata_url, engine=engine
        ) as second:
            # It stands by: it shows what is stored.
            assert state(second) != "streaming"
            wait_until(lambda: stored(second) == stored(first), what="the slots are not shown")
            refused(second, "kept", pg18.name, pg18.dsn)
            # It knows who has which slot, and does not call idle what it does not serve.
            wait_until(lambda: has(second, "followed", holder.pid, address))
            assert has(second, "kept", None, None)
            refused(second, "followed", pg18.name, pg18.dsn)
            (source,) = second.call("GET", "/sources")["sources"]
            assert source["error_code"] == "lease_lost"

            # Made after the second began, as what it is to find when it takes over.
            first.call("POST", "/subscriptions", json=subscription("made_sub", pg18.name))
            wait_until(lambda: "made_sub" in subscriptions(second))
            found = second.call("GET", "/subscriptions/made_sub")
            assert (found["pid"], found["error"]["code"]) == (None, "lease_lost")

            holder.pause()
            token, ended_s = lease.stored()
            wait_until(lambda: lease.stored()[0] != token, what="the source is not taken over")
            # Renewals since then only make this larger.
            assert 0 <= lease.stored()[1] - LEASE_S - ended_s < 10 * TAKEOVER_S
            wait_until(
                lambda: state(second) == "streaming", what=str(second.call("GET", "/sources"))
            )
            for name in ("kept_sub", "made_sub"):
                wait_until(lambda name=name: runs(second, name), what=str(subscriptions(second)))  # type: ignore[misc]
            # Whoever had a slot there has it no more, though that process could not say so.
            assert has(second, "followed", None, None)
            second.call("POST", "/subscriptions/kept_sub/disable")
            second.call("DELETE", "/subscriptions/gone_sub")
            second.call("POST", "/subscriptions", json=subscription("later_sub", pg18.name))
            second.create_slot("temporary", pg18.name, temporary=True)
            second.create_slot("later", pg18.name)
            second.drop_slot("doomed")
            pg18.execute("INSERT INTO t VALUES (2)")
            second.wait_decoded("later", pg18)
            assert rows(second.get("later")) == ["2"]
            before = stored(second)
            assert before["temporary"][1]

            holder.wake()
            follower.join(60)
            assert isinstance(follower.error, LeaseLost), follower.error
            refused(first, "kept", pg18.name, pg18.dsn)
            # What it decoded is still there: a restart of the database was refused before it threw
            # that away.
            assert any((tmp_path / "first").glob("sources/main/databases/*/txlog/*"))
            wait_until(
                lambda: subscriptions(first).keys() == subscriptions(second).keys(),
                what="the first does not show the second's subscriptions",
            )
            assert subscriptions(first).keys() == {"kept_sub", "made_sub", "later_sub"}
            wait_until(
                lambda: stored(first) == before, what="the first does not show what is stored"
            )
            assert stored(second) == before
            assert rows(second.peek("temporary")) == ["2"]
            with open_stream(second.grpc_address, "temporary") as stream:
                next(stream)
                address = second.slot("temporary")["consumer"]["address"]
                wait_until(lambda: has(first, "temporary", os.getpid(), address))
                # It is killed and started again: what the second has made, or has, is not its to
                # tidy up.
                first = holder.restart()
                assert stored(first) == before
                assert has(first, "temporary", os.getpid(), address)
                refused(first, "temporary", pg18.name, pg18.dsn)
                assert has(second, "temporary", os.getpid(), address)
            # A temporary slot goes with its session, and each of them knows.
            wait_until(lambda: "temporary" not in stored(second))
            wait_until(lambda: "temporary" not in stored(first))
            second.create_slot("temporary", pg18.name, temporary=True)
            # What the second serves goes on undisturbed.
            pg18.execute("INSERT INTO t VALUES (3)")
            second.wait_decoded("later", pg18)
            assert rows(second.get("later")) == ["3"]
            position = stored(second)["later"]

        # It has given the lease back: the first goes on from what the second has stored.
        wait_until(lambda: state(first) == "streaming", what=str(first.call("GET", "/sources")))
        assert set(stored(first)) == {"followed", "kept", "later"}
        assert stored(first)["later"] == position
        pg18.execute("INSERT INTO t VALUES (4)")
        first.wait_decoded("kept", pg18)
        assert rows(first.get("kept")) == ["1", "2", "3", "4"]
        assert rows(first.get("followed")) == ["2", "3", "4"]
        assert rows(first.get("later")) == ["4"]
        for name in ("made_sub", "later_sub"):
            wait_until(lambda name=name: runs(first, name), what=str(subscriptions(first)))  # type: ignore[misc]
        assert subscriptions(first)["kept_sub"] == "paused"
        for name in subscriptions(first):
            first.call("DELETE", f"/subscriptions/{name}")
        for slot in stored(first):
            first.drop_slot(slot)
        first.call("DELETE", "/sources/main")
    lease.close()


@pytest.mark.parametrize("metadata_url", ["postgresql"], indirect=True)
def test_a_slot_whose_history_another_service_has_is_told(
    tmp_path: Path, metadata_url: str, pg18: Database
) -> None:
    """Nobody can read it here: not all is well, though the source is streamed and decoded."""
    pg18.execute("CREATE TABLE t (id int)")

    def told(service: Service) -> dict[str, str]:
        found = service.call("GET", "/findings")["findings"]
        return {one["code"]: one["remedy"] for one in found if one["subject"] == "kept"}

    with lease_holder(tmp_path / "first", metadata_url, LEASE_S) as holder:
        first = holder.service
        first.create_source(pg18.dsn)
        first.create_slot("kept", pg18.name)
        pg18.execute("INSERT INTO t VALUES (1)")
        lsn = first.wait_decoded("kept", pg18)
        wait_until(
            lambda: pg18.value(
                "SELECT restart_lsn >= %s::pg_lsn FROM pg_replication_slots"
                " WHERE slot_name = 'spillway_main'",
                [lsn],
            )
        )
        engine = EngineSettings(lease_ttl_s=LEASE_S)
        with service_in_process(
            tmp_path / "second", metadata_url=metadata_url, engine=engine
        ) as second:
            assert told(first) == told(second) == {}
            holder.pause()
            wait_until(lambda: state(second) == "streaming", what="it is not taken over")
            pg18.execute("INSERT INTO t VALUES (2)")
            wait_until(lambda: told(second).keys() == {"slot_elsewhere"}, what="nothing is told")
            assert second.problem("GET", "/slots/kept/peek")["code"] == "lsn_not_retained"
            assert second.slot("kept")["wal_status"] == "unreserved"
            assert "Start that service again and stop this one" in told(second)["slot_elsewhere"]
            holder.wake()
        wait_until(lambda: state(first) == "streaming", what="it is not taken back")
        first.wait_decoded("kept", pg18)
        assert rows(first.get("kept")) == ["1", "2"]
        assert told(first) == {}


@pytest.mark.parametrize("metadata_url", ["sqlite"], indirect=True)
def test_sources_and_temporary_slots_of_another_service(
    tmp_path: Path, metadata_url: str, pg15: Database
) -> None:
    """What one makes the other shows; a start of the other removes no temporary slot of the
    first.
    """
    engine = EngineSettings(lease_ttl_s=LEASE_S)
    with service_in_process(tmp_path / "a", metadata_url=metadata_url, engine=engine) as first:
        with service_in_process(tmp_path / "b", metadata_url=metadata_url, engine=engine) as second:
            first.create_source(pg15.dsn)
            first.create_slot("temporary", pg15.name, temporary=True)
            wait_until(lambda: state(second) is not None, what="the other's source is not seen")
        with service_in_process(tmp_path / "b", metadata_url=metadata_url, engine=engine) as second:
            assert [s["slot_name"] for s in first.call("GET", "/slots")["slots"]] == ["temporary"]
            assert first.peek("temporary") == []
            first.drop_slot("temporary")
            first.call("DELETE", "/sources/main")
            wait_until(lambda: state(second) is None, what="the other's drop is not seen")
            # The name is free for either.
            second.create_source(pg15.dsn)
            second.call("DELETE", "/sources/main")


def test_each_write_proves_the_lease(tmp_path: Path, pg15: Database) -> None:
    """A service that has not noticed yet that its lease is another's writes nothing; it goes on
    once it has it again.
    """
    url = f"sqlite:///{tmp_path / 'metadata.db'}"
    with service_in_process(tmp_path / "data", metadata_url=url) as service:
        service.create_source(pg15.dsn)
        pg15.execute("CREATE TABLE t (id int)")
        service.create_slot("s", pg15.name)
        pg15.execute("INSERT INTO t VALUES (1)")
        end = service.wait_decoded("s", pg15)
        with closing(sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)) as metadata:

            def rows_stored() -> list[Any]:
                tables = ("sources", "slots", "subscriptions")
                return [metadata.execute(f"SELECT * FROM {table}").fetchall() for table in tables]

            for method, path, json in (
                (
                    "POST", "/slots",
                    {"slot_name": "x", "source": "main", "database": pg15.name,
                     "plugin": "test_decoding"},
                ),
                ("POST", "/slots/s/advance", {"upto_lsn": end}),
                ("POST", "/slots/s/rewind", {"lsn": end}),
                ("POST", "/slots/s/get", {}),
                ("POST", "/slots/s/copy", {"slot_name": "x"}),
                ("PATCH", "/slots/s", {"options": {"include-xids": "0"}}),
                ("DELETE", "/slots/s", None),
                ("PATCH", "/sources/main", {"dsn": pg15.dsn + " application_name=other"}),
            ):  # fmt: skip
                before = rows_stored()
                metadata.execute("UPDATE leases SET token = token + 1, holder = 'other'")
                problem = service.problem(method, path, json=json)
                assert (problem["code"], problem["status"]) == ("lease_lost", 409), (path, problem)
                assert rows_stored() == before, path
                metadata.execute("UPDATE leases SET expires_at_ms = 0, holder = ''")
                wait_until(lambda: state(service) == "streaming")
                service.wait_for("s", end)
            # A confirmation that is stored later than it is given.
            follower = Follower(service, "s")
            wait_until(lambda: follower.batches == 3)
            before = rows_stored()
            metadata.execute("UPDATE leases SET token = token + 1, holder = 'other'")
            pg15.execute("INSERT INTO t VALUES (2)")
            follower.join(60)
            assert isinstance(follower.error, LeaseLost), follower.error
            confirmed = [
                slot["confirmed_flush_lsn"] for slot in service.call("GET", "/slots")["slots"]
            ]
            assert rows_stored()[1][0] == before[1][0]
            metadata.execute("UPDATE leases SET expires_at_ms = 0, holder = ''")
            wait_until(lambda: state(service) == "streaming")
            service.wait_decoded("s", pg15)
            assert service.slot("s")["confirmed_flush_lsn"] in confirmed
            assert "2" in rows(service.get("s"))
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


def test_a_start_that_takes_longer_than_a_lease(
    tmp_path: Path, pg15: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is renewed meanwhile: nobody takes the source over from a process that is at work
    on it.
    """
    url, lease_s = f"sqlite:///{tmp_path / 'metadata.db'}", 0.6
    engine = EngineSettings(lease_ttl_s=lease_s)
    with service_in_process(tmp_path / "data", metadata_url=url, engine=engine) as service:
        service.create_source(pg15.dsn)
    start = Source.start
    answers: list[bool] = []

    def slow(source: Source, *databases: Any) -> None:
        answers.append(asyncio.run(others_get_it()))
        start(source, *databases)

    async def others_get_it() -> bool:
        store = MetadataStore(url)
        await asyncio.sleep(3 * lease_s)
        token = await store.acquire_lease("source/main", "other", 60)
        await store.close()
        return token is not None

    monkeypatch.setattr(Source, "start", slow)
    with service_in_process(tmp_path / "data", metadata_url=url, engine=engine) as service:
        wait_until(lambda: state(service) == "streaming")
        assert answers == [False]
        service.call("DELETE", "/sources/main")
