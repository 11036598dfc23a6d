"""Slots that begin with a snapshot of the source, under load: what the snapshot sees and what the
slot delivers are the table, each row once.

The workload's tables tell a change that is missing from one that comes twice: ``ledger`` has a row
for each insert, with an id of its own, and ``counter`` is counted up by one at a time, so that its
changes follow one another without a gap.
"""

from __future__ import annotations

import random
import re
import secrets
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from harness.servers import MAJORS
from harness.service import Service, service_in_process
from harness.tiers import majors_by_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Cluster, Database

WRITERS = 8
COUNTERS = 12
LOAD_S = 2.0
_INSERT = re.compile(r"table public\.ledger: INSERT: id\[bigint\]:(-?\d+)$")
_UPDATE = re.compile(r"table public\.counter: UPDATE: id\[integer\]:(\d+) n\[bigint\]:(\d+)$")


@pytest.fixture(params=majors_by_tier(MAJORS), ids=[f"pg{major}" for major in MAJORS])
def database(
    request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]
) -> Iterator[Database]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"snapshots_{secrets.token_hex(4)}")
    yield database
    cluster.drop_database(database.name)


class Load:
    """Writers, each with a session of its own, until :meth:`end`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        assert not self._errors, self._errors

    def _write(self, writer: int) -> None:
        try:
            chance = random.Random(writer)
            ids = iter(range(writer * 10_000_000 + 1, (writer + 1) * 10_000_000))
            with self._database.connect() as connection:
                while not self._over.is_set():
                    self._transaction(connection, chance, ids, writer)
        except BaseException as error:  # noqa: BLE001 - raised by the test
            self._errors.append(error)

    @staticmethod
    def _transaction(
        connection: psycopg.Connection[Any], chance: random.Random, ids: Iterator[int], writer: int
    ) -> None:
        execute = connection.execute
        if chance.random() < 0.3:
            # Its commit record may be flushed long after others see it.
            execute("SET synchronous_commit = off")
        execute("BEGIN")
        for _ in range(chance.randrange(1, 3)):
            execute("INSERT INTO ledger VALUES (%s)", [next(ids)])
        if chance.random() < 0.4:
            for _ in range(chance.choice((1, 2, 80))):
                # More than 64 subtransactions overflow the ProcArray's room for them.
                execute("SAVEPOINT s")
                execute("INSERT INTO ledger VALUES (%s)", [next(ids)])
                execute("ROLLBACK TO s" if chance.random() < 0.2 else "RELEASE s")
        execute("UPDATE counter SET n = n + 1 WHERE id = %s", [chance.randrange(COUNTERS)])
        fate = chance.random()
        if fate < 0.1:
            execute("ROLLBACK")
        elif fate < 0.3:
            gid = f"{connection.info.dbname}_{writer}"
            execute(f"PREPARE TRANSACTION '{gid}'")
            time.sleep(chance.random() * 0.02)
            execute(f"{'ROLLBACK' if fate < 0.14 else 'COMMIT'} PREPARED '{gid}'")
        else:
            execute("COMMIT")
        execute("RESET synchronous_commit")


@dataclass
class Copy:
    """The tables as of a snapshot, and what of a slot's changes is applied to them."""

    ledger: set[int] = field(default_factory=set)
    counters: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, connection: psycopg.Connection[Any]) -> Copy:
        ledger = [row[0] for row in connection.execute("SELECT id FROM ledger").fetchall()]
        assert len(set(ledger)) == len(ledger)
        return cls(set(ledger), dict(connection.execute("SELECT id, n FROM counter").fetchall()))

    def take(self, lines: list[str]) -> None:
        """Apply what test_decoding wrote, each transaction when it is committed."""
        prepared: dict[str, list[str]] = {}
        gathered: list[str] = []
        for line in lines:
            if line == "BEGIN":
                gathered = []
            elif line == "COMMIT":
                self._apply(gathered)
            elif line.startswith("PREPARE TRANSACTION"):
                prepared[line.split("'")[1]] = gathered
            elif line.startswith("COMMIT PREPARED"):
                self._apply(prepared.pop(line.split("'")[1]))
            elif line.startswith("ROLLBACK PREPARED"):
                prepared.pop(line.split("'")[1], None)
            else:
                gathered.append(line)

    def _apply(self, changes: list[str]) -> None:
        for line in changes:
            if inserted := _INSERT.match(line):
                number = int(inserted[1])
                assert number not in self.ledger, f"{line} came twice"
                self.ledger.add(number)
            elif updated := _UPDATE.match(line):
                number, value = int(updated[1]), int(updated[2])
                assert value == self.counters[number] + 1, f"{line} behind {self.counters[number]}"
                self.counters[number] = value


