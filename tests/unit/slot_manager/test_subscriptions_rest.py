"""Subscriptions, publications and tables over REST, and on /metrics."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

from harness.subscription_stage import publication, table
from spillway.declarations.lake_options import LAKE_OPTIONS
from spillway.pg.lsn import Lsn
from spillway.service.model import PublishedTable
from spillway.slot_manager.subscriptions.models import LakeTarget
from spillway.store.rows import ConflictTotals
from spillway.subscriber.model import (
    Failure,
    SubscriptionState,
    TableState,
    Verification,
    VerificationState,
    VerifiedTable,
)

if TYPE_CHECKING:
    import httpx
    import pytest

    from harness.fake_engine import FakeEngine
    from harness.fake_subscriptions import FakeSubscriptions

LAKE = {"kind": "lake", "format": "parquet", "path": "/srv/lake"}
BODY: dict[str, Any] = {"name": "a", "source": "shop", "database": "shop", "target": LAKE}


async def create(client: httpx.AsyncClient, **changed: Any) -> httpx.Response:
    return await client.post("/v1/subscriptions", json=BODY | changed)


async def test_create_show_list_drop(
    client: httpx.AsyncClient, subscriptions: FakeSubscriptions
) -> None:
    created = await create(client, tables=["public.t"], options={"numeric_as": "text"})
    assert created.status_code == 201
    assert created.headers["location"] == "/v1/subscriptions/a"
    shown = created.json()
    assert (shown["target"], shown["tables"]) == (LAKE, ["public.t"])
    assert (shown["state"], shown["error"], shown["slot"]) == ("streaming", None, "a")
    subscriptions.change(
        "a",
        state=SubscriptionState.FAILED,
        error=Failure("lake_error", "broke", "mend"),
        table_states=(TableState("public.t", "copying", 3, 1, 2),),
    )
    again = (await client.get("/v1/subscriptions/a")).json()
    assert again["error"] == {"code": "lake_error", "message": "broke", "hint": "mend"}
    assert again["table_states"][0]["bytes_total"] == 2
    listed = (await client.get("/v1/subscriptions")).json()
    assert listed == {"subscriptions": [again]}
    subscriptions.left["a"] = ["left there", "remove it"]
    dropped = await client.delete("/v1/subscriptions/a?keep_slot=true")
    assert (dropped.status_code, dropped.json()) == (
        200,
        {"name": "a", "notes": ["left there", "remove it"]},
    )
    assert subscriptions.dropped == [("a", True)]
    assert (await client.delete("/v1/subscriptions/a")).json()["code"] == "unknown_subscription"


async def test_only_what_is_named_is_altered(
    client: httpx.AsyncClient, subscriptions: FakeSubscriptions
) -> None:
    await create(client, publications=["p"])
    patched = await client.patch(
        "/v1/subscriptions/a", json={"publications": None, "enabled": False}
    )
    assert (patched.json()["publications"], patched.json()["state"]) == (None, "paused")
    patched = await client.patch(
        "/v1/subscriptions/a", json={"target": {**LAKE, "retention": "30d"}}
    )
    assert patched.json()["target"] == {**LAKE, "retention": "30d"}
    refused = await client.patch("/v1/subscriptions/a", json={"source": "other"})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    unknown = await client.patch("/v1/subscriptions/a", json={"colour": 1})
    assert unknown.json()["code"] == "invalid_request"


async def test_enable_disable_refresh_skip_log(
    client: httpx.AsyncClient, subscriptions: FakeSubscriptions
) -> None:
    await create(client)
    subscriptions.logs["a"] = ["one", "two"]
    for call, state in (("disable", "paused"), ("enable", "streaming"), ("refresh", "streaming")):
        answer = await client.post(f"/v1/subscriptions/a/{call}")
        assert (answer.status_code, answer.json()["state"]) == (200, state)
    skipped = await client.post("/v1/subscriptions/a/skip", json={"lsn": "0/2000000"})
    assert skipped.json()["confirmed_flush_lsn"] == "0/2000000"
    bad = await client.post("/v1/subscriptions/a/skip", json={"lsn": "x"})
    assert bad.json()["code"] == "invalid_lsn"
    log = await client.get("/v1/subscriptions/a/log?lines=1")
    assert log.json() == {"name": "a", "lines": ["two"]}
    assert (await client.get("/v1/subscriptions/a/log?lines=-1")).status_code == 400


async def test_one_table_is_paused_and_resumed(
    client: httpx.AsyncClient, subscriptions: FakeSubscriptions
) -> None:
    await create(client)
    tables = (TableState("public.t", "ready"), TableState("public.u", "ready"))
    subscriptions.change("a", table_states=tables)
    for call, state in (("pause", "paused"), ("resume", "ready")):
        answer = await client.post(f"/v1/subscriptions/a/tables/public.t/{call}")
        told = [(table["table"], table["state"]) for table in answer.json()["table_states"]]
        assert told == [("public.t", state), ("public.u", "ready")]
    unknown = await client.post("/v1/subscriptions/a/tables/public.x/pause")
    assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid_request")


async def test_a_lakes_layout_goes_through(client: httpx.AsyncClient) -> None:
    assert set(LakeTarget.model_fields) == {
        "kind",
        "format",
        "path",
        *(option.name for option in LAKE_OPTIONS),
    }
    lake = {
        "kind": "lake",
        "format": "delta",
        "path": "/srv/lake",
        "partition_history": "day",
        "partition_by": {"public.orders": ["day(created_at)", "region"]},
        "cluster_by": {"public.orders": []},
    }
    created = await create(client, target=lake)
    assert (created.status_code, created.json()["target"]) == (201, lake)
    for code, name, value in (
        ("invalid_request", "partition_history", "hour"),
        ("invalid_request", "partition_by", {"public.orders": "day(created_at)"}),
        ("invalid_request", "cluster_by", {"orders": ["a"]}),
        ("unsupported_feature", "iceberg_catalog", "prod"),
    ):
        refused = await create(client, name="b", target={**lake, name: value})
        assert (refused.status_code, refused.json()["code"]) == (400, code), name
        assert name in refused.text


async def test_targets_are_a_union_by_kind(client: httpx.AsyncClient) -> None:
    postgres = await create(client, target={"kind": "postgres", "dsn": "host=x"}, name="p")
    assert (postgres.status_code, postgres.json()["target"]["dsn"]) == (201, "host=x")
    file = {"kind": "postgres", "dsn": "host=x passfile=/etc/shadow"}
    assert (await create(client, target=file)).json()["code"] == "invalid_dsn"
    for target in (
        {"kind": "postgres"},
        {"kind": "postgres", "dsn": "host=x", "path": "/x"},
        {"kind": "postgres", "dsn": "host=x", "group_bytes": 1},
        {"kind": "nothing"},
        {"kind": "lake"},
        {"path": "/x"},
        {**LAKE, "colour": 1},
        "lake",
    ):
        refused = await create(client, target=target)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request"), target


async def test_a_source_with_subscriptions_stays(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await create(client)
    engine.slots.clear()
    refused = await client.delete("/v1/sources/shop")
    assert (refused.status_code, refused.json()["details"]["subscriptions"]) == (409, ["a"])


async def test_publications_and_tables(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    filtered = PublishedTable("public", "t", ("id",), has_row_filter=True, row_filter=None)
    engine.publications["shop", "shop"] = [publication("p", tables=(filtered,), delete=False)]
    engine.tables["shop", "shop"] = [table("public.t")]
    answer = await client.get("/v1/publications?source=shop&database=shop")
    assert answer.json()["publications"] == [
        {
            "name": "p",
            "all_tables": False,
            "publish": {"insert": True, "update": True, "delete": False, "truncate": True},
            "via_root": False,
            "tables": [
                {
                    "schema": "public",
                    "name": "t",
                    "columns": ["id"],
                    "row_filter": None,
                    "has_row_filter": True,
                }
            ],
            "schemas": [],
        }
    ]
    answer = (await client.get("/v1/sources/shop/tables?database=shop")).json()
    tables = answer["tables"]
    assert answer["next"] is None
    assert (tables[0]["schema"], tables[0]["name"], tables[0]["primary_key"]) == (
        "public",
        "t",
        ["id"],
    )
    new = await client.get("/v1/publications?source=shop&database=new")
    assert (new.status_code, new.json()["code"]) == (503, "not_ready")
    assert (await client.get("/v1/publications?source=shop")).json()["code"] == "invalid_request"


async def test_metrics(client: httpx.AsyncClient, subscriptions: FakeSubscriptions) -> None:
    await create(client)
    subscriptions.change(
        "a", lag_seconds=1.5, rows=7, restarts=2, table_states=(TableState("public.t", "ready"),)
    )
    text = (await client.get("/metrics")).text
    labels = 'database="shop",slot="a",source="shop",'
    assert f'spillway_subscription_state{{{labels}state="streaming",subscription="a"}} 1.0' in text
    assert f'spillway_subscription_state{{{labels}state="failed",subscription="a"}} 0.0' in text
    assert f'spillway_subscription_lag_seconds{{{labels}subscription="a"}} 1.5' in text
    assert f'spillway_subscription_rows{{{labels}subscription="a"}} 7.0' in text
    assert f'{labels}subscription="a",table_state="ready"}} 1.0' in text


MET = {
    "id": "0/1/1/update_missing", "kind": "update_missing", "resolution": "skip", "why": "",
    "schema": "public", "table": "t", "local": [], "remote": {"id": "1"}, "identity": {"id": "1"},
    "origin": "", "committed_at": "2026-11-23T08:00:00+00:00", "lsn": "0/1", "xid": 7, "number": 1,
    "detail": "Could not find the row to be updated.",
}  # fmt: skip
TOTALS = ConflictTotals({("public.t", "update_missing"): 9, ("public.u", "k"): 2}, 1, 3)
STATS = {
    "received_lsn": "0/3", "applied_lsn": "0/2", "apply_error_count": 4,
    "last_msg_send_time": "2026-11-23T08:00:00+00:00",
}  # fmt: skip


async def test_stats_and_conflicts(
    client: httpx.AsyncClient, subscriptions: FakeSubscriptions
) -> None:
    await create(client)
    nothing = (await client.get("/v1/subscriptions/a/stats")).json()
    assert (nothing["received_lsn"], nothing["confl_insert_exists"]) == (None, 0)
    table = TableState(
        "public.t", "ready", 5, sync_state="r", changes_per_second=2.5, rows=3, deleted_rows=1
    )
    subscriptions.change("a", stats=STATS, conflicts=TOTALS, table_states=(table,))
    subscriptions.met["a"] = [MET, {**MET, "id": "0/1/2/k", "kind": "k", "table": "u"}]
    stats = (await client.get("/v1/subscriptions/a/stats")).json()
    assert (stats["subname"], stats["received_lsn"], stats["latest_end_lsn"]) == ("a", "0/3", None)
    assert (stats["confl_update_missing"], stats["apply_error_count"]) == (9, 4)
    assert (stats["conflicts_dropped"], stats["conflicts_missed"]) == (10, 3)
    assert (stats["changes_per_second"], stats["tables"][0]["sync_state"]) == (2.5, "r")
    assert stats["last_msg_send_time"] == "2026-11-23T08:00:00Z"
    (told,) = stats["tables"]
    assert (told["rows"], told["deleted_rows"], told["deleted_share"]) == (3, 1, 0.25)
    assert (told["files"], told["waiting_since"]) == (None, None)
    conflicts = "/v1/subscriptions/a/conflicts"
    found = (await client.get(conflicts)).json()
    assert found.pop("conflicts")[0] == MET
    assert found == {"name": "a", "kept": 1, "dropped": 10, "missed": 3}
    for query, wanted in (
        ("kind=k", ["k"]),
        ("table=public.t", ["update_missing"]),
        ("limit=0", []),
    ):
        answer = (await client.get(f"{conflicts}?{query}")).json()
        assert [one["kind"] for one in answer["conflicts"]] == wanted, query
    refused = await client.get(f"{conflicts}?colour=1")
    assert refused.json()["code"] == "invalid_request"


async def test_a_table_is_asked_for_anew(
    client: httpx.AsyncClient, subscriptions: FakeSubscriptions
) -> None:
    await create(client)
    subscriptions.change("a", table_states=(TableState("public.t", "ready"),))
    asked = (await client.post("/v1/subscriptions/a/tables/public.t/resync")).json()
    assert asked["table_states"][0]["resync"] == {
        "state": "waiting", "asked_at": "2026-11-22T08:00:00Z", "ended_at": None, "lsn": None,
        "reason": None,
    }  # fmt: skip
    assert (await client.get("/v1/subscriptions/a")).json() == asked
    taken = (await client.post("/v1/subscriptions/a/tables/public.t/cancel-resync")).json()
    assert taken["table_states"][0]["resync"] == {
        "state": "cancelled", "asked_at": "2026-11-22T08:00:00Z",
        "ended_at": "2026-11-22T08:00:00Z", "lsn": None, "reason": None,
    }  # fmt: skip
    refused = await client.post("/v1/subscriptions/a/tables/public.x/resync")
    assert refused.json()["code"] == "invalid_request"


async def test_it_is_compared(client: httpx.AsyncClient, subscriptions: FakeSubscriptions) -> None:
    await create(client)
    begun = (await client.post("/v1/subscriptions/a/verify", json={})).json()["verification"]
    assert (begun["state"], begun["ended_at"], begun["tables"]) == ("running", None, [])
    tables = {"tables": ["public.t"]}
    assert (await client.post("/v1/subscriptions/a/verify", json=tables)).status_code == 200
    assert subscriptions.compared == [(), ("public.t",)]
    table = VerifiedTable("public.t", False, 5, 4, 1, True)
    at = datetime(2026, 11, 26, tzinfo=UTC)
    different = VerificationState.DIFFERENT
    found = Verification(different, at, at, Lsn.parse("0/30"), (table,))
    subscriptions.change("a", verification=found)
    told = (await client.get("/v1/subscriptions/a")).json()["verification"]
    assert (told["state"], told["lsn"], told["error"]) == ("different", "0/30", None)
    assert told["tables"] == [
        {
            "table": "public.t", "equal": False, "source_rows": 5, "target_rows": 4,
            "differences": 1, "more": True, "skipped": "",
        }
    ]  # fmt: skip


async def test_series_of_tables_are_bounded(
    client: httpx.AsyncClient, subscriptions: FakeSubscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spillway.slot_manager.metrics.TABLES_MAX", 2)
    await create(client)
    waits = datetime.now(UTC) - timedelta(hours=1)
    tables = tuple(
        TableState(f"public.t{n}", "ready", n, files=n or None, waiting_since=waits if n else None)
        for n in range(5)
    )
    counts = {("public.t", "k"): 9, ("public.u", "k"): 2, ("public.u", "l"): 1, ("", "k"): 1}
    totals = ConflictTotals(counts, 1, 3)
    subscriptions.change("a", table_states=tables, conflicts=totals)
    text = (await client.get("/metrics")).text
    found = re.findall(r'table_(\w+)\{.*?(?:kind="(\w+)".*)?,table="(.*?)"\} (.*)', text)
    assert found == [
        ("conflicts", "k", "public.t", "9.0"),
        ("conflicts", "k", "public.u", "2.0"),
        ("conflicts", "k", "", "1.0"),
        ("conflicts", "l", "", "1.0"),
        ("changes", "", "public.t4", "4.0"),
        ("changes", "", "public.t3", "3.0"),
        ("changes", "", "", "3.0"),
        ("files", "", "public.t4", "4.0"),
        ("files", "", "public.t3", "3.0"),
        ("files", "", "", "3.0"),
        ("waiting_seconds", "", "public.t4", ANY),
        ("waiting_seconds", "", "public.t3", ANY),
    ]
    assert all(float(value) >= 3600 for name, _, _, value in found if name == "waiting_seconds")
    assert "spillway_subscription_conflicts_missed{" in text


async def test_tables_come_in_pages(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.tables["shop", "shop"] = [table(f"public.t{n}") for n in range(5)]
    where, names, after = "/v1/sources/shop/tables?database=shop", [], 0
    while after is not None:
        page = (await client.get(f"{where}&limit=2&after={after}")).json()
        names.append([t["name"] for t in page["tables"]])
        after = page["next"]
    assert names == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    for wrong in ("limit=0", "limit=10001", "after=-1", "after=x"):
        assert (await client.get(f"{where}&{wrong}")).status_code == 400
