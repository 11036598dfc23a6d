"""From an empty service to a lake's table by one apply: the example, by the real command line where
there is one.

Where there is none, the same three objects are made over the protocol.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from harness.service import service_in_process
from harness.terraform_cli import Terraform, command_line
from harness.terraform_core import TERRAFORM, Core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

TOKEN = "terraform's token"


@pytest.fixture
def lake_service(
    tmp_path: Path, jar_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    monkeypatch.setenv("SPILLWAY_JARS", str(jar_folder))
    with service_in_process(tmp_path / "data", token=TOKEN) as running:
        yield running
        for subscription in running.call("GET", "/subscriptions")["subscriptions"]:
            running.call("DELETE", f"/subscriptions/{subscription['name']}")
        for slot in running.call("GET", "/slots")["slots"]:
            running.drop_slot(slot["slot_name"])
        for source in running.call("GET", "/sources")["sources"]:
            running.call("DELETE", f"/sources/{source['name']}")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_example_fills_a_lake(
    lake_service: Service, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)")
    database.execute("INSERT INTO orders VALUES (1, 'pen'), (2, 'ink')")
    lake = tmp_path / "lake"
    variables = {"dsn": database.dsn, "database": database.name, "path": str(lake)}
    if command_line() is None:
        apply_by_protocol(lake_service, variables)
    else:
        folder = tmp_path / "example"
        shutil.copytree(TERRAFORM / "examples" / "lake", folder)
        terraform = Terraform(folder, lake_service, TOKEN, **variables)
        terraform("init", "-input=false", "-no-color")
        assert "3 added, 0 changed, 0 destroyed" in terraform.apply()
        terraform.plan(expect=0)
        destroyed = terraform("destroy", "-auto-approve", "-no-color")
        assert "3 destroyed" in destroyed
    # What was filled stays.
    table = DeltaTable(str(lake / "current" / "public.orders"))
    rows: list[dict[str, Any]] = pa.table(table.to_pyarrow_table()).to_pylist()
    assert sorted((row["id"], row["item"]) for row in rows) == [(1, "pen"), (2, "ink")]


def apply_by_protocol(service: Service, variables: dict[str, str]) -> None:
    with Core() as core:
        core.configure(endpoint=f"http://127.0.0.1:{service.http_port}", token=TOKEN)
        source = core.make("spillway_source", name="shop", dsn=variables["dsn"])
        slot = core.make(
            "spillway_slot",
            slot_name="shop_to_lake",
            source="shop",
            database=variables["database"],
            plugin="arrow",
        )
        config = {
            "name": "shop_to_lake",
            "source": "shop",
            "database": variables["database"],
            "slot": "shop_to_lake",
            "target": {"kind": "lake", "path": variables["path"], "driver_memory": "1g"},
        }
        subscription = core.make("spillway_subscription", **config)
        assert subscription["state"] == "streaming"
        plan = core.plan(
            "spillway_subscription", core.read("spillway_subscription", subscription), config
        )
        assert plan.action == "no-op"
        core.destroy("spillway_subscription", subscription)
        core.destroy("spillway_slot", slot)
        core.destroy("spillway_source", source)
