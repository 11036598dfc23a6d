"""What a subscription's program begins as: makes sure that it is the only one, and becomes it.

    python -m spillway.subscriber.run_start DIRECTORY TOKEN PARENT_PID PROGRAM ARGUMENT…

In this order, so that a death on any line leaves either nothing or something that can be found:

1. it is to be killed when the service dies (PR_SET_PDEATHSIG, which exec keeps), and ends if that
   has happened already;
2. it takes the exclusive flock on ``run.lock``, which exec keeps too and which the kernel gives
   back however the program ends;
3. it writes down who it is (``run.json``), durably;
4. it execs the program.

The program's own children don't inherit the lock (descriptors above 2 are closed for them), so it
is the driver's, not its JVM's. Exit code :data:`LOCKED`: another run has the lock. Imports next to
nothing: each run waits for it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Final

from spillway.subscriber.run_processes import RunRecord, identify

#: EX_TEMPFAIL
LOCKED: Final = 75
_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> int:
    """Become the program that *arguments* name; return only when that is not possible."""
    directory, token, parent_pid, *program = arguments
    _die_with_parent()
    if os.getppid() != int(parent_pid):
        return 1
    descriptor = os.open(Path(directory) / "run.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write("another run of this subscription is at work\n")
        return LOCKED
    os.set_inheritable(descriptor, True)
    identity = identify(os.getpid())
    RunRecord(token, identity.pid, identity.start_time, identity.boot_id).store(Path(directory))
    os.execvp(program[0], program)  # noqa: S606 - that is what this is for
    return 1


def _die_with_parent() -> None:
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
