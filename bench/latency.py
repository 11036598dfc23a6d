"""From commit to delivery: one client commits at a fixed rate, and both sides deliver to a consumer
each, at the same time.

Each row holds the moment at which its INSERT was sent, so that a latency has the commit's own time
in it. All clocks are CLOCK_MONOTONIC of one machine. The server syncs nothing (``fsync = off``);
our receiver syncs what it stores.

A consumer is a process of its own (``python -m bench.latency …``): it reads pg_recvlogical's output
through a pipe, or a gRPC stream, and notes of each row when it had it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from bench.results import BenchFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.cluster import Database

_MARK: Final = re.compile(rb"<(\d+):(\d+)>")
_READ_BYTES: Final = 1 << 16
#: of the rows at the beginning, which find caches cold
_WARM_UP: Final = 0.1
_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


class Consumer:
    """The parent's half of a consumer."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.latency", *arguments], stdout=subprocess.PIPE, text=True
        )
        self._line()

    def latencies_us(self) -> dict[int, int]:
        """Wait for the last row; return the latency of each by its number."""
        latencies = json.loads(self._line())
        self._process.wait()
        return {int(number): int(us) for number, us in latencies.items()}

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchFailed("a consumer of latencies failed; what it said is above")
        return line


def commit_at_rate(database: Database, rate: int, seconds: float) -> tuple[int, float]:
    """Commit a row *rate* times a second; return how many, and the rate that was reached."""
    number = int(rate * seconds)
    with database.connect() as connection:
        started_s = time.monotonic()
        for i in range(number):
            ahead_s = started_s + i / rate - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
            note = f"<{i}:{time.monotonic_ns()}>"
            connection.execute("INSERT INTO latency VALUES (%s)", [note], prepare=True)
        reached = number / (time.monotonic() - started_s)
        connection.execute("INSERT INTO latency VALUES (%s)", [f"<{number}:0>"])
    return number, reached


def summary(latencies_us: dict[int, int], number: int) -> dict[str, Any]:
    """Return quantiles in milliseconds, of all rows but the first few.

    Raises:
        BenchFailed: rows are missing.
    """
    if set(latencies_us) != set(range(number)):
        raise BenchFailed(f"{number} rows were committed, {len(latencies_us)} were delivered")
    measured = sorted(us for i, us in latencies_us.items() if i >= number * _WARM_UP)
    last = len(measured) - 1
    return {
        "rows": len(measured),
        "quantiles_ms": quantiles_ms(measured),
        "curve_ms": [round(measured[last * i // 200] / 1000, 3) for i in range(201)],
    }


def quantiles_ms(measured_us: Sequence[int]) -> dict[str, float]:
    """Return quantiles, by their names, of what is sorted."""
    last = len(measured_us) - 1
    return {
        f"{quantile:g}": round(measured_us[int(quantile * last)] / 1000, 3)
        for quantile in _QUANTILES
    }


# ---- a consumer's own half


def _from_pipe(command: Sequence[str]) -> Iterator[bytes]:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            while data := os.read(process.stdout.fileno(), _READ_BYTES):
                yield data
        finally:
            process.terminate()


def _from_stream(target: str, slot: str) -> Iterator[bytes]:
    from spillway.stream.client import open_stream  # noqa: PLC0415 - half a second

    # The latest transaction is confirmed when a consumer ends; until then all is delivered once.
    stream = open_stream(target, slot)
    try:
        for batch in stream:
            if batch.count:
                yield bytes(batch.payload)
    finally:
        stream.close()


def main() -> None:
    """Consume until the last row, and print each row's latency."""
    kind, *arguments = sys.argv[1:]
    pieces = _from_pipe(arguments) if kind == "pipe" else _from_stream(*arguments)
    latencies: dict[int, int] = {}
    print("ready", flush=True)
    rest = b""
    with contextlib.closing(pieces):  # type: ignore[type-var]
        for data in pieces:
            now_ns = time.monotonic_ns()
            rest += data
            end = 0
            for mark in _MARK.finditer(rest):
                end = mark.end()
                number, sent_ns = int(mark[1]), int(mark[2])
                if not sent_ns:
                    print(json.dumps(latencies), flush=True)
                    return
                latencies[number] = (now_ns - sent_ns) // 1000
            # A mark may be cut in two.
            rest = rest[max(end, len(rest) - 64) :]


if __name__ == "__main__":
    main()
