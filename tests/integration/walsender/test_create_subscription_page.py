"""docs/how-to/create-subscription.md, followed: its commands and statements, on two servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.page_shell import PageShell
from harness.postgresql_subscription import wait_until
from harness.service import service_in_process
from harness.tiers import on_every_major
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from harness.cluster import Database

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "create-subscription.md"


@on_every_major
def test_the_page_is_followed(pg: Database, pg15: Database, pg18: Database, tmp_path: Path) -> None:
    # Not on the same server: CREATE SUBSCRIPTION to itself waits for its own transaction.
    subscriber = pg18 if pg.cluster.major == 15 else pg15
    with service_in_process(tmp_path / "data") as service:
        shell = PageShell(tmp_path, service.http_port)
        # The page's source and database are both called shop, and here both as the database.
        service.create_source(pg.cluster.dsn(), pg.name)
        page = re.sub(r"\bshop\b", pg.name, PAGE.read_text())
        serve, *blocks = re.findall(r"```(?:sh|sql)\n(.*?)```", page, re.DOTALL)
        assert "--pg-port 55432" in serve
        user, on_source, on_subscriber, states, show, slot, past, move, drop_old, end = (
            block.replace("55432", str(service.pg_port)) for block in blocks
        )
        shell(user)
        pg.execute(on_source)
        run(subscriber, on_subscriber)
        wait_until("the table is ready", lambda: subscriber.query(states) == [("orders", "r")])
        assert arrives(pg, subscriber, "orders", 2) == [(1, "tea"), (2, "more")]
        shown = shell(show)
        assert "orders" in shown
        assert "127.0.0.1" in shown

        begin_old(pg, subscriber)
        shell(slot)
        position = Lsn.parse(service.slot("moved")["confirmed_flush_lsn"])
        arrives(pg, subscriber, "old_orders", 1)
        wait_until("it is past", lambda: Lsn.parse(str(pg.value(past))) >= position)
        run(subscriber, move)
        assert arrives(pg, subscriber, "old_orders", 2) == [(1, "more"), (2, "more")]
        assert {one["slot_name"] for one in service.call("GET", "/slots")["slots"]} == {
            "orders",
            "moved",
        }
        pg.execute(drop_old)
        run(subscriber, end)
        assert service.call("GET", "/slots")["slots"] == []


def run(database: Database, statements: str) -> None:
    """Run them one by one: CREATE SUBSCRIPTION must not be in a transaction block."""
    for statement in statements.strip().split(";\n"):
        database.execute(statement)


def begin_old(theirs: Database, ours: Database) -> None:
    """Have a subscription that connects to the source itself."""
    for database in (theirs, ours):
        database.execute("CREATE TABLE old_orders (id int PRIMARY KEY, what text)")
    theirs.execute("CREATE PUBLICATION old FOR TABLE old_orders")
    ours.execute(f"CREATE SUBSCRIPTION old CONNECTION '{theirs.dsn}' PUBLICATION old")


def arrives(theirs: Database, ours: Database, table: str, key: int) -> list[tuple[object, ...]]:
    """Write a row, wait until it is there, and give what else is."""
    theirs.execute(f"INSERT INTO {table} VALUES ({key}, 'more')")
    wait_until("the row arrives", lambda: bool(ours.query(f"SELECT FROM {table} WHERE id = {key}")))
    return ours.query(f"SELECT * FROM {table} ORDER BY id")
