"""The environment's settings: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from spillway.cli.program import engine_settings
from spillway.errors import InvalidRequest
from spillway.service.settings import EngineSettings
from spillway.settings import Settings


def test_defaults() -> None:
    assert Settings.from_environment({}) == Settings()
    assert Settings.from_environment({"SPILLWAY_TOKEN": "", "PATH": "x"}) == Settings()


def test_values() -> None:
    settings = Settings.from_environment(
        {
            "SPILLWAY_DATA_DIR": "/var/lib/spillway",
            "SPILLWAY_AUTH": "off",
            "SPILLWAY_HTTP_PORT": "0",
            "SPILLWAY_LOGICAL_DECODING_WORK_MEM": "16MB",
            "SPILLWAY_MAX_SLOT_RETAINED_BYTES": "2 gb",
            "SPILLWAY_LOG_KEEP_BYTES": "0",
            "SPILLWAY_LOG_LEVEL": "WARNING",
            "SPILLWAY_SNAPSHOT_HOLD": "20min",
        }
    )
    assert settings.data_dir == Path("/var/lib/spillway")
    assert settings.auth_off
    assert settings.http_port == 0
    assert settings.logical_decoding_work_mem == 16 << 20
    assert settings.max_slot_retained_bytes == 2 << 30
    assert settings.log_keep_bytes == 0
    assert settings.log_level == "warning"
    assert settings.snapshot_hold == 1200
    engine = engine_settings(settings)
    assert engine.snapshot_hold_s == 1200
    assert engine.logical_decoding_work_mem == 16 << 20
    assert engine_settings(Settings()) == EngineSettings()
    never = Settings.from_environment({"SPILLWAY_MAX_SLOT_RETAINED_BYTES": "-1"})
    assert never.max_slot_retained_bytes is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPILLWAY_HTTP_PORT", "http"),
        ("SPILLWAY_GRPC_PORT", "65536"),
        ("SPILLWAY_AUTH", "on"),
        ("SPILLWAY_SNAPSHOT_HOLD", "0"),
        ("SPILLWAY_LOGICAL_DECODING_WORK_MEM", "64 apples"),
        ("SPILLWAY_LOGICAL_DECODING_WORK_MEM", "-1"),
        ("SPILLWAY_MAX_SLOT_RETAINED_BYTES", "-2"),
        ("SPILLWAY_LOG_LEVEL", "loud"),
    ],
)
def test_values_that_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        Settings.from_environment({name: value})
    assert caught.value.hint
