"""From an empty page to a slot that is read and a lake that is filled, by the pages alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page, Route

    from harness.cluster import Cluster, Database
    from harness.service import Service

    from .conftest import Visit

SPARK_PATIENCE_MS = 300_000


def _picture_of_slot(page: Page, picture: Callable[..., None]) -> None:
    """Take the form of a slot as it is where there is room, with the same by commands beside it."""
    page.set_viewport_size({"width": 1440, "height": 900})
    if page.locator(".as-commands[open]").count() == 0:
        page.locator(".as-commands summary").click()
    expect(page.locator(".as-commands pre").nth(1)).to_contain_text("--plugin arrow")
    commands, button = page.locator(".as-commands"), page.get_by_role("button", name="Create slot")
    beside, below = commands.bounding_box(), button.bounding_box()
    assert beside is not None
    assert below is not None
    assert beside["x"] > below["x"] + below["width"], "commands stand beside the form"
    picture(page, "create-slot")
    page.set_viewport_size({"width": 1280, "height": 860})


@pytest.mark.long
def test_a_newcomer_gets_to_a_lake_table(
    nothing: None,
    page: Page,
    cluster: Cluster,
    shop: Database,
    service: Service,
    lake: Path,
    picture: Callable[..., None],
) -> None:
    cluster.execute(
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT pg_read_all_data TO reader"
    )
    shop.execute(
        "DROP PUBLICATION IF EXISTS for_the_lake; CREATE PUBLICATION for_the_lake FOR TABLE orders"
    )
    shop.execute("TRUNCATE orders, customers; INSERT INTO customers VALUES (1, 'before', 'Bern')")
    page.goto("/")
    expect(page.get_by_role("heading", name="Nothing is decoded yet")).to_be_visible()
    picture(page, "empty")
    page.get_by_role("link", name="Add a source").click()

    page.get_by_label("Name", exact=True).fill("shop")
    page.get_by_label("Host").fill("127.0.0.1")
    page.get_by_label("Port").fill(str(cluster.port))
    page.get_by_label("Database").fill("shop")
    page.get_by_label("Role").fill("reader")
    page.get_by_role("button", name="Check").click()
    # What is missing, with the SQL that mends it, which is run as it stands there.
    expect(page.get_by_text("lacks the REPLICATION attribute")).to_be_visible()
    picture(page, "add-source")
    remedy = page.locator("#check pre code", has_text=re.compile("^ALTER ROLE"))
    cluster.execute(remedy.inner_text())
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("heading", name="Ready")).to_be_visible()
    assert service.call("GET", "/sources")["sources"] == [], "a check makes nothing"
    page.get_by_role("button", name="Add source").click()
    expect(page.get_by_text("The source is added")).to_be_visible()
    expect(page.get_by_role("heading", level=1, name="shop")).to_be_visible()
    expect(page.locator(".badge", has_text="streaming")).to_be_visible()

    page.get_by_role("main").get_by_role("link", name="Create slot").click()
    # Before htmx has it, a form is sent as any form, and the answer is a page of its own.
    page.wait_for_load_state()
    page.get_by_label("Name", exact=True).fill("Orders")
    page.get_by_role("button", name="Create slot").click()
    expect(page.get_by_role("alert")).to_contain_text("invalid character")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_role("radio", name="arrow").check()
    _picture_of_slot(page, picture)
    page.get_by_role("button", name="Create slot").click()
    expect(page.get_by_text("The slot is created")).to_be_visible()

    shop.execute("INSERT INTO orders (customer_id, total, status) VALUES (1, 19.90, 'new')")
    service.wait_decoded("orders", shop)
    page.get_by_role("button", name="Peek").click()
    row = page.locator("#changes tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("public.orders")
    expect(row).to_contain_text("19.90")

    page.get_by_role("link", name="Overview").first.click()
    page.get_by_role("link", name="Create subscription").click()
    page.get_by_label("Name", exact=True).fill("to_the_lake")
    page.get_by_label("Where the lake is").fill("/srv/lake/shop")
    expect(page.get_by_label("public.orders")).to_be_hidden()
    page.get_by_role("radio", name="Publications").check()
    expect(page.get_by_label("for_the_lake")).to_be_visible()
    page.get_by_role("radio", name="These tables").check()
    expect(page.get_by_label("for_the_lake")).to_be_hidden()
    page.get_by_label("public.customers").check()
    picture(page, "create-subscription")
    page.get_by_label("Where the lake is").fill("no/absolute/path")
    page.get_by_label("public.customers").uncheck()
    page.get_by_role("button", name="Create subscription").click()
    expect(page.get_by_role("alert")).to_contain_text("No table is ticked")
    # What the mirrored catalog knows, and what would stand in the way.
    expect(page.locator("label", has_text="public.visits").locator(".warn-text")).to_be_visible()
    page.get_by_label("public.customers").check()
    page.get_by_label("public.orders").check()
    page.get_by_role("button", name="Create subscription").click()
    expect(page.get_by_role("alert")).to_contain_text("no/absolute/path")
    page.get_by_label("Where the lake is").fill(str(lake))
    # What the format has of a layout, and no more.
    page.get_by_text("Layout of its files").click()
    page.get_by_label("Format").select_option("iceberg")
    expect(page.get_by_label("Prefix of namespaces")).to_be_visible()
    expect(page.get_by_label("Partition histories")).to_be_hidden()
    page.get_by_label("Format").select_option("parquet")
    expect(page.get_by_text("Layout of its files")).to_be_hidden()
    page.get_by_label("Format").select_option("delta")
    page.get_by_label("Partition histories").select_option("by month")
    page.get_by_label("Partition current tables").fill("public.orders")
    page.get_by_role("button", name="Create subscription").click()
    expect(page.get_by_role("alert")).to_contain_text("Line 1 of the partitions can't be read")
    page.get_by_label("Partition current tables").fill("public.orders = status")
    page.get_by_text("How its job runs").click()
    page.get_by_label("Options of the job").fill("driver_memory = 1g")
    page.get_by_role("button", name="Create subscription").click()
    expect(page.get_by_text("The subscription is created")).to_be_visible()

    # The real job: Spark takes its time to start. The page tells when it follows, and that the
    # tables are copied.
    state, tables = (
        page.locator(".state-line .badge"),
        page.locator("[data-live='tables'] tbody tr"),
    )
    expect(state).to_have_text("streaming", timeout=SPARK_PATIENCE_MS)
    expect(tables.filter(has_text="public.orders")).to_contain_text("ready")
    shop.execute(
        "INSERT INTO customers VALUES (7, 'after', 'Basel'); UPDATE orders SET status = 'paid'"
    )
    for table in ("public.customers", "public.orders"):
        expect(tables.filter(has_text=table).locator("td").nth(1)).to_have_text(
            "1", timeout=SPARK_PATIENCE_MS
        )
    page.goto("/ui/subscriptions/to_the_lake")
    expect(page.locator("#live")).to_have_text("live")
    # Without the log, which has this machine's paths.
    picture(page, "subscription", clip={"x": 0, "y": 0, "width": 1280, "height": 728})
    page.get_by_text("Disable or enable").click()
    page.get_by_role("button", name="Disable").click()
    expect(page.locator(".state-line .badge")).to_have_text("paused")
    for table, columns in (
        ("customers", ("id", "name", "city")),
        ("orders", ("id", "customer_id", "total", "status")),
    ):
        there = DeltaTable(str(lake / "current" / f"public.{table}"))
        rows = pa.table(there.to_pyarrow_table()).select(columns).to_pylist()
        found = [tuple(map(str, row.values())) for row in rows]
        texts = ", ".join(f"{column}::text" for column in columns)
        source = [tuple(row) for row in shop.query(f"SELECT {texts} FROM {table}")]
        assert sorted(found) == sorted(source)
    assert there.metadata().partition_columns == ["_by_status"]
    shop.execute("DROP PUBLICATION for_the_lake")


def test_a_connection_string_and_what_is_wrong_with_it(nothing: None, page: Page) -> None:
    page.goto("/ui/sources/new")
    page.get_by_label("Name", exact=True).fill("shop")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("Where is the server?")
    page.get_by_text("A connection string instead").click()
    page.get_by_label("Connection string").fill("host=127.0.0.1 port=1 user=nobody password=s3cret")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("source_unreachable")
    expect(page.get_by_role("alert")).not_to_contain_text("s3cret")


def test_there_is_no_slot_without_a_source(nothing: None, page: Page) -> None:
    page.goto("/ui/slots/new")
    expect(page.get_by_role("heading", name="There is no source to read from")).to_be_visible()


def test_options_of_a_plugin_are_checked(source: str, page: Page) -> None:
    page.goto("/ui/slots/new")
    page.get_by_label("Name", exact=True).fill("s")
    page.get_by_role("radio", name="pgoutput").check()
    expect(page.get_by_role("textbox", name="Options")).to_have_value(
        "proto_version = 2\npublication_names = "
    )
    page.get_by_role("radio", name="wal2json").check()
    expect(page.get_by_role("textbox", name="Options")).to_have_value("")
    page.get_by_role("textbox", name="Options").fill("no-such-option = 1")
    page.get_by_role("button", name="Create slot").click()
    expect(page.get_by_role("alert")).to_contain_text("no-such-option")
    page.get_by_role("textbox", name="Options").fill("nonsense")
    page.get_by_role("button", name="Create slot").click()
    expect(page.get_by_role("alert")).to_contain_text("Line 1 of the options")


def test_without_scripts_forms_work_too(
    source: str, slot: str, visit: Callable[..., Visit], service: Service
) -> None:
    page = visit(java_script_enabled=False).page
    page.goto(f"/ui/slots/{slot}")
    page.get_by_role("group", name="Actions").get_by_text("Copy", exact=True).click()
    page.get_by_label("Name of the copy").fill("twin")
    page.get_by_role("button", name="Copy slot").click()
    expect(page.get_by_text("This is the copy")).to_be_visible()
    page.get_by_role("group", name="Actions").get_by_text("Copy", exact=True).click()
    page.get_by_label("Name of the copy").fill("audit")
    page.get_by_role("button", name="Copy slot").click()
    expect(page.get_by_role("alert")).to_contain_text("already exists")
    assert {s["slot_name"] for s in service.call("GET", "/slots")["slots"]} == {"audit", "twin"}


def test_sizes_that_come_late_are_not_put_on_other_tables(
    source: str, pg15: Database, service: Service, page: Page
) -> None:
    """Of the source that was chosen before; its tables have the same places in the list."""
    service.create_source(pg15.dsn, name="other")
    late: list[Route] = []

    def hold(route: Route) -> None:
        if f"source={source}" in route.request.url:
            late.append(route)
        else:
            route.continue_()

    try:
        service.create_slot("of_the_late", pg15.name, source="other")
        pg15.execute("CREATE TABLE only_there (id int PRIMARY KEY)")
        service.wait_decoded("of_the_late", pg15)
        page.route("**/subscriptions/tables/sizes*", hold)
        page.goto(f"/ui/subscriptions/new?source={source}")
        tables = page.locator("#tables")
        expect(tables.locator("label").first).to_be_visible()
        page.get_by_label("Source").select_option("other")
        label = tables.locator("label", has_text="only_there")
        expect(label).to_contain_text("0 B")
        answered: list[str] = []
        page.on("response", lambda response: answered.append(response.url))
        assert late
        for route in late:
            route.fulfill(
                body='<p>late</p><span id="size-0-1" hx-swap-oob="true">other table</span>'
                '<span id="size-0-999" hx-swap-oob="true">no table</span>',
                content_type="text/html",
            )
        while not answered:
            page.wait_for_timeout(50)
        page.wait_for_timeout(200)
        expect(tables).not_to_contain_text("other table")
        expect(label).to_contain_text("0 B")
    finally:
        page.unroute("**/subscriptions/tables/sizes*")
        service.http.delete("/v1/slots/of_the_late")
        service.call("DELETE", "/sources/other")
        pg15.execute("DROP TABLE IF EXISTS only_there")


def test_the_source_that_is_chosen_brings_its_own_databases(
    source: str, shop: Database, pg15: Database, service: Service, page: Page
) -> None:
    service.create_source(pg15.dsn, name="other")
    try:
        page.goto(f"/ui/slots/new?source={source}")
        expect(page.get_by_label("Database")).to_have_value(shop.name)
        page.get_by_label("Source").select_option("other")
        expect(page.get_by_label("Database")).to_have_value(pg15.name)
        assert page.locator("#databases option").evaluate_all("all => all.map(o => o.value)") == [
            pg15.name
        ]
        page.get_by_role("textbox", name="Name").fill("of_the_other")
        page.get_by_role("button", name="Create slot").click()
        expect(page.get_by_role("heading", name="of_the_other")).to_be_visible()
        assert service.slot("of_the_other")["database"] == pg15.name

        pg15.execute("CREATE TABLE only_there (id int PRIMARY KEY)")
        service.wait_decoded("of_the_other", pg15)
        page.goto(f"/ui/subscriptions/new?source={source}")
        page.get_by_label("Source").select_option("other")
        expect(page.get_by_label("Database", exact=True)).to_have_value(pg15.name)
        tables = page.locator("#tables")
        expect(tables).to_contain_text("only_there")
        # The source says beside the form how large they are.
        expect(tables).to_contain_text("Sizes with TOAST")
        expect(tables.locator("label", has_text="only_there")).to_contain_text("0 B")
        expect(page.locator("#result")).to_be_attached()
        expect(page.get_by_role("button", name="Create subscription")).to_be_enabled()
    finally:
        service.http.delete("/v1/slots/of_the_other")
        service.call("DELETE", "/sources/other")
