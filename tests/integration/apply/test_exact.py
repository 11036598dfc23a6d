"""The exact writer and PostgreSQL's own apply worker, side by side: rows, and conflicts by kind and
text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.exact_apply import Ours, Source, Stock, drop_target
from harness.tiers import majors_by_tier
from spillway.apply.exact.writer import ExactOptions
from spillway.errors import ApplyConflict, TargetRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database

    ClusterOf = Callable[[int], Cluster]

MAJOR_OF_CONFLICTS = 18


@pytest.fixture(scope="module", params=majors_by_tier([14, 15, 16, 17, 18]))
def cluster(request: pytest.FixtureRequest, timed_cluster: ClusterOf) -> Cluster:
    return timed_cluster(request.param)


@pytest.fixture
def source(cluster: Cluster) -> Iterator[Source]:
    made = Source.make(cluster)
    yield made
    cluster.drop_database(made.database.name)


@pytest.fixture
def ours(source: Source) -> Iterator[Ours]:
    made = Ours.make(source)
    yield made
    drop_target(made.database)


def on(statement: str, *databases: Database) -> None:
    for database in databases:
        database.execute(statement)


def differing(one: Database, other: Database, *tables: str) -> list[str]:
    query = "SELECT string_agg(r::text, ';' ORDER BY r::text) FROM {} r"
    return [
        f"{table}: {left} {right}"
        for table in tables
        if (left := one.value(query.format(table))) != (right := other.value(query.format(table)))
    ]


# -- without conflicts ----------------------------------------------------------------------------

TABLES = """
CREATE TABLE plain (id int PRIMARY KEY, a int, b text);
CREATE TABLE whole (a int, b text, c float8, d text COLLATE "C");
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE by_index (a int NOT NULL, b int NOT NULL, c text);
CREATE UNIQUE INDEX ident ON by_index (b, a);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX ident;
CREATE TABLE large (id int PRIMARY KEY, small int, toasted text);
ALTER TABLE large ALTER toasted SET STORAGE EXTERNAL;
CREATE TABLE identified (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text,
    n int GENERATED ALWAYS AS IDENTITY);
CREATE TABLE computed (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);
CREATE TABLE cut1 (id int PRIMARY KEY);
CREATE TABLE cut2 (id serial PRIMARY KEY, r int);
CREATE TABLE late (id int PRIMARY KEY, u int, UNIQUE (u) DEFERRABLE);
CREATE TABLE "Odd, one%s" ("a b" int PRIMARY KEY, "%s" text, "sel""ect" int[]);
CREATE TABLE emptied ()
"""
PARTED = """CREATE TABLE parted (id int, place text, v text, PRIMARY KEY (id, place))
    PARTITION BY LIST (place)"""
#: Parted by lines of dashes: each is a transaction of its own.
WORK = r"""
INSERT INTO plain SELECT n, n, repeat('x', n % 9) FROM generate_series(1, 600) n
---
UPDATE plain SET a = a + 1 WHERE id < 300
---
UPDATE plain SET id = id + 1000 WHERE id < 20
---
DELETE FROM plain WHERE id BETWEEN 100 AND 200
---
INSERT INTO whole VALUES (1, 'a', 'NaN', 'x'), (1, 'a', 'NaN', 'x'), (NULL, NULL, 0, NULL),
    (2, 'b', '-0', ''), (3, E'q''\\\n', 'Infinity', 'ü')
---
UPDATE whole SET b = 'one of two' WHERE ctid = (SELECT min(ctid) FROM whole)
---
UPDATE whole SET a = 7 WHERE a IS NULL;
DELETE FROM whole WHERE c = 0 AND a = 2
---
INSERT INTO by_index VALUES (1, 2, 'x'), (2, 1, 'y');
UPDATE by_index SET c = 'z' WHERE a = 1;
UPDATE by_index SET a = 9 WHERE a = 2;
UPDATE by_index SET b = 5, c = NULL WHERE a = 1
---
INSERT INTO large SELECT n, 0, string_agg(md5((n * i)::text), '') FROM generate_series(1, 3) n,
    generate_series(1, 200) i GROUP BY n
