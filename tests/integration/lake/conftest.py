"""One Spark session for all lake tests, small and offline; formats that this machine can't have are
skipped.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext

from harness import jvm
from harness.lake import MASK_SECRET, Lake
from harness.tiers import deep
from spillway.lake.session import spark_session
from spillway.plugins import masks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark(jar_folder: Path) -> Iterator[SparkSession]:
    # Workers import the harness: the slot that the data source reads is there.
    paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # Workers have the environment that their JVM was started with.
    os.environ[masks.ENVIRONMENT] = MASK_SECRET
    session = spark_session(
        table_format="delta",
        master="local[2]",
        driver_memory="1g",
        jar_folder=jar_folder,
        short=True,
    )
    yield session
    session.stop()
    jvm.end()


@pytest.fixture(autouse=True)
def _the_session_goes_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """A command that is called here without a session is given that of all tests, and stops it."""
    before = SparkContext._active_spark_context
    yield
    if before is not None:
        assert before._jsc is not None, f"{request.node.nodeid} has stopped the tests' session"


@pytest.fixture(params=["delta", deep("parquet")])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path, request.param)


@pytest.fixture(params=["delta", deep("iceberg"), deep("parquet")])
def any_lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path, request.param)


@pytest.fixture
def delta_lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path, "delta")
