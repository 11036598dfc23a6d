"""Subscriptions that fill a lake, with the real service and the real job: one lake's life, through
kills and mistakes; other formats and layouts.

One test of each kind: each start of the job costs a JVM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from psycopg.conninfo import make_conninfo
from pyiceberg.catalog import load_catalog

from harness.receivers import webhook
from harness.remedies import command, statements
from harness.serve_process import ServeProcess
from spillway.cli import main
from spillway.lake.tables.parquet.tables import current_path
from spillway.subscriber.run_processes import RunRecord, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

_TIMEOUT_S = 300


def wait(
    service: Service, ready: Callable[[dict[str, Any]], object], name: str = "shop"
) -> dict[str, Any]:
    deadline = time.monotonic() + _TIMEOUT_S
    while not ready(found := service.call("GET", f"/subscriptions/{name}")):
        log = "\n".join(service.call("GET", f"/subscriptions/{name}/log")["lines"][-40:])
        assert time.monotonic() < deadline, f"{found}\n{log}"
        time.sleep(0.2)
    return found


def kill_program(service: Service) -> dict[str, Any]:
    """Kill a program that follows its slot; one may end by itself, on a busy machine, just
    before.
    """
    while True:
        info = wait(service, lambda s: s["state"] == "streaming" and s["pid"] is not None)
        with contextlib.suppress(ProcessLookupError):
            os.kill(info["pid"], signal.SIGKILL)
            return info


def rows_of(lake: Path, table: str) -> list[tuple[int, str]]:
    """The current rows of a Parquet lake, without Spark."""
    found = pq.read_table(current_path(lake, table), columns=["id", "v"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def wait_equal(service: Service, database: Database, lake: Path, table: str) -> None:
    """Wait until everything is confirmed, and compare."""
    end = str(database.value("SELECT pg_current_wal_flush_lsn()::text"))
    service.wait_for("shop", end)
    there = [tuple(row) for row in database.query(f"SELECT id, v FROM {table} ORDER BY id")]
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            mine = rows_of(lake, f"public.{table}")
        except (OSError, ValueError):
            # Replaced under our hands.
            mine = []
        if mine == there:
            return
        assert time.monotonic() < deadline, f"{len(mine)} rows, not {len(there)}"
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.usefixtures("jar_folder")
def test_a_lake_is_kept_through_kills_and_mistakes(tmp_path: Path, pg15: Database) -> None:
    pg15.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pg15.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    pg15.execute("INSERT INTO t SELECT i, 'before' FROM generate_series(1, 1000) i")
    pg15.execute("INSERT INTO u VALUES (1, 'before')")
    pg15.execute("CREATE PUBLICATION p FOR TABLE t")
    lake = tmp_path / "lake"
    target: dict[str, Any] = {
        "kind": "lake",
        "format": "parquet",
        "path": str(tmp_path / "file" / "lake"),
        "master": "local[1]",
        "driver_memory": "512m",
        "interval_s": 0.5,
    }
    serve = ServeProcess(tmp_path / "data")
    try:
        service = serve.service()
        service.create_source(pg15.dsn)
        body = {"name": "shop", "source": "main", "database": pg15.name, "publications": ["p"]}
        # A directory can't be made there: what stands in its way is a file. That is said before
        # Spark starts, and nothing is left of it; or when it is there only by then.
        service.call("POST", "/subscriptions", json={**body, "target": target, "enabled": False})
        (tmp_path / "file").write_text("")
        refused = service.problem(
            "POST",
            "/subscriptions",
            json={**body, "name": "b", "target": target | {"path": target["path"] + "2"}},
        )
        assert (refused["code"], "can't be made" in refused["detail"]) == ("lake_error", True)
        assert [one["slot_name"] for one in service.call("GET", "/slots")["slots"]] == ["shop"]
        service.call("POST", "/subscriptions/shop/enable")
        failed = wait(service, lambda s: s["state"] == "failed")
        assert failed["error"]["code"] == "lake_error"
        assert "can't be made" in failed["error"]["message"]
        assert failed["confirmed_flush_lsn"] == service.slot("shop")["confirmed_flush_lsn"]

        # Mended: copied, and followed.
        target["path"] = str(lake)
        service.call("PATCH", "/subscriptions/shop", json={"target": target})
        info = wait(service, lambda s: s["state"] == "streaming")
        assert info["error"] is None
        assert [(t["table"], t["state"]) for t in info["table_states"]] == [("public.t", "ready")]
        wait_equal(service, pg15, lake, "t")
        pg15.execute("UPDATE t SET v = 'after' WHERE id <= 10")
        wait_equal(service, pg15, lake, "t")
        wait(service, lambda s: s["rows"] == 10 and s["lag_seconds"] == 0)

        # The program is killed: started again, nothing lost, nothing twice.
        info = kill_program(service)
        pg15.execute("DELETE FROM t WHERE id > 990")
        again = wait(
            service, lambda s: s["state"] == "streaming" and s["pid"] not in (None, info["pid"])
        )
        assert again["restarts"] > info["restarts"]
        wait_equal(service, pg15, lake, "t")

        # A table is asked for anew, and the program is killed before it can have loaded it: who
        # comes next does, once.
        asked = service.call("POST", "/subscriptions/shop/tables/public.t/resync")
        assert asked["table_states"][0]["resync"]["state"] == "waiting"
        with contextlib.suppress(ProcessLookupError):
            os.kill(again["pid"], signal.SIGKILL)
        pg15.execute("UPDATE t SET v = 'anew' WHERE id <= 20")
        wait(service, lambda s: (s["table_states"][0]["resync"] or {}).get("state") == "done")
        info = wait(service, lambda s: s["state"] == "streaming")
        assert info["table_states"][0]["resync"]["reason"] is None
        wait_equal(service, pg15, lake, "t")

        # The service is killed, and what it had started with it; another table is published
        # meanwhile. So is a wish.
        service.call("POST", "/subscriptions/shop/tables/public.t/resync")
        serve.kill()
        before = RunRecord.load(tmp_path / "data" / "subscriptions" / "shop")
        assert before is not None
        pg15.execute("ALTER PUBLICATION p ADD TABLE u")
        pg15.execute("INSERT INTO t SELECT i, 'down' FROM generate_series(2001, 2100) i")
        serve.start()
        service.wait_decoded("shop", pg15)
        wait(service, lambda s: s["pid"] not in (None, before.pid))
        assert processes_of(before) == []
        wait(
            service,
            lambda s: (
                s["pid"] not in (None, before.pid)
                and s["table_states"][0]["resync"]["state"] == "done"
            ),
        )
        # Not before Spark has started twice for it.
        service.call("POST", "/subscriptions/shop/disable")
        service.call("POST", "/subscriptions/shop/refresh")
        service.call("POST", "/subscriptions/shop/enable")
        wait(service, lambda s: s["state"] == "streaming" and len(s["table_states"]) == 2)
        wait_equal(service, pg15, lake, "t")
        wait_equal(service, pg15, lake, "u")

        # Off: its slot keeps what comes, and what is in the way is skipped.
        off = service.call("POST", "/subscriptions/shop/disable")
        assert (off["state"], off["pid"]) == ("paused", None)
        pg15.execute("INSERT INTO u VALUES (2, 'skipped')")
        end = service.wait_decoded("shop", pg15)
        skipped = service.call("POST", "/subscriptions/shop/skip", json={"lsn": end})
        assert skipped["confirmed_flush_lsn"] == end
        pg15.execute("INSERT INTO u VALUES (3, 'after')")
        service.call("POST", "/subscriptions/shop/enable")
        pg15.execute("DELETE FROM u WHERE id = 2")
        wait(service, lambda s: s["state"] == "streaming")
        wait_equal(service, pg15, lake, "u")
        service.call("DELETE", "/subscriptions/shop")
        assert service.call("GET", "/slots")["slots"] == []
        service.call("DELETE", "/sources/main")
        assert rows_of(lake, "public.u") == [(1, "before"), (3, "after")]
    finally:
        serve.stop()


@pytest.mark.long
def test_formats_have_their_layouts(
    tmp_path: Path, pg15: Database, jar_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLWAY_JARS", str(jar_folder))
    pg15.execute("CREATE TABLE o (id int PRIMARY KEY, v text)")
    pg15.execute(
        "INSERT INTO o SELECT i, CASE i % 2 WHEN 0 THEN 'even' ELSE 'odd' END FROM "
        "generate_series(1, 100) i"
    )
    # As a user configures PyIceberg: in the service's environment.
    (tmp_path / "catalog").mkdir()
    uri = f"sqlite:///{tmp_path}/catalog/shared.db"
    for name, value in (("TYPE", "sql"), ("URI", uri), ("WAREHOUSE", f"file://{tmp_path}/catalog")):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__SHARED__{name}", value)
    job = {"kind": "lake", "master": "local[1]", "driver_memory": "512m", "interval_s": 0.5}
    targets = {
        "ice": {
            **job,
            "format": "iceberg",
            "path": str(tmp_path / "ice"),
            "iceberg_catalog": "shared",
            "iceberg_prefix": "shop_",
        },
        "delta": {
            **job,
            "format": "delta",
            "path": str(tmp_path / "delta"),
            "partition_history": "day",
            "partition_by": {"public.o": ["v"]},
            "cluster_by": {"public.o": ["id"]},
        },
    }
    serve = ServeProcess(tmp_path / "data")
    try:
        service = serve.service()
        service.create_source(pg15.dsn)
        body = {"source": "main", "database": pg15.name, "tables": ["public.o"]}
        for name, target in targets.items():
            # One after the other: each is a JVM.
            service.call("POST", "/subscriptions", json={**body, "name": name, "target": target})
            info = wait(service, lambda s: s["state"] == "streaming", name)
            assert [(t["table"], t["state"]) for t in info["table_states"]] == [
                ("public.o", "ready")
            ]
        pg15.execute("UPDATE o SET v = 'changed' WHERE id <= 10; DELETE FROM o WHERE id > 95")
        # Decoded, so that what is not confirmed counts as lag.
        service.wait_decoded("ice", pg15)
        for name, field, value in (
            ("ice", "iceberg_prefix", "other_"),
            ("delta", "partition_history", "month"),
        ):
            changed = {"target": {**targets[name], field: value}}
            refused = service.problem("PATCH", f"/subscriptions/{name}", json=changed)
            assert refused["code"] == "conflict"
            assert field in refused["detail"]

        for name in targets:
            wait(service, lambda s: s["lag_seconds"] == 0, name)
            info = wait(service, lambda s: s["table_states"][0]["rows"] == 95, name)
            (table,) = info["table_states"]
            assert table["bytes"] > 0 < table["files"]
            assert table["deleted_share"] == 0
            assert table["newest_change_at"] is not None
            assert table["waiting_since"] is None
            service.call("DELETE", f"/subscriptions/{name}")
        service.call("DELETE", "/sources/main")
    finally:
        serve.stop()
    there = [tuple(row) for row in pg15.query("SELECT id, v FROM o ORDER BY id")]
    catalog = load_catalog("shared", type="sql", uri=uri)
    iceberg = catalog.load_table(("shop_current_public", "o")).scan().to_arrow()
    current = DeltaTable(str(tmp_path / "delta" / "current" / "public.o"))
    for rows in (iceberg, pa.table(current.to_pyarrow_table())):
        found = zip(*(rows.column(name).to_pylist() for name in ("id", "v")), strict=True)
        assert sorted(found) == there
    assert current.metadata().partition_columns == ["_by_v"]
    history = DeltaTable(str(tmp_path / "delta" / "history" / "public.o"))
    assert history.metadata().partition_columns == ["_by_commit_time"]


@pytest.mark.long
def test_a_lake_is_compared_and_mended_by_the_service(
    tmp_path: Path, pg18: Database, jar_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs is found, loaded anew, and found equal; a comparison that is killed says so.

    Each is a finding until what it says is to be done was done, and so is its alert: a receiver
    is told of it once, with what is to be done, and once that it is over.
    """
    monkeypatch.setenv("SPILLWAY_JARS", str(jar_folder))
    pg18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    reader = f"reader_{pg18.name[-8:]}"
    pg18.execute(f"CREATE ROLE {reader} LOGIN REPLICATION; GRANT SELECT ON t TO {reader}")
    pg18.execute("INSERT INTO t SELECT i, 'before' FROM generate_series(1, 1000) i")
    lake = tmp_path / "lake"
    target = {
        "kind": "lake", "path": str(lake), "master": "local[1]", "driver_memory": "512m",
        "interval_s": 0.5,
    }  # fmt: skip
    serve = ServeProcess(tmp_path / "data")
    told_of = ("lake_differs", "comparison_failed", "resync_failed")
    with ExitStack() as held:
        receiver = held.enter_context(webhook())
        held.callback(serve.stop)
        service = serve.service()
        service.create_source(make_conninfo(pg18.dsn, user=reader))
        channel = {"kind": "webhook", "url": receiver.url}
        service.call("PUT", "/alerts/channels/ops", json=channel)
        rule = {"codes": told_of, "channels": ["ops"], "hold_s": 0, "clear_s": 1}
        service.call("PUT", "/alerts/rules/lake", json=rule)
        monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
        body = {"name": "shop", "source": "main", "database": pg18.name, "tables": ["public.t"]}
        service.call("POST", "/subscriptions", json={**body, "target": target})
        wait(service, lambda s: s["state"] == "streaming")

        def compared() -> dict[str, Any]:
            begun = service.call("POST", "/subscriptions/shop/verify", json={})
            assert begun["verification"]["state"] == "running"
            refused = service.problem("POST", "/subscriptions/shop/verify", json={})
            assert refused["code"] == "conflict"
            ended = wait(service, lambda s: s["verification"]["state"] != "running")
            found: dict[str, Any] = ended["verification"]
            return found

        def happened(kind: str) -> list[str]:
            """Return of what the subscription's events are, in order."""
            found = service.call("GET", "/events", params={"subscription": "shop", "kind": kind})
            return [one["document"]["code"] for one in reversed(found["events"])]

        def told(*reasons: tuple[str, str]) -> list[dict[str, Any]]:
            """Wait until the receiver was told just that, in this order; return the alerts."""
            wait(service, lambda _: len(receiver.got) >= len(reasons))
            assert receiver.reasons() == list(reasons)
            return [document["alert"] for document in receiver.documents()]

        def follow(hint: str, begin: str, expected: int = 0) -> None:
            words = command(hint, begin, NAME="shop", TABLE="public.t")
            assert main(words) == expected, words

        def codes() -> set[str]:
            return {one["code"] for one in service.call("GET", "/findings")["findings"]}

        DeltaTable(str(lake / "current" / "public.t")).delete("id <= 3")
        pg18.execute("INSERT INTO t VALUES (2000, 'while')")
        found = compared()
        assert (found["state"], found["error"]) == ("different", None)
        (table,) = found["tables"]
        assert (table["differences"], table["more"]) == (3, False)
        assert (table["source_rows"], table["target_rows"]) == (1001, 998)

        # The role may not read it any more when the job comes to it: the load fails, and says what
        # mends that.
        fired = [("firing", "lake_differs")]
        (alert,) = told(*fired)
        (finding,) = service.call("GET", "/findings")["findings"]
        for field in ("subject", "title", "detail", "remedy"):
            assert alert[field] == finding[field]
        assert alert["subject"] == "shop"
        hint = str(alert["remedy"])
        with pg18.connect() as other, other.transaction():
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            follow(hint, "subscription resync-table")
            other.execute(f"REVOKE SELECT ON t FROM {reader}".encode())
        wait(service, lambda s: s["table_states"][0]["resync"]["state"] == "failed")
        (failed,) = (one for one in service.call("GET", "/findings")["findings"]
                     if one["code"] == "resync_failed")  # fmt: skip
        assert failed["subject"] == "shop/public.t"
        fired.append(("firing", "resync_failed"))
        alert = told(*fired)[-1]
        assert (alert["subject"], alert["remedy"]) == (failed["subject"], failed["remedy"])
        # An event it is when it has lasted a few seconds.
        wait(service, lambda _: happened("problem") == ["lake_differs", "resync_failed"])
        (grant,) = statements(alert["detail"])
        pg18.execute(grant)
        follow(alert["remedy"], "subscription resync-table")
        wait(service, lambda s: s["table_states"][0]["resync"]["state"] == "done")
        # Loaded; that it is equal nobody knows before the next comparison.
        assert codes() == {"lake_differs"}
        fired.append(("resolved", "resync_failed"))
        told(*fired)
        follow(hint, "subscription verify")
        found = service.call("GET", "/subscriptions/shop")["verification"]
        assert (found["state"], found["tables"][0]["target_rows"]) == ("equal", 1001)
        assert codes() == set()
        fired.append(("resolved", "lake_differs"))
        told(*fired)

        # Killed in the middle, and with the service.
        directory = tmp_path / "data" / "subscriptions" / "shop" / "verification"
        before = RunRecord.load(directory)
        service.call("POST", "/subscriptions/shop/verify", json={})
        deadline = time.monotonic() + _TIMEOUT_S
        while (record := RunRecord.load(directory)) == before or record is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(record.pid, signal.SIGKILL)
        found = wait(service, lambda s: s["verification"]["state"] != "running")["verification"]
        assert found["state"] == "failed"
        assert "was killed by SIGKILL" in found["error"]["message"]
        fired.append(("firing", "comparison_failed"))
        told(*fired)
        wait(service, lambda _: happened("problem")[2:] == ["comparison_failed"])
        service.call("POST", "/subscriptions/shop/verify", json={})
        serve.kill()
        serve.start()
        found = service.call("GET", "/subscriptions/shop")["verification"]
        assert found["state"] == "failed"
        assert "the service ended" in found["error"]["message"]
        # The job goes on all the while.
        assert wait(service, lambda s: s["state"] == "streaming")["restarts"] == 0
        # Of the one that failed next nobody is told again.
        alert = told(*fired)[-1]
        follow(alert["remedy"], "subscription verify")
        assert service.call("GET", "/subscriptions/shop")["verification"]["state"] == "equal"
        assert codes() == set()
        fired.append(("resolved", "comparison_failed"))
        told(*fired)
        assert service.call("GET", "/alerts", params={"state": "firing"})["alerts"] == []
        wait(service, lambda _: len(happened("resolved")) == len(told_of))
        assert happened("problem") == ["lake_differs", "resync_failed", "comparison_failed"]
        assert happened("resolved") == ["resync_failed", "lake_differs", "comparison_failed"]
