"""Fixtures for every test.

===============  ===================================================================================
pg               a fresh database on the session's server, once on PostgreSQL 18 and, in the long
                 tier, once on 15
pg15, pg18       the same on that one major
session_cluster  the session's server of a major, for fixtures of a wider scope
jar_folder       Delta's jars, for what starts a lake's job; without them, or without Java, the test
                 is skipped
fresh_cluster    a factory of servers of the test's own: ``fresh_cluster(17, wal_level="replica")``
===============  ===================================================================================

When a test fails, what its servers logged meanwhile is shown with it.

With pytest-xdist (``make test``) several processes share the tests as :mod:`harness.parallel` says,
each with servers of its own.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from harness import jvm
from harness.cluster import Cluster, Database
from harness.servers import PINS, cache_directory
from harness.tiers import LONG, collected, is_long, majors_by_tier, of_share, parse_share

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from harness.parallel import Sharing
    from spillway.demo.private_postgres import Setting

jvm.start_quickly()
# As `spillway`'s commands: PySpark forks to start a JVM, while tests' clients are in gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# A script's background job has SIGINT ignored, and whatever tests start would inherit that: no
# Ctrl-C would end it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_sessions: dict[int, Cluster] = {}
_logs = pytest.StashKey[dict["Path", int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots", action="store_true", help="write the pictures in docs/images anew"
    )
    parser.addoption(
        "--accept-pictures",
        action="store_true",
        help="take the pictures of pages that differ as the ones to compare the next with",
    )
    parser.addoption(
        "--share",
        default="",
        help="of the long tier only this share: 3/7, or today (tests/harness/tiers.py)",
    )
    parser.addoption(
        "--within",
        type=int,
        default=0,
        metavar="SECONDS",
        help="begin no part of the suite later than this, and name what is left; for several "
        "processes",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    versions = ", ".join(pin.version.split("-")[0] for pin in PINS.values())
    header = [
        f"kernel: {platform.release()} {platform.machine()}",
        f"PostgreSQL servers: {versions}",
    ]
    if config.option.share:
        header.append(f"long tier: share {config.option.share}")
    return header


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{LONG}: depth, which `make test` leaves to `make test-long`: harness.tiers"
    )
    if config.option.share:
        # The processes of xdist get what is found here: midnight may come before they ask.
        try:
            config.option.share = "{}/{}".format(*parse_share(config.option.share))
        except ValueError as error:
            raise pytest.UsageError(f"--share: {error}") from None
    if config.option.within and not hasattr(config, "workerinput"):
        from harness.parallel import week_of

        # For all processes, as above.
        config.option.week = week_of(time.time())
    config.addinivalue_line(
        "markers",
        "follows_hint(*codes): does what the hints of these errors say, and sees that it mends "
        "them",
    )
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        from harness.parallel import Progress

        if config.get_verbosity() <= 0:
            config.pluginmanager.register(Progress(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    from harness import remedies

    remedies.taken.clear()
    yield
    remedies.check_kept(item.iter_markers(remedies.MARK))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.option.within:
        from harness.parallel import say_what_was_left_out

        say_what_was_left_out(config, terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing:
    from harness.parallel import Sharing

    return Sharing(config, log)


def pytest_xdist_auto_num_workers() -> int:
    from harness.parallel import processes

    return processes()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    process = getattr(collector.config, "workerinput", None)
    if process is not None and report.passed and isinstance(collector, pytest.Directory):
        from harness.parallel import from_share_on

        number = int(process["workerid"].removeprefix("gw"))
        report.result = from_share_on(report.result, number, process["workercount"])
    return report


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    if hasattr(config, "workerinput"):
        from harness.parallel import in_order

        items[:] = in_order(items)
    # Before anything is left out.
    config.stash[collected] = {item.nodeid: is_long(item) for item in items}
    if config.option.share:
        items[:], others = of_share(items, parse_share(config.option.share))
        config.hook.pytest_deselected(items=others)
    yield
    if hasattr(config, "workerinput"):
        from harness.parallel import place_of

        week = getattr(config.option, "week", None)
        items.sort(key=lambda item: place_of(item.nodeid, week))


class ClusterFactory(Protocol):
    def __call__(
        self, major: int = 15, *, initdb_options: Sequence[str] = (), **settings: Setting
    ) -> Cluster: ...


def _session_cluster(major: int) -> Cluster:
    """The session's server of *major*, started at first use, and again should a test have stopped
    it.
    """
    cluster = _sessions.get(major)
    if cluster is None:
        cluster = _sessions[major] = Cluster(major, max_prepared_transactions=16)
    cluster.start()
    return cluster


@pytest.fixture(scope="session", autouse=True)
def _stop_session_clusters() -> Iterator[None]:
    yield
    for cluster in _sessions.values():
        cluster.destroy()
    _sessions.clear()


def _fresh_database(request: pytest.FixtureRequest, major: int) -> Iterator[Database]:
    cluster = _session_cluster(major)
    _watch(request.node, cluster)
    stem = re.sub(r"[^a-z0-9]+", "_", request.node.originalname.lower())[:40]
    name = f"{stem}_{secrets.token_hex(4)}"
    yield cluster.create_database(name)
    cluster.start()
    cluster.drop_database(name)


@pytest.fixture(scope="session")
def session_cluster() -> Callable[[int], Cluster]:
    return _session_cluster


@pytest.fixture(scope="session")
def jar_folder() -> Path:
    from spillway.errors import JarsMissing, JavaMissing
    from spillway.lake import jars

    folder = Path(os.environ.get("SPILLWAY_JARS") or cache_directory() / "jars").absolute()
    try:
        jars.resolve(folder)
    except (JavaMissing, JarsMissing) as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(params=majors_by_tier([15, 18]), ids=["pg15", "pg18"])
def pg(request: pytest.FixtureRequest) -> Iterator[Database]:
    yield from _fresh_database(request, request.param)


@pytest.fixture
def pg15(request: pytest.FixtureRequest) -> Iterator[Database]:
    yield from _fresh_database(request, 15)


@pytest.fixture
def pg18(request: pytest.FixtureRequest) -> Iterator[Database]:
    yield from _fresh_database(request, 18)


@pytest.fixture
def fresh_cluster(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    clusters: list[Cluster] = []

    def make(
        major: int = 15, *, initdb_options: Sequence[str] = (), **settings: Setting
    ) -> Cluster:
        cluster = Cluster(major, initdb_options=initdb_options, **settings)  # type: ignore[arg-type]
        clusters.append(cluster)
        _watch(request.node, cluster)
        cluster.start()
        return cluster

    yield make
    for cluster in clusters:
        cluster.destroy()


def _watch(item: pytest.Item, cluster: Cluster) -> None:
    """Note where *cluster*'s log ends, to show what follows if the test fails."""
    size = cluster.log_file.stat().st_size if cluster.log_file.exists() else 0
    item.stash.setdefault(_logs, {}).setdefault(cluster.log_file, size)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for path, offset in item.stash.get(_logs, {}).items():
            if path.exists():
                with path.open("rb") as log:
                    log.seek(offset)
                    tail = log.read()[-16_000:].decode(errors="replace").splitlines()[-60:]
                report.sections.append((f"PostgreSQL log {path}", "\n".join(tail)))
    # What was logged may hold lone surrogates, which a report can't take from one process to
    # another.
    report.sections[:] = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
