"""Another PostgreSQL, by the pages alone: checked, filled, watched, and a conflict's remedy
followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from harness.browser import check_axe
from harness.page_shell import PageShell
from harness.postgresql_subscription import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from harness.cluster import Cluster, Database
    from harness.service import Service

WIDTHS = (360, 1920)


@pytest.fixture
def copy(cluster: Cluster, service: Service) -> Iterator[Database]:
    """The database that is filled."""
    database = cluster.create_database("copy")
    yield database
    for one in service.call("GET", "/subscriptions")["subscriptions"]:
        service.call("DELETE", f"/subscriptions/{one['name']}")
    cluster.drop_database("copy")


def check_page(page: Page, where: str) -> None:
    """Assert that it is accessible, light and dark, and no wider than the screen."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        check_axe(page, f"{where}, {scheme}")
    page.emulate_media(color_scheme="light")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        needed = page.evaluate("document.documentElement.scrollWidth")
        assert needed <= width, f"{where} needs {needed} px of {width}"
        check_axe(page, f"{where}, {width} px")
    page.set_viewport_size({"width": 1280, "height": 860})


def test_another_postgresql_is_filled_and_watched(
    source: str,
    copy: Database,
    shop: Database,
    service: Service,
    page: Page,
    picture: Callable[..., None],
    tmp_path: Path,
) -> None:
    shop.execute(
        "TRUNCATE customers, orders, visits;"
        "INSERT INTO customers VALUES (1, 'Ada', 'Bern'), (2, 'Bo', 'Oslo')"
    )
    page.goto("/ui/subscriptions/new")
    page.get_by_label("Name", exact=True).fill("moved")
    page.get_by_label("Database", exact=True).fill("shop")
    expect(page.get_by_label("Connection string of the target")).to_be_hidden()
    page.get_by_role("radio", name="Another PostgreSQL").check()
    expect(page.get_by_label("Where the lake is")).to_be_hidden()
    # What is in the way is said before anything is made, with what mends it.
    page.get_by_label("Connection string of the target").fill(copy.dsn)
    page.get_by_role("button", name="Check the target").click()
    expect(page.locator("#target-check")).to_contain_text("create_tables")
    expect(page.locator("#target-check code")).to_have_text("target_table_missing")
    page.get_by_label("Make tables that the target lacks").check()
    page.get_by_role("button", name="Check the target").click()
    expect(page.get_by_role("heading", name="Ready")).to_be_visible()
    assert service.call("GET", "/subscriptions")["subscriptions"] == [], "a check makes nothing"
    assert service.call("GET", "/slots")["slots"] == []
    check_page(page, "the form")
    page.get_by_role("button", name="Create subscription").click()

    expect(page.locator(".state-line .badge")).to_have_text("streaming")
    expect(page.get_by_text("3 of 3 tables are copied")).to_be_visible()
    expect(page.locator("[data-live=tables]")).to_contain_text("follows the stream")
    assert copy.value("SELECT count(*) FROM customers") == 2
    expect(page.locator("[data-live=counts]")).to_contain_text("None was met")

    # A row is not there any more: PostgreSQL passes its update over, and so does the subscription.
    copy.execute("DELETE FROM customers WHERE id = 1")
    shop.execute("UPDATE customers SET city = 'Rome' WHERE id = 1")
    expect(page.locator("[data-live=counts]")).to_contain_text("1 update_missing")
    expect(page.locator("[data-live=facts]")).to_contain_text("Durable there")
    page.get_by_label("Kind").select_option("delete_missing")
    page.get_by_role("button", name="Show conflicts").click()
    expect(page.locator("#conflicts")).to_contain_text("None that is kept fits")
    page.get_by_label("Kind").select_option("update_missing")
    page.get_by_label("Table on the target").fill("public.customers")
    page.get_by_role("button", name="Show conflicts").click()
    expect(page.locator("#conflicts tbody tr")).to_have_count(1)
    check_page(page, "a subscription into PostgreSQL")
    picture(page, "applied", full_page=True)
    page.locator("#conflicts tbody a").click()
    expect(page.get_by_role("heading", name="update_missing")).to_be_visible()
    expect(page.locator(".diff")).to_contain_text("Rome")
    expect(page.get_by_text("Could not find the row to be updated.")).to_be_visible()
    check_page(page, "a conflict")
    picture(page, "conflict")

    # The page's remedy, followed: the next such row is written.
    command = page.locator(".copyable code").inner_text()
    assert "apply_remote" in command
    PageShell(tmp_path, service.http_port)(command)
    shop.execute("UPDATE customers SET city = 'Turin' WHERE id = 1")
    wait_until(
        "the row is there again",
        lambda: copy.query("SELECT name, city FROM customers WHERE id = 1") == [("Ada", "Turin")],
    )
    wait_until(
        "the conflict counts",
        lambda: service.call("GET", "/subscriptions/moved/stats")["confl_update_missing"] == 2,
    )
    # No conflict of that name is a page that says so.
    page.goto("/ui/subscriptions/moved/conflicts/0%2F1%2F1%2Fx")
    expect(page.get_by_text("keeps no conflict")).to_be_visible()

    # Its form keeps the password that it doesn't show, and what is not running has no rate.
    page.goto("/ui/subscriptions/moved")
    page.locator("summary", has_text="Alter").click()
    expect(page.get_by_label("How it is filled")).to_have_value(
        "create_tables = true\n"
        'conflicts = {"tables": {"public.customers": {"update_missing": "apply_remote"}}}'
    )
    page.get_by_label("How it is filled").fill("create_tables = true\ndead_letter = true")
    page.get_by_role("button", name="Alter subscription").click()
    expect(page.get_by_text("It was altered.")).to_be_visible()
    target = service.call("GET", "/subscriptions/moved")["target"]
    assert (target.get("conflicts"), target["dead_letter"]) == (None, True)
    page.get_by_text("Disable or enable").click()
    page.get_by_role("button", name="Disable").click()
    expect(page.locator("[data-live=state]")).to_contain_text("No program runs")
    expect(page.locator("[data-live=figures]")).to_contain_text("not known: no program runs")
