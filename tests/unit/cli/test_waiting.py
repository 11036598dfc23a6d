"""``--wait``: until it is done, can't be, or takes too long."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from spillway.cli import main, waiting
from spillway.errors import SpillwayError
from spillway.pg.lsn import Lsn
from spillway.subscriber.model import (
    Failure,
    TableResync,
    TableState,
    Verification,
    VerificationState,
    VerifiedTable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.fake_service import FakeService

    Run = Callable[..., tuple[int, str, str]]

CREATE = "subscription create a --source shop --database shop --lake /srv/l"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_what_is_there_at_once(service: FakeService, run: Run) -> None:
    made = run("slot create s2 --source shop --database shop --wait --json")
    assert json.loads(made[1])["slot_name"] == "s2"
    assert run("source add books host=db --wait --output name") == (0, "books\n", "")
    assert run(f"{CREATE} --wait --output name") == (0, "a\n", "")
    assert run("subscription disable a --wait -o name") == (0, "a\n", "")
    assert run("subscription enable a --wait -o name") == (0, "a\n", "")


def test_until_its_tables_are_ready(
    service: FakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(f"{CREATE} --disabled")
    service.subscriptions.change(
        "a",
        table_states=(TableState("public.a", "ready"), TableState("public.b", "copying")),
    )

    def finish(_: float) -> None:
        both = (TableState("public.a", "ready"), TableState("public.b", "ready"))
        service.subscriptions.change("a", table_states=both)

    # Between the first look and the second.
    monkeypatch.setattr(waiting, "pause", finish)
    code, out, err = run("subscription enable a --wait -o name")
    assert (code, out) == (0, "a\n")
    assert "1 of 2 tables are ready, public.b is copying" in err


def test_until_a_table_is_loaded_anew(
    service: FakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(f"{CREATE} --disabled")
    at = datetime(2026, 11, 26, tzinfo=UTC)

    def tells(table: TableState, resync: TableResync) -> None:
        service.subscriptions.change("a", table_states=(replace(table, resync=resync),))

    table = TableState("public.t", "ready")
    service.subscriptions.change("a", table_states=(table,))
    copying = replace(table, state="copying", bytes_copied=25, bytes_total=100)
    steps = iter(
        [
            (replace(table, state="waiting"), TableResync("loading", at)),
            (copying, TableResync("loading", at)),
            (table, TableResync("done", at, at, Lsn(16))),
        ]
    )
    monkeypatch.setattr(waiting, "pause", lambda _: tells(*next(steps)))
    code, out, err = run("subscription resync-table a public.t --yes --wait -o name")
    assert (code, out) == (0, "a\n")
    for said in ("its load is waiting", "it begins", "25 % are copied"):
        assert said in err
    assert "done" in run("subscription tables a -o wide")[1]

    taken = TableResync("cancelled", at, at)
    monkeypatch.setattr(waiting, "pause", lambda _: tells(table, taken))
    code, out, err = run("subscription resync-table a public.t --yes --wait")
    assert (code, out) == (1, "")
    assert "public.t is not loaded anew: somebody took that back" in err
    assert run("subscription cancel-resync a public.t -o name")[:2] == (0, "a\n")
    assert "cancelled" in run("subscription tables a -o wide")[1]

    failed = TableResync("failed", at, at, reason="no such host. Name another.")
    monkeypatch.setattr(waiting, "pause", lambda _: tells(table, failed))
    code, out, err = run("subscription resync-table a public.t --yes --wait")
    assert (code, out) == (1, "")
    assert "public.t could not be loaded anew: no such host" in err
    assert "no such host. Name another." in run("subscription show a")[1]


def test_a_lake_is_compared(
    service: FakeService, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(f"{CREATE} --disabled")
    at = datetime(2026, 11, 26, tzinfo=UTC)
    assert "never" not in run("subscription show a")[1]
    equal = VerifiedTable("public.t", True, 5, 5, 0, False)
    wrong = VerifiedTable("public.u", False, 5, 4, 1, True)
    skipped = VerifiedTable("public.v", True, 0, 0, 0, False, "it is being loaded")
    found = Verification(VerificationState.EQUAL, at, at, Lsn(48), (equal, skipped))
    different = replace(found, state=VerificationState.DIFFERENT, tables=(equal, wrong))
    why = Failure("not_ready", "no snapshot", "Wait.")
    failed = replace(found, state=VerificationState.FAILED, error=why)
    for told, code, says in (
        (found, 0, ("public.t: equal, 5 rows", "public.v: not compared", "1 not compared")),
        (different, 1, ("public.u: DIFFERENT, at least 1 keys", "public.u differ")),
        (failed, 1, ("no snapshot", "hint: Wait.")),
    ):

        def ends(_: float, told: Verification = told) -> None:
            service.subscriptions.change("a", verification=told)

        monkeypatch.setattr(waiting, "pause", ends)
        found_code, out, err = run("subscription verify a --table public.t")
        assert found_code == code
        assert "it is at work" in err
        for each in says:
            assert each in out + err
    assert service.subscriptions.compared == [("public.t",)] * 3
    assert "no snapshot" in run("subscription show a")[1]


def test_it_is_bounded(service: FakeService, run: Run) -> None:
    run(f"{CREATE} --disabled")
    service.subscriptions.change("a", table_states=(TableState("public.b", "copying"),))
    code, out, err = run("subscription enable a --wait --timeout 0.5")
    assert (code, out) == (1, "")
    assert "is not there after 0.5 s: 0 of 1 tables are ready" in err
    assert "hint: `spillway subscription show a` says how it is." in err
    assert main(["subscription", "show", "a"]) == 0


def test_what_will_not_be_is_told_at_once(service: FakeService, run: Run) -> None:
    run(f"{CREATE} --disabled")
    aside = TableState("public.b", "quarantined", reason="no key")
    service.subscriptions.change("a", table_states=(aside,))
    assert "public.b of subscription" in run("subscription enable a --wait")[2]
    failed = {"state": "failed", "error": {"code": "lake_error", "message": "m", "hint": "h"}}
    subscription = {"name": "a", "table_states": [], **failed}
    with pytest.raises(SpillwayError, match="has failed: m") as caught:
        waiting.subscription_is_missing(subscription)
    assert caught.value.code == "lake_error"
    with pytest.raises(SpillwayError, match="disabled"):
        waiting.subscription_is_missing({**subscription, "state": "paused", "error": None})


def test_a_slot_whose_decoding_has_stopped(service: FakeService, run: Run) -> None:
    service.engine.stop_decoding("shop")
    code, _, err = run("slot create s2 --source shop --database shop --wait")
    assert code == 1
    assert "code: corrupt_wal" in err
    assert "hint: Look at the file." in err


def test_a_refresh_waits_for_what_begins_later() -> None:
    settled = waiting.Settled(lambda found: str(found["missing"]), 0.0)
    assert settled({"missing": "x"}) == "x"
    assert settled({"missing": ""}) == ""
    assert waiting.Settled(lambda _: "", 100.0)({}) == "it may begin anew"
