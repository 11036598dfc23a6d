"""Signs of decoding, over attempts and restarts."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from spillway.errors import CorruptWal
from spillway.sessions.signs import DecodingSigns

if TYPE_CHECKING:
    from pathlib import Path

AN_HOUR = timedelta(hours=1)
DAMAGE = CorruptWal("a checksum is wrong", lsn="0/1000")


def test_decoding_has_stopped_until_it_is_past_what_stopped_it(tmp_path: Path) -> None:
    signs = DecodingSigns(tmp_path)
    assert not signs.continues
    signs.lsn = 0x900
    assert signs.is_past_failure(caught_up=True)
    signs.went_on()
    signs.settled = True
    assert (signs.state, signs.is_current(0)) == ("running", True)
    assert not signs.is_current(1 << 30)
    signs.lsn = 0x1000
    signs.failed(DAMAGE)
    since = signs.since
    # The next attempt begins at the last snapshot, before the damage.
    signs.lsn = 0x800
    assert not signs.is_past_failure(caught_up=False)
    assert (signs.state, signs.is_current(0)) == ("stopped", False)
    signs.failed(DAMAGE)
    assert signs.since == since, "it stands still since the first time"
    signs.lsn = 0x1001
    assert signs.is_past_failure(caught_up=False)
    signs.went_on()
    assert signs.state == "running"
    assert signs.since > since


def test_what_stood_still_before_the_start_did_not_begin_with_it(tmp_path: Path) -> None:
    (tmp_path / "1.txlog").write_bytes(b"x")
    before = datetime.now(UTC) - AN_HOUR
    os.utime(tmp_path / "1.txlog", (before.timestamp(), before.timestamp()))
    signs = DecodingSigns(tmp_path)
    assert (signs.continues, signs.state) == (True, "starting")
    assert not signs.is_current(0), "nothing is known yet"
    signs.failed(DAMAGE)
    assert abs(signs.since - before) < timedelta(seconds=1)
