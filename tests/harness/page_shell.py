"""A reader's shell: the commands of a how-to, or of the admin UI, run as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 120


class PageShell:
    """Runs scripts in bash, with ``spillway`` as it is here.

    Args:
        directory: where the command may be put.
        http_port: of the service that it talks to.
    """

    def __init__(self, directory: Path, http_port: int) -> None:
        command = directory / "bin" / "spillway"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m spillway.cli "$@"\n')
        command.chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "SPILLWAY_URL": f"http://127.0.0.1:{http_port}",
        }

    def __call__(self, script: str) -> str:
        """Run *script*, which must succeed; return what it printed."""
        done = subprocess.run(
            ["bash", "-ec", script],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (script, done.stderr)
        return done.stdout
