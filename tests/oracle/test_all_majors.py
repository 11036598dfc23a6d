"""Every scripted scenario on every major, under one decoder a major, compared with PostgreSQL's own
slot.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from harness.servers import MAJORS
from harness.standing_decoder import StandingDecoder
from harness.tiers import majors_by_tier
from oracle import postgresql_scenarios, scenarios, wal_scenarios

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database

#: Bytes of changes in progress before they are spilled.
SMALL_WORK_MEM = 1 << 15
NOTHING = "it shows nothing: it tests nothing"


@pytest.fixture(scope="module", params=MAJORS, ids=[f"pg{major}" for major in MAJORS])
def database(
    request: pytest.FixtureRequest, session_cluster: Callable[[int], Cluster]
) -> Iterator[Database]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"standing_{secrets.token_hex(4)}")
    yield database
    cluster.drop_database(database.name)


@pytest.fixture(scope="module")
def standing(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandingDecoder]:
    decoder = StandingDecoder(database, tmp_path_factory.mktemp("standing"))
    yield decoder
    decoder.close()


@pytest.fixture(scope="module")
def spilling(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandingDecoder]:
    """One with memory for next to nothing."""
    decoder = StandingDecoder(
        database, tmp_path_factory.mktemp("spilling"), work_mem_bytes=SMALL_WORK_MEM
    )
    yield decoder
    decoder.close()


# What is PostgreSQL's own logic rather than its formats: on the newest alone in the first tier.
@pytest.mark.parametrize(
    "database",
    majors_by_tier(MAJORS),
    ids=[f"pg{major}" for major in MAJORS],
    indirect=True,
    scope="module",
)
@pytest.mark.parametrize("scenario", postgresql_scenarios.SCENARIOS)
def test_what_postgresql_tests(spilling: StandingDecoder, scenario: str) -> None:
    spilled = spilling.spill_txns
    assert spilling.play(postgresql_scenarios.SCENARIOS[scenario]), NOTHING
    assert "big" not in scenario or spilling.spill_txns > spilled


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS)
def test_scripted(standing: StandingDecoder, scenario: str) -> None:
    assert standing.play(scenarios.SCENARIOS[scenario]), NOTHING


@pytest.mark.parametrize("scenario", wal_scenarios.SCENARIOS)
def test_wal(standing: StandingDecoder, scenario: str) -> None:
    assert standing.play(wal_scenarios.SCENARIOS[scenario]), NOTHING


def test_wal_of_later_majors(standing: StandingDecoder) -> None:
    for since, scripts in wal_scenarios.SINCE.items():
        if standing.database.cluster.major >= since:
            for script in scripts.values():
                assert standing.play(script), NOTHING
