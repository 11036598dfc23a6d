"""Tables with rows from before the slot: loaded while they are written to, and exactly what the
source has.
"""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from harness.killed_driver import run_killed
from harness.lake import iceberg_frame
from harness.service import Service, service_in_process
from spillway.errors import (
    InvalidRequest,
    LakeError,
    LakeTableConflict,
    MissingReplicationPrivilege,
    StorageError,
    TableNotReadable,
    ValueNotRepresentable,
)
from spillway.failpoints import armed
from spillway.lake.job.run import JobSettings, JobSummary, run_job
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.state import quarantine
from spillway.lake.state.loads import LoadState, Stage, load_state
from spillway.lake.tables import layout, partitions
from spillway.lake.tables.delta.load_tables import DeltaLoadTables
from spillway.lake.tables.formats import load_tables
from spillway.lake.tables.iceberg.load_tables import IcebergLoadTables
from spillway.lake.tables.layout import Layout
from spillway.lake.tables.parquet.tables import current_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from harness.cluster import Database


@dataclass
class Setup:
    """A source, a slot and a lake."""

    spark: SparkSession
    pg: Database
    service: Service
    path: Path
    table_format: Literal["delta", "iceberg", "parquet"] = "delta"
    merge: Literal["copy", "position"] = "copy"
    said: list[str] = field(default_factory=list)
    pending: list[Callable[[], None]] = field(default_factory=list)

    def before_second_chunk(self, action: Callable[[], None]) -> None:
        """Do *action* once, when the first chunk of the next load is durable."""
        self.pending.append(action)

    def hear(self, step: object) -> None:
        self.said.append(str(step))
        if self.pending and str(step).startswith("loading "):
            self.pending.pop()()

    def run(self, **changed: Any) -> JobSummary:
        self.service.wait_decoded("s", self.pg)
        settings: dict[str, Any] = {
            "slot": "s",
            "path": self.path / "lake",
            "checkpoint": self.path / "checkpoint",
            "table_format": self.table_format,
            "merge": self.merge,
            "grpc": self.service.grpc_address,
            "source_dsn": self.pg.dsn,
        }
        return run_job(
            JobSettings(**settings | changed),
            spark=self.spark,
            on_load=self.hear,
        )

    def continuous(self, stop: threading.Event, tables: tuple[str, ...]) -> None:
        settings = JobSettings(
            slot="s",
            tables=tables,
            path=self.path / "lake",
            checkpoint=self.path / "checkpoint",
            table_format=self.table_format,
            merge=self.merge,
            trigger="continuous",
            interval_s=1.0,
            grpc=self.service.grpc_address,
        )
        run_job(settings, spark=self.spark, stop=stop)

    def load(self, *tables: str, **changed: Any) -> int:
        settings: dict[str, Any] = {
            "slot": "s",
            "path": self.path / "lake",
            "source_dsn": self.pg.dsn,
            "tables": tables,
            "table_format": self.table_format,
            "grpc": self.service.grpc_address,
            "range_bytes": 8192,
        }
        return run_load(
            LoadSettings(**settings | changed),
            self.hear,
            spark=self.spark,
        )

    def frame(self, kind: str, table: str) -> DataFrame:
        path = self.path / "lake" / kind / table
        if self.table_format == "delta":
            return self.spark.read.format("delta").load(str(path))
        if self.table_format == "iceberg":
            return iceberg_frame(self.spark, self.path / "lake", kind, table)
        if kind == "current":
            return self.spark.read.parquet(str(current_path(self.path / "lake", table)))
        return self.spark.read.option("mergeSchema", "true").parquet(str(path))

    def check(self, *tables: str) -> None:
        """Compare current tables with the source's."""
        for table in tables:
            frame = partitions.removed(self.frame("current", table))
            rows = [row.asDict() for row in frame.collect()]
            ours = []
            for row in rows:
                copies = row.pop("_copies", 1)
                ours += [json.dumps(row, sort_keys=True, default=str)] * copies
            theirs = [
                json.dumps(row, sort_keys=True)
                for (row,) in self.pg.query(f"SELECT to_jsonb(t) FROM ONLY {table} t")
            ]
            assert sorted(ours) == sorted(theirs), table

    def reads(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a history that were loaded."""
        frame = self.frame("history", table).where("_op = 'R'").orderBy("_commit_lsn", "_seq")
        return [row.asDict() for row in frame.collect()]

    def writers(self, kind: str, table: str) -> set[str]:
        """Return who made the commits of a Delta table that say they are a load's."""
        log = self.path / "lake" / kind / table / "_delta_log"
        infos = (
            json.loads(line)["commitInfo"]
            for commit in log.glob("*.json")
            for line in commit.read_text().splitlines()
            if line.startswith('{"commitInfo":')
        )
        return {
            info["engineInfo"].split("/")[0]
            for info in infos
            if '"load": ' in info.get("userMetadata", "")
        }

    def state(self, directory: str) -> LoadState:
        state = load_state(self.path / "lake", directory)
        assert state is not None
        return state


@contextmanager
def set_up(
    spark: SparkSession,
    pg: Database,
    path: Path,
    table_format: Literal["delta", "iceberg", "parquet"],
    sql: str,
) -> Iterator[Setup]:
    with service_in_process(path / "data") as service:
        pg.execute(sql)
        service.create_source(pg.dsn)
        service.create_slot("s", pg.name, "arrow")
        yield Setup(spark, pg, service, path, table_format)
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")


@contextmanager
def written(pg: Database, statement: Callable[[random.Random], str]) -> Iterator[None]:
    """Run *statement*'s over and over beside the block."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    stop = threading.Event()

    def write() -> None:
        rng = random.Random(seed)
        with pg.connect() as connection:
            while not stop.wait(0.02):
                connection.execute(statement(rng))  # type: ignore[call-overload]

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, gone int, name text, big text,
    n int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
ALTER TABLE items DROP gone;
INSERT INTO items (id, name, big) SELECT g, 'n' || g, repeat(g::text, 900)
    FROM generate_series(1, 1000) g;
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag SELECT g % 50, CASE WHEN g % 3 > 0 THEN 'x' END FROM generate_series(1, 500) g;
CREATE TABLE empty (id int PRIMARY KEY, v int);
CREATE TABLE quiet ("odd, (name)" int PRIMARY KEY, v text);
INSERT INTO quiet VALUES (1, 'a'), (2, NULL);
CREATE TABLE events (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES IN (1);
CREATE TABLE events_2 PARTITION OF events FOR VALUES IN (2);
INSERT INTO events SELECT g, 1 + g % 2 FROM generate_series(1, 100) g;
"""
NAMES = ("items", "bag", "quiet", "empty", "events_1", "events_2")


def write(rng: random.Random) -> str:
    key, other = rng.randrange(1, 1200), rng.randrange(1, 1200)
    return rng.choice(
        (
            f"UPDATE items SET name = name || '.' WHERE id = {key}",
            f"UPDATE items SET big = repeat(md5({rng.random()}::text), 200) WHERE id = {key}",
            (
                f"UPDATE items SET id = {other} WHERE id = {key} AND NOT EXISTS (SELECT FROM items "
                f"WHERE id = {other})"
            ),
            f"DELETE FROM items WHERE id = {key}",
            (
                f"INSERT INTO items (id, name, big) VALUES ({key}, 'new', repeat('v', 4000)) ON "
                "CONFLICT DO NOTHING"
            ),
            (
                f"BEGIN; INSERT INTO bag VALUES ({key}, 'y'); DELETE FROM bag WHERE a = "
                f"{key % 50}; COMMIT"
            ),
            f"UPDATE bag SET b = 'z' WHERE a = {key % 50}",
            f"INSERT INTO events VALUES ({key + 1000}, {1 + key % 2}) ON CONFLICT DO NOTHING",
        )
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("table_format", "server"),
    [("delta", "pg18"), ("iceberg", "pg18"), ("parquet", "pg15")],
)
def test_loaded_while_written_to(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    table_format: Literal["delta", "iceberg", "parquet"],
    server: str,
) -> None:
    pg: Database = request.getfixturevalue(server)
    names = NAMES[:3] if table_format == "delta" else NAMES
    tables = tuple(f"public.{name}" for name in names)
    with set_up(spark, pg, tmp_path, table_format, TABLES) as setup:
        with written(pg, write):
            setup.run(initial_load=True, tables=tables)
        # What was written meanwhile; nothing is left to load.
        setup.run(initial_load=True, tables=tables)
        setup.check(*tables)
        loaded = [line for line in setup.said if line.startswith("loaded ")]
        assert len(loaded) == len(names), "each table once"
        for name in names:
            state = setup.state(f"public.{name}")
            assert state.stage == Stage.DONE
            reads = setup.reads(f"public.{name}")
            assert {row["_commit_lsn"] for row in reads} <= {state.lsn_value - 1}
            assert len({row["_seq"] for row in reads}) == len(reads)
            assert bool(reads) == (name != "empty")
        if table_format == "delta":
            # Files were written where rows are copied, but where Delta or the table asks for Spark.
            assert setup.writers("history", "public.items") == {"spillway"}
            assert setup.writers("current", "public.items") == {"spillway"}
            assert setup.writers("current", "public.bag") == {"Apache-Spark"}
            assert setup.writers("history", "public.quiet") == {"Apache-Spark"}
        # Nothing of it is left on the source.
        assert pg.value("SELECT count(*) FROM pg_replication_slots WHERE temporary") == 0


KINDS = """
CREATE TYPE mood AS ENUM ('fine', 'bad');
CREATE TYPE pair AS (a int, b text);
CREATE TABLE kinds (id bigint PRIMARY KEY, small smallint, flag boolean, r real, d float8,
    price numeric(12, 2), long numeric(30, 10), any_number numeric, t text, v varchar(9),
    bytes bytea, day date, at timestamptz, local timestamp, clock time, span interval, doc jsonb,
    numbers int[], words text[], m mood, p pair, u uuid, ip inet);
INSERT INTO kinds SELECT g, g, g % 2 = 0, g / 3.0,
    CASE WHEN g % 5 = 0 THEN 'NaN'::float8 ELSE g END, g / 7.0,
    g * 1e15 / 7, g * 1e20, repeat('é', g % 50), 'v' || g, decode(md5(g::text), 'hex'),
    date '2024-02-28' + g, timestamptz '2024-02-29 12:00+02' + g * interval '1 hour',
    timestamp '1800-01-01 00:00:00.123456' + g * interval '1 day', '12:34:56.5', g * interval '1 h',
    jsonb_build_object('n', g), ARRAY[g, NULL], ARRAY['a', 'b' || g], 'fine', ROW(g, 'x')::pair,
    md5(g::text)::uuid, '10.0.0.1' FROM generate_series(1, 400) g;
INSERT INTO kinds (id) VALUES (0), (100000);
CREATE INDEX ON kinds (t);
"""


#: Each finds some of the first table's rows.
LOOKED_FOR = (
    "id = 7",
    "at = timestamp '2024-02-29 17:00:00Z'",
    "local = timestamp_ntz '1800-01-08 00:00:00.123456'",
    "day IS NULL",
    "price = 57.14",
)


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_files_are_what_spark_would_write(
    spark: SparkSession,
    pg18: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: Literal["delta", "iceberg"],
) -> None:
    """The same table by files and by Spark's writer: rows, types, and what is left out by
    statistics.
    """
    with set_up(spark, pg18, tmp_path, table_format, KINDS) as setup:
        found = {}
        for way in ("files", "spark"):
            if way == "spark":
                monkeypatch.setattr(DeltaLoadTables, "by_files", None)
                monkeypatch.setattr(IcebergLoadTables, "by_files", None)
            setup.path = tmp_path / way
            by_day = layout.parse("day", (), ()) if table_format == "delta" else Layout()
            assert setup.load("public.kinds", layout=by_day) == 1
            tables = load_tables(table_format, spark, setup.path / "lake", "s")
            frames = (tables.history("public.kinds", 0, 1 << 62), tables.current("public.kinds"))
            for kind, frame in zip(("history", "current"), frames, strict=True):
                assert frame is not None
                told = ("_lsn", "_commit_lsn", "_commit_end_lsn", "_commit_time")
                rows = frame.drop(*told).orderBy("id")
                found[way, kind] = rows.schema, list(map(str, rows.collect()))
                # What is looked for is in a file that statistics leave.
                counts = [frame.where(condition).count() for condition in LOOKED_FOR]
                assert counts == [1, 1, 1, 2, 1], (way, kind)
            if way == "files" and table_format == "delta":
                assert setup.writers("history", "public.kinds") == {"spillway"}
                assert setup.writers("current", "public.kinds") == {"spillway"}
        for kind in ("history", "current"):
            assert len(found["files", kind][1]) == 402
            assert found["files", kind] == found["spark", kind], kind


@pytest.mark.long
@pytest.mark.parametrize("merge", ["copy", "position"])
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_added_later_and_loaded_again(
    spark: SparkSession,
    pg15: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: Literal["delta", "iceberg"],
    merge: Literal["copy", "position"],
) -> None:
    """Beside a job that goes on: its batches come between a load's steps."""
    monkeypatch.setattr("spillway.lake.tables.positions.SMALL_TABLE_BYTES", 0)
    tables = ("public.bag", "public.items")
    with set_up(spark, pg15, tmp_path, table_format, TABLES) as setup:
        setup.merge = merge
        setup.run(tables=tables[:1], initial_load=True)
        with written(pg15, write):
            stop = threading.Event()
            job = threading.Thread(target=setup.continuous, args=(stop, tables))
            job.start()
            try:
                assert setup.load("public.items") == 1
                first = setup.state("public.items")
                assert first.chunks > 1
                assert setup.load("public.items", resync=True) == 1
            finally:
                stop.set()
                job.join()
        with pytest.raises(LakeTableConflict, match=r"public.items was loaded before.*--resync"):
            setup.load("public.items")
        setup.run(tables=tables)
        setup.check(*tables)
        second = setup.state("public.items")
        assert second.lsn_value > first.lsn_value
        # History keeps both.
        assert {row["_commit_lsn"] for row in setup.reads("public.items")} == {
            first.lsn_value - 1,
            second.lsn_value - 1,
        }


@pytest.mark.long
def test_loaded_anew_with_other_partitions(
    spark: SparkSession, pg15: Database, tmp_path: Path
) -> None:
    tables = ("public.bag",)
    with set_up(spark, pg15, tmp_path, "delta", TABLES) as setup:
        by_b = layout.parse("month", ["public.bag=b"], ())
        setup.run(tables=tables, initial_load=True, layout=by_b)
        pg15.execute("ALTER TABLE bag RENAME b TO c")
        pg15.execute("INSERT INTO bag VALUES (1, 'late')")
        setup.run(tables=tables)
        assert (
            "is partitioned by b"
            in quarantine.quarantined(setup.path / "lake")["public.bag"].reason
        )
        by_c = layout.parse(None, ["public.bag=c"], ())
        with pytest.raises(LakeTableConflict, match="partitioned by b, not by c"):
            setup.run(tables=tables, layout=by_c)
        assert setup.load("public.bag", resync=True, layout=by_c) == 1
        setup.run(tables=tables, layout=by_c)
        setup.check(*tables)
        made = partitions.partitions_of(setup.frame("current", "public.bag").schema)
        assert list(map(str, made)) == ["c"]


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["parquet", "iceberg"])
def test_columns_change_after_the_load(
    spark: SparkSession,
    pg15: Database,
    tmp_path: Path,
    table_format: Literal["parquet", "iceberg"],
) -> None:
    """The loaded table has the columns' numbers: ALTER TABLE is followed. Changes before the
    snapshot have older columns.
    """
    with set_up(spark, pg15, tmp_path, table_format, TABLES) as setup:
        for sql in (
            "INSERT INTO items (id, name) VALUES (2000, 'early')",
            "ALTER TABLE items ADD note text DEFAULT 'none', RENAME name TO title",
        ):
            for statement in sql.replace(", RENAME", "; ALTER TABLE items RENAME").split(";"):
                pg15.execute(statement)
        assert setup.load("public.items") == 1
        setup.run(tables=("public.items",))
        setup.check("public.items")
        pg15.execute("INSERT INTO items (id, title) VALUES (2001, 'late')")
        pg15.execute("ALTER TABLE items DROP note, ADD price int DEFAULT 5")
        pg15.execute("UPDATE items SET price = 6 WHERE id = 7")
        setup.run(tables=("public.items",))
        setup.check("public.items")
        # Loaded again with another key.
        pg15.execute("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, price)")
        assert setup.load("public.items", resync=True) == 1
        pg15.execute("UPDATE items SET price = 8 WHERE id = 8")
        setup.run(tables=("public.items",))
        setup.check("public.items")


