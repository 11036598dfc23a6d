"""kill -9 of everything that keeps a lake, at random, and the lake is its source in the end.

A private server, ``spillway serve``, a continuous ``spillway lake run`` and a writer; again and
again one of them is killed::

    driver      the Python process of the job            postgres    postmaster and all backends
    jvm         Spark                                    service     spillway serve
    worker      a Python worker of an executor

Or of the command alone, which has a JVM of its own (``--victims group,orphan,stopped``)::

    group       driver, JVM and workers in one instant
    orphan      the driver alone; the next command is started at once, beside what it left
    stopped     the driver alone, whose JVM is stopped before (SIGSTOP) and goes on when the next
                command has made a batch: whatever was in its hands then comes late

What a driver leaves must end by itself, each time.

The job is started again whenever it ended. After each kill the slot must not be confirmed beyond
what the lake says that it has. At the end the job takes what is left; then each current table must
equal the source (``spillway lake verify``, and as delta-rs or PyIceberg read it), and no history
have a change twice, or lack one of a table that is only inserted into.

    python -m harness.lake_kills --kills 100 --seed 1
    python -m harness.lake_kills --format parquet --kills 10 \\
        --option=--table --option=public.accounts
    python -m harness.lake_kills --format iceberg --kills 10 --by-position
    python -m harness.lake_kills --kills 100 --in-merges --by-position --lent-jvm
    python -m harness.lake_kills --format iceberg --kills 25 --victims group,orphan,stopped

Each option of ``lake run`` that is given goes to the job; what was killed when is printed as it
happens. By position means all of it: no table is small then, and files are folded every few
batches. What a batch of many transactions has (a key that moves with a large value left out) may
be rewritten all the same, and how many are in one is the host's load; so in the end a batch comes
that changes one row, and the table's log must say that this one was marked.

In merges: the driver is killed at a failpoint of a batch, at one of the first times that it comes
there, or up to some hundredths of a second later; of one in ten the JVM dies with it. Every
failpoint that the driver passes is told (:mod:`harness.driver_nursery`), so it is known where each
thread was: a kill counts if one of them was between a history that has the batch and the end of
what follows from it (merge, fold, checkpoint), and in the end it is printed how many hit where.
Beside the batches rounds of maintenance fold, too. Each so many kills the writer rests, a driver
takes what is left, and lake and source are compared; after every kill the slot is not confirmed
beyond the lake, and no current table is ahead of its history.

What a kill costs: drivers and Spark's workers are forked after their imports, and with a JVM that
is lent to one after the other a start is that of a query. What Spark alone can merge, the table
without a key and a key that moves, takes it seconds, in which nothing else happens: by position
these are rare.
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
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyarrow import parquet
from pyspark import SparkContext

from harness import jvm, killed_driver
from harness.cluster import Cluster
from harness.driver_nursery import Driver, Nursery
from harness.lake import iceberg_table
from harness.python_nursery import quick_python
from harness.serve_process import ServeProcess
from spillway.lake.job.run import JobSettings, run_job
from spillway.lake.read import Lake
from spillway.lake.session import spark_session
from spillway.lake.state import commit_points, position
from spillway.lake.tables.delta.tables import application_of
from spillway.lake.tables.iceberg import snapshots
from spillway.lake.tables.iceberg.catalog import LakeCatalog
from spillway.lake.tables.parquet.tables import current_path
from spillway.lake.verify.run import VerifySettings, verify
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from harness.cluster import Database
    from harness.driver_nursery import Told

VICTIMS: Final = ("driver", "service", "postgres", "jvm", "worker")
#: of the command alone
OF_THE_COMMAND: Final = ("group", "orphan", "stopped")
_NAMES: Final = ("public.accounts", "public.transfers", "public.log")
_TABLES: Final = """
CREATE TABLE accounts (id int PRIMARY KEY, balance numeric(12,2) NOT NULL, note text);
ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;
CREATE TABLE transfers (id bigserial PRIMARY KEY, source int, target int, amount numeric(8,2));
CREATE TABLE log (line text, n float8);
ALTER TABLE log REPLICA IDENTITY FULL;
INSERT INTO accounts SELECT g, 100, repeat(md5(g::text), 80) FROM generate_series(1, 1000) g;
INSERT INTO log VALUES ('begun', 0);
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
#: What is between two failpoints takes no longer, as a rule.
_BETWEEN_S: Final = 0.06
#: Failpoints of a batch in its order, by the kind of its merges; from one of those that are in a
#: merge a thread is in it until the next one.
_BEFORE: Final = ("lake.before_history",)
_IN_MERGE: Final = {
    "copy": ("lake.after_history", "lake.before_merge"),
    "position": (
        "lake.after_history",
        "lake.before_merge",
        "lake.before_vectors",
        "lake.before_rows",
        "lake.before_commit",
        "lake.before_index",
        "lake.after_index",
        "lake.before_fold",
        "lake.after_fold",
        "lake.before_checkpoint",
    ),
}
_AFTER: Final = (
    "lake.after_current",
    "lake.before_position",
    "lake.before_advance",
    "lake.after_advance",
)
#: The share of kills that are aimed at these, or before; other tables may be in a merge meanwhile.
_BESIDE: Final = 0.06
#: Of kills in merges, the share that is at the failpoint and not somewhat later.
_AT_INSTANTS: Final = 0.5
#: Of kills in merges with a lent JVM, the share of drivers that have one of their own, which is
#: killed with them.
_WITH_JVM: Final = 0.1
#: These come once a batch, or in some.
_RARE: Final = frozenset(
    {
        "lake.before_fold",
        "lake.after_fold",
        "lake.before_checkpoint",
        "lake.before_position",
        "lake.before_advance",
        "lake.after_advance",
    }
)
#: Where a point is not passed for so long, the driver is killed wherever it is.
_POINT_TIMEOUT_S: Final = 40.0
#: Between rounds of maintenance beside the batches. Spark does them for Delta, which takes longer
#: than a driver lives where there is little processor time.
_UPKEEP_S: Final = 600
_MAINTENANCE: Final = "spillway-lake-maintenance"
#: A job that makes no batch for so long is stuck.
_PROGRESS_TIMEOUT_S: Final = 900.0
#: What a killed driver leaves has ended by then, on a busy machine, too.
_ORPHAN_TIMEOUT_S: Final = 120.0
#: Transactions that the writer is ahead of the lake's last batch at the most: on a busy machine
#: batches would grow for ever; and where all time should be starts and kills.
_AHEAD_MAX: Final = 300
_AHEAD_SMALL_MAX: Final = 50
#: With kills in merges by position: the share of transactions that have what Spark alone can merge.
_SPARKS_BY_POSITION: Final = 0.001


