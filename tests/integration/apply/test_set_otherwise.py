"""Databases that are set to print, read and compare values in other ways than PostgreSQL does
unasked: what arrives is what the source has, by every way that a row can take, and verify finds
both equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from harness.postgresql_subscription import wait_until
from spillway.apply.verify.pairs import print_alike

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.side_by_side import SideBySide

_SETTINGS = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kolkata",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "bytea_output": "escape",
    "xmlbinary": "hex",
    "extra_float_digits": "-5",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "search_path": "nowhere",
    "client_encoding": "LATIN1",
}
_TABLES = r"""
CREATE SCHEMA {0};
CREATE TABLE {0}."Keyed" (id int PRIMARY KEY, d date DEFAULT '2026-03-04', ts timestamp,
    tz timestamptz, i interval DEFAULT '-1 day +02:03:04', a text[] DEFAULT '{{NULL,"NULL"}}',
    n int[], f float8, b bytea DEFAULT '\x5c00', t text DEFAULT 'back\slash ''quoted''', x xml,
    CHECK (t <> 'a\b'));
CREATE TABLE {0}.whole (k text, a text[], i interval, d date, f real);
ALTER TABLE {0}.whole REPLICA IDENTITY FULL
"""
_ROWS = r"""
INSERT INTO {0}."Keyed" (id) VALUES ({1}1);
INSERT INTO {0}."Keyed" SELECT {1}00 + n, date '2026-02-01' + n, timestamp '2026-01-02 03:04:05.6',
    timestamptz '2026-06-07 08:09:10+00', interval '1 year -2 days +3 hours' * n,
    CASE n % 3 WHEN 0 THEN ARRAY[NULL, 'NULL', 'a'] WHEN 1 THEN '{{}}' END,
    CASE WHEN n % 2 = 0 THEN ARRAY[NULL, 1] END, 1 / 3.0 * n, E'\\x00ff5c27',
    CASE WHEN n % 4 <> 0 THEN E'é \\ '' \n\t' || n END, '<a>é</a>' FROM generate_series(1, 40) n;
INSERT INTO {0}.whole SELECT CASE WHEN n % 2 = 0 THEN E'\\' || n END,
    CASE WHEN n % 3 = 0 THEN ARRAY[NULL, 'NULL'] END, interval '-1 day +1 hour' * n,
    date '2026-02-03' + n, 0.1 * n FROM generate_series({1}1, {1}9) n
"""
_CHANGES = r"""
UPDATE {0}."Keyed" SET a = ARRAY['NULL', NULL], t = NULL, i = i - interval '3 days -1 min'
    WHERE id % 3 = 0;
UPDATE {0}."Keyed" SET id = -id, t = E'\\''' WHERE id % 7 = 1;
DELETE FROM {0}."Keyed" WHERE id % 5 = 2;
UPDATE {0}.whole SET a = ARRAY[NULL], k = E'\\x' || d WHERE k IS NULL;
DELETE FROM {0}.whole WHERE a IS NULL
"""
_WAYS = ("auto", "always")
#: What a subscriber of 15 and later asks of its source by itself. One of 14 takes values as the
#: source's database prints them, and may not be able to read them.
_PRINTED = "options='-c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=3'"


@pytest.fixture
def set_otherwise(sides: SideBySide) -> Iterator[SideBySide]:
    """The source and our target; PostgreSQL's is as ever, and has the tables."""
    for way in _WAYS:
        sides.source.execute(_TABLES.format(way))
        sides.stock.execute(_TABLES.format(way))
        sides.source.execute(
            f'CREATE PUBLICATION of_{way} FOR TABLE {way}."Keyed", {way}.whole, marker'
        )
    databases = (sides.source, sides.ours)
    for database in databases:
        for name, value in _SETTINGS.items():
            database.execute(f"ALTER DATABASE {database.name} SET {name} = '{value}'")
    yield sides
    for database in databases:
        sides.cluster.execute(f"ALTER DATABASE {database.name} RESET ALL")
    for way in _WAYS:
        sides.source.execute(f"DROP PUBLICATION of_{way}")
        sides.everywhere(f"DROP SCHEMA IF EXISTS {way} CASCADE")


