"""Databases that are busy at the same time, each decoded from WAL that is walked once for all of
them: as the server decodes them.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from harness.cluster import Cluster
from harness.ddl_workload import DdlClient
from harness.decoding_session import DecodingSession, RenderingSink
from harness.reception import wait_until
from spillway.decoding.decoder import Decoder
from spillway.wal import shared_walk
from spillway.wal.reader import WalDirectory
from spillway.wal.shared_walk import SharedWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from spillway._kernels.wal.record_batch import RecordBatch
    from spillway.pg.versions import WalVersion

DATABASES = 3
TURNS = 60
SEED = 1


class DirectoryWal:
    """A server's own segment files, up to where decoding came."""

    def __init__(self, cluster: Cluster, begin: int, end: int) -> None:
        directory = WalDirectory(cluster.wal_directory)
        self.segment_size = directory.segment_size
        self._begin, self._end = begin, end
        first = begin - begin % self.segment_size
        pieces = []
        for lsn, data in directory._read(first):
            pieces.append(data)
            if lsn + len(data) >= end:
                break
        self._first = first
        self._data = b"".join(pieces)[: end - first]

    def read(self, lsn: int, max_bytes: int) -> bytes:
        return self._data[lsn - self._first :][:max_bytes]

    def wait(
        self,
        lsn: int,
        timeout_s: float,
        called: Callable[[], bool] = lambda: False,
        *_: object,
    ) -> bool:
        raise AssertionError("everything is there", lsn, timeout_s, called)

    def wake(self) -> None:
        raise AssertionError("nobody waits")

    def passed(self, reader: Hashable, lsn: int) -> None:
        """Do nothing: nobody keeps memory for it."""

    def leave(self, reader: Hashable) -> None:
        """Do nothing."""


class GrowingWal(DirectoryWal):
    """The same, of which more and more is there."""

    def __init__(self, cluster: Cluster, begin: int, end: int) -> None:
        super().__init__(cluster, begin, end)
        self.upto = begin
        self._changed = threading.Condition()

    def grow(self, size: int) -> bool:
        """Have *size* bytes more be there; False when there are no more."""
        with self._changed:
            self.upto = min(self.upto + size, self._end)
            self._changed.notify_all()
            return self.upto < self._end

    def read(self, lsn: int, max_bytes: int) -> bytes:
        return super().read(lsn, max(0, min(max_bytes, self.upto - lsn)))

    def wait(
        self,
        lsn: int,
        timeout_s: float,
        called: Callable[[], bool] = lambda: False,
        *_: object,
    ) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: called() or self.upto > lsn, timeout_s)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Follower:
    """A decoder on a thread of its own, for which other ones stand in while it sleeps."""

    def __init__(self, shared: SharedWalk, decoder: Decoder, version: WalVersion) -> None:
        self._decoder = decoder
        self._ends = threading.Event()
        #: how often another thread did what this one would
        self.stood_in = 0
        self._reader = shared.reader(decoder.position, version, decoder, self._stand_in)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _stand_in(self, taken: tuple[RecordBatch, int] | None, lsn: int) -> bool:
        assert not self._reader.is_lent or threading.current_thread() is not self._thread
        self.stood_in += 1
        self._feed(taken, lsn)
        return False

    def _feed(self, taken: tuple[RecordBatch, int] | None, lsn: int) -> None:
        if taken is not None:
            self._decoder.process(*taken)
        elif lsn > self._decoder.position:
            self._decoder.pass_to(lsn)

    def _run(self) -> None:
        while not self._ends.is_set():
            taken = self._reader.take(60, self._ends.is_set)
            self._feed(taken, self._reader.position)

    def end(self) -> None:
        """End the thread."""
        self._ends.set()
        self._reader.wake()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._reader.close()


