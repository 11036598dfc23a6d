"""Lists, Ctrl-K and the overview, on an installation that is always the same."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from harness.browser import check_axe
from harness.shown_installation import MB, ShownEngine, fill, shown
from harness.tiers import deep
from spillway.pg.lsn import Lsn
from spillway.subscriber.model import (
    Failure,
    Verification,
    VerificationState,
    VerifiedTable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from harness.fake_service import FakeService

    from .conftest import Visit


@pytest.fixture(scope="module")
def running() -> Iterator[FakeService]:
    with shown() as service:
        yield service


@pytest.fixture
def installation(running: FakeService) -> FakeService:
    fill(running)
    return running


@pytest.fixture
def here(installation: FakeService, visit: Callable[..., Visit]) -> Page:
    size = {"width": 1440, "height": 900}
    return visit(f"http://127.0.0.1:{installation.http_port}", viewport=size).page


def rows(page: Page) -> list[str]:
    return page.locator("#list tbody th").all_inner_texts()


def test_a_list_is_what_its_address_says(here: Page) -> None:
    here.goto("/ui/slots")
    expect(here.locator("#live")).to_have_text("live")
    here.get_by_placeholder("Search slots").fill("shop")
    expect(here.locator("#list tbody tr")).to_have_count(6)
    here.get_by_role("link", name="Lag", exact=True).click()
    expect(here.get_by_role("columnheader", name="Lag", exact=True)).to_have_attribute(
        "aria-sort", "descending"
    )
    expect(here.locator("#list tbody th").first).to_have_text("audit")
    here.get_by_role("link", name=re.compile("^active")).click()
    expect(here.locator("#list tbody tr")).to_have_count(5)
    expect(here).to_have_url(re.compile(r"/ui/slots\?q=shop&state=active&sort=-lag$"))
    shown_rows = rows(here)
    # Handed on, it is the same list.
    here.goto(here.url)
    assert rows(here) == shown_rows
    assert shown_rows[0] == "warehouse"
    expect(here.get_by_placeholder("Search slots")).to_have_value("shop")
    # Where nothing fits there is a way back.
    here.get_by_placeholder("Search slots").fill("no such slot")
    here.get_by_role("link", name="Show all").click()
    expect(here.locator("#list tbody tr")).to_have_count(8)


def test_a_list_follows_and_keeps_what_is_ticked(installation: FakeService, here: Page) -> None:
    here.goto("/ui/slots?q=search")
    expect(here.locator("#live")).to_have_text("live")
    here.get_by_label("Tick search").check()
    expect(here.get_by_text("1 ticked")).to_be_visible()
    engine = installation.engine
    confirmed = Lsn(int(engine.slots["search"].confirmed_flush_lsn or 0) - 5 * MB)
    engine.change_slot("search", confirmed_flush_lsn=confirmed)
    expect(here.locator("#list tbody tr")).to_contain_text("5.05 MB")
    expect(here.locator("#list tbody tr")).to_have_count(1)
    expect(here.get_by_label("Tick search")).to_be_checked()
    expect(here.get_by_text("1 ticked")).to_be_visible()


def test_bulk_asks_first(installation: FakeService, here: Page) -> None:
    here.goto("/ui/slots")
    drop = here.locator("#bulk").get_by_role("button", name="Drop")
    expect(drop).to_be_disabled()
    for name in ("audit", "ledger", "search"):
        here.get_by_label(f"Tick {name}").check()
    drop.click()
    ask = here.locator(".bulk-ask")
    expect(ask).to_contain_text("Drop: 3 slots")
    check_axe(here, "a bulk action asks")
    ask.get_by_label("Type “drop 3” to go on").fill("drop")
    ask.get_by_role("button", name="Drop").click()
    expect(here.get_by_role("alert")).to_contain_text("nothing was done")
    assert len(installation.engine.slots) == 8
    ask.get_by_label("Type “drop 3” to go on").fill("drop 3")
    ask.get_by_role("button", name="Drop").click()
    # One that can't be says why, and the others are done.
    done = here.locator(".bulk-done")
    expect(done).to_contain_text("2 of 3 done")
    expect(done.locator(".outcome li")).to_contain_text("search")
    expect(here.locator("#list tbody tr")).to_have_count(6)
    assert "search" in installation.engine.slots

    here.goto("/ui/subscriptions")
    here.get_by_label("Tick all").check()
    here.locator("#bulk").get_by_role("button", name="Disable").click()
    here.locator(".bulk-ask").get_by_role("button", name="Disable").click()
    expect(here.locator(".bulk-done")).to_contain_text("2 of 2 done")
    assert {one.state for one in installation.subscriptions.subscriptions.values()} == {"paused"}


def test_consumers(here: Page) -> None:
    here.goto("/")
    here.get_by_role("link", name="Consumers").click()
    row = here.locator("tr", has=here.get_by_role("link", name="search"))
    expect(row).to_contain_text("debezium-search")
    expect(row).to_contain_text("10.4.2.17:51034")
    here.get_by_role("link", name=re.compile("^gRPC")).click()
    expect(here.locator("#list tbody tr")).to_have_count(3)
    expect(here).to_have_url(re.compile(r"/ui/consumers\?state=gRPC$"))


def test_ctrl_k_by_keyboard_alone(here: Page) -> None:
    def go(text: str, downs: int = 0) -> None:
        # Whoever presses keys before a page's scripts have come presses them in vain.
        here.wait_for_load_state()
        here.keyboard.press("Control+k")
        expect(here.locator("#palette")).to_be_visible()
        here.keyboard.type(text)
        if downs:
            expect(here.locator("#palette-list [role=option]").nth(downs)).to_be_visible()
        for _ in range(downs):
            here.keyboard.press("ArrowDown")
        here.keyboard.press("Enter")

    here.goto("/")
    here.keyboard.press("Control+k")
    expect(here.get_by_role("option").first).to_contain_text("Overview")
    check_axe(here, "where to")
    here.keyboard.press("Escape")
    expect(here.locator("#palette")).to_be_hidden()
    go("audit")
    expect(here.get_by_role("heading", level=1, name="audit")).to_be_visible()
    go("order_items")
    expect(here.get_by_label("Table", exact=True)).to_have_value("public.order_items")
    go("consum")
    expect(here.get_by_role("heading", level=1, name="Consumers")).to_be_visible()
    go("warehouse")
    expect(here).to_have_url(re.compile("/ui/(slots|subscriptions)/warehouse$"))
    go("legacy")
    expect(here.get_by_role("heading", level=1, name="legacy")).to_be_visible()
    go("rewind search")
    expect(here.get_by_label("To before what was committed at")).to_be_focused()
    expect(here.locator("body")).to_have_css("color-scheme", "light")
    go("light and dark")
    expect(here.locator("body")).to_have_css("color-scheme", "dark")
    here.keyboard.press("Control+k")
    here.keyboard.type("nothing has this name")
    expect(here.locator("#palette-said")).to_have_text("Nothing has that name.")


def test_the_overview_is_one_screen(here: Page) -> None:
    here.goto("/")
    expect(here.locator(".flow")).to_have_count(3)
    expect(here.locator(".finding").first).to_be_visible()
    height = here.evaluate("document.documentElement.scrollHeight")
    assert height <= 900, f"it is {height} px high"
    # Where each is stuck, the worst first.
    flows = here.locator(".flow")
    expect(flows.nth(0).locator(".step.bad")).to_contain_text("Received")
    expect(flows.nth(0).locator(".here")).to_have_text("stuck here")
    expect(here.get_by_label("Source billing").locator(".step.warn")).to_contain_text("Decoded")
    expect(here.get_by_label("Source shop").locator(".step.warn")).to_contain_text("audit")
    # What is not known is no 0.
    unknown = here.locator("tr", has=here.get_by_role("link", name="ledger"))
    expect(unknown.locator(".unknown")).to_have_count(2)


#: What people ask a page first, and what they do then.
FIRST = {
    "/ui/slots/search": (
        "[aria-label=Actions]", "[data-live=consumer]", "#end-session", ".position-bar",
        ".position-figures", ".charts", "#changes",
    ),
    # With something to mend.
    "/ui/slots/audit": (".finding", ".position-bar", ".charts", "#changes"),
    "/ui/subscriptions/warehouse": (
        "[aria-label=Actions]", "[data-live=state] .finding", ".tiles", ".charts",
        "[data-live=tables] table",
    ),
    "/ui/sources/shop": (
        "[aria-label=Actions]", "[data-live=keeps]", ".charts", "[data-live=slots] table",
        "[data-live=sessions] table",
    ),
    "/ui/sources/new": (".form > .form-end",),
    "/ui/slots/new": ("[name=plugin]", ".form > .form-end"),
    "/ui/subscriptions/new": ("#tables", "[name=kind]", ".form > .form-end"),
    "/ui/changes?table=orders": ("article.change:nth-of-type(1)",),
    "/ui/schema?source=shop": (".change-of-schema:last-child",),
    "/ui/events": ("tbody",),
    "/ui/alerts": ("[data-live=channels] table",),
    "/ui/slots": ("#list table",),
}  # fmt: skip


@pytest.mark.parametrize("path", FIRST)
def test_the_answer_is_on_one_screen(here: Page, path: str) -> None:
    here.goto(path)
    for answer in FIRST[path]:
        place = here.locator(answer).first
        expect(place).to_be_visible()
        bottom = place.evaluate("(it) => it.getBoundingClientRect().bottom")
        assert bottom <= 900, f"{answer} of {path} ends at {bottom}"


#: Pages that are seen without scrolling: what is read less is folded, and said so.
WHOLE = (
    "/ui/slots/search", "/ui/slots/audit", "/ui/subscriptions/warehouse", "/ui/sources/shop",
    "/ui/sources/new", "/ui/slots/new", "/ui/subscriptions/new", "/ui/alerts/new-channel",
    "/ui/alerts/new-rule",
)  # fmt: skip


def test_pages_that_are_one_screen(here: Page) -> None:
    heights = {}
    for path in WHOLE:
        here.goto(path)
        if here.locator("#live").count():
            expect(here.locator("#live")).to_have_attribute("data-state", "live")
        if here.locator(".is-beside").count():
            expect(here.locator(".is-beside .as-title").first).to_be_visible()
        heights[path] = here.evaluate("document.documentElement.scrollHeight")
    assert {path: height for path, height in heights.items() if height > 900} == {}


def test_what_is_folded_is_found(here: Page) -> None:
    here.goto("/ui/subscriptions/warehouse")
    log = here.get_by_role("region", name="The end of the log")
    expect(log).to_be_hidden()
    here.get_by_role("link", name="Its log").click()
    expect(log).to_be_visible()
    here.goto("/ui/sources/shop")
    tables = here.locator("details", has=here.get_by_role("heading", name="Tables of shop"))
    expect(tables.get_by_role("link", name="public.orders", exact=True)).to_be_hidden()
    tables.locator("summary").click()
    expect(tables.get_by_role("link", name="public.orders", exact=True)).to_be_visible()
    check_axe(here, "tables are unfolded")


def test_a_session_is_ended_where_there_is_one(installation: FakeService, here: Page) -> None:
    here.goto("/ui/slots/search")
    expect(here.locator("#end-session")).to_be_visible()
    installation.engine.change_slot("search", consumer=None, active=False)
    expect(here.get_by_text("nobody reads it")).to_be_visible()
    expect(here.locator("#end-session")).to_be_hidden()


#: Counts what moves without a reader's doing.
_NOTE_SHIFTS = (
    "window.shifted = 0; new PerformanceObserver((list) => { for (const one of "
    "list.getEntries()) if (!one.hadRecentInput) window.shifted += one.value; })"
    ".observe({type: 'layout-shift', buffered: true})"
)
_LOOK = "new Promise((seen) => document.addEventListener('spillway:look', () => seen(true)))"


def _go_on(engine: ShownEngine, lag: int) -> None:
    confirmed = Lsn(int(engine.slots["search"].decoded_lsn or 0) - lag)
    engine.change_slot("search", confirmed_flush_lsn=confirmed)
    engine.lags["search"] = lag / 1e6


@pytest.mark.parametrize("path", ["/", deep("/ui/slots"), deep("/ui/slots/search")])
def test_nothing_jumps_while_it_is_live(installation: FakeService, here: Page, path: str) -> None:
    engine = installation.engine
    assert isinstance(engine, ShownEngine)
    here.add_init_script(_NOTE_SHIFTS)
    here.goto(path)
    here.wait_for_function(_LOOK)
    here.evaluate("window.shifted = 0")
    for lag in (123_456_789, 900):
        _go_on(engine, lag)
        here.wait_for_function(_LOOK)
    shifted = here.evaluate("window.shifted")
    assert shifted < 0.002, f"{path} moved by {shifted}"


@pytest.mark.long
def test_a_table_is_loaded_anew_from_its_row(installation: FakeService, here: Page) -> None:
    """The button stands at the table, what happens is said before, and how far it is after it."""
    here.goto("/ui/subscriptions/warehouse")
    here.get_by_role("link", name="Load anew public.orders").click()
    form = here.locator("#load-anew")
    expect(form).to_contain_text("readers find the current table as it was")
    expect(form.get_by_label("Table to load anew")).to_have_value("public.orders")
    check_axe(here, "a table is to be loaded anew")
    form.get_by_role("button", name="Load it anew").click()
    expect(here.get_by_text("The table is loaded anew by the job")).to_be_visible()
    row = here.locator("tr", has_text="public.orders")
    expect(row).to_contain_text("Is to be loaded anew, since")
    here.get_by_role("link", name="Take it back for public.orders").click()
    here.locator("#load-anew").get_by_role("button", name="Take it back").click()
    expect(here.get_by_text("The table is not loaded anew.")).to_be_visible()
    expect(row).to_contain_text("it was taken back")
    check_axe(here, "a wish was taken back")
    here.get_by_role("link", name="Load anew public.orders").click()
    here.locator("#load-anew").get_by_role("button", name="Load it anew").click()
    expect(row).to_contain_text("Is to be loaded anew, since")
    tables = installation.subscriptions.subscriptions["warehouse"].table_states
    asked = {table.table for table in tables if table.resync is not None}
    assert asked == {"public.orders"}

    def tells(**values: Any) -> None:
        told = [
            replace(table, resync=replace(table.resync, **values)) if table.resync else table
            for table in installation.subscriptions.subscriptions["warehouse"].table_states
        ]
        installation.subscriptions.change("warehouse", table_states=tuple(told))

    tells(state="loading")
    expect(row).to_contain_text("Is being loaded anew")
    tells(state="failed", ended_at=datetime.now(UTC), reason="no such host. Name another.")
    expect(row).to_contain_text("no such host. Name another.")
    tells(state="done", ended_at=datetime.now(UTC), lsn=Lsn.parse("0/30"), reason=None)
    expect(row).to_contain_text("as of 0/30")
    check_axe(here, "a table was loaded anew")


def test_a_lake_is_compared_from_its_page(installation: FakeService, here: Page) -> None:
    here.goto("/ui/subscriptions/warehouse")
    told = here.locator('[data-live="verification"]')
    expect(told).to_contain_text("It was never compared")
    here.locator("#verify summary").click()
    here.get_by_role("button", name="Verify the lake").click()
    expect(here.get_by_text("The lake is being compared with its source")).to_be_visible()
    expect(told).to_contain_text("running")
    assert installation.subscriptions.compared == [()]
    at = datetime.now(UTC) - timedelta(hours=3)
    equal = VerifiedTable("public.visits", True, 9, 9, 0, False)
    wrong = VerifiedTable("public.orders", False, 1000, 998, 2, True)
    found = Verification(VerificationState.DIFFERENT, at, at, Lsn.parse("0/30"), (equal, wrong))
    installation.subscriptions.change("warehouse", verification=found)
    # With its age.
    expect(told).to_contain_text("2 tables as of 0/30, 3 h ago")
    expect(told).to_contain_text("public.orders: at least 2 keys differ; 1,000 rows at the source")
    check_axe(here, "a lake was compared")
    why = Failure("subscription_failed", "its program was killed by SIGKILL", "Verify again.")
    failed = Verification(VerificationState.FAILED, at, at, error=why)
    installation.subscriptions.change("warehouse", verification=failed)
    expect(told).to_contain_text("was killed by SIGKILL")
    check_axe(here, "a comparison failed")


@pytest.mark.long
def test_nothing_jumps_in_a_minute(installation: FakeService, visit: Callable[..., Visit]) -> None:
    engine = installation.engine
    assert isinstance(engine, ShownEngine)
    base = f"http://127.0.0.1:{installation.http_port}"
    pages = {}
    for path in (
        "/",
        "/ui/sources",
        "/ui/slots",
        "/ui/consumers",
        "/ui/slots/search",
        "/ui/sources/shop",
        "/ui/subscriptions/warehouse",
        "/ui/alerts",
    ):
        # In a window of its own: a browser has six connections to one host.
        pages[path] = visit(base, viewport={"width": 1440, "height": 900}).page
        pages[path].add_init_script(_NOTE_SHIFTS)
        pages[path].goto(path)
        expect(pages[path].locator("#live")).to_have_text("live")
    # What a page asks for after it was drawn is there.
    for page in pages.values():
        expect(page.get_by_text("Reading…", exact=True)).to_have_count(0)
        expect(page.locator(".skeletons")).to_have_count(0)
        page.wait_for_function(_LOOK)
        page.wait_for_function(_LOOK)
        page.evaluate("window.shifted = 0")
    end = time.monotonic() + 60
    number = 0
    while time.monotonic() < end:
        number += 1
        # Below what would be a finding, which takes its room at the top: how many looks there are
        # in a minute is the machine's.
        _go_on(engine, number**7 % 250_000_000)
        rows = 41_203_455 + number * 999_983
        installation.subscriptions.change("warehouse", rows=rows, lag_bytes=number**6)
        pages["/"].wait_for_function(_LOOK)
    moved = {path: page.evaluate("window.shifted") for path, page in pages.items()}
    assert {path: shifted for path, shifted in moved.items() if shifted >= 0.002} == {}


def test_times_are_the_readers(installation: FakeService, visit: Callable[..., Visit]) -> None:
    base = f"http://127.0.0.1:{installation.http_port}"
    page = visit(base, timezone_id="America/New_York").page
    page.goto("/ui/consumers")
    at = page.locator("tbody time.when").first
    utc = at.get_attribute("title")
    assert utc is not None
    assert utc.endswith(" UTC")
    local = page.evaluate(
        "(utc) => new Date(utc.replace(' UTC', 'Z').replace(' ', 'T'))"
        ".toLocaleString('sv', {timeZone: 'America/New_York'})",
        utc,
    )
    expect(at).to_have_text(local)
    # And stays so while the page follows.
    page.wait_for_function(_LOOK)
    expect(at).to_have_text(local)
    expect(page.locator("#zone")).to_contain_text("America/New_York")
