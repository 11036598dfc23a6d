"""What forms say otherwise: each of it, run as it stands there, makes the same."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from harness.fake_service import FakeService
from spillway.admin.equivalents import equivalents_of
from spillway.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[3] / "terraform" / "docs" / "resources"
DSN = "host=db2 dbname=shop user=filler"
SLOT = {
    "slot_name": "it",
    "source": "shop",
    "database": "shop",
    "plugin": "test_decoding",
    "options": {"include-xids": "0", "skip-empty-xacts": "on"},
}
LAKE = {
    "name": "it",
    "source": "shop",
    "database": "shop",
    "target": {
        "kind": "lake",
        "format": "delta",
        "path": "/srv/a lake/it's",
        "retention": "30d",
        "cluster_by": {"public.orders": ["region", "at"]},
        "conf": {"spark.sql.shuffle.partitions": "8"},
        "partition_root": ["public.measurements"],
        "soft_deletes": ["public.orders", "all"],
        "mask": {"public.orders": ["hash(email)", "constant(note:left out)"]},
        "merge_interval": {"all": "1m", "public.orders": "0s"},
    },
    "tables": ["public.orders", 'public."odd name"'],
    "copy_data": False,
}
POSTGRES = {
    "name": "it",
    "source": "shop",
    "database": "shop",
    "target": {"kind": "postgres", "dsn": DSN, "create_tables": True, "dead_letter": True},
    "publications": ["p"],
}
SOURCE = {
    "name": "other",
    "capture": {"origin": "none", "tables": ["public.*"], "publications": []},
}
#: The first lake has its checks imported, with what they need.
_TIMEOUT_S: Final = 60.0
CASES = [("slot", SLOT), ("subscription", LAKE), ("subscription", POSTGRES), ("source", SOURCE)]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeService]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with FakeService() as service:
        service.engine.add_source("shop")
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        yield service


def made(service: FakeService) -> Any:
    """Return what there is, and make it gone."""
    engine, subscriptions = service.engine, service.subscriptions.subscriptions
    slots = [(s.slot_name, s.source, s.plugin, dict(s.options)) for s in engine.slots.values()]
    filled = [
        (s.name, s.source, s.database, dict(s.target), s.tables, s.publications, s.copy_data)
        for s in subscriptions.values()
    ]
    sources = [(s.name, s.dsn) for s in engine.sources.values() if s.name != "shop"]
    engine.slots.clear()
    subscriptions.clear()
    engine.sources.pop("other", None)
    return slots, filled, sources


@pytest.mark.parametrize(("kind", "body"), CASES)
def test_each_makes_the_same(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, kind: str, body: dict[str, Any]
) -> None:
    whole = {**body, "dsn": DSN} if kind == "source" else body
    address = f"http://127.0.0.1:{service.http_port}"
    wanted = httpx.post(f"{address}/v1/{kind}s", json=whole, timeout=_TIMEOUT_S)
    assert wanted.status_code == 201, wanted.text
    expected = made(service)
    curl, command, _ = (one.text for one in equivalents_of(kind, body))
    assert DSN not in curl + command
    # As a shell has it: the words that each program gets.
    words = _words(curl.replace("curl ", "", 1))
    sent = httpx.post(
        words[2],
        content=words[words.index("-d") + 1],
        headers={"Content-Type": "application/json"},
        timeout=_TIMEOUT_S,
    )
    assert sent.status_code == 201, sent.text
    assert made(service) == expected
    monkeypatch.setattr("sys.stdin", io.StringIO(DSN))
    assert main(_words(command.partition(" <<< ")[0])[1:]) == 0
    assert made(service) == expected


def _words(text: str) -> list[str]:
    """Have a shell take a command apart."""
    program = 'for word in "$@"; do printf "%s\\0" "$word"; done'
    line = f"set -- {text}\n{program}"
    environment = {"SOURCE_DSN": DSN, "TARGET_DSN": DSN, "SPILLWAY_TOKEN": "t"}
    environment |= {"SPILLWAY_URL": os.environ["SPILLWAY_URL"]}
    done = subprocess.run(
        ["/bin/bash", "-c", line], capture_output=True, check=True, env=environment
    )
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize(("kind", "body"), CASES)
def test_terraform_knows_the_arguments(kind: str, body: dict[str, Any]) -> None:
    text = equivalents_of(kind, body)[2].text
    assert DSN not in text
    resource = text[text.index("resource") :]
    named = set(re.findall(r"^  ([a-z_]+) = ", resource, re.MULTILINE))
    known = set(re.findall(r"^\| `([a-z_]+)`", (DOCS / f"{kind}.md").read_text(), re.MULTILINE))
    assert named <= known
    assert resource.count("{") == resource.count("}")


def test_a_form_that_is_not_filled_in() -> None:
    body = {**SLOT, "slot_name": "", "options": {}}
    _, command, _ = equivalents_of("slot", body)
    assert shlex.split(command.text.replace("\\\n", ""))[2:4] == ["create", "NAME"]
    # A template of Terraform's is none of ours.
    assert '"$${x}"' in equivalents_of("slot", {**SLOT, "plugin": "${x}"})[2].text
