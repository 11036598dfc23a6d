"""How the suite is shared out among processes."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness import parallel
from harness.parallel import Sharing, cause_of, from_share_on, part_of

LAKE = "tests/integration/lake/test_job.py"


@pytest.mark.parametrize("children", [[], ["a"], list("abcdefg")])
def test_each_process_begins_elsewhere_and_has_all(children: list[str]) -> None:
    # The fourth stands in for one that ended.
    orders = [from_share_on(children, number, 3) for number in range(4)]
    assert all(sorted(order) == children for order in orders)
    assert orders[0] == orders[3] == children
    assert len({order[0] for order in orders if order}) == min(3, len(children))


class Node:
    shutting_down = False

    def __init__(self) -> None:
        self.got: list[int] = []

    def shutdown(self) -> None:
        self.shutting_down = True

    def send_runtest_some(self, indices: list[int]) -> None:
        self.got += indices


def sharing(tests: list[str], nodes: list[Node], within_s: int = 0) -> Any:
    """A scheduler as it is once all have collected *tests*; nothing is given out yet."""
    option = SimpleNamespace(within=within_s)
    config = SimpleNamespace(
        option=option, stash=pytest.Stash(), getvalue=lambda _: ["popen"] * len(nodes)
    )
    made: Any = Sharing(cast("pytest.Config", config), None)
    made.assigned_work = OrderedDict((node, {}) for node in nodes)
    made.registered_collections = dict.fromkeys(nodes, tests)
    made.workqueue = OrderedDict()
    for test in tests:
        made.workqueue.setdefault(made._split_scope(test), {})[test] = False
    return made


def test_who_is_beyond_the_cores_leaves_the_lake_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel, "os", SimpleNamespace(sched_getaffinity=lambda _: {0, 1}))
    assert parallel.processes() == 3
    tests = [f"{LAKE}::test_a", f"{LAKE}::test_b", "tests/unit/test_c.py::test_c"]
    nodes = [Node() for _ in range(3)]
    shared = sharing(tests, nodes)
    shared._assign_work_unit(nodes[2])
    assert nodes[2].got == [2]
    shared._assign_work_unit(nodes[1])
    assert nodes[1].got == [0, 1]
    # Where nothing else is left it takes that, too.
    shared = sharing(tests[:2], nodes)
    shared._assign_work_unit(nodes[2])
    assert nodes[2].got == [2, 0, 1]


def test_what_is_late_is_not_begun_but_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(parallel, "time", SimpleNamespace(monotonic=lambda: now_s))
    tests = [f"tests/unit/test_{letter}.py::test_{n}" for letter in "abc" for n in (1, 2)]
    nodes = [Node()]
    shared = sharing(tests, nodes, within_s=60)
    now_s = 160.0
    shared._reschedule(nodes[0])
    assert nodes[0].got == [0, 1]
    now_s = 161.0
    # What is begun is ended: the second test of the first part is still to come.
    shared.mark_test_complete(nodes[0], 0)
    assert nodes[0].got == [0, 1]
    assert nodes[0].shutting_down
    assert shared.tests_finished
    assert shared.config.stash[parallel.left_out] == tests[2:]

    lines: list[str] = []
    terminal = SimpleNamespace(section=lines.append, write_line=lines.append)
    parallel.say_what_was_left_out(shared.config, cast("Any", terminal))
    assert lines == [
        "4 tests not begun within 60 s",
        "tests/unit/test_b.py: 2",
        "tests/unit/test_c.py: 2",
    ]


def test_where_time_is_short_the_order_is_another_one_each_week() -> None:
    parts = [f"{LAKE}::test", *(f"tests/unit/test_{letter}.py::test" for letter in "abcdefgh")]
    tests = [f"{part}_{n}" for part in parts for n in (1, 2)]
    assert sorted(tests, key=parallel.place_of) == tests
    week = parallel.week_of(3 * 7 * 86_400.0)
    assert (week, parallel.week_of(3 * 7 * 86_400 - 1.0)) == (3, 2)
    orders = [sorted(tests, key=lambda test: parallel.place_of(test, w)) for w in range(week, 9)]
    assert len({tuple(order) for order in orders}) == len(orders)
    for order in orders:
        # A part's tests stay together, in their order.
        assert [part_of(test) for test in order[::2]] == [part_of(test) for test in order[1::2]]
        assert all(test.endswith("_1") for test in order[::2])


def _report(error: Exception | str) -> pytest.TestReport:
    shown: Any = error
    if isinstance(error, Exception):
        with pytest.raises(type(error)) as raised:
            raise error
        shown = raised.getrepr()
    return pytest.TestReport("a.py::test", ("a.py", 1, "test"), {}, "failed", shown, "call")


def test_a_failure_is_said_with_its_cause_in_a_line() -> None:
    said = cause_of(_report(ValueError("first line\n  second")))
    assert said.startswith("test_parallel.py:")
    assert said.endswith(": ValueError: first line second")
    assert len(cause_of(_report(ValueError("x" * 5000)))) < 500
    # A process that ended has no line.
    assert cause_of(_report("worker 'gw1' crashed")) == "worker 'gw1' crashed"
