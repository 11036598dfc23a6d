"""What is declared once is everywhere: a column, and a lake's option, and where they turn up.

A program of its own declares one more of each before anything is made of the declarations, and
tells what was made.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest
from typer.testing import CliRunner

from harness.terraform_core import PYTHON
from spillway.declarations.lake_options import LAKE_OPTIONS
from spillway.declarations.slot_columns import SLOT_COLUMNS
from spillway.errors import NotReady
from spillway.pg.lsn import Lsn
from spillway.service import model
from spillway.subscriber.lake_options import arguments
from spillway.subscriber.lake_target import LakeTarget
from spillway.v1 import slots_pb2

if TYPE_CHECKING:
    from types import ModuleType

    from spillway.lake.job.run import JobSettings

PROJECT = Path(__file__).resolve().parents[2]
PROVIDER = PROJECT / "terraform" / "src" / "terraform_provider_spillway"

#: Declares one more, and prints what is made then: texts by where they stand.
_ONE_MORE = """
import asyncio, importlib.util, json
from pathlib import Path
from spillway.declarations import lake_options, slot_columns
from spillway.declarations.lake_options import FormField, LakeOption

slot_columns.SLOT_COLUMNS += (
    slot_columns.SlotColumn(
        "colour", "text", 99, "How bright it shines.", null="it is dark.", listed=99
    ),
)
lake_options.LAKE_OPTIONS += (
    LakeOption(
        "glow", "choice", "how bright it is.", formats=("delta",), choices=("dim", "bright"),
        form=FormField("Glow", "As it is written."),
    ),
    LakeOption("patience", "whole number", "How long it waits.", least=2, default=7),
)

import httpx
from harness.commands import parse_command
from harness.fake_engine import FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from typer.testing import CliRunner
from spillway.admin.application import Admin
from spillway.admin.rendering import Pages
from spillway.cli import slot as slot_commands
from spillway.cli import subscription as subscription_commands
from spillway.errors import SpillwayError
from spillway.lake.commands.app import app as lake_app
from spillway.slot_manager.app import create_app
from spillway.slot_manager.openapi import contract
from spillway.subscriber.lake_options import arguments
from spillway.subscriber.lake_target import LakeTarget

def script(name):
    spec = importlib.util.spec_from_file_location(name, Path("scripts") / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

async def form():
    engine, subscriptions = FakeEngine(), FakeSubscriptions()
    engine.add_source("shop")
    admin = Admin(engine, subscriptions, token=None, version="0")
    app = create_app(engine, subscriptions, token=None, version="0", admin=admin)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.get("/ui/subscriptions/new")).text

def refusal(**more):
    try:
        return LakeTarget().check({"kind": "lake", "format": "delta", "path": "/l", **more})
    except SpillwayError as error:
        return f"{error.code}: {error.message}"

