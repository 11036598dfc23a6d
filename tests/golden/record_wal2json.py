"""Record what the original wal2json writes for the scenarios of tests/oracle/wal2json_scenarios.py.

    PYTHONPATH=tests python tests/golden/record_wal2json.py

Runs on PostgreSQL 15 with the original from Debian's package (``harness/wal2json.py``). The files
are committed: where the original can't be had, they are what ours is compared with.
"""

from __future__ import annotations

import json

from harness import wal2json
from harness.cluster import Cluster
from harness.oracle import create_slot
from harness.scenario_run import run
from harness.wal2json_recording import DIRECTORY, clean_up, normalised, options_of
from oracle.wal2json_scenarios import WAL2JSON_OPTIONS, WAL2JSON_SCENARIOS


def record() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    with Cluster(wal2json.MAJOR, wal_level="logical") as cluster:
        database = cluster.create_database("recording")
        wal2json.load_into(database)
        for name, steps in WAL2JSON_SCENARIOS.items():
            slot = create_slot(database, "recorder", "wal2json")
            run(database, steps)
            lines = {
                label: normalised(slot.peek(options_of(database, options)))
                for label, options in WAL2JSON_OPTIONS.items()
            }
            text = json.dumps(lines, ensure_ascii=False, indent=0)
            (DIRECTORY / f"{name}.json").write_text(text + "\n")
            slot.drop()
            clean_up(database)
            print(name, {label: len(those) for label, those in lines.items()})


if __name__ == "__main__":
    record()
