"""A publication that a subscription reads by is dropped on a server of 18, which passes over it.
Nothing fails, so a finding tells it, and what that says mends what was missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from harness import remedies
from harness.postgresql_subscription import wait_until
from harness.subscribed_pair import SubscribedPair, subscribed_pair
from harness.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import Cluster
    from harness.serve_process import ServeProcess


@pytest.fixture
def pair(
    session_cluster: Callable[[int], Cluster], apply_service: ServeProcess
) -> Iterator[SubscribedPair]:
    with subscribed_pair(session_cluster(18), apply_service.service()) as there:
        yield there


def _findings(pair: SubscribedPair) -> list[dict[str, Any]]:
    found = pair.service.call("GET", "/findings")["findings"]
    return [one for one in found if one["subject"] == pair.name]


def _run(pair: SubscribedPair, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "SPILLWAY_URL": f"http://127.0.0.1:{pair.service.http_port}",
        "SPILLWAY_GRPC": pair.service.grpc_address,
        "SPILLWAY_APPLY_SOURCE_DSN": pair.source.dsn,
        "SPILLWAY_APPLY_TARGET_DSN": pair.target.dsn,
    }
    program = [sys.executable, "-m", "spillway.cli", *command]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", ["DROP", deep("RENAME")])
def test_it_is_told_and_what_was_missed_is_mended(pair: SubscribedPair, way: str) -> None:
    pair.both("CREATE TABLE t (id int PRIMARY KEY)")
    pair.create("TABLE t, marker")
    pair.source.execute("INSERT INTO t VALUES (1)")
    pair.catch_up()
    assert not _findings(pair)
    gone, again = {
        "DROP": ("DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE t, marker"),
        "RENAME": ("ALTER PUBLICATION p RENAME TO q", "ALTER PUBLICATION q RENAME TO p"),
    }[way]
    pair.source.execute(gone)
    pair.source.execute("INSERT INTO t VALUES (2)")
    wait_until("it is found", lambda: bool(_findings(pair)), pair.told)
    (found,) = _findings(pair)
    assert (found["code"], found["severity"]) == ("publication_missing", "bad")
    assert found["title"].endswith("publication p")
    # The stream itself goes on, as PostgreSQL's does: no other sign would tell.
    assert pair.view()["state"] == "streaming"
    # What it says.
    pair.source.execute(again)
    pair.source.execute("INSERT INTO t VALUES (3)")
    pair.catch_up()
    wait_until("it is gone", lambda: not _findings(pair), pair.told)
    assert pair.target.query("SELECT id FROM t ORDER BY 1") == [(1,), (3,)]
    commands = [
        remedies.command(found["remedy"], f"subscription {name}") for name in ("verify", "repair")
    ]
    verified, repaired = (_run(pair, command) for command in commands)
    assert verified.returncode == 1, verified.stderr
    assert repaired.returncode == 0, repaired.stderr
    pair.check_equal("t")


@pytest.mark.long
def test_one_of_two(pair: SubscribedPair) -> None:
    """What the other publishes goes on; the subscription may do without the one that is gone."""
    pair.both("CREATE TABLE t (id int PRIMARY KEY)")
    pair.source.execute("CREATE PUBLICATION other FOR TABLE t")
    pair.create("TABLE marker")
    path = f"/subscriptions/{pair.name}"
    pair.service.call("PATCH", path, json={"publications": ["p", "other"]})
    pair.source.execute("INSERT INTO t VALUES (1)")
    pair.catch_up()
    pair.source.execute("DROP PUBLICATION other")
    wait_until("it is found", lambda: bool(_findings(pair)), pair.told)
    (found,) = _findings(pair)
    assert found["title"].endswith("publication other")
    assert f"PATCH /v1{path}" in found["remedy"]
    pair.catch_up()
    pair.service.call("PATCH", path, json={"publications": ["p"]})
    wait_until("it is gone", lambda: not _findings(pair), pair.told)
    pair.catch_up()
