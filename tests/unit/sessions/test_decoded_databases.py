"""Which databases were decoded is read of their directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway.receiver.primary import SourceDatabase
from spillway.sessions.layout import SourceLayout
from spillway.storage.disk_reserve import DiskReserve

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_SHOP = SourceDatabase("shop", 5, "UTF8")


def test_a_directory_that_is_just_being_made_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another session's: its description is about to be written."""
    source = SourceLayout(tmp_path, DiskReserve(tmp_path / "reserve"))
    source.remember_database(_SHOP)
    source.database(16_384).root.mkdir()
    assert source.databases() == {"shop": _SHOP}
    assert not caplog.records


def test_a_lost_description_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = SourceLayout(tmp_path, DiskReserve(tmp_path / "reserve"))
    lost = source.database(16_384)
    lost.txlog.mkdir(parents=True)
    assert source.databases() == {}
    assert caplog.messages == [f"which database {lost.root} was decoded of is not known"]
