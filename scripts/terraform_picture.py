"""Make the picture of docs/how-to/terraform.md: the example, really applied, as a terminal shows
it.

``PYTHONPATH=tests .venv/bin/python scripts/terraform_picture.py``, where terraform or tofu is on
PATH. A PostgreSQL and a service of its own, and a lake in a temporary directory.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.cluster import Cluster
from harness.servers import cache_directory
from harness.service import service_in_process
from harness.terraform_cli import Terraform
from harness.terraform_core import PROJECT, TERRAFORM

PICTURE = PROJECT / "docs" / "how-to" / "terraform-apply.svg"
TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(10, 2));
INSERT INTO customers SELECT i, 'customer ' || i FROM generate_series(1, 1000) i;
INSERT INTO orders SELECT i, 1 + i % 1000, i / 7.0 FROM generate_series(1, 20000) i;
"""


def main() -> None:
    """Apply the example, and write the picture of what was shown."""
    os.environ.setdefault("SPILLWAY_JARS", str(cache_directory() / "jars"))
    cluster = Cluster(18)
    cluster.start()
    folder = Path(tempfile.mkdtemp(prefix="spillway-picture-"))
    try:
        shop = cluster.create_database("shop")
        shop.execute(TABLES)
        with service_in_process(folder / "data") as service:
            example = folder / "example"
            shutil.copytree(TERRAFORM / "examples" / "lake", example)
            lake = folder / "lake"
            terraform = Terraform(
                example, service, "", dsn=shop.dsn, database="shop", path=str(lake)
            )
            terraform("init", "-input=false")
            applied = terraform("apply", "-auto-approve", "-input=false")
            again = terraform("plan", "-input=false")
            terraform("destroy", "-auto-approve", "-input=false")
    finally:
        cluster.destroy()
        shutil.rmtree(folder, ignore_errors=True)
    _draw(applied.replace(str(lake), "/srv/lake/shop"), again)
    print(PICTURE)


def _draw(applied: str, again: str) -> None:
    # What comes before the actions is the plan, a screen of attributes.
    begin = applied.index("spillway_source.shop: Creating...")
    actions = applied[applied.rindex("\n", 0, begin) + 1 :]
    shown = "\n".join(line for line in actions.splitlines() if "Still creating" not in line)
    nothing = next(line for line in again.splitlines() if "No changes" in line)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device
        console = Console(record=True, width=100, file=nowhere, force_terminal=True)
        for command, output in (("terraform apply", shown), ("terraform plan", nothing)):
            console.print(f"[bold]$ {command}")
            console.print(Text.from_ansi(output.strip("\n")))
            console.print()
        svg = console.export_svg(title="examples/lake")
    # Fonts of the reader's machine: nothing is fetched from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    lines = (line.rstrip() for line in svg.splitlines())
    PICTURE.write_text("\n".join(line for line in lines if line) + "\n")


if __name__ == "__main__":
    main()
