"""How a real subscription is, said in five places: REST, metrics, the overview, alerts and commands
are asked in each state that it is brought into, and must not contradict each other.

The program is a real one, which writes into a PostgreSQL of its own, and the states come of what
really happens: it is stopped by a signal, its target goes, its service is started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from harness.cluster import Cluster
from harness.postgresql_subscription import wait_until
from harness.service import Service, service_in_process
from spillway.alerts import watchman
from spillway.cli import main
from spillway.watch import findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import Database

NAME = "copy"
STATES = {"initializing", "copying", "streaming", "paused", "failed"}
SILENT_S = 6.0


class Signs:
    """What each place says of the subscription, asked at about the same time."""

    def __init__(self, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
        self.service = service
        self._capsys = capsys

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.service.call("GET", f"/subscriptions/{NAME}")
        return found

    def _found(self) -> dict[str, str]:
        """Findings about it, by code: their titles."""
        every = self.service.call("GET", "/findings")["findings"]
        return {one["code"]: one["title"] for one in every if one["subscription"] == NAME}

    def _firing(self) -> dict[str, str]:
        every = self.service.call("GET", "/alerts", params={"state": "firing"})["alerts"]
        # Of its tables, too: NAME/TABLE.
        of_it = (one for one in every if one["subject"].partition("/")[0] == NAME)
        return {one["code"]: one["title"] for one in of_it}

    def _metrics(self) -> dict[str, float]:
        """Its numbers; the state's as ``state/NAME``."""
        found = {}
        for line in self.service.http.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if f'subscription="{NAME}"' in head and "_subscription_" in head:
                name = head.partition("{")[0].removeprefix("spillway_subscription_")
                state = re.search(r'state="(\w+)"', head)
                found[f"{name}/{state[1]}" if name == "state" and state else name] = float(value)
        return found

    def _command(self, *arguments: str) -> str:
        self._capsys.readouterr()
        with contextlib.suppress(SystemExit):
            main(list(arguments))
        return self._capsys.readouterr().out

    def contradictions(self) -> list[str]:
        """What two of them say differently."""
        before = self.view()
        found, firing, metrics = self._found(), self._firing(), self._metrics()
        overview = unescape(self.service.http.get("/").raise_for_status().text)
        assert "What needs attention" in overview or "Problems" in overview
        listed = json.loads(self._command("subscription", "list", "-o", "json"))
        status = " ".join(self._command("status").split())
        after = self.view()
        wrong = []
        states = {name for name in STATES if metrics.get(f"state/{name}") == 1.0}
        if states != {after["state"]}:
            wrong.append(f"metrics: {states}, REST: {after['state']}")
        (row,) = [one for one in listed if one["name"] == NAME]
        if row["state"] != after["state"]:
            wrong.append(f"command: {row['state']}, REST: {after['state']}")
        if (after["lag_seconds"] is None) != ("lag_seconds" not in metrics):
            wrong.append(f"lag in metrics: {metrics.get('lag_seconds')}, {after['lag_seconds']}")
        elif after["lag_seconds"] is not None and not (
            (before["lag_seconds"] or 0) - 3 <= metrics["lag_seconds"] <= after["lag_seconds"] + 3
        ):
            wrong.append(f"lag: {metrics['lag_seconds']} and {after['lag_seconds']}")
        if found.keys() != firing.keys():
            wrong.append(f"findings {sorted(found)}, alerts {sorted(firing)}")
        if ("subscription_failed" in found) != (after["state"] == "failed"):
            wrong.append(f"{sorted(found)} of one that is {after['state']}")
        for title in found.values():
            # How long it lasts goes on between two looks.
            told = re.sub(r"\d+ \w+ behind", "", title)
            if told not in overview:
                wrong.append(f"the overview has no {title!r}")
            if told not in status:
                wrong.append(f"spillway status has no {title!r}: {status}")
        return wrong

    def settle(self, state: str, *codes: str) -> None:
        """Wait until it is in *state*, with findings of *codes* alone, and all places say so."""
        said: list[object] = []

        def is_so() -> bool:
            return self.view()["state"] == state and self._found().keys() == {*codes}

        def agreed() -> bool:
            # Before and after: what was found just now is on the overview a look later.
            before, wrong = is_so(), self.contradictions()
            said[:] = [self.view(), self._found(), wrong]
            return before and is_so() and not wrong

        wait_until(f"{state} {codes}", agreed, lambda: str(said))
        # … and that they go on so.
        time.sleep(1)
        assert not (wrong := self.contradictions()), wrong


