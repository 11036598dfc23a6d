"""kill -9 of ``spillway serve`` while transactions stream: no committed change is lost, order is
kept.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from harness.oracle import create_slot
from harness.serve_process import ServeProcess
from harness.tiers import deep
from spillway.pg.lsn import Lsn
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Cluster, Database
    from harness.service import Service

KILLS = 6


class Writer(threading.Thread):
    """Commits numbered transactions until told to stop; some are large, some roll back a
    savepoint.
    """

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(name="writer")
        self._database = database
        self._random = random.Random(seed)
        self.stop = threading.Event()
        self.committed = 0
        self.pause_s = 0.02
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self._database.connect() as connection:
                while not self.stop.is_set():
                    number = self.committed + 1
                    with connection.transaction():
                        rows = self._random.choice((1, 3, 10, 100))
                        connection.execute(
                            "INSERT INTO log SELECT %s, i, repeat('x', 40) FROM generate_series(1, "
                            "%s) i",
                            (number, rows),
                        )
                        connection.execute("SAVEPOINT s")
                        connection.execute("INSERT INTO log VALUES (-1, 0, 'never')")
                        connection.execute("ROLLBACK TO SAVEPOINT s")
                        if number % 40 == 0:
                            connection.execute(f"ALTER TABLE log ADD COLUMN c{number} int")
                    self.committed = number
                    time.sleep(self._random.uniform(0, 2 * self.pause_s))
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.error = error


class Consumer(threading.Thread):
    """Follows the slot like pg_recvlogical: keeps what it got, then confirms it, and comes back
    after errors.
    """

    def __init__(self, service: Service, slot: str) -> None:
        super().__init__(name="consumer")
        self._service, self._slot = service, slot
        self.stop = threading.Event()
        #: (lsn, xid, text) in the order of arrival, repetitions included
        self.rows: list[tuple[int, int, str]] = []
        self.reconnects = 0

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._follow()
            except Exception:  # noqa: BLE001 - the service is being killed
                self.reconnects += 1
                time.sleep(0.1)

    def _follow(self) -> None:
        with open_stream(self._service.grpc_address, self._slot) as stream:
            for batch in stream:
                start = 0
                for length, lsn, xid in zip(batch.lengths, batch.lsns, batch.xids, strict=True):
                    text = bytes(batch.payload[start : start + length]).decode()
                    self.rows.append((lsn, xid, text))
                    start += length
                stream.confirm(batch.confirm_lsn)
                if self.stop.is_set():
                    return


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_no_committed_change_is_lost(tmp_path: Path, fresh_cluster, seed: int) -> None:
    cluster: Cluster = fresh_cluster(15 if seed % 2 else 18)
    database = cluster.create_database("killed")
    database.execute("CREATE TABLE log (txn int, n int, filler text)")
    rng = random.Random(seed)
    data_dir = tmp_path / "data"
    serve = ServeProcess(data_dir)
    writer: Writer | None = None
    consumer: Consumer | None = None
    try:
        service = serve.service()
        service.create_source(database.dsn)
        oracle = create_slot(database, "oracle")
        service.create_slot("ours", database.name)
        writer = Writer(database, seed)
        consumer = Consumer(service, "ours")
        writer.start()
        consumer.start()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.3, 2.0))
            serve.kill()
            time.sleep(rng.uniform(0, 0.5))
            serve.start()
        time.sleep(1)
        writer.stop.set()
        writer.join()
        assert writer.error is None
        # Autovacuum commits empty transactions of its own at any time: compare up to one position.
        end = service.wait_decoded("ours", database)
        theirs = [(Lsn.parse(lsn), xid, data) for lsn, xid, data in oracle.peek(upto_lsn=end)]
        deadline = time.monotonic() + 60
        while not consumer.rows or consumer.rows[-1][0] < theirs[-1][0]:
            assert time.monotonic() < deadline, f"the consumer got {len(consumer.rows)} rows"
            time.sleep(0.1)
        consumer.stop.set()
        consumer.join(30)
        assert consumer.reconnects >= 1
        ours = [row for row in without_repetitions(consumer.rows) if row[0] <= theirs[-1][0]]
        # Not "assert ours == theirs": the explanation of a difference would take minutes to make.
        assert len(ours) == len(theirs)
        assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]][:3] == []
    finally:
        for thread in (writer, consumer):
            if thread is not None:
                thread.stop.set()
        serve.stop()


def without_repetitions(rows: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Whole transactions in order of arrival, each once; a cut one must come again from its
    BEGIN.
    """
    kept: list[tuple[int, int, str]] = []
    transaction: list[tuple[int, int, str]] = []
    last_commit = 0
    for row in rows:
        if row[2].startswith("BEGIN"):
            transaction = []
        transaction.append(row)
        if row[2].startswith("COMMIT"):
            if row[0] > last_commit:
                kept += transaction
                last_commit = row[0]
            transaction = []
    return kept


FAILPOINTS = (
    "session.before_snapshot_rename=kill@2",
    "session.before_log_sync=kill@2",
    "session.after_log_sync=kill@2",
    "walstore.before_fsync=kill@20",
    "walstore.after_fsync=kill@20",
    "walstore.before_state_fsync=kill@20",
    "walreceiver.before_status=kill@20",
)


@pytest.mark.parametrize(
    "failpoints", [FAILPOINTS[1:3], deep(FAILPOINTS)], ids=["around the log's fsync", "all"]
)
def test_killed_at_each_named_point(
    tmp_path: Path, fresh_cluster, failpoints: tuple[str, ...]
) -> None:
    cluster: Cluster = fresh_cluster(18)
    database = cluster.create_database("killed")
    database.execute("CREATE TABLE log (txn int, n int, filler text)")
    serve = ServeProcess(tmp_path / "data")
    writer: Writer | None = None
    try:
        service = serve.service()
        service.create_source(database.dsn)
        oracle = create_slot(database, "oracle")
        service.create_slot("ours", database.name)
        writer = Writer(database, 3)
        writer.pause_s = 0.1
        writer.start()
        for failpoint in failpoints:
            serve.kill()
            serve.start(failpoint)
            assert serve.process is not None
            # Two checkpoints of a database at work are 20 seconds apart, and more on a machine with
            # others at work.
            assert serve.process.wait(240) == -signal.SIGKILL, f"{failpoint} was not reached"
            serve.start()
        writer.stop.set()
        writer.join()
        assert writer.error is None
        end = service.wait_decoded("ours", database)
        theirs = [tuple(row) for row in oracle.peek(upto_lsn=end)]
        ours = service.peek("ours", upto_lsn=end)
        assert len(ours) == len(theirs)
        assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]][:3] == []
    finally:
        if writer is not None:
            writer.stop.set()
        serve.stop()


def test_log_names_every_restart(tmp_path: Path) -> None:
    serve = ServeProcess(tmp_path / "data")
    serve.stop()
    assert re.search(r"gRPC +127\.0\.0\.1:\d+", serve.log())