def play(clients: list[psycopg.Connection], loads: list[DdlClient], seed: int) -> None:
    """Have all databases change in turns, statement by statement: DDL, rows, savepoints, prepared
    and rolled back.
    """
    r = random.Random(seed)
    for number, client in enumerate(clients):
        client.execute("CREATE TABLE rows (id serial PRIMARY KEY, v text)")
        client.execute("CREATE ROLE shared_%d" % number)  # type: ignore[arg-type]  # noqa: UP031
    open_for: dict[int, str] = {}
    for turn in range(TURNS):
        number = r.randrange(len(clients))
        client = clients[number]
        if number not in open_for:
            if r.random() < 0.3:
                client.execute("BEGIN")
                with contextlib.suppress(psycopg.Error):
                    for statement in loads[number].transaction()[:-1]:
                        client.execute(statement)  # type: ignore[arg-type]
                client.execute(r.choice(["COMMIT", "ROLLBACK"]))
                continue
            client.execute("BEGIN")
            open_for[number] = r.choice(
                ["COMMIT", "COMMIT", "ROLLBACK", f"PREPARE TRANSACTION 'p{turn}'"]
            )
        roll = r.random()
        if roll < 0.3:
            client.execute(
                "INSERT INTO rows (v) SELECT repeat('x', 50) FROM generate_series(1, 40)"
            )
        elif roll < 0.5:
            client.execute(
                "SAVEPOINT a; UPDATE rows SET v = v || 'y' WHERE id % 7 = 0; ROLLBACK TO a"
            )
        elif roll < 0.6:
            client.execute("SAVEPOINT b; DELETE FROM rows WHERE id % 5 = 0; RELEASE b")
        elif roll < 0.7:
            client.execute(f"ALTER TABLE rows ADD COLUMN c{turn} int DEFAULT {turn}")
        elif roll < 0.8:
            client.execute("SELECT pg_logical_emit_message(true, 'of', current_database())")
            client.execute("SELECT pg_logical_emit_message(false, 'of', current_database())")
        else:
            client.execute(open_for[number])
            end = open_for.pop(number)
            if end.startswith("PREPARE"):
                client.execute(
                    r.choice(["COMMIT", "ROLLBACK"])
                    + end.removeprefix("PREPARE TRANSACTION").join([" PREPARED ", ""])
                )
    for number in open_for:
        clients[number].execute("COMMIT")
    for client in clients:
        client.execute("TRUNCATE rows")


@pytest.mark.parametrize("major", [14, 18])
def test_each_database_is_decoded_as_the_server_does(
    major: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(major, max_prepared_transactions=10) as cluster:
        databases = [cluster.create_database(f"d{n}") for n in range(DATABASES)]
        sessions = [DecodingSession(d, tmp_path / d.name) for d in databases]
        for session in sessions:
            session.decode()
        begun = [(s.decoder.serialize(), s.decoder.position, len(s.sink.lines)) for s in sessions]
        with contextlib.ExitStack() as connections:
            clients = [connections.enter_context(d.connect()) for d in databases]
            play(clients, [DdlClient(f"c{n}", SEED) for n in range(DATABASES)], SEED)
        lines = [session.assert_equal_to_server() for session in sessions]
        assert all(len(of) > 100 for of in lines)
        end = max(session.decoder.position for session in sessions)
        begin = min(position for _, position, _ in begun)
        version = sessions[0].version

        def restored(where: str) -> list[tuple[Decoder, RenderingSink]]:
            again = []
            for session, (state, position, _) in zip(sessions, begun, strict=True):
                sink = RenderingSink("test_decoding", {}, session.context)
                decoder = Decoder.restore(
                    state,
                    version,
                    sink,
                    spill_dir=tmp_path / f"{where}-{session.database.name}",
                    start_decoding_at=position,
                )
                again.append((decoder, sink))
            return again

        def check(again: list[tuple[Decoder, RenderingSink]]) -> None:
            for session, (decoder, sink), (_, _, before) in zip(
                sessions, again, begun, strict=True
            ):
                assert sink.lines == session.sink.lines[before:][: len(sink.lines)]
                assert len(sink.lines) >= len(session.sink.lines) - before
                decoder.close()

        # One after the other.
        stored = DirectoryWal(cluster, begin, end)
        shared = SharedWalk(stored, stored.segment_size, 0)
        again = restored("again")
        turns = [
            (decoder, shared.reader(decoder.position, version, decoder)) for decoder, _ in again
        ]
        while not all(reader.caught_up for _, reader in turns):
            for decoder, reader in turns:
                if (taken := reader.take(0)) is not None:
                    decoder.process(*taken)
                elif reader.position > decoder.position:
                    decoder.pass_to(reader.position)
        check(again)

        # At once, as WAL comes, and who is awake stands in for who sleeps.
        monkeypatch.setattr(shared_walk, "STAND_IN_S", 0.001)
        growing = GrowingWal(cluster, begin, end)
        shared = SharedWalk(growing, growing.segment_size, 0)
        again = restored("at_once")
        followers = [Follower(shared, decoder, version) for decoder, _ in again]
        r = random.Random(SEED)
        while growing.grow(r.choice([300, 3_000, 30_000])):
            time.sleep(0.001)
        wait_until(lambda: all(decoder.position >= end for decoder, _ in again))
        for follower in followers:
            follower.end()
        check(again)
        assert sum(follower.stood_in for follower in followers) > 0
        for session in sessions:
            session.close()
