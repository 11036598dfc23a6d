"""wal2json beside the original: its output now where it can be had, and what it wrote when it was
recorded.

- ``test_equals_the_original``: PostgreSQL 15, the same WAL through both, every byte, every LSN and
  xid.
- ``test_every_type…``, ``test_encodings…``: the same in databases of their own.
- ``test_equals_what_was_recorded``: all majors, the same statements again; what differs from run to
  run (LSNs, xids, times, oids of what users made) is replaced by placeholders, see
  ``harness.wal2json_recording``.
"""

from __future__ import annotations

import random
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness import wal2json
from harness.cluster import Database
from harness.oracle import LogicalSlot, create_slot
from harness.scenario_run import run
from harness.service import Service, service_in_process
from harness.tiers import deep
from harness.type_values import CASES, SETUP
from harness.wal2json_recording import clean_up, normalised, options_of, recorded
from oracle.scenarios import SCENARIOS
from oracle.wal2json_scenarios import (
    WAL2JSON_OPTIONS,
    WAL2JSON_SCENARIOS,
    WAL2JSON_SCENARIOS_OF_15,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Cluster

OWN_SCENARIOS = {**WAL2JSON_SCENARIOS, **WAL2JSON_SCENARIOS_OF_15}
#: Under these options the scenarios of all plugins are compared.
FEW_OPTIONS = ("1 everything", "2 everything")
#: Under these, other majors than the one that was recorded.
OTHER_MAJORS_OPTIONS = ("1 pretty", "1 domains without modifiers", "2 everything", "2 filtered")


@dataclass
class Pair:
    """A server and the service that follows it."""

    database: Database
    service: Service


@pytest.fixture(
    scope="module", params=[deep(14), 15, *map(deep, (16, 17, 18))], ids=lambda major: f"pg{major}"
)
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
        ours = pair.service.peek(slot, options_of(database, WAL2JSON_OPTIONS[label]), upto_lsn=end)
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
@pytest.mark.parametrize("name", [*OWN_SCENARIOS, *(deep(f"any {name}") for name in SCENARIOS)])
def test_equals_the_original(pair: Pair, oracle: LogicalSlot, slot: str, name: str) -> None:
    database = pair.database
    if name in OWN_SCENARIOS:
        steps, labels = OWN_SCENARIOS[name], tuple(WAL2JSON_OPTIONS)
    else:
        steps, labels = SCENARIOS[name.removeprefix("any ")], FEW_OPTIONS
    run(database, steps)
    end = pair.service.wait_decoded(slot, database)
    for label in labels:
        options = options_of(database, WAL2JSON_OPTIONS[label])
        theirs = [tuple(row) for row in oracle.peek(options, upto_lsn=end)]
        ours = pair.service.peek(slot, options, upto_lsn=end)
        for mine, expected in zip(ours, theirs, strict=False):
            assert mine == expected, label
        assert len(ours) == len(theirs), label


#: Under these, tables of every type.
TYPES_OPTIONS: tuple[dict[str, str], ...] = (
    {"include-type-oids": "1", "pretty-print": "1", "include-not-null": "1", "include-pk": "1"},
    {"include-typmod": "0", "write-in-chunks": "1"},
    {"format-version": "2", "include-type-oids": "1", "include-timestamp": "1"},
)


@contextmanager
def both(database: Database, directory: Path, setup: str) -> Iterator[Callable[..., int]]:
    """Make a slot of the original and one of ours on *database*; yields what compares them."""
    try:
        wal2json.load_into(database)
    except wal2json.NotAvailable as reason:
        pytest.skip(f"the original can't be had: {reason}")
    slot = f"s_{secrets.token_hex(4)}"
    database.execute(setup)
    oracle = create_slot(database, slot, "wal2json")
    with service_in_process(directory) as service:
        # A source's physical slot is called after it, and the fixture's service has one on this
        # server.
        service.create_source(database.dsn, slot)
        service.create_slot(slot, database.name, "wal2json", source=slot)

        def compare(options: dict[str, str], **settings: str) -> int:
            end = service.wait_decoded(slot, database)
            # The server takes from the session what a slot of ours takes from options.
            database.execute(f'ALTER ROLE CURRENT_USER IN DATABASE "{database.name}" RESET ALL')
            for name, value in settings.items():
                database.execute(
                    f'ALTER ROLE CURRENT_USER IN DATABASE "{database.name}" SET {name} = '
                    f"'{value}'"
                )
            theirs = [tuple(row) for row in oracle.peek(options, upto_lsn=end)]
            ours = service.peek(slot, {**options, **settings}, upto_lsn=end)
            for mine, expected in zip(ours, theirs, strict=False):
                assert mine == expected, (options, settings)
            assert len(ours) == len(theirs)
            return len(ours)

        yield compare
        service.drop_slot(slot)
        service.call("DELETE", f"/sources/{slot}")
    oracle.drop()


def test_every_type_equals_the_original(pg15: Database, tmp_path: Path) -> None:
    rng = random.Random(20261121)
    columns = {f"c{i}": name for i, name in enumerate(CASES) if CASES[name]}
    definitions = ", ".join(f"{column} {name}" for column, name in columns.items())
    places = ", ".join(["%s"] * (len(columns) + 1))
    with both(pg15, tmp_path, SETUP) as compare:
        with pg15.connect() as connection:
            connection.execute(f"CREATE TABLE e (id int PRIMARY KEY, {definitions})")  # type: ignore[call-overload]
            for number in range(30):
                values = [
                    str(rng.choice(CASES[name])) if rng.random() < 0.8 else None
                    for name in columns.values()
                ]
                connection.execute(f"INSERT INTO e VALUES ({places})", [number, *values])  # type: ignore[call-overload]
            connection.execute("UPDATE e SET c0 = NOT c0 WHERE id % 3 = 0")
            connection.execute("ALTER TABLE e REPLICA IDENTITY FULL")
            connection.execute("UPDATE e SET id = id + 1000 WHERE id % 3 = 1")
            connection.execute("DELETE FROM e WHERE id % 3 = 2")
        for options in TYPES_OPTIONS:
            assert compare(options) > 30
        assert compare(TYPES_OPTIONS[2], TimeZone="America/New_York", extra_float_digits="-3") > 30


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_encodings_equal_the_original(
    session_cluster: Callable[[int], Cluster], tmp_path: Path, encoding: str
) -> None:
    cluster = session_cluster(wal2json.MAJOR)
    name = f"wal2json_{encoding.lower()}_{secrets.token_hex(4)}"
    cluster.execute(
        f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE "
        "template0"
    )
    database = Database(cluster, name)
    try:
        database.execute(f"ALTER DATABASE {name} SET client_encoding = UTF8")
        with both(database, tmp_path, "CREATE TYPE \"Möd\" AS ENUM ('ä')") as compare:
            database.execute(
                'CREATE TABLE "tä" ("ö" "Möd" PRIMARY KEY, v text);'
                "INSERT INTO \"tä\" VALUES ('ä', 'éü\"');"
                "SELECT pg_logical_emit_message(true, 'ñ', 'ß');"
                'DELETE FROM "tä"'
            )
            for options in TYPES_OPTIONS:
                assert compare(options) >= 1
    finally:
        cluster.drop_database(name)


def test_bytea_as_escapes_loses_its_first_two_bytes(pg15: Database, tmp_path: Path) -> None:
    with both(pg15, tmp_path, "SELECT 1") as compare:
        pg15.execute(
            "CREATE TABLE t (id int PRIMARY KEY, b bytea, bs bytea[]);"
            "INSERT INTO t VALUES (1, '\\x5c5c22ff41', ARRAY['\\x41ff'::bytea])"
        )
        for options in TYPES_OPTIONS:
            assert compare(options, bytea_output="escape") >= 1
