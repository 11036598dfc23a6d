"""Where Terraform finds a provider that is in no registry: a directory laid out as a filesystem
mirror.

What lies there is a script that starts this installation's Python, so an upgrade of the package
needs no second step unless its version changes.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def platform_name() -> str:
    """Name this machine as Terraform does."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}_{_ARCHITECTURES.get(machine, machine)}"


def install(into: Path, address: str, version: str) -> Path:
    """Put the provider into a filesystem mirror, and say where its executable is."""
    folder = into.joinpath(*address.split("/"), version, platform_name())
    folder.mkdir(parents=True, exist_ok=True)
    executable = folder / f"terraform-provider-spillway_v{version}"
    # Terraform may be starting the one that is there: it is replaced, never written to.
    new = executable.with_name(f".{executable.name}.{os.getpid()}")
    new.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m terraform_provider_spillway\n"
    )
    new.chmod(0o755)
    new.replace(executable)
    return executable
