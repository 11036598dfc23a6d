"""What a writer announces, and what a reader finds when either of them dies or is slow."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from spillway.storage.announcement import Announced, Announcer, pause_s

if TYPE_CHECKING:
    from pathlib import Path

KIND = b"TEST"
COUNT = 3
SLOT = 256


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.end"


def announcer(path: Path) -> Announcer:
    return Announcer(path, KIND, COUNT)


def look(path: Path) -> tuple[int, ...] | None:
    announced = Announced(path, KIND, COUNT)
    try:
        return announced.look()
    finally:
        announced.close()


def test_what_is_announced_is_found(path: Path) -> None:
    announced = Announced(path, KIND, COUNT)
    assert announced.look() is None
    writer = announcer(path)
    assert writer.values is None
    assert announced.look() is None, "there is a file, and nothing was said yet"
    for values in ((1, 2, 3), (4, 5, 6), (0, 0, (1 << 64) - 1)):
        writer.announce(*values)
        assert announced.look() == look(path) == writer.values == values
    assert announced.look() is announced.look(), "the same object as long as nothing is new"
    writer.close()
    assert announced.look() == (0, 0, (1 << 64) - 1), "it stands"
    assert path.stat().st_mode & 0o777 == 0o600
    announced.close()


def test_the_next_writer_goes_on(path: Path) -> None:
    first = announcer(path)
    first.announce(1, 2, 3)
    first.close()
    first.announce(7, 7, 7)  # too late, and no file of somebody else's
    announced = Announced(path, KIND, COUNT)
    before = announced.look()
    second = announcer(path)
    assert second.values == (1, 2, 3)
    assert announced.look() is before
    second.announce(2, 3, 4)
    assert announced.look() == (2, 3, 4)


@pytest.mark.parametrize("length", range(0, 40, 3))
def test_one_that_is_torn_leaves_the_one_before(path: Path, length: int) -> None:
    writer = announcer(path)
    for n in range(5):
        writer.announce(n, n, (n + 1) << 60)
    before = path.read_bytes()
    announced = Announced(path, KIND, COUNT)
    assert announced.look() == (4, 4, 5 << 60)
    writer.announce(5, 5, 6 << 60)
    (changed,) = {
        at // SLOT
        for at, (a, b) in enumerate(zip(before, path.read_bytes(), strict=True))
        if a != b
    }
    start = changed * SLOT
    torn = bytearray(before)
    torn[start : start + length] = path.read_bytes()[start : start + length]
    path.write_bytes(torn)
    assert look(path) == announced.look() == (4, 4, 5 << 60)
    # A writer that opens it after that goes over the torn one.
    again = announcer(path)
    assert again.values == (4, 4, 5 << 60)
    again.announce(6, 6, 6)
    assert look(path) == announced.look() == (6, 6, 6)


def test_a_reader_that_finds_nothing_whole_keeps_what_it_knows(path: Path) -> None:
    writer = announcer(path)
    writer.announce(1, 2, 3)
    announced = Announced(path, KIND, COUNT)
    assert announced.look() == (1, 2, 3)
    path.write_bytes(os.urandom(2 * SLOT))
    assert announced.look() == (1, 2, 3)
    assert look(path) is None
    # The next writer begins anew.
    announcer(path).announce(9, 9, 9)
    assert announced.look() == look(path) == (9, 9, 9)


def test_another_file_in_its_place_is_seen(path: Path) -> None:
    announcer(path).announce(1, 2, 3)
    announced = Announced(path, KIND, COUNT)
    assert announced.look() == (1, 2, 3)
    path.unlink()
    assert announced.look() is None
    announcer(path).announce(4, 4, 4)
    assert announced.look() == (4, 4, 4)


def test_other_kinds_are_not_taken_for_it(path: Path) -> None:
    Announcer(path, b"ELSE", COUNT).announce(1, 2, 3)
    assert look(path) is None
    assert announcer(path).values is None


def test_damage_is_never_believed(path: Path) -> None:
    writer = announcer(path)
    writer.announce(1, 1, 1)
    writer.announce(2, 2, 2)
    whole, numbers = path.read_bytes(), random.Random(1)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[numbers.randrange(SLOT + 40)] ^= 1 << numbers.randrange(8)
        path.write_bytes(damaged)
        assert look(path) in {(1, 1, 1), (2, 2, 2)}


def test_a_look_comes_soon_and_costs_little_when_nothing_happens() -> None:
    assert pause_s(0) == 0.001
    assert pause_s(0.04) == 0.005
    assert pause_s(60) == 0.02
