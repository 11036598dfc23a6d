"""What people come for, from the overview in at most four clicks each."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from harness.cluster import Cluster, Database
    from harness.service import Service

    from .conftest import Visit

CLICKS = 4


@contextmanager
def few_clicks(page: Page) -> Iterator[None]:
    """From the overview on, count what the mouse does, across pages; what is typed is free."""
    page.add_init_script(
        "document.addEventListener('click', (event) => { if (event.isTrusted && event.detail) "
        "sessionStorage.clicks = Number(sessionStorage.clicks || 0) + 1; }, true)"
    )
    page.goto("/")
    yield
    clicks = int(page.evaluate("sessionStorage.clicks || 0"))
    assert 0 < clicks <= CLICKS, f"it took {clicks} clicks"


def test_add_a_source_that_lacks_a_privilege(
    nothing: None, cluster: Cluster, service: Service, page: Page
) -> None:
    cluster.execute("DROP ROLE IF EXISTS lacking; CREATE ROLE lacking LOGIN")
    with few_clicks(page):
        page.get_by_role("link", name="Add a source").click()
        page.get_by_label("Name", exact=True).fill("stock")
        page.get_by_label("Host").fill("127.0.0.1")
        page.get_by_label("Port").fill(str(cluster.port))
        page.get_by_label("Database").fill("postgres")
        page.get_by_label("Role").fill("lacking")
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_text("lacks the REPLICATION attribute")).to_be_visible()
        remedy = page.locator("#check pre code", has_text=re.compile("^ALTER ROLE"))
        cluster.execute(remedy.inner_text())
        page.get_by_role("button", name="Check").click()
        page.get_by_role("button", name="Add source").click()
        expect(page.get_by_text("The source is added")).to_be_visible()
    assert "stock" in {one["name"] for one in service.call("GET", "/sources")["sources"]}
    service.call("DELETE", "/sources/stock")


def test_who_changed_row_42(slot: str, shop: Database, service: Service, page: Page) -> None:
    shop.execute("DELETE FROM orders")
    shop.execute(
        "INSERT INTO orders (id, customer_id, total, status) OVERRIDING SYSTEM VALUE "
        "VALUES (41, 1, 10, 'new'), (42, 1, 20, 'new')"
    )
    time.sleep(1.1)
    began = datetime.now(UTC)
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("UPDATE orders SET status = 'lost' WHERE id = 42")
        (xid,) = connection.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",)
        connection.execute("COMMIT")
    shop.execute("UPDATE orders SET status = 'paid' WHERE id = 41")
    service.wait_decoded(slot, shop)
    with few_clicks(page):
        page.get_by_role("link", name="Changes").click()
        page.get_by_label("Database").fill("shop")
        page.get_by_label("Table").fill("orders")
        page.get_by_label("Key").fill("id = 42")
        page.get_by_label("Since (UTC)").fill(f"{began:%Y-%m-%d %H:%M:%S}")
        page.get_by_role("button", name="Find").click()
        change = page.locator("article.change")
        expect(change).to_have_count(1)
        expect(change.locator("tr.is-changed")).to_contain_text("lost")
        expect(change).to_contain_text(f"xid {int(xid) & 0xFFFFFFFF}")
        expect(change.locator("time").first).to_be_visible()


def test_rewind_a_consumer_to_before_a_bad_deploy(
    slot: str, shop: Database, service: Service, visit: Callable[..., Visit]
) -> None:
    # The reader is elsewhere than the server.
    page = visit(timezone_id="Asia/Kolkata").page
    shop.execute("INSERT INTO visits VALUES (now(), 'well')")
    # Commit times are those of whole seconds on the page.
    time.sleep(1.1)
    deployed = datetime.now(UTC)
    shop.execute("INSERT INTO visits VALUES (now(), 'broken by the deploy')")
    end = service.wait_decoded(slot, shop)
    service.call("POST", f"/slots/{slot}/advance", json={"upto_lsn": end})
    there = deployed + timedelta(hours=5, minutes=30)
    with few_clicks(page):
        page.get_by_role("link", name=slot).click()
        page.locator("#rewind summary").click()
        page.get_by_label("To before what was committed at").fill(f"{there:%Y-%m-%dT%H:%M:%S}")
        page.get_by_role("button", name="Find the position").click()
        found = page.locator(".found-position")
        expect(found).to_contain_text("public.visits")
        expect(found).to_contain_text("are delivered again")
        found.get_by_role("button", name="Rewind to before it").click()
        expect(page.get_by_text("The slot was rewound")).to_be_visible()
    page.get_by_role("button", name="Peek").click()
    expect(page.locator("#changes tbody tr")).to_have_count(1)
    expect(page.locator("#changes tbody tr")).to_contain_text("broken by the deploy")
    position = page.locator("[data-live=position]")
    expect(position).to_contain_text(re.compile("[1-9][0-9.]* k?B to be sent"))
