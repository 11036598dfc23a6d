"""Databases in other encodings than UTF8, in SQL_ASCII with bytes that are no characters, too:
beside PostgreSQL's own subscription, byte for byte.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from harness.cluster import Database
from harness.postgresql_subscription import wait_until
from harness.remedies import remedy
from harness.tiers import deep

if TYPE_CHECKING:
    from harness.cluster import Cluster
    from harness.side_by_side import SideBySide

_TABLE = "CREATE TABLE {} (a int PRIMARY KEY, {} text, n numeric)"


def _database(cluster: Cluster, name: str, encoding: str) -> Database:
    cluster.execute(
        f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0"
        " LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    return Database(cluster, name)


def _run(database: Database, statements: list[bytes]) -> None:
    """Run statements whose bytes are the database's own."""
    with database.connect() as connection:
        for statement in statements:
            result = connection.pgconn.exec_(b"SET client_encoding = SQL_ASCII")
            result = connection.pgconn.exec_(statement)
            assert not result.error_message, (statement, result.error_message)


def _rows(database: Database, table: bytes, column: bytes) -> list[tuple[Any, ...]]:
    """Key, bytes of the text, number."""
    with database.connect() as connection:
        connection.pgconn.exec_(b"SET client_encoding = SQL_ASCII")
        result = connection.pgconn.exec_(
            b"SELECT a, octet_length(%s), md5(%s), n FROM %s ORDER BY a" % (column, column, table)
        )
        assert not result.error_message, result.error_message
        return [tuple(result.get_value(r, c) for c in range(4)) for r in range(result.ntuples)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("of", "into"),
    [
        ("SQL_ASCII", "SQL_ASCII"),
        deep("UTF8", "SQL_ASCII"),
        deep("SQL_ASCII", "UTF8"),
        deep("UTF8", "LATIN1"),
        deep("EUC_JP", "UTF8"),
        deep("UTF8", "WIN1252"),
    ],
    ids=lambda one: one,
)
def test_as_postgresql(sides: SideBySide, of: str, into: str) -> None:
    cluster, service = sides.cluster, sides.service
    name = f"enc_{secrets.token_hex(3)}"
    source = _database(cluster, name, of)
    stock = _database(cluster, f"{name}_stock", into)
    ours = _database(cluster, f"{name}_ours", into)
    codec = {"EUC_JP": "euc_jp", "WIN1252": "cp1252"}
    letter = "a" if of == "EUC_JP" else "é"
    table, column = f'"T{letter}"', f'"c{letter}"'

    def said(text: str, encoding: str) -> bytes:
        """What has no encoding has the other side's, and UTF-8 where that has none either."""
        if encoding == "SQL_ASCII":
            encoding = next((one for one in (into, of) if one != "SQL_ASCII"), "UTF8")
        return text.encode(codec.get(encoding, encoding))

    odd = b"\xff\xfe\x81" if (of, into) == ("SQL_ASCII", "SQL_ASCII") else b"plain"
    words = "日本" if of == "EUC_JP" else "Grüße"
    make = _TABLE.format(table, column)
    _run(source, [said(make, of)])
    for database in (stock, ours):
        _run(database, [said(make, into)])
    t, c = said(table, of), said(column, of)
    insert = b"INSERT INTO %s VALUES (%d, '%s', 1.5), (%d, '%s', NULL)"
    _run(source, [insert % (t, 1, said(words, of), 2, odd),
                  b"CREATE PUBLICATION p FOR TABLE " + t])  # fmt: skip
    try:
        source.query(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        stock.execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{source.dsn}' PUBLICATION p"
            f" WITH (slot_name = '{name}', create_slot = false)"
        )
        service.call(
            "POST",
            "/subscriptions",
            json={
                "name": name, "source": sides.source_name, "database": name, "publications": ["p"],
                "target": {"kind": "postgres", "dsn": ours.dsn},
            },
        )  # fmt: skip

        def there(database: Database, key: int) -> bool:
            rows = _rows(database, said(table, into), said(column, into))
            return any(row[0] == str(key).encode() for row in rows)

        def wait(key: int) -> None:
            for database in (stock, ours):
                wait_until(
                    f"row {key} is in {database.name}",
                    lambda d=database: there(d, key),  # type: ignore[misc]
                    lambda: (
                        f"{service.call('GET', f'/subscriptions/{name}')}"
                        f"{service.call('GET', f'/subscriptions/{name}/log')}{cluster.log_tail(20)}"
                    ),
                )
            rows = [_rows(one, said(table, into), said(column, into)) for one in (stock, ours)]
            assert rows[0] == rows[1]

        wait(1)
        _run(source, [
            insert % (t, 3, said(words, of), 4, odd),
            b"UPDATE %s SET %s = '%s' || %s WHERE a = 2" % (t, c, odd, c),
            b"UPDATE %s SET n = 7, a = 12 WHERE a = 1" % t,
            b"DELETE FROM %s WHERE a = 3" % t,
            insert % (t, 5, b"x", 6, odd + odd),
        ])  # fmt: skip
        wait(6)
        # A row that is in the way of one with such bytes: the exact way, and what is told of it.
        for database in (stock, ours):
            _run(database, [b"DELETE FROM %s WHERE a = 4" % said(table, into)])
        _run(source, [b"UPDATE %s SET n = 8 WHERE a = 4" % t, insert % (t, 7, b"x", 8, odd)])
        wait(8)
    finally:
        stock.execute(f"DROP SUBSCRIPTION IF EXISTS {name}")
        service.call("DELETE", f"/subscriptions/{name}")
        for database in (source, stock, ours):
            cluster.drop_database(database.name)


