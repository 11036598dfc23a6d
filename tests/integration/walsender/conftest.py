"""Fixtures of tests with Java clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j import java_gateway, protocol

from harness.java_clients import CLIENTS, Jvm, folder
from spillway.errors import JarsMissing, JavaMissing
from spillway.lake import jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def start_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Jvm]]:
    """Starts JVMs that have the clients' jars; without them, or without Java, the test is
    skipped.
    """
    # A Spark session of other tests' has put PySpark's there: it asks Spark's JVM about every
    # exception, where those of the clients' JVM are other objects, or none.
    monkeypatch.setattr(java_gateway, "get_return_value", protocol.get_return_value)
    try:
        jars.resolve(folder(), CLIENTS)
    except (JavaMissing, JarsMissing) as error:
        pytest.skip(str(error))
    started: list[Jvm] = []

    def start() -> Jvm:
        started.append(Jvm(tmp_path / "jvm.log"))
        return started[-1]

    yield start
    for jvm in started:
        jvm.kill()


@pytest.fixture
def jvm(start_jvm: Callable[[], Jvm]) -> Jvm:
    return start_jvm()
