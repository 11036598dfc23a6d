"""Replays read the server's own pg_wal: it must keep what they have not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.cluster import Database


def keep_wal(database: Database) -> None:
    """Have the server keep its WAL, as a physical slot would."""
    database.execute("ALTER SYSTEM SET wal_keep_size = '2GB'")
    database.execute("SELECT pg_reload_conf()")


@pytest.fixture(autouse=True)
def _wal_is_kept(request: pytest.FixtureRequest) -> None:
    for name in ("pg", "pg15", "pg18"):
        if name in request.fixturenames:
            keep_wal(request.getfixturevalue(name))
