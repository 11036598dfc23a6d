"""Fixtures of tests that need servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spillway.demo.private_postgres import SUPERUSER

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def metadata_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty metadata store: an SQLite file, then a PostgreSQL database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'metadata.db'}"
    database: Database = request.getfixturevalue("pg15")
    return f"postgresql://{SUPERUSER}@127.0.0.1:{database.cluster.port}/{database.name}"
