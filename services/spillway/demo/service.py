"""The service as a child process, used from outside as anybody would: by its commands and over
REST.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import httpx

from spillway.demo.private_postgres import free_port
from spillway.errors import NotReady, SpillwayError

if TYPE_CHECKING:
    from pathlib import Path

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0


def spillway_command(*arguments: str) -> list[str]:
    """Return the command line of ``spillway …`` in this Python."""
    return [sys.executable, "-m", "spillway.cli", *arguments]


class Service:
    """``spillway serve`` on free ports of loopback, its data and its log under *directory*."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.http_port = free_port()
        self.grpc_port = free_port()
        self.log_file = directory / "service.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._http = httpx.Client(base_url=self.url, timeout=60.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        self._http.close()

    @property
    def url(self) -> str:
        """Where REST is."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_target(self) -> str:
        """Where gRPC is."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment that the service, and commands that talk to it, run with."""
        return {**os.environ, "SPILLWAY_AUTH": "off", "SPILLWAY_URL": self.url}

    @property
    def running(self) -> bool:
        """Say whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the service and wait until it is ready.

        Raises:
            NotReady: it ended or was not ready in time; the message ends with its log.
        """
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                spillway_command(
                    "serve",
                    "--data-dir", str(self.directory / "service"),
                    "--http-port", str(self.http_port),
                    "--grpc-port", str(self.grpc_port),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NotReady(f"the service did not start; its log ends:\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self) -> int:
        """Stop the service with SIGTERM and return its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Call REST and return the answer's JSON.

        Raises:
            SpillwayError: the service answered with a problem; its code and hint are in the
                message.
        """
        response = self._http.request(method, f"/v1{path}", **arguments)
        if response.is_error:
            try:
                problem = response.json()
            except ValueError:
                problem = {"detail": response.text}
            raise SpillwayError(
                f"{method} {path}: {response.status_code} {problem.get('code', '')}: "
                f"{problem.get('detail') or problem.get('title')}",
                hint=str(problem.get("hint") or ""),
            )
        return response.json() if response.content else None

    def log_tail(self, lines: int = 30) -> str:
        """Return the end of the service's log."""
        if not self.log_file.exists():
            return ""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def _ready(self) -> bool:
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False
