"""``spillway changes``: times as people write them, and changes as people read them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

import pytest

from spillway.cli import main
from spillway.cli.changes import lines_of
from spillway.cli.moments import moment
from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from harness.fake_service import FakeService

Side: TypeAlias = "tuple[str, str | None]"
NOW = datetime(2026, 11, 23, 15, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", NOW),
        ("today", datetime(2026, 11, 23, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 22, tzinfo=UTC)),
        ("2h", NOW - timedelta(hours=2)),
        ("30 min", NOW - timedelta(minutes=30)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-11-22", datetime(2026, 11, 22, tzinfo=UTC)),
        ("2026-11-22 10:00", datetime(2026, 11, 22, 10, tzinfo=UTC)),
        ("2026-11-22T10:00:00+02:00", datetime(2026, 11, 22, 8, tzinfo=UTC)),
    ],
)
def test_times(text: str, meant: datetime) -> None:
    assert moment(text, NOW, "--since") == meant


@pytest.mark.parametrize("text", ["", "tomorow", "2026-13-01", "h", "-2h"])
def test_no_times(text: str) -> None:
    with pytest.raises(InvalidRequest, match="and no time"):
        moment(text, NOW, "--since")


def test_a_change_is_read() -> None:
    def column(
        name: str, old: tuple[str, str | None], new: tuple[str, str | None], changed: object
    ):
        return {
            "name": name, "old_is": old[0], "old": old[1], "new_is": new[0], "new": new[1],
            "changed": changed,
        }  # fmt: skip

    change = {
        "operation": "update", "schema": "public", "table": "t", "xid": 7, "commit_lsn": "0/10",
        "committed_at": "2026-11-23T10:00:00Z", "origin": "o",
        "columns": [
            column("id", ("value", "1"), ("value", "1"), False),
            column("status", ("value", "a\x1b[31m"), ("null", None), True),
            column("v", ("unknown", None), ("value", "b"), None),
        ],
    }  # fmt: skip
    head, *rows = lines_of(change)
    assert "UPDATE public.t  xid 7  commit 0/10  origin o" in head
    assert rows == [
        "    id      1",
        "  * status  a\\x1b[31m → (null)",
        "    v       b (before: unknown)",
    ]


def test_a_message_is_read() -> None:
    change = {
        "operation": "message", "schema": "", "table": "", "xid": 7, "commit_lsn": "0/10",
        "committed_at": "2026-11-23T10:00:00Z", "origin": None, "columns": [],
        "message": {
            "transactional": True, "prefix": "au\x1bdit", "content": "a\nb", "content_hex": None,
        },
    }  # fmt: skip
    head, row = lines_of(change)
    assert head.endswith("  MESSAGE au\\x1bdit  xid 7  commit 0/10")
    assert row == "    a\\nb"
    outside = {"transactional": False, "prefix": "p", "content": None, "content_hex": "\\xff00"}
    head, row = lines_of({**change, "committed_at": None, "message": outside})
    assert head == "at once  MESSAGE p  xid 7  at 0/10"
    assert row == "    \\xff00"


def test_the_only_source_and_database_are_meant(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        code = main(["changes", *words])
        captured = capsys.readouterr()
        assert (code == 0) == ("error" not in captured.err), captured.err
        return captured.err

    engine = service.engine
    assert "0 changes." in run()
    shop = engine.sources["shop"]
    (session,) = shop.sessions
    two = (session, dataclasses.replace(session, database="another"))
    engine.sources["shop"] = dataclasses.replace(shop, sessions=two)
    said = run()
    assert 'several of source "shop": another, shop' in said
    assert "--database another" in said
    assert "0 changes." in run("--database", "shop")
    engine.add_source("lab")
    said = run()
    assert "several: " in said
    assert "--source" in said
    # Only one of them decodes it.
    assert "0 changes." in run("--database", "another")
    assert "0 changes." in run("--source", "lab")
    assert "Did you mean lab?" in run("--source", "lob")
    engine.sources = {"shop": dataclasses.replace(shop, sessions=())}
    assert "spillway slot create" in run()
    engine.sources = {}
    assert "spillway source add" in run()


def test_other_commands_mean_the_only_ones_too(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = service.engine
    shop = engine.sources["shop"]
    (session,) = shop.sessions
    commands = {
        "slot create %s": True,
        "subscription create %s --path /srv/lake --disabled": True,
        "source tables shop": False,
        "source publications shop": False,
    }

    def run(line: str, name: str = "x") -> str:
        code = main(line.replace("%s", name).split())
        captured = capsys.readouterr()
        assert (code == 0) == ("error" not in captured.err), captured.err
        return captured.err

    for number, line in enumerate(commands):
        assert "error" not in run(line, f"only{number}")
    assert engine.slots["only0"].database == "shop"
    assert service.subscriptions.subscriptions["only1"].source == "shop"

    two = (session, dataclasses.replace(session, database="another"))
    engine.sources["shop"] = dataclasses.replace(shop, sessions=two)
    for line in commands:
        said = run(line)
        assert 'which database is meant is not said, and there are several of source "shop"' in said
        assert "--database another" in said
        assert "which database" not in run(f"{line} --database shop", f"n{len(line)}")

    # What begins decoding does not send people to itself.
    engine.sources["shop"] = dataclasses.replace(shop, sessions=())
    for line, begins in commands.items():
        said = run(line)
        assert 'no database of source "shop" is decoded' in said
        assert ("--database NAME" in said, "spillway slot create" in said) == (begins, not begins)
    engine.add_source("lab")
    for line in commands:
        assert ("which source is meant" in run(line)) == ("create" in line)


def test_what_is_not_in_the_log_is_not_said_to_have_gone(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may never have been there: the source was added later."""
    assert main(["changes", "--since", "2026-01-01"]) == 0
    said = capsys.readouterr().err
    assert "The log begins at 0/0 (with no transaction yet)" in said
    assert "any more" not in said
