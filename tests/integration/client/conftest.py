"""A service, one database and its source for the tests of a file; each has slots and tables of its
own.

Not for longer: other files' services want the same physical slot on the session's server.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from harness.service import Service, service_in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database

TOKEN = "the client's token"


@pytest.fixture(scope="module")
def database(session_cluster: Callable[[int], Cluster]) -> Iterator[Database]:
    cluster = session_cluster(18)
    name = f"client_{secrets.token_hex(4)}"
    yield cluster.create_database(name)
    cluster.start()
    cluster.drop_database(name)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, database: Database) -> Iterator[Service]:
    with service_in_process(tmp_path_factory.mktemp("service") / "data", token=TOKEN) as running:
        running.create_source(database.dsn)
        yield running
        for slot in running.call("GET", "/slots")["slots"]:
            running.drop_slot(slot["slot_name"])
        running.call("DELETE", "/sources/main")
