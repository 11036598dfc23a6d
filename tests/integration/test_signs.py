"""What the service says of itself while something is in its way: real faults, and every sign looked
at.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.reception import wait_until
from harness.remedies import remedy
from harness.service import Service, service_in_process
from spillway.pg.lsn import Lsn
from spillway.receiver import wal_reader, walreceiver
from spillway.receiver.wal_reader import AppendedWal
from spillway.service import readiness
from spillway.sessions import source
from spillway.store import engines, patience

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Cluster


def in_the_way(service: Service) -> dict[tuple[str, str], dict[str, Any]]:
    """Ask /readyz, by kind and code."""
    answer = service.http.get("/readyz")
    if answer.status_code == 200:
        return {}
    assert answer.status_code == 503
    listed = answer.json()["details"]["not_ready"]
    assert all(one["hint"] and one["message"] for one in listed)
    return {(one["kind"], one["code"]): one for one in listed}


def serving(service: Service, name: str = "") -> bool:
    with grpc.insecure_channel(service.grpc_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def metrics(service: Service) -> dict[str, float]:
    lines = service.http.get("/metrics").text.splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.split("{")[0]: float(value) for name, value in samples}


def says_all_is_well(service: Service) -> bool:
    return "Everything is as it should be" in service.http.get("/").text


@contextmanager
def amiss(service: Service, kind: str, code: str) -> Iterator[dict[str, Any]]:
    """See that a fault shows in every sign, and that none of them stays."""
    wait_until(lambda: (kind, code) in in_the_way(service), 40, f"{kind} {code}")
    found = in_the_way(service)[kind, code]
    assert not serving(service)
    assert metrics(service)["spillway_ready"] == 0
    assert not says_all_is_well(service)
    # No restart mends it.
    assert service.http.get("/healthz").status_code == 200
    yield found
    wait_until(lambda: not in_the_way(service), 90, f"{in_the_way(service)}")
    assert serving(service)
    assert metrics(service)["spillway_ready"] == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what takes 10 to 30 seconds take one."""
    monkeypatch.setattr(readiness, "NOT_STREAMING_S", 0.5)
    monkeypatch.setattr(readiness, "METADATA_S", 1.0)
    monkeypatch.setattr(readiness, "_PROBE_S", 0.1)
    monkeypatch.setattr(source, "_SILENT_S", 1.0)
    monkeypatch.setattr(walreceiver, "_ASK_S", 0.2)
    monkeypatch.setattr(patience, "TIMEOUT_S", 2)
    monkeypatch.setattr(engines, "TIMEOUT_S", 2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.follows_hint(
    "metadata_unavailable", "replication_failed", "source_unreachable", "corrupt_wal"
)
def test_each_fault_is_seen_and_goes(
    tmp_path: Path, fresh_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Cluster = fresh_cluster(15)
    cluster.execute("CREATE TABLE t (id int PRIMARY KEY)")
    data = tmp_path / "data"
    with service_in_process(data) as service:
        # Without sources there is nothing to wait for.
        wait_until(lambda: not in_the_way(service), 10, "not ready without a source")
        service.create_source(cluster.dsn())
        service.create_slot("s", "postgres")
        wait_until(lambda: not in_the_way(service), 30, "not ready")
        wait_until(lambda: says_all_is_well(service), 10, "not well")
        assert metrics(service)["spillway_slot_lag_seconds"] == 0

        # The metadata, locked by another program.
        with closing(sqlite3.connect(data / "spillway.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            locked = amiss(service, "metadata", "metadata_unavailable")
            with locked as found:
                assert "see what has it open" in remedy(found, "metadata_unavailable")
                assert not serving(service, "spillway.v1.SlotService")
                other.execute("ROLLBACK")

        # The primary stands still: it neither ends connections nor answers.
        (walsender,) = cluster.query("SELECT pid FROM pg_stat_replication")[0]
        os.kill(walsender, signal.SIGSTOP)
        try:
            with amiss(service, "source", "replication_failed") as found:
                assert "silent" in found["message"]
                assert "The receiver connects again by itself" in remedy(
                    found, "replication_failed"
                )
                assert service.call("GET", "/sources/main")["state"] == "waiting"
                assert "spillway_slot_lag_seconds" not in metrics(service)
                os.kill(walsender, signal.SIGCONT)
        finally:
            os.kill(walsender, signal.SIGCONT)

        # A byte flips in WAL that is not decoded yet.
        read, damaged = AppendedWal.read, Lsn.parse(service.slot("s")["decoded_lsn"])

        def flip(store: AppendedWal, lsn: int, max_bytes: int) -> bytes:
            found = bytearray(read(store, lsn, max_bytes))
            if 0 <= damaged + 30 - lsn < len(found):
                found[damaged + 30 - lsn] ^= 0x40
            return bytes(found)

        monkeypatch.setattr(AppendedWal, "read", flip)
        # It is read from the store, and not decoded by the thread that has received it.
        monkeypatch.setattr(wal_reader, "LENT_BYTES", 0)
        cluster.execute("INSERT INTO t VALUES (1)")
        with amiss(service, "database", "corrupt_wal") as found:
            assert found["name"] == "main/postgres"
            assert remedy(found, "corrupt_wal")
            assert service.slot("s")["decoding"]["state"] == "stopped"
            since = found["since"]
            # Attempts that begin before the damage don't make it look well.
            began = time.monotonic()
            while time.monotonic() - began < 1.5:
                assert in_the_way(service)["database", "corrupt_wal"]["since"] == since
            assert "spillway_slot_lag_seconds" not in metrics(service)
            assert metrics(service)["spillway_session_decoding"] == 0
            monkeypatch.setattr(AppendedWal, "read", read)
        wait_until(lambda: service.slot("s")["decoding"]["state"] == "running", 10)
        assert len(service.get("s")) == 3
        slot = service.slot("s")

    # The service comes back, and the primary is gone since long.
    cluster.stop("immediate")
    restarted = datetime.now(UTC).isoformat()
    with service_in_process(data) as service:
        assert {kind for kind, _ in in_the_way(service)} >= {"source"}
        wait_until(lambda: ("source", "source_unreachable") in in_the_way(service), 20)
        stopped = in_the_way(service)["source", "source_unreachable"]
        assert "that the server runs" in remedy(stopped, "source_unreachable")
        # The server is heard now and then: last before the slot was confirmed, or after.
        assert _at(slot["confirmed_at"]) - timedelta(seconds=30) <= _at(stopped["since"])
        assert stopped["since"] < restarted
        again = service.slot("s")
        # Not when the service was started.
        assert again["confirmed_at"] < restarted
        assert again["inactive_since"] == slot["inactive_since"]
        assert "spillway_slot_lag_seconds" not in metrics(service)
        page = service.http.get("/").text
        assert "not known of 1 of 1 slot" in page
        assert not says_all_is_well(service)
        cluster.start()
        wait_until(lambda: not in_the_way(service), 60, "not ready again")
        wait_until(lambda: says_all_is_well(service), 10, "not well again")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 MiB, where mounting one is allowed."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a file system is not allowed here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Take all that is left of a file system, as another program would."""
    with path.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass


def _at(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


def rows(changes: list[tuple[str, int, str]]) -> int:
    return sum(data.startswith("table") for _, _, data in changes)


def test_slots_are_dropped_and_advanced_on_a_full_disk(
    small_disk: Path, fresh_cluster: Any
) -> None:
    cluster: Cluster = fresh_cluster(15)
    cluster.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    data, ballast = small_disk / "data", small_disk / "ballast"
    with service_in_process(data) as service:
        service.create_source(cluster.dsn())
        for name in ("a", "b", "c"):
            service.create_slot(name, "postgres")
        cluster.execute("INSERT INTO t SELECT i, '' FROM generate_series(1, 10) i")
        service.wait_for("a", cluster.wal_lsn())
        fill(ballast)
        wait_until(lambda: ("disk", "disk_full") in in_the_way(service), 20, "the disk is not full")
        # What was given up for metadata goes to nobody else.
        fill(ballast)
        assert service.call("GET", "/slots/a")["active"] is False
        cluster.execute(
            "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(11, 5000) i"
        )
        service.drop_slot("b")
        # They take what that write was given, and there is more for the next one.
        fill(ballast)
        user = {"name": "d", "password": "p", "databases": ["main/postgres"]}
        service.call("POST", "/users", json=user)
        fill(ballast)
        service.call("DELETE", "/users/d")
        assert rows(service.get("a")) == 10
    # Nor is it in the way of a start.
    with service_in_process(data) as service:
        assert {slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]} == {"a", "c"}
        end = service.slot("a")["confirmed_flush_lsn"]
        wait_until(lambda: service.slot("c")["decoded_lsn"] is not None, 20, "not decoded")
        service.call("POST", "/slots/c/advance", json={"upto_lsn": end})
        ballast.unlink()
        wait_until(lambda: not in_the_way(service), 60, "it does not go on by itself")
        service.wait_for("a", cluster.wal_lsn())
        assert rows(service.get("a")) == rows(service.get("c")) == 4990
        assert (data / "spillway.reserve").stat().st_size == 8 << 20


@pytest.mark.follows_hint("disk_full")
def test_a_disk_that_slots_have_filled_is_freed_by_dropping_one(
    small_disk: Path, fresh_cluster: Any
) -> None:
    """The hint of disk_full, followed: what it says frees space, and nothing is lost for the
    others.
    """
    cluster: Cluster = fresh_cluster(15)
    cluster.execute("CREATE TABLE t (id serial PRIMARY KEY, v text)")
    insert = "INSERT INTO t (v) SELECT repeat(md5(i::text), 64) FROM generate_series(1, 2000) i"
    cluster.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    with service_in_process(small_disk / "data") as service:
        service.create_source(cluster.dsn())
        service.create_slot("forgotten", "postgres")
        service.create_slot("read", "postgres")
        written = read = 0
        while not in_the_way(service):
            cluster.execute(insert)
            written += 2000
            assert written < 200_000, "the disk does not fill"
            read += rows(service.get("read"))
        codes = {code for _, code in in_the_way(service)}
        assert codes == {"disk_full"}
        (told, *_) = in_the_way(service).values()
        assert re.search(r"drop (?:or advance the slot|slots)", remedy(told, "disk_full"))
        service.drop_slot("forgotten")
        wait_until(lambda: not in_the_way(service), 60, "dropping the slot did not help")
        service.wait_for("read", cluster.wal_lsn())
        assert read + rows(service.get("read")) == written
