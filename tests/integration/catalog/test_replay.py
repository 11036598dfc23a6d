"""The mirror against a real server: what it holds after DDL of every kind equals what SQL shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.catalog_replay import CatalogReplay, assert_equals_server
from harness.ddl_workload import DdlClient, run_transaction
from harness.tiers import deep
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.bootstrap_raw import bootstrap_raw
from spillway.catalog.resolution import ResolutionKind, SkipReason
from spillway.catalog.serialization import deserialize, serialize
from spillway.wal.record import RelFileLocator

if TYPE_CHECKING:
    from harness.cluster import Database
    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.catalog.mirror import CatalogMirror
    from spillway.catalog.resolution import Resolution

_SCRIPT = [
    "CREATE TABLE b (id serial PRIMARY KEY, v text, w numeric DEFAULT 3.5)",
    """BEGIN; CREATE TABLE c (x int, y text); SAVEPOINT s; ALTER TABLE c ADD z int DEFAULT 7;
       ROLLBACK TO s; ALTER TABLE c ADD zz text DEFAULT 'hello'; COMMIT""",
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); ALTER TYPE mood ADD VALUE 'meh' BEFORE 'ok'",
    "CREATE TYPE comp AS (a int, b text); CREATE DOMAIN pos AS int CHECK (value > 0)",
    "CREATE TYPE fr AS RANGE (subtype = float8); CREATE TABLE t3 (c comp, p pos, f fr, a comp[])",
    "BEGIN; DROP TABLE b; ROLLBACK",
    "ALTER TABLE b DROP COLUMN v",
    "VACUUM pg_class",
    "VACUUM FULL pg_index",
    "VACUUM FULL pg_class",
    "CREATE TABLE after2 (i int)",
    "VACUUM FULL pg_attribute",
    "CREATE TABLE after3 (i int)",
    "VACUUM FULL pg_type",
    "VACUUM FULL pg_proc",
    """BEGIN; CREATE TABLE inn (i int); CLUSTER pg_class USING pg_class_oid_index;
       CREATE TABLE inn2 (i int PRIMARY KEY); INSERT INTO inn2 VALUES (1); COMMIT""",
    """BEGIN; CREATE TABLE inn3 (i int); CLUSTER pg_class USING pg_class_oid_index;
       CREATE TABLE inn4 (i int); CLUSTER pg_attribute USING pg_attribute_relid_attnum_index;
       INSERT INTO inn2 VALUES (2); ROLLBACK""",
    "CREATE PUBLICATION p1 FOR ALL TABLES; CREATE PUBLICATION p2 FOR TABLE b",
    """CREATE TABLE part (i int, j int) PARTITION BY RANGE (i);
       CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (1) TO (100)""",
    "ALTER TABLE b REPLICA IDENTITY FULL; ANALYZE",
    "CHECKPOINT",
    "CREATE MATERIALIZED VIEW mv AS SELECT * FROM b; REFRESH MATERIALIZED VIEW mv",
    "VACUUM FREEZE",
    "CREATE TEMP TABLE tt (i int PRIMARY KEY); DROP TABLE tt",
    """DO $$ BEGIN FOR i IN 1..60 LOOP
         EXECUTE format('CREATE TABLE dd%s (i int PRIMARY KEY, t text)', i); END LOOP; END $$""",
    "DO $$ BEGIN FOR i IN 1..50 LOOP EXECUTE format('DROP TABLE dd%s', i); END LOOP; END $$",
    "VACUUM",
    "ALTER TABLE b RENAME TO b2",
]


def _resolve(replay: CatalogReplay, database: Database, name: str) -> Resolution:
    spc, db = replay.mirror.facts.default_tablespace, replay.mirror.facts.database_oid
    node = database.value(f"SELECT pg_relation_filenode('{name}')::int8")
    return replay.mirror.resolve(RelFileLocator(spc, db, node))


def _descriptor(replay: CatalogReplay, database: Database, name: str) -> RelationDescriptor:
    descriptor = _resolve(replay, database, name).descriptor
    assert descriptor is not None
    return descriptor


def _assert_written_as_it_is(mirror: CatalogMirror) -> None:
    """Bytes that pages have from before are those that would be written now."""
    content = serialize(mirror)
    for storage in mirror.heaps.locations.storages.values():
        for page in storage.pages.values():
            if page.unpack is None:
                page.packed = None
    assert serialize(mirror) == content


@pytest.mark.parametrize("bootstrap", [bootstrap_sql, deep(bootstrap_raw)])
def test_scripted_ddl(pg: Database, bootstrap: object) -> None:
    replay = CatalogReplay(bootstrap(pg.dsn), pg.cluster)  # type: ignore[operator]
    for step, statement in enumerate(_SCRIPT):
        pg.execute(statement)
        replay.run()
        _assert_written_as_it_is(replay.mirror)
        if step % 4 == 3 or "FULL" in statement or "CLUSTER" in statement:
            assert assert_equals_server(replay.mirror, pg) > 7000, statement
    assert_equals_server(replay.mirror, pg)
    content = serialize(replay.mirror)
    copy = deserialize(content)
    assert serialize(copy) == content
    assert assert_equals_server(copy, pg) > 7000


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_random_ddl_step_by_step(pg: Database, seed: int) -> None:
    """Compared with the server after every transaction, and restored from bytes now and then."""
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    client = DdlClient("r", seed)
    with pg.connect() as connection:
        connection.execute("SET client_min_messages = error")
        for step in range(40):
            run_transaction(connection, client)
            replay.run()
            _assert_written_as_it_is(replay.mirror)
            if step % 5 == 4:
                assert_equals_server(replay.mirror, pg)
                replay.mirror = deserialize(serialize(replay.mirror))
    assert_equals_server(replay.mirror, pg)


def test_every_storage_resolves_to_its_relation(pg: Database) -> None:
    pg.execute("CREATE TABLE t (id serial PRIMARY KEY, v text); CREATE TABLE u (x int)")
    pg.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM t")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    spc, db = replay.mirror.facts.default_tablespace, replay.mirror.facts.database_oid
    for oid, node, kind, shared in pg.query(
        "SELECT oid::int8, pg_relation_filenode(oid)::int8, relkind::text, relisshared"
        " FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL"
    ):
        if shared:
            continue
        resolution = replay.mirror.resolve(RelFileLocator(spc, db, node))
        if oid < 12000:
            assert resolution.kind is ResolutionKind.SKIP
            assert resolution.reason in (SkipReason.SYSTEM_CATALOG, SkipReason.NOT_A_TABLE)
        elif kind in "rm":
            assert resolution.kind is ResolutionKind.TABLE
        elif kind == "t":
            assert resolution.kind is ResolutionKind.TOAST
            assert resolution.owner_oid == pg.value(
                "SELECT oid::int8 FROM pg_class WHERE reltoastrelid = %s", [oid]
            )
        else:
            assert resolution.reason is SkipReason.NOT_A_TABLE
        if oid >= 12000:
            assert resolution.relation_oid == oid
            assert replay.mirror.resolve_oid(oid) == resolution
    unknown = replay.mirror.resolve(RelFileLocator(spc, db, 4_000_000_000))
    assert unknown.reason is SkipReason.UNKNOWN
    other = replay.mirror.resolve(RelFileLocator(spc, db + 1, 1259))
    assert other.reason is SkipReason.OTHER_DATABASE


def test_tablespaces(fresh_cluster: object) -> None:
    """A database whose default tablespace is another; pg_default is a table's own there."""
    cluster = fresh_cluster(15, wal_keep_size="1GB")  # type: ignore[operator]
    with cluster.connect() as connection:
        connection.execute("SET allow_in_place_tablespaces = on")
        connection.execute("CREATE TABLESPACE other LOCATION ''")
        connection.execute("CREATE DATABASE spread TABLESPACE other")
    with cluster.connect("spread") as connection:
        connection.execute("CREATE TABLE here (i int)")
        connection.execute("CREATE TABLE there (i int) TABLESPACE pg_default")
        locators = connection.execute(
            "SELECT relname, oid::int8, coalesce(nullif(reltablespace, 0), dattablespace)::int8,"
            " pg_relation_filenode(c.oid)::int8 FROM pg_class c, (SELECT dattablespace FROM "
            "pg_database WHERE datname = current_database()) d WHERE relname IN ('here', 'there')"
        ).fetchall()
    assert len({spc for _, _, spc, _ in locators}) == 2
    for bootstrap in (bootstrap_sql, bootstrap_raw):
        replay = CatalogReplay(bootstrap(cluster.dsn("spread")), cluster)
        with cluster.connect("spread") as connection:
            connection.execute("VACUUM FULL pg_class")
        replay.run()
        for name, oid, spc, node in locators:
            locator = RelFileLocator(spc, replay.mirror.facts.database_oid, node)
            assert replay.mirror.resolve(locator).relation_oid == oid, name
            elsewhere = locator._replace(spc=99)
            assert replay.mirror.resolve(elsewhere).reason is SkipReason.UNKNOWN


