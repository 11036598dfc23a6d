"""Charts and figures: in any locale, of one range, and not bright when they are of the past."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from harness.browser import launched
from harness.service import service_in_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from harness.service import Service

    from .conftest import Visit

PLOTS = ".charts .plot .uplot"


def test_a_locale_that_intl_refuses(slot: str, service: Service, browser: Browser) -> None:
    """Chromium started with LANG=C, as in a container or by cron, says its language is
    en-US@posix.
    """
    with launched(browser.browser_type, LANG="C.UTF-8", LANGUAGE="", LC_ALL="C.UTF-8") as other:
        page = other.new_page(base_url=f"http://127.0.0.1:{service.http_port}")
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.add_init_script(
            "Object.defineProperty(Navigator.prototype, 'language', {value: 'en-US@posix', "
            "configurable: true});"
        )
        page.goto(f"/ui/slots/{slot}")
        expect(page.locator(PLOTS)).to_have_count(2, timeout=60_000)
        assert page.evaluate("navigator.language") == "en-US"
        assert not wrong


def test_neighbours_show_one_range(slot: str, page: Page) -> None:
    page.goto(f"/ui/slots/{slot}")
    expect(page.locator(PLOTS)).to_have_count(2)
    button = page.get_by_role("button", name="15 min are shown")
    expect(button).to_have_count(1)
    with page.expect_response("**/series?by=minute"):
        button.click()
    expect(page.get_by_role("button", name="12 h are shown")).to_have_text("12 h")
    # A cursor over one chart reads both.
    page.get_by_role("button", name="12 h are shown").click()
    expect(page.locator(PLOTS)).to_have_count(2)
    page.locator(".charts .u-over").first.hover(position={"x": 300, "y": 60})
    page.locator(".charts .u-over").first.hover(position={"x": 390, "y": 60})
    readings = page.locator(".charts .u-cursor-x:not(.u-off)")
    expect(readings).to_have_count(2)


def test_figures_of_a_service_that_is_gone(visit: Callable[..., Visit], tmp_path: Path) -> None:
    with service_in_process(tmp_path) as service:
        page = visit(f"http://127.0.0.1:{service.http_port}").page
        page.goto("/")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
        expect(page.locator("body")).not_to_have_class("stale")
    expect(page.locator("#live")).to_contain_text("does not answer; as of")
    expect(page.locator("body")).to_have_class("stale")