def test_into_no_encoding_text_goes_in_utf8(sides: SideBySide) -> None:
    """PostgreSQL would leave it in the source's bytes; here it is alike in the copy and after."""
    cluster, service = sides.cluster, sides.service
    name = f"enc_{secrets.token_hex(3)}"
    source = _database(cluster, name, "LATIN1")
    ours = _database(cluster, f"{name}_ours", "SQL_ASCII")
    for database in (source, ours):
        _run(database, [_TABLE.format("t", "v").encode()])
    _run(source, [b"CREATE PUBLICATION p FOR TABLE t", b"INSERT INTO t VALUES (1, 'Gr\xfc\xdfe')"])
    try:
        service.call(
            "POST",
            "/subscriptions",
            json={
                "name": name, "source": sides.source_name, "database": name, "publications": ["p"],
                "target": {"kind": "postgres", "dsn": ours.dsn},
            },
        )  # fmt: skip
        _run(source, [b"INSERT INTO t VALUES (2, 'Gr\xfc\xdfe')"])
        wait_until(
            "both rows are there",
            lambda: len(_rows(ours, b"t", b"v")) == 2,
            lambda: str(service.call("GET", f"/subscriptions/{name}")),
        )
        assert {row[1] for row in _rows(ours, b"t", b"v")} == {b"7"}
    finally:
        service.call("DELETE", f"/subscriptions/{name}")
        for database in (source, ours):
            cluster.drop_database(database.name)


@pytest.mark.long
@pytest.mark.follows_hint("target_table_missing")
def test_a_name_that_is_no_text(sides: SideBySide) -> None:
    """It is not found on the target, and what helps is said; renamed, its rows arrive."""
    cluster, service = sides.cluster, sides.service
    name = f"enc_{secrets.token_hex(3)}"
    source, ours = (_database(cluster, one, "SQL_ASCII") for one in (name, f"{name}_ours"))
    for database in (source, ours):
        _run(database, [b'CREATE TABLE "t\xff" (a int PRIMARY KEY, v text, n numeric)'])
    _run(
        source,
        [b"CREATE PUBLICATION p FOR ALL TABLES", b"INSERT INTO \"t\xff\" VALUES (1, '\xff')"],
    )
    body = {
        "name": name, "source": sides.source_name, "database": name, "publications": ["p"],
        "target": {"kind": "postgres", "dsn": ours.dsn},
    }  # fmt: skip
    try:
        refused = service.problem("POST", "/subscriptions", json=body)
        assert "rename it on both sides" in remedy(refused, "target_table_missing")
        for database in (source, ours):
            _run(database, [b'ALTER TABLE "t\xff" RENAME TO t'])
        service.call("POST", "/subscriptions", json=body)
        wait_until(
            "the row is there",
            lambda: _rows(ours, b"t", b"v") == _rows(source, b"t", b"v") != [],
            lambda: str(service.call("GET", f"/subscriptions/{name}")),
        )
        service.call("DELETE", f"/subscriptions/{name}")
    finally:
        for database in (source, ours):
            cluster.drop_database(database.name)


