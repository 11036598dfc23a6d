"""The real terraform or tofu, with the provider installed as users install it, for one directory
alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, ClassVar

from harness.terraform_core import PROVIDER, TERRAFORM

if TYPE_CHECKING:
    from pathlib import Path

    from harness.service import Service


def command_line() -> str | None:
    """Give the path of terraform or tofu, if one is installed."""
    return shutil.which("terraform") or shutil.which("tofu")


class Terraform:
    """A working directory, with the provider installed for it alone."""

    #: those that the reference shows
    EXAMPLES: ClassVar[Path] = TERRAFORM / "examples"

    def __init__(self, folder: Path, service: Service, token: str, **variables: str) -> None:
        cli = command_line()
        assert cli is not None
        self._cli = cli
        self.folder = folder
        mirror = folder / "mirror"
        subprocess.run(
            [PROVIDER, "install", "--into", mirror], check=True, capture_output=True, timeout=120
        )
        (folder / "cli.tfrc").write_text(
            "provider_installation {\n"
            f"  filesystem_mirror {{\n"
            f'    path = "{mirror}"\n'
            '    include = ["terraform.local/*/*"]\n'
            f"  }}\n"
            "}\n"
        )
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "SPILLWAY_"))}
        self.environment = {
            **inherited,
            "TF_CLI_CONFIG_FILE": str(folder / "cli.tfrc"),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
            **{f"TF_VAR_{name}": value for name, value in variables.items()},
            "SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}",
            "SPILLWAY_TOKEN": token,
        }

    def write(self, *parts: str) -> None:
        (self.folder / "main.tf").write_text("\n".join(parts))

    def __call__(self, *arguments: str, expect: int = 0) -> str:
        answer = subprocess.run(
            [self._cli, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=900,
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
