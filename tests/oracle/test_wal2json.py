"""wal2json beside the original: its output now where it can be had, and what it wrote when it was recorded.

- ``test_equals_the_original``: PostgreSQL 15, the same WAL through both, every byte, every LSN and xid.
- ``test_equals_what_was_recorded``: all majors, the same statements again; what differs from run to run (LSNs, xids,
  times, oids of what users made) is replaced by placeholders, see ``harness.wal2json_recording``.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness import wal2json
from harness.oracle import LogicalSlot, create_slot
from harness.service import Service, service_in_process
from harness.wal2json_recording import clean_up, normalised, options_of, recorded, run
from oracle.scenarios import SCENARIOS
from oracle.wal2json_scenarios import WAL2JSON_OPTIONS, WAL2JSON_SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster, Database

#: Under these options the scenarios of all plugins are compared.
FEW_OPTIONS = ("1 everything", "2 everything")
#: Under these, other majors than the one that was recorded.
OTHER_MAJORS_OPTIONS = ("1 pretty", "1 domains without modifiers", "2 everything", "2 filtered")


@dataclass
class Pair:
    """A server and the service that follows it."""

    database: Database
    service: Service


@pytest.fixture(scope="module", params=[14, 15, 16, 17, 18], ids=lambda major: f"pg{major}")
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    session_cluster: Callable[[int], Cluster],
) -> Iterator[Pair]:
    cluster = session_cluster(request.param)
    database = cluster.create_database(f"wal2json_{secrets.token_hex(4)}")
    with service_in_process(tmp_path_factory.mktemp("service")) as service:
        service.create_source(database.dsn)
        yield Pair(database, service)
        service.call("DELETE", "/sources/main")
    cluster.drop_database(database.name)


@pytest.fixture
def slot(pair: Pair) -> Iterator[str]:
    name = f"s_{secrets.token_hex(4)}"
    pair.service.create_slot(name, pair.database.name, "wal2json")
    yield name
    pair.service.drop_slot(name)
    clean_up(pair.database)


@pytest.mark.parametrize("name", WAL2JSON_SCENARIOS)
def test_equals_what_was_recorded(pair: Pair, slot: str, name: str) -> None:
    database = pair.database
    run(database, WAL2JSON_SCENARIOS[name])
    end = pair.service.wait_decoded(slot, database)
    recorded_major = database.cluster.major == wal2json.MAJOR
    for label in WAL2JSON_OPTIONS if recorded_major else OTHER_MAJORS_OPTIONS:
        ours = pair.service.peek(slot, options_of(database, label), upto_lsn=end)
        assert normalised(ours) == recorded(name, label), label


@pytest.fixture
def oracle(pair: Pair) -> Iterator[LogicalSlot]:
    """A slot of the original, made before ours."""
    try:
        wal2json.load_into(pair.database)
    except wal2json.NotAvailable as reason:
        pytest.skip(f"only compared with what was recorded: {reason}")
    oracle = create_slot(pair.database, f"o_{secrets.token_hex(4)}", "wal2json")
    yield oracle
    oracle.drop()


@pytest.mark.parametrize("pair", [15], indirect=True, ids=["pg15"])
@pytest.mark.parametrize("name", [*WAL2JSON_SCENARIOS, *(f"any {name}" for name in SCENARIOS)])
def test_equals_the_original(pair: Pair, oracle: LogicalSlot, slot: str, name: str) -> None:
    database = pair.database
    if name in WAL2JSON_SCENARIOS:
        steps, labels = WAL2JSON_SCENARIOS[name], tuple(WAL2JSON_OPTIONS)
    else:
        steps, labels = SCENARIOS[name.removeprefix("any ")], FEW_OPTIONS
    run(database, steps)
    end = pair.service.wait_decoded(slot, database)
    for label in labels:
        options = options_of(database, label)
        theirs = [tuple(row) for row in oracle.peek(options, upto_lsn=end)]
        ours = pair.service.peek(slot, options, upto_lsn=end)
        for mine, expected in zip(ours, theirs, strict=False):
            assert mine == expected, label
        assert len(ours) == len(theirs), label
