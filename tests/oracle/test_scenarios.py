"""Scripted scenarios through the whole service, compared with PostgreSQL's own decoding line by
line.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.oracle import create_slot
from harness.scenario_run import run
from harness.service import Service, service_in_process
from harness.tiers import majors_by_tier
from oracle.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database

OPTIONS: tuple[dict[str, str], ...] = (
    {},
    {"skip-empty-xacts": "1", "include-xids": "0"},
    {"include-timestamp": "on", "only-local": "1"},
)


@dataclass
class Pair:
    """A server and the service that follows it."""

    database: Database
    service: Service


@pytest.fixture(scope="module", params=majors_by_tier([15, 18]), ids=["pg15", "pg18"])
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    session_cluster: Callable[[int], Cluster],
) -> Iterator[Pair]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"scenarios_{secrets.token_hex(4)}")
    with service_in_process(tmp_path_factory.mktemp("service")) as service:
        service.create_source(database.dsn)
        yield Pair(database, service)
        service.call("DELETE", "/sources/main")
    cluster.drop_database(database.name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_equals_postgresql(pair: Pair, name: str) -> None:
    database, service = pair.database, pair.service
    slot = f"s_{secrets.token_hex(4)}"
    oracle = create_slot(database, slot)
    try:
        service.create_slot(slot, database.name)
        run(database, SCENARIOS[name])
        # Autovacuum commits empty transactions of its own at any time: compare up to one position.
        end = service.wait_decoded(slot, database)
        for options in OPTIONS:
            theirs = [tuple(row) for row in oracle.peek(options, upto_lsn=end)]
            assert theirs, "the scenario shows nothing: it tests nothing"
            assert service.peek(slot, options, upto_lsn=end) == theirs
    finally:
        oracle.drop()
        service.http.delete(f"/v1/slots/{slot}")
        for table in ("t", "u", "w", "t2"):
            database.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
        database.execute("DROP SEQUENCE IF EXISTS s")
