"""Databases that come, go and move beside the decoded one and under it, on all five majors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness.cluster import Database
from harness.oracle import create_slot
from harness.servers import MAJORS
from harness.service import service_in_process
from harness.standing_decoder import StandingDecoder
from harness.tiers import majors_by_tier
from oracle.test_wal_varieties import WORKLOAD
from spillway.errors import DatabaseDropped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.cluster import Cluster
    from harness.interleaving import Step
    from harness.service import Service

STEPS: list[Step] = [
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
    "ALTER TABLE t ADD n int DEFAULT 5",
    "UPDATE t SET v = 'uno' WHERE id = 1",
    "VACUUM FULL pg_class",
    "DELETE FROM t",
]


@pytest.fixture(
    scope="module", params=majors_by_tier(MAJORS), ids=[f"pg{major}" for major in MAJORS]
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    from harness.cluster import Cluster

    with Cluster(request.param, allow_in_place_tablespaces=True) as cluster:
        cluster.execute("CREATE TABLESPACE one LOCATION ''")
        cluster.execute("CREATE TABLESPACE two LOCATION ''")
        yield cluster


@pytest.fixture
def standing(cluster: Cluster, tmp_path: Path) -> Iterator[StandingDecoder]:
    decoder = StandingDecoder(cluster.create_database("ours"), tmp_path)
    yield decoder
    decoder.close()
    cluster.drop_database("ours")


def strategies(cluster: Cluster) -> tuple[str, ...]:
    return ("",) if cluster.major < 15 else (" STRATEGY wal_log", " STRATEGY file_copy")


def test_other_databases_come_and_go(cluster: Cluster, standing: StandingDecoder) -> None:
    for strategy in strategies(cluster):

        def others(_: object, strategy: str = strategy) -> None:
            cluster.execute(f"CREATE DATABASE theirs{strategy}")
            cluster.execute(
                "CREATE TABLE t (i int); INSERT INTO t VALUES (1)"
                ";SELECT pg_logical_emit_message(false, 'not', 'ours')",
                dbname="theirs",
            )
            cluster.execute("ALTER DATABASE theirs SET TABLESPACE one")
            cluster.execute("INSERT INTO t VALUES (2)", dbname="theirs")
            cluster.execute("DROP DATABASE theirs")

        assert standing.play([*STEPS[:2], others, *STEPS[2:], others, "INSERT INTO t VALUES (9)"])


def test_a_database_made_from_a_template_since(
    cluster: Cluster, standing: StandingDecoder, tmp_path: Path
) -> None:
    """Bootstrapped from the same checkpoint as the template, or an older one."""
    standing.play(STEPS)
    database = standing.database
    database.execute("CREATE TABLE handed_down (i int, v text DEFAULT 'x')")
    database.execute("INSERT INTO handed_down VALUES (1)")
    standing.close()
    for row in database.query("SELECT slot_name FROM pg_replication_slots WHERE database = 'ours'"):
        database.query("SELECT pg_drop_replication_slot(%s)", row)
    for number, strategy in enumerate(strategies(cluster)):
        name = f"copy{number}"
        cluster.execute(f"CREATE DATABASE {name} TEMPLATE ours{strategy}")
        copy = StandingDecoder(Database(cluster, name), tmp_path / name)
        assert copy.play(
            [*STEPS, "ALTER TABLE handed_down ADD n int", "UPDATE handed_down SET n = 1"]
        )
        copy.close()
        cluster.drop_database(name)


def test_tables_move_to_other_tablespaces(standing: StandingDecoder) -> None:
    assert standing.play(
        [
            "CREATE TABLE t (id int PRIMARY KEY, v text) TABLESPACE one",
            "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
            "INSERT INTO t VALUES (1, repeat('long', 3000))",
            "BEGIN",
            "UPDATE t SET id = 2",
            "ALTER TABLE t SET TABLESPACE two",
            "UPDATE t SET v = repeat('longer', 3000)",
            "SAVEPOINT a",
            "ALTER TABLE t SET TABLESPACE pg_default",
            "INSERT INTO t VALUES (3, repeat('lost', 3000))",
            "ROLLBACK TO a",
            "INSERT INTO t VALUES (4, repeat('kept', 3000))",
            "COMMIT",
            "ALTER INDEX t_pkey SET TABLESPACE one",
            "ALTER TABLE t SET TABLESPACE pg_default",
            "DELETE FROM t",
            "CREATE TABLE p (id int) PARTITION BY LIST (id) TABLESPACE two",
            "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
            "INSERT INTO p VALUES (1)",
            "ALTER TABLE ALL IN TABLESPACE two SET TABLESPACE one",
            "INSERT INTO p VALUES (1)",
        ]
    )


def test_the_database_moves(cluster: Cluster, standing: StandingDecoder) -> None:
    """There, on, and back; the decoder is restored from before, between and after."""
    database = standing.database
    database.execute("CREATE TABLE stays (id serial PRIMARY KEY, v text)")
    database.execute("CREATE TABLE elsewhere (i int) TABLESPACE two")
    for tablespace in ("one", "pg_default", "one"):
        standing.play(["!state", *STEPS])
        cluster.execute(f"ALTER DATABASE ours SET TABLESPACE {tablespace}")
        assert standing.play(
            [
                "INSERT INTO stays (v) VALUES ('moved')",
                "!restore",
                "ALTER TABLE stays ADD COLUMN IF NOT EXISTS n int",
                "INSERT INTO stays (v) VALUES ('altered')",
                "INSERT INTO elsewhere VALUES (1)",
                "CREATE TYPE mood AS ENUM ('ok')",
                "CREATE TABLE made (m mood)",
                "INSERT INTO made VALUES ('ok')",
                "VACUUM FULL pg_type",
                "VACUUM FULL pg_attribute",
                "!state",
                "ALTER TABLE made ADD i int",
                "!restore",
                "INSERT INTO made VALUES ('ok', 1)",
            ]
        )
    assert standing.play(WORKLOAD)


def test_the_decoded_database_is_dropped(cluster: Cluster, tmp_path: Path) -> None:
    """PostgreSQL forbids it while slots exist; ours is not one that it knows of."""
    standing = StandingDecoder(cluster.create_database("doomed"), tmp_path)
    standing.play(STEPS)
    session = standing.session
    oid = standing.database.oid
    session.slot.drop()
    cluster.drop_database("doomed")
    again = cluster.create_database("doomed")
    again.execute("CREATE TABLE t (i int); INSERT INTO t VALUES (1)")
    assert again.oid != oid
    session.database = again
    with pytest.raises(DatabaseDropped) as caught:
        session.decode()
    assert caught.value.details["datoid"] == oid
    standing.close()
    cluster.drop_database("doomed")


def _wait_until_dropped(service: Service) -> None:
    deadline = time.monotonic() + 30
    while True:
        (source,) = service.call("GET", "/sources")["sources"]
        if "database_dropped" in [session["error_code"] for session in source["sessions"]]:
            return
        assert time.monotonic() < deadline, source["sessions"]
        time.sleep(0.05)


def test_slots_of_a_dropped_database(cluster: Cluster, tmp_path: Path) -> None:
    """They give what was decoded, then say why there is no more; a namesake begins when they are
    gone.
    """
    database = cluster.create_database("doomed")
    with service_in_process(tmp_path / "service") as service:
        service.create_source(cluster.dsn())
        service.create_slot("old", "doomed")
        database.execute("CREATE TABLE t (i int); INSERT INTO t VALUES (1)")
        service.wait_decoded("old", database)
        cluster.drop_database("doomed")
        again = cluster.create_database("doomed")
        again.execute("CREATE TABLE t (i text); INSERT INTO t VALUES ('not theirs')")
        assert [line for *_, line in service.get("old") if line.startswith("table")] == [
            "table public.t: INSERT: i[integer]:1"
        ]
        _wait_until_dropped(service)
        assert service.problem("GET", "/slots/old/peek")["code"] == "database_dropped"
        body = {
            "slot_name": "new",
            "source": "main",
            "database": "doomed",
            "plugin": "test_decoding",
        }
        assert service.problem("POST", "/slots", json=body)["code"] == "database_dropped"
        service.drop_slot("old")
        service.call("POST", "/slots", json=body)
        assert service.slot("new")["datoid"] == again.oid
        oracle = create_slot(again, "oracle_again")
        again.execute("INSERT INTO t VALUES ('theirs')")
        end = service.wait_decoded("new", again)
        assert service.peek("new", upto_lsn=end) == [tuple(r) for r in oracle.peek(upto_lsn=end)]
        oracle.drop()
        service.drop_slot("new")
        service.call("DELETE", "/sources/main")
    cluster.drop_database("doomed")
