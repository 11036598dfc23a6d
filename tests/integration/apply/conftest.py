"""What these modules share: servers, a service, and subscriptions on both sides."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from harness.cluster import Cluster
from harness.exact_apply import settings
from harness.serve_process import ServeProcess
from harness.side_by_side import SETTINGS, SideBySide
from harness.tiers import majors_by_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def timed_cluster() -> Iterator[Callable[[int], Cluster]]:
    """A server of a major that keeps commits' times and origins; it may subscribe, too."""
    clusters: dict[int, Cluster] = {}

    def of(major: int) -> Cluster:
        if major not in clusters:
            clusters[major] = Cluster(major, **settings())
            clusters[major].start()
        return clusters[major]

    yield of
    for cluster in clusters.values():
        cluster.destroy()


@pytest.fixture(scope="session")
def apply_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """One service for all of them."""
    process = ServeProcess(
        tmp_path_factory.mktemp("checklist") / "data",
        # What is streamed comes in parts as small as the servers' logical_decoding_work_mem.
        environment={"SPILLWAY_STREAM_BYTES": "65536"},
    )
    yield process
    process.stop()


@pytest.fixture(
    scope="session",
    params=majors_by_tier([14, 15, 16, 17, 18]),
    ids=[f"pg{major}" for major in range(14, 19)],
)
def checklist_cluster(
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    """A server for source and targets."""
    with Cluster(request.param, **SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sides(checklist_cluster: Cluster, apply_service: ServeProcess) -> Iterator[SideBySide]:
    """The three databases of a module."""
    name = f"checklist_{secrets.token_hex(3)}"
    source = checklist_cluster.create_database(name)
    service = apply_service.service()
    service.create_source(source.dsn, name=name)
    there = SideBySide(checklist_cluster, service, source, name)
    yield there
    there.close()
    service.call("DELETE", f"/sources/{name}")
    checklist_cluster.drop_database(name)
