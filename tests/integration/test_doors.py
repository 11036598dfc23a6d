"""The service's doors as a process has them: descriptors that run out, files that others must not
read, DSNs.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from harness.serve_process import ServeProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database

FILES_MAX = 256
SOCKETS = 320


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    directory = tmp_path_factory.mktemp("doors")
    before = os.umask(0o022)
    try:
        serve = ServeProcess(directory / "data", files_max=FILES_MAX)
    finally:
        os.umask(before)
    yield serve
    serve.stop()


def test_connections_take_no_descriptor_of_the_receiver(
    stage: ServeProcess, pg18: Database
) -> None:
    database = pg18
    service = stage.service()
    try:
        database.execute("CREATE TABLE t (n int, filler text)")
        service.create_source(database.dsn)
        service.create_slot("s", database.name)
        log_before = len(stage.log())
        process = stage.process
        assert process is not None
        held: list[socket.socket] = []
        for port in (stage.http_port, stage.grpc_port):
            for _ in range(SOCKETS):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=20))
                if port == stage.http_port and len(held) % 2:
                    held[-1].sendall(b"GET /v1/slots HTTP/1.1\r\nhost: x\r\nx-half: ")
        # While they are there: WAL comes in, with new segments, which must be opened.
        for _ in range(3):
            database.execute(
                "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 2000) i"
            )
            database.execute("SELECT pg_switch_wal()")
        # gRPC accepts what comes until no descriptor is left, and tries again a second later: what
        # is beyond the bound is gone after a few looks.
        deadline = time.monotonic() + 15
        while len(list(Path(f"/proc/{process.pid}/fd").iterdir())) >= FILES_MAX - 16:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for one in held:
            one.close()
        deadline = time.monotonic() + 30
        while not _answers(stage):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        service.http.close()
        service.http = httpx.Client(base_url=str(service.http.base_url), timeout=60)
        database.execute("INSERT INTO t VALUES (0, 'after')")
        service.wait_decoded("s", database)
        assert "after" in service.peek("s")[-2][2]
        assert service.call("GET", "/sources/main")["state"] == "streaming"
        # Nothing of it is a traceback, and what is said is said once a minute.
        said = stage.log()[log_before:]
        assert "Traceback" not in said
        assert len(said) < 4000
    finally:
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


def _answers(stage: ServeProcess) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{stage.http_port}/healthz", timeout=5).is_success
    except httpx.TransportError:
        return False


def test_a_data_directory_is_its_owners_alone(
    stage: ServeProcess, pg18: Database, tmp_path: Path
) -> None:
    database = pg18
    service = stage.service()
    try:
        database.execute("CREATE TABLE t (n int)")
        service.create_source(database.dsn)
        service.create_slot("s", database.name)
        database.execute("INSERT INTO t SELECT generate_series(1, 100)")
        service.wait_decoded("s", database)
        service.get("s")
        stage.kill()  # what is in flight, SQLite's -wal and -shm, is there to be seen
        root = stage._data_dir
        seen = [root, *root.rglob("*")]
        names = {path.suffix or path.name for path in seen}
        assert {".db", "wal", "txlog", "spillway.lock", "database.json"} <= names | {
            path.name for path in seen
        }
        open_ = {
            str(path.relative_to(root)): oct(stat.S_IMODE(path.lstat().st_mode))
            for path in seen
            if path.lstat().st_mode & 0o077
        }
        assert open_ == {}
        stage.start()
        # A directory that an earlier release made.
        root.chmod(0o755)
        stage.kill()
        stage.start()
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
    finally:
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


def test_a_dsn_names_no_file(stage: ServeProcess, pg18: Database, tmp_path: Path) -> None:
    service = stage.service()
    (tmp_path / "pass").write_text("*:*:*:*:secret\n")
    for more in (f"passfile={tmp_path}/pass", "service=x", f"sslkeylogfile={tmp_path}/keys"):
        problem = service.problem(
            "POST",
            "/sources",
            json={"name": "x", "dsn": f"host=127.0.0.1 port={pg18.cluster.port} {more}"},
        )
        assert problem["code"] == "invalid_dsn"
        assert more.partition("=")[0] in problem["detail"]
    assert not (tmp_path / "keys").exists()


def test_without_tls_no_address_but_loopback(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "spillway.cli", "serve", "--host", "0.0.0.0"],
        env={**os.environ, "SPILLWAY_TOKEN": "t", "SPILLWAY_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "SPILLWAY_TLS_CERT" in ended.stderr
    assert "clear text" in ended.stderr
    assert not (tmp_path / "data").exists()


def test_a_source_that_was_stored_before_goes_on(stage: ServeProcess, pg18: Database) -> None:
    service = stage.service()
    service.create_source(pg18.dsn)
    try:
        stage.kill()
        with sqlite3.connect(stage._data_dir / "spillway.db") as metadata:
            metadata.execute("UPDATE sources SET dsn = dsn || ' sslcrl=/etc/none'")
        metadata.close()
        stage.start()
        deadline = time.monotonic() + 60
        while service.call("GET", "/sources/main")["state"] != "streaming":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "its DSN has sslcrl" in stage.log()
        # But it is not taken when it is said anew.
        problem = service.problem(
            "PATCH", "/sources/main", json={"dsn": f"{pg18.dsn} sslcrl=/etc/none"}
        )
        assert problem["code"] == "invalid_dsn"
    finally:
        service.call("DELETE", "/sources/main")