def _rows(database: Database, table: str) -> list[Any]:
    with database.connect() as connection:
        print_alike(connection)
        return connection.execute(f"SELECT r::text FROM {table} r ORDER BY 1".encode()).fetchall()


@pytest.mark.long
def test_what_arrives_is_what_was_sent(set_otherwise: SideBySide) -> None:
    sides = set_otherwise
    for way in _WAYS:
        sides.source.execute(_ROWS.format(way, 1))
        target = {"create_tables": True, "exact": way}
        asks = _PRINTED if sides.major == 14 else ""
        with sides.subscribed(way, f"of_{way}", copy_data=True, target=target, stock_connects=asks):
            for statement in (_ROWS.format(way, 2), _CHANGES.format(way)):
                with sides.source.connect() as session, session.transaction():
                    session.execute(statement.encode())
            sides.source.execute("DELETE FROM public.marker")
            sides.source.execute("INSERT INTO public.marker VALUES (-1)")
            sides.both_have("SELECT FROM public.marker WHERE n = -1")
            sides.source.execute("DELETE FROM public.marker")
            for table in (f'{way}."Keyed"', f"{way}.whole"):
                expected = _rows(sides.source, table)
                assert expected
                assert _rows(sides.stock, table) == expected
                assert _rows(sides.ours, table) == expected
            _verify(sides, way)


def _verify(sides: SideBySide, name: str) -> None:
    service = sides.service
    environment = {
        "SPILLWAY_URL": f"http://127.0.0.1:{service.http_port}",
        "SPILLWAY_GRPC": service.grpc_address,
        "SPILLWAY_APPLY_SOURCE_DSN": sides.source.dsn,
        "SPILLWAY_APPLY_TARGET_DSN": sides.ours.dsn,
    }
    done = subprocess.run(
        [sys.executable, "-m", "spillway.cli", "subscription", "verify", name],
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


_ENDS_SESSIONS = {
    "statement_timeout": "500ms",
    "transaction_timeout": "500ms",
    "idle_in_transaction_session_timeout": "500ms",
    "idle_session_timeout": "500ms",
    "lock_timeout": "500ms",
}
_MAJOR_OF_TRANSACTION_TIMEOUT = 17


@pytest.mark.long
def test_nothing_that_ends_sessions_ends_ours(sides: SideBySide) -> None:
    """Neither the copy, however long it takes, nor what looks what it may do there."""
    if sides.major < _MAJOR_OF_TRANSACTION_TIMEOUT:
        return
    sides.everywhere("CREATE TABLE large (a int PRIMARY KEY, b text)")
    sides.source.execute(
        "INSERT INTO large SELECT n, repeat('x', 50) FROM generate_series(1, 1000000) n;"
        "CREATE PUBLICATION large FOR TABLE large"
    )
    databases = (sides.source, sides.ours)
    for database in databases:
        for name, value in _ENDS_SESSIONS.items():
            sides.cluster.execute(f"ALTER DATABASE {database.name} SET {name} = '{value}'")
    sides.cluster.execute(f"ALTER DATABASE {sides.ours.name} SET exit_on_error = on")
    sides.service.call(
        "POST",
        "/subscriptions",
        json={
            "name": "large",
            "source": sides.source_name,
            "database": sides.source.name,
            "publications": ["large"],
            "target": {"kind": "postgres", "dsn": sides.ours.dsn},
        },
    )
    try:
        wait_until(
            "the table is copied",
            lambda: sides.view("large")["state"] == "streaming",
            lambda: str(sides.view("large")),
        )
        # A row that is in the way is an error of the server within the attempt that is taken back.
        sides.ours.execute("INSERT INTO large VALUES (0, 'mine')")
        sides.source.execute("INSERT INTO large VALUES (0, 'theirs')")
        wait_until(
            "the conflict is told",
            lambda: (sides.view("large")["error"] or {}).get("code") == "apply_conflict",
            lambda: str(sides.view("large")),
        )
        assert {one["reason"] for one in sides.view("large")["table_states"]} == {None}
    finally:
        for database in databases:
            sides.cluster.execute(f"ALTER DATABASE {database.name} RESET ALL")
        sides.service.call("DELETE", "/subscriptions/large")
