"""kill -9 of everything that keeps a lake, at random, and the lake is its source in the end.

A private server, ``spillway serve``, a continuous ``spillway lake run`` and a writer; again and
again one of them is killed::

    driver      the Python process of the job            postgres    postmaster and all backends
    jvm         Spark                                    service     spillway serve
    worker      a Python worker of an executor

The job is started again whenever it ended. After each kill the slot must not be confirmed beyond
what the lake says that it has. At the end the job takes what is left; then each current table must
equal the source (``spillway lake verify``), and no history have a change twice, or lack one of a
table that is only inserted into.

    python -m harness.lake_kills --kills 100 --seed 1
    python -m harness.lake_kills --format parquet --kills 10 \\
        --option=--table --option=public.accounts
    python -m harness.lake_kills --format iceberg --kills 10 --by-position
    python -m harness.lake_kills --kills 100 --in-merges --by-position --lent-jvm

Each option of ``lake run`` that is given goes to the job; what was killed when is printed as it
happens. By position means all of it: no table is small then, and files are folded every few
batches. What a batch of many transactions has (a key that moves with a large value left out) may
be rewritten all the same, and how many are in one is the host's load; so in the end a batch comes
that changes one row, and the table's log must say that this one was marked. In merges: the driver
is killed at one of a merge's failpoints, or, alone or with its JVM, just after a history has a
batch, which counts if that left a current table without it. Most of a start is the JVM's; with a
JVM that is lent to one driver after the other, a kill costs a start of Python.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import httpx
import psycopg
from deltalake import DeltaTable

from harness import jvm, killed_driver
from harness.cluster import Cluster
from harness.serve_process import ServeProcess
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.read import Lake
from spillway.lake.session import spark_session
from spillway.lake.state import commit_points, position
from spillway.lake.tables.delta.tables import application_of
from spillway.lake.tables.iceberg import snapshots
from spillway.lake.tables.iceberg.catalog import LakeCatalog
from spillway.lake.verify.run import VerifySettings, verify
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from harness.cluster import Database

VICTIMS: Final = ("driver", "service", "postgres", "jvm", "worker")
_NAMES: Final = ("public.accounts", "public.transfers", "public.log")
_TABLES: Final = """
CREATE TABLE accounts (id int PRIMARY KEY, balance numeric(12,2) NOT NULL, note text);
ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;
CREATE TABLE transfers (id bigserial PRIMARY KEY, source int, target int, amount numeric(8,2));
CREATE TABLE log (line text, n float8);
ALTER TABLE log REPLICA IDENTITY FULL;
INSERT INTO accounts SELECT g, 100, repeat(md5(g::text), 80) FROM generate_series(1, 1000) g;
"""
_ACCOUNTS: Final = 1000
#: ``python -m spillway.cli`` in which no table is small.
_BY_POSITION: Final = """
import sys
from spillway.cli.program import main
from spillway.lake.tables import positions

