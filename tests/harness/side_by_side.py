"""A source with two targets: one that PostgreSQL's own subscription fills, and one that ours does.

What is said to the source is applied by both; what they have then is compared. PostgreSQL is the
oracle: a scenario says what is done, and, where that is the point, what must come out.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg

from harness.postgresql_subscription import wait_until
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.cluster import Cluster, Database
    from harness.service import Service

#: What both targets and the source need; workers come back soon.
SETTINGS: Final[dict[str, Any]] = {
    "max_logical_replication_workers": 20,
    "max_sync_workers_per_subscription": 4,
    "max_worker_processes": 40,
    "max_replication_slots": 30,
    "max_wal_senders": 30,
    "max_prepared_transactions": 30,
    "wal_retrieve_retry_interval": "100ms",
    "logical_decoding_work_mem": "64kB",
    "track_commit_timestamp": True,
    # "log" leaves errors out.
    "log_min_messages": "warning",
}
_MAJOR_OF_STREAMING: Final = 14
_MAJOR_OF_PARALLEL: Final = 16


class SideBySide:
    """One cluster with the three databases, and the service that follows its first.

    Args:
        cluster: with :data:`SETTINGS`.
        service: that knows the source as *source_name*.
    """

    def __init__(
        self, cluster: Cluster, service: Service, source: Database, source_name: str
    ) -> None:
        self.cluster = cluster
        self.service = service
        self.source = source
        self.source_name = source_name
        self.stock = cluster.create_database(f"{source.name}_stock")
        self.ours = cluster.create_database(f"{source.name}_ours")
        self.names: list[str] = []
        self._markers = 0
        self.everywhere("CREATE TABLE marker (n int PRIMARY KEY)")

    @property
    def major(self) -> int:
        return self.cluster.major

    @property
    def targets(self) -> tuple[Database, Database]:
        """PostgreSQL's, ours."""
        return self.stock, self.ours

    def everywhere(self, sql: str) -> None:
        """Run SQL on all three."""
        for database in (self.source, *self.targets):
            database.execute(sql)

    def both(self, sql: str) -> None:
        """Run SQL on both targets."""
        for database in self.targets:
            database.execute(sql)

    def subscribe(
        self,
        name: str,
        *publications: str,
        stock: Sequence[str] = (),
        stock_connects: str = "",
        target: dict[str, Any] | None = None,
        **declared: Any,
    ) -> None:
        """Subscribe on both targets.

        Args:
            name: of both subscriptions.
            publications: of the source.
            stock: options of CREATE SUBSCRIPTION, ``name = value``.
            stock_connects: more of what it connects with.
            target: fields of our target.
            declared: fields of our subscription; by default ``copy_data`` is off on both sides.
        """
        declared = {"copy_data": False, **declared}
        slot = f"{name}_{self.source.name}"[:60]
        two_phase = bool(declared.get("two_phase"))
        # In one cluster CREATE SUBSCRIPTION would wait for itself.
        arguments = "%s, 'pgoutput', false" + (", true" if two_phase else "")
        self.source.query(f"SELECT pg_create_logical_replication_slot({arguments})", [slot])
        options = [
            f"slot_name = '{slot}'",
            "create_slot = false",
            f"copy_data = {str(declared['copy_data']).lower()}",
            *stock,
        ]
        if two_phase:
            options.append("two_phase = on")
        quoted = ", ".join(f'"{one}"' for one in publications)
        self.stock.execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION $${self.source.dsn} {stock_connects}$$"
            f" PUBLICATION {quoted} WITH ({', '.join(options)})"
        )
        self.service.call(
            "POST",
            "/subscriptions",
            json={
                "name": name,
                "source": self.source_name,
                "database": self.source.name,
                "publications": list(publications),
                "target": {"kind": "postgres", "dsn": self.ours.dsn, **(target or {})},
                **declared,
            },
        )
        self.names.append(name)
        if declared["copy_data"]:
            self._wait_copied(name)

    def _wait_copied(self, name: str) -> None:
        """Wait until both have the tables: each copy is as of a moment of its own, and what is only
        partly published (inserts alone) would differ by what was written between the two.
        """
        wait_until(
            "the stock subscription has copied its tables",
            lambda: (
                self.stock.query("SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'") == []
            ),
            self.told,
        )
        wait_until(
            "ours has copied its tables",
            lambda: self.view(name)["state"] == "streaming",
            self.told,
        )

    def unsubscribe(self, name: str) -> None:
        """Drop both subscriptions."""
        self.names.remove(name)
        with suppress(psycopg.Error):
            self.stock.execute(f"ALTER SUBSCRIPTION {name} DISABLE")
        self.stock.execute(f"DROP SUBSCRIPTION {name}")
        self.service.call("DELETE", f"/subscriptions/{name}")

    @contextmanager
    def subscribed(self, name: str, *publications: str, **more: Any) -> Iterator[None]:
        """Be subscribed while the block runs."""
        self.subscribe(name, *publications, **more)
        try:
            yield
        finally:
            self.unsubscribe(name)

    def view(self, name: str) -> dict[str, Any]:
        """GET /v1/subscriptions/NAME."""
        answer: dict[str, Any] = self.service.call("GET", f"/subscriptions/{name}")
        return answer

    def caught_up(self) -> None:
        """Wait until what is committed by now is on both targets; the marker must be published."""
        self._markers += 1
        mark = [self._markers]
        self.source.execute("INSERT INTO marker VALUES (%s)", mark)
        self.both_have("SELECT FROM marker WHERE n = %s", mark)

    def both_have(self, query: str, params: Sequence[object] | None = None) -> None:
        """Wait until *query* finds a row on both targets."""
        for database in self.targets:
            wait_until(
                f"{database.name} has {query} {params or ''}",
                lambda d=database: bool(d.query(query, params)),  # type: ignore[misc]
                self.told,
            )

    def rows(self, query: str) -> list[str]:
        """Insist that both targets answer *query* alike, in whatever order; return the rows."""
        text = f"SELECT r::text FROM ({query}) r"
        stock, ours = (sorted(row for (row,) in d.query(text)) for d in self.targets)
        assert ours == stock, f"{query}\n{self.told()}"
        return stock

    def same(self, *tables: str) -> list[list[str]]:
        """Wait until all is applied, and insist that *tables* are alike on both targets."""
        self.caught_up()
        return [self.rows(f"SELECT * FROM {table}") for table in tables]

    def as_source(self, *tables: str) -> None:
        """As :meth:`same`, and equal to the source's."""
        for table, rows in zip(tables, self.same(*tables), strict=True):
            there = self.source.query(f"SELECT r::text FROM (SELECT * FROM {table}) r")
            assert rows == sorted(row for (row,) in there), table

    def logged(self, since: int = 0) -> str:
        """What the cluster logged from its log's byte *since* on."""
        return self.cluster.log_file.read_bytes()[since:].decode(errors="replace")

    def log_size(self) -> int:
        return self.cluster.log_file.stat().st_size

    def wait_logged(self, pattern: str, since: int) -> str:
        """Wait until PostgreSQL's worker logged what *pattern* finds."""
        found: list[str] = []

        def is_there() -> bool:
            found[:] = re.findall(pattern, self.logged(since))
            return bool(found)

        wait_until(f"the server logs {pattern}", is_there, lambda: self.logged(since)[-4000:])
        return found[0]

    def wait_error(self, name: str) -> dict[str, Any]:
        """Wait until our subscription has an error; return it."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            error = self.view(name)["error"]
            found[:] = [error] if error else []
            return bool(error)

        wait_until(f"{name} has an error", is_there, self.told)
        return found[0]

    def stock_confirmed(self, name: str) -> Lsn:
        """Up to where PostgreSQL's subscription has confirmed its slot."""
        slot = f"{name}_{self.source.name}"[:60]
        return Lsn.parse(
            str(
                self.source.value(
                    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
                    " WHERE slot_name = %s",
                    [slot],
                )
            )
        )

    def told(self) -> str:
        """What is known of our subscriptions."""
        parts = []
        for name in self.names:
            view = self.view(name)
            log = self.service.call("GET", f"/subscriptions/{name}/log")["lines"]
            parts += [f"{name}: {view['state']} {view['error']}", *log[-40:]]
        return "\n".join([*parts, self.cluster.log_tail(30)])

    def close(self) -> None:
        """Drop what is there."""
        for name in list(self.names):
            self.unsubscribe(name)
        for database in self.targets:
            self.cluster.drop_database(database.name)
