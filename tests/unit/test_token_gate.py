"""How fast a token may be guessed, and who is not slowed by it."""

from __future__ import annotations

import pytest

from harness.remedies import remedy
from spillway.errors import TooManyAttempts, Unauthenticated
from spillway.token_gate import TokenGate

TOKEN = "right"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def guesses(gate: TokenGate, address: str, count: int, first: int = 0) -> list[str]:
    """What so many different wrong tokens are answered with."""
    answers = []
    for number in range(first, first + count):
        with pytest.raises((Unauthenticated, TooManyAttempts)) as caught:
            gate.check(f"wrong {number}".encode(), address)
        answers.append(caught.value.code)
    return answers


@pytest.mark.follows_hint("too_many_attempts")
def test_guesses_are_slowed() -> None:
    clock = Clock()
    gate = TokenGate(TOKEN, clock)
    assert guesses(gate, "10.0.0.1", 8) == ["unauthenticated"] * 5 + ["too_many_attempts"] * 3
    # The right one isn't looked at either, or a guess would cost nothing.
    with pytest.raises(TooManyAttempts) as caught:
        gate.check(TOKEN.encode(), "10.0.0.1")
    wait_s = caught.value.details["retry_after_s"]
    assert isinstance(wait_s, int)
    assert "Wait that long" in remedy(caught.value, "too_many_attempts")
    assert f"in {wait_s} s" in caught.value.message
    patient, later = TokenGate(TOKEN, clock), clock.now_s
    guesses(patient, "10.0.0.1", 6)
    clock.now_s += wait_s
    patient.check(TOKEN.encode(), "10.0.0.1")
    clock.now_s = later
    tried, waited_s = 5, 0.0
    for number in range(1000):
        try:
            gate.check(f"later {number}".encode(), "10.0.0.1")
        except Unauthenticated:
            tried += 1
        except TooManyAttempts as error:
            waited_s += float(str(error.details["retry_after_s"]))
            clock.now_s += float(str(error.details["retry_after_s"]))
    assert waited_s / (tried - 5) > 50, "about one guess a minute"
    clock.now_s += wait_s + 60
    gate.check(TOKEN.encode(), "10.0.0.1")
    assert guesses(gate, "10.0.0.1", 1, 5000) == ["unauthenticated"], "it begins anew"


def test_others_are_not_shut_out() -> None:
    gate = TokenGate(TOKEN, Clock())
    guesses(gate, "10.0.0.1", 1000)
    for number in range(2000):
        guesses(gate, f"10.1.{number // 250}.{number % 250}", 2, number * 10)
    gate.check(TOKEN.encode(), "10.0.0.2")
    gate.check(TOKEN.encode(), "2001:db8::1")
    # But whoever has many addresses does not get five guesses from each.
    assert guesses(gate, "10.9.9.9", 3, 90_000) == ["unauthenticated"] + ["too_many_attempts"] * 2


def test_yesterdays_token_guesses_nothing() -> None:
    gate = TokenGate(TOKEN, Clock())
    for _ in range(1000):
        with pytest.raises(Unauthenticated):
            gate.check(b"yesterday's", "127.0.0.1")
        with pytest.raises(Unauthenticated):
            gate.check(None, "127.0.0.1")
    gate.check(TOKEN.encode(), "127.0.0.1")


def test_a_network_of_one_customer_is_one_address() -> None:
    gate = TokenGate(TOKEN, Clock())
    answers = [guesses(gate, f"2001:db8:0:1::{number:x}", 1, number)[0] for number in range(1, 8)]
    assert answers[-1] == "too_many_attempts"
    assert guesses(gate, "2001:db8:0:2::1", 1) == ["unauthenticated"]
    guesses(gate, "::ffff:10.0.0.7", 6)
    assert guesses(gate, "10.0.0.7", 1, 100) == ["too_many_attempts"]


def test_memory_is_bounded() -> None:
    gate = TokenGate(TOKEN, Clock())
    for number in range(10_000):
        guesses(gate, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1, number)
    assert len(gate._addresses) <= 4096
    gate.check(TOKEN.encode(), "10.0.0.1")


def test_no_token_is_asked_for() -> None:
    gate = TokenGate(None)
    gate.check(None, "127.0.0.1")
    gate.check(b"anything", None)
