"""PostgreSQL's protocol on both sides: the same stock pg_recvlogical, and a client that does
nothing, of the primary's walsender and of the service's port.

pg_recvlogical confirms what it has got, so that each run has copies of a slot. It writes each
message by a call of its own, and so bounds what can be delivered to it; the client that does
nothing (``python -m bench.wire DSN SLOT OPTIONS UPTO_LSN``) reads large pieces of the socket and
looks only at the end of each, for the keepalive that says that this was all. It confirms nothing.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, Self

from psycopg import pq

from bench.machine import cpu_seconds, memory_bytes, reset_peak, tree_cpu_seconds
from bench.postgresql import PLUGINS, await_client, recvlogical_command, slot_copies
from bench.results import BenchFailed, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.service import SleepingService
    from harness.cluster import Cluster, Database

#: pg_recvlogical on the service's port
PG_PORT: Final = "pg_recvlogical on our port"
NULL: Final = "a client that does nothing"

_READ_BYTES: Final = 1 << 20
_KEEPALIVE: Final = struct.Struct(">cicQqB")
_STATUS: Final = struct.Struct(">cicQQQqB")
_ASK_S: Final = 0.05


def recvlogical_on_port(
    service: SleepingService,
    cluster: Cluster,
    database: Database,
    plugin: str,
    slots: Sequence[str],
    end_lsn: object,
    timeout_s: float,
) -> Run:
    """Let a pg_recvlogical a slot take everything up to *end_lsn* from the service's port.

    The Run's ``payload_bytes`` are of all clients, newlines between messages included.
    """
    with service.awake(), port_copies(service, slots) as names:
        reset_peak(service.pid)
        server_cpu_s, service_cpu_s = tree_cpu_seconds(cluster.pid), cpu_seconds(service.pid)
        started_s = time.perf_counter()
        dsn = service.pg_dsn(database)
        clients = [
            subprocess.Popen(
                recvlogical_command(dsn, name, plugin, f"--endpos={end_lsn}", "--file=/dev/null"),
                stdin=subprocess.DEVNULL,
            )
            for name in names
        ]
        ended = [await_client(process, started_s + timeout_s) for process in clients]
        wall_s = time.perf_counter() - started_s
        service_cpu_s = cpu_seconds(service.pid) - service_cpu_s
        server_cpu_s = tree_cpu_seconds(cluster.pid) - server_cpu_s
        peak = memory_bytes(service.pid, "VmHWM")
    written, client_cpu_s, timed_out = zip(*ended, strict=True)
    return Run(
        wall_s,
        {"service": service_cpu_s, "client": sum(client_cpu_s), "server": server_cpu_s},
        payload_bytes=sum(written),
        peak_bytes={"service": peak},
        timed_out=any(timed_out),
    )


@contextmanager
def port_copies(service: SleepingService, slots: Sequence[str]) -> Iterator[list[str]]:
    """Have a copy of each of *slots* for the length of a ``with``."""
    names = [f"copy_{slot}" for slot in slots]
    for slot, name in zip(slots, names, strict=True):
        service.call("POST", f"/slots/{slot}/copy", json={"slot_name": name})
    try:
        yield names
    finally:
        for name in names:
            service.call("DELETE", f"/slots/{name}")


def null_on_port(
    service: SleepingService, database: Database, plugin: str, slot: str, end_lsn: int
) -> Run:
    """Let a client that does nothing take everything from the service's port."""
    with service.awake(), NullClient(service.pg_dsn(database), slot, plugin, end_lsn) as client:
        service_cpu_s = cpu_seconds(service.pid)
        figures = client.run()
        service_cpu_s = cpu_seconds(service.pid) - service_cpu_s
    return Run(figures["wall_s"], {"service": service_cpu_s, "client": figures["cpu_s"]})


def null_on_primary(cluster: Cluster, database: Database, plugin: str, end_lsn: int) -> Run:
    """Let a client that does nothing take everything from a walsender."""
    with (
        slot_copies(database, plugin, 1) as (name,),
        NullClient(database.dsn, name, plugin, end_lsn) as client,
    ):
        server_cpu_s = tree_cpu_seconds(cluster.pid)
        figures = client.run()
    # A walsender is in its postmaster's figure once it has ended.
    server_cpu_s = tree_cpu_seconds(cluster.pid) - server_cpu_s
    return Run(figures["wall_s"], {"server": server_cpu_s, "client": figures["cpu_s"]})


class NullClient:
    """The parent's half: a client in a process of its own, which is ready to begin."""

    def __init__(self, dsn: str, slot: str, plugin: str, end_lsn: int) -> None:
        options = ", ".join(f"\"{name}\" '{value}'" for name, value in PLUGINS[plugin][1].items())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.wire", dsn, slot, options, str(int(end_lsn))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._line()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.communicate()

    def run(self) -> dict[str, Any]:
        """Let it run to its end, and return its figures."""
        stdin: IO[str] | None = self._process.stdin
        assert stdin is not None
        print("go", file=stdin, flush=True)
        figures: dict[str, Any] = json.loads(self._line())
        self._process.wait()
        return figures

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchFailed("a client of the wire failed; what it said is above")
        return line


# ---- the client's own half


def _read_all(connection: socket.socket, end_lsn: int) -> int:
    """Read until a keepalive says that all before *end_lsn* has come; return the bytes."""
    buffer = bytearray(_READ_BYTES)
    view = memoryview(buffer)
    status = _STATUS.pack(b"d", _STATUS.size - 1, b"r", 0, 0, 0, 0, 1)
    taken = kept = 0
    while True:
        if not select.select([connection], [], [], _ASK_S)[0]:
            connection.sendall(status)
            continue
        # The end of what came before, in case a keepalive is cut.
        got = connection.recv_into(view[kept:])
        if not got:
            raise BenchFailed("the server ended the stream")
        taken += got
        size = kept + got
        if size >= _KEEPALIVE.size:
            letter, length, kind, wal_end, _, _ = _KEEPALIVE.unpack_from(
                buffer, size - _KEEPALIVE.size
            )
            if (letter, length, kind) == (b"d", _KEEPALIVE.size - 1, b"k") and wal_end >= end_lsn:
                return taken
        kept = min(size, _KEEPALIVE.size)
        buffer[:kept] = buffer[size - kept : size]


def main() -> None:
    """Stream once."""
    dsn, slot, options, end_lsn = *sys.argv[1:4], int(sys.argv[4])
    pgconn = pq.PGconn.connect(f"{dsn} replication=database".encode())
    if pgconn.status != pq.ConnStatus.OK:
        raise BenchFailed(pgconn.get_error_message())
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    cpu_s, started_s = time.process_time(), time.monotonic()
    pgconn.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})".encode())
    with socket.socket(fileno=pgconn.socket) as connection:
        connection.setblocking(True)
        taken = _read_all(connection, end_lsn)
        figures = {
            "wall_s": time.monotonic() - started_s,
            "cpu_s": time.process_time() - cpu_s,
            "bytes": taken,
        }
        print(json.dumps(figures), flush=True)
        connection.detach()
    pgconn.finish()


if __name__ == "__main__":
    main()