def test_what_is_missing_is_said(spark: SparkSession, pg15: Database, tmp_path: Path) -> None:
    with set_up(spark, pg15, tmp_path, "parquet", TABLES) as setup:
        with pytest.raises(InvalidRequest, match="SPILLWAY_LAKE_SOURCE_DSN"):
            setup.load(source_dsn="")
        pg15.cluster.execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
        plain = pg15.cluster.dsn(pg15.name, "reader")
        with pytest.raises(MissingReplicationPrivilege, match=r"ALTER ROLE .reader. REPLICATION"):
            setup.load(source_dsn=plain)
        pg15.cluster.execute("ALTER ROLE reader REPLICATION")
        with pytest.raises(TableNotReadable, match=r"may not read .* public\.quiet") as denied:
            setup.load("public.quiet", source_dsn=plain)
        # Nothing was begun; the hint mends it.
        assert load_state(setup.path / "lake", "public.quiet") is None
        pg15.execute(denied.value.hint)
        assert setup.load("public.quiet", source_dsn=plain) == 1
        # A table that is not there is said to be; a partitioned one is its partitions.
        with pytest.raises(LakeError, match=r"no table public.nothing"):
            setup.load("public.nothing")
        assert setup.load("public.events") == 2
        with pytest.raises(LakeError, match=r"slot s decodes"):
            setup.load(source_dsn=pg15.cluster.dsn("postgres"))
        pg15.execute(
            "CREATE TABLE bad (id int PRIMARY KEY, d date); INSERT INTO bad VALUES (1, 'infinity')"
        )
        with pytest.raises(ValueNotRepresentable, match=r"public.bad: column d: infinity"):
            setup.load("public.bad")
        assert setup.state("public.bad").stage == Stage.COPYING
        pg15.execute("UPDATE bad SET d = '2024-02-29'")
        assert setup.load("public.bad") == 1
        assert [row["id"] for row in setup.reads("public.bad")] == [1]


