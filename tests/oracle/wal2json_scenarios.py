# ruff: noqa: ISC004 - a statement too long for a line is written in pieces
"""Workloads and options for wal2json: everything that its output depends on, beyond the scenarios
of all plugins.
"""

from __future__ import annotations

from typing import Final

from oracle.scenarios import noise

#: As in ``scenarios.py``: a statement a step; they leave tables t, u, w and the schemas "Odd
#: schema" and app behind.
WAL2JSON_SCENARIOS: Final[dict[str, list[str]]] = {
    "every_kind_of_value": [
        "CREATE TABLE t (id int PRIMARY KEY, s int2, b int8, o oid, f float4, d float8, n numeric, "
        "ok bool, txt text, raw bytea, js json, jb jsonb, ar int[], nn numeric[], ts timestamp, "
        "bits bit(3), ip inet, mo money)",
        "INSERT INTO t VALUES (1, -2, 9223372036854775807, 4294967295, 1.5, -2.5e-100, "
        "123456789012345678901234567890.000100, true, 'it''s \"quoted\"', '\\x00ff5c', '{\"a\": "
        "[1, null]}', '{\"b\": \"\\u00e9\"}', '{1,NULL,3}', '{1.10,NaN}', '2026-11-21 12:00', "
        "B'101', '10.0.0.0/8', 12.5)",
        "INSERT INTO t (id, f, d, n, ok) VALUES (2, 'NaN', 'Infinity', 'NaN', false), (3, "
        "'-Infinity', 'NaN', '-Infinity', NULL), (4, 'Infinity', '-Infinity', 'Infinity', true)",
        "INSERT INTO t (id, f, d, n) VALUES (5, 1e20, 1e-7, 1e-20), (6, '-0', '-0', -0.0)",
        "INSERT INTO t (id, raw) VALUES (7, ''), (8, '\\x5c5c22')",
        "UPDATE t SET ok = NOT ok, raw = raw || '\\x01'",
        "DELETE FROM t",
    ],
    "strings_that_are_escaped": [
        'CREATE TABLE t (id int PRIMARY KEY, v text, c "char", j json)',
        (
            "INSERT INTO t VALUES (1, E'\\b\\f\\n\\r\\t\\x01\\x0b\\x1f\\x7f \" \\\\ / \\u2028 ünï "
            "☃ 🎉', '\"', E'\"a\\\\nb\"')"
        ),
        "INSERT INTO t SELECT i, 'a' || chr(i) FROM generate_series(2, 130) i",
        "INSERT INTO t VALUES (200, repeat(E'\\x02\"', 50))",
        'CREATE TABLE "t ""odd"" \\ \n" ("a ""b"" \\ \t" int PRIMARY KEY, "ünï" text)',
        "INSERT INTO \"t \"\"odd\"\" \\ \n\" VALUES (1, 'x')",
        "UPDATE \"t \"\"odd\"\" \\ \n\" SET \"ünï\" = 'y'",
        'DROP TABLE "t ""odd"" \\ \n"',
    ],
    "names_of_types": [
        'CREATE SCHEMA "Odd schema"',
        "CREATE SCHEMA app",
        "CREATE TYPE \"Odd schema\".\"Mood\" AS ENUM ('sad', 'ok')",
        "CREATE TYPE app.\"Mood\" AS ENUM ('sad', 'ok')",
        "CREATE TYPE app.mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE \"Mood\" AS ENUM ('sad', 'ok')",
        'CREATE TYPE "M ""q"" \\" AS (a int, b "Mood")',
        "CREATE TABLE t (id numeric(5) PRIMARY KEY, n2 numeric(10,2), n3 numeric(5,0), n4 "
        "numeric(6,4)[], b bit, b5 bit(5)[], vb varbit, "
        'vb7 varbit(7), c char, c5 char(5)[], bp bpchar, vc varchar, vc9 varchar(9)[], ch "char", '
        'nm name, t0 time(0), t3 time(3)[], '
        "tz timetz, tz2 timetz(2), ts timestamp(1), tsz timestamptz(6)[], iv interval, iv3 "
        "interval(3), iv4 interval year to month, iv5 interval day to second(2)[], iv6 interval "
        "hour, iv7 interval second(4), iv8 interval minute to second, iv9 interval month, "
        'm1 "Odd schema"."Mood", m2 "Odd schema"."Mood"[], m3 app."Mood", m4 app.mood[], m5 '
        '"Mood", m6 "Mood"[], m7 "M ""q"" \\", m8 "M ""q"" \\"[], ov oidvector, iv2 int2vector, pt '
        'point, r int4range, mr nummultirange, x xml, u uuid)',
        "INSERT INTO t (id) VALUES (1)",
        (
            "UPDATE t SET n2 = 1.5, m5 = 'ok', m6 = '{sad,ok}', m7 = '(1,ok)', c5 = '{a,b}', bp = "
            "'x ', b = B'1', iv4 = '14 months', iv5 = '{1 day 1.239 s}'"
        ),
        'CREATE TABLE u (a "Mood", b "Mood"[], c app.mood, PRIMARY KEY (a, b, c))',
        "INSERT INTO u VALUES ('ok', '{ok,sad}', 'sad')",
        "DELETE FROM u",
        "DROP TABLE t, u",
        'DROP SCHEMA "Odd schema" CASCADE',
        "DROP SCHEMA app CASCADE",
        'DROP TYPE "M ""q"" \\", "Mood"',
    ],
    "domains": [
        "CREATE DOMAIN d_int AS int CHECK (VALUE > 0)",
        "CREATE DOMAIN d_num AS numeric(6,2) NOT NULL",
        "CREATE DOMAIN d_text AS varchar(10)",
        "CREATE DOMAIN d_bool AS bool",
        "CREATE DOMAIN d_bytea AS bytea",
        "CREATE DOMAIN d_nested AS d_int",
        "CREATE DOMAIN d_array AS int[]",
        (
            "CREATE TABLE t (id d_int PRIMARY KEY, n d_num DEFAULT 1, v d_text, b d_bool, y "
            "d_bytea, z d_nested, a d_array, ds d_int[], f float8)"
        ),
        "INSERT INTO t VALUES (1, 1.5, 'x', true, '\\xab', 7, '{1,2}', '{3}', 'NaN')",
        "INSERT INTO t VALUES (2, 'NaN', NULL, false, NULL, NULL, NULL, NULL, NULL)",
        "UPDATE t SET id = id + 10, b = NOT b",
        "DELETE FROM t",
        "DROP TABLE t",
        "DROP DOMAIN d_int, d_num, d_text, d_bool, d_bytea, d_nested, d_array CASCADE",
    ],
    "identities": [
        "CREATE TABLE t (a int, b text NOT NULL, c numeric, d int, PRIMARY KEY (d, a))",
        "INSERT INTO t VALUES (1, 'x', NULL, 10), (2, 'y', 2.5, 20)",
        "UPDATE t SET c = 7",
        "UPDATE t SET a = a + 100 WHERE a = 1",
        "CREATE UNIQUE INDEX t_b ON t (b) INCLUDE (c)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_b",
        "UPDATE t SET c = 8",
        "UPDATE t SET b = b || '2' WHERE d = 20",
        "DELETE FROM t WHERE d = 10",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (3, 'z', NULL, 30)",
        "UPDATE t SET c = c + 1",
        "DELETE FROM t WHERE d = 30",
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
        "UPDATE t SET c = 9",
        "DELETE FROM t",
        "INSERT INTO t VALUES (4, 'q', 1, 40)",
    ],
    "tables_without_a_key": [
        "CREATE TABLE t (a int, b text)",
        "INSERT INTO t VALUES (1, 'x'), (2, NULL)",
        "UPDATE t SET b = 'z'",
        "DELETE FROM t WHERE a = 1",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET b = NULL",
        "DELETE FROM t",
        "CREATE TABLE u ()",
        "INSERT INTO u DEFAULT VALUES",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "DELETE FROM u",
        "CREATE TABLE w (a int UNIQUE NOT NULL, gone int)",
        "ALTER TABLE w DROP COLUMN gone",
        "INSERT INTO w VALUES (1)",
        "UPDATE w SET a = 2",
    ],
    "dropped_columns_and_defaults": [
        (
            "CREATE TABLE t (gone int, id int NOT NULL DEFAULT 5, a text DEFAULT 'x', gone2 text, "
            "PRIMARY KEY (id))"
        ),
        "INSERT INTO t VALUES (1, 1, 'one', 'g')",
        "ALTER TABLE t DROP COLUMN gone, DROP COLUMN gone2",
        "ALTER TABLE t ADD late int DEFAULT 42, ADD later text",
        "UPDATE t SET a = 'two'",
        "INSERT INTO t DEFAULT VALUES",
        "ALTER TABLE t ADD twice int GENERATED ALWAYS AS (late * 2) STORED",
        "UPDATE t SET late = 1 WHERE id = 1",
        "DELETE FROM t",
    ],
    "unchanged_toast": [
        "CREATE TABLE t (id int, big text, other text, n int)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t VALUES (1, left({noise(31)}, 3000), 'small', 0)",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "UPDATE t SET n = 1",
        "UPDATE t SET id = 2",
        "UPDATE t SET other = NULL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET n = 2",
        "DELETE FROM t",
        "CREATE TABLE u (big text PRIMARY KEY, n int, pad text)",
        "ALTER TABLE u ALTER big SET STORAGE EXTERNAL, ALTER pad SET STORAGE PLAIN",
        f"INSERT INTO u VALUES (left({noise(32)}, 2200), 1, repeat('p', 1000))",
        "UPDATE u SET n = 2",
        "UPDATE u SET big = 'short'",
        "DELETE FROM u",
    ],
    "messages": [
        "CREATE TABLE t (id int PRIMARY KEY)",
        "SELECT pg_logical_emit_message(false, 'alone', 'before')",
        "SELECT pg_logical_emit_message(true, 'keep', 'only one')",
        "SELECT pg_logical_emit_message(false, 'alone', 'after one')",
        "BEGIN",
        "INSERT INTO t VALUES (1), (2)",
        "SELECT pg_logical_emit_message(true, 'keep', E'a \"quoted\" \\\\ \\n message')",
        "SELECT pg_logical_emit_message(true, 'dro\"p', 'x')",
        "SELECT pg_logical_emit_message(true, 'keep', '\\x610062'::bytea)",
        "SELECT pg_logical_emit_message(false, 'alone', 'in a transaction')",
        "SELECT pg_logical_emit_message(true, '', '')",
        "INSERT INTO t VALUES (3)",
        "COMMIT",
        "SELECT pg_logical_emit_message(false, 'alone', 'after many')",
        "SELECT pg_logical_emit_message(false, 'keep', 'again')",
        # Only a commit makes what is before it durable at once, and so decoded.
        "INSERT INTO t VALUES (4)",
    ],
    "truncations_and_filters": [
        "CREATE SCHEMA app",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE app.t (id int PRIMARY KEY)",
        'CREATE TABLE app."dot.ted, *" (id int PRIMARY KEY, v int)',
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO app.t VALUES (2)",
        'INSERT INTO app."dot.ted, *" VALUES (3, 0)',
        'UPDATE app."dot.ted, *" SET v = 1',
        "DELETE FROM app.t",
        "COMMIT",
        'TRUNCATE t, app.t, app."dot.ted, *"',
        "BEGIN",
        "INSERT INTO app.t VALUES (1)",
        "TRUNCATE app.t RESTART IDENTITY CASCADE",
        "INSERT INTO t VALUES (7)",
        "COMMIT",
        "DROP SCHEMA app CASCADE",
    ],
    "origins": [
        "CREATE TABLE t (id int PRIMARY KEY)",
        "SELECT pg_replication_origin_create('w2j_one')",
        "SELECT pg_replication_origin_create('w2j_two')",
        "INSERT INTO t VALUES (1)",
        "SELECT pg_replication_origin_session_setup('w2j_one')",
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('0/AB', '2020-01-01 00:00:00.5+00')",
        "INSERT INTO t VALUES (2)",
        "COMMIT",
        "SELECT pg_logical_emit_message(false, 'origin', 'one')",
        "SELECT pg_replication_origin_session_reset()",
        "SELECT pg_replication_origin_session_setup('w2j_two')",
        "INSERT INTO t VALUES (3)",
        "SELECT pg_replication_origin_session_reset()",
        "INSERT INTO t VALUES (4)",
    ],
    "nothing_to_show": [
        "CREATE TABLE t (id int PRIMARY KEY)",
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO t VALUES (2)",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (3)",
        "ROLLBACK TO s",
        "COMMIT",
        "CREATE UNLOGGED TABLE u (id int)",
        "INSERT INTO u VALUES (1)",
        "ALTER TABLE t ADD v text",
    ],
    "prepared": [
        "CREATE TABLE t (id int PRIMARY KEY)",
        "BEGIN",
        "INSERT INTO t VALUES (1), (2)",
        "PREPARE TRANSACTION 'w2j'",
        "INSERT INTO t VALUES (3)",
        "COMMIT PREPARED 'w2j'",
    ],
}  # fmt: skip

