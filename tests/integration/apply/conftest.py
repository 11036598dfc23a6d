"""Servers that several of these files share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.cluster import Cluster
from harness.exact_apply import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def timed_cluster() -> Iterator[Callable[[int], Cluster]]:
    """A server of a major that keeps the times and origins of commits; it has subscriptions, too."""
    clusters: dict[int, Cluster] = {}

    def of(major: int) -> Cluster:
        if major not in clusters:
            clusters[major] = Cluster(major, **settings())
            clusters[major].start()
        return clusters[major]

    yield of
    for cluster in clusters.values():
        cluster.destroy()