@pytest.mark.long
def test_one_tables_values_stop_no_other(
    spark: SparkSession, pg15: Database, tmp_path: Path
) -> None:
    """A value that Arrow has not, in the way of a load and then in the way of its changes."""
    tables = """
    CREATE TABLE bad (id int PRIMARY KEY, d date);
    INSERT INTO bad VALUES (1, 'infinity'), (2, '2024-02-28');
    CREATE TABLE fine (id int PRIMARY KEY, name text);
    INSERT INTO fine SELECT g, 'n' || g FROM generate_series(1, 1000) g
    """
    names = ("public.bad", "public.fine")
    with set_up(spark, pg15, tmp_path, "parquet", tables) as setup:
        with pytest.raises(ValueNotRepresentable, match=r"public.bad: column d: infinity"):
            setup.load(*names)
        assert [str(setup.state(name).stage) for name in names] == ["copying", "done"]
        # The job goes on without it, and says so.
        pg15.execute("UPDATE fine SET name = 'new' WHERE id < 10")
        summary = setup.run(tables=names, initial_load=True)
        (told,) = summary.not_loaded
        assert told.startswith("public.bad is not loaded: ")
        assert told in setup.said
        assert summary.quarantined == ()
        setup.check("public.fine")
        # Its changes, too.
        pg15.execute("UPDATE bad SET id = 3 WHERE id = 2")
        pg15.execute("UPDATE bad SET d = '-infinity' WHERE id = 3")
        pg15.execute("UPDATE fine SET name = 'newer' WHERE id = 2")
        (aside,) = setup.run(tables=names).quarantined
        assert "column 'd' of public.bad" in aside
        assert "infinity is not a date in Arrow (-infinity)" in aside
        setup.check("public.fine")
        # Mended at the source, it is loaded by the next run, and asked back.
        pg15.execute("UPDATE bad SET d = '2024-02-29'")
        assert setup.run(tables=names, initial_load=True).not_loaded == ()
        quarantine.resume(setup.path / "lake", ["public.bad"], gives_up=True)
        pg15.execute("INSERT INTO bad VALUES (4, '2024-03-01')")
        assert setup.run(tables=names).quarantined == ()
        setup.check(*names)


