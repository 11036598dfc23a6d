"""AlertService and WatchService beside REST, with an engine in memory behind both."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.fake_service import FakeService
from harness.grpc_answers import Answers, check_equal, check_one
from harness.receivers import webhook
from spillway.pg.lsn import Lsn
from spillway.store.rows import EventRow, Fence, SchemaChangeRow, SourceRow
from spillway.v1 import alerts_pb2, watch_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.store.metadata import MetadataStore

LONG = "x" * 201
AT = datetime(2026, 11, 25, 8, tzinfo=UTC)


class Both:
    """gRPC and REST of one service."""

    def __init__(self, service: FakeService) -> None:
        self.service = service
        self.grpc = Answers(f"127.0.0.1:{service.grpc_port}")
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{service.http_port}/v1", timeout=60)

    def rest(self, path: str, **query: Any) -> Any:
        return self.http.get(path, params=query).raise_for_status().json()

    def rest_code(self, path: str, **query: Any) -> str:
        return str(self.http.get(path, params=query).json()["code"])


@pytest.fixture
def both() -> Iterator[Both]:
    with FakeService() as service:
        service.engine.add_source("shop")
        service.engine.add_slot("s1")
        made = Both(service)
        yield made
        made.grpc.close()
        made.http.close()


def events(both: Both, *rows: EventRow) -> None:
    both.service.run(both.service.metadata.events.add(rows))


def test_channels_and_rules(both: Both) -> None:
    with webhook() as receiver:
        put = alerts_pb2.PutAlertChannelRequest(
            name="ops", kind="webhook", url=receiver.url, secret="s3cret"
        )
        made = both.grpc.call("PutAlertChannel", put)
        assert (made["secrets"], made["enabled"]) == (["secret"], True)
        check_one(made, both.rest("/alerts/channels/ops"))
        # What is left out stays, and an empty text takes it away; so over REST.
        put.ClearField("secret")
        assert both.grpc.call("PutAlertChannel", put)["secrets"] == ["secret"]
        put.secret = ""
        assert both.grpc.call("PutAlertChannel", put)["secrets"] == []
        test = both.grpc.call("TestAlertChannel", alerts_pb2.TestAlertChannelRequest(name="ops"))
        assert test == {"channel": "ops", "delivered": True}
        assert receiver.reasons() == [("test", "test")]
    mail = alerts_pb2.PutAlertChannelRequest(
        name="mail", kind="email", host="smtp.example", sender="a@b.example", to=["c@d.example"],
        enabled=False,
    )  # fmt: skip
    check_one(both.grpc.call("PutAlertChannel", mail), both.rest("/alerts/channels/mail"))
    rule = alerts_pb2.PutAlertRuleRequest(
        name="lag", codes={"names": ["slot_lagging"]}, sources={"names": []}, repeat_s=0,
        limits={"lag_s": 60}, channels=["ops"],
    )  # fmt: skip
    rule.quiet.update({"from": "22:00", "to": "07:00", "days": ["sat"]})
    made = both.grpc.call("PutAlertRule", rule)
    assert (made["clear_s"], made["repeat_s"], made["severity"]) == (60, 0, "warn")
    assert (made["sources"], made["subjects"]) == ([], None)
    check_one(made, both.rest("/alerts/rules/lag"))
    check_equal(both.grpc, both.rest)
    in_use = alerts_pb2.DropAlertChannelRequest(name="ops")
    assert both.grpc.code("DropAlertChannel", in_use) == "conflict"
    both.grpc.call("DropAlertRule", alerts_pb2.DropAlertRuleRequest(name="lag"))
    both.grpc.call("DropAlertChannel", in_use)
    assert both.rest("/alerts/rules")["rules"] == []
    who = both.rest("/events", search="Alert channel ops was dropped")["events"][0]["caller"]
    assert who["protocol"] == "gRPC"


def test_events_in_pages(both: Both) -> None:
    events(
        both,
        *(
            EventRow(
                kind="problem", title=f"number {n}", at=AT + timedelta(seconds=n), source="shop",
                detail="x" * 3000, document={"code": "slot_lagging", "n": n},
            )
            for n in range(200)
        ),
        EventRow(kind="started", title="It started", caller={"address": "::1", "user": None}),
    )  # fmt: skip
    check_equal(both.grpc, both.rest)
    request = watch_pb2.ListEventsRequest(source="shop", limit=150)
    page = both.grpc.call("ListEvents", request)
    check_one(page, both.rest("/events", source="shop", limit=150))
    request.before = page["next_before"]
    rest_of_it = both.grpc.call("ListEvents", request)
    assert (len(rest_of_it["events"]), rest_of_it["next_before"]) == (50, 0)
    request = watch_pb2.ListEventsRequest(search="NUMBER 19")
    request.since.FromDatetime(AT + timedelta(seconds=190))
    assert len(both.grpc.call("ListEvents", request)["events"]) == 10


def test_what_is_wrong_and_how_it_was(both: Both) -> None:
    both.service.look()
    both.service.engine.sources["shop"] = replace(
        both.service.engine.sources["shop"],
        state="error",
        error="it is away",
        error_code="source_error",
        hint="Start it.",
    )
    found = both.grpc.call("ListFindings", watch_pb2.ListFindingsRequest())
    assert [one["code"] for one in found["findings"]] == ["source_down"]
    check_one(found, both.rest("/findings"))
    for kind, name in (("Source", "shop"), ("Slot", "s1")):
        request = watch_pb2.GetMetricsRequest(name=name, range_s=3600, step_s=600)
        was = both.grpc.call(f"Get{kind}Metrics", request)
        check_one(was, both.rest(f"/{kind.lower()}s/{name}/metrics", range="1h", step="10m"))
        assert any(value is not None for value in was["metrics"]["lag_bytes"])
    unknown = watch_pb2.GetMetricsRequest(name="none")
    codes = [both.grpc.code(f"Get{k}Metrics", unknown) for k in ("Source", "Slot", "Subscription")]
    assert codes == ["unknown_source", "unknown_slot", "unknown_subscription"]


async def noted(metadata: MetadataStore, row: SchemaChangeRow) -> None:
    source = SourceRow(
        name="shop", dsn="", system_id="7", server_version_num=180004, timeline=1,
        wal_segment_size=1 << 24, slot_name="s", capture={},
    )  # fmt: skip
    await metadata.add_source(source)
    token = await metadata.acquire_lease("source/shop", "here", 60)
    assert token is not None
    fences = {"shop": Fence("source/shop", token)}
    assert await metadata.schema_changes.add([row], fences)


def test_what_changed_in_the_schema(both: Both) -> None:
    row = SchemaChangeRow(
        source="shop", database="shop", table_name="public.t", kind="drop_table",
        committed_at=AT, commit_lsn=Lsn(0x1A2B3C8), xid=7, number=0,
        document={"was": "public.t", "changes": [{"kind": "drop_table", "n": 1}]},
        outcomes={
            "lake": {"outcome": "paused", "detail": "", "at": AT.isoformat(), "was_paused": False}
        },
    )  # fmt: skip
    both.service.run(noted(both.service.metadata, row))
    found = both.grpc.call("ListSchemaChanges", watch_pb2.ListSchemaChangesRequest())
    assert found["schema_changes"][0]["outcomes"][0]["outcome"] == "paused"
    check_equal(both.grpc, both.rest)
    elsewhere = watch_pb2.ListSchemaChangesRequest(table="public.u")
    assert both.grpc.call("ListSchemaChanges", elsewhere)["schema_changes"] == []


def test_what_is_refused_is_refused_alike(both: Both) -> None:
    for method, request, path, query in (
        ("ListAlerts", alerts_pb2.ListAlertsRequest(state="x"), "/alerts", {"state": "x"}),
        ("ListEvents", watch_pb2.ListEventsRequest(limit=1001), "/events", {"limit": 1001}),
        (
            "ListSchemaChanges",
            watch_pb2.ListSchemaChangesRequest(limit=1001),
            "/schema-changes",
            {"limit": 1001},
        ),
        (
            "GetSlotMetrics",
            watch_pb2.GetMetricsRequest(name="s1", range_s=31 * 86_400),
            "/slots/s1/metrics",
            {"range": "31d"},
        ),
        (
            "GetAlertRule",
            alerts_pb2.GetAlertRuleRequest(name="none"),
            "/alerts/rules/none",
            {},
        ),
        ("ListEvents", watch_pb2.ListEventsRequest(search=LONG), "/events", {"search": LONG}),
        ("ListEvents", watch_pb2.ListEventsRequest(source="a\0b"), "/events", {"source": "a\0b"}),
    ):  # fmt: skip
        assert both.grpc.code(method, request) == both.rest_code(path, **query)
    rule = alerts_pb2.PutAlertRuleRequest(name="r", subjects={"names": ["a\0"]})
    assert both.grpc.code("PutAlertRule", rule) == "invalid_request"


def test_a_service_without_the_token_is_told_nothing() -> None:
    with FakeService("s3cret") as service:
        answers = Answers(f"127.0.0.1:{service.grpc_port}", "wrong")
        request = watch_pb2.ListEventsRequest()
        assert answers.code("ListEvents", request) == "unauthenticated"
        answers.close()
        answers = Answers(f"127.0.0.1:{service.grpc_port}", "s3cret")
        assert "events" in answers.call("ListEvents", request)
        answers.close()


def test_the_services_can_be_looked_up(both: Both) -> None:
    stub = health_pb2_grpc.HealthStub(both.grpc.channel)
    for name in ("AlertService", "WatchService"):
        request = health_pb2.HealthCheckRequest(service=f"spillway.v1.{name}")
        assert stub.Check(request).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError):
        stub.Check(health_pb2.HealthCheckRequest(service="spillway.v1.None"))
