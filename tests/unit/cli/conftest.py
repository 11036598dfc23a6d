"""A service for the commands to talk to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.fake_service import FakeService

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the user of this machine has."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("SPILLWAY_CONTEXT", "SPILLWAY_URL", "SPILLWAY_GRPC", "SPILLWAY_TOKEN"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    with FakeService() as service:
        service.engine.add_source("shop")
        service.engine.add_slot("s1")
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        yield service
