"""Freshness over the changes of batches."""

from __future__ import annotations

from bench.freshness import FollowedBatch, percentiles


def test_a_batch_goes_evenly_from_its_newest_to_its_oldest_change() -> None:
    found = percentiles([FollowedBatch(1000, 1.0, 3.0)])
    assert abs(found["p50"] - 2.0) < 0.05
    assert 2.9 < found["p99"] <= 3.0


def test_changes_count_not_batches() -> None:
    small = [FollowedBatch(1, 50.0, 60.0)] * 3
    found = percentiles([FollowedBatch(10_000, 1.0, 1.0), *small])
    assert (found["p50"], found["p99"]) == (1.0, 1.0)
    assert percentiles([]) == {}
