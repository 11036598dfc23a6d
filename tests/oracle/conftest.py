"""Fixtures of the comparisons with PostgreSQL."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from harness.pgoutput import Pair
from harness.servers import MAJORS
from harness.service import service_in_process
from harness.tiers import majors_by_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster


@pytest.fixture(scope="module", params=majors_by_tier(MAJORS), ids=lambda major: f"pg{major}")
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    session_cluster: Callable[[int], Cluster],
) -> Iterator[Pair]:
    """A database on each major, and a service that follows it, for a whole module."""
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"pgoutput_{secrets.token_hex(4)}")
    with service_in_process(tmp_path_factory.mktemp("service")) as service:
        service.create_source(database.dsn)
        yield Pair(request.param, database, service)
        service.call("DELETE", "/sources/main")
    cluster.drop_database(database.name)
