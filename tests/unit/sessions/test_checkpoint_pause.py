"""Checkpoints take a small part of a session's time, and are never put off for long."""

from __future__ import annotations

import pytest

from spillway.sessions.session import checkpoint_pause_s


@pytest.mark.parametrize(
    ("took_s", "pause_s"), [(0.0, 10.0), (0.05, 10.0), (0.5, 100.0), (1.5, 300.0), (60.0, 300.0)]
)
def test_pause(took_s: float, pause_s: float) -> None:
    assert checkpoint_pause_s(10.0, took_s) == pause_s
