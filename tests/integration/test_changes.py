"""What happened to a row: changes found by table, key, transaction and time, on real servers."""

from __future__ import annotations

import io
import json
import random
import secrets
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from harness.service import Service, service_in_process
from spillway.delivery.change_rows import RowFinder

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


def ask(service: Service, pg: Database, **query: Any) -> dict[str, Any]:
    query = {"source": "main", "database": pg.name, **query}
    answer: dict[str, Any] = service.call("GET", "/changes", params=query)
    return answer


def values(change: dict[str, Any], side: str) -> dict[str, Any]:
    """Give what is known of one side of a row; unknown as ...; nothing where there was no row."""
    found = {}
    for column in change["columns"]:
        known = column[f"{side}_is"]
        if known != "none":
            found[column["name"]] = ... if known == "unknown" else column[side]
    return found


def told(page: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(c["operation"], values(c, "old"), values(c, "new")) for c in page["changes"]]


def changed(change: dict[str, Any]) -> list[str]:
    return [c["name"] for c in change["columns"] if c["changed"]]


def test_a_rows_history(service: Service, pg: Database) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pg.execute("CREATE TABLE other (id int PRIMARY KEY, v text)")
    pg.execute("INSERT INTO t SELECT g, 'a' FROM generate_series(1, 500) g")
    pg.execute("INSERT INTO other VALUES (42, 'not this one')")
    pg.execute("UPDATE t SET v = 'b' WHERE id = 42")
    pg.execute("BEGIN; UPDATE t SET v = 'rolled back' WHERE id = 42; ROLLBACK")
    pg.execute("UPDATE t SET id = 4200 WHERE id = 42")
    pg.execute("UPDATE t SET id = 42 WHERE id = 4200")
    pg.execute("DELETE FROM t WHERE id = 42")
    service.wait_decoded("s", pg)
    page = ask(service, pg, table="public.t", key="id=42")
    assert told(page) == [
        ("insert", {}, {"id": "42", "v": "a"}),
        ("update", {"id": "42", "v": ...}, {"id": "42", "v": "b"}),
        ("update", {"id": "42", "v": ...}, {"id": "4200", "v": "b"}),
        ("update", {"id": "4200", "v": ...}, {"id": "42", "v": "b"}),
        ("delete", {"id": "42", "v": ...}, {}),
    ]
    assert [changed(c) for c in page["changes"]] == [[], [], ["id"], ["id"], []]
    assert page["next"] is None
    assert page["tables"] == ["public.t"]
    assert page["undecided"] == 0
    assert not page["began_earlier"]
    newest = ask(service, pg, table="t", key="id=42", newest_first=True)
    assert newest["changes"] == page["changes"][::-1]
    for limit in (1, 2, 4):
        for order in (False, True):
            seen: list[Any] = []
            after: dict[str, str] = {}
            while True:
                some = ask(
                    service, pg, table="t", key="id=42", limit=limit, newest_first=order, **after
                )
                assert len(some["changes"]) <= limit
                seen += some["changes"]
                if some["next"] is None:
                    break
                after = {"after": some["next"]}
            assert seen == page["changes"][:: -1 if order else 1]
    deleted = ask(service, pg, table="t", key="id=42", op="delete")["changes"]
    assert deleted == page["changes"][-1:]
    # Of one transaction, by xid, and between two LSNs or times.
    second = page["changes"][1]
    assert ask(service, pg, xid=second["xid"])["changes"] == [second]
    commit, since = second["commit_lsn"], second["committed_at"]
    for bound, value in (("lsn", commit), ("", since)):
        low, high = ("from_lsn", "upto_lsn") if bound else ("since", "until")
        later = ask(service, pg, table="t", key="id=42", **{low: value})
        assert later["changes"] == page["changes"][1:]
        before = ask(service, pg, table="t", key="id=42", **{high: value})
        assert before["changes"] == page["changes"][:1]
    # As a plugin prints it.
    shown = service.call(
        "GET",
        "/changes/print",
        params={
            "source": "main",
            "database": pg.name,
            "commit_lsn": commit,
            "options.include-xids": "0",
        },
    )
    assert [c["data"] for c in shown["changes"]] == [
        "BEGIN",
        "table public.t: UPDATE: id[integer]:42 v[text]:'b'",
        "COMMIT",
    ]
    # Exported.
    query = {"source": "main", "database": pg.name, "table": "t", "key": "id=42", "limit": "2"}
    lines = service.http.get(
        "/v1/changes", params=query, headers={"Accept": "application/x-ndjson"}
    )
    assert [json.loads(line) for line in lines.text.splitlines()] == page["changes"][:2]
    assert lines.headers["Spillway-Next"] == page["changes"][1]["position"]
    accept = {"Accept": "application/vnd.apache.arrow.stream"}
    arrow = service.http.get("/v1/changes", params=query, headers=accept)
    rows = pa.ipc.open_stream(io.BytesIO(arrow.content)).read_all().to_pylist()
    assert [row["operation"] for row in rows] == ["insert", "update"]
    assert rows[1]["columns"][1]["new"] == "b"