#: The same, but what they show depends on the major: only compared with the original itself.
WAL2JSON_SCENARIOS_OF_15: Final[dict[str, list[str]]] = {
    "deferrable_primary_key": [
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v int)",
        "INSERT INTO t VALUES (1, 1)",
        "UPDATE t SET v = 2",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET id = 2",
        "DELETE FROM t",
    ],
    "scales_outside_of_the_precision": [
        "CREATE TABLE t (id numeric(3,-2) PRIMARY KEY, n numeric(2,4)[])",
        "INSERT INTO t VALUES (12345, '{0.0012}')",
        "UPDATE t SET id = 500",
    ],
}

_EVERYTHING: Final = {
    "include-xids": "1",
    "include-timestamp": "on",
    "include-origin": "true",
    "include-lsn": "yes",
    "include-type-oids": "1",
    "include-column-positions": "1",
    "include-not-null": "1",
    "include-pk": "1",
}
_BARE: Final = {
    "include-schemas": "0",
    "include-types": "0",
    "include-not-null": "1",
    "include-pk": "1",
    "include-transaction": "0",
}
_DOMAINS: Final = {"include-domain-data-type": "1", "include-type-oids": "1", "include-pk": "1"}
_TABLES: Final = {"add-tables": "app.*, *.t", "filter-tables": r"public.*,app.dot\.ted\,\ \*"}
_MESSAGES: Final = {"add-msg-prefixes": 'keep, dro"p,alone', "filter-msg-prefixes": 'dro"p'}
_V2: Final = {"format-version": "2"}