@pytest.mark.long
@pytest.mark.parametrize(
    ("failpoint", "table_format"),
    [
        ("lake.load_chunk=kill@2", "delta"),
        ("lake.load_chunk=kill@2", "iceberg"),
        ("lake.load_published=kill", "delta"),
        ("lake.load_published=kill", "iceberg"),
        ("lake.load_published=kill", "parquet"),
        ("lake.load_done=kill", "parquet"),
    ],
)
def test_killed(
    spark: SparkSession,
    pg15: Database,
    tmp_path: Path,
    failpoint: str,
    table_format: Literal["delta", "iceberg", "parquet"],
) -> None:
    """The driver is killed; the job goes on; the load is run again, and each row is there once."""
    tables = ("public.items", "public.quiet")
    with set_up(spark, pg15, tmp_path, table_format, TABLES) as setup:
        settings = {
            "slot": "s",
            "path": str(tmp_path / "lake"),
            "source_dsn": pg15.dsn,
            "tables": tables,
            "table_format": table_format,
            "grpc": setup.service.grpc_address,
            "range_bytes": 8192,
        }
        run_killed(spark, failpoint, "load", settings)
        # The session that keeps the snapshot ends with its client.
        for _ in range(100):
            if not pg15.value(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            ):
                break
            time.sleep(0.1)
        states = {name: load_state(tmp_path / "lake", name) for name in tables}
        finished = {name for name, s in states.items() if s and s.stage == Stage.DONE}
        # The other table was at work, too: which one came to the instant is not said.
        assert finished <= (set() if "published" in failpoint else {"public.quiet"})
        after_failure(setup, pg15, tables, finished)
        for name in finished:
            assert setup.state(name) == states[name]


