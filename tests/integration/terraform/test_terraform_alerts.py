"""Alert channels and rules in Terraform: made, changed, imported, drifted, and no secret kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from harness.receivers import webhook
from harness.terraform_cli import Terraform, command_line
from harness.terraform_core import UNKNOWN, Core, Refused, is_write_only

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

CHANNEL, RULE = "spillway_alert_channel", "spillway_alert_rule"
URL = "https://ops.example/hooks/spillway"


@pytest.fixture(autouse=True)
def _none_stays(service: Service) -> Iterator[None]:
    yield
    for rule in service.call("GET", "/alerts/rules")["rules"]:
        service.call("DELETE", f"/alerts/rules/{rule['name']}")
    for channel in service.call("GET", "/alerts/channels")["channels"]:
        service.call("DELETE", f"/alerts/channels/{channel['name']}")


def hook(**more: Any) -> dict[str, Any]:
    return {"name": "ops", "kind": "webhook", "url": URL} | more


def channel(service: Service, name: str = "ops") -> dict[str, Any]:
    found: dict[str, Any] = service.call("GET", f"/alerts/channels/{name}")
    return found


def test_a_secret_is_sent_and_kept_nowhere(core: Core, service: Service) -> None:
    attributes = core.schema().resource_schemas[CHANNEL].block.attributes
    hidden = {a.name for a in attributes if is_write_only(a)}
    assert hidden == {"secret_wo", "authorization_wo", "slack_url_wo", "password_wo"}
    assert hidden == {a.name for a in attributes if a.sensitive}
    config = hook(secret_wo="s3cret", authorization_wo="Bearer t0ken", secrets_wo_version=1)
    state = core.make(CHANNEL, **config)
    assert state["secrets"] == ["authorization", "secret"]
    assert "s3cret" not in json.dumps(state)
    assert core.plan(CHANNEL, state, config).action == "no-op"
    # What is not said again stays; what the configuration has is sent with every change.
    config = hook(ui_url="https://spillway.example", secrets_wo_version=1)
    state = core.change(core.plan(CHANNEL, state, config))
    assert state["secrets"] == ["authorization", "secret"]
    # Another version: all of them anew, and what is not there any more goes.
    config |= {"secret_wo": "another", "secrets_wo_version": 2}
    plan = core.plan(CHANNEL, state, config)
    assert plan.changes == {"secrets", "secrets_wo_version"}
    assert core.change(plan)["secrets"] == ["secret"]
    assert channel(service)["ui_url"] == "https://spillway.example"


def test_secrets_that_somebody_else_changes_are_in_the_next_plan(
    core: Core, service: Service
) -> None:
    config = hook(secret_wo="s3cret", secrets_wo_version=1)
    state = core.make(CHANNEL, **config)
    service.call("PUT", "/alerts/channels/ops", json={"kind": "webhook", "url": URL, "secret": ""})
    seen = core.read(CHANNEL, state)
    assert seen is not None
    assert (seen["secrets"], seen["secrets_wo_version"]) == ([], None)
    assert core.change(core.plan(CHANNEL, seen, config))["secrets"] == ["secret"]
    service.call("DELETE", "/alerts/channels/ops")
    assert core.read(CHANNEL, state) is None


def test_an_older_terraform_is_refused_before_it_stores_a_secret(core: Core) -> None:
    core.knows_write_only = False
    try:
        core.plan(CHANNEL, None, hook())
        with pytest.raises(Refused) as refused:
            core.plan(CHANNEL, None, hook(secret_wo="s3cret"))
        assert refused.value.only.path == ("secret_wo",)
        assert "1.11" in refused.value.only.detail
    finally:
        core.knows_write_only = True


def test_mail_and_slack(core: Core, service: Service) -> None:
    mail: dict[str, Any] = {
        "name": "mail", "kind": "email", "host": "smtp.example", "from": "a@b.example",
        "to": ["c@d.example"], "user": "u", "password_wo": "p",
    }  # fmt: skip
    state = core.make(CHANNEL, **mail)
    assert (state["security"], state["port"], state["secrets"]) == ("starttls", 587, ["password"])
    # The port follows, and the password goes to another place only since it is said again.
    plan = core.plan(CHANNEL, state, mail | {"security": "tls"})
    assert core.change(plan)["port"] == 465
    state = core.import_(CHANNEL, "mail")
    assert core.plan(CHANNEL, state, mail | {"security": "tls"}).action == "no-op"
    chat = core.make(CHANNEL, name="chat", kind="slack", slack_url_wo=URL)
    assert (chat["url"], chat["secrets"]) == (None, ["url"])
    assert core.plan(CHANNEL, chat, hook(name="chat")).action == "replace"
    assert len(service.call("GET", "/alerts/channels")["channels"]) == 2


def test_a_rule(core: Core, service: Service) -> None:
    core.make(CHANNEL, **hook())
    config: dict[str, Any] = {
        "name": "lag", "codes": ["subscription_stale", "slot_lagging"], "channels": ["ops"],
        "limits": {"lag_s": 60, "near_limit": "0.1"}, "repeat_s": 0,
        "quiet": {"from": "22:00", "to": "07:00"},
    }  # fmt: skip
    planned = core.plan(RULE, None, config).planned
    assert planned is not None
    assert (planned["clear_s"], planned["created_at"]) == (60, UNKNOWN)
    state = core.make(RULE, **config)
    stored = service.call("GET", "/alerts/rules/lag")
    assert (stored["limits"], stored["repeat_s"]) == ({"lag_s": 60, "near_limit": 0.1}, 0)
    assert (stored["sources"], stored["quiet"]["timezone"]) == (None, "UTC")
    seen = core.read(RULE, state)
    assert seen is not None
    assert core.plan(RULE, seen, config).action == "no-op"
    # An import has the quiet hours' defaults spelt out: the first apply writes them as the
    # configuration does.
    imported = core.import_(RULE, "lag")
    plan = core.plan(RULE, imported, config)
    assert plan.changes == {"quiet"}
    assert core.plan(RULE, core.change(plan), config).action == "no-op"
    # Drift, and back.
    service.call("PUT", "/alerts/rules/lag", json={"channels": ["ops"], "sources": ["shop"]})
    seen = core.read(RULE, state)
    assert seen is not None
    plan = core.plan(RULE, seen, config)
    assert plan.changes >= {"codes", "sources", "limits", "repeat_s", "quiet"}
    core.change(plan)
    assert service.call("GET", "/alerts/rules/lag") == stored
    # A set of none is none, and not all.
    plan = core.plan(RULE, state, config | {"sources": []})
    assert "sources" in plan.changes
    core.change(plan)
    assert service.call("GET", "/alerts/rules/lag")["sources"] == []
    core.destroy(RULE, state)
    core.destroy(RULE, state)
    assert service.call("GET", "/alerts/rules")["rules"] == []


def test_what_is_refused(core: Core, service: Service) -> None:
    service.call("PUT", "/alerts/channels/ops", json={"kind": "webhook", "url": URL})
    with pytest.raises(Refused) as refused:
        core.make(CHANNEL, **hook(enabled=False))
    assert "terraform import" in refused.value.only.detail
    assert channel(service)["enabled"], "it was taken over without a word"
    for config, path in (
        ({"name": "Ops", "kind": "webhook"}, "name"),
        ({"name": "ops", "kind": "pager"}, "kind"),
        ({"name": "ops", "kind": "webhook", "url": "ops"}, "url"),
    ):
        with pytest.raises(Refused) as refused:
            core.plan(CHANNEL, None, config)
        assert refused.value.only.path == (path,)
    with pytest.raises(Refused) as refused:
        core.make(RULE, name="r", channels=["none"])
    assert 'alert channel "none" does not exist' in refused.value.only.detail.lower()


def test_findings(core: Core, database: Database) -> None:
    core.make("spillway_source", name="shop", dsn=database.dsn)
    assert core.data("spillway_findings", severity="bad")["findings"] == []


HEADER = """
terraform {
  required_providers {
    spillway = { source = "terraform.local/spillway/spillway" }
  }
}