class Writer(threading.Thread):
    """Moves money in transactions over all tables; goes on when the server comes back."""

    def __init__(
        self,
        database: Database,
        seed: int,
        lake: Path,
        *,
        is_mostly_by_position: bool,
        ahead_max: int,
    ) -> None:
        super().__init__(name="writer")
        self._is_mostly_by_position = is_mostly_by_position
        self._ahead_max = ahead_max
        self._lake = lake
        self._newest, self._made = 0, 0
        self._database = database
        self._random = random.Random(seed)
        self.stop = threading.Event()
        #: held while a transaction is made
        self.at_work = threading.Lock()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                # The server is killed under us; whether the last transaction committed is its
                # business.
                with contextlib.suppress(psycopg.OperationalError), self._database.connect() as c:
                    while not self.stop.wait(0.02):
                        with self.at_work:
                            if self._may():
                                self._transaction(c)
                self.stop.wait(0.2)
        except Exception as error:  # noqa: BLE001 - raised by who waits for the thread
            self.failure = error

    def _may(self) -> bool:
        self._made += 1
        if self._made % 10 == 0 and (newest := newest_lsn(self._lake)) != self._newest:
            self._newest, self._made = newest, 0
        return self._made < self._ahead_max

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
            what = pick.randrange(40)
            if self._is_mostly_by_position and pick.random() >= _SPARKS_BY_POSITION:
                # Neither the table without a key nor a key that moves.
                if what < 4:
                    self._note(connection, one)
                return
            if self._is_mostly_by_position:
                what = pick.randrange(4)
            connection.execute("INSERT INTO log VALUES ('moved', %s)", (pick.randrange(5) / 3,))
            if what == 0:
                connection.execute("DELETE FROM log WHERE n = %s", (pick.randrange(5) / 3,))
            elif what == 1:
                # A changed key, whose large value WAL does not have.
                connection.execute("UPDATE accounts SET id = -id WHERE id = %s", (one,))
                connection.execute("UPDATE accounts SET id = -id WHERE id = %s", (-one,))
            elif what == 2:
                self._note(connection, one)
            elif what == 3:
                connection.execute("TRUNCATE log")

    def _note(self, connection: psycopg.Connection[tuple[Any, ...]], account: int) -> None:
        connection.execute(
            "UPDATE accounts SET note = repeat(md5(%s::text), 80) WHERE id = %s",
            (self._random.randrange(1000), account),
        )


