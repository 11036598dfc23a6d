# ruff: noqa: ISC004 - a statement too long for a line is written in pieces
"""What PostgreSQL's own contrib/test_decoding probes, as scripts of ours.

Named for PostgreSQL's test and what it is about; docs/reference/postgresql-scenarios.md lists them
by test. A script is played in a schema of its own under one decoder that has lived through all the
others; see ``harness.interleaving`` for its language. Two more steps concern the decoder:
``!state`` has it serialise itself, ``!restore`` ends it and goes on from that state, as after a
crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.interleaving import Step


def incompressible(seed: str, digests: int = 300) -> str:
    """SQL for text that goes out of line uncompressed: 32 bytes a digest."""
    return (
        f"(SELECT string_agg(md5({seed}::text || '-' || g), '') FROM generate_series(1, {digests}) "
        "g)"
    )


#: SQL for text that is stored out of line and compressed
COMPRESSIBLE: Final = "repeat('0123456789abcdef', 30000)"


def _spill(script: str) -> list[Step]:
    """A script about a table of 3,000 rows an INSERT, written ``big(n)``; ``small(n)`` is one
    row.
    """
    statements: list[Step] = ["CREATE TABLE spilled (v text)"]
    for word in script.split():
        verb, _, argument = word.partition(":")
        statements.append(
            {
                "big": (
                    f"INSERT INTO spilled SELECT '{argument} ' || g FROM generate_series(1, 3000) g"
                ),
                "small": f"INSERT INTO spilled VALUES ('{argument}')",
                "savepoint": f"SAVEPOINT {argument}",
                "release": f"RELEASE {argument}",
                "back": f"ROLLBACK TO {argument}",
                "begin": "BEGIN",
                "commit": "COMMIT",
            }[verb]
        )
    return statements


def _concurrent(*steps: str) -> list[Step]:
    """A script about two tables that one session writes and another alters."""
    return [
        "CREATE TABLE written (a int, b int)",
        "CREATE TABLE altered (a int, b int)",
        *steps,
    ]


SCENARIOS: Final[Mapping[str, list[Step]]] = {
    # ---- sql/ddl
    "ddl: rows between column additions, drops, renames and type changes": [
        "CREATE TABLE t (id serial PRIMARY KEY, n int, v varchar(30))",
        "BEGIN",
        "INSERT INTO t (n, v) VALUES (1, 'a'), (1, 'b')",
        "COMMIT",
        "ALTER TABLE t ADD COLUMN extra int",
        "INSERT INTO t (n, v, extra) VALUES (2, 'a', 4), (2, 'b', NULL)",
        "ALTER TABLE t DROP COLUMN extra",
        "INSERT INTO t (n, v) VALUES (3, '31')",
        "UPDATE t SET v = '77'",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "INSERT INTO t (n, w) VALUES (4, '41')",
        "ALTER TABLE t ALTER COLUMN w TYPE int USING w::int",
        "INSERT INTO t (n, w) VALUES (5, 51)",
        "BEGIN",
        "INSERT INTO t (n, w) VALUES (6, 61)",
        "ALTER TABLE t ADD COLUMN y1 int",
        "INSERT INTO t (n, w, y1) VALUES (6, 62, 1)",
        "ALTER TABLE t ADD COLUMN y2 int",
        "INSERT INTO t (n, w, y2) VALUES (6, 63, 2)",
        "INSERT INTO t (n, w, y1, y2) VALUES (6, 64, 3, 3)",
        "COMMIT",
    ],
    "ddl: a primary key that is added later": [
        "CREATE TABLE u (k serial UNIQUE NOT NULL, n int)",
        "INSERT INTO u (n) VALUES (1), (2)",
        "DELETE FROM u WHERE n = 1",
        "ALTER TABLE u RENAME TO p",
        "ALTER TABLE p ADD COLUMN id serial PRIMARY KEY",
        "INSERT INTO p (n) VALUES (3)",
        "DELETE FROM p",
    ],
    "ddl: a transaction of 25,000 changes on tables of its own": [
        "BEGIN",
        "CREATE TABLE big (id serial PRIMARY KEY, n int)",
        "INSERT INTO big (n) SELECT g FROM generate_series(1, 10000) g",
        "DELETE FROM big WHERE id < 5000",
        "UPDATE big SET n = -n WHERE id > 5000",
        "CREATE TABLE words (id text PRIMARY KEY, v text)",
        "INSERT INTO words VALUES ('odd', 'length')",
        "COMMIT",
        "BEGIN",
        "CREATE TABLE gone AS SELECT g FROM generate_series(1, 5000) g",
        "UPDATE big SET id = -id WHERE id = 5000",
        "UPDATE words SET id = 'x', v = 'longer'",
        "UPDATE words SET id = 'yyyy', v = 'z'",
        "DELETE FROM gone",
        "DROP TABLE gone",
        "COMMIT",
    ],
    "ddl: changes of nested subtransactions come in the order they were made": [
        "CREATE TABLE t (id serial PRIMARY KEY, path text)",
        "BEGIN",
        "INSERT INTO t (path) VALUES ('top')",
        "SAVEPOINT a",
        "INSERT INTO t (path) VALUES ('a'), ('a again')",
        "RELEASE a",
        "SAVEPOINT b",
        "SAVEPOINT c",
        "INSERT INTO t (path) VALUES ('b.c')",
        "RELEASE c",
        "INSERT INTO t (path) VALUES ('b')",
        "RELEASE b",
        "COMMIT",
    ],
    "ddl: 80 savepoints deep, the first row in the innermost": [
        "CREATE TABLE t (path text)",
        "BEGIN",
        *(f"SAVEPOINT s{n}" for n in range(80)),
        "INSERT INTO t VALUES ('inner 1')",
        "INSERT INTO t VALUES ('inner 2')",
        "RELEASE s0",
        "INSERT INTO t VALUES ('top')",
        "COMMIT",
    ],
    "ddl: a subtransaction that is rolled back inside one that is not": [
        "CREATE TABLE t (path text)",
        "BEGIN",
        "INSERT INTO t VALUES ('top')",
        "SAVEPOINT a",
        "INSERT INTO t VALUES ('a')",
        "SAVEPOINT b",
        "INSERT INTO t VALUES ('lost')",
        "ROLLBACK TO b",
        "INSERT INTO t VALUES ('a again')",
        "COMMIT",
    ],
    "ddl: only subtransactions write": [
        "CREATE TABLE t (path text)",
        "BEGIN",
        "SELECT pg_current_xact_id()",
        "SAVEPOINT a",
        "INSERT INTO t VALUES ('the top has an xid')",
        "RELEASE a",
        "COMMIT",
        "BEGIN",
        "SAVEPOINT a",
        "INSERT INTO t VALUES ('the top has none before')",
        "COMMIT",
    ],
    "ddl: user_catalog_table set and reset": [
        "CREATE TABLE t (id serial PRIMARY KEY, n name, o text[]) WITH (user_catalog_table = true)",
        "INSERT INTO t (n, o) VALUES ('one', '{a,b}')",
        "ALTER TABLE t RESET (user_catalog_table)",
        "INSERT INTO t (n) VALUES ('two')",
        "ALTER TABLE t SET (user_catalog_table = true)",
        "INSERT INTO t (n) VALUES ('three')",
        "UPDATE t SET o = '{c}' WHERE n = 'one'",
        "ALTER TABLE t ADD COLUMN x int",
        "DELETE FROM t WHERE n = 'two'",
        "ALTER TABLE t SET (user_catalog_table = false)",
        "INSERT INTO t (n, x) VALUES ('four', 4)",
        # PostgreSQL 18 can't decode it after the table is gone ("could not find pg_class entry").
        "!compare",
    ],
    "ddl: old keys by replica identity, as it changes": [
        "CREATE TABLE none (id serial, n int)",
        "INSERT INTO none (n) VALUES (1), (2), (3)",
        "UPDATE none SET id = -id",
        "DELETE FROM none WHERE n = 1",
        "ALTER TABLE none REPLICA IDENTITY FULL",
        "UPDATE none SET n = 20 WHERE n = 2",
        "UPDATE none SET id = -id",
        "ALTER TABLE none ADD COLUMN late text",
        "UPDATE none SET id = -id, late = 'now'",
        "DELETE FROM none",
        "CREATE TABLE keyed (id serial PRIMARY KEY, n int)",
        "INSERT INTO keyed (n) VALUES (1), (2), (3)",
        "DELETE FROM keyed WHERE n = 1",
        "UPDATE keyed SET n = 20 WHERE n = 2",
        "UPDATE keyed SET id = -id",
        "ALTER TABLE keyed REPLICA IDENTITY NOTHING",
        "UPDATE keyed SET id = -id",
        "ALTER TABLE keyed REPLICA IDENTITY FULL",
        "UPDATE keyed SET id = -id",
        "ALTER TABLE keyed REPLICA IDENTITY DEFAULT",
        "DELETE FROM keyed",
        "CREATE TABLE uniq (id serial UNIQUE, n int)",
        "INSERT INTO uniq (n) VALUES (1), (2)",
        "UPDATE uniq SET id = -id",
        "DELETE FROM uniq WHERE n = 1",
        "ALTER TABLE uniq REPLICA IDENTITY USING INDEX uniq_id_key",
        "UPDATE uniq SET n = 5",
        "UPDATE uniq SET id = -id",
        "DELETE FROM uniq",
    ],
    "ddl: TOAST of a table that is dropped before it is decoded": [
        "BEGIN",
        "CREATE TABLE t (id serial PRIMARY KEY, a text, n float8 DEFAULT 1.5, b text)",
        "COMMIT",
        f"INSERT INTO t (a) SELECT {incompressible('1')}",
        f"INSERT INTO t (b) SELECT {COMPRESSIBLE}",
        f"UPDATE t SET a = {incompressible('2')} WHERE id = 1",
        f"UPDATE t SET b = {incompressible('3')} WHERE id = 1",
        "DROP TABLE t",
    ],
    # ---- sql/xact
    "xact: a transaction that only locks, and savepoints before the first row": [
        "CREATE TABLE t (v text)",
        "BEGIN",
        "SAVEPOINT a",
        "SAVEPOINT b",
        "SAVEPOINT c",
        "SAVEPOINT d",
        "SAVEPOINT e",
        "INSERT INTO t VALUES ('five deep')",
        "RELEASE a",
        "COMMIT",
        "BEGIN",
        "SAVEPOINT a",
        "LOCK TABLE t IN ACCESS EXCLUSIVE MODE",
        "COMMIT",
        "BEGIN",
        "SELECT pg_current_xact_id()",
        "LOCK TABLE t IN ACCESS EXCLUSIVE MODE",
        "COMMIT",
    ],
    # ---- sql/rewrite
    (
        "rewrite: VACUUM FULL and CLUSTER of catalogs with TOAST, repeatedly, in lost and kept "
        "transactions"
    ): [
        'CREATE ROLE "commented {0}" NOLOGIN',
        "DO $$ BEGIN EXECUTE format('CREATE FUNCTION long() RETURNS text IMMUTABLE LANGUAGE sql AS "
        f"%L', 'SELECT ' || quote_literal({incompressible('7', 400)})); END $$",
        "DO $$ BEGIN EXECUTE format('COMMENT ON FUNCTION long() IS %L', long()); "
        "EXECUTE format('COMMENT ON ROLE \"commented {0}\" IS %L', long()); END $$",
        "CREATE TABLE large AS SELECT long() AS v",
        "CREATE TABLE t (id serial PRIMARY KEY, n int, v text)",
        "INSERT INTO t (n) VALUES (1)",
        "BEGIN",
        "INSERT INTO t (n) VALUES (2)",
        "ALTER TABLE t ADD COLUMN c1 int",
        "INSERT INTO t (n, c1) VALUES (3, 1)",
        "COMMIT",
        *(
            f"VACUUM FULL pg_{name}"
            for name in ["am", "amop", "proc", "opclass", "type", "index", "database"]
        ),
        "INSERT INTO t (n, c1) VALUES (4, 1)",
        "BEGIN",
        "CLUSTER pg_class USING pg_class_oid_index",
        "CLUSTER pg_class USING pg_class_oid_index",
        "ROLLBACK",
        "INSERT INTO t (n, c1) VALUES (5, 1)",
        "BEGIN",
        *("CLUSTER pg_class USING pg_class_oid_index" for _ in range(3)),
        "COMMIT",
        "VACUUM FULL pg_class",
        "VACUUM FULL pg_class",
        "REINDEX TABLE pg_class",
        "REINDEX INDEX pg_class_oid_index",
        "REINDEX INDEX pg_class_tblspc_relfilenode_index",
        "BEGIN",
        "INSERT INTO t (n, c1) VALUES (6, 1)",
        "ALTER TABLE t ADD COLUMN c2 int",
        "INSERT INTO t (n, c1, c2) VALUES (7, 1, 2)",
        "COMMIT",
        "CHECKPOINT",
        *(
            step
            for n in (8, 9)
            for step in (
                "VACUUM FULL pg_proc",
                "VACUUM FULL pg_description",
                "VACUUM FULL pg_shdescription",
                "VACUUM FULL large",
                f"INSERT INTO t (n, c1, c2) VALUES ({n}, 1, 2)",
            )
        ),
        'DROP ROLE "commented {0}"',
    ],
    # ---- sql/toast
    "toast: keys and columns out of line, changed and not": [
        "CREATE TABLE t (id serial, k text PRIMARY KEY, a text, b text)",
        "ALTER TABLE t ALTER k SET STORAGE EXTERNAL, ALTER a SET STORAGE EXTERNAL",
        "INSERT INTO t (k, a) VALUES (repeat('key', 700), repeat('value', 700))",
        "UPDATE t SET b = a",
        "UPDATE t SET k = k || '.'",
        "UPDATE t SET id = id + 1",
        f"INSERT INTO t (k, b) VALUES ('c', {COMPRESSIBLE})",
        (
            "INSERT INTO t (k, b) VALUES ('c', 'upsert') ON CONFLICT (k) DO UPDATE SET b = "
            "excluded.b || t.b"
        ),
        "DELETE FROM t",
    ],
    "toast: COPY of rows with and without values out of line": [
        "CREATE TABLE t (id int, v text, w text)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, CASE WHEN g IN (2, 4, 201) THEN repeat('long ', 800 + g) ELSE "
        "'short' END FROM generate_series(1, 203) g",
        "CREATE TABLE c (LIKE t)",
        "ALTER TABLE c ALTER v SET STORAGE EXTERNAL",
        "COPY t TO '/tmp/spillway-{0}.copy'",
        "COPY c FROM '/tmp/spillway-{0}.copy'",
    ],
    "toast: old rows larger than a page": [
        "CREATE TABLE t (id serial UNIQUE NOT NULL, k text, a text, b text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        (
            "ALTER TABLE t ALTER k SET STORAGE EXTERNAL, ALTER a SET STORAGE EXTERNAL, ALTER b SET "
            "STORAGE EXTERNAL"
        ),
        "INSERT INTO t (k) VALUES (repeat('9876543210', 10000))",
        "UPDATE t SET a = k",
        "UPDATE t SET b = a",
        "BEGIN",
        "INSERT INTO t (k) SELECT g::text FROM generate_series(1, 4000) g",
        "UPDATE t SET a = b WHERE id = 1",
        "DELETE FROM t WHERE id = 1",
        "COMMIT",
    ],
    # ---- sql/decoding_in_xact, sql/decoding_into_rel
    "decoding_in_xact: a transaction in progress does not show, whoever decodes": [
        "CREATE TABLE t (id serial PRIMARY KEY, v text)",
        "INSERT INTO t (v) VALUES ('before')",
        "BEGIN",
        "SELECT pg_current_xact_id()",
        "INSERT INTO t (v) VALUES ('in progress')",
        "!compare",
        "COMMIT",
        "INSERT INTO t (v) VALUES ('after')",
    ],
    "decoding_into_rel: what was decoded is written to a table that is decoded": [
        "CREATE TABLE source (id serial PRIMARY KEY, v text)",
        "CREATE TABLE target (id serial PRIMARY KEY, v text)",
        "SELECT pg_create_logical_replication_slot('into_{0}', 'test_decoding')",
        "INSERT INTO source (v) VALUES ('one')",
        (
            "INSERT INTO target (v) SELECT data FROM pg_logical_slot_peek_changes('into_{0}', "
            "NULL, NULL)"
        ),
        (
            "INSERT INTO target (v) SELECT data FROM pg_logical_slot_get_changes('into_{0}', NULL, "
            "NULL)"
        ),
        (
            "INSERT INTO target (v) SELECT data FROM pg_logical_slot_get_changes('into_{0}', NULL, "
            "NULL)"
        ),
        "SELECT pg_drop_replication_slot('into_{0}')",
    ],
    # ---- sql/prepared
    "prepared: kept, lost, and with DDL while another commits": [
        "CREATE TABLE a (i int)",
        "CREATE TABLE b (i int)",
        "BEGIN",
        "INSERT INTO a VALUES (1)",
        "PREPARE TRANSACTION 'kept {0}'",
        "COMMIT PREPARED 'kept {0}'",
        "INSERT INTO a VALUES (2)",
        "BEGIN",
        "INSERT INTO a VALUES (3)",
        "PREPARE TRANSACTION 'lost {0}'",
        "ROLLBACK PREPARED 'lost {0}'",
        "BEGIN",
        "INSERT INTO a VALUES (4)",
        "ALTER TABLE a ADD COLUMN v text",
        "INSERT INTO a VALUES (5, 'altered')",
        "PREPARE TRANSACTION 'ddl {0}'",
        "INSERT INTO b VALUES (6)",
        "COMMIT PREPARED 'ddl {0}'",
        "INSERT INTO a VALUES (7)",
        "INSERT INTO b VALUES (8)",
        "DROP TABLE a",
    ],
    # ---- sql/replorigin
    "replorigin: rows and messages of a session and of a transaction with an origin": [
        "CREATE TABLE t (id serial PRIMARY KEY, v text)",
        "SELECT pg_replication_origin_create('origin {0}')",
        "INSERT INTO t (v) VALUES ('local')",
        "SELECT pg_replication_origin_session_setup('origin {0}')",
        "SELECT pg_logical_emit_message(false, 'test', 'at once, with an origin')",
        "INSERT INTO t (v) VALUES ('remote, without a position')",
        "BEGIN",
        "SELECT pg_replication_origin_xact_setup('0/AABBCCDD', '2013-01-01 00:00')",
        "INSERT INTO t (v) VALUES ('remote')",
        "SELECT pg_logical_emit_message(true, 'test', 'inside, with an origin')",
        "COMMIT",
        "SELECT pg_replication_origin_session_reset()",
        "INSERT INTO t (v) VALUES ('local again')",
        "SELECT pg_replication_origin_drop('origin {0}')",
    ],
    # ---- sql/messages
    "messages: transactional or not, in kept and lost transactions": [
        "SELECT pg_logical_emit_message(true, 'test', 'one')",
        "SELECT pg_logical_emit_message(false, 'test', 'two')",
        "BEGIN",
        "SELECT pg_logical_emit_message(true, 'test', 'lost')",
        "SELECT pg_logical_emit_message(false, 'test', 'not lost')",
        "ROLLBACK",
        "BEGIN",
        "SELECT pg_logical_emit_message(true, 'test', 'three')",
        "SELECT pg_logical_emit_message(false, 'test', 'before three')",
        "SELECT pg_logical_emit_message(true, 'test', 'four')",
        "COMMIT",
        "SELECT pg_logical_emit_message(true, 'žluťoučký', 'čeština')",
    ],
    # ---- sql/spill
    **{
        f"spill: {script}": _spill(f"begin {script} commit")
        for script in (
            "big:top",
            "savepoint:a big:sub release:a",
            "savepoint:a big:sub release:a big:top",
            "savepoint:a big:sub release:a small:top",
            "savepoint:a small:sub release:a big:top",
            "big:top savepoint:a big:sub release:a",
            "big:top savepoint:a small:sub release:a",
            "savepoint:a big:1 release:a savepoint:b big:2 release:b",
            "savepoint:a big:1 release:a savepoint:b small:2 release:b",
            "savepoint:a small:1 release:a savepoint:b big:2 release:b",
            "savepoint:a big:1 savepoint:b big:2 release:b release:a",
            "savepoint:a big:1 savepoint:b small:2 release:b release:a",
            "savepoint:a small:1 savepoint:b big:2 release:b release:a",
            "savepoint:a big:1 savepoint:b big:lost back:b savepoint:c big:3 release:a",
        )
    },
    # ---- sql/truncate
    "truncate: one table, several, cascading, with sequences": [
        "CREATE TABLE a (id serial PRIMARY KEY, n int)",
        "CREATE TABLE b (n int)",
        "CREATE TABLE c (a int REFERENCES a)",
        "TRUNCATE a CASCADE",
        "TRUNCATE a, b, c RESTART IDENTITY",
        "TRUNCATE a RESTART IDENTITY CASCADE",
        "TRUNCATE b CONTINUE IDENTITY",
    ],
    # ---- specs/mxact
    "mxact: rows of pg_class shared by two sessions while a third writes and alters": [
        "CREATE TABLE t (id serial PRIMARY KEY)",
        "2> BEGIN",
        "2> SELECT count(*) FROM (SELECT * FROM pg_class FOR SHARE) s",
        "3> BEGIN",
        "3> SELECT count(*) FROM (SELECT * FROM pg_class FOR SHARE) s",
        "INSERT INTO t DEFAULT VALUES",
        "!compare",
        "3> COMMIT",
        "2> COMMIT",
        "2> BEGIN",
        "2> SELECT count(*) FROM (SELECT * FROM pg_class FOR KEY SHARE) s",
        "3> BEGIN",
        "3> SELECT count(*) FROM (SELECT * FROM pg_class FOR KEY SHARE) s",
        "ALTER TABLE t ADD COLUMN ts timestamptz",
        "INSERT INTO t DEFAULT VALUES",
        "!compare",
        "3> COMMIT",
        "2> COMMIT",
        "INSERT INTO t DEFAULT VALUES",
    ],
    # ---- specs/ondisk_startup
    "ondisk_startup: going on from a serialised state with a transaction in progress": [
        "CREATE TABLE t (id serial PRIMARY KEY)",
        "2> BEGIN",
        "2> SELECT pg_current_xact_id()",
        "3> BEGIN",
        "3> SELECT pg_current_xact_id()",
        "2> ALTER TABLE t ADD COLUMN by_2 int",
        "2> COMMIT",
        "2> BEGIN",
        "2> SELECT pg_current_xact_id()",
        "3> COMMIT",
        "2> COMMIT",
        "INSERT INTO t DEFAULT VALUES",
        "CHECKPOINT",
        "!state",
        "!restore",
        "INSERT INTO t DEFAULT VALUES",
        "ALTER TABLE t ADD COLUMN by_1 int",
        "INSERT INTO t DEFAULT VALUES",
        "!restore",
        "INSERT INTO t DEFAULT VALUES",
    ],
    # ---- specs/concurrent_ddl_dml
    **{
        f"concurrent_ddl_dml: type {type_} of the table written next": _concurrent(
            "BEGIN",
            "INSERT INTO written VALUES (1, 1)",
            f"2> ALTER TABLE altered ALTER b TYPE {type_}",
            "INSERT INTO altered VALUES (1, 1)",
            "COMMIT",
        )
        for type_ in ("float8", "varchar")
    },
    "concurrent_ddl_dml: type of the table written waits for its writer": _concurrent(
        "BEGIN",
        "INSERT INTO written VALUES (1, 1)",
        "2& ALTER TABLE written ALTER b TYPE float8",
        "INSERT INTO altered VALUES (1, 1)",
        "COMMIT",
        "2.",
        "INSERT INTO written VALUES (2, 2)",
        "BEGIN",
        "INSERT INTO written VALUES (3, 3)",
        "INSERT INTO altered VALUES (3, 3)",
        "2& ALTER TABLE written ALTER b TYPE varchar",
        "COMMIT",
        "2.",
        "INSERT INTO written VALUES (4, 4)",
    ),
    "concurrent_ddl_dml: both tables altered, the one at once, the other after": _concurrent(
        "BEGIN",
        "INSERT INTO written VALUES (1, 1)",
        "2> ALTER TABLE altered ALTER b TYPE varchar",
        "INSERT INTO altered VALUES (1, 1)",
        "2& ALTER TABLE written ALTER b TYPE varchar",
        "COMMIT",
        "2.",
        "INSERT INTO written VALUES (2, 'two')",
    ),
    "concurrent_ddl_dml: varchar to text, which rewrites nothing": _concurrent(
        "2> ALTER TABLE altered ALTER b TYPE varchar",
        "BEGIN",
        "INSERT INTO written VALUES (1, 1)",
        "2> ALTER TABLE altered ALTER b TYPE text",
        "INSERT INTO altered VALUES (1, 'x')",
        "COMMIT",
    ),
    "concurrent_ddl_dml: an ALTER that fails": _concurrent(
        "BEGIN",
        "INSERT INTO written VALUES (1, 1)",
        "2> DO $$ BEGIN ALTER TABLE altered ALTER b TYPE boolean; EXCEPTION WHEN OTHERS THEN NULL; "
        "END $$",
        "INSERT INTO altered VALUES (1, 1)",
        "COMMIT",
    ),
    **{
        f"concurrent_ddl_dml: a third column {type_}, between rows": _concurrent(
            "BEGIN",
            "INSERT INTO written VALUES (1, 1)",
            f"2> ALTER TABLE altered ADD c {type_}",
            "INSERT INTO altered VALUES (1, 1, 1)",
            "COMMIT",
            "BEGIN",
            "2> ALTER TABLE altered DROP c",
            f"2> ALTER TABLE altered ADD c {type_}",
            "INSERT INTO altered VALUES (2, 2, 2)",
            "2& ALTER TABLE altered DROP c",
            "COMMIT",
            "2.",
            "INSERT INTO altered VALUES (3, 3)",
        )
        for type_ in ("int", "float8", "varchar")
    },
    "concurrent_ddl_dml: a column's type changes there and back around transactions": _concurrent(
        "2> ALTER TABLE altered ADD c text",
        "BEGIN",
        "INSERT INTO written VALUES (1, 1)",
        "INSERT INTO altered VALUES (1, 1, '1')",
        "2& ALTER TABLE altered ALTER c TYPE varchar",
        "INSERT INTO altered VALUES (2, 2, '2')",
        "COMMIT",
        "2.",
        "INSERT INTO altered VALUES (3, 3, '3')",
        "!compare",
        "2> ALTER TABLE altered ALTER c TYPE int USING c::int",
        "INSERT INTO altered VALUES (4, 4, 4)",
    ),
    # ---- specs/oldest_xmin
    "oldest_xmin: a composite type loses an attribute while a row of it is in progress": [
        "CREATE TYPE basket AS (apples int, pears int, mangos int)",
        "CREATE TABLE harvest (fruits basket)",
        "BEGIN",
        "SELECT pg_current_xact_id()",
        "2> BEGIN",
        "2> INSERT INTO harvest VALUES ((1, 2, 3))",
        "ALTER TYPE basket DROP ATTRIBUTE mangos",
        "COMMIT",
        "CHECKPOINT",
        "!compare",
        "2> COMMIT",
        "VACUUM pg_attribute",
        "INSERT INTO harvest VALUES ((4, 5))",
    ],
    # ---- specs/snapshot_transfer
    "snapshot_transfer: a subtransaction writes, another session alters, it writes again": [
        "CREATE TABLE dummy (i int)",
        "CREATE TABLE harvest (apples int, pears int)",
        "BEGIN",
        "SAVEPOINT a",
        "SELECT pg_current_xact_id()",
        "INSERT INTO dummy VALUES (0)",
        "2> ALTER TABLE harvest ADD mangos int",
        "INSERT INTO harvest VALUES (1, 2, 3)",
        "RELEASE a",
        "COMMIT",
        "BEGIN",
        "SAVEPOINT a",
        "SELECT pg_current_xact_id()",
        "SAVEPOINT b",
        "INSERT INTO dummy VALUES (1)",
        "2> ALTER TABLE harvest ADD plums int",
        "INSERT INTO harvest VALUES (1, 2, 3, 4)",
        "RELEASE b",
        "RELEASE a",
        "COMMIT",
    ],
    # ---- specs/subxact_without_top
    "subxact_without_top: restored after a transaction's beginning, which is over": [
        "CREATE TABLE harvest (apples int)",
        "BEGIN",
        "SAVEPOINT a",
        "INSERT INTO harvest VALUES (41)",
        "RELEASE a",
        "CHECKPOINT",
        "!state",
        "2> BEGIN",
        "2> INSERT INTO harvest VALUES (43)",
        "DO $$ BEGIN FOR i IN 1..128 LOOP BEGIN INSERT INTO harvest VALUES (i); "
        "EXCEPTION WHEN OTHERS THEN RAISE; END; END LOOP; END $$",
        "COMMIT",
        "CHECKPOINT",
        "!restore",
        "2> COMMIT",
    ],
    # ---- specs/catalog_change_snapshot
    "catalog_change_snapshot: restored between a TRUNCATE and its commit": [
        "CREATE TABLE t (a int, b int)",
        "BEGIN",
        "SAVEPOINT a",
        "TRUNCATE t",
        "CHECKPOINT",
        "!state",
        "COMMIT",
        "!restore",
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "CHECKPOINT",
        "!compare",
        "COMMIT",
    ],
    (
        "catalog_change_snapshot: restored inside a transaction that then writes a catalog table "
        "of the user"
    ): [
        "CREATE TABLE t (a int, b int)",
        "CREATE TABLE metadata (a int) WITH (user_catalog_table = true)",
        "BEGIN",
        "SAVEPOINT a",
        "INSERT INTO t VALUES (1)",
        "CHECKPOINT",
        "!state",
        "INSERT INTO metadata VALUES (1)",
        "COMMIT",
        "!restore",
        "BEGIN",
        "INSERT INTO t VALUES (2)",
        "CHECKPOINT",
        "!compare",
        "COMMIT",
    ],
    # ---- specs/invalidation_distribution, as far as test_decoding shows it
    "invalidation_distribution: a table joins a publication between two rows of a transaction": [
        "CREATE TABLE t (a int, b int)",
        'CREATE PUBLICATION "pub {0}"',
        "BEGIN",
        "INSERT INTO t VALUES (1, 1)",
        '2& ALTER PUBLICATION "pub {0}" ADD TABLE t',
        "INSERT INTO t VALUES (2, 2)",
        "COMMIT",
        "2.",
        "INSERT INTO t VALUES (3, 3)",
        'DROP PUBLICATION "pub {0}"',
    ],
    # ---- specs/parallel_session_origin: messages from a session with an origin
    "parallel_session_origin: transactions of one origin from two sessions in turn": [
        "SELECT pg_replication_origin_create('shared {0}')",
        "SELECT pg_replication_origin_session_setup('shared {0}')",
        "SELECT pg_logical_emit_message(true, 'prefix', 'first')",
        "SELECT pg_replication_origin_session_reset()",
        "2> SELECT pg_replication_origin_session_setup('shared {0}')",
        "2> SELECT pg_logical_emit_message(true, 'prefix', 'second')",
        "2> SELECT pg_replication_origin_session_reset()",
        "SELECT pg_replication_origin_drop('shared {0}')",
    ],
}
