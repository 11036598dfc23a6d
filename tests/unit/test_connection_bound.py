"""How many connections an address may have."""

from __future__ import annotations

import pytest

from spillway.connection_bound import ConnectionBound


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_has_a_bound_only_if_one_is_set(loopback: str) -> None:
    assert ConnectionBound("REST", 100).holder(loopback) is None
    assert ConnectionBound("REST", 100, 0).holder(loopback) is None
    assert ConnectionBound("REST", 100, 7).holder(loopback) is not None


def test_an_address_has_a_quarter() -> None:
    bound = ConnectionBound("REST", 100)
    assert bound.per_address == 25
    assert bound.holder("192.0.2.7") == bound.holder("::ffff:192.0.2.7") == "192.0.2.7"
    assert bound.holder("192.0.2.8") == "192.0.2.8"
    # A customer has a /64.
    assert bound.holder("2001:db8::1") == bound.holder("2001:db8::2") != bound.holder("2001:db9::1")
    assert ConnectionBound("REST", 2).per_address == 1


def test_it_can_be_done_away_with() -> None:
    bound = ConnectionBound("REST", 100, 0)
    assert bound.holder("192.0.2.7") is None
    assert ConnectionBound("REST", 100, 500).holder("192.0.2.7") is None
