"""The checklist of PostgreSQL's src/test/subscription: what becomes of rows, by one subscription
that is there all the time, beside PostgreSQL's own.

The numbers are those of its tests; docs/reference/apply-checklist.md says what covers which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.side_by_side import SideBySide

#: What all three have.
_TABLES = """
CREATE TABLE c001_plain (a int);
ALTER TABLE c001_plain REPLICA IDENTITY FULL;
CREATE TABLE c001_key (a int PRIMARY KEY, b text);
CREATE TABLE c001_nothing (a int);
ALTER TABLE c001_nothing REPLICA IDENTITY NOTHING;
CREATE TABLE c001_included (a int, b text, c int NOT NULL, UNIQUE (c) INCLUDE (b));
ALTER TABLE c001_included REPLICA IDENTITY USING INDEX c001_included_c_b_key;
CREATE TABLE c001_full_key (a int PRIMARY KEY, b text);
ALTER TABLE c001_full_key REPLICA IDENTITY FULL;
CREATE TABLE c001_toast (a int PRIMARY KEY, b text, c text);
ALTER TABLE c001_toast ALTER b SET STORAGE EXTERNAL;
CREATE TABLE c001_points (a int, p point);
CREATE UNLOGGED TABLE c001_unlogged (a int PRIMARY KEY);
CREATE TYPE c002_mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE c002_pair AS (x int, y text);
CREATE DOMAIN c002_even AS int CHECK (VALUE % 2 = 0);
CREATE TYPE c002_span AS RANGE (subtype = float8);
CREATE TABLE c002_arrays (a int[] PRIMARY KEY, b text[], c float[], d numeric[], e c002_mood[],
    f c002_pair[]);
CREATE TABLE c002_pairs (a c002_pair PRIMARY KEY, b c002_pair[]);
CREATE TABLE c002_others (a c002_mood PRIMARY KEY, b int4range, c c002_span, d c002_even, e jsonb,
    f xml, g json, h money, i bit varying(9), j inet, k interval, l timestamptz, m tsvector, n uuid,
    o bytea);
CREATE TABLE c003_referred (a int PRIMARY KEY);
CREATE TABLE c003_refers (a int PRIMARY KEY REFERENCES c003_referred);
CREATE TABLE c006_rewritten (a int PRIMARY KEY, b text);
CREATE TABLE c010_one (a int PRIMARY KEY); CREATE TABLE c010_two (a int REFERENCES c010_one);
CREATE TABLE c010_serial (a serial PRIMARY KEY, b int);
CREATE TABLE c010_not_truncated (a int PRIMARY KEY);
CREATE TABLE c012_words (a text PRIMARY KEY, b text);
CREATE TABLE c032_full (a int, b int, c text);
ALTER TABLE c032_full REPLICA IDENTITY FULL;
CREATE TABLE c032_expressed (a int, b text);
ALTER TABLE c032_expressed REPLICA IDENTITY FULL;
CREATE TABLE c032_dropped (a int, gone int, b int, c int);
ALTER TABLE c032_dropped REPLICA IDENTITY FULL;
CREATE TABLE c032_incomparable (a int, j json, x xml, p point, b box, js json[], v varchar);
ALTER TABLE c032_incomparable REPLICA IDENTITY FULL;
CREATE TABLE c100_unique (a int PRIMARY KEY, b int UNIQUE);
CREATE TABLE c100_fired (a int PRIMARY KEY, b int);
CREATE TABLE c100_wide (a int PRIMARY KEY, "Wéird, name" text, "order" int);
"""
_OF_THE_SOURCE = """
CREATE TABLE c008_columns (a int PRIMARY KEY, b text);
CREATE TABLE c008_reordered (a int PRIMARY KEY, b text, c int);
CREATE TABLE c009_base (a int PRIMARY KEY);
CREATE MATERIALIZED VIEW c009_view AS SELECT * FROM c009_base;
CREATE TABLE c011_generated (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED);
CREATE TABLE c011_identity (a int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b int);
CREATE TABLE c013_parted (a int PRIMARY KEY, b text) PARTITION BY LIST (a);
CREATE TABLE c013_parted_1 PARTITION OF c013_parted FOR VALUES IN (1, 2, 3);
CREATE TABLE c013_parted_2 PARTITION OF c013_parted DEFAULT;
CREATE TABLE c013_into (a int PRIMARY KEY, b text);
"""
_OF_THE_TARGETS = """
CREATE TABLE c008_columns (z int DEFAULT 9, b text, a int PRIMARY KEY,
    c timestamptz DEFAULT '2020-01-01', d bigint DEFAULT 999);
