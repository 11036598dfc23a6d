"""Two who write columns of the same rows: a subscription with ``merge`` leaves both, for good, and
says so in its own store and in the table on the target.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from harness.postgresql_subscription import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Cluster, Database
    from harness.serve_process import ServeProcess
    from harness.service import Service

_TABLE = """
CREATE TABLE m (id int PRIMARY KEY, a text, b text, long text);
ALTER TABLE m ALTER long SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE marker (n int PRIMARY KEY)
"""
_ROWS = "INSERT INTO m SELECT n, 'x', 'x', repeat('long', 1000) FROM generate_series(1, 9) n"


class Merging:
    """A source, a target that keeps commits' origins, and the subscription between them."""

    def __init__(self, cluster: Cluster, service: Service) -> None:
        self.service = service
        self.name = f"merging_{secrets.token_hex(3)}"
        self.cluster = cluster
        self.source, self.target = (
            cluster.create_database(f"{self.name}_{which}") for which in ("source", "target")
        )
        for database in (self.source, self.target):
            database.execute(_TABLE)
        self.source.execute("CREATE PUBLICATION p FOR TABLE m, marker")
        service.create_source(self.source.dsn, name=self.name)
        self.markers = 0

    def subscribe(self, **declared: Any) -> None:
        body = {
            "name": self.name, "source": self.name, "database": self.source.name,
            "publications": ["p"],
            "target": {
                "kind": "postgres", "dsn": self.target.dsn,
                "conflicts": {"update_origin_differs": "merge"}, "conflicts_table": True,
            },
        }  # fmt: skip
        self.service.call("POST", "/subscriptions", json={**body, **declared})
        wait_until("it streams", lambda: self.view()["state"] == "streaming", self.told)

    def view(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.service.call("GET", f"/subscriptions/{self.name}")
        return answer

    def told(self) -> str:
        log = self.service.call("GET", f"/subscriptions/{self.name}/log")["lines"]
        return "\n".join([str(self.view()), *log[-30:]])

    def write(self, *statements: str) -> None:
        """Have one transaction of the source applied."""
        self.markers += 1
        with self.source.connect() as session, session.transaction():
            for statement in statements:
                session.execute(statement.encode())
            session.execute("INSERT INTO marker VALUES (%s)", [self.markers])
        self.arrived(self.target, self.markers)

    def arrived(self, database: Database, marker: int) -> None:
        wait_until(
            "it is applied",
            lambda: bool(database.query("SELECT FROM marker WHERE n = %s", [marker])),
            self.told,
        )

    def rows(self) -> list[tuple[Any, ...]]:
        return self.target.query("SELECT id, a, b, length(long) FROM m ORDER BY id")

    def close(self) -> None:
        self.service.call("DELETE", f"/subscriptions/{self.name}")
        self.service.call("DELETE", f"/sources/{self.name}")
        for database in (self.target, self.source):
            self.cluster.drop_database(database.name)


@pytest.fixture
def merging(checklist_cluster: Cluster, apply_service: ServeProcess) -> Iterator[Merging]:
    made = Merging(checklist_cluster, apply_service.service())
    yield made
    made.close()


def test_what_either_wrote_stays(merging: Merging) -> None:
    merging.source.execute(_ROWS)
    # The copy is the source's, too.
    merging.subscribe()
    merging.target.execute("UPDATE m SET b = 'here' WHERE id <= 3")
    merging.write("UPDATE m SET a = 'there' WHERE id IN (1, 2, 4)")
    assert merging.rows()[:4] == [
        (1, "there", "here", 4000), (2, "there", "here", 4000),
        (3, "x", "here", 4000), (4, "there", "x", 4000),
    ]  # fmt: skip
    # The rows are the source's own again, and what was written here is still there.
    merging.write("UPDATE m SET a = 'again' WHERE id = 1", "UPDATE m SET a = id::text")
    merging.write("UPDATE m SET b = 'both' WHERE id = 2", "UPDATE m SET id = 10 WHERE id = 3")
    assert merging.rows() == [
        (1, "1", "here", 4000), (2, "2", "both", 4000), (4, "4", "x", 4000),
        *((n, str(n), "x", 4000) for n in range(5, 10)), (10, "3", "here", 4000),
    ]  # fmt: skip

    stats = merging.view()["stats"]
    wait_until(
        "all are counted",
        lambda: merging.view()["stats"].get("confl_update_origin_differs") == 3,
        lambda: str(stats),
    )
    told = merging.service.call("GET", f"/subscriptions/{merging.name}/conflicts")["conflicts"]
    assert {(one["kind"], one["resolution"]) for one in told} == {
        ("update_origin_differs", "merge")
    }
    kept = merging.target.query(
        "SELECT subscription, kind, resolution, schema_name, table_name, xid::text,"
        " (remote_row->>'id')::int, remote_row->>'a', local_rows->0->'row'->>'b',"
        " local_rows->0->>'committed_at' IS NOT NULL, detail"
        " FROM spillway.conflicts ORDER BY lsn, number"
    )
    assert [row[6:9] for row in kept] == [(1, "there", "here"), (2, "there", "here"),
                                          (3, "3", "here")]  # fmt: skip
    assert {row[:5] for row in kept} == {
        (merging.name, "update_origin_differs", "merge", "public", "m")
    }
    assert {row[9] for row in kept} == {True}
    # One as the other: each has what the service has of it.
    assert sorted(row[10] for row in kept) == sorted(one["detail"] for one in told)

    def alone() -> str:
        return {t["table"]: t["written_alone"] for t in merging.view()["table_states"]}["public.m"]

    wait_until("it says why it takes longer", lambda: "merged" in (alone() or ""), merging.told)


@pytest.mark.long
def test_in_a_transaction_that_is_applied_in_progress(merging: Merging) -> None:
    merging.source.execute(_ROWS)
    merging.subscribe(streaming="parallel")
    merging.target.execute("UPDATE m SET b = 'here' WHERE id = 1")
    merging.write("UPDATE m SET a = 'there' WHERE id = 1")
    merging.write(
        "INSERT INTO m SELECT n, 'x', 'x', repeat('long', 1000) FROM generate_series(11, 999) n",
        "UPDATE m SET a = 'large' WHERE id < 11",
        "DELETE FROM m WHERE id > 10",
    )
    assert merging.rows() == [
        (1, "large", "here", 4000), *((n, "large", "x", 4000) for n in range(2, 10)),
    ]  # fmt: skip
