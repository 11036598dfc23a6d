"""Subscriptions, publications and tables, driven as Terraform's core drives a provider; without a
Spark job: they are disabled.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from harness.fake_service import FakeService
from harness.terraform_core import UNKNOWN, Core, Refused
from spillway.declarations.lake_options import LAKE_OPTIONS
from spillway.declarations.postgres_options import POSTGRES_OPTIONS
from spillway.pg.lsn import Lsn
from spillway.subscriber import targets
from spillway.subscriber.model import (
    Failure,
    SubscriptionSpec,
    TableResync,
    TableState,
    Verification,
    VerificationState,
    VerifiedTable,
)
from spillway.subscriber.subscriptions import Subscriptions

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

SOURCE, SLOT, SUBSCRIPTION = "spillway_source", "spillway_slot", "spillway_subscription"


@pytest.fixture
def shop(core: Core, service: Service, database: Database) -> dict[str, Any]:
    """A database with tables and a publication, decoded up to now."""
    database.execute(
        """
        DROP SCHEMA IF EXISTS shop CASCADE;
        DROP PUBLICATION IF EXISTS published;
        CREATE SCHEMA shop;
        CREATE TABLE shop.orders (id int PRIMARY KEY, v text);
        CREATE TABLE shop.items (id int);
        CREATE PUBLICATION published FOR TABLE shop.orders, shop.items;
        """
    )
    source = core.make(SOURCE, name="shop", dsn=database.dsn)
    service.call(
        "POST",
        "/slots",
        json={"slot_name": "watch", "source": "shop", "database": database.name},
    )
    service.wait_decoded("watch", database)
    return source


@pytest.fixture
def config(shop: dict[str, Any], database: Database, tmp_path: Path) -> dict[str, Any]:
    return {
        "name": "lake",
        "source": shop["name"],
        "database": database.name,
        "target": {"kind": "lake", "path": str(tmp_path / "lake")},
        "enabled": False,
    }


def test_a_subscriptions_life(core: Core, service: Service, config: dict[str, Any]) -> None:
    plan = core.plan(SUBSCRIPTION, None, config)
    assert plan.planned is not None
    assert plan.planned["slot"] == "lake"
    assert plan.planned["keep_slot"] is False
    state = core.change(plan)
    assert state["state"] == "paused"
    shown = service.call("GET", "/subscriptions/lake")
    assert shown["target"]["format"] == "delta"
    assert shown["tables"] is None
    assert core.plan(SUBSCRIPTION, core.read(SUBSCRIPTION, state), config).action == "no-op"
    # The default said aloud is no change either.
    config["target"]["format"] = "delta"
    plan = core.plan(SUBSCRIPTION, state, config)
    assert not plan.replaces
    state = core.change(plan)
    # In place: tables, then publications instead, then how its program runs.
    config["tables"] = ["shop.orders"]
    plan = core.plan(SUBSCRIPTION, state, config)
    assert plan.action == "update"
    state = core.change(plan)
    assert service.call("GET", "/subscriptions/lake")["tables"] == ["shop.orders"]
    del config["tables"]
    config["publications"] = ["published"]
    state = core.change(core.plan(SUBSCRIPTION, state, config))
    shown = service.call("GET", "/subscriptions/lake")
    assert shown["tables"] is None
    assert shown["publications"] == ["published"]
    # A number that no double is equal to travels as text, as Terraform sends it.
    config["target"]["interval_s"] = "0.3"
    config["target"]["retention"] = "7d"
    plan = core.plan(SUBSCRIPTION, state, config)
    assert plan.action == "update"
    state = core.change(plan)
    shown = service.call("GET", "/subscriptions/lake")["target"]
    assert (shown["interval_s"], shown["retention"]) == (0.3, "7d")
    assert core.plan(SUBSCRIPTION, core.read(SUBSCRIPTION, state), config).action == "no-op"
    # Another place is another subscription; so is what CREATE SUBSCRIPTION fixes.
    target = config["target"]
    for name, value in (
        ("name", "other"),
        ("source", "books"),
        ("database", "books"),
        ("slot", "another"),
        ("target", {**target, "path": "/elsewhere"}),
        ("target", {**target, "format": "parquet"}),
        ("target", {"kind": "postgres", "dsn": "host=db"}),
        ("copy_data", False),
        ("origin", "none"),
        ("streaming", "on"),
        ("two_phase", True),
    ):
        plan = core.plan(SUBSCRIPTION, state, {**config, name: value})
        assert plan.action == "replace", name
        assert plan.replaces == {name}
    # Its own slot goes with it.
    core.destroy(SUBSCRIPTION, state)
    assert service.call("GET", "/subscriptions")["subscriptions"] == []
    assert service.problem("GET", "/slots/lake")["code"] == "unknown_slot"
    core.destroy(SUBSCRIPTION, state)
    assert core.read(SUBSCRIPTION, state) is None


def test_a_lakes_layout(core: Core, service: Service, config: dict[str, Any]) -> None:
    target = next(
        a
        for a in core.schema().resource_schemas[SUBSCRIPTION].block.attributes
        if a.name == "target"
    )
    attributes = {attribute.name for attribute in target.nested_type.attributes}
    declared = {option.name for option in LAKE_OPTIONS}
    declared |= {option.name for option in POSTGRES_OPTIONS}
    assert attributes - {"kind", "format", "path", "dsn", "options"} == declared
    layout = {
        "partition_history": "month",
        "partition_by": {"shop.orders": ["v"]},
        "cluster_by": {"shop.orders": ["id", "v"], "shop.items": []},
    }
    config["target"] |= layout
    state = core.make(SUBSCRIPTION, **config)
    shown = service.call("GET", "/subscriptions/lake")["target"]
    assert {name: shown[name] for name in layout} == layout
    assert core.plan(SUBSCRIPTION, core.read(SUBSCRIPTION, state), config).action == "no-op"
    # In place, as nothing is filled yet.
    config["target"] |= {"partition_history": "day", "partition_by": {"shop.orders": []}}
    plan = core.plan(SUBSCRIPTION, state, config)
    assert plan.action == "update"
    state = core.change(plan)
    assert service.call("GET", "/subscriptions/lake")["target"]["partition_history"] == "day"


def test_a_slot_of_somebody_else_stays(
    core: Core, service: Service, config: dict[str, Any], database: Database
) -> None:
    slot = core.make(
        SLOT, slot_name="theirs", source="shop", database=database.name, plugin="arrow"
    )
    config["slot"] = "theirs"
    state = core.make(SUBSCRIPTION, **config)
    assert state["keep_slot"] is True
    core.destroy(SUBSCRIPTION, state)
    assert core.read(SLOT, slot) is not None
    # Unless it is said otherwise; then the slot is gone when its turn comes.
    state = core.make(SUBSCRIPTION, **config, keep_slot=False)
    core.destroy(SUBSCRIPTION, state)
    assert service.problem("GET", "/slots/theirs")["code"] == "unknown_slot"
    core.destroy(SLOT, slot)


def test_import_and_drift(core: Core, service: Service, config: dict[str, Any]) -> None:
    target = {**config["target"], "interval_s": 0.3, "metrics_port": 9999}
    body = {**config, "target": target, "tables": ["shop.orders", "shop.items"]}
    service.call("POST", "/subscriptions", json=body)
    state = core.import_(SUBSCRIPTION, "lake")
    assert state["keep_slot"] is False
    assert state["target"]["interval_s"] == "0.3"
    assert state["target"]["metrics_port"] == 9999
    theirs = {
        **body,
        "tables": ["shop.items", "shop.orders"],
        "target": {**target, "interval_s": "0.3", "format": None},
    }
    plan = core.plan(SUBSCRIPTION, state, theirs)
    assert not plan.replaces
    state = core.change(plan)
    assert core.plan(SUBSCRIPTION, core.read(SUBSCRIPTION, state), theirs).action == "no-op"
    # Somebody alters it.
    service.call("PATCH", "/subscriptions/lake", json={"tables": ["shop.orders"]})
    drifted = core.read(SUBSCRIPTION, state)
    assert drifted is not None
    plan = core.plan(SUBSCRIPTION, drifted, theirs)
    assert plan.action == "update"
    assert "tables" in plan.changes
    core.apply(plan)
    shown = service.call("GET", "/subscriptions/lake")["tables"]
    assert sorted(shown) == ["shop.items", "shop.orders"]
    # Somebody drops it.
    service.call("DELETE", "/subscriptions/lake")
    assert core.read(SUBSCRIPTION, state) is None
    with pytest.raises(Refused) as refused:
        core.import_(SUBSCRIPTION, "lake")
    assert "unknown_subscription" in refused.value.only.summary


def test_what_is_good_to_know_of_a_target_is_a_warning(
    core: Core, config: dict[str, Any], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: object) -> list[str]:
        return ["public.t is written change by change", "rows carry no replication origin"]

    monkeypatch.setattr(Subscriptions, "_check_target", found)
    target = {"kind": "postgres", "dsn": database.dsn}
    state = core.make(SUBSCRIPTION, **(config | {"name": "noted", "target": target}))
    (warning,) = core.warnings
    assert warning.detail == (
        "public.t is written change by change\n\nrows carry no replication origin"
    )
    core.read(SUBSCRIPTION, state)
    assert core.warnings == [warning]


def test_another_postgresql(
    core: Core, service: Service, config: dict[str, Any], database: Database
) -> None:
    """Planned, made, found as it is, altered in place and imported; its password is nowhere."""
    user = f"filler_{database.name}"
    database.execute(f"CREATE ROLE {user} LOGIN SUPERUSER PASSWORD 'secret'")
    dsn = f"{database.dsn} user={user} password=secret"
    rules = {
        "update_missing": "apply_remote",
        "tables": {"shop.orders": {"insert_exists": "error"}},
    }
    target = {
        "kind": "postgres",
        "dsn": dsn,
        "rename": {"shop": "moved"},
        "create_tables": True,
        "group_bytes": 65536,
        # Written in another order than the service has it.
        "conflicts": json.dumps(rules, indent=2),
    }
    wanted = {**config, "name": "moved", "publications": ["published"], "target": target}
    try:
        plan = core.plan(SUBSCRIPTION, None, wanted)
        assert plan.action == "create"
        state = core.apply(plan)
        assert state is not None
        assert state["target"]["dsn"] == dsn
        told = service.call("GET", "/subscriptions/moved")["target"]
        assert (told["conflicts"], told["group_bytes"]) == (rules, 65536)
        assert told["create_tables"] is True
        assert state["connection"] == told["dsn"]
        assert "secret" not in state["connection"]
        assert "****" in state["connection"]
        # The masked DSN is no drift.
        state = core.read(SUBSCRIPTION, state)
        assert state is not None
        assert core.plan(SUBSCRIPTION, state, wanted).action == "no-op"
        # Another password, and other rules, in place.
        rules["update_missing"] = "skip"
        other = {**target, "dsn": f"{dsn} application_name=x", "conflicts": json.dumps(rules)}
        wanted["target"] = other
        plan = core.plan(SUBSCRIPTION, state, wanted)
        assert (plan.action, plan.replaces) == ("update", frozenset())
        state = core.apply(plan)
        assert state is not None
        assert "application_name=x" in state["connection"]
        assert core.plan(SUBSCRIPTION, core.read(SUBSCRIPTION, state), wanted).action == "no-op"
        # Other names are another subscription.
        renamed = {**wanted, "target": {**other, "rename": None}}
        assert core.plan(SUBSCRIPTION, state, renamed).replaces
        # Somebody leads it elsewhere.
        service.call("PATCH", "/subscriptions/moved", json={"target": {**told, "dsn": dsn}})
        drifted = core.read(SUBSCRIPTION, state)
        plan = core.plan(SUBSCRIPTION, drifted, wanted)
        assert (plan.action, plan.replaces) == ("update", frozenset())
        core.apply(plan)
        imported = core.import_(SUBSCRIPTION, "moved")
        assert imported["target"]["dsn"] is None
        assert json.loads(imported["target"]["conflicts"]) == rules
        plan = core.plan(SUBSCRIPTION, imported, wanted)
        assert (plan.action, plan.replaces) == ("update", frozenset())
        state = core.change(plan)
        assert core.plan(SUBSCRIPTION, core.read(SUBSCRIPTION, state), wanted).action == "no-op"
        # What can't be removed from its target any more is a warning, with what removes it.
        database.execute(f"ALTER ROLE {user} NOLOGIN")
        core.warnings.clear()
        core.destroy(SUBSCRIPTION, state)
        (warning,) = core.warnings
        assert "left there" in warning.detail
        database.execute(warning.detail.partition("in that database: ")[2])
        origins = "SELECT FROM pg_replication_origin WHERE roname LIKE 'spillway_moved%'"
        assert database.query(origins) == []
    finally:
        database.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


@pytest.mark.parametrize(
    ("more", "code", "path"),
    [
        ({"tables": ["shop.nothing"]}, "unknown_table", ("tables",)),
        ({"publications": ["nothing"]}, "unknown_publication", ("publications",)),
        ({"streaming": "on"}, "unsupported_feature", ("streaming",)),
        ({"target": {"kind": "lake", "path": "relative"}}, "invalid_request", ("target", "path")),
        (
            {"target": {"kind": "lake", "path": "/l", "retention": "long"}},
            "invalid_request",
            ("target", "retention"),
        ),
        (
            {"target": {"kind": "lake", "path": "/l", "cluster_by": {"shop.orders": ["a,b"]}}},
            "invalid_request",
            ("target", "cluster_by"),
        ),
        (
            {"target": {"kind": "lake", "path": "/l", "iceberg_catalog": "prod"}},
            "unsupported_feature",
            ("target", "iceberg_catalog"),
        ),
        (
            {"target": {"kind": "postgres", "dsn": "host=127.0.0.1 port=1 dbname=x"}},
            "target_unavailable",
            None,
        ),
        ({"target": {"kind": "kafka", "options": {"topic": "t"}}}, "invalid_request", None),
        ({"source": "books"}, "unknown_source", ("source",)),
        ({"slot": "watch"}, "conflict", None),
    ],
)
def test_what_the_service_refuses(
    core: Core,
    service: Service,
    config: dict[str, Any],
    more: dict[str, Any],
    code: str,
    path: tuple[str, ...] | None,
) -> None:
    with pytest.raises(Refused) as refused:
        core.make(SUBSCRIPTION, **{**config, **more})
    assert code in refused.value.only.summary, refused.value
    assert path is None or refused.value.only.path == path
    assert refused.value.state is None
    assert service.call("GET", "/subscriptions")["subscriptions"] == []


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"name": "Lake"}, ("name",)),
        ({"slot": "a-b"}, ("slot",)),
        ({"target": {"kind": "lake"}}, ("target",)),
        ({"target": {"kind": "postgres"}}, ("target",)),
        (
            {"target": {"kind": "postgres", "dsn": "x", "conflicts": "[]"}},
            ("target", "conflicts"),
        ),
        ({"target": {"kind": "lake", "path": "/l", "format": "csv"}}, ("target", "format")),
        (
            {"target": {"kind": "lake", "path": "/l", "on_schema_change": "x"}},
            ("target", "on_schema_change"),
        ),
        (
            {"target": {"kind": "lake", "path": "/l", "partition_history": "hour"}},
            ("target", "partition_history"),
        ),
        (
            {"target": {"kind": "lake", "path": "/l", "partition_by": {"orders": ["id"]}}},
            ("target", "partition_by"),
        ),
        ({"tables": ["orders"]}, ("tables",)),
        ({"tables": ["a.b"], "publications": ["p"]}, ("publications",)),
        ({"origin": "local"}, ("origin",)),
        ({"streaming": "yes"}, ("streaming",)),
        ({"wait_for": "godot"}, ("wait_for",)),
        ({"wait_timeout": "-0.1"}, ("wait_timeout",)),
    ],
)
def test_bad_values(plugin: Core, more: dict[str, Any], path: tuple[str, ...]) -> None:
    good = {"name": "l", "source": "s", "database": "d", "target": {"kind": "lake", "path": "/l"}}
    plugin.validate(SUBSCRIPTION, good)
    with pytest.raises(Refused) as refused:
        plugin.validate(SUBSCRIPTION, {**good, **more})
    assert refused.value.only.path == path


def test_unknown_values(core: Core, config: dict[str, Any]) -> None:
    target = {"kind": "lake", "path": UNKNOWN}
    unknown = {**config, "source": UNKNOWN, "slot": UNKNOWN, "target": target, "tables": UNKNOWN}
    plan = core.plan(SUBSCRIPTION, None, unknown)
    assert plan.planned is not None
    assert plan.planned["keep_slot"] is True
    core.plan(SUBSCRIPTION, None, {**config, "target": UNKNOWN, "name": UNKNOWN})
    state = core.make(SUBSCRIPTION, **config)
    assert core.plan(SUBSCRIPTION, state, {**config, "target": target}).replaces == {"target"}
    plan = core.plan(SUBSCRIPTION, state, {**config, "tables": [UNKNOWN]})
    assert plan.action == "update"


@pytest.mark.long
def test_an_apply_waits_for_the_program(
    core: Core, service: Service, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a kind that a package registers, whose program tells what the test wants."""
    entry = EntryPoint("fake", "harness.fake_target:FakeTarget", targets.ENTRY_POINT_GROUP)
    monkeypatch.setattr(targets, "_registered", lambda: {"fake": entry})

    def target(mode: str) -> dict[str, Any]:
        return {"kind": "fake", "options": {"mode": mode}}

    config |= {"enabled": True, "target": target("run"), "tables": ["shop.orders"]}
    state = core.make(SUBSCRIPTION, **config)
    assert state["state"] == "streaming"
    # What the kind fills in is no drift.
    assert service.call("GET", "/subscriptions/lake")["target"]["path"] == "/nowhere"
    assert core.plan(SUBSCRIPTION, core.read(SUBSCRIPTION, state), config).action == "no-op"
    # Changed while it runs, and stopped.
    config["tables"] = ["shop.orders", "shop.items"]
    state = core.change(core.plan(SUBSCRIPTION, state, config))
    assert state is not None
    assert state["state"] == "streaming"
    paused = core.apply(core.plan(SUBSCRIPTION, state, {**config, "enabled": False}))
    assert paused is not None
    assert paused["state"] == "paused"
    core.destroy(SUBSCRIPTION, paused)
    # One that copies for longer than one waits; and one that is not waited for.
    config["target"] = target("copying")
    with pytest.raises(Refused) as refused:
        core.make(SUBSCRIPTION, **config, wait_timeout="0.3")
    assert "timeout" in refused.value.only.summary
    assert "terraform untaint" in refused.value.only.detail
    assert refused.value.state is not None
    core.destroy(SUBSCRIPTION, refused.value.state)
    state = core.make(SUBSCRIPTION, **config, wait_for="copying")
    assert state["state"] == "copying"
    core.destroy(SUBSCRIPTION, state)
    # One that fails again and again: its own error, and it stays.
    config["target"] = target("fail")
    with pytest.raises(Refused) as refused:
        core.make(SUBSCRIPTION, **config)
    assert "lake_error" in refused.value.only.summary
    assert "No space" in refused.value.only.detail
    assert refused.value.state is not None
    core.warnings.clear()
    assert core.read(SUBSCRIPTION, refused.value.state) is not None
    assert any("lake_error" in warning.summary for warning in core.warnings)
    core.destroy(SUBSCRIPTION, refused.value.state)