def test_descriptor_has_what_encoders_need(pg: Database) -> None:
    pg.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy'); ALTER TYPE mood ADD VALUE 'ok' BEFORE 'happy';"
        "CREATE DOMAIN pos AS int; CREATE TYPE comp AS (a int, b pos, c mood[]);"
        "CREATE TYPE fr AS RANGE (subtype = float8);"
        "CREATE TABLE t (id int, gone text, c comp, ms mood[], r fr, mr int4multirange,"
        " g int GENERATED ALWAYS AS (id * 2) STORED, i int GENERATED BY DEFAULT AS IDENTITY,"
        " PRIMARY KEY (i, id));"
        "ALTER TABLE t DROP COLUMN gone;"
        "CREATE PUBLICATION p_table FOR TABLE t; CREATE PUBLICATION p_all FOR ALL TABLES"
    )
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    t = _descriptor(replay, pg, "t")
    assert (t.schema, t.name, t.kind, t.persistence, t.replica_identity) == (
        "public",
        "t",
        "r",
        "p",
        "d",
    )
    assert [c.attnum for c in t.columns] == list(range(1, 9))
    assert [c.name for c in t.columns if c.dropped] == ["........pg.dropped.2........"]
    assert t.columns[6].generated == "s"
    assert t.columns[7].identity == "d"
    assert t.primary_key == t.identity_columns == (8, 1)
    assert [p.name for p in t.publications] == ["p_all", "p_table"]
    by_name = {d.name: d for d in t.types.values()}
    assert [label for _, label in by_name["mood"].enum_labels] == ["sad", "ok", "happy"]
    assert by_name["_mood"].is_array
    assert by_name["_mood"].element_oid == by_name["mood"].oid
    assert [a.name for a in by_name["comp"].attributes] == ["a", "b", "c"]
    assert by_name["pos"].base_oid == by_name["int4"].oid
    assert by_name["fr"].subtype_oid == by_name["float8"].oid
    assert by_name["int4multirange"].subtype_oid == by_name["int4range"].oid
    assert by_name["int4"].output == "int4out"
    assert {"mood", "comp", "int4range", "float8"} <= set(by_name)

    pg.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    replay.run()
    assert _descriptor(replay, pg, "t").identity_columns == (1, 3, 4, 5, 6, 7, 8)
    pg.execute(
        "CREATE UNIQUE INDEX only_id ON t (id); ALTER TABLE t REPLICA IDENTITY USING INDEX only_id"
    )
    replay.run()
    assert _descriptor(replay, pg, "t").identity_columns == (1,)
    pg.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
    replay.run()
    assert _descriptor(replay, pg, "t").identity_columns == ()
    assert _descriptor(replay, pg, "t").primary_key == (8, 1)