CREATE TABLE c008_reordered (c bigint, b varchar, gone int, a numeric PRIMARY KEY);
ALTER TABLE c008_reordered DROP gone;
CREATE TABLE c009_base (a int PRIMARY KEY);
CREATE TABLE c011_generated (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 22) STORED, c int);
CREATE TABLE c011_identity (a int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b int);
CREATE TABLE c013_parted_1 (b text, c text DEFAULT 'mine', a int PRIMARY KEY);
CREATE TABLE c013_parted_2 (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
CREATE TABLE c013_low PARTITION OF c013_parted_2 FOR VALUES FROM (MINVALUE) TO (100);
CREATE TABLE c013_high PARTITION OF c013_parted_2 FOR VALUES FROM (100) TO (MAXVALUE);
CREATE TABLE c013_into (b text, a int PRIMARY KEY) PARTITION BY HASH (a);
CREATE TABLE c013_into_0 (a int PRIMARY KEY, b text);
CREATE TABLE c013_into_1 (b text, a int PRIMARY KEY);
ALTER TABLE c013_into ATTACH PARTITION c013_into_0 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
ALTER TABLE c013_into ATTACH PARTITION c013_into_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
"""


@pytest.fixture(scope="module")
def rows(sides: SideBySide) -> Iterator[SideBySide]:
    """All tables, published, and subscribed to."""
    sides.everywhere(_TABLES)
    sides.source.execute(_OF_THE_SOURCE)
    sides.both(_OF_THE_TARGETS)
    sides.source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    sides.subscribe("rows", "everything")
    sides.caught_up()
    yield sides
    sides.unsubscribe("rows")


def test_001_changes_of_each_replica_identity(rows: SideBySide) -> None:
    source = rows.source
    for table in ("c001_plain", "c001_nothing"):
        source.execute(f"INSERT INTO {table} SELECT generate_series(1, 50) % 20")
    source.execute("INSERT INTO c001_key SELECT n, 'n' || n FROM generate_series(1, 40) n")
    source.execute("INSERT INTO c001_full_key SELECT n, 'n' || n FROM generate_series(1, 9) n")
    source.execute("INSERT INTO c001_included SELECT n, 'n' || n, -n FROM generate_series(1, 9) n")
    assert [len(one) for one in rows.same("c001_plain", "c001_nothing", "c001_key")] == [50, 50, 40]
    for statement in (
        "DELETE FROM c001_plain WHERE a > 10",
        "UPDATE c001_plain SET a = -a WHERE a < 5",
        "UPDATE c001_key SET a = -a WHERE a < 5",
        "UPDATE c001_key SET a = a + 1000, b = NULL WHERE a > 30",
        "DELETE FROM c001_key WHERE a BETWEEN 10 AND 12",
        "UPDATE c001_full_key SET a = a + 100 WHERE a < 4",
        "UPDATE c001_full_key SET b = NULL WHERE a = 5",
        "DELETE FROM c001_full_key WHERE b IS NULL",
        "UPDATE c001_included SET c = c - 100, b = 'else' WHERE a < 3",
        "DELETE FROM c001_included WHERE a = 9",
    ):
        source.execute(statement)
    rows.as_source("c001_plain", "c001_key", "c001_nothing", "c001_full_key", "c001_included")


def test_001_rows_of_one_transaction_and_of_one_key(rows: SideBySide) -> None:
    with rows.source.connect() as session, session.transaction():
        session.execute("INSERT INTO c001_key VALUES (5000, 'a'), (5001, 'b'), (5002, 'c')")
        session.execute("UPDATE c001_key SET b = 'later' WHERE a = 5000")
        session.execute("DELETE FROM c001_key WHERE a = 5001")
        session.execute("INSERT INTO c001_key VALUES (5001, 'again')")
        session.execute("UPDATE c001_key SET a = 5003 WHERE a = 5002")
        session.execute("INSERT INTO c001_key VALUES (5002, 'follows')")
        session.execute("SAVEPOINT s")
        session.execute("INSERT INTO c001_key VALUES (5004, 'never')")
        session.execute("ROLLBACK TO s")
        session.execute("DELETE FROM c001_key WHERE a = 5003")
    rows.as_source("c001_key")


def test_001_toasted_values_that_stay(rows: SideBySide) -> None:
    source = rows.source
    source.execute(
        "INSERT INTO c001_toast SELECT n, repeat(n::text, 5000), repeat('x', n)"
        " FROM generate_series(1, 5) n"
    )
    source.execute("UPDATE c001_toast SET c = 'new' WHERE a < 3")
    source.execute("UPDATE c001_toast SET a = a + 10, c = 'moved' WHERE a = 4")
    source.execute("UPDATE c001_toast SET b = b || '!' WHERE a = 5")
    rows.as_source("c001_toast")


def test_001_what_is_not_logged_does_not_come(rows: SideBySide) -> None:
    rows.source.execute("INSERT INTO c001_unlogged VALUES (1)")
    assert rows.same("c001_unlogged") == [[]]


def test_002_types(rows: SideBySide) -> None:
    source = rows.source
    for statement in (
        (
            "INSERT INTO c002_arrays VALUES ('{1,2,3}', '{a,\"b c\",NULL}', '{1.1,NaN,-Infinity}',"
            " '{1.10,NULL}', '{sad,happy}', '{\"(1,a)\",\"(2,)\"}')"
        ),
        "INSERT INTO c002_arrays VALUES ('{{1,2},{3,4}}', '{}', NULL, '[0:1]={7,8}', NULL, '{}')",
        'UPDATE c002_arrays SET b = \'{"{}","\\"","\\\\"}\', e = \'{ok}\' WHERE a = \'{1,2,3}\'',
        "INSERT INTO c002_pairs VALUES ((1, 'x'), ARRAY[(2, NULL)::c002_pair]), ((2, '(,)'), NULL)",
        "UPDATE c002_pairs SET b = ARRAY[ROW(NULL, NULL)::c002_pair] WHERE a = (1, 'x')::c002_pair",
        "DELETE FROM c002_pairs WHERE a = (2, '(,)')::c002_pair",
        (
            "INSERT INTO c002_others VALUES ('sad', '[1,9)', '[0.1,2)', 4, '{\"a\": [1, null]}',"
            " '<a b=\"1\"/>', '{\"k\":1}', '12.34', B'0110', '::1/64', '1 mon -3 days 04:05:06.7',"
            " '2026-01-01 00:00:00.000001+02', 'a:1 b:2A', md5('x')::uuid, '\\x00ff')"
        ),
        "INSERT INTO c002_others (a, b, l, o) VALUES ('ok', 'empty', 'infinity', '')",
        "UPDATE c002_others SET d = 6, k = '-1 day', i = '' WHERE a = 'sad'",
        "UPDATE c002_others SET a = 'happy' WHERE a = 'ok'",
    ):
        source.execute(statement)
    rows.as_source("c002_arrays", "c002_pairs", "c002_others")


def test_003_foreign_keys_rest(rows: SideBySide) -> None:
    rows.source.execute("INSERT INTO c003_referred VALUES (1), (2)")
    rows.as_source("c003_referred")
    rows.both("DELETE FROM c003_referred WHERE a = 1")
    rows.source.execute("INSERT INTO c003_refers VALUES (1), (2)")
    rows.as_source("c003_refers")
    rows.source.execute("DELETE FROM c003_refers; DELETE FROM c003_referred")
    assert rows.same("c003_refers", "c003_referred") == [[], []]


def test_006_rewrites_of_tables(rows: SideBySide) -> None:
    """DDL on the targets first, then what the source's ALTER TABLE rewrites is not sent."""
    source = rows.source
    source.execute("INSERT INTO c006_rewritten VALUES (1, 'one'), (2, 'two')")
    rows.as_source("c006_rewritten")
    rows.both("ALTER TABLE c006_rewritten ADD c timestamptz DEFAULT '2020-01-01' NOT NULL")
    source.execute("ALTER TABLE c006_rewritten ADD c timestamptz DEFAULT '2020-01-01' NOT NULL")
    source.execute("INSERT INTO c006_rewritten VALUES (3, 'three')")
    source.execute("ALTER TABLE c006_rewritten ALTER b TYPE varchar(99) USING b || '!'")
    source.execute("UPDATE c006_rewritten SET b = 'last' WHERE a = 3")
    source.execute("CLUSTER c006_rewritten USING c006_rewritten_pkey")
    source.execute("UPDATE c006_rewritten SET c = '2021-01-01' WHERE a = 1")
    rows.same("c006_rewritten")


def test_008_targets_with_columns_of_their_own(rows: SideBySide) -> None:
    source = rows.source
    source.execute("INSERT INTO c008_columns SELECT n, 'n' || n FROM generate_series(1, 30) n")
    source.execute("INSERT INTO c008_reordered SELECT n, 'n' || n, n FROM generate_series(1, 9) n")
    rows.caught_up()
    rows.both("UPDATE c008_columns SET d = a, z = NULL WHERE a < 5")
    source.execute("UPDATE c008_columns SET b = 'new' WHERE a < 8")
    source.execute("UPDATE c008_columns SET a = a + 100 WHERE a < 3")
    source.execute("DELETE FROM c008_columns WHERE a = 29")
    source.execute("UPDATE c008_reordered SET c = NULL, b = '' WHERE a < 5")
    source.execute("DELETE FROM c008_reordered WHERE a = 5")
    kept, _ = rows.same("c008_columns", "c008_reordered")
    assert len([row for row in kept if row.startswith("(,")]) == 4
    # A column more on the source needs it here, too, before its first row.
    rows.both("ALTER TABLE c008_reordered ADD x text")
    source.execute("ALTER TABLE c008_reordered ADD x text; INSERT INTO c008_reordered VALUES (77)")
    source.execute("ALTER TABLE c008_reordered DROP b; UPDATE c008_reordered SET x = 'x'")
    rows.same("c008_reordered")


def test_009_materialized_views_are_not_replicated(rows: SideBySide) -> None:
    source = rows.source
    source.execute("INSERT INTO c009_base VALUES (1); REFRESH MATERIALIZED VIEW c009_view")
    source.execute("INSERT INTO c009_base VALUES (2); REFRESH MATERIALIZED VIEW c009_view")
    rows.as_source("c009_base")


def test_010_truncate(rows: SideBySide) -> None:
    source = rows.source
    source.execute(
        "INSERT INTO c010_one SELECT generate_series(1, 9); INSERT INTO c010_two SELECT 3"
    )
    source.execute("INSERT INTO c010_serial (b) SELECT generate_series(1, 9)")
    rows.as_source("c010_one", "c010_two", "c010_serial")
    rows.both("SELECT setval('c010_serial_a_seq', 99)")
    source.execute("TRUNCATE c010_serial; TRUNCATE c010_one, c010_two")
    rows.as_source("c010_one", "c010_two", "c010_serial")
    assert rows.rows("SELECT last_value FROM c010_serial_a_seq") == ["(99)"]
    source.execute("INSERT INTO c010_one VALUES (1); INSERT INTO c010_two VALUES (1)")
    source.execute("TRUNCATE c010_one CASCADE; TRUNCATE c010_serial RESTART IDENTITY")
    rows.as_source("c010_one", "c010_two", "c010_serial")
    rows.rows("SELECT last_value FROM c010_serial_a_seq")
    # Of the target's own that refers to it, CASCADE of the source says nothing.
    with source.connect() as session, session.transaction():
        session.execute("INSERT INTO c010_one VALUES (5)")
        session.execute("TRUNCATE c010_one CASCADE")
        session.execute("INSERT INTO c010_one VALUES (6)")
    rows.as_source("c010_one")


def test_011_generated_and_identity_columns(rows: SideBySide) -> None:
    source = rows.source
    source.execute("INSERT INTO c011_generated (a) VALUES (1), (2), (3)")
    source.execute("UPDATE c011_generated SET a = 6 WHERE a = 3")
    source.execute("INSERT INTO c011_identity (b) VALUES (1), (2), (3), (4)")
    source.execute("UPDATE c011_identity SET b = 20 WHERE a = 2")
    source.execute("DELETE FROM c011_identity WHERE a = 3")
    source.execute(
        "WITH gone AS (DELETE FROM c011_identity WHERE a = 4)"
        " INSERT INTO c011_identity OVERRIDING SYSTEM VALUE VALUES (40, 4)"
    )
    generated, _ = rows.same("c011_generated", "c011_identity")
    assert generated == ["(1,22,)", "(2,44,)", "(6,132,)"]


def test_012_collations_that_are_not_deterministic(rows: SideBySide) -> None:
    """The target's key takes two spellings for one."""
    rows.both(
        "CREATE COLLATION c012_same (provider = icu, locale = 'und', deterministic = false);"
        "ALTER TABLE c012_words ALTER a TYPE text COLLATE c012_same"
    )
    source = rows.source
    source.execute(r"INSERT INTO c012_words VALUES (U&'\00E4bc', 'first'), ('b', 'x')")
    source.execute(r"UPDATE c012_words SET a = U&'\0061\0308bc' WHERE b = 'first'")
    source.execute(r"UPDATE c012_words SET b = 'second' WHERE b = 'first'")
    rows.as_source("c012_words")
    source.execute(r"DELETE FROM c012_words WHERE b = 'second'")
    rows.as_source("c012_words")


def test_013_partitions(rows: SideBySide) -> None:
    """The source's partitions into tables and into partitioned ones, and a table into partitions
    whose columns lie otherwise.
    """
    source = rows.source
    source.execute("INSERT INTO c013_parted SELECT n, 'n' || n FROM generate_series(1, 9) n")
    source.execute("INSERT INTO c013_parted VALUES (200, 'high'), (201, 'high')")
    source.execute("INSERT INTO c013_into SELECT n, 'n' || n FROM generate_series(1, 30) n")
    rows.same("c013_parted_1", "c013_parted_2", "c013_low", "c013_into_0", "c013_into_1")
    source.execute("UPDATE c013_parted SET a = 300 WHERE a = 1")
    source.execute(
        "UPDATE c013_parted SET a = 50 WHERE a = 200; DELETE FROM c013_parted WHERE a = 2"
    )
    source.execute("UPDATE c013_parted SET b = NULL WHERE a IN (3, 9, 201)")
    source.execute(
        "UPDATE c013_into SET a = a + 100 WHERE a < 20; UPDATE c013_into SET b = 'x' || a"
    )
    source.execute("DELETE FROM c013_into WHERE a % 7 = 0")
    moved, *_ = rows.same("c013_high", "c013_low", "c013_parted_1", "c013_into_0", "c013_into_1")
    assert moved == ["(201,)", "(300,n1)"]
    # Truncated by its root: each partition.
    source.execute("TRUNCATE c013_parted, c013_into")
    assert rows.same("c013_parted_1", "c013_parted_2", "c013_into") == [[], [], []]


def test_020_messages_are_nobodys_row(rows: SideBySide) -> None:
    with rows.source.connect() as session, session.transaction():
        session.execute("SELECT pg_logical_emit_message(true, 'p', 'in it')")
        session.execute("INSERT INTO c001_key VALUES (7001, 'with a message')")
    rows.source.query("SELECT pg_logical_emit_message(false, 'p', 'beside it')")
    rows.source.query("SELECT pg_logical_emit_message(true, 'p', 'alone')")
    rows.as_source("c001_key")


def test_032_rows_found_by_an_index_or_by_none(rows: SideBySide) -> None:
    """REPLICA IDENTITY FULL: duplicates, NULLs, indexes that serve and such that don't."""
    source = rows.source
    fill = "INSERT INTO c032_full SELECT n % 5, nullif(n % 3, 0), 'w' || n % 2"
    steps = (
        "UPDATE c032_full SET c = 'one' WHERE ctid = (SELECT min(ctid) FROM c032_full)",
        "UPDATE c032_full SET b = 9 WHERE b IS NULL AND a = 1",
        "DELETE FROM c032_full WHERE ctid IN (SELECT ctid FROM c032_full WHERE a = 2 LIMIT 3)",
        "DELETE FROM c032_full WHERE b IS NULL AND a = 0",
    )
    for index in (
        "",
        "CREATE INDEX c032 ON c032_full (a)",
        "CREATE INDEX c032 ON c032_full (b, c)",
        "CREATE INDEX c032 ON c032_full USING hash (c)",
        "CREATE INDEX c032 ON c032_full (a) WHERE a > 1",
        "CREATE INDEX c032 ON c032_full ((a + 1))",
    ):
        rows.both(f"DROP INDEX IF EXISTS c032; {index}")
        source.execute(f"{fill} FROM generate_series(1, 60) n")
        for step in steps:
            source.execute(step)
        rows.as_source("c032_full")
        source.execute("TRUNCATE c032_full")
    rows.both(
        "CREATE INDEX ON c032_expressed (lower(b)); CREATE INDEX ON c032_expressed (b, (a + 1))"
    )
    source.execute("INSERT INTO c032_expressed SELECT n % 3, 'Aa' FROM generate_series(1, 9) n")
    source.execute("DELETE FROM c032_expressed WHERE a = 1; UPDATE c032_expressed SET b = NULL")
    rows.as_source("c032_expressed")
    for database in (*rows.targets, source):
        database.execute("ALTER TABLE c032_dropped DROP gone")
    rows.both("CREATE INDEX ON c032_dropped (b, c)")
    source.execute("INSERT INTO c032_dropped SELECT n, n, n FROM generate_series(1, 9) n")
    source.execute(
        "UPDATE c032_dropped SET c = NULL WHERE a < 4; DELETE FROM c032_dropped WHERE a = 2"
    )
    rows.as_source("c032_dropped")


def test_032_columns_that_have_no_equality(rows: SideBySide) -> None:
    """Whole rows with json, point and others: found as long as no two values must be compared."""
    source = rows.source
    source.execute(
        "INSERT INTO c032_incomparable (a, v) VALUES (1, 'x'), (2, NULL), (3, NULL);"
        "INSERT INTO c032_incomparable VALUES (4, '{}', '<a/>', '(1,2)', '(1,1),(0,0)', '{1}')"
    )
    source.execute("UPDATE c032_incomparable SET v = 'y' WHERE a < 3")
    source.execute("UPDATE c032_incomparable SET p = '(1,2)' WHERE a = 1")
    source.execute("DELETE FROM c032_incomparable WHERE a = 3")
    rows.as_source("c032_incomparable")
    # What is NULL there is no value's equal.
    rows.both("UPDATE c032_incomparable SET p = NULL WHERE a = 1")
    source.execute("DELETE FROM c032_incomparable WHERE a = 1")
    assert len(rows.same("c032_incomparable")[0]) == 3
    rows.both("DELETE FROM c032_incomparable WHERE a = 1")
    since = rows.log_size()
    source.execute("UPDATE c032_incomparable SET v = 'z' WHERE a = 4")
    error = rows.wait_error("rows")
    assert (
        rows.wait_logged(r"could not identify an equality operator for .*", since)
        in (error["message"])
    )
    assert "Give it a primary key" in error["hint"]
    rows.both("ALTER TABLE c032_incomparable ADD PRIMARY KEY (a)")
    rows.as_source("c032_incomparable")


def test_100_values_that_change_places(rows: SideBySide) -> None:
    """A unique value wanders from row to row, within a transaction and over several."""
    source = rows.source
    source.execute("INSERT INTO c100_unique SELECT n, n FROM generate_series(1, 9) n")
    with source.connect() as session, session.transaction():
        session.execute("UPDATE c100_unique SET b = 100 WHERE a = 1")
        session.execute("UPDATE c100_unique SET b = 1 WHERE a = 2")
        session.execute("UPDATE c100_unique SET b = 2 WHERE a = 1")
        session.execute("DELETE FROM c100_unique WHERE a = 3")
        session.execute("INSERT INTO c100_unique VALUES (33, 3)")
    for statement in (
        "DELETE FROM c100_unique WHERE a = 4",
        "UPDATE c100_unique SET b = 4 WHERE a = 5",
        "INSERT INTO c100_unique VALUES (4, 5)",
        "UPDATE c100_unique SET a = a + 100",
    ):
        source.execute(statement)
    rows.as_source("c100_unique")


def test_100_triggers_of_the_target(rows: SideBySide) -> None:
    """Those of replicas fire, each row; ordinary ones rest."""
    rows.both(
        "CREATE TABLE c100_heard (who text, what text, a int, b int);"
        "CREATE FUNCTION c100_hear() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.c100_heard VALUES (TG_NAME, TG_OP, coalesce(NEW.a, OLD.a), OLD.b);"
        " RETURN coalesce(NEW, OLD); END $$;"
        "CREATE TRIGGER rests BEFORE INSERT OR UPDATE OR DELETE ON c100_fired"
        " FOR EACH ROW EXECUTE FUNCTION c100_hear();"
        "CREATE TRIGGER fires AFTER INSERT OR UPDATE OR DELETE ON c100_fired"
        " FOR EACH ROW EXECUTE FUNCTION c100_hear();"
        "CREATE TRIGGER always BEFORE INSERT OR UPDATE OR DELETE ON c100_fired"
        " FOR EACH ROW EXECUTE FUNCTION c100_hear();"
        "ALTER TABLE c100_fired ENABLE REPLICA TRIGGER fires;"
        "ALTER TABLE c100_fired ENABLE ALWAYS TRIGGER always"
    )
    source = rows.source
    with source.connect() as session, session.transaction():
        session.execute("INSERT INTO c100_fired VALUES (1, 1), (2, 2)")
        session.execute("UPDATE c100_fired SET b = 3 WHERE a = 1")
        session.execute("DELETE FROM c100_fired WHERE a = 2")
    _, heard = rows.same("c100_fired", "c100_heard")
    assert len(heard) == 8


def test_100_names_that_need_quotes(rows: SideBySide) -> None:
    source = rows.source
    source.execute("INSERT INTO c100_wide VALUES (1, 'a', 2), (2, E'line\\nfeed\\t\\\\', NULL)")
    source.execute("""UPDATE c100_wide SET "Wéird, name" = 'b', "order" = 3 WHERE a = 1""")
    rows.as_source("c100_wide")
