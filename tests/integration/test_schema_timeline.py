"""What changed in the schema: what DDL did is kept once, in words, with what subscriptions made of
it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from harness.cluster import Cluster
from harness.fake_subscriptions import FakeSubscriptions
from harness.grpc_answers import Answers, check_equal
from harness.service import service_in_process
from spillway.pg.lsn import Lsn
from spillway.plugins import ddl_event
from spillway.store.rows import SchemaChangeRow
from spillway.subscriber.model import Failure, SubscriptionInfo, SubscriptionSpec, TableState
from spillway.watch.ddl_recorder import settled_rows
from spillway.watch.ddl_words import CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.service import Service

VISITS = (
    "public.visits was created, with at timestamp with time zone, page text; it has no primary key."
)
COMMITTED = datetime(2026, 11, 25, 8, tzinfo=UTC)


def changes(service: Service, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.call("GET", "/schema-changes", params=query)[
        "schema_changes"
    ]
    return found


def wait_until(is_so: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_ddl_did_is_kept_once(tmp_path: Path) -> None:
    with Cluster(18, max_prepared_transactions=2) as cluster:
        shop = cluster.create_database("shop")
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric)")
        with service_in_process(tmp_path) as service:
            service.create_source(shop.dsn)
            service.create_slot("s1", "shop")
            with shop.connect() as connection:
                connection.execute("ALTER TABLE orders ADD paid boolean NOT NULL DEFAULT false")
                with connection.transaction():
                    connection.execute("INSERT INTO orders VALUES (1, 2)")
                    connection.execute("ALTER TABLE orders DROP total")
                    connection.execute("SAVEPOINT s")
                    connection.execute("DROP TABLE orders")
                    connection.execute("ROLLBACK TO s")
                    connection.execute("CREATE TABLE visits (at timestamptz, page text)")
                connection.execute("ALTER TABLE visits RENAME TO views")
                # What does not commit, and what changes no table that WAL has rows of.
                with connection.transaction(force_rollback=True):
                    connection.execute("DROP TABLE views")
                connection.execute("CREATE TEMP TABLE t (a int)")
                connection.execute("BEGIN")
                connection.execute("DROP TABLE views")
                connection.execute("PREPARE TRANSACTION 'p'")
                connection.execute("COMMIT PREPARED 'p'")
            wait_until(lambda: any(c["kind"] == "drop_table" for c in changes(service)))
            found = changes(service)
            said = [(one["table"], " ".join(one["words"])) for one in reversed(found)]
            assert said == [
                (
                    "public.orders",
                    "Column paid boolean NOT NULL was added. Rows from before have 'f' in it.",
                ),
                ("public.orders", "Column total was dropped, with its values."),
                (
                    "public.visits",
                    VISITS,
                ),
                ("public.views", "It was renamed from visits to views."),
                ("public.views", "public.views was dropped, with its rows."),
            ]
            assert found[2]["xid"] == found[3]["xid"]
            assert {(one["source"], one["database"]) for one in found} == {("main", "shop")}
            # Under the name that it had, too.
            assert len(changes(service, table="public.visits")) == 2
            assert changes(service, source="other") == []
            page = service.call("GET", "/schema-changes", params={"limit": 2})
            assert [one["id"] for one in page["schema_changes"]] == [one["id"] for one in found[:2]]
            answers = Answers(service.grpc_address)
            check_equal(answers, lambda path: service.call("GET", path))
            answers.close()
            assert page["next_before"] == found[1]["id"]
            shop.execute("CREATE TABLE later (id int PRIMARY KEY)")
        # Killed or ended before it was noted: it is noted when it is decoded again.
        shop.execute("ALTER TABLE later ADD more text")
        with service_in_process(tmp_path) as service:
            wait_until(lambda: bool(changes(service, table="public.later")))
            wait_until(lambda: len(changes(service)) == len(found) + 2)
            again = changes(service)
            assert again[2:] == found
            service.drop_slot("s1")
            service.call("DELETE", "/sources/main")
            assert changes(service) == []


def test_every_change_has_words() -> None:
    """What an event may say is what a sentence is there for."""
    import inspect
    import re

    source = inspect.getsource(ddl_event)
    told = set(re.findall(r'"change": "([a-z_]+)"', source))
    told |= {"set_schema", "rename_table", "set_not_null", "drop_not_null", "set_default"}
    told |= {"drop_default", "identity", "generated"}
    assert told <= CHANGES


ROW = SchemaChangeRow(
    id=1,
    source="main",
    database="shop",
    commit_lsn=Lsn.parse("0/1000"),
    number=0,
    xid=7,
    committed_at=COMMITTED,
    kind="alter_table",
    table_name="public.orders",
    document={"changes": [], "was": "public.purchases"},
)


async def subscription(**values: Any) -> SubscriptionInfo:
    made = await FakeSubscriptions().create(
        SubscriptionSpec("lake", "main", "shop", {"kind": "lake", "format": "delta", "path": "/l"})
    )
    begun = {"created_at": COMMITTED - timedelta(days=1), "confirmed_flush_lsn": Lsn(0x900)}
    return replace(made, **{**begun, **values})


async def test_what_a_subscription_made_of_it() -> None:
    def outcome(row: SchemaChangeRow, one: SubscriptionInfo) -> tuple[SchemaChangeRow, Any]:
        settled = settled_rows([row], [one])
        assert len(settled) == 1
        now = settled[0].outcomes["lake"]
        return settled[0], (now["outcome"], now["detail"], now["was_paused"])

    behind = await subscription()
    waiting, said = outcome(ROW, behind)
    assert said == ("waiting", "", False)
    assert settled_rows([waiting], [behind]) == []
    error = Failure("lake_schema_change", "orders lost a column", "Skip it.")
    paused, said = outcome(waiting, replace(behind, error=error))
    assert said == ("paused", "orders lost a column", False)
    beyond = replace(behind, confirmed_flush_lsn=Lsn(0x1001))
    followed, said = outcome(paused, beyond)
    assert said == ("followed", "", True)
    # It is what happened: what becomes of the table later is another matter.
    aside = (TableState("public.purchases", "quarantined", reason="no key"),)
    assert settled_rows([followed], [replace(beyond, table_states=aside)]) == []
    _, said = outcome(waiting, replace(beyond, table_states=aside))
    assert said == ("set_aside", "no key", False)
    # At the beginning of the commit record it is not behind it.
    assert settled_rows([waiting], [replace(behind, confirmed_flush_lsn=Lsn(0x1000))]) == []


async def test_whom_it_does_not_concern() -> None:
    beyond = await subscription(confirmed_flush_lsn=Lsn(0x2000))
    for other in (
        {"database": "other"},
        {"source": "other"},
        {"created_at": COMMITTED + timedelta(seconds=1)},
        {"tables": ("public.visits",)},
        {"publications": ("p",)},
    ):
        assert settled_rows([ROW], [replace(beyond, **other)]) == []
    named = replace(
        beyond, publications=("p",), table_states=(TableState("public.orders", "ready"),)
    )
    assert len(settled_rows([ROW], [named])) == 1


async def test_it_waits_at_the_first_alone() -> None:
    error = Failure("target_schema_change", "no such column", "Add it.")
    later = replace(ROW, id=2, commit_lsn=Lsn(0x2000))
    settled = settled_rows([later, ROW], [await subscription(error=error)])
    assert {row.id: row.outcomes["lake"]["outcome"] for row in settled} == {
        1: "paused",
        2: "waiting",
    }
