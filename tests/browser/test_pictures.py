"""Pages as pictures, compared with the last ones: a change is seen, and accepted or mended.

    pytest tests/browser/test_pictures.py -m long --accept-pictures

writes those that differ anew. What differs lies in ``build/pictures``, each with what is otherwise
marked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from harness.browser import chromium, launched
from harness.pictures import accept, compare
from harness.shown_installation import fill, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from harness.fake_service import FakeService

PICTURES = Path(__file__).parent / "pictures"
DIFFERING = Path(__file__).parents[2] / "build" / "pictures"
#: What is never the same: times, and lines of what was seen since the service started.
_STILL = (
    "time, canvas, .spark, .spark-none, .plot-empty, .live { visibility: hidden !important } "
    "*, *::before { animation: none !important; caret-color: transparent !important } "
    # A whole page has no edge to stick to.
    ".form-end { position: static !important }"
)
PAGES = {
    "overview": "/",
    "sources": "/ui/sources",
    "slots": "/ui/slots",
    "subscriptions": "/ui/subscriptions",
    "consumers": "/ui/consumers",
    "source": "/ui/sources/shop",
    "slot": "/ui/slots/search",
    "subscription": "/ui/subscriptions/warehouse",
    "changes": "/ui/changes?table=orders",
    "schema": "/ui/schema?source=shop",
    "events": "/ui/events",
    "alerts": "/ui/alerts",
    "add-rule": "/ui/alerts/new-rule",
    "add-channel": "/ui/alerts/new-channel",
    "add-source": "/ui/sources/new",
    "create-slot": "/ui/slots/new",
    "create-subscription": "/ui/subscriptions/new",
}
SIZES = {"wide": (1920, 1080), "usual": (1440, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def installation() -> Iterator[FakeService]:
    with shown() as service:
        fill(service)
        yield service


@pytest.fixture(scope="module")
def painter(browser: Browser) -> Iterator[Browser]:
    """A browser with the fonts that came with it, wherever it runs."""
    fonts = chromium().parent / "fonts"
    environment = {"FONTCONFIG_PATH": str(fonts)} if fonts.is_dir() else {}
    with launched(browser.browser_type, **environment) as running:
        yield running


def taken(page: Page, path: str) -> bytes:
    page.goto(path)
    page.add_style_tag(content=_STILL)
    if page.locator("#live").count():
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
    # What a part comes with later.
    expect(page.locator(".skeletons, .htmx-request")).to_have_count(0)
    expect(page.get_by_text("Reading…", exact=True)).to_have_count(0)
    expect(page.get_by_text("Asking the source", exact=False)).to_have_count(0)
    if SIZES["usual"][0] <= page.evaluate("innerWidth") and page.locator(".is-beside").count():
        expect(page.locator(".is-beside .as-title").first).to_be_visible()
    return page.screenshot(full_page=True)


def opened(browser: Browser, service: FakeService, size: str, theme: str) -> Page:
    width, height = SIZES[size]
    return browser.new_page(
        base_url=f"http://127.0.0.1:{service.http_port}",
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        bypass_csp=True,
        locale="en-US",
        timezone_id="UTC",
    )


def test_a_change_is_seen(painter: Browser, installation: FakeService) -> None:
    page = opened(painter, installation, "usual", "light")
    first = taken(page, "/ui/slots")
    kept = compare(page, None, first).kept
    assert len(kept) < 80_000
    # The same page once more, drawn otherwise by a hair.
    page.add_style_tag(content="body { letter-spacing: 0.02px }")
    again = compare(page, kept, page.screenshot(full_page=True))
    assert again.is_the_same, again.otherwise
    for otherwise in (
        ".badge { background: none !important; padding: 0 }",
        "tbody tr:first-child { display: none }",
        "th, td { padding-block: 9px !important }",
    ):
        page = opened(painter, installation, "usual", "light")
        taken(page, "/ui/slots")
        page.add_style_tag(content=otherwise)
        changed = compare(page, kept, page.screenshot(full_page=True))
        assert not changed.is_the_same, otherwise
        page.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "theme"),
    [("usual", "light"), ("usual", "dark"), ("phone", "light"), ("wide", "dark")],
)
def test_pages_look_as_they_did(
    painter: Browser,
    installation: FakeService,
    size: str,
    theme: str,
    request: pytest.FixtureRequest,
) -> None:
    page = opened(painter, installation, size, theme)
    otherwise = []
    for name, path in PAGES.items():
        place = PICTURES / f"{name}-{size}-{theme}.webp"
        accepted = place.read_bytes() if place.exists() else None
        compared = compare(page, accepted, taken(page, path))
        if compared.is_the_same:
            continue
        if request.config.getoption("--accept-pictures"):
            accept(place, compared)
            continue
        DIFFERING.mkdir(parents=True, exist_ok=True)
        (DIFFERING / place.name).write_bytes(compared.marked or compared.kept)
        otherwise.append(f"{place.name}: {compared.otherwise:.1%} of it is otherwise")
    page.close()
    assert not otherwise, (
        f"{'; '.join(otherwise)}. Look at them in {DIFFERING}; if they are as they should be: "
        "pytest tests/browser/test_pictures.py -m long --accept-pictures"
    )
