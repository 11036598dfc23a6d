"""Servers whose settings change how WAL is written: segment sizes, compression, images, xids,
crashes.

Each on every major, compared with PostgreSQL's own slot. Which methods of compression a server
knows depends on how it was built: those that it does are tested. With SPILLWAY_TEST_POSTGRES_15
naming a server that has lz4 and zstd (Debian's) these run too; ``tests/golden`` has images of all
of them from such a server.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness.servers import MAJORS
from harness.standing_decoder import StandingDecoder
from harness.tiers import deep, majors_by_tier
from harness.xid_jump import jump_to_xid
from oracle.postgresql_scenarios import COMPRESSIBLE, incompressible
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.bootstrap_raw import bootstrap_raw
from spillway.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import ClusterFactory
    from harness.cluster import Cluster
    from harness.interleaving import Sessions, Step
    from spillway.catalog.bootstrap import Bootstrap

#: Catalogs and tables before and after checkpoints, so with images; values in and out of line; some
#: MB.
WORKLOAD: list[Step] = [
    "CREATE TABLE t (id serial PRIMARY KEY, v text, n int)",
    "CREATE TABLE u (LIKE t INCLUDING ALL)",
    f"INSERT INTO t (v, n) SELECT {incompressible('g', 80)}, g FROM generate_series(1, 60) g",
    f"INSERT INTO t (v) VALUES ({COMPRESSIBLE})",
    "CHECKPOINT",
    "2> BEGIN",
    "2> UPDATE t SET n = -1 WHERE id = 1",
    "UPDATE t SET n = n + 1 WHERE id > 1",
    "ALTER TABLE u ADD COLUMN late text DEFAULT 'fast'",
    "INSERT INTO u (n) SELECT generate_series(1, 500)",
    "CHECKPOINT",
    "SELECT count(*) FROM t, u, pg_class, pg_attribute WHERE false",
    (
        "SELECT count(*) FROM pg_class c JOIN pg_attribute ON attrelid = c.oid JOIN pg_type y ON "
        "y.oid = atttypid"
    ),
    "ALTER TABLE u RENAME COLUMN late TO later",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "ALTER TABLE u ADD COLUMN m mood DEFAULT 'ok'",
    "DELETE FROM u WHERE n % 3 = 0",
    "2> COMMIT",
    "VACUUM u",
    "VACUUM pg_class",
    "VACUUM pg_attribute",
    "UPDATE u SET later = 'x' WHERE n < 20",
    "CHECKPOINT",
    "VACUUM FULL pg_type",
    "VACUUM FULL pg_class",
    "BEGIN",
    "CLUSTER pg_attribute USING pg_attribute_relid_attnum_index",
    "CREATE TABLE w (m mood, u u)",
    "INSERT INTO w SELECT 'sad', u FROM u LIMIT 3",
    "COMMIT",
    "SELECT pg_switch_wal()",
    f"INSERT INTO t (v) SELECT {incompressible('(-g)', 400)} FROM generate_series(1, 100) g",
    "DELETE FROM t",
]


@pytest.fixture(params=majors_by_tier(MAJORS), ids=[f"pg{major}" for major in MAJORS])
def major(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def standing_on(tmp_path: Path) -> Iterator[Callable[..., StandingDecoder]]:
    decoders: list[StandingDecoder] = []

    def make(
        cluster: Cluster, name: str = "ours", bootstrap: Callable[[str], Bootstrap] = bootstrap_sql
    ) -> StandingDecoder:
        database = cluster.create_database(name)
        decoders.append(StandingDecoder(database, tmp_path / name, bootstrap=bootstrap))
        return decoders[-1]

    yield make
    for decoder in decoders:
        decoder.close()


@pytest.mark.parametrize("size_mb", [1, deep(64)])
def test_segment_sizes(
    fresh_cluster: ClusterFactory,
    standing_on: Callable[..., StandingDecoder],
    major: int,
    size_mb: int,
) -> None:
    cluster = fresh_cluster(major, wal_segment_size_mb=size_mb)
    assert cluster.value("SHOW wal_segment_size") == f"{size_mb}MB"
    assert standing_on(cluster).play(WORKLOAD)


def test_compression_of_images_and_values(
    fresh_cluster: ClusterFactory, standing_on: Callable[..., StandingDecoder], major: int
) -> None:
    cluster = fresh_cluster(major)
    standing = standing_on(cluster)
    methods = _choices(cluster, "wal_compression") or ["off", "on"]
    assert {"pglz", "on"} & set(methods)
    for method in methods:
        standing.database.execute(
            f"ALTER DATABASE {standing.database.name} SET wal_compression = '{method}'"
        )
        assert standing.play(WORKLOAD)
    for method in _choices(cluster, "default_toast_compression"):
        standing.database.execute(
            f"ALTER DATABASE {standing.database.name} SET default_toast_compression = '{method}'"
        )
        assert standing.play(
            [
                "CREATE TABLE t (id int, v text, inline text)",
                f"INSERT INTO t VALUES (1, {COMPRESSIBLE}, repeat('short', 1000))",
                "UPDATE t SET inline = repeat('other', 1200)",
                "ALTER TABLE t REPLICA IDENTITY FULL",
                "DELETE FROM t",
            ]
        )


def _choices(cluster: Cluster, setting: str) -> list[str]:
    """What this build of the server accepts for an enum setting."""
    values = cluster.value("SELECT enumvals FROM pg_settings WHERE name = %s", [setting])
    return [v for v in values or [] if v != "on"]


@pytest.mark.parametrize("bootstrap", [bootstrap_sql, deep(bootstrap_raw)])
def test_checksums_and_images_for_hints(
    fresh_cluster: ClusterFactory,
    standing_on: Callable[..., StandingDecoder],
    major: int,
    bootstrap: Callable[[str], Bootstrap],
) -> None:
    """Setting a hint bit after a checkpoint logs the page, also of a catalog."""
    cluster = fresh_cluster(major, initdb_options=["--data-checksums"], wal_log_hints=True)
    assert cluster.value("SHOW data_checksums") == "on"
    assert standing_on(cluster, bootstrap=bootstrap).play(WORKLOAD)


def test_without_full_page_writes(
    fresh_cluster: ClusterFactory, standing_on: Callable[..., StandingDecoder], major: int
) -> None:
    """Catalog pages come without images then: SQL's rows don't suffice and are refused, the raw
    files do.
    """
    cluster = fresh_cluster(major, full_page_writes=False)
    with pytest.raises(SourceError, match="full_page_writes"):
        bootstrap_sql(cluster.dsn())
    assert standing_on(cluster, bootstrap=bootstrap_raw).play(WORKLOAD)


def test_full_page_writes_turned_off_and_on(
    fresh_cluster: ClusterFactory, standing_on: Callable[..., StandingDecoder], major: int
) -> None:
    """A mirror that is exact stays exact without images."""
    cluster = fresh_cluster(major)
    standing = standing_on(cluster)
    for setting in ("off", "on"):
        assert standing.play(WORKLOAD)
        cluster.execute(f"ALTER SYSTEM SET full_page_writes = {setting}")
        cluster.execute("SELECT pg_reload_conf()")
    assert standing.play(WORKLOAD)


def test_autovacuum_beside(
    fresh_cluster: ClusterFactory, standing_on: Callable[..., StandingDecoder], major: int
) -> None:
    """Vacuum and analyze of tables and catalogs by workers of the server's own, between and beside
    transactions.
    """
    cluster = fresh_cluster(
        major,
        autovacuum=True,
        autovacuum_naptime="1s",
        autovacuum_vacuum_threshold=0,
        autovacuum_vacuum_scale_factor=0,
        autovacuum_analyze_threshold=0,
        autovacuum_analyze_scale_factor=0,
        autovacuum_vacuum_cost_delay=0,
    )

    def wait_for_workers(sessions: Sessions) -> None:
        database = sessions.database
        since = database.value("SELECT now()::text")
        deadline = time.monotonic() + 60
        while database.value(
            "SELECT count(*) < 2 FROM pg_stat_all_tables"
            " WHERE relname IN ('pg_class', 'u') AND last_autovacuum > %s::timestamptz",
            [since],
        ):
            assert time.monotonic() < deadline, "no worker came"
            # A session tells what it changed after a statement, half a second after it told so
            # before.
            sessions.execute("1", "SELECT 1")
            time.sleep(0.2)

    churn: list[Step] = [
        "3> BEGIN",
        "3> INSERT INTO w SELECT 'ok', u FROM u LIMIT 3",
        "DELETE FROM u WHERE n % 5 = 0",
        "CREATE TABLE gone (i int, j text)",
        "DROP TABLE gone",
        wait_for_workers,
        "INSERT INTO u (n) SELECT generate_series(1, 50)",
        "3> COMMIT",
    ]
    assert standing_on(cluster).play([*WORKLOAD, *churn, *churn])


def test_xids_wrap_around(
    fresh_cluster: ClusterFactory, standing_on: Callable[..., StandingDecoder], major: int
) -> None:
    """Transactions begin before xid 2**32 and go on after it; decoders begin before it and after
    it.
    """
    cluster = fresh_cluster(major, autovacuum_freeze_max_age=2_000_000_000)
    jump_to_xid(cluster, 2**32 - 100)
    before = standing_on(cluster, "before")
    assert before.play(WORKLOAD)
    steps: list[Step] = [
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "2> BEGIN",
        "2> INSERT INTO t VALUES (-1, 'from before')",
        "2> SAVEPOINT a",
        "2> CREATE TABLE made (i int)",
        "2> INSERT INTO made VALUES (1)",
        "3> BEGIN",
        "3> SELECT pg_current_xact_id()",
        "!state",
        (
            "DO $$ BEGIN FOR i IN 1..300 LOOP INSERT INTO t VALUES (i, 'sub'); COMMIT; END LOOP; "
            "END $$"
        ),
        "CREATE TABLE beyond (i int)",
        "ALTER TABLE beyond ADD n int DEFAULT 7",
        "INSERT INTO beyond VALUES (1)",
        "CHECKPOINT",
        "2> SAVEPOINT b",
        "2> INSERT INTO t VALUES (-2, 'after')",
        "2> ALTER TABLE made ADD v text",
        "2> INSERT INTO made VALUES (2, 'x')",
        "2> ROLLBACK TO b",
        "2> INSERT INTO made VALUES (3)",
        "2> COMMIT",
        "3> INSERT INTO t VALUES (-3, 'late')",
        "3> COMMIT",
        "!restore",
        "UPDATE t SET v = 'done' WHERE id < 10",
    ]
    xids = [line.xid for line in before.play(steps)]
    assert max(xids) > 2**31 > min(xids)
    assert cluster.value("SELECT pg_current_xact_id()::text::int8") > 2**32
    assert before.play(WORKLOAD)
    assert standing_on(cluster, "after").play(WORKLOAD)
    assert standing_on(cluster, "raw", bootstrap_raw).play(WORKLOAD)


@pytest.mark.parametrize("how", [deep("immediate"), "kill"])
def test_the_primary_crashes_with_transactions_open(
    fresh_cluster: ClusterFactory,
    standing_on: Callable[..., StandingDecoder],
    major: int,
    how: str,
) -> None:
    """What was open is lost, without a record that says so; what was prepared comes back."""
    cluster = fresh_cluster(major)
    standing = standing_on(cluster)
    database = standing.database
    standing.play(WORKLOAD)
    database.execute("CREATE TABLE kept (i int, v text)")
    lost = database.connect(autocommit=False)
    lost.execute("INSERT INTO kept SELECT g, 'lost' FROM generate_series(1, 5000) g")
    lost.execute("ALTER TABLE kept ADD COLUMN lost int")
    lost.execute("CREATE TABLE lost (i int); INSERT INTO lost VALUES (1)")
    prepared = database.connect()
    prepared.execute("CREATE TABLE other (i int)")
    prepared.execute("BEGIN; INSERT INTO other VALUES (1); CREATE TABLE made (i int)")
    prepared.execute("INSERT INTO made VALUES (1); SAVEPOINT a; INSERT INTO made VALUES (2)")
    prepared.execute("PREPARE TRANSACTION 'survives'")
    # The server's slot forgets what was confirmed after the last checkpoint.
    standing.compare()
    database.execute("CHECKPOINT")
    lost.execute("INSERT INTO kept SELECT g, 'lost', 1 FROM generate_series(1, 500) g")
    # So that what is open is on disk when it ends.
    database.execute("CREATE TABLE flushing (i int)")
    if how == "kill":
        cluster.kill()
    else:
        cluster.stop("immediate")
    lost.close()
    prepared.close()
    cluster.start()
    database.execute("INSERT INTO kept VALUES (1, 'after the crash')")
    database.execute("COMMIT PREPARED 'survives'")
    database.execute("INSERT INTO made VALUES (3)")
    standing.compare()
    assert standing.play(WORKLOAD)