positions.SMALL_TABLE_BYTES = 0
positions._SMALL_FILES_MAX = 4
sys.exit(main())
"""
#: A merge of these tables takes no longer.
_MERGE_S: Final = 0.15
#: Instants of a merge, by its kind.
_INSTANTS: Final = {
    "copy": ("lake.after_history", "lake.before_merge", "lake.after_current"),
    "position": (
        "lake.after_history",
        "lake.before_vectors",
        "lake.before_rows",
        "lake.before_commit",
        "lake.before_index",
        "lake.before_fold",
        "lake.after_current",
    ),
}
#: The share of kills that are at one of these.
_AT_INSTANTS: Final = 0.7
#: How often a history is looked at.
_LOOK_S: Final = 0.004
#: A job that makes no batch for so long is stuck.
_PROGRESS_TIMEOUT_S: Final = 900.0
#: Transactions that the writer is ahead of the lake's last batch at the most: on a busy machine
#: batches would grow for ever.
_AHEAD_MAX: Final = 300


class Writer(threading.Thread):
    """Moves money in transactions over all tables; goes on when the server comes back."""

    def __init__(self, database: Database, seed: int, lake: Path) -> None:
        super().__init__(name="writer")
        self._lake = lake
        self._newest, self._made = 0, 0
        self._database = database
        self._random = random.Random(seed)
        self.stop = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                # The server is killed under us; whether the last transaction committed is its
                # business.
                with contextlib.suppress(psycopg.OperationalError), self._database.connect() as c:
                    while not self.stop.wait(0.02):
                        if self._may():
                            self._transaction(c)
                self.stop.wait(0.2)
        except Exception as error:  # noqa: BLE001 - raised by who waits for the thread
            self.failure = error

    def _may(self) -> bool:
        self._made += 1
        if self._made % 50 == 0 and (newest := newest_lsn(self._lake)) != self._newest:
            self._newest, self._made = newest, 0
        return self._made < _AHEAD_MAX

    def _transaction(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        pick = self._random
        one, other = pick.sample(range(1, _ACCOUNTS + 1), 2)
        with connection.transaction():
            for account, sign in ((one, -1), (other, 1)):
                connection.execute(
                    "UPDATE accounts SET balance = balance + %s WHERE id = %s", (sign, account)
                )
            connection.execute(
                "INSERT INTO transfers (source, target, amount) SELECT %s, %s, g FROM "
                "generate_series(1, %s) g",
                (one, other, pick.choice((1, 1, 1, 50))),
            )
            connection.execute("INSERT INTO log VALUES ('moved', %s)", (pick.randrange(5) / 3,))
            what = pick.randrange(40)
            if what == 0:
                connection.execute("DELETE FROM log WHERE n = %s", (pick.randrange(5) / 3,))
            elif what == 1:
                # A changed key, whose large value WAL does not have.
                connection.execute("UPDATE accounts SET id = -id WHERE id = %s", (one,))
                connection.execute("UPDATE accounts SET id = -id WHERE id = %s", (-one,))
            elif what == 2:
                connection.execute(
                    "UPDATE accounts SET note = repeat(md5(%s::text), 80) WHERE id = %s",
                    (what, one),
                )
            elif what == 3:
                connection.execute("TRUNCATE log")


def newest_lsn(lake: Path) -> int:
    """Return the LSN of the lake's last batch, 0 before the first."""
    point = next(commit_points.points(lake), None)
    return 0 if point is None else point.lsn_value


