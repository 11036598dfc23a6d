"""The decoder against the server's own slot: every line of test_decoding, its LSN and its xid."""

from __future__ import annotations

import random
import threading
import time

import psycopg
import pytest

from harness.decoding_session import DecodingSession
from harness.oracle import create_slot
from harness.tiers import deep
from spillway.decoding.snapshot_builder import SnapshotState

#: A value that is stored out of line, and compresses badly (so many digests) or well.
LONG = "(SELECT string_agg(md5({0}::text || g::text), '') FROM generate_series(1, 300) g)"
COMPRESSIBLE = "repeat('abcdefgh' || {0}::text, 20000)"

SCENARIOS = {
    "nothing": "",
    "plain changes": """
        CREATE TABLE t (id int PRIMARY KEY, v text, n numeric);
        INSERT INTO t SELECT g, 'v' || g, g / 3.0 FROM generate_series(1, 200) g;
        UPDATE t SET v = 'changed' WHERE id % 2 = 0;
        UPDATE t SET id = id + 1000 WHERE id < 20;
        DELETE FROM t WHERE id % 3 = 0;
    """,
    "replica identities": """
        CREATE TABLE d (id int PRIMARY KEY, a int, b text);
        CREATE TABLE n (LIKE d INCLUDING ALL); ALTER TABLE n REPLICA IDENTITY NOTHING;
        CREATE TABLE f (LIKE d INCLUDING ALL); ALTER TABLE f REPLICA IDENTITY FULL;
        CREATE TABLE i (LIKE d INCLUDING ALL); ALTER TABLE i ALTER a SET NOT NULL;
        CREATE UNIQUE INDEX i_a ON i (a); ALTER TABLE i REPLICA IDENTITY USING INDEX i_a;
        CREATE TABLE k (a int, b text);
        DO $$ DECLARE name text; BEGIN
            FOREACH name IN ARRAY ARRAY['d', 'n', 'f', 'i'] LOOP
                EXECUTE format(
                    'INSERT INTO %I SELECT g, g * 10, ''b'' || g FROM generate_series(1, 6) g',
                    name
                );
                EXECUTE format('UPDATE %I SET b = NULL WHERE id = 1', name);
                EXECUTE format('UPDATE %I SET id = 100, a = 5 WHERE id = 2', name);
                EXECUTE format('DELETE FROM %I WHERE id IN (3, 4)', name);
            END LOOP;
            INSERT INTO k VALUES (1, 'x'); UPDATE k SET b = 'y'; DELETE FROM k;
        END $$;
        ALTER TABLE d REPLICA IDENTITY FULL;
        UPDATE d SET b = 'full now'; DELETE FROM d;
    """,
    "savepoints": """
        CREATE TABLE t (id int PRIMARY KEY, v text);
        BEGIN;
        INSERT INTO t VALUES (1, 'top');
        SAVEPOINT a; INSERT INTO t VALUES (2, 'a');
        SAVEPOINT b; INSERT INTO t VALUES (3, 'b'); ROLLBACK TO b;
        INSERT INTO t VALUES (4, 'a again'); RELEASE a;
        SAVEPOINT c; INSERT INTO t VALUES (5, 'c'); ROLLBACK TO c;
        INSERT INTO t VALUES (6, 'c again');
        SAVEPOINT d; UPDATE t SET v = v || '!'; RELEASE d;
        COMMIT;
        BEGIN; SAVEPOINT a; INSERT INTO t VALUES (10, 'lost'); ROLLBACK TO a; COMMIT;
        BEGIN; SAVEPOINT a; INSERT INTO t VALUES (11, 'only in a savepoint'); COMMIT;
        BEGIN; INSERT INTO t VALUES (12, 'lost'); SAVEPOINT a; INSERT INTO t VALUES (13, 'lost');
        ROLLBACK;
        DO $$ BEGIN FOR i IN 100..400 LOOP
            BEGIN INSERT INTO t VALUES (i, 'sub'); IF i % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF;
            EXCEPTION WHEN raise_exception THEN NULL; END;
        END LOOP; END $$;
    """,
    "TOAST": f"""
        CREATE TABLE t (id int PRIMARY KEY, a text, b text, c int);
        ALTER TABLE t ALTER a SET STORAGE EXTERNAL;
        INSERT INTO t SELECT g, {LONG.format("g")}, {LONG.format("(-g)")}, g
            FROM generate_series(1, 8) g;
        INSERT INTO t VALUES (50, {COMPRESSIBLE.format("5")}, NULL, 1), (51, 'short',
            {COMPRESSIBLE.format("6")}, 2);
        UPDATE t SET c = 0;
        UPDATE t SET a = {LONG.format("(c + 7)")} WHERE id = 1;
        UPDATE t SET a = 'short now' WHERE id = 2;
        UPDATE t SET id = 200 WHERE id = 3;
        DELETE FROM t WHERE id = 4;
        BEGIN; SAVEPOINT a;
        INSERT INTO t VALUES (60, {LONG.format("1")}, {LONG.format("2")}, 1); ROLLBACK TO a;
        INSERT INTO t VALUES (61, {LONG.format("3")}, {LONG.format("4")}, 1); COMMIT;
        ALTER TABLE t REPLICA IDENTITY FULL;
        UPDATE t SET c = 9; DELETE FROM t WHERE id = 5;
        ALTER TABLE t DROP COLUMN a;
        UPDATE t SET c = 10;
        INSERT INTO t SELECT g, {LONG.format("g")}, g FROM generate_series(300, 303) g;
    """,
    "ON CONFLICT": f"""
        CREATE TABLE t (id int PRIMARY KEY, v text, big text);
        INSERT INTO t VALUES (1, 'first', {LONG.format("1")});
        INSERT INTO t SELECT g, 'again', {LONG.format("g")} FROM generate_series(1, 5) g
            ON CONFLICT (id) DO UPDATE SET v = excluded.v;
        INSERT INTO t SELECT g, 'third', {LONG.format("g")} FROM generate_series(4, 8) g
            ON CONFLICT DO NOTHING;
    """,
    "truncate": """
        CREATE TABLE a (id serial PRIMARY KEY);
        CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a);
        CREATE UNLOGGED TABLE u (id int);
        INSERT INTO a DEFAULT VALUES; INSERT INTO b VALUES (1, 1); INSERT INTO u VALUES (1);
        TRUNCATE a, b; TRUNCATE a RESTART IDENTITY CASCADE; TRUNCATE u;
        BEGIN; INSERT INTO a DEFAULT VALUES; TRUNCATE a CASCADE; INSERT INTO a DEFAULT VALUES;
        COMMIT;
        BEGIN; CREATE TABLE c (i int); INSERT INTO c VALUES (1); TRUNCATE c;
        INSERT INTO c VALUES (2); COMMIT;
    """,
    "DDL and DML in one transaction": """
        BEGIN;
        CREATE TABLE t (id int PRIMARY KEY, v text);
        INSERT INTO t VALUES (1, 'one');
        ALTER TABLE t ADD COLUMN n int DEFAULT 7;
        INSERT INTO t VALUES (2, 'two');
        ALTER TABLE t RENAME COLUMN v TO w;
        UPDATE t SET w = 'both';
        ALTER TABLE t DROP COLUMN w;
        INSERT INTO t VALUES (3, 3);
        SAVEPOINT a; ALTER TABLE t RENAME TO gone; INSERT INTO gone VALUES (4, 4); ROLLBACK TO a;
        INSERT INTO t VALUES (5, 5);
        ALTER TABLE t ADD COLUMN x timestamptz DEFAULT '2020-01-01';
        INSERT INTO t (id) VALUES (6);
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        ALTER TABLE t ADD COLUMN m mood DEFAULT 'ok'; INSERT INTO t (id) VALUES (7);
        COMMIT;
        ALTER TABLE t ALTER n TYPE bigint; UPDATE t SET n = n + 1;
        ALTER TABLE t RENAME TO renamed; UPDATE renamed SET n = 0;
        ALTER TYPE mood ADD VALUE 'happy'; UPDATE renamed SET m = 'happy';
        ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'; UPDATE renamed SET m = 'blue' WHERE id = 1;
        DROP TABLE renamed;
    """,
    "rewrites": f"""
        CREATE TABLE t (id int PRIMARY KEY, v text, big text);
        INSERT INTO t SELECT g, 'v', {LONG.format("g")} FROM generate_series(1, 4) g;
        VACUUM FULL t; UPDATE t SET v = 'w';
        CLUSTER t USING t_pkey; UPDATE t SET v = 'x';
        BEGIN; ALTER TABLE t ALTER id TYPE bigint;
        INSERT INTO t VALUES (9, 'in', {LONG.format("9")}); COMMIT;
        ALTER TABLE t ADD COLUMN r float8 DEFAULT random(); UPDATE t SET v = 'y' WHERE id = 1;
        CREATE MATERIALIZED VIEW m AS SELECT id, v FROM t; CREATE UNIQUE INDEX ON m (id);
        REFRESH MATERIALIZED VIEW m;
        UPDATE t SET v = 'z' WHERE id = 2; REFRESH MATERIALIZED VIEW CONCURRENTLY m;
        CREATE TABLE s AS SELECT * FROM t; SELECT * INTO s2 FROM t;
        ALTER TABLE t SET UNLOGGED; INSERT INTO t VALUES (20, 'unlogged');
        ALTER TABLE t SET LOGGED; INSERT INTO t VALUES (21, 'logged');
        ALTER TABLE t SET TABLESPACE pg_default;
    """,
    "catalog rewrites": """
        CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a');
        VACUUM FULL pg_class; INSERT INTO t VALUES (2, 'b');
        VACUUM FULL pg_attribute; ALTER TABLE t ADD COLUMN n int; INSERT INTO t VALUES (3, 'c', 3);
        BEGIN; CREATE TABLE u (id int); INSERT INTO u VALUES (1);
        CLUSTER pg_class USING pg_class_oid_index; INSERT INTO u VALUES (2);
        INSERT INTO t VALUES (4); COMMIT;
        VACUUM FULL pg_type; CREATE TYPE c AS (x int, y text); CREATE TABLE v (c c);
        INSERT INTO v VALUES ((1, 'z'));
        REINDEX TABLE pg_class; VACUUM pg_class; ANALYZE;
        INSERT INTO v VALUES ((2, 'zz'));
    """,
    "partitions": """
        CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
        CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
        CREATE TABLE p3 (v text, id int NOT NULL);
        ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30);
        INSERT INTO p SELECT g, 'v' FROM generate_series(0, 29) g;
        UPDATE p SET id = (id + 10) % 30 WHERE id IN (5, 15, 25) AND false;
        UPDATE p SET id = 19 WHERE id = 9 AND NOT EXISTS (SELECT 1 FROM p WHERE id = 19);
        DELETE FROM p WHERE id = 12; UPDATE p SET id = 12 WHERE id = 2;
        ALTER TABLE p DETACH PARTITION p2;
        INSERT INTO p2 VALUES (12, 'alone') ON CONFLICT DO NOTHING;
        TRUNCATE p; DROP TABLE p;
    """,
    "messages": """
        SELECT pg_logical_emit_message(false, 'app', 'at once');
        BEGIN; CREATE TABLE t (i int); INSERT INTO t VALUES (1);
        SELECT pg_logical_emit_message(true, 'app', 'inside');
        SELECT pg_logical_emit_message(false, 'app', 'at once, with an xid');
        INSERT INTO t VALUES (2); SAVEPOINT a; SELECT pg_logical_emit_message(true, 'sub', 'x');
        COMMIT;
        BEGIN; SELECT pg_logical_emit_message(true, 'app', 'lost'); ROLLBACK;
        SELECT pg_logical_emit_message(true, '', '');
    """,
    "prepared transactions": """
        CREATE TABLE t (id int PRIMARY KEY, v text);
        BEGIN; INSERT INTO t VALUES (1, 'kept'); SAVEPOINT a; INSERT INTO t VALUES (2, 'kept');
        PREPARE TRANSACTION 'one-{0}';
        INSERT INTO t VALUES (3, 'meanwhile');
        BEGIN; INSERT INTO t VALUES (4, 'lost'); CREATE TABLE lost (i int);
        PREPARE TRANSACTION 'two-{0}';
        BEGIN; CREATE TABLE made (i int); INSERT INTO made VALUES (1);
        PREPARE TRANSACTION 'three-{0}';
        COMMIT PREPARED 'one-{0}'; ROLLBACK PREPARED 'two-{0}';
        COMMIT PREPARED 'three-{0}'; INSERT INTO made VALUES (2);
    """,
    "empty transactions": """
        BEGIN; SELECT pg_current_xact_id(); COMMIT;
        CREATE TABLE t (i int); CREATE TABLE e (i int);
        BEGIN; SELECT pg_current_xact_id(); ANALYZE e; COMMIT;
        BEGIN; SELECT pg_current_xact_id(); LOCK TABLE t; COMMIT;
        INSERT INTO t VALUES (1); BEGIN; SELECT * FROM t FOR UPDATE; COMMIT;
        CREATE INDEX ON t (i); VACUUM t; ANALYZE t; REINDEX TABLE t;
        CREATE INDEX CONCURRENTLY t_c ON t (i);
        DROP INDEX CONCURRENTLY t_c; COMMENT ON TABLE t IS 'a comment'; GRANT SELECT ON t TO PUBLIC;
        CREATE SEQUENCE s; SELECT nextval('s'); ALTER SEQUENCE s RESTART; SELECT setval('s', 10);
        CREATE TEMP TABLE temp (i int); INSERT INTO temp VALUES (1); DROP TABLE temp;
        CREATE UNLOGGED TABLE u (i int); INSERT INTO u VALUES (1);
        CREATE ROLE "role-{0}"; DROP ROLE "role-{0}";
        DELETE FROM t; VACUUM t; SELECT lo_unlink(lo_create(0));
        BEGIN; SAVEPOINT a; CREATE TABLE x (i int); ROLLBACK TO a; COMMIT;
        UPDATE pg_class SET reltuples = 7 WHERE relname = 't';
        NOTIFY something; CHECKPOINT;
        INSERT INTO information_schema.sql_features (feature_id) VALUES ('Q0');
    """,
    "multi-insert of wide rows": f"""
        CREATE TABLE t (id int, small text, big text);
        INSERT INTO t SELECT g, 's', {LONG.format("g")} FROM generate_series(1, 30) g;
        CREATE TABLE c (LIKE t);
        COPY t TO '/tmp/spillway-{0}.copy'; COPY c FROM '/tmp/spillway-{0}.copy';
        ALTER TABLE c ALTER big SET STORAGE EXTERNAL; COPY c FROM '/tmp/spillway-{0}.copy';
    """,
}


