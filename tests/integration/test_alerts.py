"""Alerts of a whole service: real faults, a real receiver, restarts in between."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.grpc_answers import Answers, check_equal, check_one
from harness.receivers import webhook
from harness.reception import wait_until
from harness.remedies import remedy
from harness.service import Service, service_in_process
from spillway.alerts import watchman
from spillway.alerts.webhook import signature
from spillway.cli import main
from spillway.v1 import watch_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Cluster


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchman, "STEP_S", 0.2)
    monkeypatch.setattr(watchman, "_FIRST_RETRY_S", 0.3)


def events(service: Service, **where: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.call("GET", "/events", params=where)["events"]
    return found


def check_over_grpc(service: Service) -> None:
    """Insist on it that gRPC says what REST says, of all that was told and of how it was."""
    answers = Answers(service.grpc_address)
    check_equal(answers, lambda path: service.call("GET", path))
    found = answers.call("ListFindings", watch_pb2.ListFindingsRequest())
    check_one(found, service.call("GET", "/findings"))
    for kind, name in (("Source", "main"), ("Slot", "s")):
        was = answers.call(f"Get{kind}Metrics", watch_pb2.GetMetricsRequest(name=name))
        check_one(was, service.call("GET", f"/{kind.lower()}s/{name}/metrics"))
    answers.close()


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_a_source_that_is_down_is_told_once_and_told_when_it_is_over(
    tmp_path: Path, fresh_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Cluster = fresh_cluster(15)
    data = tmp_path / "data"
    with webhook() as receiver:
        with service_in_process(data) as service:
            service.create_source(cluster.dsn())
            monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
            assert main(["slot", "create", "s", "--source", "main", "--database", "postgres"]) == 0
            channel = {"kind": "webhook", "url": receiver.url, "secret": "s3cret"}
            channel["ui_url"] = "https://spillway.example"
            shown = service.call("PUT", "/alerts/channels/ops", json=channel)
            assert shown["secrets"] == ["secret"]
            assert "s3cret" not in str(service.call("GET", "/alerts/channels"))
            rule = {"codes": ["source_down"], "channels": ["ops"], "clear_s": 1}
            service.call("PUT", "/alerts/rules/down", json=rule)
            service.call("POST", "/alerts/channels/ops/test")
            assert receiver.reasons() == [("test", "test")]
            wait_until(
                lambda: service.call("GET", "/sources/main")["state"] == "streaming", 30, "no WAL"
            )
            time.sleep(1)
            assert service.call("GET", "/alerts")["alerts"] == []

            # The receiver is away for a moment when the server goes.
            receiver.statuses = [503, 302]
            cluster.stop("immediate")
            wait_until(lambda: len(receiver.got) == 2, 30, "nobody was told")
            (alert,) = service.call("GET", "/alerts", params={"state": "firing"})["alerts"]
            assert (alert["code"], alert["subject"]) == ("source_down", "main")
            (message,) = service.call("GET", "/alerts/messages")["messages"]
            assert message["attempts"] == 3
            wait_until(
                lambda: service.call("GET", "/alerts/messages")["messages"][0]["state"] == "sent",
                10,
                "not known to be sent",
            )
            (headers, body) = receiver.got[1]
            signed = headers["Spillway-Signature"]
            seconds = int(signed.partition(",")[0].removeprefix("t="))
            assert signed == signature("s3cret", seconds, body)
            assert abs(seconds - time.time()) < 60
            told = receiver.documents()[1]
            assert told["message_id"] == headers["Spillway-Message-Id"]
            assert told["url"] == "https://spillway.example/ui/sources/main"
            assert told["alert"]["title"] == "Source main receives no WAL"
            assert told["alert"]["remedy"]
            wait_until(lambda: bool(events(service, kind="problem")), 20, "no event")

            # What is wrong becomes another thing: who looks is not sent to mend what is well.
            hba = cluster.data_directory / "pg_hba.conf"
            lines = hba.read_text()
            hba.write_text(f"host replication all all reject\n{lines}")
            cluster.start()
            wait_until(
                lambda: (
                    "above the line that rejects"
                    in service.call("GET", "/alerts", params={"state": "firing"})["alerts"][0][
                        "remedy"
                    ]
                ),
                30,
                "the alert says what was",
            )
            assert len(receiver.got) == 2
            hba.write_text(lines)
            cluster.stop("immediate")

        # Another start does not tell it again, and it is not over while nothing is known.
        with service_in_process(data) as service:
            time.sleep(4)
            assert len(receiver.got) == 2
            (again,) = service.call("GET", "/alerts", params={"state": "firing"})["alerts"]
            assert again["id"] == alert["id"]
            cluster.start()
            wait_until(lambda: len(receiver.got) == 3, 60, "that it is over was not told")
            over = receiver.documents()[2]
            assert (over["reason"], over["alert"]["id"]) == ("resolved", alert["id"])
            assert service.call("GET", "/alerts", params={"state": "firing"})["alerts"] == []
            wait_until(lambda: bool(events(service, kind="resolved")), 30, "no event")
            found = events(service)
            kinds = [event["kind"] for event in reversed(found)]
            assert kinds.index("problem") < kinds.index("stopped") < kinds.index("resolved")
            assert kinds.count("started") == 2
            assert kinds.count("taken") >= 2
            (made,) = [event for event in found if event["title"] == "Slot s was created"]
            assert made["slot"] == "s"
            assert made["caller"]["protocol"] == "REST"
            assert made["caller"]["client"].startswith("spillway-cli/")
            (problem,) = events(service, kind="problem", source="main")
            assert problem["document"]["code"] == "source_down"
            check_over_grpc(service)


@pytest.mark.usefixtures("quick")
@pytest.mark.follows_hint("unknown_alert_rule", "unknown_alert_channel", "alert_not_delivered")
def test_what_is_refused_says_what_to_do(tmp_path: Path) -> None:
    with webhook() as receiver, service_in_process(tmp_path / "data") as service:
        problem = service.problem("PUT", "/alerts/rules/r", json={"channels": ["ops"]})
        assert problem["hint"].startswith("PUT /v1/alerts/channels/ops makes it")
        missing = service.problem("POST", "/alerts/channels/ops/test")
        assert "PUT /v1/alerts/channels/ops makes it" in remedy(missing, "unknown_alert_channel")
        channel = {"kind": "webhook", "url": receiver.url + "/moved"}
        service.call("PUT", "/alerts/channels/ops", json=channel)
        service.call("POST", "/alerts/channels/ops/test")
        assert "PUT /v1/alerts/rules/r makes it" in remedy(
            service.problem("GET", "/alerts/rules/r"), "unknown_alert_rule"
        )
        service.call("PUT", "/alerts/rules/r", json={"channels": ["ops"]})
        assert service.call("GET", "/alerts/rules/r")["repeat_s"] == 14_400

        receiver.statuses = [404]
        refused = service.problem("POST", "/alerts/channels/ops/test")
        assert "127.0.0.1 answered 404" in refused["detail"]
        assert "the address" in remedy(refused, "alert_not_delivered")
        service.call("PUT", "/alerts/channels/ops", json={**channel, "url": receiver.url})
        service.call("POST", "/alerts/channels/ops/test")

        used = service.problem("DELETE", "/alerts/channels/ops")
        assert used["hint"].startswith("DELETE /v1/alerts/rules/r drops the rule")
        service.call("DELETE", "/alerts/rules/r")
        service.call("DELETE", "/alerts/channels/ops")
        for path, body, said in (
            ("channels/ops", {"kind": "pigeon"}, "kind is 'pigeon'"),
            ("channels/ops", {"kind": "webhook", "url": "ftp://a/b"}, "no address of HTTP"),
            ("channels/ops", {"kind": "webhook", "url": "https://u:p@h/"}, "has a user in it"),
            ("channels/ops", {"kind": "webhook", "url": "http://a", "to": []}, "has no to"),
            ("channels/Ops", {"kind": "slack", "url": "https://h/"}, "can't have the name"),
            ("rules/r", {"codes": ["nonsense"]}, "'nonsense', which is no finding's"),
            ("rules/r", {"limits": {"lag": 1}}, "limits has no 'lag'"),
            ("rules/r", {"hold_s": -1}, "hold_s is -1"),
            ("rules/r", {"quiet": {"from": "22"}}, "quiet.to is no time of day"),
            ("rules/r", {"quiet": {"from": "22:00", "to": "23:00", "timezone": "Mars/X"}}, "Mars"),
        ):
            problem = service.problem("PUT", f"/alerts/{path}", json=body)
            assert said in problem["detail"], problem
            assert problem["hint"]
        link_local = {"kind": "webhook", "url": "http://169.254.169.254/latest"}
        service.call("PUT", "/alerts/channels/cloud", json=link_local)
        refused = service.problem("POST", "/alerts/channels/cloud/test")
        assert "where no alerts are sent" in refused["detail"]
