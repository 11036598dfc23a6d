"""A source's slot name is a legal one, and its own."""

from __future__ import annotations

import re

import pytest

from spillway.receiver.physical_slot import physical_slot_name


@pytest.mark.parametrize(
    "source", ["shop", "Shop", "shop-eu", "shop eu", "größe", "x" * 200, "x" * 54, "x" * 55, "-"]
)
def test_legal(source: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]{1,63}", physical_slot_name(source))


def test_distinct() -> None:
    assert physical_slot_name("shop") == "spillway_shop"
    sources = ["shop_eu", "shop-eu", "Shop_eu", "shop eu", "x" * 100, "x" * 101]
    assert len({physical_slot_name(source) for source in sources}) == len(sources)