def newest_lsn(lake: Path) -> int:
    """Return the LSN of the lake's last batch, 0 before the first."""
    point = next(commit_points.points(lake), None)
    return 0 if point is None else point.lsn_value


class Job:
    """``spillway lake run --trigger continuous`` in a session of its own, or such a driver of a
    nursery's, with a JVM of its own or on one that *spark* lends it.
    """

    def __init__(
        self,
        command: list[str],
        log: Path,
        nursery: Nursery | None = None,
        settings: dict[str, Any] | None = None,
        spark: SparkSession | None = None,
        jars: Path | None = None,
        python: Path | None = None,
    ) -> None:
        self._command = command
        self._log = log
        self._nursery = nursery
        self._settings = settings or {}
        self._spark = spark
        self._jars = jars
        #: what drivers of the nursery's have workers of Spark's started with
        self._python = {} if python is None else {"PYSPARK_PYTHON": str(python)}
        #: what each start has until it ends
        self._held = contextlib.ExitStack()
        #: armed from the next start on
        self.failpoints = ""
        #: whether the next start's JVM is its own
        self.has_jvm = spark is None
        self.process: subprocess.Popen[bytes] | Driver | None = None
        self.starts = 0
        #: the sessions of killed drivers, which may have a JVM yet
        self._left: list[int] = []

    def keep_running(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.starts += 1
            self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes] | Driver:
        armed = {"SPILLWAY_FAILPOINTS": self.failpoints} | self._python
        if self._nursery is None:
            with self._log.open("ab") as log:
                return subprocess.Popen(
                    self._command,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=os.environ | armed,
                )
        if self.has_jvm:
            settings = self._settings | {"jars": str(self._jars)}
            return self._nursery.start("job", settings, self._log, armed)
        assert self._spark is not None
        lent = self._held.enter_context(killed_driver.lent(self._spark))
        return self._nursery.start("job", self._settings, self._log, armed | lent)

    def take_rest(self, end: str) -> None:
        """Run a driver that takes what there is up to the LSN *end*, to its end."""
        self.end(signal.SIGTERM)
        assert self._nursery is not None
        assert self._spark is not None
        settings = self._settings | {"trigger": "available-now", "until_lsn": end}
        # Readers see the same with and without.
        del settings["upkeep_s"]
        with killed_driver.lent(self._spark) as lent:
            driver = self._nursery.start("job", settings, self._log, self._python | lent)
            assert driver.wait(_PROGRESS_TIMEOUT_S) == 0, self.log()

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

    def leave(self) -> None:
        """Kill the driver, and leave its JVM and its workers to themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._left.append(self.process.pid)
        self.process = None

    def stop_jvm(self) -> int | None:
        """Stop the driver's JVM for now, and return its process; None: it has none."""
        assert self.process is not None
        found = [pid for pid in _session(self.process.pid) if b"java" in _command_line(pid)]
        for pid in found[-1:]:
            os.kill(pid, signal.SIGSTOP)
            return pid
        return None

    def wait_for_orphans(self) -> None:
        """Wait until nothing is there any more of what killed drivers left.

        Raises:
            AssertionError: something stays.
        """
        deadline = time.monotonic() + _ORPHAN_TIMEOUT_S
        while left := [pid for each in self._left for pid in _session(each) if not _has_ended(pid)]:
            said = [_command_line(pid).replace(b"\0", b" ")[:200] for pid in left]
            assert time.monotonic() < deadline, f"left behind by a killed driver: {said}"
            time.sleep(0.1)
        self._left.clear()

    def end_orphans(self) -> None:
        """End what killed drivers left, at the end of a run that failed."""
        for pid in [pid for session in self._left for pid in _session(session)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._left.clear()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3]) == leader:
                found.append(int(entry.name))
    return found


