"""How the suite is shared out among the processes of pytest-xdist, and how it says what it is
doing.

What is expensive to begin is begun by one process and once: a file's tests stay together, since
services and decoders are made for a whole module. Comparisons with PostgreSQL are parted by major
as well, because a module's fixtures are made for each major anyhow. Every process has servers of
its own, started when the first test asks for one.

The long parts come first, so that no process sits idle at the end while another works through one
of them. So the lake comes first, in files: each process starts a Spark session for its share of
them (half a minute, and 1.5 GB until the end), which costs less than the half hour that one process
would be busy with the lake alone. A new test of the lake goes into whichever file it belongs to; a
file that takes minutes should be named below.

There is one process more than there are cores: a test waits for a fifth of its time, for another
process's checkpoint or poll, and the cores would be idle then. The one more has no part of the
lake, which is work alone, and memory for another session.

Each process imports every test, and pytest rewrites the assertions in them, which is most of that
work. They begin in different places and keep what they have rewritten, so that it is done once by
one of them; the order in which tests run is the same in all.

CI has an hour, and the machines that it meets differ by more than two times. So the long tier may
be given a time, with ``--within``, after which no part of it is begun any more; what was left out
is counted and named at the end. Its order is another one each week then, so that what is left out
is, too.

Only :class:`Sharing` knows xdist; without the plugin pytest runs all tests in its one process.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

#: Files and folders by how long their parts take, the longest first; anything else comes last.
_LONGEST_FIRST: Final = (
    "tests/integration/lake/test_initial_load",
    "tests/integration/lake/test_crash",
    "tests/integration/lake",
    "tests/integration/terraform/test_terraform_lake",
    "tests/integration/test_demo",
    "tests/fault",
    "tests/oracle",
    "tests/browser",
    "tests/integration",
    "tests/property",
)
#: What the process that there is beyond the cores leaves to the others.
_OF_CORES_ALONE: Final = "tests/integration/lake/"
#: The tests that were not begun within the time that was given.
left_out: Final = pytest.StashKey[list[str]]()
#: what of a failure is said at once
_CAUSE_CHARS: Final = 400
_Child = TypeVar("_Child")
_MAJOR: Final = re.compile(r"\bpg1[0-9]\b")


def part_of(nodeid: str) -> str:
    """Return the name of the part of the suite that the test belongs to; a part is run by one
    process.
    """
    file, _, test = nodeid.partition("::")
    if file.startswith("tests/browser/"):
        # One browser and one service for all of them.
        return "tests/browser"
    major = _MAJOR.search(test) if file.startswith("tests/oracle/") else None
    return f"{file} {major[0]}" if major else file


def week_of(now_s: float) -> int:
    """Return the number of the week, by UTC, in which each share of the long tier comes once."""
    return int(now_s) // (7 * 86_400)


def place_of(nodeid: str, week: int | None = None) -> int:
    """Return where the test's part comes in the queue: in that *week*, if there is not the time for
    all.
    """
    if week is not None:
        return zlib.crc32(f"{week} {part_of(nodeid)}".encode(errors="surrogateescape"))
    for place, folder in enumerate(_LONGEST_FIRST):
        if nodeid.startswith(folder):
            return place
    return len(_LONGEST_FIRST)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def processes() -> int:
    """Return how many processes share the suite unless somebody says how many."""
    return cores() + 1


def from_share_on(children: list[_Child], number: int, of: int) -> list[_Child]:
    """Return *children* of a folder, beginning with the share of process *number* (from 0 on)
    *of* so many, and ending with what is before it.
    """
    first = len(children) * number // of
    return children[first:] + children[:first]


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return *items* as one process alone would have collected them."""
    return sorted(items, key=lambda item: item.path.parts)


class Sharing(LoadScopeScheduling):  # type: ignore[misc]  # published without types
    """Gives whole parts to the processes, in the order in which the tests were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        within_s = config.option.within
        self._begins_until_s = time.monotonic() + within_s if within_s else None

    def _reschedule(self, node: Any) -> None:
        if self._begins_until_s is not None and time.monotonic() > self._begins_until_s:
            left = self.config.stash.setdefault(left_out, [])
            while self.workqueue:
                _, part = self.workqueue.popitem(last=False)
                left += (test for test, done in part.items() if not done)
        super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        if node in self.nodes[cores() :]:
            part = next((p for p in self.workqueue if not p.startswith(_OF_CORES_ALONE)), None)
            if part is not None:
                self.workqueue.move_to_end(part, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Take a process away that ended; the test that ended it has failed and is not run again.

        The base class would give it to the next process, and end that one too.
        """
        workload = self.assigned_work.pop(node)
        unfinished: list[str] = [
            test for part in workload.values() for test, done in part.items() if not done
        ]
        if not unfinished:
            return None
        for name, part in workload.items():
            if unfinished[0] in part:
                part[unfinished[0]] = True
            if not all(part.values()):
                self.workqueue[name] = part
        for other in self.assigned_work:
            self._reschedule(other)
        return unfinished[0]


class Progress:
    """Says what has failed at once, and what is done a part at a time, instead of a dot for each
    test.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._expected: Counter[str] = Counter()
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: Counter[str] = Counter()
        self._finished = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._expected = Counter(map(part_of, ids))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, tuple[str, str, Any]]:
        category, _, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = part_of(report.nodeid)
        outcomes = self._outcomes[part]
        self._seconds[part] += round(1000 * report.duration)
        if report.failed:
            self._say(f"FAILED {report.nodeid} ({report.when}): {cause_of(report)}")
        if report.failed or report.skipped or report.when == "call":
            outcomes[report.outcome] += 1
        if report.when in ("setup", "call"):
            return
        # Also a report without a phase: the process ended.
        outcomes["finished"] += 1
        self._finished += 1
        if outcomes["finished"] == self._expected[part]:
            counts = ", ".join(
                f"{outcomes[o]} {o}" for o in ("passed", "failed", "skipped") if outcomes[o]
            )
            share = 100 * self._finished // self._expected.total()
            self._say(f"{share:3} %  {part}: {counts} in {self._seconds[part] / 1000:.0f} s")

    def _say(self, line: str) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(line)
            terminal.flush()


def say_what_was_left_out(config: pytest.Config, terminal: pytest.TerminalReporter) -> None:
    """Name the parts of which tests were not begun within the time given."""
    left = config.stash.get(left_out, [])
    if left:
        parts = Counter(map(part_of, left))
        terminal.section(f"{len(left)} tests not begun within {config.option.within} s")
        for part, tests in parts.items():
            terminal.write_line(f"{part}: {tests}")


def cause_of(report: pytest.TestReport) -> str:
    """Return in a line what failed and where: the whole report comes at the end of the run, which
    is not seen when the run is cut, nor by who is shown a part of it.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return _shortened(report.longreprtext)
    return f"{Path(crash.path).name}:{crash.lineno}: {_shortened(crash.message)}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CAUSE_CHARS else f"{line[:_CAUSE_CHARS]}…"
