"""``spillway changes``: times as people write them, and changes as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import pytest

from spillway.cli.changes import lines_of
from spillway.cli.moments import moment
from spillway.errors import InvalidRequest

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