@pytest.fixture
def source(session_cluster: Callable[[int], Cluster]) -> Iterator[Database]:
    cluster = session_cluster(18)
    database = cluster.create_database("signs_agree")
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
    yield database
    cluster.drop_database("signs_agree")


@pytest.mark.long
def test_all_places_say_the_same_of_each_state(
    tmp_path: Path,
    source: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(watchman, "STEP_S", 0.2)
    monkeypatch.setattr(findings, "_SILENT_S", SILENT_S)
    data = tmp_path / "data"
    with Cluster(18) as server:
        target = server.create_database("target")
        source.execute("INSERT INTO t VALUES (0)")
        target.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (0)")
        with service_in_process(data) as service:
            monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
            service.create_source(source.dsn)
            service.call("PUT", "/alerts/rules/all", json={"clear_s": 0})
            service.call(
                "POST",
                "/subscriptions",
                json={
                    "name": NAME, "source": "main", "database": source.name,
                    "publications": ["p"], "target": {"kind": "postgres", "dsn": target.dsn},
                },
            )  # fmt: skip
            signs = Signs(service, capsys)

            # Its table can't be copied, until somebody does what the finding says.
            signs.settle("copying", "table_not_copied")
            (found,) = service.call("GET", "/findings")["findings"]
            assert "duplicate key" in found["detail"]
            assert found["remedy"].startswith("On the target: TRUNCATE public.t; or")
            target.execute("TRUNCATE public.t")
            signs.settle("streaming")
            source.execute("DELETE FROM t")
            wait_until("it is deleted", lambda: target.value("SELECT count(*) FROM t") == 0)

            # It says nothing any more, and lags: only a program that runs can write.
            pid = signs.view()["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                source.execute("INSERT INTO t VALUES (1)")
                signs.settle("streaming", "subscription_stale")
                wait_until("it lags", lambda: (signs.view()["lag_seconds"] or 0) > SILENT_S)
                assert not signs.contradictions()
            finally:
                os.kill(pid, signal.SIGCONT)
            signs.settle("streaming")
            assert target.value("SELECT count(*) FROM t") == 1

            # Somebody stops it: that is no fault.
            service.call("POST", f"/subscriptions/{NAME}/disable")
            source.execute("INSERT INTO t VALUES (2)")
            signs.settle("paused")
            service.call("POST", f"/subscriptions/{NAME}/enable")
            signs.settle("streaming")

            # Its target goes.
            server.stop("immediate")
            source.execute("INSERT INTO t VALUES (3)")
            signs.settle("failed", "subscription_failed")
            assert signs.view()["error"]["code"] == "target_unavailable"

        # Started again while it is failed, and then the target is there again.
        with service_in_process(data) as service:
            monkeypatch.setenv("SPILLWAY_URL", f"http://127.0.0.1:{service.http_port}")
            signs = Signs(service, capsys)
            (alert,) = service.call("GET", "/alerts", params={"state": "firing"})["alerts"]
            assert alert["code"] == "subscription_failed", "not over while nothing is known"
            signs.settle("failed", "subscription_failed")
            server.start()
            service.call("POST", f"/subscriptions/{NAME}/disable")
            service.call("POST", f"/subscriptions/{NAME}/enable")
            signs.settle("streaming")
            assert target.value("SELECT count(*) FROM t") == 3

            # Its program is killed: it is started again by itself.
            os.kill(signs.view()["pid"], signal.SIGKILL)
            source.execute("INSERT INTO t VALUES (4)")
            wait_until("it goes on", lambda: target.value("SELECT count(*) FROM t") == 4)
            signs.settle("streaming")
            service.call("DELETE", f"/subscriptions/{NAME}")
            service.call("DELETE", "/sources/main")
