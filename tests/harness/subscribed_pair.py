"""A source, a target, and a subscription of ours between them, on one server."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.postgresql_subscription import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Cluster, Database
    from harness.service import Service

_DEFINITIONS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.attgenerated::text, pg_get_expr(d.adbin, d.adrelid), co.collname,
       pg_get_expr(c.relpartbound, c.oid)
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_collation co ON co.oid = a.attcollation
 WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0
   AND NOT a.attisdropped AND c.relname <> 'unwanted'
 ORDER BY 1, 2
"""


class SubscribedPair:
    """A source, a target, and a subscription between them."""

    def __init__(self, source: Database, target: Database, service: Service, name: str) -> None:
        self.source, self.target, self.service, self.name = source, target, service, name
        self._marker = 0

    def both(self, sql: str) -> None:
        self.source.execute(sql)
        self.target.execute(sql)

    def create(
        self,
        published: str = "ALL TABLES",
        tables: tuple[str, ...] = (),
        *,
        two_phase: bool = False,
        copy_data: bool = True,
        **wished: Any,
    ) -> None:
        """Subscribe to what is *published*, or to *tables* by name."""
        self.both("CREATE TABLE marker (n int PRIMARY KEY)")
        chosen: dict[str, Any] = {"tables": [*tables, "public.marker"]}
        if not tables:
            self.source.execute(f"CREATE PUBLICATION p FOR {published}")
            chosen = {"publications": ["p"]}
        target = {"kind": "postgres", "dsn": self.target.dsn, **wished}
        body = {
            "name": self.name, "source": self.name, "database": self.source.name,
            "target": target, "two_phase": two_phase, "copy_data": copy_data, **chosen,
        }  # fmt: skip
        self.service.call("POST", "/subscriptions", json=body)
        wait_until("it streams", lambda: self.view()["state"] == "streaming", self.told)

    def view(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.service.call("GET", f"/subscriptions/{self.name}")
        return answer

    def told(self) -> str:
        lines = self.service.call("GET", f"/subscriptions/{self.name}/log")["lines"]
        return "\n".join([str(self.view()), *lines[-40:]])

    def catch_up(self) -> None:
        self._marker += 1
        self.source.execute(f"INSERT INTO marker VALUES ({self._marker})")
        wait_until(
            "it caught up",
            lambda: self.target.value(f"SELECT count(*) FROM marker WHERE n = {self._marker}"),
            self.told,
        )

    def transaction(self, *sql: str) -> None:
        with self.source.connect() as connection, connection.transaction():
            for statement in sql:
                connection.execute(statement)

    def check_equal(self, *tables: str) -> None:
        assert self.target.query(_DEFINITIONS) == self.source.query(_DEFINITIONS)
        for table in tables:
            rows = f"SELECT to_jsonb(t)::text FROM {table} t ORDER BY 1"
            assert self.target.query(rows) == self.source.query(rows), table

    def skip(self, lsn: str, view: dict[str, Any], **wished: Any) -> None:
        """Skip to *lsn*, with the target of *view* as it is *wished* from now on."""
        if wished:
            target = {**view["target"], **wished}
            self.service.call("PATCH", f"/subscriptions/{self.name}", json={"target": target})
        self.service.call("POST", f"/subscriptions/{self.name}/skip", json={"lsn": lsn})
        self.service.call("POST", f"/subscriptions/{self.name}/enable")

    def paused(self) -> dict[str, Any]:
        wait_until("it pauses", lambda: not self.view()["enabled"], self.told)
        return self.view()


@contextmanager
def subscribed_pair(cluster: Cluster, service: Service) -> Iterator[SubscribedPair]:
    name = f"ddl_{secrets.token_hex(3)}"
    source = cluster.create_database(f"{name}_from")
    target = cluster.create_database(f"{name}_to")
    service.create_source(source.dsn, name=name)
    there = SubscribedPair(source, target, service, name)
    yield there
    service.call("DELETE", f"/subscriptions/{name}")
    service.call("DELETE", f"/sources/{name}")
    for database in (source, target):
        cluster.drop_database(database.name)