@pytest.mark.long
def test_names_that_are_no_text_while_others_stream(sides: SideBySide) -> None:
    """A table of such a name that comes later is not copied, with the reason, and the others go on;
    a column of such a name is an error that says so.
    """
    cluster, service = sides.cluster, sides.service
    name = f"enc_{secrets.token_hex(3)}"
    source, ours = (_database(cluster, one, "SQL_ASCII") for one in (name, f"{name}_ours"))
    for database in (source, ours):
        _run(database, [b"CREATE TABLE t (a int PRIMARY KEY, v text, n numeric)"])
    _run(source, [b"CREATE PUBLICATION p FOR ALL TABLES"])
    body = {
        "name": name, "source": sides.source_name, "database": name, "publications": ["p"],
        "target": {"kind": "postgres", "dsn": ours.dsn},
    }  # fmt: skip

    def view() -> dict[str, Any]:
        answer: dict[str, Any] = service.call("GET", f"/subscriptions/{name}")
        return answer

    def reason() -> str:
        return "".join(one["reason"] or "" for one in view()["table_states"])

    def has(table: bytes, number: int) -> bool:
        return len(_rows(ours, table, b"v")) == number

    try:
        service.call("POST", "/subscriptions", json=body)
        wait_until("it streams", lambda: view()["state"] == "streaming", lambda: str(view()))
        for database in (source, ours):
            _run(database, [b'CREATE TABLE "u\xff" (a int PRIMARY KEY, v text, n numeric)'])
        _run(source, [b"INSERT INTO \"u\xff\" VALUES (1, 'x')"])
        service.call("POST", f"/subscriptions/{name}/refresh")
        wait_until("the reason is there", lambda: bool(reason()), lambda: str(view()))
        assert r'relation "public.u\xff" does not exist' in reason()
        _run(source, [b"INSERT INTO t VALUES (1, 'x')"])
        wait_until("the other goes on", lambda: has(b"t", 1), lambda: str(view()))
        for database in (source, ours):
            _run(database, [b'ALTER TABLE "u\xff" RENAME TO u'])
        service.call("POST", f"/subscriptions/{name}/refresh")
        wait_until("it is copied", lambda: has(b"u", 1), lambda: str(view()))

        for database in (source, ours):
            _run(database, [b'ALTER TABLE t RENAME v TO "v\xff"'])
        _run(source, [b"INSERT INTO t VALUES (2, 'y')"])
        wait_until("it fails", lambda: view()["error"], lambda: str(view()))
        error = view()["error"]
        assert error["code"] == "target_columns_missing"
        assert error["message"].endswith(r'is missing replicated column: "v\xff"')
        assert "rename it on both sides" in error["hint"]
        assert "leave the table out, empty it on the target and name it again" in error["hint"]
        # What was written under the name is in WAL under it, so the table is copied once more.
        for database in (source, ours):
            _run(database, [b'ALTER TABLE t RENAME "v\xff" TO v'])
        service.call("PATCH", f"/subscriptions/{name}", json={"tables": ["public.u"]})
        wait_until("it goes on", lambda: view()["state"] == "streaming", lambda: str(view()))
        _run(ours, [b"TRUNCATE t"])
        service.call("PATCH", f"/subscriptions/{name}", json={"publications": ["p"]})
        wait_until("all is there", lambda: has(b"t", 2), lambda: str(view()))
        _run(source, [b"INSERT INTO t VALUES (3, 'z')"])
        wait_until("and goes on", lambda: has(b"t", 3), lambda: str(view()))
    finally:
        service.call("DELETE", f"/subscriptions/{name}")
        for database in (source, ours):
            cluster.drop_database(database.name)
