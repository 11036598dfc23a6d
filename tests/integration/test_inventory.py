"""Tables and publications of a database, from the mirrored catalog, beside what the server says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.remedies import remedy
from harness.service import Service, service_in_process
from spillway.catalog.resolution import Resolver
from spillway.service import inventory
from spillway.service.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Database


@pytest.fixture
def service(tmp_path: Path, pg: Database) -> Iterator[Service]:
    with service_in_process(tmp_path / "data") as running:
        running.create_source(pg.dsn)
        running.create_slot("s", pg.name)
        yield running
        running.drop_slot("s")
        running.call("DELETE", "/sources/main")


def tables(service: Service, database: str) -> dict[str, Any]:
    found = service.call("GET", f"/sources/main/tables?database={database}")["tables"]
    return {f"{t['schema']}.{t['name']}": t for t in found}


def publications(service: Service, database: str) -> dict[str, Any]:
    found = service.call("GET", f"/publications?source=main&database={database}")["publications"]
    return {p["name"]: p for p in found}


def test_tables_and_what_stands_in_the_way(service: Service, pg: Database) -> None:
    pg.execute("CREATE SCHEMA shop")
    pg.execute(
        'CREATE TABLE shop."Odd.name" (b varchar(10), a int PRIMARY KEY, c numeric(8,2)[] NOT NULL)'
    )
    pg.execute('ALTER TABLE shop."Odd.name" ADD d int, DROP b')
    pg.execute("CREATE TABLE nokey (a int)")
    pg.execute("CREATE TABLE nothing (a int PRIMARY KEY)")
    pg.execute("ALTER TABLE nothing REPLICA IDENTITY NOTHING")
    pg.execute("CREATE TABLE whole (a int)")
    pg.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    pg.execute("CREATE TABLE root (a int PRIMARY KEY) PARTITION BY RANGE (a)")
    pg.execute("CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (9)")
    pg.execute("CREATE UNLOGGED TABLE unlogged (a int)")
    pg.execute("CREATE VIEW shop.v AS SELECT 1")
    service.wait_decoded("s", pg)
    found = tables(service, pg.name)
    assert list(found) == [
        "public.nokey", "public.nothing", "public.part", "public.root", "public.whole",
        "shop.Odd.name",
    ]  # fmt: skip
    odd = found["shop.Odd.name"]
    assert odd["columns"] == [
        {"name": "a", "type": "integer", "not_null": True, "generated": False, "as_text": False},
        {
            "name": "c",
            "type": "numeric(8,2)[]",
            "not_null": True,
            "generated": False,
            "as_text": True,
        },
        {"name": "d", "type": "integer", "not_null": False, "generated": False, "as_text": False},
    ]
    assert (odd["primary_key"], odd["replica_identity"], odd["warnings"]) == (["a"], "default", [])
    assert "no key" in found["public.nokey"]["warnings"][0]
    assert "replica identity nothing" in found["public.nothing"]["warnings"][0]
    assert "told apart" in found["public.whole"]["warnings"][0]
    assert (found["public.root"]["kind"], found["public.root"]["warnings"]) == (
        "partitioned table",
        [],
    )
    assert found["public.part"]["partition_of"] == ["public.root"]


def test_publications_are_the_servers(service: Service, pg: Database) -> None:
    pg.execute("CREATE SCHEMA shop")
    pg.execute("CREATE TABLE t (a int PRIMARY KEY, b text, c int)")
    pg.execute("CREATE TABLE shop.u (a int PRIMARY KEY)")
    pg.execute("CREATE TABLE root (a int PRIMARY KEY) PARTITION BY RANGE (a)")
    pg.execute("CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (9)")
    pg.execute("CREATE PUBLICATION everything FOR ALL TABLES WITH (publish = 'insert, delete')")
    pg.execute("CREATE PUBLICATION nothing")
    pg.execute("CREATE PUBLICATION of_schema FOR TABLES IN SCHEMA shop")
    pg.execute("CREATE PUBLICATION leaves FOR TABLE root")
    pg.execute("CREATE PUBLICATION as_root FOR TABLE root WITH (publish_via_partition_root = true)")
    pg.execute("CREATE PUBLICATION parts FOR TABLE t (a, c) WHERE (a > 5), shop.u")
    service.wait_decoded("s", pg)
    found = publications(service, pg.name)
    theirs = pg.query("SELECT pubname, schemaname, tablename FROM pg_publication_tables")
    ours = [(name, t["schema"], t["name"]) for name, p in found.items() for t in p["tables"]]
    assert sorted(ours) == sorted(tuple(row) for row in theirs)
    assert list(found) == ["as_root", "everything", "leaves", "nothing", "of_schema", "parts"]
    assert found["everything"]["all_tables"]
    assert found["everything"]["publish"] == {
        "insert": True, "update": False, "delete": True, "truncate": False,
    }  # fmt: skip
    assert (found["as_root"]["via_root"], found["leaves"]["via_root"]) == (True, False)
    assert found["of_schema"]["schemas"] == ["shop"]
    of_t = next(t for t in found["parts"]["tables"] if t["name"] == "t")
    assert (of_t["columns"], of_t["has_row_filter"]) == (["a", "c"], True)
    # As of where decoding is: altered, dropped.
    pg.execute("ALTER PUBLICATION parts SET TABLE shop.u")
    pg.execute("DROP PUBLICATION everything")
    service.wait_decoded("s", pg)
    found = publications(service, pg.name)
    assert "everything" not in found
    assert [(t["name"], t["columns"], t["has_row_filter"]) for t in found["parts"]["tables"]] == [
        ("u", None, False)
    ]
    # A database that nothing decodes.
    problem = service.problem("GET", "/publications?source=main&database=elsewhere")
    assert (problem["status"], problem["code"]) == (503, "not_ready")


def test_a_lakes_publications_are_checked_before_anything_is_made(
    service: Service, pg: Database, tmp_path: Path
) -> None:
    pg.execute("CREATE TABLE t (a int PRIMARY KEY)")
    pg.execute("CREATE PUBLICATION filtered FOR TABLE t WHERE (a > 5)")
    service.wait_decoded("s", pg)
    body = {
        "name": "lake",
        "source": "main",
        "database": pg.name,
        "target": {"kind": "lake", "path": str(tmp_path / "lake")},
    }
    for changed, code in (
        ({"publications": ["filtered"]}, "unsupported_feature"),
        ({"publications": ["nope"]}, "unknown_publication"),
        ({"tables": ["public.nope"]}, "unknown_table"),
        ({"streaming": "on"}, "unsupported_feature"),
        ({"database": "nope"}, "unknown_database"),
        ({"slot": "s"}, "conflict"),
    ):
        problem = service.problem("POST", "/subscriptions", json={**body, **changed})
        assert problem["code"] == code, problem
        assert problem["hint"]
    assert [slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]] == ["s"]
    assert service.call("GET", "/subscriptions") == {"subscriptions": []}
    # Off: a slot is there, and nothing runs.
    made = service.call(
        "POST", "/subscriptions", json={**body, "tables": ["public.t"], "enabled": False}
    )
    assert (made["state"], made["pid"], made["lag_seconds"]) == ("paused", None, 0)
    pg.execute("INSERT INTO t VALUES (1)")
    service.wait_decoded("lake", pg)
    later = service.call("GET", "/subscriptions/lake")
    assert later["lag_seconds"] > 0
    assert later["lag_bytes"] > 0
    service.call("DELETE", "/subscriptions/lake")
    assert [slot["slot_name"] for slot in service.call("GET", "/slots")["slots"]] == ["s"]


FILTERS = (
    "(a > 5)",
    "a > -5 AND NOT (b = 'it''s' OR c IS NULL)",
    "n < 10000000000 AND s <> 3",
    "v = 'x' AND lower(b) LIKE 'a%'",
    "v::text = b",
    "a IN (1, 2) AND b NOT IN ('x', 'y')",
    "flag IS NOT TRUE OR flag",
    "-a < abs(c) AND a + c * 2 = 7",
    "a::bigint = n AND s = a",
    '"Odd" = true',
)
#: Of these there is no text here, and the server has one.
OTHER_FILTERS = ("d > '2020-01-01'", "coalesce(a, 1) = 1", "b = E'a\\b'", "n = 1.5")


def test_row_filters_are_shown_as_the_server_does(service: Service, pg: Database) -> None:
    columns = (
        'a int, b text, c int, n bigint, s smallint, v varchar(10), flag bool, "Odd" bool, d date'
    )
    pg.execute(f"CREATE TABLE t ({columns})")
    pg.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    for number, row_filter in enumerate(FILTERS + OTHER_FILTERS):
        pg.execute(f"CREATE PUBLICATION p{number} FOR TABLE t WHERE ({row_filter})")
    service.wait_decoded("s", pg)
    theirs = dict(pg.query("SELECT pubname, rowfilter FROM pg_publication_tables"))
    found = publications(service, pg.name)
    ours = {name: p["tables"][0]["row_filter"] for name, p in found.items()}
    assert all(p["tables"][0]["has_row_filter"] for p in found.values())
    for number in range(len(FILTERS)):
        assert ours[f"p{number}"] == theirs[f"p{number}"]
    for number in range(len(FILTERS), len(FILTERS + OTHER_FILTERS)):
        assert ours[f"p{number}"] in (None, theirs[f"p{number}"])


def test_many_tables_come_in_pages(
    service: Service, pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every table once, by pages that cost what they give, wherever they begin."""
    pg.execute(
        "DO $$BEGIN FOR i IN 1..250 LOOP EXECUTE format('CREATE TABLE many_%s (id int PRIMARY KEY, "
        "v text)', i); END LOOP; DROP TABLE many_7; CREATE TABLE many_7 (); END$$"
    )
    pg.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    service.wait_decoded("s", pg)
    described = 0

    class Counted(Resolver):
        def resolve(self, *arguments: Any) -> Any:
            nonlocal described
            described += 1
            return super().resolve(*arguments)

    monkeypatch.setattr(inventory, "Resolver", Counted)
    monkeypatch.setattr(inventory, "TABLES_MAX", 100)
    where, names = f"/sources/main/tables?database={pg.name}", []
    # Without a limit there come as many as may.
    page = service.call("GET", where)
    while True:
        names += [table["name"] for table in page["tables"]]
        assert described <= len(names)
        if page["next"] is None:
            break
        assert len(page["tables"]) == 100
        page = service.call("GET", f"{where}&after={page['next']}")
    assert sorted(names) == sorted(f"many_{n}" for n in range(1, 251))
    described = 0
    last = service.call(
        "GET", f"{where}&limit=3&after={pg.value('SELECT max(oid)::int8 - 20 FROM pg_class')}"
    )
    assert len(last["tables"]) <= 3
    assert described <= 4
    assert len(publications(service, pg.name)["everything"]["tables"]) == 250


@pytest.mark.follows_hint("not_ready")
def test_a_slot_that_can_not_begin_yet_says_why(tmp_path: Path, pg: Database) -> None:
    with (
        service_in_process(
            tmp_path / "data", engine=EngineSettings(consistent_timeout_s=2)
        ) as service,
        pg.connect(autocommit=False) as open_one,
    ):
        row = open_one.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        service.create_source(pg.dsn)
        body = {"slot_name": "s", "source": "main", "database": pg.name, "plugin": "test_decoding"}
        problem = service.problem("POST", "/slots", json=body)
        assert problem["code"] == "not_ready"
        assert f"transaction {row[0]} " in problem["detail"]
        # What the hint names shows whose it is, and ending it mends it.
        assert "pg_stat_activity (backend_xid)" in remedy(problem, "not_ready")
        pid = pg.value("SELECT pid FROM pg_stat_activity WHERE backend_xid::text = %s", [row[0]])
        assert pid == open_one.info.backend_pid
        open_one.rollback()
        deadline = time.monotonic() + 60
        while service.http.post("/v1/slots", json=body).is_error:
            assert time.monotonic() < deadline
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
