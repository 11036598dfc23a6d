"""What is said of the port itself: whether it listens, who is there, who was turned away."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from harness.pg_port import dsn_of, serving
from harness.replication_client import ReplicationClient
from spillway.walsender import handshake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Database
    from harness.service import Service

_DOOR = 'door="PostgreSQL"'
_IN_TIME_S = 30.0


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "WRONG_PASSWORD_DELAY_S", 0.0)


def test_a_listener_that_breaks(pg18: Database, tmp_path: Path) -> None:
    """It says so itself, comes back when it can, and who is connected stays so."""
    with serving(pg18, tmp_path) as (service, dsn), ReplicationClient(dsn) as alice:
        assert alice.run("CREATE_REPLICATION_SLOT s LOGICAL test_decoding NOEXPORT_SNAPSHOT")
        alice.start("s")
        with pytest.raises(ConnectionRefusedError):
            ReplicationClient(dsn_of(service, "alice", pg18.name, "no such password"))
        with pytest.raises(ConnectionRefusedError):
            ReplicationClient(dsn_of(service, "alice", "no_such_database"))
        assert _ready(service) == (200, [])
        assert f"spillway_listening{{{_DOOR}}} 1.0" in _metrics(service)
        assert f'spillway_sessions{{doing="streaming",{_DOOR}}} 1.0' in _metrics(service)
        assert f'spillway_sessions{{doing="logical",{_DOOR}}} 0.0' in _metrics(service)
        for reason in ("password", "database"):
            counted = f'spillway_connections_refused_total{{{_DOOR},reason="{reason}"}} 1.0'
            assert counted in _metrics(service)
        accepted = _value(service, f"spillway_connections_accepted_total{{{_DOOR}}}")
        assert accepted >= 3
        assert service.pg_port is not None
        with _taken(service.pg_port):
            status, found = _ready(service)
            assert status == 503
            (one,) = found
            assert (one["kind"], one["name"], one["code"]) == (
                "listener",
                "PostgreSQL",
                "address_unavailable",
            )
            assert str(service.pg_port) in one["message"]
            _wait(lambda: "in use" in _ready(service)[1][0]["message"])
            assert "Another program may have the address" in one["hint"]
            assert f"spillway_listening{{{_DOOR}}} 0.0" in _metrics(service)
            # The stream goes on.
            pg18.execute("SELECT pg_logical_emit_message(true, 'p', 'still here')")
            end = str(pg18.value("SELECT pg_current_wal_flush_lsn()::text"))
            alice.read_to(end)
            assert any(b"still here" in frame.data for frame in alice.frames)
        # The other program has ended, as the hint has it.
        _wait(lambda: _ready(service) == (200, []))
        with ReplicationClient(dsn) as again:
            assert again.run("IDENTIFY_SYSTEM").rows
        assert _value(service, f"spillway_connections_accepted_total{{{_DOOR}}}") > accepted


class _taken:  # noqa: N801 - a context manager
    """The service's listener breaks, and another one takes its address meanwhile."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._other = socket.socket()
        self._other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def __enter__(self) -> None:
        (descriptor,) = (
            found.fd
            for found in psutil.Process().net_connections("tcp")
            if found.status == psutil.CONN_LISTEN and found.laddr.port == self._port
        )
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.shutdown(socket.SHUT_RDWR)
        _wait(self._bind)

    def _bind(self) -> bool:
        try:
            self._other.bind(("127.0.0.1", self._port))
        except OSError:
            return False
        self._other.listen()
        return True

    def __exit__(self, *_: object) -> None:
        self._other.close()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _IN_TIME_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _ready(service: Service) -> tuple[int, list[dict[str, Any]]]:
    answer = httpx.get(f"http://127.0.0.1:{service.http_port}/readyz", timeout=60)
    found = answer.json().get("details", {}).get("not_ready", [])
    return answer.status_code, found


def _metrics(service: Service) -> str:
    return httpx.get(f"http://127.0.0.1:{service.http_port}/metrics", timeout=60).text


def _value(service: Service, series: str) -> float:
    (line,) = (line for line in _metrics(service).splitlines() if line.startswith(series))
    return float(line.split()[-1])
