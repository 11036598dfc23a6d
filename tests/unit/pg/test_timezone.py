"""Time zones are of the package that is installed, not of the machine."""

from __future__ import annotations

import zoneinfo
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from spillway.errors import InvalidOption
from spillway.pg import timezone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def strange_machine(tmp_path: Path) -> Iterator[None]:
    """A machine whose Berlin is Tokyo, and which has a zone that nobody else has."""
    tokyo = files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes()
    for name in ("Berlin", "Nowhere"):
        place = tmp_path / "Europe" / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(tokyo)
    zoneinfo.reset_tzpath(to=[tmp_path])
    zoneinfo.ZoneInfo.clear_cache()
    timezone.transitions.cache_clear()
    timezone._names.cache_clear()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()
    timezone.transitions.cache_clear()
    timezone._names.cache_clear()


@pytest.mark.usefixtures("strange_machine")
def test_zones_do_not_depend_on_the_machine() -> None:
    # 1 January 2026, 26 years of which 7 are leap years after 2000.
    new_year = (26 * 365 + 7) * 86400 * 1_000_000
    berlin = [t for t in timezone.transitions("europe/BERLIN") if t[0] <= new_year][-1]
    assert berlin[1:] == (3600, "CET")
    for name in ("Europe/Nowhere", "../tzdata", "Europe", ""):
        with pytest.raises(InvalidOption, match='parameter "TimeZone"'):
            timezone.transitions(name)
