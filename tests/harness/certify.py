"""Random seeds against a server of each major: ``make certify``.

A :class:`SeedRunner` keeps one server of a major and runs seed after seed on it, each in a database
of its own: the workload of ``spillway.certify.workload``, then our decoder over the WAL files, then
the server's own slot, then the comparison of every line. What varies from seed to seed is decided
by the seed as well:

- a crash of the server in the middle (every 5th seed);
- memory for next to nothing, so that all that can be spilled is (every 3rd);
- our decoder restarted again and again from its serialised state (every 2nd);
- further decoders that bootstrap, over SQL or from raw files, at a random step while transactions
  are open.

    python -m harness.certify --seeds 1-200 --steps 2000 --majors 14 15 16 17 18
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from harness.cluster import Cluster, Database
from harness.decoding_session import RenderingSink as SlotSink
from harness.servers import bin_directory
from spillway._kernels.reorder.transaction_run import TransactionRun
from spillway.catalog.bootstrap import bootstrap_sql
from spillway.catalog.bootstrap_raw import bootstrap_raw
from spillway.certify.rendering import Line, RenderingSink, Subject
from spillway.certify.workload.driver import Workload
from spillway.decoding.decoder import Decoder
from spillway.decoding.sink import TransactionSink
from spillway.decoding.snapshot_builder import SnapshotState
from spillway.errors import SpillwayError
from spillway.pg.lsn import Lsn
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.queues import Queue

    from spillway.catalog.bootstrap import Bootstrap
    from spillway.certify.workload.session import Statement
    from spillway.decoding.transaction import Transaction

#: Every seed's output is compared with these options of test_decoding.
OPTIONS = (
    {"include-timestamp": "on"},
    {"include-xids": "off", "skip-empty-xacts": "on", "only-local": "on"},
)
#: and a slot with two_phase with these.
TWO_PHASE_OPTIONS = {"include-timestamp": "on"}


class _Copied:
    """A transaction whose chunks can be read more than once."""

    def __init__(self, transaction: Transaction) -> None:
        self.header = transaction.header
        self.relations = transaction.relations
        self._chunks = [bytes(chunk) for chunk in transaction.chunks()]

    def chunks(self) -> Iterator[memoryview]:
        return iter([memoryview(chunk) for chunk in self._chunks])

    def close(self) -> None: ...


class _Both(TransactionSink):
    """A sink of ordinary slots and of one with two_phase; transactions that come again are passed
    over.
    """

    def __init__(self, ordinary: RenderingSink, two_phase: SlotSink) -> None:
        self._sinks = (ordinary, two_phase)
        self._last_final_lsn = 0

    def consistent(self, lsn: int) -> None:
        for sink in self._sinks:
            sink.consistent(lsn)

    def transaction(self, transaction: Transaction) -> None:
        if transaction.header.final_lsn > self._last_final_lsn:
            self._last_final_lsn = transaction.header.final_lsn
            copied = _Copied(transaction)
            for sink in self._sinks:
                sink.transaction(copied)

    def transactions(self, run: TransactionRun) -> None:
        run.skip_before(self._last_final_lsn + 1)
        if run.exhausted:
            return
        for sink in self._sinks:
            # Each reads a run of its own.
            read = TransactionRun(run.data, run.relations)
            sink.transactions(read)
            assert read.exhausted
        self._last_final_lsn = max(t.header.final_lsn for t in run)

    def progress(self, decoded_lsn: int) -> None: ...


@dataclass
class Follower:
    """A decoder of ours, from its bootstrap on."""

    name: str
    bootstrap: Bootstrap
    spill_dir: Path
    context: PluginContext
    work_mem_bytes: int
    restarts: bool
    sink: RenderingSink = field(init=False)
    two_phase: SlotSink = field(init=False)
    #: for each set of options
    lines: list[list[Line]] = field(default_factory=list)
    position: int = 0
    restarted: int = 0
    #: NEW_CID records that the mirror was held to
    audited: int = 0

    def decode(self, wal_directory: Path, until: int, rng: random.Random) -> None:
        """Decode up to *until*, restarting now and then."""
        self.lines = [[] for _ in OPTIONS]
        self.sink = RenderingSink(
            [Subject("test_decoding", options) for options in OPTIONS],
            self.context,
            lambda number, lines: self.lines[number].extend(lines),
        )
        self.two_phase = SlotSink(
            "test_decoding", TWO_PHASE_OPTIONS, replace(self.context, two_phase=True)
        )
        sink = _Both(self.sink, self.two_phase)
        version = version_of_server(self.bootstrap.server_version)
        work_mem = self.work_mem_bytes
        decoder = Decoder(
            version,
            self.bootstrap.mirror.facts.database_oid,
            self.bootstrap.mirror,
            sink,
            work_mem_bytes=work_mem,
            spill_dir=self.spill_dir,
            start=int(self.bootstrap.redo_lsn),
        )
        audit = decoder.audit()
        states: list[tuple[int, bytes]] = []
        # A restart goes back, maybe to a state from behind *until*: what was decoded stays decoded.
        decoded = 0
        try:
            while decoder.position < until:
                before = decoder.position
                for batch in WalDirectory(wal_directory).batches(decoder.position):
                    decoder.process(batch)
                    decoded = max(decoded, decoder.position)
                    if not self.restarts or decoder.snapshot_state != SnapshotState.CONSISTENT:
                        continue
                    if rng.random() < 0.6:
                        carries = rng.random() < 0.5
                        state = decoder.carry() if carries else decoder.serialize()
                        states.append((decoder.position, state))
                    usable = [state for state in states if state[0] <= decoder.restart_lsn]
                    if usable and rng.random() < 0.25:
                        position = decoder.position
                        decoder.close()
                        decoder = Decoder.restore(
                            usable[-1][1],
                            version,
                            sink,
                            work_mem_bytes=work_mem,
                            spill_dir=self.spill_dir,
                            start_decoding_at=position,
                        )
                        # Later ones may name more of a spill file than there is now.
                        states = usable[-1:]
                        self.audited += audit.checked
                        audit = decoder.audit()
                        self.restarted += 1
                        break
                else:
                    assert decoder.position > before, (
                        f"WAL ends at {Lsn(before)}, before {Lsn(until)}"
                    )
                    if decoder.position < until:
                        time.sleep(0.01)
            self.position = decoded
            self.audited += audit.checked
        finally:
            decoder.close()


@dataclass
class SeedResult:
    """How a seed went."""

    major: int
    seed: int
    steps: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    lines: int = 0
    bytes: int = 0
    wal_bytes: int = 0
    followers: int = 0
    restarts: int = 0
    audited: int = 0
    prepared: int = 0
    crashes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    difference: str = ""
    #: why the server could not decode for its own slot with two_phase, which is not compared then
    server_failed: str = ""


class Difference(Exception):
    """Ours and theirs are not equal."""


class SeedRunner:
    """One server of a major, for seed after seed."""

    def __init__(self, major: int, directory: Path, *, steps: int) -> None:
        self.major = major
        self.steps = steps
        self.directory = directory
        self.cluster = Cluster(
            major,
            max_prepared_transactions=30,
            wal_keep_size="3GB",
            max_wal_size="2GB",
            shared_buffers="128MB",
        )
        self.cluster.start()

    def close(self) -> None:
        self.cluster.destroy()

    def run(
        self, seed: int, statements: Sequence[tuple[int, Statement]] | None = None
    ) -> SeedResult:
        result = SeedResult(self.major, seed)
        log: list[tuple[int, str, str]] = []
        try:
            self._run(seed, result, log)
        except Exception as error:  # noqa: BLE001 - reported with the seed
            result.difference = (
                str(error) if isinstance(error, Difference) else traceback.format_exc()
            )
            self._write_failure(result, log)
        return result

    def _write_failure(self, result: SeedResult, log: list[tuple[int, str, str]]) -> None:
        directory = self.directory / f"pg{self.major}-seed{result.seed}"
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "statements.jsonl").open("w") as file:
            for entry in log:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        (directory / "difference.txt").write_text(result.difference)

    def _run(self, seed: int, result: SeedResult, log: list[tuple[int, str, str]]) -> None:
        rng = random.Random(f"runner {seed}")
        name = f"seed_{seed}"
        database = self.cluster.create_database(name)
        slot = f"oracle_{seed}"
        try:
            self._compare(seed, rng, database, slot, result, log)
        finally:
            if not self.cluster.running:
                self.cluster.start()
            for (gid,) in self.cluster.query(
                "SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]
            ):
                with self.cluster.connect(name) as connection:
                    connection.execute(f"ROLLBACK PREPARED '{gid}'")
            self.cluster.drop_database(name)

    def _compare(
        self,
        seed: int,
        rng: random.Random,
        database: Database,
        slot: str,
        result: SeedResult,
        log: list[tuple[int, str, str]],
    ) -> None:
        crashes = {rng.randrange(self.steps // 4, self.steps)} if seed % 5 == 0 else set()
        bootstraps = {
            rng.randrange(self.steps): rng.choice([bootstrap_sql, bootstrap_raw])
            for _ in range(seed % 3)
        }
        started = time.monotonic()
        database.query("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
        database.query(
            "SELECT pg_create_logical_replication_slot(%s, 'test_decoding', false, true)",
            [f"{slot}_two_phase"],
        )
        begin_lsn = Lsn.parse(self.cluster.wal_lsn())
        bootstrap = bootstrap_sql(database.dsn)
        context = PluginContext("ours", database.name, bootstrap.server_version)
        followers = [
            Follower(
                "first",
                bootstrap,
                self._spill(seed, 0),
                context,
                (1 << 14) if seed % 3 == 0 else 8 << 20,
                seed % 2 == 0,
            )
        ]
        result.seconds["bootstrap"] = time.monotonic() - started

        started = time.monotonic()
        workload = Workload(
            database.dsn,
            seed,
            major=self.major,
            superuser=True,
            cluster_prefix=database.name,
            unlogged=not crashes,
            log=lambda session, statement: log.append((session, statement.sql, statement.copy)),
        )
        workload.setup()
        threads: list[threading.Thread] = []
        bootstrapped: list[Bootstrap] = []
        while workload.steps < self.steps:
            at = workload.steps
            workload.step()
            for step in range(at, workload.steps):
                if step in bootstraps:
                    log.append((-1, bootstraps[step].__name__, ""))
                    threads.append(_bootstrap_beside(bootstraps[step], database.dsn, bootstrapped))
                if step in crashes:
                    log.append((-1, "crash", ""))
                    self.cluster.stop("immediate")
                    self.cluster.start()
                    workload.reconnect()
                    result.crashes += 1
        workload.finish()
        for thread in threads:
            thread.join()
        result.steps, result.failures = workload.steps, workload.failures
        until = self._flush(database)
        result.wal_bytes = until - begin_lsn
        result.seconds["workload"] = time.monotonic() - started

        started = time.monotonic()
        followers += [
            Follower(
                f"bootstrapped under load {n}", b, self._spill(seed, n + 1), context, 8 << 20, False
            )
            for n, b in enumerate(bootstrapped)
        ]
        result.followers = len(followers)
        for follower in followers:
            follower.decode(self.cluster.wal_directory, until, rng)
            result.restarts += follower.restarted
            result.audited += follower.audited
        result.seconds["decode"] = time.monotonic() - started

        started = time.monotonic()
        for number, options in enumerate(OPTIONS):
            theirs = _peek(database, slot, options)
            if number == 0:
                framed = theirs
                result.lines = len(theirs)
                result.bytes = sum(len(line.data) for line in theirs)
            for follower in followers:
                _equal(follower, number, theirs, framed, self.cluster.wal_directory)
        try:
            prepared = _peek(database, f"{slot}_two_phase", TWO_PHASE_OPTIONS)
        except psycopg.errors.InternalError_ as error:
            # Decoded after its rollback, a prepared transaction's own catalog rows may be vacuumed
            # away.
            result.server_failed = str(error)
        else:
            _equal_with_two_phase(followers[0], prepared, self.cluster.wal_directory)
            result.prepared = sum(line.data.startswith(b"PREPARE ") for line in prepared)
        result.transactions = followers[0].sink.seen.transactions
        result.seconds["oracle"] = time.monotonic() - started

    def _spill(self, seed: int, number: int) -> Path:
        return Path(f"/tmp/spillway-certify-{os.getpid()}/{seed}-{number}")

    def _flush(self, database: Database) -> int:
        with database.connect() as connection:
            connection.execute("SET synchronous_commit = on")
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            connection.execute("CREATE TABLE flushed (); DROP TABLE flushed")
            return int(Lsn.parse(row[0]))


def _bootstrap_beside(
    how: Callable[[str], Bootstrap], dsn: str, found: list[Bootstrap]
) -> threading.Thread:
    def run() -> None:
        # A crash ends it, or a lock that it waits for in vain.
        with suppress(SpillwayError):
            found.append(how(dsn))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.005)
    return thread


def _peek(database: Database, slot: str, options: dict[str, str]) -> list[Line]:
    pairs = [text for pair in options.items() for text in pair]
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT (lsn - '0/0')::int8, xid::text::bigint, convert_to(data, 'UTF8')"
            " FROM pg_logical_slot_peek_changes(%s, NULL, NULL, VARIADIC %s::text[])",
            [slot, pairs],
        ).fetchall()
    return [Line(*row) for row in rows]


@dataclass(frozen=True)
class Selection:
    """The lines that a follower can have: those of transactions that commit while it follows."""

    first: int
    last: int
    xids: frozenset[int]

    @classmethod
    def of(cls, framed: Sequence[Line], first: int, last: int) -> Selection:
        """*framed*: lines in which every transaction has its COMMIT, whose lsn is the commit
        record's end.
        """
        return cls(
            first,
            last,
            frozenset(
                line.xid
                for line in framed
                if line.data.startswith(b"COMMIT") and first < line.lsn <= last
            ),
        )

    def __contains__(self, line: Line) -> bool:
        if line.data.startswith(b"message: transactional: 0"):
            return self.first < line.lsn <= self.last
        return line.xid in self.xids


def _equal(
    follower: Follower, number: int, theirs: list[Line], framed: list[Line], wal_directory: Path
) -> None:
    ours = follower.lines[number]
    consistent = follower.sink.consistent_at
    if consistent is None:
        if follower.name == "first":
            raise Difference("our decoder never became consistent")
        return
    first = next(iter(WalDirectory(wal_directory).records(consistent - 1))).end_lsn
    last = follower.position
    selection = Selection.of(framed, first, last)
    expected = [line for line in theirs if line in selection]
    _assert_equal(f"{follower.name}, options {OPTIONS[number]}", ours, expected)


def _equal_with_two_phase(follower: Follower, theirs: list[Line], wal_directory: Path) -> None:
    consistent = follower.sink.consistent_at
    assert consistent is not None
    first = next(iter(WalDirectory(wal_directory).records(consistent - 1))).end_lsn
    expected: list[Line] = []
    group: list[Line] = []
    for line in theirs:
        group.append(line)
        if line.data.startswith(
            (b"COMMIT", b"PREPARE TRANSACTION", b"ROLLBACK PREPARED", b"message: transactional: 0")
        ):
            if first < line.lsn <= follower.position:
                expected += group
            group = []
    ours = [
        Line(int(Lsn.parse(line.lsn)), line.xid, line.data.encode())
        for line in follower.two_phase.lines
    ]
    # By now the server knows how those ended, and leaves out of them what it had to read the
    # catalog for.
    undone = {line.xid for line in [*ours, *expected] if line.data.startswith(b"ROLLBACK PREPARED")}
    _assert_equal(
        f"{follower.name}, two_phase",
        [line for line in ours if line.xid not in undone],
        [line for line in expected if line.xid not in undone],
    )


def _assert_equal(what: str, ours: list[Line], expected: list[Line]) -> None:
    for at, (our, their) in enumerate(zip(ours, expected, strict=False)):
        if our != their:
            raise Difference(
                f"{what}, line {at} of {len(ours)} ours, {len(expected)} PostgreSQL's\n"
                + _context("before", ours[max(0, at - 5) : at])
                + _context("ours", ours[at : at + 4])
                + _context("PostgreSQL's", expected[at : at + 4])
            )
    if len(ours) != len(expected):
        at = min(len(ours), len(expected))
        raise Difference(
            f"{what}: {len(ours)} lines ours, {len(expected)} PostgreSQL's\n"
            + _context("last common", ours[max(0, at - 3) : at])
            + _context("ours", ours[at : at + 4])
            + _context("PostgreSQL's", expected[at : at + 4])
        )


def _context(title: str, lines: Sequence[Line]) -> str:
    return f"{title}:\n" + "".join(
        f"  {Lsn(line.lsn)} {line.xid} {line.data[:1500].decode(errors='replace')}\n"
        for line in lines
    )


def _seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else list(range(1, int(first) + 1))


_runner: SeedRunner | None = None


def _worker(tasks: Queue[Any], results: Queue[Any], directory: str, steps: int) -> None:
    """A process: takes (major, seed), keeps the server of the last major."""
    runner: SeedRunner | None = None
    try:
        while (task := tasks.get()) is not None:
            major, seed = task
            if runner is not None and runner.major != major:
                runner.close()
                runner = None
            if runner is None:
                runner = SeedRunner(major, Path(directory), steps=steps)
            results.put(runner.run(seed))
    except BaseException:
        results.put(traceback.format_exc())
        raise
    finally:
        if runner is not None:
            runner.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make certify", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--seeds", type=_seeds, default=_seeds("20"), help="how many, or FIRST-LAST"
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--majors", type=int, nargs="+", default=[14, 15, 16, 17, 18])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--directory", type=Path, default=Path(".certify"), help="for failing seeds"
    )
    arguments = parser.parse_args()
    for major in arguments.majors:
        bin_directory(major)
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    todo = [(major, seed) for major in arguments.majors for seed in arguments.seeds]
    for task in todo:
        tasks.put(task)
    workers = [
        context.Process(
            target=_worker, args=(tasks, results, str(arguments.directory), arguments.steps)
        )
        for _ in range(arguments.workers)
    ]
    for worker in workers:
        tasks.put(None)
        worker.start()
    done: list[SeedResult] = []
    started = time.monotonic()
    while len(done) < len(todo):
        result = results.get()
        if isinstance(result, str):
            print(result)
            break
        done.append(result)
        verdict = "DIFFERENT" if result.difference else "equal"
        seconds = " ".join(f"{k} {v:.1f}" for k, v in result.seconds.items())
        print(
            f"pg{result.major} seed {result.seed}: {verdict}; {result.steps} steps, "
            f"{sum(result.failures.values())} failed, {result.transactions} transactions, "
            f"{result.prepared} prepared, {result.lines} lines, {result.bytes} bytes, WAL "
            f"{result.wal_bytes >> 20} MB, {result.followers} decoders, {result.audited} catalog "
            f"tuples audited, {result.restarts} restarts, {result.crashes} crashes; {seconds}",
            flush=True,
        )
        if result.server_failed:
            print(
                f"  the server failed to decode for two_phase: {result.server_failed}", flush=True
            )
        if result.difference:
            print(result.difference[:3000], flush=True)
    for worker in workers:
        worker.join()
    _summary(done, time.monotonic() - started)
    return int(len(done) < len(todo) or any(result.difference for result in done))


def _summary(done: Sequence[SeedResult], seconds: float) -> None:
    print(
        "\n"
        f"{'major':>5} {'seeds':>6} {'different':>9} {'steps':>9} {'failed':>8} "
        f"{'transactions':>12} {'lines':>10} {'MB':>7} {'WAL MB':>7}"
    )
    for major in sorted({result.major for result in done}):
        rows = [result for result in done if result.major == major]
        print(
            f"{major:>5} {len(rows):>6} {sum(bool(r.difference) for r in rows):>9} "
            f"{sum(r.steps for r in rows):>9} {sum(sum(r.failures.values()) for r in rows):>8} "
            f"{sum(r.transactions for r in rows):>12} {sum(r.lines for r in rows):>10} "
            f"{sum(r.bytes for r in rows) >> 20:>7} {sum(r.wal_bytes for r in rows) >> 20:>7}"
        )
    codes = Counter[str]()
    for result in done:
        codes.update(result.failures)
    print(
        "failed statements by SQLSTATE:",
        ", ".join(f"{code} {n}" for code, n in codes.most_common(20)),
    )
    print(
        f"server failed to decode for two_phase: {sum(bool(r.server_failed) for r in done)} seeds"
    )
    print(f"{seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
