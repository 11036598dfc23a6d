"""The REST contract, over the engine in memory."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from harness.fake_engine import CREATED_AT, FIRST_LSN, FakeEngine
from harness.fake_subscriptions import FakeSubscriptions
from spillway.caller import calling
from spillway.errors import CorruptWal, MetadataError, SpillwayError
from spillway.pg.lsn import Lsn
from spillway.service.model import Change, Decoding, Obstacle
from spillway.slot_manager.app import create_app
from spillway.slot_manager.guard import BODY_BYTES_MAX
from spillway.slot_manager.openapi import contract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROBLEM_FIELDS = {"type", "title", "status", "detail", "code", "hint", "instance", "details"}
#: pg_replication_slots of PostgreSQL 18
VIEW_COLUMNS = [
    "slot_name",
    "plugin",
    "slot_type",
    "datoid",
    "database",
    "temporary",
    "active",
    "active_pid",
    "xmin",
    "catalog_xmin",
    "restart_lsn",
    "confirmed_flush_lsn",
    "wal_status",
    "safe_wal_size",
    "two_phase",
    "two_phase_at",
    "inactive_since",
    "conflicting",
    "invalidation_reason",
    "failover",
    "synced",
]
SLOT = {"slot_name": "s2", "source": "shop", "database": "shop"}


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert set(problem) == PROBLEM_FIELDS
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["type"] == f"/problems/{code}"
    assert problem["instance"] == response.request.url.path
    return problem


async def test_sources(client: httpx.AsyncClient) -> None:
    made = await client.post(
        "/v1/sources", json={"name": "books", "dsn": "host=db password=secret user=u"}
    )
    assert made.status_code == 201
    assert made.headers["location"] == "/v1/sources/books"
    assert "secret" not in made.text
    source = made.json()
    assert source["received_lsn"] == str(FIRST_LSN)
    assert source["sessions"][0]["snapshot_state"] == "consistent"
    assert (await client.get("/v1/sources/books")).json() == source
    names = [s["name"] for s in (await client.get("/v1/sources")).json()["sources"]]
    assert names == ["shop", "books"]
    assert source["capture"] == {"origin": "any", "tables": [], "publications": []}
    capture = {"origin": "none", "tables": ["shop.*"], "publications": []}
    some = {"name": "some", "dsn": "host=db", "capture": capture}
    assert (await client.post("/v1/sources", json=some)).json()["capture"] == capture
    for wrong in ({"origin": "local"}, {"tables": "t"}, {"databases": ["d"]}):
        refused = await client.post("/v1/sources", json={**some, "capture": wrong})
        assert_problem(refused, 400, "invalid_request")
    assert (await client.delete("/v1/sources/some")).status_code == 204
    assert (await client.delete("/v1/sources/books")).status_code == 204
    assert_problem(await client.get("/v1/sources/books"), 404, "unknown_source")
    assert_problem(await client.delete("/v1/sources/shop"), 409, "conflict")
    duplicate = await client.post("/v1/sources", json={"name": "shop", "dsn": "x"})
    assert_problem(duplicate, 409, "duplicate_name")


async def test_a_source_is_reached_by_another_dsn(client: httpx.AsyncClient) -> None:
    changed = await client.patch("/v1/sources/shop", json={"dsn": "host=db2 password=new"})
    assert changed.status_code == 200
    assert changed.json()["dsn"] == "host=db2 password=****"
    for body in ({}, {"dsn": "x", "name": "y"}, {"dsn": "x", "capture": {}}):
        refused = await client.patch("/v1/sources/shop", json=body)
        assert_problem(refused, 400, "invalid_request")
    gone = await client.patch("/v1/sources/no", json={"dsn": "x"})
    assert_problem(gone, 404, "unknown_source")


async def test_a_slot_gets_other_options(client: httpx.AsyncClient) -> None:
    changed = await client.patch("/v1/slots/s1", json={"options": {"include-xids": "0"}})
    assert changed.status_code == 200
    assert changed.json()["options"] == {"include-xids": "0"}
    for body in ({}, {"options": None}, {"options": {"a": 1}}, {"options": {}, "plugin": "x"}):
        refused = await client.patch("/v1/slots/s1", json=body)
        assert_problem(refused, 400, "invalid_request")
    gone = await client.patch("/v1/slots/no", json={"options": {}})
    assert_problem(gone, 404, "unknown_slot")


async def test_plugins(client: httpx.AsyncClient) -> None:
    listed = await client.get("/v1/plugins")
    assert listed.json() == {"plugins": [{"name": "test_decoding", "built_in": True}]}
    assert_problem(await client.get("/v1/plugins?a=1"), 400, "invalid_request")


async def test_slot_has_the_columns_of_the_view(client: httpx.AsyncClient) -> None:
    made = await client.post("/v1/slots", json={**SLOT, "options": {"include-xids": "0"}})
    assert made.status_code == 201
    assert made.headers["location"] == "/v1/slots/s2"
    slot = made.json()
    assert list(slot)[: len(VIEW_COLUMNS)] == VIEW_COLUMNS
    assert set(slot) - set(VIEW_COLUMNS) == {
        "source",
        "options",
        "decoded_lsn",
        "lag_bytes",
        "lag_seconds",
        "retained_bytes",
        "created_at",
        "consumer",
        "decoding",
        "confirmed_at",
    }
    assert slot["options"] == {"include-xids": "0"}
    assert slot["confirmed_flush_lsn"] == "0/1000000"
    assert slot["created_at"] == "2026-11-21T08:00:00Z"
    assert (await client.get("/v1/slots/s2")).json() == slot
    names = [s["slot_name"] for s in (await client.get("/v1/slots")).json()["slots"]]
    assert names == ["s1", "s2"]
    dropped = await client.delete("/v1/slots/s2")
    assert (dropped.status_code, dropped.content) == (204, b"")
    assert_problem(await client.delete("/v1/slots/s2"), 404, "unknown_slot")


async def test_start_lsn(client: httpx.AsyncClient) -> None:
    made = await client.post("/v1/slots", json={**SLOT, "start_lsn": "0/fffff0"})
    assert made.json()["confirmed_flush_lsn"] == "0/FFFFF0"


async def test_peek_then_get(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.commit(
        "shop", "BEGIN 1", 'table public."ü": INSERT: t[text]:\'"\\\n\u2028\'', "COMMIT 1"
    )
    engine.commit("shop", "BEGIN 2", "COMMIT 2")
    decoding = (await client.get("/v1/slots/s1")).json()["decoding"]
    expected = {
        "changes": [
            {"lsn": str(c.lsn), "xid": c.xid, "data": c.data}
            for t in engine.transactions["shop"]
            for c in t.changes
        ],
        "decoding": decoding,
    }
    peeked = await client.get("/v1/slots/s1/peek")
    assert peeked.headers["content-type"] == "application/json"
    assert peeked.json() == expected
    assert (await client.get("/v1/slots/s1/peek")).json() == expected, "a peek consumes nothing"
    assert (await client.post("/v1/slots/s1/get")).json() == expected
    assert (await client.post("/v1/slots/s1/get", json={})).json() == {
        "changes": [],
        "decoding": decoding,
    }


async def test_limits(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    first = engine.commit("shop", "BEGIN", "a", "COMMIT")
    second = engine.commit("shop", "BEGIN", "b", "COMMIT")

    async def count(query: str) -> int:
        return len((await client.get(f"/v1/slots/s1/peek?{query}")).json()["changes"])

    assert await count("upto_nchanges=1") == 3, "stops at a transaction's end"
    assert await count("upto_nchanges=3") == 3
    assert await count("upto_nchanges=4") == 6
    assert await count("upto_nchanges=0") == 6, "no limit, as in PostgreSQL"
    assert await count(f"upto_lsn={second.final_lsn}") == 3
    assert await count(f"upto_lsn={first.final_lsn}&upto_nchanges=9") == 0
    got = await client.post("/v1/slots/s1/get", json={"upto_nchanges": 1, "upto_lsn": None})
    assert len(got.json()["changes"]) == 3
    assert (await client.get("/v1/slots/s1")).json()["confirmed_flush_lsn"] == str(first.end_lsn)


async def test_options(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    query = "options.include-xids=0&options.skip-empty-xacts="
    assert (await client.get(f"/v1/slots/s1/peek?{query}")).status_code == 200
    assert engine.options_seen[-1] == {"include-xids": "0", "skip-empty-xacts": ""}
    await client.post("/v1/slots/s1/get", json={"options": {"include-xids": "1"}})
    assert engine.options_seen[-1] == {"include-xids": "1"}
    unknown = await client.get("/v1/slots/s1/peek?options.nonsense=1")
    assert assert_problem(unknown, 400, "invalid_option")["detail"] == (
        'option "nonsense" = "1" is unknown'
    )
    twice = await client.get("/v1/slots/s1/peek?options.include-xids=0&options.include-xids=1")
    assert_problem(twice, 400, "invalid_option")


async def test_many_changes(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.commit("shop", *(f"row {i}" for i in range(2500)))
    changes = (await client.get("/v1/slots/s1/peek")).json()["changes"]
    assert [change["data"] for change in changes] == [f"row {i}" for i in range(2500)]


async def test_binary_data_passes_as_it_is(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.commit("shop", "\\x00ff")
    changes = (await client.get("/v1/slots/s1/peek")).json()["changes"]
    assert changes[0]["data"] == "\\x00ff"


async def test_a_snapshot(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {"slot_name": "c", "source": "shop", "database": "shop"}
    assert "snapshot" not in (await client.post("/v1/slots", json=body)).json()
    body["slot_name"] = "s"
    made = (await client.post("/v1/slots", json={**body, "snapshot": "export"})).json()
    snapshot = made["snapshot"]
    assert snapshot["consistent_point"] == made["confirmed_flush_lsn"]
    assert snapshot["method"] == "paired"
    assert (await client.get("/v1/slots/s/snapshot")).json() == snapshot
    taken = await client.post("/v1/slots/s/snapshot")
    assert (taken.status_code, taken.json()["snapshot_name"]) == (
        201,
        engine.snapshots["s"].snapshot_name,
    )
    assert (await client.delete("/v1/slots/s/snapshot")).status_code == 204
    gone = await client.get("/v1/slots/s/snapshot")
    assert (gone.status_code, gone.json()["code"]) == (404, "unknown_snapshot")
    bad = await client.post("/v1/slots", json={**body, "slot_name": "b", "snapshot": "use"})
    assert bad.status_code == 400


async def test_advance_rewind_copy_stats(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    transaction = engine.commit("shop", "BEGIN", "COMMIT")
    advanced = await client.post("/v1/slots/s1/advance", json={"upto_lsn": "FFFFFFFF/FFFFFFFF"})
    assert advanced.json() == {"slot_name": "s1", "end_lsn": str(transaction.end_lsn)}
    backward = await client.post("/v1/slots/s1/advance", json={"upto_lsn": "0/1"})
    assert_problem(backward, 409, "advance_backward")
    rewound = await client.post("/v1/slots/s1/rewind", json={"lsn": str(FIRST_LSN)})
    assert rewound.json()["confirmed_flush_lsn"] == str(FIRST_LSN)
    lost = await client.post("/v1/slots/s1/rewind", json={"lsn": "0/1"})
    assert assert_problem(lost, 409, "lsn_not_retained")["details"] == {"slot": "s1", "lsn": "0/1"}
    copied = await client.post("/v1/slots/s1/copy", json={"slot_name": "s9"})
    assert copied.status_code == 201
    assert copied.json()["slot_name"] == "s9"
    stats = (await client.get("/v1/slots/s9/stats")).json()
    assert (stats["slot_name"], stats["total_txns"]) == ("s9", 1)


async def test_one_consumer_at_a_time(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    async with engine.stream("s1"):
        for response in (
            await client.get("/v1/slots/s1/peek"),
            await client.post("/v1/slots/s1/get"),
            await client.delete("/v1/slots/s1"),
        ):
            assert_problem(response, 409, "slot_active")


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/v1/slots", {**SLOT, "slot_name": "Bad-Name"}, "invalid_slot_name"),
        ("POST", "/v1/slots", {**SLOT, "plugin": "nonsense"}, "unknown_plugin"),
        ("POST", "/v1/slots", {**SLOT, "nonsense": 1}, "invalid_request"),
        ("POST", "/v1/slots", {**SLOT, "temporary": "yes"}, "invalid_request"),
        ("POST", "/v1/slots", {**SLOT, "temporary": 1}, "invalid_request"),
        ("POST", "/v1/slots", {**SLOT, "options": {"a": 1}}, "invalid_request"),
        ("POST", "/v1/slots", {**SLOT, "options": ["a"]}, "invalid_request"),
        ("POST", "/v1/slots", {**SLOT, "start_lsn": "nonsense"}, "invalid_lsn"),
        ("POST", "/v1/slots", {**SLOT, "start_lsn": 7}, "invalid_lsn"),
        ("POST", "/v1/slots", {"slot_name": "x"}, "invalid_request"),
        ("POST", "/v1/slots", [], "invalid_request"),
        ("POST", "/v1/slots", None, "invalid_request"),
        ("POST", "/v1/slots?x=1", SLOT, "invalid_request"),
        ("POST", "/v1/sources", {"name": "a"}, "invalid_request"),
        ("POST", "/v1/slots/s1/advance", {}, "invalid_request"),
        ("POST", "/v1/slots/s1/advance", {"upto_lsn": None}, "invalid_lsn"),
        ("POST", "/v1/slots/s1/advance", {"upto_lsn": "1/2/3"}, "invalid_lsn"),
        ("POST", "/v1/slots/s1/advance", {"upto_lsn": "1FFFFFFFF/0"}, "invalid_lsn"),
        ("POST", "/v1/slots/s1/advance", {"upto_lsn": "0/-1"}, "invalid_lsn"),
        ("POST", "/v1/slots/s1/get", {"upto_nchanges": -1}, "invalid_request"),
        ("POST", "/v1/slots/s1/get", {"upto_nchanges": 2**31}, "invalid_request"),
        ("POST", "/v1/slots/s1/get", {"upto_nchanges": "1"}, "invalid_request"),
        ("POST", "/v1/slots/s1/get", {"upto_nchanges": 1.5}, "invalid_request"),
        ("GET", "/v1/slots/s1/peek?upto_nchanges=", None, "invalid_request"),
        ("GET", "/v1/slots/s1/peek?upto_nchanges=x", None, "invalid_request"),
        ("GET", "/v1/slots/s1/peek?upto_lsn=", None, "invalid_lsn"),
        ("GET", "/v1/slots/s1/peek?upto_lsn=0/G", None, "invalid_lsn"),
        ("GET", "/v1/slots/s1/peek?nonsense=1", None, "invalid_request"),
        ("GET", "/v1/slots/s1/peek?options.=1", None, "invalid_request"),
        ("GET", "/v1/slots?source=shop", None, "invalid_request"),
    ],
)
async def test_bad_requests(
    client: httpx.AsyncClient, method: str, path: str, body: object, code: str
) -> None:
    problem = assert_problem(await client.request(method, path, json=body), 400, code)
    assert problem["detail"]


@pytest.mark.parametrize(
    "content", [b"{", b"", b"\xff\xfe", b'"x"', b"NaN", b'{"slot_name": "\\ud800"}', b"[" * 5000]
)
async def test_bodies_that_are_no_json(client: httpx.AsyncClient, content: bytes) -> None:
    response = await client.post(
        "/v1/slots", content=content, headers={"content-type": "application/json"}
    )
    assert_problem(response, 400, "invalid_request")


@pytest.mark.parametrize(
    "name", ["%00", "%ff", "a%2fb", "..", "x" * 5000, "%F0%9F%92%A3", "' OR 1=1"]
)
async def test_odd_names_are_unknown(client: httpx.AsyncClient, name: str) -> None:
    for path in (f"/v1/slots/{name}/stats", f"/v1/sources/{name}"):
        response = await client.get(path)
        assert response.status_code == 404
        assert response.json()["code"] in ("unknown_slot", "unknown_source", "not_found")


async def test_a_surrogate_in_an_error_message(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.next_error = CorruptWal("bad \udcff bytes", lsn=Lsn(1), path=Path("x"))
    problem = assert_problem(await client.get("/v1/slots/s1"), 500, "corrupt_wal")
    assert problem["detail"] == "bad \udcff bytes"


async def test_http_errors_are_problems(client: httpx.AsyncClient) -> None:
    assert_problem(await client.get("/v1/nonsense"), 404, "not_found")
    assert_problem(await client.get("/v1/slots/"), 404, "not_found")
    response = await client.put("/v1/slots", json={})
    assert_problem(response, 405, "method_not_allowed")
    assert response.headers["allow"]


async def test_internal_errors_tell_nothing(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.next_error = RuntimeError("host=db password=secret")
    response = await client.get("/v1/slots")
    assert_problem(response, 500, "internal_error")
    assert "secret" not in response.text


async def test_metadata_unavailable(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.next_error = MetadataError("gone", hint="wait")
    assert (
        assert_problem(await client.get("/v1/slots"), 503, "metadata_unavailable")["hint"] == "wait"
    )


async def test_problem_types_lead_to_an_explanation(client: httpx.AsyncClient) -> None:
    for code in ("duplicate_name", "not_found", "method_not_allowed", "internal_error"):
        explained = await client.get(f"/problems/{code}")
        assert explained.json()["meaning"]
    assert_problem(await client.get("/problems/nonsense"), 404, "not_found")


async def test_large_bodies_are_refused(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    response = await client.post("/v1/slots", content=b" " * (BODY_BYTES_MAX + 1), headers=headers)
    assert_problem(response, 413, "request_too_large")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 65536

    response = await client.post("/v1/slots", content=chunks(), headers=headers)
    assert_problem(response, 413, "request_too_large")


async def test_health_and_readiness(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ready"}
    engine.in_the_way = [
        Obstacle("source", "shop", "source_unreachable", "no answer", "Start it.", CREATED_AT),
        Obstacle("disk", "/data", "disk_full", "no space", "Free some.", None),
    ]
    problem = assert_problem(await client.get("/readyz"), 503, "not_ready")
    assert problem["details"]["not_ready"] == [
        {
            "kind": "source", "name": "shop", "code": "source_unreachable", "message": "no answer",
            "hint": "Start it.", "since": CREATED_AT.isoformat(),
        },
        {
            "kind": "disk", "name": "/data", "code": "disk_full", "message": "no space",
            "hint": "Free some.", "since": None,
        },
    ]  # fmt: skip
    # No restart mends any of that.
    assert (await client.get("/healthz")).status_code == 200
    engine.is_alive = False
    assert_problem(await client.get("/healthz"), 503, "not_ready")


async def test_what_soon_is_in_the_way_is_told_while_ready(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.warned_of = [Obstacle("certificate", "tls", "tls_failed", "it ends", "Renew it.", None)]
    response = await client.get("/readyz")
    assert response.status_code == 200
    assert response.json()["warnings"] == [
        {
            "kind": "certificate", "name": "tls", "code": "tls_failed", "message": "it ends",
            "hint": "Renew it.", "since": None,
        },
    ]  # fmt: skip
    metrics = (await client.get("/metrics")).text
    assert 'spillway_warning{code="tls_failed",kind="certificate",name="tls"} 1.0' in metrics
    assert "spillway_ready 1.0" in metrics


async def test_findings(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = (await client.get("/v1/findings")).json()
    assert answer["findings"] == []
    # Nobody has asked the primary yet.
    assert {"code": "primary_keeps_wal", "subject": "shop"} in answer["unknown"]
    engine.in_the_way = [
        Obstacle("disk", "/data", "disk_full", "no space", "Free some.", CREATED_AT, "Disk full")
    ]
    engine.change_slot("s1", invalidation_reason="wal_removed")
    engine.stop_decoding("shop")
    disk, stopped, lost = (await client.get("/v1/findings")).json()["findings"]
    assert disk == {
        "severity": "bad", "code": "disk", "subject": "/data: disk_full", "source": None,
        "slot": None, "subscription": None, "title": "Disk full", "detail": "no space",
        "remedy": "Free some.", "page": "/", "since": disk["since"],
    }  # fmt: skip
    assert datetime.fromisoformat(disk["since"]) == CREATED_AT
    assert (stopped["code"], stopped["subject"]) == ("decoding_stopped", "shop/shop")
    assert (lost["code"], lost["slot"], lost["page"]) == ("slot_invalidated", "s1", "/ui/slots/s1")
    # Mended a moment ago: gone.
    await engine.drop_slot("s1")
    codes = [one["code"] for one in (await client.get("/v1/findings")).json()["findings"]]
    assert "slot_invalidated" not in codes
    assert_problem(await client.get("/v1/findings?code=disk"), 400, "invalid_request")


async def test_readyz_tells_strangers_no_more_than_names(engine: FakeEngine) -> None:
    engine.in_the_way = [
        Obstacle("source", "shop", "source_unreachable", "no answer of db.internal", "h", None)
    ]
    app = create_app(engine, FakeSubscriptions(), token="secret", version="0")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as stranger:
        problem = assert_problem(await stranger.get("/readyz"), 503, "not_ready")
        assert problem["details"]["not_ready"][0]["code"] == "source_unreachable"
        assert "db.internal" not in json.dumps(problem)
        ours = await stranger.get("/readyz", headers={"authorization": "Bearer secret"})
        assert "db.internal" in ours.text


async def test_peek_says_that_decoding_has_stopped(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.commit("shop", "a")
    for call in (
        lambda: client.get("/v1/slots/s1/peek"),
        lambda: client.post("/v1/slots/s1/get", json={}),
    ):
        assert (await call()).json()["decoding"]["state"] == "running"
    engine.commit("shop", "b")
    engine.stop_decoding("shop")
    answer = (await client.get("/v1/slots/s1/peek")).json()
    assert [change["data"] for change in answer["changes"]] == ["b"]
    assert answer["decoding"]["state"] == "stopped"
    assert answer["decoding"]["error_code"] == "corrupt_wal"
    assert answer["decoding"]["since"]
    assert answer["decoding"] == (await client.get("/v1/slots/s1")).json()["decoding"]


async def test_what_is_not_known_is_null(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.change_slot("s1", retained_bytes=None, wal_status=None)
    slot = (await client.get("/v1/slots/s1")).json()
    assert (slot["retained_bytes"], slot["wal_status"]) == (None, None)


async def test_the_consumer_is_named_and_its_session_ended(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    assert (await client.get("/v1/slots/s1")).json()["consumer"] is None
    problem = assert_problem(await client.post("/v1/slots/s1/end-session"), 409, "no_consumer")
    assert problem["details"] == {"slot": "s1"}
    ended: list[SpillwayError] = []

    async def consume() -> None:
        with calling("192.0.2.7:4711", "loader/1.2 spillway-subscription/orders"):
            async with engine.stream("s1") as stream:
                try:
                    await stream.ended()
                except SpillwayError as error:
                    ended.append(error)

    consuming = asyncio.create_task(consume())
    await asyncio.sleep(0)
    consumer = (await client.get("/v1/slots/s1")).json()["consumer"]
    assert (consumer["kind"], consumer["address"]) == ("stream", "192.0.2.7:4711")
    assert consumer["subscription"] == "orders"
    answer = (await client.post("/v1/slots/s1/end-session")).json()
    assert (answer["slot_name"], answer["consumer"]["address"]) == ("s1", "192.0.2.7:4711")
    assert (await client.get("/v1/slots/s1/peek")).status_code == 200
    await consuming
    assert [error.code for error in ended] == ["session_ended"]


async def test_metrics(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.move_wal(5000)
    engine.change_slot("s1", retained_bytes=77)
    text = (await client.get("/metrics")).text
    labels = '{database="shop",plugin="test_decoding",slot="s1",source="shop"}'
    samples = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    assert float(samples[f"spillway_slot_lag_bytes{labels}"]) == 5000
    assert float(samples[f"spillway_slot_retained_bytes{labels}"]) == 77
    assert float(samples['spillway_source_received_lsn{source="shop"}']) == FIRST_LSN
    assert (
        float(samples['spillway_session_decoded_lsn{database="shop",source="shop"}']) == FIRST_LSN
    )
    assert "process_resident_memory_bytes" in samples


async def test_the_contract_is_a_page(client: httpx.AsyncClient) -> None:
    docs = await client.get("/docs")
    assert "/v1/slots/{slot_name}/peek" in docs.text
    assert "http" not in docs.text.replace("HTTPBearer", ""), "nothing to fetch from elsewhere"


async def test_contract_file_is_up_to_date() -> None:
    path = Path(__file__).parents[3] / "openapi" / "spillway-v1.json"
    assert path.read_text() == contract(), "run make openapi"


async def test_contract_is_what_the_app_serves(client: httpx.AsyncClient) -> None:
    assert (await client.get("/openapi.json")).json() == json.loads(contract())
    slot = json.loads(contract())["components"]["schemas"]["SlotView"]
    assert list(slot["properties"])[: len(VIEW_COLUMNS)] == VIEW_COLUMNS


def test_changes_are_one_json_document() -> None:
    from spillway.slot_manager.slots.routes import _pieces

    changes = [Change(Lsn(i), i, "x") for i in range(2001)]
    decoding = Decoding("running", Lsn(2001), CREATED_AT)
    assert len(json.loads("".join(_pieces(changes, decoding)))["changes"]) == 2001
    nothing = json.loads("".join(_pieces([], decoding)))
    assert (nothing["changes"], nothing["decoding"]["state"]) == ([], "running")
