"""Children of a command that are forked all the same, by libraries: Spark's JVM is."""

from __future__ import annotations

import os
import subprocess
import sys

#: Runs a command, and then forks while a thread is in gRPC, as PySpark does below `spillway lake
#: run`.
_PROGRAM = """
import os
import threading
import time
import spillway.cli
assert spillway.cli.main(["--version"]) == 0
import grpc
call = grpc.insecure_channel("127.0.0.1:1").unary_unary("/nobody/Hears")
for _ in range(3):
    threading.Thread(target=call, args=(b"",), kwargs={"wait_for_ready": True}, daemon=True).start()
for _ in range(20):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


def test_grpc_has_no_handlers_in_forked_children() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    # They say so when they can't do their work.
    assert done.stderr == ""