def _imported(database: Database, snapshot: dict[str, Any]) -> Copy:
    with database.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot['snapshot_name']}'")
        return Copy.of(connection)


def _create_tables(database: Database) -> None:
    database.execute(
        "CREATE TABLE ledger (id bigint PRIMARY KEY); CREATE UNLOGGED TABLE scratch (id int);"
        "CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL);"
        f"INSERT INTO counter SELECT i, 0 FROM generate_series(0, {COUNTERS - 1}) i"
    )


def _lines(service: Service, slot: str) -> list[str]:
    options = {"include-xids": "0", "skip-empty-xacts": "1"}
    answer = service.call("POST", f"/slots/{slot}/get", json={"options": options})
    return [change["data"] for change in answer["changes"]]


class LongTransactions:
    """Transactions of each kind that a logical slot of the server's would wait for, open until
    :meth:`commit`.
    """

    def __init__(self, database: Database, stack: ExitStack) -> None:
        self._database = database
        self._opened = []
        # The second one has an xid, and nothing of it is in WAL.
        for statement in ("INSERT INTO ledger VALUES (-10)", "INSERT INTO scratch VALUES (1)"):
            connection = stack.enter_context(database.connect(autocommit=False))
            connection.execute(statement)
            self._opened.append(connection)
        with database.connect(autocommit=False) as connection:
            connection.execute("INSERT INTO ledger VALUES (-20)")
            connection.execute(f"PREPARE TRANSACTION '{database.name}_long'")
        # Not even that it is idle can be said of this one.
        self._busy = stack.enter_context(database.connect())
        self._thread = threading.Thread(target=self._sleep)
        self._thread.start()
        stack.callback(self._wake)

    def _sleep(self) -> None:
        with suppress(psycopg.errors.QueryCanceled):
            self._busy.execute("SELECT pg_current_xact_id(), pg_sleep(600)")

    def _wake(self) -> None:
        self._busy.cancel()
        self._thread.join(60)

    def commit(self) -> None:
        self._opened[0].execute("INSERT INTO ledger VALUES (-11)")
        for connection in self._opened:
            connection.commit()
        self._database.execute(f"COMMIT PREPARED '{self._database.name}_long'")


LONG_ROWS = frozenset({-10, -11, -20})


def test_snapshots_under_load(database: Database, tmp_path: Path) -> None:
    _create_tables(database)
    with service_in_process(tmp_path) as service, ExitStack() as stack:
        service.create_source(database.dsn)
        # Decoding of the database begins with its first slot, which waits as PostgreSQL's would.
        service.create_slot("first", database.name)
        long = LongTransactions(database, stack)
        load = Load(database)
        copies: dict[str, Copy] = {}
        try:
            deadline = time.monotonic() + LOAD_S
            while (time.monotonic() < deadline and len(copies) < 12) or len(copies) < 4:
                name = f"s{len(copies)}"
                slot = service.create_slot(
                    name, database.name, snapshot="export", two_phase=len(copies) % 2 == 1
                )
                snapshot = slot["snapshot"]
                assert (snapshot["method"], snapshot["reason"]) == ("paired", None)
                assert snapshot["consistent_point"] == slot["confirmed_flush_lsn"]
                copies[name] = _imported(database, snapshot)
                service.call("DELETE", f"/slots/{name}/snapshot")
        finally:
            load.end()
        long.commit()
        with database.connect() as connection:
            final = Copy.of(connection)
        assert final.ledger >= LONG_ROWS
        service.wait_decoded("first", database)
        for name, copy in copies.items():
            assert not copy.ledger & LONG_ROWS
            copy.take(_lines(service, name))
            assert copy.ledger == final.ledger
            assert copy.counters == final.counters
