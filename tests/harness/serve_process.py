"""``spillway serve`` in a process of its own, to be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx

from harness import permissions
from harness.service import WITHOUT_TLS, Service
from spillway.demo.private_postgres import free_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from pathlib import Path


class ServeProcess:
    """``spillway serve`` as users run it; started again on the same ports and directory."""

    def __init__(
        self,
        data_dir: Path,
        failpoints: str = "",
        *,
        environment: Mapping[str, str] | None = None,
        files_max: int | None = None,
        tls: ssl.SSLContext | None = None,
        is_bound_by_permissions: bool = False,
    ) -> None:
        """Start it.

        Args:
            data_dir: its directory; its log is beside it.
            failpoints: SPILLWAY_FAILPOINTS.
            environment: further settings.
            files_max: how many files it may have open.
            tls: what it is asked with, if it has a certificate.
            is_bound_by_permissions: whether root may no more than permissions say.
        """
        self._data_dir = data_dir
        self._environment = dict(environment or {})
        self._files_max = files_max
        self._tls = tls
        self._before = permissions.command() if is_bound_by_permissions else []
        self._log = (data_dir.parent / "serve.log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self.http_port, self.grpc_port = free_port(), free_port()
        self.start(failpoints)
        self._service = Service(self.http_port, self.grpc_port, tls=tls)

    def start(self, failpoints: str = "") -> None:
        # What stands above it was said before: of a start that said nothing it says nothing.
        self._log.write(b"--- started\n")
        self._log.flush()
        self.process = subprocess.Popen(
            [
                *self._before, *self._limit_files(), sys.executable, "-m", "spillway.cli", "serve",
                "--data-dir", str(self._data_dir),
                "--http-port", str(self.http_port),
                "--grpc-port", str(self.grpc_port),
            ],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "SPILLWAY_FAILPOINTS": failpoints, **self._environment},
        )  # fmt: skip
        scheme = "http" if self._tls is None else "https"
        verify = WITHOUT_TLS if self._tls is None else self._tls
        deadline = time.monotonic() + 300
        while True:
            if self.process.poll() is not None:
                if failpoints:
                    return
                raise AssertionError(f"serve ended with {self.process.returncode}: {self.log()}")
            try:
                url = f"{scheme}://127.0.0.1:{self.http_port}/healthz"
                if httpx.get(url, timeout=5, verify=verify).is_success:
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise AssertionError(f"serve does not answer: {self.log()}")
            time.sleep(0.05)

    def _limit_files(self) -> list[str]:
        if self._files_max is None:
            return []
        # Both limits: it can't raise them.
        return ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self._files_max)]

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(30) == 0, self.log()
        self._service.http.close()
        self._log.close()

    def service(self) -> Service:
        return self._service

    def log(self) -> str:
        return (self._data_dir.parent / "serve.log").read_text()[-4000:]
