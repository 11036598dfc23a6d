# ruff: noqa: ISC004 - a statement too long for a line is written in pieces
"""Everything else that PostgreSQL writes in ways of its own: what one database and one server's
settings allow.

In the language of ``harness.interleaving``. What takes a server with other settings, several
databases or a crash is in ``test_wal_varieties`` and ``test_databases``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oracle.postgresql_scenarios import COMPRESSIBLE, incompressible
from spillway.catalog.layout import TRACKED_CATALOGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.interleaving import Step
    from spillway.catalog.layout import TrackedCatalog

#: An index that stops an INSERT between its speculative row and the row's index entry: at the
#: function's second call in a statement it waits for the advisory lock with the session's number.
SPECULATION: Final[list[Step]] = [
    "CREATE FUNCTION gate(v text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN "
    "PERFORM set_config('gate.calls', (current_setting('gate.calls')::int + 1)::text, false); "
    "IF current_setting('gate.calls') = '2' THEN "
    "PERFORM pg_advisory_xact_lock(current_setting('gate.session')::int); END IF; "
    "RETURN v; END $$",
    "SET gate.calls = 10",
    "CREATE TABLE t (id text, v text, big text)",
    "CREATE UNIQUE INDEX ON t (gate(id))",
    "3> SELECT pg_advisory_lock(1), pg_advisory_lock(2)",
    "SET gate.calls = 0",
    "SET gate.session = 1",
    "2> SET gate.calls = 0",
    "2> SET gate.session = 2",
]

#: Subtransactions deep below one another; the server's stack allows some thousands.
_DEPTH: Final = 1000


def _nested(depth: int, innermost: str) -> list[Step]:
    return [*(f"SAVEPOINT s{n}" for n in range(depth)), innermost]


def _columns(count: int, definition: str) -> str:
    return (
        f"(SELECT string_agg(format('c%s {definition}', i), ', ') FROM generate_series(1, {count}) "
        "i)"
    )


def _mirrored(major: int) -> list[TrackedCatalog]:
    """The catalogs that can be rewritten by name; their TOAST tables are with them."""
    return [c for c in TRACKED_CATALOGS.values() if c.since_major <= major and not c.is_toast]


def _rewritten(major_since: int) -> list[Step]:
    """VACUUM FULL of every mirrored catalog, with DDL and rows before, between and after."""
    steps: list[Step] = [
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (0, 'before')",
    ]
    catalogs = _mirrored(major_since)
    for number, catalog in enumerate(catalogs, 1):
        steps += [
            "2> BEGIN",
            (
                f"2> INSERT INTO t VALUES ({1000 + number}, 'open during the rewrite of "
                f"{catalog.name}')"
            ),
            f"VACUUM FULL {catalog.name}",
            f"CREATE TYPE mood{number} AS ENUM ('a', 'b')",
            f"ALTER TABLE t ADD COLUMN c{number} mood{number} DEFAULT 'b'",
            f"INSERT INTO t (id, c{number}) VALUES ({number}, 'a')",
            f"CREATE TABLE made{number} (LIKE t)",
            f"INSERT INTO made{number} SELECT * FROM t WHERE id = {number}",
            "2> COMMIT",
        ]
        # An ALTER waits for the row of the other session; so that one comes first.
        steps[-7:] = [steps[-1], *steps[-7:-1]]
    return steps


def _clustered(major_since: int) -> list[Step]:
    """CLUSTER of every mirrored catalog inside transactions, kept and lost, that go on to change
    it.
    """
    steps: list[Step] = ["2> SELECT 1", "CREATE TABLE t (id int PRIMARY KEY, v text)"]
    catalogs = [c for c in _mirrored(major_since) if not c.is_shared]
    for number, catalog in enumerate(catalogs, 1):
        for end in ("ROLLBACK", "COMMIT"):
            steps += [
                "BEGIN",
                f"CREATE TABLE u{number} (a int, m int[])",
                f"INSERT INTO u{number} VALUES (1, '{{1}}')",
                _cluster(catalog.name),
                f"ALTER TABLE u{number} ADD COLUMN z text DEFAULT 'z'",
                f"INSERT INTO u{number} VALUES (2, NULL, 'zz')",
                # It may have to wait until the catalog can be read again.
                f"2& INSERT INTO t VALUES ({number * 10 + len(end)}, 'meanwhile')",
                f"CREATE TYPE pair{number} AS (x int, y u{number})",
                f"CREATE TABLE v{number} (p pair{number})",
                f"INSERT INTO v{number} SELECT (1, u)::pair{number} FROM u{number} u",
                end,
                "2.",
                (
                    f"INSERT INTO t VALUES ({number * 10}, '{end}') ON CONFLICT (id) DO UPDATE SET "
                    f"v = t.v || '{end}'"
                ),
            ]
    return steps


def _cluster(catalog: str) -> str:
    """CLUSTER by the catalog's first unique index, whatever its name is in this major."""
    return (
        "DO $$ BEGIN EXECUTE format('CLUSTER pg_catalog.%I USING %I', '{0}', (SELECT i.relname "
        "FROM pg_index x JOIN pg_class i ON i.oid = indexrelid WHERE indrelid = "
        "'pg_catalog.{0}'::regclass AND indisunique ORDER BY i.oid LIMIT 1)); END $$"
    ).replace("{0}", catalog)


