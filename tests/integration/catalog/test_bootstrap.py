"""Bootstrap: under load, with little privilege, and when it can't be done."""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.catalog_replay import CatalogReplay, assert_equals_server
from harness.ddl_workload import DdlLoad
from harness.remedies import remedy, statements
from harness.tiers import deep
from spillway.catalog import bootstrap as bootstrap_module
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.bootstrap_database import bootstrap_database
from spillway.catalog.bootstrap_raw import bootstrap_raw
from spillway.catalog.serialization import deserialize, serialize
from spillway.errors import NotReady, SourceError, UnknownDatabase
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from harness.cluster import Database


@pytest.mark.parametrize("seed", [11, deep(12)])
def test_under_load(pg: Database, seed: int) -> None:
    """DDL, DML, rollbacks, VACUUM FULL and CLUSTER of catalogs, while bootstraps of both kinds
    run.
    """
    replays: list[CatalogReplay] = []
    messages: list[str] = []
    with DdlLoad(pg, seed) as load:
        time.sleep(1)
        for i in range(4):
            bootstrap = bootstrap_raw if i % 2 else bootstrap_sql
            begun = bootstrap(pg.dsn, progress=messages.append)
            replays.append(CatalogReplay(begun, pg.cluster, audit=True))
            time.sleep(0.4)
        load.wait_for(60)
    for replay in replays:
        replay.run()
        assert_equals_server(replay.mirror, pg)
    assert replays[0].audited > 20
    assert replays[0].audited_privately > 5


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 16, 17])
def test_other_majors_under_load(fresh_cluster: Any, major: int) -> None:
    cluster = fresh_cluster(major, wal_keep_size="2GB")
    database = cluster.create_database("load")
    replays = []
    with DdlLoad(database, major) as load:
        time.sleep(1)
        replays.append(CatalogReplay(bootstrap_sql(database.dsn), cluster, audit=True))
        replays.append(CatalogReplay(bootstrap_raw(database.dsn), cluster, audit=True))
        time.sleep(1)
        load.wait_for(20)
    for replay in replays:
        replay.run()
        assert_equals_server(replay.mirror, database)
        assert serialize(deserialize(serialize(replay.mirror))) == serialize(replay.mirror)


@pytest.mark.long
def test_raw_without_full_page_writes(fresh_cluster: Any) -> None:
    cluster = fresh_cluster(15, full_page_writes=False, wal_keep_size="2GB")
    database = cluster.create_database("load")
    with pytest.raises(SourceError, match="full_page_writes = off"):
        bootstrap_sql(database.dsn)
    replays = []
    with DdlLoad(database, 7) as load:
        time.sleep(1)
        for _ in range(3):
            begun = bootstrap_database(database.dsn)
            assert begun.mirror.heaps.locations.current[1259].complete, "files where no images are"
            replays.append(CatalogReplay(begun, cluster, audit=True))
            time.sleep(0.3)
        load.wait_for(20)
    for replay in replays:
        replay.run()
        assert_equals_server(replay.mirror, database)


@pytest.mark.follows_hint("source_error")
def test_a_login_is_enough_for_sql(pg: Database) -> None:
    role = f"reader_{pg.name[-8:]}"
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pg.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        dsn = pg.cluster.dsn(pg.name, role)
        bootstrap = bootstrap_sql(dsn)
        replay = CatalogReplay(bootstrap, pg.cluster)
        replay.run()
        assert_equals_server(replay.mirror, pg)
        with pytest.raises(SourceError, match="may not read the server's files") as caught:
            bootstrap_raw(dsn)
        (sql,) = statements(remedy(caught.value, "source_error"))
        pg.execute(sql)
        replay = CatalogReplay(bootstrap_raw(dsn), pg.cluster)
        replay.run()
        assert_equals_server(replay.mirror, pg)
    finally:
        pg.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_facts(pg: Database) -> None:
    bootstrap = bootstrap_database(pg.dsn)
    assert not bootstrap.mirror.heaps.locations.current[1259].complete, (
        "SQL where images are written"
    )
    assert bootstrap.mirror.facts.database_oid == pg.oid
    assert bootstrap.mirror.facts.major == pg.cluster.major
    assert bootstrap.server_version // 10000 == pg.cluster.major
    assert bootstrap.timeline_id == 1
    assert bootstrap.system_id == pg.value("SELECT system_identifier FROM pg_control_system()")
    assert 0 < bootstrap.redo_lsn <= bootstrap.consistent_lsn <= Lsn.parse(pg.cluster.wal_lsn())
    assert bootstrap.snapshot_xmin <= bootstrap.snapshot_xmax


def test_nothing_resolves_before_the_consistent_point(pg: Database) -> None:
    mirror = bootstrap_sql(pg.dsn).mirror
    with pytest.raises(NotReady):
        mirror.resolve_oid(1259)


def test_it_waits_for_transactions_of_before_the_checkpoint(pg: Database) -> None:
    messages: list[str] = []
    waiting = threading.Event()
    cancel = threading.Event()

    def progress(message: str) -> None:
        messages.append(message)
        waiting.set()

    with pg.connect(autocommit=False) as connection:
        connection.execute("CREATE TABLE t (id int)")
        pg.execute("CHECKPOINT")
        outcome: list[object] = []

        def run(cancel: threading.Event) -> None:
            try:
                outcome.append(bootstrap_sql(pg.dsn, progress=progress, cancel=cancel))
            except NotReady as error:
                outcome.append(error)

        first = threading.Thread(target=run, args=(cancel,))
        first.start()
        assert waiting.wait(20)
        cancel.set()
        first.join(20)
        assert isinstance(outcome.pop(), NotReady)
        second = threading.Thread(target=run, args=(threading.Event(),))
        second.start()
        connection.commit()
        second.join(20)
    bootstrap: Any = outcome.pop()
    assert "waiting for transaction" in messages[0]
    replay = CatalogReplay(bootstrap, pg.cluster)
    replay.run()
    assert_equals_server(replay.mirror, pg)


def test_it_waits_for_the_lock_on_a_catalog(pg: Database) -> None:
    cancel = threading.Event()
    with pg.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE pg_catalog.pg_enum IN ACCESS EXCLUSIVE MODE")

        def progress(message: str) -> None:
            if "VACUUM FULL" in message:
                cancel.set()

        with pytest.raises(NotReady):
            bootstrap_sql(pg.dsn, progress=progress, cancel=cancel)


def test_unreachable(pg15: Database) -> None:
    with pytest.raises(UnknownDatabase) as caught:
        bootstrap_sql(f"{pg15.dsn} dbname=not_there connect_timeout=3")
    assert caught.value.hint


def test_rows_are_not_walked_by_the_collector(
    pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a large catalog costs must not be Python's collector, which walks all rows again and
    again.
    """
    walks: list[str] = []
    steps: list[str] = []

    def noted(name: str) -> None:
        step = getattr(bootstrap_module, name)

        def run(*arguments: Any) -> Any:
            steps.append(name)
            try:
                return step(*arguments)
            finally:
                steps.pop()

        monkeypatch.setattr(bootstrap_module, name, run)

    def walk(phase: str, info: dict[str, int]) -> None:
        if steps and phase == "start":
            walks.append(f"generation {info['generation']} in {steps[-1]}")

    for name in ("_copy_catalogs", "pack_rows"):
        noted(name)
    thresholds = gc.get_threshold()
    gc.callbacks.append(walk)
    gc.set_threshold(500, 1, 1)
    try:
        bootstrap_sql(pg18.dsn)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(walk)
    assert walks == []
    assert gc.isenabled()
