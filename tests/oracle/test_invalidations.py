"""Where PostgreSQL's decoding invalidates caches: seen in what pgoutput sends, byte for byte, on
all majors.
"""

from __future__ import annotations

import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.announcements import AnnouncingSession
from harness.tiers import majors_by_tier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Cluster, Database

MAJORS = [14, 15, 16, 17, 18]
TABLES = ("t", "u", "w")
#: Each is a random interleaving of four sessions' statements.
SEEDS = (1, 106, 112, 53979991)
ACTIONS = ("insert", "update", "insert, update, delete, truncate")

#: Each is run between changes of two published tables.
STATEMENTS = """
ALTER TABLE t ADD x int
CREATE PUBLICATION other FOR TABLE u
CREATE PUBLICATION empty
ALTER PUBLICATION p SET (publish = 'insert, update')
ALTER PUBLICATION empty SET (publish = 'insert')
ALTER PUBLICATION empty RENAME TO nothing
DROP PUBLICATION nothing
ALTER PUBLICATION other RENAME TO others
ALTER PUBLICATION others OWNER TO CURRENT_USER
DROP PUBLICATION others
ALTER PUBLICATION p DROP TABLE w
ALTER PUBLICATION p ADD TABLE w
CREATE SCHEMA s
ALTER SCHEMA s RENAME TO s2
GRANT USAGE ON SCHEMA s2 TO public
DROP SCHEMA s2
VACUUM t
ANALYZE t
CREATE INDEX t_v ON t (v)
CREATE INDEX CONCURRENTLY t_v2 ON t (v)
DROP INDEX t_v
REINDEX TABLE t
COMMENT ON TABLE t IS 'told'
GRANT SELECT ON t TO public
TRUNCATE t
CREATE TEMP TABLE gone (i int)
VACUUM FULL pg_namespace
VACUUM FULL pg_publication
VACUUM FULL pg_publication_rel
VACUUM FULL pg_class
VACUUM FULL t
BEGIN; ALTER TABLE t ADD y int; ROLLBACK
BEGIN; INSERT INTO t (v) VALUES ('a'); SAVEPOINT s; ALTER TABLE t ADD y int; \
INSERT INTO t (v) VALUES ('c'); ROLLBACK TO s; INSERT INTO t (v) VALUES ('b'); COMMIT
BEGIN; INSERT INTO t (v) VALUES ('a'); SAVEPOINT s; ALTER TABLE t ADD y int; \
INSERT INTO t (v) VALUES ('c'); RELEASE s; INSERT INTO u (v) VALUES ('b'); COMMIT
BEGIN; INSERT INTO t (v) VALUES ('a'); CREATE PUBLICATION q; \
INSERT INTO u (v) VALUES ('b'); DROP PUBLICATION q; INSERT INTO u (v) VALUES ('b'); COMMIT
CREATE TABLE far (i int); ALTER TABLE far ADD j int; DROP TABLE far
CREATE PUBLICATION everything FOR ALL TABLES
ALTER PUBLICATION everything SET (publish = 'insert')
DROP PUBLICATION everything
CREATE TYPE mood AS ENUM ('a')
ALTER TYPE mood ADD VALUE 'b'
BEGIN; ALTER TABLE t ADD z int; INSERT INTO t (v) VALUES ('p'); PREPARE TRANSACTION 'g1'
COMMIT PREPARED 'g1'
BEGIN; ALTER TABLE u ADD z int; INSERT INTO u (v) VALUES ('p'); PREPARE TRANSACTION 'g2'
ROLLBACK PREPARED 'g2'
ALTER TABLE t RENAME TO t_moved; ALTER TABLE t_moved RENAME TO t
ALTER TABLE t SET (fillfactor = 90)
ALTER TABLE t REPLICA IDENTITY FULL
CHECKPOINT
""".strip().splitlines()


def _prepare(database: Database) -> None:
    for table in TABLES:
        database.execute(f"CREATE TABLE {table} (id serial PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION p FOR TABLE t, u, w")


@pytest.fixture
def quiet(fresh_cluster: ClusterFactory, request: pytest.FixtureRequest) -> Database:
    """A database where nobody vacuums beside us: the server's own session would hear of it."""
    cluster: Cluster = fresh_cluster(request.param, max_prepared_transactions=5)
    database = cluster.create_database("quiet")
    _prepare(database)
    return database