SCENARIOS: Final[Mapping[str, list[Step]]] = {
    # ---- what no lock holds
    "a table whose column's type was dropped beside its creation": [
        "CREATE SCHEMA s",
        "CREATE TYPE s.y AS (a int, b text)",
        "BEGIN",
        "CREATE TABLE t (id int PRIMARY KEY, v text, c s.y, d s.y[])",
        "INSERT INTO t VALUES (1, 'a', (1, 'x'), NULL), (2, 'b', NULL, NULL)",
        # It sees no table that depends on the type.
        "2> BEGIN",
        "2> DROP SCHEMA s CASCADE",
        "COMMIT",
        "2> COMMIT",
        "DELETE FROM t WHERE id = 1",
        "TRUNCATE t",
    ],
    # ---- subtransactions
    "1,000 savepoints deep, first row in the innermost, some rolled back": [
        "CREATE TABLE t (v text)",
        "BEGIN",
        *_nested(_DEPTH, "INSERT INTO t VALUES ('deepest')"),
        "INSERT INTO t VALUES ('deepest again')",
        "ROLLBACK TO s990",
        "INSERT INTO t VALUES ('in 990')",
        "RELEASE s500",
        "INSERT INTO t VALUES ('in 499')",
        "ROLLBACK TO s400",
        "INSERT INTO t VALUES ('in 400')",
        "RELEASE s0",
        "COMMIT",
        "BEGIN",
        *_nested(200, "INSERT INTO t VALUES ('lost')"),
        "ROLLBACK TO s0",
        "COMMIT",
    ],
    "10,000 subtransactions side by side, a third rolled back": [
        "CREATE TABLE t (i int)",
        "DO $$ BEGIN FOR i IN 1..10000 LOOP BEGIN INSERT INTO t VALUES (i); "
        "IF i % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF; "
        "EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$",
    ],
    "subtransactions whose first write comes long after they began, while others write": [
        "CREATE TABLE t (i int)",
        "CREATE TABLE other (i int)",
        "BEGIN",
        *(f"SAVEPOINT s{n}" for n in range(5)),
        "2> INSERT INTO other SELECT generate_series(1, 500)",
        "2> CREATE TABLE meanwhile (i int)",
        "CHECKPOINT",
        "INSERT INTO t VALUES (1)",
        "2> ALTER TABLE other ADD v text",
        "RELEASE s3",
        "INSERT INTO t VALUES (2)",
        "2> INSERT INTO other VALUES (1, 'x')",
        "INSERT INTO other VALUES (2, 'y')",
        "RELEASE s0",
        "SAVEPOINT last",
        "CHECKPOINT",
        "INSERT INTO t VALUES (3)",
        "COMMIT",
    ],
    "DDL in subtransactions, kept and lost, among rows of the table": [
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "BEGIN",
        "INSERT INTO t VALUES (1, 'a')",
        "SAVEPOINT a",
        "ALTER TABLE t ADD x int DEFAULT 1",
        "INSERT INTO t VALUES (2, 'b', 2)",
        "SAVEPOINT b",
        "ALTER TABLE t ALTER x TYPE text",
        "INSERT INTO t VALUES (3, 'c', 'three')",
        "TRUNCATE t",
        "INSERT INTO t VALUES (4, 'd', 'four')",
        "ROLLBACK TO b",
        "INSERT INTO t VALUES (5, 'e', 5)",
        "RELEASE a",
        "INSERT INTO t VALUES (6, 'f', 6)",
        "SAVEPOINT c",
        "DROP TABLE t",
        "CREATE TABLE t (alone text)",
        "INSERT INTO t VALUES ('a new one')",
        "ROLLBACK TO c",
        "INSERT INTO t VALUES (7, 'g', 7)",
        "COMMIT",
    ],
    # ---- speculative insertion
    "a speculative row that is withdrawn, then updates": [
        *SPECULATION,
        f"1& INSERT INTO t SELECT 'k', 'first', {incompressible('1')} "
        "ON CONFLICT (gate(id)) DO UPDATE SET v = t.v || ' updated'",
        f"2& INSERT INTO t SELECT 'k', 'second', {incompressible('2')} "
        "ON CONFLICT (gate(id)) DO UPDATE SET v = t.v || ' updated'",
        "3> SELECT pg_advisory_unlock(2)",
        "2.",
        "3> SELECT pg_advisory_unlock(1)",
        "1.",
    ],
    "a speculative row that is withdrawn, then does nothing, inside a larger transaction": [
        *SPECULATION,
        "CREATE TABLE also (i int)",
        "BEGIN",
        "INSERT INTO also VALUES (1)",
        "SAVEPOINT a",
        f"1& INSERT INTO t SELECT 'k', 'first', {incompressible('1')} ON CONFLICT DO NOTHING",
        f"2& INSERT INTO t SELECT 'k', 'second', {incompressible('2')} ON CONFLICT DO NOTHING",
        "3> SELECT pg_advisory_unlock(2)",
        "2.",
        "3> SELECT pg_advisory_unlock(1)",
        "1.",
        "INSERT INTO also VALUES (2)",
        "COMMIT",
    ],
    # ---- how rows get in
    "COPY FREEZE, and FREEZE of rows with TOAST": [
        "CREATE TABLE source (id int, v text)",
        f"INSERT INTO source SELECT g, {incompressible('g', 100)} FROM generate_series(1, 30) g",
        "COPY source TO '/tmp/spillway-{0}.freeze'",
        "BEGIN",
        "CREATE TABLE t (id int, v text)",
        "COPY t FROM '/tmp/spillway-{0}.freeze' WITH (FREEZE)",
        "COMMIT",
        "BEGIN",
        "TRUNCATE source",
        "COPY source FROM '/tmp/spillway-{0}.freeze' WITH (FREEZE)",
        "INSERT INTO source VALUES (100, 'after')",
        "COMMIT",
        "VACUUM (FREEZE) source",
        "UPDATE source SET id = -id WHERE id < 3",
    ],
    "CREATE TABLE AS, SELECT INTO, materialised views": [
        "CREATE TABLE t AS SELECT g AS id, 'v' || g AS v FROM generate_series(1, 200) g",
        "SELECT id, v INTO t2 FROM t WHERE id < 5",
        "CREATE TABLE empty AS SELECT * FROM t WITH NO DATA",
        "INSERT INTO empty SELECT * FROM t2",
        "CREATE MATERIALIZED VIEW m AS SELECT id, v FROM t WHERE id < 10",
        "CREATE UNIQUE INDEX ON m (id)",
        "UPDATE t SET v = 'new' WHERE id < 4",
        "REFRESH MATERIALIZED VIEW m",
        "DELETE FROM t WHERE id = 2",
        "UPDATE t SET v = 'newer' WHERE id < 4",
        "REFRESH MATERIALIZED VIEW CONCURRENTLY m",
        "REFRESH MATERIALIZED VIEW m WITH NO DATA",
    ],
    "foreign keys: cascades, SET NULL, SET DEFAULT, deferred": [
        "CREATE TABLE p (id int PRIMARY KEY)",
        (
            "CREATE TABLE c1 (id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE ON UPDATE "
            "CASCADE)"
        ),
        (
            "CREATE TABLE c2 (id int PRIMARY KEY, p int REFERENCES p ON DELETE SET NULL ON UPDATE "
            "SET NULL)"
        ),
        "CREATE TABLE c3 (id int, p int DEFAULT 0 REFERENCES p ON DELETE SET DEFAULT ON UPDATE "
        "CASCADE DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE c4 (id int, c1 int REFERENCES c1 ON DELETE CASCADE)",
        "INSERT INTO p SELECT generate_series(0, 9)",
        "INSERT INTO c1 SELECT g, g FROM generate_series(1, 9) g",
        "INSERT INTO c2 SELECT g, g FROM generate_series(1, 9) g",
        "INSERT INTO c3 SELECT g, g FROM generate_series(1, 9) g",
        "INSERT INTO c4 SELECT g, g FROM generate_series(1, 9) g",
        "DELETE FROM p WHERE id IN (1, 2)",
        "UPDATE p SET id = id + 100 WHERE id IN (3, 4)",
        "BEGIN",
        "INSERT INTO c3 VALUES (50, 50)",
        "INSERT INTO p VALUES (50)",
        "COMMIT",
    ],
    "generated and identity columns, through rewrites": [
        (
            "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, b int "
            "GENERATED ALWAYS AS (a * 2) STORED)"
        ),
        "INSERT INTO t (a) VALUES (1), (2)",
        "UPDATE t SET a = 5 WHERE id = 1",
        "ALTER TABLE t ADD c text GENERATED ALWAYS AS ('<' || a::text || '>') STORED",
        "UPDATE t SET a = 6 WHERE id = 2",
        "ALTER TABLE t ALTER b DROP EXPRESSION",
        "UPDATE t SET b = 0",
        "ALTER TABLE t ALTER id SET GENERATED BY DEFAULT",
        "INSERT INTO t (id, a) VALUES (100, 7)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "DELETE FROM t",
    ],
    # ---- tables of other kinds
    "unlogged and temporary tables, and back to logged": [
        "CREATE UNLOGGED TABLE u (id int PRIMARY KEY, v text)",
        "CREATE TEMP TABLE te (id int, v text)",
        f"INSERT INTO u SELECT g, {incompressible('g', 100)} FROM generate_series(1, 5) g",
        "INSERT INTO te VALUES (1, 'not there')",
        "CREATE TABLE t (id int)",
        "INSERT INTO t SELECT id FROM u UNION ALL SELECT id FROM te",
        "ALTER TABLE u SET LOGGED",
        "INSERT INTO u VALUES (10, 'logged')",
        "BEGIN",
        "INSERT INTO u VALUES (11, 'logged')",
        "ALTER TABLE u SET UNLOGGED",
        "INSERT INTO u VALUES (12, 'unlogged')",
        "ALTER TABLE u SET LOGGED",
        "INSERT INTO u VALUES (13, 'logged again')",
        "COMMIT",
        "TRUNCATE te",
        "TRUNCATE u",
    ],
    "inheritance": [
        "CREATE TABLE p (id int, v text)",
        "CREATE TABLE c (extra int) INHERITS (p)",
        "CREATE TABLE gc (more text) INHERITS (c)",
        "INSERT INTO p VALUES (1, 'p')",
        "INSERT INTO c VALUES (2, 'c', 22)",
        "INSERT INTO gc VALUES (3, 'gc', 33, 'm')",
        "ALTER TABLE p ADD late int DEFAULT 9",
        "UPDATE p SET v = v || '!'",
        "ALTER TABLE p RENAME v TO w",
        "ALTER TABLE c NO INHERIT p",
        "UPDATE gc SET w = 'alone'",
        "ALTER TABLE c INHERIT p",
        "TRUNCATE ONLY p",
        "DELETE FROM p",
        "TRUNCATE p",
    ],
    "partitions attached, detached, also concurrently, and rows that move": [
        "CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id)",
        "CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (10, 11, 12)",
        "CREATE TABLE p2d PARTITION OF p2 DEFAULT",
        "CREATE TABLE other (v text, dropped int, id int NOT NULL)",
        "ALTER TABLE other DROP dropped",
        "INSERT INTO other VALUES ('before it is one', 25)",
        "ALTER TABLE p ATTACH PARTITION other FOR VALUES FROM (20) TO (30)",
        "INSERT INTO p SELECT g, 'v' FROM generate_series(0, 24) g",
        "UPDATE p SET id = id + 26 WHERE id = 3",
        "UPDATE p SET id = 3 WHERE id = 12",
        "BEGIN",
        "UPDATE p SET id = 12 WHERE id = 29",
        "ALTER TABLE p ADD late int DEFAULT 1",
        "UPDATE p SET id = 29 WHERE id = 13",
        "COMMIT",
        "ALTER TABLE p DETACH PARTITION p1",
        "INSERT INTO p1 VALUES (5, 'alone') ON CONFLICT DO NOTHING",
        "2> BEGIN",
        "2> SELECT * FROM p",
        "ALTER TABLE other SET (fillfactor = 50)",
        "2> COMMIT",
        "ALTER TABLE p DETACH PARTITION other CONCURRENTLY",
        "INSERT INTO other (v, id) VALUES ('alone too', 28)",
        "TRUNCATE p",
        "DROP TABLE p",
    ],
    "a partition detached concurrently while a session still sees it": [
        "CREATE TABLE p (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "2> BEGIN",
        "2> INSERT INTO p VALUES (1)",
        "1& ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY",
        "2> INSERT INTO p1 VALUES (2)",
        "2> COMMIT",
        "1.",
        "INSERT INTO p1 VALUES (3)",
        "INSERT INTO p VALUES (11)",
    ],
    # ---- rewrites
    "rewrites of a table with TOAST, in every way, inside transactions": [
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int)",
        f"INSERT INTO t SELECT g, {incompressible('g', 100)}, g FROM generate_series(1, 5) g",
        "VACUUM FULL t",
        "UPDATE t SET n = 0 WHERE id = 1",
        "BEGIN",
        "UPDATE t SET n = 1 WHERE id = 1",
        "CLUSTER t USING t_pkey",
        "UPDATE t SET n = 2 WHERE id = 1",
        f"UPDATE t SET v = {incompressible('9', 100)} WHERE id = 2",
        "ALTER TABLE t ALTER n TYPE bigint",
        f"INSERT INTO t SELECT 10, {incompressible('8', 100)}, 10",
        "SAVEPOINT a",
        "ALTER TABLE t ALTER v TYPE varchar",
        "ALTER TABLE t ADD r float8 DEFAULT random()",
        f"INSERT INTO t SELECT 11, {incompressible('7', 100)}, 11, 0.5",
        "ROLLBACK TO a",
        f"INSERT INTO t SELECT 12, {incompressible('6', 100)}, 12",
        "COMMIT",
        "ALTER TABLE t ALTER v SET STORAGE PLAIN, ALTER n TYPE text USING '<' || n || '>'",
        "DELETE FROM t WHERE id > 3",
        "ALTER TABLE t ALTER id TYPE text",
        "UPDATE t SET id = 'x' || id",
    ],
    "VACUUM FULL of every mirrored catalog of 14, another session writing": _rewritten(14),
    "CLUSTER of every mirrored catalog of 14 in transactions": _clustered(14),
    # ---- locks and multixacts
    "multixacts on a user's rows: lockers, lockers with an updater, deletes": [
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "CREATE TABLE ref (t int REFERENCES t)",
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)",
        "BEGIN",
        "SELECT * FROM t FOR KEY SHARE",
        "2> BEGIN",
        "2> SELECT * FROM t FOR KEY SHARE",
        "3> BEGIN",
        "3> UPDATE t SET n = n + 10 WHERE id = 1",
        "3> SAVEPOINT a",
        "3> UPDATE t SET n = n + 10 WHERE id = 2",
        "3> ROLLBACK TO a",
        "3> INSERT INTO ref VALUES (3)",
        "3> COMMIT",
        "2> UPDATE t SET n = -1 WHERE id = 3",
        "COMMIT",
        "2> COMMIT",
        "DELETE FROM t WHERE id = 2",
        "VACUUM (FREEZE) t",
        "UPDATE t SET n = 100",
    ],
    # ---- sizes
    "1,600 columns: null, dropped, and every one set": [
        f"DO $$ BEGIN EXECUTE 'CREATE TABLE t (' || {_columns(1600, 'int')} || ')'; END $$",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t (c1, c800, c1600) VALUES (1, 800, 1600)",
        (
            "DO $$ BEGIN EXECUTE 'INSERT INTO t SELECT ' || (SELECT string_agg(i::text, ', ') FROM "
            "generate_series(1, 1600) i); END $$"
        ),
        "ALTER TABLE t DROP c1, DROP c799, DROP c1599",
        "UPDATE t SET c2 = -1",
        "DELETE FROM t WHERE c3 IS NULL",
        "INSERT INTO t (c1600) VALUES (7)",
        f"DO $$ BEGIN EXECUTE 'CREATE TABLE texts (' || {_columns(400, 'text')} || ')'; END $$",
        "DO $$ BEGIN EXECUTE 'INSERT INTO texts SELECT ' || (SELECT string_agg(format('repeat(%L, "
        "10) || %s', i, i), ', ') FROM generate_series(1, 400) i); END $$",
        f"INSERT INTO texts (c400, c1) SELECT {incompressible('1')}, {COMPRESSIBLE}",
        "DELETE FROM texts",
    ],
    "rows of exactly the sizes around a page, HOT and not": [
        "CREATE TABLE t (id int PRIMARY KEY, v text) WITH (fillfactor = 100)",
        "ALTER TABLE t ALTER v SET STORAGE PLAIN",
        "INSERT INTO t SELECT g, repeat('x', 7900 + g) FROM generate_series(1, 200) g",
        "UPDATE t SET v = repeat('y', length(v)) WHERE id % 3 = 0",
        "UPDATE t SET v = left(v, 100)",
        "UPDATE t SET v = v || '.'",
        "DELETE FROM t WHERE id % 2 = 0",
        "VACUUM t",
        "INSERT INTO t SELECT g, repeat('z', g) FROM generate_series(201, 400) g",
    ],
    # ---- what shows nothing, or little
    "sequences, large objects, comments, grants, notifications, statistics": [
        "CREATE TABLE t (id serial PRIMARY KEY)",
        "INSERT INTO t DEFAULT VALUES",
        "SELECT nextval('t_id_seq'), setval('t_id_seq', 100)",
        "ALTER SEQUENCE t_id_seq RESTART WITH 500",
        "SELECT lo_from_bytea(0, repeat('large', 2000)::bytea)",
        "COMMENT ON TABLE t IS 'commented'",
        "GRANT SELECT ON t TO PUBLIC",
        "NOTIFY channel, 'payload'",
        "CREATE STATISTICS st ON id, (id % 2) FROM t",
        "ANALYZE t",
        "CREATE INDEX ON t (id)",
        "CREATE INDEX CONCURRENTLY t_hash ON t USING hash (id)",
        "REINDEX TABLE CONCURRENTLY t",
        "INSERT INTO t DEFAULT VALUES",
        "CREATE VIEW w AS SELECT * FROM t",
        "CREATE RULE r AS ON INSERT TO w DO INSTEAD INSERT INTO t VALUES (new.id)",
        "INSERT INTO w VALUES (900)",
        (
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id = NEW.id + 1; "
            "RETURN NEW; END $$"
        ),
        "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "INSERT INTO t VALUES (1000)",
    ],
    "every index kind under rows that come and go": [
        "CREATE TABLE t (id int PRIMARY KEY, p point, a int[], s text, r int4range)",
        "CREATE INDEX ON t USING gist (p)",
        "CREATE INDEX ON t USING gin (a)",
        "CREATE INDEX ON t USING spgist (s)",
        "CREATE INDEX ON t USING brin (id)",
        "CREATE INDEX ON t USING hash (s)",
        "ALTER TABLE t ADD EXCLUDE USING gist (r WITH &&)",
        (
            "INSERT INTO t SELECT g, point(g, g), ARRAY[g, g + 1], 's' || g, int4range(g, g + 1) "
            "FROM generate_series(1, 300) g"
        ),
        "UPDATE t SET p = point(0, 0), a = '{9}' WHERE id < 100",
        "DELETE FROM t WHERE id % 2 = 0",
        "VACUUM t",
        (
            "INSERT INTO t SELECT g, point(g, g), ARRAY[g], 's', int4range(g, g + 1) FROM "
            "generate_series(301, 400) g"
        ),
    ],
}

