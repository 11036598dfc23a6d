"""What ``lake verify --outcome FILE`` leaves for whoever had it run.

A JSON object, written whole when all tables are compared::

    {"run": the run's token (SPILLWAY_SUBSCRIPTION_RUN), "lsn": LSN, "ended_at": time,
     "tables": [{"table": "schema.table", "equal": bool, "source_rows": n, "target_rows": n,
                 "differences": n, "more": bool, "skipped": text}]}

It has counts and no keys: these are values of rows, which the command prints.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spillway.consumer.status_file import RUN_VARIABLE
from spillway.storage.durable_files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from spillway.lake.verify.run import Verification


def store(path: Path, found: Verification) -> None:
    """Make it durable."""
    value = {
        "run": os.environ.get(RUN_VARIABLE, ""),
        "lsn": str(found.lsn),
        "ended_at": datetime.now(UTC).isoformat(),
        "tables": [
            {
                "table": each.table,
                "equal": each.equal,
                "source_rows": each.source_rows,
                "target_rows": each.lake_rows,
                "differences": len(each.differences),
                "more": each.more,
                "skipped": each.skipped,
            }
            for each in found.tables
        ],
    }
    replace_file(path, json.dumps(value), mode=0o600)
