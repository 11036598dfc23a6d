"""The program of :mod:`harness.fake_target`: imports nothing of ours, for its start's sake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def _main(mode: str, status_file: str, tables: str, skip_lsn: str, copy_data: str) -> int:
    def tell(**told: Any) -> None:
        status = {
            "run": os.environ["SPILLWAY_SUBSCRIPTION_RUN"],
            "begun": False,
            "changes": 5,
            "tables": {},
            "error": None,
        }
        beside = Path(status_file + ".new")
        beside.write_text(json.dumps(status | told))
        beside.replace(status_file)

    print(f"mode {mode} tables {tables} skip {skip_lsn} copy {copy_data}", flush=True)
    if mode == "fail":
        tell(error={"code": "lake_error", "message": "no space", "hint": "Make some."})
        return 1
    if mode == "print":
        print(
            "spillway: error: it\nbroke\nhint: Mend it.\ncode: lake_table_conflict", file=sys.stderr
        )
        return 1
    if mode == "silent":
        return 3
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "parent":
        subprocess.Popen(["sleep", "600"])
    names = json.loads(tables) or ()

    def begun(state: str) -> None:
        told = {
            "state": state,
            "changes": 5,
            "bytes_copied": None,
            "bytes_total": None,
            "reason": None,
        }
        tell(begun=True, tables=dict.fromkeys(names, told))

    signal.signal(signal.SIGUSR1, lambda *_: begun("ready"))
    begun("copying" if mode == "copying" else "ready")
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
