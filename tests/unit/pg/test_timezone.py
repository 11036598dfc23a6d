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


@pytest.mark.parametrize(
    ("name", "canonical", "offset", "abbreviation"),
    [
        ("+3", "<+03>-03", 10800, "+03"),
        ("5.5", "<+05:30>-05:30", 19800, "+05:30"),
        ("-12.25", "<-12:15>+12:15", -44100, "-12:15"),
        ("gmt-03:00", "GMT-03:00", 10800, "GMT"),
        ("<-03>3", "<-03>3", -10800, "-03"),
        ("00:30", "00:30", -1800, ""),
        ("abcdefghijklm1", "ABCDEFGHIJKLM1", -3600, "ABCDEFGHIJ"),
    ],
)
def test_offsets_are_zones(name: str, canonical: str, offset: int, abbreviation: str) -> None:
    assert timezone.canonical_name(name) == canonical
    for one in (name, canonical):
        assert timezone.transitions(one) == ((timezone.BEGINNING, offset, abbreviation),)


@pytest.mark.parametrize(
    "name",
    [
        "168",
        "9" * 400,
        "X168",
        "X1:60",
        "X1:00:30",
        "CET-1CEST",
        "X",
        "<X",
        "X1x",
        "1e1",
        "+",
        "é1",
    ],
)
def test_what_is_no_offset(name: str) -> None:
    with pytest.raises(InvalidOption, match='parameter "TimeZone"'):
        timezone.transitions(name)


def test_names_are_told_as_a_server_tells_them() -> None:
    names = ["utc", "europe/BERLIN", "etc/utc", "est5edt", "no such"]
    told = ["UTC", "Europe/Berlin", "Etc/UTC", "EST5EDT", "no such"]
    assert [timezone.canonical_name(name) for name in names] == told