class Job:
    """``spillway lake run --trigger continuous`` in a session of its own, or such a driver on a JVM
    that *spark* lends it.
    """

    def __init__(self, command: list[str], log: Path, spark: SparkSession | None = None) -> None:
        self._command = command
        self._log = log
        self._spark = spark
        #: what each start has until it ends
        self._held = contextlib.ExitStack()
        #: armed from the next start on
        self.failpoints = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def keep_running(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.starts += 1
            environment = os.environ | {"SPILLWAY_FAILPOINTS": self.failpoints}
            if self._spark is not None:
                environment |= self._held.enter_context(killed_driver.lent(self._spark))
            with self._log.open("ab") as log:
                self.process = subprocess.Popen(
                    self._command, stdout=log, stderr=log, start_new_session=True, env=environment
                )

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, and whatever is left of its session."""
        if self.process is None:
            return
        if how != signal.SIGKILL and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(180)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # Its end is not the next one's.
        self.process = None
        self._held.close()

    def kill(self, victim: str) -> bool:
        """Kill the driver, its JVM, or a Python worker; return whether there was one."""
        assert self.process is not None
        if victim == "driver":
            self.process.kill()
            return True
        wanted = b"java" if victim == "jvm" else b"pyspark.daemon"
        found = [pid for pid in _session(self.process.pid) if wanted in _command_line(pid)]
        for pid in found[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3]) == leader:
                found.append(int(entry.name))
    return found


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class LakeKills:
    """One run; see the module."""

    def __init__(
        self,
        directory: Path,
        cluster: Cluster,
        jars: Path,
        seed: int,
        table_format: str = "delta",
        options: Sequence[str] = (),
        *,
        by_position: bool = False,
        lent_jvm: bool = False,
    ) -> None:
        assert not (lent_jvm and options), "options are the command's"
        self._format = table_format
        self._random = random.Random(seed)
        self._cluster = cluster
        self._jars = jars
        self.path = directory / "lake"
        self.database = cluster.create_database("lake_kills")
        self.database.execute(_TABLES.split("INSERT", maxsplit=1)[0])
        self.serve = ServeProcess(directory / "data")
        service = self.serve.service()
        service.create_source(self.database.dsn)
        service.create_slot("s", self.database.name, "arrow")
        self.database.execute("INSERT" + _TABLES.split("INSERT", maxsplit=1)[1])
        self.writer = Writer(self.database, seed, self.path)
        self._merge: Literal["copy", "position"] = "position" if by_position else "copy"
        self._spark = self._session() if lent_jvm else None
        command = (
            self._driver(service.grpc_address)
            if lent_jvm
            else self._program(service.grpc_address, options)
        )
        self.job = Job(command, directory / "job.log", self._spark)
        self.kills: Counter[str] = Counter()

    def _program(self, grpc: str, options: Sequence[str]) -> list[str]:
        """Return the command as a user has it."""
        by_position = self._merge == "position"
        command = [
            sys.executable,
            *(("-c", _BY_POSITION) if by_position else ("-m", "spillway.cli")),
        ]
        command += ["lake", "run", "--slot", "s", "--lake", str(self.path), "--grpc", grpc]
        command += ["--jars", str(self._jars), "--master", "local[2]", "--driver-memory", "1g"]
        command += ["--format", self._format, *options]
        command += ["--merge", self._merge] if by_position else []
        return [*command, "--trigger", "continuous", "--interval", "0.1"]

    def _driver(self, grpc: str) -> list[str]:
        """Return what is the job's driver and nothing else."""
        settings = {
            "slot": "s",
            "path": str(self.path),
            "checkpoint": str(self._checkpoint),
            "table_format": self._format,
            "grpc": grpc,
            "merge": self._merge,
            "trigger": "continuous",
            "interval_s": 0.1,
        }
        if self._merge == "position":
            settings |= {"by_position": True, "small_files_max": 4}
        return killed_driver.command("job", settings)

    @property
    def _checkpoint(self) -> Path:
        return self.path / "_spillway" / "checkpoint"

    def _session(self) -> SparkSession:
        return spark_session(
            table_format=self._format,
            master="local[2]",
            driver_memory="1g",
            jar_folder=self._jars,
            short=True,
        )

    def run(self, kills: int, *, in_merges: bool = False, seconds: float | None = None) -> None:
        """Kill *kills* times, or for so many *seconds*, then compare."""
        self.writer.start()
        ends = None if seconds is None else time.monotonic() + seconds
        try:
            while self.kills.total() < kills and (ends is None or time.monotonic() < ends):
                victim = self._kill_in_merge() if in_merges else self._kill_next()
                self._check_position()
                told = f"{self.kills.total()} {victim}, lake at {Lsn(newest_lsn(self.path))}"
                print(told, flush=True)
            self.job.keep_running()
            self._wait_for_a_batch()
        finally:
            self.writer.stop.set()
            self.writer.join()
        if self.writer.failure:
            raise self.writer.failure
        if self._merge == "position":
            self._merge_one_row()
        self.job.end(signal.SIGTERM)
        self._compare()

    def close(self) -> None:
        self.job.end()
        self.serve.stop()
        if self._spark is not None:
            self._spark.stop()

    def _kill_next(self) -> str:
        """Kill the next one, at any time; return who it was."""
        self.job.keep_running()
        # Mostly while a batch is written; now and then before the first one.
        if self._random.random() < 0.8:
            self._wait_for_a_batch()
        time.sleep(self._random.random() * 3)
        victim = VICTIMS[self.kills.total() % len(VICTIMS)]
        self._kill(victim)
        self.kills[victim] += 1
        return victim

    def _kill_in_merge(self) -> str:
        """Kill the driver at an instant of a merge, or a moment after a history has a batch, alone
        or with all that is of it; the latter counts if a current table lacks the batch then.
        Return who it was and when.
        """
        if self._random.random() < _AT_INSTANTS:
            when = self._random.choice(_INSTANTS[self._merge])
            self._killed_at(when)
            self.kills[when] += 1
            return f"driver at {when}"
        victim = "driver" if self._spark else self._random.choice(("driver", "session"))
        self._killed_in_time(victim)
        lsn = self._lsns()
        is_in_merge = any(lsn("history", name) > lsn("current", name) for name in _NAMES)
        if is_in_merge:
            self.kills[f"{victim} in a merge"] += 1
        return victim if is_in_merge else f"{victim}, too early or late"

    def _killed_at(self, failpoint: str) -> None:
        """Run the job until it dies at a failpoint, the first time or a later one."""
        self.job.end()
        hits = 1 if failpoint == "lake.before_fold" else self._random.randint(1, 4)
        self.job.failpoints = f"{failpoint}=kill@{hits}"
        deadline = time.monotonic() + _PROGRESS_TIMEOUT_S
        starts = self.job.starts
        while self.job.process is None or self.job.process.poll() != -signal.SIGKILL:
            self.job.keep_running()
            assert time.monotonic() < deadline, f"{failpoint} did not come: {self.job.log()}"
            time.sleep(0.05)
        assert self.job.starts > starts, "nothing was started that could die"
        self.job.failpoints = ""
        self.job.end()

    def _killed_in_time(self, victim: str) -> None:
        """Kill the driver, or all that is of it, a moment after a history has a batch."""
        self.job.keep_running()
        self._wait_for_a_batch()
        name = self._random.choice(_NAMES)
        log = "_delta_log" if self._format == "delta" else "metadata"
        folder = self.path / "history" / name / log
        before = folder.stat().st_mtime_ns
        deadline = time.monotonic() + _PROGRESS_TIMEOUT_S
        while folder.stat().st_mtime_ns == before:
            self.job.keep_running()
            assert time.monotonic() < deadline, f"the job makes no batch: {self.job.log()}"
            time.sleep(_LOOK_S)
        # A merge by position may be a tenth of that.
        time.sleep(self._random.random() ** 2 * _MERGE_S)
        if victim == "driver":
            self.job.kill("driver")
        self.job.end()

    def _lsns(self) -> Callable[[str, str], int]:
        """Return what says up to where a table of the lake has everything."""
        if self._format == "iceberg":
            catalog = LakeCatalog(self.path)

            def of_iceberg(kind: str, name: str) -> int:
                table = catalog.load(kind, name)
                return 0 if table is None else snapshots.durable_lsn(table.metadata, "s")

            return of_iceberg

        def of_delta(kind: str, name: str) -> int:
            folder = self.path / kind / name
            if not (folder / "_delta_log").is_dir():
                return 0
            return DeltaTable(str(folder)).transaction_version(application_of("s")) or 0

        return of_delta

    def _kill(self, victim: str) -> None:
        if victim == "service":
            self.serve.kill()
            time.sleep(self._random.random())
            self.serve.start()
        elif victim == "postgres":
            self._cluster.kill()
            time.sleep(self._random.random())
            self._cluster.start()
        else:
            # Workers come with the first task.
            deadline = time.monotonic() + _PROGRESS_TIMEOUT_S
            while not self.job.kill(victim):
                self.job.keep_running()
                assert time.monotonic() < deadline, f"no {victim} to kill: {self.job.log()}"
                time.sleep(0.1)

    def _wait_for_a_batch(self) -> None:
        before = newest_lsn(self.path)
        deadline = time.monotonic() + _PROGRESS_TIMEOUT_S
        while newest_lsn(self.path) == before:
            # It ends by itself when what it needs was killed.
            self.job.keep_running()
            assert time.monotonic() < deadline, f"the job makes no batch: {self.job.log()}"
            time.sleep(0.1)

    def _merge_one_row(self) -> None:
        """Have the job merge one row in a batch of its own, and see that it was done by position.

        Its file has hundreds of rows by then, so that it can't go as a whole.
        """
        self._change("id % 2 = 0")
        before = self._merged_by_position()
        self._change("id = 2")
        assert self._merged_by_position() > before, (
            f"one row of public.accounts was not merged by position: {self.job.log()}"
        )

    def _change(self, which: str) -> None:
        """Change accounts, and wait until the current table has that, and so all before it."""
        before = Lsn.parse(self.database.value("SELECT pg_current_wal_insert_lsn()"))
        self.database.execute(f"UPDATE accounts SET balance = balance + 1 WHERE {which}")
        deadline = time.monotonic() + _PROGRESS_TIMEOUT_S
        while self._lsns()("current", "public.accounts") <= before:
            self.job.keep_running()
            assert time.monotonic() < deadline, f"the job makes no batch: {self.job.log()}"
            time.sleep(0.1)

    def _merged_by_position(self) -> int:
        """Return how many commits of accounts marked rows and added theirs, as its log says;
        those of folds are not among them.
        """
        name = "public.accounts"
        if self._format == "iceberg":
            table = LakeCatalog(self.path).load("current", name)
            assert table is not None
            said = [each.summary for each in table.snapshots() if each.summary is not None]
            return sum(
                one.get("added-position-deletes") is not None and one.get("added-records") == "1"
                for one in said
            )
        found = 0
        for commit in (self.path / "current" / name / "_delta_log").glob("*.json"):
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            told = [action["commitInfo"] for action in actions if "commitInfo" in action]
            ours = [(a.get("engineInfo"), a.get("operation")) for a in told] == [
                ("spillway", "MERGE")
            ]
            found += ours and any("deletionVector" in action.get("add", ()) for action in actions)
        return found

    def _check_position(self) -> None:
        """The slot first: what it is confirmed to must be in the lake by then."""
        try:
            confirmed = Lsn.parse(self.serve.service().slot("s")["confirmed_flush_lsn"])
        except (AssertionError, httpx.TransportError):
            return
        lake = position.load(self.path)
        assert lake is None or confirmed <= lake.lsn_value, (
            f"slot at {confirmed}, lake at {lake.lsn}"
        )

    def _compare(self) -> None:
        service = self.serve.service()
        end = service.wait_decoded("s", self.database)
        spark = self._spark or self._session()
        self._spark = spark
        try:
            rest = JobSettings(
                "s",
                self.path,
                self._checkpoint,
                table_format=self._format,  # type: ignore[arg-type] # the job took it
                grpc=service.grpc_address,
                merge=self._merge,
                until_lsn=Lsn.parse(end),
            )
            run_job(rest, spark=spark)
            settings = VerifySettings(
                self.path, self.database.dsn, grpc=service.grpc_address, jars=self._jars
            )
            outcome = verify(settings, spark=spark)
            assert outcome.equal, "\n".join(map(str, outcome.tables))
            assert len(outcome.tables) == 3
            now = Lake(spark, self.path).at()
            for table in now.tables():
                history = now.history(table)
                twice = history.groupBy("_commit_lsn", "_seq").count().where("count > 1").count()
                assert twice == 0, f"{twice} changes of {table} are in its history twice"
            written = self.database.value("SELECT count(*) FROM transfers")
            assert now.history("public.transfers").count() == written
        finally:
            self._spark = None
            spark.stop()


def main(arguments: list[str] | None = None) -> int:
    """Run and say what was killed."""
    parser = argparse.ArgumentParser(prog="python -m harness.lake_kills")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--jars", type=Path, default=Path(os.environ.get("SPILLWAY_JARS", ".cache/jars"))
    )
    parser.add_argument("--format", default="delta")
    parser.add_argument("--by-position", action="store_true", help="--merge position, always")
    parser.add_argument("--in-merges", action="store_true", help="count kills in merges alone")
    parser.add_argument(
        "--lent-jvm", action="store_true", help="one JVM for all drivers; --in-merges alone"
    )
    parser.add_argument("--seconds", type=float, help="kill for so long, not so often")
    parser.add_argument("--option", action="append", default=[], help="of `lake run`, for the job")
    chosen = parser.parse_args(arguments)
    if chosen.lent_jvm and (chosen.option or not chosen.in_merges):
        parser.error("a JVM is lent to drivers that are killed in merges, without options")
    directory = Path(tempfile.mkdtemp(prefix="spillway-kills-"))
    jvm.start_quickly()
    began = time.monotonic()
    with Cluster(18) as cluster:
        print(f"seed {chosen.seed}, {chosen.format} {chosen.option}, in {directory}", flush=True)
        run = LakeKills(
            directory, cluster, chosen.jars, chosen.seed, chosen.format, chosen.option,
            by_position=chosen.by_position, lent_jvm=chosen.lent_jvm,
        )  # fmt: skip
        try:
            run.run(chosen.kills, in_merges=chosen.in_merges, seconds=chosen.seconds)
        finally:
            run.close()
    shutil.rmtree(directory)
    killed = ", ".join(f"{name} {count}" for name, count in sorted(run.kills.items()))
    print(
        f"{run.kills.total()} kills ({killed}), {run.job.starts} starts of the job: lake = source, "
    )
    print(f"no change twice, the slot never ahead; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
