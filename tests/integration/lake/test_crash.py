"""The job is killed at each instant that matters, run again, and must have each change exactly
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.arrow_slot import Table, delete, insert, update
from harness.killed_driver import run_killed
from harness.tiers import deep

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from harness.lake import Lake

ITEMS = Table("items", {"id": pa.int64(), "name": pa.string()})
ORDERS = Table("orders", {"id": pa.int64(), "total": pa.int64()})

#: One after the other over one lake, which is whole again before the next.
FAILPOINTS = (
    "lake.after_history=kill@1",  # where the tables are made
    "lake.after_history=kill@1",  # one table's history is committed
    "lake.before_merge=kill@1",  # files are written that no log names
    "lake.after_current=kill@1",  # one table is done
    "lake.before_position=kill",  # all tables are done, nobody knows
    "lake.before_advance=kill",  # the lake knows, the slot does not
    "lake.after_advance=kill",  # the slot is confirmed, Spark has not committed the batch
)


def kill(lake: Lake, spark: SparkSession | Path, failpoint: str) -> None:
    settings = {
        "slot": lake.slot.slot_name,
        "path": str(lake.path),
        "checkpoint": str(lake.checkpoint),
        "table_format": lake.table_format,
        "source_options": lake.slot.options,
    }
    run_killed(spark, failpoint, "job", settings)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "failpoints",
    [("lake.before_advance=kill",), deep(FAILPOINTS)],
    ids=["one", "all"],
)
def test_killed_between_commits(lake: Lake, jar_folder: Path, failpoints: tuple[str, ...]) -> None:
    operations: list[str] = []
    items: dict[int, str] = {}
    orders: list[int] = []
    for number, failpoint in enumerate(failpoints):
        base = 100 * number
        confirmed = lake.slot.state["confirmed_flush_lsn"]
        lake.slot.commit(
            *(insert(ITEMS, id=base + i, name="n") for i in (1, 2, 3)),
            insert(ORDERS, id=base + 1, total=5),
        )
        if number:
            # The same keys as in the batch before, and others' rows.
            last = base - 100
            lake.slot.commit(
                update(ITEMS, {"id": last + 1, "name": "renamed"}),
                update(ITEMS, {"id": last + 20, "name": "moved"}, old={"id": last + 2}),
                delete(ITEMS, id=last + 3),
                insert(ORDERS, id=base + 2, total=7),
            )
        # One JVM of the driver's own, with work of its in hand: it dies, too.
        own_jvm = "before_merge" in failpoint
        kill(lake, jar_folder if own_jvm else lake.spark, failpoint)
        ahead = lake.slot.state["confirmed_flush_lsn"] > confirmed
        assert ahead == ("after_advance" in failpoint), (
            f"{failpoint}: the slot is confirmed when all is durable, not before"
        )

        # What comes after the crash is there before the restart.
        lake.slot.commit(insert(ORDERS, id=base + 3, total=9))
        lake.run()
        operations += ["I", "I", "I"]
        items |= dict.fromkeys((base + 1, base + 2, base + 3), "n")
        orders += [base + 1]
        if number:
            operations += ["U", "U", "D"]
            items |= {last + 1: "renamed", last + 20: "moved"}
            del items[last + 2], items[last + 3]
            orders += [base + 2]
        orders += [base + 3]
        assert [row["_op"] for row in lake.history("public.items")] == operations, failpoint
        assert [row["id"] for row in lake.history("public.orders")] == orders, failpoint
        assert {row["id"]: row["name"] for row in lake.current("public.items")} == items, failpoint
        assert len(lake.current("public.items")) == len(items), failpoint
        assert sorted(row["id"] for row in lake.current("public.orders")) == orders, failpoint
        assert lake.slot.state["confirmed_flush_lsn"] == lake.slot.state["decoded_lsn"], failpoint