def test_a_partition_is_published_with_its_ancestors(pg: Database) -> None:
    pg.execute(
        "CREATE SCHEMA s; CREATE TABLE s.root (i int) PARTITION BY LIST (i);"
        "CREATE TABLE mid PARTITION OF s.root DEFAULT PARTITION BY LIST (i);"
        "CREATE TABLE leaf PARTITION OF mid DEFAULT; CREATE PUBLICATION p FOR TABLE s.root"
    )
    by_schema = pg.cluster.major >= 15
    if by_schema:
        pg.execute("CREATE PUBLICATION q FOR TABLES IN SCHEMA s")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    names = [p.name for p in _descriptor(replay, pg, "leaf").publications]
    assert names == (["p", "q"] if by_schema else ["p"])
    pg.execute("ALTER TABLE s.root DETACH PARTITION mid")
    replay.run()
    assert _descriptor(replay, pg, "leaf").publications == ()


def test_equal_definitions_are_one_object(pg: Database) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    first = _resolve(replay, pg, "t")
    pg.execute("ALTER TABLE t ADD x int")
    replay.run()
    second = _resolve(replay, pg, "t")
    assert second.relation_id != first.relation_id
    # A rewrite: other storage, the same definition.
    pg.execute("VACUUM FULL t")
    replay.run()
    third = _resolve(replay, pg, "t")
    assert third.relation_id == second.relation_id
    assert third.descriptor is second.descriptor
    assert replay.mirror.registry[third.relation_id] is third.descriptor


