"""What happened to a row, by the page: found, read, gone on from, and gone back to before it."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pyarrow as pa
from playwright.sync_api import expect

from harness.browser import check_axe
from spillway.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from playwright.sync_api import Page

    from harness.cluster import Database
    from harness.service import Service

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


def test_who_changed_this_row(
    slot: str,
    shop: Database,
    service: Service,
    page: Page,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = shop.value(
        "INSERT INTO orders (customer_id, total, status) VALUES (7, 19.90, 'new') RETURNING id"
    )
    shop.execute(f"UPDATE orders SET status = '{HOSTILE}' WHERE id = {number}")
    shop.execute(f"UPDATE orders SET status = NULL, total = 0 WHERE id = {number}")
    service.wait_decoded(slot, shop)
    page.goto("/")
    page.get_by_role("link", name="Changes").click()
    page.get_by_label("Database").fill("shop")
    page.get_by_label("Table").fill("orders")
    page.get_by_label("Key").fill(f"id = {number}")
    page.get_by_role("button", name="Find").click()
    changes = page.locator("article.change")
    expect(changes).to_have_count(3)
    expect(changes.nth(0)).to_contain_text("update")
    marked = changes.nth(0).locator("tr.is-changed")
    expect(marked).to_have_count(2)
    expect(marked.nth(0)).to_contain_text("19.90")
    expect(marked.nth(1)).to_contain_text(HOSTILE)
    expect(marked.nth(1)).to_contain_text("null")
    assert page.title() == "Changes · Spillway"
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.screenshot(path=tmp_path / f"changes-{theme}-{width}.png", full_page=True)
        check_axe(page, f"changes, {theme}")
    exported(page, service, tmp_path, monkeypatch, capsys)
    # As the plugin prints it, the transaction, and the row's history from there.
    changes.nth(1).get_by_role("link", name="As test_decoding prints it").click()
    expect(changes.nth(1).locator("pre.printed")).to_contain_text(HOSTILE)
    changes.nth(2).get_by_role("link", name="Its transaction").click()
    expect(page.locator("article.change")).to_have_count(1)
    first_lsn = page.locator("article.change code.lsn").inner_text()
    expect(page.get_by_label("From LSN")).to_have_value(first_lsn)
    expect(page.get_by_text("One transaction, whose")).to_be_visible()
    # Its LSN is a bound as any: all that came since.
    page.get_by_label("Up to LSN").fill("")
    page.get_by_role("button", name="Find").click()
    expect(changes).to_have_count(3)
    expect(page.get_by_text("One transaction, whose")).to_have_count(0)
    page.go_back()
    page.get_by_role("link", name="History of this row").click()
    expect(changes).to_have_count(3)
    # What is asked is in the address; what can't be is said in the page.
    page.get_by_label("Key").fill("id = x")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("alert")).to_contain_text("whole numbers")
    page.go_back()
    # A slot goes back to before the first of them.
    first = changes.nth(2)
    committed = first.locator("code.lsn").inner_text()
    first.get_by_text("Take a slot back to before this").click()
    first.get_by_role("button", name=f"Rewind {slot}").click()
    expect(page.get_by_role("heading", name=slot)).to_be_visible()
    assert service.call("GET", f"/slots/{slot}")["confirmed_flush_lsn"] == committed


def exported(
    page: Page,
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page's files have what it shows, and so has the command that it names."""
    with page.expect_download() as saved:
        page.get_by_role("link", name="JSON lines").click()
    assert saved.value.suggested_filename == "changes.jsonl"
    saved.value.save_as(tmp_path / "changes.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "changes.jsonl").read_text().splitlines()]
    shown = page.locator("article.change code.lsn").all_inner_texts()
    assert [change["commit_lsn"] for change in lines] == shown
    with page.expect_download() as saved:
        page.get_by_role("link", name="Arrow", exact=True).click()
    saved.value.save_as(tmp_path / "changes.arrows")
    with pa.OSFile(str(tmp_path / "changes.arrows")) as file:
        rows = pa.ipc.open_stream(file).read_all().to_pylist()
    assert [row["columns"] for row in rows] == [change["columns"] for change in lines]
    page.get_by_text("The same by command and curl").click()
    command = page.locator(".as-commands pre").first.inner_text()
    monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
    words = [word for word in shlex.split(command) if word != "\n"]
    assert main([*words[1:], "-o", "jsonl"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines


def test_from_where_one_is(
    slot: str, shop: Database, service: Service, page: Page, picture: Callable[..., None]
) -> None:
    """The pages of a slot, a source and a table lead to what happened there."""
    shop.execute("INSERT INTO customers VALUES (77, 'Ada', 'Linz')")
    shop.execute("ALTER TABLE customers REPLICA IDENTITY FULL")
    shop.execute("UPDATE customers SET city = 'Wien' WHERE id = 77")
    shop.execute("ALTER TABLE customers REPLICA IDENTITY DEFAULT")
    service.wait_decoded(slot, shop)
    page.goto(f"/ui/slots/{slot}")
    page.get_by_role("link", name="All that is retained").click()
    expect(page.get_by_label("Database")).to_have_value("shop")
    expect(page.locator("article.change").first).to_be_visible()
    page.goto("/ui/sources/main")
    page.get_by_text("Tables of shop").click()
    page.get_by_role("link", name="public.customers").click()
    expect(page.get_by_label("Table")).to_have_value("public.customers")
    expect(page.locator("article.change").first).to_contain_text("Wien")
    picture(page, "changes")


def test_logical_messages(slot: str, shop: Database, service: Service, page: Page) -> None:
    shop.execute(
        "BEGIN; INSERT INTO visits VALUES (now(), '/with a message');"
        f"SELECT pg_logical_emit_message(true, 'audit', '{HOSTILE}'); COMMIT"
    )
    shop.execute(r"SELECT pg_logical_emit_message(false, 'bytes', '\xff00fe'::bytea)")
    shop.execute("INSERT INTO visits VALUES (now(), '/behind')")
    service.wait_decoded(slot, shop)
    page.goto("/ui/changes?database=shop")
    page.get_by_label("Operation").select_option("message")
    page.get_by_role("button", name="Find").click()
    changes = page.locator("article.change")
    expect(changes).to_have_count(2)
    outside, audit = changes.nth(0), changes.nth(1)
    expect(outside).to_contain_text("\\xff00fe")
    expect(outside).to_contain_text("3 bytes, which are not UTF-8; not transactional: told at once")
    expect(outside).to_contain_text("outside of transactions")
    expect(outside.get_by_role("link", name="Its transaction")).to_have_count(0)
    expect(audit).to_contain_text(HOSTILE)
    expect(audit).to_contain_text("transactional: told when its transaction committed")
    assert page.title() == "Changes · Spillway"
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    check_axe(page, "messages")
    page.set_viewport_size({"width": 1440, "height": 900})
    outside.get_by_role("link", name="As test_decoding prints it").click()
    expect(outside.locator("pre.printed")).to_contain_text("prefix: bytes, sz: 3 content:")
    audit.get_by_role("link", name="Its transaction").click()
    expect(changes).to_have_count(2)
    expect(changes.nth(0)).to_contain_text("/with a message")
    expect(changes.nth(1)).to_contain_text("audit")
    page.goto("/ui/changes?database=shop")
    page.get_by_label("Prefix of messages").fill("audit")
    page.get_by_role("button", name="Find").click()
    expect(changes).to_have_count(1)
