# ruff: noqa: ISC004 - a statement too long for a line is written in pieces
"""Workloads for the oracle tests: what PostgreSQL decodes, we must decode to the same bytes.

A scenario is a list of SQL statements. ``2> …`` runs in a second session, so that transactions can
interleave. Every scenario runs in the same database, one after the other, under one decoding
session that has lived through all the others: what one leaves behind must not show in the next.
"""

from __future__ import annotations

from typing import Final


def noise(seed: int, n: int = 300) -> str:
    """SQL for text that neither pglz nor lz4 gets small, so that it goes out of line
    uncompressed.
    """
    return f"(SELECT string_agg(md5(({seed} * 1000 + g)::text), '') FROM generate_series(1, {n}) g)"


SCENARIOS: Final[dict[str, list[str]]] = {
    "insert_update_delete": [
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric)",
        "INSERT INTO t VALUES (1, 'one', 1.50), (2, NULL, NULL), (3, 'it''s', -0.001)",
        "UPDATE t SET v = 'uno' WHERE id = 1",
        "UPDATE t SET id = 20 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        "DELETE FROM t",
    ],
    "one_transaction_of_many": [
        "CREATE TABLE t (id serial PRIMARY KEY, v text)",
        "BEGIN",
        "INSERT INTO t (v) SELECT 'row ' || i FROM generate_series(1, 500) i",
        "UPDATE t SET v = v || '!' WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 11 = 0",
        "COMMIT",
    ],
    "rollback_shows_nothing": [
        "CREATE TABLE t (id int)",
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "ROLLBACK",
        "INSERT INTO t VALUES (2)",
        "BEGIN",
        "SELECT pg_current_xact_id()",
        "COMMIT",
    ],
    "hot_and_non_hot_updates": [
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int) WITH (fillfactor = 50)",
        "CREATE INDEX ON t (a)",
        "INSERT INTO t SELECT i, i, i FROM generate_series(1, 50) i",
        "UPDATE t SET b = b + 1",
        "UPDATE t SET a = a + 1",
        "UPDATE t SET b = b WHERE id < 10",
    ],
    "savepoints": [
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "BEGIN",
        "INSERT INTO t VALUES (1, 'kept')",
        "SAVEPOINT a",
        "INSERT INTO t VALUES (2, 'dropped')",
        "SAVEPOINT b",
        "INSERT INTO t VALUES (3, 'dropped too')",
        "RELEASE SAVEPOINT b",
        "ROLLBACK TO SAVEPOINT a",
        "INSERT INTO t VALUES (4, 'kept')",
        "SAVEPOINT c",
        "UPDATE t SET v = 'changed' WHERE id = 1",
        "RELEASE SAVEPOINT c",
        "DELETE FROM t WHERE id = 4",
        "COMMIT",
    ],
    "many_subtransactions": [
        "CREATE TABLE t (id int)",
        "DO $$ BEGIN FOR i IN 1..300 LOOP BEGIN INSERT INTO t VALUES (i); IF i % 3 = 0 THEN RAISE "
        "EXCEPTION 'x'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$",
    ],
    "first_change_in_a_subtransaction": [
        "CREATE TABLE t (id int)",
        "BEGIN",
        "SAVEPOINT a",
        "INSERT INTO t VALUES (1)",
        "SAVEPOINT b",
        "INSERT INTO t VALUES (2)",
        "COMMIT",
    ],
    "interleaved_sessions_commit_in_order": [
        "CREATE TABLE t (id int, who text)",
        "BEGIN",
        "2> BEGIN",
        "INSERT INTO t VALUES (1, 'first')",
        "2> INSERT INTO t VALUES (2, 'second')",
        "INSERT INTO t VALUES (3, 'first')",
        "2> COMMIT",
        "INSERT INTO t VALUES (4, 'first')",
        "COMMIT",
    ],
    "copy_multi_insert": [
        "CREATE TABLE t (id int, v text, ts timestamptz)",
        (
            "INSERT INTO t SELECT i, 'v' || i, '2026-01-01 00:00Z'::timestamptz + i * interval '1 "
            "s' FROM generate_series(1, 2000) i"
        ),
        "CREATE TABLE u (LIKE t)",
        "COPY u",
    ],
    "toast_out_of_line": [
        "CREATE TABLE t (id int PRIMARY KEY, big text, other text, n int)",
        f"INSERT INTO t VALUES (1, {noise(1)}, 'small', 0)",
        "UPDATE t SET n = n + 1",
        f"UPDATE t SET other = {noise(2)}",
        "UPDATE t SET big = big || 'x'",
        "UPDATE t SET id = 2",
        "DELETE FROM t",
    ],
    "toast_storage_kinds": [
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text, c text, d text)",
        (
            "ALTER TABLE t ALTER a SET STORAGE PLAIN, ALTER b SET STORAGE EXTERNAL, ALTER c SET "
            "STORAGE MAIN"
        ),
        (
            f"INSERT INTO t VALUES (1, repeat('a', 2000), {noise(3)}, repeat('c', 9000), "
            "repeat('d', 90000))"
        ),
        "UPDATE t SET a = 'short' WHERE id = 1",
        "UPDATE t SET c = repeat('e', 4000), d = repeat('f', 40000)",
    ],
    "toast_many_rows_and_columns": [
        "CREATE TABLE t (id int, a text, b text)",
        (
            f"INSERT INTO t SELECT i, {noise(5, 120)} || i, {noise(6, 150)} || i FROM "
            "generate_series(1, 40) i"
        ),
        "BEGIN",
        f"INSERT INTO t VALUES (100, {noise(7)}, 'x')",
        "SAVEPOINT s",
        f"INSERT INTO t VALUES (101, {noise(8)}, {noise(9)})",
        "ROLLBACK TO s",
        f"INSERT INTO t VALUES (102, {noise(10)}, {noise(11)})",
        "COMMIT",
    ],
    "toast_identity_full": [
        "CREATE TABLE t (id int, big text, n int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t VALUES (1, {noise(12)}, 1), (2, repeat('q', 90000), 2)",
        "UPDATE t SET n = n + 1",
        "DELETE FROM t",
    ],
    "replica_identity_default": [
        "CREATE TABLE t (a int, b text, c int, PRIMARY KEY (c, a))",
        "INSERT INTO t VALUES (1, 'x', 10), (2, 'y', 20)",
        "UPDATE t SET b = 'z'",
        "UPDATE t SET a = a + 100",
        "DELETE FROM t",
    ],
    "replica_identity_index": [
        "CREATE TABLE t (a int, b text NOT NULL, c int)",
        "CREATE UNIQUE INDEX t_b ON t (b)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_b",
        "INSERT INTO t VALUES (1, 'x', 10), (2, 'y', 20)",
        "UPDATE t SET a = 5",
        "UPDATE t SET b = b || '2'",
        "DELETE FROM t",
    ],
    "replica_identity_full": [
        "CREATE TABLE t (a int, b text, c int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'x', NULL), (2, NULL, 20)",
        "UPDATE t SET a = a + 1",
        "DELETE FROM t",
    ],
    "replica_identity_nothing": [
        "CREATE TABLE t (a int PRIMARY KEY, b text)",
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
        "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
        "UPDATE t SET b = 'z', a = a + 10",
        "DELETE FROM t",
    ],
    "no_key_at_all": [
        "CREATE TABLE t (a int, b text)",
        "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
        "UPDATE t SET b = 'z'",
        "DELETE FROM t",
    ],
    "identity_changes_in_one_transaction": [
        "CREATE TABLE t (a int PRIMARY KEY, b text)",
        "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z')",
        "BEGIN",
        "UPDATE t SET a = 11 WHERE a = 1",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET a = 12 WHERE a = 2",
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
        "DELETE FROM t",
        "COMMIT",
    ],
    "truncate": [
        "CREATE TABLE t (id serial PRIMARY KEY)",
        "CREATE TABLE u (id int REFERENCES t)",
        "CREATE TABLE w (id int)",
        "INSERT INTO t DEFAULT VALUES",
        "TRUNCATE w",
        "TRUNCATE t, u",
        "TRUNCATE t RESTART IDENTITY CASCADE",
        "BEGIN",
        "INSERT INTO w VALUES (1)",
        "TRUNCATE w",
        "INSERT INTO w VALUES (2)",
        "COMMIT",
    ],
    "ddl_and_dml_in_one_transaction": [
        "BEGIN",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD COLUMN n int",
        "INSERT INTO t VALUES (2, 'b', 2)",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "UPDATE t SET w = 'c' WHERE id = 1",
        "ALTER TABLE t DROP COLUMN n",
        "INSERT INTO t VALUES (3, 'd')",
        "ALTER TABLE t RENAME TO t2",
        "INSERT INTO t2 VALUES (4, 'e')",
        "COMMIT",
        "DELETE FROM t2",
    ],
    "ddl_rolled_back_to_savepoint": [
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "BEGIN",
        "INSERT INTO t VALUES (1, 'a')",
        "SAVEPOINT s",
        "ALTER TABLE t ADD COLUMN n int DEFAULT 7",
        "INSERT INTO t VALUES (2, 'b', 2)",
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (3, 'c')",
        "ALTER TABLE t ADD COLUMN z text DEFAULT 'zz'",
        "UPDATE t SET v = 'd' WHERE id = 1",
        "COMMIT",
    ],
    "ddl_between_another_ones_changes": [
        "CREATE TABLE t (id int)",
        "CREATE TABLE u (id int)",
        "2> BEGIN",
        "2> INSERT INTO u VALUES (1)",
        "ALTER TABLE t ADD COLUMN v text DEFAULT 'fast'",
        "INSERT INTO t VALUES (1)",
        "2> INSERT INTO t VALUES (2, 'after')",
        "2> INSERT INTO u VALUES (2)",
        "2> COMMIT",
    ],
    "schema_renamed_while_another_writes": [
        "CREATE SCHEMA sch_a",
        "CREATE TABLE sch_a.t (id int)",
        "2> BEGIN",
        "2> INSERT INTO sch_a.t VALUES (1)",
        "ALTER SCHEMA sch_a RENAME TO sch_b",
        "2> INSERT INTO sch_b.t VALUES (2)",
        "2> COMMIT",
        "DROP SCHEMA sch_b CASCADE",
    ],
    "rewrites": [
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int)",
        "INSERT INTO t SELECT i, 'v' || i, i FROM generate_series(1, 20) i",
        "ALTER TABLE t ALTER n TYPE bigint",
        "UPDATE t SET n = n * 1000000000 WHERE id < 3",
        "VACUUM FULL t",
        "UPDATE t SET v = 'w' WHERE id = 4",
        "CLUSTER t USING t_pkey",
        "DELETE FROM t WHERE id = 5",
        "ALTER TABLE t ADD COLUMN r float8 DEFAULT random()",
        "BEGIN",
        "ALTER TABLE t ALTER v TYPE varchar(40)",
        "ALTER TABLE t ALTER n TYPE numeric",
        "INSERT INTO t (id, v, n) VALUES (100, 'hundred', 1.5)",
        "COMMIT",
        "ALTER TABLE t DROP COLUMN r",
        "DELETE FROM t WHERE id > 15",
    ],
    "rewrite_with_toast": [
        "CREATE TABLE t (id int PRIMARY KEY, big text, n int)",
        f"INSERT INTO t VALUES (1, {noise(13)}, 1)",
        "ALTER TABLE t ALTER n TYPE bigint",
        "VACUUM FULL t",
        "UPDATE t SET n = 2",
        f"UPDATE t SET big = {noise(14)}",
    ],
    "dropped_and_added_columns": [
        "CREATE TABLE t (a int, b text, c numeric, d int)",
        "INSERT INTO t VALUES (1, 'one', 1.1, 1)",
        "ALTER TABLE t DROP COLUMN b",
        "INSERT INTO t VALUES (2, 2.2, 2)",
        (
            "ALTER TABLE t ADD COLUMN e text DEFAULT 'e', ADD COLUMN f int, ADD COLUMN g "
            "timestamptz DEFAULT '2026-01-01 12:00+02'"
        ),
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET a = a + 10",
        "ALTER TABLE t ALTER e SET DEFAULT 'changed'",
        "DELETE FROM t WHERE a = 11",
        "INSERT INTO t (a) VALUES (3)",
    ],
    "fast_defaults_of_many_types": [
        "CREATE TABLE t (id int)",
        "INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t ADD i2 smallint DEFAULT 2, ADD i8 bigint DEFAULT 8, ADD f4 real DEFAULT "
        "1.5, ADD f8 float8 DEFAULT 2.25, ADD b bool DEFAULT true, ADD n numeric DEFAULT 12.3400, "
        "ADD u uuid DEFAULT '11111111-2222-3333-4444-555555555555', ADD d date DEFAULT "
        "'2026-11-21', ADD ts timestamp DEFAULT '2026-11-21 07:00', ADD j jsonb DEFAULT '{\"a\": "
        "[1, 2]}', ADD v varchar(10) DEFAULT 'vc', ADD c char(5) DEFAULT 'c', ADD ar int[] DEFAULT "
        "'{1,NULL,3}', ADD by bytea DEFAULT '\\xdead', ADD iv interval DEFAULT '1 day 02:00', ADD "
        "nm name DEFAULT 'nm', ADD tx text DEFAULT repeat('long ', 100)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "DELETE FROM t WHERE id = 1",
        "UPDATE t SET id = 3",
    ],
    "generated_and_identity_columns": [
        (
            "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, b int "
            "GENERATED ALWAYS AS (a * 2) STORED)"
        ),
        "INSERT INTO t (a) VALUES (1), (2)",
        "UPDATE t SET a = 5 WHERE id = 1",
    ],
    "partitions": [
        "CREATE TABLE t (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        "CREATE TABLE t_eu PARTITION OF t FOR VALUES IN ('eu')",
        "CREATE TABLE t_us PARTITION OF t FOR VALUES IN ('us')",
        "INSERT INTO t VALUES (1, 'eu'), (2, 'us'), (3, 'eu')",
        "UPDATE t SET region = 'us' WHERE id = 1",
        "ALTER TABLE t DETACH PARTITION t_us",
        "INSERT INTO t_us VALUES (9, 'us')",
        "TRUNCATE t",
        "DROP TABLE t_us",
    ],
    "unlogged_and_temporary_tables": [
        "CREATE UNLOGGED TABLE u (id int)",
        "CREATE TEMP TABLE te (id int)",
        "CREATE TABLE t (id int)",
        "INSERT INTO u VALUES (1)",
        "INSERT INTO te VALUES (1)",
        "INSERT INTO t SELECT * FROM te",
        "ALTER TABLE u SET LOGGED",
        "INSERT INTO u VALUES (2)",
        "DROP TABLE te",
    ],
    "create_table_as_and_matview": [
        "CREATE TABLE t AS SELECT i AS id, 'v' || i AS v FROM generate_series(1, 5) i",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM t",
        "REFRESH MATERIALIZED VIEW m",
        "SELECT id, v INTO t2 FROM t",
    ],
    "on_conflict": [
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a')",
        "INSERT INTO t VALUES (1, 'b') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "INSERT INTO t VALUES (1, 'c') ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (2, 'd') ON CONFLICT DO NOTHING",
        f"INSERT INTO t VALUES (3, {noise(15)}) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    ],
    "sequences_and_locks_show_nothing": [
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE SEQUENCE s",
        "SELECT nextval('s')",
        "BEGIN",
        "SELECT * FROM t FOR UPDATE",
        "COMMIT",
        "BEGIN",
        "SELECT * FROM t FOR KEY SHARE",
        "2> BEGIN",
        "2> SELECT * FROM t FOR KEY SHARE",
        "2> COMMIT",
        "COMMIT",
        "ANALYZE t",
    ],
    "messages": [
        "SELECT pg_logical_emit_message(false, 'plain', 'not transactional')",
        "BEGIN",
        "SELECT pg_logical_emit_message(true, 'in', 'transactional')",
        "SELECT pg_logical_emit_message(false, 'out', 'at once')",
        "COMMIT",
        "BEGIN",
        "SELECT pg_logical_emit_message(true, 'in', 'rolled back')",
        "ROLLBACK",
    ],
    "prepared_transactions": [
        "CREATE TABLE t (id int)",
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "PREPARE TRANSACTION 'spillway one'",
        "INSERT INTO t VALUES (2)",
        "COMMIT PREPARED 'spillway one'",
        "BEGIN",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (3)",
        "PREPARE TRANSACTION 'spillway two'",
        "ROLLBACK PREPARED 'spillway two'",
    ],
    "quoted_names": [
        'CREATE SCHEMA "Odd schema"',
        (
            'CREATE TABLE "Odd schema"."select" ("Key" int PRIMARY KEY, "a b" text, "quo""te" int, '
            'user_ int, "order" int)'
        ),
        'INSERT INTO "Odd schema"."select" VALUES (1, \'x\', 2, 3, 4)',
        'UPDATE "Odd schema"."select" SET "Key" = 2',
        'DROP SCHEMA "Odd schema" CASCADE',
    ],
    "user_types": [
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN posint AS int CHECK (VALUE > 0)",
        "CREATE TABLE t (m mood, p pair, d posint, ms mood[], ps pair[])",
        (
            "INSERT INTO t VALUES ('ok', (1, 'x y'), 5, '{sad,ok}', array[(1, NULL)::pair, (2, "
            "'q\"')::pair])"
        ),
        "ALTER TYPE mood ADD VALUE 'happy' AFTER 'ok'",
        "INSERT INTO t (m) VALUES ('happy')",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "INSERT INTO t (m) VALUES ('blue')",
        "ALTER TYPE mood RENAME TO feeling",
        "INSERT INTO t (m) VALUES ('ok')",
        "CREATE SCHEMA typ",
        "ALTER TYPE pair SET SCHEMA typ",
        "INSERT INTO t (p) VALUES ((4, 'w'))",
        "DROP TABLE t",
        "DROP SCHEMA typ CASCADE",
        "DROP TYPE feeling",
        "DROP DOMAIN posint",
    ],
    "builtin_types": [
        "CREATE TABLE t (a smallint, b int, c bigint, d real, e float8, f numeric(20,4), g bool, h "
        "text, i varchar(10), j char(6), k bytea, l date, m time, n timetz, o timestamp, p "
        "timestamptz, q interval, r uuid, s json, t jsonb, u bit(5), v varbit, "
        'w oid, x name, y "char", z int[], aa text[][])',
        "INSERT INTO t VALUES (-32768, 2147483647, -9223372036854775808, 1.1, 1e-300, 123456.7800, "
        "false, 'tab\there', 'vc', 'ch', '\\x00ff', '0044-03-15 BC', '23:59:59.999999', "
        "'10:00+05:30', 'infinity', '2026-11-21 07:26:00.5+00', '1 year -2 mons +3 days "
        "04:05:06.789', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": 1}', '{\"b\": [1, null, "
        "\"x\"]}', B'10101', B'1', 4294967295, 'name', 'c', '{1,2,NULL}', '{{a,\"b "
        'c"},{NULL,"NULL"}}\')',
        (
            "INSERT INTO t (d, e, f) VALUES ('NaN', '-Infinity', 'NaN'), (1e10, 1e15, 0), (123456, "
            "123456789012345, -1), (1e-5, 1e-4, 0.0001)"
        ),
    ],
    "wide_table": [
        (
            "DO $$ BEGIN EXECUTE 'CREATE TABLE t (' || (SELECT string_agg('c' || i || ' int', ', "
            "') FROM generate_series(1, 300) i) || ')'; END $$"
        ),
        "INSERT INTO t (c1, c150, c300) VALUES (1, 2, 3)",
        (
            "DO $$ BEGIN EXECUTE 'INSERT INTO t SELECT ' || (SELECT string_agg(i::text, ', ') FROM "
            "generate_series(1, 300) i); END $$"
        ),
    ],
    "row_movement_and_foreign_keys": [
        "CREATE TABLE t (id int PRIMARY KEY)",
        (
            "CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t ON DELETE CASCADE ON UPDATE "
            "CASCADE)"
        ),
        "INSERT INTO t VALUES (1), (2)",
        "INSERT INTO u VALUES (10, 1), (20, 2)",
        "UPDATE t SET id = 11 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    ],
    "catalog_vacuumed_and_clustered": [
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'before')",
        "VACUUM FULL pg_attribute",
        "INSERT INTO t VALUES (2, 'after pg_attribute')",
        "ALTER TABLE t ADD COLUMN n int DEFAULT 1",
        "VACUUM FULL pg_class",
        "INSERT INTO t VALUES (3, 'after pg_class')",
        "ALTER TABLE t RENAME v TO w",
        "VACUUM FULL pg_type",
        "INSERT INTO t VALUES (4, 'after pg_type')",
        "VACUUM pg_class",
        "VACUUM pg_attribute",
        "CREATE TABLE u (id int)",
        "INSERT INTO u VALUES (1)",
    ],
    "temporary_tables_churn": [
        "CREATE TABLE t (id int)",
        *[
            statement
            for i in range(10)
            for statement in (
                "BEGIN",
                f"CREATE TEMP TABLE tmp{i} (a int, b text) ON COMMIT DROP",
                f"INSERT INTO tmp{i} VALUES ({i}, 'x')",
                f"INSERT INTO t SELECT a FROM tmp{i}",
                "COMMIT",
            )
        ],
    ],
}