@pytest.mark.parametrize(
    "quiet", majors_by_tier(MAJORS), indirect=True, ids=[f"pg{m}" for m in MAJORS]
)
def test_relations_are_announced_again_when_the_server_does(
    quiet: Database, tmp_path: Path
) -> None:
    session = AnnouncingSession(quiet, tmp_path)
    for i, statement in enumerate(STATEMENTS):
        with quiet.connect() as connection:
            connection.execute("SET lock_timeout = '100ms'")
            for table in ("t", "u"):
                # A prepared transaction may hold the lock.
                with contextlib.suppress(psycopg.errors.LockNotAvailable):
                    connection.execute(f"INSERT INTO {table} (v) VALUES ('{i}')")
            for part in statement.split("; "):
                connection.execute(part)
    _alter_beside_an_update_in_place(quiet)
    _alter_a_publication_beside_a_table(quiet)
    quiet.execute("INSERT INTO t (v) VALUES ('end'); INSERT INTO u (v) VALUES ('end')")
    lines = session.assert_equal_to_server()
    assert lines.count("relation") > 20
    session.close()

    # The same interleaved: whoever commits a change of the catalog is heard by those in progress.
    for seed in SEEDS:
        _interleave(quiet, tmp_path / f"random_{seed}", seed)


def _alter_beside_an_update_in_place(database: Database) -> None:
    """What another session invalidates goes to transactions with a base snapshot.

    An update in place is all that this one writes: before 18 it has a base snapshot of that, and
    invalidates at its end.
    """
    database.execute("CREATE TABLE unchanged (i int)")
    with database.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("ANALYZE unchanged")
        database.execute("ALTER TABLE t ADD beside int")
        database.execute("INSERT INTO t (v) VALUES ('announced')")
        connection.execute("COMMIT")
    database.execute("INSERT INTO t (v) VALUES ('announced again, before 18')")


def _alter_a_publication_beside_a_table(database: Database) -> None:
    """Who changed the catalog itself sees another's ALTER PUBLICATION too, though nobody else used
    the table since.
    """
    database.execute("CREATE PUBLICATION forgotten")
    with database.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("ALTER TABLE t ADD own int")
        connection.execute("INSERT INTO w (v) VALUES ('by the rules as they were')")
        database.execute("ALTER PUBLICATION p SET (publish = 'update')")
        connection.execute("INSERT INTO w (v) VALUES ('not published')")
        connection.execute("COMMIT")
    database.execute("ALTER PUBLICATION p SET (publish = 'insert, update')")


def _interleave(
    database: Database,
    directory: Path,
    seed: int,
    publications: str = "p",
    statement_of: Callable[[random.Random, str], str] | None = None,
) -> None:
    session = AnnouncingSession(database, directory, publications)
    statement_of = statement_of or _statement
    rng = random.Random(seed)
    other = database.cluster.create_database(f"elsewhere_{seed}")
    other.execute("CREATE TABLE t (id serial PRIMARY KEY, v text)")
    connections = [database.connect() for _ in range(4)] + [other.connect()]
    try:
        for connection in connections:
            connection.execute("SET lock_timeout = '20ms'")
        for step in range(400):
            connection = rng.choice(connections)
            statement = statement_of(rng, f"{seed}_{step}")
            try:
                connection.execute(statement)
            except psycopg.errors.Error:
                connection.execute("ROLLBACK")
            if step % 100 == 50:
                session.decode()
                session.restart()
        for connection in connections:
            connection.execute("COMMIT")
        for table in TABLES:
            database.execute(f"INSERT INTO {table} (v) VALUES ('end')")
        try:
            lines = session.assert_equal_to_server()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert lines.count("relation") > 3
    finally:
        for connection in connections:
            connection.close()
        session.close()


