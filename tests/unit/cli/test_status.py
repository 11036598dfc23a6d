"""One screen of all: what needs attention, with its remedy, and how the command ends."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from spillway.cli import main
from spillway.service.model import Obstacle
from spillway.subscriber.model import Failure, SubscriptionState, TableState

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.fake_service import FakeService

    Run = Callable[..., tuple[int, str, str]]


#: in what the command prints
REST_SPEECH = re.compile(r"\b(?:GET|POST|PUT|PATCH|DELETE) /|/v1\b|/ui\b|\bpage\b")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_all_is_well(service: FakeService, run: Run) -> None:
    code, out, err = run("status --exit-code")
    assert (code, err) == (0, "")
    assert "all is well" in out.splitlines()[0]
    assert "shop\tstreaming\t18.4" in out
    assert run("status -o name")[1] == ""


def test_what_stands_still_comes_first_with_its_remedy(service: FakeService, run: Run) -> None:
    service.engine.lag_s = 4000.0
    service.engine.stop_decoding("shop")
    assert run("subscription create a --source shop --database shop --lake /l")[0] == 0
    service.subscriptions.change(
        "a",
        state=SubscriptionState.FAILED,
        error=Failure("lake_error", "no space", "GET /v1/subscriptions/a/log shows more."),
        table_states=(TableState("public.orders", "quarantined", reason="no key"),),
    )
    info = service.engine.sources["shop"]
    service.engine.sources["shop"] = dataclasses.replace(
        info,
        state="failed",
        error="connection refused",
        hint="Check it with GET /v1/sources/shop.",
        since=datetime.now(UTC) - timedelta(minutes=7),
    )
    service.engine.in_the_way.append(
        Obstacle("disk", "/srv", "disk_full", "No space left", "Make room.", None, "Disk full")
    )
    code, out, _ = run("status --exit-code")
    assert code == 4
    assert "stand still" in out.splitlines()[0]
    assert "Source shop receives no WAL (for 7 min)" in out
    assert "hint: Check it with `spillway source show shop`." in out
    assert "hint: `spillway subscription log a` shows more." in out
    assert not REST_SPEECH.search(out)
    assert "public.orders of subscription a is in quarantine" in out
    assert "Disk full" in out
    assert "hint: Make room." in out
    found = json.loads(run("status --json")[1])
    severities = [one["severity"] for one in found["findings"]]
    assert severities == sorted(severities), "bad before warn"
    assert {("disk", None), ("source_down", "shop"), ("subscription_failed", "shop")} <= {
        (one["code"], one["source"]) for one in found["findings"]
    }
    names = run("status -o name")[1].splitlines()
    assert {"service/disk", "source/shop", "subscription/a"} <= set(names)
    assert len(names) == len(set(names))
    assert run("status")[0] == 0, "asked for nothing, it has done its work"


def test_slots_that_soon_may_be_trouble(service: FakeService, run: Run) -> None:
    service.engine.lag_s = 4000.0
    old = datetime.now(UTC) - timedelta(hours=2)
    service.engine.change_slot("s1", inactive_since=old)
    code, out, _ = run("status --exit-code")
    assert code == 3
    assert "Nobody reads slot s1" in out
    assert "For 2 h it had no consumer" in out
    assert "use `spillway slot drop s1` if it is not needed any more." in out
    service.engine.change_slot("s1", inactive_since=None, active=True)
    out = run("status")[1]
    assert "Slot s1 lags 66 min" in out
    assert "`spillway slot end-session s1` ends a session that hangs." in out
    service.engine.change_slot("s1", safe_wal_size=1 << 20, retained_bytes=100 << 20)
    code, out, _ = run("status --exit-code")
    assert code == 4
    assert "about to be invalidated" in out
    assert "use `spillway slot advance s1`, or raise" in out
    assert not REST_SPEECH.search(out)
    service.engine.change_slot("s1", invalidation_reason="wal_removed")
    assert "Slot s1 was invalidated" in run("status")[1]


def test_what_the_overview_finds_is_found_here(service: FakeService, run: Run) -> None:
    """One meaning of what is wrong: a subscription that lags, conflicts and the like come, too."""
    assert run("subscription create a --source shop --database shop --lake /l")[0] == 0
    service.subscriptions.change(
        "a", state=SubscriptionState.STREAMING, enabled=True, lag_seconds=7200.0
    )
    code, out, _ = run("status --exit-code")
    assert code == 3
    assert "Subscription a is 2 h behind" in out
    assert "`spillway subscription log a`" in out
