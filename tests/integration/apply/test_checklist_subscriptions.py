"""The checklist of PostgreSQL's src/test/subscription: what is published, first copies, large and
prepared transactions, origins and errors, beside PostgreSQL's own subscription.

The numbers are those of its tests; docs/reference/apply-checklist.md says what covers which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.postgresql_subscription import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database
    from harness.side_by_side import SideBySide

_FILTERS = 15
_ORIGINS = 16

_CHOSEN = """
CREATE TABLE c004_copied (a int PRIMARY KEY, b text);
CREATE TABLE c004_keyless (a int);
CREATE TABLE c024_later (a int PRIMARY KEY);
CREATE SCHEMA c025; CREATE TABLE c025.one (a int PRIMARY KEY);
CREATE TABLE c025.two (a int PRIMARY KEY);
CREATE TABLE c028_filtered (a int PRIMARY KEY, b text NOT NULL);
ALTER TABLE c028_filtered REPLICA IDENTITY FULL;
CREATE TABLE c031_narrow (a int PRIMARY KEY, b text, c int);
CREATE TABLE c001_inserts (a int PRIMARY KEY, b int);
"""
_ROOT = """
CREATE TABLE c013_root (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
CREATE TABLE c013_root_1 PARTITION OF c013_root FOR VALUES FROM (0) TO (10);
CREATE TABLE c013_root_2 PARTITION OF c013_root FOR VALUES FROM (10) TO (1000);
"""


@pytest.fixture(scope="module")
def chosen(sides: SideBySide) -> Iterator[SideBySide]:
    """Publications of each kind, over tables that have rows already."""
    sides.everywhere(_CHOSEN)
    source = sides.source
    source.execute(_ROOT)
    sides.both("CREATE TABLE c013_root (b text, a int PRIMARY KEY)")
    has_filters = sides.major >= _FILTERS
    source.execute(
        "INSERT INTO c004_copied SELECT n, repeat(n::text, n % 9) FROM generate_series(1, 3000) n;"
        "INSERT INTO c004_keyless SELECT n % 3 FROM generate_series(1, 30) n;"
        "INSERT INTO c013_root SELECT n, 'n' || n FROM generate_series(1, 30) n;"
        "INSERT INTO c028_filtered SELECT n, 'n' || n FROM generate_series(-9, 9) n;"
        "INSERT INTO c031_narrow SELECT n, 'n' || n, n FROM generate_series(1, 9) n;"
        "INSERT INTO c025.one SELECT generate_series(1, 5);"
        "INSERT INTO c001_inserts SELECT n, n FROM generate_series(1, 9) n;"
    )
    source.execute(
        "CREATE PUBLICATION plain FOR TABLE c004_copied, c004_keyless, marker;"
        "CREATE PUBLICATION rooted FOR TABLE c013_root WITH (publish_via_partition_root);"
        "CREATE PUBLICATION inserts FOR TABLE c001_inserts WITH (publish = 'insert')"
    )
    if has_filters:
        source.execute(
            "CREATE PUBLICATION schemas FOR TABLES IN SCHEMA c025;"
            "CREATE PUBLICATION filtered FOR TABLE c028_filtered WHERE (a > 0 AND b <> 'n3');"
            "CREATE PUBLICATION narrow FOR TABLE c031_narrow (a, c)"
        )
    else:
        source.execute(
            "CREATE PUBLICATION schemas FOR TABLE c025.one, c025.two;"
            "CREATE PUBLICATION filtered FOR TABLE c028_filtered;"
            "CREATE PUBLICATION narrow FOR TABLE c031_narrow"
        )
    names = ("plain", "rooted", "inserts", "schemas", "filtered", "narrow")
    sides.subscribe("chosen", *names, copy_data=True)
    yield sides
    if "chosen" in sides.names:
        sides.unsubscribe("chosen")


def _count(database: Database, query: str) -> int:
    try:
        return int(database.value(query))
    except psycopg.errors.UndefinedTable:
        # The subscription's program has not begun yet.
        return 0


def _ready(sides: SideBySide, tables: int) -> None:
    """Wait until both have copied so many tables."""
    for database, query in (
        (sides.stock, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'"),
        (sides.ours, "SELECT count(*) FROM spillway.tables WHERE state = 'r'"),
    ):
        wait_until(
            f"{tables} tables are ready in {database.name}",
            lambda d=database, q=query: _count(d, q) == tables,  # type: ignore[misc]
            sides.told,
        )


def test_004_first_copies(chosen: SideBySide) -> None:
    _ready(chosen, 9)
    chosen.source.execute(
        "INSERT INTO c004_copied VALUES (5000, 'after');UPDATE c004_copied SET b = NULL WHERE a = 1"
    )
    chosen.as_source("c004_copied", "c004_keyless")


def test_013_partitions_by_their_root(chosen: SideBySide) -> None:
    chosen.source.execute(
        "UPDATE c013_root SET a = a + 100 WHERE a IN (3, 20); DELETE FROM c013_root WHERE a = 5;"
        "INSERT INTO c013_root VALUES (9, 'nine') ON CONFLICT (a) DO UPDATE SET b = 'again'"
    )
    ((*rows,),) = chosen.same("c013_root")
    there = chosen.source.query("SELECT (b, a)::text FROM c013_root")
    assert rows == sorted(row for (row,) in there)
    chosen.source.execute("TRUNCATE c013_root")
    assert chosen.same("c013_root") == [[]]


def test_001_only_what_is_published(chosen: SideBySide) -> None:
    chosen.source.execute(
        "INSERT INTO c001_inserts VALUES (50, 50); UPDATE c001_inserts SET b = 0;"
        "DELETE FROM c001_inserts WHERE a = 1; TRUNCATE c001_inserts;"
        "INSERT INTO c001_inserts VALUES (51, 51)"
    )
    ((*rows,),) = chosen.same("c001_inserts")
    assert len(rows) == 11


def test_025_tables_of_a_schema(chosen: SideBySide) -> None:
    chosen.source.execute("INSERT INTO c025.one VALUES (10); INSERT INTO c025.two VALUES (1), (2)")
    chosen.source.execute(
        "DELETE FROM c025.one WHERE a = 3; UPDATE c025.two SET a = 22 WHERE a = 2"
    )
    chosen.as_source("c025.one", "c025.two")


def test_028_rows_that_come_into_a_filter_and_leave_it(chosen: SideBySide) -> None:
    source = chosen.source
    source.execute("INSERT INTO c028_filtered VALUES (20, 'in'), (-20, 'out')")
    source.execute("UPDATE c028_filtered SET a = a - 100 WHERE a = 1")
    source.execute("UPDATE c028_filtered SET a = a + 100 WHERE a = -2")
    source.execute("UPDATE c028_filtered SET b = 'n3' WHERE a = 4")
    source.execute("UPDATE c028_filtered SET b = 'new' WHERE a IN (3, 5, -5)")
    source.execute("DELETE FROM c028_filtered WHERE a IN (6, -6)")
    ((*rows,),) = chosen.same("c028_filtered")
    if chosen.major >= _FILTERS:
        there = source.query("SELECT r::text FROM c028_filtered r WHERE a > 0 AND b <> 'n3'")
        assert rows == sorted(row for (row,) in there)


def test_031_column_lists(chosen: SideBySide) -> None:
    chosen.both("UPDATE c031_narrow SET b = 'mine' WHERE a = 2")
    chosen.source.execute(
        "UPDATE c031_narrow SET b = 'theirs', c = 20 WHERE a = 2;"
        "UPDATE c031_narrow SET a = 30 WHERE a = 3; INSERT INTO c031_narrow VALUES (40, 'b', 4);"
        "UPDATE c031_narrow SET b = 'unseen' WHERE a = 4"
    )
    ((*rows,),) = chosen.same("c031_narrow")
    if chosen.major >= _FILTERS:
        assert {"(2,mine,20)", "(30,,3)", "(40,,4)"} <= set(rows)


def test_024_tables_that_are_published_later(chosen: SideBySide) -> None:
    source = chosen.source
    source.execute("INSERT INTO c024_later SELECT generate_series(1, 20)")
    source.execute("ALTER PUBLICATION plain ADD TABLE c024_later")
    source.execute("INSERT INTO c024_later VALUES (21)")
    chosen.stock.execute("ALTER SUBSCRIPTION chosen REFRESH PUBLICATION")
    chosen.service.call("POST", "/subscriptions/chosen/refresh")
    _ready(chosen, 10)
    source.execute("INSERT INTO c024_later VALUES (22); DELETE FROM c024_later WHERE a = 3")
    chosen.as_source("c024_later")
    source.execute("ALTER PUBLICATION plain DROP TABLE c024_later")
    source.execute("INSERT INTO c024_later VALUES (23)")
    ((*rows,),) = chosen.same("c024_later")
    assert "(23)" not in rows


@pytest.fixture(scope="module")
def large(sides: SideBySide) -> Iterator[SideBySide]:
    """Streamed, prepared, without what came to the source through an origin."""
    if "chosen" in sides.names:
        # Both would bring the marker.
        sides.unsubscribe("chosen")
    sides.everywhere(
        "CREATE TABLE c015_large (a int PRIMARY KEY, b text);"
        "CREATE TABLE c021_prepared (a int PRIMARY KEY, b text);"
        "CREATE TABLE c029_wrong (a int PRIMARY KEY);"
        "CREATE TABLE c030_elsewhere (a int PRIMARY KEY, b text)"
    )
    sides.source.execute(
        "CREATE PUBLICATION large FOR TABLE c015_large, c021_prepared, c029_wrong, c030_elsewhere,"
        " marker"
    )
    declared: dict[str, Any] = {"streaming": "on"}
    stock = ["streaming = on"]
    if sides.major >= _FILTERS:
        declared["two_phase"] = True
    if sides.major >= _ORIGINS:
        declared["origin"] = "none"
        stock.append("origin = none")
    sides.subscribe("large", "large", stock=stock, **declared)
    sides.caught_up()
    yield sides
    sides.unsubscribe("large")


def test_015_to_019_large_transactions(large: SideBySide) -> None:
    source = large.source
    fill = "INSERT INTO c015_large SELECT n, repeat('x', 60) FROM generate_series({}, {}) n"
    with source.connect() as session, source.connect() as other:
        session.execute("BEGIN")
        session.execute(fill.format(1, 3000).encode())
        # One between, which commits first.
        other.execute(fill.format(10_001, 10_050).encode())
        session.execute("SAVEPOINT a")
        session.execute(fill.format(3001, 5000).encode())
        session.execute("UPDATE c015_large SET b = 'undone' WHERE a % 3 = 0")
        session.execute("SAVEPOINT b")
        session.execute("DELETE FROM c015_large WHERE a % 5 = 0")
        session.execute("ROLLBACK TO a")
        session.execute("SAVEPOINT c")
        session.execute(fill.format(5001, 6000).encode())
        session.execute("RELEASE c")
        session.execute("UPDATE c015_large SET b = 'kept' WHERE a % 2 = 0")
        session.execute("DELETE FROM c015_large WHERE a % 3 = 0")
        session.execute("COMMIT")
        session.execute("BEGIN")
        session.execute(fill.format(20_000, 23_000).encode())
        session.execute("ROLLBACK")
    large.as_source("c015_large")


def test_018_schema_changes_within_a_large_transaction(large: SideBySide) -> None:
    large.both("ALTER TABLE c015_large ADD c int, ADD d int")
    with large.source.connect() as session, session.transaction():
        session.execute("INSERT INTO c015_large SELECT n, 'y' FROM generate_series(30001, 32000) n")
        session.execute("ALTER TABLE c015_large ADD c int")
        session.execute(
            "INSERT INTO c015_large SELECT n, 'y', -n FROM generate_series(32001, 34000) n"
        )
        session.execute("SAVEPOINT s")
        session.execute("ALTER TABLE c015_large ADD d int")
        session.execute(
            "INSERT INTO c015_large SELECT n, 'y', n, n FROM generate_series(34001, 35000) n"
        )
        session.execute("ROLLBACK TO s")
        session.execute(
            "INSERT INTO c015_large SELECT n, 'y', n FROM generate_series(35001, 36000) n"
        )
    large.same("c015_large")
    large.source.execute("TRUNCATE c015_large")
    assert large.same("c015_large") == [[]]


def test_021_to_023_prepared_transactions(large: SideBySide) -> None:
    source = large.source
    with source.connect() as session:
        for gid, rows in (("g1", (1, 20)), ("g2", (21, 40)), ("it''s", (41, 3040))):
            session.execute("BEGIN")
            session.execute(
                f"INSERT INTO c021_prepared SELECT n, repeat('p', 50)"
                f" FROM generate_series({rows[0]}, {rows[1]}) n".encode()
            )
            session.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        large.caught_up()
        if large.major >= _FILTERS:
            for database in large.targets:
                wait_until(
                    f"three are prepared in {database.name}",
                    lambda d=database: (  # type: ignore[misc]
                        d.value(
                            "SELECT count(*) FROM pg_prepared_xacts"
                            " WHERE database = current_database()"
                        )
                        == 3
                    ),
                    large.told,
                )
        assert large.rows("SELECT count(*) FROM c021_prepared") == ["(0)"]
        session.execute("COMMIT PREPARED 'g1'")
        session.execute("ROLLBACK PREPARED 'g2'")
        session.execute("INSERT INTO c021_prepared VALUES (25, 'after')")
        session.execute("COMMIT PREPARED 'it''s'")
    large.as_source("c021_prepared")
    for database in large.targets:
        assert not database.query(
            "SELECT FROM pg_prepared_xacts WHERE database = current_database()"
        )


def test_030_what_came_through_an_origin(large: SideBySide) -> None:
    with large.source.connect() as session:
        session.execute("SELECT pg_replication_origin_create('c030')")
        session.execute("INSERT INTO c030_elsewhere VALUES (1, 'from here')")
        session.execute("SELECT pg_replication_origin_session_setup('c030')")
        session.execute("INSERT INTO c030_elsewhere VALUES (2, 'from elsewhere')")
        session.execute("SELECT pg_replication_origin_session_reset()")
        session.execute("SELECT pg_replication_origin_drop('c030')")
    ((*rows,),) = large.same("c030_elsewhere")
    assert ('(2,"from elsewhere")' in rows) == (large.major < _ORIGINS)


def test_029_and_035_an_error_stops_both_and_its_remedy_mends_both(large: SideBySide) -> None:
    large.both("INSERT INTO c029_wrong VALUES (1)")
    since = large.log_size()
    for number in (0, 1):
        large.source.execute(f"INSERT INTO c029_wrong VALUES ({number})")
    large.wait_logged(
        "conflict=(insert_exists)" if large.major >= 18 else "(duplicate key value)", since
    )
    error = large.wait_error("large")
    assert error["code"] == "apply_conflict"
    assert "insert_exists" in error["message"]
    assert large.rows("SELECT * FROM c029_wrong") == ["(0)", "(1)"]
    large.both("DELETE FROM c029_wrong WHERE a = 1")
    large.as_source("c029_wrong")
    wait_until("the error is gone", lambda: large.view("large")["error"] is None, large.told)
