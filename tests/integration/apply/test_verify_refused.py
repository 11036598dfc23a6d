"""``spillway subscription verify`` and ``repair`` where one of the servers refuses a table: the
others are compared, and what is said of that one mends it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.postgresql_subscription import wait_until
from harness.remedies import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database
    from harness.serve_process import ServeProcess
    from harness.service import Service

_TABLES = ("differs", "equal", "locked", "unreadable", "unread", "viewed", "veiled")


@dataclass
class Refusing:
    """A subscription of tables, and a role that may read most of them on either side."""

    service: Service
    source: Database
    target: Database
    name: str

    def run(self, command: str, *tables: str) -> tuple[int, dict[str, str], str]:
        """Run the command; return its code, what it says of each table, and all it says."""
        of = [f"--table=public.{table}" for table in tables]
        done = subprocess.run(
            [sys.executable, "-m", "spillway.cli", "subscription", command, self.name, *of],
            env={
                **os.environ,
                "SPILLWAY_URL": f"http://127.0.0.1:{self.service.http_port}",
                "SPILLWAY_GRPC": self.service.grpc_address,
                "SPILLWAY_APPLY_SOURCE_DSN": f"{self.source.dsn} user={self.name}",
                "SPILLWAY_APPLY_TARGET_DSN": f"{self.target.dsn} user={self.name}",
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = dict(
            line.removeprefix("public.").split(": ", 1)
            for line in done.stdout.splitlines()
            if line.startswith("public.")
        )
        return done.returncode, said, f"{done.stdout}\n{done.stderr}"


@pytest.fixture
def refusing(
    session_cluster: Callable[[int], Cluster], apply_service: ServeProcess
) -> Iterator[Refusing]:
    cluster, service = session_cluster(18), apply_service.service()
    name = f"refusing_{secrets.token_hex(3)}"
    source, target = (cluster.create_database(f"{name}_{i}") for i in range(2))
    cluster.execute(f"CREATE ROLE {name} LOGIN")
    for database in (source, target):
        for table in _TABLES:
            database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        database.execute(f"GRANT USAGE ON SCHEMA public TO {name}; GRANT ALL ON ALL TABLES IN"
                         f" SCHEMA public TO {name}")  # fmt: skip
    for table in _TABLES:
        source.execute(f"INSERT INTO {table} SELECT n, n FROM generate_series(1, 9) n")
    source.execute("CREATE PUBLICATION p FOR ALL TABLES")
    service.create_source(source.dsn, name=name)
    body = {
        "name": name, "source": name, "database": source.name, "publications": ["p"],
        "target": {"kind": "postgres", "dsn": target.dsn},
    }  # fmt: skip
    service.call("POST", "/subscriptions", json=body)
    ready = "SELECT count(*) FROM spillway.tables WHERE state = 'r'"

    def is_ready() -> bool:
        there = target.value("SELECT to_regclass('spillway.tables')") is not None
        return there and target.value(ready) == len(_TABLES)

    wait_until("all are copied", is_ready)
    target.execute(f"GRANT USAGE ON SCHEMA spillway TO {name};"
                   f"GRANT SELECT ON ALL TABLES IN SCHEMA spillway TO {name}")  # fmt: skip
    yield Refusing(service, source, target, name)
    service.call("DELETE", f"/subscriptions/{name}")
    service.call("DELETE", f"/sources/{name}")
    for database in (source, target):
        cluster.drop_database(database.name)
    cluster.execute(f"DROP ROLE {name}")


@pytest.mark.long
def test_each_is_told_and_mended(refusing: Refusing) -> None:
    """Of rows that may not be read on one side, and of a view where a table was."""
    source, target, role = refusing.source, refusing.target, refusing.name
    source.execute(f"REVOKE ALL ON unreadable FROM {role}")
    target.execute(
        f"REVOKE ALL ON unread FROM {role}; UPDATE differs SET v = '' WHERE id = 5;"
        "ALTER TABLE veiled ENABLE ROW LEVEL SECURITY;"
        "ALTER TABLE viewed RENAME TO was_viewed; CREATE VIEW viewed AS TABLE was_viewed"
    )
    code, said, told = refusing.run("verify")
    assert code == 1, told
    assert said.keys() == set(_TABLES), told
    assert "equal, 9 rows" in said["equal"]
    assert "equal, 9 rows" in said["locked"]
    assert "DIFFERENT" in said["differs"]
    for table in ("unreadable", "unread", "viewed", "veiled"):
        assert said[table].startswith("not compared, "), told
    assert "7 tables" in told
    assert "5 of them differ, or could not be compared" in told

    # Repair goes on, too.
    code, said, told = refusing.run("repair")
    assert code == 1, told
    assert "equal" in said["differs"]
    assert said["unread"].startswith("not compared, "), told

    # As is said of each.
    for table, server in (("unreadable", source), ("unread", target), ("veiled", target)):
        for statement in statements(said[table]):
            server.execute(statement)
    assert "Have a table of that name there" in said["viewed"]
    target.execute("DROP VIEW viewed; ALTER TABLE was_viewed RENAME TO viewed")
    code, said, told = refusing.run("verify")
    assert code == 0, told


@pytest.mark.long
def test_one_that_somebody_has_locked(refusing: Refusing) -> None:
    """The whole of it, and for repair a row."""
    with refusing.target.connect() as another:
        another.execute("BEGIN; LOCK TABLE locked")
        code, said, told = refusing.run("verify", "locked", "equal")
        assert (code, said["equal"][:5]) == (1, "equal"), told
        assert "pg_blocking_pids" in said["locked"]
        another.execute("ROLLBACK")
        assert refusing.run("verify", "locked", "equal")[0] == 0

        refusing.target.execute(
            "UPDATE locked SET v = '' WHERE id = 5; UPDATE differs SET v = '' WHERE id = 5"
        )
        another.execute("BEGIN; SELECT FROM locked WHERE id = 5 FOR UPDATE")
        code, said, told = refusing.run("repair", "locked", "differs")
        assert (code, said["differs"][:5]) == (1, "equal"), told
        assert "not repaired" in told
        assert "pg_blocking_pids" in told
        another.execute("ROLLBACK")
    assert refusing.run("repair", "locked", "differs")[0] == 0
    assert refusing.run("verify")[0] == 0
