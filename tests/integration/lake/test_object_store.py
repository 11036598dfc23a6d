"""A lake in a bucket of a real S3 server: kept by two jobs, of which the first one is killed.

Each job is a process of its own, as `spillway lake run` is, and its JVM has the jars for S3. What
is there afterwards is read by delta-rs, which shares nothing with Spark's access to the store, and
in Iceberg by PyIceberg's own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from harness.arrow_slot import ArrowSlot, Table, delete, insert, update
from harness.azure_store import CONTAINER, KEY, azure_store
from harness.object_store import BUCKET, object_store
from harness.serve_process import ServeProcess
from harness.service import service_in_process
from spillway.cli import main
from spillway.errors import (
    InvalidRequest,
    JarsMissing,
    LakeTableConflict,
    UnsupportedFeature,
)
from spillway.lake import jars
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.replay import ReplaySettings, run_replay
from spillway.lake.state import commit_points, job_record, position, resyncs
from spillway.storage.place import ObjectPath, replace_text, storage_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Database

_TESTS = Path(__file__).parents[2]
LAKE = ObjectPath(BUCKET, "company/lake")

#: Does what it is told by lines, and answers each with one.
_JOB = """
import json, sys
from datetime import UTC, datetime, timedelta
from dataclasses import replace
from pathlib import Path
from spillway.failpoints import armed
from spillway.lake.tables.delta import tables as delta_tables
from spillway.lake.tables import maintenance
from spillway.lake.state import position
from spillway.lake.tables import formats as table_formats
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.read import Lake
from spillway.lake.verify.run import VerifySettings, verify
from spillway.lake.load.run import LoadSettings, run_load
from spillway.lake.replay import ReplaySettings, run_replay
from spillway.lake.session import session_for
from spillway.storage.place import lake_path

# Nothing else prints there, not even Spark's VACUUM.
answers = sys.stdout
given, lake, jars = sys.argv[1:]
given = json.loads(given)
source = given.pop("source_dsn", "")
settings = JobSettings(
    path=lake_path(lake), checkpoint=lake_path(lake) / "_spillway" / "checkpoint",
    master="local[2]", driver_memory="1g", jars=Path(jars), **given,
)
merged = []
merge = delta_tables.merge
def watched(table, *others):
    merge(table, *others)
    merged.append(table.table_uri)
delta_tables.merge = watched

def answer(command, *words):
    if command == "run":
        merged.clear()
        asked = replace(settings, source_dsn=source, **json.loads(words[0])) if words else settings
        done = run_job(asked, spark=spark, on_batch=lambda report: None, on_load=lambda step: None)
        return {"merged": merged, "quarantined": done.quarantined} if words else {"merged": merged}
    if command == "load":
        asked = LoadSettings(
            settings.slot, settings.path, source, (words[0],), resync=True, grpc=settings.grpc,
            range_bytes=8192,
        )
        return run_load(asked, lambda step: None, spark=spark)
    if command == "verify":
        asked = VerifySettings(settings.path, source, grpc=settings.grpc)
        done = verify(asked, spark=spark)
        return [[str(t) for t in done.tables if not t.equal], sum(t.lake_rows for t in done.tables)]
    if command == "replay":
        asked = {name: Path(value) for name, value in json.loads(words[0]).items()}
        into = lake_path(lake) / "replayed"
        if settings.iceberg_catalog is not None:
            asked |= {"iceberg_catalog": settings.iceberg_catalog, "iceberg_prefix": "replayed_"}
        done = run_replay(
            ReplaySettings(
                path=into, slot="r", source="main", database=words[1], stretch_bytes=20_000,
                table_format=settings.table_format, **asked,
            ),
            spark=spark,
        )
        pin = Lake(spark, into).at()
        return [done.stretches > 1, sorted(pin.current("public.bag").collect())]
    if command == "quarantine":
        pin = Lake(spark, lake).at()
        return sorted(json.loads(row["_row"])["id"] for row in pin.quarantine(words[0]).collect())
    if command == "maintain":
        tables = table_formats.lake_tables(
            settings.table_format, spark, settings.path, settings.slot
        )
        now = datetime.now(UTC) + timedelta(days=int(words[0]) if words else 0)
        with position.locked(settings.path):
            done = maintenance.maintain(
                spark, settings.path, settings.table_format, tables, maintenance.Upkeep(), now=now
            )
        return [done.failures, len(done.tables)]
    if command == "killed":
        with armed(words[0]):
            run_job(settings, spark=spark)
    pin = Lake(spark, lake).at(*words)
    rows = sorted(tuple(row) for row in pin.current("public.items").collect())
    return {"lsn": str(pin.lsn), "rows": rows, "changes": pin.history("public.items").count()}

