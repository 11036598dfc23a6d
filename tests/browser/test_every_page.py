"""What holds for all pages: accessible in light and dark, readable on a phone and a wide screen,
closed to others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import httpx
import pytest
from playwright.sync_api import expect

from harness.browser import check_axe
from harness.service import service_in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from harness.cluster import Database
    from harness.service import Service

    from .conftest import Visit

PAGES = {
    "overview": "/",
    "source": "/ui/sources/main",
    "slot": "/ui/slots/audit",
    "changes": "/ui/changes?source=main&database=shop&table=orders",
    "add a source": "/ui/sources/new",
    "create a slot": "/ui/slots/new",
    "subscription": "/ui/subscriptions/filled",
    "create a subscription": "/ui/subscriptions/new",
    "alerts": "/ui/alerts",
    "add a rule": "/ui/alerts/new-rule",
    "a rule": "/ui/alerts/rules/everything",
    "add a channel": "/ui/alerts/new-channel",
    "a channel": "/ui/alerts/channels/mail",
    "schema": "/ui/schema?source=main",
    "events": "/ui/events?kind=action",
    "the contract": "/docs",
    "no such page": "/ui/nowhere",
    "no such slot": "/ui/slots/nowhere",
}


@pytest.fixture
def filled(slot: str, subscription: str, shop: Database, service: Service) -> Iterator[None]:
    """Something on every page: a slot with changes of each kind and a long name in them."""
    mail = {"kind": "email", "host": "smtp.example", "from": "a@b", "to": ["c@d"], "user": "u"}
    service.call("PUT", "/alerts/channels/mail", json={**mail, "password": "p"})
    rule = {"channels": ["mail"], "enabled": False, "limits": {"lag_s": 60}, "hold_s": 5}
    service.call("PUT", "/alerts/rules/everything", json=rule)
    shop.execute("INSERT INTO visits VALUES (now(), %s)", ["a-long-value-without-a-space-" * 12])
    shop.execute("INSERT INTO orders (customer_id, total, status) VALUES (1, 10, 'new')")
    shop.execute("UPDATE orders SET status = 'paid'")
    shop.execute("DELETE FROM orders")
    shop.execute("TRUNCATE orders")
    service.wait_decoded(slot, shop)
    yield
    service.call("DELETE", "/alerts/rules/everything")
    service.call("DELETE", "/alerts/channels/mail")


def _open_everything(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    if page.locator("#filter").count():
        page.get_by_role("button", name="Peek").click()
        expect(page.locator("#changes tbody tr").first).to_be_visible()
    if page.get_by_role("button", name="Check", exact=True).count():
        page.get_by_label("Name", exact=True).fill("other")
        page.get_by_label("Host").fill("127.0.0.1")
        page.get_by_label("Port").fill("1")
        page.get_by_role("button", name="Check", exact=True).click()
        expect(page.get_by_role("alert")).to_be_visible()


def test_accessible_and_readable(filled: None, page: Page) -> None:
    for name, path in PAGES.items():
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1280, "height": 860})
        page.goto(path)
        _open_everything(page)
        check_axe(page, f"{name}, light")
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
        check_axe(page, f"{name}, dark")
        for width in (1920, 360):
            page.set_viewport_size({"width": width, "height": 800})
            needed = page.evaluate("document.documentElement.scrollWidth")
            assert needed <= width, f"{name} needs {needed} px of {width}"
        check_axe(page, f"{name}, dark, on a phone")


def test_by_keyboard(slot: str, page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("button", name="Switch between light and dark").focus()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "light"
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    # What has the focus keeps it while the page follows.
    link = page.get_by_role("link", name=slot)
    link.focus()
    page.wait_for_function(
        "new Promise((seen) => document.addEventListener('spillway:look', () => seen(true)))"
    )
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    summary = page.locator("details.danger summary", has_text="Drop")
    summary.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Type audit to drop it")).to_be_focused()


def test_the_policy_holds(slot: str, visit: Callable[..., Visit]) -> None:
    here = visit()
    page = here.page
    answer = page.goto("/")
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    # What got into a page all the same would not run.
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.taken = 1'; "
        "document.body.append(s) }"
    )
    assert page.evaluate("window.taken") is None
    (note,) = here.wrong
    assert "Content Security Policy" in note
    here.wrong.clear()


@pytest.mark.parametrize(
    ("headers", "form"),
    [
        ({}, {}),
        ({}, {"csrf": "guessed"}),
        ({"x-csrf-token": "guessed"}, {}),
        ({"origin": "http://evil.example"}, {}),
    ],
)
def test_forged_requests_are_refused(
    slot: str, service: Service, headers: dict[str, str], form: dict[str, str]
) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{service.http_port}", timeout=60) as client:
        client.get("/")
        form = {"confirm": slot, **form}
        answer = client.post(f"/ui/slots/{slot}/drop", data=form, headers=headers)
        assert answer.status_code == 403
    assert service.slot(slot)["slot_name"] == slot


def test_login(visit: Callable[..., Visit], tmp_path: Path) -> None:
    with service_in_process(tmp_path, token="s3cret-token") as service:
        base = f"http://127.0.0.1:{service.http_port}"
        here = visit(base)
        page = here.page
        page.goto("/ui/sources/new")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        check_axe(page, "log in")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("That is not the token.")
        page.get_by_label("Token").fill("s3cret-token")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Add a source")).to_be_visible()
        (cookie,) = here.context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        assert "s3cret" not in cookie["value"]
        # The session opens pages, not the API.
        assert page.request.get("/docs").status == 200
        assert page.request.get("/v1/sources").status == 401
        assert page.request.post("/metrics").status == 401
        page.get_by_role("button", name="Log out").click()
        page.goto("/")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        for path in ("/", "/ui/live/overview", "/ui/slots/x/series"):
            answer = httpx.get(f"{base}{path}", timeout=60)
            assert "Overview" not in answer.text
            assert answer.status_code in (204, 303)
        for target in ("//evil.example", "/\\evil.example", "https://evil.example"):
            answer = httpx.post(
                f"{base}/ui/login",
                params={"next": target},
                data={"token": "s3cret-token"},
                timeout=60,
            )
            assert answer.headers["location"] == "/"


def test_the_service_stops_with_pages_open(
    visit: Callable[..., Visit], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), service_in_process(tmp_path) as service:
        page = visit(f"http://127.0.0.1:{service.http_port}").page
        page.goto("/ui/sources/new")
        page.goto("/")
        with httpx.stream(
            "GET", f"http://127.0.0.1:{service.http_port}/ui/live/overview", timeout=60
        ) as stream:
            pieces = stream.iter_text()
            assert "retry" in next(pieces)
    # uvicorn would say that it waited for them in vain.
    assert not caplog.records
