"""The provider under the real terraform or tofu, installed as users install it.

Where neither is on PATH these tests can't run, and say so: in pytest's summary, and as a warning of the session.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from harness.terraform_core import PROVIDER, command_line

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

CLI = command_line()
if CLI is None:
    pytest.skip(
        "NEITHER terraform NOR tofu IS ON PATH: the provider is not tested with the real command line. "
        "Its protocol is (test_terraform_protocol.py).",
        allow_module_level=True,
    )

HEADER = """
terraform {
  required_providers {
    spillway = { source = "terraform.local/spillway/spillway" }
  }
}

provider "spillway" {}

variable "dsn" {
  type      = string
  sensitive = true
}
"""
SOURCE_AND_SLOT = """
resource "spillway_source" "shop" {
  name = "shop"
  dsn  = var.dsn
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


class Terraform:
    """A working directory, with the provider installed for it alone."""

    def __init__(self, folder: Path, service: Service, dsn: str, token: str) -> None:
        self.folder = folder
        mirror = folder / "mirror"
        subprocess.run(
            [PROVIDER, "install", "--into", mirror], check=True, capture_output=True, timeout=120
        )
        (folder / "cli.tfrc").write_text(
            "provider_installation {\n"
            f'  filesystem_mirror {{\n    path = "{mirror}"\n    include = ["terraform.local/*/*"]\n  }}\n'
            "}\n"
        )
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "SPILLWAY_"))}
        self.environment = {
            **inherited,
            "TF_CLI_CONFIG_FILE": str(folder / "cli.tfrc"),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
            "TF_VAR_dsn": dsn,
            "SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}",
            "SPILLWAY_TOKEN": token,
        }

    def write(self, *parts: str) -> None:
        (self.folder / "main.tf").write_text("\n".join((HEADER, *parts)))

    def __call__(self, *arguments: str, expect: int = 0) -> str:
        answer = subprocess.run(
            [str(CLI), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        assert answer.returncode == expect, f"{arguments}: {answer.returncode}\n{answer.stdout}"
        return answer.stdout

    def plan(self, expect: int) -> str:
        """Plan; 0 is nothing to do, 2 is something."""
        return self("plan", "-input=false", "-no-color", "-detailed-exitcode", expect=expect)

    def apply(self, *arguments: str, expect: int = 0) -> str:
        options = ("-auto-approve", "-input=false", "-no-color", *arguments)
        return self("apply", *options, expect=expect)

    def state(self) -> dict[str, Any]:
        """The attributes of each resource by address."""
        shown = json.loads(self("show", "-json"))
        resources = shown["values"]["root_module"].get("resources", [])
        return {one["address"]: one["values"] for one in resources}


@pytest.fixture
def terraform(tmp_path: Path, service: Service, database: Database) -> Terraform:
    return Terraform(tmp_path, service, database.dsn, "terraform's token")


def test_from_nothing_to_nothing(
    terraform: Terraform, service: Service, database: Database
) -> None:
    configuration = SOURCE_AND_SLOT % database.name
    terraform.write(configuration)
    terraform("init", "-input=false", "-no-color")
    # A name that PostgreSQL doesn't take, before anything is asked.
    terraform.write(configuration.replace('slot_name = "orders"', 'slot_name = "Orders"'))
    assert "invalid character" in " ".join(terraform("validate", "-no-color", expect=1).split())
    terraform.write(configuration)
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
    terraform.write(configuration.replace("  options ", "  deletion_protection = true\n  options "))
    assert "spillway_slot.orders will be created" in terraform.plan(expect=2)
    terraform.apply()
    refused = terraform("destroy", "-auto-approve", "-no-color", expect=1)
    assert 'Slot "orders" is protected' in refused
    assert "deletion_protection" in refused
    # A replacement is shown, and refused as well until the protection is lifted.
    other = configuration.replace('{ "include-xids" = "0" }', "{}")
    terraform.write(other.replace("  options ", "  deletion_protection = true\n  options "))
    assert 'Slot "orders" is protected' in terraform.plan(expect=1)
    terraform.write(configuration)
    assert "0 added, 1 changed, 0 destroyed" in terraform.apply()
    terraform.write(other)
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
    terraform.write(other, imports)
    assert "2 imported, 0 added, 2 changed, 0 destroyed" in terraform.apply()
    terraform.plan(expect=0)
    assert "2 destroyed" in terraform("destroy", "-auto-approve", "-no-color")
    assert service.call("GET", "/slots")["slots"] == []
    assert service.call("GET", "/sources")["sources"] == []
