"""The committed gRPC modules are those that proto/ gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "generate_proto", ROOT / "scripts" / "generate_proto.py"
    )
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    fresh = {path.name: path.read_text() for path in script.generate(tmp_path)}
    committed = {path.name: path.read_text() for path in script.OUTPUT.glob("*_pb2*.py*")}
    assert committed == fresh, "run make proto"