def test_types_identities_and_what_is_unknown(service: Service, pg: Database) -> None:
    big = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i)"
    pg.execute(
        "CREATE TYPE mood AS ENUM ('calm', 'cross');"
        "CREATE TABLE types (i8 bigint, u uuid, n numeric(10, 2), d timestamptz, b bool, c char(5),"
        " m mood, f float8, v varchar, j jsonb, PRIMARY KEY (u, n));"
        "CREATE TABLE whole (id int, v text, big text); ALTER TABLE whole REPLICA IDENTITY FULL;"
        "CREATE TABLE nothing (id int PRIMARY KEY, v text);"
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING;"
        "CREATE TABLE toasted (id int PRIMARY KEY, v text, big text);"
        "CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1), (2)"
    )
    uid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    pg.execute(
        f"INSERT INTO types VALUES (9000000000, '{uid}', 19.90, '2026-11-23 10:00:00+00', true,"
        " 'ab', 'calm', 1e20, '<script>', '{\"a\": 1}')"
    )
    pg.execute(f"INSERT INTO whole VALUES (1, 'a', {big}); UPDATE whole SET v = NULL WHERE id = 1")
    pg.execute("DELETE FROM whole WHERE id = 1")
    pg.execute("INSERT INTO nothing VALUES (1, 'a'), (2, 'b')")
    pg.execute(f"INSERT INTO toasted VALUES (1, 'a', {big})")
    pg.execute("UPDATE toasted SET v = 'b' WHERE id = 1")
    pg.execute("ALTER TABLE late ADD COLUMN k int NOT NULL DEFAULT 7")
    pg.execute("ALTER TABLE late REPLICA IDENTITY FULL; DELETE FROM late WHERE id = 2")
    pg.execute("TRUNCATE whole, late")
    service.wait_decoded("s", pg)
    key = ["i8=9000000000", f"u={uid.upper()}", "n=19.90", "d=2026-11-23 10:00:00+00", "b=yes",
           "c=ab", "m=calm", "f=1e+20", "v=<script>", 'j={"a": 1}']  # fmt: skip
    for one in (*([k] for k in key), key):
        (change,) = ask(service, pg, table="types", key=one)["changes"]
        assert values(change, "new")["n"] == "19.90"
    assert [c["name"] for c in change["columns"] if c["is_key"]] == ["u", "n"]
    assert change["columns"][0]["type"] == "bigint"
    assert ask(service, pg, table="types", key="n=19.91")["changes"] == []
    inserted, updated, deleted = ask(service, pg, table="whole", key="id=1")["changes"]
    assert changed(updated) == ["v"]
    assert values(updated, "old") == values(inserted, "new") == {
        **values(updated, "new"), "v": "a"
    }  # fmt: skip
    assert values(updated, "new")["v"] is None
    assert values(deleted, "old") == values(updated, "new")
    assert len(values(deleted, "old")["big"]) == 64000
    # Unchanged, and not in WAL.
    _, updated = ask(service, pg, table="toasted", key="id=1")["changes"]
    assert values(updated, "new") == {"id": "1", "v": "b", "big": ...}
    assert [c["changed"] for c in updated["columns"]] == [False, None, False]
    # A value that lies in no tuple.
    assert [c["operation"] for c in ask(service, pg, table="late", key="k=7")["changes"]] == [
        "delete"
    ]
    truncated = ask(service, pg, op="truncate")["changes"]
    assert sorted((c["table"], len(c["columns"])) for c in truncated) == [("late", 0), ("whole", 0)]
    for limit in (1, 2):
        first = ask(service, pg, op="truncate", limit=limit)
        assert first["changes"] == truncated[:limit]
        if limit == 1:
            rest = ask(service, pg, op="truncate", after=first["next"])
            assert rest["changes"] == truncated[1:]