#: Options under which every scenario is compared; ``ORIGIN`` is replaced by the number of the
#: origin w2j_one.
WAL2JSON_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "1": {},
    "1 everything": {**_EVERYTHING, "format-version": "1"},
    "1 pretty": {**_EVERYTHING, "pretty-print": "1"},
    "1 pretty in chunks": {**_EVERYTHING, "pretty-print": "1", "write-in-chunks": "1"},
    "1 bare in chunks": {**_BARE, "write-in-chunks": "1"},
    "1 domains": _DOMAINS,
    "1 domains without modifiers": {**_DOMAINS, "include-typmod": "0"},
    "1 domains without types": {**_DOMAINS, "include-types": "0"},
    "1 filtered": {**_TABLES, **_MESSAGES, "actions": "insert", "filter-origins": "ORIGIN, 65000"},
    "1 origins": {"filter-origins": "ORIGIN, 65000", "include-origin": "1"},
    "2": _V2,
    "2 everything": {**_V2, **_EVERYTHING},
    "2 bare": {**_V2, **_BARE},
    "2 domains": {**_V2, **_DOMAINS, "include-typmod": "0", "pretty-print": "1",
                  "write-in-chunks": "1"},
    "2 filtered": {**_V2, **_TABLES, **_MESSAGES, "actions": "update , truncate",
                   "filter-origins": "ORIGIN"},
    "2 origins": {**_V2, "filter-origins": "ORIGIN", "include-origin": "1"},
    "2 nothing added": {**_V2, "add-tables": "", "actions": "", "filter-tables": " ",
                        "filter-msg-prefixes": ""},
}  # fmt: skip
