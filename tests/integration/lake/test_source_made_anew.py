"""A source that is dropped and created again under its name, as its own hints say, is another
history: LSNs begin anew, or go on behind a gap.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.remedies import command, remedy
from harness.service import service_in_process
from spillway.errors import LakeBehindSlot, LakeTableConflict, SourceError, SpillwayError
from spillway.lake.job.check import check_lake
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.read import Lake
from spillway.lake.verify.run import VerifySettings, verify
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from conftest import ClusterFactory
    from harness.cluster import Cluster, Database

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def _shop(cluster: Cluster, rows: int, value: str) -> Database:
    shop = cluster.create_database("shop")
    shop.execute(f"{TABLE}; INSERT INTO t SELECT g, '{value}' FROM generate_series(1, {rows}) g")
    return shop


def _wal_beyond(behind: Database, lsn: str) -> None:
    while behind.value("SELECT pg_current_wal_lsn() <= %s::pg_lsn", [lsn]):
        behind.execute("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.follows_hint("lake_table_conflict", "lake_behind_slot")
def test_made_anew_of_a_dump(
    spark: SparkSession, fresh_cluster: ClusterFactory, tmp_path: Path
) -> None:
    """The lake is beyond the new cluster's LSNs: it waited for them without a word, and never had
    what came before; a load ended well, and changed nothing. Another cluster's rows, under the same
    database's name, were loaded as if they were the source's.
    """
    old, new = _shop(fresh_cluster(15), 3, "old"), _shop(fresh_cluster(18), 3, "new")
    third = _shop(fresh_cluster(17), 3, "staging")
    path = tmp_path / "lake"
    _wal_beyond(old, new.cluster.wal_lsn())
    _wal_beyond(old, new.cluster.wal_lsn())
    with service_in_process(tmp_path / "data") as service:

        def job(lake: Path = path, **more: str) -> JobSettings:
            skip_to = Lsn.parse(more["skip_to"]) if more else None
            return JobSettings(
                slot="s",
                path=lake,
                checkpoint=lake / "_spillway" / "checkpoint",
                grpc=service.grpc_address,
                skip_to=skip_to,
            )

        def load(database: Database, lake: Path = path) -> LoadSettings:
            return LoadSettings(
                "s", lake, database.dsn, ("public.t",), resync=True, grpc=service.grpc_address
            )

        def follow(database: Database) -> None:
            service.create_source(database.dsn)
            service.create_slot("s", "shop", "arrow")

        def leave() -> None:
            service.drop_slot("s")
            service.call("DELETE", "/sources/main")

        def rows(lake: Path = path) -> list[tuple[int, str]]:
            found = Lake(spark, lake).at().current("public.t").collect()
            return sorted((row.id, row.v) for row in found)

        def equal(database: Database, lake: Path = path) -> bool:
            settings = VerifySettings(lake, database.dsn, grpc=service.grpc_address)
            return verify(settings, spark=spark).equal

        follow(old)
        old.execute("INSERT INTO t VALUES (4, 'change')")
        service.wait_decoded("s", old)
        run_job(job(), spark=spark)
        assert run_load(load(old), print, spark=spark) == 1
        run_job(job(), spark=spark)
        # Other servers with a database of that name, before and behind this one's LSNs.
        _wal_beyond(third, old.cluster.wal_lsn())
        for other in (new, third):
            with pytest.raises(SpillwayError, match=r"another server|not the same"):
                run_load(load(other), print, spark=spark)
        with pytest.raises(SourceError, match="not the same"):
            equal(third)
        run_job(job(), spark=spark)
        before = [(1, "old"), (2, "old"), (3, "old"), (4, "change")]
        assert rows() == before
        assert equal(old)
        leave()

        follow(new)
        new.execute("INSERT INTO t VALUES (5, 'change')")
        service.wait_decoded("s", new)
        for refused in (
            lambda: run_job(job(), spark=spark),
            lambda: run_load(load(new), print, spark=spark),
            lambda: check_lake(job()),
            lambda: equal(new),
        ):
            with pytest.raises(LakeTableConflict, match="created again") as caught:
                refused()
            assert rows() == before
        hint = remedy(caught.value, "lake_table_conflict")
        assert command(hint, "lake run")[-1] == "--initial-load"
        another = tmp_path / "another"
        anew = replace(job(another), initial_load=True, source_dsn=new.dsn)
        run_job(anew, spark=spark)
        assert rows(another) == [(1, "new"), (2, "new"), (3, "new"), (5, "change")]
        assert equal(new, another)
        leave()

        # The third one's LSNs are behind: there is a gap, and it is given up as the hint says.
        follow(third)
        third.execute("INSERT INTO t VALUES (6, 'change')")
        service.wait_decoded("s", third)
        with pytest.raises(LakeBehindSlot) as behind:
            run_job(job(another), spark=spark)
        words = command(remedy(behind.value, "lake_behind_slot"), "lake load")
        assert words[-1] == "--resync"
        confirmed = service.slot("s")["confirmed_flush_lsn"]
        assert f"--skip-to {confirmed};" in behind.value.hint
        run_job(job(another, skip_to=confirmed), spark=spark)
        assert run_load(load(third, another), print, spark=spark) == 1
        run_job(job(another), spark=spark)
        assert rows(another) == [(1, "staging"), (2, "staging"), (3, "staging"), (6, "change")]
        assert equal(third, another)
        leave()
