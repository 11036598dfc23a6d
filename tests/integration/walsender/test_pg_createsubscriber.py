"""``pg_createsubscriber`` of 18 makes a subscriber of a standby.

Through the port it can't: the standby streams physical WAL from the address that the tool is given.
What docs/reference/replication-protocol.md says instead is done here: with the primary's address,
and then the subscription moves.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.cluster import Cluster
from harness.pg_port import PASSWORD, dsn_of
from harness.postgresql_subscription import wait_until
from harness.servers import client
from harness.service import Service, service_in_process
from spillway.demo.private_postgres import PrivatePostgres, as_servers_user, free_port
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database

_ROWS = "SELECT count(*), sum(id) FROM orders"


class _Standby(PrivatePostgres):
    """A standby of *primary*, with the programs that pg_createsubscriber runs."""

    def __init__(self, primary: Cluster) -> None:
        super().__init__(client("postgres").parent, settings=primary.settings)
        self._primary = primary

    def initialise(self) -> None:
        self.make_own_directory()
        self.run(
            "pg_basebackup", "-D", str(self.data_directory), "-R", "-c", "fast",
            "-d", self._primary.dsn(),
        ).check_returncode()  # fmt: skip

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs as the servers' user."""
        return subprocess.run(
            as_servers_user([str(self.bin_directory / program), *arguments]),
            check=False,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def become_subscriber(self, publisher: str, name: str) -> subprocess.CompletedProcess[str]:
        """Run pg_createsubscriber on the stopped server, for one database."""
        self.stop()
        return self.run(
            "pg_createsubscriber", "-D", str(self.data_directory), "-P", publisher, "-d", name,
            "-p", str(free_port()), "-s", str(self.directory), "-U", "postgres", "-t", "5",
            "--subscription", "moving", "--replication-slot", "made",
        )  # fmt: skip


@pytest.fixture(scope="module")
def primary() -> Iterator[Cluster]:
    with Cluster(18) as cluster:
        yield cluster


@pytest.fixture
def shop(primary: Cluster) -> Iterator[Database]:
    shop = primary.create_database("shop")
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    shop.execute("INSERT INTO orders SELECT generate_series(1, 1000)")
    yield shop
    primary.drop_database("shop")


def _with_user(service: Service, shop: Database) -> str:
    """Make shop's source, and a user; return where a subscriber connects."""
    service.create_source(shop.cluster.dsn(), "main")
    body = {"name": "alice", "password": PASSWORD, "databases": ["*"]}
    service.call("POST", "/users", json={**body, "manage_slots": True, "run_sql": True})
    return dsn_of(service, "alice", "main/shop")


@pytest.mark.long
def test_through_the_port(shop: Database, tmp_path: Path) -> None:
    standby = _Standby(shop.cluster)
    with service_in_process(tmp_path / "data") as service, standby:
        port = psycopg.conninfo.make_conninfo(_with_user(service, shop), dbname="shop")
        done = standby.become_subscriber(port, "shop")
        assert done.returncode == 1, done.stdout
        assert "recovery timed out" in done.stderr
        assert "START_REPLICATION ... PHYSICAL is not supported by this server" in done.stdout
        # It took back what it made.
        assert service.call("GET", "/slots")["slots"] == []
        assert shop.query("SELECT pubname FROM pg_publication") == []


@pytest.mark.long
def test_made_at_the_primary_then_moved(shop: Database, tmp_path: Path) -> None:
    standby = _Standby(shop.cluster)
    with service_in_process(tmp_path / "data") as service, standby:
        port = _with_user(service, shop)
        done = standby.become_subscriber(shop.dsn, "shop")
        assert done.returncode == 0, done.stderr
        standby.start()
        slot = service.create_slot("moved", "shop", "pgoutput", source="main")
        position = Lsn.parse(slot["confirmed_flush_lsn"])
        shop.execute("INSERT INTO orders SELECT generate_series(1001, 2000)")
        with psycopg.connect(standby.dsn("shop"), autocommit=True) as subscriber:
            past = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'made'"
            wait_until("it is past", lambda: Lsn.parse(str(shop.value(past))) >= position)
            for what in ("DISABLE", f"CONNECTION '{port}'", "SET (slot_name = moved)", "ENABLE"):
                quoted = what.replace(port, port.replace("'", "''"))
                subscriber.execute(f"ALTER SUBSCRIPTION moving {quoted}".encode())
            shop.execute("SELECT pg_drop_replication_slot('made')")
            shop.execute("INSERT INTO orders SELECT generate_series(2001, 3000)")
            expected = shop.query(_ROWS)
            wait_until(
                "the rows are there", lambda: subscriber.execute(_ROWS).fetchall() == expected
            )
            subscriber.execute("DROP SUBSCRIPTION moving")
        assert service.call("GET", "/slots")["slots"] == []
