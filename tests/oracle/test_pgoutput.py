"""pgoutput through the whole service, compared with PostgreSQL's own message by message, on every version."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

import pytest
from psycopg import errors

from harness.oracle import create_slot
from harness.service import Service, service_in_process
from oracle.scenarios import SCENARIOS
from oracle.test_scenarios import run_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database
    from harness.oracle import OracleChange

OPTIONS = {"proto_version": "1", "publication_names": "everything", "messages": "on"}
#: RELATION and TYPE
ANNOUNCEMENTS = ("52", "59")


class Pair(NamedTuple):
    """A server and the service that follows it."""

    major: int
    database: Database
    service: Service


@pytest.fixture(scope="module", params=[14, 15, 16, 17, 18], ids=lambda major: f"pg{major}")
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    session_cluster: Callable[[int], Cluster],
) -> Iterator[Pair]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"pgoutput_{secrets.token_hex(4)}")
    with service_in_process(tmp_path_factory.mktemp("service")) as service:
        service.create_source(database.dsn)
        yield Pair(request.param, database, service)
        service.call("DELETE", "/sources/main")
    cluster.drop_database(database.name)


def run_published(database: Database, steps: list[str]) -> None:
    """As ``run``, where publications forbid some: UPDATE and DELETE without a replica identity."""
    with database.connect() as first, database.connect() as second:
        for step in steps:
            try:
                run_step(second if step.startswith("2> ") else first, step)
            except errors.ObjectNotInPrerequisiteState:
                continue


def assert_equal(ours: list[tuple[str, int, str]], theirs: list[OracleChange]) -> None:
    # Announcements are compared where nothing but a first change makes them.
    ours = [message for message in ours if message[2][2:4] not in ANNOUNCEMENTS]
    theirs = [message for message in theirs if message.data[2:4] not in ANNOUNCEMENTS]
    for mine, expected in zip(ours, theirs, strict=False):
        assert mine == expected
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_equal_postgresql(pair: Pair, name: str) -> None:
    database, service = pair.database, pair.service
    database.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    slot = f"s_{secrets.token_hex(4)}"
    oracle = create_slot(database, slot, "pgoutput")
    try:
        service.create_slot(slot, database.name, "pgoutput")
        run_published(database, SCENARIOS[name])
        end = service.wait_decoded(slot, database)
        theirs = oracle.peek_binary(OPTIONS, upto_lsn=end)
        ours = service.peek(slot, OPTIONS, upto_lsn=end)
        assert_equal(ours, theirs)
    finally:
        oracle.drop()
        service.http.delete(f"/v1/slots/{slot}")
        for table in ("t", "u", "w", "t2"):
            database.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
        database.execute("DROP SEQUENCE IF EXISTS s")
        database.execute("DROP PUBLICATION everything")
