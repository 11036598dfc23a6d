"""``spillway serve`` begins with much that stays: Python's collector is off for it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import gc, sys
import spillway.cli

during = []

def walk(phase, info):
    if "sqlalchemy" in sys.modules and not hasattr(sys.modules.get("spillway.serve"), "serve"):
        during.append(phase)

gc.callbacks.append(walk)
assert spillway.cli.main(["serve", "--host", "0.0.0.0"]) == 1
assert hasattr(sys.modules["spillway.serve"], "serve")
assert during == [], len(during)
assert gc.isenabled()
"""


def test_nothing_is_collected_while_it_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "needs a token" in done.stderr
