"""How somebody uses a page: with the mouse, in few clicks, or with the keyboard alone."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CLICKS_MAX: Final = 4
#: things on a page that Tab may stop at
_STOPS_MAX: Final = 300


class Hand(Protocol):
    """Uses what a page has."""

    def begin(self, page: Page) -> None:
        """Go to the overview, and count from there."""

    def press(self, what: Locator) -> None:
        """Follow a link, press a button, open what is folded."""

    def write(self, what: Locator, text: str) -> None:
        """Have a field hold *text*; of a time ``2026-11-25T08:00:00``."""

    def end(self) -> None:
        """Insist on it that it was done as it was to be."""


_COUNTED: Final = (
    "document.addEventListener('click', (event) => { if (event.isTrusted && event.detail) "
    "sessionStorage.clicks = Number(sessionStorage.clicks || 0) + 1; }, true)"
)


class _Counting:
    """Counts what the mouse does, across pages; what is typed is free."""

    page: Page

    def begin(self, page: Page) -> None:
        self.page = page
        page.add_init_script(_COUNTED)
        page.goto("/")

    def clicks(self) -> int:
        return int(self.page.evaluate("sessionStorage.clicks || 0"))


class Mouse(_Counting):
    """Clicks, of which there may be few."""

    def press(self, what: Locator) -> None:
        what.click()

    def write(self, what: Locator, text: str) -> None:
        what.fill(text)

    def end(self) -> None:
        clicks = self.clicks()
        assert 0 < clicks <= CLICKS_MAX, f"it took {clicks} clicks"


class Keyboard(_Counting):
    """Tab, Enter and letters."""

    def _go_to(self, what: Locator) -> None:
        expect(what).to_be_visible()
        for _ in range(_STOPS_MAX):
            if what.evaluate("(one) => one === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not come to {what}")

    def press(self, what: Locator) -> None:
        self._go_to(what)
        self.page.keyboard.press("Enter")

    def write(self, what: Locator, text: str) -> None:
        self._go_to(what)
        keyboard = self.page.keyboard
        if what.get_attribute("type") == "datetime-local":
            at = datetime.fromisoformat(text)
            # A year may have more digits: it has to be left.
            keyboard.type(f"{at:%m%d%Y}")
            keyboard.press("ArrowRight")
            keyboard.type(f"{at:%I%M%S%p}")
            # It drops seconds that are none.
            text = f"{at:%Y-%m-%dT%H:%M:%S}" if at.second else f"{at:%Y-%m-%dT%H:%M}"
        else:
            keyboard.press("Control+a")
            keyboard.type(text)
        expect(what).to_have_value(text)

    def end(self) -> None:
        assert self.clicks() == 0, "that was the mouse"