def statements(script: str) -> list[str]:
    """Split a script at semicolons outside of $$ quotes: each must be a command of its own to the
    server.
    """
    parts, quoted = [""], False
    for piece in script.split("$$"):
        if quoted:
            parts[-1] += f"$${piece}$$"
        else:
            first, *rest = piece.split(";")
            parts[-1] += first
            parts += rest
        quoted = not quoted
    return [p for p in parts if p.strip()]


def play(connection: psycopg.Connection, script: str) -> None:
    for statement in statements(script):
        connection.execute(statement)


@pytest.fixture
def make_session(pg, tmp_path):
    sessions: list[DecodingSession] = []

    def make(**options):
        sessions.append(DecodingSession(pg, tmp_path / str(len(sessions)), **options))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_equals_the_server(pg, make_session, scenario):
    session = make_session()
    with pg.connect() as connection:
        play(connection, SCENARIOS[scenario].replace("{0}", pg.name))
    session.assert_equal_to_server()


def test_equals_the_server_when_everything_spills(pg, make_session):
    """The scenarios one after the other, with memory for next to nothing."""
    session = make_session(work_mem_bytes=1 << 14)
    with pg.connect() as connection:
        for number, script in enumerate(SCENARIOS.values()):
            connection.execute(f"CREATE SCHEMA s{number}; SET search_path = s{number}")
            play(connection, script.replace("{0}", f"{pg.name}_{number}"))
        big = "INSERT INTO big SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g"
        play(
            connection,
            f"CREATE TABLE big (id int, v text); {big}; BEGIN; SAVEPOINT a; {big}; {big}; COMMIT",
        )
    session.assert_equal_to_server()
    stats = session.decoder.stats
    assert stats.spill_txns >= 5
    assert stats.spill_bytes > 10_000_000
    assert session.decoder.memory_bytes <= 1 << 14


