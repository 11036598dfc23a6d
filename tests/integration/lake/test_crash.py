"""The job is killed at each instant that matters, run again, and must have each change exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, update

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lake import Lake

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})
ORDERS = Table("orders", {"id": pa.int64(), "total": pa.int64()})

#: A job in a process of its own, as `spillway lake run` is.
_JOB = """
import json, sys
from pathlib import Path
from spillway.lake.job import JobSettings, run_job

given = json.loads(sys.argv[1])
for name in ("path", "checkpoint", "jars"):
    given[name] = Path(given[name])
run_job(JobSettings(master="local[2]", driver_memory="1g", **given))
"""


def run_killed(lake: Lake, jar_folder: Path, failpoint: str) -> None:
    """Run the job in a process that *failpoint* kills."""
    settings = {
        "slot": lake.slot.slot_name,
        "path": str(lake.path),
        "checkpoint": str(lake.checkpoint),
        "table_format": lake.table_format,
        "source_options": lake.slot.options,
        "jars": str(jar_folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", _JOB, json.dumps(settings)],
        env=os.environ | {"SPILLWAY_FAILPOINTS": failpoint},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("failpoint", "first_batch"),
    [
        ("lake.after_history=kill@1", True),  # where the tables are made
        ("lake.after_history=kill@1", False),  # one table's history is committed
        ("lake.before_merge=kill@1", False),  # files are written that no log names
        ("lake.after_current=kill@1", False),  # one table is done
        ("lake.before_position=kill", False),  # all tables are done, nobody knows
        ("lake.before_advance=kill", False),  # the lake knows, the slot does not
        (
            "lake.after_advance=kill",
            False,
        ),  # the slot is confirmed, Spark has not committed the batch
    ],
)
def test_killed_between_commits(
    lake: Lake, jar_folder: Path, failpoint: str, first_batch: bool
) -> None:
    lake.slot.commit(
        *(insert(ITEMS, id=i, name="n") for i in (1, 2, 3)), insert(ORDERS, id=1, total=5)
    )
    if not first_batch:
        lake.run()
    confirmed = lake.slot.state["confirmed_flush_lsn"]
    lake.slot.commit(
        update(ITEMS, {"id": 1, "name": "renamed"}),
        update(ITEMS, {"id": 20, "name": "moved"}, old={"id": 2}),
        delete(ITEMS, id=3),
        insert(ORDERS, id=2, total=7),
    )
    run_killed(lake, jar_folder, failpoint)
    ahead = lake.slot.state["confirmed_flush_lsn"] > confirmed
    assert ahead == ("after_advance" in failpoint), (
        "the slot is confirmed when all is durable, not before"
    )

    # What comes after the crash is there before the restart.
    lake.slot.commit(insert(ORDERS, id=3, total=9))
    lake.run()
    assert [row["_op"] for row in lake.history("public.items")] == ["I", "I", "I", "U", "U", "D"]
    assert [row["id"] for row in lake.history("public.orders")] == [1, 2, 3]
    assert lake.current("public.items") == [
        {"id": 1, "name": "renamed"},
        {"id": 20, "name": "moved"},
    ]
    assert [(row["id"], row["total"]) for row in lake.current("public.orders")] == [
        (1, 5),
        (2, 7),
        (3, 9),
    ]
    assert lake.slot.state["confirmed_flush_lsn"] == lake.slot.state["decoded_lsn"]
