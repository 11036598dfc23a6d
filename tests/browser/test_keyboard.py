"""Everything by keyboard: Tab reaches what can be used, in sight, with a mark of the focus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from harness.shown_installation import fill, shown
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from harness.fake_service import FakeService

    from .conftest import Visit

#: Gives each thing that can be used a number, and says what they are: of a group of radio buttons
#: the one that Tab goes to.
_NUMBERED = """
() => {
  const radios = new Set();
  const found = [];
  const usable = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  for (const one of document.querySelectorAll(usable)) {
    if (one.disabled || one.type === "hidden") continue;
    if (!one.checkVisibility({visibilityProperty: true})) continue;
    if (one.type === "radio") {
      const group = `${one.form && one.form.id}/${one.name}`;
      const chosen = document.querySelector(`input[type=radio][name="${one.name}"]:checked`);
      if (radios.has(group) || (chosen && chosen !== one)) continue;
      radios.add(group);
    }
    one.dataset.number = found.length;
    found.push(one.outerHTML.slice(0, 160));
  }
  document.activeElement.blur();
  return found;
}
"""
#: Which of them has the focus; whether it is in sight, and marked.
_FOCUSED = """
() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const isMarked = (it) => it && getComputedStyle(it).outlineStyle !== "none";
  const box = one.getBoundingClientRect();
  return {
    number: Number(one.dataset.number ?? -1),
    marked: [one, one.nextElementSibling].some(isMarked),
    inSight: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    what: one.outerHTML.slice(0, 160),
  };
}
"""  # fmt: skip
PAGES = (
    "/ui/slots/search",
    "/ui/subscriptions/new",
    *(
        deep(path)
        for path in (
            "/",
            "/ui/slots",
            "/ui/subscriptions/warehouse",
            "/ui/changes?table=orders",
            "/ui/alerts",
            "/ui/sources",
            "/ui/subscriptions",
            "/ui/consumers",
            "/ui/sources/shop",
            "/ui/schema?source=shop",
            "/ui/events",
            "/ui/sources/new",
            "/ui/slots/new",
            "/ui/alerts/new-rule",
            "/ui/alerts/new-channel",
        )
    ),
)


@pytest.fixture(scope="module")
def installation() -> Iterator[FakeService]:
    with shown() as service:
        fill(service)
        yield service


@pytest.fixture
def here(installation: FakeService, visit: Callable[..., Visit]) -> Page:
    size = {"width": 1280, "height": 860}
    return visit(f"http://127.0.0.1:{installation.http_port}", viewport=size).page


@pytest.mark.parametrize("path", PAGES)
def test_what_can_be_used_is_reached(here: Page, path: str) -> None:
    here.goto(path)
    expect(here.locator(".skeletons")).to_have_count(0)
    expect(here.get_by_text("Reading…", exact=True)).to_have_count(0)
    # What is folded holds more.
    here.evaluate(
        "document.querySelectorAll('details:not([name])').forEach((one) => one.open = true)"
    )
    expect(here.locator(".htmx-request")).to_have_count(0)
    # A part that is drawn anew would lose the numbers.
    here.evaluate("() => { Idiomorph.morph = () => {} }")
    things = here.evaluate(_NUMBERED)
    assert len(things) > 12
    reached: list[int] = []
    # A time's field has several stops.
    for _ in range(len(things) + 30):
        here.keyboard.press("Tab")
        focused = here.evaluate(_FOCUSED)
        if focused is None:
            break
        if focused["number"] in reached[:-1]:
            break
        assert focused["marked"], f"no mark of the focus: {focused['what']}"
        assert focused["inSight"], f"out of sight: {focused['what']}"
        if focused["number"] >= 0 and focused["number"] not in reached:
            reached.append(focused["number"])
    missed = [things[n] for n in range(len(things)) if n not in reached]
    assert not missed, f"Tab does not come to {missed}"
    assert reached == sorted(reached), "the order is not that of the page"


def test_a_slot_is_taken_back_by_keyboard_alone(here: Page, installation: FakeService) -> None:
    slot = installation.engine.slots["audit"]
    here.goto("/")
    expect(here.locator("#live")).to_have_text("live")
    here.keyboard.press("Control+k")
    expect(here.locator("#palette-text")).to_be_focused()
    here.keyboard.type("audit")
    expect(here.locator("#palette-list [aria-selected=true]")).to_contain_text("audit")
    here.keyboard.press("Enter")
    expect(here.get_by_role("heading", level=1)).to_have_text("audit")
    here.wait_for_load_state()
    summary = here.locator("#rewind > summary")
    for _ in range(60):
        here.keyboard.press("Tab")
        if summary.evaluate("(one) => one === document.activeElement"):
            break
    here.keyboard.press("Enter")
    expect(here.locator("#rewind .panel")).to_be_visible()
    # Escape closes it, and the focus is where it was.
    here.keyboard.press("Escape")
    expect(here.locator("#rewind .panel")).to_be_hidden()
    expect(summary).to_be_focused()
    here.keyboard.press("Enter")
    field = here.locator("#rewind").get_by_label("Position")
    for _ in range(20):
        here.keyboard.press("Tab")
        if field.evaluate("(one) => one === document.activeElement"):
            break
    here.keyboard.type(str(slot.restart_lsn))
    here.keyboard.press("Enter")
    expect(here.get_by_text("The slot was rewound")).to_be_visible()
    assert installation.engine.slots["audit"].confirmed_flush_lsn == slot.restart_lsn