variable "webhook_secret" {
  type      = string
  sensitive = true
}
"""


@pytest.mark.long
@pytest.mark.skipif(command_line() is None, reason="NEITHER terraform NOR tofu IS ON PATH")
def test_with_the_command_line(tmp_path: Path, service: Service) -> None:
    """The examples of the pages, with a receiver: what is written down has no secret."""
    terraform = Terraform(tmp_path, service, "terraform's token", webhook_secret="s3cret-of-ours")
    with webhook() as receiver:
        parts = [
            (Terraform.EXAMPLES / path).read_text().replace(URL, receiver.url)
            for path in (
                "resources/spillway_alert_channel.tf",
                "resources/spillway_alert_rule.tf",
                "data-sources/spillway_findings.tf",
            )
        ]
        terraform.write(HEADER, *parts[:2])
        terraform("init", "-input=false", "-no-color")
        assert "2 added" in terraform.apply()
        terraform.plan(expect=0)
        # A check reads anew with every plan.
        terraform.write(HEADER, *parts)
        assert "Check block assertion failed" not in terraform.apply()
        terraform("plan", "-input=false", "-no-color", "-out=kept.plan")
        written = [file for file in tmp_path.iterdir() if file.is_file()]
        assert {"terraform.tfstate", "kept.plan"} <= {file.name for file in written}
        assert not [file.name for file in written if b"s3cret-of-ours" in file.read_bytes()]
        service.call("POST", "/alerts/channels/ops/test")
        assert "Spillway-Signature" in receiver.got[0][0]
        terraform.write(HEADER, *parts[:1])
        assert "1 destroyed" in terraform.apply()
        terraform.write(HEADER, parts[0].replace("wo_version = 1", "wo_version = 2"))
        assert "0 added, 1 changed" in terraform.apply()
        assert "1 destroyed" in terraform("destroy", "-auto-approve", "-no-color")
