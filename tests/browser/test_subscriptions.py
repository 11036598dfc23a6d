"""A subscription on its page, and the form that creates one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from playwright.sync_api import expect

from spillway.lake.parquet_tables import current_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page

    from harness.cluster import Database
    from harness.service import Service

SPARK_PATIENCE_MS = 300_000


def test_a_life(subscription: str, service: Service, page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="filled").first.click()
    expect(page.locator(".state-line .badge")).to_have_text("streaming")
    page.get_by_text("Disable or enable").click()
    page.get_by_role("button", name="Disable").click()
    expect(page.locator(".state-line .badge")).to_have_text("paused")
    page.get_by_text("Disable or enable").click()
    page.get_by_role("button", name="Enable").click()
    expect(page.locator(".state-line .badge")).to_have_text("streaming")
    expect(page.locator("#live")).to_have_text("live")
    page.locator("details.danger summary", has_text="Drop").click()
    page.get_by_label("Type filled to drop it").fill("something else")
    page.get_by_role("button", name="Drop subscription").click()
    expect(page.get_by_role("alert")).to_contain_text("The name does not match")
    page.get_by_label("Type filled to drop it").fill("filled")
    page.get_by_role("button", name="Drop subscription").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert service.call("GET", "/subscriptions")["subscriptions"] == []


def test_a_failure_says_why_and_what_to_do(source: str, service: Service, page: Page) -> None:
    target = {"kind": "fake", "mode": "fail"}
    service.call(
        "POST",
        "/subscriptions",
        json={"name": "broken", "source": source, "database": "shop", "target": target},
    )
    page.goto("/")
    problem = page.locator(".finding.bad")
    expect(problem).to_contain_text("Subscription broken has failed")
    problem.get_by_role("link").click()
    expect(page.locator(".finding.bad")).to_be_visible()
    page.get_by_text("Disable or enable").click()
    page.get_by_role("button", name="Disable").click()
    expect(page.locator(".state-line .badge")).to_have_text("paused")
    expect(page.locator(".finding")).to_have_count(0)


def test_from_a_form_to_a_lake_table(
    slot: str,
    shop: Database,
    service: Service,
    page: Page,
    tmp_path: Path,
    picture: Callable[..., None],
) -> None:
    shop.execute("DROP PUBLICATION IF EXISTS for_the_lake")
    shop.execute("DELETE FROM customers; INSERT INTO customers VALUES (1, 'before', 'Bern')")
    shop.execute("CREATE PUBLICATION for_the_lake FOR TABLE orders")
    service.wait_decoded(slot, shop)
    page.goto("/")
    page.get_by_role("link", name="Create subscription").click()
    page.get_by_label("Name", exact=True).fill("to_the_lake")
    page.get_by_label("Where the lake is").fill("/srv/lake/shop")
    page.get_by_role("radio", name="These tables").check()
    picture(page, "create-subscription", full_page=True)
    page.get_by_label("Where the lake is").fill("no/absolute/path")
    page.get_by_role("button", name="Create subscription").click()
    expect(page.get_by_role("alert")).to_contain_text("No table is ticked")
    # What the mirrored catalog knows, and what would stand in the way.
    expect(page.locator("label", has_text="public.visits").locator(".warn-text")).to_be_visible()
    page.get_by_label("public.customers").check()
    page.get_by_label("public.orders").check()
    page.get_by_role("button", name="Create subscription").click()
    expect(page.get_by_role("alert")).to_contain_text("no/absolute/path")
    page.get_by_label("Where the lake is").fill(str(tmp_path / "lake"))
    page.get_by_label("Format").select_option("parquet")
    page.get_by_role("button", name="Create subscription").click()
    expect(page.get_by_text("The subscription is created")).to_be_visible()
    made = service.call("GET", "/subscriptions/to_the_lake")
    assert made["tables"] == ["public.customers", "public.orders"]
    assert made["copy_data"] is True
    # The real job: Spark takes its time to start. The page tells when it follows, and that the tables are copied.
    state, tables = (
        page.locator(".state-line .badge"),
        page.locator("[data-live='tables'] tbody tr"),
    )
    expect(state).to_have_text("streaming", timeout=SPARK_PATIENCE_MS)
    expect(tables.filter(has_text="public.orders")).to_contain_text("ready")
    shop.execute("INSERT INTO customers VALUES (7, 'after', 'Basel')")
    expect(tables.filter(has_text="public.customers").locator("td").nth(1)).to_have_text(
        "1", timeout=SPARK_PATIENCE_MS
    )
    picture(page, "subscription")
    page.get_by_text("Disable or enable").click()
    page.get_by_role("button", name="Disable").click()
    expect(page.locator(".state-line .badge")).to_have_text("paused")
    # A lake table, by the pages alone.
    there = pq.read_table(
        current_path(tmp_path / "lake", "public.customers"), columns=["id", "name"]
    )
    assert sorted(zip(*(column.to_pylist() for column in there.columns), strict=True)) == [
        (1, "before"),
        (7, "after"),
    ]
    shop.execute("DROP PUBLICATION for_the_lake")
