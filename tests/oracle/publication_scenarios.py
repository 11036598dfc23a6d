# ruff: noqa: ISC004 - a statement too long for a line is written in pieces
"""Workloads about what is published, for the comparison of pgoutput with PostgreSQL's.

Each runs in schema ``pubs``, which is dropped afterwards as the publications p, q and r are. Where
a server's major must be at least some version, the scenario says so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oracle.scenarios import noise


class Scenario(NamedTuple):
    """Statements, and the publications to ask for, one peek each."""

    steps: list[str]
    names: tuple[str, ...] = ("p",)
    since: int = 14


PARTITIONS = [
    "CREATE TABLE root (a int, b text, c int, PRIMARY KEY (a)) PARTITION BY RANGE (a)",
    "CREATE TABLE one PARTITION OF root FOR VALUES FROM (0) TO (10)",
    # Its columns are elsewhere, and one is gone.
    "CREATE TABLE two (gone int, c int, b text, a int NOT NULL)",
    "ALTER TABLE two DROP COLUMN gone",
    "ALTER TABLE root ATTACH PARTITION two FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE three PARTITION OF root FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (a)",
    "CREATE TABLE three_a PARTITION OF three FOR VALUES FROM (20) TO (30)",
    "CREATE TABLE three_b PARTITION OF three FOR VALUES FROM (30) TO (40)",
]
PARTITION_CHANGES = [
    "INSERT INTO root SELECT g, 'b' || g, g * 10 FROM generate_series(1, 39, 6) g",
    "UPDATE root SET b = b || '!'",
    "UPDATE root SET a = a + 10 WHERE a IN (7, 19)",
    "DELETE FROM root WHERE a = 13",
    "INSERT INTO three_b VALUES (33, 'direct', 1)",
    "TRUNCATE three_b",
    "TRUNCATE three",
    "TRUNCATE root",
]
FULL = [
    "ALTER TABLE root REPLICA IDENTITY FULL",
    "ALTER TABLE one REPLICA IDENTITY FULL",
    "ALTER TABLE two REPLICA IDENTITY FULL",
]

SCENARIOS: Final[dict[str, Scenario]] = {
    "operations": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE TABLE u (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t WITH (publish = 'insert')",
            "CREATE PUBLICATION q FOR TABLE t, u WITH (publish = 'delete, truncate')",
            "CREATE PUBLICATION r FOR TABLE u WITH (publish = 'update')",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO u VALUES (1), (2)",
            "UPDATE t SET v = 'c', id = id + 10",
            "UPDATE u SET id = id + 10",
            "DELETE FROM t WHERE id = 11",
            "DELETE FROM u WHERE id = 11",
            "TRUNCATE t, u",
        ],
        ("p", "q", "r", "p,q", "q , r", '"r",p,q', "q,q"),
    ),
    "keys_not_valid_yet": Scenario(
        [
            "CREATE TABLE root (a int NOT NULL, b text NOT NULL, c int) PARTITION BY RANGE (a)",
            "CREATE TABLE one PARTITION OF root FOR VALUES FROM (0) TO (10)",
            (
                "CREATE TABLE deep PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY "
                "RANGE (a)"
            ),
            "CREATE TABLE deep_a PARTITION OF deep FOR VALUES FROM (10) TO (15)",
            "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)",
            "CREATE PUBLICATION q FOR TABLE root",
            # Not valid before every partition has an index that is attached to it.
            "ALTER TABLE ONLY root ADD PRIMARY KEY (a, b)",
            "INSERT INTO root VALUES (1, 'one', 1), (11, 'deep', 1)",
            "ALTER TABLE one ADD PRIMARY KEY (a, b)",
            "UPDATE one SET c = 2",
            "ALTER TABLE ONLY deep ADD PRIMARY KEY (a, b)",
            "INSERT INTO root VALUES (2, 'one', 1), (12, 'deep', 1)",
            "ALTER TABLE deep_a ADD PRIMARY KEY (a, b)",
            "UPDATE deep_a SET b = 'deeper'",
            "ALTER INDEX root_pkey ATTACH PARTITION one_pkey",
            "INSERT INTO root VALUES (3, 'one', 1)",
            "ALTER INDEX deep_pkey ATTACH PARTITION deep_a_pkey",
            "ALTER INDEX root_pkey ATTACH PARTITION deep_pkey",
            "UPDATE root SET a = a + 3 WHERE a IN (2, 11)",
            "DELETE FROM root",
            # A deferrable one, a unique one as replica identity.
            "ALTER TABLE root DROP CONSTRAINT root_pkey",
            "ALTER TABLE ONLY root ADD PRIMARY KEY (a) DEFERRABLE",
            "INSERT INTO root VALUES (1, 'one', 1)",
            "ALTER TABLE root DROP CONSTRAINT root_pkey",
            "CREATE UNIQUE INDEX u ON ONLY root (b, a)",
            "ALTER TABLE root REPLICA IDENTITY USING INDEX u",
            "INSERT INTO root VALUES (2, 'one', 1)",
        ],
        ("p", "q"),
    ),
    "lists_of_all_live_columns": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
            "CREATE TABLE u (gone int, id int PRIMARY KEY, v text)",
            "ALTER TABLE u DROP gone",
            "CREATE TABLE w (id int PRIMARY KEY, v text)",
            "CREATE PUBLICATION p FOR TABLE t, u, w",
            "CREATE PUBLICATION q FOR TABLE t (id), w (v, id)",
            "CREATE PUBLICATION r FOR TABLE u (id, v), w (id, v)",
            "INSERT INTO w VALUES (1, 'w')",
            "INSERT INTO t VALUES (1)",
            "INSERT INTO u VALUES (1, 'u')",
        ],
        ("p", "q", "r", "p,q", "q,p", "p,r", "q,r", "p,q,r"),
        since=15,
    ),
    "nothing_published": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE TABLE u (id int PRIMARY KEY)",
            "CREATE PUBLICATION p",
            "CREATE PUBLICATION q FOR TABLE u",
            "INSERT INTO t VALUES (1, 'a')",
            "TRUNCATE t",
            "BEGIN",
            "INSERT INTO t VALUES (1, 'a')",
            "INSERT INTO u VALUES (1)",
            "INSERT INTO t VALUES (2, 'a')",
            "COMMIT",
        ],
        ("p", "q"),
    ),
    "publications_change": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE TABLE u (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t",
            "INSERT INTO t VALUES (1, 'a')",
            "INSERT INTO u VALUES (1)",
            "ALTER PUBLICATION p ADD TABLE u",
            "INSERT INTO t VALUES (2, 'b')",
            "INSERT INTO u VALUES (2)",
            "ALTER PUBLICATION p DROP TABLE t",
            "INSERT INTO t VALUES (3, 'c')",
            "INSERT INTO u VALUES (3)",
            "ALTER PUBLICATION p SET (publish = 'delete')",
            "INSERT INTO u VALUES (4)",
            "DELETE FROM u WHERE id = 4",
            "BEGIN",
            "INSERT INTO u VALUES (5)",
            "ALTER PUBLICATION p SET (publish = 'insert, delete')",
            "INSERT INTO u VALUES (6)",
            "ALTER PUBLICATION p SET TABLE t",
            "INSERT INTO t VALUES (7)",
            "COMMIT",
            "INSERT INTO t VALUES (8)",
            "ALTER TABLE t ADD COLUMN n int DEFAULT 3",
            "INSERT INTO t VALUES (9)",
            "ALTER TABLE t RENAME TO t2",
            "INSERT INTO t2 VALUES (10)",
        ],
    ),
    "missing_publication": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t",
            "INSERT INTO t VALUES (1)",
            "CREATE PUBLICATION q FOR TABLE t",
            "INSERT INTO t VALUES (2)",
            "DROP PUBLICATION p",
            "INSERT INTO t VALUES (3)",
        ],
        ("p", "q", "p,nowhere", "nowhere"),
    ),
    "missing_publication_of_other_tables": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE PUBLICATION p",
            "CREATE MATERIALIZED VIEW m AS SELECT 1 AS a",
            "REFRESH MATERIALIZED VIEW m",
        ],
        ("p", "nowhere"),
    ),
    "replica_identities": Scenario(
        [
            "CREATE TABLE d (id int PRIMARY KEY, a int, b text)",
            "CREATE TABLE f (LIKE d INCLUDING ALL)",
            "ALTER TABLE f REPLICA IDENTITY FULL",
            "CREATE TABLE i (id int, a int NOT NULL, b text NOT NULL, c int)",
            "CREATE UNIQUE INDEX i_ba ON i (b, a) INCLUDE (c)",
            "ALTER TABLE i REPLICA IDENTITY USING INDEX i_ba",
            "CREATE TABLE n (LIKE d INCLUDING ALL)",
            "ALTER TABLE n REPLICA IDENTITY NOTHING",
            "CREATE TABLE k (a int)",
            "CREATE PUBLICATION p FOR TABLE d, f, i",
            "CREATE PUBLICATION q FOR TABLE n, k WITH (publish = 'insert')",
            "INSERT INTO d VALUES (1, 2, 'x'), (2, NULL, NULL)",
            "INSERT INTO f VALUES (1, 2, 'x'), (2, NULL, NULL)",
            "INSERT INTO i VALUES (1, 2, 'x', 3), (2, 4, 'y', NULL)",
            "INSERT INTO n VALUES (1, 2, 'x')",
            "INSERT INTO k VALUES (1)",
            "UPDATE d SET b = 'y'",
            "UPDATE d SET id = id + 10",
            "UPDATE f SET b = 'y'",
            "UPDATE i SET a = a + 1",
            "UPDATE i SET c = 0",
            "UPDATE n SET id = 7",
            "DELETE FROM d",
            "DELETE FROM f",
            "DELETE FROM i",
            "DELETE FROM n",
            "DELETE FROM k",
        ],
        ("p", "q", "p,q"),
    ),
    "deletes_without_identity_published_later": Scenario(
        [
            "CREATE TABLE k (a int)",
            "CREATE PUBLICATION p WITH (publish = 'insert')",
            "INSERT INTO k VALUES (1), (2)",
            "BEGIN",
            "DELETE FROM k WHERE a = 1",
            # Not checked for what was already opened: UPDATE and DELETE are decoded as published.
            "2> ALTER PUBLICATION p SET (publish = 'insert, delete')",
            "2> ALTER PUBLICATION p ADD TABLE k",
            "INSERT INTO k VALUES (3)",
            "COMMIT",
        ],
    ),
    "types_are_named": Scenario(
        [
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            "CREATE TYPE pair AS (x int, m mood)",
            "CREATE DOMAIN posint AS int CHECK (VALUE > 0)",
            "CREATE DOMAIN posmood AS mood",
            "CREATE DOMAIN again AS posint",
            "CREATE TYPE span AS RANGE (subtype = float8)",
            "CREATE TABLE t (id again PRIMARY KEY, m mood, ms mood[], p pair, d posint, e posmood, "
            "s span, v varchar(7), n numeric(12, 3), r information_schema.sql_identifier, b "
            "bit(3), i interval(2))",
            "CREATE PUBLICATION p FOR TABLE t",
            (
                "INSERT INTO t VALUES (1, 'ok', '{ok,sad}', (1, 'sad'), 5, 'ok', '[1,2)', 'v', "
                "1.5, 'x', '101', '1 s')"
            ),
            "ALTER TYPE mood ADD VALUE 'happy'",
            "INSERT INTO t (id, m) VALUES (2, 'happy')",
            "ALTER TYPE mood RENAME TO feeling",
            "INSERT INTO t (id, m) VALUES (3, 'happy')",
            "ALTER TABLE t ALTER m TYPE text",
            "INSERT INTO t (id, m) VALUES (4, 'happy')",
        ],
    ),
    "names": Scenario(
        [
            'CREATE TABLE "Odd ""t" ("Größe" int PRIMARY KEY, "a b" text)',
            'CREATE PUBLICATION "P, q" FOR TABLE "Odd ""t"',
            "CREATE PUBLICATION p FOR ALL TABLES",
            'INSERT INTO "Odd ""t" VALUES (1, \'Grün ☃\')',
        ],
        ('"P, q"', 'P , "P, q"', "P", '"P"', "p,,q", '"p', "p q", " ", "", "p,"),
    ),
    "generated_columns": Scenario(
        [
            "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, "
            "g int GENERATED ALWAYS AS (a * 2) STORED, z text DEFAULT 'z')",
            "CREATE PUBLICATION p FOR TABLE t",
            "INSERT INTO t (a) VALUES (1), (2)",
            "UPDATE t SET a = 5 WHERE id = 1",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "UPDATE t SET a = 6 WHERE id = 1",
            "DELETE FROM t",
        ],
    ),
    "generated_columns_published": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED, "
            "v int GENERATED ALWAYS AS (a * 3) VIRTUAL)",
            "CREATE TABLE u (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t, u WITH (publish_generated_columns = stored)",
            "CREATE PUBLICATION q FOR TABLE t (id, g)",
            "CREATE PUBLICATION r FOR TABLE t, u",
            "INSERT INTO t (id, a) VALUES (1, 1)",
            "INSERT INTO u VALUES (1)",
            "UPDATE t SET a = 2",
            "ALTER TABLE t REPLICA IDENTITY FULL",
        ],
        ("p", "q", "r", "p,r", "p,q", "q,r"),
        since=18,
    ),
    "identity_index_dropped": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, b text)",
            "CREATE UNIQUE INDEX ia ON t (a)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX ia",
            "CREATE PUBLICATION p FOR TABLE t WITH (publish = 'insert')",
            "CREATE PUBLICATION q FOR TABLE t",
            "INSERT INTO t SELECT g, g, 'x' FROM generate_series(1, 9) g",
            "UPDATE t SET a = a + 100 WHERE id = 1",
            "UPDATE t SET id = id + 100 WHERE id = 2",
            "DELETE FROM t WHERE id = 3",
            "DROP INDEX ia",
            "INSERT INTO t VALUES (20, 20, 'x')",
            "DROP PUBLICATION q",
            # Written without a key, published by then.
            "UPDATE t SET a = a + 100 WHERE id = 4",
            "DELETE FROM t WHERE id = 5",
            "CREATE PUBLICATION q FOR TABLE t",
            "CREATE UNIQUE INDEX ia ON t (a)",
            "INSERT INTO t VALUES (22, 22, 'x')",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX ia",
            "DELETE FROM t WHERE id = 7",
            "ALTER TABLE t DROP COLUMN a",
            "INSERT INTO t VALUES (23, 'x')",
        ],
        ("p", "q,p"),
    ),
    "virtual_columns": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (a * 2) VIRTUAL, "
            "s int GENERATED ALWAYS AS (a * 3) STORED)",
            "CREATE PUBLICATION p FOR TABLE t WHERE (v > 3) WITH (publish = 'insert')",
            "CREATE PUBLICATION q FOR TABLE t (id, s)",
            (
                "CREATE PUBLICATION r FOR TABLE t WHERE (v > 7) WITH (publish = 'insert', "
                "publish_generated_columns = stored)"
            ),
            "INSERT INTO t SELECT g, g FROM generate_series(1, 5) g",
            "UPDATE t SET a = a + 1",
            "ALTER TABLE t ALTER s DROP EXPRESSION",
            "INSERT INTO t VALUES (6, 6)",
        ],
        ("p", "q", "r", "p,q", "p,r", "q,r"),
        since=18,
    ),
    "generated_columns_via_root": Scenario(
        [
            (
                "CREATE TABLE root (a int PRIMARY KEY, b int, g int GENERATED ALWAYS AS (b * 2) "
                "STORED) PARTITION BY RANGE (a)"
            ),
            "CREATE TABLE one PARTITION OF root FOR VALUES FROM (0) TO (10)",
            (
                "CREATE TABLE two (gone int, g int GENERATED ALWAYS AS (b * 3) STORED, b int, a "
                "int NOT NULL)"
            ),
            "ALTER TABLE two DROP gone",
            "ALTER TABLE root ATTACH PARTITION two FOR VALUES FROM (10) TO (20)",
            (
                "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root, "
                "publish_generated_columns = stored)"
            ),
            "CREATE PUBLICATION q FOR TABLE two WITH (publish_generated_columns = stored)",
            "CREATE PUBLICATION r FOR ALL TABLES WITH (publish_via_partition_root)",
            "INSERT INTO root VALUES (1, 1), (11, 1)",
            "UPDATE root SET b = 7",
            "UPDATE root SET a = a + 11 WHERE a = 1",
            "DELETE FROM root",
        ],
        ("p", "q", "r", "p,q", "p,r", "q,r"),
        since=18,
    ),
    "column_lists": Scenario(
        [
            "CREATE TABLE t (gone int, id int PRIMARY KEY, a int, b text, c text[])",
            "ALTER TABLE t DROP COLUMN gone",
            "CREATE PUBLICATION p FOR TABLE t (id, b)",
            "CREATE PUBLICATION q FOR TABLE t (c, b, a, id)",
            "CREATE PUBLICATION r FOR ALL TABLES",
            "INSERT INTO t VALUES (1, 2, 'b', '{c}'), (2, NULL, NULL, NULL)",
            "UPDATE t SET b = 'x', a = 7",
            "UPDATE t SET id = id + 10",
            f"UPDATE t SET b = {noise(77)} WHERE id = 11",
            "UPDATE t SET a = 8",
            "DELETE FROM t WHERE id = 11",
            "TRUNCATE t",
            "ALTER PUBLICATION p SET TABLE t (id, a)",
            "INSERT INTO t VALUES (3, 4, 'b', '{c}')",
            "ALTER TABLE t ADD COLUMN late int DEFAULT 5",
            "INSERT INTO t VALUES (4)",
        ],
        ("p", "q", "r", "q,r", "p,q", "r,p"),
        since=15,
    ),
    "row_filters": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, a int, v text)",
            "CREATE PUBLICATION p FOR TABLE t WHERE (id > 10)",
            (
                "CREATE PUBLICATION q FOR TABLE t WHERE (a < 5 AND v LIKE 'x%') WITH (publish = "
                "'insert')"
            ),
            (
                "CREATE PUBLICATION r FOR TABLE t WHERE (id % 2 = 0) WITH (publish = 'update, "
                "delete, truncate')"
            ),
            (
                "INSERT INTO t SELECT g, g % 7, CASE WHEN g % 3 = 0 THEN 'x' || g END FROM "
                "generate_series(1, 30) g"
            ),
            "UPDATE t SET v = 'x changed' WHERE id % 5 = 0",
            "UPDATE t SET id = id + 101 WHERE id < 5",
            "UPDATE t SET id = id - 150 WHERE id > 103",
            "DELETE FROM t WHERE id < 12",
            "BEGIN",
            "UPDATE t SET id = 8 WHERE id = 12",
            "UPDATE t SET id = 120 WHERE id = 8",
            "COMMIT",
            "TRUNCATE t",
            "ALTER PUBLICATION p SET TABLE t WHERE (id < 3)",
            "INSERT INTO t VALUES (1), (2), (3)",
            "ALTER PUBLICATION p SET TABLE t",
            "INSERT INTO t VALUES (4)",
        ],
        ("p", "q", "r", "p,q", "q,r", "p,q,r"),
        since=15,
    ),
    "row_filters_change_within_a_transaction": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE TABLE u (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t, u WHERE (id > 1)",
            "BEGIN",
            "INSERT INTO t SELECT g FROM generate_series(1, 5) g",
            "INSERT INTO u SELECT g FROM generate_series(1, 5) g",
            "ALTER TABLE t ADD w int",
            "ALTER PUBLICATION p SET TABLE t WHERE (id > 7), u",
            "INSERT INTO t SELECT g FROM generate_series(6, 9) g",
            "INSERT INTO u SELECT g FROM generate_series(6, 9) g",
            "ALTER PUBLICATION p SET TABLE t, u WHERE (id > 12)",
            "INSERT INTO t SELECT g FROM generate_series(10, 14) g",
            "INSERT INTO u SELECT g FROM generate_series(10, 14) g",
            "UPDATE u SET id = id + 100",
            "DELETE FROM u WHERE id % 3 = 0",
            "COMMIT",
        ],
        since=15,
    ),
    "row_filters_and_toast": Scenario(
        [
            "CREATE TABLE t (id int, big text NOT NULL, n int)",
            "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "CREATE PUBLICATION p FOR TABLE t WHERE (n > 5 AND big LIKE 'a%')",
            f"INSERT INTO t SELECT g, 'a' || {noise(61)}, g * 3 FROM generate_series(1, 3) g",
            "UPDATE t SET n = n + 3",
            "UPDATE t SET n = 0 WHERE id = 3",
            "UPDATE t SET n = 9",
            "DELETE FROM t",
        ],
        since=15,
    ),
    "row_filters_of_many_types": Scenario(
        [
            (
                "CREATE TABLE t (id int PRIMARY KEY, n numeric, b bool, d date, ts timestamptz, u "
                "uuid, f float8, c char(4))"
            ),
            (
                "CREATE PUBLICATION p FOR TABLE t WHERE ((n >= 1.5 OR b IS NOT TRUE) AND d < "
                "'2026-06-01')"
            ),
            (
                "CREATE PUBLICATION q FOR TABLE t WHERE (ts IS NULL OR u = "
                "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' OR c IN ('x', 'yy'))"
            ),
            "CREATE PUBLICATION r FOR TABLE t WHERE (NOT (f > 2 AND f < 1e10))",
            "INSERT INTO t SELECT g, g / 2.0, g % 2 = 0, date '2026-05-30' + g, CASE WHEN g % 4 > "
            "0 THEN now() END, NULL, g, CASE g WHEN 3 THEN 'x' ELSE 'zz' END FROM "
            "generate_series(1, 8) g",
            (
                "INSERT INTO t VALUES (20, 'NaN', NULL, '-infinity', now(), "
                "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'NaN', 'yy')"
            ),
        ],
        ("p", "q", "r", "p,q", "p,r"),
        since=15,
    ),
    "row_filters_of_partitions": Scenario(
        [
            *PARTITIONS,
            "CREATE PUBLICATION p FOR TABLE root WHERE (a > 12) WITH (publish_via_partition_root)",
            "CREATE PUBLICATION q FOR TABLE two WHERE (a <> 13), three_a WHERE (a < 30)",
            "CREATE PUBLICATION r FOR ALL TABLES",
            *PARTITION_CHANGES,
        ],
        ("p", "q", "p,q", "q,r"),
        since=15,
    ),
    "row_filters_of_a_schema": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t WHERE (id > 1), TABLES IN SCHEMA pubs",
            "CREATE PUBLICATION q FOR TABLE t WHERE (id > 2)",
            "INSERT INTO t VALUES (1), (2), (3)",
        ],
        ("p", "q", "p,q"),
        since=15,
    ),
    "tables_in_schema": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE TABLE public.elsewhere (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLES IN SCHEMA pubs",
            "CREATE PUBLICATION q FOR TABLES IN SCHEMA public, pubs",
            "INSERT INTO t VALUES (1)",
            "INSERT INTO public.elsewhere VALUES (1)",
            "ALTER TABLE public.elsewhere SET SCHEMA pubs",
            "INSERT INTO elsewhere VALUES (2)",
            "CREATE TABLE later (id int PRIMARY KEY)",
            "INSERT INTO later VALUES (1)",
            "ALTER PUBLICATION p DROP TABLES IN SCHEMA pubs",
            "INSERT INTO later VALUES (2)",
        ],
        ("p", "q", "p,q"),
        since=15,
    ),
    "partitions_by_themselves": Scenario(
        [
            *PARTITIONS,
            "CREATE PUBLICATION p FOR TABLE root",
            "CREATE PUBLICATION q FOR TABLE two, three",
            "CREATE PUBLICATION r FOR ALL TABLES",
            *PARTITION_CHANGES,
        ],
        ("p", "q", "r", "p,q"),
    ),
    "partitions_via_root": Scenario(
        [
            *PARTITIONS,
            "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)",
            "CREATE PUBLICATION q FOR TABLE three WITH (publish_via_partition_root)",
            "CREATE PUBLICATION r FOR ALL TABLES WITH (publish_via_partition_root)",
            *PARTITION_CHANGES,
            *FULL,
            *PARTITION_CHANGES,
        ],
        ("p", "q", "r", "p,q", "q,p"),
    ),
    "partitions_both_ways": Scenario(
        [
            *PARTITIONS,
            (
                "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root, publish = "
                "'insert, truncate')"
            ),
            "CREATE PUBLICATION q FOR TABLE root, three_a WITH (publish = 'insert, update')",
            "CREATE PUBLICATION r FOR TABLE three_b WITH (publish = 'delete')",
            *PARTITION_CHANGES,
        ],
        ("p,q", "q,p", "p,r", "r,q,p"),
    ),
    "partitions_come_and_go": Scenario(
        [
            *PARTITIONS,
            "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)",
            "INSERT INTO root VALUES (1, 'x', 1), (12, 'y', 2)",
            "ALTER TABLE root DETACH PARTITION two",
            "INSERT INTO two (a, b) VALUES (13, 'alone')",
            "ALTER TABLE root ATTACH PARTITION two FOR VALUES FROM (10) TO (20)",
            "INSERT INTO root VALUES (14, 'back', 1)",
            "ALTER TABLE root ADD COLUMN d int DEFAULT 4",
            "INSERT INTO root VALUES (15, 'more', 1, 2)",
            "ALTER TABLE root RENAME COLUMN b TO bb",
            "UPDATE root SET bb = 'changed'",
            "ALTER TABLE root DROP COLUMN c",
            "UPDATE root SET bb = 'again'",
        ],
    ),
    "partitions_with_column_lists": Scenario(
        [
            *PARTITIONS,
            "CREATE PUBLICATION p FOR TABLE root (a, c) WITH (publish_via_partition_root)",
            "CREATE PUBLICATION q FOR TABLE root (a, b) WITH (publish_via_partition_root)",
            "CREATE PUBLICATION r FOR TABLE two (a, b), three_b (a)",
            *PARTITION_CHANGES,
        ],
        ("p", "q", "r", "p,q", "p,r"),
        since=15,
    ),
    "toast": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY, big text, n int)",
            "CREATE PUBLICATION p FOR TABLE t",
            f"INSERT INTO t VALUES (1, {noise(51)}, 0), (2, repeat('x', 90000), 0)",
            "UPDATE t SET n = n + 1",
            "UPDATE t SET big = big || 'y'",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "UPDATE t SET n = n + 1",
            "DELETE FROM t",
        ],
    ),
    "messages": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t",
            "SELECT pg_logical_emit_message(false, 'outside', 'at once')",
            "SELECT pg_logical_emit_message(true, 'alone', 'in a transaction')",
            "BEGIN",
            "SELECT pg_logical_emit_message(true, 'in', '\\x00ff01'::bytea)",
            "SAVEPOINT a",
            "SELECT pg_logical_emit_message(true, 'sub', '')",
            "INSERT INTO t VALUES (1)",
            "SELECT pg_logical_emit_message(false, '', 'with xid')",
            "COMMIT",
        ],
    ),
    "savepoints": Scenario(
        [
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t",
            "BEGIN",
            "SAVEPOINT a",
            "INSERT INTO t VALUES (1)",
            "ROLLBACK TO a",
            "INSERT INTO t VALUES (2)",
            "ALTER TABLE t ADD v int",
            "SAVEPOINT b",
            "ALTER TABLE t ADD w int",
            "INSERT INTO t VALUES (3, 3, 3)",
            "ROLLBACK TO b",
            "INSERT INTO t VALUES (4, 4)",
            "COMMIT",
            "INSERT INTO t VALUES (5, 5)",
        ],
    ),
}
