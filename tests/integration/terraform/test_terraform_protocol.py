"""The provider driven as Terraform's core drives it, against a running service and a real
PostgreSQL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from harness.terraform_core import COOKIE, PROVIDER, UNKNOWN, Core, Refused
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.service import Service

SOURCE, SLOT = "spillway_source", "spillway_slot"


@pytest.fixture
def source(core: Core, database: Database) -> dict[str, Any]:
    return core.make(SOURCE, name="shop", dsn=database.dsn)


def slot_config(of: Database, **more: Any) -> dict[str, Any]:
    return {"slot_name": "orders", "source": "shop", "database": of.name} | more


# -- the provider itself --------------------------------------------------------------------------


def test_schema(core: Core) -> None:
    schema = core.schema()
    assert schema.server_capabilities.plan_destroy
    assert set(schema.resource_schemas) >= {SOURCE, SLOT}
    assert set(schema.data_source_schemas) >= {SOURCE, SLOT}
    assert [a.name for a in schema.provider.block.attributes if a.sensitive] == ["token"]
    for kind in (schema.resource_schemas, schema.data_source_schemas):
        for name, one in kind.items():
            assert one.block.description, name
            for attribute in one.block.attributes:
                assert attribute.description, f"{name}.{attribute.name}"
                # What core itself refuses to load.
                assert attribute.required != (attribute.optional or attribute.computed)
                assert bool(attribute.type) != bool(attribute.nested_type.attributes)
    secret = [a.name for a in schema.resource_schemas[SOURCE].block.attributes if a.sensitive]
    assert secret == ["dsn"]
    subscription = schema.resource_schemas["spillway_subscription"].block
    (target,) = [a for a in subscription.attributes if a.name == "target"]
    assert [a.name for a in target.nested_type.attributes if a.sensitive] == ["dsn"]


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"endpoint": "localhost:8080"}, "endpoint"),
        ({"endpoint": "ftp://localhost"}, "endpoint"),
        ({"endpoint": "http://[::1"}, "endpoint"),
        ({"token": ""}, "token"),
        ({"timeout": 0}, "timeout"),
        ({"retry_for": -1}, "retry_for"),
    ],
)
def test_bad_configuration_of_the_provider(plugin: Core, config: dict[str, Any], path: str) -> None:
    with pytest.raises(Refused) as refused:
        plugin.configure(**config)
    assert refused.value.only.path == (path,)


def test_configuration_by_environment(service: Service, database: Database) -> None:
    environment = {
        "SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}",
        "SPILLWAY_TOKEN": "terraform's token",
    }
    with Core(**environment) as core:
        core.configure()
        state = core.make(SOURCE, name="shop", dsn=database.dsn)
        assert state["state"] == "streaming"
    with Core(**{**environment, "SPILLWAY_TOKEN": "another"}) as core:
        core.configure()
        with pytest.raises(Refused) as refused:
            core.read(SOURCE, state)
        assert refused.value.only.summary.endswith("unauthenticated")
        assert "SPILLWAY_TOKEN" in refused.value.only.detail
    with Core(SPILLWAY_URL="nowhere") as core, pytest.raises(Refused) as refused:
        core.configure()
    assert "SPILLWAY_URL" in refused.value.only.detail


def test_people_are_told_what_it_is() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TF_PLUGIN_MAGIC_COOKIE"}
    answer = subprocess.run(
        [PROVIDER], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == 2
    told = subprocess.run(
        [PROVIDER, "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "Terraform and OpenTofu start it themselves" in " ".join(told.stdout.split())


def test_it_ends_with_whoever_started_it() -> None:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", f"{PROVIDER} & echo $!; wait"],
        stdout=subprocess.PIPE,
        env={**os.environ, "TF_PLUGIN_MAGIC_COOKIE": COOKIE},
        text=True,
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    socket = shell.stdout.readline().split("|")[3]
    assert os.path.exists(socket)  # noqa: PTH110
    shell.send_signal(signal.SIGKILL)
    shell.wait()
    deadline = time.monotonic() + 60
    while os.path.exists(socket) or _runs(pid):  # noqa: PTH110
        assert time.monotonic() < deadline, "the provider outlived its parent"
        time.sleep(0.1)
    shell.stdout.close()


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- sources --------------------------------------------------------------------------------------


def test_a_sources_life(core: Core, service: Service, database: Database) -> None:
    config: dict[str, Any] = {"name": "shop", "dsn": f"{database.dsn} password=secret"}
    plan = core.plan(SOURCE, None, config)
    assert plan.action == "create"
    assert plan.planned is not None
    assert plan.planned["system_id"] == UNKNOWN
    assert plan.planned["deletion_protection"] is False
    assert service.call("GET", "/sources")["sources"] == []
    state = core.change(plan)
    assert state["state"] == "streaming"
    assert state["slot_name"] == service.call("GET", "/sources/shop")["slot_name"]
    assert "secret" not in state["connection"]
    assert state["dsn"] == config["dsn"]
    # Again: nothing to do.
    refreshed = core.read(SOURCE, state)
    assert refreshed is not None
    assert core.plan(SOURCE, refreshed, config).action == "no-op"
    # Another password: in place.
    config["dsn"] = f"{database.dsn} password=other application_name='by terraform'"
    plan = core.plan(SOURCE, refreshed, config)
    assert plan.action == "update"
    assert {"dsn", "connection"} <= plan.changes
    assert "system_id" not in plan.changes
    updated = core.apply(plan)
    assert updated is not None
    assert "by terraform" in updated["connection"]
    assert "by terraform" in service.call("GET", "/sources/shop")["dsn"]
    assert updated["state"] == "streaming"
    # What is the provider's own: in place, without a word to the service.
    config["wait_timeout"] = 10
    config["deletion_protection"] = True
    plan = core.plan(SOURCE, updated, config)
    assert plan.action == "update"
    protected = core.apply(plan)
    assert protected is not None
    # Removing a line brings the default back.
    del config["wait_timeout"]
    plan = core.plan(SOURCE, protected, config)
    assert plan.planned is not None
    assert plan.planned["wait_timeout"] == 300
    with pytest.raises(Refused) as refused:
        core.plan(SOURCE, protected, None)
    assert refused.value.only.path == ("deletion_protection",)
    config["deletion_protection"] = False
    free = core.apply(core.plan(SOURCE, protected, config))
    assert free is not None
    core.destroy(SOURCE, free)
    assert service.call("GET", "/sources")["sources"] == []
    # Already gone: that is what was wanted.
    core.destroy(SOURCE, free)
    assert core.read(SOURCE, free) is None


def test_capture_is_replaced_and_means_the_same_in_any_order(
    core: Core, service: Service, database: Database
) -> None:
    config = {
        "name": "shop",
        "dsn": database.dsn,
        "capture": {"tables": ["public.b", "public.a"]},
    }
    state = core.make(SOURCE, **config)
    captured = service.call("GET", "/sources/shop")["capture"]
    assert captured == {"origin": "any", "tables": ["public.b", "public.a"], "publications": []}
    refreshed = core.read(SOURCE, state)
    assert refreshed is not None
    assert core.plan(SOURCE, refreshed, config).action == "no-op"
    for other in (None, {"origin": "none"}, {"tables": ["public.a"]}):
        plan = core.plan(SOURCE, refreshed, {**config, "capture": other})
        assert plan.action == "replace", other
        assert plan.replaces == {"capture"}
    replaced = core.apply(core.plan(SOURCE, refreshed, {**config, "capture": {"origin": "none"}}))
    assert replaced is not None
    assert service.call("GET", "/sources/shop")["capture"]["origin"] == "none"
    # An empty block is no filter.
    config["capture"] = {}
    whole = core.apply(core.plan(SOURCE, replaced, config))
    assert whole is not None
    again = core.read(SOURCE, whole)
    assert again is not None
    assert core.plan(SOURCE, again, config).action == "no-op"


def test_import_and_drift_of_a_source(core: Core, service: Service, database: Database) -> None:
    service.create_source(database.dsn, name="shop", capture={"origin": "none"})
    state = core.import_(SOURCE, "shop")
    assert state["name"] == "shop"
    assert state["capture"] == {"origin": "none", "tables": None, "publications": None}
    # The service doesn't tell the DSN: it is set in place, and checked by the service.
    config = {"name": "shop", "dsn": database.dsn, "capture": {"origin": "none"}}
    plan = core.plan(SOURCE, state, config)
    assert plan.action == "update"
    assert plan.changes & {"dsn", "capture", "name"} == {"dsn"}
    state = core.change(plan)
    assert core.plan(SOURCE, core.read(SOURCE, state), config).action == "no-op"
    # Somebody gives it another DSN.
    other = f"{database.dsn} application_name=other"
    service.call("PATCH", "/sources/shop", json={"dsn": other})
    drifted = core.read(SOURCE, state)
    assert drifted is not None
    assert drifted["dsn"] is None
    plan = core.plan(SOURCE, drifted, config)
    assert plan.action == "update"
    assert core.apply(plan) is not None
    assert "other" not in service.call("GET", "/sources/shop")["dsn"]
    # Somebody drops it.
    service.call("DELETE", "/sources/shop")
    assert core.read(SOURCE, state) is None
    with pytest.raises(Refused) as refused:
        core.import_(SOURCE, "shop")
    assert refused.value.only.summary.endswith("unknown_source")
    assert "GET /v1/sources" in refused.value.only.detail


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"dsn": "host=127.0.0.1 port=1 user=nobody"}, "source_unreachable"),
        ({"dsn": "this is no DSN"}, "invalid_dsn"),
    ],
)
def test_what_the_service_refuses_of_a_source(
    core: Core, service: Service, more: dict[str, Any], code: str
) -> None:
    with pytest.raises(Refused) as refused:
        core.make(SOURCE, name="shop", **more)
    problem = refused.value.only
    assert problem.path == ("dsn",)
    assert code in problem.summary
    assert f"Error code: {code}." in problem.detail
    # Message, hint and code: three paragraphs.
    assert len(problem.detail.split("\n\n")) == 3
    assert refused.value.state is None
    assert service.call("GET", "/sources")["sources"] == []


def test_a_refused_update_leaves_the_state(
    core: Core, service: Service, source: dict[str, Any], database: Database
) -> None:
    wrong = {"name": "shop", "dsn": "host=127.0.0.1 port=1 user=nobody"}
    with pytest.raises(Refused) as refused:
        core.apply(core.plan(SOURCE, source, wrong))
    assert refused.value.state == source
    assert service.call("GET", "/sources/shop")["state"] == "streaming"
    # Nor does a source with slots go.
    slot = core.make(SLOT, **slot_config(database))
    with pytest.raises(Refused) as refused:
        core.destroy(SOURCE, source)
    assert refused.value.state == source
    assert "orders" in refused.value.only.detail
    core.destroy(SLOT, slot)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"name": ""}, ("name",)),
        ({"name": "Shop"}, ("name",)),
        ({"name": "s" * 51}, ("name",)),
        ({"dsn": ""}, ("dsn",)),
        ({"wait_for": "godot"}, ("wait_for",)),
        ({"wait_timeout": 0}, ("wait_timeout",)),
        ({"capture": {"origin": "local"}}, ("capture", "origin")),
        ({"capture": {"tables": ["orders"]}}, ("capture", "tables")),
        ({"capture": {"tables": ["a.b.c"]}}, ("capture", "tables")),
        ({"capture": {"tables": ['"a.b"']}}, ("capture", "tables")),
        ({"capture": {"tables": ["a.b"], "publications": ["p"]}}, ("capture",)),
    ],
)
def test_bad_values_of_a_source(plugin: Core, more: dict[str, Any], path: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as refused:
        plugin.validate(SOURCE, {"name": "shop", "dsn": "host=db", **more})
    assert refused.value.only.path == path


def test_good_values_of_a_source(plugin: Core) -> None:
    tables = ["public.orders", "shop.*", '"a.b"."c.d"', '"A ""b"".c".d']
    plugin.validate(SOURCE, {"name": "s" * 50, "dsn": "host=db", "capture": {"tables": tables}})


# -- slots ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_a_slots_life(core: Core, service: Service, database: Database) -> None:
    config = slot_config(database, options={"include-xids": "0"})
    plan = core.plan(SLOT, None, config)
    assert plan.planned is not None
    assert plan.planned["plugin"] == "test_decoding"
    assert plan.planned["two_phase"] is False
    state = core.change(plan)
    assert service.slot("orders")["options"] == {"include-xids": "0"}
    assert state["datoid"] == service.slot("orders")["datoid"]
    assert core.plan(SLOT, core.read(SLOT, state), config).action == "no-op"
    # What a consumer does is no drift.
    database.execute("CREATE TABLE life (id int PRIMARY KEY)")
    database.execute("INSERT INTO life VALUES (1)")
    service.wait_decoded("orders", database)
    assert service.get("orders")
    assert core.plan(SLOT, core.read(SLOT, state), config).action == "no-op"
    # The API can't change these: another slot, and the plan says so.
    for name, value in (
        ("slot_name", "others"),
        ("plugin", "wal2json"),
        ("two_phase", True),
        ("database", "postgres"),
        ("source", "books"),
    ):
        plan = core.plan(SLOT, state, {**config, name: value})
        assert plan.action == "replace"
        assert plan.replaces == {name}
    # Options in place.
    config["options"] = {"skip-empty-xacts": "1"}
    plan = core.plan(SLOT, state, config)
    assert plan.action == "update"
    state = core.change(plan)
    assert service.slot("orders")["options"] == {"skip-empty-xacts": "1"}
    # Of two changes the first is done and the second refused: the state says so.
    with pytest.raises(Refused) as refused:
        core.apply(core.plan(SLOT, state, {**config, "options": {}, "start_lsn": "0/1"}))
    assert refused.value.only.path == ("start_lsn",)
    assert state is not None
    assert refused.value.state == {**state, "options": {}}
    assert service.slot("orders")["options"] == {}
    assert core.plan(SLOT, refused.value.state, config).action == "update"
    config["two_phase"] = True
    state = core.change(core.plan(SLOT, state, config))
    assert state is not None
    assert service.slot("orders")["two_phase"]
    core.destroy(SLOT, state)
    assert service.call("GET", "/slots")["slots"] == []
    core.destroy(SLOT, state)


@pytest.mark.usefixtures("source")
def test_a_slot_is_moved_in_place(core: Core, service: Service, database: Database) -> None:
    database.execute("CREATE TABLE moved (id int PRIMARY KEY)")
    config = slot_config(database)
    state = core.make(SLOT, **config)
    begin = service.slot("orders")["confirmed_flush_lsn"]
    for number in range(3):
        database.execute("INSERT INTO moved VALUES (%s)", [number])
    service.wait_decoded("orders", database)
    commits = [lsn for lsn, _, data in service.peek("orders") if data.startswith("COMMIT")]
    service.get("orders")
    # Back to the beginning.
    config["start_lsn"] = begin
    plan = core.plan(SLOT, state, config)
    assert plan.action == "update"
    assert [w.path for w in core.warnings] == [("start_lsn",)]
    state = core.change(plan)
    assert len(service.peek("orders")) == 9
    assert core.plan(SLOT, core.read(SLOT, state), config).action == "no-op"
    # Forward, past two transactions.
    config["start_lsn"] = commits[1]
    state = core.change(core.plan(SLOT, state, config))
    assert len(service.peek("orders")) == 3
    # Not to where nothing is kept any more; the slot and the state stay.
    with pytest.raises(Refused) as refused:
        core.apply(core.plan(SLOT, state, {**config, "start_lsn": "0/1"}))
    assert refused.value.only.path == ("start_lsn",)
    assert "lsn_not_retained" in refused.value.only.summary
    assert refused.value.state == state
    assert len(service.peek("orders")) == 3
    # Without the line it stays where it is.
    del config["start_lsn"]
    plan = core.plan(SLOT, state, config)
    assert plan.action == "update"
    state = core.change(plan)
    assert len(service.peek("orders")) == 3
    # A new one may begin in the past.
    past = core.make(SLOT, **slot_config(database, slot_name="past", start_lsn=begin))
    assert past["start_lsn"] == begin
    assert len(service.peek("past")) == 9
    assert Lsn.parse(begin) < Lsn.parse(commits[0])


@pytest.mark.usefixtures("source")
def test_import_and_drift_of_a_slot(core: Core, service: Service, database: Database) -> None:
    body = slot_config(database, plugin="wal2json", options={"format-version": "2"})
    service.call("POST", "/slots", json=body)
    state = core.import_(SLOT, "orders")
    assert core.plan(SLOT, state, body).action == "no-op"
    # Somebody makes another one of that name.
    service.drop_slot("orders")
    service.call("POST", "/slots", json=slot_config(database))
    drifted = core.read(SLOT, state)
    assert drifted is not None
    plan = core.plan(SLOT, drifted, body)
    assert plan.action == "replace"
    assert plan.replaces == {"plugin"}
    service.drop_slot("orders")
    assert core.read(SLOT, state) is None
    with pytest.raises(Refused) as refused:
        core.import_(SLOT, "orders")
    assert "unknown_slot" in refused.value.only.summary


@pytest.mark.usefixtures("source")
def test_deletion_protection(core: Core, service: Service, database: Database) -> None:
    config = slot_config(database, deletion_protection=True)
    state = core.make(SLOT, **config)
    # Neither by a plan of destruction, nor by one of replacement, nor by an apply without either.
    for other in (None, {**config, "plugin": "wal2json"}, {**config, "slot_name": "x"}):
        with pytest.raises(Refused) as refused:
            core.plan(SLOT, state, other)
        assert refused.value.only.path == ("deletion_protection",)
        assert "orders" in refused.value.only.summary
        assert "deletion_protection = false" in refused.value.only.detail
    # Lifting it together with the replacement is too late: the state has it.
    with pytest.raises(Refused):
        core.plan(SLOT, state, {**config, "plugin": "wal2json", "deletion_protection": False})
    with pytest.raises(Refused) as refused:
        core._apply(SLOT, state, None, None)
    assert refused.value.state == state
    assert service.slot("orders")["slot_name"] == "orders"
    state = core.change(core.plan(SLOT, state, {**config, "deletion_protection": False}))
    assert state is not None
    core.destroy(SLOT, state)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"slot_name": ""}, "slot_name"),
        ({"slot_name": "a-b"}, "slot_name"),
        ({"slot_name": "Orders"}, "slot_name"),
        ({"slot_name": "s" * 64}, "slot_name"),
        ({"start_lsn": "16B3748"}, "start_lsn"),
        ({"start_lsn": "0/16B37488A"}, "start_lsn"),
        ({"start_lsn": "0/G"}, "start_lsn"),
        ({"source": "No"}, "source"),
        ({"database": ""}, "database"),
        ({"plugin": ""}, "plugin"),
    ],
)
def test_bad_values_of_a_slot(plugin: Core, more: dict[str, Any], path: str) -> None:
    config = {"slot_name": "orders", "source": "shop", "database": "shop", **more}
    with pytest.raises(Refused) as refused:
        plugin.validate(SLOT, config)
    assert refused.value.only.path == (path,)
    # All at once, not one after the other.
    with pytest.raises(Refused) as refused:
        plugin.validate(SLOT, {**config, "slot_name": "A", "start_lsn": "x"})
    assert len(refused.value.diagnostics) >= 2


def test_unknown_plugins_are_refused_when_planning(core: Core) -> None:
    config = {"slot_name": "orders", "source": "shop", "database": "shop", "plugin": "decoderbufs"}
    with pytest.raises(Refused) as refused:
        core.plan(SLOT, None, config)
    assert refused.value.only.path == ("plugin",)
    assert "unknown_plugin" in refused.value.only.summary
    assert "test_decoding" in refused.value.only.detail


@pytest.mark.parametrize(
    ("more", "code", "path"),
    [
        ({"source": "books"}, "unknown_source", ("source",)),
        ({"database": "no_such_database"}, "unknown_database", ("database",)),
        ({"options": {"no-such-option": "1"}}, "invalid_option", ("options",)),
        ({"start_lsn": "FFFFFF/0"}, "lsn_not_retained", ("start_lsn",)),
    ],
)
@pytest.mark.usefixtures("source")
def test_what_the_service_refuses_of_a_slot(
    core: Core, database: Database, more: dict[str, Any], code: str, path: tuple[str, ...]
) -> None:
    with pytest.raises(Refused) as refused:
        core.make(SLOT, **slot_config(database, **more))
    assert refused.value.only.path == path
    assert code in refused.value.only.summary
    assert refused.value.state is None


@pytest.mark.usefixtures("source")
def test_a_taken_name_says_how_to_import(core: Core, database: Database) -> None:
    core.make(SLOT, **slot_config(database))
    with pytest.raises(Refused) as refused:
        core.make(SLOT, **slot_config(database))
    assert refused.value.only.path == ("slot_name",)
    assert "import" in refused.value.only.detail


# -- values that only the apply will tell -----------------------------------------------------


def test_unknown_values(core: Core, database: Database) -> None:
    """As when a source's name, or all of a slot, comes from a resource that isn't there yet."""
    core.validate(SOURCE, {"name": UNKNOWN, "dsn": UNKNOWN, "capture": UNKNOWN})
    capture = {"tables": [UNKNOWN], "origin": UNKNOWN, "publications": UNKNOWN}
    core.validate(SOURCE, {"name": "a", "dsn": "b", "capture": capture})
    plan = core.plan(
        SLOT,
        None,
        {"slot_name": UNKNOWN, "source": UNKNOWN, "database": UNKNOWN, "plugin": UNKNOWN},
    )
    assert plan.planned is not None
    assert plan.planned["source"] == UNKNOWN
    core.make(SOURCE, name="shop", dsn=database.dsn)
    state = core.make(SLOT, **slot_config(database))
    # It may turn out as it was, but core must show that it may not.
    plan = core.plan(SLOT, state, slot_config(database, source=UNKNOWN))
    assert plan.replaces == {"source"}
    plan = core.plan(SLOT, state, slot_config(database, start_lsn=UNKNOWN))
    assert plan.action == "update"
    plan = core.plan(SLOT, state, slot_config(database, options={"include-xids": UNKNOWN}))
    assert plan.action == "update"


def test_an_endpoint_that_only_the_apply_will_tell(
    plugin: Core, service: Service, database: Database
) -> None:
    plugin.configure(endpoint=UNKNOWN)
    plan = plugin.plan(SLOT, None, slot_config(database, plugin="any"))
    assert plan.action == "create"
    with pytest.raises(Refused) as refused:
        plugin.data(SLOT, slot_name="orders")
    assert "not_configured" in refused.value.only.summary
    plugin.configure(endpoint=f"http://127.0.0.1:{service.http_port}", token="terraform's token")
    with pytest.raises(Refused) as refused:
        plugin.apply(plan)
    assert refused.value.only.path == ("source",)


# -- states of other releases -----------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_states_of_other_releases(core: Core, database: Database) -> None:
    state = core.make(SLOT, **slot_config(database))
    # Of this release, through a state file.
    assert core.upgrade(SLOT, 0, json.dumps(state)) == state
    # Of one that lacked an attribute, and had one that is no more.
    older = {k: v for k, v in state.items() if k not in ("failover", "deletion_protection")}
    upgraded = core.upgrade(SLOT, 0, json.dumps({**older, "spill_limit": 5}))
    assert upgraded == {**state, "failover": None, "deletion_protection": None}
    refreshed = core.read(SLOT, upgraded)
    assert refreshed is not None
    plan = core.plan(SLOT, refreshed, slot_config(database))
    assert plan.action == "update"
    assert not plan.replaces
    assert core.apply(plan) == state
    with pytest.raises(Refused) as refused:
        core.upgrade(SLOT, 99, json.dumps(state))
    assert "newer provider" in refused.value.only.summary


# -- data sources -----------------------------------------------------------------------------


@pytest.mark.usefixtures("source")
def test_data_sources(core: Core, service: Service, database: Database) -> None:
    core.make(SLOT, **slot_config(database))
    source = core.data(SOURCE, name="shop")
    shown = service.call("GET", "/sources/shop")
    assert source["connection"] == shown["dsn"]
    assert source["capture"] == shown["capture"]
    assert [s["database"] for s in source["sessions"]] == [database.name]
    slot = core.data(SLOT, slot_name="orders")
    shown = service.slot("orders")
    assert {k: slot[k] for k in slot if k not in ("decoded_lsn", "inactive_since")} == {
        k: shown[k] for k in slot if k not in ("decoded_lsn", "inactive_since")
    }
    with pytest.raises(Refused) as refused:
        core.data(SLOT, slot_name="no")
    assert refused.value.only.path == ("slot_name",)
    with pytest.raises(Refused) as refused:
        core.data(SLOT, slot_name="NO")
    assert refused.value.only.path == ("slot_name",)


# -- a service that isn't there, or is busy ---------------------------------------------------


class Scripted:
    """An HTTP server that answers as told: each answer once, the last one for ever."""

    def __init__(self, *answers: tuple[int, dict[str, str], Any]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                self.rfile.read(length)
                scripted.asked.append(f"{self.command} {self.path}")
                status, headers, body = scripted.answers[0]
                if len(scripted.answers) > 1:
                    del scripted.answers[0]
                if status == 0:
                    self.close_connection = True
                    return
                content = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = do_PATCH = answer  # noqa: N815 - http.server's names

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def scripted() -> Iterator[Any]:
    servers: list[Scripted] = []

    def start(*answers: tuple[int, dict[str, str], Any]) -> Scripted:
        servers.append(Scripted(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def problem(status: int, code: str) -> tuple[int, dict[str, str], Any]:
    body = {"code": code, "detail": f"it is {code}", "hint": "Mend it.", "details": {}}
    return status, {"content-type": "application/problem+json"}, body


VIEW = {
    "slot_name": "s",
    "source": "shop",
    "database": "shop",
    "plugin": "arrow",
    "options": {},
    "two_phase": False,
    "failover": False,
    "datoid": 5,
    "wal_status": "reserved",
    "invalidation_reason": None,
    "created_at": "2026-11-22T00:00:00Z",
}


@pytest.mark.parametrize(
    "passing",
    [
        problem(503, "not_ready"),
        problem(503, "metadata_unavailable"),
        problem(429, "too_many_requests"),
        (502, {}, "a proxy's"),
        (503, {"retry-after": "0"}, "a proxy's"),
        (504, {}, "a proxy's"),
    ],
)
def test_what_passes_is_tried_again(plugin: Core, scripted: Any, passing: Any) -> None:
    server = scripted(passing, passing, (200, {}, VIEW))
    plugin.configure(endpoint=server.url)
    assert plugin.data(SLOT, slot_name="s")["plugin"] == "arrow"
    assert server.asked == ["GET /v1/slots/s"] * 3


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem(502, "source_auth_failed"), "source_auth_failed"),
        (problem(409, "slot_active"), "slot_active"),
        (problem(500, "internal_error"), "internal_error"),
        ((404, {}, "something else"), "unexpected_answer"),
        ((200, {"content-type": "text/html"}, "<html>"), None),
    ],
)
def test_what_does_not_pass_is_told_at_once(
    plugin: Core, scripted: Any, answer: Any, code: str | None
) -> None:
    server = scripted(answer)
    plugin.configure(endpoint=server.url)
    with pytest.raises(Refused) as refused:
        plugin.data(SLOT, slot_name="s")
    assert code is None or code in refused.value.only.summary
    assert len(server.asked) == 1


def test_a_wrong_endpoint_does_not_empty_the_state(plugin: Core, scripted: Any) -> None:
    """A 404 of something else is not the news that the slot is gone."""
    server = scripted((404, {}, "no such page"))
    plugin.configure(endpoint=server.url)
    whole = {a.name: None for a in plugin.schema().resource_schemas[SLOT].block.attributes}
    with pytest.raises(Refused) as refused:
        plugin.read(SLOT, {**whole, "slot_name": "s"})
    assert "unexpected_answer" in refused.value.only.summary


def test_what_may_have_been_done_is_not_done_twice(plugin: Core, scripted: Any) -> None:
    server = scripted((0, {}, None))
    plugin.configure(endpoint=server.url, retry_for=2)
    plan = plugin.plan(SLOT, None, {"slot_name": "s", "source": "shop", "database": "shop"})
    planning = len(server.asked)
    with pytest.raises(Refused) as refused:
        plugin.apply(plan)
    assert server.asked[planning:] == ["POST /v1/slots"]
    assert "not known" in refused.value.only.detail
    # What may be done twice is.
    with pytest.raises(Refused):
        plugin.data(SLOT, slot_name="s")
    assert server.asked[planning + 1 :].count("GET /v1/slots/s") > 1


def test_retries_have_an_end(plugin: Core, unused_tcp_port: int) -> None:
    plugin.configure(endpoint=f"http://127.0.0.1:{unused_tcp_port}", retry_for=1)
    with pytest.raises(Refused) as refused:
        plugin.data(SLOT, slot_name="s")
    assert "unreachable" in refused.value.only.summary
    assert "SPILLWAY_URL" in refused.value.only.detail


def test_an_interrupt_ends_a_wait_and_keeps_what_is_known(
    scripted: Any, database: Database
) -> None:
    view = {
        "name": "shop",
        "dsn": "host=db",
        "system_id": "7",
        "server_version_num": 150001,
        "timeline": 1,
        "slot_name": "spillway_shop",
        "capture": {"origin": "any", "tables": [], "publications": []},
        "state": "connecting",
        "created_at": "2026-11-22T00:00:00Z",
        "error": None,
        "error_code": None,
        "hint": None,
    }
    server = scripted((200, {}, view))
    with Core() as core:
        core.configure(endpoint=server.url)
        plan = core.plan(SOURCE, None, {"name": "shop", "dsn": database.dsn})
        outcome: list[Refused] = []

        def apply() -> None:
            try:
                core.apply(plan)
            except Refused as refused:
                outcome.append(refused)

        applying = threading.Thread(target=apply)
        applying.start()
        deadline = time.monotonic() + 60
        while "GET /v1/sources/shop" not in server.asked:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        core.call("StopProvider")
        applying.join(60)
        assert not applying.is_alive()
    # The source is there: the state says so, though the wait for it ended.
    assert "interrupted" in outcome[0].only.summary
    assert outcome[0].state is not None
    assert outcome[0].state["system_id"] == "7"


def test_a_source_that_never_streams(plugin: Core, scripted: Any) -> None:
    view = {
        "name": "shop",
        "dsn": "host=db",
        "system_id": "7",
        "server_version_num": 150001,
        "timeline": 1,
        "slot_name": "spillway_shop",
        "capture": {"origin": "any", "tables": [], "publications": []},
        "state": "waiting",
        "created_at": "2026-11-22T00:00:00Z",
        "error": "the server is silent",
        "error_code": "replication_failed",
        "hint": "Look at it.",
    }
    plugin.configure(endpoint=scripted((200, {}, view)).url)
    with pytest.raises(Refused) as refused:
        plugin.make(SOURCE, name="shop", dsn="host=db", wait_timeout=0.5)
    assert "timeout" in refused.value.only.summary
    assert "the server is silent" in refused.value.only.detail
    assert refused.value.state is not None
    plugin.configure(endpoint=scripted((200, {}, {**view, "state": "failed"})).url)
    with pytest.raises(Refused) as refused:
        plugin.make(SOURCE, name="shop", dsn="host=db")
    assert "replication_failed" in refused.value.only.summary
    made = plugin.make(SOURCE, name="shop", dsn="host=db", wait_for="nothing")
    assert made["state"] == "failed"
    plugin.read(SOURCE, made)
    assert any("replication_failed" in warning.summary for warning in plugin.warnings)
