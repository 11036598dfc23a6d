"""A slot's life on its page: looked into, followed, copied, moved, dropped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from harness.pg_port import create_user, dsn_of
from harness.replication_client import ReplicationClient
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from harness.cluster import Database
    from harness.service import Service


def test_peek_and_filter(slot: str, shop: Database, service: Service, page: Page) -> None:
    shop.execute("TRUNCATE orders; DELETE FROM customers")
    shop.execute(
        "INSERT INTO customers SELECT g, 'customer ' || g, 'Bern' FROM generate_series(1, 5) g"
    )
    shop.execute(
        "INSERT INTO orders (customer_id, total, status) VALUES (1, 10, 'new'), (2, 20, 'new')"
    )
    shop.execute("UPDATE orders SET status = 'paid' WHERE customer_id = 1")
    shop.execute("DELETE FROM customers WHERE id = 5")
    service.wait_decoded(slot, shop)
    before = service.slot(slot)["confirmed_flush_lsn"]
    page.goto(f"/ui/slots/{slot}")
    rows = page.locator("#changes tbody tr")
    page.get_by_label("Table").fill("orders")
    page.get_by_role("button", name="Peek").click()
    # Of a binary plugin's slot, too: insert, insert, update; and the truncate.
    expect(rows).to_have_count(4)
    page.get_by_label("Operation").select_option("update")
    page.get_by_role("button", name="Peek").click()
    expect(rows).to_have_count(1)
    # What it was is known, for the table's replica identity is FULL.
    expect(rows.locator("del")).to_have_text("new")
    expect(rows).to_contain_text("paid")
    page.get_by_label("Table").fill("no such table")
    page.get_by_role("button", name="Peek").click()
    expect(page.locator("#changes")).to_contain_text("fits the filter")
    assert service.slot(slot)["confirmed_flush_lsn"] == before, "looking consumes nothing"


def test_long_transactions_are_paged(
    slot: str, shop: Database, service: Service, page: Page
) -> None:
    shop.execute("DELETE FROM customers")
    service.call(
        "POST", f"/slots/{slot}/advance", json={"upto_lsn": service.wait_decoded(slot, shop)}
    )
    shop.execute(
        "INSERT INTO customers SELECT g, 'customer ' || g, 'Bern' FROM generate_series(1, 5000) g"
    )
    shop.execute("INSERT INTO visits VALUES (now(), 'the last one')")
    service.wait_decoded(slot, shop)
    page.goto(f"/ui/slots/{slot}")
    page.get_by_role("button", name="Peek").click()
    expect(page.locator("#changes")).to_contain_text("The last transaction has more.")
    page.get_by_role("button", name="More of this transaction").click()
    expect(page.locator("#changes")).to_contain_text("after the first 200 of that transaction. ")
    expect(page.locator("#changes tbody tr").last).to_contain_text("customer 399")
    page.get_by_role("button", name="Pass it over").click()
    expect(page.locator("#changes tbody tr")).to_contain_text(["the last one"])


def test_the_tail_follows(slot: str, shop: Database, service: Service, page: Page) -> None:
    shop.execute("INSERT INTO visits VALUES (now(), 'before')")
    service.wait_decoded(slot, shop)
    page.goto(f"/ui/slots/{slot}")
    page.get_by_label("Table").fill("visits")
    with page.expect_response("**/tail?*"):
        page.get_by_role("button", name="Live tail").click()
    shop.execute("INSERT INTO orders (customer_id) VALUES (1)")
    shop.execute("INSERT INTO visits VALUES (now(), 'after')")
    rows = page.locator("#changes tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("after")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Live tail")).to_be_visible()


def test_figures_follow_without_reload(
    slot: str, shop: Database, service: Service, page: Page
) -> None:
    lsn = service.wait_decoded(slot, shop)
    service.call("POST", f"/slots/{slot}/advance", json={"upto_lsn": lsn})
    page.goto(f"/ui/slots/{slot}")
    expect(page.locator("#live")).to_have_text("live")
    decoded = page.locator(".positions .lsn").last
    shown = decoded.inner_text()
    # What a reader has opened stays open while the page follows.
    page.get_by_text("Rewind", exact=True).click()
    shop.execute("INSERT INTO visits VALUES (now(), repeat('x', 3000))")
    expect(decoded).not_to_have_text(shown)
    expect(page.get_by_role("textbox", name="Position", exact=True)).to_be_visible()
    expect(page.locator("canvas")).to_have_count(3)


def test_a_life(slot: str, shop: Database, service: Service, page: Page) -> None:
    shop.execute("INSERT INTO visits VALUES (now(), 'one')")
    end = service.wait_decoded(slot, shop)
    start = service.slot(slot)["confirmed_flush_lsn"]
    page.goto(f"/ui/slots/{slot}")

    page.get_by_text("Advance", exact=True).click()
    advance = page.locator("form[action$='/advance']")
    advance.get_by_label("Type audit").fill("another")
    advance.get_by_role("button").click()
    expect(advance.get_by_role("alert")).to_contain_text("The name does not match")
    assert service.slot(slot)["confirmed_flush_lsn"] == start
    advance.get_by_label("Position").fill(end)
    advance.get_by_label("Type audit").fill("audit")
    advance.get_by_role("button").click()
    expect(page.get_by_text("The slot was advanced")).to_be_visible()
    assert service.slot(slot)["confirmed_flush_lsn"] == end

    page.get_by_text("Rewind", exact=True).click()
    rewind = page.locator("form[action$='/rewind']")
    rewind.get_by_label("Position").fill("no position")
    rewind.get_by_role("button").click()
    expect(rewind.get_by_role("alert")).to_contain_text("invalid LSN")
    rewind.get_by_label("Position").fill(start)
    rewind.get_by_role("button").click()
    expect(page.get_by_text("The slot was rewound")).to_be_visible()
    assert service.slot(slot)["confirmed_flush_lsn"] == start

    page.locator("#copy summary").click()
    page.get_by_label("Name of the copy").fill("twin")
    page.get_by_role("button", name="Copy slot").click()
    expect(page.get_by_text("This is the copy")).to_be_visible()

    page.locator("details.danger summary", has_text="Drop").click()
    page.get_by_label("Type twin to drop it").fill("twin")
    page.get_by_role("button", name="Drop slot").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert [s["slot_name"] for s in service.call("GET", "/slots")["slots"]] == ["audit"]


def test_a_slot_dropped_elsewhere(slot: str, service: Service, page: Page) -> None:
    page.goto(f"/ui/slots/{slot}")
    expect(page.locator("#live")).to_have_text("live")
    service.drop_slot(slot)
    expect(page.locator("#live")).to_have_text("it was dropped")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text('There is no slot "audit"')


def test_names_and_values_are_only_text(
    slot: str, shop: Database, service: Service, page: Page
) -> None:
    hostile = """<img src=x onerror="window.taken=1"><script>window.taken=1</script>{{7*7}}'"""
    shop.execute('DROP TABLE IF EXISTS "</td><script>window.taken=1</script>"')
    shop.execute(
        'CREATE TABLE "</td><script>window.taken=1</script>" ("<b onclick=x>" text PRIMARY KEY)'
    )
    service.wait_decoded(slot, shop)
    page.goto(f"/ui/slots/{slot}")
    with page.expect_response("**/tail?*"):
        page.get_by_role("button", name="Live tail").click()
    shop.execute('INSERT INTO "</td><script>window.taken=1</script>" VALUES (%s)', [hostile])
    rows = page.locator("#changes tbody tr")
    expect(rows).to_have_count(1)
    for way in ("tail", "peek"):
        if way == "peek":
            service.wait_decoded(slot, shop)
            page.get_by_role("button", name="Peek").click()
            expect(page.get_by_role("button", name="Live tail")).to_be_visible()
        expect(rows.locator(".table-name").last).to_have_text(
            "public.</td><script>window.taken=1</script>"
        )
        expect(rows.locator("dt").last).to_have_text("<b onclick=x>")
        expect(rows.locator("dd").last).to_have_text(hostile)
    assert page.evaluate("window.taken") is None
    shop.execute('DROP TABLE "</td><script>window.taken=1</script>"')