RUN = ["lake", "run", "--slot=s", "--path=/l"]
CREATE = "subscription create a --source=s --database=d --path=/l".split()
given = {"glow": "bright", "patience": 9}
told = {
    name: parse_command(words)[name]
    for words in (RUN + arguments(given),)
    for name in ("glow", "patience")
}
info = {column.name: None for column in slot_columns.SLOT_COLUMNS}
info |= {"options": {}, "colour": "blue", "slot_name": "s1"}
slot_commands.call = lambda *_, **__: {"slots": [info]}
reference, proto = script("write_reference"), script("generate_proto")
print(json.dumps({
    "contract": json.loads(contract()),
    "list": CliRunner().invoke(slot_commands.app, ["list"]).stdout,
    "page": Pages("").text("slot/attributes.html", slot={"info": info}),
    "rest": reference.rest_page((reference.REFERENCE / "rest.md").read_text()),
    "provider": reference.provider_tables(),
    "proto": proto.slots_contract(proto.SLOTS.read_text()),
    "form": asyncio.run(form()),
    "commands": reference.commands_page(),
    "run": told,
    "without": parse_command(RUN)["patience"],
    "create": parse_command([*CREATE, "--glow", "dim"])["glow"],
    "job options": subscription_commands._job_options(["patience=9"]),
    "checked": [
        refusal(glow="dark"), refusal(format="iceberg", glow="dim"), refusal(patience=1),
        refusal(**given),
    ],
}))
"""


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """What is made of the declarations with one more of each."""
    answer = subprocess.run(
        [sys.executable, "-c", _ONE_MORE],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "tests")},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    told: dict[str, Any] = json.loads(answer.stdout)
    return told


def test_one_more_column_is_in_the_rest_model(made: dict[str, Any]) -> None:
    shown = made["contract"]["components"]["schemas"]["SlotView"]
    assert shown["properties"]["colour"] == {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "title": "Colour",
        "description": "How bright it shines. null: it is dark.",
    }
    assert "colour" in shown["required"]


def test_one_more_column_is_in_the_list(made: dict[str, Any]) -> None:
    heading, row = (line.split("\t") for line in made["list"].splitlines())
    assert (heading[-1], row[-1]) == ("colour", "blue")


def test_one_more_column_is_on_the_slots_page(made: dict[str, Any]) -> None:
    assert (
        '<dt><code>colour</code></dt><dd class="value">blue</dd>'
        '<dd class="meaning">How bright it shines.</dd>'
    ) in made["page"]


def test_one_more_column_is_in_the_reference(made: dict[str, Any]) -> None:
    line = "| `colour` | text, null | How bright it shines. null: it is dark. |"
    assert line in made["rest"].splitlines()


def test_one_more_column_is_in_the_message(made: dict[str, Any]) -> None:
    assert (
        "  // How bright it shines. Not set: it is dark.\n  optional string colour = 99;\n}\n"
    ) in made["proto"]


def test_one_more_option_is_of_the_job(made: dict[str, Any]) -> None:
    assert made["run"] == {"glow": "bright", "patience": 9}
    assert made["without"] == 7


def test_one_more_option_is_in_the_rest_model(made: dict[str, Any]) -> None:
    target = made["contract"]["components"]["schemas"]["LakeTarget"]["properties"]
    assert target["glow"]["anyOf"][0] == {"type": "string", "enum": ["dim", "bright"]}
    assert target["glow"]["description"] == "Delta: how bright it is."
    assert target["patience"]["anyOf"][0] == {"type": "integer"}


def test_one_more_option_is_checked_by_the_service(made: dict[str, Any]) -> None:
    assert made["checked"] == [
        "invalid_request: the lake's glow is 'dark', and must be one of dim, bright",
        "unsupported_feature: glow is of lakes in delta, and this one is of iceberg",
        "invalid_request: the lake's patience is 1, and must be a number, 2 or more",
        {"kind": "lake", "format": "delta", "path": "/l", "glow": "bright", "patience": 9},
    ]


def test_one_more_option_is_on_the_form(made: dict[str, Any]) -> None:
    of_delta = made["form"].split('<div class="of-delta">')[1].split('<div class="of-')[0]
    assert '<label for="f-glow">Glow</label><select id="f-glow" name="glow"' in of_delta
    assert '<option value="bright">bright</option>' in of_delta
    assert "metrics_port, patience." in made["form"]


def test_one_more_option_is_of_the_commands(made: dict[str, Any]) -> None:
    assert made["create"] == "dim"
    assert made["job options"] == {"patience": 9}
    create, run = (
        made["commands"].split(f"## `spillway {name}")[1].split("\n## ")[0]
        for name in ("subscription create", "lake run")
    )
    assert "| `--glow` |  | Delta: how bright it is. |" in create.splitlines()
    assert "| `--patience` | `7` | How long it waits. |" in run.splitlines()
    assert "on_schema_change, patience, register_prefix, retention." in create


def test_one_more_option_is_in_the_reference(made: dict[str, Any]) -> None:
    row = "| `patience` | `--patience` | a whole number, 2 or more | `7` | How long it waits. |"
    assert row in made["rest"].splitlines()


def test_every_option_reaches_the_job() -> None:
    from spillway.lake.commands.app import TAKEN_APART
    from spillway.lake.job.run import JobSettings

    named = {option.name for option in LAKE_OPTIONS}
    assert named <= {field.name for field in fields(JobSettings)} | TAKEN_APART
    assert named >= TAKEN_APART


def test_what_is_given_is_what_the_job_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from spillway.lake.commands import app as commands

    told: list[JobSettings] = []

    def take(jobs: list[JobSettings], **_: object) -> dict[str, object]:
        told.extend(jobs)
        raise NotReady("enough")

    monkeypatch.setattr(commands, "run_jobs", take)
    given: dict[str, Any] = {
        option.name: option.example for option in LAKE_OPTIONS if option.name != "metrics_port"
    }
    words = ["run", "--slot=s", "--path=/l", *arguments(given)]
    answer = CliRunner().invoke(commands.app, words)
    assert isinstance(answer.exception, NotReady), answer.output
    job = told[0]
    for option in LAKE_OPTIONS:
        if option.name in given and option.name not in commands.TAKEN_APART:
            assert getattr(job, option.name) == option.example, option.name
    assert (job.upkeep.retention, job.upkeep.interval) == (timedelta(days=7), timedelta(hours=2))
    assert job.upkeep.history_retention == timedelta(days=90)
    assert job.layout.history == "day"
    assert job.layout.cluster_by == {"public.orders": ("customer_id",)}
    assert [str(p) for p in job.layout.partition_by["public.orders"]] == [
        "day(created_at)",
        "region",
    ]
    # Plain, since it is written into the lake's files.
    assert type(job.on_schema_change) is str


def test_defaults_are_those_of_the_job() -> None:
    from pathlib import Path as LakePath

    from harness.commands import parse_command
    from spillway.lake.commands.app import job_settings
    from spillway.lake.job.run import JobSettings

    parsed = parse_command(["lake", "run", "--slot=s", "--path=/l"])
    options = {option.name: parsed[option.name] for option in LAKE_OPTIONS}
    here = LakePath("/l")
    assert JobSettings("s", here, here, **job_settings(options)) == JobSettings("s", here, here)


def test_good_values_are_good() -> None:
    """Those that the reference and the contract show."""
    for option in LAKE_OPTIONS:
        table_format, *_ = option.formats or ("delta",)
        target = {"kind": "lake", "path": "/l", "format": table_format}
        target[option.name] = option.example
        assert LakeTarget().check(target) == target, option.name


def test_the_contract_of_grpc_is_of_the_declaration() -> None:
    script = _script("generate_proto")
    text = script.SLOTS.read_text()
    assert script.slots_contract(text) == text, "run make proto"


def test_numbers_in_the_message_stay() -> None:
    """Against the modules that protoc made: their numbers are what clients were built with."""
    declared = {c.name: c.number for c in SLOT_COLUMNS if c.number is not None}
    assert declared == {f.name: f.number for f in slots_pb2.Slot.DESCRIPTOR.fields}
    assert len(set(declared.values())) == len(declared)


_PYTHON: dict[str, Any] = {
    "name": str, "text": str, "bool": bool, "int4": int, "int8": int, "oid": int, "xid": int,
    "pg_lsn": Lsn, "timestamptz": datetime, "float8": float,
}  # fmt: skip


def test_columns_are_the_values_of_a_slot() -> None:
    """The value of each is SlotInfo's attribute of that name and type, None where it may be
    null.
    """
    from collections.abc import Mapping

    names = {**vars(model), "datetime": datetime, "Lsn": Lsn, "Mapping": Mapping}
    values = get_type_hints(model.SlotInfo, names)
    lag_bytes = vars(model.SlotInfo)["lag_bytes"]
    assert isinstance(lag_bytes, property)
    values["lag_bytes"] = get_type_hints(lag_bytes.fget, names)["return"]
    # Looked up beside it, as it takes the log.
    values["lag_seconds"] = float | None
    records = {"consumer": model.Consumer, "decoding": model.Decoding}
    declared = {
        column.name: type_ if column.null is None else type_ | None
        for column in SLOT_COLUMNS
        for type_ in [records.get(column.name) or _PYTHON.get(column.type) or Mapping[str, str]]
    }
    assert declared == values
    assert {field.name for field in fields(model.SlotInfo)} <= set(declared)


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROJECT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_providers_tables_are_the_declarations() -> None:
    declared = _script("write_reference").provider_tables()
    assert (PROVIDER / "declared.json").read_text() == declared, (
        "run python scripts/write_reference.py"
    )


#: The provider's attributes as protocol 6 has them, by resource or data source.
_SCHEMA = """
import json
from terraform_provider_spillway.provider import SpillwayProvider

