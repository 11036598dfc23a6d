"""A client of the change stream, a process of its own:
``python -m bench.grpc_client TARGET SLOT UPTO_LSN``.

It says ``ready`` once everything is imported, begins when a line comes, and answers with a line of
JSON when it has all. What it receives it counts and drops, as pg_recvlogical does whose file is
/dev/null. It confirms nothing, so that the next one gets the same. With an UPTO_LSN of 0 it stays
until it is ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from bench.machine import memory_bytes
from bench.results import BenchFailed
from spillway.pg.lsn import Lsn
from spillway.stream.client import open_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class GrpcClient:
    """The parent's half."""

    def __init__(self, target: str, slot: str, upto_lsn: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.grpc_client", target, slot, str(int(upto_lsn))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        """Wait until it can begin at once."""
        self._line()

    def begin(self) -> None:
        """Let it begin."""
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        print("go", file=stdin, flush=True)

    def result(self) -> dict[str, Any]:
        """Wait for what it says at the end."""
        figures: dict[str, Any] = json.loads(self._line())
        self.process.wait()
        return figures

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchFailed("a gRPC client failed; what it said is above")
        return line


@contextmanager
def grpc_clients(target: str, slots: Sequence[str], upto_lsn: int) -> Iterator[list[GrpcClient]]:
    """Have a client for each of *slots*, ready to begin, for the length of a ``with``."""
    clients = [GrpcClient(target, slot, upto_lsn) for slot in slots]
    try:
        for client in clients:
            client.wait_ready()
        yield clients
    finally:
        for client in clients:
            client.close()


def main() -> None:
    """Stream once."""
    target, slot, upto_lsn = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    messages = payload_bytes = batches = 0
    cpu_s, started_s = time.process_time(), time.monotonic()
    stream = open_stream(target, slot, upto_lsn=Lsn(upto_lsn) if upto_lsn else None)
    for batch in stream:
        messages += batch.count
        payload_bytes += len(batch.payload)
        batches += batch.count > 0
    ended_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
    stream.close()
    figures = {
        "started_s": started_s,
        "ended_s": ended_s,
        "cpu_s": cpu_s,
        "messages": messages,
        "payload_bytes": payload_bytes,
        "batches": batches,
        "peak_bytes": memory_bytes(os.getpid(), "VmHWM"),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
