"""Clients that misbehave inside a stream: what they send, and that they don't read. Each costs what
it may, and nothing once it has ended.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
import struct
import time
import tracemalloc
from contextlib import ExitStack
from typing import TYPE_CHECKING

from harness.pg_port import serving
from harness.replication_client import ReplicationClient
from spillway.walsender.copy_stream import BATCH_BYTES, CopyStream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from harness.cluster import Database

MIB = 1 << 20
CLIENTS = 4
#: Beside batches: a window of the log, a chunk, and what a stream's own objects take.
BESIDE_MAX = 3 * MIB
HUGE = 6 * MIB
CREATE = "CREATE_REPLICATION_SLOT {} LOGICAL test_decoding NOEXPORT_SNAPSHOT"


def _wait_until(reached: Callable[[], bool], what: Callable[[], object] = str) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def test_clients_that_never_read(
    pg18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds a few batches, of a backlog of fifty; or twice a message that is larger."""
    waiting: set[object] = set()
    drain = CopyStream._drain

    async def noted(stream: CopyStream) -> None:
        waiting.add(stream)
        await drain(stream)
        waiting.discard(stream)

    monkeypatch.setattr(CopyStream, "_drain", noted)
    pg18.execute("CREATE TABLE t (i int, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    with serving(pg18, tmp_path) as (service, dsn):
        with ReplicationClient(dsn) as connection:
            for n in range(CLIENTS):
                connection.run(CREATE.format(f"small{n}"))
            pg18.execute(
                "INSERT INTO t SELECT n, repeat('x', 2000) FROM generate_series(1, 12000) n"
            )
            service.wait_decoded("small0", pg18)
            for n in range(CLIENTS):
                connection.run(CREATE.format(f"large{n}"))
            pg18.execute(
                f"INSERT INTO t SELECT n, repeat('x', {HUGE}) FROM generate_series(1, 4) n"
            )
            service.wait_decoded("large0", pg18)
        for kind, batch_bytes in (("small", BATCH_BYTES), ("large", HUGE)):
            gc.collect()
            tracemalloc.start()
            try:
                with ExitStack() as stack:
                    for n in range(CLIENTS):
                        client = stack.enter_context(ReplicationClient(dsn))
                        client.start(f"{kind}{n}")
                    bound = CLIENTS * (4 * batch_bytes + BESIDE_MAX)
                    # Where all wait for their clients, and go on waiting.
                    for _ in range(3):
                        _wait_until(lambda: len(waiting) == CLIENTS)
                        assert tracemalloc.get_traced_memory()[0] < bound
                        time.sleep(0.2)
                    assert len(waiting) == CLIENTS
                _wait_until(lambda: not _is_active(service))
                waiting.clear()
                gc.collect()
                _wait_until(
                    lambda: tracemalloc.get_traced_memory()[0] < CLIENTS * MIB,
                    tracemalloc.get_traced_memory,
                )
            finally:
                tracemalloc.stop()


def _feedback(draw: random.Random) -> bytes:
    """Return a standby status update of any LSNs."""
    lsns = [draw.choice([0, 1, draw.randrange(1 << 32), (1 << 64) - 1]) for _ in range(3)]
    body = struct.pack(">cQQQqB", b"r", *lsns, draw.randrange(1 << 40), draw.randrange(3))
    return b"d" + struct.pack(">I", len(body) + 4) + body


def _message(draw: random.Random) -> bytes:
    kind = draw.choice(b"dddddccXQPBDESFHpf\0\xff")
    body = draw.randbytes(draw.choice([0, 1, 5, 33, 34, 200]))
    if kind == ord("Q") and draw.random() < 0.7:
        body = draw.choice(
            [
                b"IDENTIFY_SYSTEM\0",
                b"START_REPLICATION SLOT fuzzed LOGICAL 0/0\0",
                b"DROP_REPLICATION_SLOT fuzzed\0",
                b"SHOW " + draw.randbytes(4) + b"\0",
                b"START_REPLICATION SLOT fuzzed LOGICAL FFFFFFFF/FFFFFFFF (a 'b', a)\0",
            ]
        )
    length = len(body) + 4
    if draw.random() < 0.15:
        length = draw.choice([0, 3, length - 1, length + 7, 10_005, 1 << 21, 0x7FFFFFFF, 1 << 31])
    return bytes([kind]) + struct.pack(">I", length & 0xFFFFFFFF) + body


def _hostile(draw: random.Random) -> bytes:
    """Return what a client of a stream sends, right, wrong, in any order, cut and flipped."""
    messages = [
        _feedback(draw) if draw.random() < 0.5 else _message(draw)
        for _ in range(draw.randrange(1, 12))
    ]
    data = bytearray(b"".join(messages))
    for _ in range(draw.choice([0, 0, 1, 3])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.randrange(1, len(data) + 1)] if draw.random() < 0.3 else data)


def test_hostile_bytes_within_a_stream(
    pg18: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    pg18.execute("CREATE TABLE t (i int)")
    with serving(pg18, tmp_path) as (service, dsn), caplog.at_level(logging.ERROR):
        with ReplicationClient(dsn) as connection:
            connection.run(CREATE.format("fuzzed"))
        pg18.execute("INSERT INTO t SELECT generate_series(1, 2000)")
        tasks = 0
        for number in range(50):
            with ReplicationClient(dsn) as connection:
                start = "START_REPLICATION SLOT fuzzed LOGICAL 0/0"
                # Dropped by the one before, perhaps.
                if draw.random() < 0.8 and connection.run(start).failure:
                    connection.run(CREATE.format("fuzzed"))
                raw = socket.socket(fileno=connection.pgconn.socket)
                try:
                    raw.setblocking(True)
                    raw.settimeout(30)
                    _exchange(raw, _hostile(draw))
                finally:
                    raw.detach()
            _wait_until(lambda: not _is_active(service), lambda: f"seed {seed}")
            if number == 4:
                tasks = _tasks()
        _wait_until(lambda: _tasks() <= tasks + 2, lambda: f"seed {seed}: {_tasks()} of {tasks}")
        with ReplicationClient(dsn) as connection:
            connection.run("DROP_REPLICATION_SLOT fuzzed")
            assert connection.run(CREATE.format("fuzzed")).failure is None
            connection.start("fuzzed")
            pg18.execute("INSERT INTO t VALUES (1)")
            end = str(pg18.value("SELECT pg_current_wal_flush_lsn()::text"))
            assert connection.read_to(end)
        faults = [record.getMessage() for record in caplog.records]
        assert not faults, f"seed {seed}: {faults}"


def _exchange(raw: socket.socket, data: bytes) -> None:
    """Send *data* and go; read what comes until the service has ended the connection."""
    try:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass
    except (ConnectionResetError, BrokenPipeError):
        pass


def _is_active(service: object) -> bool:
    slots = service.call("GET", "/slots")["slots"]  # type: ignore[attr-defined]
    return any(slot["active"] for slot in slots)


def _tasks() -> int:
    """Return how many tasks the service has on its event loop, in this process."""
    return sum(isinstance(found, asyncio.Task) and not found.done() for found in gc.get_objects())
