"""Timeline history files."""

from __future__ import annotations

import pytest

from spillway.errors import CorruptWal
from spillway.pg.lsn import Lsn
from spillway.receiver.timeline_history import TimelineFork, fork_lsn, parse_history

HISTORY = b"""# a comment
1\t0/3000148\tno recovery target specified

2\t16/B374D848\tbefore 2026-11-21 08:00:00+00
"""


def test_parse() -> None:
    assert parse_history(HISTORY) == [
        TimelineFork(1, Lsn.parse("0/3000148")),
        TimelineFork(2, Lsn.parse("16/B374D848")),
    ]
    assert parse_history(b"") == []
    assert fork_lsn(HISTORY, 2) == Lsn.parse("16/B374D848")
    assert fork_lsn(HISTORY, 3) is None


@pytest.mark.parametrize("line", [b"x", b"1", b"1\t0", b"2\t0/1\n1\t0/2", b"1\t0/1\n1\t0/2"])
def test_malformed(line: bytes) -> None:
    with pytest.raises(CorruptWal):
        parse_history(line)
