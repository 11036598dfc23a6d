"""How old what readers see in the lake is, while the source is written to at a steady rate.

A job follows the slot (trigger ``continuous``); a writer commits small transactions of inserts and
updates, so many changes a second. A change's freshness is the time from its commit until the batch
with it is durable in history and current. Commits are evenly spread, so within a batch freshness
goes evenly from the newest change's to the oldest's.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.cluster import Database

CHANGES_PER_S: Final = 5_000
_TRANSACTIONS_PER_S: Final = 20
#: points that one batch's freshness is read at
_POINTS: Final = 100


@dataclass(frozen=True)
class FollowedBatch:
    """A batch of a job that follows: how many changes, and how old its newest and its oldest were
    when it was durable.
    """

    changes: int
    newest_s: float
    oldest_s: float


def percentiles(batches: Sequence[FollowedBatch]) -> dict[str, float]:
    """Return p50, p95 and p99 of freshness over all changes, seconds."""
    points = sorted(
        (batch.newest_s + (batch.oldest_s - batch.newest_s) * (n + 0.5) / _POINTS, batch.changes)
        for batch in batches
        for n in range(_POINTS)
    )
    total = sum(weight for _, weight in points)
    found: dict[str, float] = {}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        passed = 0
        for age, weight in points:
            passed += weight
            if passed >= share * total:
                found[name] = round(age, 2)
                break
    return found


@contextmanager
def written(
    database: Database, changes_per_s: int, first: int, row: str
) -> Iterator[Callable[[], int]]:
    """Write to lake_rows beside the block; yield what says how many changes were made.

    Args:
        database: where the table is.
        changes_per_s: half inserts, half updates of rows that were inserted some seconds ago.
        first: the first key.
        row: what a row is made of, as SQL over ``n``.
    """
    stop = threading.Event()
    half = max(1, changes_per_s // _TRANSACTIONS_PER_S // 2)
    done = 0

    def write() -> None:
        nonlocal done
        began, transactions = time.monotonic(), 0
        with database.connect() as connection:
            while not stop.is_set():
                at = first + transactions * half
                connection.execute(
                    f"BEGIN; INSERT INTO lake_rows SELECT {row} FROM generate_series({at}, "
                    f"{at + half - 1}) n; UPDATE lake_rows SET amount = amount + 1 WHERE id "
                    f"BETWEEN {at - 20 * half} AND {at - 19 * half - 1}; COMMIT"
                )
                transactions += 1
                done += half if transactions <= 20 else 2 * half
                # By the clock, so that a slow moment is made good.
                stop.wait(max(0.0, began + transactions / _TRANSACTIONS_PER_S - time.monotonic()))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: done
    finally:
        stop.set()
        thread.join()


def figures(answer: dict[str, Any], changes_per_s: float) -> dict[str, Any]:
    """Return what the results keep of a job's answer."""
    batches = [FollowedBatch(*batch) for batch in answer["followed"]]
    return {
        "changes_per_s": round(changes_per_s),
        "changes": sum(batch.changes for batch in batches),
        "batches": len(batches),
        "seconds": percentiles(batches),
        "cpu_s": answer["cpu_s"],
    }