---
UPDATE large SET small = 1;
UPDATE large SET id = 10 WHERE id = 1;
UPDATE large SET toasted = 'short' WHERE id = 2
---
INSERT INTO identified (v) VALUES ('a'), ('b'), ('c');
UPDATE identified SET v = 'd' WHERE id = 1;
UPDATE identified SET id = DEFAULT WHERE id = 2;
UPDATE identified SET n = DEFAULT, v = 'n' WHERE id = 3;
DELETE FROM identified WHERE id = 1
---
INSERT INTO computed (id, a) VALUES (1, 2), (2, 3);
UPDATE computed SET a = 9 WHERE id = 1
---
INSERT INTO late VALUES (1, 1), (2, 2);
UPDATE late SET u = 3 - u
---
INSERT INTO parted VALUES (1, 'a', 'v'), (2, 'b', 'v'), (3, 'c', 'v')
---
UPDATE parted SET place = 'b' WHERE id = 1;
UPDATE parted SET v = 'w' WHERE id = 2;
UPDATE parted SET place = 'a', v = 'moved' WHERE id = 3;
DELETE FROM parted WHERE id = 2
---
INSERT INTO "Odd, one%s" VALUES (1, '%s', '{1,NULL,3}');
UPDATE "Odd, one%s" SET "%s" = '$1'
---
INSERT INTO emptied DEFAULT VALUES
---
SELECT pg_logical_emit_message(true, 'p', 'passed over')
"""


def test_rows_are_those_of_postgresqls_worker(source: Source, ours: Ours) -> None:
    """Every kind of change and of table; the target's tables are partitioned in their own way, and
    have columns of their own.
    """
    stock = Stock.make(source)
    try:
        on(TABLES, source.database, ours.database, stock.database)
        on(PARTED, source.database, ours.database, stock.database)
        on("CREATE TABLE p1 PARTITION OF parted FOR VALUES IN ('a', 'b');"
           "CREATE TABLE p2 PARTITION OF parted DEFAULT", source.database)  # fmt: skip
        on("CREATE TABLE p1 PARTITION OF parted FOR VALUES IN ('a') PARTITION BY HASH (id);"
           "CREATE TABLE p11 PARTITION OF p1 FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
           "CREATE TABLE p12 PARTITION OF p1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
           "CREATE TABLE p2 PARTITION OF parted FOR VALUES IN ('b');"
           "CREATE TABLE p3 PARTITION OF parted DEFAULT;"
           "ALTER TABLE plain ADD more int DEFAULT 7", ours.database, stock.database)  # fmt: skip
        source.database.execute(
            "ALTER PUBLICATION everything SET (publish_via_partition_root = true)"
        )
        stock.subscribe()
        for statement in WORK.split("---\n"):
            source.database.execute(statement)
        with source.database.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO cut1 VALUES (1); INSERT INTO cut2 (r) VALUES (1), (2)")
            connection.execute("TRUNCATE cut1, cut2 RESTART IDENTITY CASCADE")
            connection.execute("INSERT INTO cut2 (r) VALUES (3)")
        stock.catch_up()
        ours.database.execute("CREATE TABLE mark (n int PRIMARY KEY)")
        ours.take()
        tables = ["plain", "whole", "by_index", "large", "identified", "computed", "cut1", "cut2"]
        tables += ["late", "parted", "p11", "p12", "p2", "p3", '"Odd, one%s"', "emptied"]
        assert differing(stock.database, ours.database, *tables) == []
        assert differing(source.database, ours.database, "whole", "identified", "large") == []
        assert ours.heard.conflicts == []
        nextval = "SELECT nextval('cut2_id_seq')"
        assert ours.database.value(nextval) == stock.database.value(nextval)
    finally:
        stock.drop()
        drop_target(stock.database)


def test_a_row_that_no_equality_can_find(source: Source, ours: Ours) -> None:
    """A type without equality in a whole row is PostgreSQL's error, and nothing is written."""
    on("CREATE TABLE j (a int, doc json); ALTER TABLE j REPLICA IDENTITY FULL",
       source.database, ours.database)  # fmt: skip
    source.database.execute("INSERT INTO j VALUES (1, '{}')")
    ours.take()
    source.database.execute("BEGIN; INSERT INTO j VALUES (2, NULL); UPDATE j SET a = 3; COMMIT")
    with pytest.raises(
        TargetRefused, match="could not identify an equality operator for type json"
    ):
        ours.take(peek=True)
    assert ours.rows("j") == [(1, {})]
    assert ours.heard.conflicts == []


