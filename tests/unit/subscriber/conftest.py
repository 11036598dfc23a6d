"""Subscriptions whose programs start quickly, and fail as they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.subscription_stage import Stage
from spillway.subscriber import supervisor, targets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    kinds = {**targets._BUILT_IN, "fake": ("harness.fake_target", "FakeTarget")}
    monkeypatch.setattr(targets, "_BUILT_IN", kinds)
    monkeypatch.setattr(supervisor, "_POLL_S", 0.05)
    monkeypatch.setattr(supervisor, "STOP_GRACE_S", 1.0)
    monkeypatch.setattr("spillway.subscriber.backoff.FIRST_S", 0.05)
    stage = Stage(tmp_path)
    await stage.start()
    yield stage
    await stage.stop()
