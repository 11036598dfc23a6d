"""A source's standby takes over, under clients of the port that stream: stock pg_recvlogical and a
subscription. Nothing is lost, nothing comes twice, and nobody touches the clients.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.cluster import Database
from harness.pg_port import PASSWORD, create_user, dsn_of
from harness.postgresql_subscription import wait_until
from harness.servers import client
from harness.service import service_in_process
from harness.standby import Standby

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.service import Service

ROWS = "SELECT id FROM t ORDER BY id"
INSERTED = re.compile(r"table public\.t: INSERT: id\[integer\]:(\d+)")


class Writer(threading.Thread):
    """Inserts 1, 2, 3, … into whichever server takes it; what failed, or whose answer was lost, is
    not tried again.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__(name="writer")
        self._dsn = dsn
        self._ends = threading.Event()
        self._may = threading.Event()
        self._may.set()
        #: it holds no transaction
        self._rests = threading.Event()
        #: numbers whose commits were answered
        self.committed: list[int] = []

    def run(self) -> None:
        number = 0
        while not self._ends.is_set():
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._dsn) as connection:
                connection.autocommit = True
                while not self._ends.is_set():
                    if not self._may.is_set():
                        self._rests.set()
                        self._may.wait()
                        self._rests.clear()
                    number += 1
                    connection.execute("INSERT INTO t VALUES (%s)", [number])
                    self.committed.append(number)

    @contextmanager
    def resting(self) -> Iterator[None]:
        self._may.clear()
        assert self._rests.wait(60)
        yield
        self._may.set()

    def goes_on(self, rows: int = 50) -> None:
        until = len(self.committed) + rows
        wait_until("rows are committed", lambda: len(self.committed) >= until)

    def end(self) -> None:
        self._ends.set()
        self._may.set()
        self.join()


@contextmanager
def _receiving(service: Service, name: str, file: Path) -> Iterator[None]:
    """Have pg_recvlogical read slot s into *file*, and connect again whenever it has to."""
    with subprocess.Popen(
        [
            client("pg_recvlogical"), "-h", "127.0.0.1", "-p", str(service.pg_port), "-U", "both",
            "-d", name, "--slot", "s", "--start", "--file", str(file), "--status-interval", "1",
            "--fsync-interval", "1",
        ],
        env={**os.environ, "PGPASSWORD": PASSWORD},
    ) as process:  # fmt: skip
        try:
            yield
            assert process.poll() is None
        finally:
            process.terminate()


def _counted(file: Path) -> Counter[int]:
    return Counter(map(int, INSERTED.findall(file.read_text() if file.exists() else "")))


@pytest.mark.long
@pytest.mark.parametrize("major", [14, 16, 18])
@pytest.mark.parametrize("way", ["switchover", "failover", "other address"])
def test_a_standby_takes_over(
    fresh_cluster, pg15: Database, tmp_path: Path, major: int, way: str
) -> None:
    primary = fresh_cluster(major)
    source = primary.create_database("shop")
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    pg15.execute("CREATE TABLE t (id int PRIMARY KEY)")
    standby = Standby(source)
    with service_in_process(tmp_path / "data") as service, standby:
        either = (
            f"host=127.0.0.1,127.0.0.1 port={primary.port},{standby.port} user=postgres "
            "target_session_attrs=read-write"
        )
        service.create_source(primary.dsn() if way == "other address" else f"{either} dbname=shop")
        create_user(service, "both", "shop", manage_slots=True, run_sql=True)
        service.create_slot("s", "shop")
        to = dsn_of(service, "both", "shop").replace("'", "''")
        pg15.execute(f"CREATE SUBSCRIPTION sub CONNECTION '{to}' PUBLICATION p")
        writer = Writer(f"{either} dbname=shop")
        file = tmp_path / "received"
        writer.start()
        try:
            with _receiving(service, "shop", file):
                wait_until("both read", lambda: bool(_counted(file)) and bool(pg15.query(ROWS)))
                writer.goes_on()
                if way == "failover":
                    _crash(writer, source, standby, service)
                else:
                    # It sends its standbys, and us, all that there is before it goes.
                    primary.stop()
                standby.promote()
                if way == "other address":
                    service.call("PATCH", "/sources/main", json={"dsn": standby.dsn()})
                writer.goes_on()
                writer.end()
                promoted = Database(standby, "shop")
                there = [row[0] for row in promoted.query(ROWS)]
                # What was committed is there, but for what a client was not told of.
                assert set(writer.committed) <= set(there)
                assert -1 not in there
                wait_until("pg_recvlogical has it", lambda: set(there) <= set(_counted(file)))
                assert _counted(file) == Counter(there)
                wait_until(
                    "the subscriber has it", lambda: pg15.query(ROWS) == promoted.query(ROWS)
                )
                # What it asks by SQL is answered by the one that took over.
                promoted.execute("CREATE TABLE u (i int); ALTER PUBLICATION p ADD TABLE u")
                pg15.execute("CREATE TABLE u (i int)")
                promoted.execute("INSERT INTO u VALUES (1)")
                pg15.execute("ALTER SUBSCRIPTION sub REFRESH PUBLICATION")
                wait_until("u is copied", lambda: pg15.query("SELECT i FROM u") == [(1,)])
            assert _stream_errors(pg15) == []
            timeline = "SELECT timeline_id FROM pg_control_checkpoint()"
            promoted.execute("CHECKPOINT")
            assert promoted.value(timeline) == 2
        finally:
            writer.end()
            pg15.execute("ALTER SUBSCRIPTION sub DISABLE")
            pg15.execute("ALTER SUBSCRIPTION sub SET (slot_name = NONE)")
            pg15.execute("DROP SUBSCRIPTION sub")


def _crash(writer: Writer, source: Database, standby: Standby, service: Service) -> None:
    """End the primary at once, with a transaction in flight; its standby has what was committed."""
    with writer.resting(), contextlib.closing(source.connect()) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (-1)")
        # In WAL, and everywhere, without its commit.
        source.execute("SELECT pg_logical_emit_message(false, '', '')")
        standby.wait_streams()
        service.wait_decoded("s", source)
        source.cluster.stop("immediate")


def _stream_errors(database: Database) -> list[str]:
    """What its apply workers have ended by. None had to: the service has stayed."""
    statistics = "SELECT apply_error_count FROM pg_stat_subscription_stats"
    return [str(row[0]) for row in database.query(statistics) if row[0]]
