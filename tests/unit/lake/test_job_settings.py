"""What a lake's job refuses before it starts a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from spillway.errors import UnsupportedFeature
from spillway.lake.job.run import JobSettings, check_settings

if TYPE_CHECKING:
    from pathlib import Path


def _settings(
    at: Path, table_format: Literal["delta", "parquet"], merge: Literal["copy", "position"]
) -> JobSettings:
    return JobSettings(
        slot="s", path=at / "lake", checkpoint=at / "cp", table_format=table_format, merge=merge
    )


def test_plain_parquet_has_no_marks(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="can't be merged by position") as refused:
        check_settings(_settings(tmp_path, "parquet", "position"))
    assert not (tmp_path / "lake").exists()
    # Both of its remedies.
    assert refused.value.hint == "Leave --merge out, or use --format delta or iceberg."
    check_settings(_settings(tmp_path, "parquet", "copy"))
    check_settings(_settings(tmp_path, "delta", "position"))
