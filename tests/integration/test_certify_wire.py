"""``spillway certify --wire``: the service's port beside the walsender of its own source."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from harness.pg_port import PASSWORD, dsn_of
from harness.service import service_in_process
from harness.tiers import deep
from spillway import failpoints
from spillway.cli.program import main
from spillway.service.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Cluster
    from harness.service import Service

#: Ours cut, in parts of so many bytes, what a server streams from 64 kB on.
_PARTS_BYTES = 4000


@contextlib.contextmanager
def _serving(cluster: Cluster, data_dir: Path) -> Iterator[tuple[Service, str]]:
    """Yield the service, and the DSN of its port; alice may use every database."""
    engine = EngineSettings(stream_bytes=_PARTS_BYTES)
    with service_in_process(data_dir, engine=engine) as service:
        service.create_source(cluster.dsn())
        body = {"name": "alice", "databases": ["main/*"], "manage_slots": True}
        service.call("POST", "/users", json={**body, "password": PASSWORD})
        yield service, dsn_of(service, "alice", "main/postgres")


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]
) -> Iterator[Cluster]:
    cluster = session_cluster(request.param)
    yield cluster
    left = "SELECT slot_name FROM pg_replication_slots WHERE slot_name ^@ 'spillway_certify'"
    assert cluster.query(left) == []


def _certified(
    capsys: pytest.CaptureFixture[str], cluster: Cluster, wire_dsn: str, *arguments: str
) -> tuple[int, dict[str, Any]]:
    dsn = cluster.dsn()
    code = main(["certify", "--dsn", dsn, "--wire", wire_dsn, "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def _run_workload(
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seed: int,
    steps: int,
) -> None:
    with _serving(cluster, tmp_path) as (service, wire_dsn):
        workload = ("--workload", "--seed", str(seed), "--steps", str(steps))
        code, report = _certified(capsys, cluster, wire_dsn, *workload)
        differing = [one for one in report["subjects"] if one["difference"]]
        assert (code, differing) == (0, [])
        assert report["workload"]["steps"] >= steps
        assert all(one["frames"] > 10 for one in report["subjects"])
        options = [one["options"] for one in report["subjects"]]
        assert {one.get("proto_version", "") for one in options} >= {"", "1"}
        assert any("streaming" in one for one in options)
        if cluster.major >= 15:
            assert any("two_phase" in one for one in options)
        # Nothing of it is left in the service either.
        assert service.call("GET", "/slots")["slots"] == []


@pytest.mark.parametrize("cluster", [14, deep(15), deep(16), deep(17), 18], indirect=True)
def test_the_workload_is_equal(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run_workload(cluster, tmp_path, capsys, 5, 120)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 14))
@pytest.mark.parametrize("cluster", [14, 15, 16, 17, 18], indirect=True)
def test_more_seeds_are_equal(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    _run_workload(cluster, tmp_path, capsys, seed, 500)


@pytest.mark.long
@pytest.mark.parametrize("cluster", [14, 15, 16, 17, 18], indirect=True)
def test_live_traffic(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Transactions of several parts, and tables that are changed while both sides stream."""
    database = cluster.create_database("wired")
    try:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t"
        )
        with _serving(cluster, tmp_path) as (service, _):
            wire_dsn = dsn_of(service, "alice", "wired")
            is_over = threading.Event()

            def work() -> None:
                number = 0
                with database.connect() as connection:
                    while not is_over.is_set():
                        connection.execute("BEGIN")
                        connection.execute(
                            "INSERT INTO t SELECT %s + i, repeat('x', 200) FROM "
                            "generate_series(1, 600) i",
                            [number],
                        )
                        connection.execute("SAVEPOINT s")
                        connection.execute("UPDATE t SET v = 'y' WHERE id % 7 = 0")
                        connection.execute("ROLLBACK TO s")
                        connection.execute("DELETE FROM t WHERE id % 3 = 0")
                        connection.execute("COMMIT" if number % 1800 else "ROLLBACK")
                        connection.execute(f"ALTER TABLE t ADD COLUMN c{number} int".encode())
                        connection.execute(f"ALTER TABLE t DROP COLUMN c{number}".encode())
                        number += 600
                        # It goes on until both sides are compared, so both must keep up.
                        is_over.wait(0.1)

            worker = threading.Thread(target=work)
            worker.start()
            try:
                follow = ("--duration", "2", "--publication", "p")
                arguments = ["--dsn", database.dsn, "--wire", wire_dsn, "--json", *follow]
                code = main(["certify", *arguments])
            finally:
                is_over.set()
                worker.join()
            report = json.loads(capsys.readouterr().out)
            differing = [one for one in report["subjects"] if one["difference"]]
            assert (code, differing) == (0, [])
            assert all(one["frames"] > 500 for one in report["subjects"])
    finally:
        cluster.drop_database("wired")


@pytest.mark.parametrize("cluster", [18], indirect=True)
def test_what_differs_is_shown(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _serving(cluster, tmp_path) as (_, wire_dsn):
        with failpoints.armed("certify.compare=error:EIO@7"):
            workload = ("--workload", "--seed", "5", "--steps", "60")
            code, report = _certified(capsys, cluster, wire_dsn, *workload)
        assert code == 1
        (difference,) = [one["difference"] for one in report["subjects"] if one["difference"]]
        assert difference["number"] == 7
        assert len(difference["before"]) == 5
        assert difference["ours"] == difference["theirs"] + " (corrupted)"
        assert isinstance(difference["byte"], int)


@pytest.mark.long
@pytest.mark.parametrize("cluster", [18], indirect=True)
def test_another_cluster_is_refused(
    cluster: Cluster,
    session_cluster: Callable[[int], Cluster],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _serving(cluster, tmp_path) as (_, wire_dsn):
        assert main(["certify", "--dsn", session_cluster(15).dsn(), "--wire", wire_dsn]) == 1
    assert "code: system_id_mismatch" in capsys.readouterr().err
