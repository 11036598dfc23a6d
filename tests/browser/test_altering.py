"""Sources, slots and subscriptions altered on their pages, and what a source leaves out from the
beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from harness.cluster import Cluster, Database
    from harness.service import Service


def test_a_source_captures_a_part_and_is_reached_otherwise(
    nothing: None, page: Page, cluster: Cluster, shop: Database, service: Service
) -> None:
    page.goto("/ui/sources/new")
    page.get_by_label("Name", exact=True).fill("part")
    page.get_by_text("A connection string instead").click()
    page.get_by_label("Connection string").fill(shop.dsn)
    page.get_by_text("Capture only a part").click()
    page.get_by_label("Only these tables").fill("public.orders\n\npublic.cust*")
    page.get_by_label("Leave out what came in").check()
    page.get_by_role("button", name="Check").click()
    page.get_by_role("button", name="Add source").click()
    expect(page.get_by_role("alert")).to_contain_text("public.cust*")
    page.get_by_label("Only these tables").fill("public.orders\n\nshop.*")
    page.get_by_role("button", name="Check").click()
    page.get_by_role("button", name="Add source").click()
    expect(page.get_by_text("The source is added")).to_be_visible()
    made = service.call("GET", "/sources/part")["capture"]
    assert made == {"origin": "none", "tables": ["public.orders", "shop.*"], "publications": []}

    page.get_by_text("Another DSN").click()
    page.get_by_label("Connection string").fill("host=127.0.0.1 port=1 user=postgres dbname=shop")
    page.get_by_role("button", name="Alter source").click()
    expect(page.get_by_role("alert")).to_contain_text("source_unreachable")
    page.get_by_label("Connection string").fill(f"{shop.dsn} application_name=another")
    page.get_by_role("button", name="Alter source").click()
    expect(page.get_by_text("It was altered.")).to_be_visible()
    assert "application_name=another" in service.call("GET", "/sources/part")["dsn"]


def test_commands_for_the_same_stand_in_the_form(nothing: None, page: Page) -> None:
    """What a check has found, beside it, stays."""
    page.goto("/ui/sources/new")
    with page.expect_response("**/ui/sources/as-commands"):
        page.get_by_label("Name", exact=True).fill("elsewhere")
    page.get_by_text("The same by curl, command and Terraform").click()
    expect(page.locator(".as-commands")).to_contain_text("elsewhere")
    expect(page.locator("#check")).to_contain_text("A role for it")
    expect(page.locator("#check")).not_to_contain_text("elsewhere")


def test_a_slots_options(slot: str, page: Page, service: Service) -> None:
    page.goto(f"/ui/slots/{slot}")
    page.locator("details.action summary", has_text="Alter").click()
    options = page.get_by_label("Options", exact=True)
    expect(options).to_have_value("proto_version = 2\npublication_names = p")
    options.fill("proto_version = 2\nno-such-option = p")
    page.get_by_role("button", name="Alter slot").click()
    expect(page.get_by_role("alert")).to_contain_text("no-such-option")
    options.fill("proto_version = 4\npublication_names = p, q")
    page.get_by_role("button", name="Alter slot").click()
    expect(page.get_by_text("It was altered.")).to_be_visible()
    altered = service.slot(slot)["options"]
    assert altered == {"proto_version": "4", "publication_names": "p, q"}


def test_a_subscription(
    slot: str, shop: Database, page: Page, service: Service, tmp_path: Path
) -> None:
    lake = {"kind": "lake", "format": "delta", "path": str(tmp_path / "lake"), "interval_s": 0.5}
    clusters = {"public.orders": ["customer_id", "id"]}
    body = {"name": "off", "source": "main", "database": "shop", "enabled": False}
    target = {**lake, "partition_history": "day", "cluster_by": clusters}
    service.wait_decoded(slot, shop)
    service.call("POST", "/subscriptions", json={**body, "target": target})

    def alter() -> None:
        page.goto("/ui/subscriptions/off")
        page.locator("details.action summary", has_text="Alter").click()

    alter()
    page.get_by_role("button", name="Alter subscription").click()
    expect(page.get_by_text("It was altered.")).to_be_visible()
    assert service.call("GET", "/subscriptions/off")["target"] == target

    alter()
    expect(page.get_by_label("Options of the job")).to_have_value(
        "partition_history = day\ninterval_s = 0.5"
    )
    page.get_by_label("Options of the job").fill(
        "partition_history = month\nretention = 30d\nmetrics_port = 0"
    )
    page.get_by_label("Cluster current tables").fill("public.orders = id\npublic.visits =")
    page.get_by_label("Tables", exact=True).fill("public.orders\npublic.customers")
    page.get_by_role("button", name="Alter subscription").click()
    expect(page.get_by_text("It was altered.")).to_be_visible()
    altered = service.call("GET", "/subscriptions/off")
    del lake["interval_s"]
    assert altered["target"] == {
        **lake,
        "partition_history": "month",
        "retention": "30d",
        "metrics_port": 0,
        "cluster_by": {"public.orders": ["id"], "public.visits": []},
    }
    assert altered["tables"] == ["public.orders", "public.customers"]

    alter()
    page.get_by_label("Options of the job").fill("retention = 30")
    page.get_by_role("button", name="Alter subscription").click()
    expect(page.get_by_role("alert")).to_contain_text("a time such as 7d")
    page.get_by_label("Options of the job").fill("retention")
    page.get_by_role("button", name="Alter subscription").click()
    expect(page.get_by_role("alert")).to_contain_text("Line 1 of the job's options")
    assert service.call("GET", "/subscriptions/off") == altered


def test_one_table_is_paused_on_its_page(source: str, service: Service, page: Page) -> None:
    """The lake has no program here: what it says of a table that it has not told of is seen."""
    lake = {"kind": "lake", "path": "/nowhere/lake"}
    body = {"name": "lake", "source": source, "database": "shop", "target": lake, "enabled": False}
    service.call("POST", "/subscriptions", json=body)
    page.goto("/ui/subscriptions/lake")
    page.get_by_text("Pause or resume a table").click()
    page.get_by_label("Table", exact=True).fill("public.none")
    for button, call in (("Pause table", "pause"), ("Resume table", "resume")):
        with page.expect_request(f"**/tables/{call}"):
            page.get_by_role("button", name=button).click()
        expect(page.get_by_role("alert")).to_contain_text("has told of no table public.none")
    service.call("DELETE", "/subscriptions/lake")