@pytest.mark.parametrize(
    "options", [{"include-xids": "off", "skip-empty-xacts": "on"}, {"only-local": "on"}]
)
def test_equals_the_server_with_options(pg15, tmp_path, options):
    session = DecodingSession(pg15, tmp_path, options=options)
    with pg15.connect() as connection:
        for scenario in ("empty transactions", "savepoints", "messages"):
            connection.execute(f'CREATE SCHEMA "{scenario}"; SET search_path = "{scenario}"')
            play(connection, SCENARIOS[scenario].replace("{0}", pg15.name + scenario))
    session.assert_equal_to_server()
    session.close()


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 16, 17])
def test_equals_the_server_on_other_majors(fresh_cluster, tmp_path, major):
    cluster = fresh_cluster(major, max_prepared_transactions=8)
    database = cluster.create_database("ours")
    other = cluster.create_database("other")
    session = DecodingSession(database, tmp_path)
    with database.connect() as connection, other.connect() as elsewhere:
        for number, script in enumerate(SCENARIOS.values()):
            for c in (connection, elsewhere):
                c.execute(f"CREATE SCHEMA s{number}; SET search_path = s{number}")
            play(connection, script.replace("{0}", f"ours{number}"))
            play(elsewhere, script.replace("{0}", f"other{number}"))
    session.assert_equal_to_server()
    session.close()