def test_a_transaction_sees_its_own_changes(pg: Database) -> None:
    """While it runs: its own view, and that of others; aborted savepoints are undone."""
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    oid = pg.value("SELECT 't'::regclass::oid::int8")

    def names(*own: int) -> list[str]:
        resolution = replay.mirror.resolve_oid(oid, frozenset(own))
        assert resolution.descriptor is not None
        return [c.name for c in resolution.descriptor.columns if not c.dropped]

    with pg.connect(autocommit=False) as connection:
        row = connection.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
        assert row is not None
        xid = int(row[0])
        connection.execute("ALTER TABLE t ADD a int")
        replay.run()
        assert names() == ["id"]
        assert names(xid) == ["id", "a"]
        connection.execute("SAVEPOINT s")
        connection.execute("ALTER TABLE t ADD b int")
        replay.run()
        own = replay.own_xids(xid)
        assert len(own) == 2
        assert names(*own) == ["id", "a", "b"]
        assert names() == ["id"]
        connection.execute("ROLLBACK TO s")
        connection.execute("ALTER TABLE t ADD c int")
        replay.run()
        assert names(*replay.own_xids(xid)) == ["id", "a", "c"]
        assert replay.mirror.has_changes({xid})
        connection.commit()
    replay.run()
    assert names() == ["id", "a", "c"]
    assert not replay.mirror.has_changes({xid})


def test_a_transaction_that_moves_a_catalog_reads_the_new_one(pg: Database) -> None:
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    tracked = set(replay.mirror.tracked)
    with pg.connect(autocommit=False) as connection:
        row = connection.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
        assert row is not None
        xid = int(row[0])
        for step, catalog in enumerate(("pg_class_oid_index", "pg_attribute_relid_attnum_index")):
            connection.execute(f"CREATE TABLE before{step} (i int)")  # type: ignore[call-overload]
            connection.execute(f"CLUSTER {catalog[: catalog.index('_', 3)]} USING {catalog}")  # type: ignore[call-overload]
            connection.execute(f"CREATE TABLE after{step} (i int)")  # type: ignore[call-overload]
            connection.execute("ALTER TABLE t ADD COLUMN x int; ALTER TABLE t DROP COLUMN x")
            oids = connection.execute(
                "SELECT relname, oid::int8, pg_relation_filenode(oid)::int8 FROM pg_class"
                " WHERE relname ~ '^(before|after|t$)'"
            ).fetchall()
            connection.execute("SELECT pg_logical_emit_message(false, 'x', 'flush')")
            replay.run()
            assert replay.mirror.tracked > tracked
            for name, oid, node in oids:
                locator = RelFileLocator(
                    replay.mirror.facts.default_tablespace, replay.mirror.facts.database_oid, node
                )
                own = replay.mirror.resolve(locator, replay.own_xids(xid))
                assert (own.kind, own.relation_oid) == (ResolutionKind.TABLE, oid), name
                others = replay.mirror.resolve(locator)
                assert (others.kind is ResolutionKind.TABLE) == (name == "t")
            # A serialised mirror has the same two views.
            replay.mirror = deserialize(serialize(replay.mirror))
        connection.commit()
    replay.run()
    assert_equals_server(replay.mirror, pg)
    assert len(replay.mirror.tracked) == len(tracked)