# -- conflicts as PostgreSQL 18 tells them --------------------------------------------------------

CONFLICTING = """
CREATE TABLE c (id int PRIMARY KEY, u int UNIQUE, v text);
CREATE TABLE f (a int, b text);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE e (id int PRIMARY KEY, w text, live bool);
CREATE UNIQUE INDEX by_lower ON e (lower(w) COLLATE "C") WHERE live
"""
LOCALLY = (
    "UPDATE c SET v = 'local' WHERE id IN (1, 2)",
    "DELETE FROM c WHERE id IN (3, 4)",
    "DELETE FROM f",
)
CONFLICTS_PASSED = (
    "UPDATE c SET v = repeat('remote ü', 12) WHERE id = 1",
    "DELETE FROM c WHERE id = 2",
    "UPDATE c SET v = 'too late' WHERE id = 3",
    "UPDATE c SET id = 40 WHERE id = 4; DELETE FROM c WHERE id = 40",
    "UPDATE f SET b = 'changed'; DELETE FROM f",
)


def test_conflicts_are_worded_as_postgresqls(source: Source, ours: Ours) -> None:
    """Those that are passed over or applied: the same rows afterwards, and the same words, beside
    the worker's log; before 18 it told none.
    """
    stock = Stock.make(source)
    try:
        on(CONFLICTING, source.database, ours.database, stock.database)
        ours.database.execute("CREATE TABLE mark (n int PRIMARY KEY)")
        stock.subscribe()
        source.database.execute("INSERT INTO c SELECT n, n, 'x' FROM generate_series(1, 9) n;"
                                "INSERT INTO f VALUES (1, NULL)")  # fmt: skip
        stock.catch_up()
        ours.take()
        assert ours.heard.conflicts == []
        on("; ".join(LOCALLY), ours.database, stock.database)
        since = stock.log_size()
        for statement in CONFLICTS_PASSED:
            source.database.execute(statement)
        stock.catch_up()
        ours.take()
        assert differing(stock.database, ours.database, "c", "f") == []
        assert ours.heard.resolved == [
            ("update_origin_differs", "apply_remote"),
            ("delete_origin_differs", "apply_remote"),
            ("update_missing", "skip"),
            ("update_missing", "skip"),
            ("delete_missing", "skip"),
            ("update_missing", "skip"),
            ("delete_missing", "skip"),
        ]
        if source.database.cluster.major >= MAJOR_OF_CONFLICTS:
            assert ours.heard.texts() == stock.conflicts(since)
    finally:
        stock.drop()
        drop_target(stock.database)


