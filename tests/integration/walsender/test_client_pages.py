"""docs/how-to/use-psycopg2.md and use-pglogrepl.md, followed: each of their blocks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import pytest

from harness.go_programs import PGLOGREPL, program_of
from harness.service import service_in_process
from harness.tiers import on_every_major

if TYPE_CHECKING:
    from harness.cluster import Database
    from harness.service import Service

PAGES: Final = Path(__file__).resolve().parents[3] / "docs" / "how-to"


def _blocks(page: str, service: Service, database: Database) -> list[tuple[str, str]]:
    """Give a page's blocks: of what kind, and with this service's port and this database. Source
    and database are both called shop there.
    """
    text = re.sub(r"\bshop\b", database.name, (PAGES / page).read_text())
    text = text.replace("55432", str(service.pg_port))
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def _run_sh(script: str, service: Service, folder: Path) -> None:
    command = folder / "spillway"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m spillway.cli "$@"\n')
    command.chmod(0o755)
    address = f"http://127.0.0.1:{service.http_port}"
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script],
        env={**os.environ, "PATH": path, "SPILLWAY_URL": address},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (script, done.stderr)


@on_every_major
def test_psycopg2(pg: Database, tmp_path: Path) -> None:
    pg.execute("CREATE TABLE t (i int)")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg.cluster.dsn(), pg.name)
        (_, user), (kind, reader) = _blocks("use-psycopg2.md", service, pg)
        assert kind == "python"
        _run_sh(user, service, tmp_path)
        for number in (1, 2):
            # The second one finds the slot, and what the first has not confirmed.
            with subprocess.Popen(
                [sys.executable, "-c", reader], stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                _wait(service, active=True)
                pg.execute("INSERT INTO t VALUES (%s)", [number])
                _until(process.stdout, f"table public.t: INSERT: i[integer]:{number}")
                process.kill()
            _wait(service, active=False)


@on_every_major
def test_pglogrepl(pg: Database, tmp_path: Path) -> None:
    pg.execute("CREATE TABLE t (i int)")
    pg.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg.cluster.dsn(), pg.name)
        (_, user), (kind, source) = _blocks("use-pglogrepl.md", service, pg)
        assert kind == "go"
        client = program_of(PGLOGREPL, source, tmp_path / "client")
        if client is None:
            pytest.skip(
                "THERE IS NO GO, ON PATH NOR IN THE CACHE: the page on pglogrepl is not followed. "
                "`make test-setup` gets it."
            )
        _run_sh(user, service, tmp_path)
        with subprocess.Popen([client], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            _until(process.stdout, "streaming")
            pg.execute("INSERT INTO t VALUES (1)")
            assert _until(process.stdout, "Commit") == ["Begin", "Relation", "Insert", "Commit"]
            process.kill()


def _wait(service: Service, *, active: bool) -> None:
    """Wait until somebody reads the slot, or nobody any more."""
    deadline = time.monotonic() + 60
    while [slot["active"] for slot in service.call("GET", "/slots")["slots"]] != [active]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _until(output: IO[str], last: str) -> list[str]:
    lines = []
    for line in output:
        lines.append(line.rstrip("\n"))
        if lines[-1] == last:
            break
    assert lines[-1:] == [last], lines
    return lines