def test_a_client_of_postgresqls_protocol(
    slot: str, shop: Database, service: Service, page: Page
) -> None:
    """Who it is, on the slot's page, the source's and the overview; and how far it is."""
    create_user(service, "loader", "shop")
    dsn = f"{dsn_of(service, 'loader', 'shop')} application_name='Debezium <b>Streaming</b>'"
    with ReplicationClient(dsn) as client:
        client.start(slot, "proto_version '2', publication_names 'p'")
        address = service.slot(slot)["consumer"]["address"]
        page.goto(f"/ui/slots/{slot}")
        consumer = page.locator("dl.consumer")
        expect(consumer).to_contain_text("Debezium <b>Streaming</b>")
        expect(consumer).to_contain_text("PostgreSQL a stream")
        expect(consumer).to_contain_text("loader")
        expect(consumer).to_contain_text(address)
        expect(consumer).to_contain_text("not yet")
        shop.execute("INSERT INTO visits VALUES (now(), 'seen')")
        end = service.wait_decoded(slot, shop)
        client.read_to(end)
        client.feedback(Lsn.parse(end), reply_requested=True)
        # Nobody reloads.
        expect(consumer).to_contain_text(re.compile("Acknowledged[0-9]+ s ago"))
        position = page.locator(".positions li")
        expect(position.nth(1)).to_contain_text(f"Confirmed {end}")
        expect(position.nth(2)).to_contain_text(re.compile("Sent [0-9A-F]+/[0-9A-F]+"))
        for path in ("/", "/ui/sources/main"):
            page.goto(path)
            row = page.locator("tr", has=page.get_by_role("link", name=slot))
            expect(row).to_contain_text(f"Debezium <b>Streaming</b>, user loader, {address}")
    expect(row).not_to_contain_text("loader")
    service.call("DELETE", "/users/loader")