def _statement(rng: random.Random, step: str) -> str:
    table = rng.choice(TABLES)
    return rng.choices(
        (
            f"INSERT INTO {table} (v) VALUES ('{step}')",
            f"UPDATE {table} SET v = v || 'x' WHERE id = (SELECT max(id) FROM {table})",
            "BEGIN",
            "COMMIT",
            "ROLLBACK",
            "SAVEPOINT s",
            "ROLLBACK TO s",
            f"ALTER TABLE {table} ADD c{step} int",
            f"CREATE PUBLICATION p{step} FOR TABLE {table}",
            f"CREATE PUBLICATION a{step} FOR ALL TABLES",
            f"CREATE SCHEMA s{step}",
            f"VACUUM {table}",
            f"ANALYZE {table}",
            f"CREATE TABLE n{step} (i int)",
            f"COMMENT ON TABLE {table} IS '{step}'",
            f"ALTER PUBLICATION p SET (publish = '{rng.choice(ACTIONS)}')",
        ),
        (40, 8, 20, 14, 4, 6, 4, 5, 2, 1, 2, 3, 3, 3, 2, 4),
    )[0]


#: What is published and where a publication's rules differ: partitions, two schemas, several
#: publications.
PUBLISHED = (
    "CREATE TABLE root (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE high (v text, id int NOT NULL PRIMARY KEY)",
    "ALTER TABLE root ATTACH PARTITION high FOR VALUES FROM (1000) TO (2000)",
    "CREATE SCHEMA other",
    "CREATE TABLE other.o (id serial PRIMARY KEY, v text)",
    "CREATE PUBLICATION q FOR TABLE t, root",
    "CREATE PUBLICATION r FOR TABLE low",
)
PUBLICATION_NAMES = "p,q,r"


@pytest.mark.parametrize(
    "quiet", majors_by_tier(MAJORS), indirect=True, ids=[f"pg{m}" for m in MAJORS]
)
def test_rules_that_change_beside_transactions(quiet: Database, tmp_path: Path) -> None:
    """Who began before ALTER PUBLICATION is published by what the server's session has loaded
    last.
    """
    for statement in PUBLISHED:
        quiet.execute(statement)
    major = quiet.cluster.major
    for seed in SEEDS:
        _interleave(
            quiet, tmp_path / str(seed), seed, PUBLICATION_NAMES, partial(_rules, major=major)
        )


def _rules(rng: random.Random, step: str, major: int) -> str:
    number = int(step.partition("_")[2])
    table = rng.choice(("t", "u", "other.o"))
    publication = rng.choice("pqr")
    member = rng.choice(("t", "u", "root", "low", "other.o"))
    rule = ""
    if major >= 15 and rng.random() < 0.5:
        # A column list of all publications alike: others are an error.
        rule = f" WHERE (id {rng.choice('<>')} {rng.randrange(1, 1000)})"
    members = rng.choice(("", ", t", ", low"))
    statements = [
        (20, f"INSERT INTO {table} (v) VALUES ('{step}')"),
        (8, f"UPDATE {table} SET v = v || 'x' WHERE id = (SELECT max(id) FROM {table})"),
        (20, f"INSERT INTO root VALUES ({rng.choice((0, 1000)) + number}, '{step}')"),
        (4, f"DELETE FROM {rng.choice((table, 'root'))} WHERE id % 7 = {rng.randrange(7)}"),
        (20, "BEGIN"),
        (14, "COMMIT"),
        (4, "ROLLBACK"),
        (6, "SAVEPOINT s"),
        (4, "ROLLBACK TO s"),
        (3, f"ALTER TABLE {table} ADD c{step} int"),
        (2, f"CREATE PUBLICATION p{step} FOR TABLE {table}"),
        (6, f"ALTER PUBLICATION {publication} SET (publish = '{rng.choice(ACTIONS)}')"),
        (5, (
            f"ALTER PUBLICATION {publication} SET (publish_via_partition_root = "
            f"{rng.choice(('on', 'off'))})"
        )),
        (5, f"ALTER PUBLICATION {publication} ADD TABLE {member}{rule}"),
        (5, f"ALTER PUBLICATION {publication} DROP TABLE {member}"),
        (4, f"ALTER PUBLICATION {publication} SET TABLE {member}{rule}{members}"),
    ]  # fmt: skip
    if major >= 15:
        statements += [
            (2, f"ALTER PUBLICATION {publication} ADD TABLES IN SCHEMA other"),
            (2, f"ALTER PUBLICATION {publication} DROP TABLES IN SCHEMA other"),
        ]
    weights, texts = zip(*statements, strict=True)
    return rng.choices(texts, weights)[0]
