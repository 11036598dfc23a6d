"""Ours without a service: a process that decodes a stretch of WAL files to a plugin's messages, as
often as it is told.

It is a process of its own so that its peak of memory is its own. The parent half,
:class:`InProcess`, sends lines to its standard input: ``run`` decodes and answers with the figures,
``check`` counts the rows of Arrow messages too (which needs memory, so a process that checks is not
measured).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.machine import memory_bytes
from bench.results import BenchFailed, Run
from bench.sink import EncodingSink, RowCountingSink
from bench.wal_files import decode, wal_bytes
from spillway.decoding.capture import CaptureFilter
from spillway.decoding.decoder import Decoder
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Job:
    """What is decoded, and into what."""

    #: the serialised decoder
    state: str
    wal_directory: str
    segment_size: int
    begin: int
    end: int
    server_version_num: int
    database: str
    plugin: str
    options: Mapping[str, str] = field(default_factory=dict)
    capture: Mapping[str, Any] = field(default_factory=dict)


class InProcess:
    """The parent's half; use it as a context manager."""

    def __init__(self, job: Job) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.in_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say(json.dumps(asdict(job)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def run(self) -> Run:
        """Decode everything once."""
        answer = self._ask("run")
        return Run(
            wall_s=answer["wall_s"],
            cpu_s={"decoder": answer["cpu_s"]},
            messages=answer["messages"],
            payload_bytes=answer["payload_bytes"],
            peak_bytes={"decoder": answer["peak_bytes"]},
        )

    def rows(self) -> int:
        """Return how many rows Arrow messages hold."""
        return int(self._ask("check")["rows"])

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def _ask(self, line: str) -> dict[str, Any]:
        self._say(line)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchFailed("decoding in process failed; what it said is above")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded


def _measure(job: Job, state: bytes, sink: EncodingSink) -> dict[str, float]:
    version = version_of_server(job.server_version_num)
    with tempfile.TemporaryDirectory(prefix="spillway-bench-") as spill_dir:
        decoder = Decoder.restore(
            state,
            version,
            sink,
            spill_dir=Path(spill_dir),
            start_decoding_at=job.begin,
            capture=CaptureFilter.parse(job.capture),
        )
        pieces = wal_bytes(Path(job.wal_directory), job.segment_size, decoder.position, job.end)
        try:
            cpu_s, started_s = time.process_time(), time.perf_counter()
            decode(decoder, version, job.segment_size, pieces)
            sink.finish()
            wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
        finally:
            decoder.close()
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "messages": sink.messages,
        "payload_bytes": sink.payload_bytes,
    }


def main() -> None:
    """Do what standard input says: a job, then commands."""
    job = Job(**json.loads(sys.stdin.readline()))
    state = Path(job.state).read_bytes()
    context = PluginContext("bench", job.database, job.server_version_num)
    peak_bytes = 0
    for line in sys.stdin:
        plugin = create_plugin(job.plugin, job.options, context)
        sink = RowCountingSink(plugin) if line.strip() == "check" else EncodingSink(plugin)
        answer = _measure(job, state, sink)
        if isinstance(sink, RowCountingSink):
            answer["rows"] = sink.rows
        plugin.shutdown()
        # The first run's: what it leaves behind is in those of the others.
        answer["peak_bytes"] = peak_bytes = peak_bytes or memory_bytes(os.getpid(), "VmHWM")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