with session_for(settings, settings.table_format, None, short=True) as spark:
    conf = spark.sparkContext.getConf().getAll()
    secrets = [name for name, value in conf if "not a secret" in value]
    print(json.dumps(secrets), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(*line.split())), file=answers, flush=True)
"""

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})
PRICED = ITEMS.with_columns(price=pa.int64())
ORDERS = Table("orders", {"id": pa.int64(), "total": pa.int64()})


@pytest.fixture(scope="module")
def jar_folder_s3(jar_folder: Path) -> Path:
    try:
        jars.resolve(jar_folder, (*jars.DELTA, *jars.S3))
    except JarsMissing as error:
        pytest.skip(str(error))
    return jar_folder


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with object_store() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


class Job:
    """A job's process."""

    def __init__(self, settings: dict[str, Any], jar_folder: Path, lake: ObjectPath) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _JOB, json.dumps(settings), str(lake), str(jar_folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.secrets = self._answer()

    def tell(self, *words: str) -> Any:
        self.send(*words)
        return self._answer()

    def send(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None


@contextmanager
def started(settings: dict[str, Any], jar_folder: Path, lake: ObjectPath = LAKE) -> Iterator[Job]:
    job = Job(settings, jar_folder, lake)
    with job.process as process:
        try:
            yield job
        finally:
            process.kill()


def table_rows(kind: str, name: str) -> list[dict[str, Any]]:
    where = LAKE / kind / name
    table = DeltaTable(str(where), storage_options=storage_options(where))
    rows: list[dict[str, Any]] = pa.table(table.to_pyarrow_table()).to_pylist()
    return rows


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_lake_in_a_bucket(store: None, jar_folder_s3: Path, tmp_path: Path) -> None:
    slot = ArrowSlot(tmp_path / "slot")
    settings = {"slot": slot.slot_name, "source_options": slot.options}
    with started(settings, jar_folder_s3) as job:
        assert job.secrets == []
        slot.commit(
            *(insert(ITEMS, id=i, name="n") for i in (1, 2, 3)), insert(ORDERS, id=1, total=5)
        )
        job.send("run")
        while not position.is_locked(LAKE):
            assert job.process.poll() is None
            time.sleep(0.05)
        with (
            pytest.raises(LakeTableConflict, match=f"process {job.process.pid} of "),
            position.locked(LAKE),
        ):
            pass
        assert job._answer() == {"merged": []}, "the tables were made"
        before = job.tell("pin")
        assert before["rows"] == [[1, "n"], [2, "n"], [3, "n"]]

        slot.commit(update(ITEMS, {"id": 1, "name": "renamed"}), delete(ITEMS, id=3))
        assert job.tell("run") == {"merged": [f"{LAKE}/current/public.items/"]}
        slot.commit(update(PRICED, {"id": 2, "name": "n", "price": 7}))
        assert job.tell("run") == {"merged": []}, "new columns are Spark's"
        now = job.tell("pin")
        assert now["rows"] == [[1, "renamed", None], [2, "n", 7]]
        assert now["changes"] == 6
        assert job.tell("pin", before["lsn"]) == before
        assert position.is_locked(LAKE) is False

        confirmed = slot.state["confirmed_flush_lsn"]
        slot.commit(insert(ORDERS, id=2, total=7), delete(PRICED, id=1))
        assert job.tell("killed", "lake.after_current=kill@1") is None
        assert job.process.wait(60) == -signal.SIGKILL
    assert slot.state["confirmed_flush_lsn"] == confirmed
    assert position.is_locked(LAKE), "nobody gave it back"

    slot.commit(insert(ORDERS, id=3, total=9))
    with started(settings, jar_folder_s3) as job:
        job.tell("run")
        assert job.tell("maintain") == [{}, 5]
        assert job.process.stdin is not None
        job.process.stdin.close()
        assert job.process.wait(120) == 0
    assert slot.state["confirmed_flush_lsn"] == slot.state["decoded_lsn"]
    assert not position.is_locked(LAKE)

    history = sorted(table_rows("history", "public.items"), key=lambda row: row["_commit_lsn"])
    assert [row["_op"] for row in history] == ["I", "I", "I", "U", "D", "U", "D"]
    assert table_rows("current", "public.items") == [{"id": 2, "name": "n", "price": 7}]
    orders = sorted(table_rows("current", "public.orders"), key=lambda row: row["id"])
    assert orders == [{"id": 1, "total": 5}, {"id": 2, "total": 7}, {"id": 3, "total": 9}]
    assert len(table_rows("history", "public.orders")) == 3

    found = position.load(LAKE)
    assert found is not None
    assert found.lsn_value == slot.state["decoded_lsn"]
    assert commit_points.at(LAKE).lsn_value == found.lsn_value
    assert job_record.load(LAKE).checkpoint == f"{LAKE}/_spillway/checkpoint"
    assert "secret" not in (LAKE / "_spillway" / "job.json").read_text()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_source_and_its_lake_in_a_bucket(
    store: None, jar_folder_s3: Path, pg15: Database, tmp_path: Path
) -> None:
    """Loaded, followed, set aside and taken back, loaded again: and compared with the source."""
    pg15.execute(
        """
        CREATE TABLE items (id int PRIMARY KEY, name text, n int);
        INSERT INTO items SELECT g, 'n' || g, g FROM generate_series(1, 500) g;
        CREATE TABLE bag (a int, b text);
        ALTER TABLE bag REPLICA IDENTITY FULL;
        """
    )
    state, archive = tmp_path / "begin.snap", tmp_path / "archive"
    saved = ["--wal-dir", pg15.cluster.wal_directory, "--dsn", pg15.dsn, "--save-state", state]
    assert main(["decode", *map(str, saved)]) == 0
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = {"slot": "s", "grpc": service.grpc_address, "source_dsn": pg15.dsn}
        with started(settings, jar_folder_s3) as job:
            pg15.execute("INSERT INTO bag SELECT g % 3, 'x' FROM generate_series(1, 10) g")
            done = job.tell("run", '{"initial_load":true}')
            assert done == {"merged": [], "quarantined": []}
            pg15.execute("UPDATE items SET name = 'new' WHERE id < 10")
            pg15.execute("DELETE FROM bag WHERE a = 1")
            assert job.tell("verify") == [[], 506]

            pg15.execute("ALTER TABLE items DROP n")
            pg15.execute("INSERT INTO items VALUES (501, 'aside')")
            pg15.execute("INSERT INTO bag VALUES (7, 'goes on')")
            service.wait_decoded("s", pg15)
            done = job.tell("run", '{"on_schema_change":"quarantine"}')
            assert [line.split()[0] for line in done["quarantined"]] == ["public.items"]
            assert job.tell("quarantine", "public.items") == [501]
            pg15.execute("INSERT INTO items VALUES (502, 'aside, too')")
            service.wait_decoded("s", pg15)
            job.tell("run", '{"on_schema_change":"quarantine"}')
            assert job.tell("quarantine", "public.items") == [501, 502]
            pg15.execute("DELETE FROM items WHERE id = 501")
            service.wait_decoded("s", pg15)
            assert job.tell("run", '{"on_schema_change":"evolve"}')["quarantined"] == []
            assert job.tell("verify") == [[], 508]

            # Loaded again: its current table is the load's until then.
            assert job.tell("load", "public.items") == 1
            pg15.execute("UPDATE items SET name = 'after the load' WHERE id = 1")
            assert job.tell("verify") == [[], 508]

            # The same WAL from an archive, into a lake of its own.
            pg15.cluster.execute("CHECKPOINT")
            shutil.copytree(
                pg15.cluster.wal_directory, archive, ignore=shutil.ignore_patterns("*[a-z]*")
            )
            given = json.dumps({"archive": str(archive), "state": str(state)}).replace(" ", "")
            bag = [list(row) for row in pg15.query("SELECT a, b FROM bag ORDER BY a, b")]
            assert job.tell("replay", given, pg15.name) == [True, bag]
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
    current = {row["id"]: row["name"] for row in table_rows("current", "public.items")}
    assert len(current) == 501
    assert current[1] == "after the load"
    reads = [row for row in table_rows("history", "public.items") if row["_op"] == "R"]
    assert len(reads) == 500 + 501


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_an_iceberg_lake_in_a_bucket(
    store: None,
    jar_folder_s3: Path,
    pg15: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed when a table's files are there and its commit is not; all that is done to a lake; read
    at the end without Spark.
    """
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    for name, value in catalog.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__SHARED__{name.upper()}", value)
    # Delta's jars are not asked for.
    folder = tmp_path / "jars"
    folder.mkdir()
    for jar in jars.S3:
        (folder / jar.file_name).symlink_to(jar_folder_s3 / jar.file_name)
    pg15.execute(
        """
        CREATE TABLE items (id int PRIMARY KEY, name text);
        INSERT INTO items SELECT g, 'n' || g FROM generate_series(1, 500) g;
        CREATE TABLE bag (a int, b text);
        ALTER TABLE bag REPLICA IDENTITY FULL;
        """
    )
    state, archive = tmp_path / "begin.snap", tmp_path / "archive"
    saved = ["--wal-dir", pg15.cluster.wal_directory, "--dsn", pg15.dsn, "--save-state", state]
    assert main(["decode", *map(str, saved)]) == 0
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        settings = {
            "slot": "s", "grpc": service.grpc_address, "source_dsn": pg15.dsn,
            "table_format": "iceberg", "iceberg_catalog": "shared", "iceberg_prefix": "shop_",
        }  # fmt: skip

        def change(*statements: str) -> None:
            for statement in statements:
                pg15.execute(statement)
            service.wait_decoded("s", pg15)

        with started(settings, folder) as job:
            assert job.secrets == []
            change("INSERT INTO bag SELECT g % 3, 'x' FROM generate_series(1, 10) g")
            assert job.tell("run", '{"initial_load":true}')["quarantined"] == []
            before = job.tell("pin")
            assert len(before["rows"]) == 500
            change(
                "UPDATE items SET name = 'new' WHERE id < 10",
                "DELETE FROM bag WHERE a = 1",
                "ALTER TABLE items ADD n int DEFAULT 7",
                "INSERT INTO items VALUES (501, 'added', 8)",
            )
            assert job.tell("verify") == [[], 507]
            assert job.tell("pin", before["lsn"]) == before
            change("UPDATE items SET n = 9 WHERE id = 501", "INSERT INTO bag VALUES (7, 'on')")
            written = objects_below("current/public.items/data")
            assert job.tell("killed", "lake.before_merge=kill@1") is None
            assert job.process.wait(60) == -signal.SIGKILL
            left = objects_below("current/public.items/data") - written
        assert len(left) == 1
        with started(settings, folder) as job:
            assert job.tell("verify") == [[], 508]
            change("ALTER TABLE items DROP n", "INSERT INTO items VALUES (502, 'aside')")
            done = job.tell("run", '{"on_schema_change":"quarantine"}')
            assert [line.split()[0] for line in done["quarantined"]] == ["public.items"]
            assert job.tell("quarantine", "public.items") == [502]
            change("UPDATE items SET name = 'back' WHERE id = 502")
            assert job.tell("run", '{"on_schema_change":"evolve"}')["quarantined"] == []
            assert job.tell("load", "public.items") == 1
            change("UPDATE items SET name = 'after the load' WHERE id = 1")
            job.tell("run")
            assert job.tell("maintain", "8") == [{}, 4]
            assert not objects_below("current/public.items/data") & left
            change("DELETE FROM items WHERE id = 502")
            assert job.tell("verify") == [[], 508]

            pg15.cluster.execute("CHECKPOINT")
            shutil.copytree(
                pg15.cluster.wal_directory, archive, ignore=shutil.ignore_patterns("*[a-z]*")
            )
            given = json.dumps({"archive": str(archive), "state": str(state)}).replace(" ", "")
            bag = [list(row) for row in pg15.query("SELECT a, b FROM bag ORDER BY a, b")]
            assert job.tell("replay", given, pg15.name) == [True, bag]
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")

    client = {
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL_S3"], "s3.region": "us-east-1",
        "s3.access-key-id": "lake", "s3.secret-access-key": "not a secret",
    }  # fmt: skip
    shared = load_catalog("shared", **catalog, **client)
    current = shared.load_table("shop_current_public.items")
    rows = {row["id"]: row["name"] for row in current.scan().to_arrow().to_pylist()}
    assert len(rows) == 501
    assert (rows[1], rows[2], rows[501]) == ("after the load", "new", "added")
    operations = shared.load_table("shop_history_public.items").scan().to_arrow().column("_op")
    assert operations.to_pylist().count("R") == 500 + 502


def objects_below(folder: str) -> set[str]:
    return {str(path) for path, _ in (LAKE / folder).objects()}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_job_at_work_in_a_bucket(
    store: None,
    jar_folder_s3: Path,
    pg18: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its tables are compared, and loaded anew, while it goes on and the source is written to."""
    monkeypatch.setenv("SPILLWAY_JARS", str(jar_folder_s3))
    pg18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pg18.execute("INSERT INTO t SELECT i, 'before' FROM generate_series(1, 1000) i")
    target = {
        "kind": "lake", "path": str(LAKE), "master": "local[1]", "driver_memory": "512m",
        "interval_s": 0.5,
    }  # fmt: skip
    serve = ServeProcess(tmp_path / "data")
    stopping = threading.Event()

    def write() -> None:
        number = 2000
        while not stopping.wait(0.05):
            number += 1
            pg18.execute(f"INSERT INTO t VALUES ({number}, 'while')")

    writer = threading.Thread(target=write)
    try:
        service = serve.service()
        service.create_source(pg18.dsn)
        body = {"name": "shop", "source": "main", "database": pg18.name, "tables": ["public.t"]}
        service.call("POST", "/subscriptions", json={**body, "target": target})

        def wait(ready: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
            deadline = time.monotonic() + 300
            while not ready(found := service.call("GET", "/subscriptions/shop")):
                log = "\n".join(service.call("GET", "/subscriptions/shop/log")["lines"][-40:])
                assert time.monotonic() < deadline, f"{found}\n{log}"
                time.sleep(0.2)
            return found

        def compared() -> dict[str, Any]:
            service.call("POST", "/subscriptions/shop/verify", json={})
            told = wait(lambda s: s["verification"]["state"] != "running")
            found: dict[str, Any] = told["verification"]
            assert found["error"] is None
            return found

        wait(lambda s: s["state"] == "streaming" and s["table_states"])
        where = LAKE / "current" / "public.t"
        DeltaTable(str(where), storage_options=storage_options(where)).delete("id <= 3")
        writer.start()
        found = compared()
        assert found["state"] == "different"
        (one,) = found["tables"]
        assert (one["differences"], one["more"]) == (3, False)
        assert one["source_rows"] - 3 == one["target_rows"] > 998

        service.call("POST", "/subscriptions/shop/tables/public.t/resync")
        wait(lambda s: (s["table_states"][0]["resync"] or {}).get("state") == "done")
        found = compared()
        assert (found["state"], found["tables"][0]["differences"]) == ("equal", 0)
        assert not list((LAKE / "_spillway" / "boundaries").iterdir()), "nothing is left"
        assert wait(lambda s: s["state"] == "streaming")["restarts"] == 0

        # Nobody else loads beside it, and the way that there is is told.
        environment = {"SPILLWAY_LAKE_SOURCE_DSN": pg18.dsn}
        command = [sys.executable, "-m", "spillway.cli", "lake", "load", "--slot", "shop"]
        command += ["--grpc", f"127.0.0.1:{serve.grpc_port}", "--lake", str(LAKE)]
        command += ["--table", "public.t", "--resync", "--driver-memory", "512m"]
        refused = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 1, refused.stderr
        assert "another job" in refused.stderr
        assert "spillway lake resync" in refused.stderr
    finally:
        stopping.set()
        if writer.is_alive():
            writer.join()
        serve.stop()


@pytest.mark.long
def test_what_was_decided_of_a_wish_may_be_gone_when_it_is_read(
    store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load could not begin, and the job says so while somebody who takes the wish back finds
    that it had begun.
    """
    replace_text(LAKE / "history" / "public.t" / "x", "")
    (wish,) = resyncs.ask(LAKE, ["public.t"])
    assert resyncs.begin(LAKE, wish)
    real = ObjectPath.read_text
    read: list[ObjectPath] = []

    def read_text(path: ObjectPath, encoding: str = "utf-8") -> str:
        if path.name.endswith(".fate") and not read:
            read.append(path)
            # Of the wish as it is listed: begun.
            return real(path, encoding)
        if path.name.endswith(".fate") and len(read) == 1:
            read.append(path)
            resyncs.failed(LAKE, wish, "a reason")
        return real(path, encoding)

    monkeypatch.setattr(ObjectPath, "read_text", read_text)
    (taken,) = resyncs.cancel(LAKE, ["public.t"])
    assert (taken.name, taken.fate, len(read) > 1) == (wish.name, resyncs.Fate.CANCELLED, True)
    assert resyncs.asked(LAKE) == {}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_lake_in_a_container_of_azure(
    jar_folder: Path, pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded, killed before its commits, gone on with by another job with a column more, compared
    with the source, and read without Spark.
    """
    import duckdb

    try:
        jars.resolve(jar_folder, (*jars.DELTA, *jars.AZURE))
    except JarsMissing as error:
        pytest.skip(str(error))
    lake = ObjectPath(CONTAINER, "company/lake", "az")
    current = lake / "current" / "public.items"
    pg18.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    pg18.execute("INSERT INTO items SELECT g, 'n' || g FROM generate_series(1, 500) g")
    with azure_store() as environment, service_in_process(tmp_path / "data") as service:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        service.create_source(pg18.dsn)
        service.create_slot("s", pg18.name, "arrow")
        settings = {"slot": "s", "grpc": service.grpc_address, "source_dsn": pg18.dsn}

        def change(*statements: str) -> None:
            for statement in statements:
                pg18.execute(statement)
            service.wait_decoded("s", pg18)

        with started(settings, jar_folder, lake) as job:
            assert job.secrets == []
            assert job.tell("run", '{"initial_load":true}')["quarantined"] == []
            before = job.tell("pin")
            assert len(before["rows"]) == 500
            change("UPDATE items SET name = 'new' WHERE id < 10")
            assert job.tell("killed", "lake.after_current=kill@1") is None
            assert job.process.wait(60) == -signal.SIGKILL
        assert position.is_locked(lake), "nobody gave it back"
        with started(settings, jar_folder, lake) as job:
            change(
                "ALTER TABLE items ADD n int",
                "INSERT INTO items VALUES (501, 'added', 8)",
                "DELETE FROM items WHERE id = 500",
            )
            assert job.tell("verify") == [[], 500]
            assert job.tell("pin", before["lsn"]) == before
            assert job.tell("load", "public.items") == 1
            change("UPDATE items SET n = 9 WHERE id = 1")
            assert job.tell("verify") == [[], 500]
            assert job.tell("maintain") == [{}, 3]
            assert KEY not in (lake / "_spillway" / "job.json").read_text()
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
        rows = {tuple(row) for row in pg18.query("SELECT id, name, n FROM items")}
        table = DeltaTable(str(current), storage_options=storage_options(current))
        found = pa.table(table.to_pyarrow_table().select(["id", "name", "n"]))
        assert {tuple(row.values()) for row in found.to_pylist()} == rows
        seen = duckdb.sql("SELECT count(*), count(n), sum(n) FROM found").fetchone()
        assert seen == (500, 2, 17)
        scan = pl.scan_delta(str(current), storage_options=storage_options(current))
        assert set(scan.select("id", "name", "n").collect().iter_rows()) == rows


def test_what_azure_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = ObjectPath("lakes", "shop", "az")
    settings = JobSettings("slot", lake, lake / "checkpoint", table_format="iceberg")
    with pytest.raises(UnsupportedFeature, match="of object storage, it takes S3"):
        run_job(settings)
    settings = JobSettings("slot", lake, lake / "checkpoint", register_in="thrift://m:9083")
    with pytest.raises(UnsupportedFeature, match="can't be registered"):
        run_job(settings)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidRequest, match="the account that it is of is not") as told:
        run_job(JobSettings("slot", lake, lake / "checkpoint"))
    assert "AZURE_STORAGE_ACCOUNT_NAME" in told.value.hint
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://shop.blob.core.windows.net")
    with pytest.raises(InvalidRequest, match="no emulator's address"):
        run_job(JobSettings("slot", lake, lake / "checkpoint"))


def test_what_object_storage_is_not_for(store: None, tmp_path: Path) -> None:
    settings = JobSettings("slot", LAKE, LAKE / "checkpoint", table_format="parquet")
    with pytest.raises(UnsupportedFeature, match="plain Parquet"):
        run_job(settings)
    settings = JobSettings("slot", LAKE, LAKE / "checkpoint", table_format="iceberg")
    with pytest.raises(InvalidRequest, match="need a catalog that is named"):
        run_job(settings)
    with pytest.raises(InvalidRequest, match="need a catalog that is named"):
        run_replay(ReplaySettings(tmp_path, LAKE, table_format="iceberg"))
    with pytest.raises(UnsupportedFeature, match="checkpoint"):
        run_job(JobSettings("slot", tmp_path, LAKE / "checkpoint"))
    with pytest.raises(UnsupportedFeature, match="plain Parquet"):
        run_replay(ReplaySettings(tmp_path, LAKE, table_format="parquet"))
    with pytest.raises(InvalidRequest, match="object storage") as told:
        run_replay(ReplaySettings(tmp_path, LAKE, master="spark://far:7077"))
    assert "--scratch" in told.value.hint
    assert not LAKE.is_dir()