STOPPING = (
    (
        "INSERT INTO c VALUES (1, 1, 'local')",
        "INSERT INTO c VALUES (1, 5, 'r')",
        "insert_exists",
    ),
    (
        "INSERT INTO c VALUES (1, 1, 'local'), (2, 2, 'local')",
        "INSERT INTO c VALUES (1, 2, 'r')",
        "multiple_unique_conflicts",
    ),
    (
        "INSERT INTO c VALUES (2, 2, 'local')",
        "INSERT INTO c VALUES (1, 1, 'r'); UPDATE c SET u = 2",
        "update_exists",
    ),
    (
        "INSERT INTO e VALUES (2, 'ABC', true)",
        "INSERT INTO e VALUES (3, 'abc', false); INSERT INTO e VALUES (4, 'aBc', true)",
        "insert_exists",
    ),
)


@pytest.fixture
def newest(timed_cluster: ClusterOf) -> Iterator[Source]:
    """A source on the server that tells conflicts."""
    made = Source.make(timed_cluster(MAJOR_OF_CONFLICTS))
    yield made
    made.database.cluster.drop_database(made.database.name)


def test_conflicts_that_stop_are_worded_as_postgresqls(newest: Source) -> None:
    """An error that says what PostgreSQL says; nothing of its transaction is written; and skipping
    to the LSN that it names ends it, here and there.
    """
    ours, stock = Ours.make(newest), Stock.make(newest)
    targets = (ours.database, stock.database)
    try:
        on(CONFLICTING, newest.database, *targets)
        ours.database.execute("CREATE TABLE mark (n int PRIMARY KEY)")
        stock.subscribe(disable_on_error="true")
        for local, remote, kind in STOPPING:
            on(local, *targets)
            before = ours.rows("c") + ours.rows("e")
            since = stock.log_size()
            newest.database.execute(f"BEGIN; INSERT INTO f VALUES (1, 'first'); {remote}; COMMIT")
            ours.heard.conflicts.clear()
            with pytest.raises(ApplyConflict) as error:
                ours.take(peek=True)
            assert ours.rows("c") + ours.rows("e") == before
            assert ours.rows("f") == []
            assert error.value.details["kind"] == kind
            assert ours.heard.resolved == [(kind, "error")]
            stock.wait_disabled()
            assert ours.heard.texts() == stock.conflicts(since)
            ours.follow(error.value.hint, "skip")
            ours.take()
            stock.skip(str(error.value.details["lsn"]))
            stock.catch_up()
            assert differing(*targets, "c", "e", "f") == []
            on("DELETE FROM c; DELETE FROM e", newest.database, *targets)
            on("DELETE FROM f", newest.database)
            ours.take()
            stock.catch_up()
    finally:
        stock.drop()
        for database in targets:
            drop_target(database)


def test_what_an_error_of_a_conflict_suggests(newest: Source) -> None:
    """Each remedy ends it: a resolution, dead letters, and a row on the target that agrees."""
    ours = Ours.make(newest)
    on(CONFLICTING, newest.database, ours.database)
    on("INSERT INTO c VALUES (1, 1, 'local'), (2, 2, 'local'), (3, 3, 'local')", ours.database)
    for key, remedy in enumerate(("conflicts", "dead_letter", "Make the target's row agree"), 1):
        on(
            f"INSERT INTO c VALUES ({key}, 1{key}, 'remote'), (4{key}, 4{key}, 'x')",
            newest.database,
        )
        ours.options = ExactOptions()
        with pytest.raises(ApplyConflict) as error:
            ours.take(peek=True)
        assert remedy in error.value.hint
        if remedy in {"conflicts", "dead_letter"}:
            ours.follow(error.value.hint, f"--target-option {remedy}")
        else:
            on(f"DELETE FROM c WHERE id = {key}", ours.database)
        assert ours.take().dead_letters == int(remedy == "dead_letter")
        assert (40 + key,) in ours.database.query("SELECT id FROM c")
    assert ours.database.query("SELECT v FROM c WHERE id < 4 ORDER BY id") == [
        ("remote",),
        ("local",),
        ("remote",),
    ]
    assert ours.database.query(
        "SELECT table_name, sqlstate, new_row FROM spillway.dead_letter"
    ) == [("c", "23505", {"id": "2", "u": "12", "v": "remote"})]
    drop_target(ours.database)


