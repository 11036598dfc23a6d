"""The two tiers of the suite: what every change needs, and depth.

``make test`` runs each feature's tests at least once, and every major in the main comparisons with
PostgreSQL. What repeats a test with another seed, kill, major or table format, and what takes
minutes, is marked ``long``: :func:`deep` marks a parameter, ``@pytest.mark.long`` a whole test.
``make test-long`` runs all that is marked; CI runs a seventh of it, another one each day, so that a
week sees all. ``tests/unit/test_tiers.py`` has the list of tests of which the first tier runs
nothing, each with the reason.

A share is chosen by a checksum of the test's name: a new test does not move the others from their
days. Comparisons with PostgreSQL stay together by file and major, because their fixtures are made
for a whole module; anything else is shared out test by test, because some of the lake's take
minutes.
"""

from __future__ import annotations

import re
import time
import zlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from harness.parallel import part_of

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The name of the mark.
LONG: Final = "long"
#: In how many days CI has run all of the long tier.
DAYS: Final = 7

#: Every test that was collected, also those that are left out, and whether it is long.
collected: Final = pytest.StashKey[dict[str, bool]]()

_SHARE: Final = re.compile(r"([1-9][0-9]*)/([1-9][0-9]*)")


def deep(*values: Any, **options: Any) -> Any:
    """Return a parameter, as ``pytest.param`` does, with which a test belongs to the long tier."""
    return pytest.param(*values, marks=pytest.mark.long, **options)


def majors_by_tier(majors: Iterable[int]) -> list[Any]:
    """Return *majors* as parameters, of which only the newest one is in the first tier."""
    *older, newest = sorted(majors)
    return [*map(deep, older), newest]


#: A test that has the fixture ``pg`` runs on every major; the newest is in the first tier.
on_every_major: Final = pytest.mark.parametrize(
    "pg", majors_by_tier([14, 15, 16, 17, 18]), indirect=True, ids="pg{}".format
)


def parse_share(text: str, now_s: float | None = None) -> tuple[int, int]:
    """Read ``3/7``, the third of seven shares, or ``today``: the day's, by UTC, which begins anew
    after :data:`DAYS`.

    Raises:
        ValueError: *text* is neither.
    """
    if text == "today":
        day = int(time.time() if now_s is None else now_s) // 86_400
        return day % DAYS + 1, DAYS
    found = _SHARE.fullmatch(text)
    if found is None or int(found[1]) > int(found[2]):
        raise ValueError(f"{text!r} is no share; say 3/7 for the third of seven, or today")
    return int(found[1]), int(found[2])


def share_of(nodeid: str, shares: int) -> int:
    """Return which of 1 to *shares* has the test."""
    together = part_of(nodeid) if nodeid.startswith("tests/oracle/") else nodeid
    return zlib.crc32(together.encode(errors="surrogateescape")) % shares + 1


def is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker(LONG) is not None


def of_share(
    items: Iterable[pytest.Item], share: tuple[int, int]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Part *items* into those of the first tier or of *share*, and the long ones that other shares
    have.
    """
    number, shares = share
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        mine = not is_long(item) or share_of(item.nodeid, shares) == number
        (kept if mine else left).append(item)
    return kept, left
