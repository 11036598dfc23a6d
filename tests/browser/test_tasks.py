"""What people come with: each is done from the overview, in at most four clicks, or by keyboard
alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from harness.cluster import Database
    from harness.service import Service

    from .hands import Hand


def test_see_what_a_ddl_did(
    slot: str,
    subscription: str,
    service: Service,
    shop: Database,
    page: Page,
    picture: Callable[..., None],
    hand: Hand,
) -> None:
    shop.execute("ALTER TABLE customers ADD COLUMN vat_id text, DROP COLUMN city")
    try:
        service.wait_decoded(slot, shop)
        hand.begin(page)
        hand.press(page.get_by_role("navigation", name="Main").get_by_role("link", name="Schema"))
        change = page.locator(".change-of-schema").first
        # It is noted at the next look.
        while not change.filter(has_text="vat_id").count():
            page.wait_for_timeout(500)
            page.reload()
        expect(change.get_by_role("heading")).to_contain_text("public.customers altered in main")
        expect(change).to_contain_text("Column vat_id text was added. Rows from before have null")
        expect(change).to_contain_text("Column city was dropped, with its values.")
        made_of_it = change.get_by_label("What subscriptions made of it")
        expect(made_of_it).to_contain_text(re.compile("(waiting|followed) *filled"))
        picture(page, "schema")
        # From there to what it waits for, and to the transaction's rows.
        hand.press(made_of_it.get_by_role("link", name=subscription))
        expect(page.get_by_role("heading", level=1)).to_have_text(subscription)
        mine = page.get_by_role("region", name="What changed in the schema")
        expect(mine).to_contain_text("Column vat_id text was added.")
        expect(mine).to_be_in_viewport()
        hand.end()
    finally:
        shop.execute("ALTER TABLE customers DROP COLUMN vat_id, ADD COLUMN city text")


def test_find_why_a_lake_is_stale(
    source: str, service: Service, shop: Database, page: Page, hand: Hand
) -> None:
    service.call(
        "POST",
        "/subscriptions",
        json={
            "name": "stale",
            "source": source,
            "database": "shop",
            "target": {"kind": "fake", "mode": "fail"},
        },
    )
    hand.begin(page)
    hand.press(page.get_by_role("link", name=re.compile("stale.*(failed|ended)")).first)
    expect(page.get_by_role("heading", level=1)).to_have_text("stale")
    problem = page.locator(".finding.bad").first
    expect(problem).to_contain_text("no space")
    expect(page.get_by_role("radio", name="The last 24 hours")).to_have_count(1)
    # What it printed is behind that.
    hand.press(page.get_by_role("link", name="Its log"))
    expect(page.get_by_role("region", name="The end of the log")).to_be_in_viewport()
    expect(page.get_by_role("region", name="The end of the log")).to_contain_text("mode fail")
    hand.end()
