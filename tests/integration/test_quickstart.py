"""The quickstart as it is printed, by a newcomer who types it: a server with scram authentication,
the Makefile's service.

The page's blocks are taken from it one after the other. SQL runs as the superuser, ``sh`` in bash
in the project's directory; only ports, the data directory and the installation (which is there) are
other than a newcomer's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest

from spillway.demo.private_postgres import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs" / "quickstart.md").read_text()
HBA = "host all,replication postgres 127.0.0.1/32 trust\n"


def blocks() -> list[tuple[str, str]]:
    """(language, text) of the blocks of "Use it on a database of yours", in the page's order."""
    part = PAGE[PAGE.index("## Use it on a database of yours") :]
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", part, re.DOTALL | re.MULTILINE)
    return [
        (language, "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True)))
        for indent, language, text in found
    ]


class Newcomer:
    """Types what the page says."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        http_port, grpc_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{http_port}"
        tools = directory / "bin"
        tools.mkdir()
        # The installation is there, and would be made anew.
        make = shutil.which("make")
        (tools / "make").write_text(f'#!/bin/sh\nexec {make} -o install "$@"\n')
        (tools / "make").chmod(0o755)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PG", "SPILLWAY_"))},
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HTTP_PORT": str(http_port),
            "GRPC_PORT": str(grpc_port),
            "PG_PORT": "0",
            "DATA_DIR": str(directory / "data"),
            "PGPORT": str(cluster.port),
            "PGPASSFILE": str(directory / "pgpass"),
            "SPILLWAY_URL": self.url,
            "SPILLWAY_GRPC": f"127.0.0.1:{grpc_port}",
        }
        self.log = directory / "serve.log"
        self.serving: subprocess.Popen[bytes] | None = None

    def sql(self, text: str, database: str) -> None:
        with self.cluster.connect(database) as connection:
            for statement in text.split(";"):
                if statement.strip():
                    connection.execute(statement.encode())

    def start(self, command: str, output: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-ec", command],
            cwd=PROJECT,
            env=self.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def serve(self, command: str) -> None:
        with self.log.open("ab") as log:
            self.serving = self.start(command, log)
        deadline = time.monotonic() + 120
        while "REST and UI" not in self.log.read_text():
            assert self.serving.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        assert f"{self.url}/" in self.log.read_text()

    def type(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def end(self) -> None:
        if self.serving is not None and self.serving.poll() is None:
            os.killpg(self.serving.pid, signal.SIGTERM)
            self.serving.wait(60)


@pytest.fixture
def newcomer(fresh_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Newcomer]:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    cluster = fresh_cluster(18, wal_level="replica")
    (cluster.data_directory / "pg_hba.conf").write_text(HBA)
    newcomer = Newcomer(cluster, tmp_path)
    yield newcomer
    newcomer.end()


def _restart(cluster: Cluster) -> None:
    cluster.stop()
    cluster.start()


def _without_positions(text: str) -> str:
    return re.sub(r"^[0-9A-F]+/[0-9A-F]+\t\d+\t", "", text, flags=re.MULTILINE)


@pytest.mark.timeout(300)
def test_the_page_works_as_it_is_printed(newcomer: Newcomer) -> None:
    cluster = newcomer.cluster
    typed = blocks()
    languages = [language for language, _ in typed]
    assert languages == ["sql", "", "sh", "sh", "sh", "sql", "sh", "", "sh", "sh", "sh"]
    prepare, hba, serve, add, create, change, peek, shown, get, follow, clean = (
        text for _, text in typed
    )
    newcomer.sql(prepare, "postgres")
    (cluster.data_directory / "pg_hba.conf").write_text(hba + HBA)
    _restart(cluster)
    newcomer.serve(serve)
    added = newcomer.type(add)
    assert "name\tshop\n" in added
    assert "two/thirds" not in added
    newcomer.type(create)
    newcomer.sql(change, "shop")
    _until(lambda: _without_positions(newcomer.type(peek)) == _without_positions(shown))
    got = newcomer.type(get)
    assert "item[text]:'green tea'" in got
    assert "slot_name\twal_status" in got
    page = httpx.get(f"{newcomer.url}/", follow_redirects=True, timeout=60)
    assert page.status_code == 200
    assert "audit" in page.text
    received = newcomer.log.with_name("received")
    with received.open("wb") as output:
        following = newcomer.start(f"exec {follow.strip()}", output)
    newcomer.sql("INSERT INTO orders VALUES (2, 'black tea')", "shop")
    _until(lambda: "black tea" in received.read_text())
    following.send_signal(signal.SIGINT)
    assert following.wait(30) == 0
    newcomer.type(clean)
    assert cluster.query("SELECT count(*) FROM pg_replication_slots") == [(0,)]
    _passwords(newcomer)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _passwords(newcomer: Newcomer) -> None:
    """Any character, in each of the three ways."""
    cluster = newcomer.cluster
    password = "it's \\ 100 %: a/b@c?d=ü"
    cluster.execute("ALTER ROLE spillway PASSWORD '" + password.replace("'", "''") + "'")
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    pgpass = password.replace("\\", "\\\\").replace(":", "\\:")
    passfile = Path(newcomer.environment["PGPASSFILE"])

    def add(dsn: str) -> None:
        newcomer.type(f".venv/bin/spillway source add shop - <<'DSN'\n{dsn}\nDSN\n")
        shown = newcomer.type(".venv/bin/spillway source show shop")
        assert password not in shown
        assert "state\tstreaming" in shown

    add(f"host=127.0.0.1 dbname=shop user=spillway password='{escaped}'")
    newcomer.type(".venv/bin/spillway source drop shop")
    add(f"postgresql://spillway:{quote(password, safe='-._~')}@127.0.0.1/shop")
    newcomer.type(".venv/bin/spillway source drop shop")
    passfile.write_text(f"127.0.0.1:{cluster.port}:*:spillway:{pgpass}\n")
    passfile.chmod(0o600)
    add("host=127.0.0.1 dbname=shop user=spillway")
    newcomer.type(".venv/bin/spillway slot create audit --source shop --database shop")
