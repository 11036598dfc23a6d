"""Python for Spark whose imports are done: what a JVM starts as ``python -m MODULE`` is forked.

For every query Spark starts three Python processes: the source's, the planner's, and the daemon of
the workers. Each of them imports PySpark, Arrow and this package, which is most of what the start
of a query costs. :func:`quick_python` yields an executable to be ``PYSPARK_PYTHON``::

    JVM ──exec──▶ client: its arguments, environment, and standard streams ──socket──▶ nursery
                    │ ends when that ends                                       fork ──▶ MODULE

The process that is forked has the JVM's pipes as its own and leads the same life as one that was
started: it ends when they are closed. Hashes are those that Spark has its workers use.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLIENT: Final = """#!{python} -ISE
import json, os, socket, sys
nursery = socket.socket(socket.AF_UNIX)
nursery.connect({address!r})
asked = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])
socket.send_fds(nursery, [asked.encode() + b"\\n"], [0, 1, 2])
for stream in (0, 1, 2):
    os.close(stream)
nursery.recv(1)
"""
_PROGRAM: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from harness.python_nursery import keep
keep(sys.argv[2])
"""
_TESTS: Final = Path(__file__).parents[1]
_IMPORTED: Final = (
    "pyarrow.compute",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.worker",
    "spillway.lake.source.data_source",
    "spillway.lake.batch.materialize",
)


@contextmanager
def quick_python() -> Iterator[Path]:
    """Yield the executable, for the block."""
    with tempfile.TemporaryDirectory(prefix="spillway-python-") as directory:
        address, client = Path(directory, "socket"), Path(directory, "python")
        python = os.path.realpath(sys.executable)
        client.write_text(_CLIENT.format(python=python, address=str(address)))
        client.chmod(0o755)
        nursery = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(_TESTS), str(address)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        assert nursery.stdout.readline() == b"ready\n"
        try:
            yield client
        finally:
            nursery.kill()
            nursery.wait()
            nursery.stdin.close()
            nursery.stdout.close()


def keep(address: str) -> None:
    """Be the nursery."""
    for name in _IMPORTED:
        import_module(name)
    # Nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(32)
        print("ready", flush=True)
        while True:
            asked, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _be_asked(asked)
            asked.close()


def _be_asked(asked: socket.socket) -> None:
    """Be the process that is asked for, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, streams, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += asked.recv(1 << 20)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    arguments, environment, directory = json.loads(text)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    assert arguments[0] == "-m", arguments
    # As the interpreter leaves it; the module's own name comes first.
    sys.argv = arguments[1:]
    code = 1
    try:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