def test_commit_says_whether_others_are_concerned(pg: Database) -> None:
    pg.execute("CREATE TABLE t (id int); CREATE TABLE u (id int)")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    replay.run()
    answers: list[bool] = []
    commit = replay.mirror.commit

    def watch(xids: list[int], lsn: int) -> bool:
        answers.append(commit(xids, lsn))
        return answers[-1]

    replay.mirror.commit = watch  # type: ignore[assignment, method-assign]
    before = _resolve(replay, pg, "t")
    pg.execute("CREATE TABLE other (id int); ALTER TABLE u ADD x int; ANALYZE t")
    replay.run()
    assert not any(answers)
    assert _resolve(replay, pg, "t") is before
    pg.execute("ALTER TABLE t ADD x int")
    replay.run()
    assert any(answers)


def test_a_multixact_on_catalog_rows(pg: Database) -> None:
    """Two lockers and an updater of one pg_class row make multixacts; only the updater deletes."""
    pg.execute("CREATE TABLE t (id int)")
    replay = CatalogReplay(bootstrap_sql(pg.dsn), pg.cluster)
    lock = "SELECT 1 FROM pg_class WHERE relname = 't' FOR KEY SHARE"
    with pg.connect(autocommit=False) as one, pg.connect(autocommit=False) as two:
        one.execute(lock)
        two.execute(lock)
        pg.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        replay.run()
        assert _descriptor(replay, pg, "t").replica_identity == "f"
        two.rollback()
        with pg.connect(autocommit=False) as three:
            three.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
            three.rollback()
        one.commit()
    replay.run()
    assert _descriptor(replay, pg, "t").replica_identity == "f"
    assert_equals_server(replay.mirror, pg)


def test_prepared_transactions(fresh_cluster: object) -> None:
    cluster = fresh_cluster(15, max_prepared_transactions=5)  # type: ignore[operator]
    database = cluster.create_database("prepared")
    database.execute("CREATE TABLE t (id int)")
    replay = CatalogReplay(bootstrap_sql(database.dsn), cluster)
    for end in ("COMMIT", "ROLLBACK"):
        with database.connect() as connection:
            connection.execute("BEGIN")
            connection.execute(f"CREATE TABLE {end}_it (id int)")
            connection.execute("PREPARE TRANSACTION 'p'")
            replay.run()
            assert replay.mirror.resolve_oid(99).reason is SkipReason.UNKNOWN
            assert_equals_server(replay.mirror, database)
            connection.execute(f"{end} PREPARED 'p'")
        replay.run()
        assert_equals_server(replay.mirror, database)


def test_a_crash_leaves_no_half_finished_ddl(fresh_cluster: object) -> None:
    cluster = fresh_cluster(18)  # type: ignore[operator]
    database = cluster.create_database("crash")
    database.execute("CREATE TABLE t (id int)")
    replay = CatalogReplay(bootstrap_sql(database.dsn), cluster)
    connection = database.connect(autocommit=False)
    connection.execute("ALTER TABLE t ADD lost int")
    connection.execute("CREATE TABLE lost (id int)")
    database.execute("CREATE TABLE kept (id int)")
    cluster.kill()
    connection.close()
    cluster.start()
    database.execute("ALTER TABLE t ADD kept int")
    database.execute("SELECT pg_log_standby_snapshot()")
    replay.run()
    assert_equals_server(replay.mirror, database)
    assert not replay.mirror.heaps.fates.to_json()["pending"]
