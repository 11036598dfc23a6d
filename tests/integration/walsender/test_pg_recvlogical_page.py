"""docs/how-to/use-pg-recvlogical.md, followed: each of its commands, by stock clients."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.servers import client
from harness.service import service_in_process
from harness.tiers import on_every_major

if TYPE_CHECKING:
    from harness.cluster import Database

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "use-pg-recvlogical.md"


@on_every_major
def test_the_page_is_followed(pg: Database, tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("psql", "pg_recvlogical"):
        (programs / name).symlink_to(client(name))
    command = programs / "spillway"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m spillway.cli "$@"\n')
    command.chmod(0o755)
    said = []
    with service_in_process(tmp_path / "data") as service:
        # The page's source and database are both called shop, and here both as the database.
        service.create_source(pg.cluster.dsn(), pg.name)
        for block in blocks:
            if "spillway serve" in block:
                assert "--pg-port 55432" in block
                continue
            if "--start" in block:
                pg.execute("CREATE TABLE t (i int)")
                pg.execute("INSERT INTO t VALUES (5)")
                service.wait_decoded("audit", pg)
            script = re.sub(r"\bshop\b", pg.name, block).replace("55432", str(service.pg_port))
            done = subprocess.run(
                ["bash", "-ec", script],
                env={
                    **os.environ,
                    "PATH": f"{programs}:{os.environ['PATH']}",
                    "SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}",
                },
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, (script, done.stderr)
            said.append(done.stdout)
        assert service.call("GET", "/slots")["slots"] == []
    assert "logical" in said[1]
    assert "INSERT: i[integer]:5" in said[2]
    assert len(said) == 4