#: Those that need a later major.
SINCE: Final[Mapping[int, Mapping[str, list[Step]]]] = {
    15: {
        "VACUUM FULL of every mirrored catalog of 15, another session writing": _rewritten(15),
        "CLUSTER of every mirrored catalog of 15 in transactions": _clustered(15),
        "MERGE": [
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
            "MERGE INTO t USING generate_series(2, 6) g ON t.id = g WHEN MATCHED AND g = 2 THEN "
            "DELETE WHEN MATCHED THEN UPDATE SET v = v || g WHEN NOT MATCHED THEN INSERT VALUES "
            "(g, 'new')",
        ],
        "UNIQUE NULLS NOT DISTINCT as replica identity's companion": [
            "CREATE TABLE t (a int UNIQUE NULLS NOT DISTINCT, b int NOT NULL)",
            "CREATE UNIQUE INDEX t_b ON t (b)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_b",
            "INSERT INTO t VALUES (NULL, 1)",
            "UPDATE t SET b = 2",
        ],
    },
    18: {
        "virtual generated columns": [
            (
                "CREATE TABLE t (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (a * 2) "
                "VIRTUAL, s int GENERATED ALWAYS AS (a * 3) STORED)"
            ),
            "INSERT INTO t (id, a) VALUES (1, 1), (2, 2)",
            "UPDATE t SET a = 5 WHERE id = 1",
            "ALTER TABLE t ALTER v SET EXPRESSION AS (a * 4)",
            "ALTER TABLE t ADD w text GENERATED ALWAYS AS (a::text) VIRTUAL",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "UPDATE t SET a = 6 WHERE id = 2",
            "DELETE FROM t",
        ],
        "WITHOUT OVERLAPS and NOT NULL NOT VALID": [
            (
                "CREATE TABLE t (id int4range, during daterange, PRIMARY KEY (id, during WITHOUT "
                "OVERLAPS))"
            ),
            (
                "INSERT INTO t VALUES ('[1,2)', '[2026-01-01,2026-02-01)'), ('[1,2)', "
                "'[2026-02-01,2026-03-01)')"
            ),
            "UPDATE t SET during = '[2026-04-01,2026-05-01)' WHERE during @> '2026-01-05'::date",
            "CREATE TABLE n (i int)",
            "INSERT INTO n VALUES (NULL)",
            "ALTER TABLE n ADD CONSTRAINT nn NOT NULL i NOT VALID",
            "INSERT INTO n VALUES (1)",
        ],
    },
}
