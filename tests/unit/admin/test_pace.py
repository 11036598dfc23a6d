"""The throughput of what moves in steps, and one colour for one fault."""

from __future__ import annotations

import math

from spillway.watch.findings import Finding
from spillway.watch.sampler import Pace, View


def test_between_two_confirmations_it_goes_on() -> None:
    """A consumer that confirms 60 kB a minute takes 1 kB a second, whenever somebody looks."""
    pace = Pace(0, 0)
    assert math.isnan(pace.at(0, 0))
    seen = {now: pace.at(now, now // 60 * 60_000) for now in range(2, 600, 2)}
    assert all(seen[now] == 0 for now in range(2, 60, 2))
    assert all(seen[now] == 1000 for now in range(60, 600, 2))


def test_what_stands_still_is_seen_to() -> None:
    pace = Pace(0, 0)
    assert [pace.at(now, now * 500) for now in range(2, 12, 2)] == [500] * 5
    assert pace.at(12, 5000) == 500
    later = [pace.at(now, 5000) for now in (20, 60, 200)]
    assert later == sorted(later, reverse=True)
    assert later[0] < 150
    assert pace.at(400, 5000) == 0


def test_backward_is_no_pace() -> None:
    pace = Pace(0, 1000)
    assert pace.at(2, 2000) == 500
    assert pace.at(4, 0) == 0


def test_a_clock_that_is_set_back_is_no_pace_for_one_look() -> None:
    pace = Pace(7200, 0)
    assert pace.at(7202, 1000) == 500
    assert math.isnan(pace.at(3600, 2000))
    assert [pace.at(now, (now - 3600) * 500 + 2000) for now in (3602, 3604)] == [500, 500]


def test_a_fault_has_one_colour() -> None:
    view = View(findings=(Finding("warn", "a", "", "", "/x"), Finding("bad", "b", "", "", "/x")))
    assert (view.severity("/x"), view.severity("/y")) == ("bad", None)
