"""Lists of names are split as PostgreSQL splits them."""

from __future__ import annotations

import pytest

from spillway.pg.identifier import split_identifiers


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (" \t", ()),
        ("a", ("a",)),
        (" A ,b\n", ("a", "b")),
        ('"A ""b"",c",d', ('A "b",c', "d")),
        ('""', ("",)),
        ("ÄB", ("Äb",)),
        ('a"b', ('a"b',)),
        ("x" * 70, ("x" * 63,)),
        ("ä" * 40, ("ä" * 31,)),
    ],
)
def test_names(text: str, names: tuple[str, ...]) -> None:
    assert split_identifiers(text) == names


@pytest.mark.parametrize("text", ["a,", ",a", "a,,b", "a b", '"a', '"a"b', ","])
def test_no_list(text: str) -> None:
    assert split_identifiers(text) is None
