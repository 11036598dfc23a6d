"""The how-tos of querying a lake print what they say they print."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from harness.lake import Lake
from harness.shown_pages import check_page, fill

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long


def test_with_spark(delta_lake: Lake) -> None:
    fill(delta_lake)
    paths = {"/data/lake": delta_lake.path}
    names: dict[str, object] = {"spark": delta_lake.spark}
    # What follows has a session of its own: test_catalogs.
    until = "### By name, from a catalog"
    assert check_page("query-a-lake.md", paths, names, until=until) == 6


@pytest.fixture
def shops(spark: SparkSession, tmp_path: Path) -> dict[str, Path]:
    """Make the same lake in both formats; return where they are, by what pages call them."""
    lakes = {
        "/data/lake": Lake(spark, tmp_path / "delta", "delta"),
        "/data/iceberg-lake": Lake(spark, tmp_path / "iceberg", "iceberg"),
    }
    for lake in lakes.values():
        fill(lake)
    return {said: lake.path for said, lake in lakes.items()}


def test_with_duckdb(
    shops: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    # What INSTALL would fetch lies in wheels; it leaves what is installed alone.
    with duckdb.connect() as connection:
        for extension in ("avro", "delta", "iceberg"):
            import_module("duckdb_extensions").import_extension(extension, con=connection)
    assert check_page("query-with-duckdb.md", shops, {}) == 5


def test_with_polars(shops: dict[str, Path]) -> None:
    assert check_page("query-with-polars.md", shops, {}) == 5