def test_publications_and_tables(core: Core, shop: dict[str, Any], database: Database) -> None:
    where = {"source": shop["name"], "database": database.name}
    (publication,) = core.data("spillway_publications", **where)["publications"]
    assert publication["name"] == "published"
    assert publication["publish"]["truncate"] is True
    assert {(t["schema"], t["name"]) for t in publication["tables"]} == {
        ("shop", "orders"),
        ("shop", "items"),
    }
    tables = core.data("spillway_tables", **where)["tables"]
    found = {t["name"]: t for t in tables if t["schema"] == "shop"}
    assert found["orders"]["primary_key"] == ["id"]
    assert found["orders"]["publications"] == ["published"]
    assert found["items"]["warnings"]
    for name in ("spillway_publications", "spillway_tables"):
        with pytest.raises(Refused) as refused:
            core.data(name, source="books", database="books")
        assert refused.value.only.path == ("source",)


def test_subscription_as_data(core: Core, config: dict[str, Any]) -> None:
    core.make(SUBSCRIPTION, **config)
    shown = core.data("spillway_subscription", name="lake")
    assert shown["state"] == "paused"
    assert shown["slot"] == "lake"
    assert shown["error"] is None
    assert shown["table_states"] == []
    assert shown["verification"] is None


def test_comparisons_and_loads_as_data(plugin: Core) -> None:
    """As the service tells them."""
    at = datetime(2026, 11, 26, 10, tzinfo=UTC)
    differs = VerifiedTable("public.t", equal=False, source_rows=2, target_rows=1, differences=1,
                            more=False)  # fmt: skip
    same = VerifiedTable("public.u", equal=True, source_rows=1, target_rows=1, differences=0,
                         more=False)  # fmt: skip
    resync = TableResync("failed", at, at, reason="It may not be read.")
    tables = (TableState("public.t", "ready", 5, resync=resync), TableState("public.u", "ready"))
    found = Verification(VerificationState.DIFFERENT, at, at, Lsn(0x30), (differs, same))
    with FakeService() as service:
        service.engine.add_source("shop")
        service.engine.add_slot("lake")
        target = {"kind": "lake", "path": "/"}
        service.run(service.subscriptions.create(SubscriptionSpec("lake", "shop", "shop", target)))
        service.subscriptions.change("lake", table_states=tables, verification=found)
        plugin.configure(endpoint=service.environment["SPILLWAY_URL"], token=None)
        shown = plugin.data("spillway_subscription", name="lake")
        verification = shown["verification"]
        assert verification["state"] == "different"
        assert (verification["lsn"], verification["differing"]) == ("0/30", ["public.t"])
        assert (verification["ended_at"], verification["reason"]) == ("2026-11-26T10:00:00Z", None)
        told = [(one["table"], one["resync_state"], one["resync_reason"])
                for one in shown["table_states"]]  # fmt: skip
        assert told == [("public.t", "failed", "It may not be read."), ("public.u", None, None)]
        why = Failure("not_ready", "no snapshot", "Wait.")
        failed = Verification(VerificationState.FAILED, at, at, error=why)
        service.subscriptions.change("lake", verification=failed)
        verification = plugin.data("spillway_subscription", name="lake")["verification"]
        assert (verification["state"], verification["reason"]) == ("failed", "no snapshot")
