"""kill -9 of the service, and of a user's program, while the Python client follows slots: nothing
lost, nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.serve_process import ServeProcess
from spillway_client import AsyncSlot, Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import Database
    from spillway_client import Batch, Transaction

PROJECT = Path(__file__).resolve().parents[2]
KILLS = 2


class Writer(threading.Thread):
    """Commits transactions numbered from 1; each inserts rows, and deletes one of the transaction
    before.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(name="writer")
        self._database = database
        self.stop = threading.Event()
        self.committed = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self._database.connect() as connection:
                while not self.stop.is_set():
                    number = self.committed + 1
                    with connection.transaction():
                        rows = 400 if number % 50 == 0 else 3
                        connection.execute(
                            "INSERT INTO log SELECT %s, i, repeat('x', 40) FROM generate_series(1, "
                            "%s) i",
                            (number, rows),
                        )
                        connection.execute(
                            "DELETE FROM log WHERE txn = %s AND n = 1", (number - 1,)
                        )
                    self.committed = number
                    self.stop.wait(0.02)
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.error = error


class Follower(threading.Thread):
    """Follows a slot in one loop, whatever is killed; keeps the numbers of the transactions that it
    was given.
    """

    def __init__(self, follow: Callable[[Follower], None]) -> None:
        super().__init__(name="follower", daemon=True)
        self._follow = follow
        self.seen: list[int] = []
        #: (transaction, row) of each insert
        self.rows: list[tuple[int, int]] = []
        self.reconnects = 0
        self.last = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._follow(self)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def take(self, tx: Transaction) -> bool:
        """Keep what *tx* is; say whether it is the last one."""
        first = tx.changes[0].new
        assert first is not None
        self.seen.append(first["txn"])
        return bool(first["txn"] == self.last)

    def take_batch(self, batch: Batch) -> bool:
        inserts = [r for r in batch.record_batch.to_pylist() if r["_op"] == "I"]
        if batch.table == "log":
            self.rows += [(r["txn"], r["n"]) for r in inserts]
        return bool(self.rows and self.rows[-1][0] == self.last)


def _threads(address: str) -> Callable[[Follower], None]:
    def follow(follower: Follower) -> None:
        with Slot(address, "threads", confirm_seconds=0.05) as slot:
            for tx in slot:
                follower.reconnects = slot.reconnects
                if follower.take(tx):
                    return

    return follow


def _tasks(address: str) -> Callable[[Follower], None]:
    async def main(follower: Follower) -> None:
        async with AsyncSlot(address, "tasks", confirm_seconds=0.05) as slot:
            async for tx in slot:
                follower.reconnects = slot.reconnects
                if follower.take(tx):
                    return

    return lambda follower: asyncio.run(main(follower))


def _batches(address: str) -> Callable[[Follower], None]:
    def follow(follower: Follower) -> None:
        # Small ones: a transaction's rows come in several, and cuts between them.
        options = {"batch_rows": "100"}
        with Slot(address, "batches", options=options, batch_bytes=1024, queue_bytes=1) as slot:
            for batch in slot.batches():
                follower.reconnects = slot.reconnects
                if follower.take_batch(batch):
                    return

    return follow


def test_nothing_is_lost_or_given_twice(tmp_path: Path, pg18: Database) -> None:
    pg18.execute("CREATE TABLE log (txn int, n int, filler text, PRIMARY KEY (txn, n))")
    pg18.execute("CREATE TABLE copy (txn int, n int, filler text)")
    pg18.execute("CREATE PUBLICATION log FOR TABLE log")
    serve = ServeProcess(tmp_path / "data")
    writer = Writer(pg18)
    program: subprocess.Popen[bytes] | None = None
    try:
        service = serve.service()
        address = service.grpc_address
        service.create_source(pg18.dsn)
        for name in ("threads", "tasks", "program"):
            service.create_slot(name, pg18.name, "pgoutput", options={"publication_names": "log"})
        service.create_slot("batches", pg18.name, "arrow")
        followers = [Follower(_threads(address)), Follower(_tasks(address))]
        batches = Follower(_batches(address))
        everyone = [*followers, batches]
        for follower in everyone:
            follower.start()
        writer.start()
        program = _program(address, pg18.dsn)
        for kill in range(KILLS):
            before = len(followers[0].seen), len(followers[1].seen), writer.committed, _copied(pg18)
            _wait(
                lambda before=before: (  # type: ignore[misc]
                    len(followers[0].seen) > before[0] + 10
                    and len(followers[1].seen) > before[1] + 10
                    and writer.committed > before[2] + 50
                    and _copied(pg18) > before[3]
                    and batches.rows
                ),
                everyone,
                writer,
            )
            serve.kill()
            if kill % 2:
                program.kill()
                program.wait()
            serve.start()
            if kill % 2 == 0:
                # A program that was left alone found its way back before it dies.
                now = _copied(pg18)
                _wait(lambda now=now: _copied(pg18) > now, everyone, writer)  # type: ignore[misc]
                program.kill()
                program.wait()
            program = _program(address, pg18.dsn)
        writer.stop.set()
        writer.join()
        assert writer.error is None
        last = writer.committed
        with pg18.connect() as connection:
            for follower in everyone:
                follower.last = last + 1
            connection.execute("INSERT INTO log VALUES (%s, 1, 'last')", (last + 1,))
        for follower in everyone:
            follower.join(120)
            assert follower.error is None
            assert not follower.is_alive(), (len(follower.seen), last)
            assert follower.reconnects >= 1
        for follower in followers:
            assert follower.seen == list(range(1, last + 2))
        inserted = [
            (number, row)
            for number in range(1, last + 2)
            for row in range(1, 2 if number > last else 401 if number % 50 == 0 else 4)
        ]
        assert len(batches.rows) == len(inserted)
        assert batches.rows == inserted
        _wait(lambda: _copied(pg18) == last + 1, everyone, writer)
        rows = "SELECT txn, n, filler FROM {} ORDER BY 1, 2"
        assert pg18.query(rows.format("copy")) == pg18.query(rows.format("log"))
    finally:
        writer.stop.set()
        if program is not None:
            program.kill()
            program.wait()
        serve.stop()


def _program(address: str, dsn: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(str(PROJECT / part) for part in ("tests", "client/src"))
    return subprocess.Popen(
        [sys.executable, "-m", "harness.client_consumer", address, "program", dsn],
        env={**os.environ, "PYTHONPATH": path},
    )


def _copied(database: Database) -> int:
    """The number of the last transaction that the program has copied."""
    found: Any = database.value("SELECT coalesce(max(txn), 0) FROM copy")
    return int(found)


def _wait(holds: Callable[[], object], followers: list[Follower], writer: Writer) -> None:
    for _ in range(3000):
        if holds():
            return
        for follower in followers:
            assert follower.error is None, follower.error
        assert writer.error is None
        threading.Event().wait(0.1)
    seen = [(len(f.seen), len(f.rows)) for f in followers]
    raise AssertionError(f"it did not come about in five minutes: {seen}, {writer.committed}")
