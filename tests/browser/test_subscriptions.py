"""A subscription on its page, well and when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from harness.service import Service


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
