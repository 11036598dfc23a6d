"""A service for Terraform's tests, empty before each, and a provider that is configured for it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from harness.service import Service, service_in_process
from harness.terraform_core import Core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database

TOKEN = "terraform's token"


@pytest.fixture(scope="module")
def database(session_cluster: Callable[[int], Cluster]) -> Iterator[Database]:
    cluster = session_cluster(15)
    name = f"terraform_{secrets.token_hex(4)}"
    yield cluster.create_database(name)
    cluster.start()
    cluster.drop_database(name)


@pytest.fixture(scope="module")
def whole_service(
    tmp_path_factory: pytest.TempPathFactory, database: Database
) -> Iterator[Service]:
    with service_in_process(tmp_path_factory.mktemp("service") / "data", token=TOKEN) as running:
        yield running


@pytest.fixture
def service(whole_service: Service) -> Iterator[Service]:
    yield whole_service
    for subscription in whole_service.call("GET", "/subscriptions")["subscriptions"]:
        whole_service.call("DELETE", f"/subscriptions/{subscription['name']}")
    for slot in whole_service.call("GET", "/slots")["slots"]:
        whole_service.drop_slot(slot["slot_name"])
    for source in whole_service.call("GET", "/sources")["sources"]:
        whole_service.call("DELETE", f"/sources/{source['name']}")


@pytest.fixture(scope="module")
def plugin() -> Iterator[Core]:
    """One process for a module: Terraform starts one for each command."""
    with Core() as core:
        core.schema()
        yield core


@pytest.fixture
def core(plugin: Core, service: Service) -> Core:
    plugin.warnings.clear()
    plugin.configure(endpoint=f"http://127.0.0.1:{service.http_port}", token=TOKEN)
    return plugin
