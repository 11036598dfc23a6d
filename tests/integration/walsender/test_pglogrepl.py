"""pglogrepl, which most programs in Go replicate with, at the service's port and at the primary's.

Where there is no Go this can't run, and says so in pytest's summary.
"""

from __future__ import annotations

import subprocess
from typing import IO, TYPE_CHECKING

import pytest

from harness.go_programs import PGLOGREPL, program
from harness.pg_port import serving

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database


def test_pglogrepl(pg15: Database, tmp_path: Path) -> None:
    client = program(PGLOGREPL)
    if client is None:
        pytest.skip(
            "THERE IS NO GO, ON PATH NOR IN THE CACHE: pglogrepl is not tested. "
            "`make test-setup` gets it."
        )
    pg15.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    pg15.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with serving(pg15, tmp_path) as (service, dsn):
        running = [_start(client, to) for to in (pg15.dsn, dsn)]
        try:
            before = [_until_ready(output) for _, _, output in running]
            for sql in (
                "INSERT INTO t SELECT i, 'ä' || i FROM generate_series(1, 20) i",
                "SELECT pg_logical_emit_message(true, 'prefix', 'a message')",
                "ALTER TABLE t ADD COLUMN more numeric DEFAULT 1.50",
                "UPDATE t SET name = NULL WHERE id = 3",
                "TRUNCATE t",
            ):
                pg15.execute(sql)
            end = str(pg15.value("SELECT pg_current_wal_flush_lsn()::text"))
            for _, to, _ in running:
                to.write(f"{end}\n")
                to.close()
            after = [output.read().splitlines() for _, _, output in running]
            assert [process.wait(60) for process, _, _ in running] == [0, 0], after
        finally:
            for process, *pipes in running:
                process.kill()
                process.wait(60)
                for pipe in pipes:
                    pipe.close()
        assert before[0] == before[1]
        assert before[0][-2:] == [
            'refused 42704 replication slot "nobodys" does not exist',
            "ready",
        ]
        assert after[1] == after[0]
        assert {line.split()[2] for line in after[0]} >= {
            "Begin", "Commit", "Insert", "Update", "Truncate", "Relation",
        }  # fmt: skip
        # Temporary slots went with their connection, or before.
        assert service.call("GET", "/slots")["slots"] == []


def _start(client: Path, to: str) -> tuple[subprocess.Popen[str], IO[str], IO[str]]:
    process = subprocess.Popen(
        [client, f"{to} replication=database", "p"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, process.stdin, process.stdout


def _until_ready(output: IO[str]) -> list[str]:
    lines = []
    for line in output:
        lines.append(line.rstrip("\n"))
        if lines[-1] == "ready":
            break
    return lines