class Workload:
    """Random transactions from several connections at once: savepoints, DDL, COPY, large values,
    conflicts.
    """

    def __init__(self, database, seed: int, *, workers: int = 4, transactions: int = 100) -> None:
        self.database = database
        self._transactions = transactions
        self._seed = seed
        self.errors: list[BaseException] = []
        database.execute(
            "CREATE TABLE shared (id int PRIMARY KEY, v text, big text);"
            "CREATE TABLE target (id int PRIMARY KEY, n int, big text)"
        )
        self._threads = [threading.Thread(target=self._guard, args=(w,)) for w in range(workers)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the end; raise what went wrong."""
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors

    def _guard(self, worker: int) -> None:
        try:
            self._run(worker)
        except BaseException as error:  # noqa: BLE001 - shown by join()
            self.errors.append(error)

    def _run(self, worker: int) -> None:
        rng = random.Random(self._seed * 1000 + worker)
        own = f"own{worker}"
        with self.database.connect() as c:
            c.execute("SET deadlock_timeout = '50ms'")
            c.execute(f"CREATE TABLE {own} (id serial, a int, b text)")
            columns = 0
            for _ in range(self._transactions):
                try:
                    with c.transaction(force_rollback=rng.random() < 0.15):
                        for _ in range(rng.randint(1, 6)):
                            columns = self._statement(c, rng, own, columns)
                except psycopg.Error as error:
                    # Conflicts are the point; anything else is a mistake of the test.
                    if not isinstance(
                        error, psycopg.errors.DeadlockDetected | psycopg.errors.UniqueViolation
                    ):
                        raise
                    columns = self._count(c, own)

    def _count(self, c, own: str) -> int:
        (row,) = c.execute(
            "SELECT count(*) FROM pg_attribute WHERE attrelid = %s::regclass AND attname LIKE "
            "'x%%' AND NOT attisdropped",
            [own],
        ).fetchall()
        return int(row[0])

    def _statement(self, c, rng: random.Random, own: str, columns: int) -> int:
        key = rng.randint(1, 60)
        wide = LONG.format(key)
        choice = rng.randint(0, 15)
        if choice < 3:
            c.execute(
                f"INSERT INTO {own} (a, b) SELECT g, md5(g::text) FROM generate_series(1, "
                f"{rng.randint(1, 20)}) g"
            )
        elif choice < 5:
            c.execute(f"UPDATE {own} SET b = b || '!' WHERE a = {rng.randint(1, 20)}")
        elif choice == 5:
            c.execute(f"DELETE FROM {own} WHERE id % 7 = {rng.randint(0, 6)}")
        elif choice < 9:
            c.execute(
                (
                    f"INSERT INTO shared VALUES ({key}, 'v', {wide}) ON CONFLICT (id) DO UPDATE "
                    "SET v = shared.v || 'w'"
                )
                if rng.random() < 0.7
                else (
                    f"INSERT INTO target SELECT id, 1, big FROM shared WHERE id = {key} ON "
                    "CONFLICT DO NOTHING"
                )
            )
        elif choice == 9:
            c.execute(f"DELETE FROM shared WHERE id = {key}")
        elif choice < 12:
            with c.transaction(force_rollback=rng.random() < 0.4):
                columns_inside = self._statement(c, rng, own, columns)
                del columns_inside
            columns = self._count(c, own)
        elif choice == 12:
            c.execute(
                f"ALTER TABLE {own} ADD COLUMN x{rng.randint(0, 10**9)} text DEFAULT 'd{key}'"
            )
            columns += 1
        elif choice == 13:
            c.execute(
                f"CREATE TABLE IF NOT EXISTS {own}_new (LIKE {own}); INSERT INTO {own}_new SELECT "
                f"* FROM {own} LIMIT 3"
            )
            c.execute(f"DROP TABLE {own}_new")
        elif choice == 14:
            c.execute(f"ALTER TABLE {own} ALTER a TYPE {rng.choice(('int', 'bigint'))}")
        else:
            with c.cursor().copy(f"COPY {own} (a, b) FROM STDIN") as copy:
                for i in range(rng.randint(1, 300)):
                    copy.write_row((i, "copied"))
        return columns


@pytest.mark.parametrize("work_mem_bytes", [1 << 14, deep(64 << 20)])
def test_equals_the_server_under_load(pg, make_session, work_mem_bytes):
    """Bootstrap while transactions run, then decode what they do; the seed is in the test's
    output.
    """
    seed = random.randrange(1 << 30)
    print("seed", seed)
    slot = create_slot(pg, f"oracle_{pg.name[-8:]}")
    workload = Workload(pg, seed)
    time.sleep(0.5)
    session = make_session(work_mem_bytes=work_mem_bytes, slot=slot)
    for _ in range(3):
        time.sleep(0.3)
        pg.execute("CHECKPOINT")
        session.decode()
    workload.join()
    pg.execute("CHECKPOINT")
    session.assert_equal_to_server()


def test_a_restored_decoder_goes_on_where_the_last_one_stood(pg, make_session):
    """Serialise now and then; lose the decoder now and then, and restore one as an engine would."""
    rng = random.Random(5)
    session = make_session(work_mem_bytes=1 << 16)
    states: list[tuple[int, bytes]] = []
    restarts = 0

    def checkpoint(s: DecodingSession) -> None:
        if s.decoder.snapshot_state == SnapshotState.CONSISTENT and rng.random() < 0.3:
            states.append((s.decoder.position, s.decoder.serialize()))

    workload = Workload(pg, 5, transactions=60)
    for _ in range(6):
        time.sleep(0.2)
        session.decode(batch_hook=checkpoint)
        checkpoint(session)
        usable = [state for state in states if state[0] <= session.decoder.restart_lsn]
        if usable:
            session.restart(usable[-1][1], session.decoder.position)
            restarts += 1
    workload.join()
    session.assert_equal_to_server()
    assert restarts


def test_transactions_that_a_crash_of_the_server_ended_are_dropped(fresh_cluster, tmp_path):
    cluster = fresh_cluster(15)
    database = cluster.create_database("ours")
    session = DecodingSession(database, tmp_path)
    database.execute("CREATE TABLE t (i int); INSERT INTO t VALUES (1)")
    lost = database.connect(autocommit=False)
    lost.execute("INSERT INTO t SELECT generate_series(1, 5000)")
    lost.execute("CREATE TABLE lost (i int)")
    database.execute("INSERT INTO t VALUES (2)")
    session.decode()
    assert session.decoder.restart_lsn < session.decoder.position
    cluster.stop("immediate")
    lost.close()
    cluster.start()
    database.execute("INSERT INTO t VALUES (3); CHECKPOINT")
    session.assert_equal_to_server()
    assert session.decoder.restart_lsn == session.decoder.position
    session.close()
