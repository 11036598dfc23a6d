"""Drivers of a lake's job that are there at once, and tell what they are at.

A kill costs a start, and seconds of a start are Python's imports. The nursery is a process that has
imported everything and opened nothing; it forks a driver whenever it is asked for one::

    test ──stdin──▶ nursery ──fork──▶ driver      a session of its own, killed as any process is
         ◀─stdout── pid, how it ended    │
         ◀──────── a pipe: time, pid, thread, failpoint ──────┘   one line for each that is passed

The nursery has one thread and no channel, pool or JVM, so a forked driver begins as one that was
started with ``exec`` does after its imports. What a driver told before it was killed is in the
pipe, whatever it died of: :meth:`Nursery.told` has all of it once the driver has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROGRAM: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from harness.driver_nursery import keep
keep(int(sys.argv[2]))
"""
#: all that a driver has imported by its first batch
_IMPORTED: Final = (
    "deltalake",
    "pyspark.sql",
    "harness.killed_driver",
    "spillway.lake.batch.materialize",
    "spillway.lake.load.run",
    "spillway.lake.source.data_source",
    "spillway.lake.tables.delta.tables",
    "spillway.lake.tables.iceberg.tables",
)
_TESTS: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Told:
    """A failpoint that a driver passed."""

    #: of the system's monotonic clock, in seconds
    at: float
    pid: int
    thread: str
    point: str


class Driver:
    """A process that the nursery forked; as far as it is needed, what ``subprocess.Popen`` is."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._code: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        """Return how it ended, as ``Popen.poll`` does; None: it is there."""
        if self._code is None:
            self._code = self._nursery.ask({"poll": self.pid})
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended.

        Raises:
            AssertionError: it is there after *timeout* seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert deadline is None or time.monotonic() < deadline, f"{self.pid} does not end"
            time.sleep(0.005)
        return code

    def send_signal(self, which: int) -> None:
        # Its number is its own until it was asked for.
        if self._code is None:
            os.kill(self.pid, which)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process, to be closed."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(_TESTS), str(self._write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._write,),
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._news = threading.Condition()
        #: of the last driver
        self._told: list[Told] = []
        self._marks = 0
        self._reader = threading.Thread(target=self._listen, name="told", daemon=True)
        self._reader.start()

    def start(
        self, what: str, settings: dict[str, Any], log: Path, environment: Mapping[str, str]
    ) -> Driver:
        """Start a driver; what others told is forgotten.

        Args:
            what: ``job`` or ``load``.
            settings: as of :func:`harness.killed_driver.run_killed`.
            log: where its output goes, after what is there.
            environment: what it has beside this process's.
        """
        with self._news:
            self._told = []
        request = {
            "what": what,
            "settings": settings,
            "log": str(log),
            "environment": dict(environment),
        }
        pid = self.ask(request)
        assert pid is not None
        return Driver(self, pid)

    def ask(self, request: dict[str, Any]) -> int | None:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer: int | None = json.loads(self._process.stdout.readline())
            return answer

    def wait_for(self, driver: Driver, point: str, times: int, timeout_s: float) -> bool:
        """Return, as soon as it happens, whether a driver passes a failpoint so many *times*."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while (
                sum(each.point == point and each.pid == driver.pid for each in self._told) < times
            ):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._news.wait(left)
        return True

    def _times(self, driver: Driver, point: str) -> int:
        return sum(each.point == point and each.pid == driver.pid for each in self._told)

    def told(self, driver: Driver) -> list[Told]:
        """Return what a driver told that has ended."""
        with self._news:
            mark = self._marks = self._marks + 1
            os.write(self._write, f"0 0 - {mark}\n".encode())
            while not any(each.pid == 0 and each.point == str(mark) for each in self._told):
                assert self._news.wait(60), "the pipe is not read"
            return [each for each in self._told if each.pid == driver.pid]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        os.close(self._write)
        self._reader.join(60)
        os.close(self._read)

    def _listen(self) -> None:
        with os.fdopen(os.dup(self._read), "rb") as pipe:
            for line in pipe:
                at, pid, thread, point = line.decode().split()
                with self._news:
                    self._told.append(Told(float(at), int(pid), thread, point))
                    self._news.notify_all()


def keep(pipe: int) -> None:
    """Be the nursery."""
    for name in _IMPORTED:
        import_module(name)

    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _be_driver(request, pipe)
        print(json.dumps(answer), flush=True)


def _be_driver(request: dict[str, Any], pipe: int) -> None:
    """Be a driver, and end."""
    from harness.killed_driver import drive
    from spillway import failpoints

    code = 1
    try:
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(request["environment"])
        armed = failpoints.parse(os.environ.get(failpoints.ENVIRONMENT_VARIABLE, ""))
        failpoints._armed = _Telling(pipe, armed)
        drive(request["what"], request["settings"])
        code = 0
    except BaseException:  # noqa: BLE001 - it ends, and its log says why
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Telling(dict[str, Any]):
    """Armed failpoints; the lake's tell when they are passed, whether they do anything or not."""

    def __init__(self, pipe: int, armed: Mapping[str, Any]) -> None:
        super().__init__(armed)
        self._pipe = pipe

    def __bool__(self) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        # Small durable files are written by everything.
        if name.startswith("lake."):
            thread = threading.current_thread().name.replace(" ", "_")
            line = f"{time.monotonic()} {os.getpid()} {thread} {name}\n"
            os.write(self._pipe, line.encode())
        return super().get(name, default)
