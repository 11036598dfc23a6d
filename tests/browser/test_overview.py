"""The overview and a source's page, well and when something is wrong."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from playwright.sync_api import Page

    from harness.cluster import Cluster, Database
    from harness.service import Service


def test_a_failure_is_shown_and_goes_when_it_is_mended(
    slot: str, cluster: Cluster, page: Page, picture: Callable[..., None]
) -> None:
    page.goto("/")
    expect(page.get_by_text("Everything is as it should be.")).to_be_visible()
    cluster.stop()
    try:
        # Nobody reloads: the page is live.
        problem = page.locator(".finding.bad")
        expect(problem).to_contain_text("Source main receives no WAL")
        expect(problem.locator(".remedy, pre")).not_to_be_empty()
        picture(page, "problem")
    finally:
        cluster.start()
    expect(page.get_by_text("Everything is as it should be.")).to_be_visible()
    expect(page.locator(".flow .badge", has_text="streaming")).to_be_visible()


def test_at_work(
    slot: str,
    service: Service,
    shop: Database,
    page: Page,
    picture: Callable[..., None],
    request: pytest.FixtureRequest,
) -> None:
    service.create_slot("lake", "shop", "arrow")
    service.create_slot("search", "shop", "wal2json", options={"format-version": "2"})
    page.goto("/")
    row = page.locator("tr", has=page.get_by_role("link", name="lake"))
    # With pictures to be taken there is something to see in them.
    rounds = 110 if request.config.getoption("--screenshots") else 2
    shop.execute("TRUNCATE orders, customers")
    shop.execute(
        "INSERT INTO customers SELECT g, 'customer ' || g, 'Bern' FROM generate_series(1, 50) g"
    )
    for number in range(rounds):
        rows = 40 + 30 * (number % 17 > 11) + 7 * (number % 5)
        shop.execute(
            "INSERT INTO orders (customer_id, total, status)"
            " SELECT g %% 50 + 1, round((random() * 200)::numeric, 2), 'new' FROM "
            "generate_series(1, %s) g",
            [rows],
        )
        shop.execute("UPDATE orders SET status = 'paid' WHERE id %% 10 = %s", [number % 10])
        shop.execute("DELETE FROM orders WHERE id %% 40 = %s AND status = 'paid'", [number % 40])
        if rounds > 2:
            time.sleep(0.5)
            service.get("search")
            if number % 9 == 8:
                service.get("lake")
    service.wait_decoded("lake", shop)
    expect(row).to_contain_text("kB" if rounds == 2 else "B")
    expect(page.locator("svg.spark polyline")).not_to_have_count(0)
    tiles = page.locator(".tiles > div")
    # Asked of the primary itself: nothing is held back there.
    expect(tiles.filter(has_text="Xids pinned on primaries").locator("dd").first).to_have_text("0")
    expect(tiles.filter(has_text="WAL pinned on primaries").locator("dd").first).to_contain_text(
        "B"
    )
    page.set_viewport_size({"width": 1440, "height": 900})
    shown = {"x": 0, "y": 0, "width": 1440, "height": 340}
    picture(page, "overview", clip=shown)
    page.emulate_media(color_scheme="dark")
    picture(page, "overview-dark", clip=shown)
    page.emulate_media(color_scheme="light")
    page.goto("/ui/slots?sort=-lag")
    expect(page.locator("#list tbody tr")).to_have_count(3)
    page.get_by_label("Tick search").check()
    picture(page, "slots", clip={"x": 0, "y": 0, "width": 1440, "height": 420})

    page.goto("/ui/slots/lake")
    page.get_by_role("button", name="Peek").click()
    expect(page.locator("#changes tbody tr").first).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    picture(page, "slot")
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("scrollTo(0, 0)")
    picture(page, "slot-phone")
    page.set_viewport_size({"width": 1280, "height": 860})

    page.goto("/ui/sources/main")
    expect(page.locator("canvas").first).to_be_visible()
    expect(page.get_by_text("consistent")).to_be_visible()
    expect(page.get_by_text("catalog_xmin held back")).to_be_visible()
    visits = page.locator("tr", has_text="public.visits")
    expect(visits.locator(".warn-text")).not_to_be_empty()
    picture(page, "source")


def test_a_source_with_slots_is_not_dropped(slot: str, page: Page, service: Service) -> None:
    page.goto("/ui/sources/main")
    page.get_by_text("Drop this source").click()
    page.get_by_label("Type main to drop it").fill("main")
    page.get_by_role("button", name="Drop source").click()
    expect(page.get_by_role("alert")).to_contain_text("still has slots: audit")
    service.drop_slot(slot)
    page.get_by_role("button", name="Drop source").click()
    expect(page.get_by_role("heading", name="Nothing is decoded yet")).to_be_visible()
    assert service.call("GET", "/sources")["sources"] == []
