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
        expect(page.locator(PLOTS)).to_have_count(3, timeout=60_000)
        assert page.evaluate("navigator.language") == "en-US"
        assert not wrong


def test_neighbours_show_one_range(slot: str, page: Page) -> None:
    page.goto(f"/ui/slots/{slot}")
    expect(page.locator(PLOTS)).to_have_count(3)
    expect(page.get_by_role("radio", name="The last 15 minutes")).to_be_checked()
    for value, name in (("7d", "7 days"), ("12h", "12 hours")):
        with page.expect_response(f"**/ui/past/slot/{slot}?range={value}"):
            page.get_by_role("radio", name=f"The last {name}").check(force=True)
        # What was seen since the slot was made, and is not stored yet, is there.
        expect(page.locator(PLOTS)).to_have_count(3)
        expect(page).to_have_url(f"/ui/slots/{slot}?range={value}")
    # A cursor over one chart reads both.
    page.locator(".charts .u-over").first.hover(position={"x": 300, "y": 60})
    page.locator(".charts .u-over").first.hover(position={"x": 390, "y": 60})
    readings = page.locator(".charts .u-cursor-x:not(.u-off)")
    expect(readings).to_have_count(3)
    expect(page.locator(".chart .reading").first).to_contain_text("not known at")
    # The address has the range, for whoever gets it.
    page.reload()
    expect(page.get_by_role("radio", name="The last 12 hours")).to_be_checked()


def test_what_happened_stands_on_the_axis(slot: str, service: Service, page: Page) -> None:
    # The slot goes with its test: what is done here is told of no other's.
    service.call(
        "POST", f"/slots/{slot}/advance", json={"upto_lsn": service.slot(slot)["decoded_lsn"]}
    )
    page.goto(f"/ui/slots/{slot}?range=24h")
    expect(page.locator(PLOTS)).to_have_count(3)
    page.get_by_text("happened in this time").click()
    marks = page.locator(".marks li")
    expect(marks.filter(has_text=f"Slot {slot} was advanced")).not_to_have_count(0)
    expect(marks.filter(has_text="The service has started")).to_have_count(1)
    expect(marks.filter(has_text="Source main")).not_to_have_count(0)


def test_figures_of_a_service_that_is_gone(visit: Callable[..., Visit], tmp_path: Path) -> None:
    with service_in_process(tmp_path) as service:
        page = visit(f"http://127.0.0.1:{service.http_port}").page
        page.goto("/")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
        expect(page.locator("body")).not_to_have_class("stale")
    expect(page.locator("#live")).to_contain_text("no answer; as of")
    expect(page.locator("body")).to_have_class("stale")
