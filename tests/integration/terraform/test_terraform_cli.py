"""The provider under the real terraform or tofu, installed as users install it.

Where neither is on PATH these tests can't run, and say so: in pytest's summary, and as a warning of
the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.terraform_cli import Terraform, command_line

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

if command_line() is None:
    pytest.skip(
        "NEITHER terraform NOR tofu IS ON PATH: the provider is not tested with the real command "
        "line. Its protocol is (test_terraform_protocol.py).",
        allow_module_level=True,
    )

HEADER = """
terraform {
  required_providers {
    spillway = { source = "terraform.local/spillway/spillway" }
  }
}

provider "spillway" {
  # No double is equal to it: it travels as text.
  timeout = 120.1
}

variable "dsn" {
  type      = string
  sensitive = true
}
"""
SOURCE_AND_SLOT = """
resource "spillway_source" "shop" {
  name = "shop"
  dsn  = var.dsn

  wait_timeout = 100.3
}

resource "spillway_slot" "orders" {
  slot_name = "orders"
  source    = spillway_source.shop.name
  database  = "%s"
  options   = { "include-xids" = "0" }
}

data "spillway_slot" "orders" {
  slot_name = spillway_slot.orders.slot_name
}

output "plugin" {
  value = data.spillway_slot.orders.plugin
}
"""


@pytest.fixture
def terraform(tmp_path: Path, service: Service, database: Database) -> Terraform:
    return Terraform(tmp_path, service, "terraform's token", dsn=database.dsn)


@pytest.mark.long
def test_from_nothing_to_nothing(
    terraform: Terraform, service: Service, database: Database
) -> None:
    configuration = SOURCE_AND_SLOT % database.name
    terraform.write(HEADER, configuration)
    terraform("init", "-input=false", "-no-color")
    # A name that PostgreSQL doesn't take, before anything is asked.
    terraform.write(HEADER, configuration.replace('slot_name = "orders"', 'slot_name = "Orders"'))
    assert "invalid character" in " ".join(terraform("validate", "-no-color", expect=1).split())
    terraform.write(HEADER, configuration)
    created = terraform.apply()
    assert "2 added, 0 changed, 0 destroyed" in created
    assert 'plugin = "test_decoding"' in created
    assert database.dsn not in created
    terraform.plan(expect=0)
    state = terraform.state()
    assert state["spillway_source.shop"]["state"] == "streaming"
    assert service.slot("orders")["options"] == {"include-xids": "0"}
    # Drift: somebody drops the slot. The plan makes it again, and protects it.
    service.drop_slot("orders")
    terraform.write(
        HEADER, configuration.replace("  options ", "  deletion_protection = true\n  options ")
    )
    assert "spillway_slot.orders will be created" in terraform.plan(expect=2)
    terraform.apply()
    refused = terraform("destroy", "-auto-approve", "-no-color", expect=1)
    assert 'Slot "orders" is protected' in refused
    assert "deletion_protection" in refused
    # A replacement is shown, and refused as well until the protection is lifted.
    other = configuration.replace('{ "include-xids" = "0" }', "{}\n  two_phase = true")
    terraform.write(HEADER, other.replace("  options ", "  deletion_protection = true\n  options "))
    assert 'Slot "orders" is protected' in terraform.plan(expect=1)
    terraform.write(HEADER, configuration)
    assert "0 added, 1 changed, 0 destroyed" in terraform.apply()
    terraform.write(HEADER, other)
    assert "forces replacement" in terraform.plan(expect=2)
    assert "1 added, 0 changed, 1 destroyed" in terraform.apply()
    assert service.slot("orders")["options"] == {}
    terraform.plan(expect=0)
    # Out of one state, by import blocks into another.
    terraform("state", "rm", "spillway_slot.orders", "spillway_source.shop")
    imports = (
        'import {\n  to = spillway_source.shop\n  id = "shop"\n}\n'
        'import {\n  to = spillway_slot.orders\n  id = "orders"\n}\n'
    )
    terraform.write(HEADER, other, imports)
    assert "2 imported, 0 added, 2 changed, 0 destroyed" in terraform.apply()
    terraform.plan(expect=0)
    assert "2 destroyed" in terraform("destroy", "-auto-approve", "-no-color")
    assert service.call("GET", "/slots")["slots"] == []
    assert service.call("GET", "/sources")["sources"] == []
