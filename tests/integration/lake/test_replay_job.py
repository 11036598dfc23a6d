"""`spillway lake replay` against the streaming path: the same WAL, through a service and a slot,
and from an archive.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.service import service_in_process
from spillway.cli import main
from spillway.errors import InvalidOption, InvalidRequest, LakeBehindSlot, LakeTableConflict
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.replay import ReplaySettings, ReplaySummary, run_replay
from spillway.lake.state import position
from spillway.lake.tables.parquet.tables import current_path
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from conftest import ClusterFactory
    from harness.cluster import Database

SETUP = """
    CREATE TABLE plain (id int PRIMARY KEY, v text, n numeric(8, 2), at timestamptz DEFAULT now());
    CREATE TABLE wide (id int PRIMARY KEY, big text, v int);
    ALTER TABLE wide ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE keyless (a int, b text);
    ALTER TABLE keyless REPLICA IDENTITY FULL;
    CREATE SCHEMA "Other.one";
    CREATE TABLE "Other.one".t (id int PRIMARY KEY, tags text[]);
"""
NOISE = "(SELECT string_agg(md5({0}::text || g), '') FROM generate_series(1, 300) g)"
TABLES = ["Other~2Eone.t", "public.keyless", "public.plain", "public.wide"]


def work(database: Database, number: int) -> None:
    """Subtransactions, TOAST, aborts, DDL between and within transactions, 2PC; most of it over
    several stretches.
    """
    with (
        database.connect(autocommit=False) as long,
        database.connect(autocommit=False) as other,
    ):
        long.execute(f"INSERT INTO wide VALUES ({number}, {NOISE.format(number)}, 1); SAVEPOINT a")
        long.execute(f"INSERT INTO plain VALUES ({number * 1000}, 'kept', 1.5); SAVEPOINT b")
        long.execute("INSERT INTO keyless SELECT g, 'lost' FROM generate_series(1, 300) g")
        other.execute(
            f"INSERT INTO plain SELECT {number * 1000} + g, 'x', g FROM generate_series(1, 800) g"
        )
        other.commit()
        long.execute(
            "ROLLBACK TO b; INSERT INTO keyless VALUES (1, 'kept'), (1, 'kept'), (2, NULL)"
        )
        other.execute(
            f"UPDATE plain SET v = 'changed' WHERE id % 7 = {number % 7} AND id > {number * 1000}"
        )
        other.execute(f"DELETE FROM plain WHERE id % 11 = 3; PREPARE TRANSACTION 'p{number}'")
        long.execute(f"INSERT INTO \"Other.one\".t VALUES ({number}, ARRAY['a', NULL])")
        # A pointer to a value that this change does not bring.
        long.execute(f"UPDATE wide SET v = v + 1 WHERE id = {number}")
        long.commit()
        other.execute(
            f"INSERT INTO wide VALUES (-{number}); ALTER TABLE wide ADD c{number} text DEFAULT 'd'"
        )
        other.execute(f"UPDATE wide SET c{number} = 'e' WHERE id = -{number}")
        other.commit()
        other.execute("TRUNCATE keyless; INSERT INTO keyless VALUES (3, 'first')")
        other.rollback()
    database.execute(f"UPDATE wide SET v = 0 WHERE id = {number}")
    with database.connect() as connection:
        connection.execute(f"COMMIT PREPARED 'p{number}'")
    if number % 2:
        database.execute("TRUNCATE keyless; DELETE FROM wide WHERE v = 5")


def history(lake: Path, table: str) -> list[Any]:
    """Return a history's rows in commit order; read without Spark, since Parquet is all there is to
    it.
    """
    paths = sorted((lake / "history" / table).glob("end_lsn=*/*.parquet"))
    read = [pq.read_table(path, partitioning=None) for path in paths]
    found = pa.concat_tables(read, promote_options="default")
    return sorted(found.to_pylist(), key=lambda row: (row["_commit_lsn"], row["_seq"]))


def current(lake: Path, table: str) -> list[str]:
    found = pq.read_table(current_path(lake, table)).to_pylist()
    return sorted(str(sorted(row.items(), key=str)) for row in found)


def assert_equal(ours: Path, streamed: Path) -> int:
    """Hold a lake to the streamed one, all columns of all rows; return how many changes there
    are.
    """
    changes = 0
    for table in TABLES:
        expected = history(streamed, table)
        assert expected
        changes += len(expected)
        assert history(ours, table) == expected, table
        assert current(ours, table) == current(streamed, table), table
        for kind in ("history", "current"):
            described = [
                json.loads((lake / kind / table / "_table.json").read_text())["schema"]
                for lake in (ours, streamed)
            ]
            assert described[0] == described[1], (kind, table)
    for lake in (ours, streamed):
        assert sorted(path.name for path in (lake / "history").iterdir()) == TABLES
    return changes


@pytest.mark.long
def test_a_replay_equals_the_stream(
    spark: SparkSession, fresh_cluster: ClusterFactory, tmp_path: Path
) -> None:
    cluster = fresh_cluster(
        18,
        wal_segment_size_mb=1,
        wal_keep_size="1GB",
        max_wal_size="1GB",
        max_prepared_transactions=5,
    )
    database = cluster.create_database("shop")
    database.execute(SETUP)
    archive, streamed, replayed = (tmp_path / name for name in ("archive", "streamed", "replayed"))
    state = tmp_path / "begin.snap"
    saved = ["--wal-dir", cluster.wal_directory, "--dsn", database.dsn, "--save-state", state]
    assert main(["decode", *map(str, saved)]) == 0
    with service_in_process(tmp_path / "data") as service:
        service.create_source(database.dsn)
        # Each lake has a slot; the one that is replayed needs its own only later.
        for name in ("s", "r"):
            service.create_slot(name, database.name, "arrow")
        begin = Lsn.parse(service.slot("r")["confirmed_flush_lsn"])

        def stream(slot: str, lake: Path) -> Lsn:
            service.wait_decoded(slot, database)
            settings = JobSettings(slot, lake, lake / "job", "parquet", grpc=service.grpc_address)
            return run_job(settings, spark=spark).lsn

        work(database, 1)
        first = Lsn(database.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))
        work(database, 2)
        second = stream("s", streamed)
        database.execute("CHECKPOINT")
        shutil.copytree(cluster.wal_directory, archive, ignore=shutil.ignore_patterns("*[a-z]*"))
        settings: dict[str, Any] = {
            "archive": archive,
            "path": replayed,
            "state": state,
            "slot": "r",
            "source": "main",
            "database": "shop",
            "table_format": "parquet",
            "stretch_bytes": 20_000,
            "from_lsn": begin,
        }

        def replay(**more: Any) -> ReplaySummary:
            return run_replay(ReplaySettings(**settings | more), spark=spark)

        with pytest.raises(InvalidRequest, match="whose it is"):
            replay(slot="")
        with pytest.raises(InvalidOption):
            replay(options={"none": "such"})
        done = replay(to_lsn=first)
        assert done.stretches > 5
        assert not (replayed / "_spillway" / "replay").exists()
        # What is there is not done again, and nothing can be left out.
        assert replay(to_lsn=first).changes == {}
        with pytest.raises(LakeBehindSlot, match="is to begin at"):
            replay(from_lsn=Lsn(first + 1))
        with pytest.raises(LakeTableConflict, match="of slot 'r'"):
            replay(slot="another")
        more = replay(
            stretch_bytes=1 << 20, to_lsn=second, from_lsn=None, slot="", source="", database=""
        )
        assert more.from_lsn == first
        stored = position.load(replayed)
        assert stored == position.LakePosition("r", "main", "shop", "parquet", str(second))
        changes = assert_equal(replayed, streamed)
        assert sum(done.changes.values()) + sum(more.changes.values()) == changes > 1500
        # The job goes on where the replay ended.
        work(database, 3)
        stream("s", streamed)
        stream("r", replayed)
        assert assert_equal(replayed, streamed) > changes
        service.drop_slot("s")
        service.drop_slot("r")
        service.call("DELETE", "/sources/main")
