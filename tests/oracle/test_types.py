"""Every type, through the whole service: bootstrap, WAL, catalog, TOAST and text, compared line by
line.
"""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING

import pytest

from harness import heap_rows
from harness.oracle import create_slot
from harness.service import service_in_process
from harness.tiers import majors_by_tier
from harness.type_values import CASES, SETUP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import Cluster

SEED = 20261121
ROWS = 40
SETTINGS = {
    "TimeZone": "America/New_York", "DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601",
    "extra_float_digits": "-3", "bytea_output": "escape",
}  # fmt: skip


@pytest.mark.parametrize("major", majors_by_tier([15, 18]), ids=["pg15", "pg18"])
def test_every_type_equals_postgresql(
    major: int, tmp_path: Path, session_cluster: Callable[[int], Cluster]
) -> None:
    cluster = session_cluster(major)
    database = cluster.create_database(f"types_{secrets.token_hex(4)}")
    slot = f"s_{secrets.token_hex(4)}"
    rng = random.Random(SEED)
    columns = {f"c{i}": name for i, name in enumerate(CASES) if CASES[name]}
    try:
        with heap_rows.session(database) as session:
            # Types that are there before the source is known, and a table after it.
            session.execute(SETUP)
            oracle = create_slot(database, slot)
            with service_in_process(tmp_path) as service:
                service.create_source(database.dsn)
                service.create_slot(slot, database.name)
                definitions = ", ".join(f"{column} {name}" for column, name in columns.items())
                session.execute(f"CREATE TABLE e (id int PRIMARY KEY, {definitions})")
                places = ", ".join(["%s"] * (len(columns) + 1))
                for number in range(ROWS):
                    values = [
                        str(rng.choice(CASES[name])) if rng.random() < 0.8 else None
                        for name in columns.values()
                    ]
                    session.execute(f"INSERT INTO e VALUES ({places})", [number, *values])
                session.execute("UPDATE e SET c0 = NOT c0 WHERE id % 3 = 0")
                session.execute("ALTER TABLE e REPLICA IDENTITY FULL")
                session.execute(
                    "ALTER TABLE e ADD late mood DEFAULT 'ok', ADD later text[] DEFAULT '{a,NULL}'"
                )
                session.execute("UPDATE e SET id = id + 1000 WHERE id % 3 = 1")
                session.execute("DELETE FROM e WHERE id % 3 = 2")
                service.wait_decoded(slot, database)
                theirs = [tuple(row) for row in oracle.peek()]
                ours = service.peek(slot)
                # Sessions of the server's slot take their settings from the database, ours from
                # options.
                for name, value in SETTINGS.items():
                    session.execute(f"ALTER DATABASE \"{database.name}\" SET {name} = '{value}'")
                theirs += [tuple(row) for row in oracle.peek()]
                ours += service.peek(slot, SETTINGS)
                service.drop_slot(slot)
                service.call("DELETE", "/sources/main")
        assert len(theirs) > 4 * ROWS
        for mine, expected in zip(ours, theirs, strict=True):
            assert mine == expected
    finally:
        cluster.drop_database(database.name)
