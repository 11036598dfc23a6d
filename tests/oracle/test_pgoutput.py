"""pgoutput through the whole service, compared with PostgreSQL's own message by message, on every
version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.pgoutput import run
from oracle.publication_scenarios import SCENARIOS as PUBLICATIONS
from oracle.scenarios import SCENARIOS

if TYPE_CHECKING:
    from harness.pgoutput import Pair

OPTIONS = {"proto_version": "1", "messages": "on"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_equal_postgresql(pair: Pair, name: str) -> None:
    database = pair.database
    database.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    try:
        with pair.slots() as slots:
            run(database, SCENARIOS[name])
            everything = OPTIONS | {"publication_names": "everything"}
            slots.compare(everything)
            slots.compare_unlike(OPTIONS | {"spillway.all_tables": "on"}, everything)
    finally:
        for table in ("t", "u", "w", "t2"):
            database.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
        database.execute("DROP SEQUENCE IF EXISTS s")
        database.execute("DROP PUBLICATION everything")


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_publications_equal_postgresql(pair: Pair, name: str) -> None:
    scenario, database = PUBLICATIONS[name], pair.database
    if pair.major < scenario.since:
        pytest.skip(f"needs PostgreSQL {scenario.since}")
    prelude = ["CREATE SCHEMA pubs", "SET search_path = pubs"]
    try:
        with pair.slots() as slots:
            run(database, [*prelude, "2> SET search_path = pubs", *scenario.steps])
            slots.compare(*(OPTIONS | {"publication_names": names} for names in scenario.names))
    finally:
        database.execute('DROP PUBLICATION IF EXISTS p, q, r, "P, q"')
        database.execute("DROP SCHEMA pubs CASCADE")
