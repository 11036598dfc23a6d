"""What people come for, from the overview in at most four clicks each, or by keyboard alone."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from harness.cluster import Cluster, Database
    from harness.service import Service

    from .conftest import Visit
    from .hands import Hand

KOLKATA = timedelta(hours=5, minutes=30)


def test_add_a_source_that_lacks_a_privilege(
    nothing: None, cluster: Cluster, service: Service, page: Page, hand: Hand
) -> None:
    cluster.execute("DROP ROLE IF EXISTS lacking; CREATE ROLE lacking LOGIN")
    hand.begin(page)
    hand.press(page.get_by_role("link", name="Add a source"))
    # Whoever is quicker than a page's scripts sends forms as they are without them.
    page.wait_for_load_state()
    hand.write(page.get_by_label("Name", exact=True), "stock")
    hand.write(page.get_by_label("Host"), "127.0.0.1")
    hand.write(page.get_by_label("Port"), str(cluster.port))
    hand.write(page.get_by_label("Database"), "postgres")
    hand.write(page.get_by_label("Role"), "lacking")
    hand.press(page.get_by_role("button", name="Check"))
    expect(page.get_by_text("lacks the REPLICATION attribute")).to_be_visible()
    remedy = page.locator("#check pre code", has_text=re.compile("^ALTER ROLE"))
    cluster.execute(remedy.inner_text())
    hand.press(page.get_by_role("button", name="Check"))
    hand.press(page.get_by_role("button", name="Add source"))
    expect(page.get_by_text("The source is added")).to_be_visible()
    hand.end()
    assert "stock" in {one["name"] for one in service.call("GET", "/sources")["sources"]}
    service.call("DELETE", "/sources/stock")


def test_who_changed_row_42(
    slot: str, shop: Database, service: Service, visit: Callable[..., Visit], hand: Hand
) -> None:
    # The reader is elsewhere than the server.
    page = visit(timezone_id="Asia/Kolkata").page
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
    hand.begin(page)
    hand.press(page.get_by_role("link", name="Changes"))
    page.wait_for_load_state()
    hand.write(page.get_by_label("Database"), "shop")
    hand.write(page.get_by_label("Table"), "orders")
    hand.write(page.get_by_label("Key"), "id = 42")
    hand.write(page.get_by_label("Since"), f"{began + KOLKATA:%Y-%m-%dT%H:%M:%S}")
    hand.press(page.get_by_role("button", name="Find"))
    change = page.locator("article.change")
    expect(change).to_have_count(1)
    expect(change.locator("tr.is-changed")).to_contain_text("lost")
    expect(change).to_contain_text(f"xid {int(xid) & 0xFFFFFFFF}")
    time_of_it = change.locator("time").first
    expect(time_of_it).to_have_attribute("title", re.compile(" UTC$"))
    at = datetime.fromisoformat(time_of_it.get_attribute("datetime") or "")
    expect(time_of_it).to_have_text(f"{at + KOLKATA:%Y-%m-%d %H:%M:%S}")
    # The address has what was asked, in UTC, and nothing else; the form as it was typed.
    assert f"since={began:%Y-%m-%dT%H%%3A%M%%3A%S}Z" in page.url
    assert "until" not in page.url
    expect(page.get_by_label("Since")).to_have_value(f"{began + KOLKATA:%Y-%m-%dT%H:%M:%S}")
    hand.end()


def test_rewind_a_consumer_to_before_a_bad_deploy(
    slot: str, shop: Database, service: Service, visit: Callable[..., Visit], hand: Hand
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
    there = deployed + KOLKATA
    hand.begin(page)
    hand.press(page.get_by_role("link", name=slot))
    page.wait_for_load_state()
    hand.press(page.locator("#rewind summary"))
    hand.write(page.get_by_label("To before what was committed at"), f"{there:%Y-%m-%dT%H:%M:%S}")
    hand.press(page.get_by_role("button", name="Find the position"))
    found = page.locator(".found-position")
    expect(found).to_contain_text("public.visits")
    expect(found).to_contain_text("are delivered again")
    hand.press(found.get_by_role("button", name="Rewind to before it"))
    expect(page.get_by_text("The slot was rewound")).to_be_visible()
    hand.end()
    page.get_by_role("button", name="Peek").click()
    expect(page.locator("#changes tbody tr")).to_have_count(1)
    expect(page.locator("#changes tbody tr")).to_contain_text("broken by the deploy")
    position = page.locator("[data-live=position]")
    expect(position).to_contain_text(re.compile("[1-9][0-9.]* k?B to be sent"))