def after_failure(
    setup: Setup,
    pg: Database,
    tables: tuple[str, ...],
    finished: set[str] | frozenset[str] = frozenset(),
) -> None:
    """Go on where a load failed: writes, DDL and the job come first."""
    name = f"extra_{random.randrange(1 << 32)}"
    for statement in (
        "UPDATE items SET name = 'while it was down' WHERE id <= 20",
        f"ALTER TABLE items ADD {name} int DEFAULT 3",
        "DELETE FROM items WHERE id = 500",
    ):
        pg.execute(statement)
    setup.run(tables=tables)
    pg.execute("UPDATE items SET name = 'later' WHERE id BETWEEN 10 AND 30")
    # What is done is not done again.
    assert setup.load(*(t for t in tables if t not in finished)) == len(tables) - len(finished)
    pg.execute("UPDATE items SET name = 'last' WHERE id BETWEEN 25 AND 35")
    setup.run(tables=tables)
    setup.check(*tables)
    for table in tables:
        state = setup.state(table)
        assert state.stage == Stage.DONE
        of_load = [r for r in setup.reads(table) if r["_commit_lsn"] == state.lsn_value - 1]
        assert len({row["_seq"] for row in of_load}) == len(of_load) > 0


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["delta", "iceberg", "parquet"])
def test_failures(
    spark: SparkSession,
    pg15: Database,
    tmp_path: Path,
    table_format: Literal["delta", "iceberg", "parquet"],
) -> None:
    """At each step of a load and of re-syncs, while the process lives: the snapshot goes, what is
    durable stays.
    """
    tables = ("public.items",)
    with set_up(spark, pg15, tmp_path, table_format, TABLES) as setup:
        loaded = set()
        for point in ("begun", "chunk", "copied", "published"):
            with (
                armed(f"lake.load_{point}=error:EIO"),
                pytest.raises(StorageError, match="failpoint"),
            ):
                setup.load(*tables, resync=True)
            after_failure(setup, pg15, tables)
            loaded.add(setup.state("public.items").lsn_value - 1)
        assert {row["_commit_lsn"] for row in setup.reads("public.items")} == loaded, (
            "of the loads that failed nothing is left"
        )


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["iceberg", "parquet"])
def test_ddl_goes_first(
    spark: SparkSession,
    pg15: Database,
    tmp_path: Path,
    table_format: Literal["iceberg", "parquet"],
) -> None:
    """DDL that waits for the load is let through, and so is the end of the session that keeps the
    snapshot.
    """
    with set_up(spark, pg15, tmp_path, table_format, TABLES) as setup:
        began = threading.Event()
        altered = threading.Thread(
            target=pg15.execute, args=("ALTER TABLE items ADD late int DEFAULT 4",)
        )

        def disturb() -> None:
            began.set()
            altered.start()
            while not pg15.value("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                time.sleep(0.05)

        setup.before_second_chunk(disturb)
        assert setup.load("public.items") == 1
        altered.join()
        assert began.is_set()
        assert any("waits for the load" in line for line in setup.said)
        setup.run(tables=("public.items",))
        setup.check("public.items")

        setup.before_second_chunk(
            lambda: pg15.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in "
                "transaction'"
            )
        )
        assert setup.load("public.items", resync=True) == 1
        assert any("was ended" in line for line in setup.said)
        setup.run(tables=("public.items",))
        setup.check("public.items")