#: Columns, and values in ways in which people write them.
WRITTEN = {
    "n": ("1", "1.0", "1.00", "+1e0", "10", "10000", "1e4", "0", "-0", "0.0001", "1e-4", "-12.5",
          "12.50", "123456789012345678901234567890.12", "1e40", "1e-300", "NaN", "Infinity"),
    "fixed": ("1", "1.0", "100e-2", "-1", "12.5", "0", "0.01", "10000", "99999999.99"),
    "day": ("2026-11-25", "1999-12-31", "0044-03-15 BC", "infinity", "-infinity"),
    "clock": ("08:00", "08:00:00", "08:00:00.000", "23:59:59.999999", "08:00:00.5", "24:00:00"),
    "local": ("2026-11-25 08:00:00", "2026-11-25T08:00", "1969-01-01 00:00:00.000001", "infinity"),
    "at": ("2026-11-25 08:00:00+00", "2026-11-25T08:00:00Z", "2026-11-25 09:00:00+01:00",
           "2026-11-25 08:00:00.1+00", "1969-12-31 23:59:59.999999+00", "infinity", "-infinity"),
}  # fmt: skip


def test_numbers_and_times_are_found_by_what_they_mean(
    service: Service, pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they are written; PostgreSQL says which rows have them, and so does a search that
    compares every row.
    """
    pg.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, fixed numeric(10,2), day date, clock time, "
        "local timestamp, at timestamptz); ALTER TABLE t REPLICA IDENTITY FULL"
    )
    number = 0
    seed = secrets.randbits(32)
    some = random.Random(seed)
    for column, texts in WRITTEN.items():
        for text in texts:
            number += 1
            pg.execute(f"INSERT INTO t (id, {column}) VALUES (%s, %s)", [number, text])
    for _ in range(200):
        number += 1
        digits = some.randrange(10 ** some.randrange(1, 30))
        pg.execute(
            "INSERT INTO t (id, n, fixed, at, local) VALUES "
            "(%s, %s, %s, to_timestamp(%s), to_timestamp(%s) AT TIME ZONE 'UTC')",
            [
                number,
                f"{some.choice(('', '-'))}{digits}e{some.randrange(-20, 10)}",
                f"{some.randrange(-(10**9), 10**9) // 10 ** some.randrange(9)}e-2",
                some.randrange(-(10**10), 10**11) / 64,
                some.randrange(4 * 10**9),
            ],
        )
    service.wait_decoded("s", pg)
    written = {column: list(texts) for column, texts in WRITTEN.items()}
    for column in ("n", "fixed", "at", "local"):
        printed = pg.query(f"SELECT {column}::text FROM t WHERE id > %s", [number - 200])
        written[column] += [row[0] for row in some.sample(printed, 15)]
    types = {"n": "numeric", "fixed": "numeric", "day": "date", "clock": "time"}
    types |= {"local": "timestamp", "at": "timestamptz"}

    def found(column: str, text: str) -> list[int]:
        page = ask(service, pg, table="t", key=f"{column}={text}", limit=1000)
        return [int(values(change, "new")["id"]) for change in page["changes"]]

    quick = {(c, text): found(c, text) for c, texts in written.items() for text in texts}
    for (column, text), ids in quick.items():
        rows = pg.query(
            f"SELECT id FROM t WHERE {column} = %s::{types[column]} ORDER BY id", [text]
        )
        assert ids == [row[0] for row in rows], f"{column} = {text}, seed {seed}"
        assert ids or column == "at"
    passed_over = 0
    needle = RowFinder.needle

    def no_needle(self: RowFinder, *arguments: Any) -> bytes | None:
        nonlocal passed_over
        given = needle(self, *arguments)
        passed_over += bool(given)
        return None if given is None else b""

    monkeypatch.setattr(RowFinder, "needle", no_needle)
    assert {key: found(*key) for key in quick} == quick, f"seed {seed}"
    assert passed_over > 0.7 * len(quick), "most are looked for by their bytes"
    problem = service.problem(
        "GET",
        "/changes",
        params={"source": "main", "database": pg.name, "table": "t", "key": "n=1x"},
    )
    assert "numbers, and '1x' is none" in problem["detail"]


def test_deletes_that_cannot_be_told(service: Service, pg: Database) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pg.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    pg.execute("DELETE FROM t WHERE id = 2")
    service.wait_decoded("s", pg)
    page = ask(service, pg, table="t", key="v=a")
    assert told(page) == [("insert", {}, {"id": "1", "v": "a"})]
    # The key says which row it was, and not what v was.
    assert page["undecided"] == 1
    assert ask(service, pg, table="t", key=["v=a", "id=1"])["undecided"] == 0
    problem = service.problem(
        "GET", "/changes",
        params={"source": "main", "database": pg.name, "table": "t", "key": "w=1"},
    )  # fmt: skip
    assert problem["code"] == "invalid_request"
    assert problem["detail"] == 'table "t" has no column w'
    assert problem["hint"] == "Its columns are id, v."
    for key, said in (("id=x", "whole numbers"), ("id=99999999999", "can't have the value")):
        problem = service.problem(
            "GET", "/changes",
            params={"source": "main", "database": pg.name, "table": "t", "key": key},
        )  # fmt: skip
        assert said in problem["detail"]


def test_tables_are_known_by_what_they_are(service: Service, pg: Database) -> None:
    pg.execute("CREATE TABLE before (id int PRIMARY KEY, v text)")
    pg.execute("INSERT INTO before VALUES (1, 'a')")
    pg.execute("ALTER TABLE before RENAME TO after; ALTER TABLE after RENAME v TO w")
    pg.execute("UPDATE after SET w = 'b'")
    pg.execute("DROP TABLE after")
    pg.execute("CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    pg.execute("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10)")
    pg.execute("CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20)")
    pg.execute("INSERT INTO parted VALUES (1, 'a'); UPDATE parted SET id = 11")
    service.wait_decoded("s", pg)
    for name in ("before", "after", "public.after"):
        page = ask(service, pg, table=name)
        assert page["tables"] == ["public.after", "public.before"]
        assert [(c["table"], values(c, "new")) for c in page["changes"]] == [
            ("before", {"id": "1", "v": "a"}), ("after", {"id": "1", "w": "b"})
        ]  # fmt: skip
    page = ask(service, pg, table="parted")
    assert [(c["operation"], c["table"]) for c in page["changes"]] == [
        ("insert", "low"), ("delete", "low"), ("insert", "high")
    ]  # fmt: skip
    nothing = ask(service, pg, table="never")
    assert (nothing["changes"], nothing["tables"]) == ([], [])


def test_copies_large_transactions_and_pages(service: Service, pg: Database) -> None:
    """Rows of one WAL record have one LSN; a large transaction is cut in chunks."""
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with pg.connect() as connection, connection.cursor() as cursor:
        with cursor.copy("COPY t FROM STDIN") as copy:
            for number in range(40_000):
                copy.write_row((number, "x" * 60))
        connection.commit()
    pg.execute("UPDATE t SET v = 'y' WHERE id % 10 = 3")
    service.wait_decoded("s", pg)
    for order in (False, True):
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = ask(service, pg, table="t", op="insert", limit=1000, newest_first=order, **after)
            seen += [c["columns"][0]["new"] for c in page["changes"]]
            if page["next"] is None or len(seen) >= 5000:
                break
            after = {"after": page["next"]}
        expected = [str(n) for n in range(40_000)]
        assert seen == (expected[::-1] if order else expected)[:5000]
    page = ask(service, pg, table="t", key="id=39993")
    assert [c["operation"] for c in page["changes"]] == ["insert", "update"]
    # The page's files have all that fits, over its pages.
    query = {"source": "main", "database": pg.name, "table": "t", "op": "update"}
    updated = ask(service, pg, table="t", op="update", limit=1000, newest_first=True)["changes"]
    for direction in ("", "oldest"):
        asked = {**query, "order": direction}
        lines = service.http.get("/ui/changes/export/jsonl", params=asked).text.splitlines()
        numbers = [json.loads(line)["columns"][0]["new"] for line in lines]
        whole = [str(n) for n in range(3, 40_000, 10)]
        assert numbers == (whole if direction else whole[::-1])
        arrow = service.http.get("/ui/changes/export/arrow", params=asked)
        rows = pa.ipc.open_stream(io.BytesIO(arrow.content)).read_all().to_pylist()
        assert [row["columns"][0]["new"] for row in rows] == numbers
    first = service.http.get("/ui/changes/export/jsonl", params=query).text.splitlines()[:1000]
    assert [json.loads(line) for line in first] == updated
    wrong: tuple[tuple[str, dict[str, str]], ...] = (
        ("xml", {}), ("jsonl", {"from_lsn": "x"}), ("arrow", {"source": "none"})
    )  # fmt: skip
    for form, field in wrong:
        refused = service.http.get(f"/ui/changes/export/{form}", params={**query, **field})
        assert refused.status_code >= 400
        assert "text/html" in refused.headers["Content-Type"]


def test_the_page_escapes_what_it_shows(service: Service, pg: Database) -> None:
    hostile = "<script>alert(1)</script>"
    pg.execute(f'CREATE TABLE "{hostile}" (id int PRIMARY KEY, v text)')
    pg.execute(f"INSERT INTO \"{hostile}\" VALUES (1, '{hostile}')")
    service.wait_decoded("s", pg)
    query = {"source": "main", "database": pg.name, "key": "id = 1", "table": hostile}
    page = service.http.get("/ui/changes", params=query)
    assert page.status_code == 200
    assert hostile not in page.text
    assert page.text.count("&lt;script&gt;alert(1)") >= 3
    assert "History of this row" in page.text
    nothing = service.http.get("/ui/changes", params={**query, "table": "never"})
    assert "No table of that name has a change in what is retained." in nothing.text
    wrong = service.http.get("/ui/changes", params={**query, "key": "id = x"})
    assert "whole numbers" in wrong.text


def test_prepared_rolled_back_and_without_an_identity(service: Service, pg: Database) -> None:
    pg.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "CREATE TABLE n (id int PRIMARY KEY, v text); ALTER TABLE n REPLICA IDENTITY NOTHING;"
        "INSERT INTO n VALUES (1, 'a'), (2, 'b')"
    )
    for name, value, end in (("kept", 1, "COMMIT"), ("gone", 2, "ROLLBACK")):
        pg.execute(f"BEGIN; INSERT INTO t VALUES ({value}, '{name}'); PREPARE TRANSACTION '{name}'")
        pg.execute(f"{end} PREPARED '{name}'")
    pg.execute(
        "BEGIN; INSERT INTO t VALUES (3, 'a'); SAVEPOINT s; INSERT INTO t VALUES (4, 'undone');"
        " ROLLBACK TO s; INSERT INTO t VALUES (5, 'b'); COMMIT"
    )
    pg.execute("UPDATE n SET v = 'c' WHERE id = 1")
    pg.execute("DELETE FROM n WHERE id = 2")
    service.wait_decoded("s", pg)
    page = ask(service, pg, table="t")
    assert told(page) == [
        ("insert", {}, {"id": "1", "v": "kept"}),
        ("insert", {}, {"id": "3", "v": "a"}),
        ("insert", {}, {"id": "5", "v": "b"}),
    ]
    # WAL has nothing of the rows that there were.
    one = ask(service, pg, table="n", key="id=1")
    assert told(one) == [
        ("insert", {}, {"id": "1", "v": "a"}),
        ("update", {"id": ..., "v": ...}, {"id": "1", "v": "c"}),
    ]
    assert one["undecided"] == 1
    assert told(ask(service, pg, table="n", op="delete")) == [("delete", {"id": ..., "v": ...}, {})]


def test_bytes_that_are_no_text(tmp_path: Path, pg: Database) -> None:
    cluster = pg.cluster
    name = f"ascii_{pg.name[-8:]}"
    cluster.execute(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE"
        " template0"
    )
    database = type(pg)(cluster, name)
    try:
        with service_in_process(tmp_path / "data") as running:
            running.create_source(database.dsn)
            running.create_slot("s", name)
            database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            database.execute("INSERT INTO t VALUES (1, chr(255) || 'x'), (2, 'plain')")
            running.wait_decoded("s", pg)
            page = ask(running, database, table="t")
            assert told(page) == [
                ("insert", {}, {"id": "1", "v": "\\xffx"}),
                ("insert", {}, {"id": "2", "v": "plain"}),
            ]
            assert told(ask(running, database, table="t", key="v=plain")) == told(page)[1:]
            running.drop_slot("s")
            running.call("DELETE", "/sources/main")
    finally:
        cluster.drop_database(name)
