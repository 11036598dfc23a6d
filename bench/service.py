"""Ours over gRPC: ``spillway serve`` in a process of its own, asleep except for its own turns, and
clients.

Two ways to deliver a backlog are timed. *gRPC*: the service has received and decoded it before, as
it does while consumers are away; its clients then get it from the transaction log. *gRPC from the
primary*: the service slept while the WAL was written, so that the time from waking to the last row
has receiving, syncing, decoding, logging and delivering in it, which is what a walsender does as
its client connects.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from bench.grpc_client import grpc_clients
from bench.machine import cpu_seconds, memory_bytes, reset_peak, tree_cpu_seconds
from bench.postgresql import PLUGINS
from bench.results import Run
from bench.source import wait_until
from spillway.demo.private_postgres import free_port
from spillway.demo.service import Service
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.cluster import Cluster, Database


#: of PostgreSQL's port, and its password
_USER: Final = "bench"
#: Waits for the end of a pipe that nobody writes to: ours. A process that sleeps would outlive it
#: for good.
_WARDEN: Final = 'read -r _; kill -KILL "$0"'


class SleepingService(Service):
    """The service, stopped by SIGSTOP but in :meth:`awake`; it is gone when this process is, even
    if that is killed.
    """

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run for the length of a ``with``; it may be nested."""
        assert self._process is not None
        before = self._awake
        self._awake = True
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._awake = before
            if not before and self._process.poll() is None:
                self._process.send_signal(signal.SIGSTOP)

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Have it sleep for the length of a ``with`` within :meth:`awake`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._pg_port = free_port()

    _awake = False
    _warden: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it sleeps once it is ready."""
        super().start()
        assert self._process is not None
        self._warden = subprocess.Popen(
            ["sh", "-c", _WARDEN, str(self.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        if not self._awake:
            self._process.send_signal(signal.SIGSTOP)

    def stop(self) -> int:
        """Stop it, asleep or awake."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        code = super().stop()
        self._dismiss_warden()
        return code

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._dismiss_warden()

    def _dismiss_warden(self) -> None:
        """Call it off before its pipe is closed, which it would take for our end."""
        if self._warden is not None:
            self._warden.kill()
            self._warden.communicate()
            self._warden = None

    @property
    def environment(self) -> dict[str, str]:
        """With PostgreSQL's own protocol, too."""
        return {**super().environment, "SPILLWAY_PG_PORT": str(self._pg_port)}

    def pg_dsn(self, database: Database) -> str:
        """Return the DSN of PostgreSQL's port, for the one user that there is; made at first."""
        users = [user["name"] for user in self.call("GET", "/users")["users"]]
        if _USER not in users:
            user = {"name": _USER, "password": _USER, "databases": ["bench/*"]}
            self.call("POST", "/users", json={**user, "manage_slots": True})
        return (
            f"host=127.0.0.1 port={self._pg_port} user={_USER} password={_USER} "
            f"dbname={database.name}"
        )

    # ---- one source, whose slots are named after their plugins

    def create_source(self, database: Database, capture: Mapping[str, Any]) -> None:
        """Add the source."""
        body: dict[str, Any] = {"name": "bench", "dsn": database.dsn}
        if capture:
            body["capture"] = dict(capture)
        self.call("POST", "/sources", json=body)

    def create_slots(
        self, database: Database, plugin: str, number: int, prefix: str | None = None
    ) -> list[str]:
        """Create slots with the options that PostgreSQL's side reads with."""
        names = [f"{prefix or plugin}_{i}" for i in range(number)]
        for name in names:
            body = {
                "slot_name": name,
                "source": "bench",
                "database": database.name,
                "plugin": plugin,
                "options": PLUGINS[plugin][1],
            }
            self.call("POST", "/slots", json=body)
        return names

    def drop_source(self) -> None:
        """Drop the source with its slots, and what it holds on the primary."""
        for slot in self.call("GET", "/slots")["slots"]:
            self.call("DELETE", f"/slots/{slot['slot_name']}")
        self.call("DELETE", "/sources/bench")

    def decoded_lsn(self, slot: str) -> Lsn:
        """Return how far a slot's source is decoded."""
        return Lsn.parse(self.call("GET", f"/slots/{slot}")["decoded_lsn"] or "0/0")

    def wait_decoded(self, slot: str, lsn: Lsn) -> None:
        """Wait until everything before *lsn* is decoded."""
        wait_until(lambda: self.decoded_lsn(slot) >= lsn, f"decoding up to {lsn}", 600)


@contextmanager
def bench_source(
    service: SleepingService, database: Database, capture: Mapping[str, Any]
) -> Iterator[None]:
    """Have the source for the length of a ``with``."""
    with service.awake():
        service.create_source(database, capture)
    try:
        yield
    finally:
        with service.awake():
            service.drop_source()


def deliver(service: SleepingService, cluster: Cluster, slots: Sequence[str], end_lsn: Lsn) -> Run:
    """Wake the service, and let a client of each slot take everything up to *end_lsn*."""
    with grpc_clients(service.grpc_target, slots, end_lsn) as clients:
        reset_peak(service.pid)
        server_cpu_s, service_cpu_s = tree_cpu_seconds(cluster.pid), cpu_seconds(service.pid)
        with service.awake():
            for client in clients:
                client.begin()
            results = [client.result() for client in clients]
            service_cpu_s = cpu_seconds(service.pid) - service_cpu_s
            server_cpu_s = tree_cpu_seconds(cluster.pid) - server_cpu_s
            peak = memory_bytes(service.pid, "VmHWM")
    return Run(
        max(r["ended_s"] for r in results) - min(r["started_s"] for r in results),
        {
            "service": service_cpu_s,
            "client": sum(r["cpu_s"] for r in results),
            "server": server_cpu_s,
        },
        sum(r["messages"] for r in results),
        sum(r["payload_bytes"] for r in results),
        {"service": peak, "client": max(r["peak_bytes"] for r in results)},
    )


def restart_seconds(service: SleepingService, slot: str, lsn: Lsn) -> tuple[float, float]:
    """Kill the service, which has all before *lsn*, and start it.

    Return the seconds from its start until it is ready, and until it has decoded what it had
    stored. It decodes before it can be asked how far it is: the latter is the time that its log
    gives to saying so.
    """
    with service.awake():
        service.wait_decoded(slot, lsn)
        service.kill()
        before = service.log_file.stat().st_size
        started_s = time.time()
        service.start()
        ready_s = time.time() - started_s
        service.wait_decoded(slot, lsn)
    with service.log_file.open("rb") as log:
        log.seek(before)
        lines = log.read().decode()
    said = re.findall(r"^(\S+ \S+) INFO .*: decoded what is stored, ", lines, re.MULTILINE)[-1]
    decoded = datetime.strptime(said, "%Y-%m-%d %H:%M:%S,%f").astimezone()
    return ready_s, decoded.timestamp() - started_s