def _has_ended(pid: int) -> bool:
    """Say whether a process is there in name only, until somebody asks how it ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    return True


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
        victims: Sequence[str] = VICTIMS,
    ) -> None:
        """Begin it.

        Args:
            directory: of lake, service and logs.
            cluster: the source's.
            jars: Spark's.
            seed: of what is written and what is killed.
            table_format: of the lake.
            options: of ``lake run``, for the job.
            by_position: no table is small, and all are merged by position.
            lent_jvm: drivers are forked, and most have this process's JVM; for kills in merges.
            victims: what is killed, one after the other; kills in merges have their own.
        """
        self._victims = victims
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
        self._merge: Literal["copy", "position"] = "position" if by_position else "copy"
        self.writer = Writer(
            self.database,
            seed,
            self.path,
            is_mostly_by_position=by_position and lent_jvm,
            ahead_max=_AHEAD_SMALL_MAX
            if (by_position and lent_jvm) or set(victims) <= set(OF_THE_COMMAND)
            else _AHEAD_MAX,
        )
        self._held = contextlib.ExitStack()
        python = self._quick_python() if lent_jvm else None
        self._began_spark = SparkContext._active_spark_context is None
        self._spark = self._session() if lent_jvm else None
        self._nursery = Nursery() if lent_jvm else None
        grpc = service.grpc_address
        self.job = Job(
            [] if lent_jvm else self._program(grpc, options),
            directory / "job.log",
            self._nursery,
            self._driver(grpc) if lent_jvm else None,
            self._spark,
            jars,
            python,
        )
        #: kills in merges, by the failpoint that was passed last
        self.hits: Counter[str] = Counter()
        self.beside: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()

    def _quick_python(self) -> Path:
        """Have Spark's workers forked, until the end; return what forks them."""
        python = self._held.enter_context(quick_python())
        # The source's is the one of the process that began the session.
        name, before = "PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON")
        os.environ[name] = str(python)
        if before is None:
            self._held.callback(os.environ.pop, name)
        else:
            self._held.callback(os.environ.__setitem__, name, before)
        return python

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

    def _driver(self, grpc: str) -> dict[str, Any]:
        """Return the settings of a driver that is the job's and nothing else."""
        settings: dict[str, Any] = {
            "slot": "s",
            "path": str(self.path),
            "checkpoint": str(self._checkpoint),
            "table_format": self._format,
            "grpc": grpc,
            "merge": self._merge,
            "trigger": "continuous",
            "interval_s": 0.1,
            "upkeep_s": _UPKEEP_S,
        }
        if self._merge == "position":
            settings |= {"by_position": True, "small_files_max": 4, "commits_per_checkpoint": 4}
        return settings

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

    def run(
        self,
        kills: int,
        *,
        in_merges: bool = False,
        seconds: float | None = None,
        compare_every: int | None = None,
    ) -> None:
        """Kill *kills* times, or for so many *seconds*, then compare; kills in merges are compared
        each so many kills, too.
        """
        self.writer.start()
        ends = None if seconds is None else time.monotonic() + seconds
        compared = 0
        try:
            if in_merges:
                # The first one makes tables, in a JVM that is new.
                self.job.keep_running()
                self._wait_for_a_batch()
            while self.kills.total() < kills and (ends is None or time.monotonic() < ends):
                began = time.monotonic()
                victim = self._kill_in_merge() if in_merges else self._kill_next()
                self._check_position()
                self._check_order()
                told = f"{self.kills.total()} {victim}, lake at {Lsn(newest_lsn(self.path))}"
                print(f"{told}, {time.monotonic() - began:.1f} s", flush=True)
                if in_merges and compare_every and self.kills.total() >= compared + compare_every:
                    compared = self.kills.total()
                    with self.writer.at_work:
                        self._compare()
                    print(f"lake = source after {compared} kills", flush=True)
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

    def histogram(self) -> str:
        """Return how many kills in merges were after which failpoint and before the next, a line
        each.
        """
        order = _IN_MERGE[self._merge]
        rows = sorted(self.hits, key=lambda each: (order.index(each.split(",")[0]), each))
        lines = [f"{self.hits[where]:5} {where} {'#' * self.hits[where]}" for where in rows]
        lines += [f"{count:5} {where}, no merge" for where, count in sorted(self.beside.items())]
        return "".join(f"{line}\n" for line in lines)

    def close(self) -> None:
        self.job.end()
        self.job.end_orphans()
        self.serve.stop()
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None
        self._end_spark()
        self._held.close()

    def _end_spark(self) -> None:
        # A session that this process had before is somebody else's.
        if self._spark is not None and self._began_spark:
            self._spark.stop()
            jvm.end()
        self._spark = None

    def _kill_next(self) -> str:
        """Kill the next one, at any time; return who it was."""
        self.job.keep_running()
        # Mostly while a batch is written; now and then before the first one.
        if self._random.random() < 0.8:
            self._wait_for_a_batch()
        time.sleep(self._random.random() * 3)
        victim = self._victims[self.kills.total() % len(self._victims)]
        self._kill(victim)
        self.kills[victim] += 1
        return victim

    def _kill_in_merge(self) -> str:
        """Kill a driver at a failpoint of a batch, or somewhat later, some with their JVM; it
        counts if a merge was at work then. Return who it was and where.
        """
        pick = self._random
        in_merge = _IN_MERGE[self._merge]
        others = _BEFORE + _AFTER
        point = pick.choice(others if pick.random() < _BESIDE else in_merge)
        times = 1 if point in _RARE else pick.randint(1, 4)
        later = None if pick.random() < _AT_INSTANTS else pick.random() ** 2 * _BETWEEN_S
        self.job.end()
        self.job.has_jvm = self._spark is None or pick.random() < _WITH_JVM
        victim = "session" if self.job.has_jvm else "driver"
        driver, killed_at = self._killed_at(point, times, later)
        self.job.has_jvm = self._spark is None
        assert self._nursery is not None
        last: dict[str, Told] = {}
        for each in self._nursery.told(driver):
            last[each.thread] = each
        # A fold beside the batches is one of a merge's instants, too.
        inside = [each for each in last.values() if each.point in in_merge]
        if not inside:
            newest = max(last.values(), key=lambda each: each.at, default=None)
            where = "before any" if newest is None else newest.point
            self.beside[where] += 1
            return f"{victim}, no merge at work: after {where}"
        hit = max(inside, key=lambda each: each.at)
        where = hit.point
        if hit.thread == _MAINTENANCE:
            where = f"{where}, in maintenance"
        self.kills[victim] += 1
        self.hits[where] += 1
        how = "at" if later is None else f"{1000 * (killed_at - hit.at):.0f} ms after"
        return f"{victim} {how} {where} ({len(inside)} tables in merges)"

    def _killed_at(self, point: str, times: int, later: float | None) -> tuple[Driver, float]:
        """Run the job until it comes to a failpoint so many times, and kill it there, or *later* by
        so many seconds; where it does not come there, at some time. Return it, and when that was.
        """
        assert self._nursery is not None
        self.job.failpoints = f"{point}=kill@{times}" if later is None else ""
        deadline = time.monotonic() + _PROGRESS_TIMEOUT_S
        while True:
            assert time.monotonic() < deadline, f"the job ends by itself: {self.job.log()}"
            self.job.keep_running()
            driver = self.job.process
            assert isinstance(driver, Driver)
            self._wait_for_begin(driver, deadline)
            if self._nursery.wait_for(driver, point, times, _POINT_TIMEOUT_S):
                if later is not None:
                    time.sleep(later)
                    driver.kill()
                break
            # It may have ended by itself, where Spark's Python workers came late.
            if driver.poll() is None:
                driver.kill()
                break
        killed_at = time.monotonic()
        self.job.failpoints = ""
        assert driver.wait(60) == -signal.SIGKILL, self.job.log()
        self.job.end()
        return driver, killed_at

    def _wait_for_begin(self, driver: Driver, deadline: float) -> None:
        """Wait for a driver's first batch, or its end."""
        assert self._nursery is not None
        while driver.poll() is None and time.monotonic() < deadline:
            if self._nursery.wait_for(driver, "lake.before_history", 1, 1.0):
                return

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
        elif victim in OF_THE_COMMAND:
            self._kill_command(victim)
        else:
            # Workers come with the first task.
            deadline = time.monotonic() + _PROGRESS_TIMEOUT_S
            while not self.job.kill(victim):
                self.job.keep_running()
                assert time.monotonic() < deadline, f"no {victim} to kill: {self.job.log()}"
                time.sleep(0.1)

    def _kill_command(self, how: str) -> None:
        """Kill the command with its JVM, or without; see that in the end none is left."""
        self.job.keep_running()
        if how == "group":
            self.job.end()
        elif how == "stopped" and (stopped := self.job.stop_jvm()) is not None:
            try:
                self.job.leave()
                # It has the lake, and goes on with what the other one was about.
                self._wait_for_a_batch()
            finally:
                os.kill(stopped, signal.SIGCONT)
        else:
            self.job.leave()
            # Beside what is left.
            self.job.keep_running()
        self.job.wait_for_orphans()

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

    def _check_order(self) -> None:
        """A current table never has what its history lacks."""
        lsn = self._lsns()
        for name in _NAMES:
            history, current = lsn("history", name), lsn("current", name)
            assert current <= history, f"{name}: current at {Lsn(current)}, history {Lsn(history)}"

    def _compare(self) -> None:
        service = self.serve.service()
        end = service.wait_decoded("s", self.database)
        if self._nursery is not None:
            self.job.take_rest(end)
        spark = self._spark or self._session()
        self._spark = spark
        if self._nursery is None:
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
        self._check_equal(spark)

    def _check_equal(self, spark: SparkSession) -> None:
        service = self.serve.service()
        settings = VerifySettings(
            self.path, self.database.dsn, grpc=service.grpc_address, jars=self._jars
        )
        outcome = verify(settings, spark=spark)
        assert outcome.equal, "\n".join(map(str, outcome.tables))
        assert len(outcome.tables) == 3
        for name in _NAMES:
            missing, extra = self._differences(name)
            assert not missing, f"{name}: another reader lacks {missing}"
            assert not extra, f"{name}: another reader has {extra}"
        now = Lake(spark, self.path).at()
        for table in now.tables():
            history = now.history(table)
            twice = history.groupBy("_commit_lsn", "_seq").count().where("count > 1").count()
            assert twice == 0, f"{twice} changes of {table} are in its history twice"
        written = self.database.value("SELECT count(*) FROM transfers")
        assert now.history("public.transfers").count() == written

    def _differences(self, name: str) -> tuple[list[Any], list[Any]]:
        """Return some rows of the source that a current table lacks, as a reader that isn't Spark
        has it, and some that it has beyond the source's.
        """
        folder = self.path / "current" / name
        if self._format == "iceberg":
            rows = iceberg_table(self.path, "current", name).scan().to_arrow()
        elif self._format == "delta":
            tables = QueryBuilder().register("t", DeltaTable(str(folder)))
            rows = pa.table(tables.execute("SELECT * FROM t").read_all())
        else:
            rows = parquet.read_table(current_path(self.path, name))
        columns = {"public.log": ["line", "n", "_copies"]}.get(name) or rows.column_names
        stored = Counter(zip(*(rows.column(each).to_pylist() for each in columns), strict=True))
        wanted = f"SELECT {', '.join(columns)} FROM {name}"
        if "_copies" in columns:
            wanted = f"SELECT line, n, count(*) FROM {name} GROUP BY line, n"
        with self.database.connect() as connection:
            source = Counter(connection.execute(wanted).fetchall())
        return list((source - stored).items())[:5], list((stored - source).items())[:5]


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
        "--lent-jvm", action="store_true", help="one JVM for most drivers; for --in-merges"
    )
    parser.add_argument("--victims", default=",".join(VICTIMS), help="in turn, with commas")
    parser.add_argument("--compare-every", type=int, default=20, help="kills in merges")
    parser.add_argument("--seconds", type=float, help="kill for so long, not so often")
    parser.add_argument("--option", action="append", default=[], help="of `lake run`, for the job")
    chosen = parser.parse_args(arguments)
    if chosen.lent_jvm != chosen.in_merges or (chosen.lent_jvm and chosen.option):
        parser.error("--lent-jvm and --in-merges are for each other, without options")
    directory = Path(tempfile.mkdtemp(prefix="spillway-kills-"))
    jvm.start_quickly()
    began = time.monotonic()
    with Cluster(18) as cluster:
        print(f"seed {chosen.seed}, {chosen.format} {chosen.option}, in {directory}", flush=True)
        run = LakeKills(
            directory, cluster, chosen.jars, chosen.seed, chosen.format, chosen.option,
            by_position=chosen.by_position, lent_jvm=chosen.lent_jvm,
            victims=chosen.victims.split(","),
        )  # fmt: skip
        try:
            run.run(
                chosen.kills,
                in_merges=chosen.in_merges,
                seconds=chosen.seconds,
                compare_every=chosen.compare_every,
            )
        finally:
            run.close()
            print(run.histogram(), end="", flush=True)
    shutil.rmtree(directory)
    killed = ", ".join(f"{name} {count}" for name, count in sorted(run.kills.items()))
    print(
        f"{run.kills.total()} kills ({killed}), {run.job.starts} starts of the job: lake = source, "
    )
    print(f"no change twice, the slot never ahead; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