provider = SpillwayProvider()
shown = {}
for kind, things in (("resource", provider.get_resources()), ("data", provider.get_data_sources())):
    for thing in things:
        for field in thing.fields:
            for one in getattr(field, "fields", (field,)):
                attribute = one.to_pb()
                name = f"{kind}.{thing.name}.{field.name}"
                shown[name if one is field else f"{name}.{one.name}"] = [
                    json.loads(attribute.type or b"null"), attribute.description, one.values
                ]
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def schema(made: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The schema of the provider with one more of each, in its own environment."""
    folder = tmp_path_factory.mktemp("provider")
    package = shutil.copytree(PROVIDER, folder / PROVIDER.name)
    (package / "declared.json").write_text(made["provider"])
    answer = subprocess.run(
        [PYTHON, "-c", _SCHEMA],
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    told: dict[str, Any] = json.loads(answer.stdout)
    return told


def test_one_more_column_is_in_the_providers_schema(schema: dict[str, Any]) -> None:
    assert schema["data.slot.colour"] == [
        "string", "How bright it shines. null: it is dark.", []
    ]  # fmt: skip
    assert schema["data.slot.lag_seconds"][0] == "number"


def test_one_more_option_is_in_the_providers_schema(schema: dict[str, Any]) -> None:
    assert schema["resource.subscription.target.glow"] == [
        "string", "Delta: how bright it is. One of `dim`, `bright`.", ["dim", "bright"]
    ]  # fmt: skip
    assert schema["resource.subscription.target.patience"] == ["number", "How long it waits.", []]
