"""Alerts and events by their pages: set up, tested, fired, over; and who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from harness.browser import check_axe
from harness.receivers import webhook
from harness.reception import wait_until
from spillway.alerts import watchman

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from harness.service import Service

HOSTILE = "<img src=x onerror=document.title=1>"


def _forget_all(service: Service) -> None:
    for rule in service.call("GET", "/alerts/rules")["rules"]:
        service.call("DELETE", f"/alerts/rules/{rule['name']}")
    for channel in service.call("GET", "/alerts/channels")["channels"]:
        service.call("DELETE", f"/alerts/channels/{channel['name']}")


@pytest.fixture
def nobody_is_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No rules and no channels; rules are stepped soon."""
    monkeypatch.setattr(watchman, "STEP_S", 0.2)
    _forget_all(service)
    yield
    _forget_all(service)


def _looked_at(page: Page, directory: Path, name: str) -> None:
    """Look at a page in both themes, on a phone and on a wide screen."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.screenshot(path=directory / f"{name}-{theme}-{width}.png", full_page=True)
        check_axe(page, f"{name}, {theme}")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 860})


@pytest.mark.usefixtures("nobody_is_told")
def test_somebody_is_told(
    subscription: str,
    service: Service,
    page: Page,
    tmp_path: Path,
    picture: Callable[..., None],
) -> None:
    with webhook() as receiver:
        page.goto("/")
        page.get_by_role("link", name="Alerts").click()
        expect(page.get_by_text("There is no rule")).to_be_visible()
        page.get_by_role("link", name="Add channel").click()
        page.get_by_label("Name", exact=True).fill("ops")
        # Fields are those of the kind that is chosen.
        expect(page.get_by_label("Mail server", exact=True)).to_be_hidden()
        page.get_by_label("Address", exact=True).fill("ftp://a/b")
        page.get_by_label("Secret", exact=True).fill("s3cret")
        page.get_by_role("button", name="Add channel").click()
        expect(page.get_by_role("alert")).to_contain_text("no address of HTTP")
        page.get_by_label("Address", exact=True).fill(receiver.url)
        page.get_by_role("button", name="Add channel").click()
        expect(page.get_by_role("status").filter(has_text="Test it")).to_be_visible()
        # A test says whether it was taken.
        receiver.statuses = [404]
        page.get_by_role("button", name="Test ops").click()
        expect(page.get_by_role("alert")).to_contain_text("answered 404")
        page.get_by_role("button", name="Test ops").click()
        expect(page.get_by_text("Channel ops took the test.")).to_be_visible()
        assert receiver.reasons() == [("test", "test")]
        assert "Spillway-Signature" in receiver.got[0][0]

        page.get_by_role("link", name="Add rule").click()
        page.get_by_label("Name", exact=True).fill("jobs")
        page.get_by_label("ops", exact=True).check()
        page.get_by_text("Only some of it").click()
        page.locator("[value=subscription_failed]").check()
        page.get_by_label("Of what by name", exact=True).fill("fil*")
        page.get_by_text("When it is told, and quiet hours").click()
        page.get_by_label("It must be over, seconds", exact=True).fill("soon")
        page.get_by_role("button", name="Add rule").click()
        expect(page.get_by_role("alert")).to_contain_text("'soon' is no whole number")
        page.get_by_label("It must be over, seconds", exact=True).fill("1")
        page.get_by_role("button", name="Add rule").click()
        expect(page.get_by_text("Nothing fires.")).to_be_visible()
        assert service.call("GET", "/alerts/rules/jobs")["codes"] == ["subscription_failed"]

        # Something goes wrong: the open page says so, and the channel was told.
        target = {"kind": "fake", "mode": "fail"}
        service.call("PATCH", f"/subscriptions/{subscription}", json={"target": target})
        firing = page.locator("[data-live=firing] article")
        expect(firing).to_contain_text("has failed")
        expect(firing).to_contain_text("firing")
        wait_until(lambda: len(receiver.got) == 2, 30, "nobody was told")
        expect(firing).to_contain_text("told")
        expect(page.locator("[data-live=messages] tbody tr")).to_contain_text("sent")
        page.reload()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        _looked_at(page, tmp_path, "alerts")
        picture(page, "alerts")

        # It is over: the page says so by itself, and the history has it.
        target = {"kind": "fake", "mode": "run"}
        service.call("PATCH", f"/subscriptions/{subscription}", json={"target": target})
        expect(page.get_by_text("Nothing fires.")).to_be_visible()
        wait_until(lambda: receiver.reasons()[-1][0] == "resolved", 30, "not told that it is over")
        page.get_by_label("State", exact=True).select_option("resolved")
        page.get_by_role("button", name="Show").click()
        assert page.url.endswith("?state=resolved")
        row = page.locator("tbody tr").filter(has_text="jobs").filter(has_text="resolved").first
        expect(row).to_contain_text("has failed")

        # A rule's page has what it is, and changes it; dropping asks for its name.
        row.get_by_role("link", name="jobs").click()
        expect(page.locator("[value=subscription_failed]")).to_be_checked()
        expect(page.get_by_label("Of what by name", exact=True)).to_have_value("fil*")
        page.get_by_label("Of what by name", exact=True).fill(f"fil*\n{HOSTILE}")
        _looked_at(page, tmp_path, "rule")
        page.get_by_label("Quiet from", exact=True).fill("22:00")
        page.get_by_label("Quiet to", exact=True).fill("07:00")
        page.get_by_role("button", name="Change rule").click()
        expect(page.get_by_text("quiet 22:00 to 07:00 UTC")).to_be_visible()
        expect(page.locator("[data-live=rules]")).to_contain_text(f"fil*, {HOSTILE}")
        kept = service.call("GET", "/alerts/rules/jobs")
        assert (kept["codes"], kept["clear_s"]) == (["subscription_failed"], 1)
        # A channel's keeps its secret, which no page has.
        page.locator("[data-live=channels]").get_by_role("link", name="ops").click()
        assert "s3cret" not in page.content()
        _looked_at(page, tmp_path, "channel")
        page.get_by_label("Enabled", exact=True).uncheck()
        page.get_by_role("button", name="Change channel").click()
        expect(page.get_by_text("nobody would hear of it")).to_be_visible()
        shown = service.call("GET", "/alerts/channels/ops")
        assert (shown["enabled"], shown["secrets"]) == (False, ["secret"])
        page.locator("[data-live=channels]").get_by_role("link", name="ops").click()
        page.locator("details.danger summary").click()
        page.get_by_label("Type ops to drop it", exact=True).fill("ops")
        page.get_by_role("button", name="Drop channel").click()
        expect(page.get_by_role("alert")).to_contain_text('"jobs" tells channel "ops"')
        # The remedy names a place that is there.
        expect(page.get_by_role("alert")).to_contain_text("“Drop” on the rule's page")
        page.goto("/ui/alerts/rules/jobs")
        page.locator("details.danger summary").click()
        page.get_by_label("Type jobs to drop it", exact=True).fill("job")
        page.get_by_role("button", name="Drop rule").click()
        expect(page.get_by_role("alert")).to_contain_text("does not match")
        page.get_by_label("Type jobs to drop it", exact=True).fill("jobs")
        page.get_by_role("button", name="Drop rule").click()
        expect(page.get_by_text("There is no rule")).to_be_visible()


@pytest.mark.usefixtures("nobody_is_told")
def test_channels_of_other_kinds(service: Service, page: Page) -> None:
    page.goto("/ui/alerts/new-channel")
    page.get_by_label("Name", exact=True).fill("chat")
    page.locator("[value=slack]").check()
    page.get_by_label("Address of the incoming webhook", exact=True).fill(
        "https://chat.example/hooks/T0/B1"
    )
    page.get_by_role("button", name="Add channel").click()
    expect(page.get_by_text("its address is its secret")).to_be_visible()
    assert "hooks/T0" not in page.content()
    page.get_by_role("link", name="Add channel").click()
    page.get_by_label("Name", exact=True).fill("mail")
    page.locator("[value=email]").check()
    page.get_by_label("Mail server", exact=True).fill("smtp.example")
    page.get_by_label("From", exact=True).fill("spillway@example.org")
    page.get_by_label("User", exact=True).fill("spillway")
    page.get_by_label("Password", exact=True).fill("p4ss")
    page.get_by_label("To", exact=True).fill("dba@example.org\nops@example.org")
    page.get_by_role("button", name="Add channel").click()
    expect(page.get_by_text("dba@example.org, ops@example.org by smtp.example")).to_be_visible()
    shown = service.call("GET", "/alerts/channels/mail")
    assert (shown["port"], shown["security"]) == (587, "starttls")
    # A name that is taken is not taken over.
    page.get_by_role("link", name="Add channel").click()
    page.get_by_label("Name", exact=True).fill("mail")
    page.get_by_role("button", name="Add channel").click()
    expect(page.get_by_role("alert")).to_contain_text('There is an alert channel "mail" already')
    # Another server does not get the password; without it the channel changes.
    page.goto("/ui/alerts/channels/mail")
    page.get_by_label("Mail server", exact=True).fill("evil.example")
    page.get_by_role("button", name="Change channel").click()
    expect(page.get_by_role("alert")).to_contain_text("changes, and not its password")
    page.get_by_label("Forget it", exact=True).check()
    page.get_by_role("button", name="Change channel").click()
    expect(page.get_by_text("by evil.example")).to_be_visible()
    assert service.call("GET", "/alerts/channels/mail")["secrets"] == []


def test_who_did_what(
    slot: str, service: Service, page: Page, tmp_path: Path, picture: Callable[..., None]
) -> None:
    for number in range(52):
        service.call("PUT", "/alerts/rules/often", json={"hold_s": number})
    service.call("DELETE", "/alerts/rules/often")
    page.goto("/ui/events?search=slot")
    picture(page, "events")
    page.goto("/")
    page.get_by_role("link", name="Events").click()
    rows = page.locator("tr.event")
    expect(rows).to_have_count(50)
    page.get_by_label("Search", exact=True).fill("RULE OFTEN")
    page.get_by_role("button", name="Find").click()
    assert "search=RULE+OFTEN" in page.url
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    # What was added in between does not move what comes next.
    expect(rows.last).to_contain_text("was made")
    page.get_by_role("link", name="Newest").click()
    expect(rows.first).to_contain_text("Alert rule often was dropped")
    expect(rows.first).to_contain_text("python-httpx")
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Slot", exact=True).fill(slot)
    page.get_by_label("Kind", exact=True).select_option("action")
    page.get_by_role("button", name="Find").click()
    expect(rows.first).to_contain_text(f"Slot {slot} was created")
    _looked_at(page, tmp_path, "events")
    rows.first.get_by_role("link", name=slot).click()
    expect(page.get_by_role("heading", name=slot)).to_be_visible()
    # What can't be is said; what was not found, too.
    page.goto("/ui/events?since=yesterdayish")
    expect(page.get_by_role("alert")).to_contain_text("is no time")
    page.goto("/ui/events?before=x")
    expect(page.get_by_role("alert")).to_contain_text("before is 'x'")
    page.goto("/ui/events?search=100%25")
    expect(page.get_by_text("No event that is kept fits.")).to_be_visible()
