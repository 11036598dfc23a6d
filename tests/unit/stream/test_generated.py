"""What is made of proto/: the committed modules, and stubs that users make of it themselves; REST's
calls one for one.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spillway.v1 import alerts_pb2, changes_pb2, slots_pb2, subscriptions_pb2, watch_pb2

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_proto", ROOT / "scripts" / "generate_proto.py"
    )
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_generated_modules_are_up_to_date(script: ModuleType, tmp_path: Path) -> None:
    fresh = {path.name: path.read_text() for path in script.generate(tmp_path)}
    committed = {path.name: path.read_text() for path in script.OUTPUT.glob("*_pb2*.py*")}
    assert committed == fresh, "run make proto"


def test_the_clients_modules_are_up_to_date(script: ModuleType, tmp_path: Path) -> None:
    fresh = {path.name: path.read_text() for path in script.generate_client(tmp_path)}
    committed = {path.name: path.read_text() for path in script.CLIENT_OUTPUT.glob("*_pb2*.py*")}
    assert committed == fresh, "run make proto"


def test_stubs_of_a_user_go_together_with_the_package(script: ModuleType, tmp_path: Path) -> None:
    """protoc names them spillway.v1…, in the user's own tree, which may come first on the path or
    last.
    """
    own = tmp_path / "spillway" / "v1"
    own.mkdir(parents=True)
    script.generate(own)
    program = (
        "import sys; sys.path.insert({place}, {tree!r})\n"
        "from spillway.v1 import slots_pb2, change_stream_pb2_grpc, subscriptions_pb2_grpc\n"
        "import spillway.errors, spillway.stream.client\n"
        "assert spillway.stream.client.slots_pb2 is slots_pb2\n"
        "print(slots_pb2.Slot(slot_name='s').slot_name)\n"
    )
    for place in (0, 1000):
        run = subprocess.run(
            [sys.executable, "-c", program.format(place=place, tree=str(tmp_path))],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (run.returncode, run.stdout) == (0, "s\n"), run.stderr


def test_every_rest_call_has_one_here() -> None:
    """grpc.md promises it: operation by operation, so that a new one is not forgotten."""
    document = json.loads((ROOT / "openapi" / "spillway-v1.json").read_text())
    rest = {
        operation["operationId"]
        for path, operations in document["paths"].items()
        if path.startswith("/v1/")
        for operation in operations.values()
    }
    services = {
        **slots_pb2.DESCRIPTOR.services_by_name,
        **subscriptions_pb2.DESCRIPTOR.services_by_name,
        **changes_pb2.DESCRIPTOR.services_by_name,
        **alerts_pb2.DESCRIPTOR.services_by_name,
        **watch_pb2.DESCRIPTOR.services_by_name,
    }
    calls = {
        re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        for service in services.values()
        for method in service.methods
    }
    # Who may come in is for REST alone, as grpc.md says.
    users = {name for name in rest if re.search(r"_users?$", name)}
    assert users == {"get_user", "list_users", "alter_user", "create_user", "drop_user"}
    assert calls == rest - users
