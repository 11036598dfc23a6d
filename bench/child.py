"""A part of the benchmark in a process of its own that is asked over pipes: a line each way, the
answers as JSON.

Such a process keeps what is dear to begin (a JVM, a Spark session) from question to question, and
can be stopped (SIGSTOP) while others have the machine. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from bench.machine import PROJECT, tree_cpu_seconds
from bench.results import BenchFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_END_S: Final = 120


class Child:
    """The parent's half of ``python -m MODULE ARGUMENTS``; use it as a context manager.

    It runs in *directory*, for libraries that leave files where they are started.
    """

    def __init__(self, module: str, *arguments: str, directory: Path | None = None) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join((str(PROJECT), str(PROJECT / "tests")))},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, what: str) -> dict[str, Any]:
        """Return the answer to *what*, and the CPU seconds that the process and its children used
        for it.

        Raises:
            BenchFailed: the process ended instead.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        cpu_s = tree_cpu_seconds(self._process.pid)
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            # Libraries print to standard output, too.
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                answer["cpu_s"] = round(tree_cpu_seconds(self._process.pid) - cpu_s, 2)
                return answer
        raise BenchFailed(f"{self._module} ended; what it said is above")

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Stop the process for the length of a ``with``: the machine is others'. Its children wait
        for it anyhow.
        """
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


def tell(facts: Mapping[str, Any]) -> None:
    """Be the child: answer the line that was read last."""
    print(json.dumps(facts), flush=True)