# What the source does not know of: a unique index of one partition, of columns of the target's own.
_COUNTED = re.compile(r"(row \([^)]*), (?:\d+|null)\)")
UNSEEN = (
    (
        "INSERT INTO parted VALUES (1, 'a', 7), (2, 'b', 8)",
        "INSERT INTO parted VALUES (3, 'b', 7), (4, 'a', 8), (5, 'a', 7)",
        "insert_exists",
    ),
    (
        "INSERT INTO own (id, nick) VALUES (1, 'Eve')",
        "INSERT INTO own VALUES (2, 'eve'), (3, 'Eve')",
        "multiple_unique_conflicts",
    ),
    (
        "INSERT INTO own (id, nick) VALUES (1, 'ADA')",
        "INSERT INTO own VALUES (2, 'bob'); UPDATE own SET nick = 'ada' WHERE id = 2",
        "update_exists",
    ),
)
_UNSEEN_SOURCE = """
CREATE TABLE parted (id int, place text, u int, PRIMARY KEY (id, place)) PARTITION BY LIST (place);
CREATE TABLE parted_all PARTITION OF parted DEFAULT;
CREATE TABLE own (id int PRIMARY KEY, nick text);
CREATE TABLE f (a int)
"""
_UNSEEN_TARGETS = """
CREATE TABLE parted (id int, place text, u int, PRIMARY KEY (id, place)) PARTITION BY LIST (place);
CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a') PARTITION BY HASH (id);
CREATE TABLE parted_a0 PARTITION OF parted_a FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE TABLE parted_b PARTITION OF parted DEFAULT;
CREATE UNIQUE INDEX ON parted_a0 (u);
CREATE TABLE own (low text GENERATED ALWAYS AS (lower(nick)) STORED, id int PRIMARY KEY,
    tenant text DEFAULT 'te' || 'nant', nick text, counted serial);
CREATE UNIQUE INDEX own_low ON own (low) WHERE id <> 2 OR nick = 'ada';
CREATE UNIQUE INDEX own_nick ON own (nick, tenant);
CREATE TABLE f (a int)
"""


def test_unique_indexes_that_the_source_knows_nothing_of(newest: Source) -> None:
    """They are conflicts, worded as PostgreSQL's, by the partition's name there; and resolved."""
    ours, stock = Ours.make(newest), Stock.make(newest)
    targets = (ours.database, stock.database)
    try:
        newest.database.execute(
            "ALTER PUBLICATION everything SET (publish_via_partition_root = true)"
        )
        on(_UNSEEN_SOURCE, newest.database)
        on(_UNSEEN_TARGETS, *targets)
        ours.database.execute("CREATE TABLE mark (n int PRIMARY KEY)")
        stock.subscribe(disable_on_error="true")
        for local, remote, kind in UNSEEN:
            on(local, *targets)
            since = stock.log_size()
            newest.database.execute(f"BEGIN; {remote}; COMMIT")
            ours.options = ExactOptions()
            ours.heard.conflicts.clear()
            with pytest.raises(ApplyConflict) as error:
                ours.take(peek=True)
            assert ours.heard.resolved == [(kind, "error")]
            stock.wait_disabled()
            told = [one.replace('parted_a0"', 'parted"', 1) for one in stock.conflicts(since)]
            # What a sequence gives differs, and is not asked for.
            texts = [_COUNTED.sub(r"\1, N)", one) for one in ours.heard.texts()]
            assert texts == [_COUNTED.sub(r"\1, N)", one) for one in told]
            ours.follow(error.value.hint, "conflicts")
            ours.take()
            stock.skip(str(error.value.details["lsn"]))
            stock.catch_up()
            on("TRUNCATE parted, own", newest.database)
            ours.take()
            stock.catch_up()
    finally:
        stock.drop()
        for database in targets:
            drop_target(database)
